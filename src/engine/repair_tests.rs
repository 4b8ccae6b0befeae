//! Tests of repair: evidence from projections and index, and data that it leaves unchanged.

use std::{collections::BTreeMap, path::Path};

use futures::StreamExt;

use super::*;
use treering_base::disk::copying::copy_folder;
use treering_domain::*;
use treering_log::{ConsistencyEvidence, LOG_FOLDER, RepairSession};

fn events(id: ConversationId, texts: &[&str]) -> AppendCommand {
    let created = EventBody::ConversationCreated(ConversationCreated::default());
    let said = |text: &&str| EventBody::MessageAppended(MessageAppended::text(Role::User, *text));
    let bodies = std::iter::once(created).chain(texts.iter().map(said));
    let events = bodies.map(|body| NewEvent::new(id, body)).collect();
    AppendCommand::new(Namespace::default(), events)
}

async fn append(engine: &Engine, texts: &[&str]) -> ConversationId {
    let id = ConversationId::generate();
    engine.append(events(id, texts)).await.unwrap();
    let query = SearchRequest {
        at_least: Some(engine.head()),
        ..SearchRequest::new(Namespace::default(), "word", 1)
    };
    engine.search(query).await.unwrap();
    id
}

async fn open(dir: &Path, mode: OpenMode) -> Result<Engine, OpenError> {
    let options = OpenOptions {
        mode,
        ..OpenOptions::new(dir)
    };
    Engine::open(options).await
}

/// A closed store with one conversation of three events.
async fn store(dir: &Path) {
    let engine = open(dir, OpenMode::Create).await.unwrap();
    append(&engine, &["one word", "two words"]).await;
    engine.close().await;
}

/// Returns the files below a folder, except the lock's, with their bytes.
fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            let below = contents(&path).into_iter();
            files.extend(below.map(|(file, bytes)| (format!("{name}/{file}"), bytes)));
        } else if name != "LOCK" {
            files.insert(name, std::fs::read(&path).unwrap());
        }
    }
    files
}

/// Checks that all earlier files still exist somewhere.
fn assert_nothing_is_gone(before: &BTreeMap<String, Vec<u8>>, dir: &Path) {
    let after = contents(dir);
    for (name, bytes) in before {
        let found = after.values().any(|other| other == bytes);
        assert!(found, "{name} is not found any more");
    }
}

// An older copy of `log/` was restored beside projections of a timeline that it did not know. They
// were taken for another log's and rebuilt: the accepted loss and all later writes were ignored,
// and positions were used twice.
#[tokio::test]
async fn log_from_before_an_accepted_loss_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    store(&data).await;
    let old = dir.path().join("old");
    copy_folder(&data.join(LOG_FOLDER), &old);
    let last = data.join(LOG_FOLDER).join("0000000000000001.redb");
    std::fs::write(&last, b"").unwrap();
    let repaired = repair(&data, true).await.unwrap();
    assert!(repaired.log.went_on && repaired.log.events_lost() == 3);
    let engine = open(&data, OpenMode::Append).await.unwrap();
    append(&engine, &["a later word"]).await;
    engine.close().await;
    let later = dir.path().join("later");
    copy_folder(&data, &later);

    for gone in [None, Some("views.redb"), Some("index")] {
        for path in [&data, &later] {
            treering_base::disk::remove(&path.join(LOG_FOLDER)).unwrap();
        }
        treering_base::disk::remove(&data).unwrap();
        copy_folder(&later, &data);
        copy_folder(&old, &data.join(LOG_FOLDER));
        if let Some(gone) = gone {
            treering_base::disk::remove(&data.join(gone)).unwrap();
        }
        let before = contents(&data);
        for mode in [OpenMode::Append, OpenMode::Create, OpenMode::Read] {
            let refused = open(&data, mode).await.map(|_| ()).unwrap_err();
            let OpenError::Regressed { what, .. } = &refused else {
                panic!("without {gone:?}, {mode:?}: {refused:?}");
            };
            assert!(what.contains("timeline"), "{what}");
            assert!(contents(&data) == before, "a refusal changed something");
        }
        let told = repair(&data, false).await.unwrap();
        assert!(!told.log.is_whole() && told.log.contradiction.is_some());
        assert!(contents(&data) == before, "a look changed something");
        let done = repair(&data, true).await.unwrap();
        assert!(done.log.went_on, "{done:?}");
        assert_nothing_is_gone(&before, &data);
        let engine = open(&data, OpenMode::Append).await.unwrap();
        assert_eq!(engine.head().offset, 3);
        engine.close().await;
        assert!(repair(&data, false).await.unwrap().log.is_whole());
    }
}

