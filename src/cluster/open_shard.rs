//! A shard whose engine is open on this node.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use async_trait::async_trait;
use treering_domain::ShardId;
use treering_engine::{Engine, OpenError, OpenOptions, ShardPlace};
use treering_log::EventLog;
use treering_server::ShardServices;

use crate::{lease::Term, watched_log::WatchedLog};

/// What a node opens for a shard: an [`Engine`], or a small model of one in the simulation.
#[async_trait]
pub trait ShardEngine: Sized + Send + Sync + 'static {
    /// Opens the engine of a shard.
    ///
    /// # Errors
    /// [`OpenError`].
    async fn open(
        log: Arc<dyn EventLog>,
        place: ShardPlace,
        options: OpenOptions,
    ) -> Result<Self, OpenError>;

    /// Brings the folder of a shard that another process owns up to date with the log, up to an offset
    /// that [`EventLog::tail`] has returned. Returns the offset that it has reached.
    ///
    /// # Errors
    /// [`OpenError`].
    async fn follow(
        log: Arc<dyn EventLog>,
        place: ShardPlace,
        options: OpenOptions,
        confirmed: u64,
        stopped: impl Future<Output = ()> + Send,
    ) -> Result<u64, OpenError>;

    /// Finishes appends and closes the engine.
    async fn close(&self);
}

#[async_trait]
impl ShardEngine for Engine {
    async fn open(
        log: Arc<dyn EventLog>,
        place: ShardPlace,
        options: OpenOptions,
    ) -> Result<Self, OpenError> {
        Self::open_shard(log, place, options).await
    }

    async fn follow(
        log: Arc<dyn EventLog>,
        place: ShardPlace,
        options: OpenOptions,
        confirmed: u64,
        stopped: impl Future<Output = ()> + Send,
    ) -> Result<u64, OpenError> {
        Self::follow_shard(log, place, options, confirmed, stopped).await
    }

    async fn close(&self) {
        self.close().await;
    }
}

/// An open shard.
pub(crate) struct OpenShard<E> {
    pub(crate) shard: ShardId,
    pub(crate) engine: E,
    pub(crate) log: Arc<WatchedLog>,
    /// The gRPC services over the engine, which go with it.
    pub(crate) services: ShardServices,
    /// The term in which this process was last known to own the shard.
    term: Mutex<Term>,
    /// No answer may be given any more: the shard is being handed over.
    ended: AtomicBool,
}

impl<E> OpenShard<E> {
    pub(crate) fn new(shard: ShardId, engine: E, log: Arc<WatchedLog>, term: Term) -> Self {
        Self {
            shard,
            engine,
            log,
            services: ShardServices::default(),
            term: Mutex::new(term),
            ended: AtomicBool::new(false),
        }
    }

    /// Records that this process owned the shard in a term.
    pub(crate) fn confirm(&self, term: Term) {
        *self.term.lock().unwrap_or_else(PoisonError::into_inner) = term;
    }

    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Returns true if the shard may be served in the current term.
    pub(crate) fn may_be_served(&self, current: Option<Term>) -> bool {
        let own = *self.term.lock().unwrap_or_else(PoisonError::into_inner);
        !self.ended.load(Ordering::Acquire) && !self.is_lost() && current == Some(own)
    }

    /// Returns true if an append was refused because of another owner.
    pub(crate) fn is_lost(&self) -> bool {
        self.log.lost.load(Ordering::Acquire)
    }
}
