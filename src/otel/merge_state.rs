//! The part of a conversation that `merge` needs to compute additions: messages as a tree, their
//! calls and results, and each branch's latest prompt, model and tools.
//!
//! Stored events and planned ones go through the same [`MergeState::apply`], so that a plan sees
//! the store's future state.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::{
    PROMPT_TYPE, RUN_LABEL, SpanMessage, SpanToolCall, TOOL_RUN_TYPE, ToolRun, USAGE_LABEL,
    canonical_text, message::text_of, part,
};
use treering_domain::{
    BranchId, BranchName, ContentPart, Custom, EventBody, MediaSource, Revision, Role, StoredEvent,
    TimestampMicros, ToolCallRequested,
};
use treering_proto::{body, tags};

/// The start of a BLAKE3 hash, long enough for the texts of one conversation.
pub(super) type Digest = [u8; 16];

/// The index of a node; 0 is the root, before all messages.
pub(super) type NodeIndex = usize;
pub(super) const ROOT: NodeIndex = 0;

/// The known state of a conversation; see the module.
#[derive(Debug)]
pub struct MergeState {
    pub(super) nodes: Vec<Node>,
    pub(super) lines: Vec<BranchLine>,
    line_of: HashMap<BranchId, usize>,
    node_of: HashMap<Revision, NodeIndex>,
    /// By call id: the nodes that request it, and the index in their calls.
    pub(super) calls: HashMap<String, Vec<(NodeIndex, usize)>>,
    /// By revision of a result: the node, the index of its call, the index of the result.
    result_of: HashMap<Revision, (NodeIndex, usize, usize)>,
    /// By call id: tool runs whose call has not come yet.
    pub(super) runs: HashMap<String, ToolRun>,
    run_spans: HashSet<String>,
    pub(super) prompts: HashSet<Digest>,
    /// By response id: the nodes that have it. Some servers reuse ids.
    responses: HashMap<String, Vec<NodeIndex>>,
    pub(super) last: Revision,
    pub(super) active: BranchId,
    pub(super) is_titled: bool,
    bytes: usize,
}

/// A message.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) parent: NodeIndex,
    pub(super) children: Vec<NodeIndex>,
    pub(super) line: usize,
    pub(super) first: Revision,
    /// The last event that belongs to it: its last call.
    pub(super) end: Revision,
    role: Role,
    text: Digest,
    pub(super) calls: Vec<Call>,
    pub(super) has_usage: bool,
    is_erased: bool,
}

/// A call of a message.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) id: String,
    pub(super) tool: String,
    pub(super) arguments: Digest,
    pub(super) request: Revision,
    is_erased: bool,
    pub(super) results: Vec<ResultEntry>,
    /// The branches and revisions where it was cancelled.
    cancelled: Vec<(usize, Revision)>,
}

/// A result of a call.
#[derive(Clone, Debug)]
pub(super) struct ResultEntry {
    pub(super) line: usize,
    pub(super) revision: Revision,
    /// The hashes of its text, and of differing texts from annotations.
    pub(super) texts: Vec<Digest>,
    /// The tool run itself was seen.
    pub(super) is_timed: bool,
    is_erased: bool,
}

/// A branch.
#[derive(Debug)]
pub(super) struct BranchLine {
    pub(super) id: BranchId,
    pub(super) name: BranchName,
    pub(super) is_archived: bool,
    parent: Option<(usize, Revision)>,
    pub(super) tip: NodeIndex,
    /// Its last event, of any kind.
    pub(super) head: Revision,
    prompts: Vec<(Revision, Digest, Option<TimestampMicros>)>,
    models: Vec<(Revision, String)>,
    tools: Vec<(Revision, Digest)>,
}

