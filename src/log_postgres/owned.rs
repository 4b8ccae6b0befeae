//! Statements that change stored rows of a shard, for its owner only.
//!
//! Each statement checks that its process still owns the shard, and locks the shard's row until it
//! commits: a later owner waits for it, and never sees its rows change afterwards. Commits reach the
//! standby in order, so the last one confirms the others.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio_postgres::Row;
use treering_domain::ShardId;
use treering_log::{Epoch, LogError};

use crate::{error::PostgresError, log::Inner, session::SqlParam};

/// The row of the shard, locked, if the caller owns it.
macro_rules! owned {
    () => {
        concat!(
            "with owned as materialized (
        select 1 from treering_shard where shard = $2 and epoch = $3 and ",
            durable!(),
            " for no key update
    ), "
        )
    };
}
pub(crate) use owned;

/// A shard, as its owner of one epoch may erase from it and seal it.
pub(crate) struct OwnedShard {
    pub(crate) inner: Arc<Inner>,
    runtime: Handle,
    pub(crate) shard: ShardId,
    pub(crate) epoch: Epoch,
}

impl OwnedShard {
    pub(crate) fn new(inner: Arc<Inner>, runtime: Handle, shard: ShardId, epoch: Epoch) -> Self {
        Self {
            inner,
            runtime,
            shard,
            epoch,
        }
    }

    /// Runs work on the runtime of the log. It continues when the caller stops waiting.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, LogError>> + Send + 'static,
    ) -> Result<T, LogError> {
        let done = self.runtime.spawn(work).await;
        done.unwrap_or(Err(LogError::Closed))
    }

    /// Runs a statement that changes rows if this process owns the shard. Its parameters follow
    /// those of `owned`.
    pub(crate) async fn change(
        &self,
        doing: &'static str,
        sql: &'static str,
        params: &[SqlParam<'_>],
    ) -> Result<Row, LogError> {
        let failed = |error: PostgresError| error.while_doing(doing);
        let (shard, epoch) = (i64::from(self.shard.0), self.epoch.0.cast_signed());
        let mut all: Vec<SqlParam<'_>> =
            vec![&self.inner.options.accept_single_copy, &shard, &epoch];
        all.extend(params);
        // Fails if the log is closed.
        self.inner.shard(self.shard)?;
        let mut lease = self.inner.lease().await.map_err(failed)?;
        let answer = lease.session.query(sql, &all).await;
        let changed = match answer {
            Ok(mut rows) => rows.pop(),
            Err(failure) => {
                lease.give_back();
                return Err(failed(failure.into()));
            }
        };
        if let Some(row) = changed {
            lease.give_back();
            return Ok(row);
        }
        let (current, _) = self
            .inner
            .current(&mut lease, self.shard)
            .await
            .map_err(failed)?;
        let settings = self.inner.check(&mut lease).await;
        lease.give_back();
        self.epoch.check(self.shard, current)?;
        settings.map_err(failed)?;
        Err(failed(PostgresError::Unconfirmed {
            what: "a setting changed meanwhile; try again".to_owned(),
        }))
    }
}
