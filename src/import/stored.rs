//! Test support: imported events as an engine would store them, and an independent check that an
//! engine would accept them.

use std::collections::HashMap;

use super::ImportedConversation;
use treering_domain::*;
use treering_proto::body;

/// Assigns revisions, positions and branch ids, and encodes every body.
pub(super) fn stored(imported: &ImportedConversation) -> Vec<StoredEvent> {
    let mut branches: HashMap<BranchName, BranchId> = HashMap::new();
    let mut events = Vec::new();
    for (index, new) in imported.events.iter().enumerate() {
        let revision = index as u64 + 1;
        let name = new.branch.clone().unwrap_or_default();
        if let EventBody::BranchForked(forked) = &new.body {
            assert_eq!(forked.name, name);
            assert!(branches.insert(name.clone(), BranchId(revision)).is_none());
        }
        let branch = branches.get(&name).copied().unwrap_or_default();
        let bytes = body::encode(&new.body);
        assert_eq!(
            body::decode(new.body.kind(), &bytes).as_ref(),
            Ok(&new.body)
        );
        events.push(StoredEvent {
            header: EventHeader {
                id: EventId(uuid::Uuid::from_u128(u128::from(revision))),
                namespace: Namespace::default(),
                conversation: new.conversation,
                branch,
                revision: Revision(revision),
                kind: new.body.kind().number(),
                recorded_at: TimestampMicros(0),
                occurred_at: new.occurred_at,
                actor: new.actor.clone(),
                causation_id: new.causation_id,
                correlation_id: new.correlation_id.clone(),
            },
            position: Position::local(revision),
            chain_hash: Default::default(),
            body: bytes,
            erased: false,
        });
    }
    events
}

/// Returns the events, after erasing those that `goes` selects by index.
pub(super) fn erased(events: &[StoredEvent], goes: impl Fn(usize) -> bool) -> Vec<StoredEvent> {
    let mut events = events.to_vec();
    for (index, event) in events.iter_mut().enumerate() {
        if goes(index) {
            let whole = body::decode(event.header.kind().unwrap(), &event.body).unwrap();
            event.body = body::stub(&whole, event.header.branch);
            event.erased = true;
        }
    }
    events
}

/// Checks the rules of appends by replaying each branch's history for each event: slow, but
/// independent of the importers' code.
pub(super) fn assert_legal(events: &[StoredEvent]) {
    let bodies: Vec<EventBody> = events
        .iter()
        .map(|event| body::decode(event.header.kind().unwrap(), &event.body).unwrap())
        .collect();
    let mut walk = Walk {
        parents: HashMap::new(),
        events: events.iter().zip(&bodies).collect(),
    };
    for (at, (event, body)) in events.iter().zip(&bodies).enumerate() {
        let branch = event.header.branch;
        assert_eq!(at == 0, matches!(body, EventBody::ConversationCreated(_)));
        if let EventBody::BranchForked(forked) = body {
            let parent = walk.history(at, forked.parent);
            assert!(parent.iter().any(|(r, _)| *r == forked.fork_revision));
            let fork = (forked.parent, forked.fork_revision);
            walk.parents.insert(branch, fork);
        } else {
            assert_allowed(body, || walk.history(at, branch));
        }
    }
}

type History<'a> = Vec<(Revision, &'a EventBody)>;

struct Walk<'a> {
    parents: HashMap<BranchId, (BranchId, Revision)>,
    events: Vec<(&'a StoredEvent, &'a EventBody)>,
}

impl<'a> Walk<'a> {
    /// Returns the history of a branch before the event with this index.
    fn history(&self, before: usize, branch: BranchId) -> History<'a> {
        let mut bound = Revision(u64::MAX);
        let mut bounds = HashMap::from([(branch, bound)]);
        let mut child = branch;
        while let Some((parent, fork)) = self.parents.get(&child) {
            bound = bound.min(*fork);
            bounds.insert(*parent, bound);
            child = *parent;
        }
        let inside = self.events[..before].iter().filter(|(event, _)| {
            let bound = bounds.get(&event.header.branch);
            bound.is_some_and(|bound| event.header.revision <= *bound)
        });
        inside.map(|(e, body)| (e.header.revision, *body)).collect()
    }
}

fn assert_allowed<'a>(body: &EventBody, history: impl Fn() -> History<'a>) {
    match body {
        EventBody::ToolCallRequested(call) => {
            let history = history();
            assert!(!open_calls(&history).contains(&call.call_id.as_str()));
            let last_assistant = history.iter().rev().find(|(_, body)| {
                matches!(body, EventBody::MessageAppended(m) if m.role == Role::Assistant)
            });
            assert_eq!(call.message_revision, last_assistant.map(|(r, _)| *r));
        }
        EventBody::ToolResultRecorded(ToolResultRecorded { call_id, .. })
        | EventBody::ToolCallCancelled(ToolCallCancelled { call_id, .. }) => {
            assert!(open_calls(&history()).contains(&call_id.as_str()));
        }
        EventBody::Compacted(compacted) => assert_cut(&history(), compacted.cut_revision),
        _ => {}
    }
}

fn assert_cut(history: &History<'_>, cut: Revision) {
    let last_cut = history.iter().rev().find_map(|(_, body)| match body {
        EventBody::Compacted(compacted) => Some(compacted.cut_revision),
        _ => None,
    });
    assert!(last_cut.is_none_or(|last| last <= cut));
    let upto = history.iter().position(|(r, _)| *r == cut).unwrap();
    let next = history.get(upto + 1).map(|(_, body)| *body);
    assert!(!matches!(next, Some(EventBody::ToolCallRequested(_))));
    let last = history[..=upto]
        .iter()
        .rev()
        .find_map(|(_, body)| match body {
            EventBody::MessageAppended(m) if matches!(m.role, Role::User | Role::Assistant) => {
                Some(m.role)
            }
            EventBody::ToolCallRequested(_) => Some(Role::User),
            _ => None,
        });
    // `None`: no message of the user or the model, and no call, precedes the cut.
    assert_ne!(last, Some(Role::User));
}

fn open_calls<'a>(history: &[(Revision, &'a EventBody)]) -> Vec<&'a str> {
    let mut open: Vec<&str> = Vec::new();
    for (_, body) in history {
        match body {
            EventBody::ToolCallRequested(call) => open.push(&call.call_id),
            EventBody::ToolResultRecorded(ToolResultRecorded { call_id, .. })
            | EventBody::ToolCallCancelled(ToolCallCancelled { call_id, .. }) => {
                open.retain(|id| id != call_id);
            }
            _ => {}
        }
    }
    open
}
