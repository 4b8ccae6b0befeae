//! Known items: 200 queries over real conversations, as an agent would ask later, each with a text
//! that its answer contains. Runs when `TREERING_TEST_DATA` names the data folder, and with
//! `TREERING_TEST_ALL` over one more choice of texts. `tests/fixtures/search/README.md` says how
//! they were made.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::Path,
};

use serde_json::Value;

use super::{arguments::call_text, quality_tests::*, *};
use treering_domain::{EventKind, Namespace, Role};

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

/// A query, and a text that its answer contains.
pub(super) struct Item {
    class: String,
    of: EventKind,
    held_out: bool,
    pub(super) query: String,
    answer_has: Vec<String>,
}

impl Item {
    pub(super) fn is_answered_by(&self, event: &SearchableEvent) -> bool {
        let has = |wanted: &String| event.text.contains(wanted.as_str());
        event.kind == self.of && self.answer_has.iter().all(has)
    }
}

pub(super) fn items() -> Vec<Item> {
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

/// Returns the texts of the queries.
pub(super) fn queries() -> Vec<String> {
    items().into_iter().map(|item| item.query).collect()
}

/// Returns each text once, because a text stored a hundred times has a hundred equally good hits.
pub(super) fn texts(folder: &Path) -> Vec<SearchableEvent> {
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
            recalled: false,
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

/// Returns the log offsets of the best events, after reading the first ones' texts.
fn ranked_by_texts(
    index: &SearchIndex,
    events: &[SearchableEvent],
    text: &str,
    limit: usize,
) -> Vec<u64> {
    let query = SearchQuery {
        limit,
        told_by_text: true,
        ..SearchQuery::new(Namespace::default(), text)
    };
    let mut results = index.search(&query).unwrap();
    let passage = |hit: &Hit| {
        let event = events.binary_search_by_key(&hit.position, |event| event.position);
        let start = usize::try_from(hit.byte_start).unwrap();
        passage_at(&events[event.unwrap()].text, start)
            .unwrap()
            .text
    };
    let first = results.hits.iter().take(results.as_typed.hits);
    let standings = first.map(|hit| results.as_typed.standing(passage(hit)));
    VerbatimQuery::reorder(standings.collect(), &mut results, &query);
    results.hits.iter().map(|hit| hit.position.offset).collect()
}

/// Computes success@1 and MRR@10 by class, and for the queries held out from tuning.
fn measure(
    what: &str,
    index: &SearchIndex,
    events: &[SearchableEvent],
    items: &[&Item],
) -> BTreeMap<String, Score> {
    let mut scores: BTreeMap<String, Score> = BTreeMap::new();
    for item in items {
        let found = ranked_by_texts(index, events, &item.query, 10);
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

// For names of several parts from real results, texts with the whole name must rank before all
// texts with its parts, even if repeated.
#[test]
fn whole_names_rank_before_their_parts() {
    let Some((texts, index)) = indexed_results() else {
        return;
    };
    let is_name = |word: &&str| {
        let has_joint = word.contains('_') || word.contains(char::is_uppercase);
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        (8..=60).contains(&word.len()) && has_joint && word.chars().all(is_plain)
    };
    let mut analyser = analyser::Analyser::default();
    let mut names: Vec<(String, String)> = Vec::new();
    for text in texts.iter().step_by(7) {
        let mut words = text.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        let Some(name) = words.rfind(is_name) else {
            continue;
        };
        let analysis = analyser.analyse(name);
        let mut wholes = analysis.iter();
        let whole = wholes.find(|term| term.form == analyser::TermForm::Whole);
        names.extend(whole.map(|whole| (name.to_owned(), whole.term.to_owned())));
    }
    names.sort_unstable();
    names.dedup();
    let mut terms: HashMap<u64, HashSet<String>> = HashMap::new();
    let mut mixed = 0;
    for (name, whole) in &names {
        for query in [
            name.clone(),
            format!("where did we change {name} in the test"),
        ] {
            let mut has = |at: &u64| {
                let of_text = terms.entry(*at).or_insert_with(|| {
                    let analysis = analyser.analyse(&texts[*at as usize - 1]);
                    analysis.iter().map(|term| term.term.to_owned()).collect()
                });
                of_text.contains(whole)
            };
            let has_whole: Vec<bool> = ranked(index, &query, 20).iter().map(&mut has).collect();
            let first_without = has_whole.iter().position(|has| !has);
            let behind = &has_whole[first_without.unwrap_or(has_whole.len())..];
            assert!(!behind.contains(&true), "{query}: {has_whole:?}");
            mixed += usize::from(first_without.is_some_and(|at| at > 0));
        }
    }
    println!("{} names, {mixed} answers with both", names.len());
    assert!(names.len() > 200 && mixed > 100, "{} {mixed}", names.len());
}

// What an agent searches for a week later: pasted lines, names, paths, plain words.
#[test]
fn known_item_ranking_is_above_its_floor() {
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
    let mixed = std::env::var_os("TREERING_TEST_ALL").map(|_| {
        let said = index_of(&of(&[result, message]));
        measure("messages with results", &said, &all, &asked(&[message]));
        measure("results with messages", &said, &all, &asked(&[result]))
    });
    let index = index_of(&all);
    let everything = measure("everything", &index, &all, &asked(&[call, message, result]));
    // FTS5 over the same texts: 0.756 and 0.827; 0.643 and 0.736; 0.585 and 0.684.
    let floors = [
        (Some(alone), 0.82, 0.87),
        (mixed, 0.80, 0.85),
        (Some(everything), 0.80, 0.85),
    ];
    for (scores, first, mrr) in floors {
        let Some(scores) = scores else { continue };
        let all = &scores["all"];
        let (own, own_mrr) = (all.first / all.queries, all.reciprocal / all.queries);
        assert!(own >= first && own_mrr >= mrr, "{own:.3}, {own_mrr:.3}");
    }
}