impl Default for MergeState {
    fn default() -> Self {
        let root = Node {
            parent: ROOT,
            children: Vec::new(),
            line: 0,
            first: Revision::NONE,
            end: Revision::NONE,
            role: Role::System,
            text: Digest::default(),
            calls: Vec::new(),
            has_usage: true,
            is_erased: false,
        };
        let main = BranchLine {
            id: BranchId::MAIN,
            name: BranchName::default(),
            is_archived: false,
            parent: None,
            tip: ROOT,
            head: Revision::NONE,
            prompts: Vec::new(),
            models: Vec::new(),
            tools: Vec::new(),
        };
        Self {
            nodes: vec![root],
            lines: vec![main],
            line_of: HashMap::from([(BranchId::MAIN, 0)]),
            node_of: HashMap::new(),
            calls: HashMap::new(),
            result_of: HashMap::new(),
            runs: HashMap::new(),
            run_spans: HashSet::new(),
            prompts: HashSet::new(),
            responses: HashMap::new(),
            last: Revision::NONE,
            active: BranchId::MAIN,
            is_titled: false,
            bytes: 1_024,
        }
    }
}

impl MergeState {
    /// Returns the last revision that was added.
    #[must_use]
    pub fn last(&self) -> Revision {
        self.last
    }

    /// Returns the last event of each branch.
    #[must_use]
    pub fn heads(&self) -> HashMap<BranchName, Revision> {
        let lines = self.lines.iter();
        lines.map(|line| (line.name.clone(), line.head)).collect()
    }

    /// Returns the approximate memory, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds the next stored event. Events that cannot be decoded are skipped; readers report them.
    pub fn add(&mut self, event: &StoredEvent) {
        let header = &event.header;
        let (_, bytes) = tags::split(&event.body);
        let body = header.kind().map(|kind| body::decode(kind, &bytes));
        let at = EventEntry {
            branch: header.branch,
            revision: header.revision,
            occurred_at: header.occurred_at,
            is_erased: event.erased,
        };
        match body {
            Some(Ok(body)) => self.apply(&at, &body),
            _ => self.pass(&at),
        }
    }

    fn pass(&mut self, at: &EventEntry) {
        self.last = at.revision;
        if let Some(&line) = self.line_of.get(&at.branch) {
            self.lines[line].head = at.revision;
        }
    }

    pub(super) fn apply(&mut self, at: &EventEntry, body: &EventBody) {
        if let EventBody::BranchForked(forked) = body {
            self.fork(at, forked);
        }
        self.pass(at);
        let Some(&line) = self.line_of.get(&at.branch) else {
            return;
        };
        self.bytes += EVENT_BYTES;
        match body {
            EventBody::ConversationCreated(created) => {
                self.nodes[ROOT].end = at.revision;
                self.is_titled = !created.title.is_empty();
                self.note_model(line, at, &created.config.model_id);
            }
            EventBody::ConversationChanged(changed) => {
                self.is_titled |= changed.title.is_some();
            }
            EventBody::ConfigChanged(config) => self.note_model(line, at, &config.model_id),
            EventBody::SystemPromptSet(prompt) => {
                let digest = digest(&prompt.content);
                self.prompts.insert(digest);
                let set = (at.revision, digest, at.occurred_at);
                self.lines[line].prompts.push(set);
            }
            EventBody::ToolsDefined { tools } => {
                let digest = tools_digest(tools);
                self.lines[line].tools.push((at.revision, digest));
            }
            EventBody::MessageAppended(said) => self.said(line, at, said),
            EventBody::ToolCallRequested(call) => self.asked(line, at, call),
            EventBody::ToolResultRecorded(result) => {
                let returned = ResultEntry {
                    line,
                    revision: at.revision,
                    texts: vec![result_digest(&result.parts, &result.error_message)],
                    is_timed: result.execution_time_ms.is_some(),
                    is_erased: at.is_erased,
                };
                self.runs.remove(&result.call_id);
                if let Some((node, call)) = self.open_call(line, &result.call_id) {
                    let results = &mut self.nodes[node].calls[call].results;
                    self.result_of
                        .insert(at.revision, (node, call, results.len()));
                    results.push(returned);
                }
            }
            EventBody::ToolCallCancelled(cancelled) => {
                if let Some((node, call)) = self.open_call(line, &cancelled.call_id) {
                    let closed = (line, at.revision);
                    self.nodes[node].calls[call].cancelled.push(closed);
                }
            }
            EventBody::AnnotationAdded(added) => self.annotated(added),
            EventBody::BranchActivated => self.active = at.branch,
            EventBody::BranchArchived { .. } => self.lines[line].is_archived = true,
            EventBody::BranchRenamed(name) => self.lines[line].name = name.clone(),
            EventBody::Custom(custom) => self.custom(custom),
            _ => {}
        }
    }