// After one flipped byte in the manifest, the store opened only if a loss was accepted. But nothing
// was lost: the segments and the projections contain all of the manifest's content.
#[tokio::test]
async fn lost_manifest_is_rebuilt_without_loss() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    store(&data).await;
    let engine = open(&data, OpenMode::Append).await.unwrap();
    let timeline = engine.inner.log.identity();
    engine.close().await;
    let manifest = data.join(LOG_FOLDER).join("MANIFEST");
    let sound = std::fs::read(&manifest).unwrap();
    for harm in ["a byte", "all"] {
        let mut bytes = sound.clone();
        bytes[70] ^= 1;
        std::fs::write(&manifest, &bytes).unwrap();
        if harm == "all" {
            std::fs::remove_file(&manifest).unwrap();
        }
        let before = contents(&data);
        let refused = open(&data, OpenMode::Append).await.map(|_| ()).unwrap_err();
        assert!(
            matches!(refused, OpenError::Regressed { .. }),
            "{refused:?}"
        );
        assert!(contents(&data) == before, "a refusal changed something");
        let done = repair(&data, false).await.unwrap();
        assert!(done.log.is_whole() && done.log.manifest_rebuilt, "{done:?}");
        assert!(!done.log.went_on && done.log.lost.is_empty());
        assert_nothing_is_gone(&before, &data);
        let after = contents(&data);
        let again = repair(&data, true).await.unwrap();
        assert!(again.log.is_whole() && !again.log.manifest_rebuilt);
        assert!(
            contents(&data) == after,
            "a second repair changed something"
        );
        let engine = open(&data, OpenMode::Append).await.unwrap();
        assert_eq!(engine.inner.log.identity(), timeline);
        assert_eq!(engine.head().offset, 3);
        engine.close().await;
    }
}

// With projections and index gone as well, nothing proves that no segment is missing after the last
// existing one. Someone must accept that risk.
#[tokio::test]
async fn lost_manifest_without_projections_needs_consent() {
    let dir = tempfile::tempdir().unwrap();
    store(dir.path()).await;
    std::fs::remove_file(dir.path().join(LOG_FOLDER).join("MANIFEST")).unwrap();
    treering_base::disk::remove(&dir.path().join("views.redb")).unwrap();
    treering_base::disk::remove(&dir.path().join("index")).unwrap();
    let before = contents(dir.path());
    let told = repair(dir.path(), false).await.unwrap();
    assert!(!told.log.is_whole() && told.log.lost.is_empty());
    assert!(told.log.unproven.is_some(), "{told:?}");
    assert!(contents(dir.path()) == before, "a look changed something");
    let done = repair(dir.path(), true).await.unwrap();
    assert!(done.log.went_on && done.log.events_lost() == 0);
    assert_nothing_is_gone(&before, dir.path());
}

