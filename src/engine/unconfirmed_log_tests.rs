//! Tests of the engine on a log that does not confirm its writes.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use futures::StreamExt;

use super::testkit::Store;
use super::{
    AppendError, BranchAddress, Engine, OpenError, OpenOptions, PackingMode, ReadError, VerifyItem,
};
use treering_domain::*;
use treering_log::{
    EncodedFrame, EventLog, FrameBatch,
    fallible_log::{AppendEnding, FallibleLog},
};
use treering_projections::Projections;
use treering_search::SearchIndex;

/// A guard against hanging.
const PATIENCE: Duration = Duration::from_secs(180);

// The caller retries with the key, as advised, and must get consistent answers: first that the
// outcome is unknown, then what was appended, once.
#[tokio::test(flavor = "multi_thread")]
async fn in_doubt_batch_is_stored_once_or_not_at_all() {
    for outcome in [AppendEnding::LostAnswer, AppendEnding::NeverArrived] {
        let store = Store::new().await;
        store.lose(outcome).await;
        let health = store.engine.health();
        assert!(health.live.is_ok() && health.ready.is_err(), "{health:?}");
        let again = store.engine.append(store.message("lost")).await;
        assert!(
            matches!(again, Err(AppendError::UnknownOutcome { .. })),
            "{again:?}"
        );
        let other = store.engine.append(store.message("other")).await;
        assert!(
            matches!(other, Err(AppendError::Unready { .. })),
            "{other:?}"
        );
        store.mend();
        let found = store.insist(store.message("lost")).await;
        assert_eq!(found.repeated_key, outcome == AppendEnding::LostAnswer);
        assert_eq!(found.events[0].revision, Revision(2));
        let next = store.insist(store.message("other")).await;
        assert_eq!(next.events[0].revision, Revision(3));
        assert!(store.engine.health().ready.is_ok());
        store.assert_sound(3).await;
    }
}

// A group that was not written must release what it counted against a quota. An in-doubt group must
// be counted once if it was written, and not at all if it was not.
#[tokio::test(flavor = "multi_thread")]
async fn quota_counts_only_written_groups() {
    let used = async |store: &Store| {
        let stats = store.engine.stats(&Namespace::default()).await.unwrap();
        stats.used.bytes
    };
    let free = Store::new().await;
    let made = used(&free).await;
    free.engine.append(free.message("some")).await.unwrap();
    let one = used(&free).await - made;
    for (outcome, fits) in [
        (AppendEnding::NoSpace, 3),
        (AppendEnding::LostAnswer, 2),
        (AppendEnding::NeverArrived, 3),
    ] {
        let quota = Quota {
            bytes: Some(made + 3 * one),
            conversations: Some(1),
        };
        let store = Store::with_quota(FallibleLog::default(), quota).await;
        if outcome == AppendEnding::NoSpace {
            store.log.next_ends(outcome);
            let full = store.engine.append(store.message("lost")).await;
            assert!(matches!(full, Err(AppendError::NoSpace)), "{full:?}");
        } else {
            store.lose(outcome).await;
            store.mend();
        }
        for key in ["key1", "key2", "key3"].iter().take(fits) {
            store.insist(store.message(key)).await;
        }
        let over = store.engine.append(store.message("over")).await;
        let Err(AppendError::OverQuota { passed, .. }) = over else {
            panic!("{outcome:?}: {over:?}");
        };
        assert_eq!((passed.used, passed.adds), (made + 3 * one, one));
        assert_eq!(used(&store).await, made + 3 * one);
        store.assert_sound(4).await;
    }
}

// A later group in doubt must not make earlier commits doubtful: their keys must be answered from
// what is known, even while the writer waits.
#[tokio::test(flavor = "multi_thread")]
async fn committed_key_is_answered_while_a_group_is_in_doubt() {
    let store = Store::new().await;
    store.lose(AppendEnding::LostAnswer).await;
    let made = store.engine.append(store.made()).await.unwrap();
    assert!(made.repeated_key);
    store.mend();
    store.insist(store.message("other")).await;
    // The same in one group with a batch that does not fit on the disk.
    store.log.append_micros.store(200_000, Ordering::SeqCst);
    let busy = store.engine.submit(store.message("first")).await.unwrap();
    store.log.next_ends(AppendEnding::NoSpace);
    store.log.next_ends(AppendEnding::NoSpace);
    let full = store.engine.submit(store.message("second")).await.unwrap();
    let again = store.engine.submit(store.made()).await.unwrap();
    for failed in [busy.await, full.await] {
        assert!(matches!(failed, Err(AppendError::NoSpace)), "{failed:?}");
    }
    assert!(again.await.unwrap().repeated_key);
}

// An old program on a new store must report the version, not damage or wrong permissions.
#[tokio::test(flavor = "multi_thread")]
async fn newer_store_format_is_reported() {
    let log = FallibleLog::default();
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(b"TRF\x03");
    bytes[8] = 1;
    bytes[16] = 1;
    // With a valid checksum: a changed version byte alone is damage.
    let crc = crc32c::crc32c(&bytes[..28]);
    bytes[28..].copy_from_slice(&crc.to_le_bytes());
    let frame = EncodedFrame {
        first_offset: 1,
        count: 1,
        bytes: Bytes::copy_from_slice(&bytes),
        dictionary: None,
    };
    let batch = FrameBatch {
        frames: vec![frame],
        blobs: Vec::new(),
    };
    let owner = log.inner.acquire(ShardId(0)).await.unwrap();
    let appended = log.inner.append(ShardId(0), owner.epoch, 0, batch).await;
    appended.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let opened = Engine::over(Arc::new(log), dir.path()).await;
    let error = opened.err().unwrap();
    assert!(matches!(error, OpenError::NewerFormat { .. }), "{error}");
    // As the command line shows it.
    let text = with_causes(&error).to_string();
    assert!(
        text.contains("version 3") && text.contains("supported version 2"),
        "{text}"
    );
}

