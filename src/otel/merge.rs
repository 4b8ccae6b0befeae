//! Computes what a span adds to a conversation, as events.

mod runs;

use std::collections::HashMap;

use super::{
    Chat, PROMPT_TYPE, RUN_LABEL, SOURCE, SpanItem, SpanMessage, SpanToolCall, SpanToolResult,
    ToolRun, USAGE_LABEL, canonical_text,
    merge_state::{
        self, EventEntry, MergeState, NodeIndex, ROOT, digest, parts_digest, result_digest,
    },
    message::text_of,
    read::question,
};
use treering_domain::{
    AnnotationAdded, BranchForked, BranchId, BranchName, CancelReason, Config, ContentHash,
    ConversationChanged, ConversationCreated, ConversationId, Custom, EventBody, MessageAppended,
    NewEvent, PromptSet, Revision, Role, TimestampMicros, ToolCallCancelled, ToolCallRequested,
};
use treering_import::{
    content,
    openai_chat::{headline, shortened},
};

/// Maximum number of open calls on a branch: slightly below the engine's default limit.
const OPEN_CALLS_MAX: usize = 1_000;

/// The identity of a new conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The conversation's id.
    pub conversation: ConversationId,
    /// Its id in the spans.
    pub source_id: String,
    /// The service that sent them, or empty.
    pub service: String,
}

/// Events that are appended together or not at all, such as a message with its calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Unit {
    /// The events, in order.
    pub events: Vec<NewEvent>,
    /// The first event creates a branch at a revision. That revision must be stored before this
    /// unit.
    pub forks: bool,
    /// The span that it comes from, as numbered in [`Merge::of_span`].
    pub span: usize,
}

/// Compares spans with a conversation. The new events are also applied to `known` at once.
pub struct Merge<'a> {
    known: &'a mut MergeState,
    start: &'a Start,
    /// The runs that came with these spans, by call id.
    runs: HashMap<String, ToolRun>,
    units: Vec<Unit>,
    current: Unit,
    span: usize,
    trace_id: String,
    /// Branches for which this span's prompt, model and tools were already compared.
    told: Vec<usize>,
}

/// The index of a branch.
type BranchIndex = usize;

/// Later than every revision.
const LATEST: Revision = Revision(u64::MAX);

impl<'a> Merge<'a> {
    /// Begins a merge; `runs` came with the spans.
    pub fn new(
        known: &'a mut MergeState,
        start: &'a Start,
        runs: impl Iterator<Item = ToolRun>,
    ) -> Self {
        Self {
            known,
            start,
            runs: runs.map(|run| (run.call_id.clone(), run)).collect(),
            units: Vec::new(),
            current: Unit::default(),
            span: 0,
            trace_id: String::new(),
            told: Vec::new(),
        }
    }

    /// Begins the next span.
    pub fn of_span(&mut self, number: usize, trace_id: &str) {
        self.close();
        self.span = number;
        trace_id.clone_into(&mut self.trace_id);
        self.told.clear();
    }

    /// Returns the units to append.
    #[must_use]
    pub fn finish(mut self) -> Vec<Unit> {
        self.close();
        self.units
    }

    /// Adds what a model call contributes.
    pub fn chat(&mut self, chat: &Chat) {
        if chat.is_agent && self.covers(chat) {
            return;
        }
        self.create(question(&chat.input), &chat.model, chat.start);
        let mut at = self.beginning(chat);
        let mut results: Vec<&SpanToolResult> = Vec::new();
        for item in &chat.input {
            match item {
                SpanItem::Result(told) => results.push(told),
                SpanItem::Said(said) => {
                    let time = chat.start;
                    at = self
                        .step(at, &std::mem::take(&mut results), said, chat, time)
                        .0;
                }
            }
        }
        if chat.output.is_empty() && !results.is_empty() {
            let own = self.known.nodes[at].line;
            let line = match self.agrees(own, at, &results, LATEST) {
                true => own,
                false => self.branch_for(at, &results, chat.start),
            };
            self.results(line, at, &results, chat.start);
        }
        let mut line = None;
        for answer in &chat.output {
            if chat.input.is_empty() && self.is_answered(at, answer, chat) {
                break;
            }
            let (node, is_new) = self.step(at, &results, answer, chat, chat.end);
            line = line.or(Some(self.known.nodes[node].line));
            if !is_new {
                self.usage(node, chat);
            }
        }
        let line = line.unwrap_or(self.known.nodes[at].line);
        self.prompt_of_late_span(line, chat);
        self.activate(line, chat.end);
    }

