//! Items as they are stored: a framework's event with the value as it came, its times in
//! attributes where the event's own do not say them. Of an item that was taken away the newest
//! event says so.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use serde_json::Value;

use crate::{
    codec::tags,
    domain::{ConversationId, Custom, EventBody, EventRef, NewEvent, Tags, TimestampMicros},
    log::Record,
};

/// Type name of the events that put an item.
pub const ITEM_TYPE: &str = "treering.item";
/// Type name of those that take one away.
pub const ITEM_DELETED_TYPE: &str = "treering.item.deleted";

/// When it was first put, in microseconds since 1970; not there: with this event.
const CREATED_AT: &str = "created_at";
/// When it was last put; not there: with this event.
const UPDATED_AT: &str = "updated_at";
/// How long it lives after this event, in milliseconds; not there: for ever.
const TTL_MS: &str = "ttl_ms";

/// What an event says of an item, but for its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub at: EventRef,
    pub created_at: TimestampMicros,
    pub updated_at: TimestampMicros,
    pub ttl: Option<Duration>,
    pub expires_at: Option<TimestampMicros>,
}

impl Kept {
    /// What is read of an event with headers only; none: it takes an item away, was erased, or
    /// is no item's.
    pub fn of(record: &Record, found_by: &Bytes) -> Option<Self> {
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

    /// False once its time is over.
    pub fn is_live(&self, now: TimestampMicros) -> bool {
        self.expires_at.is_none_or(|end| now < end)
    }
}

/// An event that puts an item.
pub(super) struct Putting<'a> {
    pub event_key: &'a str,
    pub value: Bytes,
    /// What a search finds it by.
    pub text: String,
    pub ttl: Option<Duration>,
    /// Of the item that is there.
    pub created_at: Option<TimestampMicros>,
    /// It is only to live longer.
    pub updated_at: Option<TimestampMicros>,
}

impl Putting<'_> {
    pub fn event(self, conversation: ConversationId) -> NewEvent {
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
            // The next value of an item is mostly like the one before.
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

/// About how large an item's event is, in bytes.
pub(super) fn size_of(event: &NewEvent) -> usize {
    match &event.body {
        EventBody::Custom(custom) => custom.data.len() + custom.text.len(),
        _ => 0,
    }
}

/// An event that takes an item away.
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

/// All texts of a value, a line each: what a search finds it by unless its author says
/// something else.
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
