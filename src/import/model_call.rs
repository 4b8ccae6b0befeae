//! Converts model calls, as they pass between a client and its provider.
//!
//! A request repeats the history, so most of a call is already stored, but in another form: clients
//! drop fields of an answer when they send it back, and harnesses add notices. [`StoredHistory`]
//! finds how much of a call repeats stored events. [`import_call`] makes a conversation that
//! contains these stored events, so that [`plan`](super::plan()) appends only the rest.
//!
//! `chat`, `responses` and `messages` read the formats of the providers. This module knows nothing
//! of the transport.

mod chat;
mod history;
mod messages;
mod responses;
mod same;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

use super::{
    ImportedConversation, content, id_in_namespace,
    openai_chat::{conversation_id, headline, shortened},
    origin::Place,
    steps::{json_text, shorter_id},
    transcript::{BranchIndex, Transcript},
};
use treering_domain::{
    CancelReason, Config, ContentPart, ConversationCreated, ConversationId, EventBody,
    MessageAppended, NameError, Namespace, Role, StoredEvent, TimestampMicros, ToolCallCancelled,
    ToolCallRequested, ToolDefinition, ToolResultRecorded, Usage,
};

pub use history::{HistoryPlace, StoredHistory};
pub use same::StepDigest;

/// The source name of conversations that were recorded from calls.
pub const SOURCE: &str = "proxy";

/// Label with the id that a client gave its conversation.
pub const SESSION_LABEL: &str = "session";

/// The finish reason of an interrupted answer.
pub const INTERRUPTED: &str = "interrupted";

/// The format of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallFormat {
    /// OpenAI Chat Completions.
    ChatCompletions,
    /// OpenAI Responses.
    Responses,
    /// Anthropic Messages.
    Messages,
}

impl CallFormat {
    /// Returns a short name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ChatCompletions => "openai-chat",
            Self::Responses => "openai-responses",
            Self::Messages => "anthropic-messages",
        }
    }

    /// Reads a request and its answer, in the form that the provider uses without streaming. `None`
    /// if the request has no messages.
    #[must_use]
    pub fn read(self, request: &Value, answer: &Value) -> Option<ModelCall> {
        match self {
            Self::ChatCompletions => chat::read(request, answer),
            Self::Responses => responses::read(request, answer),
            Self::Messages => messages::read(request, answer),
        }
    }
}

/// A message or a result of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum CallStep {
    /// A message, with the calls that it requests.
    Said {
        /// The message.
        message: MessageAppended,
        /// Its calls.
        calls: Vec<ToolCallRequested>,
    },
    /// The result of a call.
    Result(ToolResultRecorded),
}

impl CallStep {
    fn said(message: MessageAppended) -> Self {
        let calls = Vec::new();
        Self::Said { message, calls }
    }

    /// Returns a message of instructions; `None` without text.
    fn instructions(role: Role, text: &str) -> Option<Self> {
        let is_said = !text.trim().is_empty();
        is_said.then(|| Self::said(MessageAppended::text(role, text)))
    }

    /// Adds the step to a list. The pieces of one answer become one message.
    fn push_piece(self, steps: &mut Vec<Self>) {
        if let (
            Some(Self::Said { message, calls }),
            Self::Said {
                message: more,
                calls: more_calls,
            },
        ) = (steps.last_mut(), &self)
            && message.role == Role::Assistant
            && more.role == Role::Assistant
        {
            message.parts.extend(more.parts.iter().cloned());
            calls.extend(more_calls.iter().cloned());
            return;
        }
        steps.push(self);
    }

    fn role(&self) -> Role {
        match self {
            Self::Said { message, .. } => message.role,
            Self::Result(_) => Role::Tool,
        }
    }
}

/// The history that a request continues without repeating it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Continues {
    /// None: the request repeats all of its history.
    #[default]
    Nothing,
    /// An answer of the provider, by its id.
    Answer(String),
    /// The provider's own conversation, in its current state.
    Latest,
}

