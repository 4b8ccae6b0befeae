//! The model: lists of events. Everything else is derived from them each time. It uses the engine's
//! types, but none of its code.

use std::collections::{BTreeMap, BTreeSet};

use treering::domain::{
    ApprovalStatus, BranchState, CompactionTrigger, ContentHash, ConversationId, EventBody,
    EventRef, Expectation, ExpectedRevision, NewEvent, Role, ToolCallRequested,
};

/// A conversation and a revision.
pub type At = (ConversationId, u64);

#[derive(Clone, Debug)]
pub struct Event {
    pub branch: u64,
    pub body: EventBody,
}

/// Conversations, each a list of its events.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub conversations: BTreeMap<ConversationId, Vec<Event>>,
}

/// Why a batch is refused.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// The event's index in the batch, and the name of the rule.
    Rule(Option<usize>, &'static str),
    /// The batch refers to a place inside itself that is not a head. The engine need not support
    /// that.
    OutOfScope,
}

fn rule<T>(name: &'static str) -> Result<T, Refusal> {
    Err(Refusal::Rule(None, name))
}

#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub tool: String,
    pub request: At,
    pub hash: ContentHash,
    pub approval: ApprovalStatus,
    pub started: bool,
}

/// The state of a branch.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct State {
    pub head: u64,
    pub events: u64,
    pub calls: BTreeMap<String, Call>,
    pub last_assistant: Option<At>,
    pub turn_open: Option<At>,
    pub turn_answered: bool,
    pub turn_closing: bool,
    pub turns: u64,
    pub model_id: String,
    pub system_prompt: Option<At>,
    pub user_prompt: Option<At>,
    pub context: BTreeMap<String, At>,
    pub discovered: Vec<String>,
    pub guided: Vec<String>,
    pub entities: Vec<String>,
    pub uses: BTreeMap<String, u64>,
    pub tools: Option<At>,
    pub summary: Option<At>,
    pub compaction: Option<At>,
    pub cut: u64,
}

impl State {
    /// Converts the engine's state.
    pub fn of(state: &BranchState) -> Self {
        let at = |place: &EventRef| (place.conversation, place.revision.0);
        let calls = state.open_calls.iter().map(|(id, call)| {
            let call = Call {
                tool: call.tool.clone(),
                request: at(&call.request),
                hash: call.arguments_hash,
                approval: call.approval,
                started: call.started,
            };
            (id.clone(), call)
        });
        let context = state.active_context.iter();
        let entities = state.memory.entities.iter();
        Self {
            head: state.head.0,
            events: state.history_events,
            calls: calls.collect(),
            last_assistant: state.last_assistant.as_ref().map(at),
            turn_open: state.turn.open_since.as_ref().map(at),
            turn_answered: state.turn.answered,
            turn_closing: state.turn.closing,
            turns: state.turn.finished,
            model_id: state.config.model_id.clone(),
            system_prompt: state.system_prompt.as_ref().map(at),
            user_prompt: state.user_prompt.as_ref().map(at),
            context: context
                .map(|(key, place)| (key.clone(), at(place)))
                .collect(),
            discovered: state.memory.discovered_tools.clone(),
            guided: state.memory.guidance_given.clone(),
            entities: entities.map(|entity| entity.id.clone()).collect(),
            uses: state.memory.tool_uses.clone(),
            tools: state.tools_defined.as_ref().map(at),
            summary: state.summary.as_ref().map(at),
            compaction: state.compaction.as_ref().map(at),
            cut: state.cut.0,
        }
    }

    fn ends_a_turn(&self) -> bool {
        self.turn_open.is_none() || self.turn_closing
    }

