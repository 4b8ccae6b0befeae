//! The draft of a request: its items in order, each with its source events, its tokens and its
//! fate.
//!
//! A call and its result are in one item, a [`Step`], so dropping or moving items cannot separate
//! them.

use std::borrow::Cow;

use treering_domain::{Config, ContentPart, EventRef, JsonText, ToolDefinition};

use super::{
    provider::Provider,
    shared::{Part, Parts, SharedContent},
    steps,
};

/// Section of a request. Each has its own line in the budget.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Section {
    System,
    Tools,
    Compaction,
    /// Messages of finished turns, with the calls of their steps.
    Messages,
    /// Results of calls of finished turns. They belong to the steps in `Messages`, but have their
    /// own line because they can be shortened to digests.
    ToolResults,
    OpenTurn,
    Guidance,
    DialogueSummary,
    Knowledge,
    ActiveContext,
    LongTermContext,
    /// Items of an enhancer that the embedding program added.
    Other,
}

/// What became of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Fate {
    /// In the request, unchanged.
    #[default]
    Kept,
    /// In the request, shortened.
    Shortened,
    /// Not in the request. Adapters skip it.
    Dropped,
}

/// Who speaks in a message of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Speaker {
    /// A system message in the middle of a conversation.
    System,
    Developer,
    User,
}

/// Who produced a step. Reasoning is sent only to its maker.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Maker {
    /// For example `anthropic`; empty if unknown.
    pub provider: String,
    /// For example `claude-sonnet-4-5`; empty if unknown.
    pub model: String,
}

/// The parts of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    /// The provider that the body is for.
    pub provider: Provider,
    /// Model settings. `model_id` is the model that gets the request.
    pub config: Config,
    /// The tools on offer: defined tools in the order of definition, then discovered tools in the
    /// order of discovery.
    pub tools: Vec<ToolDefinition>,
    /// Tokens of `tools`.
    pub tools_tokens: u64,
    /// Items in the order of the request.
    pub items: Vec<Item>,
    /// Warnings for the caller.
    pub warnings: Vec<String>,
}

/// A part of a request that is kept, shortened or dropped as a whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// Its section.
    pub section: Section,
    /// Its source events; empty if the pipeline made it.
    pub events: Vec<EventRef>,
    /// Name of the enhancer that added it.
    pub enhancer: Cow<'static, str>,
    /// Its content. Other requests may share it: see [`SharedContent::make_mut`].
    pub content: SharedContent,
    /// Turn in the window, from 1; 0 if it belongs to none.
    pub turn: u32,
    /// Current tokens; 0 if it was dropped.
    pub tokens: u64,
    /// Tokens before it was shortened or dropped.
    pub whole_tokens: u64,
    /// What became of it.
    pub fate: Fate,
    /// Why it was added, shortened or dropped, as text for people.
    pub reason: Cow<'static, str>,
    /// Whether it may change or move in the next request. Such items come after everything that
    /// must stay byte-equal.
    pub is_volatile: bool,
}

impl Item {
    /// Creates an item that is kept and has no turn or events. The pipeline counts its tokens
    /// later.
    #[must_use]
    pub fn new(section: Section, enhancer: impl Into<Cow<'static, str>>, content: Content) -> Self {
        Self {
            section,
            events: Vec::new(),
            enhancer: enhancer.into(),
            content: content.into(),
            turn: 0,
            tokens: 0,
            whole_tokens: 0,
            fate: Fate::Kept,
            reason: Cow::Borrowed(""),
            is_volatile: false,
        }
    }

    /// Returns the step, if the item is one.
    #[must_use]
    pub fn step(&self) -> Option<&Step> {
        match &*self.content {
            Content::Step(step) => Some(step),
            Content::Instruction(_) | Content::Message(_) => None,
        }
    }

    /// Whether the user wrote the item. Notices of a harness, and late results that are sent as
    /// messages, do not count.
    #[must_use]
    pub fn is_of_user(&self) -> bool {
        let by_user = matches!(
            &*self.content,
            Content::Message(message)
                if message.speaker == Speaker::User
                    && message.parts.are_recorded()
                    && !message.is_told
        );
        by_user && self.section != Section::Compaction
    }

    /// Whether the model wrote text in this item, not only calls.
    #[must_use]
    pub fn is_answer(&self) -> bool {
        let says = |block: &Block| match block {
            Block::Part(part) => part.text().is_some_and(|text| !text.trim().is_empty()),
            Block::Call(_) => false,
        };
        self.step().is_some_and(|step| step.blocks.iter().any(says))
    }

    /// Whether the model wrote text and made no call. Most turns end that way.
    #[must_use]
    pub fn is_final(&self) -> bool {
        let calls = |step: &Step| step.calls().next().is_some();
        self.is_answer() && !self.step().is_some_and(calls)
    }

    /// Whether it is a message that the user did not write. The budget treats it like a result.
    #[must_use]
    pub fn is_told(&self) -> bool {
        matches!(&*self.content, Content::Message(message) if message.is_told)
    }
}