    /// Returns whether an answer without a history is already known.
    fn is_answered(&self, at: NodeIndex, answer: &SpanMessage, chat: &Chat) -> bool {
        self.known.has_answer(&chat.response_id, answer) || self.known.is(at, answer)
    }

    /// Returns the node after which a history begins: the root, or a later node if its beginning
    /// was cut off. A history without messages begins at the end of the active branch.
    fn beginning(&self, chat: &Chat) -> NodeIndex {
        let said: Vec<_> = said_of(&chat.input).collect();
        let Some(first) = said.first() else {
            let active = self.known.lines.iter();
            let mut active = active.filter(|line| line.id == self.known.active);
            return active.next().map_or(ROOT, |line| line.tip);
        };
        let of_root = &self.known.nodes[ROOT].children;
        if of_root.iter().any(|node| self.known.is(*node, first)) {
            return ROOT;
        }
        self.window(&said).unwrap_or(ROOT)
    }

    /// Finds where a history belongs whose beginning was cut off. Returns the node before the
    /// longest run of known messages, or `None` if no run is long enough.
    fn window(&self, said: &[&SpanMessage]) -> Option<NodeIndex> {
        /// Fewer messages are not enough evidence: a message such as "continue" is common.
        const KNOWN_MIN: usize = 2;
        let nodes = 1..self.known.nodes.len();
        let known = |node: NodeIndex| {
            let (mut at, mut count) = (self.known.nodes[node].parent, 0);
            for said in said {
                let mut next = self.known.nodes[at].children.iter();
                let Some(next) = next.find(|next| self.known.is(**next, said)) else {
                    break;
                };
                at = *next;
                count += 1;
            }
            count
        };
        let first = parts_digest(&said[0].parts);
        let begins = nodes
            .rev()
            .filter(|node| self.known.may_be(*node, &first) && self.known.is(*node, said[0]));
        let (count, node) = begins.map(|node| (known(node), node)).max()?;
        let has_answer = said[..count]
            .iter()
            .any(|said| said.role == Role::Assistant);
        (count >= KNOWN_MIN && has_answer).then(|| self.known.nodes[node].parent)
    }

    /// Returns true when a branch contains everything in an agent's span.
    fn covers(&self, chat: &Chat) -> bool {
        let mut wanted: Vec<&SpanMessage> = said_of(&chat.input).chain(&chat.output).collect();
        wanted.retain(|said| said.role != Role::System && said.role != Role::Developer);
        let hashed = wanted.into_iter();
        let wanted: Vec<_> = hashed
            .map(|said| (said, parts_digest(&said.parts)))
            .collect();
        self.known.lines.iter().any(|line| {
            let mut left = &wanted[..];
            let mut at = line.tip;
            while at != ROOT {
                if let Some(((last, parts), rest)) = left.split_last()
                    && self.known.may_be(at, parts)
                    && self.known.is(at, last)
                {
                    left = rest;
                }
                at = self.known.nodes[at].parent;
            }
            left.is_empty() && line.tip != ROOT
        })
    }

    /// Returns the node of a message that follows `at` after these results. Also returns whether
    /// the message is new, and was therefore appended.
    fn step(
        &mut self,
        at: NodeIndex,
        results: &[&SpanToolResult],
        said: &SpanMessage,
        chat: &Chat,
        time: TimestampMicros,
    ) -> (NodeIndex, bool) {
        let children = self.known.nodes[at].children.iter().copied();
        let found = children.into_iter().find(|child| {
            let child_node = &self.known.nodes[*child];
            self.known.is(*child, said)
                && self.agrees(child_node.line, at, results, child_node.first)
        });
        if let Some(child) = found {
            let line = self.known.nodes[child].line;
            self.results(line, at, results, time);
            return (child, false);
        }
        let line = self.branch_for(at, results, time);
        self.results(line, at, results, time);
        self.tell(line, chat);
        (self.say(line, said, chat, time), true)
    }