    fn note_model(&mut self, line: usize, at: &EventEntry, model: &str) {
        if !model.is_empty() {
            let set = (at.revision, model.to_owned());
            self.lines[line].models.push(set);
        }
    }

    fn fork(&mut self, at: &EventEntry, forked: &treering_domain::BranchForked) {
        let Some(&parent) = self.line_of.get(&forked.parent) else {
            return;
        };
        let upto = forked.fork_revision;
        let mut tip = self.lines[parent].tip;
        while tip != ROOT
            && !(self.nodes[tip].first <= upto
                && self.sees(parent, self.nodes[tip].line, self.nodes[tip].first))
        {
            tip = self.nodes[tip].parent;
        }
        let from = &self.lines[parent];
        let line = BranchLine {
            id: at.branch,
            name: forked.name.clone(),
            is_archived: false,
            parent: Some((parent, upto)),
            tip,
            head: at.revision,
            prompts: before(&from.prompts, |set| set.0 <= upto),
            models: before(&from.models, |set| set.0 <= upto),
            tools: before(&from.tools, |set| set.0 <= upto),
        };
        self.line_of.insert(at.branch, self.lines.len());
        self.lines.push(line);
    }

    fn said(&mut self, line: usize, at: &EventEntry, said: &treering_domain::MessageAppended) {
        let parent = self.lines[line].tip;
        let index = self.nodes.len();
        if !said.message_id.is_empty() {
            let nodes = self.responses.entry(said.message_id.clone());
            nodes.or_default().push(index);
        }
        self.nodes.push(Node {
            parent,
            children: Vec::new(),
            line,
            first: at.revision,
            end: at.revision,
            role: said.role,
            text: parts_digest(&said.parts),
            calls: Vec::new(),
            has_usage: said.usage.is_some(),
            is_erased: at.is_erased,
        });
        self.nodes[parent].children.push(index);
        self.node_of.insert(at.revision, index);
        self.lines[line].tip = index;
    }

    fn asked(&mut self, line: usize, at: &EventEntry, call: &ToolCallRequested) {
        let named = call
            .message_revision
            .and_then(|revision| self.node_of.get(&revision));
        let node = named.copied().unwrap_or(self.lines[line].tip);
        if self.nodes[node].line != line {
            return;
        }
        self.bytes += call.call_id.len() + call.tool.len();
        let place = (node, self.nodes[node].calls.len());
        self.calls
            .entry(call.call_id.clone())
            .or_default()
            .push(place);
        let node = &mut self.nodes[node];
        node.end = at.revision;
        node.calls.push(Call {
            id: call.call_id.clone(),
            tool: call.tool.clone(),
            arguments: digest(&canonical_text(call.arguments.as_str())),
            request: at.revision,
            is_erased: at.is_erased,
            results: Vec::new(),
            cancelled: Vec::new(),
        });
    }

    fn annotated(&mut self, added: &treering_domain::AnnotationAdded) {
        let Some(target) = added.target else { return };
        if added.label == USAGE_LABEL
            && let Some(&node) = self.node_of.get(&target)
        {
            self.nodes[node].has_usage = true;
        }
        if added.label != RUN_LABEL {
            return;
        }
        let Some(&(node, call, at)) = self.result_of.get(&target) else {
            return;
        };
        if let Some(result) = self.nodes[node].calls[call].results.get_mut(at) {
            result.is_timed = true;
            if !added.comment.is_empty() {
                result.texts.push(digest(&added.comment));
            }
        }
    }

    fn custom(&mut self, custom: &Custom) {
        if custom.type_name == PROMPT_TYPE {
            self.prompts.insert(digest(&custom.text));
        }
        if custom.type_name == TOOL_RUN_TYPE
            && let Some(run) = kept_run(custom)
        {
            self.bytes += custom.data.len();
            self.run_spans.insert(run.span_id.clone());
            if !run.call_id.is_empty() {
                self.runs.insert(run.call_id.clone(), run);
            }
        }
    }

    /// Returns true when the run of this span is already stored.
    pub(super) fn has_run(&self, run: &ToolRun) -> bool {
        self.run_spans.contains(&run.span_id)
    }

