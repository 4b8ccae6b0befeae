//! Where an exported session comes from. Each record of an export names the last event that it
//! stands for; an import of the session appends only what follows the exported records, to the
//! branch from which they were exported.
//!
//! Agents append to such a file, or copy its records to another one. Both keep the field.

use serde_json::{Value, json};
use uuid::Uuid;

use super::ImportedConversation;
use treering_domain::{ConversationId, EventBody, EventId, StoredEvent};

/// The field of a record that names its place.
pub(super) const FIELD: &str = "treering";

/// An event of a conversation in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) conversation: ConversationId,
    pub(super) event: EventId,
}

impl Place {
    pub(super) fn render(self) -> Value {
        json!({
            "conversation": self.conversation.0.to_string(),
            "event": self.event.0.to_string(),
        })
    }

    /// Returns the place in this field of a record; `None` if there is none.
    pub(super) fn of(record: &Value) -> Option<Self> {
        let place = record.get(FIELD)?;
        let id = |name: &str| Uuid::parse_str(place[name].as_str()?).ok();
        Some(Self {
            conversation: ConversationId(id("conversation")?),
            event: EventId(id("event")?),
        })
    }
}

/// Names the end of the history in the last record.
pub(super) fn end(mut records: Vec<Value>, end: Place) -> Vec<Value> {
    if let Some(last) = records.last_mut() {
        last[FIELD] = end.render();
    }
    records
}

/// The origin of a session that was exported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportOrigin {
    /// The conversation that was exported.
    pub conversation: ConversationId,
    /// For each imported event up to the last exported one, by index: the stored event that it
    /// stands for; `None` before the first exported one.
    events: Vec<Option<EventId>>,
}

impl ExportOrigin {
    /// Returns the origin for the places of the imported events; `None` if no event has a place.
    /// Events without a place between exported ones are notices of the agent about the copy, and
    /// get the place before them.
    pub(super) fn of(places: &[Option<Place>]) -> Option<Self> {
        let last = places.iter().rposition(Option::is_some)?;
        let conversation = places[last]?.conversation;
        let own = |place: &Option<Place>| place.filter(|place| place.conversation == conversation);
        let mut now = None;
        let events = places[..=last].iter().map(|place| {
            now = own(place).map(|place| place.event).or(now);
            now
        });
        Some(Self {
            conversation,
            events: events.collect(),
        })
    }

    /// Returns true if these are the events of the conversation that was exported. Another store
    /// may have a conversation with the same id.
    #[must_use]
    pub fn is_in(&self, stored: &[StoredEvent]) -> bool {
        let known: std::collections::HashSet<_> =
            stored.iter().map(|event| event.header.id).collect();
        let mut named = self.events.iter().flatten();
        named.all(|event| known.contains(event))
    }

    pub(super) fn events(&self) -> &[Option<EventId>] {
        &self.events
    }
}

impl ImportedConversation {
    /// Makes this the continuation of the conversation that it was exported from. `children` are
    /// its sub-contexts.
    pub fn continue_origin<'a>(&mut self, children: impl IntoIterator<Item = &'a mut Self>) {
        let Some(origin) = &self.origin else { return };
        let (conversation, copy) = (origin.conversation, self.conversation);
        self.conversation = conversation;
        for event in &mut self.events {
            event.conversation = conversation;
        }
        for event in children.into_iter().flat_map(|child| &mut child.events) {
            if let EventBody::ConversationCreated(created) = &mut event.body
                && let Some(parent) = &mut created.parent
                && parent.conversation == copy
            {
                parent.conversation = conversation;
            }
        }
    }
}
