//! What can be asked of the engine, and what it answers. Plain values.

use std::{collections::BTreeMap, sync::Arc};

use crate::domain::{
    Appended, BranchId, BranchName, BranchState, ContentHash, ConversationId, ConversationInfo,
    ConversationRow, Damage, EventHeader, EventId, EventKind, EventRef, JsonText, Namespace,
    NamespaceUse, Position, Quota, Revision, Role, StoredEvent, Tags, TimestampMicros,
    ToolResultRecorded, limits::READ_SCAN_EVENTS_MAX,
};
use crate::search::{Reading, Scores};
pub use crate::views::{ListOrder, ListPlace};

/// Which events a read or a subscription is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The history of a branch: its ancestors' events up to each fork, then its
    /// own. None: the active branch.
    Branch {
        /// Conversation.
        conversation: ConversationId,
        /// Branch name.
        branch: Option<BranchName>,
    },
    /// All events of a conversation, on any branch, by revision.
    Conversation(ConversationId),
    /// All events of the namespace, by position.
    Log,
}

/// A read of stored events.
#[derive(Clone, Debug)]
pub struct ReadQuery {
    /// Tenant.
    pub namespace: Namespace,
    /// Which events.
    pub source: Source,
    /// First revision (branch, conversation) or log offset (log), inclusive.
    pub from: u64,
    /// The conversation that `from` (of a backward read `to`) is a revision of, when that is
    /// an inherited event of a branch; none: the branch's own.
    pub begins_in: Option<ConversationId>,
    /// Last one, inclusive.
    pub to: u64,
    /// From the end to the start.
    pub backward: bool,
    /// Only these kinds; empty: all.
    pub kinds: Vec<EventKind>,
    /// At most so many events.
    pub limit: u64,
    /// Of the bodies give only what the events are found by: `codec::tags` reads it, and of a
    /// framework's event its type.
    pub headers_only: bool,
    /// Only events that match all of this.
    pub filter: ReadFilter,
    /// Where an earlier read ended with [`ReadError::ScanBound`](super::ReadError): this one,
    /// which is the same otherwise, goes on there.
    pub go_on_at: Option<ReadStop>,
    /// With a filter, look at no more than so many events, and end with that error then.
    pub scan_max: u64,
}

/// What a read wants of events. What is empty or none wants nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadFilter {
    /// Their key, whole; an empty one: that they have none. Has an index, unless it is empty.
    pub key: Option<String>,
    /// What their key begins with. Has an index.
    pub key_prefix: String,
    /// One of these types of frameworks' events. One by itself has an index.
    pub types: Vec<String>,
    /// Who appended them.
    pub actor: String,
    /// What they belong to.
    pub correlation_id: String,
    /// All of these, with these values.
    pub attributes: BTreeMap<String, String>,
    /// Recorded then or later …
    pub recorded_from: Option<TimestampMicros>,
    /// … and before then.
    pub recorded_to: Option<TimestampMicros>,
}

impl ReadFilter {
    /// True when every event matches.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a header matches, as far as that can be told from it.
    pub(super) fn takes_header(&self, header: &EventHeader) -> bool {
        let is = |wanted: &str, has: &str| wanted.is_empty() || wanted == has;
        is(&self.actor, &header.actor)
            && is(&self.correlation_id, &header.correlation_id)
            && self
                .recorded_from
                .is_none_or(|from| header.recorded_at >= from)
            && self.recorded_to.is_none_or(|to| header.recorded_at < to)
    }

    /// Whether a header is not all that is asked for.
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

/// The first event that a read did not look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadStop {
    /// Of a branch or a conversation.
    Event(EventRef),
    /// Of the log.
    Offset(u64),
}

/// What is looked for of a branch's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The newest event with this key.
    Key(String),
    /// The newest event of a framework of this type.
    Type(String),
    /// The newest event of this kind.
    Kind(EventKind),
}

