//! The engine's summary of compacted events, written without a model: the task and later requests,
//! decisions, state of files, commands and failures, and next steps. It consists of quotations, in
//! sections.

use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
    sync::Arc,
};

use super::{
    analysis::analysis,
    facts::ids_and_dates,
    gather::{Quotation, SummaryMaterial, only_announces},
    text::{clip, counted, one_line, seen, whole_or_ends},
};
use crate::{knowledge::FileEffect, user_text};
use treering_context::window::WindowEvent;

/// First sentence of an extract, for the model that continues from it.
pub(super) const CONTINUATION: &str = "This continues an earlier conversation, whose messages are \
no longer shown. What came of it, in quotations from it:";
/// Maximum number of named files in each state.
const FILES_MAX: usize = 40;
/// Maximum length of a quoted later request, in characters, unless half of the room is more.
const ASK_CHARS: usize = 2_000;
/// Title of the ids and dates in requests that are not quoted.
const ALSO_NAMED: &str = "The requests also name:";
/// Maximum number of those ids and dates: the last ones.
const ALSO_NAMED_MAX: usize = 40;
/// Number of sections with requests, which come first.
const REQUEST_SECTIONS: usize = 3;
/// Minimum remaining room for which a section is extended, in characters.
const LEFT_CHARS_MIN: usize = 100;

/// Returns the engine's own summary of events that a compaction replaces, at most `max_chars`
/// characters. `earlier` is the summary of an earlier compaction, which is replaced as well.
/// Quotations are unchanged, even if they name tools; the extract itself names none.
#[must_use]
pub fn compaction_extract(
    events: &[Arc<WindowEvent>],
    earlier: Option<&str>,
    max_chars: usize,
) -> String {
    let mut gathered = SummaryMaterial::of(events);
    let previous = gathered.imported_summary.clone();
    let previous = previous.as_deref().or(earlier);
    gathered.goes_on = previous.is_some_and(|summary| !summary.trim().is_empty());
    let text = Extract::new(max_chars).told(&gathered, previous);
    clip(text.trim(), max_chars)
}

/// Whether the engine wrote a summary. Tool names in such a summary are quotations.
#[must_use]
pub fn is_extract(summary: &str) -> bool {
    summary.starts_with(CONTINUATION)
}

/// Writes a section within a number of characters.
type SectionWriter = fn(&SummaryMaterial, usize) -> String;

