//! Opening and closing a store.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;

use super::{
    Engine, Inner, OpenOptions,
    error::{OpenError, ReadError},
    fold::Folder,
    publisher::EnginePublisher,
    sequencer::{Deltas, EngineSequencer},
    states::HotSet,
};
use crate::{
    domain::{Limits, ShardId, TimestampMicros},
    log::{
        EventLog, GroupWriter, LogError, LogReader, MemoryLog, RedbLog, RedbLogOptions,
        WriterLimits, writer::ShardOwner,
    },
    views::{Views, ViewsError},
};

/// Name of the views' file in the data folder.
pub(super) const VIEWS_FILE: &str = "views.redb";
/// Name of the index's folder in the data folder.
const INDEX_FOLDER: &str = "index";
/// Memory for pages of the views, in bytes.
const VIEWS_CACHE_BYTES: usize = 64 << 20;
/// How often the views are made durable. What is not is read from the log again.
const VIEWS_DURABLE_EVERY: Duration = Duration::from_secs(1);
/// Appends wait while the views are made durable, so that at most one part in
/// this many of the time goes to it.
const VIEWS_DURABLE_SHARE: u32 = 25;
/// How long closing waits for reads that are under way.
const READS_END_WITHIN: Duration = Duration::from_secs(2);

/// What differs between a store in a folder and one in memory.
struct Parts {
    log: Arc<dyn EventLog>,
    announce: Box<dyn Fn(&str) + Send + Sync>,
    views: Views,
    views_path: Option<PathBuf>,
    index: super::indexer::IndexPlace,
}

impl Engine {
    /// Opens the store in a folder, or makes one there. Views and index catch up
    /// with the log; if they are damaged or of another version they are made
    /// anew from it.
    ///
    /// # Errors
    /// [`OpenError`] says what is wrong with the folder or the log.
    pub async fn open(options: OpenOptions) -> Result<Self, OpenError> {
        let dir = options.data_dir.clone();
        let log_options = RedbLogOptions::default();
        let log = RedbLog::open(&dir, log_options).map_err(|error| log_refused(&dir, error))?;
        let log = Arc::new(log);
        let views_path = dir.join(VIEWS_FILE);
        let views = open_views(&views_path).map_err(|error| failed(&dir, &error))?;
        let announcing = Arc::clone(&log);
        let parts = Parts {
            log,
            announce: Box::new(move |address| {
                if let Err(error) = announcing.set_address(address) {
                    tracing::warn!(%error, "the address could not be written to the lock file");
                }
            }),
            views,
            views_path: Some(views_path),
            index: super::indexer::IndexPlace::Folder(dir.join(INDEX_FOLDER)),
        };
        Self::start(options, parts).await
    }

    /// A store in memory: nothing is kept once it is closed.
    ///
    /// # Errors
    /// [`OpenError`] when a thread cannot be started.
    pub async fn in_memory(limits: Limits) -> Result<Self, OpenError> {
        let dir = PathBuf::from("memory");
        let parts = Parts {
            log: Arc::new(MemoryLog::new()),
            announce: Box::new(|_| {}),
            views: Views::in_memory().map_err(|error| failed(&dir, &error))?,
            views_path: None,
            index: super::indexer::IndexPlace::Memory,
        };
        Self::start(
            OpenOptions {
                data_dir: dir,
                limits,
            },
            parts,
        )
        .await
    }

    /// A store over any log, with its views in a folder.
    #[cfg(test)]
    pub(super) async fn over(log: Arc<dyn EventLog>, dir: &Path) -> Result<Self, OpenError> {
        let views_path = dir.join(VIEWS_FILE);
        let parts = Parts {
            log,
            announce: Box::new(|_| {}),
            views: open_views(&views_path).map_err(|error| failed(dir, &error))?,
            views_path: Some(views_path),
            index: super::indexer::IndexPlace::Memory,
        };
        Self::start(OpenOptions::new(dir), parts).await
    }