/// The newest events of some conversations.
#[derive(Clone, Debug)]
pub struct LatestQuery {
    /// Tenant.
    pub namespace: Namespace,
    /// Which.
    pub conversations: Vec<ConversationId>,
    /// The branch of each; none: the active one.
    pub branch: Option<BranchName>,
    /// What is looked for in each of them.
    pub wanted: Vec<Wanted>,
    /// Only what was there at this revision.
    pub as_of: Option<Revision>,
    /// See [`ReadQuery::headers_only`].
    pub headers_only: bool,
    /// Bodies in the answer, together, in bytes. The first one comes however large it is.
    pub bytes_max: usize,
}

/// The names of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventName {
    /// Its id.
    Id(EventId),
    /// Its place.
    Place(EventRef),
}

/// Some events by name.
#[derive(Clone, Debug)]
pub struct GetQuery {
    /// Tenant.
    pub namespace: Namespace,
    /// Which.
    pub names: Vec<EventName>,
    /// See [`ReadQuery::headers_only`].
    pub headers_only: bool,
    /// See [`LatestQuery::bytes_max`].
    pub bytes_max: usize,
}

/// An event that was looked up.
#[derive(Clone, Debug, PartialEq)]
pub struct GotEvent {
    /// None: there is none.
    pub event: Option<NamedEvent>,
    /// Its body was left out, because others took the room: it is as with headers only.
    pub body_left_out: bool,
}

/// An event that was the newest.
#[derive(Clone, Debug, PartialEq)]
pub struct LatestEvent {
    /// The conversation that was asked for.
    pub conversation: ConversationId,
    /// What was looked for in it.
    pub wanted: Wanted,
    /// What was found.
    pub got: GotEvent,
}

impl ReadQuery {
    /// All events of a source, forward.
    #[must_use]
    pub fn all(namespace: Namespace, source: Source) -> Self {
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

/// An event, with the name that its branch has today.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedEvent {
    /// The event.
    pub event: StoredEvent,
    /// Name of its branch; none when read from the whole log.
    pub branch: Option<BranchName>,
}

/// Where a subscription starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartAfter {
    /// After this revision (branch, conversation) or log offset (log); 0: from
    /// the start.
    Place(u64),
    /// With the next event.
    Now,
}

/// A subscription.
#[derive(Clone, Debug)]
pub struct SubscribeQuery {
    /// Tenant.
    pub namespace: Namespace,
    /// Which events.
    pub source: Source,
    /// Where to start.
    pub start: StartAfter,
    /// Only these kinds; empty: all.
    pub kinds: Vec<EventKind>,
}

/// What a subscription brings.
#[derive(Clone, Debug)]
pub enum Subscribed {
    /// An event.
    Event(Box<NamedEvent>),
    /// Everything that was there has been brought; live from here.
    CaughtUp(Position),
    /// The reader was slower than the writers: reads from the log again,
    /// nothing is lost.
    FellBehind(Position),
}

/// A page of conversations.
#[derive(Clone, Debug)]
pub struct ListQuery {
    /// Tenant.
    pub namespace: Namespace,
    /// At most so many.
    pub limit: usize,
    /// The last page's [`ConversationPage::next`].
    pub after: Option<ListPlace>,
    /// Only those imported from this source.
    pub source: Option<String>,
    /// What they are ordered by.
    pub order: ListOrder,
    /// Oldest first; else newest first.
    pub ascending: bool,
}

/// Conversations, and where the next page starts.
#[derive(Clone, Debug)]
pub struct ConversationPage {
    /// In the order asked for.
    pub conversations: Vec<ConversationSummary>,
    /// None: this was the last page.
    pub next: Option<ListPlace>,
}

/// Conversations that a part of an id names.
#[derive(Clone, Debug)]
pub struct FoundByPart {
    /// At most as many as were asked for.
    pub conversations: Vec<ConversationSummary>,
    /// There are more.
    pub more: bool,
}

