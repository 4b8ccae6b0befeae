//! Real trajectories, in process: imported, verified, reopened, searched, forked, exported.
//!
//! Runs if `TREERING_TEST_DATA` names the folder of the data, with one conversation in four. With
//! `TREERING_TEST_ALL` it uses all, and also the file for volume.

use std::{
    collections::{HashSet, VecDeque},
    env, fs,
    path::{Path, PathBuf},
};

use futures::StreamExt;
use serde_json::Value;
use treering::{
    domain::*,
    engine::*,
    import::{self as importer, exporter, openai_chat, source::LineSource},
    proto::body,
};

/// A file for volume: two thirds of all data.
const VOLUME: &str = "agentdojo-rest.jsonl.zst";
/// Number of conversations of each file in which phrases are searched and forks are read.
const LOOKED_AT: usize = 12;
/// One conversation in this many is tested.
const SHARE: usize = 4;
/// Length of a phrase in words.
const WORDS: usize = 4;
/// Maximum number of concurrent appends.
const UNDER_WAY: usize = 64;

fn ns() -> Namespace {
    Namespace::default()
}

pub(super) fn files() -> Option<Vec<PathBuf>> {
    let Some(folder) = env::var_os("TREERING_TEST_DATA") else {
        println!("skipped: TREERING_TEST_DATA names no folder");
        return None;
    };
    let folder = Path::new(&folder).join("trajectories");
    let all = is_all();
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(".jsonl.zst"))
        .filter(|path| all || !path.ends_with(VOLUME))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no trajectories in {}", folder.display());
    Some(files)
}

pub(super) fn lines(file: &Path) -> impl Iterator<Item = bytes::Bytes> {
    let lines = LineSource::open(file, |_| {}).unwrap();
    lines.map(|(_, line)| line.unwrap())
}

/// Returns the lines to test.
fn sample(file: &Path) -> impl Iterator<Item = bytes::Bytes> {
    let share = match is_all() {
        true => 1,
        false => SHARE,
    };
    lines(file).step_by(share)
}

fn is_all() -> bool {
    env::var_os("TREERING_TEST_ALL").is_some()
}

/// Whatever real data contains, every exported line must equal the imported one, the store must be
/// sound before and after a reopening, every passage must be where its hit says, and forks must
/// read like their parents.
#[tokio::test(flavor = "multi_thread")]
async fn real_trajectories_round_trip_and_are_found() {
    let Some(files) = files() else { return };
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(OpenOptions::new(dir.path())).await.unwrap();
    for file in &files {
        import(&engine, file).await;
    }
    sound(&engine).await;
    engine.close().await;
    drop(engine);

    let engine = Engine::open(OpenOptions::new(dir.path())).await.unwrap();
    let mut all_found = 0;
    for file in &files {
        let mut conversations = 0;
        let mut found = 0;
        for line in sample(file) {
            let imported = openai_chat::import_line(&line).unwrap();
            comes_back(&engine, &imported, &line).await;
            if conversations < LOOKED_AT {
                found += usize::from(is_found(&engine, &imported).await);
                forks_read_the_same(&engine, &imported, conversations as u64).await;
            }
            conversations += 1;
        }
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        println!("{name}: {conversations} conversations equal, {found} phrases found");
        all_found += found;
    }
    assert!(all_found > 0, "some results hold words in a row");
    sound(&engine).await;
    engine.close().await;
}

async fn import(engine: &Engine, file: &Path) {
    let mut under_way = VecDeque::new();
    for line in sample(file) {
        let imported = openai_chat::import_line(&line).unwrap();
        let mut batches = importer::plan::batches(imported.events, 4_000, 8 << 20);
        if batches.len() > 1 {
            // One after the other: a fork needs its parent's events to be stored.
            for batch in batches {
                let command = AppendCommand::new(ns(), batch);
                engine.append(command).await.unwrap();
            }
            continue;
        }
        if under_way.len() == UNDER_WAY {
            let first: AppendFuture = under_way.pop_front().unwrap();
            first.await.unwrap();
        }
        let command = AppendCommand::new(ns(), batches.pop().unwrap_or_default());
        under_way.push_back(engine.submit(command).await.unwrap());
    }
    for outcome in under_way {
        outcome.await.unwrap();
    }
}

async fn sound(engine: &Engine) {
    let mut items = engine.verify(&ns(), true);
    while let Some(item) = items.next().await {
        match item.unwrap() {
            VerifyItem::Progress(_) => {}
            VerifyItem::Fault(fault) => panic!("{fault:?}"),
            VerifyItem::Outcome(outcome) => {
                assert!(outcome.sound);
                return println!("sound: {} events", outcome.events);
            }
        }
    }
    panic!("a verification ends with an outcome");
}

async fn events(engine: &Engine, source: EventSource) -> Vec<StoredEvent> {
    let named = engine.read_all(ReadQuery::all(ns(), source)).await.unwrap();
    named.into_iter().map(|named| named.event).collect()
}