// A repair that was killed before it moved the projections aside left them where the next opening
// deletes them, although they know which conversations were truncated.
#[tokio::test]
async fn killed_repair_is_finished_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    store(dir.path()).await;
    let last = dir.path().join(LOG_FOLDER).join("0000000000000001.redb");
    std::fs::remove_file(&last).unwrap();
    let before = contents(dir.path());
    let witness = ConsistencyEvidence {
        is_there: true,
        reached: 3,
        contradiction: None,
    };
    let broken_off = RepairSession::to_mend(dir.path()).unwrap();
    assert!(broken_off.mend(&witness, true).unwrap().went_on);
    drop(broken_off);
    assert!(dir.path().join("views.redb").exists());
    let done = repair(dir.path(), true).await.unwrap();
    assert!(done.log.is_whole(), "{done:?}");
    assert!(!dir.path().join("views.redb").exists());
    let after = contents(dir.path());
    repair(dir.path(), true).await.unwrap();
    assert!(contents(dir.path()) == after, "a third changed something");
    let engine = open(dir.path(), OpenMode::Append).await.unwrap();
    engine.close().await;
    assert_nothing_is_gone(&before, dir.path());
}

// Two concurrent repairs: the second had read its evidence before the first was done, and accepted
// the same loss again, in a third timeline.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_repairs_accept_the_loss_once() {
    for _ in 0..12 {
        let dir = tempfile::tempdir().unwrap();
        store(dir.path()).await;
        let log = dir.path().join(LOG_FOLDER);
        let last = log.join("0000000000000001.redb");
        std::fs::write(&last, b"no segment").unwrap();
        let both = (0..3).map(|_| repair(dir.path(), true));
        let mut went_on = 0;
        for done in futures::future::join_all(both).await {
            match done {
                Ok(done) => went_on += u32::from(done.log.went_on),
                Err(OpenError::Locked { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(went_on, 1);
        let names = std::fs::read_dir(&log).unwrap();
        let aside = |name: String| name.starts_with("set-aside");
        let asides = names.filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            aside(name.to_string_lossy().into_owned())
        });
        assert_eq!(asides.count(), 1);
    }
}

// An append to a regressed log was refused, but only after the segment had been opened for writing:
// this changed evidence.
#[tokio::test]
async fn refused_log_is_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    store(&data).await;
    let old = dir.path().join("old");
    copy_folder(&data.join(LOG_FOLDER), &old);
    let engine = open(&data, OpenMode::Append).await.unwrap();
    append(&engine, &["one more word"]).await;
    engine.close().await;
    treering_base::disk::remove(&data.join(LOG_FOLDER)).unwrap();
    copy_folder(&old, &data.join(LOG_FOLDER));
    for gone in ["", "index", "views.redb"] {
        if !gone.is_empty() {
            std::fs::rename(data.join(gone), dir.path().join(gone)).unwrap();
        }
        let before = contents(&data);
        for mode in [OpenMode::Append, OpenMode::Create] {
            let refused = open(&data, mode).await.map(|_| ()).unwrap_err();
            assert!(
                matches!(refused, OpenError::Regressed { .. }),
                "{refused:?}"
            );
            assert!(
                contents(&data) == before,
                "without {gone}: something changed"
            );
        }
        if !gone.is_empty() {
            std::fs::rename(dir.path().join(gone), data.join(gone)).unwrap();
        }
    }
}

/// Flips a bit at every occurrence of `mark` in a store's segments, or flips it back.
fn toggle(data: &Path, mark: &[u8]) {
    let mut changed = mark.to_vec();
    changed[0] ^= 1;
    let mut found = 0;
    for entry in std::fs::read_dir(data.join(LOG_FOLDER)).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "redb") {
            continue;
        }
        let mut bytes = std::fs::read(&path).unwrap();
        let is_mark = |at: &usize| {
            let window = &bytes[*at..*at + mark.len()];
            window == mark || window == changed
        };
        let ends = (bytes.len() + 1).saturating_sub(mark.len());
        let places: Vec<_> = (0..ends).filter(is_mark).collect();
        for at in &places {
            bytes[*at] ^= 1;
        }
        found += places.len();
        std::fs::write(&path, bytes).unwrap();
    }
    assert!(found > 0);
}

