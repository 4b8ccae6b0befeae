//! The regular heads of a server: a task that signs and stores a new head at each interval if
//! something was appended.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    task::{JoinHandle, spawn_blocking},
    time::{sleep, timeout},
};

use super::{error::HeadError, file::SignedHead, survey::LogHeads, target::HeadTarget};
use treering_base::measure::Total;
use treering_domain::with_causes;
use treering_engine::{Engine, Signer};

/// First and longest pause before a retry. Neither is longer than the interval between heads.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// How long a stopping server may take to store a last head.
const LAST_WITHIN: Duration = Duration::from_secs(10);

/// Metrics of a server's heads.
#[derive(Debug, Default)]
pub struct HeadMeasures {
    /// Heads that could not be made or stored.
    pub failures: Total,
    position: AtomicU64,
}

impl HeadMeasures {
    /// Returns the position of the last head stored since the start; 0 if there is none.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }
}

/// Makes and stores the heads of a store.
pub struct HeadKeeper {
    engine: Engine,
    signer: Signer,
    target: HeadTarget,
    heads: LogHeads,
    measures: Arc<HeadMeasures>,
}

/// Handle of the running task.
#[derive(Debug)]
pub struct HeadKeeperHandle {
    address: String,
    measures: Arc<HeadMeasures>,
    end: Arc<Notify>,
    task: JoinHandle<()>,
}

impl HeadKeeper {
    /// Makes heads of a store, signed with this key and stored in the target.
    #[must_use]
    pub fn new(engine: Engine, signer: Signer, target: HeadTarget) -> Self {
        Self {
            engine,
            signer,
            target,
            heads: LogHeads::default(),
            measures: Arc::default(),
        }
    }

    /// Starts the task: makes a head at each interval if something was appended.
    #[must_use]
    pub fn start(self, every: Duration) -> HeadKeeperHandle {
        let (measures, end) = (Arc::clone(&self.measures), Arc::new(Notify::new()));
        let address = self.target.address();
        let task = tokio::spawn(self.run(every, Arc::clone(&end)));
        HeadKeeperHandle {
            address,
            measures,
            end,
            task,
        }
    }

    async fn run(mut self, every: Duration, end: Arc<Notify>) {
        let mut pause = every;
        let mut retry = RETRY_MIN;
        loop {
            let is_last = tokio::select! {
                () = sleep(pause) => false,
                () = end.notified() => true,
            };
            match self.put_if_new().await {
                Ok(_) => (pause, retry) = (every, RETRY_MIN),
                Err(error) => {
                    self.measures.failures.add_one();
                    let (error, to) = (with_causes(&error).to_string(), self.target.address());
                    tracing::warn!(error, to, "storing a signed head failed; retrying");
                    (pause, retry) = (retry, (retry * 2).min(RETRY_MAX).min(every));
                }
            }
            if is_last {
                return;
            }
        }
    }

    /// Makes and stores a head if something was appended since the last one. Returns false if not.
    ///
    /// # Errors
    /// When the log cannot be read or the head cannot be stored. The call can be repeated.
    pub(crate) async fn put_if_new(&mut self) -> Result<bool, HeadError> {
        let position = self.engine.head().offset;
        if position == self.measures.position() {
            return Ok(false);
        }
        let log = self.engine.identity();
        while self.heads.reached() < position {
            let from = self.heads.reached() + 1;
            let records = self.engine.records_once(from, position).await?;
            self.run_blocking(move |heads| {
                let mut all = records.iter();
                all.try_for_each(|(offset, record)| heads.take(None, *offset, record))
            })
            .await?;
        }
        // The last page that was read may end after the position.
        let position = self.heads.reached();
        let root = self.run_blocking(LogHeads::root).await?;
        let head = SignedHead::sign(log, position, root, &self.signer);
        self.target.put(&head).await?;
        self.measures.position.store(position, Ordering::Relaxed);
        Ok(true)
    }

    /// Runs a function on a blocking thread.
    async fn run_blocking<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut LogHeads) -> Result<T, HeadError> + Send + 'static,
    ) -> Result<T, HeadError> {
        let mut heads = std::mem::take(&mut self.heads);
        let done = spawn_blocking(move || {
            let done = work(&mut heads);
            (heads, done)
        });
        let (heads, done) = done
            .await
            .map_err(|error| HeadError::failed("making a head", error))?;
        self.heads = heads;
        done
    }
}

impl HeadKeeperHandle {
    /// Returns the target's address, without credentials.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the metrics.
    #[must_use]
    pub fn measures(&self) -> Arc<HeadMeasures> {
        Arc::clone(&self.measures)
    }

    /// Stops the task, after storing a last head if that does not take long.
    pub async fn stop(mut self) {
        self.end.notify_one();
        if timeout(LAST_WITHIN, &mut self.task).await.is_err() {
            tracing::warn!("the last signed head was not stored in time");
            self.task.abort();
        }
    }
}
