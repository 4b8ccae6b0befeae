//! Queries to the engine and their answers, as plain values.

use std::{collections::BTreeMap, sync::Arc};

use super::meaning::VectorStats;
use treering_domain::{
    AppendedEvent, BranchId, BranchName, BranchState, ContentHash, ConversationId,
    ConversationInfo, ConversationKey, ConversationRow, Damage, EventHeader, EventId, EventKind,
    EventRef, JsonText, Namespace, NamespaceUse, Position, Quota, Revision, StoredEvent, Tags,
    TimestampMicros, ToolResultRecorded, limits::READ_SCAN_EVENTS_MAX,
};
pub use treering_projections::{ListOrder, ListPlace};

/// The source of the events of a read or subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventSource {
    /// The history of a branch: its ancestors' events up to each fork, then its own.
    Branch {
        /// The conversation.
        conversation: ConversationId,
        /// Branch name; `None` for the active branch.
        branch: Option<BranchName>,
    },
    /// All events of a conversation, on any branch, by revision.
    Conversation(ConversationId),
    /// All events of the namespace, by log position.
    Log,
}

/// A read of stored events.
#[derive(Clone, Debug)]
pub struct ReadQuery {
    /// The tenant.
    pub namespace: Namespace,
    /// The source of the events.
    pub source: EventSource,
    /// First revision (branch, conversation) or log offset (log), inclusive.
    pub from: u64,
    /// If `from` (`to` in a backward read) is the revision of an inherited event: the conversation
    /// of that event. `None` for the branch's own conversation.
    pub begins_in: Option<ConversationId>,
    /// Last revision or log offset, inclusive.
    pub to: u64,
    /// Read from the end to the start.
    pub backward: bool,
    /// Only these kinds; empty: all.
    pub kinds: Vec<EventKind>,
    /// Maximum number of events.
    pub limit: u64,
    /// Return only the tags of each event instead of its body, plus the type of a framework event;
    /// decode them with `codec::tags`.
    pub headers_only: bool,
    /// Only events that match the filter.
    pub filter: ReadFilter,
    /// Where an earlier read stopped with [`ReadError::ScanBound`](super::ReadError). This read
    /// continues there; everything else must be as in the earlier read.
    pub go_on_at: Option<ReadStop>,
    /// With a filter: stop with [`ReadError::ScanBound`](super::ReadError) after scanning this many
    /// events.
    pub scan_max: u64,
}

/// A filter on events. Empty or `None` fields match everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadFilter {
    /// The exact event key; an empty string matches events without a key. Indexed, unless empty.
    pub key: Option<String>,
    /// A prefix of the event key. Indexed.
    pub key_prefix: String,
    /// A framework event of one of these types. A single type is indexed.
    pub types: Vec<String>,
    /// The actor.
    pub actor: String,
    /// The correlation id.
    pub correlation_id: String,
    /// All of these attributes, with these values.
    pub attributes: BTreeMap<String, String>,
    /// Recorded at or after this time.
    pub recorded_from: Option<TimestampMicros>,
    /// … and before this time.
    pub recorded_to: Option<TimestampMicros>,
}

impl ReadFilter {
    /// Returns true when every event matches.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether a header matches the fields that a header can decide.
    pub(super) fn takes_header(&self, header: &EventHeader) -> bool {
        let is = |wanted: &str, has: &str| wanted.is_empty() || wanted == has;
        is(&self.actor, &header.actor)
            && is(&self.correlation_id, &header.correlation_id)
            && self
                .recorded_from
                .is_none_or(|from| header.recorded_at >= from)
            && self.recorded_to.is_none_or(|to| header.recorded_at < to)
    }

    /// Returns whether the filter needs more than the header.
    pub(super) fn asks_for_tags(&self) -> bool {
        self.key.is_some()
            || !self.key_prefix.is_empty()
            || !self.types.is_empty()
            || !self.attributes.is_empty()
    }

