//! A small in-memory store that decides as the engine does: decide, load what is missing,
//! decide again, apply.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::domain::{
    AcceptedBatch, AppendCommand, ApprovalDecided, BranchForked, BranchId, BranchName, BranchState,
    Compacted, CompactionTrigger, ContentHash, ConversationCreated, ConversationId,
    ConversationState, DecideError, Decision, EventBody, EventKind, Expectation, ExpectedRevision,
    ForkPoint, JsonText, Limits, Lookup, MessageAppended, MissingData, Namespace, NewEvent,
    ParentRef, PastBranch, Rejection, Revision, Role, Rule, SequencedEvent, ToolCallRequested,
    ToolCallStarted, ToolResultRecorded, decide,
};

/// The branch state after an event, with the event's kind.
#[derive(Clone, Debug, PartialEq)]
struct Past {
    branch: BranchId,
    kind: EventKind,
    after: Arc<BranchState>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct World {
    pub(crate) states: BTreeMap<ConversationId, ConversationState>,
    past: BTreeMap<ConversationId, Vec<Past>>,
    pub(crate) limits: Limits,
}

#[derive(Default)]
struct LoadedData {
    conversations: BTreeSet<ConversationId>,
    branches: BTreeMap<(ConversationId, BranchId, Revision), Option<PastBranch>>,
}

struct View<'a>(&'a World, &'a LoadedData);

impl Lookup for View<'_> {
    fn conversation(&self, id: ConversationId) -> Result<Option<&ConversationState>, MissingData> {
        if !self.1.conversations.contains(&id) {
            return Err(MissingData::Conversation(id));
        }
        Ok(self.0.states.get(&id))
    }

    fn branch_at(
        &self,
        conversation: ConversationId,
        branch: BranchId,
        revision: Revision,
    ) -> Result<Option<&PastBranch>, MissingData> {
        match self.1.branches.get(&(conversation, branch, revision)) {
            Some(past) => Ok(past.as_ref()),
            None => Err(MissingData::BranchAt(conversation, branch, revision)),
        }
    }
}

impl World {
    /// Creates a world with conversation 1, which has one event.
    pub(crate) fn new() -> Self {
        let mut world = Self::empty();
        world.take(vec![create(1)]);
        world
    }

    pub(crate) fn decide(&self, command: &AppendCommand) -> Result<AcceptedBatch, Rejection> {
        let mut loaded = LoadedData::default();
        loop {
            match decide(&View(self, &loaded), command, &self.limits) {
                Ok(decided) => return Ok(decided),
                Err(DecideError::Rejected(rejection)) => return Err(rejection),
                Err(DecideError::MissingData(MissingData::Conversation(id))) => {
                    assert!(loaded.conversations.insert(id), "asked for it twice");
                }
                Err(DecideError::MissingData(MissingData::BranchAt(id, branch, revision))) => {
                    let past = self.branch_at(id, branch, revision);
                    let old = loaded.branches.insert((id, branch, revision), past);
                    assert!(old.is_none(), "asked for it twice");
                }
            }
        }
    }

    pub(crate) fn append(
        &mut self,
        command: &AppendCommand,
    ) -> Result<Vec<SequencedEvent>, Rejection> {
        let decided = self.decide(command)?;
        let mut folds = self.clone();
        for (event, placed) in command.events.iter().zip(&decided.events) {
            folds.record(event, *placed);
        }
        for (id, changed) in decided.changed {
            let branches = changed.branches.into_values().collect();
            match self.states.get_mut(&id) {
                Some(state) => state.absorb(changed.row, branches),
                None => {
                    let state = ConversationState::new(changed.row, branches);
                    self.states.insert(id, state);
                }
            }
            for (id, state) in &self.states[&id].branches {
                let head = usize::try_from(state.head.0).unwrap();
                let past = &folds.past[&state_conversation(&self.states, state, *id)];
                assert_eq!(past[head - 1].after, *state, "what changed is the fold");
            }
        }
        self.past = folds.past;
        Ok(decided.events)
    }

