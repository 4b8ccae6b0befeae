//! Counts tokens of items: their texts, plus constants for framing and media. Counts only content
//! that the provider is sent: not reasoning withheld from the model, unsupported media, or blank
//! messages.

use std::{fmt, sync::Arc};

use super::{CountTarget, Counter, Encoding};
use crate::{
    cancellation::CancellationToken,
    draft::{Block, Call, Content, Draft, Fate, Item, Message, Outcome, ResultOutcome, Step},
    provider::{self, MediaPlace, Provider, SentPart},
    shared::{SharedContent, TokenCounts},
};
use treering_domain::{ContentPart, Media, ToolDefinition};

/// Tokens of a message in addition to its text. OpenAI documents 3 or 4; others do not say.
pub const MESSAGE_TOKENS: u64 = 4;
/// Tokens of a call or result in addition to its texts.
const CALL_TOKENS: u64 = 8;
/// Tokens of a tool definition in addition to its texts.
const TOOL_TOKENS: u64 = 8;
/// Tokens of an image, unless its detail is `low`. Providers count by pixels (OpenAI: 765 for 1024
/// × 1024; Anthropic: 1,398), which are unknown here.
pub const IMAGE_TOKENS: u64 = 1_100;
/// Tokens of an image with detail `low`.
pub const IMAGE_LOW_TOKENS: u64 = 85;
/// Tokens of a file that is not text: about a page.
pub const FILE_TOKENS: u64 = 1_500;
/// Tokens of audio: about a minute.
pub const AUDIO_TOKENS: u64 = 1_500;
/// Shorter texts are not cached, because counting is as fast as a lookup.
const REMEMBERED_BYTES_MIN: usize = 6;

/// Key of a cached count: a hash of the content, so that forks share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TextKey {
    /// The encoding.
    pub encoding: Encoding,
    /// The first half of the text's BLAKE3 hash.
    pub hash: u128,
}

/// A cache of counts across requests.
pub trait TokenMemo: Send + Sync {
    /// Returns a cached count.
    fn get(&self, key: TextKey) -> Option<u64>;
    /// Caches a count, or ignores it.
    fn put(&self, key: TextKey, tokens: u64);
}

/// Counts the tokens of a draft.
#[derive(Clone)]
pub struct Tally {
    counter: Counter,
    /// Provider of the body.
    provider: Provider,
    /// The model that gets the request.
    model: Arc<str>,
    factor: f64,
    memo: Option<Arc<dyn TokenMemo>>,
    cancellation: CancellationToken,
}

impl fmt::Debug for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tally")
            .field("counter", &self.counter)
            .field("provider", &self.provider)
            .field("factor", &self.factor)
            .finish_non_exhaustive()
    }
}

impl Tally {
    /// Creates a tally for Treering's own format, which contains everything.
    #[must_use]
    pub fn new(counter: Counter, memo: Option<Arc<dyn TokenMemo>>) -> Self {
        Self {
            counter,
            provider: Provider::Neutral,
            model: "".into(),
            factor: 1.0,
            memo,
            cancellation: CancellationToken::default(),
        }
    }

    /// Returns the tally for the content that is sent to this provider and model.
    #[must_use]
    pub fn sent_to(self, provider: Provider, model: &str) -> Self {
        Self {
            provider,
            model: model.into(),
            ..self
        }
    }

