//! A draft as a provider's request body.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::{draft::Draft, policy::ContextPolicy};

/// Whose request body.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Provider {
    /// Treering's own shape: everything, nothing reshaped.
    #[default]
    Neutral,
    /// OpenAI Chat Completions.
    #[serde(rename = "openai-chat")]
    OpenAiChat,
    /// OpenAI Responses.
    #[serde(rename = "openai-responses")]
    OpenAiResponses,
    /// Anthropic Messages.
    Anthropic,
    /// Google Gemini `generateContent`.
    Gemini,
}

impl Provider {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Neutral,
        Self::OpenAiChat,
        Self::OpenAiResponses,
        Self::Anthropic,
        Self::Gemini,
    ];

    /// The name on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Neutral => "neutral",
            Self::OpenAiChat => "openai-chat",
            Self::OpenAiResponses => "openai-responses",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
        }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A name that no provider has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no provider {0:?}: use openai-chat, openai-responses, anthropic, gemini or neutral"
)]
pub struct UnknownProvider(pub String);

impl FromStr for Provider {
    type Err = UnknownProvider;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|provider| provider.as_str() == name)
            .ok_or_else(|| UnknownProvider(name.to_owned()))
    }
}

/// A body, and what it is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Rendered {
    /// JSON text. What must stay byte-equal comes before what may change.
    pub body: Vec<u8>,
    /// In the order in which a prompt cache reads them: tools, system prompt,
    /// then each message.
    pub units: Vec<Unit>,
    /// What was reshaped or left out, for people.
    pub warnings: Vec<String>,
}

/// A piece of a body that a prompt cache can share as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// BLAKE3 of its JSON text, without cache breakpoints.
    pub hash: [u8; 32],
    /// Length of its JSON text.
    pub bytes: u64,
    /// Items of the draft that went into it, by index; the tools have none.
    pub items: Vec<usize>,
}

/// Why a draft cannot become a body.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The provider takes no such medium, and the policy says to refuse.
    #[error("{provider} takes no {medium} here: {why}")]
    Unsupported {
        /// Whose body.
        provider: Provider,
        /// For example `audio/wav`.
        medium: String,
        /// What would be taken.
        why: String,
    },
    /// A body came out that the provider would refuse. A fault of Treering.
    #[error(
        "the request for {provider} breaks a rule of it: {message}; this is a fault of Treering, please report it"
    )]
    Illegal {
        /// Whose body.
        provider: Provider,
        /// The rule, and where.
        message: String,
    },
    /// A value could not be written as JSON.
    #[error("the request for {provider} cannot be written as JSON: {message}")]
    Json {
        /// Whose body.
        provider: Provider,
        /// What serde says.
        message: String,
    },
}

/// The draft as its provider's body, checked against the provider's rules.
///
/// # Errors
/// [`RenderError`].
pub fn render(draft: &Draft, policy: &ContextPolicy) -> Result<Rendered, RenderError> {
    let _ = policy;
    Err(RenderError::Illegal {
        provider: draft.provider,
        message: "no adapter".to_owned(),
    })
}
