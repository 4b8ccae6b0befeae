//! Real trajectories, in process: in, out, checked, reopened, found, forked.
//!
//! Runs where `TREERING_TEST_DATA` names the folder of the data, over one conversation in four; with
//! `TREERING_TEST_ALL` over all, and over the file that is there for volume too.

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

/// There for its volume: two thirds of all that there is.
const VOLUME: &str = "agentdojo-rest.jsonl.zst";
/// Of so many conversations of each file: phrases searched, forks read.
const LOOKED_AT: usize = 12;
/// One conversation in so many takes part.
const SHARE: usize = 4;
/// Length of a phrase.
const WORDS: usize = 4;
/// Appends that may be under way.
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

/// The lines that take part.
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

/// What must come out of real data, whatever is odd in it: every line equal, a
/// sound store before and after it was reopened, every passage where it is said
/// to be, and forks that read like what they were forked from.
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
            // One after the other: a fork needs what it forks to be stored.
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

/// Exported, it is the line that came in, and importing it again adds nothing.
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

/// A phrase of a tool result leads to exactly its place. False: no result has
/// words enough.
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

/// Words in a row, with single blanks between them.
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

/// A fork at any revision of any branch has the history up to there, the branch
/// that it left does not change, and both go their own ways.
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
        // Any place will do; this one differs between conversations and branches.
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
