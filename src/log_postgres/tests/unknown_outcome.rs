use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;
use treering_domain::Namespace;
use treering_log::{BlobRef, EventLog, LogError, NewBlob, Record};
use treering_log_postgres::{PostgresLog, PostgresLogOptions};

use crate::server::{SHARD, Server, acquire, batch, open, quick, read_all, single_copy};

/// Asserts that nothing after offset 1 is read, followed or found.
async fn assert_ends_at_1(log: &PostgresLog, blob: &BlobRef) {
    assert_eq!(log.read(SHARD, 1, 1 << 20).await.unwrap().len(), 1);
    assert_eq!(log.read(SHARD, 2, 1 << 20).await.unwrap(), []);
    assert_eq!(log.next_frame(SHARD, 1).await.unwrap(), None);
    let found = log.blob(SHARD, blob).await;
    assert!(matches!(found, Err(LogError::NotFound { .. })), "{found:?}");
    let tail = timeout(Duration::from_millis(500), log.tail(SHARD, 1)).await;
    assert!(tail.is_err(), "{tail:?}");
}

/// Returns a batch of one record and a large body after offset 1.
fn doubtful() -> (Record, treering_log::FrameBatch, BlobRef) {
    let (records, mut batch) = batch(1, 1);
    let body = Bytes::from_static(b"a large body");
    let blob = NewBlob {
        namespace: Namespace::default(),
        hash: Record::hash_body(&body),
        home_offset: 2,
        bytes: body,
        patch: None,
    };
    let named = blob.reference();
    batch.blobs.push(blob);
    (records[0].clone(), batch, named)
}

// While the standby is down, an append waits for it past its deadline. Then the wait is cancelled,
// and the primary shows the row. The primary dies, and the standby, which never had the row, takes
// over. A reader that got the row would have seen an event that never happened.
#[tokio::test(flavor = "multi_thread")]
async fn doubtful_frame_is_never_served_and_the_failover_loses_nothing() {
    let Some((mut primary, mut standby)) = Server::pair().await else {
        return;
    };
    let database = primary.new_log().await;
    let both = primary.url_with(&standby, &database);
    // The promoted standby has no standby of its own.
    let options = PostgresLogOptions {
        accept_single_copy: true,
        ..quick()
    };
    let log = open(&both, options.clone()).await;
    let follower = open(&both, options).await;
    let owned = acquire(&log).await;
    let (first, batch_1) = batch(0, 1);
    assert_eq!(log.append(SHARD, owned.epoch, 0, batch_1).await.unwrap(), 1);
    assert_eq!(follower.tail(SHARD, 0).await.unwrap(), 1);

    standby.stop();
    let (_, batch_2, blob) = doubtful();
    let lost = log.append(SHARD, owned.epoch, 1, batch_2).await;
    assert!(
        matches!(lost, Err(LogError::UnknownOutcome { head: 1, .. })),
        "{lost:?}"
    );
    assert_ends_at_1(&log, &blob).await;
    assert!(log.acquire(SHARD).await.is_err());

    primary.end_wait("pg_cancel_backend").await;
    let head = "select head from treering_shard";
    assert_eq!(
        primary.sql_in(&database, head).await,
        "2",
        "the primary shows it"
    );
    assert_ends_at_1(&log, &blob).await;
    assert_ends_at_1(&follower, &blob).await;
    let late = open(&primary.url(&database), quick()).await;
    assert_eq!(
        late.read(SHARD, 1, 1 << 20).await.unwrap(),
        [],
        "its barrier waits"
    );
    let barrier = log.acquire(SHARD).await;
    assert!(
        matches!(barrier, Err(LogError::Unavailable { .. })),
        "{barrier:?}"
    );

    primary.kill();
    standby.start().await;
    standby.sql("select pg_promote()").await;
    let owned = acquire(&log).await;
    assert_eq!(
        owned.head, 1,
        "the doubtful append is lost, and the caller knows"
    );
    assert_eq!(read_all(&log).await, first);
    let (third, batch_3) = batch(1, 1);
    assert_eq!(log.append(SHARD, owned.epoch, 1, batch_3).await.unwrap(), 2);
    assert_eq!(follower.tail(SHARD, 1).await.unwrap(), 2);
    assert_eq!(read_all(&follower).await, [first, third].concat());
}

