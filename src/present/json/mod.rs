//! Output of commands under `--json`: protobuf answers as JSON, one object a line. JSON text that
//! the store keeps is embedded byte for byte, except for line breaks between its tokens.
//!
//! Messages are written from their descriptors ([`of`], [`event`]); `views` defines which of their
//! fields are written, and how.

mod answers;
mod message;
mod object;
mod views;

pub use answers::{
    appended, compacted, context_change, conversation, file, hit, knowledge, offered_tool,
    pending_call, suggested, variables,
};
pub use message::{event, of};
pub use object::{Array, Object};

use prost_types::Timestamp;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::pb;
use treering_domain::EventKind;

/// Returns the name of a kind, or its number when this version does not know it.
#[must_use]
pub fn kind_name(kind: i32) -> String {
    let number = u16::try_from(kind).ok();
    let known = number.and_then(EventKind::from_number);
    known.map_or_else(|| format!("kind_{kind}"), |kind| kind.as_str().to_owned())
}

/// Returns the name that providers use for a role.
#[must_use]
pub fn role_name(role: i32) -> String {
    match pb::Role::try_from(role) {
        Ok(pb::Role::Unspecified) | Err(_) => "unknown".to_owned(),
        Ok(role) => word(role.as_str_name(), "ROLE_"),
    }
}

/// Returns why a call ended without a result; empty when it did not.
#[must_use]
pub fn cancel_name(reason: pb::CancelReason) -> String {
    match reason {
        pb::CancelReason::Unspecified => String::new(),
        reason => word(reason.as_str_name(), "CANCEL_REASON_"),
    }
}

/// Returns the state of a call's approval.
#[must_use]
pub fn approval_name(status: pb::ApprovalStatus) -> String {
    match status {
        pb::ApprovalStatus::Unspecified => String::new(),
        status => word(status.as_str_name(), "APPROVAL_STATUS_"),
    }
}

/// Returns the status of a call.
#[must_use]
pub(crate) fn status_name(status: pb::CallStatus) -> String {
    match status {
        pb::CallStatus::Unspecified => String::new(),
        status => word(status.as_str_name(), "CALL_STATUS_"),
    }
}

/// Returns the name of a section in snake case.
#[must_use]
pub fn section_name(section: pb::Section) -> String {
    word(section.as_str_name(), "SECTION_")
}

/// Returns `timed_out` for `CANCEL_REASON_TIMED_OUT`.
fn word(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix)
        .unwrap_or(name)
        .to_ascii_lowercase()
}

/// Formats a time as RFC 3339, in UTC, with as many fractional digits as it has.
#[must_use]
pub fn rfc3339(time: &Timestamp) -> Option<String> {
    moment(time)?.format(&Rfc3339).ok()
}

/// Converts a time for calculations.
#[must_use]
pub fn moment(time: &Timestamp) -> Option<OffsetDateTime> {
    let nanos = i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos);
    OffsetDateTime::from_unix_timestamp_nanos(nanos).ok()
}

#[cfg(test)]
mod tests;
