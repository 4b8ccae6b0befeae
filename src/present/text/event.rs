//! Formats one event as lines of text.

use super::{
    super::{Paint, Tone, pb},
    Zone,
    descriptions::describe_event,
    first_line, indent,
    sign::printable,
};

/// How events are shown.
#[derive(Clone, Copy, Debug)]
pub struct EventText {
    /// Colours.
    pub paint: Paint,
    /// Time zone.
    pub zone: Zone,
    /// Maximum number of lines of content per event.
    pub lines_max: usize,
    /// Maximum number of characters per line of content.
    pub chars_max: usize,
    /// Show the branch of each event.
    pub branch: bool,
    /// Whether this is the event that the user asked for.
    pub is_marked: bool,
    /// Whether the time of the event is unknown.
    pub is_untimed: bool,
}

impl EventText {
    /// Returns options for a short form in lists, or for full contents.
    #[must_use]
    pub fn new(paint: Paint, zone: Zone, width: usize, lines_max: usize, full: bool) -> Self {
        Self {
            paint,
            zone,
            lines_max: if full { usize::MAX } else { lines_max },
            chars_max: if full {
                usize::MAX
            } else {
                width.saturating_sub(MARGIN)
            },
            branch: false,
            is_marked: false,
            is_untimed: false,
        }
    }

    /// Marks the event that the user asked for.
    #[must_use]
    pub fn marked(mut self) -> Self {
        self.is_marked = true;
        self
    }

    /// Marks the time of the event as unknown.
    #[must_use]
    pub fn untimed(mut self) -> Self {
        self.is_untimed = true;
        self
    }

    /// True when contents are shown in full.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.chars_max == usize::MAX
    }

    /// Shows the branch of each event.
    #[must_use]
    pub fn with_branch(mut self) -> Self {
        self.branch = true;
        self
    }
}

/// Columns of the margin before the content.
const MARGIN: usize = 8;

/// The text for an event: title, note and content.
#[derive(Clone, Debug)]
pub struct EventWords {
    /// Who acts, or how it ended.
    pub tone: Tone,
    /// One line.
    pub title: String,
    /// Ids, times and sizes.
    pub note: String,
    /// The text of the message, call or result.
    pub content: String,
}

impl EventWords {
    pub(super) fn new(tone: Tone, title: impl Into<String>) -> Self {
        Self {
            tone,
            title: title.into(),
            note: String::new(),
            content: String::new(),
        }
    }

    pub(super) fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    pub(super) fn content(mut self, content: impl Into<String>) -> Self {
        self.content = content.into();
        self
    }
}

/// Formats an event as lines: its header, then its content.
#[must_use]
pub fn event_lines(event: &pb::Event, how: EventText) -> Vec<String> {
    let said = describe_event(event);
    let paint = how.paint;
    let revision = format!("{:>6}", format!("#{}", event.revision));
    let time = match how.is_untimed {
        true => how.zone.clock(None),
        false => how
            .zone
            .clock(event.occurred_at.as_ref().or(event.recorded_at.as_ref())),
    };
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
    for note in [&said.note, &actor_note(event, how), &key_note(event)] {
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

fn key_note(event: &pb::Event) -> String {
    match event.key.is_empty() {
        true => String::new(),
        false => format!("key {}", printable(&event.key)),
    }
}

/// Joins two related texts, each of which may be empty.
pub(super) fn pair(one: &str, other: &str) -> String {
    match (one.is_empty(), other.is_empty()) {
        (_, true) => one.to_owned(),
        (true, false) => other.to_owned(),
        (false, false) => format!("{one} · {other}"),
    }
}

/// Returns the parts of a message or result as text; media, refusals and reasoning are marked with
/// brackets.
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
