//! Event bodies: protobuf bytes ↔ [`EventBody`].
//!
//! Decoding checks all that one event can say by itself: required fields, known
//! enum values, JSON, names, lengths. Whether the event may be appended is
//! `domain::decide`'s business. Fields that this version does not know are
//! dropped from the decoded value; that is why the log stores the bytes that
//! were received, and not what [`encode`] makes of them.

mod context;
mod conversation;
mod encoded;
mod fault;
mod incoming;
mod message;
mod tool;

use bytes::Bytes;
use prost::Message;

pub use encoded::{Encode, EncodeFault, EncodedBody};
pub use fault::{BodyFault, BodyProblem};
use fault::{Checked, FieldFault};
pub use tool::arguments;

use super::{json::JsonFault, pb};
use crate::domain::{
    EventBody, EventKind, Role, ToolCallRequested, ToolDefinition, event_kinds,
    limits::JSON_VALUES_MAX,
};

/// A role on the wire.
#[must_use]
pub fn role_to_pb(role: Role) -> pb::Role {
    message::role_pb(role)
}

/// Tools on the wire.
#[must_use]
pub fn tools_to_pb(tools: &[ToolDefinition]) -> Vec<pb::ToolDefinition> {
    pb::ToolsDefined::of(tools).tools
}

/// A role that came over the wire; none when it is not known here.
#[must_use]
pub fn role_from_pb(role: i32) -> Option<Role> {
    message::role(role).ok()
}

/// A request for a tool that needs no approval and came in the last assistant
/// message. `arguments` is kept as it is, JSON or not; its hash, which an approval
/// is bound to, is made here.
///
/// # Errors
/// [`JsonFault`] when the arguments are JSON that is nested too deep.
pub fn tool_call(
    call_id: impl Into<String>,
    tool: impl Into<String>,
    arguments: &str,
) -> Result<ToolCallRequested, JsonFault> {
    let arguments = Bytes::copy_from_slice(arguments.as_bytes());
    let (arguments, arguments_not_json) = tool::arguments(arguments)?;
    Ok(ToolCallRequested {
        call_id: call_id.into(),
        tool: tool.into(),
        arguments_hash: tool::arguments_hash(arguments.as_bytes()),
        arguments,
        arguments_not_json,
        ..ToolCallRequested::default()
    })
}

/// Reads a body. Byte fields (arguments, data, signatures) share `bytes`.
///
/// # Errors
/// [`BodyFault`] names the kind, the field and what was expected there.
pub fn decode(kind: EventKind, bytes: &Bytes) -> Result<EventBody, BodyFault> {
    decode_kind(kind, bytes).map_err(|fault| fault.of(kind))
}

/// Reads a body that comes from outside: as [`decode`], and its JSON has no more
/// values than what comes in may have.
///
/// # Errors
/// As [`decode`].
pub fn decode_incoming(kind: EventKind, bytes: &Bytes) -> Result<EventBody, BodyFault> {
    let body = decode(kind, bytes)?;
    // Shorter ones cannot have so many.
    if bytes.len() > JSON_VALUES_MAX {
        incoming::check_values(&body).map_err(|fault| fault.of(kind))?;
    }
    Ok(body)
}

fn read<M: Message + Default>(bytes: &Bytes) -> Checked<M> {
    M::decode(bytes.clone()).map_err(|_| FieldFault::here(BodyProblem::NotProtobuf))
}

macro_rules! codec {
    ($(
        $(#[$about:meta])*
        $number:literal $text:ident $name:ident
        $(($said:ident: $payload:ty))? $({ $($field:ident: $of:ty),* })?;
    )*) => {
        fn decode_kind(kind: EventKind, bytes: &Bytes) -> Checked<EventBody> {
            match kind {
                $(EventKind::$name => read::<pb::$name>(bytes)?.into_body(),)*
            }
        }

        /// Writes a body.
        #[must_use]
        pub fn encode(body: &EventBody) -> Bytes {
            match body {
                $(EventBody::$name $(($said))? $({ $($field),* })? => {
                    write(&pb::$name::of($($said)? $($($field),*)?))
                })*
            }
        }
    };
}

// Each kind's message has `into_body`, which checks it, and `of`, which makes it, in the
// file of its theme.
event_kinds!(codec);

fn write(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

#[cfg(test)]
mod tests;