    /// Returns true when the history of `line` includes an event of the branch `of`.
    pub(super) fn sees(&self, line: usize, of: usize, revision: Revision) -> bool {
        let (mut at, mut bound) = (line, Revision(u64::MAX));
        loop {
            if at == of {
                return revision <= bound;
            }
            let Some((parent, upto)) = self.lines[at].parent else {
                return false;
            };
            bound = bound.min(upto);
            at = parent;
        }
    }

    /// Returns the last call with this id in the history that ends at a node.
    pub(super) fn call_before(&self, node: NodeIndex, id: &str) -> Option<(NodeIndex, usize)> {
        if !self.calls.contains_key(id) {
            return None;
        }
        let mut at = node;
        while at != ROOT {
            let calls = &self.nodes[at].calls;
            if let Some(call) = calls.iter().rposition(|call| call.id == id) {
                return Some((at, call));
            }
            at = self.nodes[at].parent;
        }
        None
    }

    /// Returns the first result of a call that a branch sees before a revision.
    pub(super) fn result(
        &self,
        (node, call): (NodeIndex, usize),
        line: usize,
        before: Revision,
    ) -> Option<&ResultEntry> {
        let results = self.nodes[node].calls[call].results.iter();
        let mut seen = results.filter(|result| {
            result.revision < before && self.sees(line, result.line, result.revision)
        });
        seen.next()
    }

    /// Returns true when a branch waits for a call's result.
    pub(super) fn is_open(&self, (node, call): (NodeIndex, usize), line: usize) -> bool {
        let asked = &self.nodes[node].calls[call];
        let never = Revision(u64::MAX);
        self.sees(line, self.nodes[node].line, asked.request)
            && self.result((node, call), line, never).is_none()
            && !asked
                .cancelled
                .iter()
                .any(|(at, revision)| self.sees(line, *at, *revision))
    }

    /// Returns the open call with this id on a branch.
    pub(super) fn open_call(&self, line: usize, id: &str) -> Option<(NodeIndex, usize)> {
        let places = self.calls.get(id)?.iter().rev();
        let mut open = places.filter(|place| self.is_open(**place, line));
        open.next().copied()
    }

    /// Returns the latest system prompt of a branch, and its time.
    pub(super) fn prompt(&self, line: usize) -> Option<(Digest, Option<TimestampMicros>)> {
        let set = self.lines[line].prompts.last()?;
        Some((set.1, set.2))
    }

    pub(super) fn model(&self, line: usize) -> Option<&str> {
        self.lines[line].models.last().map(|set| set.1.as_str())
    }

    pub(super) fn tools(&self, line: usize) -> Option<Digest> {
        self.lines[line].tools.last().map(|set| set.1)
    }

    /// Returns the first message of the history that ends at a node.
    pub(super) fn first(&self, node: NodeIndex) -> NodeIndex {
        let mut at = node;
        while self.nodes[at].parent != ROOT {
            at = self.nodes[at].parent;
        }
        at
    }

    /// Returns false when the node cannot be a message whose parts have this hash.
    pub(super) fn may_be(&self, node: NodeIndex, parts: &Digest) -> bool {
        let node = &self.nodes[node];
        node.is_erased || node.text == *parts
    }

    /// Returns true when a node with this response id is this message.
    pub(super) fn has_answer(&self, response_id: &str, said: &SpanMessage) -> bool {
        let mut nodes = self.responses.get(response_id).into_iter().flatten();
        nodes.any(|node| self.is(*node, said))
    }

    /// Returns true when a node is this message.
    pub(super) fn is(&self, node: NodeIndex, said: &SpanMessage) -> bool {
        let node = &self.nodes[node];
        let same_call = |(known, asked): (&Call, &SpanToolCall)| {
            known.id == asked.id
                && (known.is_erased
                    || known.tool == asked.tool
                        && known.arguments == digest(&canonical_text(asked.arguments.as_str())))
        };
        spoken(node.role) == spoken(said.role)
            && node.calls.len() == said.calls.len()
            && (node.is_erased || node.text == parts_digest(&said.parts))
            && node.calls.iter().zip(&said.calls).all(same_call)
    }
}

/// Approximate memory of an event in [`MergeState`], in bytes.
const EVENT_BYTES: usize = 320;

