//! Reads the records of a shard in order.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::timeout;
use treering_domain::ShardId;
use treering_log::{EventLog, LogReader, Record};

use super::{MoveError, of_log};

/// Maximum number of records of one read, and their maximum size in bytes.
const RECORDS_MAX: usize = 1_024;
const BYTES_MAX: usize = 1 << 20;
/// How long the confirmation of a shard's end is awaited.
const CONFIRM_WAIT_MAX: Duration = Duration::from_secs(60);
/// Cache for frames, in bytes. Each frame is read once.
const CACHE_BYTES: usize = 1 << 20;

/// The records of one shard, up to a fixed offset.
pub(super) struct RecordStream {
    reader: LogReader,
    shard: ShardId,
    next: u64,
    head: u64,
    read: VecDeque<(u64, Record)>,
}

impl RecordStream {
    pub(super) fn new(log: Arc<dyn EventLog>, shard: ShardId, head: u64) -> Self {
        Self {
            reader: LogReader::new(log, shard, CACHE_BYTES),
            shard,
            next: 1,
            head,
            read: VecDeque::new(),
        }
    }

    /// Returns the next record without taking it; `None` at the end.
    pub(super) async fn peek(&mut self) -> Result<Option<&Record>, MoveError> {
        if self.read.is_empty() && self.next <= self.head {
            self.read = self.page().await?;
            if self.read.is_empty() {
                // The standby may not have confirmed the end yet.
                let end = self.reader.log().tail(self.shard, self.next - 1);
                let _waited = timeout(CONFIRM_WAIT_MAX, end).await;
                self.read = self.page().await?;
            }
            let Some((last, _)) = self.read.back() else {
                return Err(MoveError::Differs {
                    offset: self.next,
                    what: "it is missing",
                });
            };
            self.next = last + 1;
        }
        Ok(self.read.front().map(|(_, record)| record))
    }

    async fn page(&self) -> Result<VecDeque<(u64, Record)>, MoveError> {
        let left = usize::try_from(self.head - self.next + 1).unwrap_or(usize::MAX);
        let records_max = left.min(RECORDS_MAX);
        let read = self.reader.records_once(self.next, records_max, BYTES_MAX);
        Ok(read.await.map_err(of_log("reading events"))?.into())
    }

    /// Returns the next record and its offset; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<(u64, Record)>, MoveError> {
        self.peek().await?;
        Ok(self.read.pop_front())
    }

    /// Returns a record's body.
    pub(super) async fn body(&self, record: &Record) -> Result<Bytes, MoveError> {
        let body = self.reader.body(record).await;
        body.map_err(of_log("reading a body"))
    }
}
