//! A second batch that is appended atomically with the first one, such as its audit entry.

use std::sync::Arc;

use super::{EngineSequencer, RequestStop, WriteRequest};
use crate::{error::AppendError, prepare::ValidatedBatch, pseudonyms::Pseudonyms};
use treering_domain::{AcceptedBatch, AppendCommand, Cause, NewEvent, SequencedEvent, with_causes};
use treering_proto::body::EncodedBody;

/// Makes a second batch from the events of a batch and the places that were assigned to them. Both
/// are appended, or neither. Runs on the writer's thread.
#[derive(Clone)]
pub struct Companion(Arc<MakeCompanion>);

type MakeCompanion =
    dyn Fn(&[NewEvent<EncodedBody>], &[SequencedEvent]) -> AppendCommand + Send + Sync;

impl std::fmt::Debug for Companion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Companion")
    }
}

impl Companion {
    /// Creates a companion from a function. The batch that it makes must neither fork nor compact.
    /// A batch without events is ignored.
    pub fn new(
        make: impl Fn(&[NewEvent<EncodedBody>], &[SequencedEvent]) -> AppendCommand
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self(Arc::new(make))
    }

    /// Applies pseudonyms to the headers of the companion's batch.
    pub(crate) fn with_pseudonyms(self, pseudonyms: Pseudonyms) -> Self {
        Self::new(move |events, placed| {
            let mut command = (self.0)(events, placed);
            pseudonyms.pseudonymize(&mut command);
            command
        })
    }
}

impl EngineSequencer {
    /// Makes the companion of a batch and decides whether it is accepted.
    pub(super) fn decide_companion(
        &mut self,
        request: &WriteRequest,
        decided: &AcceptedBatch,
    ) -> Result<Option<(WriteRequest, AcceptedBatch)>, AppendError> {
        let Some(companion) = &request.companion else {
            return Ok(None);
        };
        let command = (companion.0)(&request.prepared.command.events, &decided.events);
        if command.events.is_empty() {
            return Ok(None);
        }
        let refused = |why: String| AppendError::Storage {
            source: Cause::of(format!(
                "the event that belongs to the batch was refused, so nothing was appended: {why}"
            )),
        };
        let prepared = ValidatedBatch::new(command, &self.limits)
            .map_err(|error| refused(with_causes(&error).to_string()))?;
        let mut request = WriteRequest::without_lookups(prepared, self.erasures);
        match self.decide(&mut request) {
            Ok(decided) => Ok(Some((request, decided))),
            Err(RequestStop::Failed(error)) => Err(refused(with_causes(&error).to_string())),
            Err(RequestStop::MissingData(_) | RequestStop::Retry) => {
                Err(refused("it needs earlier events".to_owned()))
            }
        }
    }
}