    pub fn fold(&mut self, at: At, body: &EventBody) {
        self.head = at.1;
        self.events += 1;
        match body {
            EventBody::ConversationCreated(created) => {
                self.model_id.clone_from(&created.config.model_id);
            }
            EventBody::ConfigChanged(config) => self.model_id.clone_from(&config.model_id),
            EventBody::BranchForked(fork) if !fork.system_prompt.is_empty() => {
                self.system_prompt = Some(at);
            }
            EventBody::SystemPromptSet(_) => self.system_prompt = Some(at),
            EventBody::UserPromptSet(_) => self.user_prompt = Some(at),
            EventBody::MessageAppended(message) if message.role == Role::User => {
                let over = self.turn_answered && self.calls.is_empty();
                if self.turn_closing || over {
                    self.turns += 1;
                    self.turn_answered = false;
                    self.turn_open = None;
                }
                self.turn_open = self.turn_open.or(Some(at));
                self.turn_closing = false;
            }
            EventBody::MessageAppended(message) if message.role == Role::Assistant => {
                self.last_assistant = Some(at);
                self.turn_open = self.turn_open.or(Some(at));
                (self.turn_answered, self.turn_closing) = (true, true);
            }
            EventBody::ToolCallRequested(call) => self.fold_request(at, call),
            EventBody::ApprovalDecided(decided) => {
                let call = self.calls.get_mut(&decided.call_id).unwrap();
                call.approval = decided.decision.into();
            }
            EventBody::ToolCallStarted(started) => {
                self.calls.get_mut(&started.call_id).unwrap().started = true;
            }
            EventBody::ToolResultRecorded(result) => {
                self.calls.remove(&result.call_id);
            }
            EventBody::ToolCallCancelled(cancelled) => {
                self.calls.remove(&cancelled.call_id);
            }
            EventBody::ContextSet(set) => {
                self.context.insert(set.key.clone(), at);
            }
            EventBody::ContextRemoved { key } => {
                self.context.remove(key);
            }
            EventBody::ToolsDiscovered { names } => add_new(&mut self.discovered, names.clone()),
            EventBody::GuidanceGiven { guidance } => {
                let tools = guidance.iter().map(|guidance| guidance.tool.clone());
                add_new(&mut self.guided, tools.collect());
            }
            EventBody::EntitiesNoted { entities } => {
                for entity in entities {
                    self.entities.retain(|id| *id != entity.id);
                    self.entities.push(entity.id.clone());
                }
            }
            EventBody::ToolsDefined { .. } => self.tools = Some(at),
            EventBody::SummaryRecorded(_) => self.summary = Some(at),
            EventBody::Compacted(compacted) => {
                assert_eq!(compacted.trigger, CompactionTrigger::Manual);
                self.compaction = Some(at);
                self.cut = compacted.cut_revision.0;
                self.turns = compacted.kept_turns.into();
                self.discovered.clear();
                self.guided.clear();
                self.entities.clear();
                self.uses.clear();
            }
            _ => {}
        }
    }

    fn fold_request(&mut self, at: At, call: &ToolCallRequested) {
        self.turn_closing = false;
        self.turn_open = self.turn_open.or(Some(at));
        *self.uses.entry(call.tool.clone()).or_default() += 1;
        let approval = if call.needs_approval {
            ApprovalStatus::Pending
        } else {
            ApprovalStatus::NotRequired
        };
        let open = Call {
            tool: call.tool.clone(),
            request: at,
            hash: call.arguments_hash,
            approval,
            started: false,
        };
        self.calls.insert(call.call_id.clone(), open);
    }
}

fn add_new(list: &mut Vec<String>, more: Vec<String>) {
    let mut seen: BTreeSet<_> = list.iter().cloned().collect();
    list.extend(more.into_iter().filter(|name| seen.insert(name.clone())));
}

/// Histories, and what is derived from them.
impl Model {
    fn created(&self, id: ConversationId) -> &treering::domain::ConversationCreated {
        match &self.conversations[&id][0].body {
            EventBody::ConversationCreated(created) => created,
            other => panic!("{other:?} comes first"),
        }
    }

    pub fn body(&self, (id, revision): At) -> &EventBody {
        &self.conversations[&id][revision as usize - 1].body
    }

