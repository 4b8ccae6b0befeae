//! Moving whole stores in and out: the mark of an import, and the conversations that are not in the
//! shard of their id.
//!
//! While the mark is set, no node can join. It names the store, so that an interrupted import is
//! continued with the same one. The mark and the list of moved conversations are one commit, before
//! the first frame.

use treering_domain::{ConversationId, ShardId};
use uuid::Uuid;

use crate::{error::PostgresError, log::PostgresLog, nodes::ask};

const IMPORTING: &str = "select importing from treering_log";
const MOVED: &str = "select conversation, shard from treering_moved";
const ENDS: &str = "select shard, head, erasing is not null from treering_shard order by shard";

/// Sets the mark, unless there is content, another mark, or a live node.
const BEGIN: &str = "\
    with marked as (
        update treering_log set importing = $1
        where importing is null and not exists (select from treering_shard where head > 0)
        returning 1
    ), moved as (
        insert into treering_moved (conversation, shard)
        select m.conversation, m.shard from marked,
            unnest($2::uuid[], $3::bigint[]) as m (conversation, shard)
    ) select 1 from marked";

const END: &str = "update treering_log set importing = null where importing = $1 returning 1";

/// The end of a shard, as the database shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardEnd {
    /// The shard.
    pub shard: ShardId,
    /// The offset of its last record.
    pub head: u64,
    /// An erasure is not finished.
    pub is_erasing: bool,
}

impl PostgresLog {
    /// Returns the mark of the import that has begun and not ended.
    ///
    /// # Errors
    /// [`PostgresError`].
    pub async fn importing(&self) -> Result<Option<String>, PostgresError> {
        let inner = self.inner();
        let rows = ask(inner, &inner.control, IMPORTING, &[]).await?;
        Ok(rows.first().and_then(|row| row.get(0)))
    }

    /// Returns the conversations that are not in the shard of their id.
    ///
    /// # Errors
    /// [`PostgresError`].
    pub async fn moved(&self) -> Result<Vec<(ConversationId, ShardId)>, PostgresError> {
        let inner = self.inner();
        let rows = ask(inner, &inner.control, MOVED, &[]).await?;
        let moved = rows.iter().map(|row| {
            let shard = u32::try_from(row.get::<_, i64>(1)).unwrap_or(u32::MAX);
            (ConversationId(row.get(0)), ShardId(shard))
        });
        Ok(moved.collect())
    }

    /// Returns the ends of the shards that have been owned.
    ///
    /// # Errors
    /// [`PostgresError`].
    pub async fn ends(&self) -> Result<Vec<ShardEnd>, PostgresError> {
        let inner = self.inner();
        let rows = ask(inner, &inner.control, ENDS, &[]).await?;
        let ends = rows.iter().map(|row| ShardEnd {
            shard: ShardId(u32::try_from(row.get::<_, i64>(0)).unwrap_or(u32::MAX)),
            head: row.get::<_, i64>(1).cast_unsigned(),
            is_erasing: row.get(2),
        });
        Ok(ends.collect())
    }

    /// Begins to move a store in: sets the mark, and notes which conversations will not be in the
    /// shard of their id. Only an owner of the tables may. An import with the same mark is continued.
    ///
    /// # Errors
    /// [`PostgresError::Occupied`] if there is content, or another import was begun.
    pub async fn begin_import(
        &self,
        mark: &str,
        moved: &[(ConversationId, ShardId)],
    ) -> Result<(), PostgresError> {
        let inner = self.inner();
        let ids: Vec<Uuid> = moved.iter().map(|(id, _)| id.0).collect();
        let shards: Vec<i64> = moved.iter().map(|(_, shard)| i64::from(shard.0)).collect();
        let begun = ask(inner, &inner.control, BEGIN, &[&mark, &ids, &shards]).await?;
        if !begun.is_empty() {
            return Ok(());
        }
        let what = match self.importing().await? {
            Some(known) if known == mark => return Ok(()),
            Some(_) => {
                "another store, or an earlier state of this one, is being moved into this cluster. \
                 Continue with that one unchanged, or create a new database"
            }
            None => {
                "the cluster has events. A store can be moved into a new cluster only: create a new \
                 database, and run `treering cluster init`"
            }
        };
        Err(PostgresError::Occupied {
            what: what.to_owned(),
        })
    }

    /// Ends the import with this mark. Nodes can join from now on.
    ///
    /// # Errors
    /// [`PostgresError`].
    pub async fn end_import(&self, mark: &str) -> Result<(), PostgresError> {
        let inner = self.inner();
        ask(inner, &inner.control, END, &[&mark]).await.map(drop)
    }
}
