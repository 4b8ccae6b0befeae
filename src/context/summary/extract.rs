//! What stands for a conversation that is no longer shown, without a model: the
//! task and what was asked later, as it was said; what was decided; the state of
//! files; what ran and what failed; what is next. In quotations, a section each.

use std::{
    collections::{BTreeSet, HashMap},
    fmt::Write as _,
    sync::Arc,
};

use super::{
    gather::{Gathered, Said},
    names::without_tool_names,
    text::{clip, counted, is_hidden, one_line, thousands},
};
use crate::context::{knowledge::Touch, window::WindowEvent};

/// How an extract begins: the model that reads it goes on from there.
pub(super) const CONTINUATION: &str = "This continues an earlier conversation, whose messages are \
no longer shown. What came of it, in quotations from it:";
/// Least room of an extract, in characters: about 1,500 tokens.
pub const COMPACTION_EXTRACT_CHARS_MIN: usize = 6_000;
/// Files of one state that are named.
const FILES_MAX: usize = 40;
/// Longest quotation of one later request, in characters.
const ASK_CHARS_MAX: usize = 2_000;
/// Room that a section gets of what is left when its turn comes, in hundredths.
/// What one does not need goes to those after it.
const SHARES: [usize; 8] = [25, 35, 25, 25, 30, 30, 60, 100];

/// The engine's own summary of events that a compaction is to stand for. `previous`
/// is the summary of an earlier compaction, which this one replaces. Without the
/// names of tools, at most `max_chars` characters.
#[must_use]
pub fn compaction_extract(
    events: &[Arc<WindowEvent>],
    previous: Option<&str>,
    tools: &BTreeSet<String>,
    max_chars: usize,
) -> String {
    let gathered = Gathered::of(events);
    let imported = gathered.imported_summary.as_deref();
    let text = Extract::new(max_chars).told(&gathered, imported.or(previous));
    without_tool_names(&clip(text.trim(), max_chars), tools)
}

/// Tells a section within so many characters.
type Tell = fn(&Gathered, usize) -> String;

struct Extract {
    text: String,
    left: usize,
}

impl Extract {
    fn new(max_chars: usize) -> Self {
        let opening = CONTINUATION.chars().count();
        Self {
            text: CONTINUATION.to_owned(),
            left: max_chars.saturating_sub(opening),
        }
    }

    fn told(mut self, gathered: &Gathered, previous: Option<&str>) -> String {
        // One that stands in for another is not introduced twice.
        let previous = previous.map(|text| text.trim_start_matches(CONTINUATION).trim());
        if let Some(previous) = previous.filter(|text| !text.is_empty()) {
            let room = self.left * 6 / 10;
            self.section("Before that:", &whole_or_ends(&readable(previous), room));
        }
        let sections: [(&str, Tell); 8] = [
            ("The task, as it was first asked:", task),
            ("Asked later, and what was refused, in order:", asked_later),
            ("What is next:", next),
            ("Files:", files),
            ("Errors that were not put right:", failures),
            (
                "Commands that worked, the last ones, with what they said:",
                commands,
            ),
            ("Said and decided:", answers),
            ("Used again and again:", again),
        ];
        for ((title, tell), share) in sections.into_iter().zip(SHARES) {
            let room = (self.left * share / 100).saturating_sub(title.chars().count() + 4);
            let body = tell(gathered, room);
            self.section(title, &body);
        }
        if self.text == CONTINUATION {
            self.text.push_str("\n\nNothing was said.");
        }
        self.text
    }

    fn section(&mut self, title: &str, body: &str) {
        if body.trim().is_empty() {
            return;
        }
        let section = format!("\n\n{title}\n{body}");
        self.left = self.left.saturating_sub(section.chars().count());
        self.text.push_str(&section);
    }
}

/// The first request in full, as far as there is room.
fn task(gathered: &Gathered, room: usize) -> String {
    match gathered.asked.first() {
        Some(first) => quoted(&first.text, room),
        None => String::new(),
    }
}

/// Every later request and refusal: short ones whole, long ones cut so that all
/// have a place.
fn asked_later(gathered: &Gathered, room: usize) -> String {
    let later = gathered.asked.get(1..).unwrap_or_default();
    listed(later, room, ASK_CHARS_MAX)
}

