//! Folds events into items.
//!
//! Items that were sent must not change. An event therefore changes only the last step, and only
//! while that step waits for results or is still being recorded.
//!
//! An assistant message begins a new step, unless the last step has only reasoning, or has the same
//! message id and no outcome in between. A call also begins a new step if it does not name a
//! message of the last step and all calls of that step have outcomes, because the model must have
//! read the outcomes.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use super::{WindowEvent, WindowInput, calls::UnansweredCall, maker};
use crate::{
    cancellation::CancellationToken,
    draft::{
        Block, Call, Content, Item, Maker, Message, Outcome, ResultOutcome, Section, Speaker, Step,
    },
    heuristics::Heuristics,
    references::short_reference,
    shared::Parts,
    steps,
};
use treering_domain::{
    BranchState, Compacted, CompactionTrigger, ContentPart, Decision, EventBody, EventRef,
    MessageAppended, Role, SubContextReturned, ToolCallRequested, ToolResultRecorded,
};

/// Name of the enhancer that adds these items.
pub(crate) const MESSAGES: &str = "messages";

/// Returns the messages and steps of a window, in the order of the request. Stops early if the
/// window's token is cancelled.
#[must_use]
pub fn fold(input: &WindowInput) -> Vec<Item> {
    match &input.folded {
        Some(folded) if folded.is_of(&input.branch, &input.events) => folded.items(),
        _ => {
            let (heuristics, cancellation) = (&input.heuristics, &input.cancellation);
            FoldedWindow::of(&input.branch, &input.events, heuristics, cancellation).items()
        }
    }
}

/// A window's events folded into items. Later events can extend the fold, and it shares the items
/// of earlier events with earlier requests.
#[derive(Clone, Debug)]
pub struct FoldedWindow {
    fold: WindowFold,
    events: usize,
    last: Option<Arc<WindowEvent>>,
}

impl FoldedWindow {
    /// Folds a window's events.
    #[must_use]
    pub fn of(
        branch: &BranchState,
        events: &[Arc<WindowEvent>],
        heuristics: &Arc<dyn Heuristics>,
        cancellation: &CancellationToken,
    ) -> Self {
        let empty = Self {
            fold: WindowFold::new(branch, Arc::clone(heuristics)).with_model(branch, events),
            events: 0,
            last: None,
        };
        empty.and(branch, events, cancellation)
    }

    /// Extends the fold with new events; `events` is the whole window. The result equals that of
    /// [`FoldedWindow::of`], but takes less time.
    #[must_use]
    pub fn grown(
        &self,
        branch: &BranchState,
        events: &[Arc<WindowEvent>],
        cancellation: &CancellationToken,
    ) -> Self {
        if self.can_grow(branch, events) {
            return self.clone().and(branch, events, cancellation);
        }
        Self::of(branch, events, &self.fold.heuristics, cancellation)
    }

    fn and(
        mut self,
        branch: &BranchState,
        events: &[Arc<WindowEvent>],
        cancellation: &CancellationToken,
    ) -> Self {
        self.fold.preamble = branch.preamble.iter().copied().collect();
        for place in self.events..events.len() {
            // The incomplete fold can be extended later.
            if cancellation.is_cancelled_at(place) {
                break;
            }
            steps::note(1);
            self.fold
                .apply(&events[place], events.get(place + 1).map(Arc::as_ref));
            self.events = place + 1;
            self.last = Some(Arc::clone(&events[place]));
        }
        self
    }

    fn can_grow(&self, branch: &BranchState, events: &[Arc<WindowEvent>]) -> bool {
        let Some(last) = &self.last else { return false };
        let is_front = self.events.checked_sub(1).and_then(|at| events.get(at));
        // The fold of a sub-context's return depends on the event after it.
        let is_settled = !matches!(last.body, EventBody::SubContextReturned(_));
        // If an event of the window sets the model, the model before that event is unknown (see
        // `with_model`), and the earlier events must be folded again.
        let is_same_model = self.fold.model_set
            || self.fold.model.is_empty()
            || !events[self.events..]
                .iter()
                .any(|event| sets_model(&event.body).is_some());
        // An event that was folded as a message stays a message.
        let is_new = |at: &EventRef| {
            at.conversation == last.at.conversation && at.revision > last.at.revision
        };
        let mut added = branch.preamble.iter();
        is_front.is_some_and(|event| Arc::ptr_eq(event, last))
            && is_settled
            && is_same_model
            && self.fold.counting.compaction == branch.compaction
            && self.fold.preamble.len() <= branch.preamble.len()
            && added.all(|at| self.fold.preamble.contains(at) || is_new(at))
    }

