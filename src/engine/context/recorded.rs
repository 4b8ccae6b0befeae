//! Reads the batch that an idempotency key was used for. Operations that derive their events from
//! the state need it: a retry must return the first events.

use crate::{Inner, append::same_batch, error::ReadError};
use treering_domain::{AppendOutcome, AppendedEvent, EventBody, Namespace};

/// A batch that was appended with an idempotency key.
pub(crate) struct RecordedBatch {
    /// The events, in order.
    pub(crate) events: Vec<(AppendedEvent, EventBody)>,
}

impl RecordedBatch {
    /// Returns the answer to a retry.
    pub(crate) fn repeated(self) -> AppendOutcome {
        AppendOutcome {
            events: self.events.into_iter().map(|(event, _)| event).collect(),
            repeated_key: true,
            warnings: Vec::new(),
            created: None,
            known: Vec::new(),
        }
    }
}

impl Inner {
    /// Returns the batch that this key was used for, if the projections have it.
    pub(crate) async fn recorded_batch(
        &self,
        namespace: &Namespace,
        key: Option<&String>,
    ) -> Result<Option<RecordedBatch>, ReadError> {
        let Some(key) = key else { return Ok(None) };
        let Some(entry) = self.used_key(namespace, key)? else {
            return Ok(None);
        };
        let count = entry.events as usize;
        let records = self
            .reads
            .reader
            .records(entry.first_offset, count, usize::MAX)
            .await?;
        same_batch(&entry, &records)?;
        let history = self.reads.history();
        let mut events = Vec::with_capacity(count);
        for (offset, record) in records {
            let body = history.decode(offset, &record).await?;
            let appended = AppendedEvent {
                event: record.header.id,
                conversation: record.header.conversation,
                branch: record.header.branch,
                revision: record.header.revision,
                position: self.reads.reader.position(offset),
            };
            events.push((appended, body));
        }
        Ok(Some(RecordedBatch { events }))
    }
}