    pub(super) fn takes_tags(&self, type_name: &str, tags: &Tags) -> bool {
        self.key.as_ref().is_none_or(|key| *key == tags.key)
            && tags.key.starts_with(&self.key_prefix)
            && (self.types.is_empty() || self.types.iter().any(|wanted| wanted == type_name))
            && self
                .attributes
                .iter()
                .all(|(name, value)| tags.attributes.get(name) == Some(value))
    }

    pub(super) fn takes_kind(&self, kind: u16) -> bool {
        self.types.is_empty() || kind == EventKind::Custom.number()
    }
}

/// The first event that a read did not scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadStop {
    /// In a branch or a conversation.
    Event(EventRef),
    /// In the log.
    Offset(u64),
}

/// What to find in a branch's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventSelector {
    /// The newest event with this key.
    Key(String),
    /// The newest framework event of this type.
    Type(String),
    /// The newest event of this kind.
    Kind(EventKind),
}

/// A query for the newest events of some conversations.
#[derive(Clone, Debug)]
pub struct LatestQuery {
    /// The tenant.
    pub namespace: Namespace,
    /// The conversations.
    pub conversations: Vec<ConversationId>,
    /// The branch in each of them; `None` for the active one.
    pub branch: Option<BranchName>,
    /// What to find in each of them.
    pub wanted: Vec<EventSelector>,
    /// Consider only events up to this revision.
    pub as_of: Option<Revision>,
    /// See [`ReadQuery::headers_only`].
    pub headers_only: bool,
    /// Maximum size of all bodies in the answer, in bytes. The first body is always included.
    pub bytes_max: usize,
}

/// The name of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventName {
    /// Its id.
    Id(EventId),
    /// Its conversation and revision.
    Place(EventRef),
}

/// A query for events by name.
#[derive(Clone, Debug)]
pub struct GetQuery {
    /// The tenant.
    pub namespace: Namespace,
    /// The names of the events.
    pub names: Vec<EventName>,
    /// See [`ReadQuery::headers_only`].
    pub headers_only: bool,
    /// See [`LatestQuery::bytes_max`].
    pub bytes_max: usize,
}

/// An event that was looked up.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundEvent {
    /// The event; `None` if it does not exist.
    pub event: Option<NamedEvent>,
    /// Its body was omitted because the answer was full; it has only the tags.
    pub body_left_out: bool,
}

/// The newest event that matched.
#[derive(Clone, Debug, PartialEq)]
pub struct LatestEvent {
    /// The queried conversation.
    pub conversation: ConversationId,
    /// The selector that it matched.
    pub wanted: EventSelector,
    /// The result.
    pub got: FoundEvent,
}

impl ReadQuery {
    /// Creates a query for all events of a source, forward.
    #[must_use]
    pub fn all(namespace: Namespace, source: EventSource) -> Self {
        Self {
            namespace,
            source,
            from: 0,
            begins_in: None,
            to: u64::MAX,
            backward: false,
            kinds: Vec::new(),
            limit: u64::MAX,
            headers_only: false,
            filter: ReadFilter::default(),
            go_on_at: None,
            scan_max: READ_SCAN_EVENTS_MAX,
        }
    }
}

/// An event with the current name of its branch.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedEvent {
    /// The event.
    pub event: StoredEvent,
    /// Name of its branch; `None` when read from the whole log.
    pub branch: Option<BranchName>,
}

/// Where a subscription starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartAfter {
    /// After this revision (branch, conversation) or log offset (log); 0 for the start.
    Place(u64),
    /// With the next event.
    Now,
}

/// A subscription.
#[derive(Clone, Debug)]
pub struct SubscribeQuery {
    /// The tenant.
    pub namespace: Namespace,
    /// The source of the events.
    pub source: EventSource,
    /// Where to start.
    pub start: StartAfter,
    /// Only these kinds; empty: all.
    pub kinds: Vec<EventKind>,
}

