//! Tokens of items: of their texts, plus constants for framing and media.

use std::{fmt, sync::Arc};

use super::{Counter, Encoding};
use crate::{
    context::{
        draft::{Block, Call, Content, Draft, Fate, Item, Outcome, Step},
        shared::{Counts, SharedContent},
    },
    domain::{ContentPart, Media, MediaSource, ToolDefinition},
};

/// What a provider spends on a message around its text. OpenAI documents 3 or 4;
/// others do not say.
pub const MESSAGE_TOKENS: u64 = 4;
/// What a provider spends on a call or a result around its texts.
const CALL_TOKENS: u64 = 8;
/// What a provider spends on a tool's definition around its texts.
const TOOL_TOKENS: u64 = 8;
/// An image, unless it says `low`. Providers count by pixels (OpenAI: 765 for
/// 1024 × 1024; Anthropic: 1,398 for the same), which are not known here.
pub const IMAGE_TOKENS: u64 = 1_100;
/// An image with detail `low`.
pub const IMAGE_LOW_TOKENS: u64 = 85;
/// A file that is not text: about a page of it.
pub const FILE_TOKENS: u64 = 1_500;
/// A sound: about a minute of it.
pub const AUDIO_TOKENS: u64 = 1_500;
/// Shorter texts are counted anew: that is as fast as finding them.
const REMEMBERED_BYTES_MIN: usize = 6;

/// A text whose tokens are remembered: by content, so that forks share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TextKey {
    /// What it is counted with.
    pub encoding: Encoding,
    /// The first half of its BLAKE3.
    pub hash: u128,
}

/// Remembers counts from one request to the next.
pub trait TokenMemo: Send + Sync {
    /// A count that was put.
    fn get(&self, key: TextKey) -> Option<u64>;
    /// Keeps a count, or not.
    fn put(&self, key: TextKey, tokens: u64);
}

/// Counts a draft.
#[derive(Clone)]
pub struct Tally {
    counter: Counter,
    factor: f64,
    memo: Option<Arc<dyn TokenMemo>>,
    stopped: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

impl fmt::Debug for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tally")
            .field("counter", &self.counter)
            .field("factor", &self.factor)
            .finish_non_exhaustive()
    }
}

impl Tally {
    /// Counts as the counter does.
    #[must_use]
    pub fn new(counter: Counter, memo: Option<Arc<dyn TokenMemo>>) -> Self {
        Self {
            counter,
            factor: 1.0,
            memo,
            stopped: None,
        }
    }

    /// Counts nothing more once this says so: what is being made is not wanted any
    /// more, and whoever makes it looks for itself whether it is.
    #[must_use]
    pub fn until(self, stopped: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self {
            stopped: Some(Arc::new(stopped)),
            ..self
        }
    }

    pub(in crate::context) fn is_stopped(&self) -> bool {
        self.stopped.as_ref().is_some_and(|stopped| stopped())
    }

