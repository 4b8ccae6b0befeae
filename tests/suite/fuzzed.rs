//! The checks of the fuzz targets as ordinary tests: on stored inputs, and on random changes of
//! them.

use std::path::PathBuf;

use treering::{
    domain::*,
    engine::*,
    import::{ImportedConversation, plan::batches},
};

use super::{random::Random, store};

#[path = "../../fuzz/checks.rs"]
mod checks;

/// Number of random changes of a target's inputs in total, unless `TREERING_FUZZ_CHANGES` sets
/// another.
const CHANGES: u64 = 400;

fn changes() -> u64 {
    let changes = std::env::var("TREERING_FUZZ_CHANGES");
    let changes = changes.ok().and_then(|changes| changes.parse().ok());
    changes.unwrap_or(CHANGES)
}

fn files(folder: &[&str]) -> Vec<(String, Vec<u8>)> {
    let path: PathBuf = ["tests", "fixtures"].iter().chain(folder).collect();
    let path = PathBuf::from(crate::ROOT).join(path);
    let entries = std::fs::read_dir(&path).unwrap();
    let mut files: Vec<_> = entries
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read(path).unwrap())
        })
        .collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

/// Changes bytes, cuts, repeats, or joins with another input.
fn changed(bytes: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    const ODD: [&[u8]; 8] = [
        b"\"",
        b"null",
        b"[[[[",
        b"\\ud800",
        b"1e999",
        b"\xff\xff\xff\xff\x0f",
        b"{}",
        b"\0",
    ];
    let mut bytes = bytes.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() as u64 + 1) as usize;
        let end = (at + random.below(20) as usize).min(bytes.len());
        match random.below(7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = random.next() as u8,
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..end)),
            4 => drop(bytes.splice(at..at, ODD[random.below(8) as usize].iter().copied())),
            5 => {
                let again = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, again));
            }
            _ => {
                let from = random.below(other.len() as u64 + 1) as usize;
                let to = (from + random.below(60) as usize).min(other.len());
                drop(bytes.splice(at..at, other[from..to].iter().copied()));
            }
        }
    }
    bytes
}

/// Runs a check on inputs and on changes of them. The failure message names the input.
fn check_all(inputs: &[(String, Vec<u8>)], mut check: impl FnMut(&[u8])) {
    for (number, (name, bytes)) in inputs.iter().enumerate() {
        println!("{name}");
        check(bytes);
        let mut random = Random(number as u64);
        for _ in 0..changes() / inputs.len() as u64 {
            let other = &random.pick(inputs).1.clone();
            let input = changed(bytes, other, &mut random);
            let text = String::from_utf8_lossy(&input).into_owned();
            let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&input)));
            assert!(checked.is_ok(), "{name}, changed to {text:?} ({input:?})");
        }
    }
}

// Bytes of a damaged or hostile frame must be decoded or refused.
#[test]
fn any_frame_is_decoded_or_refused() {
    let mut inputs = files(&["fuzz", "frame"]);
    let golden = files(&["golden", "v0.1"]);
    let frame = &golden
        .iter()
        .find(|(name, _)| name == "frame.bin")
        .unwrap()
        .1;
    let input = [&42_u64.to_le_bytes()[..], frame].concat();
    inputs.push(("golden frame".into(), input));
    check_all(&inputs, checks::frame);
}

// The same for a block of a sealed segment.
#[test]
fn any_block_is_decoded_or_refused() {
    check_all(&files(&["fuzz", "block"]), checks::block);
}

// Bytes of a damaged row of the projections must be decoded or refused.
#[test]
fn any_view_row_is_decoded_or_refused() {
    check_all(&files(&["fuzz", "view_row"]), checks::view_row);
}

// Bytes of any body must be decoded or refused, and a decoded body must survive encoding.
#[test]
fn any_body_is_decoded_or_refused() {
    let mut inputs = files(&["fuzz", "body"]);
    for (name, bytes) in files(&["golden", "v0.1"]) {
        let kind = name.strip_suffix(".bin").and_then(EventKind::from_name);
        if let Some(kind) = kind {
            let input = [&kind.number().to_le_bytes()[..], &bytes].concat();
            inputs.push((name, input));
        }
    }
    check_all(&inputs, checks::body);
}

// Any text may be a query.
#[test]
fn any_query_is_parsed_or_refused() {
    check_all(&files(&["fuzz", "query"]), checks::query);
}

/// Appends to a store as the import command does.
async fn append(engine: &Engine, imported: &[ImportedConversation], input: &[u8]) {
    for conversation in imported {
        let mut next = 1;
        for batch in batches(conversation.events.clone(), 100, 1 << 20) {
            match engine.append(AppendCommand::new(store::ns(), batch)).await {
                Ok(outcome) => {
                    for event in outcome.events {
                        assert_eq!(event.revision, Revision(next));
                        next += 1;
                    }
                }
                Err(error) => panic!("{error}: {:?}", String::from_utf8_lossy(input)),
            }
        }
    }
}

fn check_importer(folder: &str, import: impl Fn(&[u8]) -> Vec<ImportedConversation>) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let inputs = files(&["fuzz", folder]);
    let mut seen = 0_u64;
    let mut engine = None;
    check_all(&inputs, |input| {
        let imported = import(input);
        seen += 1;
        runtime.block_on(async {
            if imported.is_empty() {
                return;
            }
            // Ids are derived from the input, so an earlier import would already be stored.
            let fresh = Engine::in_memory(Limits::default()).await.unwrap();
            append(&fresh, &imported, input).await;
            engine = Some(fresh);
        });
    });
    assert!(seen > 0 && engine.is_some());
}

// Any line of an import must be refused, or become events that the engine accepts.
#[test]
fn any_openai_line_is_imported_or_refused() {
    check_importer("openai_line", checks::openai_line);
}

// The same for sessions, with their sub-agents.
#[test]
fn any_claude_session_is_imported_or_refused() {
    check_importer("claude_session", checks::claude_session);
}

// And for sessions of other tools.
#[test]
fn any_tool_session_is_imported_or_refused() {
    check_importer("tool_session", checks::tool_session);
}
