//! A request in the making: its items in order, each with the events that it
//! came from, its tokens, and what became of it.
//!
//! Calls and their results are one item, a [`Step`], so that nothing that drops
//! or moves items can tear them apart.

use std::borrow::Cow;

use treering_domain::{Config, ContentPart, EventRef, JsonText, ToolDefinition};

use super::{
    provider::Provider,
    shared::{Part, Parts, SharedContent},
    steps,
};

/// Part of a request that has its own line in the budget.
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
    /// Results of finished turns' calls. A share of `Messages`' steps in the
    /// budget, and what can be shortened to snapshots.
    ToolResults,
    OpenTurn,
    Guidance,
    DialogueSummary,
    Knowledge,
    ActiveContext,
    LongTermContext,
    /// What a library user's enhancer added.
    Other,
}

/// What became of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Fate {
    /// It is in, as it is.
    #[default]
    Kept,
    /// It is in, with less than it had.
    Shortened,
    /// It is out. Adapters pass it over.
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

/// Who made a step: reasoning goes back only to them.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Maker {
    /// For example `anthropic`; empty: not known.
    pub provider: String,
    /// For example `claude-sonnet-4-5`; empty: not known.
    pub model: String,
}

/// What a request is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    /// Whose body it is to become.
    pub provider: Provider,
    /// Model settings; `model_id` is the model that it will be sent to.
    pub config: Config,
    /// The tools on offer: core ones in the order of their definition, then
    /// discovered ones in the order of their discovery.
    pub tools: Vec<ToolDefinition>,
    /// Tokens of `tools`.
    pub tools_tokens: u64,
    /// In the order of the request.
    pub items: Vec<Item>,
    /// What the caller should know.
    pub warnings: Vec<String>,
}

/// A piece of a request that is kept, shortened or dropped as a whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// Its line in the budget.
    pub section: Section,
    /// The events that it came from; none: the pipeline made it.
    pub events: Vec<EventRef>,
    /// Name of the enhancer that put it in.
    pub enhancer: Cow<'static, str>,
    /// What it says. Other requests may hold the same: see
    /// [`SharedContent::make_mut`].
    pub content: SharedContent,
    /// Turn in the window, from 1; 0: it belongs to none.
    pub turn: u32,
    /// Tokens as it is now; 0 when it was dropped.
    pub tokens: u64,
    /// Tokens that it had whole.
    pub whole_tokens: u64,
    /// What became of it.
    pub fate: Fate,
    /// Why it is in, shortened or out. For people.
    pub reason: Cow<'static, str>,
    /// It may change or move in the next request: it comes after everything that
    /// must stay byte-equal.
    pub is_volatile: bool,
}

impl Item {
    /// An item as an enhancer puts it in: kept, of no turn and no event, its
    /// tokens still to be counted by the pipeline.
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

    /// The step that it is, if it is one.
    #[must_use]
    pub fn step(&self) -> Option<&Step> {
        match &*self.content {
            Content::Step(step) => Some(step),
            Content::Instruction(_) | Content::Message(_) => None,
        }
    }

    /// Returns whether the user said it. A late result is told as a message, but is not the
    /// user's.
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

    /// Returns whether the model says something with it, and does not only call.
    #[must_use]
    pub fn is_answer(&self) -> bool {
        let says = |block: &Block| match block {
            Block::Part(part) => part.text().is_some_and(|text| !text.trim().is_empty()),
            Block::Call(_) => false,
        };
        self.step().is_some_and(|step| step.blocks.iter().any(says))
    }

    /// Returns whether the model says something with it and calls nothing: most turns end so.
    #[must_use]
    pub fn is_final(&self) -> bool {
        let calls = |step: &Step| step.calls().next().is_some();
        self.is_answer() && !self.step().is_some_and(calls)
    }

    /// Told as a message and nobody's word: it gives way like a result.
    #[must_use]
    pub fn is_told(&self) -> bool {
        matches!(&*self.content, Content::Message(message) if message.is_told)
    }
}

impl Draft {
    /// Tokens of what is in: the tools, and every item that was not dropped.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        steps::note(self.items.len());
        let items: u64 = self.items.iter().map(|item| item.tokens).sum();
        self.tools_tokens + items
    }
}

