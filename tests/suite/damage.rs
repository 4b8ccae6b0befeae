//! Tests with bytes that change in the files of a store.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::timeout;
use treering::{domain::*, engine::*};

use super::{random::Random, store};

/// Number of bytes that are changed in each part, unless `TREERING_DAMAGE_FLIPS` sets another.
const FLIPS: u64 = 20;
/// The size of a redb page.
const PAGE_BYTES: usize = 4_096;
/// Beyond this, something hangs.
const PATIENCE: Duration = Duration::from_secs(180);

fn flips() -> u64 {
    let flips = std::env::var("TREERING_DAMAGE_FLIPS");
    let flips = flips.ok().and_then(|flips| flips.parse().ok());
    flips.unwrap_or(FLIPS)
}

/// The files of a folder by path.
type Files = BTreeMap<PathBuf, Vec<u8>>;

fn files_of(dir: &Path, below: &Path, files: &mut Files) {
    for entry in std::fs::read_dir(dir.join(below)).unwrap() {
        let path = below.join(entry.unwrap().file_name());
        if dir.join(&path).is_dir() {
            files_of(dir, &path, files);
        } else {
            let bytes = std::fs::read(dir.join(&path)).unwrap();
            files.insert(path, bytes);
        }
    }
}

/// Writes these files into a new folder.
fn restored(files: &Files) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (path, bytes) in files {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    dir
}

/// A conversation's events, its head and its branches.
type Whole = (Vec<StoredEvent>, u64, Vec<BranchState>);

/// Everything that can be read from a store, or the errors.
#[derive(Debug, PartialEq)]
struct ReadableState {
    log: Result<Vec<StoredEvent>, String>,
    conversations: Vec<Result<Whole, String>>,
    hits: Result<Vec<(ConversationId, Revision, u64)>, String>,
    listed: Result<Vec<ConversationId>, String>,
}

impl ReadableState {
    /// Checks that everything that could be read is unchanged.
    fn assert_true(&self, truth: &Self, what: &str) {
        fn agree<T: PartialEq + std::fmt::Debug>(
            seen: &Result<T, String>,
            truth: &Result<T, String>,
            what: &str,
        ) {
            if let Ok(seen) = seen {
                assert!(Ok(seen) == truth.as_ref(), "wrong data after {what}");
            }
        }
        agree(&self.log, &truth.log, &format!("{what}, log"));
        let pairs = self.conversations.iter().zip(&truth.conversations);
        for (index, (seen, truth)) in pairs.enumerate() {
            agree(seen, truth, &format!("{what}, conversation {index}"));
        }
        agree(&self.hits, &truth.hits, &format!("{what}, search"));
        agree(&self.listed, &truth.listed, &format!("{what}, list"));
    }
}

async fn look(engine: &Engine, ids: &[ConversationId]) -> ReadableState {
    let events = |named: Vec<NamedEvent>| named.into_iter().map(|e| e.event).collect::<Vec<_>>();
    let log = engine
        .read_all(ReadQuery::all(store::ns(), EventSource::Log))
        .await;
    let mut conversations = Vec::new();
    for id in ids {
        let read = async {
            let source = EventSource::Conversation(*id);
            let all = engine.read_all(ReadQuery::all(store::ns(), source)).await?;
            let view = engine
                .conversation(&BranchAddress::active(store::ns(), *id), None)
                .await?;
            let branches = view.branches.iter().map(|b| (**b).clone()).collect();
            Ok::<_, ReadError>((events(all), view.summary.head.0, branches))
        };
        conversations.push(read.await.map_err(|error| error.to_string()));
    }
    let request = SearchRequest {
        at_least: Some(engine.head()),
        ..SearchRequest::new(store::ns(), "needle", 1_000)
    };
    let found = engine.search(request).await.map_err(|e| e.to_string());
    let found = found.and_then(|answer| {
        if let Some(why) = answer.lagging {
            return Err(why);
        }
        let hits = answer.hits.into_iter();
        let mut hits: Vec<_> = hits
            // Line 0 if the text can no longer be read. All needles are on the first line.
            .map(|hit| {
                (
                    hit.found.conversation,
                    hit.found.revision,
                    hit.details.line.max(1),
                )
            })
            .collect();
        hits.sort();
        Ok(hits)
    });
    let query = ListQuery {
        namespace: store::ns(),
        limit: 1_000,
        after: None,
        source: None,
        order: Default::default(),
        ascending: true,
    };
    let listed = engine.list(query).await;
    let listed = listed.map(|page| page.conversations.iter().map(|c| c.id).collect());
    ReadableState {
        log: log.map(events).map_err(|error| error.to_string()),
        conversations,
        hits: found,
        listed: listed.map_err(|error| error.to_string()),
    }
}

