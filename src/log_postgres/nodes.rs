//! The nodes of a cluster, and which of their processes owns each shard.
//!
//! These tables say what is. `treering-cluster` decides which node should own a shard.
//!
//! Times are those of the database's clock. All changes are synchronous commits: a heartbeat that a
//! fail-over forgets could let another process take a shard from an owner that still serves it.

use std::{sync::Arc, time::Duration};

use tokio_postgres::Row;
use treering_domain::ShardId;
use treering_log::Epoch;
use uuid::Uuid;

use crate::{
    error::PostgresError,
    log::{Inner, PostgresLog},
    session::{SessionPool, SqlParam},
};

/// A live node: one that was seen within its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveNode {
    /// Its name.
    pub name: String,
    /// Its process, which owns shards.
    pub process: Uuid,
    /// The address at which other nodes and clients reach it.
    pub address: String,
    /// It hands its shards over and takes no others.
    pub draining: bool,
    /// How far it has followed shards of other nodes, when it last said so.
    pub followed: Vec<(ShardId, u64)>,
}

/// Nodes and owners, as of one statement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// The live nodes, by name.
    pub nodes: Vec<LiveNode>,
    /// The process that owns a shard, whether it lives or not. A released shard, and one that was
    /// never owned, is missing.
    pub owners: Vec<(ShardId, Uuid)>,
    /// The offset of the last record that requested an erasure and is done, of each shard that has
    /// one. What was derived from the shard before has erased content.
    pub erased: Vec<(ShardId, u64)>,
    /// The offset of the last event of each shard that has one. It may not be confirmed.
    pub heads: Vec<(ShardId, u64)>,
}

/// SQL that is true for a node that was seen within its lease.
macro_rules! live {
    ($node:literal) => {
        concat!(
            $node,
            ".seen_at + ",
            $node,
            ".lease_ms * interval '1 millisecond' > clock_timestamp()"
        )
    };
}