/// A conversation in short.
#[derive(Clone, Debug, PartialEq)]
pub struct ConversationSummary {
    /// Its id.
    pub id: ConversationId,
    /// Title, source, labels, parent.
    pub info: Arc<ConversationInfo>,
    /// Last revision on any branch.
    pub head: Revision,
    /// How many branches it has.
    pub branch_count: u64,
    /// The active branch.
    pub active: BranchId,
    /// Its name.
    pub active_name: BranchName,
    /// It takes nothing more.
    pub sealed: bool,
    /// First event.
    pub created_at: TimestampMicros,
    /// Last event.
    pub updated_at: TimestampMicros,
    /// When the first event happened, as its author says; else when it was recorded.
    pub happened_from: TimestampMicros,
    /// When the last of them happened.
    pub happened_to: TimestampMicros,
    /// From where on it cannot be read; none: it is whole.
    pub damage: Option<Arc<Damage>>,
}

/// State of a conversation and of one branch.
#[derive(Clone, Debug)]
pub struct ConversationView {
    /// In short.
    pub summary: ConversationSummary,
    /// The first branches, by id.
    pub branches: Vec<Arc<BranchState>>,
    /// There are more: [`Engine::branches`](crate::engine::Engine::branches) has them.
    pub more_branches: bool,
    /// The branch that was asked for, as of the revision asked for.
    pub branch: Arc<BranchState>,
}

/// Branches of a conversation.
#[derive(Clone, Debug)]
pub struct BranchPage {
    /// By id.
    pub branches: Vec<Arc<BranchState>>,
    /// The active one, here or elsewhere.
    pub active: BranchId,
    /// There are more after these.
    pub more: bool,
}

/// Which conversations a list has. What is empty or none filters nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListFilter {
    /// They have all of these labels.
    pub labels: BTreeMap<String, String>,
    /// Their metadata has these values under these names.
    pub metadata: BTreeMap<String, serde_json::Value>,
    /// They were forked or spawned from this one.
    pub parent: Option<ConversationId>,
    /// Their title has this in it, in upper or lower case.
    pub title: String,
    /// They are sealed, or not.
    pub sealed: Option<bool>,
    /// Their last event was recorded at this time or later …
    pub updated_from: Option<TimestampMicros>,
    /// … and before this one.
    pub updated_to: Option<TimestampMicros>,
}

impl ListFilter {
    /// True for a conversation that it lets through.
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

/// A branch, by names: what most reads and commands are about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BranchAddress {
    /// Tenant.
    pub namespace: Namespace,
    /// Conversation.
    pub conversation: ConversationId,
    /// Branch; none: the active one.
    pub branch: Option<BranchName>,
}

impl BranchAddress {
    /// A conversation's active branch.
    #[must_use]
    pub fn active(namespace: Namespace, conversation: ConversationId) -> Self {
        Self {
            namespace,
            conversation,
            branch: None,
        }
    }

    /// This branch of the same conversation.
    #[must_use]
    pub fn on(self, branch: BranchName) -> Self {
        Self {
            branch: Some(branch),
            ..self
        }
    }
}

/// A fork to make.
#[derive(Clone, Debug)]
pub struct ForkCommand {
    /// The branch to leave.
    pub address: BranchAddress,
    /// Last revision to share; none: the branch's head.
    pub at: Option<Revision>,
    /// Name of the new branch, or title of the new conversation.
    pub name: String,
    /// The new branch's own system prompt, or empty.
    pub system_prompt: String,
    /// Fork into a new conversation with this id.
    pub into: Option<ConversationId>,
    /// Make the new branch the active one.
    pub activate: bool,
    /// See [`crate::domain::AppendCommand::idempotency_key`].
    pub idempotency_key: Option<String>,
    /// Who forks, or empty.
    pub actor: String,
}

/// What a fork may have beside a [`ForkCommand`]. All but the first is of new conversations.
#[derive(Clone, Debug, Default)]
pub struct ForkOptions {
    /// The head that the forked branch must have; none: any.
    pub expected_head: Option<Revision>,
    /// It has the labels of the conversation that is forked.
    pub keep_labels: bool,
    /// It has the source of the conversation that is forked, but not its id there.
    pub keep_source: bool,
    /// Labels, over those that it keeps.
    pub labels: BTreeMap<String, String>,
    /// A source of its own, or empty.
    pub source: String,
    /// Its id there, or empty.
    pub source_id: String,
}