    async fn start(options: OpenOptions, parts: Parts) -> Result<Self, OpenError> {
        let dir = options.data_dir.clone();
        let shard = ShardId::default();
        let acquired = parts
            .log
            .acquire(shard)
            .await
            .map_err(|error| log_refused(&dir, error))?;
        let reader = Arc::new(LogReader::new(
            Arc::clone(&parts.log),
            shard,
            options.limits.frame_cache_bytes,
        ));
        let views = catch_up(
            parts.views,
            parts.views_path.as_deref(),
            &reader,
            acquired.head,
        )
        .await
        .map_err(|error| read_refused(&dir, error))?;
        let views = Arc::new(ArcSwap::from_pointee(views));
        let published = Arc::new(AtomicU64::new(acquired.head));
        let (notify, news) = super::news::channel(acquired.head);
        let closing = Arc::new(AtomicBool::new(false));
        let views_gate = Arc::new(Mutex::new(()));
        let hot = Arc::new(HotSet::default());
        let deltas = Deltas::default();
        let sequencer = EngineSequencer::new(
            options.limits.clone(),
            Arc::clone(&views),
            Arc::clone(&hot),
            Arc::clone(&deltas),
            Arc::clone(&published),
        );
        let publisher = EnginePublisher {
            views: Arc::clone(&views),
            deltas,
            published: Arc::clone(&published),
            notify,
            reader: Arc::clone(&reader),
            reopen: reopen(parts.views_path.clone()),
            closing: Arc::clone(&closing),
            gate: Arc::clone(&views_gate),
        };
        let owner = ShardOwner {
            shard,
            epoch: acquired.epoch,
            head: acquired.head,
        };
        let limits = WriterLimits {
            queue_appends_max: options.limits.queue_appends_max,
            queue_bytes_max: options.limits.queue_bytes_max,
            ..WriterLimits::default()
        };
        let writer =
            GroupWriter::start(Arc::clone(&parts.log), owner, sequencer, publisher, limits)
                .map_err(|error| log_refused(&dir, error))?;
        let indexer = super::indexer::Indexer::open(parts.index, acquired.head)
            .map_err(|error| failed(&dir, &error))?;
        let knowledge = super::context::KnowledgeCache::new(options.limits.knowledge_cache_bytes);
        let inner = Arc::new(Inner {
            work: super::work::Work::new(&options.limits, Arc::clone(&closing)),
            contexts: super::context::ContextCaches::new(&options.limits),
            options,
            log: parts.log,
            announce: parts.announce,
            views,
            hot,
            views_path: parts.views_path,
            views_gate,
            reader,
            writer,
            published,
            news,
            closing,
            damaged: Mutex::new(None),
            indexer: Arc::new(indexer),
            knowledge,
            started_at: TimestampMicros::now(),
        });
        tokio::spawn(keep_views_durable(Arc::downgrade(&inner)));
        tokio::spawn(super::indexer::run(Arc::downgrade(&inner)));
        Ok(Self { inner })
    }

    /// Finishes what was accepted, makes views and index durable, and lets the
    /// folder go. Appends and reads are refused from now on.
    pub async fn close(&self) {
        if self.inner.closing.swap(true, Ordering::AcqRel) {
            return;
        }
        let inner = Arc::clone(&self.inner);
        let stopped = tokio::task::spawn_blocking(move || {
            inner.writer.shutdown();
            if let Err(error) = inner.views.load().make_durable() {
                tracing::warn!(%error, "the views were not made durable; they catch up at the next start");
            }
        });
        if let Err(error) = stopped.await {
            tracing::error!(%error, "the writer did not stop cleanly");
        }
        self.inner.indexer.close().await;
        self.inner.let_views_go().await;
        if let Err(error) = self.inner.log.close().await {
            tracing::warn!(%error, "the log was not closed cleanly; it is repaired at the next start");
        }
    }
}

