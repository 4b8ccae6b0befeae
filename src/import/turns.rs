//! The turns of a branch, from any source, in a form that another agent can continue: the user's
//! messages, the model's answers with their calls, and the result of each call.
//!
//! The writers of sessions (`claude_code/resume.rs`, `codex/write.rs` …) share this. It is not the
//! inverse of an import: it puts each result next to its call, gives each call an id of its own,
//! and leaves out system messages, because every agent has its own.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use serde_json::{Map, Value, json};

use super::{exporter::ExportFault, origin::Place};
use treering_domain::{
    Compacted, ContentPart, EventBody, MessageAppended, Revision, Role, StoredEvent,
    TimestampMicros, ToolCallRequested,
};
use treering_proto::body;

/// Placeholder for the result of a call that has none: providers require one for each call.
pub(super) const NO_RESULT: &str = "[no result was recorded]";

/// The history of a branch, decoded.
pub(super) struct History {
    steps: Vec<Step>,
    /// The last event.
    pub(super) end: Place,
}

/// An event of the branch.
pub(super) struct Step {
    place: Place,
    revision: Revision,
    at: TimestampMicros,
    /// When it happened, according to its author.
    pub(super) occurred_at: Option<TimestampMicros>,
    pub(super) body: EventBody,
}

/// A turn, or a part of one.
pub(super) struct Turn<'a> {
    pub(super) at: TimestampMicros,
    /// The last event up to this turn.
    pub(super) place: Place,
    pub(super) content: TurnContent<'a>,
}

pub(super) enum TurnContent<'a> {
    /// A message in the user's role; `from` is its event if it is a message of the source.
    User {
        parts: Cow<'a, [ContentPart]>,
        from: Option<&'a Step>,
    },
    /// An answer of the model.
    Answer(ModelAnswer<'a>),
    /// The result of a call of the last answer.
    Result(CallResult<'a>),
    /// The last compaction: it replaces everything before it.
    Summary(&'a Compacted),
}

/// An answer, in the pieces in which its source recorded it.
pub(super) struct ModelAnswer<'a> {
    /// The model that answered, or the model in the settings; may be empty.
    pub(super) model: &'a str,
    pub(super) message_id: Option<&'a str>,
    pub(super) pieces: Vec<AnswerPiece<'a>>,
}

pub(super) struct AnswerPiece<'a> {
    pub(super) body: Option<&'a EventBody>,
    pub(super) parts: &'a [ContentPart],
    pub(super) calls: Vec<Call<'a>>,
    pub(super) at: TimestampMicros,
}

pub(super) struct Call<'a> {
    /// The id, unique in the branch.
    pub(super) id: String,
    pub(super) asked: &'a ToolCallRequested,
}

impl Call<'_> {
    /// Returns the arguments as an object.
    pub(super) fn input(&self) -> Value {
        let text = self.asked.arguments.as_str();
        match serde_json::from_str(text) {
            Ok(Value::Object(fields)) => Value::Object(fields),
            Ok(_) => json!({"arguments": text}),
            Err(_) if text.trim().is_empty() => Value::Object(Map::new()),
            Err(_) => json!({"invalid_arguments": text}),
        }
    }
}

pub(super) struct CallResult<'a> {
    pub(super) id: String,
    pub(super) tool: &'a str,
    pub(super) parts: Cow<'a, [ContentPart]>,
    pub(super) failed: bool,
}

impl History {
    /// Decodes a branch's history, oldest first.
    ///
    /// # Errors
    /// [`ExportFault`] names the event that cannot be decoded, or says that there is none.
    pub(super) fn read(events: &[StoredEvent]) -> Result<Self, ExportFault> {
        let last = events.last().ok_or(ExportFault::Empty)?;
        let conversation = last.header.conversation;
        let place = |event: &StoredEvent| Place {
            conversation,
            event: event.header.id,
        };
        let mut steps = Vec::new();
        for event in events {
            let revision = event.header.revision;
            let Some(kind) = event.header.kind() else {
                continue;
            };
            let body = body::decode(kind, &event.body)
                .map_err(|fault| ExportFault::Body { revision, fault })?;
            steps.push(Step {
                place: place(event),
                revision,
                at: event.header.occurred_at.unwrap_or(event.header.recorded_at),
                occurred_at: event.header.occurred_at,
                body,
            });
        }
        let end = place(last);
        Ok(Self { steps, end })
    }