impl Draft {
    /// Tokens of the tools and of all items that were not dropped.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        steps::note(self.items.len());
        let items: u64 = self.items.iter().map(|item| item.tokens).sum();
        self.tools_tokens + items
    }
}

/// The content of an item.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// An instruction for the whole request. Instructions come first.
    Instruction(String),
    /// A message to the model.
    Message(Message),
    /// A message and calls of the model, with their outcomes.
    Step(Step),
}

/// A message to the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub speaker: Speaker,
    /// Content parts, in order.
    pub parts: Parts,
    /// Name of the author within the role, or empty.
    pub author: String,
    /// Whether the user did not write it: a harness wrote it in the user's role, or it carries a
    /// late tool result. It may be cut like a result.
    pub is_told: bool,
}

impl Message {
    /// A message with one text.
    #[must_use]
    pub fn text(speaker: Speaker, text: impl Into<String>) -> Self {
        Self {
            speaker,
            parts: vec![ContentPart::Text(text.into())].into(),
            author: String::new(),
            is_told: false,
        }
    }
}

/// One answer of the model: its messages, its calls and their outcomes. A step without calls is a
/// plain assistant message.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Step {
    /// In the order in which the model produced them.
    pub blocks: Vec<Block>,
    /// Who produced it.
    pub maker: Maker,
    /// The provider's id of the message, or empty.
    pub message_id: String,
}

impl Step {
    /// Its calls, in order.
    pub fn calls(&self) -> impl Iterator<Item = &Call> {
        self.blocks.iter().filter_map(|block| match block {
            Block::Call(call) => Some(call),
            Block::Part(_) => None,
        })
    }

    /// Its calls, in order.
    pub(crate) fn calls_mut(&mut self) -> impl Iterator<Item = &mut Call> {
        self.blocks.iter_mut().filter_map(|block| match block {
            Block::Call(call) => Some(call),
            Block::Part(_) => None,
        })
    }
}

/// A part of a step.
#[derive(Clone, Debug, PartialEq)]
// Most blocks are calls.
#[allow(clippy::large_enum_variant)]
pub enum Block {
    /// Text, refusal, reasoning and the like. A reasoning part without text whose signature comes
    /// from Google belongs to the block after it.
    Part(Part),
    /// A tool call with its outcome.
    Call(Call),
}

/// A tool call in a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The id as it was recorded.
    pub call_id: String,
    /// The id in this request. It is unique, and the same in every later request of the branch
    /// until a compaction. Adapters map it further if their provider accepts fewer characters.
    pub wire_id: String,
    /// Name of the tool.
    pub tool: String,
    /// Arguments as the model wrote them: JSON of any type, or a text that is not JSON.
    pub arguments: JsonText,
    /// Whether long texts in the arguments were cut.
    pub arguments_shortened: bool,
    /// The provider's id of the item, or empty.
    pub item_id: String,
    /// The event that requested it.
    pub request: EventRef,
    /// Outcome of the call.
    pub outcome: Outcome,
}

/// Outcome of a call in a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Its result, in full unless `shortened`.
    Result(ResultOutcome),
    /// Its digest, with a reference to the whole result.
    Snapshot(ResultDigest),
    /// There is no result. The text tells the model why.
    Missing {
        /// For example "denied by alice: not on Fridays".
        why: String,
        /// The event that caused it (a denial or cancellation), if any.
        event: Option<EventRef>,
        /// Whether the call is still open. The outcome may then change in the next request.
        open: bool,
    },
}

/// A recorded result.
#[derive(Clone, Debug, PartialEq)]
pub struct ResultOutcome {
    /// The event that recorded it.
    pub event: EventRef,
    /// Whether the tool succeeded.
    pub success: bool,
    /// Error message, or empty.
    pub error_message: String,
    /// Content that the tool returned.
    pub parts: Parts,
    /// Structured form, or absent.
    pub structured: JsonText,
    /// Whether parts were cut. The text then has a reference to the whole.
    pub shortened: bool,
}

/// Digest of a finished call: `{tool_name, arguments, result_summary, full_result_ref}`.
#[derive(Clone, Debug, PartialEq)]
pub struct ResultDigest {
    /// The event that recorded the result.
    pub event: EventRef,
    /// Whether the tool succeeded.
    pub success: bool,
    /// Summary of one or a few lines.
    pub summary: String,
    /// The reference to the whole result as this request writes it: see
    /// [`short_reference`](super::references::short_reference).
    pub reference: String,
    /// Whether the summary was recorded; false if the engine generated it.
    pub recorded: bool,
}

impl ResultDigest {
    /// The text that the model reads.
    #[must_use]
    pub fn text(&self) -> String {
        format!("[short {}] {}", self.reference, self.summary)
    }

    /// Returns the reference to the whole result: `treering:CONVERSATION/REVISION`.
    #[must_use]
    pub fn full_result_ref(&self) -> String {
        full_result_ref(self.event)
    }
}

/// Returns `treering:CONVERSATION/REVISION`, the reference that `Tools.GetResult` reads.
#[must_use]
pub fn full_result_ref(event: EventRef) -> String {
    format!("treering:{}/{}", event.conversation, event.revision)
}
