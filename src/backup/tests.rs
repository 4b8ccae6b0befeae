//! Complete backups of real stores in folders: restored, cut, erased, damaged.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::StreamExt;

use super::{
    inspect::RetentionRule,
    manifest::{self, Manifest},
    seal::{self, ObjectIdentity, ObjectKind},
    *,
};
use treering_base::disk::copying::copy_folder;
use treering_domain::*;
use treering_engine::{
    Engine, EraseCommand, EraseItem, EraseTarget, EventSource as ReadSource, OpenOptions,
    ReadQuery, VerifyItem,
};

const NEEDLE: &str = "needlebackupqzx";

fn said(text: &str) -> EventBody {
    EventBody::MessageAppended(MessageAppended::text(Role::User, text))
}

/// Returns a text that is stored as a large body, unique for each number.
fn large(number: u64) -> String {
    let hashes = (0..2_000).map(|part| blake3::hash(format!("{number} {part}").as_bytes()));
    hashes.map(|hash| hash.to_hex().to_string()).collect()
}

async fn open(dir: &Path) -> Engine {
    Engine::open(OpenOptions::new(dir)).await.unwrap()
}

/// Appends a batch to a new conversation or to an existing one.
async fn append(engine: &Engine, id: Option<ConversationId>, texts: &[&str]) -> ConversationId {
    let created = EventBody::ConversationCreated(ConversationCreated::default());
    let first = id.is_none().then_some(created);
    let id = id.unwrap_or_else(ConversationId::generate);
    let bodies = first.into_iter().chain(texts.iter().map(|text| said(text)));
    let events = bodies.map(|body| NewEvent::new(id, body)).collect();
    let mut command = AppendCommand::new(Namespace::default(), events);
    command.idempotency_key = Some(format!("key of {}", ConversationId::generate()));
    engine.append(command).await.unwrap();
    id
}

/// Returns the complete content of a store's log.
async fn log_of(engine: &Engine) -> Vec<(EventHeader, ContentHash, Vec<u8>)> {
    let query = ReadQuery::all(Namespace::default(), ReadSource::Log);
    let mut events = Vec::new();
    let mut batches = engine.read(query);
    while let Some(batch) = batches.next().await {
        for event in batch.unwrap() {
            let event = event.event;
            let chain = event.chain_hash.get();
            events.push((event.header, chain, event.body.to_vec()));
        }
    }
    events
}

async fn is_sound(engine: &Engine) {
    let mut items = engine.verify(&Namespace::default(), true);
    let mut sound = None;
    while let Some(item) = items.next().await {
        match item.unwrap() {
            VerifyItem::Fault(fault) => panic!("{fault:?}"),
            VerifyItem::Outcome(outcome) => sound = Some(outcome.sound),
            VerifyItem::Progress(_) => {}
        }
    }
    assert_eq!(sound, Some(true));
}

async fn back_up(engine: &Engine, to: &Path, key: Option<&EncryptionKey>) -> BackupOutcome {
    let target = BackupTarget::to_write(to.to_str().unwrap()).unwrap();
    let options = BackupOptions {
        key: key.cloned(),
        follow: false,
    };
    let mut backup = Backup::start(engine, &target, &options).await.unwrap();
    backup.run(|_| {}).await.unwrap();
    backup.outcome()
}

fn target(at: &Path) -> BackupTarget {
    BackupTarget::to_read(at.to_str().unwrap()).unwrap()
}

async fn restored(from: &Path, to: &Path, cut: RestoreTo) -> Result<RestoreOutcome, BackupError> {
    let options = RestoreOptions {
        cut,
        ..RestoreOptions::default()
    };
    restore(&target(from), to, &options, |_| {}).await
}