/// The last answer of each turn, the last of all with the most room; then what was
/// said on the way where it tells of a decision.
fn answers(gathered: &Gathered, room: usize) -> String {
    let Some((last, earlier)) = gathered.answers.split_last() else {
        return listed(&gathered.decisions, room, 400);
    };
    let last_told = quoted(&last.text, (room * 35 / 100).min(4_000));
    let left = room.saturating_sub(last_told.chars().count() + 8);
    let decisions = listed(&gathered.decisions, left * 4 / 10, 300);
    let left = left.saturating_sub(decisions.chars().count());
    let mut text = listed(earlier, left, 1_200);
    for part in [decisions, format!("- Last: {}", last_told.trim_start())] {
        if !part.is_empty() {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&part);
        }
    }
    text
}

fn next(gathered: &Gathered, room: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for task in &gathered.open_tasks {
        lines.push(format!("- {task}"));
    }
    if gathered.is_unanswered {
        lines.push("- the last request has no answer yet".to_owned());
    }
    if let Some(offer) = &gathered.offer {
        lines.push(format!("- offered: {offer}"));
    }
    fitting(&lines, room)
}

/// What became of files, the last changed first.
fn files(gathered: &Gathered, room: usize) -> String {
    let mut lines = Vec::new();
    if let Some((path, touch, _)) = gathered.changed().next() {
        lines.push(format!("- last changed: {path} ({})", touch.name()));
    }
    for touch in [Touch::Created, Touch::Edited, Touch::Deleted] {
        let of: Vec<&str> = gathered
            .changed()
            .filter(|(_, how, _)| *how == touch)
            .map(|(path, ..)| path)
            .collect();
        if !of.is_empty() {
            let more = of.len().saturating_sub(FILES_MAX);
            let named = of[..of.len() - more].join(", ");
            let rest = if more > 0 {
                format!(", and {more} more")
            } else {
                String::new()
            };
            lines.push(format!("- {}: {named}{rest}", touch.name()));
        }
    }
    let read: Vec<&str> = gathered.read_again().take(FILES_MAX / 2).collect();
    if !read.is_empty() {
        lines.push(format!("- read more than once: {}", read.join(", ")));
    }
    fitting(&lines, room)
}

fn failures(gathered: &Gathered, room: usize) -> String {
    let lines: Vec<String> = gathered
        .failures
        .iter()
        .map(|(what, said)| format!("- {what}: {said}"))
        .collect();
    last_fitting(&lines, room)
}

fn commands(gathered: &Gathered, room: usize) -> String {
    let lines: Vec<String> = gathered
        .commands
        .iter()
        .map(|(line, said)| format!("- {line} → {said}"))
        .collect();
    last_fitting(&lines, room)
}

fn again(gathered: &Gathered, room: usize) -> String {
    let ids = gathered.ids.join(", ");
    if ids.is_empty() {
        return ids;
    }
    clip(&format!("- {ids}"), room)
}

