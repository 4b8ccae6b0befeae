//! Converts the lines of one session or side chain to events.

use std::collections::HashMap;

use bytes::Bytes;
use serde_json::{Map, Value};

use super::{
    SOURCE, blocks,
    boundary::Boundary,
    branches::{self, places},
    line::{LineForm, SessionLine},
    render::{self, TYPE_PREFIX},
    visible_lines,
};
use crate::{
    ImportedConversation, Oddity, canonical,
    content::short,
    number::numbers_survive,
    openai_chat::{conversation_id, headline, shortened},
    origin::Place,
    raw,
    transcript::{BranchIndex, Transcript},
};
use treering_domain::{
    BranchId, Config, ContentHash, ConversationCreated, ConversationId, Custom, EventBody,
    JsonText, MessageAppended, NameError, ParentRef, RawEncoding, RawMessage, Revision, Role,
    SubContextReturned, SubContextSpawned, ToolCallRequested, ToolResultRecorded,
    limits::SHORT_TEXT_BYTES_MAX,
};

/// A side chain that a call of the session may have started.
#[derive(Clone)]
pub(super) struct Child {
    pub(super) conversation: ConversationId,
    pub(super) agent: String,
    pub(super) prompt: String,
    /// Set when the call is found.
    pub(super) asked_by: Option<StartingCall>,
}

/// The call that started a side chain.
#[derive(Clone)]
pub(super) struct StartingCall {
    pub(super) branch: BranchId,
    pub(super) revision: Revision,
    pub(super) call_id: String,
}

impl Child {
    fn spawned(&self, call_id: &str) -> SubContextSpawned {
        SubContextSpawned {
            conversation: self.conversation,
            call_id: call_id.to_owned(),
            purpose: shortened(&self.prompt),
        }
    }
}

impl Default for StartingCall {
    /// Returns the start of the session, for a side chain whose call is unknown.
    fn default() -> Self {
        Self {
            branch: BranchId::MAIN,
            revision: Revision(1),
            call_id: String::new(),
        }
    }
}

impl StartingCall {
    pub(super) fn parent_ref(&self, conversation: ConversationId) -> ParentRef {
        ParentRef {
            conversation,
            branch: self.branch,
            revision: self.revision,
            call_id: self.call_id.clone(),
        }
    }
}

/// Converts lines; returns the children with the calls that started them.
pub(super) fn convert(
    source_id: &str,
    lines: &[SessionLine],
    children: Vec<Child>,
    parent: Option<ParentRef>,
) -> Result<(ImportedConversation, Vec<Child>), NameError> {
    let conversation = conversation_id(SOURCE, source_id);
    let first_time = lines.iter().find_map(time_of);
    let created = ConversationCreated {
        title: title(lines).unwrap_or_else(|| shortened(source_id)),
        config: Config {
            model_id: lines.iter().find_map(model_of).unwrap_or_default(),
            ..Config::default()
        },
        parent,
        source: SOURCE.to_owned(),
        source_id: source_id.to_owned(),
        source_meta: meta(source_id, lines),
        ..ConversationCreated::default()
    };
    let mut converter = Converter {
        transcript: Transcript::new(conversation, created, first_time),
        children,
        prompts: HashMap::new(),
        boundary: None,
    };
    let tree = places(lines);
    for (index, line) in lines.iter().enumerate() {
        converter.transcript.occurred_at = time_of(line);
        converter.transcript.exported = Place::of(&line.value);
        let branch = converter.transcript.arrive(&tree, index)?;
        if let LineForm::Moved { agent, call_id } = &line.form {
            converter.spawned(branch, agent, call_id);
        } else if tree.nodes[index].is_beside {
            converter.beside(branch, line);
        } else {
            converter.step(branch, line, || Boundary::at(lines, index));
        }
        converter.transcript.leave(&tree, index);
    }
    let origin = converter.transcript.origin();
    let (events, notes) = converter.transcript.finish();
    let imported = ImportedConversation {
        conversation,
        source: SOURCE.to_owned(),
        source_id: source_id.to_owned(),
        follows: follows(lines),
        origin,
        events,
        notes,
    };
    Ok((imported, converter.children))
}

/// Returns the parent that the first line names, if any; it is not in this file.
fn follows(lines: &[SessionLine]) -> Option<String> {
    let first = lines.iter().find(|line| !line.text_of("uuid").is_empty())?;
    branches::parent_of(first).map(str::to_owned)
}

/// Returns the model of an assistant line. Notices of the tool name a placeholder that is not a
/// model.
fn model_of(line: &SessionLine) -> Option<String> {
    if !line.is_assistant() || line.is_shown_only() {
        return None;
    }
    let model = short(&line.said()["message"]["model"])?;
    (!model.is_empty() && !model.starts_with('<')).then_some(model)
}