async fn faults(from: &Path) -> Vec<String> {
    let verified = verify(&target(from), None, None, |_| {}).await.unwrap();
    verified
        .faults
        .into_iter()
        .map(|fault| fault.what)
        .collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

fn objects(folder: &Path) -> Vec<PathBuf> {
    let is_object = |path: &PathBuf| path.parent().is_some_and(|at| at.ends_with("records"));
    files(folder).into_iter().filter(is_object).collect()
}

// A growing state is stored as patches. A backup has it in full. The restored store must equal the
// original, hash by hash, and store it as patches again.
#[tokio::test]
async fn restore_keeps_states_stored_as_patches() {
    let dir = tempfile::tempdir().unwrap();
    let (store, to) = (dir.path().join("store"), dir.path().join("to"));
    let engine = open(&store).await;
    let id = append(&engine, None, &["what grows"]).await;
    let mut data = large(0).into_bytes();
    for step in 1..=40 {
        data.extend(format!("step {step}").into_bytes());
        let custom = Custom {
            type_name: "state".to_owned(),
            content_type: String::new(),
            data: data.clone().into(),
            text: String::new(),
            delta_of: "state".to_owned(),
        };
        let event = NewEvent::new(id, EventBody::Custom(custom)).with_key("state");
        let command = AppendCommand::new(Namespace::default(), vec![event]);
        engine.append(command).await.unwrap();
    }
    let there = log_of(&engine).await;
    back_up(&engine, &to, None).await;
    engine.close().await;
    let again = dir.path().join("again");
    restored(&to, &again, RestoreTo::End).await.unwrap();
    let engine = open(&again).await;
    assert_eq!(log_of(&engine).await, there);
    is_sound(&engine).await;
    engine.close().await;
    let bytes = |store: &Path| -> u64 {
        let files = files(&store.join("log"));
        files
            .iter()
            .map(|file| fs::metadata(file).unwrap().len())
            .sum()
    };
    // In full, the values would take 5 MB.
    let most = data.len() as u64 * 40 / 3;
    for store in [&store, &again] {
        assert!(bytes(store) < most, "{} {most}", bytes(store));
    }
}

// After the loss of a disk, the restored store must have every event and hash, and large bodies
// that several events share. A second backup must send only new records.
#[tokio::test]
async fn restore_gives_back_every_event_and_hash() {
    let dir = tempfile::tempdir().unwrap();
    let (store, to) = (dir.path().join("store"), dir.path().join("to"));
    let engine = open(&store).await;
    let (one, two) = (large(1), large(2));
    let first = append(&engine, None, &["hello", &one, "and", &two]).await;
    let done = back_up(&engine, &to, None).await;
    assert_eq!((done.generation, done.events, done.head), (1, 5, 5));
    append(&engine, Some(first), &[&one, "the same again"]).await;
    append(&engine, None, &[&two]).await;
    let bytes = fs::metadata(&objects(&to)[0]).unwrap().len();
    let done = back_up(&engine, &to, None).await;
    assert_eq!((done.generation, done.events, done.head), (2, 4, 9));
    assert!(done.bytes < bytes / 4, "what is there was shipped again");
    let done = back_up(&engine, &to, None).await;
    assert_eq!((done.generation, done.is_new, done.objects), (2, false, 0));
    assert_eq!(faults(&to).await, [] as [String; 0]);
    let was = log_of(&engine).await;
    engine.close().await;

    let again = dir.path().join("again");
    let done = restored(&to, &again, RestoreTo::End).await.unwrap();
    assert_eq!((done.events, done.conversations, done.erased), (9, 2, 0));
    assert_ne!(done.store, done.new_store);
    let engine = open(&again).await;
    assert_eq!(log_of(&engine).await, was);
    is_sound(&engine).await;
    // The restored store continues, and its backups must not touch those of the old one.
    append(&engine, Some(first), &["on it goes"]).await;
    let done = back_up(&engine, &to, None).await;
    assert_eq!((done.generation, done.events), (1, 10));
    engine.close().await;
    assert!(matches!(
        restored(&to, &dir.path().join("x"), RestoreTo::End).await,
        Err(BackupError::Several { .. })
    ));
    let options = RestoreOptions {
        store: Some(done.store),
        ..RestoreOptions::default()
    };
    let full = restore(&target(&to), &again, &options, |_| {})
        .await
        .unwrap_err();
    assert!(matches!(full, BackupError::NotEmpty { .. }));
}

// An agent's step is a batch: half of one would be a call without its result, a state that never
// existed. Whatever position or time is requested, a batch must be restored completely or not at
// all.
#[tokio::test]
async fn restore_point_never_splits_a_batch() {
    let dir = tempfile::tempdir().unwrap();
    let (store, to) = (dir.path().join("store"), dir.path().join("to"));
    let engine = open(&store).await;
    let mut ends = vec![0];
    let mut id = None;
    for size in [2, 1, 5, 3] {
        id = Some(append(&engine, id, &vec!["word"; size]).await);
        ends.push(engine.head().offset);
    }
    // Batches in the middle of an object, and at its end.
    back_up(&engine, &to, None).await;
    append(&engine, id, &["a", "b"]).await;
    ends.push(engine.head().offset);
    back_up(&engine, &to, None).await;
    let was = log_of(&engine).await;
    engine.close().await;
    for position in 1..=engine.head().offset {
        let end = *ends.iter().rev().find(|end| **end <= position).unwrap();
        let again = dir.path().join(format!("at {position}"));
        let done = restored(&to, &again, RestoreTo::Position(position)).await;
        if end == 0 {
            assert!(
                matches!(done, Err(BackupError::NoSuchPlace { .. })),
                "{position}"
            );
            assert!(!again.join("log").exists());
            continue;
        }
        assert_eq!(done.unwrap().events, end, "position {position}");
        if position % 3 == 0 {
            let engine = open(&again).await;
            assert_eq!(
                log_of(&engine).await,
                was[..end as usize],
                "position {position}"
            );
            engine.close().await;
        }
    }
    let beyond = restored(&to, &dir.path().join("x"), RestoreTo::Position(99)).await;
    assert!(matches!(beyond, Err(BackupError::NoSuchPlace { .. })));
    for end in &ends[1..] {
        let recorded = was[*end as usize - 1].0.recorded_at;
        let again = dir.path().join(format!("by {end}"));
        let done = restored(&to, &again, RestoreTo::Time(recorded))
            .await
            .unwrap();
        assert_eq!((done.events, done.last_recorded_at), (*end, Some(recorded)));
        let again = dir.path().join(format!("before {end}"));
        let before = RestoreTo::Time(TimestampMicros(recorded.0 - 1));
        let done = restored(&to, &again, before).await;
        assert_eq!(
            done.map_or(0, |done| done.events),
            ends[ends.iter().position(|e| e == end).unwrap() - 1]
        );
    }
}

async fn erase(engine: &Engine, target: EraseTarget) {
    let mut items = engine.erase(EraseCommand {
        namespace: Namespace::default(),
        target,
        keep_derived: false,
        dry_run: false,
        reason: "asked to".to_owned(),
        actor: "operator".to_owned(),
    });
    let mut receipt = None;
    while let Some(item) = items.next().await {
        if let EraseItem::Outcome(outcome) = item.unwrap() {
            receipt = outcome.receipt;
        }
    }
    // The receipt must say which backups may still have the content.
    let receipt = receipt.unwrap();
    assert!(receipt.contains("\"backups\":[{\"target\":"), "{receipt}");
}

/// Returns the files of a backup whose unwrapped content contains the needle.
async fn found(to: &Path) -> Vec<String> {
    let target = target(to);
    let store = manifest::one_store(&target, None).await.unwrap();
    let mut found = Vec::new();
    for path in files(to) {
        let bytes = fs::read(&path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let numbers: Vec<u64> = name
            .split('-')
            .filter_map(|part| u64::from_str_radix(part, 16).ok())
            .collect();
        let place = ObjectIdentity {
            kind: if numbers.len() == 1 {
                ObjectKind::Manifest
            } else {
                ObjectKind::Records
            },
            store,
            range: (numbers[0], numbers[numbers.len().min(2) - 1]),
        };
        let raw = seal::open(place, &bytes, None).unwrap();
        if raw
            .windows(NEEDLE.len())
            .any(|window| window == NEEDLE.as_bytes())
        {
            found.push(name);
        }
    }
    found
}

// A backup that kept erased content would make erasing meaningless. After the next backup, no
// object may have it, and a store restored from before the erasure must not have it either: neither
// the body, nor a large body that nothing else refers to.
#[tokio::test]
async fn erased_content_is_removed_from_the_backup() {
    let dir = tempfile::tempdir().unwrap();
    let (store, to) = (dir.path().join("store"), dir.path().join("to"));
    let engine = open(&store).await;
    let (shared, lone) = (large(1), format!("{NEEDLE} {}", large(2)));
    let id = append(&engine, None, &["one", &shared, NEEDLE, "two"]).await;
    let lone_too = append(&engine, None, &[&lone]).await;
    back_up(&engine, &to, None).await;
    // The same large body again, in another object.
    append(&engine, Some(lone_too), &[&shared, "kept"]).await;
    back_up(&engine, &to, None).await;
    let before = engine.head().offset;
    assert_eq!(found(&to).await.len(), 1);
    let revisions = EraseTarget::Revisions {
        conversation: id,
        // The first event with the shared body, and the needle.
        revisions: vec![3..=4],
    };
    erase(&engine, revisions).await;
    erase(&engine, EraseTarget::Literal(NEEDLE.as_bytes().to_vec())).await;
    let infos = generations(&target(&to), None).await.unwrap();
    assert_eq!(infos.len(), 2);
    let done = back_up(&engine, &to, None).await;
    assert_eq!(done.removed, [1, 2]);
    assert_eq!(found(&to).await, [] as [String; 0]);
    assert_eq!(faults(&to).await, [] as [String; 0]);
    let was = log_of(&engine).await;
    engine.close().await;

    for (name, cut) in [
        ("all", RestoreTo::End),
        ("before", RestoreTo::Position(before)),
    ] {
        let again = dir.path().join(name);
        let done = restored(&to, &again, cut).await.unwrap();
        assert!(done.events >= before);
        let engine = open(&again).await;
        is_sound(&engine).await;
        let now = log_of(&engine).await;
        let kept = before as usize;
        assert_eq!(now[..kept], was[..kept]);
        let text = |event: &(EventHeader, ContentHash, Vec<u8>)| {
            String::from_utf8_lossy(&event.2).into_owned()
        };
        assert!(!now.iter().any(|event| text(event).contains(NEEDLE)));
        assert!(now.iter().any(|event| text(event).contains(&shared)));
        engine.close().await;
    }
}

// A backup from before the erasure may have been on a disk that was offline then. The erasures in
// the newest readable generation apply to every restore, and the restored store must record them.
#[tokio::test]
async fn restore_of_an_older_generation_applies_later_erasures() {
    let dir = tempfile::tempdir().unwrap();
    let (store, to) = (dir.path().join("store"), dir.path().join("to"));
    let engine = open(&store).await;
    let shared = format!("{NEEDLE} {}", large(1));
    let id = append(&engine, None, &["one", NEEDLE, &shared]).await;
    let other = append(&engine, None, &["x", &shared]).await;
    back_up(&engine, &to, None).await;
    let kept = dir.path().join("kept");
    copy_folder(&to, &kept);
    let before = engine.head().offset;
    let revisions = EraseTarget::Revisions {
        conversation: id,
        revisions: vec![3..=4],
    };
    erase(&engine, revisions).await;
    back_up(&engine, &to, None).await;
    engine.close().await;
    // The old objects and their generation are restored beside the new ones.
    for file in files(&kept) {
        let back = to.join(file.strip_prefix(&kept).unwrap());
        if !back.exists() {
            fs::copy(&file, &back).unwrap();
        }
    }
    let infos = generations(&target(&to), None).await.unwrap();
    assert_eq!(
        infos
            .iter()
            .map(|info| info.holds_erased)
            .collect::<Vec<_>>(),
        [2, 0]
    );
    let options = RestoreOptions {
        generation: Some(1),
        ..RestoreOptions::default()
    };
    let again = dir.path().join("again");
    let done = restore(&target(&to), &again, &options, |_| {})
        .await
        .unwrap();
    assert_eq!((done.events, done.erased), (before, 2));
    let engine = open(&again).await;
    is_sound(&engine).await;
    let now = log_of(&engine).await;
    // One more event, which records the erasure. The other conversation keeps its large body.
    assert_eq!(now.len() as u64, before + 1);
    let holds = |event: &&(EventHeader, ContentHash, Vec<u8>)| {
        String::from_utf8_lossy(&event.2).contains(NEEDLE)
    };
    let holding: Vec<_> = now
        .iter()
        .filter(holds)
        .map(|event| event.0.conversation)
        .collect();
    assert_eq!(holding, [other]);
    let last = &now.last().unwrap().0;
    assert_eq!(last.kind(), Some(EventKind::ContentErased));
    assert_eq!((last.conversation, last.actor.as_str()), (id, "operator"));
    append(&engine, Some(id), &["and on"]).await;
    engine.close().await;
}

// Nobody looks at a backup until it is needed. Verification and restore must report by name an
// object that is missing, truncated, changed or from another backup. Nothing may be left that opens
// as a store.
#[tokio::test]
async fn damaged_backup_object_is_reported_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let (store, to) = (dir.path().join("store"), dir.path().join("to"));
    let engine = open(&store).await;
    let id = append(&engine, None, &["one", "two", &large(1)]).await;
    back_up(&engine, &to, None).await;
    append(&engine, Some(id), &["three"]).await;
    back_up(&engine, &to, None).await;
    engine.close().await;
    let there = objects(&to);
    let (victim, other) = (&there[1], &there[0]);
    let name = victim.file_name().unwrap().to_str().unwrap();
    let good = fs::read(victim).unwrap();
    let mut changed = good.clone();
    changed[60] ^= 1;
    for (number, bytes) in [
        None,
        Some(Vec::new()),
        Some(good[..good.len() / 2].to_vec()),
        Some(changed),
        Some(fs::read(other).unwrap()),
        Some(b"somebody else's file".repeat(30)),
    ]
    .into_iter()
    .enumerate()
    {
        match bytes {
            Some(bytes) => fs::write(victim, bytes).unwrap(),
            None => fs::remove_file(victim).unwrap(),
        }
        let told = faults(&to).await;
        assert_eq!(told.len(), 1, "case {number}: {told:?}");
        assert!(told[0].contains(name), "case {number}: {told:?}");
        let again = dir.path().join(format!("again {number}"));
        let error = restored(&to, &again, RestoreTo::End).await.unwrap_err();
        assert!(error.to_string().contains(name), "case {number}: {error}");
        assert!(!again.join("log").exists() && !again.join(".restoring").exists());
        // The records before it can be restored.
        restored(&to, &again, RestoreTo::Position(4)).await.unwrap();
    }
    fs::write(victim, good).unwrap();
    assert_eq!(faults(&to).await, [] as [String; 0]);
    let generation = files(&to)
        .into_iter()
        .find(|path| path.ends_with("0000000000000002"));
    fs::write(generation.unwrap(), b"torn").unwrap();
    let told = faults(&to).await;
    assert!(
        told.len() == 1 && told[0].contains("generations/0000000000000002"),
        "{told:?}"
    );
    let older = RestoreOptions {
        generation: Some(1),
        ..RestoreOptions::default()
    };
    let again = dir.path().join("older");
    let done = restore(&target(&to), &again, &older, |_| {}).await.unwrap();
    assert_eq!((done.events, done.unread), (4, vec![2]));
}

// Objects were deleted from the bucket, and backups kept reporting success. The next backup must
// notice missing or truncated objects and write them again.
#[tokio::test]
async fn backup_rewrites_missing_and_truncated_objects() {
    let dir = tempfile::tempdir().unwrap();
    let (store, to) = (dir.path().join("store"), dir.path().join("to"));
    let engine = open(&store).await;
    let id = append(&engine, None, &["one", NEEDLE]).await;
    back_up(&engine, &to, None).await;
    append(&engine, Some(id), &["two", &large(1)]).await;
    erase(&engine, EraseTarget::Literal(NEEDLE.into())).await;
    back_up(&engine, &to, None).await;
    append(&engine, Some(id), &["three"]).await;
    back_up(&engine, &to, None).await;
    let expected = log_of(&engine).await;
    assert!(objects(&to).len() >= 3);
    for number in 0..4 {
        // Rewritten ranges may be divided into objects differently.
        let there = objects(&to);
        let victim = &there[number % there.len()];
        match number % 2 {
            0 => fs::remove_file(victim).unwrap(),
            _ => fs::write(victim, b"cut").unwrap(),
        }
        let done = back_up(&engine, &to, None).await;
        assert_eq!((done.gone, done.is_new), (1, true), "{number}: {victim:?}");
        let done = back_up(&engine, &to, None).await;
        assert_eq!((done.gone, done.is_new), (0, false), "{number}: {victim:?}");
        let keep = RetentionRule {
            newest: Some(1),
            days: None,
        };
        prune(&target(&to), None, None, keep, false).await.unwrap();
        assert_eq!(faults(&to).await, [] as [String; 0]);
        assert_eq!(found(&to).await, [] as [String; 0]);
        let again = dir.path().join(format!("again {number}"));
        restored(&to, &again, RestoreTo::End).await.unwrap();
        let copy = open(&again).await;
        assert_eq!(log_of(&copy).await.len(), expected.len());
        is_sound(&copy).await;
        copy.close().await;
    }
    engine.close().await;
}

// When the newest generation was damaged, neither backups nor pruning worked. Both must continue
// from the previous one. The objects of the damaged one must stay until there is a newer one.
#[tokio::test]
async fn backup_continues_past_a_damaged_newest_generation() {
    let dir = tempfile::tempdir().unwrap();
    let (store, to) = (dir.path().join("store"), dir.path().join("to"));
    let engine = open(&store).await;
    let id = append(&engine, None, &["one"]).await;
    let first = back_up(&engine, &to, None).await;
    append(&engine, Some(id), &["two"]).await;
    back_up(&engine, &to, None).await;
    let bad = to.join(manifest::name_of(first.store, 2));
    fs::write(&bad, "torn").unwrap();
    let keep = RetentionRule {
        newest: Some(1),
        days: None,
    };
    let before = objects(&to);
    let pruned = prune(&target(&to), None, None, keep, false).await.unwrap();
    assert_eq!((pruned.kept, pruned.generations), (vec![1, 2], vec![]));
    assert_eq!(objects(&to), before);
    let done = back_up(&engine, &to, None).await;
    assert_eq!(
        (done.generation, done.unread, done.is_new),
        (3, vec![2], true)
    );
    let again = dir.path().join("again");
    let restored = restored(&to, &again, RestoreTo::End).await.unwrap();
    assert_eq!(restored.generation, 3);
    let copy = open(&again).await;
    assert_eq!(log_of(&copy).await.len(), log_of(&engine).await.len());
    copy.close().await;
    let pruned = prune(&target(&to), None, None, keep, false).await.unwrap();
    assert_eq!((pruned.kept, pruned.generations), (vec![3], vec![1, 2]));
    assert_eq!(faults(&to).await, [] as [String; 0]);
    engine.close().await;
}

// A killed restore leaves its folder. The next restore must neither fail nor use its content.
#[tokio::test]
async fn restore_ignores_leftovers_of_an_interrupted_restore() {
    let dir = tempfile::tempdir().unwrap();
    let (store, to) = (dir.path().join("store"), dir.path().join("to"));
    let engine = open(&store).await;
    append(&engine, None, &["one"]).await;
    back_up(&engine, &to, None).await;
    engine.close().await;
    let again = dir.path().join("again");
    fs::create_dir_all(again.join(".restoring")).unwrap();
    copy_folder(&store, &again.join(".restoring"));
    assert!(
        Engine::open(OpenOptions::new(&again).existing())
            .await
            .is_err()
    );
    assert_eq!(
        restored(&to, &again, RestoreTo::End).await.unwrap().events,
        2
    );
    open(&again).await.close().await;
}

// Two timers fire at once: both backups send the same records, and one generation would silently
// lose the records of the other. The second backup must get an error, and the first one's
// generation must stand.
#[tokio::test]
async fn second_of_two_concurrent_backups_fails() {
    let dir = tempfile::tempdir().unwrap();
    let (store, to) = (dir.path().join("store"), dir.path().join("to"));
    let engine = open(&store).await;
    append(&engine, None, &["one"]).await;
    back_up(&engine, &to, None).await;
    append(&engine, None, &["two"]).await;
    let to_write = BackupTarget::to_write(to.to_str().unwrap()).unwrap();
    let options = BackupOptions::default();
    let mut one = Backup::start(&engine, &to_write, &options).await.unwrap();
    let mut two = Backup::start(&engine, &to_write, &options).await.unwrap();
    one.run(|_| {}).await.unwrap();
    let error = two.run(|_| {}).await.unwrap_err();
    assert!(
        matches!(error, BackupError::Overtaken { generation: 2, .. }),
        "{error}"
    );
    assert_eq!(faults(&to).await, [] as [String; 0]);
    assert!(!back_up(&engine, &to, None).await.is_new);
    engine.close().await;
}

// The store continues from an older copy of its folder, so the newest generation differs from the
// log. The two must not be mixed, and records that only the old generation has must stay until
// somebody removes them.
#[tokio::test]
async fn backup_of_a_regressed_log_starts_a_new_line() {
    let dir = tempfile::tempdir().unwrap();
    let (store, to) = (dir.path().join("store"), dir.path().join("to"));
    let engine = open(&store).await;
    let id = append(&engine, None, &["one"]).await;
    back_up(&engine, &to, None).await;
    engine.close().await;
    let older = dir.path().join("older");
    copy_folder(&store, &older);
    let engine = open(&store).await;
    append(&engine, Some(id), &[NEEDLE, "three"]).await;
    back_up(&engine, &to, None).await;
    engine.close().await;
    let engine = open(&older).await;
    append(&engine, Some(id), &["another two"]).await;
    let done = back_up(&engine, &to, None).await;
    assert_eq!((done.generation, done.head, done.events), (3, 3, 1));
    let was = log_of(&engine).await;
    // Content that is erased in one line cannot be removed from the other; this must be reported.
    erase(&engine, EraseTarget::Conversation(id)).await;
    let done = back_up(&engine, &to, None).await;
    assert_eq!((done.removed, done.still_hold), (vec![1, 3], vec![2]));
    engine.close().await;
    let again = dir.path().join("again");
    let newest = restored(&to, &again, RestoreTo::Position(3)).await.unwrap();
    assert_eq!((newest.events, was.len()), (3, 3));
    let options = RestoreOptions {
        generation: Some(2),
        ..RestoreOptions::default()
    };
    let lost = restore(&target(&to), &dir.path().join("lost"), &options, |_| {}).await;
    assert_eq!(lost.unwrap().events, 4);
}

// One unreadable manifest must not block erasing in the other generations, and must not make every
// later backup fail. Objects that only it may name must stay until somebody decides.
#[tokio::test]
async fn unreadable_generation_does_not_block_erasing() {
    let dir = tempfile::tempdir().unwrap();
    let (store, to) = (dir.path().join("store"), dir.path().join("to"));
    let engine = open(&store).await;
    let id = append(&engine, None, &["one"]).await;
    for text in ["two", NEEDLE, "four"] {
        back_up(&engine, &to, None).await;
        append(&engine, Some(id), &[text]).await;
    }
    back_up(&engine, &to, None).await;
    let infos = generations(&target(&to), None).await.unwrap();
    let bad = to.join(manifest::name_of(infos[1].store, 2));
    fs::write(&bad, "no manifest").unwrap();
    erase(&engine, EraseTarget::Literal(NEEDLE.into())).await;
    let done = back_up(&engine, &to, None).await;
    assert_eq!((done.removed, done.unread), (vec![3, 4], vec![2]));
    let aside = dir.path().join("aside");
    fs::rename(&bad, &aside).unwrap();
    assert_eq!(found(&to).await, [] as [String; 0]);
    fs::rename(&aside, &bad).unwrap();
    append(&engine, Some(id), &["five"]).await;
    assert!(back_up(&engine, &to, None).await.is_new);
    assert!(bad.exists());
    let keep = RetentionRule {
        newest: Some(1),
        days: None,
    };
    let pruned = prune(&target(&to), None, None, keep, false).await.unwrap();
    assert!(pruned.generations.contains(&2) && !bad.exists());
    assert_eq!(faults(&to).await, [] as [String; 0]);
    engine.close().await;
}

// Others may be able to read a bucket: with a key, nothing of a backup may be read or forged.
// Without the key nothing works. A target is either encrypted or not.
#[tokio::test]
async fn encrypted_backup_needs_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let (store, to) = (dir.path().join("store"), dir.path().join("to"));
    let engine = open(&store).await;
    let key = EncryptionKey::new([7; 32]);
    let noise = large(3);
    append(&engine, None, &[NEEDLE, &noise]).await;
    back_up(&engine, &to, Some(&key)).await;
    append(&engine, None, &["more"]).await;
    back_up(&engine, &to, Some(&key)).await;
    for file in files(&to) {
        let bytes = fs::read(&file).unwrap();
        let holds = |text: &str| {
            bytes
                .windows(24)
                .any(|window| window == &text.as_bytes()[..24])
        };
        assert!(!holds(&noise), "{}", file.display());
    }
    let to_write = BackupTarget::to_write(to.to_str().unwrap()).unwrap();
    for wrong in [None, Some(EncryptionKey::new([8; 32]))] {
        let options = BackupOptions {
            key: wrong.clone(),
            follow: false,
        };
        let refused = Backup::start(&engine, &to_write, &options)
            .await
            .err()
            .unwrap();
        assert!(matches!(refused, BackupError::Locked { .. }), "{refused}");
        let options = RestoreOptions {
            key: wrong,
            ..RestoreOptions::default()
        };
        let refused = restore(&target(&to), &dir.path().join("x"), &options, |_| {}).await;
        assert!(matches!(refused, Err(BackupError::Locked { .. })));
    }
    let options = RestoreOptions {
        key: Some(key.clone()),
        ..RestoreOptions::default()
    };
    let again = dir.path().join("again");
    restore(&target(&to), &again, &options, |_| {})
        .await
        .unwrap();
    let verified = verify(&target(&to), None, Some(&key), |_| {})
        .await
        .unwrap();
    assert_eq!((verified.faults.len(), verified.events), (0, 5));
    let clear = dir.path().join("clear");
    back_up(&engine, &clear, None).await;
    let to_clear = BackupTarget::to_write(clear.to_str().unwrap()).unwrap();
    let options = BackupOptions {
        key: Some(key),
        follow: false,
    };
    let refused = Backup::start(&engine, &to_clear, &options)
        .await
        .err()
        .unwrap();
    assert!(matches!(refused, BackupError::OtherKey { .. }), "{refused}");
    let was = log_of(&engine).await;
    engine.close().await;
    let engine = open(&again).await;
    assert_eq!(log_of(&engine).await, was);
    engine.close().await;
}

