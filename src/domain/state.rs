//! The state of conversations and branches: what `decide` looks at and what
//! *as of* reads answer. It is a fold over events; see [`BranchState::apply`].
//!
//! What a branch holds is bounded by its open calls and its working memory,
//! not by its history: contents are referred to, not repeated.

use std::{collections::BTreeMap, fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{
    damage::Damage,
    event::{Config, ConversationChanged, ConversationCreated, Entity, EventHeader, ParentRef},
    id::{
        BranchId, BranchName, ContentHash, ConversationId, Namespace, Position, Revision,
        TimestampMicros,
    },
    kind::{EventBody, EventKind},
    message::{MessageAppended, Role},
    tool::{ApprovalDecided, Decision, ToolCallRequested},
};

/// A branch's state is written down each time its history has grown by so many
/// events, so that the state as of any revision is a snapshot and a tail of at
/// most this length. Part of the views' format.
pub const SNAPSHOT_EVERY_EVENTS: u64 = 64;

/// Opening system and developer messages that a branch remembers.
pub const PREAMBLE_MAX: usize = 16;

/// An event by its place. A fork into a new conversation inherits events of
/// another one, so a revision alone does not name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EventRef {
    /// Conversation.
    pub conversation: ConversationId,
    /// Place in it.
    pub revision: Revision,
}

/// Whether a call may run.
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
    /// Where it was requested.
    pub request: EventRef,
    /// BLAKE3 of its arguments.
    pub arguments_hash: ContentHash,
    /// Whether it may run.
    pub approval: ApprovalStatus,
    /// Someone has begun to run it.
    pub started: bool,
}

/// A sub-context that has been spawned and has not returned yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningSubContext {
    /// The call that asked for it, or empty.
    pub call_id: String,
    /// Where it was spawned.
    pub spawned: EventRef,
}

/// Where a branch left another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkPoint {
    /// Conversation of the branch that was left.
    pub conversation: ConversationId,
    /// The branch that was left.
    pub branch: BranchId,
    /// Last revision that both share.
    pub revision: Revision,
}

/// Where a branch is in its turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TurnState {
    /// First event of the open turn.
    pub open_since: Option<EventRef>,
    /// The assistant has spoken in it.
    pub answered: bool,
    /// The last message ends the turn, unless a tool call follows it.
    pub closing: bool,
    /// Turns that ended since the last compaction.
    pub finished: u64,
}

/// What the branch has learnt since its last compaction.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct WorkingMemory {
    /// Tools found, in order.
    pub discovered_tools: Vec<String>,
    /// Tools whose guidance was given, in order.
    pub guidance_given: Vec<String>,
    /// Things the conversation is about; a later one replaces one with its id.
    pub entities: Vec<Entity>,
    /// How often each tool was asked for.
    pub tool_uses: BTreeMap<String, u64>,
}

/// What is true on a branch after one of its events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BranchState {
    /// Which branch.
    pub id: BranchId,
    /// Its name.
    pub name: BranchName,
    /// Where it left another branch; none for a root.
    pub fork: Option<ForkPoint>,
    /// How many forks lie between it and the root.
    pub depth: u32,
    /// Its last revision: its own last event, or its fork.
    pub head: Revision,
    /// Events in its history, inherited ones included.
    pub history_events: u64,
    /// It is kept, and takes nothing more.
    pub archived: bool,
    /// By call id.
    pub open_calls: BTreeMap<String, OpenCall>,
    /// By child conversation.
    pub sub_contexts: BTreeMap<ConversationId, RunningSubContext>,
    /// The last assistant message.
    pub last_assistant: Option<EventRef>,
    /// Where it is in its turns.
    pub turn: TurnState,
    /// Model settings.
    pub config: Config,
    /// System and developer messages that opened the history: they hold on
    /// after a compaction. At most [`PREAMBLE_MAX`].
    pub preamble: Vec<EventRef>,
    /// The system prompt in force.
    pub system_prompt: Option<EventRef>,
    /// The user prompt in force.
    pub user_prompt: Option<EventRef>,
    /// Key to the event that set it.
    pub active_context: BTreeMap<String, EventRef>,
    /// Cleared by compaction.
    pub memory: WorkingMemory,
    /// The tools on offer.
    pub tools_defined: Option<EventRef>,
    /// The last dialogue summary.
    pub summary: Option<EventRef>,
    /// The last compaction.
    pub compaction: Option<EventRef>,
    /// The last revision that the last compaction stands for.
    pub cut: Revision,
}

impl BranchState {
    /// The first branch of a conversation, before its first event.
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

    /// A branch that leaves this one here: everything is inherited but its
    /// identity.
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

    /// True when the last turn has ended, unless a tool call comes next. Calls that
    /// were still open when the model spoke again do not keep it open: nobody may
    /// ever answer them.
    #[must_use]
    pub fn at_turn_boundary(&self) -> bool {
        self.turn.open_since.is_none() || self.turn.closing
    }

    /// The last cut, in the revisions of this conversation: an inherited one counts in
    /// those of the parent.
    #[must_use]
    pub fn last_cut(&self, conversation: ConversationId) -> Revision {
        match self.compaction {
            Some(compaction) if compaction.conversation == conversation => self.cut,
            _ => Revision::NONE,
        }
    }

    /// True when this state is one to be written down.
    #[must_use]
    pub fn is_snapshot_point(&self) -> bool {
        self.history_events.is_multiple_of(SNAPSHOT_EVERY_EVENTS)
    }

