//! Events: what is kept, and in what envelope.

use std::{collections::BTreeMap, num::NonZeroU32};

use bytes::Bytes;

use super::{
    chain::ChainHash,
    id::{
        BranchId, BranchName, ConversationId, EventId, Namespace, Position, Revision,
        TimestampMicros,
    },
    kind::{EventBody, EventKind},
    message::{JsonText, RawMessage},
    tags::Tags,
};

/// Everything about a stored event but its body.
#[derive(Clone, Debug, PartialEq)]
pub struct EventHeader {
    /// Its id.
    pub id: EventId,
    /// The tenant it belongs to.
    pub namespace: Namespace,
    /// The conversation it belongs to.
    pub conversation: ConversationId,
    /// The branch it was appended to.
    pub branch: BranchId,
    /// Its place in the conversation.
    pub revision: Revision,
    /// What it is about, as a number: a newer version may have written it.
    pub kind: u16,
    /// When the engine recorded it.
    pub recorded_at: TimestampMicros,
    /// When it happened, if its author said.
    pub occurred_at: Option<TimestampMicros>,
    /// Who appended it, or empty.
    pub actor: String,
    /// The event that led to it.
    pub causation_id: Option<EventId>,
    /// What belongs together across conversations, or empty.
    pub correlation_id: String,
}

impl EventHeader {
    /// The kind, unless a newer version wrote it.
    #[must_use]
    pub fn kind(&self) -> Option<EventKind> {
        EventKind::from_number(self.kind)
    }
}

/// A stored event. The body is as it was received; `codec::body::decode` reads it.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredEvent {
    /// Everything but the body.
    pub header: EventHeader,
    /// Its place in the log.
    pub position: Position,
    /// BLAKE3 over the conversation's previous hash, the header and the body's
    /// hash.
    pub chain_hash: ChainHash,
    /// The protobuf body, with its tags in front (`codec::tags` takes them apart); of one that
    /// was erased, its stub.
    pub body: Bytes,
    /// Its content was erased.
    pub erased: bool,
}

/// A fact on its way in. `B` says what happened: an [`EventBody`], or such a one with
/// the bytes that it came in (`codec::body::EncodedBody`).
#[derive(Clone, Debug, PartialEq)]
pub struct NewEvent<B = EventBody> {
    /// The conversation it is for.
    pub conversation: ConversationId,
    /// The branch it is for, by name; none: the active one.
    pub branch: Option<BranchName>,
    /// When it happened, if known.
    pub occurred_at: Option<TimestampMicros>,
    /// Who appends it, or empty.
    pub actor: String,
    /// The event that led to it.
    pub causation_id: Option<EventId>,
    /// What belongs together across conversations, or empty.
    pub correlation_id: String,
    /// Its id, when its author chose one: a UUID of version 1 to 7, once in the namespace.
    /// None: the engine makes one.
    pub id: Option<EventId>,
    /// Its own idempotency key: appended again with the same content it is passed over, and
    /// the answer is where it is. Not in a batch that has a key.
    pub idempotency_key: Option<String>,
    /// What it is found by.
    pub tags: Tags,
    /// What happened.
    pub body: B,
}

impl<B> NewEvent<B> {
    /// An event for a conversation's active branch, with nothing but its body.
    #[must_use]
    pub fn new(conversation: ConversationId, body: B) -> Self {
        Self {
            conversation,
            branch: None,
            occurred_at: None,
            actor: String::new(),
            causation_id: None,
            correlation_id: String::new(),
            id: None,
            idempotency_key: None,
            tags: Tags::default(),
            body,
        }
    }

    /// The same event with another form of its body.
    ///
    /// # Errors
    /// Those of `form`.
    pub fn try_map<C, E>(self, form: impl FnOnce(B) -> Result<C, E>) -> Result<NewEvent<C>, E> {
        Ok(NewEvent {
            conversation: self.conversation,
            branch: self.branch,
            occurred_at: self.occurred_at,
            actor: self.actor,
            causation_id: self.causation_id,
            correlation_id: self.correlation_id,
            id: self.id,
            idempotency_key: self.idempotency_key,
            tags: self.tags,
            body: form(self.body)?,
        })
    }