// Generations accumulate. Pruning must remove the objects that only pruned generations name and
// nothing that another one needs; a dry run must remove nothing.
#[tokio::test]
async fn prune_removes_only_unreferenced_objects() {
    let dir = tempfile::tempdir().unwrap();
    let (store, to) = (dir.path().join("store"), dir.path().join("to"));
    let engine = open(&store).await;
    for text in ["one", "two", "three", "four"] {
        append(&engine, None, &[text]).await;
        back_up(&engine, &to, None).await;
    }
    engine.close().await;
    // An object of a backup that was killed before it wrote its generation.
    let left = objects(&to)[0].with_file_name("0000000000000001-0000000000000001-left");
    fs::write(&left, b"left").unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    fs::File::options()
        .append(true)
        .open(&left)
        .unwrap()
        .set_modified(old)
        .unwrap();
    let before = files(&to);
    let keep = RetentionRule {
        newest: Some(2),
        days: None,
    };
    let told = prune(&target(&to), None, None, keep, true).await.unwrap();
    assert_eq!(
        (&told.generations[..], &told.kept[..]),
        (&[1, 2][..], &[3, 4][..])
    );
    assert_eq!((told.objects, files(&to)), (1, before));
    let done = prune(&target(&to), None, None, keep, false).await.unwrap();
    assert_eq!(done, told);
    assert!(!left.exists());
    assert_eq!(generations(&target(&to), None).await.unwrap().len(), 2);
    assert_eq!(faults(&to).await, [] as [String; 0]);
    let days = RetentionRule {
        newest: None,
        days: Some(1),
    };
    let told = prune(&target(&to), None, None, days, true).await.unwrap();
    assert_eq!((told.generations.len(), told.kept.len()), (0, 2));
    // The newest generation is unreadable and may name any object: nothing may be removed.
    let generation = files(&to)
        .into_iter()
        .find(|path| path.ends_with("0000000000000004"));
    fs::write(generation.unwrap(), b"torn").unwrap();
    let keep = RetentionRule {
        newest: Some(1),
        days: None,
    };
    let told = prune(&target(&to), None, None, keep, false).await.unwrap();
    assert_eq!((told.generations, told.objects), (vec![], 0));
    assert_eq!(generations(&target(&to), None).await.unwrap().len(), 2);
}

