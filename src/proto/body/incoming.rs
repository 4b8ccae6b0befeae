//! Limits the number of values in each JSON text of a body from a client.

use super::{
    super::json,
    fault::{Checked, FieldFault},
};
use treering_domain::{ContentPart, EventBody, RawMessage, limits::JSON_VALUES_MAX};

/// Checks every JSON text of a body.
pub(super) fn check_values(body: &EventBody) -> Checked<()> {
    match body {
        EventBody::ConversationCreated(created) => {
            check("source_meta", created.source_meta.as_bytes())?;
            each("policies", created.policies.values())?;
            each("metadata", created.metadata.values())?;
            each("config.parameters", created.config.parameters.values())
        }
        EventBody::ConversationChanged(changed) => {
            each("set_metadata", changed.set_metadata.values())
        }
        EventBody::ConfigChanged(config) => each("config.parameters", config.parameters.values()),
        EventBody::MessageAppended(message) => {
            parts(&message.parts)?;
            raw(message.raw.as_ref())
        }
        EventBody::ToolCallRequested(call) => {
            check("arguments", call.arguments.as_bytes())?;
            raw(call.raw.as_ref())
        }
        EventBody::ToolResultRecorded(result) => {
            check("structured", result.structured.as_bytes())?;
            parts(&result.parts)?;
            raw(result.raw.as_ref())
        }
        EventBody::ContextSet(set) => check("value", set.value.as_bytes()),
        EventBody::ToolsDefined { tools } => {
            for (index, tool) in tools.iter().enumerate() {
                let schema = tool.input_schema.as_bytes();
                check("input_schema", schema).map_err(|f| f.within_entry("tools", index))?;
            }
            Ok(())
        }
        EventBody::Compacted(compacted) => raw(compacted.raw.as_ref()),
        EventBody::BranchForked(_)
        | EventBody::BranchActivated
        | EventBody::BranchRenamed(_)
        | EventBody::BranchArchived { .. }
        | EventBody::SystemPromptSet(_)
        | EventBody::UserPromptSet(_)
        | EventBody::ApprovalDecided(_)
        | EventBody::ToolCallStarted(_)
        | EventBody::ToolCallCancelled(_)
        | EventBody::ToolSnapshotRecorded(_)
        | EventBody::ContextRemoved { .. }
        | EventBody::ToolsDiscovered { .. }
        | EventBody::GuidanceGiven { .. }
        | EventBody::EntitiesNoted { .. }
        | EventBody::SummaryRecorded(_)
        | EventBody::SubContextSpawned(_)
        | EventBody::SubContextReturned(_)
        | EventBody::ConversationSealed { .. }
        | EventBody::AnnotationAdded(_)
        | EventBody::Custom(_)
        | EventBody::ContentErased { .. } => Ok(()),
    }
}

fn check(field: &str, text: &[u8]) -> Checked<()> {
    json::check_values(text, JSON_VALUES_MAX).map_err(|fault| FieldFault::at(field, fault.into()))
}

fn each<'a>(field: &str, mut texts: impl Iterator<Item = &'a String>) -> Checked<()> {
    texts.try_for_each(|text| check(field, text.as_bytes()))
}

fn parts(parts: &[ContentPart]) -> Checked<()> {
    for (index, part) in parts.iter().enumerate() {
        if let ContentPart::Json(text) = part {
            check("json", text.as_bytes()).map_err(|f| f.within_entry("parts", index))?;
        }
    }
    Ok(())
}

/// `data` is counted as JSON: if it is not, it is never parsed as such.
fn raw(raw: Option<&RawMessage>) -> Checked<()> {
    raw.map_or(Ok(()), |raw| check("raw.data", &raw.data))
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use crate::{body, pb};
    use treering_domain::EventKind;

    // A JSON list of 4 MiB takes 100 MB as a tree: it must be refused in any field of a
    // client's event, and must stay readable if it is stored.
    #[test]
    fn incoming_json_with_too_many_values_is_refused() {
        let wide = format!("[0{}]", ",0".repeat(2 << 20));
        let tool = |name: &str, schema: &str| pb::ToolDefinition {
            name: name.into(),
            input_schema: schema.as_bytes().to_vec().into(),
            ..Default::default()
        };
        let tools = pb::ToolsDefined {
            tools: vec![tool("narrow", "{}"), tool("wide", &wide)],
        };
        let result = pb::ToolResultRecorded {
            call_id: "c".into(),
            parts: vec![pb::ContentPart {
                part: Some(pb::content_part::Part::Json(wide.clone())),
            }],
            ..Default::default()
        };
        for (kind, bytes, field) in [
            (
                EventKind::ToolsDefined,
                tools.encode_to_vec(),
                "tools[1].input_schema",
            ),
            (
                EventKind::ToolResultRecorded,
                result.encode_to_vec(),
                "parts[0].json",
            ),
        ] {
            let bytes = bytes.into();
            assert_eq!(
                body::decode_incoming(kind, &bytes).unwrap_err().field,
                field
            );
            assert!(body::decode(kind, &bytes).is_ok());
        }
    }
}