    /// Returns all events of a branch, inherited ones first; `None` if there is no such branch.
    pub fn history(&self, id: ConversationId, branch: u64) -> Option<Vec<At>> {
        let events = self.conversations.get(&id)?;
        let mut history = if branch == 0 {
            match &self.created(id).parent {
                Some(parent) if self.created(id).shares_history => {
                    let branch = parent.branch.0;
                    self.history_to(parent.conversation, branch, parent.revision.0)?
                }
                _ => Vec::new(),
            }
        } else {
            match &events.get(branch as usize - 1)?.body {
                EventBody::BranchForked(fork) => {
                    self.history_to(id, fork.parent.0, fork.fork_revision.0)?
                }
                _ => return None,
            }
        };
        let own = (1..)
            .zip(events)
            .filter(|(_, event)| event.branch == branch);
        history.extend(own.map(|(revision, _)| (id, revision)));
        Some(history)
    }

    fn history_to(&self, id: ConversationId, branch: u64, revision: u64) -> Option<Vec<At>> {
        let mut history = self.history(id, branch)?;
        let last = history.iter().position(|at| *at == (id, revision))?;
        history.truncate(last + 1);
        Some(history)
    }

    pub fn fold(&self, history: &[At]) -> State {
        let mut state = State::default();
        for at in history {
            state.fold(*at, self.body(*at));
        }
        state
    }

    pub fn branches(&self, id: ConversationId) -> Vec<u64> {
        let forks = (1..).zip(&self.conversations[&id]);
        let forks = forks.filter(|(_, event)| matches!(event.body, EventBody::BranchForked(_)));
        std::iter::once(0)
            .chain(forks.map(|(revision, _)| revision))
            .collect()
    }

    fn own(&self, id: ConversationId, branch: u64) -> impl Iterator<Item = &EventBody> {
        let events = self.conversations[&id].iter();
        events
            .filter(move |event| event.branch == branch)
            .map(|event| &event.body)
    }

    pub fn name(&self, id: ConversationId, branch: u64) -> String {
        let mut name = "main".to_owned();
        for body in self.own(id, branch) {
            match body {
                EventBody::BranchForked(fork) => name = fork.name.to_string(),
                EventBody::BranchRenamed(new) => name = new.to_string(),
                _ => {}
            }
        }
        name
    }

    pub fn archived(&self, id: ConversationId, branch: u64) -> bool {
        self.own(id, branch)
            .any(|body| matches!(body, EventBody::BranchArchived { .. }))
    }

    pub fn active(&self, id: ConversationId) -> u64 {
        let events = self.conversations[&id].iter().rev();
        let mut activated = events.filter(|e| matches!(e.body, EventBody::BranchActivated));
        activated.next().map_or(0, |event| event.branch)
    }

    pub fn sealed(&self, id: ConversationId) -> bool {
        let mut events = self.conversations[&id].iter();
        events.any(|event| matches!(event.body, EventBody::ConversationSealed { .. }))
    }

    pub fn branch_named(&self, id: ConversationId, name: Option<&str>) -> Option<u64> {
        match name {
            None => Some(self.active(id)),
            Some(name) => {
                let mut branches = self.branches(id).into_iter();
                branches.find(|branch| self.name(id, *branch) == name)
            }
        }
    }

    fn root(&self, id: ConversationId) -> ConversationId {
        let parent = self.created(id).parent.as_ref();
        parent.map_or(id, |parent| self.root(parent.conversation))
    }

    fn len(&self, id: ConversationId) -> u64 {
        self.conversations
            .get(&id)
            .map_or(0, |events| events.len() as u64)
    }

    fn head(&self, id: ConversationId, branch: u64) -> u64 {
        let history = self.history(id, branch).unwrap();
        history.last().unwrap().1
    }
}

/// The rules.
impl Model {
    /// Appends a whole batch, or nothing of it.
    pub fn append(
        &mut self,
        expectations: &[Expectation],
        events: &[NewEvent],
    ) -> Result<Vec<(At, u64)>, Refusal> {
        if events.is_empty() {
            return rule("EMPTY_BATCH");
        }
        for expectation in expectations {
            self.check_expectation(expectation)?;
        }
        let before = self.clone();
        let mut places = Vec::new();
        for (index, event) in events.iter().enumerate() {
            match self.append_one(&before, event) {
                Ok(place) => places.push(place),
                Err(refusal) => {
                    *self = before;
                    return Err(match refusal {
                        Refusal::Rule(_, name) => Refusal::Rule(Some(index), name),
                        other => other,
                    });
                }
            }
        }
        let roots: BTreeSet<_> = places.iter().map(|((id, _), _)| self.root(*id)).collect();
        if roots.len() > 1 {
            *self = before;
            return rule("DIFFERENT_TREES");
        }
        Ok(places)
    }

