//! Damage affects only the conversations that contain it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::StreamExt;
use tokio::time::timeout;
use treering::{domain::*, engine::*};

use super::{child, random::Random, store};

/// Beyond this, something hangs.
const PATIENCE: Duration = Duration::from_secs(180);
/// Number of bytes that are changed in logs whose projections are rebuilt, unless
/// `TREERING_DAMAGE_FLIPS` sets another.
const FLIPS: u64 = 40;
/// The exit code for a damaged store.
const DAMAGED: i32 = 6;
/// The conversation with the large bodies, in the order of [`Sample::ids`].
const LARGE: usize = 1;
const CONVERSATIONS: usize = 4;

/// A closed store with several conversations, and their events.
struct Sample {
    dir: tempfile::TempDir,
    ids: Vec<ConversationId>,
    truth: BTreeMap<ConversationId, Vec<StoredEvent>>,
}

async fn events_of(engine: &Engine, id: ConversationId) -> Result<Vec<StoredEvent>, ReadError> {
    let query = ReadQuery::all(store::ns(), EventSource::Conversation(id));
    let read = timeout(PATIENCE, engine.read_all(query));
    let events = read.await.expect("timed out")?;
    Ok(events.into_iter().map(|named| named.event).collect())
}

/// Returns what a read returns before it ends or fails.
async fn sound_part(engine: &Engine, id: ConversationId) -> (Vec<StoredEvent>, Option<ReadError>) {
    let query = ReadQuery::all(store::ns(), EventSource::Conversation(id));
    let mut batches = engine.read(query);
    let mut events = Vec::new();
    while let Some(batch) = timeout(PATIENCE, batches.next()).await.expect("timed out") {
        match batch {
            Ok(batch) => events.extend(batch.into_iter().map(|named| named.event)),
            Err(error) => return (events, Some(error)),
        }
    }
    (events, None)
}

async fn sample() -> Sample {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let mut random = Random(7);
    let mut ids = Vec::new();
    for _ in 0..CONVERSATIONS {
        ids.push(store::conversation(&engine).await);
    }
    for turn in 0..8 {
        for (number, id) in ids.iter().enumerate() {
            let call = format!("call {turn}");
            let large = number == LARGE && turn >= 3;
            let bytes = if large { 90_000 } else { 700 };
            let output = format!("needle {number}\n{}", random.text(bytes));
            let command = AppendCommand {
                idempotency_key: Some(format!("turn {turn} of {number}")),
                ..AppendCommand::new(
                    store::ns(),
                    vec![
                        store::message(*id, &random.text(300)),
                        store::call(*id, &call, "grep"),
                        store::result(*id, &call, &output),
                    ],
                )
            };
            engine.append(command).await.unwrap();
        }
    }
    for (at, name) in [(4, "early"), (26, "late")] {
        let into = ConversationId::generate();
        let fork = ForkCommand {
            into: Some(into),
            ..fork_of(ids[LARGE], at, name)
        };
        engine.fork(fork).await.unwrap();
        ids.push(into);
    }
    // The last frame marks the end of the log, which other tests cover.
    let last = store::conversation(&engine).await;
    store::append(&engine, vec![store::message(last, "the end")])
        .await
        .unwrap();
    let mut truth = BTreeMap::new();
    for id in &ids {
        truth.insert(*id, events_of(&engine, *id).await.unwrap());
    }
    engine.close().await;
    Sample { dir, ids, truth }
}

fn fork_of(conversation: ConversationId, at: u64, name: &str) -> ForkCommand {
    ForkCommand {
        address: BranchAddress::active(store::ns(), conversation),
        at: Some(Revision(at)),
        name: name.into(),
        system_prompt: String::new(),
        into: None,
        activate: false,
        idempotency_key: None,
        actor: String::new(),
    }
}

/// Opens without packing, so that the damage is in frames. The log's own tests cover blocks.
fn in_frames(dir: &Path) -> OpenOptions {
    OpenOptions {
        packing: PackingMode::Never,
        ..OpenOptions::new(dir)
    }
}

async fn open(dir: &Path) -> Engine {
    Engine::open(in_frames(dir)).await.unwrap()
}

