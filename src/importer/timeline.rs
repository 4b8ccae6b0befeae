//! A conversation under construction: gives out revisions, and knows on each
//! branch which calls are open and where the last turn ended, so that what is
//! built keeps the rules of every append.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    rc::Rc,
};

use super::{
    ImportNote, Oddity,
    tree::{Place, Tree},
};
use crate::domain::{
    BranchForked, BranchId, BranchName, CancelReason, Compacted, CompactionTrigger,
    ConversationCreated, ConversationId, EventBody, NameError, NewEvent, Revision, Role,
    SubContextSpawned, TimestampMicros, ToolCallCancelled, ToolCallRequested, ToolDefinition,
};

/// Most calls that stay open on a branch: a little below the engine's default
/// bound, so that an import fits in.
const OPEN_CALLS_MAX: usize = 1_000;

/// What the rules need to know of a branch after one of its events.
#[derive(Clone, Default)]
struct BranchNow {
    head: Revision,
    /// Call id to the request and the message it came with.
    open: BTreeMap<Rc<str>, OpenCall>,
    /// The last revision that ended a turn.
    turn_end: Revision,
    /// What `turn_end` was before: a call may show that a turn had not ended.
    turn_end_before: Revision,
    /// The last message was the assistant's.
    closing: bool,
    cut: Revision,
    /// Sub-contexts that have not returned.
    running: BTreeSet<ConversationId>,
}

#[derive(Clone, Copy)]
struct OpenCall {
    request: Revision,
    message_index: usize,
}

/// A branch by its order of creation; 0 is the first branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct BranchIndex(pub usize);

impl BranchIndex {
    pub(super) const MAIN: Self = Self(0);
}

struct Branch {
    id: BranchId,
    name: BranchName,
    now: BranchNow,
}

/// Where a branch can be forked later.
#[derive(Clone)]
struct ForkPoint {
    branch: BranchIndex,
    state: BranchNow,
}

pub(super) struct Timeline {
    conversation: ConversationId,
    events: Vec<NewEvent>,
    branches: Vec<Branch>,
    notes: Vec<ImportNote>,
    /// Index of the message that is being imported, for notes.
    message_index: usize,
    /// When that message was written, if known.
    pub(super) occurred_at: Option<TimestampMicros>,
    root: ForkPoint,
    /// By message: where a later one leaves it.
    fork_points: HashMap<usize, ForkPoint>,
    /// The branch that was continued last.
    continued: BranchIndex,
}

impl Timeline {
    pub(super) fn new(
        conversation: ConversationId,
        created: ConversationCreated,
        occurred_at: Option<TimestampMicros>,
    ) -> Self {
        let main = Branch {
            id: BranchId::MAIN,
            name: BranchName::default(),
            now: BranchNow::default(),
        };
        let root = ForkPoint {
            branch: BranchIndex::MAIN,
            state: BranchNow::default(),
        };
        let mut timeline = Self {
            conversation,
            events: Vec::new(),
            branches: vec![main],
            notes: Vec::new(),
            message_index: 0,
            occurred_at,
            root,
            fork_points: HashMap::new(),
            continued: BranchIndex::MAIN,
        };
        timeline.push(BranchIndex::MAIN, EventBody::ConversationCreated(created));
        timeline.root = timeline.fork_point(BranchIndex::MAIN);
        timeline
    }

    /// Says before the first message which tools there were.
    pub(super) fn define_tools(&mut self, tools: Vec<ToolDefinition>) {
        if !tools.is_empty() {
            self.push(BranchIndex::MAIN, EventBody::ToolsDefined { tools });
            self.root = self.fork_point(BranchIndex::MAIN);
        }
    }

