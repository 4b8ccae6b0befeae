//! Appends of several shards in one statement.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_postgres::Client;
use treering_domain::ShardId;
use treering_log::{Epoch, EventLog, LogError, Record};
use treering_log_postgres::{PostgresLog, PostgresLogOptions};

use crate::server::{Server, batch, open, quick, single_copy};

/// The first shards, whose appends have all turns.
const FIRST: std::ops::Range<u32> = 0..4;

/// A log whose appends wait in their queue, because a lock holds up those of the first shards.
struct Queue {
    log: Arc<PostgresLog>,
    epochs: BTreeMap<u32, Epoch>,
    records: BTreeMap<u32, Vec<Record>>,
    appends: BTreeMap<u32, JoinHandle<Result<u64, LogError>>>,
    lock: Client,
}

impl Queue {
    /// Acquires this many shards, and begins to append to the first ones.
    async fn new(server: &Server, database: &str, log: PostgresLog, shards: u32) -> Self {
        let mut queue = Self {
            log: Arc::new(log),
            epochs: BTreeMap::new(),
            records: BTreeMap::new(),
            appends: BTreeMap::new(),
            lock: server.client(database).await.unwrap(),
        };
        for shard in 0..shards {
            let acquired = queue.log.acquire(ShardId(shard)).await.unwrap();
            queue.epochs.insert(shard, acquired.epoch);
        }
        let lock = "begin; lock table treering_frame in share mode";
        queue.lock.batch_execute(lock).await.unwrap();
        let waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'";
        for (shard, waits) in FIRST.zip(1..) {
            queue.append(shard, 0);
            server.wait_for(waiting, &waits.to_string()).await;
        }
        queue
    }

    /// Begins to append three events after this head.
    fn append(&mut self, shard: u32, head: u64) {
        let (records, batch) = batch(head, 3);
        let (log, epoch) = (Arc::clone(&self.log), self.epochs[&shard]);
        let append =
            tokio::spawn(async move { log.append(ShardId(shard), epoch, head, batch).await });
        self.records.insert(shard, records);
        self.appends.insert(shard, append);
    }

    /// Lets the appends continue, once all of them wait.
    async fn release(&self) {
        sleep(Duration::from_millis(200)).await;
        self.lock.batch_execute("rollback").await.unwrap();
    }

    async fn outcome(&mut self, shard: u32) -> Result<u64, LogError> {
        self.appends.get_mut(&shard).unwrap().await.unwrap()
    }

    async fn stored(&self, shard: u32) -> Vec<Record> {
        let frames = self.log.read(ShardId(shard), 1, 1 << 20).await.unwrap();
        let decoded = frames.iter().map(treering_log::frame::decode);
        decoded.flat_map(|frame| frame.unwrap().records).collect()
    }
}

// A busy node with many shards made a commit for each of their appends. Those that wait for the
// database share one.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_appends_share_a_commit() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let database = server.new_log().await;
    let log = open(&server.url(&database), single_copy()).await;
    let mut queue = Queue::new(&server, &database, log, 40).await;
    for shard in FIRST.end..40 {
        queue.append(shard, 0);
    }
    queue.release().await;
    for shard in 0..40 {
        assert_eq!(queue.outcome(shard).await.unwrap(), 3);
        assert_eq!(queue.stored(shard).await, queue.records[&shard]);
    }
    let commits = "select count(distinct xmin::text) from treering_frame";
    let commits = server.sql_in(&database, commits).await;
    assert!(commits.parse::<u32>().unwrap() <= 8, "{commits} commits");
}