    fn is_of(&self, branch: &BranchState, events: &[Arc<WindowEvent>]) -> bool {
        let same = match (&self.last, events.last()) {
            (Some(last), Some(event)) => Arc::ptr_eq(last, event),
            (None, None) => true,
            _ => false,
        };
        same && self.events == events.len()
            && self.fold.counting.compaction == branch.compaction
            && self.fold.preamble.len() == branch.preamble.len()
    }

    /// Returns the items, in the order of the request.
    #[must_use]
    pub fn items(&self) -> Vec<Item> {
        self.fold.finished()
    }

    /// Estimated memory use in bytes, with all cached values and without the events.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        /// Size of an id in a set, with its text.
        const ID_BYTES: usize = 80;
        let fold = &self.fold;
        let ids = fold.wire_ids.len() + fold.answered.len() + fold.frozen.len();
        let items = fold.items.iter().map(|item| {
            let own = size_of::<Item>() + item.events.capacity() * size_of::<EventRef>();
            own as u64 + item.content.memory_bytes()
        });
        (size_of::<Self>() + ids * ID_BYTES) as u64 + items.sum::<u64>()
    }
}

/// The last step, if it is the last item.
#[derive(Clone, Debug)]
struct CurrentStep {
    /// Index of its item.
    index: usize,
    /// The events of its item. A set, because there can be very many.
    from: HashSet<EventRef>,
    open: HashMap<String, UnansweredCall>,
    /// Whether a call has ended and no message followed. The next call then belongs to another
    /// answer.
    answered: bool,
    /// Whether a call has an outcome.
    has_outcome: bool,
    /// Whether the finish reason of the answer is recorded.
    has_finished: bool,
}

#[derive(Clone, Debug)]
struct WindowFold {
    heuristics: Arc<dyn Heuristics>,
    /// Counts turns and open calls as the branch does.
    counting: BranchState,
    turn: u32,
    items: Vec<Item>,
    current: Option<CurrentStep>,
    /// Tools of the calls that were open when `freeze` was called, by call id.
    frozen: HashMap<String, String>,
    /// Calls whose last outcome is a result.
    answered: HashSet<String>,
    wire_ids: HashSet<String>,
    preamble: BTreeSet<EventRef>,
    /// The conversation's model as of the last folded event.
    model: String,
    /// Whether an event of this window set the model.
    model_set: bool,
}

impl WindowFold {
    fn new(branch: &BranchState, heuristics: Arc<dyn Heuristics>) -> Self {
        Self {
            heuristics,
            counting: BranchState {
                compaction: branch.compaction,
                ..BranchState::root()
            },
            turn: 0,
            items: Vec::new(),
            current: None,
            frozen: HashMap::new(),
            answered: HashSet::new(),
            wire_ids: HashSet::new(),
            preamble: branch.preamble.iter().copied().collect(),
            model: String::new(),
            model_set: false,
        }
    }

    /// Uses the branch's model if no event of the window sets one.
    fn with_model(mut self, branch: &BranchState, events: &[Arc<WindowEvent>]) -> Self {
        if !events.iter().any(|event| sets_model(&event.body).is_some()) {
            self.model.clone_from(&branch.config.model_id);
        }
        self
    }

    fn apply(&mut self, event: &Arc<WindowEvent>, next: Option<&WindowEvent>) {
        let at = event.at;
        self.count_turn(event);
        match &event.body {
            body if sets_model(body).is_some() => {
                sets_model(body)
                    .unwrap_or_default()
                    .clone_into(&mut self.model);
                self.model_set = true;
            }
            EventBody::MessageAppended(message) => self.message(event, message),
            EventBody::ToolCallRequested(call) => self.request(event, call),
            EventBody::ApprovalDecided(decided) => {
                let Some(call) = self.open_call(&decided.call_id) else {
                    return;
                };
                call.decided(at, decided);
                if decided.decision != Decision::Approved
                    && let Some(current) = &mut self.current
                {
                    current.has_outcome = true;
                }
            }
            EventBody::ToolCallStarted(started) => {
                if let Some(call) = self.open_call(&started.call_id) {
                    call.started(&started.executor);
                }
            }
            EventBody::ToolResultRecorded(result) => self.result(event, result),
            EventBody::ToolCallCancelled(cancelled) => {
                if let Some(call) = self.close(&cancelled.call_id) {
                    let (why, by) = call.cancelled(at, cancelled);
                    let outcome = Outcome::Missing {
                        why,
                        event: Some(by),
                        open: false,
                    };
                    self.settle(call.block, by, outcome);
                }
            }
            EventBody::SubContextReturned(returned) => self.returned(at, returned, next),
            EventBody::Compacted(compacted) if Some(at) == self.counting.compaction => {
                self.compacted(at, compacted);
            }
            _ => {}
        }
    }