async fn rebuild(engine: &Engine) {
    use futures::TryStreamExt;
    let done: Vec<_> = engine.rebuild(true, false).try_collect().await.unwrap();
    assert!(!done.is_empty());
}

/// Returns incompressible bytes, which are stored literally in their own frame, and can be found
/// again.
fn noise(seed: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    blake3::Hasher::new()
        .update(seed)
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

fn custom(id: ConversationId, data: &[u8]) -> NewEvent {
    let custom = Custom {
        type_name: "noise".to_owned(),
        content_type: String::new(),
        data: bytes::Bytes::copy_from_slice(data),
        text: String::new(),
        delta_of: String::new(),
    };
    NewEvent::new(id, EventBody::Custom(custom))
}

// A rebuilt manifest cannot say whether an erasure was running, so the log is searched for one. One
// unreadable frame prevented the whole store from opening. The possible erasure must not be
// forgotten, in case the frame becomes readable again.
#[tokio::test]
async fn bad_frame_blocks_neither_opening_nor_erasing() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let engine = open(&data, OpenMode::Create).await.unwrap();
    let id = append(&engine, &["one word"]).await;
    let bad = noise(b"bad");
    let last = AppendCommand::new(Namespace::default(), vec![custom(id, &bad)]);
    engine.append(last).await.unwrap();
    let whole = append(&engine, &["behind"]).await;
    engine.close().await;
    std::fs::remove_file(data.join(LOG_FOLDER).join("MANIFEST")).unwrap();
    let done = repair(&data, false).await.unwrap();
    assert!(done.log.manifest_rebuilt, "{done:?}");

    let harm = || toggle(&data, &bad[2_000..2_016]);
    let under_way = |engine: &Engine| engine.inner.upkeep.files.as_ref().unwrap().erasing();
    harm();
    for mode in [OpenMode::Append, OpenMode::Read] {
        let engine = open(&data, mode).await.unwrap();
        let query = ReadQuery::all(Namespace::default(), EventSource::Conversation(whole));
        assert_eq!(engine.read_all(query).await.unwrap().len(), 2);
        assert_eq!(under_way(&engine), Some(1));
        engine.close().await;
    }
    harm();
    let engine = open(&data, OpenMode::Append).await.unwrap();
    assert_eq!(under_way(&engine), None);
    engine.close().await;
}

// A store with an old erasure lost its manifest, so the erasure must be repeated. One unreadable
// frame prevented the whole store from opening. It must be readable, without the erased content, and
// finish the erasure once the frame is readable again.
#[tokio::test]
async fn bad_frame_beside_an_erasure_hides_the_content() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let engine = open(&data, OpenMode::Create).await.unwrap();
    let id = append(&engine, &["one word"]).await;
    let erase = EraseCommand {
        namespace: Namespace::default(),
        target: EraseTarget::Conversation(id),
        keep_derived: false,
        dry_run: false,
        reason: "asked for".to_owned(),
        actor: "ada".to_owned(),
    };
    let erased: Vec<_> = engine.erase(erase).collect().await;
    assert!(erased.iter().all(Result::is_ok), "{erased:?}");
    let (harmed, bad) = (append(&engine, &["two words"]).await, noise(b"bad"));
    let last = AppendCommand::new(Namespace::default(), vec![custom(harmed, &bad)]);
    engine.append(last).await.unwrap();
    let whole = append(&engine, &["behind"]).await;
    engine.close().await;
    std::fs::remove_file(data.join(LOG_FOLDER).join("MANIFEST")).unwrap();
    repair(&data, false).await.unwrap();

    let harm = || toggle(&data, &bad[2_000..2_016]);
    harm();
    for mode in [OpenMode::Append, OpenMode::Read] {
        let engine = open(&data, mode).await.unwrap();
        let at_open = engine.erasing_at_open();
        assert!(
            matches!(at_open, ErasureAtOpen::Hidden { why: Some(why) } if why.contains("salvage")),
            "{at_open:?}"
        );
        let read = |id| ReadQuery::all(Namespace::default(), EventSource::Conversation(id));
        assert_eq!(engine.read_all(read(whole)).await.unwrap().len(), 2);
        let left = format!("{:?}", engine.read_all(read(id)).await);
        assert!(!left.contains("one word"), "{left}");
        engine.close().await;
    }
    harm();
    let engine = open(&data, OpenMode::Append).await.unwrap();
    assert_eq!(*engine.erasing_at_open(), ErasureAtOpen::Finished);
    engine.close().await;
}

