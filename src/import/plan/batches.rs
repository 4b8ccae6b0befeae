//! Splits events into batches for appends.

use treering_domain::{EventBody, NewEvent};
use treering_proto::body;

/// Splits events into batches that can be appended one after the other. An event that refers back
/// to the history of a branch (a fork or a compaction) begins a new batch, because that history
/// must be stored first. A batch exceeds the limits only if a single event does.
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
    use super::*;
    use treering_domain::{
        BranchForked, BranchId, BranchName, ConversationId, MessageAppended, Revision, Role,
    };

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

    // A batch is validated as a whole, so a fork from its own events could not be resolved; and no
    // batch may exceed the engine's limits.
    #[test]
    fn batches_split_before_forks_and_at_limits() {
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
}
