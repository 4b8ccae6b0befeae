//! Decodes and encodes event bodies: protobuf bytes to and from [`EventBody`].
//!
//! Decoding checks everything that does not depend on other events: required fields,
//! known enum values, JSON, names, lengths. `domain::decide` decides whether the event
//! may be appended. A decoded value does not have fields that this version does not
//! know; therefore the log stores the received bytes, not the result of [`encode`].

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
use treering_domain::{
    EventBody, EventKind, Role, ToolCallRequested, ToolDefinition, event_kinds,
    limits::JSON_VALUES_MAX,
};

/// Converts a role to protobuf.
#[must_use]
pub fn role_to_pb(role: Role) -> pb::Role {
    message::role_pb(role)
}

/// Converts tool definitions to protobuf.
#[must_use]
pub fn tools_to_pb(tools: &[ToolDefinition]) -> Vec<pb::ToolDefinition> {
    pb::ToolsDefined::of(tools).tools
}

/// Converts a protobuf role; `None` if it is unspecified or unknown.
#[must_use]
pub fn role_from_pb(role: i32) -> Option<Role> {
    message::role(role).ok()
}

/// Makes a tool call that needs no approval and names no assistant message. `arguments`
/// are kept unchanged, even if they are not JSON, and hashed; an approval is bound to
/// that hash.
///
/// # Errors
/// [`JsonFault`] if the arguments are JSON that is nested too deeply.
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

/// Decodes a body. Byte fields (arguments, data, signatures) share memory with `bytes`.
///
/// # Errors
/// [`BodyFault`] names the kind, the field and what is wrong with it.
pub fn decode(kind: EventKind, bytes: &Bytes) -> Result<EventBody, BodyFault> {
    decode_kind(kind, bytes).map_err(|fault| fault.of(kind))
}

/// Decodes a body from a client: like [`decode`], and each JSON text has at most
/// [`JSON_VALUES_MAX`] values.
///
/// # Errors
/// As [`decode`].
pub(crate) fn decode_incoming(kind: EventKind, bytes: &Bytes) -> Result<EventBody, BodyFault> {
    let body = decode(kind, bytes)?;
    // A shorter body cannot have that many values.
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

        /// Encodes a body.
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

// The message of each kind has `into_body`, which checks it, and `of`, which makes it, in
// the file of its subject.
event_kinds!(codec);

fn write(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

#[cfg(test)]
mod tests;
