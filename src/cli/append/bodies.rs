//! Builds event bodies from arguments.

use clap::{Args, ValueEnum, ValueHint};
use prost::{Message as _, bytes::Bytes};
use serde::Deserialize;

use crate::{
    args::pair,
    text_arg::{is_json, text_of},
};
use treering_client::error::ClientError;
use treering_proto::pb::{self, new_event::Body};

/// Who speaks.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub(crate) enum Role {
    /// The system.
    System,
    /// The developer.
    Developer,
    /// The user.
    User,
    /// The model.
    Assistant,
}

/// A message.
#[derive(Args, Debug, Clone)]
pub(crate) struct Message {
    /// Role of the speaker
    #[arg(value_enum)]
    role: Role,
    /// Text of the message
    #[arg(value_hint = ValueHint::Other)]
    text: String,
}

/// A tool call.
#[derive(Args, Debug, Clone)]
pub(crate) struct Call {
    /// Id of the call, as the provider assigned it
    call_id: String,
    /// Name of the tool
    tool: String,
    /// Arguments: JSON, or the text that a model wrote instead
    #[arg(default_value = "{}")]
    arguments: String,
    /// The call must be approved before it runs
    #[arg(long)]
    needs_approval: bool,
}

/// The result of a call.
#[derive(Args, Debug, Clone)]
pub(crate) struct CallResult {
    /// Id of the call
    call_id: String,
    /// Text that the tool returned
    #[arg(value_hint = ValueHint::Other)]
    text: String,
    /// The call failed, with this error message
    #[arg(long, value_name = "WHY")]
    failed: Option<String>,
    /// Duration of the call, in milliseconds
    #[arg(long, value_name = "MS")]
    ms: Option<u64>,
}

/// A text.
#[derive(Args, Debug, Clone)]
pub(crate) struct Prompt {
    /// The text
    #[arg(value_hint = ValueHint::Other)]
    text: String,
}

/// Model settings.
#[derive(Args, Debug, Clone)]
pub(crate) struct Config {
    /// Id of the model
    #[arg(long, short, value_name = "NAME")]
    model: Option<String>,
    /// The mode, for example `planning`
    #[arg(long, value_name = "NAME")]
    mode: Option<String>,
    /// A parameter as NAME=JSON, for example temperature=0.2 (may be given again)
    #[arg(long = "parameter", value_name = "NAME=JSON", value_parser = json_pair)]
    parameters: Vec<(String, String)>,
}

/// Tools on offer.
#[derive(Args, Debug, Clone)]
pub(crate) struct Tools {
    /// JSON: a list of {name, description, input_schema, guidance, discoverable,
    /// needs_approval}
    definitions: String,
}

/// Names of tools.
#[derive(Args, Debug, Clone)]
pub(crate) struct Words {
    /// Names of tools
    #[arg(required = true)]
    names: Vec<String>,
}

/// How to use a tool.
#[derive(Args, Debug, Clone)]
pub(crate) struct Guidance {
    /// Name of the tool
    tool: String,
    /// Guidance text
    #[arg(value_hint = ValueHint::Other)]
    text: String,
}

/// An entity that the conversation is about.
#[derive(Args, Debug, Clone)]
pub(crate) struct Entity {
    /// Id in the outside world
    id: String,
    /// Kind of the entity
    kind: String,
    /// Name of the entity
    #[arg(value_hint = ValueHint::Other)]
    name: String,
}

/// A digest of a finished call.
#[derive(Args, Debug, Clone)]
pub(crate) struct Snapshot {
    /// Id of the call
    call_id: String,
    /// Revision of the call's request
    revision: u64,
    /// Text of the digest
    #[arg(value_hint = ValueHint::Other)]
    text: String,
}

/// An event of a program's own type.
#[derive(Args, Debug, Clone)]
pub(crate) struct Custom {
    /// Type of the event, as the program names it
    #[arg(value_name = "TYPE")]
    type_name: String,
    /// Content of the event
    #[arg(value_name = "DATA", value_hint = ValueHint::Other)]
    content: String,
    /// Media type of the content
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// Text to index for searches
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,
    /// Key of an event with similar content, for example the state of the previous step: only the
    /// difference is stored
    #[arg(long, value_name = "KEY")]
    delta_of: Option<String>,
}

fn json_pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = pair(text)?;
    match is_json(&value) {
        true => Ok((name, value)),
        false => Err(format!("the value of {name} is not JSON")),
    }
}

/// Encodes the body of an event.
pub(crate) fn encode(message: &impl prost::Message) -> Bytes {
    message.encode_to_vec().into()
}

fn text_part(text: String) -> pb::ContentPart {
    pb::ContentPart {
        part: Some(pb::content_part::Part::Text(text)),
    }
}

/// Returns the approval requirement of a call.
pub(crate) fn requirement(needs_approval: bool) -> i32 {
    if needs_approval {
        pb::ApprovalRequirement::Pending.into()
    } else {
        pb::ApprovalRequirement::NotRequired.into()
    }
}

