//! Tool calls and tool definitions.

use bytes::Bytes;

use super::{
    fault::{
        BodyProblem, Checked, FieldFault, chosen, distinct, each, hash, json, name, optional_json,
        optional_revision, short, unspecified,
    },
    message,
};
use crate::{
    codec::pb,
    domain::{
        ApprovalDecided, CancelReason, ContentHash, Decision, EventBody, Revision,
        ToolCallCancelled, ToolCallRequested, ToolCallStarted, ToolDefinition, ToolResultRecorded,
        ToolSnapshotRecorded,
    },
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

/// BLAKE3 of a call's arguments: what an approval is bound to.
pub(super) fn arguments_hash(arguments: &[u8]) -> ContentHash {
    ContentHash(blake3::hash(arguments).into())
}

pub(super) fn requested(call: pb::ToolCallRequested) -> Checked<ToolCallRequested> {
    let arguments = json("arguments", call.arguments)?;
    Ok(ToolCallRequested {
        call_id: name("call_id", call.call_id)?,
        tool: name("tool", call.tool)?,
        arguments_hash: arguments_hash(arguments.as_bytes()),
        arguments,
        message_revision: optional_revision(call.message_revision),
        needs_approval: needs_approval(call.approval)?,
    })
}

pub(super) fn requested_pb(call: &ToolCallRequested) -> pb::ToolCallRequested {
    pb::ToolCallRequested {
        call_id: call.call_id.clone(),
        tool: call.tool.clone(),
        arguments: call.arguments.as_bytes().clone(),
        message_revision: call.message_revision.map_or(0, |revision| revision.0),
        approval: approval_pb(call.needs_approval),
    }
}

pub(super) fn decided(decided: pb::ApprovalDecided) -> Checked<ApprovalDecided> {
    Ok(ApprovalDecided {
        call_id: name("call_id", decided.call_id)?,
        decision: match chosen("decision", decided.decision)? {
            pb::Decision::Unspecified => return unspecified("decision"),
            pb::Decision::Approved => Decision::Approved,
            pb::Decision::Denied => Decision::Denied,
            pb::Decision::Expired => Decision::Expired,
        },
        arguments_hash: hash("arguments_hash", &decided.arguments_hash)?,
        decided_by: short("decided_by", decided.decided_by)?,
        reason: decided.reason,
    })
}

pub(super) fn decided_pb(decided: &ApprovalDecided) -> pb::ApprovalDecided {
    let decision = match decided.decision {
        Decision::Approved => pb::Decision::Approved,
        Decision::Denied => pb::Decision::Denied,
        Decision::Expired => pb::Decision::Expired,
    };
    pb::ApprovalDecided {
        call_id: decided.call_id.clone(),
        decision: decision.into(),
        arguments_hash: Bytes::copy_from_slice(&decided.arguments_hash.0),
        decided_by: decided.decided_by.clone(),
        reason: decided.reason.clone(),
    }
}

pub(super) fn started(started: pb::ToolCallStarted) -> Checked<ToolCallStarted> {
    Ok(ToolCallStarted {
        call_id: name("call_id", started.call_id)?,
        executor: short("executor", started.executor)?,
    })
}

pub(super) fn started_pb(started: &ToolCallStarted) -> pb::ToolCallStarted {
    pb::ToolCallStarted {
        call_id: started.call_id.clone(),
        executor: started.executor.clone(),
    }
}

pub(super) fn result(result: pb::ToolResultRecorded) -> Checked<ToolResultRecorded> {
    Ok(ToolResultRecorded {
        call_id: name("call_id", result.call_id)?,
        success: result.success,
        error_message: result.error_message,
        execution_time_ms: result.execution_time_ms,
        parts: message::parts(result.parts)?,
        structured: optional_json("structured", result.structured)?,
        raw: message::raw(result.raw)?,
    })
}

pub(super) fn result_pb(result: &ToolResultRecorded) -> pb::ToolResultRecorded {
    pb::ToolResultRecorded {
        call_id: result.call_id.clone(),
        success: result.success,
        error_message: result.error_message.clone(),
        execution_time_ms: result.execution_time_ms,
        parts: message::parts_pb(&result.parts),
        structured: result.structured.as_bytes().clone(),
        raw: result.raw.as_ref().map(message::raw_pb),
    }
}

pub(super) fn cancelled(cancelled: pb::ToolCallCancelled) -> Checked<ToolCallCancelled> {
    Ok(ToolCallCancelled {
        call_id: name("call_id", cancelled.call_id)?,
        reason: match chosen("reason", cancelled.reason)? {
            pb::CancelReason::Unspecified => return unspecified("reason"),
            pb::CancelReason::Denied => CancelReason::Denied,
            pb::CancelReason::Interrupted => CancelReason::Interrupted,
            pb::CancelReason::TimedOut => CancelReason::TimedOut,
            pb::CancelReason::Superseded => CancelReason::Superseded,
        },
        detail: cancelled.detail,
    })
}

pub(super) fn cancelled_pb(cancelled: &ToolCallCancelled) -> pb::ToolCallCancelled {
    let reason = match cancelled.reason {
        CancelReason::Denied => pb::CancelReason::Denied,
        CancelReason::Interrupted => pb::CancelReason::Interrupted,
        CancelReason::TimedOut => pb::CancelReason::TimedOut,
        CancelReason::Superseded => pb::CancelReason::Superseded,
    };
    pb::ToolCallCancelled {
        call_id: cancelled.call_id.clone(),
        reason: reason.into(),
        detail: cancelled.detail.clone(),
    }
}

pub(super) fn snapshot(snapshot: pb::ToolSnapshotRecorded) -> Checked<ToolSnapshotRecorded> {
    Ok(ToolSnapshotRecorded {
        call_id: name("call_id", snapshot.call_id)?,
        request_revision: Revision(snapshot.request_revision),
        summary: snapshot.summary,
    })
}

pub(super) fn snapshot_pb(snapshot: &ToolSnapshotRecorded) -> pb::ToolSnapshotRecorded {
    pb::ToolSnapshotRecorded {
        call_id: snapshot.call_id.clone(),
        request_revision: snapshot.request_revision.0,
        summary: snapshot.summary.clone(),
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
    })
}

pub(super) fn defined(defined: pb::ToolsDefined) -> Checked<EventBody> {
    let tools = each("tools", defined.tools, definition)?;
    distinct("tools", &tools, |tool| tool.name.clone())?;
    Ok(EventBody::ToolsDefined { tools })
}

pub(super) fn defined_pb(tools: &[ToolDefinition]) -> pb::ToolsDefined {
    let tools = tools.iter().map(|tool| pb::ToolDefinition {
        name: tool.name.clone(),
        description: tool.description.clone(),
        input_schema: tool.input_schema.as_bytes().clone(),
        source: tool.source.clone(),
        approval: approval_pb(tool.needs_approval),
        guidance: tool.guidance.clone(),
        discoverable: tool.discoverable,
    });
    pb::ToolsDefined {
        tools: tools.collect(),
    }
}
