//! Tests of idempotency keys that expire.

use std::{num::NonZeroU32, time::Duration};

use super::{
    prepare::ValidatedBatch,
    test_events::*,
    unpublished_names::{NameFacts, Names, UnpublishedNames},
    *,
};
use treering_domain::{AppendCommand, AppendOutcome, ContentHash, NewEvent, Rule};
use treering_projections::KeyEntry;

const LIFE_SECONDS: u32 = 3;

fn keyed(id: ConversationId, key: &str, text: &str, life_seconds: u32) -> AppendCommand {
    AppendCommand {
        idempotency_key: Some(key.to_owned()),
        key_life_seconds: NonZeroU32::new(life_seconds),
        ..AppendCommand::new(ns(), vec![said(id, text)])
    }
}

/// Waits until keys that were just appended have expired.
async fn life() {
    tokio::time::sleep(Duration::from_millis(u64::from(LIFE_SECONDS) * 1_000 + 20)).await;
}

fn head(engine: &Engine, id: ConversationId) -> u64 {
    let projections = engine.inner.reads.projections.load();
    projections
        .conversation(Namespace::default().key(id))
        .unwrap()
        .unwrap()
        .head
        .0
}

fn rows(engine: &Engine) -> usize {
    let projections = engine.inner.reads.projections.load();
    (0..100)
        .filter(|n| {
            projections
                .key(&ns(), &format!("key {n}"))
                .unwrap()
                .1
                .is_some()
        })
        .count()
}

async fn is_what_a_rebuild_makes(engine: &Engine) {
    let before = engine.inner.reads.projections.load().digest().unwrap();
    let mut rebuilding = engine.rebuild(true, false);
    while let Some(item) = futures::StreamExt::next(&mut rebuilding).await {
        item.unwrap();
    }
    assert_eq!(
        engine.inner.reads.projections.load().digest().unwrap(),
        before
    );
}

// Idempotency keys were kept for ever, so twenty thousand appends grew the projections by
// megabytes. Until a key expires, a retry gets the first answer. After that the key must be
// forgotten, also on disk, and be usable for other content.
#[tokio::test]
async fn idempotency_key_is_known_until_it_expires() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::open(OpenOptions::new(folder.path())).await.unwrap();
    let id = ConversationId::generate();
    append(&engine, vec![created(id)]).await;
    for n in 0..100 {
        let command = keyed(id, &format!("key {n}"), "once", LIFE_SECONDS);
        engine.append(command.clone()).await.unwrap();
        assert!(engine.append(command).await.unwrap().repeated_key);
    }
    assert_eq!((head(&engine, id), rows(&engine)), (101, 100));
    life().await;
    assert_eq!(
        engine
            .known_keys(&ns(), vec!["key 0".to_owned()])
            .await
            .unwrap(),
        [false]
    );
    append(&engine, vec![said(id, "later")]).await;
    assert_eq!(rows(&engine), 0);
    let other = keyed(id, "key 7", "other", 60);
    assert!(!engine.append(other.clone()).await.unwrap().repeated_key);
    assert!(engine.append(other.clone()).await.unwrap().repeated_key);
    assert_eq!((head(&engine, id), rows(&engine)), (103, 1));
    is_what_a_rebuild_makes(&engine).await;
    engine.close().await;

    // Keys must be recognised wherever they are stored: also in blocks, and after a restart.
    let options = OpenOptions {
        packing: PackingMode::WhenClosed,
        ..OpenOptions::new(folder.path())
    };
    Engine::open(options).await.unwrap().close().await;
    let engine = Engine::open(OpenOptions::new(folder.path())).await.unwrap();
    assert!(engine.append(other).await.unwrap().repeated_key);
    let conflict = engine.append(keyed(id, "key 7", "third", 0)).await;
    assert!(
        matches!(&conflict, Err(AppendError::Rejected(rejection)) if rejection.rule == Rule::IdempotencyConflict),
        "{conflict:?}"
    );
    is_what_a_rebuild_makes(&engine).await;
    engine.close().await;
}

// The writer knows keys that the projections lack, and projections keep expired keys until
// something is appended after them: neither may answer a new append.
#[tokio::test]
async fn expired_idempotency_key_appends_again() {
    let engine = memory().await;
    let id = ConversationId::generate();
    append(&engine, vec![created(id)]).await;
    let text = |n: u64| format!("text {n}");
    for n in 0..3 {
        let outcome = engine
            .append(keyed(id, "again", &text(n), LIFE_SECONDS))
            .await;
        assert!(!outcome.unwrap().repeated_key);
        assert_eq!(head(&engine, id), 2 + n);
        life().await;
    }
    // From now on without expiry.
    engine
        .append(keyed(id, "again", "at last", 0))
        .await
        .unwrap();
    life().await;
    append(&engine, vec![said(id, "later")]).await;
    let again = engine
        .append(keyed(id, "again", "at last", LIFE_SECONDS))
        .await;
    assert!(again.unwrap().repeated_key);
    is_what_a_rebuild_makes(&engine).await;
    engine.close().await;
}

// Events with their own keys are sent again in other batches: each key expires separately.
#[tokio::test]
async fn idempotency_keys_of_events_expire() {
    let engine = memory().await;
    let id = ConversationId::generate();
    append(&engine, vec![created(id)]).await;
    let batch = |numbers: std::ops::Range<u64>| {
        let event = |n| NewEvent {
            idempotency_key: Some(format!("key {n}")),
            ..said(id, format!("event {n}"))
        };
        AppendCommand {
            key_life_seconds: NonZeroU32::new(LIFE_SECONDS),
            ..AppendCommand::new(ns(), numbers.map(event).collect())
        }
    };
    let nothing: [usize; 0] = [];
    let known = |outcome: AppendOutcome| outcome.known;
    assert_eq!(known(engine.append(batch(0..3)).await.unwrap()), nothing);
    assert_eq!(known(engine.append(batch(1..4)).await.unwrap()), [0, 1]);
    life().await;
    assert_eq!(known(engine.append(batch(2..6)).await.unwrap()), nothing);
    assert_eq!((head(&engine, id), rows(&engine)), (9, 4));
    is_what_a_rebuild_makes(&engine).await;
    engine.close().await;
}

// A key had expired when a batch looked it up. Before the writer reached that batch, another batch
// used the key again. The projections had that use, so the writer no longer kept it. Relying on the
// first look-up would append the content twice.
#[test]
fn expired_key_is_looked_up_again_by_the_writer() {
    let id = ConversationId::generate();
    let event = NewEvent {
        idempotency_key: Some("key".to_owned()),
        ..said(id, "text")
    };
    let command = AppendCommand::new(ns(), vec![event]);
    let prepared = ValidatedBatch::new(command, &Limits::default()).unwrap();
    let entry = KeyEntry {
        namespace: ns(),
        key: "key".to_owned(),
        content_hash: ContentHash::default(),
        salt: None,
        first_offset: 3,
        events: 1,
        ends_at: Some(TimestampMicros(70)),
    };
    let facts = |reached| NameFacts {
        reached,
        keys: [("key".to_owned(), entry.clone())].into(),
        ..NameFacts::default()
    };
    let recent = UnpublishedNames::new(9);
    let names = |reached, now| {
        let names = recent.names(&prepared, &facts(reached), TimestampMicros(now));
        match names.unwrap() {
            Names::Known(known) => Some(known),
            Names::Retry => None,
        }
    };
    assert_eq!(names(8, 69), Some(vec![(0, 3)]));
    assert_eq!(names(8, 70), None);
    assert_eq!(names(9, 70), Some(vec![]));
}