fn segment(dir: &Path) -> PathBuf {
    let mut files = std::fs::read_dir(dir.join("log")).unwrap();
    files.next().unwrap().unwrap().path()
}

/// Changes the bytes of a segment.
fn change(dir: &Path, change: impl FnOnce(&mut Vec<u8>) -> usize) {
    let path = segment(dir);
    let mut bytes = std::fs::read(&path).unwrap();
    assert!(change(&mut bytes) > 0, "nothing was found to damage");
    std::fs::write(path, bytes).unwrap();
}

fn places_of(bytes: &[u8], what: &[u8]) -> Vec<usize> {
    let windows = bytes.windows(what.len()).enumerate();
    let found = windows.filter(|(_, window)| *window == what);
    found.map(|(at, _)| at).collect()
}

/// Changes a byte of the first large body.
fn damage_first_blob(dir: &Path) {
    change(dir, |bytes| {
        let places = places_of(bytes, b"TRB\x01");
        let first = places.first().copied();
        let stored = |at: usize| bytes[at..at + 200].to_vec();
        let content = first.map(stored);
        let same: Vec<_> = places
            .into_iter()
            .filter(|at| Some(bytes[*at..*at + 200].to_vec()) == content)
            .collect();
        same.iter().for_each(|at| bytes[at + 100] ^= 0x10);
        same.len()
    });
}

/// Changes a byte of the frame that holds a position.
fn damage_frame_of(dir: &Path, position: u64) {
    change(dir, |bytes| {
        let word = |at: usize, length: usize| {
            let number = &bytes[at..at + length];
            number
                .iter()
                .rev()
                .fold(0_u64, |n, b| n << 8 | u64::from(*b))
        };
        let holds = |at: &usize| {
            let (first, count) = (word(at + 8, 8), word(at + 16, 4));
            (first..first + count).contains(&position)
        };
        let mut places = places_of(bytes, b"TRF\x02");
        places.retain(holds);
        places.iter().for_each(|at| bytes[at + 40] ^= 0x10);
        places.len()
    });
}

fn remove_views(dir: &Path) {
    std::fs::remove_file(dir.join("views.redb")).unwrap();
}

async fn marks(engine: &Engine) -> BTreeMap<ConversationId, Damage> {
    let query = ListQuery {
        namespace: store::ns(),
        limit: 1_000,
        after: None,
        source: None,
        order: Default::default(),
        ascending: true,
    };
    let page = engine.list(query).await.unwrap();
    let marked = page.conversations.into_iter();
    marked
        .filter_map(|c| Some((c.id, (*c.damage?).clone())))
        .collect()
}

async fn rebuild(engine: &Engine, views: bool, index: bool) -> Result<RebuildOutcome, ReadError> {
    let mut items = engine.rebuild(views, index);
    loop {
        let item = timeout(PATIENCE, items.next()).await.expect("timed out");
        if let RebuildItem::Outcome(outcome) = item.expect("a rebuild ends with an outcome")? {
            return Ok(outcome);
        }
    }
}

async fn hits(engine: &Engine) -> usize {
    let request = SearchRequest {
        at_least: Some(engine.head()),
        copies: DuplicateHandling::Each,
        ..SearchRequest::new(store::ns(), "needle", 1_000)
    };
    let found = timeout(PATIENCE, engine.search(request)).await;
    found.expect("timed out").unwrap().hits.len()
}

