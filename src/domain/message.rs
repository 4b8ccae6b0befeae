//! Messages and what they are made of.

use std::fmt;

use bytes::Bytes;

/// JSON text that has been checked to be JSON and is kept byte for byte: key
/// order, number text and duplicates survive.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct JsonText(Bytes);

impl JsonText {
    /// Takes bytes that the caller has checked to be JSON in UTF-8
    /// (`codec::json::check` does).
    #[must_use]
    pub fn from_checked(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The text's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// True when there is no value (proto fields that were not set).
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for JsonText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

impl Role {
    /// The name that providers use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// A piece of a message or of a tool result.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum ContentPart {
    Text(String),
    Image(Media),
    File(Media),
    Audio(Media),
    Reasoning(Reasoning),
    Refusal(String),
    Json(JsonText),
}

impl ContentPart {
    /// The part's text, if it is made of text.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Refusal(text) => Some(text),
            Self::Json(json) => Some(json.as_str()),
            Self::Reasoning(_) | Self::Image(_) | Self::File(_) | Self::Audio(_) => None,
        }
    }
}

/// An image, a file or a sound.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Media {
    /// For example `image/png`.
    pub media_type: String,
    /// The content, or where it is.
    pub source: MediaSource,
    /// File name, if any.
    pub name: String,
    /// Provider's hint (`low`, `high`).
    pub detail: String,
}

/// Where a medium's content is.
#[derive(Clone, Debug, PartialEq, Default)]
#[allow(missing_docs)]
pub enum MediaSource {
    #[default]
    Absent,
    Data(Bytes),
    Uri(String),
}

/// What a model thought, with the signature that its provider wants back.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Reasoning {
    /// The text, where the provider shows it.
    pub text: String,
    /// Opaque; goes back unmodified, to its own provider only.
    pub signature: Bytes,
    /// Encrypted by the provider: the signature is all there is.
    pub redacted: bool,
    /// Who made it.
    pub provider: String,
    /// Which model made it.
    pub model: String,
    /// The provider's id of it.
    pub id: String,
}

/// Tokens as the provider reported them.
#[derive(Clone, Debug, PartialEq, Default)]
#[allow(missing_docs)]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cache_read_input_tokens: u64,
    pub cache_creation_input_tokens: u64,
    pub reasoning_output_tokens: u64,
    pub model: String,
}

/// How [`RawMessage::data`] says what the source sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawEncoding {
    /// The message as it was.
    Whole,
    /// A JSON Patch (RFC 6902) from Treering's rendering to the message as it
    /// was, so that its text is stored once.
    JsonPatch,
    /// A JSON object of the fields that the message had beside what the event says.
    Rest,
}

/// What a provider or a source sent, kept without loss.
#[derive(Clone, Debug, PartialEq)]
pub struct RawMessage {
    /// The shape, for example `openai-chat`.
    pub origin: String,
    /// Who sent it.
    pub provider: String,
    /// Which model made it.
    pub model: String,
    /// How `data` is to be read.
    pub encoding: RawEncoding,
    /// See `encoding`.
    pub data: Bytes,
}

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct MessageAppended {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub parts: Vec<ContentPart>,
    /// Name of the author within the role.
    pub author: String,
    /// Tokens as the provider reported them.
    pub usage: Option<Usage>,
    /// What the source sent, when it says more than the parts.
    pub raw: Option<RawMessage>,
    /// The provider's id of the message.
    pub message_id: String,
    /// Why the model stopped.
    pub finish_reason: String,
    /// Role `tool` only: the call that a result without a recorded call named.
    pub tool_call_id: String,
    /// Role `tool` only: the tool that it named.
    pub tool_name: String,
}

impl MessageAppended {
    /// A message of one text.
    #[must_use]
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        Self::new(role, vec![ContentPart::Text(text.into())])
    }

    /// A message of these parts.
    #[must_use]
    pub fn new(role: Role, parts: Vec<ContentPart>) -> Self {
        Self {
            role,
            parts,
            author: String::new(),
            usage: None,
            raw: None,
            message_id: String::new(),
            finish_reason: String::new(),
            tool_call_id: String::new(),
            tool_name: String::new(),
        }
    }
}
