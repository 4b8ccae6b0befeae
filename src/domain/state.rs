//! The state of conversations and branches: the input of `decide` and the answer to reads
//! *as of* a revision. State is a fold over events; see [`BranchState::apply`].
//!
//! The size of a branch's state is bounded by its open calls and its working memory, not by
//! its history: it refers to event contents and does not copy them.

use std::{collections::BTreeMap, fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{
    damage::Damage,
    event::{Config, ConversationChanged, ConversationCreated, Entity, EventHeader, ParentRef},
    id::{
        BranchId, BranchName, ContentHash, ConversationId, ConversationKey, Namespace, Position,
        Revision, TimestampMicros,
    },
    kind::{EventBody, EventKind},
    message::{MessageAppended, Role},
    tool::{ApprovalDecided, Decision, ToolCallRequested},
};

/// A snapshot of a branch is stored each time its history has grown by this many events. The
/// state as of any revision is then a snapshot plus at most this many events. Part of the
/// projections' format.
pub const SNAPSHOT_EVERY_EVENTS: u64 = 64;

/// Maximum number of opening system and developer messages that a branch state refers to.
pub(crate) const PREAMBLE_MAX: usize = 16;

/// A reference to an event. A fork into a new conversation inherits events of another
/// conversation, so a revision alone is ambiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EventRef {
    /// The event's conversation.
    pub conversation: ConversationId,
    /// The event's revision there.
    pub revision: Revision,
}

/// The approval status of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum ApprovalStatus {
    NotRequired,
    Pending,
    Approved,
    Denied,
    Expired,
}

impl fmt::Display for ApprovalStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotRequired => "not required",
            Self::Pending => "pending",
            Self::Approved => "approved",
            Self::Denied => "denied",
            Self::Expired => "expired",
        })
    }
}

impl From<Decision> for ApprovalStatus {
    fn from(decision: Decision) -> Self {
        match decision {
            Decision::Approved => Self::Approved,
            Decision::Denied => Self::Denied,
            Decision::Expired => Self::Expired,
        }
    }
}

/// A call that has neither a result nor a cancellation yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenCall {
    /// Name of the tool.
    pub tool: String,
    /// The event that requested it.
    pub request: EventRef,
    /// BLAKE3 of its arguments.
    pub arguments_hash: ContentHash,
    /// Its approval status.
    pub approval: ApprovalStatus,
    /// An executor has started it.
    pub started: bool,
}

/// A sub-context that was spawned and has not returned yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningSubContext {
    /// The call that requested it, or empty.
    pub call_id: String,
    /// The event that spawned it.
    pub spawned: EventRef,
}

/// The point where a branch forked from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkPoint {
    /// Conversation of the parent branch.
    pub conversation: ConversationId,
    /// The parent branch.
    pub branch: BranchId,
    /// The last revision that both share.
    pub revision: Revision,
}

/// A branch's progress through its turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TurnState {
    /// The first event of the open turn.
    pub open_since: Option<EventRef>,
    /// The assistant has answered in the open turn.
    pub answered: bool,
    /// The last message ends the turn, unless a tool call follows it.
    pub closing: bool,
    /// Number of turns that ended since the last compaction's cut.
    pub finished: u64,
}

/// What the branch has learned since its last compaction.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct WorkingMemory {
    /// Discovered tools, in order.
    pub discovered_tools: Vec<String>,
    /// Tools whose guidance was given, in order.
    pub guidance_given: Vec<String>,
    /// Entities that the conversation is about. A later one replaces one with the same id.
    pub entities: Vec<Entity>,
    /// Number of calls requested for each tool.
    pub tool_uses: BTreeMap<String, u64>,
}

impl WorkingMemory {
    /// Adds the tools that are not known yet.
    pub fn discover_tools(&mut self, names: &[String]) {
        extend_new(&mut self.discovered_tools, names.iter());
    }

    /// Adds entities. Each replaces the one with its id.
    pub fn note_entities(&mut self, entities: &[Entity]) {
        for entity in entities {
            self.entities.retain(|known| known.id != entity.id);
            self.entities.push(entity.clone());
        }
    }
}

