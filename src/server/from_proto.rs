//! Converts request fields to values of the engine. Only checks their form, without reading the
//! store. Appends are in `append_request`.

use std::fmt;

use bytes::Bytes;
use prost_types::Timestamp;

use crate::{bounds::KNOWN_KEYS_MAX, cursor::LogCursor, lookup};
use treering_domain::{
    BranchName, EventKind, ExpectedRevision, JsonText, NameError, Revision, TimestampMicros,
    limits::{IDEMPOTENCY_KEY_BYTES_MAX, JSON_VALUES_MAX, SHORT_TEXT_BYTES_MAX},
};
use treering_engine::{EventSource, ListOrder, ListPlace, ReadQuery, StartAfter};
use treering_proto::{body, envelope, json, pb};

/// An invalid field of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InvalidField {
    /// The index of its event in the batch, from 0.
    pub(crate) event_index: Option<usize>,
    /// The field, as a path: `events[3].causation_id`.
    pub(crate) field: String,
    /// What is wrong. Never quotes the field's value.
    pub(crate) message: String,
}

impl InvalidField {
    pub(crate) fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            event_index: None,
            field: field.into(),
            message: message.into(),
        }
    }

    /// Names the event of the batch that the field belongs to.
    pub(crate) fn in_event(mut self, index: usize) -> Self {
        self.event_index = Some(index);
        self
    }
}

impl fmt::Display for InvalidField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// Checks that a text is not empty.
pub(super) fn required(field: &str, text: &str) -> Result<(), InvalidField> {
    if text.is_empty() {
        return Err(InvalidField::new(field, "is required"));
    }
    Ok(())
}

/// Checks the length limit of ids and names.
pub(super) fn check_short(field: &str, text: &str) -> Result<(), InvalidField> {
    at_most(field, text, SHORT_TEXT_BYTES_MAX)
}

/// Checks the number of keys in a request.
pub(super) fn at_most_keys(field: &str, keys: usize) -> Result<(), InvalidField> {
    if keys > KNOWN_KEYS_MAX {
        let message = format!("has {keys} keys; the maximum is {KNOWN_KEYS_MAX}");
        return Err(InvalidField::new(field, message));
    }
    Ok(())
}

fn at_most(field: &str, text: &str, max: usize) -> Result<(), InvalidField> {
    if text.len() > max {
        let bytes = text.len();
        let message = format!("has {bytes} bytes; the maximum is {max}");
        return Err(InvalidField::new(field, message));
    }
    Ok(())
}

/// Parses a short text; empty means none.
pub(super) fn optional(field: &str, text: String) -> Result<Option<String>, InvalidField> {
    check_short(field, &text)?;
    Ok((!text.is_empty()).then_some(text))
}

/// Parses a branch name; empty means the active branch.
pub(super) fn branch(field: &str, name: &str) -> Result<Option<BranchName>, InvalidField> {
    envelope::branch_from_pb(name).map_err(|error| bad_name(field, &error))
}

pub(super) fn bad_name(field: &str, error: &NameError) -> InvalidField {
    InvalidField::new(field, error.to_string())
}

/// Parses a revision; 0 means none.
pub(super) fn revision(number: u64) -> Option<Revision> {
    (number != 0).then_some(Revision(number))
}

/// Parses an idempotency key; empty means none.
pub(super) fn idempotency_key(key: String) -> Result<Option<String>, InvalidField> {
    at_most("idempotency_key", &key, IDEMPOTENCY_KEY_BYTES_MAX)?;
    Ok((!key.is_empty()).then_some(key))
}

/// Parses an expected revision; absent or empty means any.
pub(super) fn expected(expected: Option<pb::ExpectedRevision>) -> ExpectedRevision {
    use pb::expected_revision::Expected;
    match expected.and_then(|expected| expected.expected) {
        None | Some(Expected::Any(_)) => ExpectedRevision::Any,
        Some(Expected::NoStream(_)) => ExpectedRevision::NoStream,
        Some(Expected::Revision(revision)) => ExpectedRevision::Exact(Revision(revision)),
    }
}

/// Checks the number of entries in a request.
pub(super) fn at_most_entries(field: &str, entries: usize, max: usize) -> Result<(), InvalidField> {
    if entries > max {
        let message = format!("has {entries} entries; the maximum is {max}");
        return Err(InvalidField::new(field, message));
    }
    Ok(())
}

/// Parses the kinds of a filter.
pub(super) fn kinds(numbers: &[i32]) -> Result<Vec<EventKind>, InvalidField> {
    let one = |(index, number): (usize, &i32)| {
        let kind = u16::try_from(*number).ok();
        kind.and_then(EventKind::from_number).ok_or_else(|| {
            let message = format!("{number} is not a known event kind");
            InvalidField::new(format!("kinds[{index}]"), message)
        })
    };
    numbers.iter().enumerate().map(one).collect()
}

/// Returns a page size: `default` for 0, and at most `max`.
pub(super) fn page(asked: u32, default: usize, max: usize) -> usize {
    let asked = usize::try_from(asked).unwrap_or(usize::MAX);
    let chosen = if asked == 0 { default } else { asked };
    chosen.min(max)
}

/// Parses an optional time.
pub(super) fn time(
    field: &str,
    time: Option<&Timestamp>,
) -> Result<Option<TimestampMicros>, InvalidField> {
    let message = "must be between the years 1 and 9999";
    let read =
        |time| envelope::timestamp_from_pb(time).ok_or_else(|| InvalidField::new(field, message));
    time.map(read).transpose()
}

