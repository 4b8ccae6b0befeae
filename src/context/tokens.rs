//! Counts tokens. OpenAI's encodings are embedded. For other models they give an estimate, which
//! recorded usage can calibrate.

mod calibration;
mod encodings;
mod tally;

use super::provider::Provider;

pub use calibration::{Calibration, calibrate};
pub use tally::{
    AUDIO_TOKENS, FILE_TOKENS, IMAGE_LOW_TOKENS, IMAGE_TOKENS, MESSAGE_TOKENS, Tally, TextKey,
    TokenMemo,
};

/// An encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Encoding {
    O200kBase,
    Cl100kBase,
}

/// Counts tokens for a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Counter {
    /// The encoding in use.
    pub encoding: Encoding,
    /// Whether it is the model's own encoding.
    pub exact: bool,
}

/// The encoding and provider that a count is valid for. Each provider gets content in its own
/// format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CountTarget {
    pub encoding: Encoding,
    pub provider: Provider,
}

impl CountTarget {
    /// Number of different values.
    pub(crate) const COUNT: usize = Encoding::COUNT * Provider::ALL.len();

    /// Index of the value.
    pub fn index(self) -> usize {
        self.provider as usize * Encoding::COUNT + self.encoding as usize
    }
}

impl Encoding {
    /// Number of encodings.
    const COUNT: usize = 2;

    /// OpenAI's name for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::O200kBase => "o200k_base",
            Self::Cl100kBase => "cl100k_base",
        }
    }
}

impl Counter {
    /// Returns the counter for a model id (with or without a provider's prefix, as in
    /// `openai/gpt-4o`). Counts are exact for OpenAI's models. For other models and an empty id,
    /// `o200k_base` gives an estimate.
    #[must_use]
    pub fn for_model(model: &str) -> Self {
        const CL100K: [&str; 3] = ["gpt-4-", "gpt-3.5", "text-embedding-"];
        const O200K: [&str; 8] = [
            "gpt-4o", "gpt-4.1", "gpt-4.5", "gpt-5", "chatgpt-", "o1", "o3", "o4",
        ];
        let name = model.rsplit('/').next().unwrap_or(model);
        let starts = |names: &[&str]| names.iter().any(|start| name.starts_with(start));
        if starts(&O200K) {
            return Self {
                encoding: Encoding::O200kBase,
                exact: true,
            };
        }
        let exact = name == "gpt-4" || starts(&CL100K);
        let encoding = if exact {
            Encoding::Cl100kBase
        } else {
            Encoding::O200kBase
        };
        Self { encoding, exact }
    }

    /// Returns the number of tokens of a text, in linear time.
    #[must_use]
    pub fn count(self, text: &str) -> u64 {
        self.encoding.tokenizer().count(text) as u64
    }
}