    fn check_expectation(&self, expectation: &Expectation) -> Result<(), Refusal> {
        let id = expectation.conversation;
        let there = self.conversations.contains_key(&id);
        let name = expectation.branch.as_ref().map(|name| name.as_str());
        match expectation.expected {
            ExpectedRevision::Any if !there => Ok(()),
            ExpectedRevision::NoStream if !there => Ok(()),
            ExpectedRevision::NoStream => rule("CONVERSATION_EXISTS"),
            ExpectedRevision::Exact(_) if !there => rule("CONVERSATION_NOT_FOUND"),
            ExpectedRevision::Any => Ok(()),
            ExpectedRevision::Exact(revision) => match self.branch_named(id, name) {
                None => rule("BRANCH_NOT_FOUND"),
                Some(branch) if self.head(id, branch) != revision.0 => rule("REVISION_MISMATCH"),
                Some(_) => Ok(()),
            },
        }
    }

    fn append_one(&mut self, before: &Self, event: &NewEvent) -> Result<(At, u64), Refusal> {
        let id = event.conversation;
        if let EventBody::ConversationCreated(_) = &event.body {
            self.check_created(before, event)?;
            self.conversations.insert(id, Vec::new());
        } else if !self.conversations.contains_key(&id) {
            return rule("CONVERSATION_NOT_FOUND");
        }
        if self.sealed(id) {
            return rule("SEALED");
        }
        let revision = self.len(id) + 1;
        let branch = match &event.body {
            EventBody::ConversationCreated(_) => 0,
            EventBody::BranchForked(fork) => {
                if self.branch_named(id, Some(fork.name.as_str())).is_some() {
                    return rule("BRANCH_NAME_TAKEN");
                }
                self.check_place(before, id, fork.parent.0, fork.fork_revision.0)?;
                revision
            }
            body => {
                let name = event.branch.as_ref().map(|name| name.as_str());
                let Some(branch) = self.branch_named(id, name) else {
                    return rule("BRANCH_NOT_FOUND");
                };
                if self.archived(id, branch) {
                    return rule("BRANCH_ARCHIVED");
                }
                self.check_body(before, id, branch, body)?;
                branch
            }
        };
        let body = event.body.clone();
        let events = self.conversations.get_mut(&id).unwrap();
        events.push(Event { branch, body });
        Ok(((id, revision), branch))
    }

    fn check_created(&self, before: &Self, event: &NewEvent) -> Result<(), Refusal> {
        let id = event.conversation;
        let EventBody::ConversationCreated(created) = &event.body else {
            return Ok(());
        };
        if self.conversations.contains_key(&id) {
            return rule("CONVERSATION_EXISTS");
        }
        match &created.parent {
            None if created.shares_history => rule("PARENT_INCOMPLETE"),
            None => Ok(()),
            Some(parent) if parent.conversation == id => rule("OWN_PARENT"),
            Some(parent) if !self.conversations.contains_key(&parent.conversation) => {
                rule("CONVERSATION_NOT_FOUND")
            }
            Some(parent) => {
                let (branch, revision) = (parent.branch.0, parent.revision.0);
                self.check_place(before, parent.conversation, branch, revision)
            }
        }
    }

    /// Checks a place to fork at.
    fn check_place(
        &self,
        before: &Self,
        id: ConversationId,
        branch: u64,
        revision: u64,
    ) -> Result<(), Refusal> {
        let there = self.history_to(id, branch, revision).is_some();
        let now = there && self.head(id, branch) == revision;
        let stored = before.history_to(id, branch, revision).is_some();
        match there {
            true if now || stored => Ok(()),
            true => Err(Refusal::OutOfScope),
            false => rule("FORK_POINT_MISSING"),
        }
    }

