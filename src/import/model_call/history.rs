//! The stored messages of a conversation as a tree, and where a call continues it.

use std::collections::{HashMap, HashSet};

use super::{CallStep, Continues, ModelCall, StepDigest, same};
use treering_domain::{
    BranchId, EventBody, EventKind, MessageAppended, Revision, Role, StoredEvent, ToolCallRequested,
};
use treering_proto::body;

/// The index of the node before all messages.
const ROOT: usize = 0;

/// A message with its calls, or a result.
struct StoredStep {
    parent: usize,
    children: Vec<usize>,
    branch: BranchId,
    /// Its last event.
    end: Revision,
    digest: StepDigest,
    /// Set for a message.
    message: Option<MessageAppended>,
    calls: Vec<ToolCallRequested>,
    /// The call of a result.
    call_id: String,
    /// Its content is erased.
    is_erased: bool,
}

impl StoredStep {
    /// Returns true if a call may omit the step.
    fn is_optional(&self) -> bool {
        let says_nothing = |message| self.calls.is_empty() && same::is_optional(message);
        self.message.as_ref().is_some_and(says_nothing)
    }

    /// Returns true if this step is erased and may have been `step`.
    fn may_say(&self, step: &CallStep) -> bool {
        let is_same = match (&self.message, step) {
            (Some(stored), CallStep::Said { message, .. }) => stored.role == message.role,
            (None, CallStep::Result(result)) => self.call_id == result.call_id,
            _ => false,
        };
        self.is_erased && is_same
    }

    fn is_answer(&self) -> bool {
        let role = self.message.as_ref().map(|message| message.role);
        role == Some(Role::Assistant)
    }
}

struct StoredLine {
    /// The branch that it forks from, and the last revision that both share.
    parent: Option<(BranchId, Revision)>,
    /// Revision and node of the step that the branch begins after, and of each of its own steps.
    steps: Vec<(Revision, usize)>,
}

/// The stored events of a conversation, in a form for comparison with calls.
pub struct StoredHistory<'a> {
    events: &'a [StoredEvent],
    nodes: Vec<StoredStep>,
    lines: HashMap<BranchId, StoredLine>,
    active: BranchId,
}

/// The place where a call continues the stored history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryPlace {
    node: usize,
    /// Number of the call's steps up to the last one that is stored.
    repeated: usize,
    /// The steps that are not stored, by index: changed instructions, and the rest of the call.
    pub(super) new: Vec<usize>,
    /// All of the call's instructions are stored.
    has_instructions: bool,
    /// The call repeats or continues a stored answer.
    pub continues_answer: bool,
    /// The call repeats a stored prompt.
    pub repeats_prompt: bool,
}

impl HistoryPlace {
    /// Returns true if the call belongs to the conversation: it continues one of its answers, or it
    /// begins with the same instructions and the same prompt. A call with other instructions or
    /// another prompt, such as one for a title or by a sub-agent, is a conversation of its own.
    #[must_use]
    pub fn belongs(&self) -> bool {
        self.continues_answer || (self.repeats_prompt && self.has_instructions)
    }

    /// Returns the steps of the call's request that are not stored.
    pub(super) fn new_steps<'a>(&self, call: &'a ModelCall) -> impl Iterator<Item = &'a CallStep> {
        self.new.iter().map(|index| &call.request[*index])
    }
}

impl<'a> StoredHistory<'a> {
    /// Reads the stored events: all events of the conversation in revision order.
    #[must_use]
    pub fn read(events: &'a [StoredEvent]) -> Self {
        let root = StoredStep {
            parent: ROOT,
            children: Vec::new(),
            branch: BranchId::MAIN,
            end: Revision(u64::from(!events.is_empty())),
            digest: StepDigest::default(),
            message: None,
            calls: Vec::new(),
            call_id: String::new(),
            is_erased: false,
        };
        let main = StoredLine {
            parent: None,
            steps: vec![(Revision::NONE, ROOT)],
        };
        let mut history = Self {
            events,
            nodes: vec![root],
            lines: HashMap::from([(BranchId::MAIN, main)]),
            active: BranchId::MAIN,
        };
        for event in events {
            history.add(event);
        }
        history
    }

