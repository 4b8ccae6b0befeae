//! Erasing where several nodes have had a shard.

use std::{path::Path, sync::Arc};

use futures::StreamExt;
use treering_domain::*;
use treering_engine::*;
use treering_log::{EventLog, frame};
use treering_log_postgres::{PostgresLog, create_schema};

use crate::{
    server::{Server, open, single_copy},
    stand::{created, events_of, id_in, ns, said, settled, start, until},
};

const NEEDLE: &str = "needletextqzx";
const SHARDS: u32 = 4;

/// Appends a conversation with a text in a small and in a large message.
async fn say(engine: &Engine, id: ConversationId, text: &str) {
    let large = format!("{text} {}", "in the hay ".repeat(20_000));
    let batch = vec![created(id), said(id, text), said(id, &large)];
    engine
        .append(AppendCommand::new(ns(), batch))
        .await
        .unwrap();
}

async fn erase(engine: &Engine, target: EraseTarget) -> Result<EraseOutcome, EraseError> {
    let command = EraseCommand {
        namespace: ns(),
        target,
        keep_derived: false,
        dry_run: false,
        reason: "asked for".into(),
        actor: "ada".into(),
    };
    let mut items = engine.erase(command);
    let mut outcome = None;
    while let Some(item) = items.next().await {
        if let EraseItem::Outcome(last) = item? {
            outcome = Some(last);
        }
    }
    Ok(outcome.unwrap())
}

/// Returns how many rows of the database have a text: bodies, and records of frames.
async fn rows_with(server: &Server, database: &str, log: &PostgresLog, text: &str) -> u64 {
    let bodies =
        format!("select count(*) from treering_blob where position('{text}'::bytea in bytes) > 0");
    let mut found: u64 = server.sql_in(database, &bodies).await.parse().unwrap();
    for shard in (0..SHARDS).map(ShardId) {
        let mut next = 1;
        loop {
            let frames = log.read(shard, next, 1 << 20).await.unwrap();
            let Some(last) = frames.last() else { break };
            next = last.last_offset() + 1;
            let decoded = frames.iter().map(|stored| frame::decode(stored).unwrap());
            let records = decoded.flat_map(|frame| frame.records);
            let has = |body: &[u8]| body.windows(text.len()).any(|part| part == text.as_bytes());
            found += records.filter(|record| has(record.body.here())).count() as u64;
        }
    }
    found
}

/// Checks that a shard is sound, and that its text is neither read nor found.
async fn check_erased(engine: &Engine) {
    let mut items = engine.verify(&ns(), true);
    while let Some(item) = items.next().await {
        match item.unwrap() {
            VerifyItem::Fault(fault) => panic!("{fault:?}"),
            VerifyItem::Outcome(outcome) => assert!(outcome.sound && outcome.events > 0),
            VerifyItem::Progress(_) => {}
        }
    }
    assert!(!format!("{:?}", events_of(engine).await).contains(NEEDLE));
    let search = SearchRequest {
        at_least: Some(engine.head()),
        ..SearchRequest::new(ns(), NEEDLE, 10)
    };
    assert!(engine.search(search).await.unwrap().hits.is_empty());
}

fn has_projections(dir: &Path, node: &str, shard: ShardId) -> bool {
    let folder = dir.join(node).join("shards").join(shard.0.to_string());
    folder.join("views.redb").exists() || folder.join("index").exists()
}

/// Returns true if the folder of a shard was emptied because of an erasure.
fn was_emptied(dir: &Path, node: &str, shard: ShardId) -> bool {
    let folder = dir.join(node).join("shards").join(shard.0.to_string());
    folder.join("erased").exists()
}

// A conversation was on one node, moved to another, and is erased there. It must be in no row of the
// database, and in no folder of the first node, which may get the shard back.
#[tokio::test(flavor = "multi_thread")]
async fn erased_content_leaves_the_database_and_all_nodes() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    server.sql("create database cluster").await;
    let url = server.url("cluster");
    create_schema(&url, SHARDS).await.unwrap();
    let log = open(&url, single_copy()).await;
    let dir = tempfile::tempdir().unwrap();
    let one = start(&url, single_copy(), "one", dir.path()).await;
    settled(&[&one]).await;
    for shard in (0..SHARDS).map(ShardId) {
        let guard = one.node.shard(shard).unwrap();
        say(guard.engine(), id_in(shard, SHARDS), NEEDLE).await;
        say(guard.engine(), id_in(shard, SHARDS), "kept").await;
    }
    assert_eq!(
        rows_with(&server, "cluster", &log, NEEDLE).await,
        2 * u64::from(SHARDS)
    );
    let two = start(&url, single_copy(), "two", dir.path()).await;
    until("the other node serves", || !two.node.served().is_empty()).await;
    settled(&[&one, &two]).await;
    let moved = two.node.served();
    for shard in &moved {
        assert!(has_projections(dir.path(), "one", *shard));
        let guard = two.node.shard(*shard).unwrap();
        let literal = EraseTarget::Literal(NEEDLE.into());
        let outcome = erase(guard.engine(), literal).await.unwrap();
        assert_eq!(outcome.events, 2);
        let receipt = outcome.receipt.unwrap();
        receipt_signer(&receipt).unwrap();
        assert!(receipt.contains("VACUUM FULL"), "{receipt}");
        check_erased(guard.engine()).await;
    }
    let left = u64::from(SHARDS) - moved.len() as u64;
    assert_eq!(rows_with(&server, "cluster", &log, NEEDLE).await, 2 * left);
    // It follows them, so it derives them again at once.
    until("the first node has removed them", || {
        let mut folders = moved.iter();
        folders.all(|shard| was_emptied(dir.path(), "one", *shard))
    })
    .await;
    for shard in one.node.served() {
        assert!(has_projections(dir.path(), "one", shard));
    }
    two.node.close().await;
    settled(&[&one]).await;
    for shard in moved {
        let guard = one.node.shard(shard).unwrap();
        check_erased(guard.engine()).await;
        assert_eq!(events_of(guard.engine()).await.len(), 7);
    }
    one.node.close().await;
}

