//! Events and their envelope: headers, batches, and the payloads of most kinds.

use std::{collections::BTreeMap, num::NonZeroU32};

use bytes::Bytes;

use super::{
    chain::ChainHash,
    id::{
        BranchId, BranchName, ConversationId, ConversationKey, EventId, Namespace, Position,
        Revision, TimestampMicros,
    },
    kind::{EventBody, EventKind},
    message::{JsonText, RawMessage},
    tags::Tags,
};

/// The metadata of a stored event: everything except its body.
#[derive(Clone, Debug, PartialEq)]
pub struct EventHeader {
    /// The event's id.
    pub id: EventId,
    /// The tenant.
    pub namespace: Namespace,
    /// The event's conversation.
    pub conversation: ConversationId,
    /// The branch that it was appended to.
    pub branch: BranchId,
    /// Its revision in the conversation.
    pub revision: Revision,
    /// Its kind as a number, because a newer version may have written an unknown kind.
    pub kind: u16,
    /// When the engine recorded it.
    pub recorded_at: TimestampMicros,
    /// When it happened, if the author stated it.
    pub occurred_at: Option<TimestampMicros>,
    /// The actor who appended it, or empty.
    pub actor: String,
    /// The event that caused it.
    pub causation_id: Option<EventId>,
    /// An id that relates events across conversations, or empty.
    pub correlation_id: String,
}

impl EventHeader {
    /// Returns the key of the event's conversation.
    #[must_use]
    pub fn key(&self) -> ConversationKey {
        self.namespace.key(self.conversation)
    }

    /// Returns the kind, or `None` if a newer version wrote an unknown one.
    #[must_use]
    pub fn kind(&self) -> Option<EventKind> {
        EventKind::from_number(self.kind)
    }
}

/// A stored event. The body is encoded as it was received; `treering_proto::body::decode` decodes
/// it.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredEvent {
    /// Everything except the body.
    pub header: EventHeader,
    /// Its log position.
    pub position: Position,
    /// BLAKE3 over the previous chain hash of the conversation, the header and the body's hash.
    pub chain_hash: ChainHash,
    /// The protobuf body, preceded by the event's tags (`treering_proto::tags` splits them); the
    /// stub if the event was erased.
    pub body: Bytes,
    /// The event's content was erased.
    pub erased: bool,
}

/// An event to be appended. `B` is the body: an [`EventBody`], or one together with its encoded
/// bytes (`treering_proto::body::EncodedBody`).
#[derive(Clone, Debug, PartialEq)]
pub struct NewEvent<B = EventBody> {
    /// The target conversation.
    pub conversation: ConversationId,
    /// The target branch by name; `None` for the active branch.
    pub branch: Option<BranchName>,
    /// When it happened, if known.
    pub occurred_at: Option<TimestampMicros>,
    /// The actor who appends it, or empty.
    pub actor: String,
    /// The event that caused it.
    pub causation_id: Option<EventId>,
    /// An id that relates events across conversations, or empty.
    pub correlation_id: String,
    /// The id, if the author chose one: a UUID of version 1 to 7, unique in the namespace.
    /// `None`: the engine generates one.
    pub id: Option<EventId>,
    /// The event's own idempotency key. A retry with the same key and content appends nothing and
    /// returns the place of the stored event. Not allowed in a batch that has a key.
    pub idempotency_key: Option<String>,
    /// The event key and attributes by which the event can be found.
    pub tags: Tags,
    /// The body: what happened.
    pub body: B,
}

impl<B> NewEvent<B> {
    /// Creates an event for a conversation's active branch with only a body.
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

    /// Converts the body with `form` and keeps everything else.
    ///
    /// # Errors
    /// The error of `form`.
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

    /// Sets the event key.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<String>) -> Self {
        self.tags.key = key.into();
        self
    }

    /// Sets an id that the author chose.
    #[must_use]
    pub fn with_id(mut self, id: EventId) -> Self {
        self.id = Some(id);
        self
    }

    /// Sets the target branch.
    #[must_use]
    pub fn on_branch(mut self, branch: BranchName) -> Self {
        self.branch = Some(branch);
        self
    }
}

