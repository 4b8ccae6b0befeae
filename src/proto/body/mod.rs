//! Decodes and encodes event bodies: protobuf bytes to and from [`EventBody`].
//!
//! Decoding checks everything that does not depend on other events: required fields, known enum
//! values, JSON, names, lengths. `domain::decide` decides whether the event may be appended. Most
//! of the code is generated from the options in `event.proto` (`build/bodies.rs`). Decoding drops
//! the fields that this version does not know. The log therefore stores the received bytes, not the
//! result of [`encode`].

mod conversation;
mod convert;
mod encoded;
mod fault;
mod generated;
mod message;
mod tool;

use bytes::Bytes;
use prost::Message;

use convert::Choice;
pub use convert::ERASED;
pub use encoded::{Encode, EncodeFault, EncodedBody};
pub use fault::{BodyFault, BodyProblem};
use fault::{FieldFault, FieldResult};
pub use tool::arguments;

use super::{json::JsonFault, pb};
use treering_domain::{
    BranchId, EventBody, EventKind, Role, ToolCallRequested, ToolDefinition,
    limits::JSON_VALUES_MAX,
};

/// Converts a role to protobuf.
#[must_use]
pub fn role_to_pb(role: Role) -> pb::Role {
    pb::Role::try_from(role.number()).unwrap_or_default()
}

/// Converts tool definitions to protobuf.
#[must_use]
pub fn tools_to_pb(tools: &[ToolDefinition]) -> Vec<pb::ToolDefinition> {
    tools.iter().map(pb::ToolDefinition::of).collect()
}

/// Converts a protobuf role; `None` if it is unspecified or unknown.
#[must_use]
pub fn role_from_pb(role: i32) -> Option<Role> {
    Role::read("role", role).ok()
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
    generated::decode_kind(kind, bytes, false).map_err(|fault| fault.of(kind))
}

/// Decodes a body from a client: like [`decode`], and each JSON text has at most
/// [`JSON_VALUES_MAX`] values.
///
/// # Errors
/// As [`decode`].
pub(crate) fn decode_incoming(kind: EventKind, bytes: &Bytes) -> Result<EventBody, BodyFault> {
    // A shorter body cannot have that many values.
    let is_long = bytes.len() > JSON_VALUES_MAX;
    generated::decode_kind(kind, bytes, is_long).map_err(|fault| fault.of(kind))
}

/// Encodes a body.
#[must_use]
pub fn encode(body: &EventBody) -> Bytes {
    generated::encode_kind(body, None)
}

/// Encodes the stub of a body: the part that stays after its content is erased.
///
/// A stub is a body of the same kind. It keeps the ids, numbers and enums that folds need, and no
/// text that somebody wrote. Everything that accepts a body therefore accepts a stub, and a branch
/// keeps the same events, calls, turns and forks. A required text becomes [`ERASED`], and a branch
/// is named by its id. `event.proto` says for each field what stays.
#[must_use]
pub fn stub(body: &EventBody, branch: BranchId) -> Bytes {
    generated::encode_kind(body, Some(branch))
}

/// The protobuf message of an event body.
trait Body: Message + Default {
    /// Checks the number of values in each JSON text.
    fn check_values(&self) -> FieldResult<()>;

    /// Erases the content of an event on this branch.
    fn erase(&mut self, branch: BranchId);

    fn into_body(self) -> FieldResult<EventBody>;
}

fn decode_as<M: Body>(bytes: &Bytes, counts_values: bool) -> FieldResult<EventBody> {
    let message = M::decode(bytes.clone());
    let message = message.map_err(|_| FieldFault::here(BodyProblem::NotProtobuf))?;
    let counted = match counts_values {
        true => message.check_values(),
        false => Ok(()),
    };
    let body = message.into_body()?;
    counted.map(|()| body)
}

fn written<M: Body>(mut message: M, erased_on: Option<BranchId>) -> Bytes {
    if let Some(branch) = erased_on {
        message.erase(branch);
    }
    message.encode_to_vec().into()
}

#[cfg(test)]
mod stub_tests;
#[cfg(test)]
mod tests;