/// Returns a message with one text.
pub(crate) fn message(role: pb::Role, text: String) -> Body {
    Body::MessageAppended(encode(&pb::MessageAppended {
        role: role.into(),
        parts: vec![text_part(text)],
        ..Default::default()
    }))
}

/// Returns a tool call.
pub(crate) fn call(call_id: &str, tool: &str, arguments: String, needs_approval: bool) -> Body {
    Body::ToolCallRequested(encode(&pb::ToolCallRequested {
        call_id: call_id.to_owned(),
        tool: tool.to_owned(),
        arguments: arguments.into(),
        approval: requirement(needs_approval),
        ..Default::default()
    }))
}

/// Returns the result of a call: its text, its error message if it failed, and its duration in
/// milliseconds.
pub(crate) fn result(
    call_id: &str,
    text: Option<String>,
    error: Option<String>,
    ms: Option<u64>,
) -> Body {
    Body::ToolResultRecorded(encode(&pb::ToolResultRecorded {
        call_id: call_id.to_owned(),
        success: error.is_none(),
        error_message: error.unwrap_or_default(),
        execution_time_ms: ms,
        parts: text.into_iter().map(text_part).collect(),
        ..Default::default()
    }))
}

/// Returns the first event of a conversation.
pub(crate) fn created() -> Body {
    Body::ConversationCreated(encode(&pb::ConversationCreated::default()))
}

/// Makes a summary cover everything up to a revision.
pub(crate) fn covering_all(body: Body, head: u64) -> Body {
    match body {
        Body::SummaryRecorded(bytes) => {
            let mut summary = pb::SummaryRecorded::decode(bytes).unwrap_or_default();
            (summary.from_revision, summary.to_revision) = (1, head);
            Body::SummaryRecorded(encode(&summary))
        }
        other => other,
    }
}

impl Message {
    pub(crate) fn body(&self) -> Result<Body, ClientError> {
        let role = match self.role {
            Role::System => pb::Role::System,
            Role::Developer => pb::Role::Developer,
            Role::User => pb::Role::User,
            Role::Assistant => pb::Role::Assistant,
        };
        Ok(message(role, text_of(&self.text)?))
    }
}

/// Prefixes of call ids, which tool names do not have.
const ID_BEGINNINGS: [&str; 5] = ["call_", "call-", "toolu_", "tooluse_", "fc_"];

impl Call {
    /// Refuses a call whose words look swapped: the order is CALL_ID TOOL ARGUMENTS.
    pub(crate) fn checked(&self) -> Result<&Self, ClientError> {
        let is_json = |text: &str| text.trim_start().starts_with(['{', '[', '"']);
        let is_id = |text: &str| ID_BEGINNINGS.iter().any(|start| text.starts_with(start));
        let is_swapped = is_id(&self.tool) && !is_id(&self.call_id);
        if is_json(&self.call_id) || is_json(&self.tool) || is_swapped {
            return Err(ClientError::Usage {
                what: format!(
                    "call id {:?} and tool {:?} look swapped",
                    self.call_id, self.tool
                ),
                hint: r#"the order is CALL_ID TOOL ARGUMENTS: call call_1 grep '{"pattern": "x"}'"#
                    .into(),
            });
        }
        Ok(self)
    }

    pub(crate) fn body(&self) -> Result<Body, ClientError> {
        let arguments = text_of(&self.arguments)?.trim().to_owned();
        let needs_approval = self.needs_approval;
        Ok(call(&self.call_id, &self.tool, arguments, needs_approval))
    }
}

impl CallResult {
    pub(crate) fn body(&self) -> Result<Body, ClientError> {
        let text = Some(text_of(&self.text)?);
        Ok(result(&self.call_id, text, self.failed.clone(), self.ms))
    }
}

impl Prompt {
    fn prompt(&self) -> Result<pb::SystemPromptSet, ClientError> {
        Ok(pb::SystemPromptSet {
            id: String::new(),
            content: text_of(&self.text)?,
        })
    }

    pub(crate) fn system(&self) -> Result<Body, ClientError> {
        Ok(Body::SystemPromptSet(encode(&self.prompt()?)))
    }

    pub(crate) fn user(&self) -> Result<Body, ClientError> {
        // Both prompts have the same fields.
        Ok(Body::UserPromptSet(encode(&self.prompt()?)))
    }

    pub(crate) fn summary(&self) -> Result<Body, ClientError> {
        Ok(Body::SummaryRecorded(encode(&pb::SummaryRecorded {
            content: text_of(&self.text)?,
            ..Default::default()
        })))
    }
}

impl Config {
    pub(crate) fn body(&self) -> Body {
        Body::ConfigChanged(encode(&pb::ConfigChanged {
            config: Some(pb::Config {
                model_id: self.model.clone().unwrap_or_default(),
                mode: self.mode.clone().unwrap_or_default(),
                parameters: self.parameters.iter().cloned().collect(),
            }),
        }))
    }
}

