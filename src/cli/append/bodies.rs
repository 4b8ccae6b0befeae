//! Arguments as the bodies of events.

use clap::{Args, ValueEnum, ValueHint};
use prost::{Message as _, bytes::Bytes};
use serde::Deserialize;

use crate::{
    args::pair,
    text_arg::{is_json, text_of},
};
use treering_client::error::CliError;
use treering_proto::pb::{self, new_event::Body};

/// Who speaks.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub enum Role {
    /// The system.
    System,
    /// The developer.
    Developer,
    /// The user.
    User,
    /// The model.
    Assistant,
}

/// Something that was said.
#[derive(Args, Debug, Clone)]
pub struct Message {
    /// Who says it
    #[arg(value_enum)]
    role: Role,
    /// What is said
    #[arg(value_hint = ValueHint::Other)]
    text: String,
}

/// A call.
#[derive(Args, Debug, Clone)]
pub struct Call {
    /// Its id, as the provider gave it
    call_id: String,
    /// The tool
    tool: String,
    /// Its arguments: JSON, or what a model wrote in its place
    #[arg(default_value = "{}")]
    arguments: String,
    /// It must be approved before it may run
    #[arg(long)]
    needs_approval: bool,
}

/// What a call returned.
#[derive(Args, Debug, Clone)]
pub struct CallResult {
    /// The call
    call_id: String,
    /// What it returned
    #[arg(value_hint = ValueHint::Other)]
    text: String,
    /// It failed, and why
    #[arg(long, value_name = "WHY")]
    failed: Option<String>,
    /// How long it ran, in milliseconds
    #[arg(long, value_name = "MS")]
    ms: Option<u64>,
}

/// A text.
#[derive(Args, Debug, Clone)]
pub struct Prompt {
    /// The text
    #[arg(value_hint = ValueHint::Other)]
    text: String,
}

/// Model settings.
#[derive(Args, Debug, Clone)]
pub struct Config {
    /// The model
    #[arg(long, short, value_name = "NAME")]
    model: Option<String>,
    /// The mode, for example planning
    #[arg(long, value_name = "NAME")]
    mode: Option<String>,
    /// A parameter as NAME=JSON, for example temperature=0.2 (may be given again)
    #[arg(long = "parameter", value_name = "NAME=JSON", value_parser = json_pair)]
    parameters: Vec<(String, String)>,
}

/// Tools on offer.
#[derive(Args, Debug, Clone)]
pub struct Tools {
    /// JSON: a list of {name, description, input_schema, guidance, discoverable,
    /// needs_approval}
    definitions: String,
}

/// Names.
#[derive(Args, Debug, Clone)]
pub struct Words {
    /// Names of tools
    #[arg(required = true)]
    names: Vec<String>,
}

/// How to use a tool.
#[derive(Args, Debug, Clone)]
pub struct Guidance {
    /// The tool
    tool: String,
    /// What to know about it
    #[arg(value_hint = ValueHint::Other)]
    text: String,
}

/// Something that the conversation is about.
#[derive(Args, Debug, Clone)]
pub struct Entity {
    /// Its id in the world
    id: String,
    /// What it is
    kind: String,
    /// Its name
    #[arg(value_hint = ValueHint::Other)]
    name: String,
}

/// A finished call in short.
#[derive(Args, Debug, Clone)]
pub struct Snapshot {
    /// The call
    call_id: String,
    /// The revision of its request
    revision: u64,
    /// The summary
    #[arg(value_hint = ValueHint::Other)]
    text: String,
}

/// Something that only its program understands.
#[derive(Args, Debug, Clone)]
pub struct Custom {
    /// What the program calls it
    #[arg(value_name = "TYPE")]
    type_name: String,
    /// What it says
    #[arg(value_name = "DATA", value_hint = ValueHint::Other)]
    content: String,
    /// Media type of what it says
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// What a search finds it by
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,
    /// The key of an event that this one is much like, for example the state of the step
    /// before: only what is different takes room
    #[arg(long, value_name = "KEY")]
    delta_of: Option<String>,
}

fn json_pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = pair(text)?;
    match is_json(&value) {
        true => Ok((name, value)),
        false => Err(format!("the value of {name} is no JSON")),
    }
}

/// A body as events have it.
pub fn encode(message: &impl prost::Message) -> Bytes {
    message.encode_to_vec().into()
}

fn text_part(text: String) -> pb::ContentPart {
    pb::ContentPart {
        part: Some(pb::content_part::Part::Text(text)),
    }
}

/// Whether calls have to be approved.
pub fn requirement(needs_approval: bool) -> i32 {
    if needs_approval {
        pb::ApprovalRequirement::Pending.into()
    } else {
        pb::ApprovalRequirement::NotRequired.into()
    }
}

/// A message of one text.
pub fn message(role: pb::Role, text: String) -> Body {
    Body::MessageAppended(encode(&pb::MessageAppended {
        role: role.into(),
        parts: vec![text_part(text)],
        ..Default::default()
    }))
}

/// A request for a tool.
pub fn call(call_id: &str, tool: &str, arguments: String, needs_approval: bool) -> Body {
    Body::ToolCallRequested(encode(&pb::ToolCallRequested {
        call_id: call_id.to_owned(),
        tool: tool.to_owned(),
        arguments: arguments.into(),
        approval: requirement(needs_approval),
        ..Default::default()
    }))
}