// One byte of one large body is damaged, and the projections are missing. The rest of the store
// must still be listed, exported, verified and rebuilt. The conversation must end before the damage
// and report it; every other one must be whole.
#[tokio::test(flavor = "multi_thread")]
async fn damaged_body_ends_only_its_conversation() {
    let sample = sample().await;
    let dir = sample.dir.path();
    damage_first_blob(dir);
    remove_views(dir);
    let engine = open(dir).await;
    let marked = marks(&engine).await;
    let [victim, late] = [sample.ids[LARGE], sample.ids[CONVERSATIONS + 1]];
    assert_eq!(marked.keys().len(), 2, "{marked:?}");
    let damage = &marked[&victim];
    assert_eq!(damage.kind, DamageKind::Unreadable);
    // The part that builds on it cannot be served either.
    assert_eq!(marked[&late].kind, DamageKind::Inherited);
    assert_eq!(marked[&late].revision, Revision(1));
    for id in sample.ids.iter().filter(|id| !marked.contains_key(id)) {
        assert_eq!(events_of(&engine, *id).await.unwrap(), sample.truth[id]);
        store::append(&engine, vec![store::message(*id, "it goes on")])
            .await
            .unwrap();
    }
    let (sound, error) = sound_part(&engine, victim).await;
    let kept = damage.sound_to().0 as usize;
    assert!(kept > 0);
    assert_eq!(sound, sample.truth[&victim][..kept]);
    assert_eq!(sample.truth[&victim][kept].position, damage.position);
    assert!(
        matches!(error, Some(ReadError::ConversationDamaged { .. })),
        "{error:?}"
    );
    let up_to = ReadQuery {
        to: kept as u64,
        ..ReadQuery::all(store::ns(), EventSource::Conversation(victim))
    };
    assert_eq!(engine.read_all(up_to).await.unwrap().len(), kept);

    let refused = store::append(&engine, vec![store::message(victim, "on")]).await;
    let refused = refused.unwrap_err();
    let AppendError::Rejected(rejection) = &refused else {
        panic!("{refused}");
    };
    assert_eq!(rejection.rule.name(), "CONVERSATION_DAMAGED");
    assert!(
        refused.to_string().contains("treering salvage"),
        "{refused}"
    );
    let into = |at| ForkCommand {
        into: Some(ConversationId::generate()),
        ..fork_of(victim, at, "on")
    };
    engine.fork(into(kept as u64)).await.unwrap();
    let beyond = engine.fork(into(kept as u64 + 1)).await.unwrap_err();
    assert!(beyond.to_string().contains("damaged"), "{beyond}");

    // A rebuild gives the same result, and reports faults of the log only.
    let outcome = rebuild(&engine, true, false).await.unwrap();
    assert_eq!(outcome.damaged, 2);
    assert_eq!(marks(&engine).await, marked);
    let faults = store::faults(&engine).await;
    assert!(!faults.is_empty());
    assert!(
        faults.iter().all(|fault| fault.part == "blob"),
        "{faults:?}"
    );
    engine.close().await;

    // After reopening, the marks and the newer events are still there.
    let engine = open(dir).await;
    assert_eq!(marks(&engine).await, marked);
    engine.close().await;
}

// A whole frame is unreadable. Only later records show that its records are missing. Each
// conversation that continues after the gap must end before it, with the place of the damage; the
// others must be whole.
#[tokio::test(flavor = "multi_thread")]
async fn lost_frame_ends_only_its_conversations() {
    let sample = sample().await;
    let dir = sample.dir.path();
    let position = sample.truth[&sample.ids[0]][7].position.offset;
    damage_frame_of(dir, position);
    remove_views(dir);
    let engine = open(dir).await;
    let marked = marks(&engine).await;
    assert!(marked.contains_key(&sample.ids[0]), "{marked:?}");
    let stats = engine.stats(&store::ns()).await.unwrap();
    assert_eq!(stats.damaged_conversations, marked.len() as u64);
    assert!(stats.unreadable_positions > 0);
    for id in &sample.ids {
        let (sound, error) = sound_part(&engine, *id).await;
        match marked.get(id) {
            None => assert_eq!((&sound, error.is_none()), (&sample.truth[id], true)),
            Some(damage) => {
                let kept = damage.sound_to().0 as usize;
                assert_eq!(sound, sample.truth[id][..kept]);
                assert!(error.is_some());
            }
        }
    }
    let damage = &marked[&sample.ids[0]];
    assert_eq!(damage.kind, DamageKind::Missing);
    assert!(damage.position.offset <= position);
    // Its keys are still known, so that nothing is appended twice.
    let known = engine.appended_with_key(&store::ns(), "turn 5 of 0").await;
    assert!(known.unwrap().is_some());
    let faults = store::faults(&engine).await;
    let is_the_logs = |fault: &Fault| ["log", "chain"].contains(&fault.part);
    assert!(
        !faults.is_empty() && faults.iter().all(is_the_logs),
        "{faults:?}"
    );
    engine.close().await;
}

