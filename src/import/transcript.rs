//! A conversation under construction. Assigns revisions and keeps the state of each branch as an
//! engine would, so that the result obeys the rules of every append.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    rc::Rc,
};

use serde_json::Value;

use super::{
    ImportNote, Oddity,
    origin::{ExportOrigin, Place},
    tree::{Attachment, Tree},
};
use treering_domain::{
    BranchForked, BranchId, BranchName, BranchState, CancelReason, Compacted, CompactionTrigger,
    Config, ConversationCreated, ConversationId, EventBody, EventRef, ForkPoint, GIT_BRANCH_LABEL,
    JsonText, NO_TIMES, NameError, NewEvent, PROJECT_LABEL, Revision, Role, SubContextSpawned,
    TIMES_LABEL, TimestampMicros, ToolCallCancelled, ToolCallRequested, ToolDefinition,
    limits::SHORT_TEXT_BYTES_MAX,
};

/// Maximum number of open calls on a branch: a little below the engine's default limit, so that an
/// import fits.
const OPEN_CALLS_MAX: usize = 1_000;

/// A turn stays whole if at most this many of its messages precede the first kept message.
const KEPT_BEFORE: usize = 16;

/// The state of a branch after one of its events.
#[derive(Clone)]
struct BranchNow {
    /// Shared between branches until one of them continues.
    state: Rc<BranchState>,
    /// The last revision at which no turn was open. A compaction can cut there.
    turn_end: Revision,
    /// The previous `turn_end`: a call may show that the turn had not ended.
    turn_end_before: Revision,
    /// The user's messages since the last compaction. A later compaction may keep them.
    spoken: Rc<Vec<UserMessage>>,
}

/// A message of the user.
#[derive(Clone, Copy)]
struct UserMessage {
    /// Its index.
    message: usize,
    /// The cut that leaves it as the first message in the window.
    cut: Revision,
}

/// Index of a branch by order of creation; 0 is the first branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct BranchIndex(pub(crate) usize);

impl BranchIndex {
    pub(super) const MAIN: Self = Self(0);
}

/// Returns the labels for the project and Git branch of a session, if its source states them.
fn project_labels(source_meta: &JsonText) -> Vec<(String, String)> {
    let meta: Value = serde_json::from_str(source_meta.as_str()).unwrap_or_default();
    let texts = |values: [&Value; 2]| {
        values
            .into_iter()
            .find_map(Value::as_str)
            .map(str::to_owned)
    };
    // Sources use different field names.
    let folder = texts([&meta["cwd"], &meta["directory"]]);
    let folder = folder.and_then(|path| {
        let mut names = path.rsplit(['/', '\\']);
        names.find(|name| !name.is_empty()).map(str::to_owned)
    });
    let branch = texts([&meta["gitBranch"], &meta["git"]["branch"]]);
    let is_fit = |text: &String| {
        let has_control = text.chars().any(char::is_control);
        !text.trim().is_empty() && text.len() <= SHORT_TEXT_BYTES_MAX && !has_control
    };
    [(PROJECT_LABEL, folder), (GIT_BRANCH_LABEL, branch)]
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value.filter(is_fit)?)))
        .collect()
}

pub(super) struct Transcript {
    conversation: ConversationId,
    events: Vec<NewEvent>,
    branches: Vec<BranchNow>,
    notes: Vec<ImportNote>,
    /// Index of the message that is being imported, for notes.
    message_index: usize,
    /// The time at which that message was written, if known. No other time is used for it.
    pub(super) occurred_at: Option<TimestampMicros>,
    /// The place of that message in the conversation from which it was exported, if it was.
    pub(super) exported: Option<Place>,
    /// The place of each event in that conversation, if the event was exported.
    places: Vec<Option<Place>>,
    /// The latest time so far, for events that the source does not state.
    latest: Option<TimestampMicros>,
    /// The state before the first message.
    root: BranchNow,
    /// By message: the state at which a later branch forks.
    fork_points: HashMap<usize, BranchNow>,
    /// Number of forks at each revision.
    forks_at: HashMap<Revision, u32>,
    /// The index of the message of each call, by the revision of its request.
    messages_of_calls: HashMap<Revision, usize>,
    /// The branch that was continued last.
    continued: BranchIndex,
}

impl Transcript {
    /// Starts a conversation. `occurred_at` is the earliest time in the source.
    pub(super) fn new(
        conversation: ConversationId,
        mut created: ConversationCreated,
        occurred_at: Option<TimestampMicros>,
    ) -> Self {
        let labels = &mut created.labels;
        labels.extend(project_labels(&created.source_meta));
        if occurred_at.is_none() {
            labels.insert(TIMES_LABEL.to_owned(), NO_TIMES.to_owned());
        }
        let main = BranchNow {
            state: Rc::new(BranchState::root()),
            turn_end: Revision::NONE,
            turn_end_before: Revision::NONE,
            spoken: Rc::default(),
        };
        let mut transcript = Self {
            conversation,
            events: Vec::new(),
            branches: vec![main.clone()],
            notes: Vec::new(),
            message_index: 0,
            occurred_at,
            exported: None,
            places: Vec::new(),
            latest: occurred_at,
            root: main,
            fork_points: HashMap::new(),
            forks_at: HashMap::new(),
            messages_of_calls: HashMap::new(),
            continued: BranchIndex::MAIN,
        };
        transcript.push(BranchIndex::MAIN, EventBody::ConversationCreated(created));
        transcript.root = transcript.now(BranchIndex::MAIN).clone();
        transcript
    }