/// A store with every kind of content.
struct Sample {
    files: Files,
    ids: Vec<ConversationId>,
    truth: ReadableState,
}

async fn sample() -> Sample {
    let dir = tempfile::tempdir().unwrap();
    let engine = store::open(dir.path()).await;
    let mut random = Random(11);
    let mut ids = Vec::new();
    for number in 0..6_u64 {
        let id = store::conversation(&engine).await;
        ids.push(id);
        for turn in 0..8 {
            let call = format!("call {turn}");
            let bytes = if turn == 3 { 90_000 } else { 600 };
            let output = format!("needle {number}\n{}", random.text(bytes));
            let events = vec![
                store::message(id, &random.text(200)),
                store::call(id, &call, "grep"),
                store::result(id, &call, &output),
            ];
            store::append(&engine, events).await.unwrap();
        }
        let fork = ForkCommand {
            address: BranchAddress::active(store::ns(), id),
            at: Some(Revision(5)),
            name: "other".into(),
            system_prompt: String::new(),
            into: None,
            activate: number % 2 == 0,
            idempotency_key: Some(format!("fork {number}")),
            actor: String::new(),
        };
        engine.fork(fork).await.unwrap();
        store::append(&engine, vec![store::message(id, "on it")])
            .await
            .unwrap();
    }
    let truth = look(&engine, &ids).await;
    assert_eq!(truth.hits.as_ref().unwrap().len(), 48);
    engine.close().await;
    drop(engine);
    let mut files = Files::new();
    files_of(dir.path(), Path::new(""), &mut files);
    Sample { files, ids, truth }
}

impl Sample {
    /// Returns random places in a file, most of them at bytes that are not zero.
    fn places(&self, path: &Path, count: u64, random: &mut Random) -> Vec<usize> {
        let bytes = &self.files[path];
        if bytes.is_empty() {
            return Vec::new();
        }
        let written: Vec<_> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
        let place = |random: &mut Random| {
            if random.one_in(5) || written.is_empty() {
                random.below(bytes.len() as u64) as usize
            } else {
                *random.pick(&written)
            }
        };
        (0..count).map(|_| place(random)).collect()
    }

    fn flipped(&self, path: &Path, at: usize, random: &mut Random) -> tempfile::TempDir {
        let dir = restored(&self.files);
        let mut bytes = self.files[path].clone();
        bytes[at] ^= 1 << random.below(8);
        std::fs::write(dir.path().join(path), bytes).unwrap();
        dir
    }

    fn files_in(&self, folder: &str) -> Vec<PathBuf> {
        let paths = self.files.keys();
        paths
            .filter(|path| path.starts_with(folder))
            .cloned()
            .collect()
    }
}

// The log is the source of truth, so a changed byte can only be reported. Every answer that is
// still given must be correct.
#[tokio::test(flavor = "multi_thread")]
async fn changed_log_byte_never_gives_wrong_data() {
    let sample = sample().await;
    let mut random = Random(1);
    let (mut refused, mut reported, mut harmless) = (0, 0, 0);
    for path in sample.files_in("log") {
        for at in sample.places(&path, flips(), &mut random) {
            let what = format!("{} byte {at}", path.display());
            let dir = sample.flipped(&path, at, &mut random);
            let checked = async {
                let engine = match Engine::open(OpenOptions::new(dir.path())).await {
                    Ok(engine) => engine,
                    Err(
                        OpenError::Damaged { .. }
                        | OpenError::NewerFormat { .. }
                        | OpenError::Regressed { .. },
                    ) => return refused += 1,
                    Err(other) => panic!("{what}: {other}"),
                };
                let seen = look(&engine, &sample.ids).await;
                seen.assert_true(&sample.truth, &what);
                let faults = store::faults(&engine).await;
                let whole = seen == sample.truth;
                assert!(whole || !faults.is_empty(), "{what}: nothing was reported");
                if faults.is_empty() {
                    harmless += 1;
                } else {
                    reported += 1;
                }
                engine.close().await;
            };
            timeout(PATIENCE, checked)
                .await
                .unwrap_or_else(|_| panic!("{what}: timed out"));
        }
    }
    println!("log: {refused} refused at the start, {reported} reported, {harmless} without effect");
    assert!(reported > 0);
}