    /// Returns true when none of these results contradicts one that a branch has before a revision.
    fn agrees(
        &self,
        line: BranchIndex,
        at: NodeIndex,
        results: &[&SpanToolResult],
        before: Revision,
    ) -> bool {
        results.iter().all(|told| {
            let call = self.known.call_before(at, &told.call_id);
            let result = call.and_then(|call| self.known.result(call, line, before));
            result.is_none_or(|result| {
                result.is_timed || result.says(&result_digest(&told.parts, ""))
            })
        })
    }

    /// Returns a branch that continues at a node: one that ends there, or a new one.
    fn branch_for(
        &mut self,
        at: NodeIndex,
        results: &[&SpanToolResult],
        time: TimestampMicros,
    ) -> BranchIndex {
        let ends_here = |line: &BranchIndex| {
            let ends = &self.known.lines[*line];
            ends.tip == at && !ends.is_archived && self.agrees(*line, at, results, LATEST)
        };
        let own = self.known.nodes[at].line;
        let mut all = std::iter::once(own).chain(0..self.known.lines.len());
        if let Some(line) = all.find(ends_here) {
            return line;
        }
        self.fork(at, results, time)
    }

    fn fork(
        &mut self,
        at: NodeIndex,
        results: &[&SpanToolResult],
        time: TimestampMicros,
    ) -> BranchIndex {
        let node = &self.known.nodes[at];
        let parent = node.line;
        let after = node.children.iter().map(|child| &self.known.nodes[*child]);
        let on_line = after.filter(|child| child.line == parent);
        let next = on_line.map(|child| child.first).min().unwrap_or(LATEST);
        let upto = match self.agrees(parent, at, results, next) {
            true => {
                let calls = (0..node.calls.len()).map(|call| (at, call));
                let results = calls.filter_map(|call| self.known.result(call, parent, next));
                let own = results.filter(|result| result.line == parent);
                let own = own.map(|result| result.revision);
                own.max().unwrap_or(node.end).max(node.end)
            }
            false => node.end,
        };
        let name = self.free_name(upto);
        let forked = BranchForked {
            name: name.clone(),
            parent: self.known.lines[parent].id,
            fork_revision: upto,
            system_prompt: String::new(),
        };
        self.close();
        self.current.forks = true;
        let id = BranchId(self.known.last.0 + 1);
        self.push_on(id, name, EventBody::BranchForked(forked), Some(time));
        self.known.lines.len() - 1
    }

    fn free_name(&self, at: Revision) -> BranchName {
        let names = (1..).map(|number| match number {
            1 => format!("changed-after-{at}"),
            number => format!("changed-after-{at}-{number}"),
        });
        let mut names = names.filter_map(|name| BranchName::new(&name).ok());
        let is_free = |name: &BranchName| self.known.lines.iter().all(|line| line.name != *name);
        names.find(is_free).unwrap_or_default()
    }

    /// Appends results that the branch waits for, and annotates others where they differ.
    fn results(
        &mut self,
        line: BranchIndex,
        at: NodeIndex,
        results: &[&SpanToolResult],
        time: TimestampMicros,
    ) {
        for told in results {
            let Some(call) = self.known.call_before(at, &told.call_id) else {
                continue;
            };
            if self.known.is_open(call, line) {
                let result = self.result_of(told);
                self.push(
                    line,
                    EventBody::ToolResultRecorded(result.0),
                    Some(result.1.unwrap_or(time)),
                );
                continue;
            }
            let text = result_digest(&told.parts, "");
            let known = self.known.result(call, line, LATEST);
            if let Some(known) = known.filter(|known| known.is_timed && !known.says(&text)) {
                let target = known.revision;
                let comment = canonical_text(&text_of(&told.parts));
                self.annotate(line, target, RUN_LABEL, None, comment);
            }
        }
    }

    fn say(
        &mut self,
        line: BranchIndex,
        said: &SpanMessage,
        chat: &Chat,
        time: TimestampMicros,
    ) -> NodeIndex {
        self.close_unless_fork();
        let is_answer = std::ptr::eq(said, chat.output.first().unwrap_or(said))
            && !chat.output.is_empty()
            && !chat.is_agent;
        let mut message = MessageAppended::new(said.role, said.parts.clone());
        message.finish_reason.clone_from(&said.finish_reason);
        message.tool_call_id.clone_from(&said.call_id);
        if is_answer {
            message.usage.clone_from(&chat.usage);
            message.message_id.clone_from(&chat.response_id);
        }
        let time = Some(time);
        self.push(line, EventBody::MessageAppended(message), time);
        let node = self.known.lines[line].tip;
        for call in &said.calls {
            self.ask(line, call, time);
        }
        self.close();
        for call in &said.calls {
            if let Some(run) = self.known.runs.get(&call.id).cloned() {
                self.ran(line, &run);
            }
        }
        node
    }