    /// Records the available tools, before the first message.
    pub(super) fn define_tools(&mut self, tools: Vec<ToolDefinition>) {
        if !tools.is_empty() {
            self.push(BranchIndex::MAIN, EventBody::ToolsDefined { tools });
            self.root = self.now(BranchIndex::MAIN).clone();
        }
    }

    /// Starts the import of a message of the tree; opens a branch if the message begins it.
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
            Attachment::Continues => None,
            Attachment::ForksRoot => Some(self.root.clone()),
            Attachment::Forks { parent } => self.fork_points.get(&parent).cloned(),
        };
        if let Some(from) = from {
            let name = self.name_of_fork(from.state.head)?;
            self.fork(from, name);
        }
        Ok(node.branch)
    }

    /// Returns a name for an unnamed fork: `at-REVISION`, with a number if there are several at one
    /// revision.
    fn name_of_fork(&mut self, at: Revision) -> Result<BranchName, NameError> {
        let forks = self.forks_at.entry(at).or_default();
        *forks += 1;
        BranchName::new(&match *forks {
            1 => format!("at-{at}"),
            number => format!("at-{at}-{number}"),
        })
    }

    /// Ends the import of a message of the tree.
    pub(super) fn leave(&mut self, tree: &Tree, index: usize) {
        if tree.forked.contains(&index) {
            let now = self.now(tree.nodes[index].branch).clone();
            self.fork_points.insert(index, now);
        }
    }

    fn now(&self, branch: BranchIndex) -> &BranchNow {
        &self.branches[branch.0]
    }

    fn state(&self, branch: BranchIndex) -> &BranchState {
        &self.now(branch).state
    }

    pub(super) fn branch_id(&self, branch: BranchIndex) -> BranchId {
        self.state(branch).id
    }

    pub(super) fn is_open(&self, branch: BranchIndex, call_id: &str) -> bool {
        self.state(branch).open_calls.contains_key(call_id)
    }

    /// Returns the revision at which an open call was requested.
    pub(super) fn request_of(&self, branch: BranchIndex, call_id: &str) -> Option<Revision> {
        let open = self.state(branch).open_calls.get(call_id);
        open.map(|call| call.request.revision)
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
        // Custom events are kept beside the messages and do not continue a branch.
        if !matches!(body, EventBody::Custom(_)) {
            self.continued = branch;
        }
        if matches!(body, EventBody::ToolCallRequested(_)) {
            self.messages_of_calls.insert(revision, self.message_index);
        }
        let at = EventRef {
            conversation: self.conversation,
            revision,
        };
        let now = &mut self.branches[branch.0];
        now.note_spoken(self.message_index, &body);
        now.apply(at, &body);
        let name = now.state.name.clone();
        self.latest = self.latest.max(self.occurred_at);
        let occurred_at = match is_said(&body) {
            true => self.occurred_at,
            false => self.occurred_at.or(self.latest),
        };
        let mut event = NewEvent::new(self.conversation, body).on_branch(name);
        event.occurred_at = occurred_at;
        self.events.push(event);
        self.places.push(self.exported);
        revision
    }

    /// Opens a branch that forks from another one.
    fn fork(&mut self, from: BranchNow, name: BranchName) -> BranchIndex {
        let forked = BranchForked {
            name: name.clone(),
            parent: from.state.id,
            fork_revision: from.state.head,
            system_prompt: String::new(),
        };
        let leaves = ForkPoint {
            conversation: self.conversation,
            branch: from.state.id,
            revision: from.state.head,
        };
        let index = BranchIndex(self.branches.len());
        let id = BranchId(self.events.len() as u64 + 1);
        self.branches.push(BranchNow {
            state: Rc::new(from.state.forked(id, name, leaves)),
            ..from
        });
        self.push(index, EventBody::BranchForked(forked));
        index
    }

    /// Appends a call of the message at revision `message`. If a call with the same id is open,
    /// that call is cancelled; if too many calls are open, the oldest call is cancelled.
    pub(super) fn request(
        &mut self,
        branch: BranchIndex,
        message: Revision,
        mut call: ToolCallRequested,
    ) {
        call.message_revision = Some(message);
        let open = &self.state(branch).open_calls;
        if open.contains_key(call.call_id.as_str()) {
            let call_id = call.call_id.clone();
            self.cancel(branch, call_id.clone(), CancelReason::Superseded);
            self.note(Oddity::SupersededCall { call_id });
        } else if open.len() >= OPEN_CALLS_MAX {
            let oldest = open.iter().min_by_key(|(_, call)| call.request);
            if let Some(call_id) = oldest.map(|(id, _)| id.clone()) {
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

    /// Returns a compaction at this point. `kept_from` is the first message that the source kept;
    /// `None` if it kept none. A compaction can only cut between turns, so the turn of that message
    /// stays whole. But if more messages of the turn precede it than follow it, and more than
    /// [`KEPT_BEFORE`], the source is treated as if it kept none. Then the compaction cuts at the
    /// end of the last turn, and the user's messages of an open turn stay.
    pub(super) fn compaction(
        &self,
        branch: BranchIndex,
        summary: String,
        tokens_before: u64,
        kept_from: Option<usize>,
    ) -> Compacted {
        let now = self.now(branch);
        let kept = kept_from.map_or(&[][..], |message| now.spoken_from(message));
        let is_more_before = |first: &UserMessage, message: usize| {
            let behind = self.message_index.saturating_sub(message);
            message.saturating_sub(first.message) > behind.max(KEPT_BEFORE)
        };
        let kept = match (kept.first(), kept_from) {
            (Some(first), Some(message)) if is_more_before(first, message) => &[][..],
            _ => kept,
        };
        let cut = kept.first().map_or(now.turn_end, |first| first.cut);
        let cuts: BTreeSet<Revision> = kept.iter().map(|spoken| spoken.cut).collect();
        Compacted {
            summary,
            cut_revision: cut,
            kept_turns: u32::try_from(cuts.len()).unwrap_or(u32::MAX),
            tokens_before,
            tokens_after: 0,
            trigger: CompactionTrigger::Imported,
            raw: None,
        }
    }

    /// Records the model that answered, if it differs from the last one.
    pub(super) fn answered_by(&mut self, branch: BranchIndex, model: String) {
        let config = &self.state(branch).config;
        if config.model_id != model {
            let config = Config {
                model_id: model,
                ..config.clone()
            };
            self.push(branch, EventBody::ConfigChanged(config));
        }
    }

    /// Records the sub-context of a call, unless it is already recorded.
    pub(super) fn spawn(&mut self, branch: BranchIndex, spawned: SubContextSpawned) {
        let running = &self.state(branch).sub_contexts;
        if !running.contains_key(&spawned.conversation) {
            self.push(branch, EventBody::SubContextSpawned(spawned));
        }
    }

    /// Returns the conversation from which the messages were exported, if they were.
    pub(super) fn origin(&self) -> Option<ExportOrigin> {
        ExportOrigin::of(&self.places)
    }

    /// Returns the events and notes, with a further note for each unanswered call.
    pub(super) fn finish(mut self) -> (Vec<NewEvent>, Vec<ImportNote>) {
        // A call that was open at a fork is open on both branches.
        let mut unanswered = BTreeMap::new();
        for branch in &self.branches {
            for (call_id, call) in &branch.state.open_calls {
                let request = call.request.revision;
                let message_index = self.messages_of_calls.get(&request).copied();
                unanswered.insert(request, (message_index.unwrap_or_default(), call_id));
            }
        }
        let unanswered = unanswered.into_values().map(|(message_index, call_id)| {
            let call_id = call_id.clone();
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

/// True for events that the source states: they never get an estimated time. Other events, such as
/// a fork, get the latest known time; without it, they would have the time of the import.
fn is_said(body: &EventBody) -> bool {
    matches!(
        body,
        EventBody::MessageAppended(_)
            | EventBody::ToolCallRequested(_)
            | EventBody::ToolResultRecorded(_)
            | EventBody::Compacted(_)
            | EventBody::Custom(_)
    )
}

impl BranchNow {
    /// Records a message of the user. Call this before applying the event. A compaction clears the
    /// list, because later compactions cannot keep earlier messages.
    fn note_spoken(&mut self, message: usize, body: &EventBody) {
        match body {
            EventBody::MessageAppended(said) if said.role == Role::User => {
                let cut = self.turn_end;
                Rc::make_mut(&mut self.spoken).push(UserMessage { message, cut });
            }
            EventBody::Compacted(_) => self.spoken = Rc::default(),
            _ => {}
        }
    }

    /// Returns the user's messages from the last one at or before `message`; all if there is none.
    fn spoken_from(&self, message: usize) -> &[UserMessage] {
        let behind = self.spoken.partition_point(|one| one.message <= message);
        &self.spoken[behind.saturating_sub(1)..]
    }

    fn apply(&mut self, at: EventRef, body: &EventBody) {
        let is_call = matches!(body, EventBody::ToolCallRequested(_));
        if is_call && self.turn_end == self.state.head {
            self.turn_end = self.turn_end_before;
        }
        let state = Rc::make_mut(&mut self.state);
        state.apply(at, body);
        // A fork does not end a turn: the last turn end of the parent stays. Settings do not end
        // one either, because a repeated import finds its place by messages, calls and results.
        let is_said = !matches!(
            body,
            EventBody::BranchForked(_)
                | EventBody::BranchActivated
                | EventBody::ConfigChanged(_)
                | EventBody::ToolsDefined { .. }
        );
        if state.at_turn_boundary() && is_said {
            self.turn_end_before = self.turn_end;
            self.turn_end = at.revision;
        }
    }
}
