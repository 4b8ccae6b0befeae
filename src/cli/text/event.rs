//! One event as lines of text.

use prost::Message;

use super::{
    super::{
        json::{cancel_name, kind_name, role_name},
        output::{Out, Paint, Tone},
        pb::{self, event::Body},
    },
    bytes_human, clock, first_line, indent,
};

/// How events are shown.
#[derive(Clone, Copy, Debug)]
pub struct EventText {
    /// Colours.
    pub paint: Paint,
    /// Most lines of content of one event.
    pub lines_max: usize,
    /// Most characters of a line of content.
    pub chars_max: usize,
    /// Name the branch of each event.
    pub branch: bool,
    /// It is the one that was asked for.
    pub is_marked: bool,
}

impl EventText {
    /// A short form for lists, or everything.
    #[must_use]
    pub fn new(out: &Out, lines_max: usize, full: bool) -> Self {
        Self {
            paint: out.paint,
            lines_max: if full { usize::MAX } else { lines_max },
            chars_max: if full {
                usize::MAX
            } else {
                out.width.saturating_sub(MARGIN)
            },
            branch: false,
            is_marked: false,
        }
    }

    /// For the event that was asked for.
    #[must_use]
    pub fn marked(mut self) -> Self {
        self.is_marked = true;
        self
    }

    /// True when contents are shown whole.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.chars_max == usize::MAX
    }

    /// Names the branch of each event.
    #[must_use]
    pub fn with_branch(mut self) -> Self {
        self.branch = true;
        self
    }
}

/// Columns before the content.
const MARGIN: usize = 8;

/// What is said about an event: its title, and its content.
#[derive(Clone, Debug)]
pub struct Said {
    /// Who or what speaks.
    pub tone: Tone,
    /// One line.
    pub title: String,
    /// Ids, times and sizes.
    pub note: String,
    /// What was said, asked or returned.
    pub content: String,
}

impl Said {
    fn new(tone: Tone, title: impl Into<String>) -> Self {
        Self {
            tone,
            title: title.into(),
            note: String::new(),
            content: String::new(),
        }
    }

    fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    fn content(mut self, content: impl Into<String>) -> Self {
        self.content = content.into();
        self
    }
}

/// An event as lines: its header, then its content.
#[must_use]
pub fn event_lines(event: &pb::Event, how: EventText) -> Vec<String> {
    let said = say(event);
    let paint = how.paint;
    let revision = format!("{:>6}", format!("#{}", event.revision));
    let time = clock(event.occurred_at.as_ref().or(event.recorded_at.as_ref()));
    let revision = if how.is_marked {
        paint.text(
            Tone::Wait,
            format!("{:>6}", format!(">#{}", event.revision)),
        )
    } else {
        paint.text(Tone::Name, revision)
    };
    let mut header = format!(
        "{}  {}  {}",
        revision,
        paint.text(Tone::Dim, time),
        paint.text(said.tone, &said.title)
    );
    for note in [&said.note, &actor_note(event, how)] {
        if !note.is_empty() {
            header.push_str("  ");
            header.push_str(&paint.text(Tone::Dim, first_line(note, how.chars_max)));
        }
    }
    let mut lines = vec![header];
    if !said.content.is_empty() {
        lines.extend(indent(&said.content, MARGIN, how.lines_max, how.chars_max));
    }
    lines
}

fn actor_note(event: &pb::Event, how: EventText) -> String {
    match (event.actor.is_empty(), how.branch) {
        (true, false) => String::new(),
        (false, false) => format!("by {}", event.actor),
        (true, true) => format!("on {}", event.branch),
        (false, true) => format!("by {} on {}", event.actor, event.branch),
    }
}

/// An event in words.
#[must_use]
pub fn say(event: &pb::Event) -> Said {
    let Some(body) = &event.body else {
        return Said::new(Tone::Strong, kind_name(event.kind));
    };
    say_body(body).unwrap_or_else(|_| {
        Said::new(Tone::Bad, kind_name(event.kind)).note("its body cannot be decoded")
    })
}