/// A branch to be taken back.
#[derive(Clone, Debug)]
pub struct RewindCommand {
    /// The branch.
    pub address: BranchAddress,
    /// Last revision that stays; none: what the conversation was created with.
    pub to: Option<Revision>,
    /// The head that it must have; none: any.
    pub expected_head: Option<Revision>,
    /// Name for the old end; none: `rewound-` and its last revision.
    pub keep_as: Option<BranchName>,
    /// The same key again gives the first answer again.
    pub idempotency_key: Option<String>,
    /// Who does it, or empty.
    pub actor: String,
    /// At most so many of the events that went are returned, the newest of them.
    pub limit: usize,
    /// Leave their bodies empty.
    pub headers_only: bool,
}

impl RewindCommand {
    /// Takes a branch back to a revision.
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

/// A branch that was taken back.
#[derive(Clone, Debug)]
pub struct Rewound {
    /// The branch as it is now: a new one, under the old name.
    pub branch: Arc<BranchState>,
    /// The old end; none: nothing went, and nothing was appended.
    pub kept: Option<Arc<BranchState>>,
    /// The conversation's active branch.
    pub active: BranchId,
    /// What was appended.
    pub events: Vec<Appended>,
    /// What went, oldest first, without what was only said of branches.
    pub went: Vec<NamedEvent>,
    /// More went than was returned.
    pub truncated: bool,
    /// The idempotency key was known: nothing was appended now.
    pub repeated_key: bool,
}

/// A fork that was made.
#[derive(Clone, Debug)]
pub struct Forked {
    /// Where the new branch is.
    pub conversation: ConversationId,
    /// The new branch.
    pub branch: Arc<BranchState>,
    /// What was appended.
    pub events: Vec<Appended>,
}

/// One step of a lineage: a branch and the part of it that is in the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineageStep {
    /// Conversation.
    pub conversation: ConversationId,
    /// Branch.
    pub branch: BranchId,
    /// Its name today.
    pub name: BranchName,
    /// Own events of the branch up to this revision, inclusive, are in the
    /// history.
    pub up_to: Revision,
    /// Where the branch left the next step's branch; zero for a root.
    pub forked_at: Revision,
}

/// Lineage of a branch, from itself up to the root.
#[derive(Clone, Debug)]
pub struct Lineage {
    /// From the branch itself up to the root.
    pub steps: Vec<LineageStep>,
    /// Conversations forked or spawned from this one.
    pub children: Vec<ConversationId>,
}

/// Two branches compared.
#[derive(Clone, Debug)]
pub struct BranchDiff {
    /// The last event that both have.
    pub ancestor: Option<(ConversationId, Revision)>,
    /// Events that only the left one has.
    pub left: Vec<NamedEvent>,
    /// Events that only the right one has.
    pub right: Vec<NamedEvent>,
    /// A side has more than was returned.
    pub truncated: bool,
}

/// Where a tool call stands.
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

/// A tool call with all that became of it on a branch.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// Conversation of the request.
    pub conversation: ConversationId,
    /// Branch that was asked for.
    pub branch: BranchId,
    /// Its name.
    pub branch_name: BranchName,
    /// The provider's id.
    pub call_id: String,
    /// Name of the tool.
    pub tool: String,
    /// As the model wrote them.
    pub arguments: JsonText,
    /// They are no JSON.
    pub arguments_not_json: bool,
    /// The provider's id of the call's item, or empty.
    pub item_id: String,
    /// BLAKE3 of the arguments.
    pub arguments_hash: ContentHash,
    /// Where it was requested.
    pub request_revision: Revision,
    /// Where it stands.
    pub status: CallStatus,
    /// Its approval.
    pub approval: crate::domain::ApprovalStatus,
    /// Who decided, or empty.
    pub decided_by: String,
    /// Why, or empty.
    pub decision_reason: String,
    /// Where it was decided.
    pub decision_revision: Option<Revision>,
    /// Where it was started.
    pub started_revision: Option<Revision>,
    /// Where it ended, by a result or a cancellation.
    pub end_revision: Option<Revision>,
    /// Why it ended without a result.
    pub cancel_reason: Option<crate::domain::CancelReason>,
    /// What went wrong, or empty.
    pub error_message: String,
    /// How long it ran.
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