    /// Folds the accepted event independently, for comparison.
    pub(crate) fn record(&mut self, event: &NewEvent, placed: SequencedEvent) {
        let id = placed.at.conversation;
        let past = self.past.entry(id).or_default();
        let before = past.iter().rev().find(|past| past.branch == placed.branch);
        let mut after = match (before, &event.body) {
            (Some(past), _) => (*past.after).clone(),
            (None, EventBody::BranchForked(forked)) => {
                let point = ForkPoint {
                    conversation: id,
                    branch: forked.parent,
                    revision: forked.fork_revision,
                };
                let base = self.branch_at(id, forked.parent, forked.fork_revision);
                let base = base.unwrap().state;
                base.forked(placed.branch, forked.name.clone(), point)
            }
            (None, EventBody::ConversationCreated(created)) if created.shares_history => {
                let parent = created.parent.clone().unwrap();
                let point = ForkPoint {
                    conversation: parent.conversation,
                    branch: parent.branch,
                    revision: parent.revision,
                };
                let base = self.branch_at(parent.conversation, parent.branch, parent.revision);
                let base = base.unwrap().state;
                base.forked(BranchId::MAIN, BranchName::default(), point)
            }
            (None, _) => BranchState::root(),
        };
        after.apply(placed.at, &event.body);
        let past = self.past.entry(id).or_default();
        past.push(Past {
            branch: placed.branch,
            kind: event.body.kind(),
            after: Arc::new(after),
        });
        assert_eq!(past.len() as u64, placed.at.revision.0, "a gap");
    }

    /// Returns the state after each event, without texts.
    #[allow(dead_code, reason = "only tests of treering-proto use it")]
    pub(crate) fn without_texts(&self) -> Vec<BranchState> {
        let states = self.past.values().flatten().map(|past| {
            let mut state = (*past.after).clone();
            state.name = BranchName::default();
            state.config = Default::default();
            state.memory = Default::default();
            state.active_context.clear();
            for call in state.open_calls.values_mut() {
                call.tool.clear();
                call.arguments_hash = ContentHash::default();
            }
            state
        });
        states.collect()
    }

    /// Creates a world without conversations.
    pub(crate) fn empty() -> Self {
        Self {
            states: BTreeMap::new(),
            past: BTreeMap::new(),
            limits: Limits::default(),
        }
    }

    /// Looks up a branch as of a revision, through its forks within the conversation.
    pub(crate) fn branch_at(
        &self,
        id: ConversationId,
        branch: BranchId,
        revision: Revision,
    ) -> Option<PastBranch> {
        let past = self.past.get(&id)?;
        let index = usize::try_from(revision.0).ok()?.checked_sub(1)?;
        let (mut on, mut upper) = (branch, u64::MAX);
        loop {
            let last = past.iter().rev().find(|past| past.branch == on)?;
            if past.get(index)?.branch == on && revision.0 <= upper {
                break;
            }
            let fork = last.after.fork.filter(|fork| fork.conversation == id)?;
            (on, upper) = (fork.branch, fork.revision.0.min(upper));
        }
        let next = past[index + 1..].iter().find(|past| past.branch == on);
        Some(PastBranch {
            state: Arc::clone(&past[index].after),
            followed_by_call: next.is_some_and(|past| past.kind == EventKind::ToolCallRequested),
        })
    }

    pub(crate) fn take(&mut self, events: Vec<NewEvent>) -> Vec<SequencedEvent> {
        let command = AppendCommand::new(Namespace::default(), events);
        match self.append(&command) {
            Ok(placed) => placed,
            Err(rejection) => panic!("a legal batch was refused: {rejection}"),
        }
    }

    /// Returns the rejection of this batch, and checks that it changed nothing.
    pub(crate) fn refusal(&mut self, events: Vec<NewEvent>) -> Rejection {
        self.refusal_of(&AppendCommand::new(Namespace::default(), events))
    }

    pub(crate) fn refusal_of(&mut self, command: &AppendCommand) -> Rejection {
        let before = self.clone();
        let rejection = self.append(command).expect_err("must be refused");
        assert_eq!(*self, before, "a refused batch left a trace");
        rejection
    }

    pub(crate) fn main(&self, conversation: u128) -> &BranchState {
        &self.states[&id(conversation)].branches[&BranchId::MAIN]
    }
}

/// Returns the conversation whose past holds the branch's head: a branch with shared history
/// has at least its own first event.
fn state_conversation(
    states: &BTreeMap<ConversationId, ConversationState>,
    state: &Arc<BranchState>,
    branch: BranchId,
) -> ConversationId {
    let owner = states.iter().find(|(_, conversation)| {
        let found = conversation.branches.get(&branch);
        found.is_some_and(|found| Arc::ptr_eq(found, state))
    });
    *owner.expect("the branch is in the world").0
}

