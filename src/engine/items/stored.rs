//! The stored form of items: a custom event with the value as received, and attributes for times
//! that differ from the event's own. The newest event of a deleted item records the deletion.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use serde_json::Value;

use treering_domain::{
    ConversationId, Custom, EventBody, EventRef, NewEvent, Tags, TimestampMicros,
};
use treering_log::Record;
use treering_proto::tags;

/// Type name of events that put an item.
pub(crate) const ITEM_TYPE: &str = "treering.item";
/// Type name of events that delete an item.
pub(crate) const ITEM_DELETED_TYPE: &str = "treering.item.deleted";

/// When the item was first put, in microseconds since 1970. Absent if this event put it first.
const CREATED_AT: &str = "created_at";
/// When the item was last put. Absent if this event put it.
const UPDATED_AT: &str = "updated_at";
/// Time to live from this event on, in milliseconds; absent: no expiry.
const TTL_MS: &str = "ttl_ms";

/// An item's metadata, from its event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ItemMetadata {
    pub(crate) at: EventRef,
    pub(crate) created_at: TimestampMicros,
    pub(crate) updated_at: TimestampMicros,
    pub(crate) ttl: Option<Duration>,
    pub(crate) expires_at: Option<TimestampMicros>,
}

impl ItemMetadata {
    /// Decodes the metadata from a header and tags; `None` if the event deletes an item, was
    /// erased, or is not an item's.
    pub(crate) fn of(record: &Record, found_by: &Bytes) -> Option<Self> {
        let (tags, body) = tags::split(found_by);
        let header = &record.header;
        if record.is_erased() || tags::type_name(header.kind, &body) != ITEM_TYPE {
            return None;
        }
        let number = |name: &str| tags.attributes.get(name)?.parse::<i64>().ok();
        let ttl = number(TTL_MS).and_then(|ms| u64::try_from(ms).ok());
        let expires_at = ttl.map(|ms| {
            let micros = i64::try_from(ms).unwrap_or(i64::MAX).saturating_mul(1_000);
            TimestampMicros(header.recorded_at.0.saturating_add(micros))
        });
        let time = |name| number(name).map_or(header.recorded_at, TimestampMicros);
        Some(Self {
            at: EventRef {
                conversation: header.conversation,
                revision: header.revision,
            },
            created_at: time(CREATED_AT),
            updated_at: time(UPDATED_AT),
            ttl: ttl.map(Duration::from_millis),
            expires_at,
        })
    }

    /// Returns false once the item has expired.
    pub(crate) fn is_live(&self, now: TimestampMicros) -> bool {
        self.expires_at.is_none_or(|end| now < end)
    }
}

/// The content of an event that puts an item.
pub(super) struct ItemContent<'a> {
    pub(crate) event_key: &'a str,
    pub(crate) value: Bytes,
    /// The text that searches match.
    pub(crate) text: String,
    pub(crate) ttl: Option<Duration>,
    /// The creation time of the existing item.
    pub(crate) created_at: Option<TimestampMicros>,
    /// Set when the event only refreshes the item: the time of the last put.
    pub(crate) updated_at: Option<TimestampMicros>,
}

impl ItemContent<'_> {
    pub(crate) fn event(self, conversation: ConversationId) -> NewEvent {
        let mut attributes = BTreeMap::new();
        let mut note = |name: &str, number: Option<i64>| {
            if let Some(number) = number {
                attributes.insert(name.to_owned(), number.to_string());
            }
        };
        note(CREATED_AT, self.created_at.map(|at| at.0));
        note(UPDATED_AT, self.updated_at.map(|at| at.0));
        let ttl_ms = |ttl: Duration| i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
        note(TTL_MS, self.ttl.map(ttl_ms));
        let custom = Custom {
            type_name: ITEM_TYPE.to_owned(),
            content_type: "application/json".to_owned(),
            data: self.value,
            text: self.text,
            // An item's next value is usually similar to the previous one.
            delta_of: self.event_key.to_owned(),
        };
        let mut event = NewEvent::new(conversation, EventBody::Custom(custom));
        event.tags = Tags {
            key: self.event_key.to_owned(),
            attributes,
        };
        event
    }
}

/// Returns the approximate size of an item's event, in bytes.
pub(super) fn size_of(event: &NewEvent) -> usize {
    match &event.body {
        EventBody::Custom(custom) => custom.data.len() + custom.text.len(),
        _ => 0,
    }
}

/// Creates an event that deletes an item.
pub(super) fn deleting(conversation: ConversationId, event_key: &str) -> NewEvent {
    let custom = Custom {
        type_name: ITEM_DELETED_TYPE.to_owned(),
        content_type: String::new(),
        data: Bytes::new(),
        text: String::new(),
        delta_of: String::new(),
    };
    NewEvent::new(conversation, EventBody::Custom(custom)).with_key(event_key)
}

/// Returns all texts in a value, one per line: the default searchable text.
pub(super) fn texts_of(value: &Value) -> String {
    let mut texts = Vec::new();
    collect(value, &mut texts);
    texts.join("\n")
}

fn collect<'a>(value: &'a Value, texts: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => texts.push(text),
        Value::Array(values) => values.iter().for_each(|value| collect(value, texts)),
        Value::Object(fields) => fields.values().for_each(|value| collect(value, texts)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
