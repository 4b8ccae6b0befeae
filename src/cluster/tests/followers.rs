//! Nodes that follow shards of others, and take them over.

use std::{
    env,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use treering_cluster::{ClusterNode, NodeOptions, bounds::UNFOLLOWED_EVENTS_MAX, desired_owner};
use treering_domain::{AppendCommand, ShardId};
use treering_engine::{AppendError, Engine};
use treering_log::{
    AcquiredShard, BlobRef, EncodedFrame, Epoch, ErasableLog, EventLog, FrameBatch, LogError,
    LogIdentity, LogStats,
};
use treering_log_postgres::{PostgresLog, PostgresLogOptions, create_schema};
use treering_server::ShardDirectory;
use uuid::Uuid;

use crate::{
    server::{Server, open, quick, single_copy},
    stand::{LEASE, created, events_of, id_in, ns, said, settled, start, until},
};

const SHARD: ShardId = ShardId(0);
const NAMES: [&str; 2] = ["one", "two"];
/// What the process of an owner gets: the URL of the log, and its folder.
const OWNER_URL: &str = "TREERING_TEST_OWNER_URL";
const OWNER_DIR: &str = "TREERING_TEST_OWNER_DIR";
/// Appends of that process, each with ten events.
const APPENDS: u64 = 100;
/// Frames that opening may read: it compares the last event of the projections with the log.
const FRAMES_OF_OPENING_MAX: u64 = 3;

/// Returns the node that should own the only shard, and the one that follows it.
fn owner_and_follower() -> (&'static str, &'static str) {
    let owner = desired_owner(SHARD, NAMES.into_iter()).unwrap();
    let follower = NAMES.into_iter().find(|name| *name != owner).unwrap();
    (owner, follower)
}

/// A log that counts the frames read since the shard was acquired.
struct CountingLog {
    log: Arc<PostgresLog>,
    frames: AtomicU64,
}

#[async_trait]
impl EventLog for CountingLog {
    fn identity(&self) -> LogIdentity {
        self.log.identity()
    }

    fn knows_timeline(&self, timeline: Uuid) -> bool {
        self.log.knows_timeline(timeline)
    }

    async fn acquire(&self, shard: ShardId) -> Result<AcquiredShard, LogError> {
        self.frames.store(0, Ordering::SeqCst);
        self.log.acquire(shard).await
    }

    async fn append(
        &self,
        shard: ShardId,
        epoch: Epoch,
        head: u64,
        batch: FrameBatch,
    ) -> Result<u64, LogError> {
        self.log.append(shard, epoch, head, batch).await
    }

    async fn read(
        &self,
        shard: ShardId,
        from_offset: u64,
        bytes_max: usize,
    ) -> Result<Vec<EncodedFrame>, LogError> {
        let read = self.log.read(shard, from_offset, bytes_max).await?;
        self.frames.fetch_add(read.len() as u64, Ordering::SeqCst);
        Ok(read)
    }

    async fn next_frame(&self, shard: ShardId, after_offset: u64) -> Result<Option<u64>, LogError> {
        self.log.next_frame(shard, after_offset).await
    }

    async fn blob(&self, shard: ShardId, blob: &BlobRef) -> Result<Bytes, LogError> {
        self.log.blob(shard, blob).await
    }

    async fn tail(&self, shard: ShardId, after_offset: u64) -> Result<u64, LogError> {
        self.log.tail(shard, after_offset).await
    }

    async fn stats(&self, shard: ShardId) -> Result<LogStats, LogError> {
        self.log.stats(shard).await
    }

    fn erasable(self: Arc<Self>, shard: ShardId, epoch: Epoch) -> Option<Arc<dyn ErasableLog>> {
        Arc::clone(&self.log).erasable(shard, epoch)
    }

    async fn close(&self) -> Result<(), LogError> {
        self.log.close().await
    }
}

struct CountingNode {
    node: ClusterNode,
    log: Arc<CountingLog>,
}

impl CountingNode {
    async fn start(
        url: &str,
        options: PostgresLogOptions,
        name: &str,
        dir: &Path,
        lease: Duration,
    ) -> Self {
        let options = PostgresLogOptions {
            claimed_only: true,
            ..options
        };
        let log = Arc::new(CountingLog {
            log: Arc::new(open(url, options).await),
            frames: AtomicU64::new(0),
        });
        let owners = Arc::clone(&log.log);
        let options = NodeOptions {
            lease,
            ..NodeOptions::new(name, format!("{name}:5417"), dir.join(name))
        };
        let node = ClusterNode::start_over(Arc::clone(&log) as _, owners, options);
        let node = node.await.unwrap();
        Self { node, log }
    }

    /// Waits until the other nodes know that this one has followed the shard up to an offset.
    async fn until_followed(&self, offset: u64) {
        let give_up = Instant::now() + Duration::from_secs(60);
        while self.published().await != [(SHARD, offset)] {
            assert!(Instant::now() < give_up, "it does not follow");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Returns what the other nodes know of how far it has followed shards.
    async fn published(&self) -> Vec<(ShardId, u64)> {
        let nodes = self.log.log.view().await.unwrap().nodes.into_iter();
        let mut own = nodes.filter(|own| own.name == self.node.name());
        own.next().unwrap().followed
    }

    /// Returns the number of events that it lacks as a follower.
    fn lag(&self) -> Option<u64> {
        let roles = ShardDirectory::roles(&self.node);
        roles.iter().find_map(|role| role.follower_lag)
    }

    /// Waits until it serves the shard. Returns its engine, and the number of frames that opening
    /// has read.
    async fn until_served(&self) -> (Engine, u64) {
        until("the node serves", || self.node.served() == [SHARD]).await;
        let frames = self.log.frames.load(Ordering::SeqCst);
        let engine = self.node.shard(SHARD).unwrap().engine().clone();
        (engine, frames)
    }
}

/// Appends events, some in a batch.
async fn fill(engine: &Engine, appends: u64, batch_events: u64) {
    let id = id_in(SHARD, 1);
    for append in 0..appends {
        let mut batch: Vec<_> = (0..batch_events).map(|_| said(id, "and on")).collect();
        if append == 0 {
            batch[0] = created(id);
        }
        let done = engine.append(AppendCommand::new(ns(), batch)).await;
        done.unwrap();
    }
}

// The process of the owner in the next test. It ends with its standard input.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "it is started by another test"]
async fn owner_process() {
    let (url, dir) = (env::var(OWNER_URL).unwrap(), env::var(OWNER_DIR).unwrap());
    let (owner, _) = owner_and_follower();
    let one = start(&url, single_copy(), owner, Path::new(&dir)).await;
    settled(&[&one]).await;
    let engine = one.node.shard(SHARD).unwrap().engine().clone();
    fill(&engine, APPENDS, 10).await;
    eprintln!("filled");
    let read = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    read.await.unwrap().unwrap();
}

// The machine of an owner is lost. Clients must not wait until another node has read the whole log of
// the shard: the follower has its projections and its index, and reads only what is new.
#[tokio::test(flavor = "multi_thread")]
async fn follower_of_a_killed_owner_does_not_read_its_log_again() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    server.sql("create database cluster").await;
    let url = server.url("cluster");
    create_schema(&url, 1).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut owner = Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            "followers::owner_process",
            "--ignored",
            "--nocapture",
        ])
        .env(OWNER_URL, &url)
        .env(OWNER_DIR, dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(owner.stderr.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap() == "filled"));
    let (_, follower) = owner_and_follower();
    let two = CountingNode::start(&url, single_copy(), follower, dir.path(), LEASE).await;
    let head = APPENDS * 10;
    two.until_followed(head).await;
    assert_eq!(two.lag(), Some(0));
    let frames = server.sql_in("cluster", "select count(*) from treering_frame");
    assert!(frames.await.parse::<u64>().unwrap() >= APPENDS);

    owner.kill().unwrap();
    owner.wait().unwrap();
    let (engine, frames) = two.until_served().await;
    assert!(frames <= FRAMES_OF_OPENING_MAX, "{frames} frames were read");
    assert_eq!(engine.reach().index_reached, head, "the index is current");
    assert_eq!(events_of(&engine).await.len() as u64, head);
    assert_eq!(two.lag(), None, "it is the owner");
    two.node.close().await;
}