/// An item of a subscription.
#[derive(Clone, Debug)]
pub enum SubscriptionItem {
    /// An event.
    Event(Box<NamedEvent>),
    /// All existing events have been delivered; live events follow.
    CaughtUp(Position),
    /// The reader was slower than the writers. The subscription reads from the log again; nothing
    /// is lost.
    FellBehind(Position),
}

/// A query for a page of conversations.
#[derive(Clone, Debug)]
pub struct ListQuery {
    /// The tenant.
    pub namespace: Namespace,
    /// Maximum number of conversations.
    pub limit: usize,
    /// [`ConversationPage::next`] of the previous page.
    pub after: Option<ListPlace>,
    /// Only those imported from this source.
    pub source: Option<String>,
    /// The sort order.
    pub order: ListOrder,
    /// Oldest first; otherwise newest first.
    pub ascending: bool,
}

/// A page of conversations.
#[derive(Clone, Debug)]
pub struct ConversationPage {
    /// The conversations, in the requested order.
    pub conversations: Vec<ConversationSummary>,
    /// Where the next page starts; `None` on the last page.
    pub next: Option<ListPlace>,
}

/// Conversations that match a part of an id.
#[derive(Clone, Debug)]
pub struct PartialIdMatches {
    /// At most as many as requested.
    pub conversations: Vec<ConversationSummary>,
    /// More conversations match.
    pub more: bool,
}

/// A summary of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct ConversationSummary {
    /// Its id.
    pub id: ConversationId,
    /// Title, source, labels, parent.
    pub info: Arc<ConversationInfo>,
    /// The last revision on any branch.
    pub head: Revision,
    /// The number of branches.
    pub branch_count: u64,
    /// The active branch.
    pub active: BranchId,
    /// The active branch's name.
    pub active_name: BranchName,
    /// The conversation accepts no more events.
    pub sealed: bool,
    /// Log position of the first event.
    pub first_position: Position,
    /// When the first event was recorded.
    pub created_at: TimestampMicros,
    /// When the last event was recorded.
    pub updated_at: TimestampMicros,
    /// When the first event happened according to its author; if the author gave no time, when it
    /// was recorded.
    pub happened_from: TimestampMicros,
    /// The latest time at which one of its events happened.
    pub happened_to: TimestampMicros,
    /// Where the conversation becomes unreadable; `None` if it is intact.
    pub damage: Option<Arc<Damage>>,
}

/// The state of a conversation and of one branch.
#[derive(Clone, Debug)]
pub struct ConversationView {
    /// The conversation's summary.
    pub summary: ConversationSummary,
    /// The first branches, ordered by id.
    pub branches: Vec<Arc<BranchState>>,
    /// There are more branches; [`Engine::branches`](crate::Engine::branches) returns them.
    pub more_branches: bool,
    /// The requested branch, as of the requested revision.
    pub branch: Arc<BranchState>,
}

/// A page of a conversation's branches.
#[derive(Clone, Debug)]
pub struct BranchPage {
    /// The branches, ordered by id.
    pub branches: Vec<Arc<BranchState>>,
    /// The active branch, whether or not it is on this page.
    pub active: BranchId,
    /// More branches follow.
    pub more: bool,
}

/// A filter on conversations. Empty or `None` fields match everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListFilter {
    /// Has all of these labels.
    pub labels: BTreeMap<String, String>,
    /// Has these metadata values, by name.
    pub metadata: BTreeMap<String, serde_json::Value>,
    /// Was forked or spawned from this conversation.
    pub parent: Option<ConversationId>,
    /// The title contains this text, case-insensitively.
    pub title: String,
    /// Sealed, or not sealed.
    pub sealed: Option<bool>,
    /// The last event was recorded at or after this time.
    pub updated_from: Option<TimestampMicros>,
    /// … and before this time.
    pub updated_to: Option<TimestampMicros>,
}