/// A request to a model, and the answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelCall {
    /// The model that answered.
    pub model: String,
    /// The tools that the model could call.
    pub tools: Vec<ToolDefinition>,
    /// The history that the request continues without repeating it.
    pub continues: Continues,
    /// The messages of the request, in order.
    pub request: Vec<CallStep>,
    /// The answer; `None` if the provider sent nothing of it.
    pub answer: Option<CallStep>,
    /// The provider's id of the answer, which a later request may continue.
    pub answer_id: String,
}

impl ModelCall {
    /// Marks the answer as interrupted. Its last call may be incomplete, and was not run.
    pub fn interrupt(&mut self) {
        if let Some(CallStep::Said { message, .. }) = &mut self.answer {
            INTERRUPTED.clone_into(&mut message.finish_reason);
        }
    }

    /// Returns the digest of the first message that a person or a program wrote, which
    /// distinguishes conversations. Notices of a harness count only if there is nothing else.
    #[must_use]
    pub fn beginning(&self) -> StepDigest {
        let mut steps = self.request.iter();
        let first = self.first_prompt().or_else(|| steps.next());
        first.map(StepDigest::of).unwrap_or_default()
    }

    fn first_prompt(&self) -> Option<&CallStep> {
        let users = || self.request.iter().filter(|step| step.role() == Role::User);
        users()
            .find(|step| same::prompt(step).is_some())
            .or(users().next())
    }

    fn title(&self) -> Option<String> {
        let prompt = self.first_prompt().and_then(same::prompt)?;
        let line = headline(&prompt).or_else(|| prompt.lines().next().map(str::to_owned))?;
        Some(shortened(line.trim())).filter(|title| !title.is_empty())
    }
}

/// Returns the tokens of an OpenAI answer. Its formats name them `prompt` and `completion`, or
/// `input` and `output`, and count cached tokens as part of the input.
fn usage(usage: &Value, [input, output]: [&str; 2]) -> Option<Usage> {
    let count = |name: String| usage[name].as_u64();
    let detail = |kind: &str, name: &str| usage[format!("{kind}_tokens_details")][name].as_u64();
    let cached = detail(input, "cached_tokens").unwrap_or_default();
    Some(Usage {
        input_tokens: count(format!("{input}_tokens"))?.saturating_sub(cached),
        output_tokens: count(format!("{output}_tokens"))?,
        cache_read_input_tokens: cached,
        reasoning_output_tokens: detail(output, "reasoning_tokens").unwrap_or_default(),
        ..Usage::default()
    })
}

/// Returns the id of a recorded conversation in a namespace.
#[must_use]
pub fn conversation(source_id: &str, namespace: &Namespace) -> ConversationId {
    let id = conversation_id(SOURCE, &shorter_id(source_id));
    id_in_namespace(id, namespace)
}

/// The source and the times of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct CallSource {
    /// The id of the conversation in the source.
    pub source_id: String,
    /// The id that the client gave its conversation, or empty.
    pub session: String,
    /// Facts about the client, for the conversation's metadata.
    pub meta: Map<String, Value>,
    /// When the request came.
    pub sent_at: TimestampMicros,
    /// When its answer ended.
    pub answered_at: TimestampMicros,
    /// The answer was interrupted.
    pub is_interrupted: bool,
}