/// Which tool calls.
#[derive(Clone, Debug)]
pub struct ToolHistoryQuery {
    /// The branch.
    pub address: BranchAddress,
    /// As of this revision; none: now.
    pub as_of: Option<Revision>,
    /// Only this tool.
    pub tool: Option<String>,
    /// Newest first, at most so many.
    pub limit: usize,
}

/// Which recorded result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhichResult {
    /// The result event's revision, or that of another event that says something.
    Revision(Revision),
    /// The last result of a call with this id on the branch.
    CallId(String),
}

/// A recorded result and its text.
#[derive(Clone, Debug)]
pub struct RecordedResult {
    /// The result's event.
    pub event: StoredEvent,
    /// Name of the tool; empty for what is no call and no result.
    pub tool: String,
    /// The result; of another event it has the id of its call, if it is one.
    pub result: ToolResultRecorded,
    /// Its text, as search counts bytes and lines in it; a call's arguments as they were
    /// written.
    pub text: String,
}

/// A search.
#[derive(Clone, Debug)]
pub struct SearchRequest {
    /// Tenant.
    pub namespace: Namespace,
    /// What to look for; empty: all that the filters let through, newest first.
    pub text: String,
    /// How it is read: as words, or as a query with "phrases", pre*, AND, OR, NOT,
    /// +must, -mustnot and (groups).
    pub reading: Reading,
    /// `text` is a regular expression, matched against the stored text; hits come
    /// newest first.
    pub regex: bool,
    /// Count the hits of each conversation too.
    pub by_conversation: bool,
    /// Of those, so many are told at most, the best: each takes a look-up of its title.
    pub conversations_max: usize,
    /// At most so many hits.
    pub limit: usize,
    /// Skip so many.
    pub offset: usize,
    /// Only this conversation.
    pub conversation: Option<ConversationId>,
    /// With a conversation: only this branch's history.
    pub branch: Option<BranchName>,
    /// With a conversation: its sub-contexts too.
    pub include_sub_contexts: bool,
    /// Only these tools; empty: all.
    pub tools: Vec<String>,
    /// Only results that worked, or that did not.
    pub success: Option<bool>,
    /// Not before.
    pub recorded_from: Option<TimestampMicros>,
    /// Not after.
    pub recorded_to: Option<TimestampMicros>,
    /// It happened not before; what was imported happened when its source says.
    pub happened_from: Option<TimestampMicros>,
    /// It happened not after.
    pub happened_to: Option<TimestampMicros>,
    /// Only these kinds; empty: all.
    pub kinds: Vec<EventKind>,
    /// Only messages of these roles; empty: all.
    pub roles: Vec<Role>,
    /// Only calls, and their results, that name a path like one of these globs;
    /// empty: all.
    pub paths: Vec<String>,
    /// Only conversations that came from one of these sources; empty: all.
    pub sources: Vec<String>,
    /// Only conversations that have all of these labels, as `name` or `name=value`.
    pub labels: Vec<String>,
    /// Lines before and after the match that a hit brings along.
    pub context_lines: u32,
    /// Wait no longer than this for `at_least`, and answer with what is there; none:
    /// as long as it takes.
    pub wait_max: Option<std::time::Duration>,
    /// Wait until the index has reached this position.
    pub at_least: Option<Position>,
    /// Count all hits, not only the first thousand: that looks at each match.
    pub count_all: bool,
    /// Events of one kind whose whole text is equal are hits of their own, not one.
    pub every_copy: bool,
    /// Only what the active branch of each conversation shows.
    pub active_branches_only: bool,
    /// Only conversations that are not sealed.
    pub not_sealed: bool,
}