    /// The same, with every item's tokens multiplied.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        Self {
            factor,
            ..self.clone()
        }
    }

    /// What every count is multiplied with.
    pub(in crate::context) fn factor(&self) -> f64 {
        self.factor
    }

    /// What it counts with.
    #[must_use]
    pub fn counter(&self) -> Counter {
        self.counter
    }

    /// Tokens of a text, as part of something: not scaled.
    #[must_use]
    pub fn text(&self, text: &str) -> u64 {
        if self.is_stopped() {
            return 0;
        }
        let Some(memo) = self
            .memo
            .as_ref()
            .filter(|_| text.len() >= REMEMBERED_BYTES_MIN)
        else {
            return self.counter.count(text);
        };
        let hash = blake3::hash(text.as_bytes());
        let mut half = [0; 16];
        half.copy_from_slice(&hash.as_bytes()[..16]);
        let key = TextKey {
            encoding: self.counter.encoding,
            hash: u128::from_le_bytes(half),
        };
        if let Some(tokens) = memo.get(key) {
            return tokens;
        }
        let tokens = self.counter.count(text);
        memo.put(key, tokens);
        tokens
    }

    /// Scales a draft that was counted without a factor.
    pub fn scale_counted(&self, draft: &mut Draft) {
        draft.tools_tokens = self.scale(draft.tools_tokens);
        for item in &mut draft.items {
            item.tokens = self.scale(item.tokens);
            item.whole_tokens = self.scale(item.whole_tokens);
        }
    }

    /// Counts an item as it is now; what it had whole stays.
    pub fn measure_item(&self, item: &mut Item) {
        item.tokens = self.item(item);
    }

    /// Tokens of an item as it is now, scaled; 0 when it was dropped.
    #[must_use]
    pub fn item(&self, item: &Item) -> u64 {
        if item.fate == Fate::Dropped {
            return 0;
        }
        self.scale(self.counts(&item.content).whole)
    }

    /// Counts a content once, for all requests that hold it.
    fn counts(&self, content: &SharedContent) -> Counts {
        content.counts(self.counter.encoding, || {
            let counts = match &**content {
                Content::Instruction(text) => Counts::of(MESSAGE_TOKENS + self.text(text)),
                Content::Message(message) => {
                    let said = self.text(&message.author) + self.parts(&message.parts);
                    Counts::of(MESSAGE_TOKENS + said)
                }
                Content::Step(step) => self.step(step),
            };
            // What was stopped half way is no count.
            (!self.is_stopped()).then_some(counts)
        })
    }

    /// Tokens of tools on offer, scaled.
    #[must_use]
    pub fn tools(&self, tools: &[ToolDefinition]) -> u64 {
        let tokens = tools.iter().map(|tool| {
            let texts = [&tool.name, &tool.description];
            let texts: u64 = texts.into_iter().map(|text| self.text(text)).sum();
            TOOL_TOKENS + texts + self.text(tool.input_schema.as_str())
        });
        self.scale(tokens.sum())
    }

    /// Tokens of what came of a step's calls: its share of
    /// [`Section::ToolResults`](crate::context::Section), scaled.
    #[must_use]
    pub fn outcomes(&self, content: &SharedContent) -> u64 {
        self.scale(self.counts(content).outcomes)
    }

    fn scale(&self, tokens: u64) -> u64 {
        if self.factor == 1.0 {
            return tokens;
        }
        // Counts are far below 2^52.
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss
        )]
        let scaled = (tokens as f64 * self.factor).round() as u64;
        scaled
    }

    fn step(&self, step: &Step) -> Counts {
        let mut counts = Counts::of(MESSAGE_TOKENS);
        for block in &step.blocks {
            counts.whole += match block {
                Block::Part(part) => self.part(part),
                Block::Call(call) => {
                    let call_tokens = self.text(&call.tool) + self.text(call.arguments.as_str());
                    let outcome = self.outcome(call);
                    counts.outcomes += outcome;
                    CALL_TOKENS + call_tokens + outcome
                }
            };
        }
        counts
    }

    fn outcome(&self, call: &Call) -> u64 {
        CALL_TOKENS
            + match &call.outcome {
                Outcome::Result(result) => {
                    let structured = if result.parts.is_empty() {
                        self.text(result.structured.as_str())
                    } else {
                        0
                    };
                    self.text(&result.error_message) + self.parts(&result.parts) + structured
                }
                Outcome::Snapshot(snapshot) => self.text(&snapshot.text()),
                Outcome::Missing { why, .. } => self.text(why),
            }
    }

    fn parts(&self, parts: &[ContentPart]) -> u64 {
        parts.iter().map(|part| self.part(part)).sum()
    }

    fn part(&self, part: &ContentPart) -> u64 {
        match part {
            ContentPart::Text(text) | ContentPart::Refusal(text) => self.text(text),
            ContentPart::Json(json) => self.text(json.as_str()),
            ContentPart::Reasoning(reasoning) if reasoning.text.is_empty() => {
                // Base64 of something encrypted: what it counts as is not known.
                reasoning.signature.len() as u64 / 4
            }
            ContentPart::Reasoning(reasoning) => self.text(&reasoning.text),
            ContentPart::Image(image) if image.detail == "low" => IMAGE_LOW_TOKENS,
            ContentPart::Image(_) => IMAGE_TOKENS,
            ContentPart::Audio(_) => AUDIO_TOKENS,
            ContentPart::File(file) => self.file(file),
        }
    }

    fn file(&self, file: &Media) -> u64 {
        if let MediaSource::Data(data) = &file.source
            && file.media_type.starts_with("text/")
            && let Ok(text) = std::str::from_utf8(data)
        {
            return self.text(text);
        }
        FILE_TOKENS
    }
}