// After the segment is restored, everything must be found again, without a rebuild command.
#[tokio::test(flavor = "multi_thread")]
async fn restored_segment_restores_its_conversations() {
    let sample = sample().await;
    let dir = sample.dir.path();
    let sound = std::fs::read(segment(dir)).unwrap();
    damage_first_blob(dir);
    damage_frame_of(dir, sample.truth[&sample.ids[0]][7].position.offset);
    remove_views(dir);
    let engine = open(dir).await;
    assert!(marks(&engine).await.len() > 2);
    engine.close().await;
    std::fs::write(segment(dir), sound).unwrap();
    let engine = open(dir).await;
    assert!(marks(&engine).await.is_empty());
    store::assert_sound(&engine).await;
    engine.close().await;
}

// Old projections may hold what a damaged log no longer can. If the new ones cannot be completed,
// the old ones must stay.
#[tokio::test(flavor = "multi_thread")]
async fn projections_stay_until_the_rebuild_is_complete() {
    let sample = sample().await;
    let dir = sample.dir.path();
    let views = dir.join("views.redb");
    let mut other = std::fs::read(&views).unwrap();
    other.truncate(8_192);
    std::fs::write(&views, &other).unwrap();
    let in_the_way = dir.join("views.new.redb");
    std::fs::create_dir(&in_the_way).unwrap();
    assert!(Engine::open(in_frames(dir)).await.is_err());
    assert!(std::fs::read(&views).unwrap() == other, "they were wiped");
    std::fs::remove_dir(&in_the_way).unwrap();
    let engine = open(dir).await;
    assert!(!in_the_way.exists());
    store::assert_sound(&engine).await;
    engine.close().await;
}

// Two concurrent rebuilds must not leave the server on a deleted projections file, whose content is
// gone at the next start.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_rebuilds_are_refused() {
    let sample = sample().await;
    let dir = sample.dir.path();
    let engine = open(dir).await;
    let all = (0..6).map(|n| rebuild(&engine, n % 3 != 1, n % 3 != 0));
    let done = futures::future::join_all(all).await;
    let runs = |done: &&Result<_, _>| matches!(done, Err(ReadError::RebuildRuns));
    let refused = done.iter().filter(runs).count();
    assert_eq!(refused + done.iter().filter(|d| d.is_ok()).count(), 6);
    assert!(refused > 0, "they ran one after the other");
    store::append(&engine, vec![store::message(sample.ids[0], "after it")])
        .await
        .unwrap();
    store::assert_sound(&engine).await;
    engine.close().await;
    for left in [
        "views.rebuild.redb",
        "views.new.redb",
        "index.rebuild",
        "index.old",
    ] {
        assert!(!dir.join(left).exists(), "{left} is left over");
    }
    let engine = open(dir).await;
    store::assert_sound(&engine).await;
    engine.close().await;
}

// A damaged body must not keep `rebuild --index` from completing, nor cost the good index. The body
// is skipped and counted, and searches are answered meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn index_rebuild_skips_damaged_events() {
    let sample = sample().await;
    let dir = sample.dir.path();
    damage_first_blob(dir);
    let engine = open(dir).await;
    let before = hits(&engine).await;
    assert_eq!(before, CONVERSATIONS * 8, "the old index has all events");
    let (outcome, ()) = tokio::join!(rebuild(&engine, false, true), async {
        for _ in 0..20 {
            let found = hits(&engine).await;
            assert!((before - 1..=before).contains(&found), "{found} hits");
        }
    });
    assert_eq!(outcome.unwrap().not_indexed, 1);
    assert_eq!(hits(&engine).await, before - 1);
    store::append(&engine, vec![store::message(sample.ids[0], "a new needle")])
        .await
        .unwrap();
    assert_eq!(hits(&engine).await, before);
    engine.close().await;
}

