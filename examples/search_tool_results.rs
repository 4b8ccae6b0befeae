//! Records files that a tool read, and finds the byte range of a phrase in them.
//!
//! ```text
//! cargo run --example search_tool_results
//! cargo run --example search_tool_results -- "fsync OR commit"
//! ```

use std::{env, error::Error, fs, path::Path};

use treering::{domain::*, engine::*, proto::body};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let query = env::args().nth(1);
    let query = query.unwrap_or_else(|| "\"idempotency key\"".to_owned());
    let engine = Engine::in_memory(Limits::default()).await?;
    let namespace = Namespace::default();
    let id = ConversationId::generate();

    let created = EventBody::ConversationCreated(ConversationCreated::default());
    let mut events = vec![NewEvent::new(id, created)];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto/treering/v1");
    let mut files: Vec<_> = fs::read_dir(&folder)?.collect::<Result<_, _>>()?;
    files.sort_by_key(fs::DirEntry::file_name);
    for (number, file) in files.iter().enumerate() {
        let call_id = format!("call_{number}");
        let name = file.file_name().to_string_lossy().into_owned();
        let text = fs::read_to_string(file.path())?;
        let [asked, answered] = read_file(&call_id, &name, text)?;
        events.extend([NewEvent::new(id, asked), NewEvent::new(id, answered)]);
    }
    let appended = engine
        .append(AppendCommand::new(namespace.clone(), events))
        .await?;

    // Indexing is asynchronous: `at_least` waits until the appended events are indexed.
    let answer = engine
        .search(SearchRequest {
            filters: SearchFilters {
                tools: vec!["read_file".into()],
                ..SearchFilters::default()
            },
            at_least: appended.events.last().map(|event| event.position),
            ..SearchRequest::new(namespace.clone(), &query, 3)
        })
        .await?;
    println!("{query}: {} passages", answer.total);
    for SearchHit { found, details, .. } in &answer.hits {
        println!(
            "\n{} {} (revision {}), from line {}, bytes {}..{}, score {:.2}",
            found.tool,
            details.call_id,
            found.revision,
            details.line,
            details.byte_start,
            details.byte_end,
            found.score
        );
        println!("{}", details.snippet);
        // Cut the passage from the recorded result.
        let which = WhichResult::Revision(found.revision);
        let result = engine
            .result(&BranchAddress::active(namespace.clone(), id), which)
            .await?;
        let passage = usize::try_from(details.passage.byte_start)?
            ..usize::try_from(details.passage.byte_end)?;
        let passage = result
            .text
            .get(passage)
            .ok_or("a passage is part of its result")?;
        println!("… in a passage of {} lines", passage.lines().count());
    }
    engine.close().await;
    Ok(())
}

/// Returns a call of a tool that reads a file, and its result.
fn read_file(call_id: &str, name: &str, text: String) -> Result<[EventBody; 2], Box<dyn Error>> {
    let arguments = serde_json::json!({ "path": name }).to_string();
    let asked = body::tool_call(call_id, "read_file", &arguments)?;
    let answered = ToolResultRecorded::text(call_id, text);
    Ok([
        EventBody::ToolCallRequested(asked),
        EventBody::ToolResultRecorded(answered),
    ])
}