fn time_of(line: &SessionLine) -> Option<treering_domain::TimestampMicros> {
    let said = canonical::read_time(&line.said()["timestamp"]);
    said.or_else(|| canonical::read_time(&line.value["timestamp"]))
}

/// Returns the last title in the lines; without one, a title from the first prompt that a person
/// wrote.
fn title(lines: &[SessionLine]) -> Option<String> {
    let named = |kind: &str, field: &str| {
        let mut titles = lines
            .iter()
            .rev()
            .filter(|line| line.text_of("type") == kind);
        let title =
            titles.find_map(|line| Some(line.text_of(field).trim()).filter(|t| !t.is_empty()));
        title.map(shortened)
    };
    named("custom-title", "customTitle")
        .or_else(|| named("ai-title", "aiTitle"))
        .or_else(|| first_prompt(lines))
}

fn first_prompt(lines: &[SessionLine]) -> Option<String> {
    let prompts = lines
        .iter()
        .filter(|line| line.is_user() && !line.flag("isMeta") && !line.flag("isCompactSummary"));
    let mut titles = prompts.filter_map(SessionLine::prompt).filter_map(headline);
    titles.next().map(|title| shortened(&title))
}

/// Returns the session's metadata (id, folder, Git branch, version) from the first of its own lines
/// that names a folder, or else from the first line that does.
fn meta(source_id: &str, lines: &[SessionLine]) -> JsonText {
    let mut says = lines.iter().filter(|line| line.value["cwd"].is_string());
    let is_own = |line: &&SessionLine| line.text_of("sessionId") == source_id;
    let Some(line) = says.clone().find(is_own).or_else(|| says.next()) else {
        return JsonText::default();
    };
    let fields = ["sessionId", "cwd", "gitBranch", "version"];
    let meta: Map<String, Value> = fields
        .iter()
        .filter_map(|field| Some(((*field).to_owned(), line.value.get(*field)?.clone())))
        .filter(|(_, value)| value.is_string())
        .collect();
    JsonText::from_checked(Value::Object(meta).to_string().into())
}

struct Converter {
    transcript: Transcript,
    children: Vec<Child>,
    /// By call id: the prompt that the call gives a sub-agent.
    prompts: HashMap<String, String>,
    /// Set when the last step was a compact boundary.
    boundary: Option<Boundary>,
}

impl Converter {
    /// Converts a step. `boundary_here` reads the line if it is a compact boundary.
    fn step(
        &mut self,
        branch: BranchIndex,
        line: &SessionLine,
        boundary_here: impl FnOnce() -> Boundary,
    ) {
        let boundary = self.boundary.take();
        if line.is_boundary() {
            self.boundary = Some(boundary_here());
            return self.keep_as_custom(branch, line);
        }
        // Older versions wrote the summary without a boundary.
        let is_summary = line.flag("isCompactSummary");
        if (boundary.is_some() || is_summary)
            && self.compact(branch, boundary.unwrap_or_default(), line)
        {
            return;
        }
        if line.is_shown_only() {
            self.keep_as_custom(branch, line);
        } else if line.is_assistant() {
            self.assistant(branch, line);
        } else {
            self.user(branch, line);
        }
    }

    /// Appends a compaction. If this line is a summary, it becomes the compaction's summary.
    /// Returns true if the line needs no further event.
    fn compact(&mut self, branch: BranchIndex, boundary: Boundary, line: &SessionLine) -> bool {
        let text = line.whole_text().filter(|_| line.flag("isCompactSummary"));
        let summary = text.unwrap_or_default().to_owned();
        let is_summary = !summary.is_empty();
        let compacted =
            self.transcript
                .compaction(branch, summary, boundary.tokens_before, boundary.kept_from);
        let mut bodies = vec![EventBody::Compacted(compacted)];
        if is_summary {
            self.keep_raw(&mut bodies, line, "");
        }
        self.transcript.push(branch, bodies.swap_remove(0));
        is_summary
    }

    /// Converts a line that is not a step. If the model saw its content, it becomes a message.
    fn beside(&mut self, branch: BranchIndex, line: &SessionLine) {
        let Some(parts) = visible_lines::parts(line) else {
            return self.keep_as_custom(branch, line);
        };
        let message = MessageAppended {
            raw: Some(RawMessage {
                origin: SOURCE.to_owned(),
                provider: String::new(),
                model: String::new(),
                encoding: RawEncoding::Whole,
                data: line.text.clone(),
            }),
            ..MessageAppended::new(Role::User, parts)
        };
        self.transcript
            .push(branch, EventBody::MessageAppended(message));
    }