impl Inner {
    /// Closes the views, as soon as the reads that are under way have ended:
    /// another engine may open the folder while handles of this one are left.
    async fn let_views_go(&self) {
        let views = self.views.swap(Arc::new(Views::closed()));
        let patience = tokio::time::Instant::now() + READS_END_WITHIN;
        while Arc::strong_count(&views) > 1 && tokio::time::Instant::now() < patience {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Opens the views; what cannot be used is removed, because the log has it all.
fn open_views(path: &Path) -> Result<Views, ViewsError> {
    match Views::open(path, VIEWS_CACHE_BYTES) {
        Err(error @ (ViewsError::OtherVersion { .. } | ViewsError::Damaged { .. })) => {
            tracing::warn!(%error, "the views are made anew from the log");
            Views::wipe(path)?;
            Views::open(path, VIEWS_CACHE_BYTES)
        }
        result => result,
    }
}

fn reopen(path: Option<PathBuf>) -> super::publisher::ReopenViews {
    Box::new(move || match &path {
        Some(path) => open_views(path),
        None => Views::in_memory(),
    })
}

/// Brings the views up to the log's head; makes them anew if they do not belong
/// to this log.
async fn catch_up(
    views: Views,
    path: Option<&Path>,
    reader: &Arc<LogReader>,
    head: u64,
) -> Result<Views, ReadError> {
    let mut views = views;
    if !belongs(&views, reader, head).await
        && let Some(path) = path
    {
        tracing::warn!("the views do not belong to this log; they are made anew");
        drop(views);
        Views::wipe(path)?;
        views = Views::open(path, VIEWS_CACHE_BYTES)?;
    }
    let mut folder = Folder::new(Arc::new(views.clone()), Arc::clone(reader))?;
    folder.run(head, |_| {}).await?;
    Ok(views)
}

/// True when the last event that the views know is the log's at that place.
async fn belongs(views: &Views, reader: &LogReader, head: u64) -> bool {
    let Ok(reached) = views.reached() else {
        return false;
    };
    if reached == 0 || reached > head {
        return reached == 0;
    }
    let Ok(record) = reader.record(reached).await else {
        // Damage is for the reads that meet it to report, not a reason to
        // throw good views away.
        return true;
    };
    let header = &record.header;
    let row = views.conversation(header.conversation);
    row.is_ok_and(|row| {
        row.is_some_and(|row| {
            row.last_position.offset == reached && row.chain_hash == record.chain_hash
        })
    })
}

async fn keep_views_durable(inner: std::sync::Weak<Inner>) {
    let mut durable_to = 0;
    let mut pause = VIEWS_DURABLE_EVERY;
    loop {
        tokio::time::sleep(pause).await;
        let Some(inner) = inner.upgrade() else { return };
        if inner.closing.load(Ordering::Acquire) {
            return;
        }
        let published = inner.published.load(Ordering::Acquire);
        if published == durable_to {
            continue;
        }
        let views = inner.views.load_full();
        let started = std::time::Instant::now();
        let done = tokio::task::spawn_blocking(move || views.make_durable()).await;
        pause = VIEWS_DURABLE_EVERY.max(started.elapsed() * VIEWS_DURABLE_SHARE);
        match done {
            Ok(Ok(_)) => durable_to = published,
            Ok(Err(error)) => tracing::warn!(%error, "the views were not made durable"),
            Err(error) => tracing::warn!(%error, "the views were not made durable"),
        }
    }
}

fn failed(dir: &Path, error: &impl std::fmt::Display) -> OpenError {
    OpenError::Failed {
        path: dir.to_owned(),
        message: error.to_string(),
    }
}

fn log_refused(dir: &Path, error: LogError) -> OpenError {
    let path = dir.to_owned();
    match error {
        LogError::Locked { holder, .. } => OpenError::Locked {
            path,
            holder: holder.to_string(),
            address: holder.address,
        },
        LogError::ReadOnly { .. } => OpenError::ReadOnly { path },
        error @ LogError::NewerFormat { .. } => OpenError::NewerFormat {
            path,
            message: error.to_string(),
        },
        error @ LogError::Damaged { .. } => OpenError::Damaged {
            path,
            message: error.to_string(),
        },
        error => OpenError::Failed {
            path,
            message: error.to_string(),
        },
    }
}

fn read_refused(dir: &Path, error: ReadError) -> OpenError {
    let path = dir.to_owned();
    match error {
        error @ ReadError::Damaged { .. } => OpenError::Damaged {
            path,
            message: error.to_string(),
        },
        error => OpenError::Failed {
            path,
            message: error.to_string(),
        },
    }
}
