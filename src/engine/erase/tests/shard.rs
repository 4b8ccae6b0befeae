//! Erasing from a shard of a log that several processes use, each with a folder of its own.

use super::*;
use crate::{ShardPlace, forget_erased};
use treering_log::MemoryLog;

const PLACE: ShardPlace = ShardPlace {
    shard: ShardId(3),
    shards: 64,
};

/// Acquires the shard, which fences off earlier engines of it.
async fn owner(log: &Arc<MemoryLog>, dir: &Path) -> Engine {
    let log = Arc::clone(log) as Arc<dyn EventLog>;
    let opened = Engine::open_shard(log, PLACE, OpenOptions::new(dir));
    opened.await.unwrap()
}

/// Appends a conversation with a text in its title and in messages of all sizes.
async fn say(engine: &Engine, of: ConversationId, text: &str) {
    let large = format!("{text} {}", noise(3, 200_000));
    let bodies = vec![
        EventBody::ConversationCreated(created(text)),
        message(Role::User, text),
        message(Role::Assistant, &large),
    ];
    append(engine, of, bodies).await;
}

/// Returns the files below a folder that have a text, also compressed.
fn files_with(dir: &Path, text: &str) -> Vec<PathBuf> {
    let has = |path: &PathBuf| {
        let bytes = std::fs::read(path).unwrap();
        holds(&bytes, text) || holds(&unpacked(&bytes), text)
    };
    files_below(dir).into_iter().filter(has).collect()
}

/// Returns how many records and bodies of the log have a text.
async fn records_with(log: &MemoryLog, text: &str) -> usize {
    let mut found = 0;
    for stored in log.read(PLACE.shard, 1, usize::MAX).await.unwrap() {
        for record in frame::decode(&stored).unwrap().records {
            let body = match &record.body {
                RecordBody::Blob(blob) => log.blob(PLACE.shard, blob).await.unwrap().to_vec(),
                _ => record.body.here().to_vec(),
            };
            found += usize::from(holds(&body, text));
        }
    }
    found
}

/// Checks an engine whose conversation was erased, and another one that was not.
async fn check_erased(engine: &Engine, text: &str, kept: &str) {
    check_sound(engine).await;
    assert!(!format!("{:?}", events(engine).await).contains(text));
    assert_eq!(hits(engine, text).await, 0);
    assert!(hits(engine, kept).await > 0);
}

// Whoever owned the shard before still has the content in projections and index. It must go when
// the node finds the folder, and when it opens the shard again.
#[tokio::test(flavor = "multi_thread")]
async fn folders_of_earlier_owners_lose_erased_content() {
    let dir = tempfile::tempdir().unwrap();
    let [one, two, three] = ["one", "two", "three"].map(|name| dir.path().join(name));
    let log = Arc::new(MemoryLog::new());
    let [gone, kept] = [(); 2].map(|()| PLACE.place(ConversationId::generate()));
    let first = owner(&log, &one).await;
    say(&first, gone, "needletextqzx").await;
    say(&first, kept, "hayqzx").await;
    assert!(hits(&first, "needletextqzx").await > 0);
    first.close().await;
    for folder in [&two, &three] {
        let next = owner(&log, folder).await;
        assert!(hits(&next, "needletextqzx").await > 0);
        next.close().await;
    }
    let second = owner(&log, &two).await;
    let target = EraseTarget::Conversation(gone);
    let (_, outcome) = erase(&second, command(target)).await.unwrap();
    receipt_signer(&outcome.receipt.unwrap()).unwrap();
    assert_eq!(records_with(&log, "needletextqzx").await, 0);
    check_erased(&second, "needletextqzx", "hayqzx").await;
    second.close().await;
    assert_eq!(
        files_with(&two, "needletextqzx"),
        [""; 0].map(PathBuf::from)
    );

    let last = Arc::clone(&log).erasable(PLACE.shard, treering_log::Epoch(0));
    let erased = last.unwrap().progress().await.unwrap().erased;
    assert!(!files_with(&one, "needletextqzx").is_empty());
    assert!(forget_erased(&one, erased).unwrap());
    assert_eq!(
        files_with(&one, "needletextqzx"),
        [""; 0].map(PathBuf::from)
    );
    // The folder of the eraser has what it needs, so nothing is removed.
    assert!(forget_erased(&two, erased).unwrap());
    assert!(!files_with(&two, "hayqzx").is_empty());
    for folder in [&one, &three, &two] {
        let again = owner(&log, folder).await;
        check_erased(&again, "needletextqzx", "hayqzx").await;
        again.close().await;
        let left = files_with(folder, "needletextqzx");
        assert_eq!(left, [""; 0].map(PathBuf::from));
    }
}

// The owner died after it had recorded an erasure, and before anything was removed. The next owner
// must finish it before anybody reads, and the folder of the dead one must not bring it back.
#[tokio::test(flavor = "multi_thread")]
async fn next_owner_finishes_the_erasure_of_a_dead_one() {
    let dir = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "two"].map(|name| dir.path().join(name));
    let log = Arc::new(MemoryLog::new());
    let [gone, kept] = [(); 2].map(|()| PLACE.place(ConversationId::generate()));
    let first = owner(&log, &one).await;
    say(&first, gone, "needletextqzx").await;
    say(&first, kept, "hayqzx").await;
    recorded_only(&first, gone).await;
    first.close().await;
    assert!(records_with(&log, "needletextqzx").await > 0);
    for (folder, expected) in [
        (&two, ErasureAtOpen::Finished),
        (&one, ErasureAtOpen::None),
        (&two, ErasureAtOpen::None),
    ] {
        let next = owner(&log, folder).await;
        assert_eq!(*next.erasing_at_open(), expected);
        check_erased(&next, "needletextqzx", "hayqzx").await;
        assert_eq!(records_with(&log, "needletextqzx").await, 0);
        next.close().await;
    }
    assert_eq!(
        files_with(&one, "needletextqzx"),
        [""; 0].map(PathBuf::from)
    );
}

// An owner that was replaced has an outdated view of the shard. Its erasure must fail, and change
// nothing.
#[tokio::test(flavor = "multi_thread")]
async fn earlier_owner_erases_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let log = Arc::new(MemoryLog::new());
    let id = PLACE.place(ConversationId::generate());
    let first = owner(&log, &dir.path().join("one")).await;
    say(&first, id, "needletextqzx").await;
    let second = owner(&log, &dir.path().join("two")).await;
    let refused = erase(&first, command(EraseTarget::Conversation(id))).await;
    assert!(matches!(refused, Err(EraseError::Append(_))), "{refused:?}");
    let literal = EraseTarget::Literal(b"needletextqzx".to_vec());
    let dry = EraseCommand {
        dry_run: true,
        ..command(literal)
    };
    let (_, found) = erase(&second, dry).await.unwrap();
    assert_eq!(found.events, 3);
    first.close().await;
    second.close().await;
}