/// The place of an event.
pub(super) struct EventEntry {
    pub(super) branch: BranchId,
    pub(super) revision: Revision,
    pub(super) occurred_at: Option<TimestampMicros>,
    pub(super) is_erased: bool,
}

impl ResultEntry {
    /// Returns true when the result has this text, or was erased.
    pub(super) fn says(&self, text: &Digest) -> bool {
        self.is_erased || self.texts.contains(text)
    }
}

fn before<T: Clone>(sets: &[T], is_before: impl Fn(&T) -> bool) -> Vec<T> {
    sets.iter().filter(|set| is_before(set)).cloned().collect()
}

/// Treats developer messages as system messages: newer models use that role instead.
fn spoken(role: Role) -> Role {
    match role {
        Role::Developer => Role::System,
        role => role,
    }
}

pub(super) fn digest(text: &str) -> Digest {
    let hash: [u8; 32] = blake3::hash(text.as_bytes()).into();
    std::array::from_fn(|at| hash[at])
}

/// Returns a hash of the parts' content that does not depend on how a text is split into parts.
/// Reasoning is left out, since histories omit it.
pub(super) fn parts_digest(parts: &[ContentPart]) -> Digest {
    let mut text = String::new();
    for part in parts {
        match part {
            ContentPart::Text(said) | ContentPart::Refusal(said) => text.push_str(said),
            ContentPart::Json(json) => text.push_str(&canonical_text(json.as_str())),
            ContentPart::Reasoning(_) => {}
            ContentPart::Image(media) | ContentPart::File(media) | ContentPart::Audio(media) => {
                text.push('\0');
                match &media.source {
                    MediaSource::Absent => {}
                    MediaSource::Uri(uri) => text.push_str(uri),
                    MediaSource::Data(data) => {
                        text.push_str(blake3::hash(data).to_hex().as_str());
                    }
                }
            }
        }
    }
    digest(text.trim())
}

pub(super) fn result_digest(parts: &[ContentPart], error: &str) -> Digest {
    match parts {
        [] => digest(&canonical_text(error)),
        parts if parts.iter().all(|part| part.text().is_some()) => {
            digest(&canonical_text(&text_of(parts)))
        }
        parts => parts_digest(parts),
    }
}

pub(super) fn tools_digest(tools: &[treering_domain::ToolDefinition]) -> Digest {
    let said = tools.iter().map(|tool| {
        let schema = canonical_text(tool.input_schema.as_str());
        format!("{}\0{}\0{schema}", tool.name, tool.description)
    });
    digest(&said.collect::<Vec<_>>().join("\x01"))
}

/// Returns the event that stores a run until its call comes.
pub(super) fn keep_run(run: &ToolRun) -> Custom {
    let data = serde_json::json!({
        "span_id": run.span_id,
        "trace_id": run.trace_id,
        "call_id": run.call_id,
        "tool": run.tool,
        "arguments": run.arguments.as_str(),
        "result": text_of(&run.parts),
        "error": run.error,
        "ended_at": run.end.0,
        "execution_time_ms": run.millis,
    });
    Custom {
        type_name: TOOL_RUN_TYPE.to_owned(),
        content_type: "application/json".to_owned(),
        data: data.to_string().into(),
        text: format!("{} {}", run.tool, text_of(&run.parts)),
        delta_of: String::new(),
    }
}

fn kept_run(custom: &Custom) -> Option<ToolRun> {
    let data: Value = serde_json::from_slice(&custom.data).ok()?;
    let arguments = match &data["arguments"] {
        Value::String(text) if text.is_empty() => Value::Null,
        arguments => arguments.clone(),
    };
    Some(ToolRun {
        conversation: None,
        trace_id: part::text(&data, &["trace_id"]),
        span_id: part::text(&data, &["span_id"]),
        end: TimestampMicros(data["ended_at"].as_i64()?),
        millis: data["execution_time_ms"].as_u64().unwrap_or_default(),
        call_id: part::text(&data, &["call_id"]),
        tool: part::text(&data, &["tool"]),
        arguments: super::arguments_of(&arguments),
        parts: part::returned(&data["result"]),
        error: data["error"].as_str().map(str::to_owned),
    })
}