/// The state of a branch after one of its events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BranchState {
    /// The branch's id.
    pub id: BranchId,
    /// Its name.
    pub name: BranchName,
    /// Where it forked from another branch; `None` for a root.
    pub fork: Option<ForkPoint>,
    /// Number of forks between the branch and the root.
    pub depth: u32,
    /// Its last revision: that of its own last event, or its fork point.
    pub head: Revision,
    /// Number of events in its history, including inherited ones.
    pub history_events: u64,
    /// The branch is archived and accepts no more events.
    pub archived: bool,
    /// Open calls by call id.
    pub open_calls: BTreeMap<String, OpenCall>,
    /// Running sub-contexts by child conversation.
    pub sub_contexts: BTreeMap<ConversationId, RunningSubContext>,
    /// The last assistant message.
    pub last_assistant: Option<EventRef>,
    /// Its progress through its turns.
    pub turn: TurnState,
    /// Model settings.
    pub config: Config,
    /// The system and developer messages that opened the history. They survive compaction. At
    /// most `PREAMBLE_MAX`.
    pub preamble: Vec<EventRef>,
    /// The current system prompt.
    pub system_prompt: Option<EventRef>,
    /// The current user prompt.
    pub user_prompt: Option<EventRef>,
    /// For each key of the active context, the event that set it.
    pub active_context: BTreeMap<String, EventRef>,
    /// Working memory, cleared by compaction.
    pub memory: WorkingMemory,
    /// The event that defined the current tools.
    pub tools_defined: Option<EventRef>,
    /// The last dialogue summary.
    pub summary: Option<EventRef>,
    /// The last compaction.
    pub compaction: Option<EventRef>,
    /// The last revision that the last compaction replaces.
    pub cut: Revision,
}

impl BranchState {
    /// Returns the state of a conversation's first branch before its first event.
    #[must_use]
    pub fn root() -> Self {
        Self {
            id: BranchId::MAIN,
            name: BranchName::default(),
            fork: None,
            depth: 0,
            head: Revision::NONE,
            history_events: 0,
            archived: false,
            open_calls: BTreeMap::new(),
            sub_contexts: BTreeMap::new(),
            last_assistant: None,
            turn: TurnState::default(),
            config: Config::default(),
            preamble: Vec::new(),
            system_prompt: None,
            user_prompt: None,
            active_context: BTreeMap::new(),
            memory: WorkingMemory::default(),
            tools_defined: None,
            summary: None,
            compaction: None,
            cut: Revision::NONE,
        }
    }

    /// Returns the state of a new branch that forks from this state. Everything is inherited
    /// except the identity.
    #[must_use]
    pub fn forked(&self, id: BranchId, name: BranchName, fork: ForkPoint) -> Self {
        Self {
            id,
            name,
            fork: Some(fork),
            depth: self.depth + 1,
            archived: false,
            ..self.clone()
        }
    }

    /// Returns true when the last turn has ended, unless a tool call comes next. Calls that were
    /// still open when the model spoke again do not keep the turn open, because they may never
    /// be answered.
    #[must_use]
    pub fn at_turn_boundary(&self) -> bool {
        self.turn.open_since.is_none() || self.turn.closing
    }

    /// Returns the last cut, as a revision of `conversation`. An inherited cut is a revision of
    /// the parent conversation, so it does not count.
    #[must_use]
    pub fn last_cut(&self, conversation: ConversationId) -> Revision {
        match self.compaction {
            Some(compaction) if compaction.conversation == conversation => self.cut,
            _ => Revision::NONE,
        }
    }

    /// Returns true when a snapshot of this state should be stored.
    #[must_use]
    pub fn is_snapshot_point(&self) -> bool {
        self.history_events.is_multiple_of(SNAPSHOT_EVERY_EVENTS)
    }

    /// Applies one event of this branch. `decide` must have accepted the event; no rule is checked
    /// again.
    pub fn apply(&mut self, at: EventRef, body: &EventBody) {
        self.head = at.revision;
        self.history_events += 1;
        match body {
            EventBody::MessageAppended(message) => self.apply_message(at, message),
            EventBody::ToolCallRequested(call) => self.apply_request(at, call),
            EventBody::ApprovalDecided(decided) => self.apply_decision(decided),
            EventBody::ToolCallStarted(started) => {
                if let Some(call) = self.open_calls.get_mut(&started.call_id) {
                    call.started = true;
                }
            }
            EventBody::ToolResultRecorded(result) => {
                self.open_calls.remove(&result.call_id);
            }
            EventBody::ToolCallCancelled(cancelled) => {
                self.open_calls.remove(&cancelled.call_id);
            }
            EventBody::SubContextSpawned(child) => {
                let running = RunningSubContext {
                    call_id: child.call_id.clone(),
                    spawned: at,
                };
                self.sub_contexts.insert(child.conversation, running);
            }
            EventBody::SubContextReturned(child) => {
                self.sub_contexts.remove(&child.conversation);
            }
            EventBody::ConversationCreated(created) => self.config = created.config.clone(),
            EventBody::ConfigChanged(config) => self.config = config.clone(),
            EventBody::BranchRenamed(name) => self.name = name.clone(),
            EventBody::BranchArchived { .. } => self.archived = true,
            EventBody::Compacted(compacted) => {
                // A cut never moves back.
                self.cut = compacted.cut_revision.max(self.last_cut(at.conversation));
                self.compaction = Some(at);
                self.memory = WorkingMemory::default();
                self.turn.finished = u64::from(compacted.kept_turns);
            }
            _ => self.apply_context(at, body),
        }
    }