/// Converts a call. `place` is where it continues the stored history.
///
/// # Errors
/// [`NameError`] when a branch could not be named.
pub fn import_call(
    call: &ModelCall,
    context: &CallSource,
    history: &StoredHistory<'_>,
    place: &HistoryPlace,
) -> Result<ImportedConversation, NameError> {
    let source_id = shorter_id(&context.source_id);
    let conversation = conversation_id(SOURCE, &source_id);
    let title = call.title();
    let mut created = ConversationCreated {
        title: title.unwrap_or_else(|| shortened(&source_id)),
        config: Config {
            model_id: call.model.clone(),
            ..Config::default()
        },
        source: SOURCE.to_owned(),
        source_id: source_id.clone(),
        source_meta: json_text(&Value::Object(context.meta.clone())),
        ..ConversationCreated::default()
    };
    let session = content::short(&context.session.as_str().into()).unwrap_or_default();
    if !session.is_empty() {
        created.labels.insert(SESSION_LABEL.to_owned(), session);
    }
    let mut recording = Recording {
        transcript: Transcript::new(conversation, created, Some(context.sent_at)),
    };
    recording.repeat(history.path(place), conversation);
    if history.is_empty() {
        recording.transcript.define_tools(call.tools.clone());
    }
    recording.transcript.occurred_at = Some(context.sent_at);
    for step in place.new_steps(call) {
        recording.step(step);
    }
    recording.transcript.occurred_at = Some(context.answered_at);
    if let Some(answer) = &call.answer {
        if !call.model.is_empty() {
            recording
                .transcript
                .answered_by(BranchIndex::MAIN, call.model.clone());
        }
        recording.step(answer);
        if context.is_interrupted {
            recording.cancel_calls(answer);
        }
    }
    let origin = recording.transcript.origin();
    let (events, notes) = recording.transcript.finish();
    Ok(ImportedConversation {
        conversation,
        source: SOURCE.to_owned(),
        source_id,
        follows: None,
        origin,
        events,
        notes,
    })
}

/// A call while it is converted.
struct Recording {
    transcript: Transcript,
}

impl Recording {
    /// Adds the stored events that the call repeats.
    fn repeat<'a>(
        &mut self,
        events: impl Iterator<Item = (&'a StoredEvent, EventBody)>,
        conversation: ConversationId,
    ) {
        for (event, body) in events {
            self.transcript.exported = Some(Place {
                conversation,
                event: event.header.id,
            });
            self.transcript.occurred_at = event.header.occurred_at;
            self.transcript.push(BranchIndex::MAIN, body);
        }
        self.transcript.exported = None;
    }

    fn step(&mut self, step: &CallStep) {
        let transcript = &mut self.transcript;
        match step {
            CallStep::Said { message, calls } => {
                let said = EventBody::MessageAppended(message.clone());
                let revision = transcript.push(BranchIndex::MAIN, said);
                for call in calls {
                    transcript.request(BranchIndex::MAIN, revision, call.clone());
                }
            }
            CallStep::Result(result) if transcript.is_open(BranchIndex::MAIN, &result.call_id) => {
                let body = EventBody::ToolResultRecorded(result.clone());
                transcript.push(BranchIndex::MAIN, body);
            }
            CallStep::Result(orphan) => {
                let said = MessageAppended {
                    tool_call_id: orphan.call_id.clone(),
                    ..MessageAppended::new(Role::Tool, orphan.parts.clone())
                };
                transcript.push(BranchIndex::MAIN, EventBody::MessageAppended(said));
            }
        }
    }

    /// Cancels the calls of an interrupted answer, because nobody runs them.
    fn cancel_calls(&mut self, answer: &CallStep) {
        let CallStep::Said { calls, .. } = answer else {
            return;
        };
        for call in calls {
            if self.transcript.is_open(BranchIndex::MAIN, &call.call_id) {
                let cancelled = ToolCallCancelled {
                    call_id: call.call_id.clone(),
                    reason: CancelReason::Interrupted,
                    detail: String::new(),
                };
                let body = EventBody::ToolCallCancelled(cancelled);
                self.transcript.push(BranchIndex::MAIN, body);
            }
        }
    }
}

/// Returns a list in a field, or an empty one.
fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// Drops texts without content: some clients send them, others do not send them back.
fn without_empty(parts: Vec<ContentPart>) -> Vec<ContentPart> {
    let is_empty = |part: &ContentPart| matches!(part, ContentPart::Text(text) if text.is_empty());
    parts.into_iter().filter(|part| !is_empty(part)).collect()
}