/// Checks that the export is the imported line, and that importing it again adds nothing.
async fn comes_back(engine: &Engine, imported: &importer::ImportedConversation, line: &[u8]) {
    let id = imported.conversation;
    let resolved = engine.resolve(&ns(), &id.to_string()).await;
    assert_eq!(resolved.unwrap(), id);
    let stored = events(engine, EventSource::Conversation(id)).await;
    assert_eq!(importer::plan(&stored, imported).events, []);
    let back: Value = serde_json::from_str(&exporter::export_line(&stored).unwrap()).unwrap();
    let expected: Value = serde_json::from_slice(line).unwrap();
    assert!(back == expected, "{} comes back equal", imported.source_id);
}

/// Checks that a search for a phrase of a tool result leads to its exact place. Returns false if no
/// result has enough words.
async fn is_found(engine: &Engine, imported: &importer::ImportedConversation) -> bool {
    let results = imported.events.iter().zip(1..).filter_map(|(event, at)| {
        let EventBody::ToolResultRecorded(result) = &event.body else {
            return None;
        };
        let text: Vec<&str> = result.parts.iter().filter_map(ContentPart::text).collect();
        Some((Revision(at), result, phrase(text.first()?)?))
    });
    let Some((revision, result, phrase)) = results.last() else {
        return false;
    };
    let request = SearchRequest {
        within: ConversationFilters::only(imported.conversation),
        filters: SearchFilters {
            kinds: vec![EventKind::ToolResultRecorded],
            ..SearchFilters::default()
        },
        at_least: Some(engine.head()),
        copies: DuplicateHandling::Each,
        ..SearchRequest::new(ns(), format!("\"{phrase}\""), 100)
    };
    let hits = engine.search(request).await.unwrap().hits;
    for hit in &hits {
        let (found, details) = (&hit.found, &hit.details);
        let which = WhichResult::Revision(found.revision);
        let branch = Some(&hit.branch_name);
        let stored = engine
            .result(
                &BranchAddress {
                    branch: branch.cloned(),
                    ..BranchAddress::active(ns(), found.conversation)
                },
                which,
            )
            .await
            .unwrap();
        assert_eq!(
            (&details.call_id, &found.tool),
            (&stored.result.call_id, &stored.tool)
        );
        let (start, end) = (details.byte_start as usize, details.byte_end as usize);
        let before = &stored.text[..start];
        assert_eq!(before.matches('\n').count() as u64 + 1, details.line);
        let here = stored.text[start..end].contains(phrase);
        if found.revision == revision && here {
            assert_eq!(details.call_id, result.call_id);
            return true;
        }
    }
    let id = &imported.source_id;
    panic!("{id}: {phrase:?} of revision {revision} is not in {hits:?}");
}

/// Returns consecutive words with single spaces between them.
fn phrase(text: &str) -> Option<&str> {
    let word = |word: &str| word.len() > 2 && word.bytes().all(|b| b.is_ascii_alphabetic());
    text.lines().find_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let at = words
            .windows(5)
            .position(|row| row.iter().all(|w| word(w)))?;
        let start: usize = words[..at].iter().map(|w| w.len() + 1).sum();
        let length: usize = words[at..at + WORDS].iter().map(|w| w.len() + 1).sum();
        line.get(start..start + length - 1)
    })
}

/// Checks that a fork at any revision of any branch has the history up to there, that its parent
/// does not change, and that both continue independently.
async fn forks_read_the_same(
    engine: &Engine,
    imported: &importer::ImportedConversation,
    seed: u64,
) {
    let id = imported.conversation;
    let view = engine
        .conversation(&BranchAddress::active(ns(), id), None)
        .await
        .unwrap();
    let names: HashSet<_> = view.branches.iter().map(|b| b.name.clone()).collect();
    assert_eq!(names.len(), view.branches.len());
    for parent in &view.branches {
        let of = |name: &BranchName| EventSource::Branch {
            conversation: id,
            branch: Some(name.clone()),
        };
        let history = events(engine, of(&parent.name)).await;
        // Any revision would do; this one differs between conversations and branches.
        let pick = (seed + 1) * 7_919 + parent.id.0 * 104_729;
        let at = (pick % history.len() as u64) as usize;
        let name = format!("fork of {}", parent.id.0);
        let forked = engine
            .fork(ForkCommand {
                address: BranchAddress::active(ns(), id).on(parent.name.clone()),
                at: Some(history[at].header.revision),
                name,
                system_prompt: String::new(),
                into: None,
                activate: false,
                idempotency_key: None,
                actor: String::new(),
            })
            .await
            .unwrap();
        let message = EventBody::MessageAppended(MessageAppended::text(Role::User, "another way"));
        let name = forked.branch.name.clone();
        let event = NewEvent::new(id, message.clone()).on_branch(name.clone());
        engine
            .append(AppendCommand::new(ns(), vec![event]))
            .await
            .unwrap();
        let fork = events(engine, of(&name)).await;
        assert_eq!(fork.len(), at + 3);
        assert_eq!(fork[..=at], history[..=at]);
        let last = fork.last().unwrap();
        assert_eq!(
            body::decode(last.header.kind().unwrap(), &last.body),
            Ok(message)
        );
        assert_eq!(events(engine, of(&parent.name)).await, history);
    }
}
