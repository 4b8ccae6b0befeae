//! How much of what a successor needs is in the extract: 60 questions over 20 real
//! sessions (`tests/fixtures/compaction/questions.jsonl`), written from the
//! originals. Each has phrases that an answer needs; one is answered when all of
//! them are in the extract, in whatever case and spacing. The sessions are in the
//! folder that `TREERING_TEST_DATA` names.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::Value;

use super::*;
use crate::{context::window::WindowEvent, domain::*, importer::openai_chat};

const QUESTIONS: &str = "tests/fixtures/compaction/questions.jsonl";

struct Session {
    extract: String,
    original_chars: usize,
}

/// The extract of everything that a session's first branch holds.
fn session(line: &[u8]) -> Session {
    let imported = openai_chat::import_line(line).unwrap();
    let first = imported.events[0].branch.clone();
    let mut events = Vec::new();
    let mut tools = BTreeSet::new();
    let mut original_chars = 0;
    for (at, event) in imported.events.iter().enumerate() {
        if event.branch != first {
            continue;
        }
        match &event.body {
            EventBody::ToolCallRequested(call) => {
                tools.insert(call.tool.clone());
                original_chars += call.arguments.as_str().len();
            }
            EventBody::ToolResultRecorded(result) => {
                let texts = result.parts.iter().filter_map(ContentPart::text);
                original_chars += texts.map(str::len).sum::<usize>();
            }
            EventBody::MessageAppended(message) => {
                let texts = message.parts.iter().filter_map(ContentPart::text);
                original_chars += texts.map(str::len).sum::<usize>();
            }
            _ => {}
        }
        events.push(Arc::new(WindowEvent {
            at: EventRef {
                conversation: event.conversation,
                revision: Revision(at as u64 + 1),
            },
            offset: at as u64 + 1,
            recorded_at: TimestampMicros(0),
            body: event.body.clone(),
        }));
    }
    // As the default policy has it: a share of what it replaces, up to a bound.
    let max_chars = (original_chars * 15 / 100).clamp(COMPACTION_EXTRACT_CHARS_MIN, 32_000);
    let extract = compaction_extract(&events, None, &tools, max_chars);
    Session {
        extract,
        original_chars,
    }
}

fn plain(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").to_lowercase()
}

/// Whether all phrases (of alternatives, one) are there.
fn is_answered(extract: &str, question: &Value) -> bool {
    let expected = question["expect"].as_array().unwrap();
    expected.iter().all(|alternatives| {
        let mut phrases = alternatives.as_array().unwrap().iter();
        phrases.any(|phrase| extract.contains(&plain(phrase.as_str().unwrap())))
    })
}

// 1,478 tokens of clipped quotations stood for 245,089: what was asked, decided
// and changed must be in what a session goes on from. Print with `--nocapture`;
// with `TREERING_PRINT_EXTRACTS` the extracts, too.
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
    let mut answered = 0;
    for question in &questions {
        let extract = &sessions[&key(question)].extract;
        if is_answered(&plain(extract), question) {
            answered += 1;
        } else {
            println!("not answered: {question}");
        }
    }
    let chars = |of: fn(&Session) -> usize| sessions.values().map(of).sum::<usize>();
    let (extracts, originals) = (
        chars(|session| session.extract.chars().count()),
        chars(|session| session.original_chars),
    );
    println!("{answered} of 60 answered; {extracts} characters for {originals}");
    if std::env::var_os("TREERING_PRINT_EXTRACTS").is_some() {
        for ((source, id), session) in &sessions {
            println!("\n===== {source} {id}\n{}", session.extract);
        }
    }
}