    /// Stops counting once `cancellation` is cancelled. The counts are then incomplete; the caller
    /// must check for cancellation itself.
    #[must_use]
    pub fn until(self, cancellation: CancellationToken) -> Self {
        Self {
            cancellation,
            ..self
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.cancellation.is_cancelled()
    }

    /// Returns the tally with a factor for every count.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        Self {
            factor,
            ..self.clone()
        }
    }

    /// The factor.
    pub(crate) fn factor(&self) -> f64 {
        self.factor
    }

    /// The counter.
    #[must_use]
    pub fn counter(&self) -> Counter {
        self.counter
    }

    /// Returns the tokens of a text inside an item, unscaled.
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

    /// Counts the current form of an item. Does not change `whole_tokens`.
    pub(crate) fn measure_item(&self, item: &mut Item) {
        item.tokens = self.item(item);
    }

    /// Returns the scaled tokens of the current form of an item; 0 if it was dropped or nothing of
    /// it is sent.
    #[must_use]
    pub fn item(&self, item: &Item) -> u64 {
        if item.fate == Fate::Dropped {
            return 0;
        }
        let counts = self.counts(&item.content);
        let thoughts = match &*item.content {
            Content::Step(step) if counts.thinks => self.thoughts(step),
            _ => 0,
        };
        let framing = match counts.whole {
            0 if thoughts > 0 => MESSAGE_TOKENS,
            _ => 0,
        };
        self.scale(counts.whole + thoughts + framing)
    }

    /// Counts a content once for all requests that share it.
    fn counts(&self, content: &SharedContent) -> TokenCounts {
        let counted_for = CountTarget {
            encoding: self.counter.encoding,
            provider: self.provider,
        };
        content.counts(counted_for, || {
            let counts = match &**content {
                Content::Instruction(text) => TokenCounts::of(self.framed(self.text(text))),
                Content::Message(message) => TokenCounts::of(self.message(message)),
                Content::Step(step) => self.step(step),
            };
            // A cancelled count is incomplete.
            (!self.is_stopped()).then_some(counts)
        })
    }

    /// Adds the framing of a message. Only Treering's own format sends blank messages.
    fn framed(&self, said: u64) -> u64 {
        match (said, self.provider) {
            (0, Provider::Neutral) => MESSAGE_TOKENS,
            (0, _) => 0,
            (said, _) => MESSAGE_TOKENS + said,
        }
    }

    fn message(&self, message: &Message) -> u64 {
        let place = MediaPlace::of(message.speaker);
        let author = match self.provider.description().names_authors {
            true => self.text(&message.author),
            false => 0,
        };
        match self.parts(&message.parts, place) {
            0 => self.framed(0),
            said => self.framed(said + author),
        }
    }

    /// Returns the scaled tokens of tools on offer.
    #[must_use]
    pub fn tools<'t>(&self, tools: &'t [ToolDefinition]) -> u64 {
        let mut seen = std::collections::HashSet::new();
        // If a tool has several definitions, the first is sent.
        let sent = |tool: &&'t ToolDefinition| {
            seen.insert(tool.name.as_str()) || self.provider == Provider::Neutral
        };
        let tokens = tools.iter().filter(sent).map(|tool| {
            let texts = [&tool.name, &tool.description];
            let texts: u64 = texts.into_iter().map(|text| self.text(text)).sum();
            TOOL_TOKENS + texts + self.text(tool.input_schema.as_str())
        });
        self.scale(tokens.sum())
    }

    /// Returns the scaled tokens of the outcomes of a step's calls: its share of
    /// [`Section::ToolResults`](crate::Section).
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

    fn step(&self, step: &Step) -> TokenCounts {
        let mut counts = TokenCounts::of(0);
        for block in &step.blocks {
            match block {
                Block::Part(part) if matches!(**part, ContentPart::Reasoning(_)) => {
                    counts.thinks = true;
                }
                Block::Part(part) => counts.whole += self.part(part, MediaPlace::Assistant),
                Block::Call(call) => {
                    let called = self.text(&call.tool) + self.text(call.arguments.as_str());
                    let outcome = self.outcome(call);
                    counts.outcomes += outcome;
                    counts.whole += CALL_TOKENS + called + outcome;
                }
            }
        }
        counts.whole = self.framed(counts.whole);
        counts
    }

    /// Returns the tokens of the reasoning that is sent for a step.
    fn thoughts(&self, step: &Step) -> u64 {
        let sent = provider::sent_thoughts(self.provider, &self.model, step);
        let tokens = sent.into_iter().map(|reasoning| {
            if reasoning.text.is_empty() {
                // An estimate: it is unknown how encrypted reasoning is counted.
                return reasoning.signature.len() as u64 / 4;
            }
            self.text(&reasoning.text)
        });
        tokens.sum()
    }

    fn outcome(&self, call: &Call) -> u64 {
        CALL_TOKENS
            + match &call.outcome {
                Outcome::Result(result) => self.result(result),
                Outcome::Snapshot(snapshot) => self.text(&snapshot.text()),
                Outcome::Missing { why, .. } => self.text(why),
            }
    }

    fn result(&self, result: &ResultOutcome) -> u64 {
        let parts = self.parts(&result.parts, MediaPlace::Result);
        if self.provider == Provider::Neutral {
            let structured = match result.parts.is_empty() {
                true => self.text(result.structured.as_str()),
                false => 0,
            };
            return parts + structured + self.text(&result.error_message);
        }
        let texts = result.parts.iter().filter_map(ContentPart::text);
        let mut texts = texts.filter(|text| !text.trim().is_empty()).peekable();
        let structured = match texts.peek() {
            Some(_) => 0,
            None => self.text(result.structured.as_str()),
        };
        let error = result.error_message.trim();
        let is_said = !result.success && !texts.any(|text| text.contains(error));
        let error = if is_said { self.text(error) } else { 0 };
        parts + structured + error
    }

    fn parts(&self, parts: &[ContentPart], place: MediaPlace) -> u64 {
        parts.iter().map(|part| self.part(part, place)).sum()
    }

    fn part(&self, part: &ContentPart, place: MediaPlace) -> u64 {
        match provider::sent(self.provider, part, place) {
            SentPart::Nothing => 0,
            SentPart::Text(text) => self.text(&text),
            SentPart::Medium => match part {
                ContentPart::Image(image) => image_tokens(image),
                ContentPart::Audio(_) => AUDIO_TOKENS,
                _ => FILE_TOKENS,
            },
        }
    }
}

fn image_tokens(image: &Media) -> u64 {
    match image.detail.as_str() {
        "low" => IMAGE_LOW_TOKENS,
        _ => IMAGE_TOKENS,
    }
}