/// The condition on a branch's head for a batch to be accepted.
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

/// A condition on a branch that must hold for a batch to be accepted.
#[derive(Clone, Debug, PartialEq)]
pub struct Expectation {
    /// The conversation.
    pub conversation: ConversationId,
    /// The branch; `None` for the active one.
    pub branch: Option<BranchName>,
    /// What its head must be.
    pub expected: ExpectedRevision,
}

/// The condition on the newest event with an event key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedNewest {
    /// No event may have the key.
    Absent,
    /// It must have this revision in its own conversation.
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

/// A condition on the newest event with a key in a branch's history, checked before a batch is
/// accepted.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpectedKey {
    /// The conversation.
    pub conversation: ConversationId,
    /// The branch; `None` for the active one.
    pub branch: Option<BranchName>,
    /// The event key; see [`Tags::key`].
    pub key: String,
    /// What the newest event with the key must be.
    pub expected: ExpectedNewest,
}

/// A batch: all of its events are appended, or none.
#[derive(Clone, Debug, PartialEq)]
pub struct AppendCommand<B = EventBody> {
    /// The tenant.
    pub namespace: Namespace,
    /// Checked before the events, and only when something is to be appended.
    pub expectations: Vec<Expectation>,
    /// A retry with the same key and content returns the first result.
    pub idempotency_key: Option<String>,
    /// Lifetime of the batch's key or its events' keys, in seconds; `None`: they never expire.
    pub key_life_seconds: Option<NonZeroU32>,
    /// The events, in order.
    pub events: Vec<NewEvent<B>>,
    /// The first event of a conversation, prepended if the conversation does not exist.
    pub create_if_missing: Option<Box<NewEvent<B>>>,
    /// Checked only when something is to be appended.
    pub expected_keys: Vec<ExpectedKey>,
    /// Skip events whose id is already stored with the same content.
    pub skip_known: bool,
}

impl<B> AppendCommand<B> {
    /// Creates a batch without conditions.
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

/// Where an event was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendedEvent {
    /// The event's id.
    pub event: EventId,
    /// Its conversation.
    pub conversation: ConversationId,
    /// Its branch.
    pub branch: BranchId,
    /// Its revision.
    pub revision: Revision,
    /// Its log position.
    pub position: Position,
}

/// The answer to a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendOutcome {
    /// One entry per event, in order.
    pub events: Vec<AppendedEvent>,
    /// The idempotency key was already known: this call appended nothing.
    pub repeated_key: bool,
    /// Warnings about accepted content that may be a mistake.
    pub warnings: Vec<String>,
    /// The first event of the conversation, if [`AppendCommand::create_if_missing`] created it.
    pub created: Option<AppendedEvent>,
    /// Indexes into `events`, in order, of those that were already stored, recognised by id or by
    /// their own idempotency key. This call did not append them.
    pub known: Vec<usize>,
}

/// Model settings. Parameter values are JSON text.
#[derive(Clone, Debug, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct Config {
    /// The model's id.
    pub model_id: String,
    /// For example `planning` or `coding`.
    pub mode: String,
    /// Parameter name to JSON text.
    pub parameters: BTreeMap<String, String>,
}

/// The origin of a sub-context or of a fork into a new conversation.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ParentRef {
    /// The parent conversation.
    pub conversation: ConversationId,
    /// The parent's branch.
    pub branch: BranchId,
    /// The revision on that branch.
    pub revision: Revision,
    /// The tool call that requested it, or empty.
    pub call_id: String,
}

/// The first event of every conversation.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct ConversationCreated {
    /// Title for people.
    pub title: String,
    /// Model settings.
    pub config: Config,
    /// Free labels.
    pub labels: BTreeMap<String, String>,
    /// Its origin, if it was forked or spawned.
    pub parent: Option<ParentRef>,
    /// The parent's history up to the revision in `parent` also belongs to this conversation.
    pub shares_history: bool,
    /// Policy name to JSON text.
    pub policies: BTreeMap<String, String>,
    /// Where it was imported from, or empty.
    pub source: String,
    /// Its id at the source, or empty.
    pub source_id: String,
    /// The source's own description, or absent.
    pub source_meta: JsonText,
    /// Metadata name to JSON text.
    pub metadata: BTreeMap<String, String>,
}