// After a temporary system error (too many open files, a failing disk), the index must not be
// discarded and the store must open. Searches report that the index lags, and once the system
// recovers, the same index continues.
#[tokio::test(flavor = "multi_thread")]
async fn system_errors_do_not_discard_the_index() {
    let sample = sample().await;
    let dir = sample.dir.path();
    let index = dir.join("index");
    let meta = std::fs::read(index.join("meta.json")).unwrap();
    let lock = index.join(".tantivy-writer.lock");
    let held = std::fs::File::create(&lock).unwrap();
    held.try_lock().unwrap();
    let engine = open(dir).await;
    let request = SearchRequest::new(store::ns(), "needle", 10);
    let answer = engine.search(request.clone()).await.unwrap();
    assert!(answer.lagging.is_some(), "{answer:?}");
    assert!(std::fs::read(index.join("meta.json")).unwrap() == meta);
    held.unlock().unwrap();
    assert_eq!(hits(&engine).await, CONVERSATIONS * 8);
    assert!(std::fs::read(index.join("meta.json")).unwrap() == meta);
    let answer = engine.search(request).await.unwrap();
    assert_eq!(answer.lagging, None);
    engine.close().await;
}

// While a new index is built, an index of another version may serve searches for hours, or an older
// program may need it. It stays until the new one is complete.
#[tokio::test(flavor = "multi_thread")]
async fn index_stays_until_the_new_one_is_complete() {
    let sample = sample().await;
    let dir = sample.dir.path();
    let meta = dir.join("index").join("meta.json");
    let own = std::fs::read_to_string(&meta).unwrap();
    let other = own.replace(
        &format!("treering-search {} ", treering::search::INDEX_VERSION),
        "treering-search 99 ",
    );
    assert_ne!(other, own, "the version was not found in the file");
    std::fs::write(&meta, &other).unwrap();
    // A new index cannot be created: a file is in its place.
    let in_the_way = dir.join("index.rebuild");
    std::fs::write(&in_the_way, b"").unwrap();
    let engine = open(dir).await;
    let request = SearchRequest {
        at_least: Some(engine.head()),
        ..SearchRequest::new(store::ns(), "needle", 10)
    };
    let refused = timeout(PATIENCE, engine.search(request)).await;
    let refused = refused.expect("timed out");
    assert!(
        matches!(refused, Err(SearchError::Index { .. })),
        "{refused:?}"
    );
    assert!(std::fs::read_to_string(&meta).unwrap() == other);
    std::fs::remove_file(&in_the_way).unwrap();
    assert_eq!(hits(&engine).await, CONVERSATIONS * 8);
    engine.close().await;
    assert!(std::fs::read_to_string(&meta).unwrap() != other);
    let engine = open(dir).await;
    store::assert_sound(&engine).await;
    engine.close().await;
}

// The process ends between the two renames that swap the index. One of the two indexes must be
// found again.
#[tokio::test(flavor = "multi_thread")]
async fn interrupted_index_swap_is_recovered() {
    let sample = sample().await;
    let dir = sample.dir.path();
    std::fs::rename(dir.join("index"), dir.join("index.old")).unwrap();
    std::fs::create_dir(dir.join("index.rebuild")).unwrap();
    let engine = open(dir).await;
    let request = SearchRequest {
        copies: DuplicateHandling::Each,
        ..SearchRequest::new(store::ns(), "needle", 1_000)
    };
    assert_eq!(
        engine.search(request).await.unwrap().hits.len(),
        CONVERSATIONS * 8
    );
    assert!(!dir.join("index.old").exists() && !dir.join("index.rebuild").exists());
    engine.close().await;
}

// Files of the index are lost or changed. In each case the store opens, and everything is found
// again.
#[tokio::test(flavor = "multi_thread")]
async fn index_with_a_missing_file_is_rebuilt() {
    let sample = sample().await;
    let index = sample.dir.path().join("index");
    let names: Vec<_> = std::fs::read_dir(&index)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(names.len() > 5);
    for name in names {
        let path = index.join(&name);
        if !path.exists() {
            continue;
        }
        std::fs::remove_file(&path).unwrap();
        let engine = open(sample.dir.path()).await;
        assert_eq!(hits(&engine).await, CONVERSATIONS * 8, "without {name:?}");
        engine.close().await;
    }
}

