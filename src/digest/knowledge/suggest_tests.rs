//! Measures file names and suggestions on real coding sessions in the folder given by
//! `TREERING_TEST_DATA`:
//! `TREERING_TEST_DATA=… cargo test -p treering-digest suggest_tests -- --nocapture`

use std::{
    collections::{BTreeMap, HashSet},
    io::{BufRead, BufReader},
    path::PathBuf,
    sync::Arc,
};

use serde_json::Value;

use super::{Knowledge, KnowledgePolicy, read::is_rooted};
use treering_domain::*;

/// Tools whose path argument is guessed, and the name of that argument.
const TOOLS: [&str; 3] = ["Read", "Edit", "Write"];
const ARGUMENT: &str = "file_path";
/// Length of a list of suggestions, including the value and its alternatives.
const LIST: usize = 11;

/// Returns the sessions, or none if there is no data.
fn sessions() -> Option<Vec<Value>> {
    let Some(data) = std::env::var_os("TREERING_TEST_DATA").map(PathBuf::from) else {
        println!("skipped: TREERING_TEST_DATA names no data folder");
        return None;
    };
    let file = data.join("trajectories/claude-code-entire.jsonl.zst");
    let lines = BufReader::new(zstd::Decoder::new(std::fs::File::open(file).unwrap()).unwrap());
    let session = |line: std::io::Result<String>| serde_json::from_str(&line.unwrap()).unwrap();
    Some(lines.lines().map(session).collect())
}

fn events_of(message: &Value) -> Vec<EventBody> {
    let text = message["content"].as_str().unwrap_or_default();
    match message["role"].as_str().unwrap() {
        "assistant" => {
            let said = MessageAppended::text(Role::Assistant, text);
            let calls = message["tool_calls"].as_array().into_iter().flatten();
            let requests = calls.map(|call| {
                let arguments = call["function"]["arguments"].as_str().unwrap().to_owned();
                EventBody::ToolCallRequested(ToolCallRequested {
                    call_id: call["id"].as_str().unwrap().to_owned(),
                    tool: call["function"]["name"].as_str().unwrap().to_owned(),
                    arguments: JsonText::from_checked(arguments.into()),
                    ..ToolCallRequested::default()
                })
            });
            let said = EventBody::MessageAppended(said);
            std::iter::once(said).chain(requests).collect()
        }
        "tool" => {
            let id = message["tool_call_id"].as_str().unwrap_or_default();
            let mut result = ToolResultRecorded::text(id, text);
            result.success = message["x"]["is_error"] != true;
            vec![EventBody::ToolResultRecorded(result)]
        }
        _ => Vec::new(),
    }
}

#[derive(Debug, Default)]
struct Tally {
    calls: u32,
    first: u32,
    list: u32,
    /// The same for the files named in the last calls.
    last_first: u32,
    last_list: u32,
    /// Base names completed correctly, completed wrongly, and in total.
    completed: u32,
    miscompleted: u32,
    known: u32,
}

impl Tally {
    fn share(part: u32, all: u32) -> f64 {
        f64::from(part) / f64::from(all.max(1))
    }
}

fn values(knowledge: &Knowledge, tool: &str, given: &str) -> Vec<String> {
    let arguments = serde_json::json!({ ARGUMENT: given }).to_string();
    let answer = knowledge.suggest_arguments(tool, &arguments, None).unwrap();
    let suggestion = answer.suggestions.into_iter().next();
    let all = suggestion
        .into_iter()
        .flat_map(|suggestion| std::iter::once(suggestion.value).chain(suggestion.alternatives));
    all.map(|text| serde_json::from_str(&text).unwrap())
        .take(LIST)
        .collect()
}

// A suggestion must be correct more often than the simplest guess, the file of the last call. Each
// file must have one name, so that its base name can be completed.
#[test]
fn suggestions_of_real_calls_beat_the_last_file() {
    let Some(sessions) = sessions() else { return };
    let mut tallies: BTreeMap<&str, Tally> = BTreeMap::new();
    let (mut files, mut twice) = (0, 0);
    for session in &sessions {
        let policy = Arc::new(KnowledgePolicy::default());
        let mut knowledge = Knowledge::new(policy, 10_000);
        let mut last: Vec<String> = Vec::new();
        let bodies = session["messages"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(events_of);
        for (index, body) in bodies.enumerate() {
            if let EventBody::ToolCallRequested(call) = &body
                && let Some(tool) = TOOLS.into_iter().find(|tool| *tool == call.tool)
                && let Ok(Value::Object(given)) = serde_json::from_str(call.arguments.as_str())
                && let Some(path) = given.get(ARGUMENT).and_then(Value::as_str)
            {
                let tally = tallies.entry(tool).or_default();
                let list = values(&knowledge, tool, "");
                tally.calls += 1;
                tally.first += u32::from(list.first().is_some_and(|first| first == path));
                tally.list += u32::from(list.iter().any(|known| known == path));
                tally.last_first += u32::from(last.first().is_some_and(|last| last == path));
                tally.last_list += u32::from(last.iter().take(LIST).any(|last| last == path));
                if knowledge.file(path).is_some() {
                    let base = path.rsplit('/').next().unwrap();
                    let completed = values(&knowledge, tool, base);
                    tally.known += 1;
                    tally.completed += u32::from(completed.first().is_some_and(|of| of == path));
                    tally.miscompleted += u32::from(completed.first().is_some_and(|of| of != path));
                }
                last.retain(|known| known != path);
                last.insert(0, path.to_owned());
            }
            let at = EventRef {
                conversation: ConversationId::default(),
                revision: Revision(index as u64 + 1),
            };
            knowledge.apply(at, &body);
        }
        let rooted: HashSet<&str> = knowledge
            .files()
            .iter()
            .map(|file| &*file.path)
            .filter(|path| is_rooted(path))
            .collect();
        files += knowledge.files().len();
        let is_twice = |path: &str| {
            let end = format!("/{path}");
            !is_rooted(path) && rooted.iter().any(|rooted| rooted.ends_with(&end))
        };
        twice += knowledge
            .files()
            .iter()
            .filter(|file| is_twice(&file.path))
            .count();
    }
    println!("files {files}, of them relative names of files also known by absolute ones {twice}");
    println!(
        "tool  calls  first (last file)  list (last files)  base names completed / wrong / known"
    );
    for (tool, of) in &tallies {
        println!(
            "{tool:5} {:6} {:6.2} ({:.2}) {:12.2} ({:.2}) {:12} / {} / {}",
            of.calls,
            Tally::share(of.first, of.calls),
            Tally::share(of.last_first, of.calls),
            Tally::share(of.list, of.calls),
            Tally::share(of.last_list, of.calls),
            of.completed,
            of.miscompleted,
            of.known,
        );
    }
    let sum = |of: fn(&Tally) -> u32| tallies.values().map(of).sum::<u32>();
    let calls = sum(|of| of.calls);
    let share = |of: fn(&Tally) -> u32| Tally::share(sum(of), calls);
    println!(
        "all {calls}: first {:.3} ({:.3}), list {:.3} ({:.3})",
        share(|of| of.first),
        share(|of| of.last_first),
        share(|of| of.list),
        share(|of| of.last_list),
    );
    assert!(sum(|of| of.first) > sum(|of| of.last_first));
    assert!(sum(|of| of.list) > sum(|of| of.last_list));
}
