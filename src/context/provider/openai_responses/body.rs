//! The body of Responses as types.

use std::borrow::Cow;

use serde::Serialize;

use super::super::json::{Fields, Raw};

/// Body of `POST /v1/responses`.
#[derive(Clone, Debug, Serialize)]
pub struct Body<'a> {
    /// The model; absent if unknown.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub model: &'a str,
    /// Always false.
    pub store: bool,
    /// `reasoning.encrypted_content`, for models that reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<&'static str>,
    /// `temperature` and others.
    #[serde(flatten)]
    pub parameters: Fields<'a>,
    /// The tool choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<Choice>,
    /// The tools on offer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Tool<'a>>,
    /// The system prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// The conversation.
    pub input: Vec<Item<'a>>,
}

/// `tool_choice`.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
#[allow(missing_docs)]
pub enum Choice {
    Word(&'static str),
    Tool { r#type: &'static str, name: String },
}

/// A tool on offer.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Tool<'a> {
    /// `function`.
    pub r#type: &'static str,
    pub name: Cow<'a, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub description: &'a str,
    /// JSON Schema.
    pub parameters: Raw<'a>,
    /// False unless the definition sets it, because recorded schemas may not fit the strict subset.
    pub strict: bool,
}

/// An item of the input.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Item<'a> {
    /// A message.
    Message(Message<'a>),
    /// Reasoning, directly before its item.
    Reasoning {
        /// `rs_…`.
        id: Cow<'a, str>,
        /// Summary that may be shown.
        summary: Vec<SummaryText<'a>>,
        /// Encrypted content as OpenAI sent it.
        encrypted_content: Cow<'a, str>,
    },
    /// A call.
    FunctionCall {
        /// `fc_…`, if OpenAI assigned it.
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<&'a str>,
        /// Id to which its output refers.
        call_id: Cow<'a, str>,
        /// Name of the tool.
        name: Cow<'a, str>,
        /// Arguments as the model wrote them, JSON or not.
        arguments: &'a str,
    },
    /// Outcome of a call.
    FunctionCallOutput {
        /// Id of its call.
        call_id: Cow<'a, str>,
        /// Text, or a list if there are media.
        output: Output<'a>,
    },
}

/// A message.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
#[allow(missing_docs)]
pub enum Message<'a> {
    Input {
        /// `user`, `system` or `developer`.
        role: &'static str,
        content: Vec<InputPart<'a>>,
    },
    Output {
        /// `msg_…`.
        id: String,
        /// `assistant`.
        role: &'static str,
        /// `completed`.
        status: &'static str,
        content: Vec<OutputPart<'a>>,
    },
}

/// A part of a message to the model.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum InputPart<'a> {
    InputText {
        text: Cow<'a, str>,
    },
    InputImage {
        image_url: Cow<'a, str>,
        detail: &'a str,
    },
    InputFile {
        #[serde(skip_serializing_if = "Option::is_none")]
        filename: Option<Cow<'a, str>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        file_data: Option<Cow<'a, str>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        file_url: Option<&'a str>,
    },
}

/// A part of a message of the model.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum OutputPart<'a> {
    OutputText {
        text: Cow<'a, str>,
        /// Always empty.
        annotations: [u8; 0],
    },
    Refusal {
        refusal: &'a str,
    },
}

/// A part of a reasoning summary.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct SummaryText<'a> {
    /// `summary_text`.
    pub r#type: &'static str,
    pub text: &'a str,
}

/// Outcome of a call.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
#[allow(missing_docs)]
pub enum Output<'a> {
    Text(Cow<'a, str>),
    Parts(Vec<InputPart<'a>>),
}