// A folder in the place of an index file is not a temporary error: the index must be rebuilt, not
// fail at every search.
#[tokio::test(flavor = "multi_thread")]
async fn index_with_a_folder_for_a_file_is_rebuilt() {
    let sample = sample().await;
    let index = sample.dir.path().join("index");
    for ending in ["fieldnorm", "pos", "store", "meta.json"] {
        let files = std::fs::read_dir(&index).unwrap();
        let mut paths = files.map(|entry| entry.unwrap().path());
        let ends = |path: &PathBuf| path.to_string_lossy().ends_with(ending);
        let path = paths.find(ends).expect(ending);
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        let engine = open(sample.dir.path()).await;
        assert_eq!(hits(&engine).await, CONVERSATIONS * 8, "{ending}");
        engine.close().await;
    }
}

// A valid file of another index must be detected: otherwise searches fail, or silently find too
// little. `list`: the index's own list of its files is present.
#[tokio::test(flavor = "multi_thread")]
async fn index_with_a_foreign_file_is_rebuilt() {
    let other = tempfile::tempdir().unwrap();
    let engine = open(other.path()).await;
    let id = store::conversation(&engine).await;
    let message = store::message(id, "another needle");
    store::append(&engine, vec![message]).await.unwrap();
    assert_eq!(hits(&engine).await, 1);
    engine.close().await;
    let files = |dir: &Path, ending: &str| {
        let files = std::fs::read_dir(dir.join("index")).unwrap();
        let paths = files.map(|entry| entry.unwrap().path());
        let ends = |path: &PathBuf| path.extension().is_some_and(|found| found == ending);
        paths.filter(ends).collect::<Vec<_>>()
    };
    // Without the list, only a failure can be noticed.
    for (ending, list) in [("idx", true), ("term", true), ("pos", true), ("idx", false)] {
        let sample = sample().await;
        let foreign = files(other.path(), ending).remove(0);
        for own in files(sample.dir.path(), ending) {
            std::fs::copy(&foreign, own).unwrap();
        }
        if !list {
            std::fs::remove_file(sample.dir.path().join("index").join("files")).unwrap();
        }
        let engine = open(sample.dir.path()).await;
        assert_eq!(hits(&engine).await, CONVERSATIONS * 8, "{ending} {list}");
        engine.close().await;
    }
}

// An empty folder or a dangling link in the place of the projections must not keep the store
// closed.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn empty_folder_in_place_of_projections_is_replaced() {
    let sample = sample().await;
    let views = sample.dir.path().join("views.redb");
    let folder = |path: &Path| std::fs::create_dir(path);
    let link = |path: &Path| std::os::unix::fs::symlink("/nowhere/at/all", path);
    for put in [folder as fn(&Path) -> std::io::Result<()>, link] {
        std::fs::remove_file(&views).unwrap();
        put(&views).unwrap();
        let engine = open(sample.dir.path()).await;
        store::assert_sound(&engine).await;
        engine.close().await;
    }
    // If the folder has content, it belongs to somebody.
    std::fs::remove_file(&views).unwrap();
    std::fs::create_dir(&views).unwrap();
    std::fs::write(views.join("note"), "mine").unwrap();
    assert!(Engine::open(in_frames(sample.dir.path())).await.is_err());
    assert!(views.join("note").exists());
}

// Rows of the projections are checked when they are read. Damage there loses no data. A command
// that only reads must not change them, and works without them.
#[tokio::test(flavor = "multi_thread")]
async fn read_commands_work_without_damaged_projections() {
    const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
    let sample = sample().await;
    let data = sample.dir.path().to_str().unwrap();
    let views = sample.dir.path().join("views.redb");
    let whole = std::fs::read(&views).unwrap();
    let blocks = places_of(&whole, &ZSTD_MAGIC);
    assert!(blocks.len() > 1);
    for at in blocks {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        std::fs::write(&views, &damaged).unwrap();
        let listed = child::run(&["ls", "--data", data, "--json"]).await;
        let said = String::from_utf8_lossy(&listed.stderr).into_owned();
        assert!(listed.status.success(), "byte {at}: {said}");
        let lines = listed.stdout.iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(lines, sample.ids.len() + 1, "byte {at}");
        assert!(
            std::fs::read(&views).unwrap() == damaged,
            "a read-only command changed it"
        );
    }
}