// A node joins and should own a large shard. The owner must go on serving it until the new node has
// followed it. Otherwise nobody serves it while the new node reads the whole log.
#[tokio::test(flavor = "multi_thread")]
async fn large_shard_moves_to_a_new_node_after_it_has_followed() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    server.sql("create database cluster").await;
    let url = server.url("cluster");
    create_schema(&url, 1).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (owner, follower) = owner_and_follower();
    let two = start(&url, single_copy(), follower, dir.path()).await;
    settled(&[&two]).await;
    let before = two.node.shard(SHARD).unwrap();
    fill(before.engine(), UNFOLLOWED_EVENTS_MAX / 500 + 1, 500).await;
    let head = before.engine().head().offset;
    let one = CountingNode::start(&url, single_copy(), owner, dir.path(), LEASE).await;
    until("the owner hands over", || before.check().is_err()).await;
    assert_eq!(one.published().await, [(SHARD, head)]);
    let (engine, frames) = one.until_served().await;
    assert!(frames <= FRAMES_OF_OPENING_MAX, "{frames} frames were read");
    assert_eq!(engine.head().offset, head);
    two.node.close().await;
    one.node.close().await;
}

// The standby is away, and somebody cancels the wait of an append: the primary shows the event, and
// the fail-over drops it. A follower with that event would contradict the log for ever, and could not
// take the shard.
#[tokio::test(flavor = "multi_thread")]
async fn event_that_a_failover_drops_is_not_followed() {
    let Some((mut primary, mut standby)) = Server::pair().await else {
        return;
    };
    primary.sql("create database cluster").await;
    let url = primary.url_with(&standby, "cluster");
    create_schema(&url, 1).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (owner, follower) = owner_and_follower();
    // The promoted standby has no standby of its own.
    let options = || PostgresLogOptions {
        accept_single_copy: true,
        ..quick()
    };
    // Without the standby, no heartbeat counts. Until their leases end, the nodes live.
    let lease = Duration::from_secs(30);
    let one = CountingNode::start(&url, options(), owner, dir.path(), lease).await;
    let (engine, _) = one.until_served().await;
    let id = id_in(SHARD, 1);
    let batch = vec![created(id), said(id, "kept")];
    let kept = engine.append(AppendCommand::new(ns(), batch)).await;
    kept.unwrap();
    let two = CountingNode::start(&url, options(), follower, dir.path(), lease).await;
    two.until_followed(2).await;

    standby.stop();
    let lost = engine.append(AppendCommand::new(ns(), vec![said(id, "lost")]));
    let lost = lost.await.unwrap_err();
    assert!(
        matches!(lost, AppendError::UnknownOutcome { .. }),
        "{lost:?}"
    );
    let cancel = "select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'";
    while primary
        .sql_in("cluster", "select head from treering_shard")
        .await
        != "3"
    {
        primary.sql(cancel).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    until("the follower sees the event", || two.lag() == Some(1)).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(two.lag(), Some(1), "it follows only what is confirmed");

    primary.kill();
    standby.start().await;
    standby.sql("select pg_promote()").await;
    standby.wait_for("select pg_is_in_recovery()", "f").await;
    let dead = format!("update treering_node set seen_at = '-infinity' where node = '{owner}'");
    drop(engine);
    one.log.log.close().await.unwrap();
    standby.sql_in("cluster", &dead).await;
    let (engine, _) = two.until_served().await;
    assert_eq!(events_of(&engine).await.len(), 2);
    let next = engine.append(AppendCommand::new(ns(), vec![said(id, "next")]));
    next.await.unwrap();
    two.node.close().await;
}