    /// Folds one event of this branch in. The event must have been accepted by
    /// `decide`: nothing is checked again.
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
                // What was cut stays cut.
                self.cut = compacted.cut_revision.max(self.last_cut(at.conversation));
                self.compaction = Some(at);
                self.memory = WorkingMemory::default();
                self.turn.finished = u64::from(compacted.kept_turns);
            }
            _ => self.apply_context(at, body),
        }
    }

    /// The events that set what the next request is made of.
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
            EventBody::ToolsDiscovered { names } => {
                extend_new(&mut self.memory.discovered_tools, names.iter());
            }
            EventBody::GuidanceGiven { guidance } => {
                extend_new(
                    &mut self.memory.guidance_given,
                    guidance.iter().map(|g| &g.tool),
                );
            }
            EventBody::EntitiesNoted { entities } => {
                for entity in entities {
                    self.memory.entities.retain(|known| known.id != entity.id);
                    self.memory.entities.push(entity.clone());
                }
            }
            EventBody::ToolsDefined { .. } => self.tools_defined = Some(at),
            EventBody::SummaryRecorded(_) => self.summary = Some(at),
            _ => {}
        }
    }

    fn apply_message(&mut self, at: EventRef, message: &MessageAppended) {
        match message.role {
            Role::User => {
                let interrupted = self.turn.answered && self.open_calls.is_empty();
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

/// What a conversation was created with; title, labels and metadata can be changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConversationInfo {
    /// For people.
    pub title: String,
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
    /// The conversation at the root of its tree (itself, if it has no parent).
    pub root: ConversationId,
    /// How many sub-contexts it is inside of: 0 for one that nobody spawned. A
    /// fork is as deep as what it left.
    pub sub_context_depth: u32,
    /// What its owner keeps with it, name to JSON text.
    pub metadata: BTreeMap<String, String>,
}

impl ConversationInfo {
    /// The part of its first event that is kept in the state.
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

    /// Folds a change in.
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

    /// Labels and metadata, with their names, in bytes.
    #[must_use]
    pub fn described_bytes(&self) -> usize {
        let all = self.labels.iter().chain(&self.metadata);
        all.map(|(name, value)| name.len() + value.len()).sum()
    }

    /// The same for a conversation with a parent.
    #[must_use]
    pub fn below(created: &ConversationCreated, parent: &Self) -> Self {
        let deeper = u32::from(!created.shares_history);
        Self {
            sub_context_depth: parent.sub_context_depth.saturating_add(deeper),
            ..Self::new(created, parent.root)
        }
    }
}

/// What is true of a conversation as a whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConversationRow {
    /// Its tenant.
    pub namespace: Namespace,
    /// Its id.
    pub id: ConversationId,
    /// What it was created with.
    pub info: Arc<ConversationInfo>,
    /// Last revision on any branch.
    pub head: Revision,
    /// Chain hash of the last event.
    pub chain_hash: ContentHash,
    /// Log position of its first event.
    pub first_position: Position,
    /// Log position of its last event.
    pub last_position: Position,
    /// The branch that is meant when none is named.
    pub active: BranchId,
    /// How many branches it has.
    pub branch_count: u64,
    /// It takes nothing more.
    pub sealed: bool,
    /// When its first event was recorded.
    pub created_at: TimestampMicros,
    /// When its last event was recorded.
    pub updated_at: TimestampMicros,
    /// When the first of its events happened, as its author says; else when it was recorded.
    pub happened_from: TimestampMicros,
    /// When the last of them happened.
    pub happened_to: TimestampMicros,
    /// From where on the log cannot say what it holds; none: it is whole.
    pub damage: Option<Arc<Damage>>,
}

impl ConversationRow {
    /// Takes over when an event was recorded, and when it happened.
    pub fn note_times(&mut self, header: &EventHeader, is_first: bool) {
        let happened = header.occurred_at.unwrap_or(header.recorded_at);
        self.updated_at = header.recorded_at;
        if is_first {
            self.created_at = header.recorded_at;
            self.happened_from = happened;
            self.happened_to = happened;
        } else if !self.is_kept_beside(header) {
            self.happened_to = self.happened_to.max(happened);
        }
    }

    /// What a source has beside its messages, without a time: an import keeps it, and
    /// that does not make an old conversation a new one.
    fn is_kept_beside(&self, header: &EventHeader) -> bool {
        let is_imported = !self.info.source.is_empty();
        is_imported && header.kind() == Some(EventKind::Custom) && header.occurred_at.is_none()
    }
}

/// A conversation with all of its branches.
#[derive(Clone, Debug, PartialEq)]
pub struct ConversationState {
    /// As a whole.
    pub row: ConversationRow,
    /// Every branch.
    pub branches: BTreeMap<BranchId, Arc<BranchState>>,
    /// Every name. Derived from `branches`.
    names: BTreeMap<BranchName, BranchId>,
}

impl ConversationState {
    /// Puts a stored state together.
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

    /// The branch with this name; none given: the active one.
    #[must_use]
    pub fn branch(&self, name: Option<&BranchName>) -> Option<&Arc<BranchState>> {
        let id = match name {
            Some(name) => *self.names.get(name)?,
            None => self.row.active,
        };
        self.branches.get(&id)
    }

    /// Takes over what an append has changed.
    pub fn absorb(&mut self, row: ConversationRow, branches: Vec<Arc<BranchState>>) {
        self.row = row;
        // Old names first: branches of one batch may have swapped theirs.
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