    /// Comes to a message of the tree: opens the branch that it begins, if it
    /// begins one.
    ///
    /// # Errors
    /// [`NameError`] when that branch could not be named.
    pub(super) fn arrive(&mut self, tree: &Tree, index: usize) -> Result<BranchIndex, NameError> {
        let node = tree.nodes[index];
        self.message_index = index;
        if let Some(oddity) = node.parent.oddity() {
            self.note(oddity);
        }
        let from = match node.place {
            Place::Continues => None,
            Place::ForksRoot => Some(self.root.clone()),
            Place::Forks { parent } => self.fork_points.get(&parent).cloned(),
        };
        if let Some(from) = from {
            self.fork(from, BranchName::new(&format!("fork-{index}"))?);
        }
        Ok(node.branch)
    }

    /// Has imported a message of the tree.
    pub(super) fn leave(&mut self, tree: &Tree, index: usize) {
        if tree.forked.contains(&index) {
            let point = self.fork_point(tree.nodes[index].branch);
            self.fork_points.insert(index, point);
        }
    }

    /// The branch as it is now.
    fn fork_point(&self, branch: BranchIndex) -> ForkPoint {
        ForkPoint {
            branch,
            state: self.branches[branch.0].now.clone(),
        }
    }

    pub(super) fn branch_id(&self, branch: BranchIndex) -> BranchId {
        self.branches[branch.0].id
    }

    pub(super) fn is_open(&self, branch: BranchIndex, call_id: &str) -> bool {
        self.branches[branch.0].now.open.contains_key(call_id)
    }

    /// Where an open call was requested.
    pub(super) fn request_of(&self, branch: BranchIndex, call_id: &str) -> Option<Revision> {
        let open = &self.branches[branch.0].now.open;
        open.get(call_id).map(|call| call.request)
    }

    pub(super) fn note(&mut self, what: Oddity) {
        let message_index = self.message_index;
        self.notes.push(ImportNote {
            message_index,
            what,
        });
    }

    /// Appends an event to a branch.
    pub(super) fn push(&mut self, branch: BranchIndex, body: EventBody) -> Revision {
        let revision = Revision(self.events.len() as u64 + 1);
        let message_index = self.message_index;
        // What is kept beside the messages continues nothing.
        if !matches!(body, EventBody::Custom(_)) {
            self.continued = branch;
        }
        let branch = &mut self.branches[branch.0];
        branch.now.apply(revision, &body, message_index);
        let mut event = NewEvent::new(self.conversation, body).on_branch(branch.name.clone());
        event.occurred_at = self.occurred_at;
        self.events.push(event);
        revision
    }

    /// Opens a branch that leaves another one.
    fn fork(&mut self, from: ForkPoint, name: BranchName) -> BranchIndex {
        let forked = BranchForked {
            name: name.clone(),
            parent: self.branches[from.branch.0].id,
            fork_revision: from.state.head,
            system_prompt: String::new(),
        };
        let index = BranchIndex(self.branches.len());
        self.branches.push(Branch {
            id: BranchId(self.events.len() as u64 + 1),
            name,
            now: from.state,
        });
        self.push(index, EventBody::BranchForked(forked));
        index
    }

    /// Appends calls of the message at `message`. A call id that is still open
    /// is given to the new call.
    pub(super) fn request(
        &mut self,
        branch: BranchIndex,
        message: Revision,
        mut call: ToolCallRequested,
    ) {
        call.message_revision = Some(message);
        let open = &self.branches[branch.0].now.open;
        if open.contains_key(call.call_id.as_str()) {
            let call_id = call.call_id.clone();
            self.cancel(branch, call_id.clone(), CancelReason::Superseded);
            self.note(Oddity::SupersededCall { call_id });
        } else if open.len() >= OPEN_CALLS_MAX {
            let oldest = open.iter().min_by_key(|(_, call)| call.request);
            if let Some(call_id) = oldest.map(|(id, _)| id.to_string()) {
                self.cancel(branch, call_id.clone(), CancelReason::Interrupted);
                self.note(Oddity::CallGivenUp { call_id });
            }
        }
        self.push(branch, EventBody::ToolCallRequested(call));
    }

