//! Damage ends what it belongs to, and nothing else.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::StreamExt;
use tokio::time::timeout;
use treering::{domain::*, engine::*};

use super::{child, random::Random, store};

/// Beyond it, something hangs.
const PATIENCE: Duration = Duration::from_secs(180);
/// Bytes that are changed in logs that are folded anew; more with
/// `TREERING_DAMAGE_FLIPS`.
const FLIPS: u64 = 40;
/// What scripts are told of a damaged store.
const DAMAGED: i32 = 6;
/// The conversation with the large bodies, in the order of [`Sample::ids`].
const LARGE: usize = 1;
const CONVERSATIONS: usize = 4;

/// A store of several conversations, closed, and what can be read of it.
struct Sample {
    dir: tempfile::TempDir,
    ids: Vec<ConversationId>,
    truth: BTreeMap<ConversationId, Vec<StoredEvent>>,
}

async fn events_of(engine: &Engine, id: ConversationId) -> Result<Vec<StoredEvent>, ReadError> {
    let query = ReadQuery::all(store::ns(), EventSource::Conversation(id));
    let read = timeout(PATIENCE, engine.read_all(query));
    let events = read.await.expect("it hangs")?;
    Ok(events.into_iter().map(|named| named.event).collect())
}

/// What a read brings before it ends or fails.
async fn sound_part(engine: &Engine, id: ConversationId) -> (Vec<StoredEvent>, Option<ReadError>) {
    let query = ReadQuery::all(store::ns(), EventSource::Conversation(id));
    let mut batches = engine.read(query);
    let mut events = Vec::new();
    while let Some(batch) = timeout(PATIENCE, batches.next()).await.expect("it hangs") {
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
    // The last frame says where the log ends: it is for other tests.
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

/// Damage is put into frames here; what becomes of blocks is the log's own matter.
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

/// A byte of the first large body, wherever the file has it.
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

/// A byte of the frame that holds a position, wherever the file has it.
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
        let item = timeout(PATIENCE, items.next()).await.expect("it hangs");
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
    found.expect("it hangs").unwrap().hits.len()
}

// One flipped byte in one large body, and the views are gone: once, nothing of the
// store could be listed, exported, verified or rebuilt any more. The conversation
// must end before the damage and say so; every other one must be whole.
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
    // Nothing of what builds on it can be served either.
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

    // A rebuild makes the same of it, and only the log is at fault.
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

    // What was appended since and what is marked is found again.
    let engine = open(dir).await;
    assert_eq!(marks(&engine).await, marked);
    engine.close().await;
}

// A whole frame cannot be read. Its records are gone, and only what comes behind
// shows that something is missing: each conversation that goes on there must end
// before the gap, with the place of the damage; the others must be whole.
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
    // Its keys are still known: nothing is appended twice.
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

// Whoever restores the segment must find everything again, without being told to
// rebuild.
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

// Old views are all that is left of what a damaged log cannot say any more. New ones
// that cannot be finished must leave them where they are.
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

// Two rebuilds at once once left the server on a views file that had no name any
// more: everything was gone at the next start.
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

// A damaged body once kept the index from ever being whole: `rebuild --index` hung,
// with the good index thrown away. It is passed over and counted, and searches are
// answered all the while.
#[tokio::test(flavor = "multi_thread")]
async fn index_rebuild_skips_damaged_events() {
    let sample = sample().await;
    let dir = sample.dir.path();
    damage_first_blob(dir);
    let engine = open(dir).await;
    let before = hits(&engine).await;
    assert_eq!(before, CONVERSATIONS * 8, "the old index knows it all");
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

// A system that refuses for a while (too many open files, a disk that fails) is no
// reason to throw an index away, nor to keep a store closed: searches say that it
// lags, and once the system gives in, the same index goes on.
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

// An index of another version may be all that answers for hours while a new one is
// made, or what an older program goes back to: it stays until the new one is whole.
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
    assert_ne!(other, own, "the version stands elsewhere");
    std::fs::write(&meta, &other).unwrap();
    // What a new one is made in cannot be written: a file is in its way.
    let in_the_way = dir.join("index.rebuild");
    std::fs::write(&in_the_way, b"").unwrap();
    let engine = open(dir).await;
    let request = SearchRequest {
        at_least: Some(engine.head()),
        ..SearchRequest::new(store::ns(), "needle", 10)
    };
    let refused = timeout(PATIENCE, engine.search(request)).await;
    let refused = refused.expect("it hangs");
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

// The power goes between the two renames that put a new index in its place: one of
// the two must be found again.
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

// Files of the index get lost or changed. Whatever it is, the store opens, and all is
// found again.
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

// A folder stood where a file of the index had been, and every search failed, at
// every start: that it cannot be mapped was taken for a refusal that would pass.
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

// A file of another index, sound in itself, was taken: searches failed for ever, or
// found too little without a word. `list`: the index's own list of its files is there.
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
    // Without the list, only what fails can be noticed.
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

// What stands in the place of the views and holds nothing kept the store closed.
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
    // Where there is something in it, it is somebody's.
    std::fs::remove_file(&views).unwrap();
    std::fs::create_dir(&views).unwrap();
    std::fs::write(views.join("note"), "mine").unwrap();
    assert!(Engine::open(in_frames(sample.dir.path())).await.is_err());
    assert!(views.join("note").exists());
}

// Rows of the views are looked at when they are read. Damage there costs no data: a
// command that only reads must not change them, and does without them.
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
            "a look changed it"
        );
    }
}

// Whatever byte of the log is changed while there are no views: the store opens, or
// says that it is damaged; what is served is the beginning of what was written, and
// what is missing is marked.
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
            // A changed root of the segment's trees may lead to an earlier one.
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
            // One frame is all that says that a fork is there.
            let is_fork = number >= CONVERSATIONS;
            if is_fork && matches!(error, Some(ReadError::ConversationNotFound { .. })) {
                assert!(lost > 0, "byte {at}: nothing is said");
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
                "byte {at}: nothing is said"
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

// The damaged store is all there is: what is sound of it must come into a new one as
// it was, to the last hash and position, and the new one must be sound.
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
    // A key of a batch that was taken whole answers as it did; one of a batch of
    // which a part is missing does not answer with other events.
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

// People have the command line. With one damaged body and no views, each command must
// do what can be done, say what cannot, and end with the code of damage only where
// something is missing.
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

// A body that is stored already is not stored again. When what is stored has rotted,
// an append of the same content must not lean on it: what is acknowledged is there.
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