/// What a call returned, why it failed if it did, and how many milliseconds it ran.
pub fn result(call_id: &str, text: Option<String>, error: Option<String>, ms: Option<u64>) -> Body {
    Body::ToolResultRecorded(encode(&pb::ToolResultRecorded {
        call_id: call_id.to_owned(),
        success: error.is_none(),
        error_message: error.unwrap_or_default(),
        execution_time_ms: ms,
        parts: text.into_iter().map(text_part).collect(),
        ..Default::default()
    }))
}

/// The first event of a conversation.
pub fn created() -> Body {
    Body::ConversationCreated(encode(&pb::ConversationCreated::default()))
}

/// A summary of everything up to a revision.
pub fn covering_all(body: Body, head: u64) -> Body {
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
    pub fn body(&self) -> Result<Body, CliError> {
        let role = match self.role {
            Role::System => pb::Role::System,
            Role::Developer => pb::Role::Developer,
            Role::User => pb::Role::User,
            Role::Assistant => pb::Role::Assistant,
        };
        Ok(message(role, text_of(&self.text)?))
    }
}

/// What ids of calls begin with, and names of tools do not.
const ID_BEGINNINGS: [&str; 5] = ["call_", "call-", "toolu_", "tooluse_", "fc_"];

impl Call {
    /// Refuses a call whose words are in another order than CALL_ID TOOL ARGUMENTS.
    pub fn checked(&self) -> Result<&Self, CliError> {
        let is_json = |text: &str| text.trim_start().starts_with(['{', '[', '"']);
        let is_id = |text: &str| ID_BEGINNINGS.iter().any(|start| text.starts_with(start));
        let is_swapped = is_id(&self.tool) && !is_id(&self.call_id);
        if is_json(&self.call_id) || is_json(&self.tool) || is_swapped {
            return Err(CliError::Usage {
                what: format!(
                    "{:?} as the id of a call and {:?} as its tool look swapped",
                    self.call_id, self.tool
                ),
                hint: r#"the order is CALL_ID TOOL ARGUMENTS: call call_1 grep '{"pattern": "x"}'"#
                    .into(),
            });
        }
        Ok(self)
    }

    pub fn body(&self) -> Result<Body, CliError> {
        let arguments = text_of(&self.arguments)?.trim().to_owned();
        let needs_approval = self.needs_approval;
        Ok(call(&self.call_id, &self.tool, arguments, needs_approval))
    }
}

impl CallResult {
    pub fn body(&self) -> Result<Body, CliError> {
        let text = Some(text_of(&self.text)?);
        Ok(result(&self.call_id, text, self.failed.clone(), self.ms))
    }
}

impl Prompt {
    fn prompt(&self) -> Result<pb::SystemPromptSet, CliError> {
        Ok(pb::SystemPromptSet {
            id: String::new(),
            content: text_of(&self.text)?,
        })
    }

    pub fn system(&self) -> Result<Body, CliError> {
        Ok(Body::SystemPromptSet(encode(&self.prompt()?)))
    }

    pub fn user(&self) -> Result<Body, CliError> {
        // Both prompts have the same fields.
        Ok(Body::UserPromptSet(encode(&self.prompt()?)))
    }

    pub fn summary(&self) -> Result<Body, CliError> {
        Ok(Body::SummaryRecorded(encode(&pb::SummaryRecorded {
            content: text_of(&self.text)?,
            ..Default::default()
        })))
    }
}

impl Config {
    pub fn body(&self) -> Body {
        Body::ConfigChanged(encode(&pb::ConfigChanged {
            config: Some(pb::Config {
                model_id: self.model.clone().unwrap_or_default(),
                mode: self.mode.clone().unwrap_or_default(),
                parameters: self.parameters.iter().cloned().collect(),
            }),
        }))
    }
}

/// A tool as the command takes it.
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
    pub fn body(&self) -> Result<Body, CliError> {
        let tools: Vec<Tool> =
            serde_json::from_str(&text_of(&self.definitions)?).map_err(|error| {
                CliError::Usage {
                    what: format!("the tools cannot be read: {error}"),
                    hint: r#"give a list, for example '[{"name": "grep", "input_schema": {}}]'"#
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
    pub fn discovered(&self) -> Body {
        Body::ToolsDiscovered(encode(&pb::ToolsDiscovered {
            names: self.names.clone(),
        }))
    }
}

impl Guidance {
    pub fn body(&self) -> Result<Body, CliError> {
        Ok(Body::GuidanceGiven(encode(&pb::GuidanceGiven {
            guidance: vec![pb::Guidance {
                tool: self.tool.clone(),
                text: text_of(&self.text)?,
            }],
        })))
    }
}

impl Entity {
    pub fn body(&self) -> Body {
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
    pub fn body(&self) -> Result<Body, CliError> {
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
    pub fn body(&self) -> Result<Body, CliError> {
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

    // Three words in a row are easily swapped, and what is appended stays: a call of the
    // tool "call_1" is refused, one with a plain id is not.
    #[test]
    fn swapped_words_of_a_call_are_refused() {
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

    // A schema is kept as it is written, and a mistyped field must not silently
    // leave a tool without its schema.
    #[test]
    fn tools_are_read_or_refused() {
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
