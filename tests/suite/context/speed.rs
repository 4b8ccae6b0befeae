//! Measures how long requests take. Prints; run with `--ignored --nocapture`.

use std::time::Instant;

use super::{super::store::append, *};

/// Number of messages in the window.
const WINDOW: usize = 200;
const ROUNDS: usize = 30;
const BEFORE: [usize; 2] = [0, 20_000];

// The cost of a request must depend on its window, not on the history before it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures; the bench command is the one that counts"]
async fn measure_request_cost_by_history_length() {
    for before in BEFORE {
        let dir = tempfile::tempdir().unwrap();
        let id = ConversationId::generate();
        let engine = Engine::open(OpenOptions::new(dir.path())).await.unwrap();
        fill(&engine, id, before).await;
        engine.close().await;
        let engine = Engine::open(OpenOptions::new(dir.path())).await.unwrap();
        // Loads the encoding.
        let other = super::super::store::conversation(&engine).await;
        engine.build(query(other)).await.unwrap();
        for provider in Provider::ALL {
            let mut times = Vec::new();
            for _ in 0..ROUNDS {
                let start = Instant::now();
                let query = BuildQuery {
                    provider,
                    ..query(id)
                };
                engine.build(query).await.unwrap();
                times.push(start.elapsed().as_micros());
            }
            told(&format!("{before} events before, {provider}"), times);
        }
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            append(&engine, vec![say(id, Role::User, "next")])
                .await
                .unwrap();
            let start = Instant::now();
            engine.build(query(id)).await.unwrap();
            times.push(start.elapsed().as_micros());
        }
        told(
            &format!("{before} events before, after one more event"),
            times,
        );
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let start = Instant::now();
            engine.draft(query(id)).await.unwrap();
            times.push(start.elapsed().as_micros());
        }
        told("the draft alone", times);
        engine.close().await;
    }
}

/// Prints the first time, which includes cold caches, then the minimum and median of the others.
fn told(what: &str, mut times: Vec<u128>) {
    let first = times.remove(0);
    times.sort_unstable();
    let middle = times[times.len() / 2];
    println!(
        "{what}: first {first} µs, then at least {}, median {middle}",
        times[0]
    );
}

async fn fill(engine: &Engine, id: ConversationId, before: usize) {
    let created = EventBody::ConversationCreated(ConversationCreated::default());
    append(engine, vec![NewEvent::new(id, created)])
        .await
        .unwrap();
    let text = "some words of a line of a file that was read\n".repeat(23);
    let message = |number: usize| {
        let role = [Role::User, Role::Assistant][number % 2];
        say(id, role, &format!("{number} {text}"))
    };
    for start in (0..before).step_by(1_000) {
        let events = (start..start + 1_000).map(message).collect();
        append(engine, events).await.unwrap();
    }
    if before > 0 {
        let compacted = EventBody::Compacted(Compacted {
            summary: "what was done".to_owned(),
            cut_revision: Revision(before as u64 + 1),
            kept_turns: 0,
            tokens_before: 0,
            tokens_after: 0,
            trigger: CompactionTrigger::Manual,
            raw: None,
        });
        append(engine, vec![NewEvent::new(id, compacted)])
            .await
            .unwrap();
    }
    append(engine, (0..WINDOW).map(message).collect())
        .await
        .unwrap();
}