/// Sections: title, content, and the section's percentage of the remaining room. Unused room goes
/// to later sections. Room left at the end goes to the first sections that were cut.
const SECTIONS: [(&str, SectionWriter, usize); 11] = [
    ("The task, as it was first asked:", task, 25),
    (
        "Asked later, and what the user answered and refused, in order:",
        asked_later,
        35,
    ),
    (
        "Asked since, and what the user answered and refused, in order:",
        asked_since,
        50,
    ),
    ("What is next:", next, 25),
    (
        "Other actions and their results, only the most recent ones:",
        acts,
        30,
    ),
    ("Files:", files, 25),
    ("Errors that were not corrected:", failures, 30),
    (
        "The last commands that succeeded, with what they printed:",
        commands,
        30,
    ),
    ("Said and decided, in order:", answers, 60),
    ("Skills that were used:", skills, 60),
    ("Used again and again:", again, 100),
];

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

    fn told(mut self, gathered: &SummaryMaterial, previous: Option<&str>) -> String {
        // The opening of the replaced extract is not repeated.
        let previous = previous.map(|text| text.trim_start_matches(CONTINUATION).trim());
        if let Some(previous) = previous.filter(|text| !text.is_empty()) {
            let room = self.left * 6 / 10;
            self.section("Before that:", &whole_or_ends(&as_of_then(previous), room));
        }
        let names = names_in(&gathered.asked);
        // Prose elsewhere must not take the room of the ids that a request is about.
        let reserved = unquoted(&names, &[], self.left / 10);
        let reserved = taken(ALSO_NAMED, &reserved);
        self.left -= reserved;
        let mut bodies: Vec<String> = Vec::new();
        for (title, tell, share) in SECTIONS {
            let room = (self.left * share / 100).saturating_sub(around(title));
            bodies.push(tell(gathered, room));
            self.left = self
                .left
                .saturating_sub(taken(title, &bodies[bodies.len() - 1]));
        }
        let also_named = |bodies: &[String]| unquoted(&names, bodies, reserved);
        self.left += reserved - taken(ALSO_NAMED, &also_named(&bodies));
        for ((title, tell, _), body) in SECTIONS.into_iter().zip(&mut bodies) {
            if self.left < LEFT_CHARS_MIN {
                break;
            }
            let before = taken(title, body);
            let room = (self.left + before).saturating_sub(around(title));
            let more = tell(gathered, room);
            if taken(title, &more) > before {
                self.left = (self.left + before).saturating_sub(taken(title, &more));
                *body = more;
            }
        }
        let named = (ALSO_NAMED, also_named(&bodies));
        let mut sections: Vec<_> = SECTIONS
            .map(|(title, ..)| title)
            .into_iter()
            .zip(bodies)
            .collect();
        sections.insert(REQUEST_SECTIONS, named);
        for (title, body) in sections {
            if !body.trim().is_empty() {
                let _ = write!(self.text, "\n\n{title}\n{body}");
            }
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

/// Characters of a section besides its content.
fn around(title: &str) -> usize {
    title.chars().count() + 4
}

fn taken(title: &str, body: &str) -> usize {
    match body.trim().is_empty() {
        true => 0,
        false => title.chars().count() + 3 + body.chars().count(),
    }
}

/// Returns the last ids and dates that requests name, each once, in order.
fn names_in(asked: &[Quotation]) -> Vec<&str> {
    let mut seen = HashSet::new();
    let all = asked.iter().flat_map(|asked| ids_and_dates(&asked.text));
    let mut names: Vec<&str> = all.filter(|name| seen.insert(*name)).collect();
    names.drain(..names.len().saturating_sub(ALSO_NAMED_MAX));
    names
}

/// Returns the names that no section has, as far as they fit with their title.
fn unquoted(names: &[&str], bodies: &[String], room: usize) -> String {
    let mut named = String::new();
    for name in names {
        if bodies.iter().any(|body| body.contains(name)) {
            continue;
        }
        let separator = if named.is_empty() { "- " } else { ", " };
        let longer = format!("{named}{separator}{name}");
        if taken(ALSO_NAMED, &longer) > room {
            break;
        }
        named = longer;
    }
    named
}

/// Returns the first request, as far as it fits. Empty if there is an earlier summary, which
/// contains it.
fn task(gathered: &SummaryMaterial, room: usize) -> String {
    match gathered.asked.first().filter(|_| !gathered.goes_on) {
        Some(first) => quoted(&first.text, room),
        None => String::new(),
    }
}

/// Returns later requests and refusals: short ones whole, long ones cut so that all fit.
fn asked_later(gathered: &SummaryMaterial, room: usize) -> String {
    let later = gathered.asked.get(1..).filter(|_| !gathered.goes_on);
    let later = requests(later.unwrap_or_default());
    listed(&later, room, ASK_CHARS.max(room / 2))
}

/// Returns the requests without praise and assent, except the last one.
fn requests(asked: &[Quotation]) -> Vec<Quotation> {
    let last = asked.last().map(|last| last.at);
    let says = |said: &&Quotation| {
        !said.label.is_empty() || Some(said.at) == last || !user_text::is_filler(&said.text)
    };
    asked.iter().filter(says).cloned().collect()
}

/// As [`asked_later`], but for all requests after an earlier summary.
fn asked_since(gathered: &SummaryMaterial, room: usize) -> String {
    match gathered.goes_on {
        true => listed(&requests(&gathered.asked), room, ASK_CHARS.max(room / 2)),
        false => String::new(),
    }
}

/// Returns, in order, the last answer of each turn and earlier decisions. The final answer gets the
/// most room.
fn answers(gathered: &SummaryMaterial, room: usize) -> String {
    let Some((last, earlier)) = gathered.answers.split_last() else {
        return listed(&gathered.decisions, room, 400);
    };
    let last_told = quoted(
        &last.text,
        (room * 35 / 100).max(room.min(1_000)).min(4_000),
    );
    let left = room.saturating_sub(last_told.chars().count() + 8);
    let says = |said: &&Quotation| !only_announces(&said.text);
    let mut said: Vec<Quotation> = earlier.iter().filter(says).cloned().collect();
    said.extend(gathered.decisions.iter().cloned());
    said.sort_by_key(|said| said.at);
    let mut text = listed(&said, left, 1_200);
    if !text.is_empty() {
        text.push('\n');
    }
    let _ = write!(text, "- Last: {}", last_told.trim_start());
    text
}

/// Returns calls with effects, and their outcomes.
fn acts(gathered: &SummaryMaterial, room: usize) -> String {
    /// Minimum room for one outcome, in characters.
    const CAME_CHARS_MIN: usize = 240;
    let around: usize = gathered
        .acts
        .iter()
        .map(|(what, _)| what.chars().count() + 6)
        .sum();
    let lengths: Vec<usize> = gathered
        .acts
        .iter()
        .map(|(_, came)| came.chars().count())
        .collect();
    let most = level(&lengths, room.saturating_sub(around)).max(CAME_CHARS_MIN);
    let told = gathered.acts.iter();
    let lines: Vec<String> = told
        .map(|(what, came)| format!("- {what} → {}", whole_or_ends(came, most)))
        .collect();
    last_fitting(&lines, room)
}

fn skills(gathered: &SummaryMaterial, room: usize) -> String {
    match gathered.skills.join(", ") {
        skills if skills.is_empty() => skills,
        skills => clip(&format!("- {skills}"), room),
    }
}

fn next(gathered: &SummaryMaterial, room: usize) -> String {
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

/// Returns the state of files, last changed first.
fn files(gathered: &SummaryMaterial, room: usize) -> String {
    let mut lines = Vec::new();
    if let Some((path, touch, _)) = gathered.changed().next() {
        lines.push(format!("- last changed: {path} ({})", touch.name()));
    }
    for touch in [FileEffect::Created, FileEffect::Edited, FileEffect::Deleted] {
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

fn failures(gathered: &SummaryMaterial, room: usize) -> String {
    let lines: Vec<String> = gathered
        .failures
        .iter()
        .map(|(what, said)| format!("- {what}: {said}"))
        .collect();
    last_fitting(&lines, room)
}

fn commands(gathered: &SummaryMaterial, room: usize) -> String {
    let lines: Vec<String> = gathered
        .commands
        .iter()
        .map(|(line, said)| format!("- {line} → {said}"))
        .collect();
    last_fitting(&lines, room)
}

fn again(gathered: &SummaryMaterial, room: usize) -> String {
    let (numbers, ids): (Vec<_>, Vec<_>) = gathered.ids.iter().partition(|id| id.starts_with('#'));
    let numbers: Vec<String> = numbers.iter().map(|number| format!("“{number}”")).collect();
    let ids: Vec<&str> = ids.into_iter().map(String::as_str).collect();
    let mut lines = Vec::new();
    if !ids.is_empty() {
        lines.push(format!("- {}", ids.join(", ")));
    }
    if !numbers.is_empty() {
        // Elsewhere in the extract, `#10` is an event.
        let numbers = numbers.join(", ");
        lines.push(format!(
            "- {numbers} (numbers that the texts name, of no event)"
        ));
    }
    clip(&lines.join("\n"), room)
}

/// Returns an earlier summary without its analysis and its instructions, which no longer apply. Its
/// lists of open tasks are marked `(as of then)`, because the tasks may be done.
fn as_of_then(summary: &str) -> String {
    const ORDERS: [&str; 2] = [
        "without asking the user any further questions",
        "Continue with the last task that you were asked to work on",
    ];
    const OPEN: [&str; 7] = [
        "pending tasks",
        "next step",
        "next steps",
        "optional next step",
        "current work",
        "open tasks",
        "what is next",
    ];
    let is_order = |line: &&str| ORDERS.iter().any(|order| line.contains(order));
    let then = |line: &str| {
        let name = line.trim().trim_start_matches(|c: char| !c.is_alphabetic());
        let name = name.trim_end_matches(|c: char| !c.is_alphabetic());
        match OPEN.iter().any(|open| name.eq_ignore_ascii_case(open)) {
            true => format!("{} (as of then)", line.trim_end().trim_end_matches(':')),
            false => line.to_owned(),
        }
    };
    let mut summary = summary.to_owned();
    if let Some(analysis) = analysis(&summary) {
        summary.replace_range(analysis, "");
    }
    let lines = summary.lines().filter(|line| !is_order(line)).map(then);
    readable(&lines.collect::<Vec<_>>().join("\n"))
}

/// Returns the text without invisible characters.
fn readable(text: &str) -> String {
    let line = |line: &str| seen(line.trim_end());
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns a text with each line indented, so that a quotation cannot look like a heading. Code
/// keeps its indentation.
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

/// Returns the texts, one on each line, cut so that all fit.
fn listed(said: &[Quotation], room: usize, chars_max: usize) -> String {
    let lines: Vec<(String, String)> = said
        .iter()
        .map(|said| (one_line(&said.label), one_line(&said.text)))
        .filter(|(label, line)| !label.is_empty() || !line.is_empty())
        .collect();
    let lengths = lines
        .iter()
        .map(|(label, line)| label.chars().count() + line.chars().count());
    let lengths: Vec<usize> = lengths.collect();
    let most = level(&lengths, room.saturating_sub(lines.len() * 12)).min(chars_max);
    // If not even a few words of each text fit, lists only the last texts.
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
        let _ = match (label.as_str(), line.as_str()) {
            ("", line) => write!(text, "- {line}"),
            (label, "") => write!(text, "- {label}"),
            (label, line) => write!(text, "- {label}: “{line}”"),
        };
    }
    clip(&text, room)
}

/// Returns the length to which texts must be cut so that all fit. Long texts get the room that
/// short texts do not use.
pub(crate) fn level(lengths: &[usize], room: usize) -> usize {
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

/// Returns the first lines that fit, the last of them clipped.
fn fitting(lines: &[String], room: usize) -> String {
    clip(&lines.join("\n"), room)
}

/// Returns the last lines that fit.
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

/// Returns the texts that occurred more than once, in order.
pub(super) fn repeated(counts: &HashMap<String, u32>, order: &[String]) -> Vec<String> {
    let again = |text: &&String| counts.get(*text).is_some_and(|count| *count > 1);
    order.iter().filter(again).cloned().collect()
}

#[cfg(test)]
mod tests;
