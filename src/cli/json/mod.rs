//! What commands print under `--json`: protobuf answers as JSON, one object a
//! line. JSON text that the store keeps is embedded as it is, byte for byte
//! but for line breaks between its tokens.

mod answers;
mod body;
mod context;
mod object;
mod tools;

pub use answers::{
    approval_name, branch, conversation, conversation_hits, fork, hit, pending_call, stats,
    status_name, summary, verify_fault, verify_outcome,
};
pub use body::{cancel_name, event, kind_name, role_name};
pub use context::{
    appended, built, compacted, compaction_plan, context_change, section_name, token_share,
};
pub use object::{Array, Object};
pub use tools::{call, file, knowledge, offered_tool, snapshot, suggested, variables};

use prost_types::Timestamp;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// A time as RFC 3339, in UTC, with as many digits as it has.
#[must_use]
pub fn rfc3339(time: &Timestamp) -> Option<String> {
    moment(time)?.format(&Rfc3339).ok()
}

/// A time to calculate with.
#[must_use]
pub fn moment(time: &Timestamp) -> Option<OffsetDateTime> {
    let nanos = i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos);
    OffsetDateTime::from_unix_timestamp_nanos(nanos).ok()
}

#[cfg(test)]
mod tests;
