//! The turns of a window, and where it can be cut between them.

use std::sync::Arc;

use super::window::WindowEvent;
use treering_domain::{BranchState, ConversationId, EventBody, Role};

/// A turn: a user message up to and including the answer without calls.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// Index of its first event.
    pub first: usize,
    /// Index after its last event.
    pub end: usize,
    /// Index of its last event that can begin or end a turn (a message, or an event of a call or
    /// sub-context). A compaction that cuts after the turn keeps the events after this one
    /// (context, discoveries, system messages).
    pub last_act: usize,
    /// Whether it has ended. Only the last turn may be open.
    pub finished: bool,
    /// Whether a compaction of `conversation` may cut after `last_act`: the domain's rules accept
    /// that place as the end of a turn.
    pub can_be_cut_after: bool,
}

/// Returns the turns of a window, oldest first. Events before the first turn belong to none.
/// Applies the rules of [`BranchState::apply`].
pub fn turns(conversation: ConversationId, events: &[Arc<WindowEvent>]) -> Vec<Turn> {
    let mut state = BranchState::root();
    let mut turns: Vec<Turn> = Vec::new();
    for (index, event) in events.iter().enumerate() {
        // Only acts begin and end turns, so other events are not applied.
        if is_act(&event.body) {
            state.apply(event.at, &event.body);
        }
        if state.turn.open_since == Some(event.at) {
            if let Some(last) = turns.last_mut() {
                last.finished = true;
            }
            turns.push(Turn {
                first: index,
                end: index,
                last_act: index,
                finished: false,
                can_be_cut_after: false,
            });
        }
        let Some(turn) = turns.last_mut() else {
            continue;
        };
        turn.end = index + 1;
        if is_act(&event.body) {
            let next = events.get(index + 1).map(|event| &event.body);
            let called = matches!(next, Some(EventBody::ToolCallRequested(_)));
            let ended = state.at_turn_boundary() && !called;
            turn.last_act = index;
            turn.finished = ended;
            turn.can_be_cut_after = ended && event.at.conversation == conversation;
        }
    }
    turns
}

/// Whether an event can begin or end a turn: a message other than a system or developer message, or
/// an event of a call or sub-context.
fn is_act(body: &EventBody) -> bool {
    match body {
        EventBody::MessageAppended(message) => {
            matches!(message.role, Role::User | Role::Assistant | Role::Tool)
        }
        EventBody::ToolCallRequested(_)
        | EventBody::ApprovalDecided(_)
        | EventBody::ToolCallStarted(_)
        | EventBody::ToolResultRecorded(_)
        | EventBody::ToolCallCancelled(_)
        | EventBody::SubContextSpawned(_)
        | EventBody::SubContextReturned(_) => true,
        _ => false,
    }
}
