//! Summarises turns without a model: requests, answers, failures, open work, and the files and ids
//! that were named.

use std::{fmt::Write as _, sync::Arc};

use super::{
    facts::{Facts, open_tasks},
    result_summary,
    text::{clip, counted, head},
    turns::{Turn, turns},
};
use crate::user_text;
use treering_context::{steps, window::WindowEvent};
use treering_domain::{ContentPart, ConversationId, EventBody, MessageAppended, Role};

/// Maximum number of files, and of ids, that are listed.
const NAMES_MAX: usize = 24;
/// Minimum room for a turn, in characters.
const TURN_CHARS_MIN: usize = 120;
/// Maximum number of characters for one turn.
const TURN_CHARS_MAX: usize = 1_200;
/// Maximum number of failures of a turn that are quoted.
const FAILURES_MAX: usize = 2;
/// Maximum number of bytes kept of a turn's request. Only its beginning is quoted.
const ASKED_BYTES_MAX: usize = 64 << 10;

/// Returns the engine's own summary of a dialogue: the outcome of each turn, in quotations. At most
/// `max_chars` characters.
#[must_use]
pub fn dialogue_summary(
    conversation: ConversationId,
    events: &[Arc<WindowEvent>],
    max_chars: usize,
) -> String {
    let story = Story::of(conversation, events);
    clip(story.told(max_chars).trim(), max_chars)
}

/// The facts for the summary.
struct Story {
    turns: Vec<TurnText>,
    facts: Facts,
    open: Vec<String>,
}

/// One turn.
#[derive(Default)]
struct TurnText {
    asked: String,
    answered: String,
    failures: Vec<String>,
    failed: usize,
}

impl Story {
    fn of(conversation: ConversationId, events: &[Arc<WindowEvent>]) -> Self {
        let mut facts = Facts::new(NAMES_MAX);
        events
            .iter()
            .for_each(|event| note(&mut facts, &event.body));
        let spans = turns(conversation, events);
        let told = spans
            .iter()
            .map(|turn| TurnText::of(&events[turn.first..turn.end]))
            .collect();
        let open = spans
            .last()
            .map(|turn| open(&events[turn.first..turn.end], turn));
        Self {
            turns: told,
            facts,
            open: open.unwrap_or_default(),
        }
    }

    fn told(&self, max_chars: usize) -> String {
        let mut text = String::new();
        let after = self.after(max_chars / 4);
        let room = max_chars.saturating_sub(after.chars().count() + 4);
        self.write_turns(&mut text, room);
        if text.is_empty() && after.is_empty() {
            text.push_str("Nothing was said.");
        }
        text + &after
    }

    /// Writes the first turn, which has the task, and as many of the last turns as fit.
    fn write_turns(&self, text: &mut String, room: usize) {
        let Some((first, rest)) = self.turns.split_first() else {
            return;
        };
        let tellable = (room / TURN_CHARS_MIN).max(1);
        let shown = self.turns.len().min(tellable);
        let room = (room / shown).min(TURN_CHARS_MAX);
        let left_out = self.turns.len() - shown;
        text.push('\n');
        if shown == 1 && left_out > 0 {
            let _ = write!(text, "\n({} left out)", counted(left_out, "earlier turn"));
        } else {
            first.tell(1, room, text);
            if left_out > 0 {
                let _ = write!(text, "\n({} left out)", counted(left_out, "turn"));
            }
        }
        let skipped = if shown == 1 && left_out > 0 {
            rest.len() - 1
        } else {
            left_out
        };
        for (at, turn) in rest.iter().enumerate().skip(skipped) {
            turn.tell(at + 2, room, text);
        }
    }

    /// Returns the lists after the turns.
    fn after(&self, max_chars: usize) -> String {
        let mut text = String::new();
        for (title, list) in [
            ("Files", &self.facts.files),
            ("Ids", &self.facts.ids),
            ("Still open", &self.open),
        ] {
            if !list.is_empty() {
                let line = clip(&format!("{title}: {}", list.join(", ")), max_chars / 3);
                let _ = write!(text, "\n{line}");
            }
        }
        if text.is_empty() {
            text
        } else {
            format!("\n{text}")
        }
    }
}

impl TurnText {
    fn of(events: &[Arc<WindowEvent>]) -> Self {
        let mut told = Self::default();
        for event in events {
            match &event.body {
                EventBody::MessageAppended(message) => told.message(message),
                EventBody::ToolResultRecorded(result) if !result.success => {
                    told.failed += 1;
                    // Keeps the last failures, because earlier ones may have been fixed.
                    told.failures.push(result_summary(result, 160));
                    if told.failures.len() > FAILURES_MAX {
                        told.failures.remove(0);
                    }
                }
                _ => {}
            }
        }
        told
    }

    fn message(&mut self, message: &MessageAppended) {
        let said = match message.role {
            Role::User => user_text::of_message(message).unwrap_or_default(),
            _ => said(message),
        };
        if said.trim().is_empty() {
            return;
        }
        match message.role {
            Role::User if self.asked.is_empty() => self.asked = said,
            // Only the beginning is quoted.
            Role::User if self.asked.len() > ASKED_BYTES_MAX => {}
            Role::User => {
                steps::note(said.len());
                self.asked.push('\n');
                self.asked.push_str(&said);
            }
            // The last answer is the conclusion.
            Role::Assistant => self.answered = said,
            Role::System | Role::Developer | Role::Tool => {}
        }
    }