    /// Applies an imported compaction. Its summary replaces all earlier events, even the steps of a
    /// turn that had not ended, because the source no longer showed its model those steps. The
    /// user's requests in that turn stay. A note names the replaced steps; otherwise it would seem
    /// that no work was done on these requests. An open call usually has no result; a late result
    /// becomes a note. Turns that the source kept stay whole.
    fn compacted(&mut self, at: EventRef, compacted: &Compacted) {
        if compacted.trigger != CompactionTrigger::Imported || compacted.kept_turns > 0 {
            return;
        }
        self.freeze();
        let steps = self.items.iter().filter(|item| item.step().is_some());
        let count = steps.clone().count();
        let events = steps.flat_map(|item| item.events.iter().copied());
        let place = events.clone().min().zip(events.max());
        // Skill texts belong to those steps and are not requests of the user.
        self.items
            .retain(|item| item.step().is_none() && !item.is_told());
        self.current = None;
        let Some((first, last)) = place.filter(|_| !self.items.is_empty()) else {
            return;
        };
        let told = format!(
            "[What was done about this until the summary was written is told in it: {count} {}, \
             {} to {}.]",
            if count == 1 { "step" } else { "steps" },
            short_reference(at.conversation, first),
            short_reference(at.conversation, last),
        );
        self.note(last, vec![ContentPart::Text(told)]);
    }

    fn count_turn(&mut self, event: &WindowEvent) {
        let before = self.counting.turn.open_since;
        // A compaction does not end a turn or reset these counts.
        if matches!(
            event.body,
            EventBody::MessageAppended(_)
                | EventBody::ToolCallRequested(_)
                | EventBody::ToolResultRecorded(_)
                | EventBody::ToolCallCancelled(_)
        ) {
            self.counting.apply(event.at, &event.body);
        }
        let since = self.counting.turn.open_since;
        if since != before && since == Some(event.at) {
            self.turn += 1;
        }
    }

    fn message(&mut self, event: &Arc<WindowEvent>, message: &MessageAppended) {
        let at = event.at;
        let speaker = match message.role {
            Role::Assistant => return self.assistant(event, message),
            Role::Tool => return self.tool_message(event, message),
            Role::User => Speaker::User,
            Role::System | Role::Developer if self.preamble.contains(&at) => return,
            Role::System => Speaker::System,
            Role::Developer => Speaker::Developer,
        };
        let of_user = speaker == Speaker::User;
        let command = self.heuristics.local_command(message).filter(|_| of_user);
        if command.as_ref().is_some_and(|command| command.is_hidden) {
            return;
        }
        let by_harness = || of_user && self.heuristics.is_by_harness(message);
        let content = Message {
            speaker,
            author: message.author.clone(),
            is_told: command.is_some() || by_harness(),
            parts: match command {
                Some(command) => vec![ContentPart::Text(command.text)].into(),
                None => Parts::recorded(event),
            },
        };
        self.push(at, Content::Message(content));
    }

    fn push(&mut self, at: EventRef, content: Content) {
        let mut item = Item::new(Section::Messages, MESSAGES, content);
        item.events = vec![at];
        item.turn = self.turn;
        item.reason = Cow::Borrowed("in the window");
        self.items.push(item);
    }

    /// Returns the last step, if the next event still belongs to it.
    fn growing(&mut self) -> Option<&mut Step> {
        let current = self.current.as_ref()?;
        let last = current.index + 1 == self.items.len();
        if !last && current.open.is_empty() {
            return None;
        }
        self.step()
    }

    fn step(&mut self) -> Option<&mut Step> {
        let index = self.current.as_ref()?.index;
        match self.items.get_mut(index)?.content.make_mut() {
            Content::Step(step) => Some(step),
            _ => None,
        }
    }

