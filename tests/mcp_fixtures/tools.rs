//! Tools with every kind of answer.

use std::sync::Arc;

use rmcp::{
    ErrorData, RoleServer,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, ContentBlock,
        JsonObject, ProgressNotificationParam, ResourceContents, SamplingCapability, Tool,
    },
    service::RequestContext,
};
use serde_json::{Value, json};

use super::questions::{self, ClientState};

/// A grey pixel.
pub const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNoAAAAggCB2kUIOwAAAABJRU5ErkJggg==";
/// One sample of silence.
const WAV: &str = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQIAAAAAAA==";

/// Tools without arguments.
const PLAIN: [&str; 10] = [
    "test_simple_text",
    "test_image_content",
    "test_audio_content",
    "test_embedded_resource",
    "test_multiple_content_types",
    "test_error_handling",
    "test_tool_with_progress",
    "test_missing_capability",
    "test_streaming_elicitation",
    "test_logging_tool",
];
/// A tool whose schema has JSON Schema keywords that a server must keep, even if it does not
/// understand them.
const SCHEMA: &str = "json_schema_2020_12_tool";
/// A tool that has one argument in a header, too.
const HEADER: &str = "test_argument_in_header";

/// Returns all tools.
#[must_use]
pub fn offered() -> Vec<Tool> {
    let nothing = json!({"type": "object", "properties": {}});
    let plain = PLAIN.iter().chain(&questions::TOOLS);
    let plain = plain.map(|name| tool(name, nothing.clone()));
    plain
        .chain([tool(SCHEMA, wide_schema()), tool(HEADER, header_schema())])
        .collect()
}

fn tool(name: &'static str, schema: Value) -> Tool {
    let schema: JsonObject = serde_json::from_value(schema).unwrap_or_default();
    Tool::new(name, "A tool for the suite", Arc::new(schema))
}

fn wide_schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }},
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": false,
    })
}

fn header_schema() -> Value {
    json!({
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
        "required": ["region"],
    })
}

/// Calls a tool.
///
/// # Errors
/// If there is no such tool, or the client lacks a capability that the tool needs.
pub async fn call(
    request: CallToolRequestParams,
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    let name: &str = &request.name;
    if questions::TOOLS.contains(&name) {
        let said = ClientState {
            answers: request.input_responses,
            state: request.request_state,
            client: context.client_capabilities().unwrap_or_default(),
        };
        if let Some(asked) = questions::next(name, &said)? {
            return Ok(asked.into());
        }
        let text = ContentBlock::text("Thank you.");
        return Ok(CallToolResult::success(vec![text]).into());
    }
    Ok(answered(name, context).await?.into())
}

/// Returns the answer of a tool that asks for no input.
async fn answered(
    name: &str,
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResult, ErrorData> {
    let content = match name {
        "test_simple_text" => vec![ContentBlock::text("Some text.")],
        "test_image_content" => vec![ContentBlock::image(PNG, "image/png")],
        "test_audio_content" => vec![ContentBlock::audio(WAV, "audio/wav")],
        "test_embedded_resource" => vec![embedded()],
        "test_multiple_content_types" => vec![
            ContentBlock::text("A text, a picture and a resource:"),
            ContentBlock::image(PNG, "image/png"),
            embedded(),
        ],
        "test_error_handling" => {
            let text = ContentBlock::text("This tool never works.");
            return Ok(CallToolResult::error(vec![text]));
        }
        "test_tool_with_progress" => {
            report_progress(context).await?;
            vec![ContentBlock::text("Done.")]
        }
        "test_missing_capability" => {
            needs_sampling(context)?;
            vec![ContentBlock::text("It could be asked.")]
        }
        // These tools neither ask nor log anything: the answer comes at once.
        "test_streaming_elicitation" | "test_logging_tool" | SCHEMA | HEADER => {
            vec![ContentBlock::text("Done.")]
        }
        _ => return Err(ErrorData::invalid_params("there is no such tool", None)),
    };
    Ok(CallToolResult::success(content))
}

fn embedded() -> ContentBlock {
    let text = json!({"kept": true}).to_string();
    let contents = ResourceContents::text(text, "test://embedded");
    ContentBlock::resource(contents.with_mime_type("application/json"))
}

/// Reports progress three times, so that the answer is a stream.
async fn report_progress(context: &RequestContext<RoleServer>) -> Result<(), ErrorData> {
    let Some(token) = context.meta.get_progress_token() else {
        return Ok(());
    };
    for done in [0.0, 50.0, 100.0] {
        let said = ProgressNotificationParam::new(token.clone(), done).with_total(100.0);
        let told = context.peer.notify_progress(said).await;
        told.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
    }
    Ok(())
}

fn needs_sampling(context: &RequestContext<RoleServer>) -> Result<(), ErrorData> {
    let client = context.client_capabilities().unwrap_or_default();
    if client.sampling.is_some() {
        return Ok(());
    }
    let mut needed = ClientCapabilities::default();
    needed.sampling = Some(SamplingCapability::default());
    Err(ErrorData::missing_required_client_capability(needed))
}