impl SearchRequest {
    /// What matches all texts that say something, from their first line that does.
    const ANYTHING: &str = r"\S.*";

    /// True when something besides the text narrows it.
    #[must_use]
    pub fn is_narrowed(&self) -> bool {
        let lists = [&self.tools, &self.paths, &self.sources, &self.labels];
        let times = [
            self.recorded_from,
            self.recorded_to,
            self.happened_from,
            self.happened_to,
        ];
        self.conversation.is_some()
            || self.success.is_some()
            || !self.kinds.is_empty()
            || !self.roles.is_empty()
            || lists.iter().any(|list| !list.is_empty())
            || times.iter().any(Option::is_some)
    }

    /// Without a text but with filters it lists what they let through.
    pub(super) fn or_listing(mut self) -> Self {
        if !self.regex && self.text.trim().is_empty() && self.is_narrowed() {
            self.text = Self::ANYTHING.to_owned();
            self.regex = true;
        }
        self
    }

    /// A search of everything in a namespace.
    #[must_use]
    pub fn new(namespace: Namespace, text: impl Into<String>, limit: usize) -> Self {
        Self {
            namespace,
            text: text.into(),
            reading: Reading::Guess,
            regex: false,
            by_conversation: false,
            conversations_max: usize::MAX,
            limit,
            offset: 0,
            conversation: None,
            branch: None,
            include_sub_contexts: false,
            tools: Vec::new(),
            success: None,
            recorded_from: None,
            recorded_to: None,
            happened_from: None,
            happened_to: None,
            kinds: Vec::new(),
            roles: Vec::new(),
            paths: Vec::new(),
            sources: Vec::new(),
            labels: Vec::new(),
            context_lines: 0,
            wait_max: None,
            at_least: None,
            count_all: false,
            every_copy: false,
            active_branches_only: false,
            not_sealed: false,
        }
    }
}

/// A passage that was found.
#[derive(Clone, Debug)]
pub struct SearchHit {
    /// Conversation.
    pub conversation: ConversationId,
    /// Its id at its source, or empty.
    pub source_id: String,
    /// Branch of the event.
    pub branch: BranchId,
    /// Its name.
    pub branch_name: BranchName,
    /// The event.
    pub revision: Revision,
    /// The event's place in the log.
    pub position: Position,
    /// What it is.
    pub kind: EventKind,
    /// The call, for a tool result.
    pub call_id: String,
    /// The tool, for a tool result.
    pub tool: String,
    /// Whether it worked, for a tool result.
    pub success: Option<bool>,
    /// What orders hits.
    pub score: f32,
    /// What made it.
    pub scores: Scores,
    /// The line of the event's text that the first match is in, from 1. The first of
    /// the best: of a pasted line, in the line that has most of it. 0: the text cannot
    /// be read any more.
    pub line: u64,
    /// The first match's bytes in the event's text.
    pub byte_start: u64,
    /// End, exclusive.
    pub byte_end: u64,
    /// The passage that was found, in the event's text.
    pub passage: HitPassage,
    /// Who speaks, for messages.
    pub role: Option<Role>,
    /// The match is in what a model thought, not in what it said.
    pub in_reasoning: bool,
    /// The share of the query that stands together in the passage, 0 to 1; 0 for hits
    /// behind the first hundred passages.
    pub together: f32,
    /// So many other events of its kind have the same text, and are no hits of their own.
    pub copies: u64,
    /// The nearest of them.
    pub copies_at: Vec<HitCopy>,
    /// The conversation's title, or empty.
    pub title: String,
    /// The file or folder that the call names first, or empty.
    pub path: String,
    /// What the call does: its command, query or pattern; or empty.
    pub command: String,
    /// The lines around the match, if they were asked for.
    pub context: String,
    /// The line that `context` begins with, from 1.
    pub context_line: u64,
    /// Text around the best match.
    pub snippet: String,
    /// Byte ranges of the matches in `snippet`.
    pub highlights: Vec<std::ops::Range<usize>>,
    /// When the event was recorded.
    pub recorded_at: TimestampMicros,
    /// When it happened: for what was imported, before it was recorded.
    pub happened_at: TimestampMicros,
}

