//! Tool call requests, whose arguments are hashed, and the rules for tool definitions.

use bytes::Bytes;

use super::{
    convert::{Choice, Scalar, distinct, name, short},
    fault::{BodyProblem, FieldFault, FieldResult},
};
use crate::{
    json::{self, JsonFault},
    pb,
};
use treering_domain::{ContentHash, JsonText, ToolCallRequested};

/// Whether a call needs an approval.
impl Choice for bool {
    fn read(field: &str, value: i32) -> FieldResult<Self> {
        match pb::ApprovalRequirement::try_from(value) {
            Ok(pb::ApprovalRequirement::Unspecified | pb::ApprovalRequirement::NotRequired) => {
                Ok(false)
            }
            Ok(pb::ApprovalRequirement::Pending) => Ok(true),
            Err(_) => Err(FieldFault::at(
                field,
                BodyProblem::UnknownEnumValue { value },
            )),
        }
    }

    fn number(&self) -> i32 {
        match self {
            true => pb::ApprovalRequirement::Pending.into(),
            false => pb::ApprovalRequirement::NotRequired.into(),
        }
    }
}

/// Returns the BLAKE3 hash of a call's arguments. An approval is bound to it.
pub(super) fn arguments_hash(arguments: &[u8]) -> ContentHash {
    ContentHash(blake3::hash(arguments).into())
}

impl pb::ToolCallRequested {
    pub(super) fn into_domain(self) -> FieldResult<ToolCallRequested> {
        let (arguments, arguments_not_json) =
            arguments(self.arguments).map_err(|fault| FieldFault::at("arguments", fault.into()))?;
        Ok(ToolCallRequested {
            call_id: name("call_id", self.call_id)?,
            tool: name("tool", self.tool)?,
            arguments_hash: arguments_hash(arguments.as_bytes()),
            arguments,
            message_revision: Scalar::read("message_revision", self.message_revision)?,
            needs_approval: Choice::read("approval", self.approval)?,
            arguments_not_json,
            item_id: short("item_id", self.item_id)?,
            raw: self
                .raw
                .map(pb::RawMessage::into_domain)
                .transpose()
                .map_err(|fault| fault.within("raw"))?,
        })
    }

    pub(super) fn of(call: &ToolCallRequested) -> Self {
        Self {
            call_id: call.call_id.clone(),
            tool: call.tool.clone(),
            arguments: call.arguments.as_bytes().clone(),
            message_revision: call.message_revision.write(),
            approval: call.needs_approval.number(),
            arguments_not_json: call.arguments_not_json,
            item_id: call.item_id.clone(),
            raw: call.raw.as_ref().map(pb::RawMessage::of),
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

impl pb::ToolsDefined {
    pub(super) fn check(&self) -> FieldResult<()> {
        distinct("tools", &self.tools, |tool| tool.name.clone())
    }
}
