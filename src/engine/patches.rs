//! What is different in a body from the one that its author says it is like: worked out on the
//! caller's task, so that the writer only stores it.
//!
//! It is never a reason to refuse an event. What cannot be found or does not pay is kept whole.

use bytes::Bytes;

use super::{
    Inner,
    error::ReadError,
    lookup,
    prepare::{PatchBase, Prepared, PreparedPatch},
    query::Wanted,
};
use crate::{
    codec::body::EncodedBody,
    domain::{Namespace, NewEvent, with_causes},
    log::{RecordBody, patch},
};

impl Inner {
    /// Looks up what the bodies of a batch are like, and what is different.
    pub(super) async fn look_up_patches(&self, prepared: &mut Prepared) {
        for index in 0..prepared.bodies.len() {
            let body = &prepared.bodies[index];
            if body.delta_of.is_empty() || !body.is_blob() {
                continue;
            }
            let found = self.patch_of(prepared, index).await;
            let found = found.unwrap_or_else(|error| {
                tracing::debug!(error = %with_causes(&error), "what a body is like cannot be read; it is kept whole");
                None
            });
            prepared.bodies[index].patch = found;
        }
    }

    async fn patch_of(
        &self,
        prepared: &Prepared,
        index: usize,
    ) -> Result<Option<PreparedPatch>, ReadError> {
        let body = &prepared.bodies[index];
        if body.bytes.len() > patch::PATCHED_BYTES_MAX {
            return Ok(None);
        }
        let based = match earlier_in_batch(prepared, index) {
            Some(at) => Some((PatchBase::Event(at), prepared.bodies[at].bytes.clone())),
            None => {
                let namespace = &prepared.command.namespace;
                let event = &prepared.command.events[index];
                self.body_like(namespace, event, &body.delta_of).await?
            }
        };
        let Some((base, other)) = based else {
            return Ok(None);
        };
        // What fails here is zstd's memory: then it is kept whole.
        let different = patch::diff(&other, &body.bytes).unwrap_or_default();
        Ok(different.map(|bytes| PreparedPatch {
            base,
            bytes: bytes.into(),
        }))
    }

    /// The large body that is stored of the newest event with a key, where an event goes.
    async fn body_like(
        &self,
        namespace: &Namespace,
        event: &NewEvent<EncodedBody>,
        key: &str,
    ) -> Result<Option<(PatchBase, Bytes)>, ReadError> {
        let Some(row) = self.find_row(namespace, event.conversation)? else {
            return Ok(None);
        };
        let history = self.history();
        let branch = self.branch_id(&history, &row, event.branch.as_ref())?;
        let segments = history.lineage_to(row.id, branch, row.head)?;
        let wanted = Wanted::Key(key.to_owned());
        let Some((entry, _)) = lookup::newest(&history, &segments, &wanted)? else {
            return Ok(None);
        };
        let record = lookup::record_of(&history, namespace, &entry).await?;
        match record.body {
            RecordBody::Blob(blob)
                if blob.bytes_len <= patch::PATCHED_BYTES_MAX as u64
                    && self.hot.may_refer_to(blob.home_offset) =>
            {
                let bytes = history.reader.body(&record).await?;
                Ok(Some((PatchBase::Home(blob.home_offset), bytes)))
            }
            _ => Ok(None),
        }
    }
}

/// The last event before this one in its batch that has the key, goes to the same branch and is
/// kept apart.
fn earlier_in_batch(prepared: &Prepared, index: usize) -> Option<usize> {
    let events = &prepared.command.events;
    let (event, key) = (&events[index], &prepared.bodies[index].delta_of);
    (0..index).rev().find(|at| {
        let (other, body) = (&events[*at], &prepared.bodies[*at]);
        other.tags.key == *key
            && other.conversation == event.conversation
            && other.branch == event.branch
            && body.is_blob()
            && body.bytes.len() <= patch::PATCHED_BYTES_MAX
    })
}
