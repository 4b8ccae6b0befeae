//! What a repeated import still has to append.

use std::collections::HashMap;

use super::ImportedConversation;
use crate::{
    codec::body,
    domain::{BranchId, BranchName, EventBody, NewEvent, Revision, StoredEvent},
};

/// What to do about a conversation that may be known already.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// All of it is there.
    Nothing,
    /// These are new: the source has grown since the last import.
    Append(Vec<NewEvent>),
    /// What is there is not what the source says.
    Conflict {
        /// The first revision that differs.
        at_revision: Revision,
    },
}

/// Compares what is stored (in revision order, all branches) with what was
/// imported. Events that were appended after a complete import do not matter.
#[must_use]
pub fn plan(existing: &[StoredEvent], imported: &ImportedConversation) -> Plan {
    let mut branches: HashMap<Option<&BranchName>, BranchId> = HashMap::new();
    for (index, new) in imported.events.iter().enumerate() {
        let revision = Revision(index as u64 + 1);
        if let EventBody::BranchForked(_) = new.body {
            branches.insert(new.branch.as_ref(), BranchId(revision.0));
        }
        let Some(stored) = existing.get(index) else {
            return Plan::Append(imported.events[index..].to_vec());
        };
        let branch = branches
            .get(&new.branch.as_ref())
            .copied()
            .unwrap_or(BranchId::MAIN);
        let header = &stored.header;
        let same = header.revision == revision
            && header.branch == branch
            && header.kind == new.body.kind().number()
            && stored.body == body::encode(&new.body);
        if !same {
            return Plan::Conflict {
                at_revision: revision,
            };
        }
    }
    Plan::Nothing
}

/// Cuts events into batches that can be appended one after the other: an event
/// that refers to the past of a branch (a fork or a compaction not at its head)
/// needs that past to be stored, and no batch may be too large.
#[must_use]
pub fn batches(events: Vec<NewEvent>, events_max: usize, bytes_max: usize) -> Vec<Vec<NewEvent>> {
    let mut batches: Vec<Vec<NewEvent>> = Vec::new();
    let mut current: Vec<NewEvent> = Vec::new();
    let mut bytes = 0;
    for event in events {
        let size = body::encode(&event.body).len();
        let refers_back = matches!(
            event.body,
            EventBody::BranchForked(_) | EventBody::Compacted(_)
        );
        let full = current.len() >= events_max || bytes + size > bytes_max;
        if !current.is_empty() && (refers_back || full) {
            batches.push(std::mem::take(&mut current));
            bytes = 0;
        }
        bytes += size;
        current.push(event);
    }
    if !current.is_empty() {
        batches.push(current);
    }
    batches
}
