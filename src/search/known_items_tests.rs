//! Known items: 200 queries as an agent would ask later, over real conversations,
//! each with what its answer has in it. Runs where `TREERING_TEST_DATA` names the
//! data folder. `tests/fixtures/search/README.md` says how they were made.

use std::{
    collections::{BTreeMap, HashSet},
    path::Path,
};

use serde_json::Value;

use super::{arguments::call_text, quality_tests::*, *};
use crate::domain::{EventKind, Role};

const QUERIES: &str = include_str!("../../tests/fixtures/search/known_items.jsonl");
/// Sources of tool results, messages and calls.
const SOURCES: [&str; 7] = [
    "claude-code-entire",
    "pi-mono",
    "swe-agent",
    "pydantic-ai-cassettes",
    "tau-bench",
    "intercode",
    "agentdojo",
];

/// A query, and what its answer has.
struct Item {
    class: String,
    of: EventKind,
    held_out: bool,
    query: String,
    answer_has: Vec<String>,
}

impl Item {
    fn is_answered_by(&self, event: &SearchableEvent) -> bool {
        let has = |wanted: &String| event.text.contains(wanted.as_str());
        event.kind == self.of && self.answer_has.iter().all(has)
    }
}

fn items() -> Vec<Item> {
    let item = |line: &str| {
        let item: Value = serde_json::from_str(line).unwrap();
        let text = |key: &str| item[key].as_str().unwrap().to_owned();
        let parts = item["answer_has"].as_array().unwrap();
        Item {
            class: text("class"),
            of: match item["of"].as_str().unwrap() {
                "result" => EventKind::ToolResultRecorded,
                "call" => EventKind::ToolCallRequested,
                _ => EventKind::MessageAppended,
            },
            held_out: item["held_out"].as_bool().unwrap(),
            query: text("query"),
            answer_has: parts
                .iter()
                .map(|part| part.as_str().unwrap().to_owned())
                .collect(),
        }
    };
    QUERIES.lines().map(item).collect()
}

/// Each text once: what is there a hundred times has a hundred best places.
fn texts(folder: &Path) -> Vec<SearchableEvent> {
    let mut seen: HashSet<(EventKind, String)> = HashSet::new();
    let mut events = Vec::new();
    let mut push = |kind, role: Option<Role>, tool: &str, text: String| {
        if text.trim().is_empty() || !seen.insert((kind, text.clone())) {
            return;
        }
        events.push(SearchableEvent {
            kind,
            role,
            tool: tool.to_owned(),
            success: None,
            ..result(events.len() as u64 + 1, text)
        });
    };
    for source in SOURCES {
        for conversation in json_lines(&folder.join(format!("{source}.jsonl.zst"))) {
            for message in conversation["messages"].as_array().into_iter().flatten() {
                let text = |key: &str| message[key].as_str().unwrap_or_default();
                let role = match text("role") {
                    "tool" => {
                        let content = text("content").to_owned();
                        push(EventKind::ToolResultRecorded, None, "tool", content);
                        continue;
                    }
                    "user" => Role::User,
                    "assistant" => Role::Assistant,
                    _ => continue,
                };
                for call in message["tool_calls"].as_array().into_iter().flatten() {
                    let function = &call["function"];
                    let arguments = function["arguments"].as_str().unwrap_or_default();
                    let text = call_text(arguments);
                    push(EventKind::ToolCallRequested, None, "tool", text);
                }
                let said = [text("reasoning_content"), text("content")];
                let said: Vec<&str> = said.into_iter().filter(|t| !t.is_empty()).collect();
                push(EventKind::MessageAppended, Some(role), "", said.join("\n"));
            }
        }
    }
    events
}

#[derive(Default)]
struct Score {
    queries: f64,
    first: f64,
    reciprocal: f64,
}

impl Score {
    fn add(&mut self, rank: Option<usize>) {
        self.queries += 1.0;
        self.first += f64::from(u8::from(rank == Some(0)));
        self.reciprocal += rank.map_or(0.0, |rank| 1.0 / (rank as f64 + 1.0));
    }
}

/// success@1 and MRR@10 by class, and of the queries that weights were not chosen on.
fn measure(
    what: &str,
    index: &SearchIndex,
    events: &[SearchableEvent],
    items: &[&Item],
) -> BTreeMap<String, Score> {
    let mut scores: BTreeMap<String, Score> = BTreeMap::new();
    for item in items {
        let found = ranked(index, &item.query, 10);
        let is_answer = |at: &u64| {
            let event = events.binary_search_by_key(at, |event| event.position.offset);
            item.is_answered_by(&events[event.unwrap()])
        };
        let rank = found.iter().position(is_answer);
        if std::env::var_os("TREERING_SHOW_MISSES").is_some() && rank != Some(0) {
            println!("  {rank:?} {}: {}", item.class, item.query);
        }
        let half = if item.held_out { "held out" } else { "seen" };
        for of in ["all", half, &format!("- {}", item.class)] {
            scores.entry(of.to_owned()).or_default().add(rank);
        }
    }
    println!("{what}: {} passages", index.passage_count());
    for (of, score) in &scores {
        let (first, mrr) = (
            score.first / score.queries,
            score.reciprocal / score.queries,
        );
        println!(
            "  {of:<12} {:3} queries: success@1 {first:.3}, MRR {mrr:.3}",
            score.queries
        );
    }
    scores
}

// What an agent looks for a week later: pasted lines, names, paths, plain words.
#[test]
fn what_agents_ask_for_comes_first() {
    let Some(data) = data() else { return };
    let all = texts(&data.join("trajectories"));
    let of = |kinds: &[EventKind]| -> Vec<SearchableEvent> {
        let wanted = all.iter().filter(|event| kinds.contains(&event.kind));
        wanted.cloned().collect()
    };
    let (call, message, result) = (
        EventKind::ToolCallRequested,
        EventKind::MessageAppended,
        EventKind::ToolResultRecorded,
    );
    let items = items();
    let asked = |kinds: &[EventKind]| -> Vec<&Item> {
        let wanted = items.iter().filter(|item| kinds.contains(&item.of));
        wanted.collect()
    };
    let results = index_of(&of(&[result]));
    let alone = measure("tool results", &results, &all, &asked(&[result]));
    let said = index_of(&of(&[result, message]));
    let mixed = measure("results with messages", &said, &all, &asked(&[result]));
    measure("messages with results", &said, &all, &asked(&[message]));
    let index = index_of(&all);
    let everything = measure("everything", &index, &all, &asked(&[call, message, result]));
    // FTS5 over the same texts: 0.756 and 0.827; 0.643 and 0.736; 0.585 and 0.684.
    for (scores, first, mrr) in [
        (alone, 0.82, 0.87),
        (mixed, 0.80, 0.85),
        (everything, 0.80, 0.85),
    ] {
        let all = &scores["all"];
        let (own, own_mrr) = (all.first / all.queries, all.reciprocal / all.queries);
        assert!(own >= first && own_mrr >= mrr, "{own:.3}, {own_mrr:.3}");
    }
}