// Whatever byte of the log is changed while there are no projections, the store opens or reports
// damage. What it serves is a prefix of what was written, and what is missing is marked.
#[tokio::test(flavor = "multi_thread")]
async fn changed_log_byte_without_projections_is_contained() {
    let sample = sample().await;
    let dir = sample.dir.path();
    let sound = std::fs::read(segment(dir)).unwrap();
    let flips = std::env::var("TREERING_DAMAGE_FLIPS").ok();
    let flips = flips.and_then(|n| n.parse().ok()).unwrap_or(FLIPS);
    let written: Vec<_> = (0..sound.len()).filter(|at| sound[*at] != 0).collect();
    let mut random = Random(3);
    let (mut refused, mut contained, mut harmless) = (0, 0, 0);
    for _ in 0..flips {
        let at = *random.pick(&written);
        let mut bytes = sound.clone();
        bytes[at] ^= 1 << random.below(8);
        std::fs::write(segment(dir), bytes).unwrap();
        let _ = std::fs::remove_file(dir.join("views.redb"));
        let engine = match Engine::open(in_frames(dir)).await {
            Ok(engine) => engine,
            // A changed root of the segment's B-tree may lead to an earlier version.
            Err(
                OpenError::Damaged { .. }
                | OpenError::NewerFormat { .. }
                | OpenError::Regressed { .. },
            ) => {
                refused += 1;
                continue;
            }
            Err(error) => panic!("byte {at}: {error}"),
        };
        let marked = marks(&engine).await;
        let lost = engine
            .stats(&store::ns())
            .await
            .unwrap()
            .unreadable_positions;
        for (number, id) in sample.ids.iter().enumerate() {
            let (events, error) = sound_part(&engine, *id).await;
            assert!(
                sample.truth[id].starts_with(&events),
                "byte {at}: wrong data"
            );
            // Only one frame says that a fork exists.
            let is_fork = number >= CONVERSATIONS;
            if is_fork && matches!(error, Some(ReadError::ConversationNotFound { .. })) {
                assert!(lost > 0, "byte {at}: the loss is not reported");
                continue;
            }
            let whole = events.len() == sample.truth[id].len();
            assert_eq!(
                error.is_some(),
                marked.contains_key(id),
                "byte {at}: {error:?}"
            );
            assert!(
                whole || error.is_some() || lost > 0,
                "byte {at}: the loss is not reported"
            );
        }
        if marked.is_empty() && lost == 0 {
            harmless += 1;
        } else {
            contained += 1;
        }
        engine.close().await;
    }
    println!("without views: {contained} contained, {refused} refused, {harmless} without effect");
    assert!(contained > 0);
}

// Only the damaged store is left. Its undamaged content must be copied to a new store with the same
// hashes and positions, and the new store must be sound.
#[tokio::test(flavor = "multi_thread")]
async fn salvage_copies_sound_events_unchanged() {
    let sample = sample().await;
    let dir = sample.dir.path();
    damage_first_blob(dir);
    damage_frame_of(dir, sample.truth[&sample.ids[0]][7].position.offset);
    let before = std::fs::read(segment(dir)).unwrap();
    let to = tempfile::tempdir().unwrap();
    let done = salvage(dir, to.path(), |_| {}).await.unwrap();
    println!("{done:?}");
    assert!(done.whole > 0 && done.cut > 0 && done.lost > 0, "{done:?}");
    assert!(done.unreadable_positions > 0);
    assert_eq!(done.damaged.len() as u64, done.cut + done.lost);
    let after = std::fs::read(segment(dir)).unwrap();
    let frames = |bytes: &[u8]| places_of(bytes, b"TRF\x02").len();
    assert_eq!(frames(&before), frames(&after));
    let engine = open(to.path()).await;
    store::assert_sound(&engine).await;
    let cut = |id| done.damaged.iter().find(|cut| cut.conversation == id);
    for id in &sample.ids {
        let truth = &sample.truth[id];
        match cut(*id) {
            None => assert_eq!(events_of(&engine, *id).await.unwrap(), *truth),
            Some(cut) if cut.revision == Revision(1) => {
                assert!(events_of(&engine, *id).await.is_err());
            }
            Some(cut) => {
                let kept = cut.revision.0 as usize - 1;
                assert_eq!(events_of(&engine, *id).await.unwrap(), truth[..kept]);
                store::append(&engine, vec![store::message(*id, "it goes on")])
                    .await
                    .unwrap();
            }
        }
    }
    // The key of a batch that was copied whole answers as before. The key of a batch with a missing
    // part must not answer with other events.
    let whole = engine.appended_with_key(&store::ns(), "turn 7 of 3").await;
    assert_eq!(whole.unwrap().unwrap().events.len(), 3);
    let turn = (0..8).map(|turn| format!("turn {turn} of {LARGE}"));
    let mut partial = 0;
    for key in turn {
        match engine.appended_with_key(&store::ns(), &key).await {
            Ok(Some(outcome)) => {
                let own = |e: &AppendedEvent| e.conversation == sample.ids[LARGE];
                assert!(outcome.events.iter().all(own), "{key}: {outcome:?}");
            }
            Ok(None) => {}
            Err(error) => {
                assert!(error.to_string().contains("damaged"), "{error}");
                partial += 1;
            }
        }
    }
    assert!(partial > 0);
    engine.close().await;
    let again = salvage(dir, to.path(), |_| {}).await;
    assert!(
        matches!(again, Err(SalvageError::NotEmpty { .. })),
        "{again:?}"
    );
}

