//! The body of `generateContent` as types.

use std::borrow::Cow;

use serde::Serialize;

use super::super::json::{Fields, Raw};

/// Body of `POST /v1beta/models/{model}:generateContent`. The model is in the URL.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Body<'a> {
    /// `temperature` and others.
    #[serde(skip_serializing_if = "Fields::is_empty")]
    pub generation_config: Fields<'a>,
    /// The tool choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_config: Option<ToolConfig>,
    /// One entry with the declarations of all functions on offer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Tool<'a>>,
    /// The system prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_instruction: Option<SystemInstruction<'a>>,
    /// The conversation.
    pub contents: Vec<Content<'a>>,
}

/// The tool choice.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct ToolConfig {
    pub function_calling_config: FunctionCallingConfig,
}

/// The function choice.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FunctionCallingConfig {
    /// `AUTO`, `ANY` or `NONE`.
    pub mode: &'static str,
    /// Allowed functions, with `ANY`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed_function_names: Vec<String>,
}

/// Functions on offer.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct Tool<'a> {
    pub function_declarations: Vec<FunctionDeclaration<'a>>,
}

/// A function on offer.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct FunctionDeclaration<'a> {
    pub name: Cow<'a, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub description: &'a str,
    /// JSON Schema.
    pub parameters_json_schema: Raw<'a>,
}

/// The system prompt.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct SystemInstruction<'a> {
    pub parts: Vec<Part<'a>>,
}

/// Role of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Role {
    User,
    Model,
}

/// A message.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Content<'a> {
    pub role: Role,
    pub parts: Vec<Part<'a>>,
}

/// A part, with its thought signature.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct Part<'a> {
    #[serde(flatten)]
    pub data: Data<'a>,
    /// True for reasoning.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub thought: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thought_signature: Option<Cow<'a, str>>,
}

/// Content of a part.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub enum Data<'a> {
    Text(Cow<'a, str>),
    InlineData(Blob<'a>),
    FileData(FileData<'a>),
    FunctionCall(FunctionCall<'a>),
    FunctionResponse(FunctionResponse<'a>),
}

/// An inline medium.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Blob<'a> {
    /// For example `image/png`.
    pub mime_type: Cow<'a, str>,
    /// Base64.
    pub data: Cow<'a, str>,
}

/// A medium at a URL.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct FileData<'a> {
    pub mime_type: Cow<'a, str>,
    pub file_uri: &'a str,
}

/// A call.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct FunctionCall<'a> {
    pub name: Cow<'a, str>,
    /// A JSON object.
    pub args: Raw<'a>,
}

/// Outcome of a call.
#[derive(Clone, Debug, Serialize)]
pub struct FunctionResponse<'a> {
    /// The function's name.
    pub name: Cow<'a, str>,
    /// A JSON object: `output` or `error`, or the tool's own.
    pub response: Raw<'a>,
}