    fn ask(&mut self, line: BranchIndex, call: &SpanToolCall, time: Option<TimestampMicros>) {
        let superseded = self.known.open_call(line, &call.id);
        let given_up = superseded.or_else(|| self.oldest_of_too_many(line));
        if let Some((node, at)) = given_up {
            let cancelled = ToolCallCancelled {
                call_id: self.known.nodes[node].calls[at].id.clone(),
                reason: match superseded {
                    Some(_) => CancelReason::Superseded,
                    None => CancelReason::Interrupted,
                },
                detail: String::new(),
            };
            self.push(line, EventBody::ToolCallCancelled(cancelled), time);
        }
        let (arguments, arguments_not_json) = content::arguments(call.arguments.as_bytes().clone());
        let asked = ToolCallRequested {
            call_id: call.id.clone(),
            tool: call.tool.clone(),
            arguments_hash: ContentHash(blake3::hash(arguments.as_bytes()).into()),
            arguments,
            arguments_not_json,
            ..ToolCallRequested::default()
        };
        self.push(line, EventBody::ToolCallRequested(asked), time);
    }

    fn oldest_of_too_many(&self, line: BranchIndex) -> Option<(NodeIndex, usize)> {
        if self.known.calls.len() < OPEN_CALLS_MAX {
            return None;
        }
        let all = self.known.calls.values().flatten().copied();
        let mut open: Vec<_> = all.filter(|call| self.known.is_open(*call, line)).collect();
        open.sort_by_key(|(node, call)| self.known.nodes[*node].calls[*call].request);
        (open.len() >= OPEN_CALLS_MAX).then(|| open[0])
    }

    /// Appends prompt, model and tools where they changed, once for each span and branch, before
    /// its first new message.
    fn tell(&mut self, line: BranchIndex, chat: &Chat) {
        if self.told.contains(&line) {
            return;
        }
        self.told.push(line);
        let time = Some(chat.start);
        if let Some(system) = &chat.system {
            let set = self.known.prompt(line);
            let is_later = set.is_none_or(|(_, at)| at.is_none_or(|at| at <= chat.start));
            if is_later && set.is_none_or(|(set, _)| set != digest(system)) {
                self.set_prompt(line, system, time);
            }
        }
        if !chat.tools.is_empty()
            && self.known.tools(line) != Some(merge_state::tools_digest(&chat.tools))
        {
            let tools = chat.tools.clone();
            self.push(line, EventBody::ToolsDefined { tools }, time);
        }
        if !chat.model.is_empty() && self.known.model(line) != Some(&chat.model) {
            let config = Config {
                model_id: chat.model.clone(),
                ..Config::default()
            };
            self.push(line, EventBody::ConfigChanged(config), time);
        }
    }

    fn set_prompt(&mut self, line: BranchIndex, system: &str, time: Option<TimestampMicros>) {
        let prompt = PromptSet {
            id: String::new(),
            content: system.to_owned(),
        };
        self.push(line, EventBody::SystemPromptSet(prompt), time);
    }

    /// Keeps a system prompt that came too late to be set before its messages: sets it if the
    /// branch has none, otherwise stores it as a custom event.
    fn prompt_of_late_span(&mut self, line: BranchIndex, chat: &Chat) {
        let Some(system) = &chat.system else { return };
        if self.known.prompts.contains(&digest(system)) {
            return;
        }
        let set = self.known.prompt(line);
        if set.is_none() {
            return self.set_prompt(line, system, Some(chat.start));
        }
        let custom = Custom {
            type_name: PROMPT_TYPE.to_owned(),
            content_type: "text/plain".to_owned(),
            data: system.clone().into_bytes().into(),
            text: system.clone(),
            delta_of: String::new(),
        };
        self.push(line, EventBody::Custom(custom), Some(chat.start));
    }