    /// Applies the events that determine the content of the next request.
    fn apply_context(&mut self, at: EventRef, body: &EventBody) {
        match body {
            EventBody::BranchForked(forked) if !forked.system_prompt.is_empty() => {
                self.system_prompt = Some(at);
            }
            EventBody::SystemPromptSet(_) => self.system_prompt = Some(at),
            EventBody::UserPromptSet(_) => self.user_prompt = Some(at),
            EventBody::ContextSet(set) => {
                self.active_context.insert(set.key.clone(), at);
            }
            EventBody::ContextRemoved { key } => {
                self.active_context.remove(key);
            }
            EventBody::ToolsDiscovered { names } => self.memory.discover_tools(names),
            EventBody::GuidanceGiven { guidance } => {
                extend_new(
                    &mut self.memory.guidance_given,
                    guidance.iter().map(|g| &g.tool),
                );
            }
            EventBody::EntitiesNoted { entities } => self.memory.note_entities(entities),
            EventBody::ToolsDefined { .. } => self.tools_defined = Some(at),
            EventBody::SummaryRecorded(_) => self.summary = Some(at),
            _ => {}
        }
    }

    fn apply_message(&mut self, at: EventRef, message: &MessageAppended) {
        match message.role {
            Role::User => {
                let interrupted = self.turn.answered && !self.is_calling(at);
                if self.turn.closing || interrupted {
                    self.turn.finished += 1;
                    self.turn.open_since = None;
                    self.turn.answered = false;
                }
                self.turn.open_since.get_or_insert(at);
                self.turn.closing = false;
            }
            Role::Assistant => {
                self.last_assistant = Some(at);
                self.turn.open_since.get_or_insert(at);
                self.turn.answered = true;
                self.turn.closing = true;
            }
            Role::System | Role::Developer => {
                let opening = self.turn == TurnState::default() && self.compaction.is_none();
                if opening && self.preamble.len() < PREAMBLE_MAX {
                    self.preamble.push(at);
                }
            }
            Role::Tool => {}
        }
    }

    /// Whether a call of the assistant's last message is open. Earlier ones may never be answered.
    fn is_calling(&self, at: EventRef) -> bool {
        let is_last = |call: &OpenCall| {
            let request = call.request;
            match self.last_assistant {
                Some(said) if said.conversation == request.conversation => {
                    said.revision < request.revision
                }
                // Their conversations differ, so at least one of the two is inherited.
                Some(_) => request.conversation == at.conversation,
                None => true,
            }
        };
        self.open_calls.values().any(is_last)
    }

    fn apply_request(&mut self, at: EventRef, call: &ToolCallRequested) {
        self.turn.closing = false;
        self.turn.open_since.get_or_insert(at);
        *self.memory.tool_uses.entry(call.tool.clone()).or_default() += 1;
        let approval = if call.needs_approval {
            ApprovalStatus::Pending
        } else {
            ApprovalStatus::NotRequired
        };
        self.open_calls.insert(
            call.call_id.clone(),
            OpenCall {
                tool: call.tool.clone(),
                request: at,
                arguments_hash: call.arguments_hash,
                approval,
                started: false,
            },
        );
    }

    fn apply_decision(&mut self, decided: &ApprovalDecided) {
        if let Some(call) = self.open_calls.get_mut(&decided.call_id) {
            call.approval = decided.decision.into();
        }
    }
}

fn extend_new<'a>(list: &mut Vec<String>, names: impl Iterator<Item = &'a String>) {
    for name in names {
        if !list.contains(name) {
            list.push(name.clone());
        }
    }
}

/// The properties that a conversation was created with. Title, labels and metadata can change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConversationInfo {
    /// Title for people.
    pub title: String,
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
    /// The root of its tree of conversations (itself, if it has no parent).
    pub root: ConversationId,
    /// Nesting depth of sub-contexts: 0 for a conversation that was not spawned. A fork has the
    /// depth of its parent.
    pub sub_context_depth: u32,
    /// The owner's metadata, name to JSON text.
    pub metadata: BTreeMap<String, String>,
}

impl ConversationInfo {
    /// Creates the properties from a conversation's first event.
    #[must_use]
    pub fn new(created: &ConversationCreated, root: ConversationId) -> Self {
        Self {
            title: created.title.clone(),
            labels: created.labels.clone(),
            parent: created.parent.clone(),
            shares_history: created.shares_history,
            policies: created.policies.clone(),
            source: created.source.clone(),
            source_id: created.source_id.clone(),
            root,
            sub_context_depth: 0,
            metadata: created.metadata.clone(),
        }
    }