// Appends that share a statement must not share their faults: a lost shard, a wrong head, a shard
// whose row an erasure holds. The others succeed, and do not wait.
#[tokio::test(flavor = "multi_thread")]
async fn each_append_of_a_group_has_its_own_outcome() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let database = server.new_log().await;
    let url = server.url(&database);
    // A statement waits half of this for a lock.
    let patient = PostgresLogOptions {
        deadline: Duration::from_secs(120),
        ..single_copy()
    };
    let mut queue = Queue::new(&server, &database, open(&url, patient).await, 12).await;
    let [lost, wrong, locked, good] = [8, 9, 10, 11];
    let other = open(&url, single_copy()).await;
    other.acquire(ShardId(lost)).await.unwrap();
    let erasure = server.client(&database).await.unwrap();
    let lock = format!("begin; select 1 from treering_shard where shard = {locked} for update");
    erasure.batch_execute(&lock).await.unwrap();
    for shard in [lost, locked, good] {
        queue.append(shard, 0);
    }
    queue.append(wrong, 7);
    queue.release().await;
    let outcome = timeout(Duration::from_secs(30), queue.outcome(good)).await;
    assert_eq!(outcome.expect("it waits for the lock").unwrap(), 3);
    let outcome = queue.outcome(lost).await;
    assert!(
        matches!(outcome, Err(LogError::NotOwner { .. })),
        "{outcome:?}"
    );
    let outcome = queue.outcome(wrong).await;
    assert!(
        matches!(
            outcome,
            Err(LogError::HeadMismatch {
                expected: 7,
                actual: 0
            })
        ),
        "{outcome:?}"
    );
    assert!(!queue.appends[&locked].is_finished());
    erasure.batch_execute("rollback").await.unwrap();
    assert_eq!(queue.outcome(locked).await.unwrap(), 3);
    for shard in [lost, wrong] {
        assert_eq!(queue.stored(shard).await, []);
    }
    for shard in [locked, good] {
        assert_eq!(queue.stored(shard).await, queue.records[&shard]);
    }
}

// One row that the database refuses must not keep other shards from appending.
#[tokio::test(flavor = "multi_thread")]
async fn refused_append_does_not_fail_its_group() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let database = server.new_log().await;
    let log = open(&server.url(&database), single_copy()).await;
    let refuse = "alter table treering_frame add check (shard <> 9)";
    server.sql_in(&database, refuse).await;
    let mut queue = Queue::new(&server, &database, log, 12).await;
    for shard in 8..12 {
        queue.append(shard, 0);
    }
    queue.release().await;
    for shard in [8, 10, 11] {
        assert_eq!(queue.outcome(shard).await.unwrap(), 3);
    }
    let refused = queue.outcome(9).await;
    assert!(matches!(refused, Err(LogError::Io { .. })), "{refused:?}");
    assert_eq!(queue.stored(9).await, []);
}

// The standby is away, and a group waits for it. None of its appends is acknowledged or read until
// acquiring has found the outcome of each. What still waits for its turn is refused in time, and
// never executed.
#[tokio::test(flavor = "multi_thread")]
async fn outcome_of_a_whole_group_can_be_unknown() {
    let Some((primary, mut standby)) = Server::pair().await else {
        return;
    };
    let database = primary.new_log().await;
    let patient = PostgresLogOptions {
        deadline: Duration::from_secs(4),
        ..quick()
    };
    let log = open(&primary.url(&database), patient).await;
    let mut queue = Queue::new(&primary, &database, log, 20).await;
    for shard in 8..12 {
        queue.append(shard, 0);
    }
    standby.stop();
    queue.release().await;
    let waiting = "from pg_stat_activity where wait_event = 'SyncRep'";
    primary
        .wait_for(&format!("select count(*) {waiting}"), "4")
        .await;
    primary
        .sql(&format!("select pg_cancel_backend(pid) {waiting}"))
        .await;
    for shard in FIRST.chain(8..12) {
        let outcome = queue.outcome(shard).await;
        assert!(
            matches!(outcome, Err(LogError::UnknownOutcome { head: 0, .. })),
            "{outcome:?}"
        );
    }
    for (shard, waits) in (12..16).zip(2..) {
        queue.append(shard, 0);
        let count = format!("select count(*) {waiting}");
        primary.wait_for(&count, &waits.to_string()).await;
    }
    for shard in 16..20 {
        queue.append(shard, 0);
    }
    for shard in 16..20 {
        let outcome = queue.outcome(shard).await;
        assert!(
            matches!(outcome, Err(LogError::Unavailable { .. })),
            "{outcome:?}"
        );
    }
    for shard in 12..16 {
        let outcome = queue.outcome(shard).await;
        assert!(
            matches!(outcome, Err(LogError::UnknownOutcome { .. })),
            "{outcome:?}"
        );
    }
    standby.start().await;
    for shard in FIRST.chain(8..20) {
        let acquired = queue.log.acquire(ShardId(shard)).await.unwrap();
        let is_stored = shard < 16;
        assert_eq!(acquired.head, if is_stored { 3 } else { 0 }, "{shard}");
        let appended = queue.records[&shard].iter().filter(|_| is_stored);
        let appended: Vec<_> = appended.cloned().collect();
        assert_eq!(queue.stored(shard).await, appended);
    }
}