    /// Records the sub-agent of a call, if that is not known yet.
    fn spawned(&mut self, branch: BranchIndex, agent: &str, call_id: &str) {
        let child = self.children.iter_mut().find(|child| child.agent == agent);
        let (Some(child), Some(request)) = (child, self.transcript.request_of(branch, call_id))
        else {
            return;
        };
        if child.asked_by.is_some() {
            return;
        }
        child.asked_by = Some(StartingCall {
            branch: self.transcript.branch_id(branch),
            revision: request,
            call_id: call_id.to_owned(),
        });
        let spawned = child.spawned(call_id);
        self.transcript.spawn(branch, spawned);
    }

    fn keep_as_custom(&mut self, branch: BranchIndex, line: &SessionLine) {
        let name = if line.is_readable() {
            line.text_of("type")
        } else {
            self.transcript.note(Oddity::UnreadableLine);
            "unreadable"
        };
        let fits = TYPE_PREFIX.len() + name.len() <= SHORT_TEXT_BYTES_MAX;
        let type_name = format!("{TYPE_PREFIX}{}", if fits { name } else { "" });
        let content_type = if line.is_readable() {
            "application/json"
        } else {
            "application/octet-stream"
        };
        let custom = Custom {
            type_name,
            content_type: content_type.to_owned(),
            data: line.text.clone(),
            text: String::new(),
            delta_of: String::new(),
        };
        self.transcript.push(branch, EventBody::Custom(custom));
    }

    fn assistant(&mut self, branch: BranchIndex, line: &SessionLine) {
        if let Some(model) = model_of(line) {
            self.transcript.answered_by(branch, model);
        }
        let message = &line.said()["message"];
        let model = short(&message["model"]).unwrap_or_default();
        let mut calls = Vec::new();
        let mut said = MessageAppended {
            usage: canonical::read_usage(&message["usage"]),
            message_id: line.message_id(),
            finish_reason: short(&message["stop_reason"]).unwrap_or_default(),
            ..MessageAppended::new(Role::Assistant, Vec::new())
        };
        if let Some(text) = message["content"].as_str() {
            said.parts = blocks::read(&text.into(), &model);
        }
        for block in line.blocks() {
            match typed_call(block) {
                Some(call) => calls.push((call, prompt_of(block))),
                None => {
                    if block["type"] == "tool_use" {
                        self.transcript.note(Oddity::CallNotTyped);
                    }
                    said.parts.push(blocks::read_block(block, &model));
                }
            }
        }
        let mut bodies = vec![EventBody::MessageAppended(said)];
        let requests = calls.iter().map(|(call, _)| call.clone());
        bodies.extend(requests.map(EventBody::ToolCallRequested));
        self.keep_raw(&mut bodies, line, &model);
        let revision = self.transcript.push(branch, bodies.swap_remove(0));
        for (call, prompt) in calls {
            if let Some(prompt) = prompt {
                self.prompts.insert(call.call_id.clone(), prompt);
            }
            self.transcript.request(branch, revision, call);
        }
    }

    fn user(&mut self, branch: BranchIndex, line: &SessionLine) {
        let message = &line.said()["message"];
        let results = line.blocks().iter().filter(|b| b["type"] == "tool_result");
        let results = results.count();
        let mut parts = Vec::new();
        if let Some(text) = message["content"].as_str() {
            parts = blocks::read(&text.into(), "");
        }
        let mut bodies = Vec::new();
        let mut answered = Vec::new();
        for block in line.blocks() {
            if block["type"] != "tool_result" {
                parts.push(blocks::read_block(block, ""));
                continue;
            }
            let body = self.result(branch, block, &answered);
            if let EventBody::ToolResultRecorded(result) = &body {
                answered.push(result.call_id.clone());
            }
            bodies.push(body);
        }
        if let ([EventBody::ToolResultRecorded(result)], Some(structured), 1) = (
            bodies.as_mut_slice(),
            line.said().get("toolUseResult"),
            results,
        ) {
            result.structured = JsonText::from_checked(structured.to_string().into());
        }
        if !parts.is_empty() || bodies.is_empty() {
            bodies.push(EventBody::MessageAppended(MessageAppended::new(
                Role::User,
                parts,
            )));
        }
        self.keep_raw(&mut bodies, line, "");
        let agent = line.said()["toolUseResult"]["agentId"].as_str();
        for body in bodies {
            self.push_answer(branch, body, agent);
        }
    }

    /// Returns a result, or a plain tool message if its call is not open.
    fn result(&mut self, branch: BranchIndex, block: &Value, answered: &[String]) -> EventBody {
        let call_id = short(&block["tool_use_id"]).unwrap_or_default();
        let parts = blocks::read(&block["content"], "");
        if self.transcript.is_open(branch, &call_id) && !answered.contains(&call_id) {
            return EventBody::ToolResultRecorded(ToolResultRecorded {
                call_id,
                success: block["is_error"] != Value::Bool(true),
                error_message: String::new(),
                execution_time_ms: None,
                parts,
                structured: JsonText::default(),
                raw: None,
            });
        }
        self.transcript.note(Oddity::OrphanResult {
            call_id: call_id.clone(),
        });
        EventBody::MessageAppended(MessageAppended {
            tool_call_id: call_id,
            ..MessageAppended::new(Role::Tool, parts)
        })
    }

