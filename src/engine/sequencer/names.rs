//! The names of a batch's events: chosen ids, idempotency keys, and expectations on the newest
//! event with a key.

use super::{EngineSequencer, RequestStop, WriteRequest};
use crate::{
    error::AppendError,
    unpublished_names::{EventWithId, KnownEvents, Names, key_in_projections},
};
use treering_domain::{NewestWithKey, Rejection, Rule, Tags, TimestampMicros};
use treering_log::Record;
use treering_projections::KeyEntry;

impl EngineSequencer {
    /// Returns the earlier use of a batch's key, unless it has expired.
    pub(super) fn known_key(
        &self,
        request: &WriteRequest,
        now: TimestampMicros,
    ) -> Result<Option<KeyEntry>, AppendError> {
        let command = &request.prepared.command;
        let (Some(key), Some(facts)) = (&command.idempotency_key, &request.key) else {
            return Ok(None);
        };
        let lives = |entry: &&KeyEntry| !entry.has_ended(now);
        if let Some(entry) = self.recent.key(&command.namespace, key).filter(lives) {
            return Ok(Some(entry.clone()));
        }
        // An expired key may have been used again since.
        let found = facts.entry.as_ref().filter(lives);
        if found.is_some() || self.recent.completes(facts.reached) {
            return Ok(found.cloned());
        }
        let key = (&command.namespace, key.as_str());
        key_in_projections(&self.cache.projections(), key, &self.recent, now)
    }

    /// Removes already stored events from a batch and returns them.
    pub(super) fn pass_over(
        &self,
        request: &mut WriteRequest,
        now: TimestampMicros,
    ) -> Result<KnownEvents, RequestStop> {
        if !request.prepared.has_names() {
            return Ok(Vec::new());
        }
        let names = self.recent.names(&request.prepared, &request.names, now);
        match names.map_err(RequestStop::Failed)? {
            Names::Retry => Err(RequestStop::Retry),
            Names::Known(known) => {
                let places: Vec<usize> = known.iter().map(|(own, _)| *own).collect();
                request.prepared.skip(&places);
                Ok(known)
            }
        }
    }

    /// Checks the expectations on the newest event with each key.
    pub(super) fn check_expected_keys(&self, request: &WriteRequest) -> Result<(), RequestStop> {
        let command = &request.prepared.command;
        for (index, wanted) in command.expected_keys.iter().enumerate() {
            let conversation = command.namespace.key(wanted.conversation);
            let state = self.cache.get(conversation);
            let actual = match state.map(|state| state.branch(wanted.branch.as_ref())) {
                None => None,
                Some(None) => {
                    let rule = Rule::BranchNotFound {
                        conversation: wanted.conversation,
                        branch: wanted
                            .branch
                            .as_ref()
                            .map(ToString::to_string)
                            .unwrap_or_default(),
                    };
                    return Err(RequestStop::Failed(Rejection::batch(rule).into()));
                }
                Some(Some(branch)) => {
                    let looked_up = (request.names.reached, request.names.newest.get(index));
                    let newest =
                        self.recent
                            .newest((&command.namespace, wanted), branch.id, looked_up);
                    newest.map_err(|_| RequestStop::Retry)?
                }
            };
            let expected = wanted.expected;
            if !NewestWithKey::fits(actual.as_ref(), expected) {
                let rule = Rule::LatestMismatch {
                    index,
                    expected,
                    actual,
                };
                return Err(RequestStop::Failed(Rejection::batch(rule).into()));
            }
        }
        Ok(())
    }

    /// Records an event's names: its id, its tags, and its idempotency key.
    pub(super) fn note_names(&mut self, record: &Record, tags: &Tags, offset: u64) {
        let header = &record.header;
        self.staged.header(header, offset);
        if header.id.offset() != offset {
            self.recent.used_id(EventWithId {
                offset,
                header: header.clone(),
                body: record.plain_hash(),
            });
        }
        self.recent.tagged(header, tags, offset);
        if let Some(key) = &record.append_key {
            let entry = KeyEntry {
                namespace: header.namespace.clone(),
                key: key.key.clone(),
                content_hash: key.content_hash,
                salt: key.salt.map(|salt| salt.0),
                first_offset: offset,
                events: key.events,
                ends_at: key.ends_at,
            };
            self.staged.key(entry.clone());
            self.recent.used_key(entry);
        }
    }
}