impl ListFilter {
    /// Returns true if the conversation matches.
    #[must_use]
    pub fn lets(&self, row: &ConversationRow) -> bool {
        let info = &row.info;
        let has_label = |(name, value): (&String, &String)| info.labels.get(name) == Some(value);
        let has_metadata = |(name, value): (&String, &serde_json::Value)| {
            let own = info.metadata.get(name);
            own.and_then(|text| serde_json::from_str(text).ok())
                .as_ref()
                == Some(value)
        };
        let title = || {
            info.title
                .to_lowercase()
                .contains(&self.title.to_lowercase())
        };
        self.sealed.is_none_or(|sealed| sealed == row.sealed)
            && self.updated_from.is_none_or(|from| row.updated_at >= from)
            && self.updated_to.is_none_or(|to| row.updated_at < to)
            && (self.parent.is_none()
                || self.parent == info.parent.as_ref().map(|parent| parent.conversation))
            && self.labels.iter().all(has_label)
            && (self.title.is_empty() || title())
            && self.metadata.iter().all(has_metadata)
    }
}

/// The address of a branch: the target of most reads and commands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BranchAddress {
    /// The tenant.
    pub namespace: Namespace,
    /// The conversation.
    pub conversation: ConversationId,
    /// The branch; `None` for the active one.
    pub branch: Option<BranchName>,
}

impl BranchAddress {
    /// Returns the conversation's key.
    pub(super) fn key(&self) -> ConversationKey {
        self.namespace.key(self.conversation)
    }

    /// Returns the address of a conversation's active branch.
    #[must_use]
    pub fn active(namespace: Namespace, conversation: ConversationId) -> Self {
        Self {
            namespace,
            conversation,
            branch: None,
        }
    }

    /// Returns the address of this branch in the same conversation.
    #[must_use]
    pub fn on(self, branch: BranchName) -> Self {
        Self {
            branch: Some(branch),
            ..self
        }
    }
}

/// A command to fork a branch.
#[derive(Clone, Debug)]
pub struct ForkCommand {
    /// The branch to fork from.
    pub address: BranchAddress,
    /// The last revision to share; `None` for the branch's head.
    pub at: Option<Revision>,
    /// Name of the new branch, or title of the new conversation.
    pub name: String,
    /// The new branch's own system prompt, or empty.
    pub system_prompt: String,
    /// Fork into a new conversation with this id.
    pub into: Option<ConversationId>,
    /// Make the new branch the active one.
    pub activate: bool,
    /// See [`treering_domain::AppendCommand::idempotency_key`].
    pub idempotency_key: Option<String>,
    /// The actor, or empty.
    pub actor: String,
}

/// Further options of a [`ForkCommand`]. All except `expected_head` apply only to forks into a new
/// conversation.
#[derive(Clone, Debug, Default)]
pub struct ForkOptions {
    /// The head that the parent branch must have; `None` for any.
    pub expected_head: Option<Revision>,
    /// Copy the labels of the parent conversation.
    pub keep_labels: bool,
    /// Copy the source of the parent conversation, but not its id at that source.
    pub keep_source: bool,
    /// Labels to set, on top of copied ones.
    pub labels: BTreeMap<String, String>,
    /// The new conversation's own source, or empty.
    pub source: String,
    /// Its id at the source, or empty.
    pub source_id: String,
}

/// A command to rewind a branch.
#[derive(Clone, Debug)]
pub struct RewindCommand {
    /// The branch.
    pub address: BranchAddress,
    /// The last revision to keep; `None` for the conversation's first event.
    pub to: Option<Revision>,
    /// The head that the branch must have; `None` for any.
    pub expected_head: Option<Revision>,
    /// Name for the old end of the branch; `None` for `rewound-` followed by its last revision.
    pub keep_as: Option<BranchName>,
    /// Idempotency key: a retry with the same key returns the first answer.
    pub idempotency_key: Option<String>,
    /// The actor, or empty.
    pub actor: String,
    /// Maximum number of removed events to return; the newest ones are returned.
    pub limit: usize,
    /// Return the removed events without bodies.
    pub headers_only: bool,
}

