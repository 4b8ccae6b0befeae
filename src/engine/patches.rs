//! Patches: the difference between a body and a similar one that its author names. It is computed
//! on the caller's task, so that the writer only stores it.
//!
//! A patch never causes a refusal. If the base cannot be found, or a patch saves too little, the
//! body is stored whole.

use bytes::Bytes;

use super::{
    Inner,
    error::ReadError,
    lookup,
    prepare::{PatchBase, ValidatedBatch, ValidatedPatch},
    query::EventSelector,
};
use treering_domain::{Namespace, NewEvent, with_causes};
use treering_log::{RecordBody, patch};
use treering_proto::body::EncodedBody;

impl Inner {
    /// Finds the bases of a batch's bodies and computes the patches.
    pub(super) async fn look_up_patches(&self, prepared: &mut ValidatedBatch) {
        for index in 0..prepared.bodies.len() {
            let body = &prepared.bodies[index];
            if body.delta_of.is_empty() || !body.is_blob() {
                continue;
            }
            let found = self.patch_of(prepared, index).await;
            let found = found.unwrap_or_else(|error| {
                tracing::debug!(error = %with_causes(&error), "a similar body cannot be read; the body is stored in full");
                None
            });
            prepared.bodies[index].patch = found;
        }
    }

    async fn patch_of(
        &self,
        prepared: &ValidatedBatch,
        index: usize,
    ) -> Result<Option<ValidatedPatch>, ReadError> {
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
        // This fails only if zstd runs out of memory; then the body is stored whole.
        let different = patch::diff(&other, &body.bytes).unwrap_or_default();
        Ok(different.map(|bytes| ValidatedPatch {
            base,
            bytes: bytes.into(),
        }))
    }

    /// Returns the stored large body of the newest event with `key` on the branch that `event` is
    /// for.
    async fn body_like(
        &self,
        namespace: &Namespace,
        event: &NewEvent<EncodedBody>,
        key: &str,
    ) -> Result<Option<(PatchBase, Bytes)>, ReadError> {
        let Some(row) = self.reads.find_row(namespace, event.conversation)? else {
            return Ok(None);
        };
        let history = self.reads.history();
        let branch = self
            .reads
            .branch_id(&history, &row, event.branch.as_ref())?;
        let segments = history.lineage_to(row.key(), branch, row.head)?;
        let wanted = EventSelector::Key(key.to_owned());
        let Some((entry, _)) = lookup::newest(&history, &segments, &wanted)? else {
            return Ok(None);
        };
        let record = lookup::record_of(&history, namespace, &entry).await?;
        match record.body {
            RecordBody::Blob(blob)
                if blob.bytes_len <= patch::PATCHED_BYTES_MAX as u64
                    && self.appends.cached_set.may_refer_to(blob.home_offset) =>
            {
                let bytes = history.reader.body(&record).await?;
                Ok(Some((PatchBase::Home(blob.home_offset), bytes)))
            }
            _ => Ok(None),
        }
    }
}

/// Returns the last earlier event of the batch that has the key, goes to the same branch and has a
/// large body.
fn earlier_in_batch(prepared: &ValidatedBatch, index: usize) -> Option<usize> {
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