// The node was away while content was erased, and comes back with its old folders.
#[tokio::test(flavor = "multi_thread")]
async fn returning_node_removes_what_was_erased_meanwhile() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    server.sql("create database cluster").await;
    let url = server.url("cluster");
    create_schema(&url, 1).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    // The second one should own the only shard, so that the first does not open it again.
    let names = ["a", "b", "c", "d", "e", "f"];
    let wanted = treering_cluster::desired_owner(ShardId(0), names.into_iter()).unwrap();
    let other = names.into_iter().find(|name| *name != wanted).unwrap();
    let one = start(&url, single_copy(), other, dir.path()).await;
    settled(&[&one]).await;
    let shard = ShardId(0);
    let id = id_in(shard, 1);
    say(one.node.shard(shard).unwrap().engine(), id, NEEDLE).await;
    one.node.close().await;
    assert!(has_projections(dir.path(), other, shard));
    let two = start(&url, single_copy(), wanted, dir.path()).await;
    settled(&[&two]).await;
    let guard = two.node.shard(shard).unwrap();
    erase(guard.engine(), EraseTarget::Conversation(id))
        .await
        .unwrap();
    assert!(has_projections(dir.path(), other, shard));
    let one = start(&url, single_copy(), other, dir.path()).await;
    until("the folder is emptied", || {
        was_emptied(dir.path(), other, shard)
    })
    .await;
    assert_eq!(two.node.served(), [shard]);
    one.node.close().await;
    two.node.close().await;
}

// The owner dies in the middle of an erasure, after it was recorded. As long as the content cannot be
// removed, the next owner must not show it; as soon as it can, it must remove it.
#[tokio::test(flavor = "multi_thread")]
async fn interrupted_erasure_is_finished_by_another_owner() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let database = server.new_log().await;
    let url = server.url(&database);
    let place = ShardPlace {
        shard: ShardId(3),
        shards: 64,
    };
    let dir = tempfile::tempdir().unwrap();
    let owner = async |name: &str| {
        let log = Arc::new(open(&url, single_copy()).await) as Arc<dyn EventLog>;
        let options = OpenOptions::new(dir.path().join(name));
        Engine::open_shard(log, place, options).await.unwrap()
    };
    let log = open(&url, single_copy()).await;
    let id = place.place(ConversationId::generate());
    let one = owner("one").await;
    say(&one, id, NEEDLE).await;
    server
        .sql_in(
            &database,
            "create function refuse() returns trigger language plpgsql as
                 $$ begin raise exception 'not now'; end $$;
             create trigger refuse before delete on treering_blob
                 for each row execute function refuse()",
        )
        .await;
    let unfinished = erase(&one, EraseTarget::Conversation(id)).await;
    assert!(
        matches!(unfinished, Err(EraseError::Unfinished { .. })),
        "{unfinished:?}"
    );
    assert!(!format!("{:?}", events_of(&one).await).contains(NEEDLE));
    one.close().await;

    let two = owner("two").await;
    let at_open = two.erasing_at_open().clone();
    assert!(
        matches!(&at_open, ErasureAtOpen::Hidden { why: Some(why) } if why.contains("not now")),
        "{at_open:?}"
    );
    assert!(!format!("{:?}", events_of(&two).await).contains(NEEDLE));
    say(&two, place.place(ConversationId::generate()), "kept").await;
    two.close().await;
    assert_eq!(rows_with(&server, &database, &log, NEEDLE).await, 2);
    server
        .sql_in(&database, "drop trigger refuse on treering_blob")
        .await;

    for (name, expected) in [
        ("three", ErasureAtOpen::Finished),
        ("one", ErasureAtOpen::None),
        ("two", ErasureAtOpen::None),
    ] {
        let next = owner(name).await;
        assert_eq!(*next.erasing_at_open(), expected);
        check_erased(&next).await;
        assert_eq!(rows_with(&server, &database, &log, NEEDLE).await, 0);
        next.close().await;
    }
}

// A commit that waits for its standby can lose its answer. An erasure on two servers ends like one
// on a single server, and the standby has none of the content either.
#[tokio::test(flavor = "multi_thread")]
async fn standby_has_no_row_with_erased_content() {
    let Some((server, standby)) = Server::pair().await else {
        return;
    };
    let database = server.new_log().await;
    let url = server.url(&database);
    let log = Arc::new(open(&url, crate::server::quick()).await);
    let place = ShardPlace {
        shard: ShardId(3),
        shards: 64,
    };
    let dir = tempfile::tempdir().unwrap();
    let options = OpenOptions::new(dir.path());
    let engine = Engine::open_shard(Arc::clone(&log) as _, place, options);
    let engine = engine.await.unwrap();
    let id = place.place(ConversationId::generate());
    say(&engine, id, NEEDLE).await;
    erase(&engine, EraseTarget::Conversation(id)).await.unwrap();
    assert_eq!(rows_with(&server, &database, &log, NEEDLE).await, 0);
    let bodies = "select count(*) from treering_blob";
    let done = "select erasing is null and erased > 0 from treering_shard";
    for (sql, wanted) in [(bodies, "0"), (done, "t")] {
        // The standby applies what it has.
        for _ in 0..100 {
            if standby.sql_in(&database, sql).await == wanted {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        assert_eq!(standby.sql_in(&database, sql).await, wanted, "{sql}");
    }
    engine.close().await;
}