impl RewindCommand {
    /// Creates a command to rewind a branch to a revision.
    #[must_use]
    pub fn new(address: BranchAddress, to: Revision) -> Self {
        Self {
            address,
            to: Some(to),
            expected_head: None,
            keep_as: None,
            idempotency_key: None,
            actor: String::new(),
            limit: usize::MAX,
            headers_only: false,
        }
    }
}

/// The result of a rewind.
#[derive(Clone, Debug)]
pub struct RewindOutcome {
    /// The branch as it is now: a new one with the old name.
    pub branch: Arc<BranchState>,
    /// The old end of the branch; `None` if there was nothing to remove, so nothing was appended.
    pub kept: Option<Arc<BranchState>>,
    /// The conversation's active branch.
    pub active: BranchId,
    /// The appended events.
    pub events: Vec<AppendedEvent>,
    /// The removed events, oldest first, except those about branches or the whole conversation.
    pub went: Vec<NamedEvent>,
    /// More events were removed than returned.
    pub truncated: bool,
    /// The idempotency key was already known: this call appended nothing.
    pub repeated_key: bool,
}

/// The result of a fork.
#[derive(Clone, Debug)]
pub struct ForkOutcome {
    /// The conversation of the new branch.
    pub conversation: ConversationId,
    /// The new branch.
    pub branch: Arc<BranchState>,
    /// The appended events.
    pub events: Vec<AppendedEvent>,
}

/// One step of a lineage: a branch, and the part of it that belongs to the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineageStep {
    /// The conversation.
    pub conversation: ConversationId,
    /// The branch.
    pub branch: BranchId,
    /// The branch's current name.
    pub name: BranchName,
    /// The branch's own events up to this revision, inclusive, belong to the history.
    pub up_to: Revision,
    /// The revision of the next step's branch where this branch forked; zero for a root.
    pub forked_at: Revision,
}

/// The lineage of a branch.
#[derive(Clone, Debug)]
pub struct Lineage {
    /// The steps, from the branch itself up to the root.
    pub steps: Vec<LineageStep>,
    /// Conversations forked or spawned from this one.
    pub children: Vec<ConversationId>,
}

/// The difference between two branches.
#[derive(Clone, Debug)]
pub struct BranchDiff {
    /// The last event that both have.
    pub ancestor: Option<(ConversationId, Revision)>,
    /// Events that only the left one has.
    pub left: Vec<NamedEvent>,
    /// Events that only the right one has.
    pub right: Vec<NamedEvent>,
    /// A side has more events than were returned.
    pub truncated: bool,
}

/// The status of a tool call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum CallStatus {
    Requested,
    PendingApproval,
    Approved,
    Denied,
    Expired,
    Started,
    Succeeded,
    Failed,
    Cancelled,
}

/// A tool call with its approval and outcome on a branch.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// The conversation of the request.
    pub conversation: ConversationId,
    /// The queried branch.
    pub branch: BranchId,
    /// The branch's name.
    pub branch_name: BranchName,
    /// The provider's call id.
    pub call_id: String,
    /// Name of the tool.
    pub tool: String,
    /// The arguments as the model wrote them.
    pub arguments: JsonText,
    /// The arguments are not JSON.
    pub arguments_not_json: bool,
    /// The provider's id of the output item, or empty.
    pub item_id: String,
    /// BLAKE3 of the arguments.
    pub arguments_hash: ContentHash,
    /// The revision of the request.
    pub request_revision: Revision,
    /// The status.
    pub status: CallStatus,
    /// The approval status.
    pub approval: treering_domain::ApprovalStatus,
    /// Who decided the approval, or empty.
    pub decided_by: String,
    /// The reason for the decision, or empty.
    pub decision_reason: String,
    /// The revision of the decision.
    pub decision_revision: Option<Revision>,
    /// The revision of the start.
    pub started_revision: Option<Revision>,
    /// The revision of the result or cancellation.
    pub end_revision: Option<Revision>,
    /// Why it was cancelled.
    pub cancel_reason: Option<treering_domain::CancelReason>,
    /// The error, or empty.
    pub error_message: String,
    /// Execution time in milliseconds.
    pub execution_time_ms: Option<u64>,
    /// Length of the result's text, in bytes.
    pub result_bytes: u64,
    /// The first characters of the result's text.
    pub result_head: String,
    /// When it was requested.
    pub requested_at: TimestampMicros,
    /// When it ended.
    pub ended_at: Option<TimestampMicros>,
}

