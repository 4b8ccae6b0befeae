//! Converts the records of a session to events: the code that importers of sessions share.
//!
//! An importer decides which branch each record belongs to ([`Tree`]) and which events it becomes.
//! This module appends the events, with the data of the record that they lack.

use serde_json::{Map, Value};

use super::{
    ImportNote, ImportedConversation, Oddity, canonical, content,
    number::numbers_survive,
    openai_chat::{conversation_id, headline, shortened},
    record::Record,
    remainder,
    transcript::{BranchIndex, Transcript},
    tree::Tree,
};
use treering_domain::{
    Compacted, Config, ContentHash, ContentPart, ConversationCreated, Custom, EventBody, JsonText,
    MessageAppended, NameError, NewEvent, RawMessage, Role, TimestampMicros, ToolCallRequested,
    ToolResultRecorded, limits::SHORT_TEXT_BYTES_MAX,
};

/// Identity and origin of a session.
#[derive(Clone, Debug, Default)]
pub(super) struct About {
    pub(super) source: &'static str,
    pub(super) source_id: String,
    pub(super) title: Option<String>,
    pub(super) model: String,
    pub(super) meta: Map<String, Value>,
    /// The earliest time in the session.
    pub(super) began: Option<TimestampMicros>,
}

/// A session while it is converted to events.
pub(super) struct Steps {
    pub(super) transcript: Transcript,
    about: About,
}

impl Steps {
    pub(super) fn new(about: About) -> Self {
        let about = About {
            source_id: shorter_id(&about.source_id),
            ..about
        };
        let title = about.title.as_deref().map(shortened);
        let created = ConversationCreated {
            title: title.unwrap_or_else(|| shortened(&about.source_id)),
            config: Config {
                model_id: about.model.clone(),
                ..Config::default()
            },
            source: about.source.to_owned(),
            source_id: about.source_id.clone(),
            source_meta: match about.meta.is_empty() {
                true => JsonText::default(),
                false => json_text(&Value::Object(about.meta.clone())),
            },
            ..ConversationCreated::default()
        };
        let conversation = conversation_id(about.source, &about.source_id);
        Self {
            transcript: Transcript::new(conversation, created, about.began),
            about,
        }
    }

    /// Processes the records in order, each at its place in the tree and with its time.
    ///
    /// # Errors
    /// [`NameError`] when a branch could not be named.
    pub(super) fn run(
        &mut self,
        tree: &Tree,
        records: &[Record],
        time_of: impl Fn(usize, &Record) -> Option<TimestampMicros>,
        mut step: impl FnMut(&mut Self, BranchIndex, usize, &Record),
    ) -> Result<(), NameError> {
        for (index, record) in records.iter().enumerate() {
            self.transcript.occurred_at = time_of(index, record);
            self.transcript.exported = record.exported;
            let branch = self.transcript.arrive(tree, index)?;
            step(self, branch, index, record);
            self.transcript.leave(tree, index);
        }
        Ok(())
    }

    /// Appends the events of a record. Calls follow the message that requests them.
    pub(super) fn push(
        &mut self,
        branch: BranchIndex,
        record: &Record,
        model: &str,
        mut bodies: Vec<EventBody>,
    ) {
        if !numbers_survive(record.as_str()) {
            self.transcript.note(Oddity::NumberTooPrecise);
        }
        let raw = remainder::keep(self.about.source, model, &bodies, record);
        set_raw(&mut bodies, raw);
        let mut said = Default::default();
        for body in bodies {
            match body {
                EventBody::ToolCallRequested(call) => self.transcript.request(branch, said, call),
                body => {
                    let is_message = matches!(body, EventBody::MessageAppended(_));
                    let revision = self.transcript.push(branch, body);
                    if is_message {
                        said = revision;
                    }
                }
            }
        }
    }

    /// Appends a message without calls.
    pub(super) fn message(&mut self, branch: BranchIndex, record: &Record, said: MessageAppended) {
        self.push(branch, record, "", vec![EventBody::MessageAppended(said)]);
    }

    /// Appends the result of a call, or a plain message with its content when no such call is open.
    pub(super) fn result(
        &mut self,
        branch: BranchIndex,
        record: &Record,
        tool: &str,
        result: ToolResultRecorded,
    ) {
        if self.transcript.is_open(branch, &result.call_id) {
            let body = EventBody::ToolResultRecorded(result);
            return self.push(branch, record, "", vec![body]);
        }
        self.transcript.note(Oddity::OrphanResult {
            call_id: result.call_id.clone(),
        });
        let said = MessageAppended {
            tool_call_id: result.call_id,
            tool_name: tool.to_owned(),
            ..MessageAppended::new(Role::Tool, result.parts)
        };
        self.message(branch, record, said);
    }