// Projections and index are derived from the log. Whatever happens to them, the store opens and
// answers as before.
#[tokio::test(flavor = "multi_thread")]
async fn changed_byte_of_projections_or_index_changes_no_answer() {
    let sample = sample().await;
    let mut random = Random(2);
    let index = sample.files_in("index");
    let per_file = flips() / index.len() as u64 + 1;
    let mut places: Vec<_> = index.into_iter().map(|path| (path, per_file)).collect();
    places.push((PathBuf::from("views.redb"), flips()));
    for (path, count) in places {
        for at in sample.places(&path, count, &mut random) {
            let what = format!("{} byte {at}", path.display());
            let dir = sample.flipped(&path, at, &mut random);
            let checked = async {
                let engine = match Engine::open(OpenOptions::new(dir.path())).await {
                    Ok(engine) => engine,
                    Err(error) => panic!("{what}: {error}"),
                };
                let seen = look(&engine, &sample.ids).await;
                assert!(seen == sample.truth, "{what}: {}", short(&seen));
                engine.close().await;
            };
            timeout(PATIENCE, checked)
                .await
                .unwrap_or_else(|_| panic!("{what}: timed out"));
        }
    }
}

// A changed byte in a page of the projections must not look like a log that lost events: the store
// must open, with all conversations.
#[tokio::test(flavor = "multi_thread")]
async fn damaged_page_of_the_projections_is_no_lost_event() {
    let sample = sample().await;
    let views = &sample.files[Path::new("views.redb")];
    let step = if flips() > FLIPS { 1 } else { 3 };
    for at in (0..views.len())
        .step_by(PAGE_BYTES)
        .flat_map(|page| (page..page + 40).step_by(step))
    {
        if views[at] == 0 {
            continue;
        }
        let dir = restored(&sample.files);
        let mut changed = views.clone();
        changed[at] ^= 0x10;
        std::fs::write(dir.path().join("views.redb"), changed).unwrap();
        match Engine::open(OpenOptions::new(dir.path())).await {
            Ok(engine) => engine.close().await,
            Err(error) => panic!("byte {at}: {error}"),
        }
    }
}

/// Returns only the errors.
fn short(seen: &ReadableState) -> String {
    let conversations = seen
        .conversations
        .iter()
        .filter_map(|seen| seen.as_ref().err());
    format!(
        "log {:?}, conversations {:?}, hits {:?}, list {:?}",
        seen.log.as_ref().err(),
        conversations.collect::<Vec<_>>(),
        seen.hits.as_ref().err(),
        seen.listed.as_ref().err()
    )
}

// If everything that can be rebuilt is deleted, or only the log was copied, everything must be
// found again.
#[tokio::test(flavor = "multi_thread")]
async fn deleted_projections_and_index_are_rebuilt() {
    let sample = sample().await;
    for gone in [
        &["views.redb"][..],
        &["index"],
        &["views.redb", "index"],
        &["views.redb", "index", "LOCK"],
    ] {
        let dir = restored(&sample.files);
        for name in gone {
            let path = dir.path().join(name);
            if path.is_dir() {
                std::fs::remove_dir_all(path).unwrap();
            } else {
                std::fs::remove_file(path).unwrap();
            }
        }
        let engine = store::open(dir.path()).await;
        let seen = timeout(PATIENCE, look(&engine, &sample.ids))
            .await
            .expect("timed out");
        assert!(seen == sample.truth, "without {gone:?}");
        store::assert_sound(&engine).await;
        let key = AppendCommand {
            idempotency_key: Some("fork 1".into()),
            ..AppendCommand::new(store::ns(), vec![store::message(sample.ids[1], "other")])
        };
        let error = engine.append(key).await.unwrap_err();
        assert!(matches!(error, AppendError::Rejected(_)), "{error}");
        engine.close().await;
    }
}

// The index is gone and the log cannot be read to its end. A search for everything must report
// that, not wait forever.
#[tokio::test(flavor = "multi_thread")]
async fn search_does_not_wait_for_unreadable_events() {
    let sample = sample().await;
    let mut random = Random(5);
    let path = sample.files_in("log").remove(0);
    for at in sample.places(&path, 8, &mut random) {
        let dir = sample.flipped(&path, at, &mut random);
        std::fs::remove_dir_all(dir.path().join("index")).unwrap();
        let Ok(engine) = Engine::open(OpenOptions::new(dir.path())).await else {
            continue;
        };
        let seen = timeout(PATIENCE, look(&engine, &sample.ids)).await;
        let seen = seen.unwrap_or_else(|_| panic!("byte {at}: timed out"));
        seen.assert_true(&sample.truth, &format!("byte {at}"));
        engine.close().await;
    }
}