// Following writes an object each second; in a day there would be more than can be listed. They
// must be joined, and each generation must be complete.
#[tokio::test]
async fn following_joins_small_objects() {
    let dir = tempfile::tempdir().unwrap();
    let (store, to) = (dir.path().join("store"), dir.path().join("to"));
    let engine = open(&store).await;
    let mut most = 0;
    for number in 0..70 {
        append(&engine, None, &[&format!("number {number}")]).await;
        back_up(&engine, &to, None).await;
        let target = target(&to);
        let store = manifest::one_store(&target, None).await.unwrap();
        let newest = manifest::generations(&target, store)
            .await
            .unwrap()
            .pop()
            .unwrap();
        let manifest = Manifest::get(&target, store, newest.number, None)
            .await
            .unwrap();
        most = most.max(manifest.objects.len());
        assert_eq!(manifest.head(), engine.head().offset);
    }
    assert!((20..40).contains(&most), "{most} objects");
    assert_eq!(faults(&to).await, [] as [String; 0]);
    let was = log_of(&engine).await;
    engine.close().await;
    let again = dir.path().join("again");
    restored(&to, &again, RestoreTo::End).await.unwrap();
    let engine = open(&again).await;
    assert_eq!(log_of(&engine).await, was);
    engine.close().await;
}