/// Checks JSON text, which is kept byte for byte.
pub(super) fn json(field: &str, bytes: Bytes) -> Result<JsonText, InvalidField> {
    json::check_incoming(bytes).map_err(|fault| InvalidField::new(field, fault.to_string()))
}

/// Checks the arguments of a call, which need not be JSON.
pub(super) fn arguments(field: &str, bytes: Bytes) -> Result<JsonText, InvalidField> {
    let checked = json::check_values(&bytes, JSON_VALUES_MAX).and_then(|()| body::arguments(bytes));
    match checked {
        Ok((arguments, _)) => Ok(arguments),
        Err(fault) => Err(InvalidField::new(field, fault.to_string())),
    }
}

/// Parses a page token made by `to_proto::page_token`; empty means the first page.
pub(super) fn page_token(token: &str) -> Result<Option<ListPlace>, InvalidField> {
    if token.is_empty() {
        return Ok(None);
    }
    let message = "is not a token of this server: restart the list without a token";
    let canonical = |place: &ListPlace| super::to_proto::page_token(Some(*place)) == token;
    let (offset, time) = token.split_once('@').unwrap_or((token, "0"));
    let offset = u64::from_str_radix(offset, 16).ok();
    let place = offset
        .zip(time.parse().ok())
        .map(|(first_offset, time)| ListPlace {
            happened_to: TimestampMicros(time),
            first_offset,
        });
    place
        .filter(canonical)
        .map(Some)
        .ok_or_else(|| InvalidField::new("page_token", message))
}

/// Parses the order of a list.
pub(super) fn list_order(number: i32) -> Result<ListOrder, InvalidField> {
    match pb::ListOrder::try_from(number) {
        Ok(pb::ListOrder::Unspecified) => Ok(ListOrder::Recorded),
        Ok(pb::ListOrder::Happened) => Ok(ListOrder::Happened),
        Err(_) => Err(InvalidField::new("order", "is not a known order")),
    }
}

pub(super) fn no_source() -> InvalidField {
    let message = "is not set: choose branch, conversation or log";
    InvalidField::new("source", message)
}

/// Sets the bounds of a read. `from_revision` (or `from_offset`) is the first event returned, so in
/// a backward read it is the upper bound.
pub(super) fn read_query(
    request: &pb::ReadRequest,
    mut query: ReadQuery,
) -> Result<ReadQuery, InvalidField> {
    let log = query.source == EventSource::Log;
    let (first, last) = if log {
        if request.from_revision != 0 || request.to_revision != 0 {
            let message = "is for conversations: use from_offset to read the log";
            return Err(InvalidField::new("from_revision", message));
        }
        (request.from_offset, 0)
    } else {
        if request.from_offset != 0 {
            let message = "is for the log: use from_revision to read a branch or conversation";
            return Err(InvalidField::new("from_offset", message));
        }
        (request.from_revision, request.to_revision)
    };
    let (low, high) = if request.backward {
        (last, first)
    } else {
        (first, last)
    };
    query.begins_in = match request.from_conversation.as_str() {
        "" => None,
        _ if !matches!(query.source, EventSource::Branch { .. }) => {
            let message = "is for branches: omit it to read a conversation or the log";
            return Err(InvalidField::new("from_conversation", message));
        }
        _ if first == 0 => {
            let message = "requires from_revision";
            return Err(InvalidField::new("from_conversation", message));
        }
        id => Some(
            id.parse()
                .map_err(|_| InvalidField::new("from_conversation", "must be a UUID"))?,
        ),
    };
    query.from = low;
    query.to = unbounded(high);
    query.backward = request.backward;
    query.kinds = kinds(&request.kinds)?;
    query.limit = unbounded(request.limit);
    query.headers_only = request.headers_only;
    if let Some(filter) = &request.filter {
        query.filter = lookup::filter(filter)?;
    }
    if let Some(stop) = &request.go_on_at {
        query.go_on_at = lookup::go_on_at(stop, log)?;
    }
    Ok(query)
}

fn unbounded(number: u64) -> u64 {
    if number == 0 { u64::MAX } else { number }
}

/// Returns where a subscription starts.
pub(super) fn start(request: &pb::SubscribeRequest) -> Result<StartAfter, InvalidField> {
    let log = matches!(request.source, Some(pb::subscribe_request::Source::Log(_)));
    let has_cursor = !request.after_cursor.is_empty();
    let placed = request.after_revision != 0 || request.after_offset.is_some() || has_cursor;
    if request.from_now {
        if placed {
            let message = "cannot be combined with a position to start at";
            return Err(InvalidField::new("from_now", message));
        }
        return Ok(StartAfter::Now);
    }
    if log && request.after_revision != 0 {
        let message = "is for conversations: use after_offset to follow the log";
        return Err(InvalidField::new("after_revision", message));
    }
    for (is_set, field) in [
        (request.after_offset.is_some(), "after_offset"),
        (has_cursor, "after_cursor"),
    ] {
        if !log && is_set {
            let message = "is for the log: use after_revision to follow a branch or conversation";
            return Err(InvalidField::new(field, message));
        }
    }
    if has_cursor && request.after_offset.is_some() {
        let message = "cannot be combined with after_offset";
        return Err(InvalidField::new("after_cursor", message));
    }
    let after = if has_cursor {
        let cursor = LogCursor::decode(&request.after_cursor, 1)?;
        cursor.0.values().copied().next().unwrap_or_default()
    } else if log {
        request.after_offset.unwrap_or_default()
    } else {
        request.after_revision
    };
    Ok(StartAfter::Place(after))
}

#[cfg(test)]
#[path = "from_proto_tests.rs"]
mod tests;