    fn cancel(&mut self, branch: BranchIndex, call_id: String, reason: CancelReason) {
        let cancelled = ToolCallCancelled {
            call_id,
            reason,
            detail: String::new(),
        };
        self.push(branch, EventBody::ToolCallCancelled(cancelled));
    }

    /// True when a compaction can be appended: a turn has finished since the last.
    /// Calls that nobody answered do not matter. Notes it when it cannot.
    pub(super) fn can_compact(&mut self, branch: BranchIndex) -> bool {
        let now = &self.branches[branch.0].now;
        let can = now.turn_end > now.cut;
        if !can {
            self.note(Oddity::CompactionNotAtTurn);
        }
        can
    }

    /// A compaction that stands for all finished turns.
    pub(super) fn compaction(
        &self,
        branch: BranchIndex,
        summary: String,
        tokens_before: u64,
    ) -> Compacted {
        Compacted {
            summary,
            cut_revision: self.branches[branch.0].now.turn_end,
            kept_turns: 0,
            tokens_before,
            tokens_after: 0,
            trigger: CompactionTrigger::Imported,
            raw: None,
        }
    }

    /// Records that a call's work is done in a sub-context, unless that is known.
    pub(super) fn spawn(&mut self, branch: BranchIndex, spawned: SubContextSpawned) {
        let running = &self.branches[branch.0].now.running;
        if !running.contains(&spawned.conversation) {
            self.push(branch, EventBody::SubContextSpawned(spawned));
        }
    }

    /// The events, and the notes with one more for each call that nobody
    /// answered.
    pub(super) fn finish(mut self) -> (Vec<NewEvent>, Vec<ImportNote>) {
        // A call that was open at a fork is open on both branches.
        let mut unanswered = BTreeMap::new();
        for branch in &self.branches {
            for (call_id, call) in &branch.now.open {
                unanswered.insert(call.request, (call.message_index, call_id));
            }
        }
        let unanswered = unanswered.into_values().map(|(message_index, call_id)| {
            let call_id = call_id.to_string();
            ImportNote {
                message_index,
                what: Oddity::UnansweredCall { call_id },
            }
        });
        self.notes.extend(unanswered);
        self.notes.sort_by_key(|note| note.message_index);
        if self.continued != BranchIndex::MAIN {
            self.push(self.continued, EventBody::BranchActivated);
        }
        (self.events, self.notes)
    }
}

impl BranchNow {
    fn apply(&mut self, revision: Revision, body: &EventBody, message_index: usize) {
        match body {
            EventBody::MessageAppended(message) => match message.role {
                Role::User => self.closing = false,
                Role::Assistant => self.closing = true,
                Role::System | Role::Developer | Role::Tool => {}
            },
            EventBody::ToolCallRequested(call) => {
                if self.turn_end == self.head {
                    self.turn_end = self.turn_end_before;
                }
                self.closing = false;
                let open = OpenCall {
                    request: revision,
                    message_index,
                };
                self.open.insert(call.call_id.as_str().into(), open);
            }
            EventBody::ToolResultRecorded(result) => {
                self.open.remove(result.call_id.as_str());
            }
            EventBody::ToolCallCancelled(cancelled) => {
                self.open.remove(cancelled.call_id.as_str());
            }
            EventBody::Compacted(compacted) => self.cut = compacted.cut_revision,
            EventBody::SubContextSpawned(spawned) => {
                self.running.insert(spawned.conversation);
            }
            EventBody::SubContextReturned(returned) => {
                self.running.remove(&returned.conversation);
            }
            _ => {}
        }
        self.head = revision;
        // A fork is no part of a turn: where the branch leaves its parent is.
        if self.closing && !matches!(body, EventBody::BranchForked(_)) {
            self.turn_end_before = self.turn_end;
            self.turn_end = revision;
        }
    }
}