// While a store is followed, appends and erasures must reach the target within a second, without
// delaying any call.
#[tokio::test(flavor = "multi_thread")]
async fn following_ships_appends_and_erasures() {
    let dir = tempfile::tempdir().unwrap();
    let (store, to) = (dir.path().join("store"), dir.path().join("to"));
    let engine = open(&store).await;
    let id = append(&engine, None, &["one", NEEDLE]).await;
    let to_write = BackupTarget::to_write(to.to_str().unwrap()).unwrap();
    let (heads, mut told) = tokio::sync::mpsc::unbounded_channel();
    let followed = engine.clone();
    let follower = tokio::spawn(async move {
        let options = BackupOptions::default();
        follow(&followed, &to_write, &options, |step| {
            if let BackupStep::Generation { head, .. } = step {
                heads.send(head).unwrap();
            }
        })
        .await
    });
    let reached = async |told: &mut tokio::sync::mpsc::UnboundedReceiver<u64>, head| {
        while told.recv().await.unwrap() < head {}
    };
    reached(&mut told, engine.head().offset).await;
    assert_eq!(found(&to).await.len(), 1);
    for _ in 0..3 {
        append(&engine, Some(id), &["more", &large(9)]).await;
        reached(&mut told, engine.head().offset).await;
    }
    erase(&engine, EraseTarget::Literal(NEEDLE.as_bytes().to_vec())).await;
    reached(&mut told, engine.head().offset).await;
    assert_eq!(found(&to).await, [] as [String; 0]);
    follower.abort();
    let was = log_of(&engine).await;
    engine.close().await;
    assert_eq!(faults(&to).await, [] as [String; 0]);
    let again = dir.path().join("again");
    restored(&to, &again, RestoreTo::End).await.unwrap();
    let engine = open(&again).await;
    assert_eq!(log_of(&engine).await, was);
    engine.close().await;
}

