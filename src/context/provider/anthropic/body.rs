//! The body of Anthropic Messages as types.

use std::borrow::Cow;

use serde::Serialize;

use super::super::json::{Fields, Raw};

/// Body of `POST /v1/messages`.
#[derive(Clone, Debug, Serialize)]
pub struct Body<'a> {
    /// The model; absent if unknown.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub model: &'a str,
    /// `max_tokens`, which is required, `temperature` and others.
    #[serde(flatten)]
    pub parameters: Fields<'a>,
    /// The tool choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<Choice>,
    /// The tools on offer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Tool<'a>>,
    /// The system prompt.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub system: Vec<SystemBlock<'a>>,
    /// The conversation.
    pub messages: Vec<Message<'a>>,
}

/// `tool_choice`.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Choice {
    pub r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_parallel_tool_use: Option<bool>,
}

/// A tool on offer.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Tool<'a> {
    pub name: Cow<'a, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub description: &'a str,
    /// JSON Schema.
    pub input_schema: Raw<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_control: Option<CacheControl>,
}

/// A cache breakpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CacheControl {
    /// `ephemeral`.
    pub r#type: &'static str,
}

/// A block of the system prompt.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct SystemBlock<'a> {
    /// `text`.
    pub r#type: &'static str,
    pub text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_control: Option<CacheControl>,
}

/// Role of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Role {
    User,
    Assistant,
}

/// A message.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Message<'a> {
    pub role: Role,
    pub content: Vec<Block<'a>>,
}

/// A block of a message, with an optional cache breakpoint.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Block<'a> {
    #[serde(flatten)]
    pub content: Content<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_control: Option<CacheControl>,
}

/// Content of a block.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Content<'a> {
    Text {
        text: Cow<'a, str>,
    },
    Image {
        source: Source<'a>,
    },
    Document {
        source: Source<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        title: Option<&'a str>,
    },
    Thinking {
        thinking: &'a str,
        signature: Cow<'a, str>,
    },
    RedactedThinking {
        data: Cow<'a, str>,
    },
    ToolUse {
        id: Cow<'a, str>,
        name: Cow<'a, str>,
        /// A JSON object.
        input: Raw<'a>,
    },
    ToolResult {
        tool_use_id: Cow<'a, str>,
        content: Vec<Content<'a>>,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        is_error: bool,
    },
}

/// Source of a medium.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Source<'a> {
    Base64 {
        media_type: Cow<'a, str>,
        data: Cow<'a, str>,
    },
    Url {
        url: &'a str,
    },
}