fn say_body(body: &Body) -> Result<Said, prost::DecodeError> {
    Ok(match body {
        Body::MessageAppended(b) => say_message(&decode(b)?),
        Body::ToolCallRequested(b) => say_request(&decode(b)?),
        Body::ToolResultRecorded(b) => say_result(decode(b)?),
        Body::ApprovalDecided(b) => say_decision(&decode(b)?),
        Body::ToolCallStarted(b) => {
            let m: pb::ToolCallStarted = decode(b)?;
            Said::new(Tone::Tool, "started").note(pair(&m.call_id, &m.executor))
        }
        Body::ToolCallCancelled(b) => {
            let m: pb::ToolCallCancelled = decode(b)?;
            let why = cancel_name(m.reason());
            Said::new(Tone::Bad, format!("cancelled ({why})")).note(pair(&m.call_id, &m.detail))
        }
        Body::ToolSnapshotRecorded(b) => {
            let m: pb::ToolSnapshotRecorded = decode(b)?;
            Said::new(Tone::Tool, "snapshot")
                .note(m.call_id)
                .content(m.summary)
        }
        Body::SummaryRecorded(b) => {
            let m: pb::SummaryRecorded = decode(b)?;
            Said::new(Tone::Strong, "summary")
                .note(format!("of #{} to #{}", m.from_revision, m.to_revision))
                .content(m.content)
        }
        Body::Compacted(b) => {
            let m: pb::Compacted = decode(b)?;
            Said::new(Tone::Wait, "compacted")
                .note(match m.trigger() {
                    // It stands for all that is above it.
                    pb::CompactionTrigger::Imported => "all before".to_owned(),
                    _ => format!("up to #{}", m.cut_revision),
                })
                .content(m.summary)
        }
        Body::SystemPromptSet(b) => {
            let m: pb::SystemPromptSet = decode(b)?;
            Said::new(Tone::Strong, "system prompt")
                .note(m.id)
                .content(m.content)
        }
        Body::UserPromptSet(b) => {
            let m: pb::UserPromptSet = decode(b)?;
            Said::new(Tone::User, "user prompt")
                .note(m.id)
                .content(m.content)
        }
        other => return say_about_conversation(other),
    })
}

fn say_about_conversation(body: &Body) -> Result<Said, prost::DecodeError> {
    Ok(match body {
        Body::ConversationCreated(b) => {
            let m: pb::ConversationCreated = decode(b)?;
            let from = pair(&m.source, &m.source_id);
            Said::new(Tone::Strong, "conversation created")
                .note(from)
                .content(m.title)
        }
        Body::ConfigChanged(b) => {
            let m: pb::ConfigChanged = decode(b)?;
            let config = m.config.unwrap_or_default();
            Said::new(Tone::Strong, "config").note(pair(&config.model_id, &config.mode))
        }
        Body::BranchForked(b) => {
            let m: pb::BranchForked = decode(b)?;
            Said::new(Tone::Strong, format!("branch {}", m.name))
                .note(format!("forked after #{}", m.fork_revision))
                .content(m.system_prompt)
        }
        Body::BranchActivated(_) => Said::new(Tone::Strong, "branch activated"),
        Body::BranchRenamed(b) => {
            let m: pb::BranchRenamed = decode(b)?;
            Said::new(Tone::Strong, format!("branch renamed to {}", m.name))
        }
        Body::BranchArchived(b) => {
            let m: pb::BranchArchived = decode(b)?;
            Said::new(Tone::Strong, "branch archived").note(m.reason)
        }
        Body::ConversationSealed(b) => {
            let m: pb::ConversationSealed = decode(b)?;
            Said::new(Tone::Strong, "sealed")
                .note(m.reason)
                .content(m.summary)
        }
        Body::SubContextSpawned(b) => {
            let m: pb::SubContextSpawned = decode(b)?;
            Said::new(Tone::Tool, "sub-context spawned")
                .note(m.conversation_id)
                .content(m.purpose)
        }
        Body::SubContextReturned(b) => {
            let m: pb::SubContextReturned = decode(b)?;
            Said::new(Tone::Tool, "sub-context returned")
                .note(m.conversation_id)
                .content(m.summary)
        }
        other => return say_about_context(other),
    })
}

fn say_about_context(body: &Body) -> Result<Said, prost::DecodeError> {
    Ok(match body {
        Body::ContextSet(b) => {
            let m: pb::ContextSet = decode(b)?;
            Said::new(Tone::Strong, format!("context {}", m.key))
                .note(m.provider)
                .content(String::from_utf8_lossy(&m.value))
        }
        Body::ContextRemoved(b) => {
            let m: pb::ContextRemoved = decode(b)?;
            Said::new(Tone::Strong, format!("context {} removed", m.key))
        }
        Body::ToolsDiscovered(b) => {
            let m: pb::ToolsDiscovered = decode(b)?;
            Said::new(Tone::Tool, "tools discovered").note(m.names.join(", "))
        }
        Body::ToolsDefined(b) => {
            let m: pb::ToolsDefined = decode(b)?;
            let names: Vec<_> = m.tools.iter().map(|tool| tool.name.as_str()).collect();
            Said::new(Tone::Tool, "tools defined").note(names.join(", "))
        }
        Body::GuidanceGiven(b) => {
            let m: pb::GuidanceGiven = decode(b)?;
            let names: Vec<_> = m.guidance.iter().map(|item| item.tool.as_str()).collect();
            Said::new(Tone::Tool, "guidance given").note(names.join(", "))
        }
        Body::EntitiesNoted(b) => {
            let m: pb::EntitiesNoted = decode(b)?;
            let ids: Vec<_> = m.entities.iter().map(|item| item.id.as_str()).collect();
            Said::new(Tone::Strong, "entities").note(ids.join(", "))
        }
        Body::AnnotationAdded(b) => say_annotation(decode(b)?),
        Body::Custom(b) => {
            let m: pb::Custom = decode(b)?;
            let size = bytes_human(m.data.len() as u64);
            Said::new(Tone::Strong, m.type_name).note(pair(&m.content_type, &size))
        }
        Body::ContentErased(b) => {
            let m: pb::ContentErased = decode(b)?;
            let revisions: Vec<_> = m.revisions.iter().map(|r| format!("#{r}")).collect();
            Said::new(Tone::Bad, format!("erased {}", revisions.join(", "))).note(m.reason)
        }
        // The others are said above.
        _ => Said::new(Tone::Strong, ""),
    })
}

fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M, prost::DecodeError> {
    M::decode(bytes)
}

fn pair(one: &str, other: &str) -> String {
    match (one.is_empty(), other.is_empty()) {
        (_, true) => one.to_owned(),
        (true, false) => other.to_owned(),
        (false, false) => format!("{one} · {other}"),
    }
}

fn say_message(message: &pb::MessageAppended) -> Said {
    let tone = match message.role() {
        pb::Role::User => Tone::User,
        pb::Role::Assistant => Tone::Assistant,
        pb::Role::Tool => Tone::Tool,
        pb::Role::System | pb::Role::Developer | pb::Role::Unspecified => Tone::Strong,
    };
    let tokens = message.usage.as_ref().map_or(String::new(), |usage| {
        format!("{} in, {} out", usage.input_tokens, usage.output_tokens)
    });
    Said::new(tone, role_name(message.role))
        .note(pair(&message.author, &tokens))
        .content(parts_text(&message.parts))
}

fn say_request(request: &pb::ToolCallRequested) -> Said {
    let waits = request.approval() == pb::ApprovalRequirement::Pending;
    let said = if waits {
        Said::new(Tone::Wait, format!("{} (needs approval)", request.tool))
    } else {
        Said::new(Tone::Tool, request.tool.clone())
    };
    said.note(request.call_id.clone())
        .content(String::from_utf8_lossy(&request.arguments))
}

fn say_result(result: pb::ToolResultRecorded) -> Said {
    let text = parts_text(&result.parts);
    let took = result
        .execution_time_ms
        .map_or(String::new(), |ms| format!("{ms} ms"));
    let size = bytes_human(text.len() as u64);
    let (tone, title) = if result.success {
        (Tone::Good, "result")
    } else {
        (Tone::Bad, "failed")
    };
    let content = match (result.error_message.is_empty(), text.is_empty()) {
        (true, _) => text,
        (false, true) => result.error_message,
        (false, false) => format!("{}\n{text}", result.error_message),
    };
    Said::new(tone, title)
        .note(pair(&pair(&result.call_id, &took), &size))
        .content(content)
}

fn say_decision(decided: &pb::ApprovalDecided) -> Said {
    let (tone, title) = match decided.decision() {
        pb::Decision::Approved => (Tone::Good, "approved"),
        pb::Decision::Denied => (Tone::Bad, "denied"),
        pb::Decision::Expired => (Tone::Bad, "approval expired"),
        pb::Decision::Unspecified => (Tone::Wait, "decided"),
    };
    let by = pair(&decided.call_id, &decided.decided_by);
    Said::new(tone, title)
        .note(by)
        .content(decided.reason.clone())
}

fn say_annotation(note: pb::AnnotationAdded) -> Said {
    let of = match (note.target_revision, note.whole_turn) {
        (0, _) => "the branch".to_owned(),
        (revision, true) => format!("the turn of #{revision}"),
        (revision, false) => format!("#{revision}"),
    };
    let score = note.score.map_or(String::new(), |score| score.to_string());
    Said::new(Tone::Wait, format!("annotation of {of}"))
        .note(pair(&note.label, &score))
        .content(note.comment)
}

/// The text of a message's or a result's parts; other parts in brackets.
#[must_use]
pub fn parts_text(parts: &[pb::ContentPart]) -> String {
    use pb::content_part::Part;
    let media = |what: &str, media: &pb::Media| {
        let named = pair(&media.media_type, &media.name);
        format!("[{what} {named}]")
    };
    let texts: Vec<String> = parts
        .iter()
        .filter_map(|part| part.part.as_ref())
        .map(|part| match part {
            Part::Text(text) | Part::Json(text) => text.clone(),
            Part::Refusal(text) => format!("[refusal] {text}"),
            Part::Reasoning(reasoning) if reasoning.text.is_empty() => "[reasoning]".into(),
            Part::Reasoning(reasoning) => format!("[reasoning] {}", reasoning.text),
            Part::Image(image) => media("image", image),
            Part::File(file) => media("file", file),
            Part::Audio(audio) => media("audio", audio),
        })
        .collect();
    texts.join("\n")
}