    /// Returns the turns, in the order that a provider requires.
    pub(super) fn turns(&self) -> Vec<Turn<'_>> {
        let steps = &self.steps;
        let cut = steps
            .iter()
            .rposition(|step| matches!(step.body, EventBody::Compacted(_)));
        let last = cut.and_then(|at| match &steps[at].body {
            EventBody::Compacted(compacted) => Some((at, compacted)),
            _ => None,
        });
        let mut compaction = last;
        let mut walk = Walk {
            steps,
            results: results(steps),
            turns: Vec::new(),
            last: 0,
            model: "",
            used: HashSet::new(),
            times: HashMap::new(),
        };
        for group in &groups(steps) {
            let first = group[0];
            // The summary follows the events that it replaces and precedes the turns that were
            // kept.
            if let Some((at, compacted)) = compaction
                && (steps[first].revision > compacted.stands_until(steps[at].revision)
                    || first == at)
            {
                walk.push(first, steps[at].at, TurnContent::Summary(compacted));
                compaction = None;
            }
            walk.group(group);
        }
        walk.turns
    }

    /// Like [`Self::turns`], but the summary of the last compaction replaces everything before it,
    /// as the first message.
    pub(super) fn turns_in_window(&self) -> Vec<Turn<'_>> {
        let mut turns = self.turns();
        let summary = turns
            .iter()
            .position(|turn| matches!(turn.content, TurnContent::Summary(_)));
        let mut turns = turns.split_off(summary.unwrap_or_default());
        if let Some(turn) = turns.first_mut()
            && let TurnContent::Summary(compacted) = turn.content
        {
            let parts = Cow::Owned(vec![ContentPart::Text(compacted.summary.clone())]);
            turn.content = TurnContent::User { parts, from: None };
        }
        turns
    }
}

/// Writes turns in one agent's format, with content as text.
pub(super) trait TurnWriter {
    /// Writes the user's text.
    fn user(&mut self, text: &str, at: TimestampMicros, place: Place);