/// A tool in the JSON argument of `append CONVERSATION tools`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tool {
    name: String,
    #[serde(default)]
    description: String,
    input_schema: Option<Box<serde_json::value::RawValue>>,
    #[serde(default)]
    guidance: String,
    #[serde(default)]
    discoverable: bool,
    #[serde(default)]
    needs_approval: bool,
}

impl Tools {
    pub(crate) fn body(&self) -> Result<Body, ClientError> {
        let tools: Vec<Tool> =
            serde_json::from_str(&text_of(&self.definitions)?).map_err(|error| {
                ClientError::Usage {
                    what: format!("the tools are invalid: {error}"),
                    hint: r#"use a list, for example '[{"name": "grep", "input_schema": {}}]'"#
                        .into(),
                }
            })?;
        let tools = tools.into_iter().map(|tool| pb::ToolDefinition {
            name: tool.name,
            description: tool.description,
            input_schema: tool
                .input_schema
                .map(|schema| schema.get().to_owned().into())
                .unwrap_or_default(),
            approval: requirement(tool.needs_approval),
            guidance: tool.guidance,
            discoverable: tool.discoverable,
            ..Default::default()
        });
        Ok(Body::ToolsDefined(encode(&pb::ToolsDefined {
            tools: tools.collect(),
        })))
    }
}

impl Words {
    pub(crate) fn discovered(&self) -> Body {
        Body::ToolsDiscovered(encode(&pb::ToolsDiscovered {
            names: self.names.clone(),
        }))
    }
}

impl Guidance {
    pub(crate) fn body(&self) -> Result<Body, ClientError> {
        Ok(Body::GuidanceGiven(encode(&pb::GuidanceGiven {
            guidance: vec![pb::Guidance {
                tool: self.tool.clone(),
                text: text_of(&self.text)?,
            }],
        })))
    }
}

impl Entity {
    pub(crate) fn body(&self) -> Body {
        Body::EntitiesNoted(encode(&pb::EntitiesNoted {
            entities: vec![pb::Entity {
                id: self.id.clone(),
                kind: self.kind.clone(),
                name: self.name.clone(),
            }],
        }))
    }
}

impl Snapshot {
    pub(crate) fn body(&self) -> Result<Body, ClientError> {
        Ok(Body::ToolSnapshotRecorded(encode(
            &pb::ToolSnapshotRecorded {
                call_id: self.call_id.clone(),
                request_revision: self.revision,
                summary: text_of(&self.text)?,
            },
        )))
    }
}

impl Custom {
    pub(crate) fn body(&self) -> Result<Body, ClientError> {
        Ok(Body::Custom(encode(&pb::Custom {
            type_name: self.type_name.clone(),
            content_type: self.content_type.clone().unwrap_or_default(),
            data: text_of(&self.content)?.into(),
            text: self.text.clone().unwrap_or_default(),
            delta_of: self.delta_of.clone().unwrap_or_default(),
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Three positional words are easily swapped, and an append cannot be undone. A call of the tool
    // "call_1" is refused; a call with a plain id is not.
    #[test]
    fn swapped_arguments_of_a_call_are_refused() {
        let call = |call_id: &str, tool: &str| Call {
            call_id: call_id.into(),
            tool: tool.into(),
            arguments: "{}".into(),
            needs_approval: false,
        };
        for (id, tool) in [
            ("call_1", "grep"),
            ("c1", "read_file"),
            ("call_1", "call_agent"),
        ] {
            assert!(call(id, tool).checked().is_ok(), "{id} {tool}");
        }
        for (id, tool) in [("grep", "call_1"), (r#"{"a":1}"#, "grep"), ("c1", "{}")] {
            assert!(call(id, tool).checked().is_err(), "{id} {tool}");
        }
    }

    // A schema is stored as it is written, and a mistyped field must not leave a tool without its
    // schema.
    #[test]
    fn tool_definitions_are_parsed_or_refused() {
        let tools = |json: &str| {
            let definitions = json.into();
            Tools { definitions }.body()
        };
        let Body::ToolsDefined(bytes) =
            tools(r#"[{"name": "grep", "input_schema": {"b": 1, "a": 2.50}}]"#).unwrap()
        else {
            panic!("another body");
        };
        let defined = pb::ToolsDefined::decode(bytes).unwrap();
        assert_eq!(
            &defined.tools[0].input_schema[..],
            br#"{"b": 1, "a": 2.50}"#
        );
        for wrong in ["{}", r#"[{"name": "a", "schema": {}}]"#, "[1]", ""] {
            assert!(tools(wrong).is_err(), "{wrong}");
        }
        assert!(json_pair("temperature=0.2").is_ok() && json_pair("temperature=hot").is_err());
    }
}