    /// Returns true if nothing is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    fn add(&mut self, event: &StoredEvent) {
        let (branch, at) = (event.header.branch, event.header.revision);
        let Some(body) = decode(event) else { return };
        match body {
            EventBody::BranchForked(forked) => {
                let tip = self.lines.get(&forked.parent).map_or(ROOT, |line| {
                    let upto = line
                        .steps
                        .partition_point(|(at, _)| *at <= forked.fork_revision);
                    line.steps[upto.saturating_sub(1)].1
                });
                let line = StoredLine {
                    parent: Some((forked.parent, forked.fork_revision)),
                    steps: vec![(Revision::NONE, tip)],
                };
                self.lines.insert(branch, line);
            }
            EventBody::BranchActivated => self.active = branch,
            EventBody::MessageAppended(message) => {
                let digest = StepDigest::of_message(&message, &mut [].iter());
                let call_id = message.tool_call_id.clone();
                self.push(event, digest, (Some(message), call_id));
            }
            EventBody::ToolResultRecorded(result) => {
                let call_id = result.call_id.clone();
                let digest = StepDigest::of(&CallStep::Result(result));
                self.push(event, digest, (None, call_id));
            }
            EventBody::ToolCallRequested(call) => {
                let Some(tip) = self.tip(branch) else { return };
                let step = &mut self.nodes[tip];
                step.end = at;
                step.calls.push(call);
                if let Some(message) = &step.message {
                    step.digest = StepDigest::of_message(message, &mut step.calls.iter());
                }
            }
            EventBody::ToolCallCancelled(cancelled) => {
                let Some(tip) = self.tip(branch) else { return };
                let step = &mut self.nodes[tip];
                if step
                    .calls
                    .iter()
                    .any(|call| call.call_id == cancelled.call_id)
                {
                    step.end = at;
                }
            }
            _ => {}
        }
    }

    /// Returns the last step of a branch, if it is the branch's own.
    fn tip(&self, branch: BranchId) -> Option<usize> {
        let line = self.lines.get(&branch)?;
        let (at, node) = *line.steps.last()?;
        (at != Revision::NONE).then_some(node)
    }

    fn push(
        &mut self,
        event: &StoredEvent,
        digest: StepDigest,
        (message, call_id): (Option<MessageAppended>, String),
    ) {
        let (branch, end) = (event.header.branch, event.header.revision);
        let index = self.nodes.len();
        let Some(line) = self.lines.get_mut(&branch) else {
            return;
        };
        let parent = line.steps.last().map_or(ROOT, |(_, node)| *node);
        line.steps.push((end, index));
        self.nodes[parent].children.push(index);
        self.nodes.push(StoredStep {
            parent,
            children: Vec::new(),
            branch,
            end,
            digest,
            message,
            calls: Vec::new(),
            call_id,
            is_erased: event.erased,
        });
    }

    /// Returns where a call continues this history.
    #[must_use]
    pub fn place(&self, call: &ModelCall) -> HistoryPlace {
        let from = match &call.continues {
            Continues::Nothing => None,
            Continues::Latest => self.active_tip(),
            Continues::Answer(id) => self.answer(id),
        };
        self.repeated(from.unwrap_or(ROOT), call)
    }

    /// Returns true if the answer with this id is stored.
    #[must_use]
    pub fn has_answer(&self, id: &str) -> bool {
        self.answer(id).is_some()
    }

    /// Returns the digest of the first prompt on the first branch.
    #[must_use]
    pub fn beginning(&self) -> Option<StepDigest> {
        let users = || {
            self.nodes.iter().filter_map(|step| {
                let message = step.message.clone()?;
                (message.role == Role::User).then(|| (step.digest, CallStep::said(message)))
            })
        };
        let prompt = users().find(|(_, step)| same::prompt(step).is_some());
        prompt.or(users().next()).map(|(digest, _)| digest)
    }

    /// Returns true if a call at this place is stored completely, with its answer.
    #[must_use]
    pub fn has_call(&self, call: &ModelCall, place: &HistoryPlace) -> bool {
        let answer = call.answer.as_ref().map(StepDigest::of);
        let mut after = self.nodes[place.node].children.iter();
        let is_answered = after.any(|node| Some(self.nodes[*node].digest) == answer);
        place.repeated == call.request.len() && is_answered
    }

    fn answer(&self, id: &str) -> Option<usize> {
        let is_it = |step: &StoredStep| {
            let message = step.message.as_ref();
            !id.is_empty() && message.is_some_and(|message| message.message_id == id)
        };
        self.nodes.iter().rposition(is_it)
    }

    fn active_tip(&self) -> Option<usize> {
        let line = self.lines.get(&self.active)?;
        line.steps.last().map(|(_, node)| *node)
    }

    /// Finds the longest part of a call that is stored after `start`.
    fn repeated(&self, start: usize, call: &ModelCall) -> HistoryPlace {
        let (mut best, mut repeated) = (start, 0);
        let mut ends: HashSet<usize> = HashSet::from([start]);
        for (index, step) in call.request.iter().enumerate() {
            let digest = StepDigest::of(step);
            let mut next: HashSet<usize> = HashSet::new();
            for end in &ends {
                self.add_matches(*end, step, digest, &mut next);
            }
            // A step counts as a repetition of an erased message only if other steps follow it;
            // otherwise it is new.
            let is_last = index + 1 == call.request.len();
            let counts = |node: &usize| !(is_last && self.nodes[*node].is_erased);
            // Among equal steps, prefer one that is not erased, then one on the active branch, then
            // the latest.
            let rank = |node: &usize| {
                let step = &self.nodes[*node];
                (!step.is_erased, step.branch == self.active, *node)
            };
            if let Some(found) = next.iter().copied().filter(counts).max_by_key(rank) {
                (best, repeated) = (found, index + 1);
            }
            if is_optional(step) {
                next.extend(ends);
            }
            if next.is_empty() {
                break;
            }
            ends = next;
        }
        let known = self.instructions(best);
        let leading = call.request.iter().take_while(|step| is_instruction(step));
        let leading = leading.count();
        let is_known = |step: &CallStep| known.contains(&StepDigest::of(step));
        let steps = call.request.iter().enumerate();
        let new = steps.filter(|(index, step)| match *index < leading {
            true => !is_known(step),
            false => *index >= repeated,
        });
        let path = self.ancestors(best);
        let is_prompt = |node: &usize| {
            let step = &self.nodes[*node];
            let role = step.message.as_ref().map(|message| message.role);
            role == Some(Role::User) && !step.is_optional()
        };
        HistoryPlace {
            node: best,
            repeated,
            new: new.map(|(index, _)| index).collect(),
            has_instructions: call.request.iter().take(leading).all(is_known),
            continues_answer: path.iter().any(|node| self.nodes[*node].is_answer()),
            repeats_prompt: path.iter().any(is_prompt),
        }
    }

    /// Adds the steps after `node` that match `step`. Optional steps in between are skipped.
    fn add_matches(
        &self,
        node: usize,
        step: &CallStep,
        digest: StepDigest,
        found: &mut HashSet<usize>,
    ) {
        let cleared = same::cleared(step);
        let mut waiting = vec![node];
        while let Some(node) = waiting.pop() {
            for &child in &self.nodes[node].children {
                let stored = &self.nodes[child];
                let is_cleared =
                    || stored.message.is_none() && cleared.is_some_and(|id| id == stored.call_id);
                if stored.digest == digest || is_cleared() || stored.may_say(step) {
                    found.insert(child);
                } else if stored.is_optional() {
                    waiting.push(child);
                }
            }
        }
    }

    /// Returns a node and those before it, without the root.
    fn ancestors(&self, node: usize) -> Vec<usize> {
        let mut path = Vec::new();
        let mut at = node;
        while at != ROOT {
            path.push(at);
            at = self.nodes[at].parent;
        }
        path
    }

    fn instructions(&self, node: usize) -> HashSet<StepDigest> {
        let path = self.ancestors(node).into_iter();
        let steps = path.map(|node| &self.nodes[node]);
        let told = steps.filter(|step| {
            let role = step.message.as_ref().map(|message| message.role);
            matches!(role, Some(Role::System | Role::Developer))
        });
        told.map(|step| step.digest).collect()
    }

    /// Returns the events that a call at this place repeats, in order, without the conversation's
    /// first event.
    pub(super) fn path(
        &self,
        place: &HistoryPlace,
    ) -> impl Iterator<Item = (&'a StoredEvent, EventBody)> + use<'a> {
        let node = &self.nodes[place.node];
        let mut upto: HashMap<BranchId, Revision> = HashMap::new();
        let (mut branch, mut end) = (node.branch, node.end);
        loop {
            upto.insert(branch, end);
            let parent = self.lines.get(&branch).and_then(|line| line.parent);
            let Some((parent, fork)) = parent else { break };
            (branch, end) = (parent, fork.min(end));
        }
        let events = self.events.iter().skip(1);
        events.filter_map(move |event| {
            let end = upto.get(&event.header.branch)?;
            let is_repeated = event.header.revision <= *end && is_repeated(event);
            is_repeated.then(|| Some((event, decode(event)?)))?
        })
    }
}

/// Returns true for events that represent parts of calls, and for settings.
fn is_repeated(event: &StoredEvent) -> bool {
    matches!(
        event.header.kind(),
        Some(
            EventKind::MessageAppended
                | EventKind::ToolCallRequested
                | EventKind::ToolResultRecorded
                | EventKind::ToolCallCancelled
                | EventKind::ConfigChanged
        )
    )
}

fn is_instruction(step: &CallStep) -> bool {
    matches!(step.role(), Role::System | Role::Developer)
}

fn is_optional(step: &CallStep) -> bool {
    match step {
        CallStep::Said { message, calls } => calls.is_empty() && same::is_optional(message),
        CallStep::Result(_) => false,
    }
}

fn decode(event: &StoredEvent) -> Option<EventBody> {
    body::decode(event.header.kind()?, &event.body).ok()
}