    /// Appends an answer; if a sub-agent gave it, also records its sub-context.
    fn push_answer(&mut self, branch: BranchIndex, body: EventBody, agent: Option<&str>) {
        let EventBody::ToolResultRecorded(result) = &body else {
            self.transcript.push(branch, body);
            return;
        };
        let call_id = result.call_id.clone();
        let Some(child) = self.child_of(&call_id, agent) else {
            self.transcript.push(branch, body);
            return;
        };
        let asked_by = StartingCall {
            branch: self.transcript.branch_id(branch),
            revision: self
                .transcript
                .request_of(branch, &call_id)
                .unwrap_or_default(),
            call_id: call_id.clone(),
        };
        let child = &mut self.children[child];
        child.asked_by.get_or_insert(asked_by);
        let conversation = child.conversation;
        // Unless a progress line already named the call, only the result tells which call started
        // the sub-agent. The line's raw form is on the first of its events that can have one. The
        // spawn event cannot, so recording it first does not change which event that is.
        self.transcript.spawn(branch, child.spawned(&call_id));
        self.transcript.push(branch, body);
        self.transcript.push(
            branch,
            EventBody::SubContextReturned(SubContextReturned {
                conversation,
                summary: String::new(),
                call_id,
            }),
        );
    }

    /// Returns the side chain that a call started.
    fn child_of(&self, call_id: &str, agent: Option<&str>) -> Option<usize> {
        let find = |is_it: &dyn Fn(&Child) -> bool| self.children.iter().position(is_it);
        let known = find(&|child| {
            let asked_by = child.asked_by.as_ref();
            asked_by.is_some_and(|asked| asked.call_id == call_id)
        });
        let free = |child: &Child| child.asked_by.is_none();
        let by_agent = || find(&|child| free(child) && agent == Some(child.agent.as_str()));
        let by_prompt = || {
            let prompt = self.prompts.get(call_id)?;
            find(&|child| free(child) && child.prompt == *prompt)
        };
        known.or_else(by_agent).or_else(by_prompt)
    }

    /// Stores the data of a line that its events cannot express, as the raw form of the first
    /// event.
    fn keep_raw(&mut self, bodies: &mut [EventBody], line: &SessionLine, model: &str) {
        let origin = match line.form {
            LineForm::Progress => render::PROGRESS_ORIGIN,
            _ => SOURCE,
        };
        let source = raw::SentMessage {
            origin,
            provider: "",
            model,
            value: &line.value,
            text: line.as_str(),
        };
        if !numbers_survive(source.text) {
            self.transcript.note(Oddity::NumberTooPrecise);
        }
        // The rendering takes the model from the raw form, so it must be set first.
        let nothing = RawMessage {
            origin: origin.to_owned(),
            provider: String::new(),
            model: model.to_owned(),
            encoding: RawEncoding::JsonPatch,
            data: Bytes::from_static(b"[]"),
        };
        set_raw(bodies, nothing);
        let all: Vec<_> = bodies.iter().collect();
        let rendered = render::line(&all, self.transcript.occurred_at);
        let (rendered, contents) = match line.form {
            LineForm::Progress => (
                render::progress(rendered),
                render::contents(line.said(), render::PROGRESS_PLACE),
            ),
            _ => (rendered, render::contents(line.said(), "")),
        };
        if let Some(raw) = raw::keep(&source, rendered, &contents) {
            set_raw(bodies, raw);
        }
    }
}

fn set_raw(bodies: &mut [EventBody], raw: RawMessage) {
    match bodies.first_mut() {
        Some(EventBody::MessageAppended(message)) => message.raw = Some(raw),
        Some(EventBody::ToolResultRecorded(result)) => result.raw = Some(raw),
        Some(EventBody::Compacted(compacted)) => compacted.raw = Some(raw),
        _ => {}
    }
}

fn typed_call(block: &Value) -> Option<ToolCallRequested> {
    if block["type"] != "tool_use" {
        return None;
    }
    let arguments = JsonText::from_checked(block.get("input")?.to_string().into());
    Some(ToolCallRequested {
        call_id: short(&block["id"]).filter(|id| !id.is_empty())?,
        tool: short(&block["name"]).filter(|name| !name.is_empty())?,
        arguments_hash: ContentHash(blake3::hash(arguments.as_bytes()).into()),
        arguments,
        message_revision: None,
        needs_approval: false,
        ..ToolCallRequested::default()
    })
}

fn prompt_of(block: &Value) -> Option<String> {
    block["input"]["prompt"].as_str().map(str::to_owned)
}
