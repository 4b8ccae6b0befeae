//! What a simulated node opens for a shard: the list of its events. It appends as the writer of a
//! real engine does, with the same answers to a lost owner and to an unknown outcome.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use tokio::time::sleep;
use treering_domain::{Cause, ShardId};
use treering_engine::{OpenError, OpenOptions, ShardPlace};
use treering_log::{Epoch, EventLog, FrameBatch, LogError};

use super::database::Event;
use crate::open_shard::ShardEngine;

/// How often the log is asked for the outcome of an append while its caller waits.
const ASKS: u32 = 2;
const ASK_PAUSE: Duration = Duration::from_millis(100);

/// See the module. Cheap to clone, like an engine.
#[derive(Clone)]
pub(super) struct ListEngine {
    inner: Arc<Inner>,
}

struct Inner {
    log: Arc<dyn EventLog>,
    shard: ShardId,
    writer: tokio::sync::Mutex<Writer>,
    /// What readers see.
    events: Mutex<Vec<Event>>,
}

struct Writer {
    epoch: Epoch,
    head: u64,
    /// An event of which nobody knows whether it was appended.
    in_doubt: Option<Event>,
    stopped: bool,
}

/// The outcome of an append.
pub(super) enum Appended {
    At(u64),
    Refused,
    Unknown,
}

#[async_trait]
impl ShardEngine for ListEngine {
    async fn open(
        log: Arc<dyn EventLog>,
        place: ShardPlace,
        options: OpenOptions,
    ) -> Result<Self, OpenError> {
        let opened = Self::open_list(log, place.shard).await;
        opened.map_err(|error| OpenError::Failed {
            path: options.data_dir,
            source: Cause::of(error),
        })
    }

    /// Keeps nothing, because opening reads the whole list. What is tested is when a node follows.
    async fn follow(
        log: Arc<dyn EventLog>,
        place: ShardPlace,
        options: OpenOptions,
        confirmed: u64,
        _: impl Future<Output = ()> + Send,
    ) -> Result<u64, OpenError> {
        let read = log.read(place.shard, 1, usize::MAX).await;
        read.map(|_| confirmed).map_err(|error| OpenError::Failed {
            path: options.data_dir,
            source: Cause::of(error),
        })
    }

    async fn close(&self) {
        let mut writer = self.inner.writer.lock().await;
        self.settle(&mut writer).await;
        writer.stopped = true;
    }
}

impl ListEngine {
    async fn open_list(log: Arc<dyn EventLog>, shard: ShardId) -> Result<Self, LogError> {
        let acquired = log.acquire(shard).await?;
        let mut events = Vec::new();
        while (events.len() as u64) < acquired.head {
            let from = events.len() as u64 + 1;
            let frames = log.read(shard, from, usize::MAX).await?;
            events.extend(frames.iter().map(Event::of));
        }
        let writer = Writer {
            epoch: acquired.epoch,
            head: acquired.head,
            in_doubt: None,
            stopped: false,
        };
        let inner = Inner {
            log,
            shard,
            writer: tokio::sync::Mutex::new(writer),
            events: Mutex::new(events),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    fn list(&self) -> MutexGuard<'_, Vec<Event>> {
        let list = self.inner.events.lock();
        list.unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the numbers of a conversation's events.
    pub(super) fn events(&self, conversation: u32) -> Vec<u64> {
        let list = self.list();
        let own = list
            .iter()
            .filter(|event| event.conversation == conversation);
        own.map(|event| event.number).collect()
    }

    pub(super) async fn append(&self, event: Event) -> Appended {
        let mut writer = self.inner.writer.lock().await;
        self.settle(&mut writer).await;
        if writer.stopped || writer.in_doubt.is_some() {
            return Appended::Refused;
        }
        let batch = FrameBatch {
            frames: vec![event.frame(writer.head + 1)],
            blobs: Vec::new(),
        };
        let (epoch, head) = (writer.epoch, writer.head);
        let log = &self.inner.log;
        match log.append(self.inner.shard, epoch, head, batch).await {
            Ok(head) => {
                writer.head = head;
                self.list().push(event);
                Appended::At(head)
            }
            Err(LogError::UnknownOutcome { .. }) => {
                writer.in_doubt = Some(event);
                for _ in 0..ASKS {
                    sleep(ASK_PAUSE).await;
                    self.settle(&mut writer).await;
                    match writer.in_doubt {
                        None if writer.stopped => return Appended::Unknown,
                        None if writer.head > head => return Appended::At(writer.head),
                        None => return Appended::Refused,
                        Some(_) => {}
                    }
                }
                Appended::Unknown
            }
            Err(error) => {
                writer.stopped |= ends_ownership(&error);
                Appended::Refused
            }
        }
    }

    /// Asks the log for the outcome of an append in doubt: at the old head it was not appended, at
    /// the next it was, and anywhere else another owner has written.
    async fn settle(&self, writer: &mut Writer) {
        let Some(event) = writer.in_doubt else {
            return;
        };
        match self.inner.log.acquire(self.inner.shard).await {
            Ok(acquired) if acquired.head == writer.head => writer.epoch = acquired.epoch,
            Ok(acquired) if acquired.head == writer.head + 1 => {
                (writer.epoch, writer.head) = (acquired.epoch, acquired.head);
                self.list().push(event);
            }
            Ok(_) => writer.stopped = true,
            Err(error) if ends_ownership(&error) => writer.stopped = true,
            Err(_) => return,
        }
        writer.in_doubt = None;
    }
}

fn ends_ownership(error: &LogError) -> bool {
    matches!(
        error,
        LogError::NotOwner { .. } | LogError::HeadMismatch { .. } | LogError::Closed
    )
}
