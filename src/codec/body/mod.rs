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

use super::{
    json::{self, JsonFault},
    pb,
};
use crate::domain::{EventBody, EventKind, Role, ToolCallRequested, limits::JSON_VALUES_MAX};

/// A role on the wire.
#[must_use]
pub fn role_to_pb(role: Role) -> pb::Role {
    message::role_pb(role)
}

/// A role that came over the wire; none when it is not known here.
#[must_use]
pub fn role_from_pb(role: i32) -> Option<Role> {
    message::role(role).ok()
}

/// A request for a tool that needs no approval and came in the last assistant
/// message. `arguments` is JSON text, kept as it is; its hash, which an approval
/// is bound to, is made here.
///
/// # Errors
/// [`JsonFault`] when the arguments are not JSON.
pub fn tool_call(
    call_id: impl Into<String>,
    tool: impl Into<String>,
    arguments: &str,
) -> Result<ToolCallRequested, JsonFault> {
    let arguments = json::check(arguments.as_bytes())?;
    Ok(ToolCallRequested {
        call_id: call_id.into(),
        tool: tool.into(),
        arguments_hash: tool::arguments_hash(arguments.as_bytes()),
        arguments,
        message_revision: None,
        needs_approval: false,
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

fn decode_kind(kind: EventKind, bytes: &Bytes) -> Checked<EventBody> {
    use EventBody as B;
    Ok(match kind {
        EventKind::ConversationCreated => {
            B::ConversationCreated(conversation::created(read(bytes)?)?)
        }
        EventKind::ConfigChanged => B::ConfigChanged(conversation::config_changed(read(bytes)?)?),
        EventKind::BranchForked => B::BranchForked(conversation::forked(read(bytes)?)?),
        EventKind::BranchActivated => {
            let pb::BranchActivated {} = read(bytes)?;
            B::BranchActivated
        }
        EventKind::BranchRenamed => B::BranchRenamed(conversation::renamed(&read(bytes)?)?),
        EventKind::BranchArchived => {
            let pb::BranchArchived { reason } = read(bytes)?;
            B::BranchArchived { reason }
        }
        EventKind::SystemPromptSet => {
            let pb::SystemPromptSet { id, content } = read(bytes)?;
            B::SystemPromptSet(conversation::prompt(id, content)?)
        }
        EventKind::UserPromptSet => {
            let pb::UserPromptSet { id, content } = read(bytes)?;
            B::UserPromptSet(conversation::prompt(id, content)?)
        }
        EventKind::MessageAppended => B::MessageAppended(message::message(read(bytes)?)?),
        EventKind::ToolCallRequested => B::ToolCallRequested(tool::requested(read(bytes)?)?),
        EventKind::ApprovalDecided => B::ApprovalDecided(tool::decided(read(bytes)?)?),
        EventKind::ToolCallStarted => B::ToolCallStarted(tool::started(read(bytes)?)?),
        EventKind::ToolResultRecorded => B::ToolResultRecorded(tool::result(read(bytes)?)?),
        EventKind::ToolCallCancelled => B::ToolCallCancelled(tool::cancelled(read(bytes)?)?),
        EventKind::ToolSnapshotRecorded => B::ToolSnapshotRecorded(tool::snapshot(read(bytes)?)?),
        EventKind::ContextSet => B::ContextSet(context::set(read(bytes)?)?),
        EventKind::ContextRemoved => context::removed(read(bytes)?)?,
        EventKind::ToolsDiscovered => context::discovered(read(bytes)?)?,
        EventKind::GuidanceGiven => context::guidance(read(bytes)?)?,
        EventKind::EntitiesNoted => context::entities(read(bytes)?)?,
        EventKind::SummaryRecorded => B::SummaryRecorded(context::summary(read(bytes)?)),
        EventKind::Compacted => B::Compacted(context::compacted(read(bytes)?)?),
        EventKind::SubContextSpawned => B::SubContextSpawned(conversation::spawned(read(bytes)?)?),
        EventKind::SubContextReturned => {
            B::SubContextReturned(conversation::returned(read(bytes)?)?)
        }
        EventKind::ConversationSealed => {
            let pb::ConversationSealed { reason, summary } = read(bytes)?;
            B::ConversationSealed { reason, summary }
        }
        EventKind::ToolsDefined => tool::defined(read(bytes)?)?,
        EventKind::AnnotationAdded => B::AnnotationAdded(context::annotation(read(bytes)?)?),
        EventKind::Custom => B::Custom(context::custom(read(bytes)?)?),
        EventKind::ContentErased => conversation::erased(read(bytes)?)?,
    })
}

/// Writes a body.
#[must_use]
pub fn encode(body: &EventBody) -> Bytes {
    use EventBody as B;
    match body {
        B::ConversationCreated(created) => write(&conversation::created_pb(created)),
        B::ConfigChanged(config) => write(&conversation::config_changed_pb(config)),
        B::BranchForked(forked) => write(&conversation::forked_pb(forked)),
        B::BranchActivated => write(&pb::BranchActivated {}),
        B::BranchRenamed(name) => write(&pb::BranchRenamed {
            name: name.as_str().to_owned(),
        }),
        B::BranchArchived { reason } => write(&pb::BranchArchived {
            reason: reason.clone(),
        }),
        B::SystemPromptSet(prompt) => write(&pb::SystemPromptSet {
            id: prompt.id.clone(),
            content: prompt.content.clone(),
        }),
        B::UserPromptSet(prompt) => write(&pb::UserPromptSet {
            id: prompt.id.clone(),
            content: prompt.content.clone(),
        }),
        B::MessageAppended(message) => write(&message::message_pb(message)),
        B::ToolCallRequested(call) => write(&tool::requested_pb(call)),
        B::ApprovalDecided(decided) => write(&tool::decided_pb(decided)),
        B::ToolCallStarted(started) => write(&tool::started_pb(started)),
        B::ToolResultRecorded(result) => write(&tool::result_pb(result)),
        B::ToolCallCancelled(cancelled) => write(&tool::cancelled_pb(cancelled)),
        B::ToolSnapshotRecorded(snapshot) => write(&tool::snapshot_pb(snapshot)),
        B::ContextSet(set) => write(&context::set_pb(set)),
        B::ContextRemoved { key } => write(&pb::ContextRemoved { key: key.clone() }),
        B::ToolsDiscovered { names } => write(&pb::ToolsDiscovered {
            names: names.clone(),
        }),
        B::GuidanceGiven { guidance } => write(&context::guidance_pb(guidance)),
        B::EntitiesNoted { entities } => write(&context::entities_pb(entities)),
        B::SummaryRecorded(summary) => write(&context::summary_pb(summary)),
        B::Compacted(compacted) => write(&context::compacted_pb(compacted)),
        B::SubContextSpawned(spawned) => write(&conversation::spawned_pb(spawned)),
        B::SubContextReturned(returned) => write(&conversation::returned_pb(returned)),
        B::ConversationSealed { reason, summary } => write(&pb::ConversationSealed {
            reason: reason.clone(),
            summary: summary.clone(),
        }),
        B::ToolsDefined { tools } => write(&tool::defined_pb(tools)),
        B::AnnotationAdded(added) => write(&context::annotation_pb(added)),
        B::Custom(custom) => write(&context::custom_pb(custom)),
        B::ContentErased { revisions, reason } => write(&pb::ContentErased {
            revisions: revisions.iter().map(|revision| revision.0).collect(),
            reason: reason.clone(),
        }),
    }
}

fn write(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

#[cfg(test)]
mod tests;