    fn assistant(&mut self, event: &Arc<WindowEvent>, message: &MessageAppended) {
        let at = event.at;
        let mut made_by = maker::of(message);
        if message.parts.iter().any(is_reasoning) {
            maker::fill(&mut made_by, "", &self.model);
        }
        let parts = Parts::recorded(event);
        let blocks = parts.each().map(Block::Part);
        let id = &message.message_id;
        let has_finished = !message.finish_reason.is_empty();
        let may_join = self.may_join_by_id(message);
        if let Some(step) = self.growing()
            && (step.message_id == *id && may_join || goes_on(step, &made_by))
        {
            maker::fill(&mut step.maker, &made_by.provider, &made_by.model);
            if !id.is_empty() {
                step.message_id.clone_from(id);
            }
            step.blocks.extend(blocks);
            if let Some(current) = &mut self.current {
                current.answered = false;
                current.has_finished |= has_finished;
            }
            return self.add_source(at);
        }
        let step = Step {
            blocks: blocks.collect(),
            maker: made_by,
            message_id: id.clone(),
        };
        self.begin(at, step);
        if let Some(current) = &mut self.current {
            current.has_finished = has_finished;
        }
    }

    /// Whether a message with the step's id belongs to the last step. Some servers have only a
    /// thousand ids and reuse them. So a message with content joins only if no outcome and no other
    /// message follows the step. A message without content may also join after an outcome, because
    /// some sources record a call and its result while the answer still continues.
    fn may_join_by_id(&self, message: &MessageAppended) -> bool {
        let Some(current) = &self.current else {
            return false;
        };
        let is_followed = current.has_outcome || current.index + 1 != self.items.len();
        let may_be_late = message.parts.is_empty() && !current.has_finished;
        !message.message_id.is_empty() && (!is_followed || may_be_late)
    }

    /// Begins a new step. Open calls of the previous one stay without a result.
    fn begin(&mut self, at: EventRef, step: Step) {
        self.freeze();
        self.current = Some(CurrentStep {
            index: self.items.len(),
            from: HashSet::from([at]),
            open: HashMap::new(),
            answered: false,
            has_outcome: false,
            has_finished: false,
        });
        self.push(at, Content::Step(step));
    }

    fn freeze(&mut self) {
        let open = match &mut self.current {
            Some(current) => std::mem::take(&mut current.open),
            None => return,
        };
        for (call_id, call) in open {
            let (why, event) = call.frozen();
            self.set_missing(call.block, why, event, false);
            self.frozen.insert(call_id, call.tool);
        }
    }

    /// Whether a call belongs to the last step.
    fn is_of_last_step(&mut self, at: EventRef, call: &ToolCallRequested) -> bool {
        if self.growing().is_none() {
            return false;
        }
        let Some(current) = &self.current else {
            return false;
        };
        let begins = self.items[current.index].events.first().copied();
        let begins = begins.unwrap_or(at);
        let names_it = call.message_revision.is_some_and(|revision| {
            // A fork continues another conversation.
            [at.conversation, begins.conversation]
                .map(|conversation| EventRef {
                    conversation,
                    revision,
                })
                .iter()
                .any(|message| current.from.contains(message))
        });
        names_it || !current.open.is_empty() || !current.answered
    }

    fn request(&mut self, event: &Arc<WindowEvent>, call: &ToolCallRequested) {
        let at = event.at;
        if self.is_of_last_step(at, call) {
            self.add_source(at);
        } else {
            let maker = self
                .step()
                .map_or_else(Maker::default, |step| step.maker.clone());
            self.begin(
                at,
                Step {
                    maker,
                    ..Step::default()
                },
            );
        }
        let wire_id = self.wire_id(&call.call_id, at);
        self.answered.remove(&call.call_id);
        self.frozen.remove(&call.call_id);
        let block = Block::Call(Call {
            call_id: call.call_id.clone(),
            wire_id,
            tool: call.tool.clone(),
            arguments: call.arguments.clone(),
            arguments_shortened: false,
            item_id: call.item_id.clone(),
            request: at,
            outcome: Outcome::Missing {
                why: String::new(),
                event: None,
                open: true,
            },
        });
        let Some(step) = self.step() else { return };
        step.blocks.push(block);
        let place = step.blocks.len() - 1;
        if let Some(current) = &mut self.current {
            let open = UnansweredCall::new(call, place);
            current.open.insert(call.call_id.clone(), open);
        }
    }