/// A change to a conversation's title, labels or metadata. Everything else stays unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ConversationChanged {
    /// The new title.
    pub title: Option<String>,
    /// Labels to set.
    pub set_labels: BTreeMap<String, String>,
    /// Labels to remove.
    pub remove_labels: Vec<String>,
    /// Metadata to set, name to JSON text.
    pub set_metadata: BTreeMap<String, String>,
    /// Metadata to remove.
    pub remove_metadata: Vec<String>,
}

/// The first event of every branch except the main branch.
#[derive(Clone, Debug, PartialEq)]
pub struct BranchForked {
    /// Name of the new branch.
    pub name: BranchName,
    /// The branch that it forks from.
    pub parent: BranchId,
    /// The last revision that both share.
    pub fork_revision: Revision,
    /// The branch's own system prompt, or empty.
    pub system_prompt: String,
}

/// A system or user prompt of a branch.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct PromptSet {
    /// The author's id for the prompt.
    pub id: String,
    /// The text.
    pub content: String,
}

/// A value set in the active context.
#[derive(Clone, Debug, PartialEq)]
pub struct ContextSet {
    /// Key.
    pub key: String,
    /// Value.
    pub value: JsonText,
    /// Who provides the value.
    pub provider: String,
}

/// Instructions for using a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guidance {
    /// The tool's name.
    pub tool: String,
    /// The instructions.
    pub text: String,
}

/// A thing that the conversation is about.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Entity {
    /// Its id outside Treering.
    pub id: String,
    /// What kind of thing it is.
    pub kind: String,
    /// Name for people.
    pub name: String,
}

/// A summary of a range of revisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SummaryRecorded {
    /// The text.
    pub content: String,
    /// The first revision that it covers.
    pub from_revision: Revision,
    /// The last revision that it covers.
    pub to_revision: Revision,
}

/// What caused a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum CompactionTrigger {
    Threshold,
    Manual,
    Imported,
}

/// A summary that replaces everything up to the end of a turn. An imported compaction replaces
/// everything before it, unless its source kept turns: see [`Compacted::stands_until`].
#[derive(Clone, Debug, PartialEq)]
pub struct Compacted {
    /// The summary.
    pub summary: String,
    /// The end of a turn: later events stay in the window.
    pub cut_revision: Revision,
    /// Turns that stay in the window. For an imported compaction an open turn counts too.
    pub kept_turns: u32,
    /// Tokens of the window before the compaction.
    pub tokens_before: u64,
    /// Tokens of the window after the compaction.
    pub tokens_after: u64,
    /// What caused it.
    pub trigger: CompactionTrigger,
    /// What the source sent, if this event does not represent all of it.
    pub raw: Option<RawMessage>,
}

impl Compacted {
    /// Returns the last revision that the summary of a compaction at revision `at` replaces. An
    /// imported compaction may lie in the middle of a turn. Unless its source kept turns, the model
    /// saw no event before the compaction.
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
    /// The judged event; `None` for the whole branch.
    pub target: Option<Revision>,
    /// The judgement is about the whole turn that contains `target`.
    pub whole_turn: bool,
    /// A numeric score.
    pub score: Option<f64>,
    /// A one-word verdict.
    pub label: String,
    /// A comment.
    pub comment: String,
}

/// The label of a conversation whose source states no message times, so that only the time of
/// the import is known. Its value is [`NO_TIMES`].
pub const TIMES_LABEL: &str = "treering/times";

/// Label of an imported conversation: the last part of the path of its working directory.
pub const PROJECT_LABEL: &str = "project";

/// Label of an imported conversation: the git branch that it began on.
pub const GIT_BRANCH_LABEL: &str = "git_branch";

/// The value of [`TIMES_LABEL`].
pub const NO_TIMES: &str = "none";