    /// Applies a change.
    pub fn change(&mut self, change: &ConversationChanged) {
        if let Some(title) = &change.title {
            self.title.clone_from(title);
        }
        for name in &change.remove_labels {
            self.labels.remove(name);
        }
        self.labels.extend(change.set_labels.clone());
        for name in &change.remove_metadata {
            self.metadata.remove(name);
        }
        self.metadata.extend(change.set_metadata.clone());
    }

    /// Returns the size of labels and metadata, names included, in bytes.
    #[must_use]
    pub(crate) fn described_bytes(&self) -> usize {
        let all = self.labels.iter().chain(&self.metadata);
        all.map(|(name, value)| name.len() + value.len()).sum()
    }

    /// Like [`Self::new`], for a conversation with a parent.
    #[must_use]
    pub fn below(created: &ConversationCreated, parent: &Self) -> Self {
        let deeper = u32::from(!created.shares_history);
        Self {
            sub_context_depth: parent.sub_context_depth.saturating_add(deeper),
            ..Self::new(created, parent.root)
        }
    }
}

/// The state of a conversation as a whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConversationRow {
    /// Its tenant.
    pub namespace: Namespace,
    /// Its id.
    pub id: ConversationId,
    /// The properties that it was created with.
    pub info: Arc<ConversationInfo>,
    /// The last revision on any branch.
    pub head: Revision,
    /// Chain hash of the last event.
    pub chain_hash: ContentHash,
    /// Log position of its first event.
    pub first_position: Position,
    /// Log position of its last event.
    pub last_position: Position,
    /// The branch that calls use when they name none.
    pub active: BranchId,
    /// Number of branches.
    pub branch_count: u64,
    /// The conversation is sealed and accepts no more events.
    pub sealed: bool,
    /// When its first event was recorded.
    pub created_at: TimestampMicros,
    /// When its last event was recorded.
    pub updated_at: TimestampMicros,
    /// When its first event happened according to its author; otherwise, when it was recorded.
    pub happened_from: TimestampMicros,
    /// The latest time at which one of its events happened.
    pub happened_to: TimestampMicros,
    /// Where the log becomes unreadable for this conversation; `None` if it is intact.
    pub damage: Option<Arc<Damage>>,
}

impl ConversationRow {
    /// Returns the conversation's key.
    #[must_use]
    pub fn key(&self) -> ConversationKey {
        self.namespace.key(self.id)
    }

    /// Updates the times from an event's header.
    pub fn note_times(&mut self, header: &EventHeader, is_first: bool) {
        let happened = header.occurred_at.unwrap_or(header.recorded_at);
        self.updated_at = header.recorded_at;
        if is_first {
            self.created_at = header.recorded_at;
            self.happened_from = happened;
            self.happened_to = happened;
        } else if !self.is_undated_import(header) {
            self.happened_to = self.happened_to.max(happened);
        }
    }

    /// Returns true for a custom event without a time in an imported conversation: source data
    /// other than messages. Importing it must not make an old conversation look recent.
    fn is_undated_import(&self, header: &EventHeader) -> bool {
        let is_imported = !self.info.source.is_empty();
        is_imported && header.kind() == Some(EventKind::Custom) && header.occurred_at.is_none()
    }
}

/// A conversation with all of its branches.
#[derive(Clone, Debug, PartialEq)]
pub struct ConversationState {
    /// The state of the conversation as a whole.
    pub row: ConversationRow,
    /// Every branch by id.
    pub branches: BTreeMap<BranchId, Arc<BranchState>>,
    /// Branch ids by name, derived from `branches`.
    names: BTreeMap<BranchName, BranchId>,
}

impl ConversationState {
    /// Assembles the state from its stored parts.
    #[must_use]
    pub fn new(row: ConversationRow, branches: impl IntoIterator<Item = Arc<BranchState>>) -> Self {
        let branches: BTreeMap<_, _> = branches.into_iter().map(|b| (b.id, b)).collect();
        let names = branches.values().map(|b| (b.name.clone(), b.id)).collect();
        Self {
            row,
            branches,
            names,
        }
    }

    /// Returns the branch with this name; `None` means the active one.
    #[must_use]
    pub fn branch(&self, name: Option<&BranchName>) -> Option<&Arc<BranchState>> {
        let id = match name {
            Some(name) => *self.names.get(name)?,
            None => self.row.active,
        };
        self.branches.get(&id)
    }

    /// Applies the changes of an append.
    pub fn absorb(&mut self, row: ConversationRow, branches: Vec<Arc<BranchState>>) {
        self.row = row;
        // Remove all old names first: branches of one batch may have swapped names.
        for branch in &branches {
            if let Some(old) = self.branches.get(&branch.id) {
                self.names.remove(&old.name);
            }
        }
        for branch in branches {
            self.names.insert(branch.name.clone(), branch.id);
            self.branches.insert(branch.id, branch);
        }
    }

    pub(super) fn names(&self) -> &BTreeMap<BranchName, BranchId> {
        &self.names
    }
}