    fn check_body(
        &self,
        before: &Self,
        id: ConversationId,
        branch: u64,
        body: &EventBody,
    ) -> Result<(), Refusal> {
        let history = self.history(id, branch).unwrap();
        let state = self.fold(&history);
        let open = |call_id: &str| match state.calls.get(call_id) {
            Some(call) => Ok(call),
            None => Err(Refusal::Rule(None, "CALL_NOT_OPEN")),
        };
        let may_run = |call: &Call| match call.approval {
            ApprovalStatus::NotRequired | ApprovalStatus::Approved => Ok(()),
            _ => rule("CALL_NOT_APPROVED"),
        };
        let exists = |revision: u64| match (1..=self.len(id)).contains(&revision) {
            true => Ok(()),
            false => rule("REVISION_MISSING"),
        };
        match body {
            EventBody::ToolCallRequested(call) => {
                if state.calls.contains_key(&call.call_id) {
                    return rule("CALL_ALREADY_OPEN");
                }
                let last = state.last_assistant.map(|(_, revision)| revision);
                match call.message_revision {
                    Some(revision) if last != Some(revision.0) => rule("MESSAGE_MISSING"),
                    _ => Ok(()),
                }
            }
            EventBody::ApprovalDecided(decided) => {
                let call = open(&decided.call_id)?;
                match call.approval {
                    ApprovalStatus::NotRequired => rule("APPROVAL_NOT_REQUIRED"),
                    ApprovalStatus::Pending if call.hash == decided.arguments_hash => Ok(()),
                    ApprovalStatus::Pending => rule("ARGUMENTS_CHANGED"),
                    _ => rule("CALL_ALREADY_DECIDED"),
                }
            }
            EventBody::ToolCallStarted(started) => {
                let call = open(&started.call_id)?;
                if call.started {
                    return rule("CALL_ALREADY_STARTED");
                }
                may_run(call)
            }
            EventBody::ToolResultRecorded(result) => {
                let call = open(&result.call_id)?;
                if result.success {
                    may_run(call)
                } else {
                    Ok(())
                }
            }
            EventBody::ToolCallCancelled(cancelled) => open(&cancelled.call_id).map(|_| ()),
            EventBody::ToolSnapshotRecorded(snapshot) => exists(snapshot.request_revision.0),
            EventBody::AnnotationAdded(annotation) => match annotation.target {
                Some(target) => exists(target.0),
                None => Ok(()),
            },
            EventBody::SummaryRecorded(summary) => {
                exists(summary.from_revision.0)?;
                exists(summary.to_revision.0)
            }
            EventBody::BranchRenamed(name) => match self.branch_named(id, Some(name.as_str())) {
                Some(_) => rule("BRANCH_NAME_TAKEN"),
                None => Ok(()),
            },
            EventBody::BranchArchived { .. } if self.active(id) == branch => {
                rule("ARCHIVES_ACTIVE_BRANCH")
            }
            EventBody::Compacted(compacted) => {
                let cut = (id, compacted.cut_revision.0);
                self.check_cut(before, branch, &history, cut)
            }
            EventBody::ContentErased { .. } => rule("ENGINE_ONLY"),
            _ => Ok(()),
        }
    }

    fn check_cut(
        &self,
        before: &Self,
        branch: u64,
        history: &[At],
        cut: At,
    ) -> Result<(), Refusal> {
        let state = self.fold(history);
        // The last cut counts only if its compaction is in the same conversation.
        let last_cut = match state.compaction {
            Some((id, _)) if id == cut.0 => state.cut,
            _ => 0,
        };
        if cut.1 <= last_cut {
            return rule("CUT_BEFORE_LAST_CUT");
        }
        let Some(place) = history.iter().position(|at| *at == cut) else {
            return rule("NOT_A_TURN_BOUNDARY");
        };
        let called_next = history
            .get(place + 1)
            .is_some_and(|next| matches!(self.body(*next), EventBody::ToolCallRequested(_)));
        let is_head = place + 1 == history.len();
        if !is_head && before.history_to(cut.0, branch, cut.1).is_none() {
            return Err(Refusal::OutOfScope);
        }
        if called_next || !self.fold(&history[..=place]).ends_a_turn() {
            return rule("NOT_A_TURN_BOUNDARY");
        }
        Ok(())
    }
}
