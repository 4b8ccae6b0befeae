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

#[cfg(test)]
mod tests {
    use crate::{
        domain::{BranchForked, BranchId, ConversationId, MessageAppended, Role},
        importer::stored::stored,
    };

    use super::*;

    fn said(text: &str) -> NewEvent {
        let message = MessageAppended::text(Role::User, text);
        NewEvent::new(
            ConversationId::default(),
            EventBody::MessageAppended(message),
        )
    }

    fn forked() -> NewEvent {
        let forked = BranchForked {
            name: BranchName::default(),
            parent: BranchId::MAIN,
            fork_revision: Revision(1),
            system_prompt: String::new(),
        };
        NewEvent::new(ConversationId::default(), EventBody::BranchForked(forked))
    }

    // A batch is decided as a whole, so a fork of its own past could not be
    // looked up; and no batch may be over the engine's bounds.
    #[test]
    fn batches_are_cut_where_they_must_be() {
        let events = vec![said("a"), said("b"), said("c"), forked(), said("d")];
        let sizes = |events_max, bytes_max| {
            let batches = batches(events.clone(), events_max, bytes_max);
            assert_eq!(batches.concat(), events);
            batches.iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(sizes(100, 100_000), [3, 2]);
        assert_eq!(sizes(2, 100_000), [2, 1, 2]);
        assert_eq!(sizes(100, 1), [1, 1, 1, 1, 1]);
        assert!(batches(Vec::new(), 1, 1).is_empty());
    }

    // The same text on another branch is another history.
    #[test]
    fn branches_are_compared_too() {
        let line = |parent: usize| {
            let x = format!(
                r#"{{"id":"a","source":"s","messages":[{{"role":"user","content":"1","x":{{"parent":null}}}},{{"role":"user","content":"2","x":{{"parent":0}}}},{{"role":"user","content":"3","x":{{"parent":0}}}},{{"role":"user","content":"4","x":{{"parent":{parent}}}}}]}}"#
            );
            crate::importer::openai_chat::import_line(x.as_bytes()).unwrap()
        };
        let mut elsewhere = stored(&line(2));
        assert_eq!(plan(&elsewhere, &line(2)), Plan::Nothing);
        elsewhere[5].header.branch = BranchId::MAIN;
        let at_revision = Revision(6);
        assert_eq!(plan(&elsewhere, &line(2)), Plan::Conflict { at_revision });
    }
}
