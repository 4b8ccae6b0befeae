//! Measures how much of what a successor needs is in the extract: 60 questions about 20 real
//! sessions (`tests/fixtures/compaction/questions.jsonl`), written from the original sessions. A
//! question is answered if all its phrases are in the extract, ignoring case and spacing. The
//! sessions are in the folder given by `TREERING_TEST_DATA`.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::Value;

use super::*;
use treering_context::{compaction::EXTRACT_CHARS_MIN, window::WindowEvent};
use treering_domain::*;
use treering_import::openai_chat;

const QUESTIONS: &str = "../../tests/fixtures/compaction/questions.jsonl";

struct Session {
    extract: String,
    /// A summary of 6,000 characters with one line for each turn, for comparison.
    by_turn: String,
    original_chars: usize,
}

/// Returns the history of the branch on which an imported conversation was last continued.
pub(crate) fn last_branch(line: &[u8]) -> Vec<Arc<WindowEvent>> {
    let events = openai_chat::import_line(line).unwrap().events;
    let said = |event: &&NewEvent| matches!(event.body, EventBody::MessageAppended(_));
    let last = events.iter().rfind(said).unwrap_or(&events[0]);
    let mut held = vec![false; events.len()];
    let (mut branch, mut up_to) = (&last.branch, events.len());
    loop {
        for (at, event) in events.iter().enumerate().take(up_to) {
            held[at] |= event.branch == *branch;
        }
        let fork = events.iter().find_map(|event| match &event.body {
            EventBody::BranchForked(fork) if Some(&fork.name) == branch.as_ref() => Some(fork),
            _ => None,
        });
        let Some(fork) = fork else { break };
        up_to = usize::try_from(fork.fork_revision.0).unwrap();
        // A branch's id is the revision of its first event.
        branch = match usize::try_from(fork.parent.0).unwrap() {
            id if fork.parent != BranchId::MAIN && id > 0 => &events[id - 1].branch,
            _ => &events[0].branch,
        };
    }
    let of_branch = events.into_iter().enumerate().filter(|(at, _)| held[*at]);
    of_branch
        .map(|(at, event)| {
            Arc::new(WindowEvent {
                at: EventRef {
                    conversation: event.conversation,
                    revision: Revision(at as u64 + 1),
                },
                offset: at as u64 + 1,
                recorded_at: TimestampMicros(0),
                body: event.body,
            })
        })
        .collect()
}

/// Returns the extract of a session's whole last branch.
fn session(line: &[u8]) -> Session {
    let events = last_branch(line);
    let mut original_chars = 0;
    for event in &events {
        let parts = match &event.body {
            EventBody::ToolCallRequested(call) => {
                original_chars += call.arguments.as_str().len();
                continue;
            }
            EventBody::ToolResultRecorded(result) => &result.parts,
            EventBody::MessageAppended(message) => &message.parts,
            _ => continue,
        };
        let texts = parts.iter().filter_map(ContentPart::text);
        original_chars += texts.map(str::len).sum::<usize>();
    }
    // As in the default policy: a share of the replaced text, up to a limit.
    let max_chars = (original_chars * 15 / 100).clamp(EXTRACT_CHARS_MIN, 32_000);
    let conversation = events[0].at.conversation;
    Session {
        extract: compaction_extract(&events, None, max_chars),
        by_turn: dialogue_summary(conversation, &events, 6_000),
        original_chars,
    }
}

fn plain(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").to_lowercase()
}

/// Whether all phrases are present. One of several alternatives is enough.
fn is_answered(extract: &str, question: &Value) -> bool {
    let expected = question["expect"].as_array().unwrap();
    expected.iter().all(|alternatives| {
        let mut phrases = alternatives.as_array().unwrap().iter();
        phrases.any(|phrase| extract.contains(&plain(phrase.as_str().unwrap())))
    })
}

// An extract must have the requests, decisions and changes. With one line for each turn, 1,478
// tokens of clipped quotations replaced 245,089. `--nocapture` prints the results, and
// `TREERING_PRINT_EXTRACTS` also prints the extracts.
#[test]
fn extracts_answer_questions_about_real_sessions() {
    let Some(data) = std::env::var_os("TREERING_TEST_DATA").map(PathBuf::from) else {
        println!("skipped: TREERING_TEST_DATA names no data folder");
        return;
    };
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(QUESTIONS);
    let questions: Vec<Value> = std::fs::read_to_string(file)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let key = |question: &Value| {
        let text = |key: &str| question[key].as_str().unwrap().to_owned();
        (text("source"), text("conversation"))
    };
    let mut by_source: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for question in &questions {
        let (source, id) = key(question);
        by_source.entry(source).or_default().insert(id);
    }
    let mut sessions = HashMap::new();
    for (source, ids) in &by_source {
        let file = data
            .join("trajectories")
            .join(format!("{source}.jsonl.zst"));
        let file = std::fs::File::open(file).unwrap();
        for line in BufReader::new(zstd::Decoder::new(file).unwrap()).lines() {
            let line = line.unwrap();
            let value: Value = serde_json::from_str(&line).unwrap();
            let id = value["id"].as_str().unwrap();
            if ids.contains(id) {
                sessions.insert((source.clone(), id.to_owned()), session(line.as_bytes()));
            }
        }
    }
    assert_eq!((questions.len(), sessions.len()), (60, 20));
    let (mut answered, mut by_turn) = (0, 0);
    for question in &questions {
        let session = &sessions[&key(question)];
        by_turn += usize::from(is_answered(&plain(&session.by_turn), question));
        if is_answered(&plain(&session.extract), question) {
            answered += 1;
        } else {
            println!("not answered: {question}");
        }
    }
    let chars = |of: fn(&Session) -> usize| sessions.values().map(of).sum::<usize>();
    println!(
        "{answered} of 60 answered, in {} characters for {}; {by_turn} by a line of each turn, in {}",
        chars(|session| session.extract.chars().count()),
        chars(|session| session.original_chars),
        chars(|session| session.by_turn.chars().count()),
    );
    // The number reached, minus some debatable answers.
    assert!(answered >= 56, "{answered}");
    if std::env::var_os("TREERING_PRINT_EXTRACTS").is_some() {
        for ((source, id), session) in &sessions {
            println!("\n===== {source} {id}\n{}", session.extract);
        }
    }
}

/// Prints extracts of other sessions for reading: `TREERING_PRINT_EXTRACTS=SOURCE,ID…`. The
/// beginning of an id is enough.
#[test]
#[ignore = "prints what a person reads"]
fn print_extracts_of_chosen_sessions() {
    let data = std::env::var_os("TREERING_TEST_DATA").map(PathBuf::from);
    let chosen = std::env::var("TREERING_PRINT_EXTRACTS");
    let (Some(data), Ok(chosen)) = (data, chosen) else {
        println!("skipped: TREERING_TEST_DATA and TREERING_PRINT_EXTRACTS say which");
        return;
    };
    let (source, ids) = chosen.split_once(',').unwrap();
    let file = data
        .join("trajectories")
        .join(format!("{source}.jsonl.zst"));
    let lines = BufReader::new(zstd::Decoder::new(std::fs::File::open(file).unwrap()).unwrap());
    for line in lines.lines().map(Result::unwrap) {
        let id = serde_json::from_str::<Value>(&line).unwrap()["id"].to_string();
        if ids.split(',').any(|begin| id.contains(begin)) {
            println!("\n===== {id}\n{}", session(line.as_bytes()).extract);
        }
    }
}