    /// The same with a key to find it by.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<String>) -> Self {
        self.tags.key = key.into();
        self
    }

    /// The same with an id that its author chose.
    #[must_use]
    pub fn with_id(mut self, id: EventId) -> Self {
        self.id = Some(id);
        self
    }

    /// The same on another branch.
    #[must_use]
    pub fn on_branch(mut self, branch: BranchName) -> Self {
        self.branch = Some(branch);
        self
    }
}

/// What a branch's head must be for a batch to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ExpectedRevision {
    /// No check.
    #[default]
    Any,
    /// The conversation must not exist.
    NoStream,
    /// The head must be exactly this.
    Exact(Revision),
}

/// A check on a branch before a batch is taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Expectation {
    /// The conversation.
    pub conversation: ConversationId,
    /// The branch; none: the active one.
    pub branch: Option<BranchName>,
    /// What its head must be.
    pub expected: ExpectedRevision,
}

/// What the newest event with a key must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedNewest {
    /// There must be none.
    Absent,
    /// It must have this revision, in the conversation that it is of.
    Revision(Revision),
    /// It must be this event.
    Event(EventId),
}

impl std::fmt::Display for ExpectedNewest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Absent => f.write_str("none"),
            Self::Revision(revision) => write!(f, "revision {revision}"),
            Self::Event(id) => write!(f, "event {id}"),
        }
    }
}

/// A check on the newest event with a key in a branch's history, before a batch is taken.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpectedKey {
    /// The conversation.
    pub conversation: ConversationId,
    /// The branch; none: the active one.
    pub branch: Option<BranchName>,
    /// The events' key, see [`Tags::key`].
    pub key: String,
    /// What the newest of them must be.
    pub expected: ExpectedNewest,
}

/// A batch: all of its events or none.
#[derive(Clone, Debug, PartialEq)]
pub struct AppendCommand<B = EventBody> {
    /// The tenant.
    pub namespace: Namespace,
    /// Checked before anything else.
    pub expectations: Vec<Expectation>,
    /// Appending again with the same key and content answers with the first
    /// result.
    pub idempotency_key: Option<String>,
    /// Seconds for which the batch's key, or its events' own, are known; none: for ever.
    pub key_life_seconds: Option<NonZeroU32>,
    /// In order.
    pub events: Vec<NewEvent<B>>,
    /// The first event of a conversation, in front of the others if it does not exist.
    pub create_if_missing: Option<Box<NewEvent<B>>>,
    /// Checked when anything is to be appended.
    pub expected_keys: Vec<ExpectedKey>,
    /// Events whose ids are there already, with the same content, are passed over.
    pub skip_known: bool,
}

impl<B> AppendCommand<B> {
    /// A batch without conditions.
    #[must_use]
    pub fn new(namespace: Namespace, events: Vec<NewEvent<B>>) -> Self {
        Self {
            namespace,
            expectations: Vec::new(),
            idempotency_key: None,
            key_life_seconds: None,
            events,
            create_if_missing: None,
            expected_keys: Vec::new(),
            skip_known: false,
        }
    }
}

/// Where an appended event is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Its id.
    pub event: EventId,
    /// Its conversation.
    pub conversation: ConversationId,
    /// Its branch.
    pub branch: BranchId,
    /// Its place in the conversation.
    pub revision: Revision,
    /// Its place in the log.
    pub position: Position,
}

/// The answer to a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendOutcome {
    /// One for each event, in order.
    pub events: Vec<Appended>,
    /// The idempotency key was known: nothing was appended now.
    pub repeated_key: bool,
    /// What is legal and may still be a mistake.
    pub warnings: Vec<String>,
    /// The first event of a conversation that did not exist
    /// ([`AppendCommand::create_if_missing`]).
    pub created: Option<Appended>,
    /// Which of `events` were there already, by their id or their own idempotency key, in
    /// order: nothing was appended for them now.
    pub known: Vec<usize>,
}

/// Model settings. Parameter values are JSON text.
#[derive(Clone, Debug, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct Config {
    /// Which model.
    pub model_id: String,
    /// For example `planning` or `coding`.
    pub mode: String,
    /// Name to JSON text.
    pub parameters: BTreeMap<String, String>,
}

/// Where a sub-context or a fork into a new conversation came from.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ParentRef {
    /// The parent.
    pub conversation: ConversationId,
    /// Its branch.
    pub branch: BranchId,
    /// The place on it.
    pub revision: Revision,
    /// The call that asked for it, or empty.
    pub call_id: String,
}

