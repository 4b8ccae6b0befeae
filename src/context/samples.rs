//! Windows for tests.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;

use super::{
    cancellation::CancellationToken,
    heuristics::PlainHeuristics,
    window::{WindowEvent, WindowInput},
};
use treering_domain::*;

/// An event in a window.
#[derive(Clone, Copy, Debug)]
pub enum SampleEvent<'a> {
    User(&'a str),
    Assistant(&'a str),
    Developer(&'a str),
    /// Call id, tool, arguments.
    Call(&'a str, &'a str, &'a str),
    /// Call id, text.
    Result(&'a str, &'a str),
    /// Call id, error message.
    Failure(&'a str, &'a str),
    /// An event outside the dialogue.
    Noted,
}

/// The first events of a conversation.
pub fn window(spoken: &[SampleEvent]) -> (ConversationId, Vec<Arc<WindowEvent>>) {
    let id = ConversationId(uuid::Uuid::from_u128(7));
    let events = spoken.iter().enumerate().map(|(index, spoken)| {
        Arc::new(WindowEvent {
            at: EventRef {
                conversation: id,
                revision: Revision(index as u64 + 1),
            },
            offset: index as u64 + 1,
            recorded_at: TimestampMicros(0),
            body: body(*spoken),
        })
    });
    (id, events.collect())
}

/// The window of a conversation with exactly these events.
#[cfg(test)]
pub(crate) fn window_input(spoken: &[SampleEvent]) -> WindowInput {
    let (conversation, events) = window(spoken);
    window_of(conversation, events)
}

/// The window of a conversation with exactly these events.
pub fn window_of(conversation: ConversationId, events: Vec<Arc<WindowEvent>>) -> WindowInput {
    let mut branch = BranchState::root();
    events
        .iter()
        .for_each(|event| branch.apply(event.at, &event.body));
    let info = ConversationInfo::new(&ConversationCreated::default(), conversation);
    WindowInput {
        conversation,
        info: Arc::new(info),
        revision: branch.head,
        branch: Arc::new(branch),
        events,
        folded: None,
        earlier_tools: Arc::default(),
        referred: BTreeMap::new(),
        long_term: Vec::new(),
        names_in_results: Vec::new(),
        warnings: Vec::new(),
        knowledge: None,
        heuristics: Arc::new(PlainHeuristics),
        cancellation: CancellationToken::default(),
    }
}

fn body(spoken: SampleEvent) -> EventBody {
    let say = |role, text: &str| EventBody::MessageAppended(MessageAppended::text(role, text));
    match spoken {
        SampleEvent::User(text) => say(Role::User, text),
        SampleEvent::Assistant(text) => say(Role::Assistant, text),
        SampleEvent::Developer(text) => say(Role::Developer, text),
        SampleEvent::Call(call_id, tool, arguments) => {
            EventBody::ToolCallRequested(ToolCallRequested {
                call_id: call_id.to_owned(),
                tool: tool.to_owned(),
                arguments: JsonText::from_checked(Bytes::copy_from_slice(arguments.as_bytes())),
                arguments_hash: ContentHash(blake3::hash(arguments.as_bytes()).into()),
                message_revision: None,
                needs_approval: false,
                ..ToolCallRequested::default()
            })
        }
        SampleEvent::Result(call_id, text) => {
            EventBody::ToolResultRecorded(ToolResultRecorded::text(call_id, text))
        }
        SampleEvent::Failure(call_id, text) => {
            EventBody::ToolResultRecorded(ToolResultRecorded::failure(call_id, text))
        }
        SampleEvent::Noted => EventBody::ToolsDiscovered {
            names: vec!["get_page".to_owned()],
        },
    }
}