    /// Returns the id of a call in requests. The first call with an id keeps it. Later calls get
    /// the revision of their event appended, which never changes.
    fn wire_id(&mut self, call_id: &str, at: EventRef) -> String {
        let mut wire_id = call_id.to_owned();
        while !self.wire_ids.insert(wire_id.clone()) {
            wire_id = format!("{wire_id}-r{}", at.revision);
        }
        wire_id
    }

    fn result(&mut self, event: &Arc<WindowEvent>, result: &ToolResultRecorded) {
        let at = event.at;
        let outcome = ResultOutcome {
            event: at,
            success: result.success,
            error_message: result.error_message.clone(),
            parts: Parts::recorded(event),
            structured: result.structured.clone(),
            shortened: false,
        };
        if let Some(call) = self.close(&result.call_id) {
            self.answered.insert(result.call_id.clone());
            self.settle(call.block, at, Outcome::Result(outcome));
            return;
        }
        let tool = self.frozen.get(&result.call_id).cloned();
        let head = head_of_late_result(tool.as_deref().unwrap_or_default(), result);
        let mut parts = vec![ContentPart::Text(head)];
        parts.extend(result.parts.iter().cloned());
        if result.parts.is_empty() && !result.structured.is_absent() {
            parts.push(ContentPart::Json(result.structured.clone()));
        }
        self.note(at, parts);
    }

    /// Folds a tool message, with or without a recorded call.
    fn tool_message(&mut self, event: &Arc<WindowEvent>, message: &MessageAppended) {
        let at = event.at;
        if let Some(call) = self.close(&message.tool_call_id) {
            let outcome = Outcome::Result(ResultOutcome {
                event: at,
                success: true,
                error_message: String::new(),
                parts: Parts::recorded(event),
                structured: Default::default(),
                shortened: false,
            });
            self.answered.insert(message.tool_call_id.clone());
            return self.settle(call.block, at, outcome);
        }
        let of = match message.tool_name.as_str() {
            "" => String::new(),
            tool => format!(" of {tool}"),
        };
        let head = format!("[TOOL RESULT]{of}, for a call that is not in this conversation:");
        let mut parts = vec![ContentPart::Text(head)];
        parts.extend(message.parts.iter().cloned());
        self.note(at, parts);
    }

    fn returned(
        &mut self,
        at: EventRef,
        returned: &SubContextReturned,
        next: Option<&WindowEvent>,
    ) {
        // A return and its call's result are appended together, in either order.
        let result_follows = matches!(
            next.map(|next| &next.body),
            Some(EventBody::ToolResultRecorded(result)) if result.call_id == returned.call_id
        );
        let will_answer = result_follows && self.open_call(&returned.call_id).is_some();
        let by_call = !returned.call_id.is_empty();
        if by_call && (will_answer || self.answered.contains(&returned.call_id)) {
            return;
        }
        let text = format!("[SUB-CONTEXT RESULT]\n{}", returned.summary);
        self.note(at, vec![ContentPart::Text(text)]);
    }

    fn note(&mut self, at: EventRef, parts: Vec<ContentPart>) {
        let message = Message {
            speaker: Speaker::User,
            parts: parts.into(),
            author: String::new(),
            is_told: true,
        };
        self.push(at, Content::Message(message));
    }

    fn open_call(&mut self, call_id: &str) -> Option<&mut UnansweredCall> {
        self.current.as_mut()?.open.get_mut(call_id)
    }

    fn close(&mut self, call_id: &str) -> Option<UnansweredCall> {
        self.current.as_mut()?.open.remove(call_id)
    }

    fn settle(&mut self, block: usize, at: EventRef, outcome: Outcome) {
        self.add_source(at);
        if let Some(current) = &mut self.current {
            current.answered = true;
            current.has_outcome = true;
        }
        if let Some(Block::Call(call)) = self.step().and_then(|step| step.blocks.get_mut(block)) {
            call.outcome = outcome;
        }
    }

    fn set_missing(&mut self, block: usize, why: String, event: Option<EventRef>, open: bool) {
        if let Some(event) = event {
            self.add_source(event);
        }
        if let Some(Block::Call(call)) = self.step().and_then(|step| step.blocks.get_mut(block)) {
            call.outcome = Outcome::Missing { why, event, open };
        }
    }

