//! Tool calls and tool definitions.

use bytes::Bytes;

use super::{
    fault::{
        BodyProblem, Checked, FieldFault, chosen, distinct, each, hash, name, optional_json,
        optional_revision, short, unspecified,
    },
    message,
};
use crate::{
    json::{self, JsonFault},
    pb,
};
use treering_domain::{
    ApprovalDecided, CancelReason, ContentHash, Decision, EventBody, JsonText, Revision,
    ToolCallCancelled, ToolCallRequested, ToolCallStarted, ToolDefinition, ToolResultRecorded,
    ToolSnapshotRecorded,
};

fn needs_approval(value: i32) -> Checked<bool> {
    match pb::ApprovalRequirement::try_from(value) {
        Ok(pb::ApprovalRequirement::Unspecified | pb::ApprovalRequirement::NotRequired) => {
            Ok(false)
        }
        Ok(pb::ApprovalRequirement::Pending) => Ok(true),
        Err(_) => Err(FieldFault::at(
            "approval",
            BodyProblem::UnknownEnumValue { value },
        )),
    }
}

fn approval_pb(needs_approval: bool) -> i32 {
    if needs_approval {
        pb::ApprovalRequirement::Pending.into()
    } else {
        pb::ApprovalRequirement::NotRequired.into()
    }
}

/// Returns the BLAKE3 hash of a call's arguments. An approval is bound to it.
pub(super) fn arguments_hash(arguments: &[u8]) -> ContentHash {
    ContentHash(blake3::hash(arguments).into())
}

impl pb::ToolCallRequested {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        let (arguments, arguments_not_json) =
            arguments(self.arguments).map_err(|fault| FieldFault::at("arguments", fault.into()))?;
        Ok(EventBody::ToolCallRequested(ToolCallRequested {
            call_id: name("call_id", self.call_id)?,
            tool: name("tool", self.tool)?,
            arguments_hash: arguments_hash(arguments.as_bytes()),
            arguments,
            message_revision: optional_revision(self.message_revision),
            needs_approval: needs_approval(self.approval)?,
            arguments_not_json,
            item_id: short("item_id", self.item_id)?,
            raw: message::raw(self.raw)?,
        }))
    }

    pub(super) fn of(call: &ToolCallRequested) -> Self {
        Self {
            call_id: call.call_id.clone(),
            tool: call.tool.clone(),
            arguments: call.arguments.as_bytes().clone(),
            message_revision: call.message_revision.map_or(0, |revision| revision.0),
            approval: approval_pb(call.needs_approval),
            arguments_not_json: call.arguments_not_json,
            item_id: call.item_id.clone(),
            raw: call.raw.as_ref().map(message::raw_pb),
        }
    }
}

/// Checks the arguments of a call and keeps them byte for byte. The second value is true if they
/// are a text other than JSON.
///
/// # Errors
/// [`JsonFault`] if they are not UTF-8, or are JSON that is nested too deeply.
pub fn arguments(bytes: Bytes) -> Result<(JsonText, bool), JsonFault> {
    let is_json = match json::check_text(&bytes) {
        Ok(()) => true,
        Err(JsonFault::Empty | JsonFault::Syntax { .. }) => false,
        // Depth only counts for JSON, not for a text that opens many brackets.
        Err(JsonFault::TooDeep { .. }) if !json::is_syntax(&bytes) => false,
        Err(fault) => return Err(fault),
    };
    Ok((JsonText::from_checked(bytes), !is_json))
}

impl pb::ApprovalDecided {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        Ok(EventBody::ApprovalDecided(ApprovalDecided {
            call_id: name("call_id", self.call_id)?,
            decision: match chosen("decision", self.decision)? {
                pb::Decision::Unspecified => return unspecified("decision"),
                pb::Decision::Approved => Decision::Approved,
                pb::Decision::Denied => Decision::Denied,
                pb::Decision::Expired => Decision::Expired,
            },
            arguments_hash: hash("arguments_hash", &self.arguments_hash)?,
            decided_by: short("decided_by", self.decided_by)?,
            reason: self.reason,
        }))
    }

    pub(super) fn of(decided: &ApprovalDecided) -> Self {
        let decision = match decided.decision {
            Decision::Approved => pb::Decision::Approved,
            Decision::Denied => pb::Decision::Denied,
            Decision::Expired => pb::Decision::Expired,
        };
        Self {
            call_id: decided.call_id.clone(),
            decision: decision.into(),
            arguments_hash: Bytes::copy_from_slice(&decided.arguments_hash.0),
            decided_by: decided.decided_by.clone(),
            reason: decided.reason.clone(),
        }
    }
}

