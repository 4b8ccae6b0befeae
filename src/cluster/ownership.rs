//! The port to the table of nodes and owners, and its implementation in PostgreSQL.

use std::time::Duration;

use async_trait::async_trait;
use treering_domain::{ConversationId, ShardId, with_causes};
pub use treering_log_postgres::{ClusterView, LiveNode, SharedKeys};
use treering_log_postgres::{PostgresError, PostgresLog};
use uuid::Uuid;

/// Why the table of nodes and owners could not be read or changed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what}")]
pub struct OwnershipError {
    /// What happened.
    pub what: String,
    /// The same can succeed later, without a change by an operator.
    pub is_transient: bool,
}

impl From<PostgresError> for OwnershipError {
    fn from(error: PostgresError) -> Self {
        Self {
            is_transient: error.is_transient(),
            what: with_causes(&error).to_string(),
        }
    }
}

/// The table of nodes and owners. It judges who lives by its own clock.
#[async_trait]
pub trait Ownership: Send + Sync + 'static {
    /// Returns the id of this process as an owner.
    fn process(&self) -> Uuid;

    /// Returns the number of shards.
    fn shards(&self) -> u32;

    /// Returns the conversations that are not in the shard of their id. They never change while a
    /// node lives.
    ///
    /// # Errors
    /// [`OwnershipError`].
    async fn moved(&self) -> Result<Vec<(ConversationId, ShardId)>, OwnershipError> {
        Ok(Vec::new())
    }

    /// Returns the API keys of the cluster. `None`: there are none, or their version is `known`.
    ///
    /// # Errors
    /// [`OwnershipError`].
    async fn keys(&self, _known: Option<Uuid>) -> Result<Option<SharedKeys>, OwnershipError> {
        Ok(None)
    }

    /// Replaces the keys, if their version is still `from` (`None`: there are none). Returns false
    /// if it is not, or if this table has no place for keys.
    ///
    /// # Errors
    /// [`OwnershipError`]. The keys may have been replaced nevertheless.
    async fn replace_keys(
        &self,
        _from: Option<Uuid>,
        _keys: &SharedKeys,
    ) -> Result<bool, OwnershipError> {
        Ok(false)
    }

    /// Makes this process a node. Returns false while another live process has the name.
    ///
    /// # Errors
    /// [`OwnershipError`].
    async fn join(
        &self,
        node: &str,
        address: &str,
        lease: Duration,
    ) -> Result<bool, OwnershipError>;

    /// Tells the others that this process lives, and how far it has followed their shards. Returns
    /// false if another process has the name.
    ///
    /// # Errors
    /// [`OwnershipError`]. The others may have been told nevertheless.
    async fn heartbeat(
        &self,
        node: &str,
        draining: bool,
        followed: &[(ShardId, u64)],
    ) -> Result<bool, OwnershipError>;

    /// Ends this process's time as a node.
    ///
    /// # Errors
    /// [`OwnershipError`].
    async fn leave(&self, node: &str) -> Result<(), OwnershipError>;

    /// Returns the live nodes and the owners of shards.
    ///
    /// # Errors
    /// [`OwnershipError`].
    async fn view(&self) -> Result<ClusterView, OwnershipError>;

    /// Claims a shard for this process. Returns false if its owner lives, or this process does not.
    ///
    /// # Errors
    /// [`OwnershipError`]. The shard may have been claimed nevertheless.
    async fn claim(&self, shard: ShardId) -> Result<bool, OwnershipError>;

    /// Releases a shard of this process, which must not use it any more.
    ///
    /// # Errors
    /// [`OwnershipError`]. The shard may have been released nevertheless.
    async fn release(&self, shard: ShardId) -> Result<(), OwnershipError>;
}

#[async_trait]
impl Ownership for PostgresLog {
    fn process(&self) -> Uuid {
        self.process()
    }

    fn shards(&self) -> u32 {
        self.shards()
    }

    async fn moved(&self) -> Result<Vec<(ConversationId, ShardId)>, OwnershipError> {
        Ok(self.moved().await?)
    }

    async fn keys(&self, known: Option<Uuid>) -> Result<Option<SharedKeys>, OwnershipError> {
        Ok(self.keys(known).await?)
    }

    async fn replace_keys(
        &self,
        from: Option<Uuid>,
        keys: &SharedKeys,
    ) -> Result<bool, OwnershipError> {
        Ok(self.replace_keys(from, keys).await?)
    }

    async fn join(
        &self,
        node: &str,
        address: &str,
        lease: Duration,
    ) -> Result<bool, OwnershipError> {
        Ok(self.join(node, address, lease).await?)
    }

    async fn heartbeat(
        &self,
        node: &str,
        draining: bool,
        followed: &[(ShardId, u64)],
    ) -> Result<bool, OwnershipError> {
        Ok(self.heartbeat(node, draining, followed).await?)
    }

    async fn leave(&self, node: &str) -> Result<(), OwnershipError> {
        Ok(self.leave(node).await?)
    }

    async fn view(&self) -> Result<ClusterView, OwnershipError> {
        Ok(self.view().await?)
    }

    async fn claim(&self, shard: ShardId) -> Result<bool, OwnershipError> {
        Ok(self.claim(shard).await?)
    }

    async fn release(&self, shard: ShardId) -> Result<(), OwnershipError> {
        Ok(self.release(shard).await?)
    }
}