    /// Adds an event to the sources of the last step.
    fn add_source(&mut self, at: EventRef) {
        let Some(current) = &mut self.current else {
            return;
        };
        steps::note(1);
        if let Some(item) = self.items.get_mut(current.index)
            && current.from.insert(at)
        {
            item.events.insert(place_of(at, &item.events), at);
        }
    }

    /// Returns the items, as if no more events followed.
    fn finished(&self) -> Vec<Item> {
        let mut items = self.items.clone();
        let has_open = match &self.current {
            Some(current) if !current.open.is_empty() => {
                // The open calls of the last step have no result. Their outcome says why, and names
                // the event that refused the call, if there is one.
                let mut told = Self {
                    items: items.split_off(current.index),
                    current: Some(CurrentStep {
                        index: 0,
                        ..current.clone()
                    }),
                    ..Self::new(&self.counting, Arc::clone(&self.heuristics))
                };
                for call in current.open.values() {
                    let (why, event) = call.open();
                    told.set_missing(call.block, why, event, true);
                }
                items.append(&mut told.items);
                true
            }
            _ => false,
        };
        let turn = &self.counting.turn;
        // A call that was abandoned earlier does not keep later turns open.
        let open_turn = turn.open_since.is_some() && (has_open || !turn.closing);
        let thinks = items
            .last()
            .and_then(Item::step)
            .is_some_and(has_only_reasoning);
        let volatile_from = match &self.current {
            Some(current) if has_open => current.index,
            _ if thinks => items.len() - 1,
            _ => items.len(),
        };
        for (index, item) in items.iter_mut().enumerate() {
            if open_turn && item.turn == self.turn {
                item.section = Section::OpenTurn;
                item.reason = Cow::Borrowed("the open turn");
            }
            if index >= volatile_from {
                item.is_volatile = true;
                item.reason = Cow::Borrowed(if index == volatile_from && !has_open {
                    "reasoning: its output comes next"
                } else if index == volatile_from {
                    "has calls that have not ended"
                } else {
                    "after a step whose calls have not ended"
                });
            }
        }
        items
    }
}

/// Returns the model that an event sets.
fn sets_model(body: &EventBody) -> Option<&str> {
    let config = match body {
        EventBody::ConversationCreated(created) => &created.config,
        EventBody::ConfigChanged(config) => config,
        _ => return None,
    };
    (!config.model_id.is_empty()).then_some(config.model_id.as_str())
}

fn is_reasoning(part: &ContentPart) -> bool {
    matches!(part, ContentPart::Reasoning(_))
}

/// Whether a step has only reasoning. The next message then belongs to the same answer, even if the
/// ids differ.
fn has_only_reasoning(step: &Step) -> bool {
    let is_thought = |block: &Block| matches!(block, Block::Part(part) if is_reasoning(part));
    !step.blocks.is_empty() && step.blocks.iter().all(is_thought)
}

/// Whether a message continues a step that has only reasoning.
fn goes_on(step: &Step, made_by: &Maker) -> bool {
    let may_be = |one: &str, other: &str| one.is_empty() || other.is_empty() || one == other;
    has_only_reasoning(step)
        && may_be(&step.maker.provider, &made_by.provider)
        && may_be(&step.maker.model, &made_by.model)
}

/// Returns the sort position of an event in its step. An extended fold sees the ends of calls in a
/// different order from a full fold.
fn place_of(at: EventRef, events: &[EventRef]) -> usize {
    let is_before =
        |event: &EventRef| event.conversation == at.conversation && event.revision < at.revision;
    let is_behind =
        |event: &EventRef| event.conversation == at.conversation && event.revision > at.revision;
    match events.iter().rposition(is_before) {
        Some(before) => before + 1,
        None => events.iter().position(is_behind).unwrap_or(events.len()),
    }
}

fn head_of_late_result(tool: &str, result: &ToolResultRecorded) -> String {
    let of = if tool.is_empty() {
        format!("call {}", result.call_id)
    } else {
        format!("{tool} (call {})", result.call_id)
    };
    if result.success {
        return format!("[LATE RESULT] of {of}, which came after the conversation had gone on:");
    }
    let error = match result.error_message.as_str() {
        "" => String::new(),
        error => format!(": {error}"),
    };
    format!("[LATE RESULT] {of} failed, after the conversation had gone on{error}")
}