/// A query for tool calls.
#[derive(Clone, Debug)]
pub struct ToolHistoryQuery {
    /// The branch.
    pub address: BranchAddress,
    /// As of this revision; `None` for now.
    pub as_of: Option<Revision>,
    /// Only calls of this tool.
    pub tool: Option<String>,
    /// Maximum number of calls; the newest come first.
    pub limit: usize,
}

/// The name of a recorded result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhichResult {
    /// The revision of the result event, or of another event with text.
    Revision(Revision),
    /// The last result of a call with this id on the branch.
    CallId(String),
}

/// A recorded result with its text.
#[derive(Clone, Debug)]
pub struct RecordedResult {
    /// The result event.
    pub event: StoredEvent,
    /// Name of the tool; empty if the event is neither a call nor a result.
    pub tool: String,
    /// The result. If the event is not a result, only the call id is set, and only for a call.
    pub result: ToolResultRecorded,
    /// The text in which search counts bytes and lines; for a call, its arguments as written.
    pub text: String,
}

/// Statistics. Counts are for one namespace, sizes for the whole store.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Stats {
    pub conversations: u64,
    pub branches: u64,
    pub events: u64,
    pub pending_approvals: u64,
    pub events_by_kind: BTreeMap<String, u64>,
    pub head: Position,
    pub views_reached: Position,
    pub index_reached: Position,
    pub log_bytes: u64,
    pub views_bytes: u64,
    pub index_bytes: u64,
    pub log_segments: u64,
    /// Damaged conversations of the namespace.
    pub damaged_conversations: u64,
    /// Unreadable log positions of the whole store.
    pub unreadable_positions: u64,
    pub indexed_documents: u64,
    /// The vectors for search by meaning; `None` if it is off.
    pub vectors: Option<VectorStats>,
    /// The usage that counts against the namespace's quota.
    pub used: NamespaceUse,
    /// The namespace's quota.
    pub quota: Quota,
    pub data_dir: String,
    pub started_at: TimestampMicros,
}

/// Progress of a long operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The current step.
    pub what: &'static str,
    /// Amount done so far.
    pub done: u64,
    /// Total amount.
    pub total: u64,
}

/// A fault found by a verification.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fault {
    /// `log`, `blob`, `chain`, `views` or `index`.
    pub part: &'static str,
    /// The log position, if known.
    pub position: Option<Position>,
    /// The conversation, if known.
    pub conversation: Option<ConversationId>,
    /// The revision, if known.
    pub revision: Option<Revision>,
    /// What is wrong.
    pub message: String,
}

/// An item of a verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VerifyItem {
    /// Progress.
    Progress(Progress),
    /// A fault.
    Fault(Fault),
    /// The final outcome.
    Outcome(VerifyOutcome),
}

/// The outcome of a verification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyOutcome {
    /// No fault was found.
    pub sound: bool,
    /// Events read.
    pub events: u64,
    /// Conversations checked.
    pub conversations: u64,
    /// Blobs read.
    pub blobs: u64,
    /// Faults found.
    pub faults: u64,
}

/// The outcome of a rebuild.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RebuildOutcome {
    /// Events read.
    pub events: u64,
    /// Documents indexed.
    pub documents: u64,
    /// Conversations, of any namespace, that the new projections had to mark as damaged.
    pub damaged: u64,
    /// Events that could not be read and therefore were not indexed.
    pub not_indexed: u64,
}

/// An item of a rebuild.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RebuildItem {
    /// Progress.
    Progress(Progress),
    /// The final outcome.
    Outcome(RebuildOutcome),
}