fn newest(to: &Path) -> PathBuf {
    let is_generation =
        |path: &PathBuf| path.parent().is_some_and(|at| at.ends_with("generations"));
    files(to).into_iter().rfind(is_generation).unwrap()
}

// Pruning freed a generation number. A backup that had started earlier used it and reported
// success, and a restore returned the content of the other one. A number must be used only once: a
// backup that is behind gets an error.
#[tokio::test]
async fn pruned_generation_number_is_not_reused() {
    let dir = tempfile::tempdir().unwrap();
    let (store, to) = (dir.path().join("store"), dir.path().join("to"));
    let engine = open(&store).await;
    let id = append(&engine, None, &["one"]).await;
    back_up(&engine, &to, None).await;
    let to_write = BackupTarget::to_write(to.to_str().unwrap()).unwrap();
    let options = BackupOptions::default();
    let mut behind = Backup::start(&engine, &to_write, &options).await.unwrap();
    for text in ["two", "three"] {
        append(&engine, Some(id), &[text]).await;
        back_up(&engine, &to, None).await;
    }
    let keep = RetentionRule {
        newest: Some(1),
        days: None,
    };
    prune(&target(&to), None, None, keep, false).await.unwrap();
    append(&engine, Some(id), &["four"]).await;
    let told = behind.run(|_| {}).await.map_err(|error| error.to_string());
    let told = told.unwrap_err();
    assert!(told.contains("generation 3"), "{told}");
    assert!(newest(&to).ends_with("0000000000000003"));
    assert_eq!(generations(&target(&to), None).await.unwrap().len(), 1);
    assert_eq!(faults(&to).await, [] as [String; 0]);
    assert_eq!(back_up(&engine, &to, None).await.head, engine.head().offset);
    engine.close().await;
}

