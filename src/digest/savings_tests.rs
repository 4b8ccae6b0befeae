//! Measures how many tokens result digests save in real conversations. Takes a minute and has one
//! assertion:
//!
//! `TREERING_PRINT_SNAPSHOTS` also prints some of the digests.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    path::PathBuf,
    sync::Arc,
};

use super::{
    Digested,
    summary::{probe_tests::last_branch, result_summary},
};
use treering_context::{
    draft::{Draft, Item, Outcome, full_result_ref},
    enhancer,
    policy::{ContextPolicy, ToolResults},
    provider::Provider,
    samples::window_of,
    tokens::{Counter, Tally},
    window::{WindowEvent, WindowInput},
};
use treering_domain::*;

/// Number of conversations of each source.
const CONVERSATIONS: usize = 60;

fn window(line: &[u8]) -> WindowInput {
    // Measures the whole conversation: a compaction would start a new window.
    let is_cut = |event: &Arc<WindowEvent>| matches!(event.body, EventBody::Compacted(_));
    let mut events = last_branch(line);
    events.retain(|event| !is_cut(event));
    window_of(events[0].at.conversation, events).digested()
}

// With JSON escaped in JSON and a long reference, 48 % of the digests were longer than the result.
#[test]
#[ignore = "a minute of measurement"]
fn measure_token_savings_of_result_digests() {
    let Some(data) = std::env::var_os("TREERING_TEST_DATA").map(PathBuf::from) else {
        println!("skipped: TREERING_TEST_DATA names no data folder");
        return;
    };
    let counter = Counter::for_model("gpt-4o");
    let print = std::env::var_os("TREERING_PRINT_SNAPSHOTS").is_some();
    let policy = ContextPolicy {
        tool_results: ToolResults::TurnEnd,
        ..ContextPolicy::default()
    };
    println!("source, results, tokens whole, as JSON, longer as JSON, in short, shortened");
    for source in [
        "claude-code-entire",
        "pi-mono",
        "swe-agent",
        "tau-bench",
        "agentdojo",
        "intercode",
    ] {
        let file = data
            .join("trajectories")
            .join(format!("{source}.jsonl.zst"));
        let file = std::fs::File::open(file).unwrap();
        let lines = BufReader::new(zstd::Decoder::new(file).unwrap()).lines();
        let (mut results, mut whole, mut json, mut longer) = (0, 0, 0, 0);
        let (mut short, mut shortened) = (0, 0);
        for line in lines.take(CONVERSATIONS) {
            let window = window(line.unwrap().as_bytes());
            let recorded: BTreeMap<EventRef, &ToolResultRecorded> = window
                .events
                .iter()
                .filter_map(|event| match &event.body {
                    EventBody::ToolResultRecorded(result) => Some((event.at, result)),
                    _ => None,
                })
                .collect();
            let mut draft = Draft {
                provider: Provider::OpenAiChat,
                config: Config::default(),
                tools: Vec::new(),
                tools_tokens: 0,
                items: Vec::new(),
                warnings: Vec::new(),
            };
            let tally = Tally::new(counter, None);
            enhancer::run(&window, &policy, &[], &tally, &mut draft);
            for call in draft
                .items
                .iter()
                .filter_map(Item::step)
                .flat_map(|step| step.calls())
            {
                let (event, now) = match &call.outcome {
                    Outcome::Snapshot(snapshot) => (snapshot.event, Some(snapshot.text())),
                    Outcome::Result(result) => (result.event, None),
                    Outcome::Missing { .. } => continue,
                };
                let Some(result) = recorded.get(&event) else {
                    continue;
                };
                let texts = result.parts.iter().filter_map(ContentPart::text);
                let tokens: u64 = texts.map(|text| counter.count(text)).sum();
                let tokens = tokens + counter.count(&result.error_message);
                let as_json = serde_json::json!({
                    "result_summary": result_summary(result, 300),
                    "full_result_ref": full_result_ref(event),
                });
                let as_json = counter.count(&as_json.to_string());
                results += 1;
                whole += tokens;
                json += as_json;
                longer += u64::from(as_json > tokens);
                if let Some(text) = now.as_ref().filter(|_| print && results % 97 == 0) {
                    println!("--- {source}, {tokens} tokens of {}\n{text}", call.tool);
                }
                match now.map(|text| counter.count(&text)) {
                    Some(now) => {
                        assert!(
                            now * 4 <= tokens * 3,
                            "{source} {event:?}: {now} for {tokens}"
                        );
                        short += now;
                        shortened += 1;
                    }
                    None => short += tokens,
                }
            }
        }
        println!("{source}, {results}, {whole}, {json}, {longer}, {short}, {shortened}");
    }
}