// `treering verify` reports the faults itself, so its messages must not advise to run it, nor to
// restore a backup, which may not exist.
#[tokio::test(flavor = "multi_thread")]
async fn verify_faults_do_not_suggest_verify_or_backup() {
    let log = FallibleLog::default();
    log.damaged.store(true, Ordering::SeqCst);
    let store = Store::over(log).await;
    let mut items = store.engine.verify(&Namespace::default(), true);
    let mut faults = 0;
    while let Some(item) = items.next().await {
        let text = match item {
            Ok(VerifyItem::Fault(fault)) => fault.message,
            Err(error) => error.to_string(),
            Ok(_) => continue,
        };
        faults += 1;
        for wrong in ["treering verify", "backup"] {
            assert!(!text.contains(wrong), "{text}");
        }
    }
    assert!(faults > 0);
}

// Rows of large projections are checked when they are read, which may be long after the start. A
// server that meets damage in them must rebuild them while it serves.
#[tokio::test(flavor = "multi_thread")]
async fn damaged_projections_are_rebuilt_while_serving() {
    const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(OpenOptions::new(dir.path())).await.unwrap();
    let conversation = ConversationId::generate();
    let created = EventBody::ConversationCreated(ConversationCreated::default());
    let event = NewEvent::new(conversation, created);
    let command = AppendCommand::new(Namespace::default(), vec![event]);
    engine.append(command).await.unwrap();
    let inner = &engine.inner;
    inner.reads.projections.load().make_durable().unwrap();
    let projections = inner.upkeep.projections_path.clone().unwrap();
    let mut bytes = std::fs::read(&projections).unwrap();
    let blocks = bytes.windows(ZSTD_MAGIC.len());
    let found: Vec<_> = blocks
        .enumerate()
        .filter_map(|(at, window)| (window == ZSTD_MAGIC).then_some(at))
        .collect();
    // As if the file had rotted on the disk, except in the parts that are checked at the start.
    let damaged = dir.path().join("damaged.redb");
    let mut rotten = None;
    for at in found {
        bytes[at] ^= 0x10;
        std::fs::write(&damaged, &bytes).unwrap();
        match Projections::open_unchanged(&damaged, 1 << 20) {
            Ok(projections) => rotten = Some(projections),
            Err(_) => bytes[at] ^= 0x10,
        }
    }
    inner.reads.projections.store(Arc::new(rotten.unwrap()));
    let read = || async {
        let namespace = Namespace::default();
        engine
            .conversation(
                &BranchAddress::active(namespace.clone(), conversation),
                None,
            )
            .await
    };
    let met = read().await.unwrap_err();
    assert!(matches!(met, ReadError::ViewsDamaged { .. }), "{met}");
    let mended = async {
        while let Err(error) = read().await {
            assert!(matches!(error, ReadError::ViewsDamaged { .. }), "{error}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, mended).await.unwrap();
    engine.close().await;
}

// The indexer was committing while a search found the index damaged. The commit was announced as
// searchable, and the waiting search failed again.
#[tokio::test]
async fn commit_to_a_damaged_index_is_discarded() {
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let id = ConversationId::generate();
    let created = EventBody::ConversationCreated(ConversationCreated::default());
    let command = AppendCommand::new(Namespace::default(), vec![NewEvent::new(id, created)]);
    engine.append(command).await.unwrap();
    let (indexer, head) = (&engine.inner.search.indexer, engine.head().offset);
    indexer.wait_for(head).await.unwrap();
    let index = indexer.index();
    // No other task runs between these.
    indexer.mark_damaged(&index, "a test says so");
    indexer.publish_commit(&index, head);
    assert_eq!(indexer.reached(), 0);
    indexer.wait_for(head).await.unwrap();
    assert!(!Arc::ptr_eq(&index, &indexer.index()));
    engine.close().await;
}

// An import must not close before the indexer is done. Otherwise each later search opens the store,
// indexes the rest in memory, waits for it, and discards it.
#[tokio::test(flavor = "multi_thread")]
async fn index_is_complete_when_an_import_closes() {
    const BATCHES: u64 = 30;
    let dir = tempfile::tempdir().unwrap();
    let options = OpenOptions {
        packing: PackingMode::WhenClosed,
        ..OpenOptions::new(dir.path())
    };
    let engine = Engine::open(options).await.unwrap();
    for batch in 0..BATCHES {
        let id = ConversationId::generate();
        let created = EventBody::ConversationCreated(ConversationCreated::default());
        let said = (0..999).map(|at| {
            let text = format!("{batch} {at} {}", "and so on ".repeat(30));
            NewEvent::new(
                id,
                EventBody::MessageAppended(MessageAppended::text(Role::User, text)),
            )
        });
        let events = std::iter::once(NewEvent::new(id, created)).chain(said);
        let command = AppendCommand::new(Namespace::default(), events.collect());
        engine.append(command).await.unwrap();
    }
    engine.close().await;
    let index = SearchIndex::open_unchanged(&dir.path().join("index")).unwrap();
    assert_eq!(index.reached().offset, BATCHES * 1_000);
}