// The target was emptied while a store was followed: generations named missing objects. A backup
// must notice that its base is gone.
#[tokio::test]
async fn follower_detects_an_emptied_target() {
    let dir = tempfile::tempdir().unwrap();
    let (store, to) = (dir.path().join("store"), dir.path().join("to"));
    let engine = open(&store).await;
    let id = append(&engine, None, &["one"]).await;
    back_up(&engine, &to, None).await;
    let to_write = BackupTarget::to_write(to.to_str().unwrap()).unwrap();
    let options = BackupOptions::default();
    let mut backup = Backup::start(&engine, &to_write, &options).await.unwrap();
    append(&engine, Some(id), &["two"]).await;
    for file in files(&to) {
        fs::remove_file(file).unwrap();
    }
    let told = backup.run(|_| {}).await.map_err(|error| error.to_string());
    assert!(told.unwrap_err().contains("generation 1"));
    assert_eq!(back_up(&engine, &to, None).await.events, 3);
    assert_eq!(faults(&to).await, [] as [String; 0]);
    engine.close().await;
}

// A backup died after writing its objects and before its generation. Content erased later stayed in
// these objects forever. The next backup must remove them: it overtakes their writer.
#[tokio::test]
async fn backup_erases_from_objects_of_a_killed_backup() {
    let dir = tempfile::tempdir().unwrap();
    let (store, to) = (dir.path().join("store"), dir.path().join("to"));
    let engine = open(&store).await;
    let id = append(&engine, None, &["one"]).await;
    back_up(&engine, &to, None).await;
    let before = objects(&to);
    append(&engine, Some(id), &[NEEDLE]).await;
    back_up(&engine, &to, None).await;
    fs::remove_file(newest(&to)).unwrap();
    let left: Vec<_> = objects(&to)
        .into_iter()
        .filter(|object| !before.contains(object))
        .collect();
    let held = fs::read(&left[0]).unwrap();
    let unfinished = format!("{}#1", left[0].display());
    fs::write(&unfinished, &held).unwrap();
    assert_eq!(found(&to).await.len(), 2);
    erase(&engine, EraseTarget::Literal(NEEDLE.into())).await;
    back_up(&engine, &to, None).await;
    assert_eq!(found(&to).await, [] as [String; 0]);
    // A backup that was behind writes its objects later, and dies.
    for late in [left[0].to_str().unwrap(), &unfinished] {
        fs::write(late, &held).unwrap();
        back_up(&engine, &to, None).await;
        back_up(&engine, &to, None).await;
        assert_eq!(found(&to).await, [] as [String; 0]);
    }
    assert_eq!(faults(&to).await, [] as [String; 0]);
    let done = back_up(&engine, &to, None).await;
    assert!(!done.is_new);
    engine.close().await;
}