    /// Writes an answer of the model with its calls.
    fn answer(&mut self, answer: &ModelAnswer<'_>, at: TimestampMicros, place: Place);

    /// Writes the result of a call of the last answer.
    fn result(&mut self, result: &CallResult<'_>, at: TimestampMicros, place: Place);

    /// Writes turns in order, without empty messages.
    fn write(&mut self, turns: &[Turn<'_>]) {
        for turn in turns {
            let (at, place) = (turn.at, turn.place);
            match &turn.content {
                TurnContent::User { parts, .. } => {
                    let text = plain_text(parts);
                    if !text.trim().is_empty() {
                        self.user(&text, at, place);
                    }
                }
                TurnContent::Answer(answer) => self.answer(answer, at, place),
                TurnContent::Result(result) => self.result(result, at, place),
                // `turns_in_window` has made the summary a message of the user.
                TurnContent::Summary(_) => {}
            }
        }
    }
}

/// Returns content as one text. Reasoning is left out; media is named.
pub(super) fn plain_text(parts: &[ContentPart]) -> String {
    let named = |kind: &str, name: &str| match name {
        "" => format!("[{kind} left out]"),
        name => format!("[{kind} left out: {name}]"),
    };
    let text = |part: &ContentPart| match part {
        ContentPart::Text(text) | ContentPart::Refusal(text) => Some(text.clone()),
        ContentPart::Json(json) => Some(json.as_str().to_owned()),
        ContentPart::Reasoning(_) => None,
        ContentPart::Image(media) => Some(named("image", &media.name)),
        ContentPart::Audio(media) => Some(named("audio", &media.name)),
        ContentPart::File(media) => Some(named("file", &media.name)),
    };
    let texts: Vec<String> = parts.iter().filter_map(text).collect();
    texts.join("\n")
}

/// Returns the text with only characters that every API accepts in ids and names of tools.
pub(super) fn plain_name(text: &str) -> String {
    let legal = |c: char| match c.is_ascii_alphanumeric() || c == '-' {
        true => c,
        false => '_',
    };
    text.chars().map(legal).collect()
}

/// Returns the provider of a model, by its name, and the provider's API, as pi and opencode name
/// them. An agent that lacks the model or its provider continues with its default model.
pub(super) fn provider_of(model: &str) -> (&'static str, &'static str) {
    let is = |start: &str| model.starts_with(start);
    if is("claude") {
        ("anthropic", "anthropic-messages")
    } else if is("gemini") {
        ("google", "google-generative-ai")
    } else if is("gpt") || is("o1") || is("o3") || is("o4") || is("codex") {
        ("openai", "openai-responses")
    } else {
        ("unknown", "openai-completions")
    }
}

/// Returns the index of the result or cancellation of each call, by the index of the call. Other
/// events may be between them, but providers require them side by side.
fn results(steps: &[Step]) -> HashMap<usize, usize> {
    let mut open: HashMap<&str, usize> = HashMap::new();
    let mut results = HashMap::new();
    for (index, step) in steps.iter().enumerate() {
        let ended = match &step.body {
            EventBody::ToolCallRequested(call) => {
                open.insert(&call.call_id, index);
                continue;
            }
            EventBody::ToolResultRecorded(result) => &result.call_id,
            EventBody::ToolCallCancelled(cancelled) => &cancelled.call_id,
            _ => continue,
        };
        if let Some(call) = open.remove(ended.as_str()) {
            results.insert(call, index);
        }
    }
    results
}

struct Walk<'a> {
    steps: &'a [Step],
    /// The index of the outcome of each call, by the index of the call.
    results: HashMap<usize, usize>,
    turns: Vec<Turn<'a>>,
    /// The index of the last event of the turns so far.
    last: usize,
    /// The model in the conversation's settings, or empty.
    model: &'a str,
    /// Call ids so far.
    used: HashSet<String>,
    /// Number of times that each id occurred.
    times: HashMap<String, u32>,
}

impl<'a> Walk<'a> {
    fn push(&mut self, index: usize, at: TimestampMicros, content: TurnContent<'a>) {
        self.last = self.last.max(index);
        let place = self.steps[self.last].place;
        self.turns.push(Turn { at, place, content });
    }

    fn user(&mut self, index: usize, parts: Cow<'a, [ContentPart]>, from: Option<&'a Step>) {
        let at = self.steps[index].at;
        self.push(index, at, TurnContent::User { parts, from });
    }

    fn group(&mut self, places: &[usize]) {
        let (index, steps) = (places[0], self.steps);
        let step = &steps[index];
        let text = |text: String| Cow::Owned(vec![ContentPart::Text(text)]);
        match &step.body {
            EventBody::ConversationCreated(created) => self.model = &created.config.model_id,
            EventBody::ConfigChanged(config) => self.model = &config.model_id,
            EventBody::UserPromptSet(prompt) if !prompt.content.is_empty() => {
                self.user(index, text(prompt.content.clone()), None);
            }
            EventBody::MessageAppended(said) => match said.role {
                Role::User => self.user(index, Cow::Borrowed(&said.parts), Some(step)),
                Role::Assistant => self.answer(places),
                Role::Tool => {
                    let result = format!("[a tool's result]\n{}", plain_text(&said.parts));
                    self.user(index, text(result), None);
                }
                Role::System | Role::Developer => {}
            },
            EventBody::ToolCallRequested(_) => self.answer(places),
            _ => {}
        }
    }

    fn answer(&mut self, places: &[usize]) {
        let steps = self.steps;
        let mut pieces: Vec<AnswerPiece<'a>> = Vec::new();
        let mut calls = Vec::new();
        let (mut model, mut message_id) = (None, None);
        for &place in places {
            let step = &steps[place];
            let mut piece = AnswerPiece {
                body: None,
                parts: &[],
                calls: Vec::new(),
                at: step.at,
            };
            match &step.body {
                EventBody::MessageAppended(said) => {
                    let named = said.raw.as_ref().map(|raw| raw.model.as_str());
                    model = model.or(named.filter(|model| !model.is_empty()));
                    let id = Some(said.message_id.as_str()).filter(|id| !id.is_empty());
                    message_id = message_id.or(id);
                    piece.body = Some(&step.body);
                    piece.parts = &said.parts;
                    pieces.push(piece);
                }
                EventBody::ToolCallRequested(asked) => {
                    let id = self.new_id(&asked.call_id);
                    calls.push((place, id.clone(), asked.tool.as_str()));
                    if pieces.is_empty() {
                        pieces.push(piece);
                    }
                    if let Some(piece) = pieces.last_mut() {
                        piece.calls.push(Call { id, asked });
                    }
                }
                _ => {}
            }
        }
        let (first, last) = (places[0], places[places.len() - 1]);
        let answered = ModelAnswer {
            model: model.unwrap_or(self.model),
            message_id,
            pieces,
        };
        self.push(last, steps[first].at, TurnContent::Answer(answered));
        self.ends_of(calls);
    }

    /// Adds the outcomes of all calls, in the order in which they were recorded. Providers refuse a
    /// message after a call without an outcome.
    fn ends_of(&mut self, calls: Vec<(usize, String, &'a str)>) {
        let Some(&(last, ..)) = calls.last() else {
            return;
        };
        let ends = calls
            .into_iter()
            .map(|(place, id, tool)| (self.results.get(&place).copied(), id, tool));
        let mut ends: Vec<_> = ends.collect();
        ends.sort_by_key(|(end, ..)| end.unwrap_or(usize::MAX));
        let text = |text: &str| Cow::Owned(vec![ContentPart::Text(text.to_owned())]);
        let steps = self.steps;
        for (end, id, tool) in ends {
            let (parts, failed) = match end.map(|end| &steps[end].body) {
                Some(EventBody::ToolResultRecorded(result)) => match result.parts.is_empty() {
                    true => (text(&result.error_message), !result.success),
                    false => (Cow::Borrowed(result.parts.as_slice()), !result.success),
                },
                Some(EventBody::ToolCallCancelled(cancelled)) => match cancelled.detail.as_str() {
                    "" => (text("[cancelled]"), true),
                    detail => (text(detail), true),
                },
                _ => (text(NO_RESULT), true),
            };
            let result = CallResult {
                id,
                tool,
                parts,
                failed,
            };
            let index = end.unwrap_or(last);
            self.push(index, self.steps[index].at, TurnContent::Result(result));
        }
    }

    /// Returns a call id that is not used yet, in characters that every API accepts.
    fn new_id(&mut self, recorded: &str) -> String {
        let plain = plain_name(recorded);
        let times = self.times.entry(plain.clone()).or_default();
        loop {
            *times += 1;
            let id = match *times {
                1 if !plain.is_empty() => plain.clone(),
                times => format!("{plain}_{times}"),
            };
            if self.used.insert(id.clone()) {
                return id;
            }
        }
    }
}

/// Returns the indices of events that are written together: the messages and calls of one answer of
/// a model, which sources record in pieces. Any other event is a group by itself.
fn groups(steps: &[Step]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut last: Option<Answer<'_>> = None;
    for (index, step) in steps.iter().enumerate() {
        match &step.body {
            EventBody::MessageAppended(said) if said.role == Role::Assistant => {
                let answer = last.take().filter(|answer| answer.takes_message(said));
                let answer = answer.unwrap_or_else(|| Answer::begin(&mut groups));
                last = Some(answer.with_message(step.revision, said));
            }
            EventBody::ToolCallRequested(call) => {
                let answer = last.take().filter(|answer| answer.takes_call(call));
                let answer = answer.unwrap_or_else(|| Answer::begin(&mut groups));
                last = Some(answer.with_call(call));
            }
            body => {
                if let Some(answer) = &mut last {
                    answer.note(body);
                }
                if matches!(body, EventBody::Compacted(_)) {
                    last = None;
                }
                groups.push(vec![index]);
                continue;
            }
        }
        if let Some(answer) = &last {
            groups[answer.group].push(index);
        }
    }
    groups
}

/// The latest answer of a model, as read so far.
struct Answer<'a> {
    group: usize,
    message_id: &'a str,
    messages: HashSet<Revision>,
    /// The open calls of the answer.
    open: HashSet<&'a str>,
    /// One of its calls got its outcome after its last message.
    is_answered: bool,
    /// One of its calls has an outcome.
    has_outcome: bool,
    /// One of its messages has a finish reason.
    has_finished: bool,
    /// No message of a user or tool has followed it.
    is_last: bool,
    /// It has only reasoning so far.
    has_only_reasoning: bool,
}

impl<'a> Answer<'a> {
    fn begin(groups: &mut Vec<Vec<usize>>) -> Self {
        groups.push(Vec::new());
        Self {
            group: groups.len() - 1,
            message_id: "",
            messages: HashSet::new(),
            open: HashSet::new(),
            is_answered: false,
            has_outcome: false,
            has_finished: false,
            is_last: true,
            has_only_reasoning: true,
        }
    }

    fn grows(&self) -> bool {
        self.is_last || !self.open.is_empty()
    }

    /// True when a message belongs to this answer.
    ///
    /// Message ids may repeat: some servers have only a thousand ids. So a message with content
    /// never joins an answer that an outcome or another message follows. An empty message may join:
    /// a source records a complete call and its result while the answer still continues.
    fn takes_message(&self, said: &MessageAppended) -> bool {
        let is_same = !said.message_id.is_empty() && said.message_id == self.message_id;
        let is_followed = self.has_outcome || !self.is_last;
        let may_be_late = said.parts.is_empty() && !self.has_finished;
        self.grows() && (is_same && (!is_followed || may_be_late) || self.has_only_reasoning)
    }

    fn takes_call(&self, call: &ToolCallRequested) -> bool {
        let revision = call.message_revision;
        let names_it = revision.is_some_and(|message| self.messages.contains(&message));
        self.grows() && (names_it || !self.open.is_empty() || !self.is_answered)
    }

    fn with_message(mut self, revision: Revision, said: &'a MessageAppended) -> Self {
        if !said.message_id.is_empty() {
            self.message_id = &said.message_id;
        }
        let is_thought = |part: &ContentPart| matches!(part, ContentPart::Reasoning(_));
        self.has_only_reasoning &= !said.parts.is_empty() && said.parts.iter().all(is_thought);
        self.messages.insert(revision);
        self.has_finished |= !said.finish_reason.is_empty();
        self.is_answered = false;
        self
    }

    fn with_call(mut self, call: &'a ToolCallRequested) -> Self {
        self.open.insert(&call.call_id);
        self.has_only_reasoning = false;
        self
    }

    /// Notes an event between the pieces of the answer.
    fn note(&mut self, body: &EventBody) {
        match body {
            EventBody::ToolResultRecorded(result) => self.end(&result.call_id),
            EventBody::ToolCallCancelled(cancelled) => self.end(&cancelled.call_id),
            EventBody::MessageAppended(said) => {
                let is_unseen = matches!(said.role, Role::System | Role::Developer);
                self.is_last &= is_unseen || said.parts.is_empty();
            }
            EventBody::UserPromptSet(_) => self.is_last = false,
            _ => {}
        }
    }

    fn end(&mut self, call_id: &str) {
        let is_own = self.open.remove(call_id);
        self.is_answered |= is_own;
        self.has_outcome |= is_own;
    }
}