impl pb::ToolCallStarted {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        Ok(EventBody::ToolCallStarted(ToolCallStarted {
            call_id: name("call_id", self.call_id)?,
            executor: short("executor", self.executor)?,
        }))
    }

    pub(super) fn of(started: &ToolCallStarted) -> Self {
        Self {
            call_id: started.call_id.clone(),
            executor: started.executor.clone(),
        }
    }
}

impl pb::ToolResultRecorded {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        Ok(EventBody::ToolResultRecorded(ToolResultRecorded {
            call_id: name("call_id", self.call_id)?,
            success: self.success,
            error_message: self.error_message,
            execution_time_ms: self.execution_time_ms,
            parts: message::parts(self.parts)?,
            structured: optional_json("structured", self.structured)?,
            raw: message::raw(self.raw)?,
        }))
    }

    pub(super) fn of(result: &ToolResultRecorded) -> Self {
        Self {
            call_id: result.call_id.clone(),
            success: result.success,
            error_message: result.error_message.clone(),
            execution_time_ms: result.execution_time_ms,
            parts: message::parts_pb(&result.parts),
            structured: result.structured.as_bytes().clone(),
            raw: result.raw.as_ref().map(message::raw_pb),
        }
    }
}

impl pb::ToolCallCancelled {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        Ok(EventBody::ToolCallCancelled(ToolCallCancelled {
            call_id: name("call_id", self.call_id)?,
            reason: match chosen("reason", self.reason)? {
                pb::CancelReason::Unspecified => return unspecified("reason"),
                pb::CancelReason::Denied => CancelReason::Denied,
                pb::CancelReason::Interrupted => CancelReason::Interrupted,
                pb::CancelReason::TimedOut => CancelReason::TimedOut,
                pb::CancelReason::Superseded => CancelReason::Superseded,
            },
            detail: self.detail,
        }))
    }

    pub(super) fn of(cancelled: &ToolCallCancelled) -> Self {
        let reason = match cancelled.reason {
            CancelReason::Denied => pb::CancelReason::Denied,
            CancelReason::Interrupted => pb::CancelReason::Interrupted,
            CancelReason::TimedOut => pb::CancelReason::TimedOut,
            CancelReason::Superseded => pb::CancelReason::Superseded,
        };
        Self {
            call_id: cancelled.call_id.clone(),
            reason: reason.into(),
            detail: cancelled.detail.clone(),
        }
    }
}

impl pb::ToolSnapshotRecorded {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        Ok(EventBody::ToolSnapshotRecorded(ToolSnapshotRecorded {
            call_id: name("call_id", self.call_id)?,
            request_revision: Revision(self.request_revision),
            summary: self.summary,
        }))
    }

    pub(super) fn of(snapshot: &ToolSnapshotRecorded) -> Self {
        Self {
            call_id: snapshot.call_id.clone(),
            request_revision: snapshot.request_revision.0,
            summary: snapshot.summary.clone(),
        }
    }
}

fn definition(tool: pb::ToolDefinition) -> Checked<ToolDefinition> {
    Ok(ToolDefinition {
        name: name("name", tool.name)?,
        description: tool.description,
        input_schema: optional_json("input_schema", tool.input_schema)?,
        source: short("source", tool.source)?,
        needs_approval: needs_approval(tool.approval)?,
        guidance: tool.guidance,
        discoverable: tool.discoverable,
        strict: tool.strict,
    })
}

impl pb::ToolsDefined {
    pub(super) fn into_body(self) -> Checked<EventBody> {
        let tools = each("tools", self.tools, definition)?;
        distinct("tools", &tools, |tool| tool.name.clone())?;
        Ok(EventBody::ToolsDefined { tools })
    }

    pub(super) fn of(tools: &[ToolDefinition]) -> Self {
        let tools = tools.iter().map(|tool| pb::ToolDefinition {
            name: tool.name.clone(),
            description: tool.description.clone(),
            input_schema: tool.input_schema.as_bytes().clone(),
            source: tool.source.clone(),
            approval: approval_pb(tool.needs_approval),
            guidance: tool.guidance.clone(),
            discoverable: tool.discoverable,
            strict: tool.strict,
        });
        Self {
            tools: tools.collect(),
        }
    }
}