/// An event with the text of a hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HitCopy {
    /// Conversation.
    pub conversation: ConversationId,
    /// Its id at its source, or empty.
    pub source_id: String,
    /// The event.
    pub revision: Revision,
}

/// Where a passage is in its event's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HitPassage {
    /// The line that it begins in, from 1.
    pub line: u64,
    /// Its first byte.
    pub byte_start: u64,
    /// The byte after its last.
    pub byte_end: u64,
}

/// What a search found in one conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct ConversationHits {
    /// Which.
    pub conversation: ConversationId,
    /// Its id at its source, or empty.
    pub source_id: String,
    /// Its title, or empty.
    pub title: String,
    /// Events that match.
    pub hits: u64,
    /// The best hit's; 0 for one that is not among the first thousand.
    pub score: f32,
}

/// What a search found.
#[derive(Clone, Debug)]
pub struct SearchAnswer {
    /// Best first.
    pub hits: Vec<SearchHit>,
    /// Hits, on all pages together.
    pub total: u64,
    /// There are more: no more than the first thousand were to be counted.
    pub more_than_total: bool,
    /// What the index had reached.
    pub reached: Position,
    /// Everything that the log had when the search began was searched.
    pub complete: bool,
    /// Events of the log that were not indexed yet.
    pub events_missing: u64,
    /// How the text was read.
    pub read_as: Reading,
    /// The text is one name of several parts, and nothing has it whole.
    pub parts_only: bool,
    /// A result that `success` hides and that has clearly more of the query than the
    /// best hit.
    pub hidden: Option<Box<SearchHit>>,
    /// Conversations with hits, the best first, if they were asked for.
    pub conversations: Vec<ConversationHits>,
    /// Why the index lacks a part of the log just now; none: it has all of it, or
    /// is at most a moment behind.
    pub lagging: Option<String>,
}

/// The store in numbers. Counts are of one namespace; sizes of the whole store.
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
    /// Conversations of the namespace that cannot be read to their end.
    pub damaged_conversations: u64,
    /// Positions of the log that cannot be read, of the whole store.
    pub unreadable_positions: u64,
    pub indexed_documents: u64,
    /// What counts against the namespace's quota.
    pub used: NamespaceUse,
    /// The namespace's quota.
    pub quota: Quota,
    pub data_dir: String,
    pub started_at: TimestampMicros,
}

/// How far a long task is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub what: &'static str,
    /// Done so far.
    pub done: u64,
    /// Of so many.
    pub total: u64,
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fault {
    /// `log`, `blob`, `chain`, `views` or `index`.
    pub part: &'static str,
    /// Where, if known.
    pub position: Option<Position>,
    /// In which conversation, if known.
    pub conversation: Option<ConversationId>,
    /// At which revision, if known.
    pub revision: Option<Revision>,
    /// What is wrong.
    pub message: String,
}

/// What a verification brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VerifyItem {
    /// How far it is.
    Progress(Progress),
    /// A fault.
    Fault(Fault),
    /// The end.
    Outcome(VerifyOutcome),
}

/// The end of a verification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyOutcome {
    /// No fault.
    pub sound: bool,
    /// Events read.
    pub events: u64,
    /// Conversations seen.
    pub conversations: u64,
    /// Blobs read.
    pub blobs: u64,
    /// Faults found.
    pub faults: u64,
}

/// What a rebuild did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RebuildOutcome {
    /// Events read.
    pub events: u64,
    /// Documents indexed.
    pub documents: u64,
    /// Conversations, of any namespace, that new views had to mark as damaged.
    pub damaged: u64,
    /// Events that could not be read, and so not be indexed.
    pub not_indexed: u64,
}

/// What a rebuild brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RebuildItem {
    /// How far it is.
    Progress(Progress),
    /// The end.
    Outcome(RebuildOutcome),
}