    fn tell(&self, number: usize, room: usize, text: &mut String) {
        let failures = match self.failed {
            0 => String::new(),
            failed => {
                let told = clip(&self.failures.join("; "), room / 4);
                format!("\n   {} failed: {told}", counted(failed, "step"))
            }
        };
        let room = room.saturating_sub(failures.chars().count() + 30);
        let asked = head(&self.asked, room / 3);
        let answered = head(&self.answered, room - asked.chars().count().min(room));
        let asked = if asked.is_empty() {
            "(nothing)".to_owned()
        } else {
            asked
        };
        let _ = write!(text, "\n{number}. Asked: {asked}");
        if answered.is_empty() {
            text.push_str("\n   No answer.");
        } else {
            let _ = write!(text, "\n   Answered: {answered}");
        }
        text.push_str(&failures);
    }
}

/// Returns the text of a message.
fn said(message: &MessageAppended) -> String {
    let texts: Vec<&str> = message.parts.iter().filter_map(ContentPart::text).collect();
    texts.join("\n")
}

fn note(facts: &mut Facts, body: &EventBody) {
    match body {
        EventBody::MessageAppended(message)
            if matches!(message.role, Role::User | Role::Assistant) =>
        {
            message
                .parts
                .iter()
                .filter_map(ContentPart::text)
                .for_each(|text| facts.note(text));
        }
        EventBody::ToolCallRequested(call) => facts.note(call.arguments.as_str()),
        EventBody::EntitiesNoted { entities } => {
            entities
                .iter()
                .for_each(|entity| facts.note_id(&entity.id, &entity.name));
        }
        _ => {}
    }
}

/// Returns the open work of the last turn.
fn open(events: &[Arc<WindowEvent>], turn: &Turn) -> Vec<String> {
    let mut tasks = Vec::new();
    for event in events {
        if let EventBody::MessageAppended(message) = &event.body
            && message.role == Role::Assistant
        {
            let named = open_tasks(&said(message));
            // A later list replaces an earlier one.
            if !named.is_empty() {
                tasks = named;
            }
        }
    }
    if !turn.finished {
        tasks.push("the last request has no answer yet".to_owned());
    }
    tasks
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use treering_context::samples::{SampleEvent, window};

    fn summary(spoken: &[SampleEvent], max_chars: usize) -> String {
        let (id, events) = window(spoken);
        dialogue_summary(id, &events, max_chars)
    }

    /// The model that continues needs the requests, the outcome, failures, open tasks, and the
    /// names of files and ids.
    #[test]
    fn dialogue_summary_lists_requests_answers_and_failures() {
        let text = summary(
            &[
                SampleEvent::User("Change the title of content/home.md, please"),
                SampleEvent::Assistant("I look at it with get_page."),
                SampleEvent::Call("a", "get_page", r#"{"path":"content/home.md"}"#),
                SampleEvent::Failure("a", "404: page #77 is gone"),
                SampleEvent::Assistant(
                    "The title is \"Welcome\" now.\n\n- [x] title\n- [ ] footer",
                ),
                SampleEvent::User("And the footer?"),
                SampleEvent::Call("b", "search", "{}"),
            ],
            2_000,
        );
        let expected = "\
             1. Asked: Change the title of content/home.md, please\
             \n   Answered: The title is \"Welcome\" now. / - [x] title / - [ ] footer\
             \n   1 step failed: failed: 404: page #77 is gone\
             \n2. Asked: And the footer?\
             \n   No answer.\n\
             \nFiles: content/home.md\
             \nStill open: the last request has no answer yet";
        assert_eq!(text, expected);
    }

    /// The first request has the task, and the last requests have the current state. Turns in
    /// between are omitted.
    #[test]
    fn dialogue_summary_drops_middle_turns_first() {
        let mut spoken = Vec::new();
        let asked: Vec<String> = (1..=60).map(|n| format!("request {n}")).collect();
        for asked in &asked {
            spoken.extend([SampleEvent::User(asked), SampleEvent::Assistant("done")]);
        }
        let text = summary(&spoken, 1_500);
        assert!(text.contains("1. Asked: request 1\n"), "{text}");
        assert!(text.contains("60. Asked: request 60\n"), "{text}");
        assert!(text.contains(" turns left out)\n"), "{text}");
        assert!(!text.contains("request 30\n"), "{text}");
        assert!(text.chars().count() <= 1_500);
    }

    /// Without messages, the summary is still a text that can be recorded.
    #[test]
    fn summary_of_an_empty_dialogue_is_not_empty() {
        assert_eq!(summary(&[], 500), "Nothing was said.");
    }

    proptest! {
        /// For any dialogue: bounded, deterministic, without hidden characters.
        #[test]
        fn any_dialogue_summary_is_bounded_and_visible(
            said in proptest::collection::vec(
                prop_oneof![any::<String>(), "(get_page|search|`search`|a/b.rs|X-1|[ .\n])*"],
                0..12,
            ),
            max in 1_usize..900,
        ) {
            let spoken: Vec<SampleEvent> = said
                .iter()
                .enumerate()
                .map(|(n, text)| if n % 2 == 0 { SampleEvent::User(text) } else { SampleEvent::Assistant(text) })
                .collect();
            let text = summary(&spoken, max);
            prop_assert!(!text.is_empty());
            prop_assert!(text.chars().count() <= max);
            prop_assert!(!text.chars().any(|c| c.is_control() && c != '\n'));
            prop_assert_eq!(&text, &summary(&spoken, max));
        }
    }
}