/// Takes a name, unless another live process has it.
const JOIN: &str = concat!(
    "insert into treering_node as n (node, process, address, lease_ms, seen_at, draining)
    select $1, $2, $3, $4, now(), false from treering_log where importing is null
    on conflict (node) do update set process = excluded.process, address = excluded.address,
        lease_ms = excluded.lease_ms, seen_at = excluded.seen_at, draining = false,
        drain_asked = false, followed = excluded.followed
    where n.process = excluded.process or not (",
    live!("n"),
    ") returning 1"
);
const BEAT: &str = "update treering_node set seen_at = now(), draining = $3, followed = $4 \
     where node = $1 and process = $2 returning 1";
/// Every node that reads the view then takes the node for draining, and so does the node itself.
const ASK_TO_DRAIN: &str = "update treering_node set drain_asked = true where node = $1";
const LEAVE: &str = "update treering_node set seen_at = '-infinity', draining = true \
     where node = $1 and process = $2 returning 1";
const VIEW: &str = concat!(
    "select n.node, n.process, n.address, n.draining or n.drain_asked, n.followed,
        null::bigint, null::bigint, null::bigint
    from treering_node n where ",
    live!("n"),
    " union all
    select null, s.owner, null, null, null, s.shard, s.erased, s.head from treering_shard s
    order by 1"
);
/// Claims a shard that nobody owns, that was released, or whose owner was not seen within its
/// lease. The claimant must be live itself: a statement that was delayed changes nothing.
const CLAIM: &str = concat!(
    "insert into treering_shard as s (shard, head, epoch, owner)
    select $1, 0, 1, $2 from treering_node me where me.process = $2 and ",
    live!("me"),
    " on conflict (shard) do update set epoch = s.epoch + 1, owner = excluded.owner
    where s.owner in (excluded.owner, $3) or not exists (
        select from treering_node n where n.process = s.owner and ",
    live!("n"),
    ") returning epoch"
);
/// The epoch keeps a delayed statement from releasing what was claimed again since.
const RELEASE: &str = "update treering_shard set owner = $3 \
     where shard = $1 and owner = $2 and epoch = $4 returning 1";

/// The owner of a released shard.
const NOBODY: Uuid = Uuid::nil();

impl PostgresLog {
    /// Returns the id of this process as an owner of shards.
    #[must_use]
    pub fn process(&self) -> Uuid {
        self.inner().owner
    }

    /// Returns the number of shards of the log.
    #[must_use]
    pub fn shards(&self) -> u32 {
        self.inner().shards_total
    }

    /// Makes this process a node. Returns false, and changes nothing, while another live process
    /// has the name. Others take this node's shards once it was not seen for `lease`.
    ///
    /// # Errors
    /// [`PostgresError`].
    pub async fn join(
        &self,
        node: &str,
        address: &str,
        lease: Duration,
    ) -> Result<bool, PostgresError> {
        let lease_ms = i32::try_from(lease.as_millis()).unwrap_or(i32::MAX);
        let inner = self.inner();
        if self.importing().await?.is_some() {
            return Err(PostgresError::Importing);
        }
        let params: [SqlParam<'_>; 4] = [&node, &inner.owner, &address, &lease_ms];
        Ok(!ask(inner, &inner.control, JOIN, &params).await?.is_empty())
    }

    /// Tells the others that this process lives, and how far it has followed their shards. Returns
    /// false if another process has the node's name now.
    ///
    /// # Errors
    /// [`PostgresError`]. The others may have been told nevertheless.
    pub async fn heartbeat(
        &self,
        node: &str,
        draining: bool,
        followed: &[(ShardId, u64)],
    ) -> Result<bool, PostgresError> {
        let inner = self.inner();
        let followed = followed
            .iter()
            .flat_map(|(shard, offset)| [i64::from(shard.0), offset.cast_signed()]);
        let followed: Vec<i64> = followed.collect();
        let params: [SqlParam<'_>; 4] = [&node, &inner.owner, &draining, &followed];
        Ok(!ask(inner, &inner.control, BEAT, &params).await?.is_empty())
    }

    /// Asks a node to hand its shards over, and to take no others until it is started again.
    ///
    /// # Errors
    /// [`PostgresError`].
    pub async fn ask_to_drain(&self, node: &str) -> Result<(), PostgresError> {
        let inner = self.inner();
        ask(inner, &inner.control, ASK_TO_DRAIN, &[&node])
            .await
            .map(drop)
    }

    /// Ends this process's time as a node: others may take its shards at once. It must not serve
    /// them any more.
    ///
    /// # Errors
    /// [`PostgresError`].
    pub async fn leave(&self, node: &str) -> Result<(), PostgresError> {
        let inner = self.inner();
        let params: [SqlParam<'_>; 2] = [&node, &inner.owner];
        ask(inner, &inner.control, LEAVE, &params).await.map(drop)
    }

    /// Returns the live nodes and the owners of shards.
    ///
    /// # Errors
    /// [`PostgresError`].
    pub async fn view(&self) -> Result<ClusterView, PostgresError> {
        let inner = self.inner();
        let rows = ask(inner, &inner.control, VIEW, &[]).await?;
        let mut view = ClusterView::default();
        for row in rows {
            match row.get::<_, Option<i64>>(5) {
                Some(shard) => {
                    let shard = shard_id(shard);
                    let owner = row.get::<_, Uuid>(1);
                    if owner != NOBODY {
                        view.owners.push((shard, owner));
                    }
                    for (column, offsets) in [(6, &mut view.erased), (7, &mut view.heads)] {
                        let offset = row.get::<_, Option<i64>>(column).unwrap_or_default();
                        if offset > 0 {
                            offsets.push((shard, offset.cast_unsigned()));
                        }
                    }
                }
                None => view.nodes.push(LiveNode {
                    name: row.get(0),
                    process: row.get(1),
                    address: row.get(2),
                    draining: row.get(3),
                    followed: row
                        .get::<_, Vec<i64>>(4)
                        .chunks_exact(2)
                        .map(|pair| (shard_id(pair[0]), pair[1].cast_unsigned()))
                        .collect(),
                }),
            }
        }
        Ok(view)
    }

    /// Claims a shard for this process. Returns false if its owner lives, or this process does not.
    ///
    /// # Errors
    /// [`PostgresError`]. The shard may have been claimed nevertheless.
    pub async fn claim(&self, shard: ShardId) -> Result<bool, PostgresError> {
        let inner = self.inner();
        let key = i64::from(shard.0);
        let params: [SqlParam<'_>; 3] = [&key, &inner.owner, &NOBODY];
        let rows = ask(inner, &inner.pool, CLAIM, &params).await?;
        let Some(row) = rows.first() else {
            return Ok(false);
        };
        let epoch = Epoch(row.get::<_, i64>(0).cast_unsigned());
        if let Ok(state) = inner.shard(shard) {
            state.acquired(epoch);
        }
        Ok(true)
    }

    /// Releases a shard that this process has claimed or acquired. It must not append or serve
    /// reads any more. Does nothing if another process owns the shard.
    ///
    /// # Errors
    /// [`PostgresError`]. The shard may have been released nevertheless.
    pub async fn release(&self, shard: ShardId) -> Result<(), PostgresError> {
        let inner = self.inner();
        let Ok(state) = inner.shard(shard) else {
            return Ok(());
        };
        let key = i64::from(shard.0);
        let epoch = state.epoch().0.cast_signed();
        let params: [SqlParam<'_>; 4] = [&key, &inner.owner, &NOBODY, &epoch];
        ask(inner, &inner.pool, RELEASE, &params).await.map(drop)
    }
}

fn shard_id(number: i64) -> ShardId {
    ShardId(u32::try_from(number).unwrap_or(u32::MAX))
}

/// Runs a statement on a session of a pool.
pub(crate) async fn ask(
    inner: &Inner,
    pool: &Arc<SessionPool>,
    sql: &'static str,
    params: &[SqlParam<'_>],
) -> Result<Vec<Row>, PostgresError> {
    let mut lease = inner.lease_of(pool).await?;
    let answer = lease.session.query(sql, params).await;
    lease.give_back();
    answer.map_err(PostgresError::from)
}