// A conversation whose last events were in an unreadable frame was rebuilt as if it had ended
// before them, because no later event reveals the loss. The old projections have seen these events.
#[tokio::test]
async fn conversation_that_ends_in_a_loss_is_marked() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let engine = open(&data, OpenMode::Create).await.unwrap();
    let (cut, gone) = (ConversationId::generate(), ConversationId::generate());
    engine.append(events(cut, &["one word"])).await.unwrap();
    let (ours, theirs) = (noise(b"cut"), noise(b"gone"));
    let last = AppendCommand::new(Namespace::default(), vec![custom(cut, &ours)]);
    engine.append(last).await.unwrap();
    let mut all = events(gone, &[]);
    all.events.push(custom(gone, &theirs));
    engine.append(all).await.unwrap();
    let harm = || {
        toggle(&data, &ours[2_000..2_016]);
        toggle(&data, &theirs[2_000..2_016]);
    };
    let whole = append(&engine, &["behind"]).await;
    engine.close().await;

    harm();
    let engine = open(&data, OpenMode::Append).await.unwrap();
    for _ in 0..2 {
        rebuild(&engine).await;
        let marks = &engine.inner.reads.quarantine;
        let mark = marks.get(Namespace::default().key(cut)).unwrap();
        assert_eq!((mark.revision, mark.position.offset), (Revision(3), 3));
        assert_eq!(
            marks.get(Namespace::default().key(gone)).unwrap().revision,
            Revision(1)
        );
        assert!(marks.get(Namespace::default().key(whole)).is_none());
    }
    // A read of the log that stops before the loss succeeds.
    let mut before = ReadQuery::all(Namespace::default(), EventSource::Log);
    before.limit = 2;
    assert_eq!(engine.read_all(before).await.unwrap().len(), 2);
    let ns = Namespace::default();
    let named = engine
        .conversation(&BranchAddress::active(ns.clone(), gone), None)
        .await
        .unwrap();
    assert!(named.summary.damage.is_some());
    let query = ReadQuery::all(ns, EventSource::Conversation(gone));
    let read = engine.read_all(query).await.unwrap_err();
    assert!(
        matches!(read, ReadError::ConversationDamaged { .. }),
        "{read:?}"
    );
    engine.close().await;

    let out = dir.path().join("out");
    let salvaged = salvage(&data, &out, |_| {}).await.unwrap();
    assert_eq!((salvaged.whole, salvaged.cut, salvaged.lost), (1, 1, 1));
    assert_eq!(salvaged.unreadable_positions, 3);

    // Conversations that become readable are served again.
    harm();
    let engine = open(&data, OpenMode::Append).await.unwrap();
    for id in [cut, gone, whole] {
        assert!(
            engine
                .inner
                .reads
                .quarantine
                .get(Namespace::default().key(id))
                .is_none()
        );
    }
    engine.close().await;
}

// A salvage into a folder inside the damaged store changed that store.
#[tokio::test]
async fn salvage_into_the_damaged_store_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    store(dir.path()).await;
    let before = contents(dir.path());
    for inside in ["inside", "log/inside", "not/there/yet"] {
        let refused = salvage(dir.path(), &dir.path().join(inside), |_| {}).await;
        let refused = refused.unwrap_err();
        assert!(
            matches!(refused, SalvageError::Within { .. }),
            "{refused:?}"
        );
    }
    assert!(contents(dir.path()) == before);
}