/// The first event of every conversation.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct ConversationCreated {
    /// For people.
    pub title: String,
    /// Model settings.
    pub config: Config,
    /// Free labels.
    pub labels: BTreeMap<String, String>,
    /// What it was forked or spawned from.
    pub parent: Option<ParentRef>,
    /// The parent's history up to its revision is this conversation's too.
    pub shares_history: bool,
    /// Policy name to JSON text.
    pub policies: BTreeMap<String, String>,
    /// Where it was imported from, or empty.
    pub source: String,
    /// Its id there, or empty.
    pub source_id: String,
    /// The source's own description, or absent.
    pub source_meta: JsonText,
    /// Name to JSON text.
    pub metadata: BTreeMap<String, String>,
}

/// What changes of a conversation as a whole; the rest stays.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ConversationChanged {
    /// Its new title.
    pub title: Option<String>,
    /// Labels that it gets.
    pub set_labels: BTreeMap<String, String>,
    /// Labels that it loses.
    pub remove_labels: Vec<String>,
    /// Metadata that it gets, name to JSON text.
    pub set_metadata: BTreeMap<String, String>,
    /// Metadata that it loses.
    pub remove_metadata: Vec<String>,
}

/// The first event of every branch but the first one.
#[derive(Clone, Debug, PartialEq)]
pub struct BranchForked {
    /// Name of the new branch.
    pub name: BranchName,
    /// The branch it leaves.
    pub parent: BranchId,
    /// The last revision that both share.
    pub fork_revision: Revision,
    /// Its own system prompt, or empty.
    pub system_prompt: String,
}

/// A prompt of a branch.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct PromptSet {
    /// The author's id for it.
    pub id: String,
    /// The text.
    pub content: String,
}

/// A value of the active context.
#[derive(Clone, Debug, PartialEq)]
pub struct ContextSet {
    /// Key.
    pub key: String,
    /// Value.
    pub value: JsonText,
    /// Who provides it.
    pub provider: String,
}

/// How to use a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guidance {
    /// The tool.
    pub tool: String,
    /// What to know about it.
    pub text: String,
}

/// A thing that the conversation is about.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Entity {
    /// Its id in the world.
    pub id: String,
    /// What it is.
    pub kind: String,
    /// For people.
    pub name: String,
}

/// A summary of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SummaryRecorded {
    /// The text.
    pub content: String,
    /// First revision that it covers.
    pub from_revision: Revision,
    /// Last revision that it covers.
    pub to_revision: Revision,
}

/// Why a compaction was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum CompactionTrigger {
    Threshold,
    Manual,
    Imported,
}

/// A summary stands for everything up to a turn boundary, and one that an import brought
/// also for the steps since, unless its source kept them: see [`Compacted::stands_until`].
#[derive(Clone, Debug, PartialEq)]
pub struct Compacted {
    /// The text.
    pub summary: String,
    /// The end of a turn: what is later stays in the window.
    pub cut_revision: Revision,
    /// Turns that stay in the window; of one that an import brought, an open one counts, too.
    pub kept_turns: u32,
    /// Tokens of the window before.
    pub tokens_before: u64,
    /// Tokens of the window after.
    pub tokens_after: u64,
    /// Why.
    pub trigger: CompactionTrigger,
    /// What the source sent, when it says more.
    pub raw: Option<RawMessage>,
}

impl Compacted {
    /// The last revision that the summary stands for, of a compaction at `at`. What an
    /// import brought was made where it stands, also in the middle of a turn: unless its
    /// source kept turns, its model was shown no step from before it.
    #[must_use]
    pub fn stands_until(&self, at: Revision) -> Revision {
        match self.trigger {
            CompactionTrigger::Imported if self.kept_turns == 0 => Revision(at.0.saturating_sub(1)),
            CompactionTrigger::Imported
            | CompactionTrigger::Threshold
            | CompactionTrigger::Manual => self.cut_revision,
        }
    }
}

/// A judgement on an event, a turn or a branch.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct AnnotationAdded {
    /// What is judged; none: the whole branch.
    pub target: Option<Revision>,
    /// The turn that `target` is in, not the one event.
    pub whole_turn: bool,
    /// A number.
    pub score: Option<f64>,
    /// A word.
    pub label: String,
    /// A sentence.
    pub comment: String,
}