pub(crate) fn id(n: u128) -> ConversationId {
    ConversationId(uuid::Uuid::from_u128(n))
}

pub(crate) fn name(name: &str) -> BranchName {
    BranchName::new(name).unwrap()
}

/// Creates an event of conversation 1.
pub(crate) fn event(body: EventBody) -> NewEvent {
    NewEvent::new(id(1), body)
}

pub(crate) fn create(n: u128) -> NewEvent {
    NewEvent::new(
        id(n),
        EventBody::ConversationCreated(ConversationCreated::default()),
    )
}

/// Creates a conversation forked or spawned from the first branch of another.
pub(crate) fn create_from(n: u128, parent: u128, revision: u64, shares_history: bool) -> NewEvent {
    let created = ConversationCreated {
        parent: Some(ParentRef {
            conversation: id(parent),
            branch: BranchId::MAIN,
            revision: Revision(revision),
            call_id: String::new(),
        }),
        shares_history,
        ..ConversationCreated::default()
    };
    NewEvent::new(id(n), EventBody::ConversationCreated(created))
}

pub(crate) fn user() -> NewEvent {
    say(Role::User)
}

pub(crate) fn assistant() -> NewEvent {
    say(Role::Assistant)
}

fn say(role: Role) -> NewEvent {
    event(EventBody::MessageAppended(MessageAppended::text(
        role, "text",
    )))
}

pub(crate) fn fork(new: &str, parent: u64, revision: u64) -> NewEvent {
    event(EventBody::BranchForked(BranchForked {
        name: name(new),
        parent: BranchId(parent),
        fork_revision: Revision(revision),
        system_prompt: String::new(),
    }))
}

pub(crate) const ARGUMENTS: ContentHash = ContentHash([1; 32]);

pub(crate) fn request(call_id: &str, needs_approval: bool) -> NewEvent {
    request_from(call_id, needs_approval, None)
}

pub(crate) fn request_from(call_id: &str, needs_approval: bool, message: Option<u64>) -> NewEvent {
    event(EventBody::ToolCallRequested(ToolCallRequested {
        call_id: call_id.to_owned(),
        tool: "read_file".to_owned(),
        arguments: JsonText::default(),
        arguments_hash: ARGUMENTS,
        message_revision: message.map(Revision),
        needs_approval,
        ..ToolCallRequested::default()
    }))
}

pub(crate) fn decision(call_id: &str, decision: Decision, arguments_hash: ContentHash) -> NewEvent {
    event(EventBody::ApprovalDecided(ApprovalDecided {
        call_id: call_id.to_owned(),
        decision,
        arguments_hash,
        decided_by: "someone".to_owned(),
        reason: String::new(),
    }))
}

pub(crate) fn approve(call_id: &str) -> NewEvent {
    decision(call_id, Decision::Approved, ARGUMENTS)
}

pub(crate) fn deny(call_id: &str) -> NewEvent {
    decision(call_id, Decision::Denied, ARGUMENTS)
}

pub(crate) fn start(call_id: &str) -> NewEvent {
    event(EventBody::ToolCallStarted(ToolCallStarted {
        call_id: call_id.to_owned(),
        executor: String::new(),
    }))
}

pub(crate) fn success(call_id: &str) -> NewEvent {
    event(EventBody::ToolResultRecorded(ToolResultRecorded::text(
        call_id, "found",
    )))
}

pub(crate) fn failure(call_id: &str) -> NewEvent {
    event(EventBody::ToolResultRecorded(ToolResultRecorded::failure(
        call_id,
        "not found",
    )))
}

pub(crate) fn compact(cut: u64) -> NewEvent {
    event(EventBody::Compacted(Compacted {
        summary: String::new(),
        cut_revision: Revision(cut),
        kept_turns: 0,
        tokens_before: 0,
        tokens_after: 0,
        trigger: CompactionTrigger::Manual,
        raw: None,
    }))
}

/// Creates an append of one message with an expected revision.
pub(crate) fn expecting(branch: Option<&str>, expected: ExpectedRevision) -> AppendCommand {
    let mut command = AppendCommand::new(Namespace::default(), vec![user()]);
    command.expectations.push(Expectation {
        conversation: id(1),
        branch: branch.map(name),
        expected,
    });
    command
}

/// Returns the rule that refused the batch's first event.
pub(crate) fn first(rejection: Rejection) -> Rule {
    assert_eq!(rejection.event_index, Some(0));
    rejection.rule
}