    /// Annotates an answer with its usage if the answer was first seen in a later request.
    fn usage(&mut self, node: NodeIndex, chat: &Chat) {
        let known = &mut self.known.nodes[node];
        let (target, line) = (known.first, known.line);
        let Some(usage) = chat
            .usage
            .as_ref()
            .filter(|_| !known.has_usage && !chat.is_agent)
        else {
            return;
        };
        let comment = serde_json::json!({
            "model": usage.model,
            "response_id": chat.response_id,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cache_read_input_tokens": usage.cache_read_input_tokens,
            "cache_creation_input_tokens": usage.cache_creation_input_tokens,
            "reasoning_output_tokens": usage.reasoning_output_tokens,
        });
        self.annotate(line, target, USAGE_LABEL, None, comment.to_string());
    }

    fn annotate(
        &mut self,
        line: BranchIndex,
        target: Revision,
        label: &str,
        score: Option<f64>,
        comment: String,
    ) {
        let added = AnnotationAdded {
            target: Some(target),
            whole_turn: false,
            score,
            label: label.to_owned(),
            comment,
        };
        self.push(line, EventBody::AnnotationAdded(added), None);
    }

    /// Appends the first event, or the title once it is known.
    fn create(&mut self, question: Option<&str>, model: &str, time: TimestampMicros) {
        let title = question.map(|text| headline(text).unwrap_or_else(|| text.to_owned()));
        let title = title.map(|title| shortened(title.trim()));
        let title = title.unwrap_or_default();
        if self.known.last != Revision::NONE {
            if !self.known.is_titled && !title.is_empty() {
                let changed = ConversationChanged {
                    title: Some(title),
                    ..ConversationChanged::default()
                };
                self.push(0, EventBody::ConversationChanged(changed), None);
            }
            return;
        }
        let mut created = ConversationCreated {
            title,
            config: Config {
                model_id: model.to_owned(),
                ..Config::default()
            },
            source: SOURCE.to_owned(),
            source_id: self.start.source_id.clone(),
            ..ConversationCreated::default()
        };
        if !self.start.service.is_empty() {
            let service = self.start.service.clone();
            created.labels.insert("service.name".to_owned(), service);
        }
        self.push(0, EventBody::ConversationCreated(created), Some(time));
    }

    /// Activates the branch that was continued last, unless its first message differs from that of
    /// the active branch: agents also ask models side questions.
    fn activate(&mut self, line: BranchIndex, time: TimestampMicros) {
        let has_grown = !self.current.events.is_empty()
            || self.units.last().is_some_and(|unit| unit.span == self.span);
        let now = &self.known.lines[line];
        if !has_grown || now.id == self.known.active || now.is_archived {
            return;
        }
        let lines = self.known.lines.iter();
        let mut active = lines.filter(|line| line.id == self.known.active);
        let active = active.next().map_or(ROOT, |line| line.tip);
        if active == ROOT || self.known.first(active) == self.known.first(now.tip) {
            self.push(line, EventBody::BranchActivated, Some(time));
        }
    }

    fn push(&mut self, line: BranchIndex, body: EventBody, time: Option<TimestampMicros>) {
        let at = &self.known.lines[line];
        let (id, name) = (at.id, at.name.clone());
        self.push_on(id, name, body, time);
    }

    fn push_on(
        &mut self,
        branch: BranchId,
        name: BranchName,
        body: EventBody,
        time: Option<TimestampMicros>,
    ) {
        let place = EventEntry {
            branch,
            revision: Revision(self.known.last.0 + 1),
            occurred_at: time,
            is_erased: false,
        };
        self.known.apply(&place, &body);
        let mut event = NewEvent::new(self.start.conversation, body).on_branch(name);
        event.occurred_at = time;
        event.correlation_id.clone_from(&self.trace_id);
        self.current.span = self.span;
        self.current.events.push(event);
    }

    /// Completes the current unit.
    fn close(&mut self) {
        let unit = std::mem::take(&mut self.current);
        if !unit.events.is_empty() {
            self.units.push(unit);
        }
    }

    /// Completes the current unit, except that a fork and its first message stay together.
    fn close_unless_fork(&mut self) {
        if !self.current.forks {
            self.close();
        }
    }
}

/// Returns the messages of a history.
fn said_of(items: &[SpanItem]) -> impl Iterator<Item = &SpanMessage> {
    items.iter().filter_map(|item| match item {
        SpanItem::Said(said) => Some(said),
        SpanItem::Result(_) => None,
    })
}