/// What an item says.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// An instruction that holds for the whole request. These come first.
    Instruction(String),
    /// Something that is said to the model.
    Message(Message),
    /// Something that the model said and did, with what came of it.
    Step(Step),
}

/// Something that is said to the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub speaker: Speaker,
    /// In order.
    pub parts: Parts,
    /// Name of the author within the role, or empty.
    pub author: String,
    /// Nobody's word: a harness put it into the user's place, or it tells what a tool
    /// returned too late. It may be cut like a result.
    pub is_told: bool,
}

impl Message {
    /// A message of one text.
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

/// One answer of the model: what it said, the calls that it made, and their
/// outcomes. A step without calls is a plain assistant message.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Step {
    /// In the order in which the model made them.
    pub blocks: Vec<Block>,
    /// Who made it.
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
    pub fn calls_mut(&mut self) -> impl Iterator<Item = &mut Call> {
        self.blocks.iter_mut().filter_map(|block| match block {
            Block::Call(call) => Some(call),
            Block::Part(_) => None,
        })
    }
}

/// A piece of a step.
#[derive(Clone, Debug, PartialEq)]
// Most blocks are calls.
#[allow(clippy::large_enum_variant)]
pub enum Block {
    /// Text, refusal, reasoning and the like. A reasoning part without text whose
    /// signature comes from Google belongs to the block after it.
    Part(Part),
    /// A tool call with its outcome.
    Call(Call),
}

/// A tool call in a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The id as it was recorded.
    pub call_id: String,
    /// The id in this request: unique in it, and the same in every later request
    /// of the branch until a compaction. Adapters map it further where their
    /// provider takes fewer characters.
    pub wire_id: String,
    /// Name of the tool.
    pub tool: String,
    /// As the model wrote them: JSON, perhaps not an object, or a text that is none.
    pub arguments: JsonText,
    /// Long texts in them were cut to fit.
    pub arguments_shortened: bool,
    /// The provider's id of the item that it is, or empty.
    pub item_id: String,
    /// Where it was requested.
    pub request: EventRef,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of a call, as the request tells it.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Its result, in full unless `shortened`.
    Result(ResultOutcome),
    /// The result in short, with a reference to the whole.
    Snapshot(Snapshot),
    /// There is no result; the text says why, for the model to read.
    Missing {
        /// For example "denied by alice: not on Fridays".
        why: String,
        /// The event that says so (a denial, a cancellation), if one does.
        event: Option<EventRef>,
        /// The call is still open: this may change in the next request.
        open: bool,
    },
}

/// A recorded result.
#[derive(Clone, Debug, PartialEq)]
pub struct ResultOutcome {
    /// Where it was recorded.
    pub event: EventRef,
    /// The tool did what was asked.
    pub success: bool,
    /// What went wrong, or empty.
    pub error_message: String,
    /// What it returned.
    pub parts: Parts,
    /// Its structured form, or absent.
    pub structured: JsonText,
    /// Parts were cut to fit: a reference to the whole is in the text.
    pub shortened: bool,
}

/// A finished call in short: `{tool_name, arguments, result_summary,
/// full_result_ref}`.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Where the result was recorded.
    pub event: EventRef,
    /// The tool did what was asked.
    pub success: bool,
    /// One or a few lines.
    pub summary: String,
    /// How the request names the whole result: see
    /// [`short_reference`](super::references::short_reference).
    pub reference: String,
    /// The summary was recorded by someone; false: it is the engine's extract.
    pub recorded: bool,
}

impl Snapshot {
    /// As the model reads it.
    #[must_use]
    pub fn text(&self) -> String {
        format!("[short {}] {}", self.reference, self.summary)
    }

    /// Reference to the whole result: `treering:CONVERSATION/REVISION`.
    #[must_use]
    pub fn full_result_ref(&self) -> String {
        full_result_ref(self.event)
    }
}

/// `treering:CONVERSATION/REVISION`: the place that `Tools.GetResult` reads.
#[must_use]
pub fn full_result_ref(event: EventRef) -> String {
    format!("treering:{}/{}", event.conversation, event.revision)
}
