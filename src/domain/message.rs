//! Messages and their content.

use std::fmt;

use bytes::Bytes;

/// Validated JSON text, kept byte for byte: key order, number format and duplicate keys
/// survive.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct JsonText(Bytes);

impl JsonText {
    /// Wraps bytes that the caller has validated as UTF-8 JSON (`codec::json::check` does that).
    #[must_use]
    pub fn from_checked(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// Returns the text as bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// Returns true when there is no value, as for an unset proto field.
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

/// The role of a message's author.
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
    /// Returns the role's name as providers write it.
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
    /// Returns the part's text, or `None` for media and reasoning.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Refusal(text) => Some(text),
            Self::Json(json) => Some(json.as_str()),
            Self::Reasoning(_) | Self::Image(_) | Self::File(_) | Self::Audio(_) => None,
        }
    }
}

/// An image, a file or an audio clip.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Media {
    /// Media type, for example `image/png`.
    pub media_type: String,
    /// The content or its location.
    pub source: MediaSource,
    /// File name, if any.
    pub name: String,
    /// Provider's detail hint (`low`, `high`).
    pub detail: String,
}

/// Media types of text, besides `text/…` and those that end in [`TEXT_ENDS`].
const TEXT_TYPES: [&str; 11] = [
    "application/json",
    "application/x-ndjson",
    "application/xml",
    "application/yaml",
    "application/x-yaml",
    "application/toml",
    "application/sql",
    "application/javascript",
    "application/x-javascript",
    "application/typescript",
    "application/x-sh",
];
const TEXT_ENDS: [&str; 3] = ["+json", "+xml", "+yaml"];

/// Returns whether content of this media type, in any case and with parameters, is text.
#[must_use]
pub fn is_text_type(media_type: &str) -> bool {
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    let essence = essence.to_ascii_lowercase();
    essence.starts_with("text/")
        || TEXT_TYPES.contains(&essence.as_str())
        || TEXT_ENDS.iter().any(|end| essence.ends_with(end))
}

/// The content of an image, file or audio clip, or its location.
#[derive(Clone, Debug, PartialEq, Default)]
#[allow(missing_docs)]
pub enum MediaSource {
    #[default]
    Absent,
    Data(Bytes),
    Uri(String),
}

/// A model's reasoning, with the signature that its provider expects back.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Reasoning {
    /// The text, if the provider reveals it.
    pub text: String,
    /// Opaque signature, returned unmodified and only to the provider that made it.
    pub signature: Bytes,
    /// The provider encrypted the reasoning: only the signature is available.
    pub redacted: bool,
    /// The provider that produced it.
    pub provider: String,
    /// The model that produced it.
    pub model: String,
    /// The provider's id for it.
    pub id: String,
}

/// Token counts as reported by the provider.
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

/// How [`RawMessage::data`] represents what the source sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawEncoding {
    /// The complete original message.
    Whole,
    /// A JSON Patch (RFC 6902) from Treering's rendering to the original message, so that its
    /// text is stored only once.
    JsonPatch,
    /// A JSON object of the original fields that the event itself does not hold.
    Rest,
}

/// A message as its provider or source sent it, kept without loss.
#[derive(Clone, Debug, PartialEq)]
pub struct RawMessage {
    /// The wire format, for example `openai-chat`.
    pub origin: String,
    /// The provider that sent it.
    pub provider: String,
    /// The model that produced it.
    pub model: String,
    /// How to interpret `data`.
    pub encoding: RawEncoding,
    /// The data, in the form that `encoding` states.
    pub data: Bytes,
}

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct MessageAppended {
    /// The author's role.
    pub role: Role,
    /// The content.
    pub parts: Vec<ContentPart>,
    /// Name of the author within the role.
    pub author: String,
    /// Token counts as reported by the provider.
    pub usage: Option<Usage>,
    /// What the source sent, if the parts do not represent all of it.
    pub raw: Option<RawMessage>,
    /// The provider's id of the message.
    pub message_id: String,
    /// Why the model stopped.
    pub finish_reason: String,
    /// Role `tool` only: the call id of a result whose call was never recorded.
    pub tool_call_id: String,
    /// Role `tool` only: the tool name of such a result.
    pub tool_name: String,
}

impl MessageAppended {
    /// Creates a message with one text part.
    #[must_use]
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        Self::new(role, vec![ContentPart::Text(text.into())])
    }

    /// Creates a message with the given parts.
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
