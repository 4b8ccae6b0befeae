//! Requests of real trajectories.
//!
//! Runs where `TREERING_TEST_DATA` names the folder of the data.

use std::{env, path::Path};

use treering::import::{openai_chat, plan, source::LineSource};
use treering_provider_check::assert_legal;

use super::*;

/// Number of conversations tested of each file, and of revisions in each.
const CONVERSATIONS: usize = 10;
const PLACES: u64 = 5;
const FILES: [&str; 7] = [
    "agentdojo",
    "claude-code-entire",
    "intercode",
    "pi-mono",
    "pydantic-ai-cassettes",
    "swe-agent",
    "tau-bench",
];

// Any real history, cut at any revision, must give a request that every provider accepts, with
// every call answered and every token counted in its line.
#[tokio::test(flavor = "multi_thread")]
async fn real_trajectories_give_legal_requests() {
    let Some(folder) = env::var_os("TREERING_TEST_DATA") else {
        println!("skipped: TREERING_TEST_DATA names no folder");
        return;
    };
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    for file in FILES {
        let path = Path::new(&folder)
            .join("trajectories")
            .join(format!("{file}.jsonl.zst"));
        let lines = LineSource::open(&path, |_| {}).unwrap();
        let mut basis = None;
        let (mut requests, mut tokens, mut calls) = (0, 0, 0);
        for (_, line) in lines.take(CONVERSATIONS) {
            let imported = openai_chat::import_line(&line.unwrap()).unwrap();
            let id = imported.conversation;
            for batch in plan::batches(imported.events, 4_000, 8 << 20) {
                engine
                    .append(AppendCommand::new(ns(), batch))
                    .await
                    .unwrap();
            }
            for at in places(&engine, id).await {
                let (explained, of_calls) = look(&engine, id, at).await;
                requests += 1;
                tokens += explained.tokens;
                basis = Some(explained.basis)
                    .filter(|basis| basis.calibrated_on > 0)
                    .or(basis);
                calls += of_calls;
            }
        }
        println!("{file}: {requests} requests, {tokens} tokens, {calls} calls, {basis:?}");
        assert!(requests > 0 && tokens > 0);
    }
    engine.close().await;
}

/// Returns revisions spread over the active branch, and its head.
async fn places(engine: &Engine, id: ConversationId) -> Vec<Revision> {
    let source = EventSource::Branch {
        conversation: id,
        branch: None,
    };
    let events = engine.read_all(ReadQuery::all(ns(), source)).await.unwrap();
    let last = events.len() as u64 - 1;
    (0..=PLACES)
        .map(|part| {
            events[(last * part / PLACES) as usize]
                .event
                .header
                .revision
        })
        .collect()
}

async fn look(engine: &Engine, id: ConversationId, at: Revision) -> (Explanation, usize) {
    let past = |provider| BuildQuery {
        as_of: Some(at),
        provider,
        ..query(id)
    };
    for provider in Provider::ALL {
        let built = engine.build(past(provider)).await;
        let built = built.unwrap_or_else(|error| panic!("{provider} {id} as of {at}: {error}"));
        assert_legal(provider.as_str(), &built.request);
        adds_up(&built.explanation);
    }
    let (draft, explanation) = engine.draft(past(Provider::Neutral)).await.unwrap();
    let steps = draft.items.iter().filter_map(Item::step);
    let calls: usize = steps.map(|step| step.calls().count()).sum();
    let source = EventSource::Branch {
        conversation: id,
        branch: None,
    };
    let requested = ReadQuery {
        kinds: vec![EventKind::ToolCallRequested],
        to: at.0,
        ..ReadQuery::all(ns(), source)
    };
    let requested = engine.read_all(requested).await.unwrap().len();
    if explanation.enhancers[3].did == "there was no compaction" {
        assert_eq!(calls, requested, "{id} as of {at}");
    }
    (explanation, calls)
}