// While a server followed, objects that another backup left were never removed. An erasure must
// remove them.
#[tokio::test(flavor = "multi_thread")]
async fn follower_erases_from_objects_of_another_backup() {
    let dir = tempfile::tempdir().unwrap();
    let (store, to) = (dir.path().join("store"), dir.path().join("to"));
    let engine = open(&store).await;
    append(&engine, None, &["one", NEEDLE]).await;
    back_up(&engine, &to, None).await;
    let to_write = BackupTarget::to_write(to.to_str().unwrap()).unwrap();
    let (heads, mut told) = tokio::sync::mpsc::unbounded_channel();
    let followed = engine.clone();
    let follower = tokio::spawn(async move {
        let options = BackupOptions::default();
        follow(&followed, &to_write, &options, |step| {
            if let BackupStep::Generation { head, .. } = step {
                heads.send(head).unwrap();
            }
        })
        .await
    });
    append(&engine, None, &["two"]).await;
    while told.recv().await.unwrap() < engine.head().offset {}
    let object = &objects(&to)[0];
    let name = object.to_str().unwrap();
    let left = format!("{}{}", &name[..name.len() - 4], "dead");
    fs::copy(object, &left).unwrap();
    assert_eq!(found(&to).await.len(), 2);
    erase(&engine, EraseTarget::Literal(NEEDLE.into())).await;
    while told.recv().await.unwrap() < engine.head().offset {}
    assert_eq!(found(&to).await, [] as [String; 0]);
    follower.abort();
    engine.close().await;
}

// Two restores into one folder removed each other's files. One must succeed. The other must fail
// with an error and change nothing.
#[tokio::test]
async fn second_of_two_concurrent_restores_fails() {
    let dir = tempfile::tempdir().unwrap();
    let (store, to) = (dir.path().join("store"), dir.path().join("to"));
    let engine = open(&store).await;
    append(&engine, None, &["one", &large(1), "two"]).await;
    back_up(&engine, &to, None).await;
    engine.close().await;
    let again = dir.path().join("again");
    let (one, other) = tokio::join!(
        restored(&to, &again, RestoreTo::End),
        restored(&to, &again, RestoreTo::End)
    );
    let (won, lost) = match (one, other) {
        (Ok(won), Err(lost)) | (Err(lost), Ok(won)) => (won, lost.to_string()),
        other => panic!("{other:?}"),
    };
    assert!(lost.contains("another restore"), "{lost}");
    assert_eq!(won.events, 4);
    let engine = open(&again).await;
    is_sound(&engine).await;
    engine.close().await;
    let full = restored(&to, &again, RestoreTo::End).await.unwrap_err();
    assert!(matches!(full, BackupError::NotEmpty { .. }), "{full}");
}

// The target's address held the backup of another store, which was restored silently. A restore
// with a store id must not use another store, and following must not write into such a target.
#[tokio::test]
async fn backup_of_another_store_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (to, foreign) = (dir.path().join("to"), dir.path().join("foreign"));
    let engine = open(&dir.path().join("store")).await;
    append(&engine, None, &["own"]).await;
    let own = back_up(&engine, &to, None).await.store;
    let other = open(&dir.path().join("other")).await;
    append(&other, None, &["foreign"]).await;
    let others = back_up(&other, &foreign, None).await.store;
    other.close().await;
    fs::remove_dir_all(&to).unwrap();
    copy_folder(&foreign, &to);
    let options = RestoreOptions {
        store: Some(own),
        ..RestoreOptions::default()
    };
    let again = dir.path().join("again");
    let told = restore(&target(&to), &again, &options, |_| {}).await;
    let told = told.unwrap_err().to_string();
    assert!(
        told.contains(&own.to_string()) && told.contains(&others.to_string()),
        "{told}"
    );
    assert!(!again.exists());
    append(&engine, None, &["more"]).await;
    let to_write = BackupTarget::to_write(to.to_str().unwrap()).unwrap();
    let options = BackupOptions {
        follow: true,
        ..BackupOptions::default()
    };
    let before = files(&to);
    let told = Backup::start(&engine, &to_write, &options)
        .await
        .err()
        .unwrap();
    let told = told.to_string();
    assert!(
        told.contains(&own.to_string()) && told.contains(&others.to_string()),
        "{told}"
    );
    assert_eq!(files(&to), before);
    // A target without an earlier backup of this store may have backups of others.
    let shared = dir.path().join("shared");
    copy_folder(&foreign, &shared);
    assert!(back_up(&engine, &shared, None).await.is_new);
    engine.close().await;
}