// When the standby comes back, the append turns out to be stored. Acquiring reports it, and only
// then can it be read.
#[tokio::test(flavor = "multi_thread")]
async fn acquiring_waits_for_the_standby_and_tells_the_outcome() {
    let Some((primary, mut standby)) = Server::pair().await else {
        return;
    };
    let log = open(&primary.url(&primary.new_log().await), quick()).await;
    let owned = acquire(&log).await;
    let (first, batch_1) = batch(0, 1);
    log.append(SHARD, owned.epoch, 0, batch_1).await.unwrap();
    standby.stop();
    let (second, batch_2, blob) = doubtful();
    let lost = log.append(SHARD, owned.epoch, 1, batch_2).await;
    assert!(
        matches!(lost, Err(LogError::UnknownOutcome { head: 1, .. })),
        "{lost:?}"
    );
    assert_ends_at_1(&log, &blob).await;
    standby.start().await;
    let again = acquire(&log).await;
    assert!(again.epoch > owned.epoch);
    assert_eq!(again.head, 2);
    assert_eq!(log.tail(SHARD, 1).await.unwrap(), 2);
    assert_eq!(log.blob(SHARD, &blob).await.unwrap(), "a large body");
    assert_eq!(read_all(&log).await, [first, vec![second]].concat());
}

// The append returns like any other, but with a warning. Ignoring the warning would acknowledge
// events that only one server has.
#[tokio::test(flavor = "multi_thread")]
async fn append_with_a_warning_is_not_acknowledged() {
    let Some((primary, mut standby)) = Server::pair().await else {
        return;
    };
    let patient = PostgresLogOptions {
        deadline: Duration::from_secs(60),
        ..quick()
    };
    let url = primary.url(&primary.new_log().await);
    let log = open(&url, patient).await;
    for end in ["pg_cancel_backend", "pg_terminate_backend"] {
        let owned = acquire(&log).await;
        let (_, batch) = batch(owned.head, 1);
        standby.stop();
        let append = log.append(SHARD, owned.epoch, owned.head, batch);
        let (append, ()) = tokio::join!(append, primary.end_wait(end));
        let Err(LogError::UnknownOutcome { head, what }) = append else {
            panic!("{end}: {append:?}");
        };
        assert_eq!(head, owned.head, "{end}: {what}");
        assert_eq!(log.read(SHARD, head + 1, 1).await.unwrap(), [], "{end}");
        standby.start().await;
        assert_eq!(acquire(&log).await.head, head + 1, "{end}");
    }
}

// An append is lost before it does anything, and another process appends as many events. The head
// is where the first process expects it, but the events are not its own.
#[tokio::test(flavor = "multi_thread")]
async fn events_of_another_owner_are_not_taken_for_the_lost_ones() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let database = server.new_log().await;
    let url = server.url(&database);
    let (log, other) = (
        open(&url, single_copy()).await,
        open(&url, single_copy()).await,
    );
    let owned = acquire(&log).await;
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    client
        .batch_execute("begin; select * from treering_shard for update")
        .await
        .unwrap();
    let (_, lost) = batch(0, 1);
    let (lost, ()) = tokio::join!(log.append(SHARD, owned.epoch, 0, lost), async {
        let waiting = "from pg_stat_activity where wait_event_type = 'Lock'";
        server
            .wait_for(&format!("select count(*) {waiting}"), "1")
            .await;
        server
            .sql(&format!("select pg_terminate_backend(pid) {waiting}"))
            .await;
    });
    assert!(
        matches!(lost, Err(LogError::UnknownOutcome { .. })),
        "{lost:?}"
    );
    client.batch_execute("rollback").await.unwrap();
    let taken = acquire(&other).await;
    let (records, batch) = batch(0, 1);
    other.append(SHARD, taken.epoch, 0, batch).await.unwrap();
    let outcome = log.acquire(SHARD).await;
    assert!(
        matches!(outcome, Err(LogError::NotOwner { .. })),
        "{outcome:?}"
    );
    // The owner was not disturbed.
    let (more, batch) = crate::server::batch(1, 1);
    other.append(SHARD, taken.epoch, 1, batch).await.unwrap();
    assert_eq!(read_all(&log).await, [records, more].concat());
}
