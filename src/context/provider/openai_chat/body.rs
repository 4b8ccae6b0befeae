//! The body of Chat Completions as types.

use std::borrow::Cow;

use serde::Serialize;

use super::super::json::{Fields, Raw};

/// Body of `POST /v1/chat/completions`.
#[derive(Clone, Debug, Serialize)]
pub struct Body<'a> {
    /// The model; absent if unknown.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub model: &'a str,
    /// `temperature` and others.
    #[serde(flatten)]
    pub parameters: Fields<'a>,
    /// The tool choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<Choice>,
    /// The tools on offer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Tool<'a>>,
    /// The conversation.
    pub messages: Vec<Message<'a>>,
}

/// `tool_choice`.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
#[allow(missing_docs)]
pub enum Choice {
    Word(&'static str),
    Tool {
        r#type: &'static str,
        function: ChosenFunction,
    },
}

/// The function that must be called.
#[derive(Clone, Debug, Serialize)]
pub struct ChosenFunction {
    /// Its name.
    pub name: String,
}

/// A tool on offer.
#[derive(Clone, Debug, Serialize)]
pub struct Tool<'a> {
    /// `function`.
    pub r#type: &'static str,
    /// The function.
    pub function: Function<'a>,
}

/// Definition of a tool.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Function<'a> {
    pub name: Cow<'a, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub description: &'a str,
    /// JSON Schema.
    pub parameters: Raw<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// A message.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "role", rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Message<'a> {
    System {
        content: Cow<'a, str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<Cow<'a, str>>,
    },
    Developer {
        content: Cow<'a, str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<Cow<'a, str>>,
    },
    User {
        content: UserContent<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<Cow<'a, str>>,
    },
    Assistant {
        /// Null only beside calls or a refusal.
        content: Option<Cow<'a, str>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        refusal: Option<Cow<'a, str>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall<'a>>,
    },
    Tool {
        tool_call_id: Cow<'a, str>,
        content: Cow<'a, str>,
    },
}

/// Content of a user message.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
#[allow(missing_docs)]
pub enum UserContent<'a> {
    Text(Cow<'a, str>),
    Parts(Vec<Part<'a>>),
}

/// A part of a user message.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Part<'a> {
    Text { text: Cow<'a, str> },
    ImageUrl { image_url: ImageUrl<'a> },
    InputAudio { input_audio: InputAudio<'a> },
    File { file: File<'a> },
}

/// An image by URL, which may be a `data:` URL.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct ImageUrl<'a> {
    pub url: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<&'a str>,
}

/// Audio.
#[derive(Clone, Debug, Serialize)]
pub struct InputAudio<'a> {
    /// Base64.
    pub data: Cow<'a, str>,
    /// `wav` or `mp3`.
    pub format: &'static str,
}

/// A file.
#[derive(Clone, Debug, Serialize)]
pub struct File<'a> {
    /// Its name.
    pub filename: Cow<'a, str>,
    /// `data:` URL.
    pub file_data: Cow<'a, str>,
}

/// A call.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct ToolCall<'a> {
    pub id: Cow<'a, str>,
    /// `function`.
    pub r#type: &'static str,
    pub function: CalledFunction<'a>,
}

/// The called function.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct CalledFunction<'a> {
    pub name: Cow<'a, str>,
    /// JSON text as the model wrote it.
    pub arguments: &'a str,
}