// With one damaged body and no projections, each command must do what is possible and report the
// rest. Its exit code reports damage only if something is missing.
#[tokio::test(flavor = "multi_thread")]
async fn commands_continue_past_damage() {
    let sample = sample().await;
    let dir = sample.dir.path();
    damage_first_blob(dir);
    remove_views(dir);
    let data = dir.to_str().unwrap();
    let to = tempfile::tempdir().unwrap();
    let new = to.path().join("new");
    let new = new.to_str().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();

    let listed = child::run(&["ls", "--data", data]).await;
    assert!(listed.status.success(), "{}", text(&listed.stderr));
    let listed = text(&listed.stdout);
    assert_eq!(listed.matches("damaged at #").count(), 2, "{listed}");

    let exported = child::run(&["export", "--data", data, "--format", "openai-chat"]).await;
    assert_eq!(exported.status.code(), Some(DAMAGED));
    let said = text(&exported.stderr);
    assert!(said.contains(&sample.ids[LARGE].to_string()), "{said}");
    let lines = text(&exported.stdout).lines().count();
    assert_eq!(
        lines,
        sample.ids.len(),
        "all but the one that inherits damage"
    );

    let rebuilt = child::run(&["rebuild", "--data", data]).await;
    assert!(rebuilt.status.success(), "{}", text(&rebuilt.stderr));
    let said = text(&rebuilt.stdout);
    assert!(said.contains("2 conversations are damaged"), "{said}");

    let verified = child::run(&["verify", "--data", data]).await;
    assert_eq!(verified.status.code(), Some(DAMAGED));

    let salvaged = child::run(&["salvage", "--data", data, "--to", new, "--json"]).await;
    assert!(salvaged.status.success(), "{}", text(&salvaged.stderr));
    let said = text(&salvaged.stdout);
    assert!(
        said.contains("\"cut\":1") && said.contains("\"lost\":1"),
        "{said}"
    );
    let verified = child::run(&["verify", "--deep", "--data", new]).await;
    assert!(verified.status.success(), "{}", text(&verified.stdout));
}

// Equal bodies are stored once. If the stored one is damaged, a new append of the same content must
// not refer to it: acknowledged content must be readable.
#[tokio::test(flavor = "multi_thread")]
async fn append_does_not_reuse_a_damaged_body() {
    let sample = sample().await;
    let dir = sample.dir.path();
    damage_first_blob(dir);
    let engine = open(dir).await;
    let mut old = sample.truth[&sample.ids[LARGE]].iter();
    let old = old.find(|event| event.body.len() > 64 * 1024).unwrap();
    let body = treering::proto::body::decode(EventKind::ToolResultRecorded, &old.body).unwrap();
    let EventBody::ToolResultRecorded(result) = &body else {
        panic!("{body:?}");
    };
    let id = sample.ids[0];
    let call = store::call(id, &result.call_id, "grep");
    store::append(&engine, vec![call, NewEvent::new(id, body)])
        .await
        .unwrap();
    let events = events_of(&engine, id).await.unwrap();
    assert_eq!(events.last().unwrap().body, old.body);
    engine.close().await;
}
