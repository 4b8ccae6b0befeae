//! Measures the disk space of an agent's state that is stored at each step: as a whole, and as the
//! difference from the previous state.
//!
//! ```text
//! cargo run --release --example growing_state -- 200 400
//! ```

use std::{error::Error, fmt::Write, path::Path, time::Instant};

use treering::{domain::*, engine::*};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let steps = match asked.is_empty() {
        true => vec![50],
        false => asked
            .iter()
            .map(|steps| steps.parse())
            .collect::<Result<Vec<usize>, _>>()?,
    };
    println!(
        "steps  stored as      raw MB  open MB  sealed MB  append ms  read all ms  read last ms"
    );
    for steps in steps {
        for delta_of in ["", "state"] {
            measure(steps, delta_of).await?;
        }
    }
    Ok(())
}

async fn measure(steps: usize, delta_of: &str) -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let engine = Engine::open(OpenOptions::new(folder.path())).await?;
    let id = ConversationId::generate();
    let created = EventBody::ConversationCreated(ConversationCreated::default());
    append(&engine, NewEvent::new(id, created)).await?;

    let mut messages: Vec<String> = Vec::new();
    let mut raw = 0;
    let began = Instant::now();
    for step in 0..steps {
        messages.push(message(step));
        let state = format!(r#"{{"step":{step},"messages":[{}]}}"#, messages.join(","));
        raw += state.len();
        let custom = Custom {
            type_name: "state".to_owned(),
            content_type: "application/json".to_owned(),
            data: state.into(),
            text: String::new(),
            delta_of: delta_of.to_owned(),
        };
        append(
            &engine,
            NewEvent::new(id, EventBody::Custom(custom)).with_key("state"),
        )
        .await?;
    }
    let appended = began.elapsed();
    let open = bytes_of(&folder.path().join("log"))?;

    engine.close().await;
    // Reopens the store, so that nothing is cached in memory.
    let engine = Engine::open(OpenOptions::new(folder.path())).await?;
    let last = LatestQuery {
        namespace: Namespace::default(),
        conversations: vec![id],
        branch: None,
        wanted: vec![EventSelector::Key("state".to_owned())],
        as_of: None,
        headers_only: false,
        bytes_max: usize::MAX,
    };
    let began = Instant::now();
    engine.latest(last).await?;
    let read_last = began.elapsed();
    let began = Instant::now();
    let source = EventSource::Conversation(id);
    engine
        .read_all(ReadQuery::all(Namespace::default(), source))
        .await?;
    let read = began.elapsed();
    engine.pack_log().await?;
    engine.close().await;
    let sealed = bytes_of(&folder.path().join("log"))?;
    println!(
        "{steps:>5}  {:<11}  {:>8.2}  {:>7.2}  {:>9.2}  {:>9.2}  {:>11.1}  {:>12.2}",
        if delta_of.is_empty() {
            "they are"
        } else {
            "differences"
        },
        megabytes(raw as u64),
        megabytes(open),
        megabytes(sealed),
        appended.as_secs_f64() * 1e3 / steps as f64,
        read.as_secs_f64() * 1e3,
        read_last.as_secs_f64() * 1e3,
    );
    Ok(())
}

async fn append(engine: &Engine, event: NewEvent) -> Result<(), AppendError> {
    let command = AppendCommand::new(Namespace::default(), vec![event]);
    engine.append(command).await.map(|_| ())
}

/// Returns a message of about 450 bytes with unique id and text.
fn message(step: usize) -> String {
    let hash = |part: usize| blake3::hash(format!("{step} {part}").as_bytes()).to_hex();
    let mut words = String::new();
    for word in 0..40 {
        let hash = hash(word);
        let length = 3 + usize::from(hash.as_bytes()[0] % 8);
        let _never = write!(words, "{} ", &hash[..length]);
    }
    let role = if step.is_multiple_of(2) {
        "user"
    } else {
        "assistant"
    };
    format!(
        r#"{{"id":"{}","role":"{role}","content":"{words}","additional_kwargs":{{}}}}"#,
        hash(99)
    )
}

fn bytes_of(folder: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes)
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