/// A text as it is, without what is not seen.
fn readable(text: &str) -> String {
    let line = |line: &str| -> String {
        let seen = line
            .trim_end()
            .chars()
            .filter(|c| !is_hidden(*c) || *c == '\t');
        seen.map(|c| if c == '\t' { ' ' } else { c }).collect()
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// A text of several lines, each indented: what is quoted cannot pass for a
/// heading. Code keeps its shape.
fn quoted(text: &str, room: usize) -> String {
    const INDENT_MAX: usize = 16;
    let mut lines = String::new();
    for whole in text.lines() {
        let line = one_line(whole);
        if line.is_empty() {
            continue;
        }
        if !lines.is_empty() {
            lines.push('\n');
        }
        let blanks = whole.chars().take_while(|c| c.is_whitespace());
        let indent: usize = blanks.map(|c| if c == '\t' { 4 } else { 1 }).sum();
        let indent = indent.min(INDENT_MAX) + 2;
        let _ = write!(lines, "{:indent$}{line}", "");
    }
    whole_or_ends(&lines, room)
}

/// Texts, one a line, with as much of each as lets all have a place.
fn listed(said: &[Said], room: usize, chars_max: usize) -> String {
    let lines: Vec<(&str, String)> = said
        .iter()
        .map(|said| (said.label, one_line(&said.text)))
        .filter(|(_, line)| !line.is_empty())
        .collect();
    let lengths: Vec<usize> = lines.iter().map(|(_, line)| line.chars().count()).collect();
    let most = level(&lengths, room.saturating_sub(lines.len() * 12)).min(chars_max);
    // So many that not even a few words of each fit: the last ones.
    const WORDS: usize = 60;
    let skipped = if most < WORDS {
        lines.len().saturating_sub((room / (WORDS + 12)).max(1))
    } else {
        0
    };
    let most = most.max(WORDS.min(room));
    let mut text = String::new();
    if skipped > 0 {
        let _ = write!(text, "({} left out)", counted(skipped, "earlier one"));
    }
    for (label, line) in &lines[skipped..] {
        if !text.is_empty() {
            text.push('\n');
        }
        let line = whole_or_ends(line, most);
        let _ = write!(text, "- {label}{line}");
    }
    clip(&text, room)
}

/// The length to which texts have to be cut so that together they fit: short ones
/// leave their room to the long ones.
fn level(lengths: &[usize], room: usize) -> usize {
    let mut sorted = lengths.to_vec();
    sorted.sort_unstable();
    let (mut left, mut count) = (room, sorted.len());
    for length in sorted {
        if length * count > left {
            return left / count;
        }
        left -= length;
        count -= 1;
    }
    usize::MAX
}

/// A text that is too long keeps its beginning and its end.
fn whole_or_ends(text: &str, room: usize) -> String {
    let chars = text.chars().count();
    if chars <= room {
        return text.to_owned();
    }
    if room < 200 {
        return clip(text, room);
    }
    let mark = format!(" … ({} characters) … ", thousands(chars - room));
    let room = room.saturating_sub(mark.chars().count());
    let head = room * 2 / 3;
    let start: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(chars - (room - head)).collect();
    format!("{}{mark}{}", start.trim_end(), end.trim_start())
}

/// The first lines that fit, the last of them clipped.
fn fitting(lines: &[String], room: usize) -> String {
    clip(&lines.join("\n"), room)
}

/// The last lines that fit.
fn last_fitting(lines: &[String], room: usize) -> String {
    let mut left = room;
    let kept = lines
        .iter()
        .rev()
        .take_while(|line| {
            let needs = line.chars().count() + 1;
            let fits = needs <= left;
            left = left.saturating_sub(needs);
            fits
        })
        .count();
    lines[lines.len() - kept..].join("\n")
}

/// How often each of some texts came up, for those that matter again.
pub(super) fn repeated(counts: &HashMap<String, u32>, order: &[String]) -> Vec<String> {
    let again = |text: &&String| counts.get(*text).is_some_and(|count| *count > 1);
    order.iter().filter(again).cloned().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::context::{
        samples::{Spoken, window},
        summary::names::tool_names_in,
    };

    fn tools() -> BTreeSet<String> {
        ["get_page", "search", "Bash", "Write"]
            .map(str::to_owned)
            .into()
    }

    fn extract(spoken: &[Spoken], max_chars: usize) -> String {
        compaction_extract(&window(spoken).1, None, &tools(), max_chars)
    }

    /// Whoever goes on from here needs the task as it was put, what changed, what
    /// ran, what failed, what is open: not a clipped line of each turn.
    #[test]
    fn what_a_successor_needs() {
        let text = extract(
            &[
                Spoken::User("Change the title of content/home.md, please.\nKeep the footer."),
                Spoken::Assistant("I look first. It fails because the page moved."),
                Spoken::Call("a", "Write", r#"{"file_path":"content/home.md"}"#),
                Spoken::Result("a", "File created successfully"),
                Spoken::Call("b", "Bash", r#"{"command":"npm test"}"#),
                Spoken::Result("b", "ok\n12 passing"),
                Spoken::Call("c", "Bash", r#"{"command":"npm run lint"}"#),
                Spoken::Failure("c", "error: trailing space in home.md:3"),
                Spoken::Assistant("The title is \"Welcome\" now.\n\n- [x] title\n- [ ] footer"),
                Spoken::User("Not \"Welcome\": \"Home\"."),
                Spoken::Call("d", "Bash", r#"{"command":"rm content/old.md"}"#),
                Spoken::Result("d", ""),
            ],
            4_000,
        );
        let expected = format!(
            "{CONTINUATION}\n\n\
             The task, as it was first asked:\n  \
             Change the title of content/home.md, please.\n  Keep the footer.\n\n\
             Asked later, and what was refused, in order:\n\
             - Not \"Welcome\": \"Home\".\n\n\
             What is next:\n\
             - footer\n\
             - the last request has no answer yet\n\n\
             Files:\n\
             - last changed: content/old.md (deleted)\n\
             - created: content/home.md\n\
             - deleted: content/old.md\n\n\
             Errors that were not put right:\n\
             - npm run lint: error: trailing space in home.md:3\n\n\
             Commands that worked, the last ones, with what they said:\n\
             - npm test → ok … 12 passing\n\
             - rm content/old.md → no output\n\n\
             Said and decided:\n\
             - It fails because the page moved.\n\
             - Last: The title is \"Welcome\" now.\n  - [x] title\n  - [ ] footer"
        );
        assert_eq!(text, expected);
    }

    /// The first request says what it is all about, the last ones where it stands:
    /// short ones stay whole beside long ones, and the oldest go first.
    #[test]
    fn requests_share_the_room() {
        let long = format!("{} the end of it", "word ".repeat(4_000));
        let mut spoken = vec![Spoken::User("Paint it blue"), Spoken::Assistant("Done.")];
        let asked: Vec<String> = (1..=30).map(|n| format!("request {n}")).collect();
        for asked in &asked {
            spoken.extend([Spoken::User(asked), Spoken::Assistant("done")]);
        }
        spoken.push(Spoken::User(&long));
        let text = extract(&spoken, 6_000);
        for n in [1, 15, 30] {
            assert!(text.contains(&format!("- request {n}\n")), "{n}: {text}");
        }
        assert!(text.contains("the end of it"), "{text}");
        assert!(text.chars().count() <= 6_000);
        let short = extract(&spoken, 1_000);
        assert!(short.contains("Paint it blue"), "{short}");
        assert!(short.chars().count() <= 1_000);
    }

    /// A failure that was put right is none, and one that was refused is a wish of
    /// the user.
    #[test]
    fn what_was_put_right_is_not_open() {
        let refused = "The user doesn't want to proceed with this tool use. To tell you how to \
                       proceed, the user said:\nuse the other file";
        let text = extract(
            &[
                Spoken::User("Go"),
                Spoken::Call("a", "Bash", r#"{"command":"cargo test"}"#),
                Spoken::Failure("a", "error: it is broken"),
                Spoken::Call("b", "Bash", r#"{"command":"cargo test 2>&1 | tail -3"}"#),
                Spoken::Result("b", "test result: ok. 3 passed"),
                Spoken::Call("c", "Write", r#"{"file_path":"a.rs"}"#),
                Spoken::Failure("c", refused),
                Spoken::Assistant("Done."),
            ],
            4_000,
        );
        assert!(!text.contains("it is broken"), "{text}");
        assert!(!text.contains("not put right"), "{text}");
        assert!(text.contains("- refused: use the other file"), "{text}");
        assert!(!text.contains("a.rs"), "{text}");
    }

    /// The second compaction replaces the first one's summary: what that one said
    /// must not be lost, nor introduced twice. One that an import brought is
    /// taken whole.
    #[test]
    fn an_earlier_summary_is_carried_on() {
        let first = extract(
            &[Spoken::User("Paint it"), Spoken::Assistant("Blue it is.")],
            2_000,
        );
        let (_, events) = window(&[Spoken::User("Darker"), Spoken::Assistant("Navy.")]);
        let second = compaction_extract(&events, Some(&first), &tools(), 2_000);
        assert_eq!(second.matches(CONTINUATION).count(), 1);
        for said in ["Paint it", "Blue it is.", "Darker", "Navy."] {
            assert!(second.contains(said), "{second}");
        }
        let imported = format!(
            "This session is being continued from a previous conversation that ran out of \
             context.\nSummary:\n{}",
            (1..60)
                .map(|n| format!("{n}. fact number {n}\n"))
                .collect::<String>()
        );
        let text = extract(&[Spoken::User(&imported), Spoken::User("Go on")], 6_000);
        assert!(text.contains(imported.trim()), "{text}");
        assert!(text.contains("as it was first asked:\n  Go on"), "{text}");
    }

    /// Nothing was said yet: still something that can be recorded.
    #[test]
    fn nothing_to_tell() {
        assert_eq!(
            extract(&[], 500),
            format!("{CONTINUATION}\n\nNothing was said.")
        );
    }

    proptest! {
        /// Whatever was said: bounded, the same each time, without tool names, and
        /// without characters that hide.
        #[test]
        fn bounded_and_without_tool_names(
            said in proptest::collection::vec(
                prop_oneof![any::<String>(), "(get_page|search|`search`|a/b.rs|X-1|[ .\n])*"],
                0..12,
            ),
            max in 1_usize..900,
        ) {
            let spoken: Vec<Spoken> = said
                .iter()
                .enumerate()
                .map(|(n, text)| match n % 4 {
                    0 => Spoken::User(text),
                    1 => Spoken::Call("c", "Bash", r#"{"command":"make x"}"#),
                    2 => Spoken::Result("c", text),
                    _ => Spoken::Assistant(text),
                })
                .collect();
            let text = extract(&spoken, max);
            prop_assert!(!text.is_empty());
            prop_assert!(text.chars().count() <= max);
            prop_assert_eq!(tool_names_in(&text, &tools()), Vec::<String>::new());
            prop_assert!(!text.chars().any(|c| c.is_control() && c != '\n'));
            prop_assert_eq!(&text, &extract(&spoken, max));
        }
    }
}