    /// Appends a compaction with this record as its summary.
    pub(super) fn compaction(
        &mut self,
        branch: BranchIndex,
        record: &Record,
        summary: String,
        tokens_before: u64,
        kept_from: Option<usize>,
    ) {
        let compacted: Compacted =
            self.transcript
                .compaction(branch, summary, tokens_before, kept_from);
        self.push(branch, record, "", vec![EventBody::Compacted(compacted)]);
    }

    /// Keeps a record unchanged in a custom event of the given type name.
    pub(super) fn keep(&mut self, branch: BranchIndex, record: &Record, name: &str) {
        let source = self.about.source;
        let (name, content_type) = match record.is_readable() {
            true => (name, "application/json"),
            false => {
                self.transcript.note(Oddity::UnreadableLine);
                ("unreadable", "application/octet-stream")
            }
        };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "$_-.".contains(c);
        let fits = source.len() + 1 + name.len() <= SHORT_TEXT_BYTES_MAX;
        let name = if fits && name.chars().all(is_plain) {
            name
        } else {
            ""
        };
        let custom = Custom {
            type_name: format!("{source}/{name}"),
            content_type: content_type.to_owned(),
            data: record.text.clone(),
            text: String::new(),
            delta_of: String::new(),
        };
        self.transcript.push(branch, EventBody::Custom(custom));
    }

    pub(super) fn finish(self) -> ImportedConversation {
        let conversation = conversation_id(self.about.source, &self.about.source_id);
        let origin = self.transcript.origin();
        let (events, notes): (Vec<NewEvent>, Vec<ImportNote>) = self.transcript.finish();
        ImportedConversation {
            conversation,
            source: self.about.source.to_owned(),
            source_id: self.about.source_id,
            follows: None,
            origin,
            events,
            notes,
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

/// Returns a call; `None` if its id or name is empty or too long.
pub(super) fn call(call_id: &str, tool: &str, arguments: JsonText) -> Option<ToolCallRequested> {
    let is_usable = |text: &str| !text.is_empty() && text.len() <= SHORT_TEXT_BYTES_MAX;
    let (arguments, arguments_not_json) = content::arguments(arguments.as_bytes().clone());
    (is_usable(call_id) && is_usable(tool)).then(|| ToolCallRequested {
        call_id: call_id.to_owned(),
        tool: tool.to_owned(),
        arguments_hash: ContentHash(blake3::hash(arguments.as_bytes()).into()),
        arguments,
        arguments_not_json,
        ..ToolCallRequested::default()
    })
}

/// Returns the result of a call.
pub(super) fn result(call_id: &str, success: bool, parts: Vec<ContentPart>) -> ToolResultRecorded {
    ToolResultRecorded {
        call_id: short(call_id),
        success,
        error_message: String::new(),
        execution_time_ms: None,
        parts,
        structured: JsonText::default(),
        raw: None,
    }
}

/// Returns a text if it is short enough for a name, else an empty text.
pub(super) fn short(text: &str) -> String {
    match text.len() <= SHORT_TEXT_BYTES_MAX {
        true => text.to_owned(),
        false => String::new(),
    }
}

pub(super) fn json_text(value: &Value) -> JsonText {
    JsonText::from_checked(value.to_string().into())
}

pub(super) fn json_part(value: &Value) -> ContentPart {
    ContentPart::Json(json_text(value))
}

/// Returns a text as a list of parts; an empty text has none.
pub(super) fn text_parts(text: &str) -> Vec<ContentPart> {
    match text.is_empty() {
        true => Vec::new(),
        false => vec![ContentPart::Text(text.to_owned())],
    }
}

/// Parses a time in text form or in milliseconds since 1970.
pub(super) fn time(value: &Value) -> Option<TimestampMicros> {
    canonical::read_time(value).or_else(|| {
        let millis = value.as_u64().filter(|millis| *millis > 0)?;
        let time = TimestampMicros(i64::try_from(millis.checked_mul(1_000)?).ok()?);
        canonical::render_time(time).map(|_| time)
    })
}

/// Returns a title from the first of these prompts that a person wrote.
pub(super) fn title<'a>(prompts: impl Iterator<Item = &'a str>) -> Option<String> {
    prompts.filter_map(headline).next()
}

/// Replaces an id that is too long by its hash. Nearly all ids are file names, and short.
pub(super) fn shorter_id(id: &str) -> String {
    if id.len() <= SHORT_TEXT_BYTES_MAX {
        return id.to_owned();
    }
    blake3::hash(id.as_bytes()).to_string()
}
