//! Notes that quote the dropped content of a request: messages of the user, answers and calls.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    ops::Range,
};

use crate::{
    summary::{TaskList, ended, paths, reports_outcome, said_of, shows_a_file},
    user_text::{self, without_reminders},
};
use treering_context::{
    draft::{Block, Call, Content, Item, Outcome},
    heuristics::{Gap, NoteWriter, Reply},
    references::short_reference,
    steps,
    text::{clip, counted, one_line, whole_or_ends},
};
use treering_domain::{ContentPart, ConversationId, EventRef, Revision};

const TOOLS_LISTED_MAX: usize = 8;
/// Maximum lengths of an answer, and of a call that the user commented on.
const ANSWER_CHARS: usize = 200;
const REPLIED_CHARS: usize = 80;
/// Minimum length of a quoted text beside a call. A shorter text (`I read it.`) adds nothing.
const THOUGHT_BYTES_LEAST: usize = 60;

/// Limits for the contents of a note.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NoteLimits {
    /// Number of user messages, and the characters of each.
    words: usize,
    word_chars: usize,
    /// Number of very short user messages.
    short_words: usize,
    /// Whether open tasks are listed.
    tasks: bool,
    /// Whether tool names are listed with counts.
    tools: bool,
    /// Number of answers that ended turns, and of texts of the model beside calls.
    answers: usize,
    thoughts: usize,
    /// Number of calls, and the characters of each call and of its outcome.
    calls: usize,
    call_chars: usize,
    ended_chars: usize,
}

/// Characters of a user message and of a call. A note has longer ones if there is room.
const WORD_CHARS: usize = 160;
const CALL_CHARS: usize = 70;

/// A setter and the amounts to try, largest first. The first amount that fits is used.
type LimitStep = (fn(&mut NoteLimits, usize), &'static [usize]);

/// The contents of a note, in the order in which they get room. The newest of each kind are shown.
/// User messages get room before the work that was done for them. Tool names are listed only if the
/// first step fits.
const MORE: [LimitStep; 11] = [
    // User messages, together with one answer and the last calls.
    (
        |told, n| {
            (told.words, told.word_chars) = (n, WORD_CHARS);
            (told.answers, told.calls, told.call_chars) = (1, 2, CALL_CHARS);
            told.tools = true;
        },
        &[60, 40, 30, 20, 14, 10, 7, 5, 3, 2, 1],
    ),
    (
        |told, n| {
            (told.words, told.word_chars) = (told.words.max(n), WORD_CHARS);
        },
        &[5, 3, 2, 1],
    ),
    // Includes as many messages as possible before any of them gets more characters.
    (
        |told, n| told.words = told.words.max(n),
        &[50, 36, 26, 22, 18, 16, 13, 12, 11, 9, 8, 6, 4],
    ),
    (|told, _| told.tasks = true, &[1]),
    (
        |told, n| told.word_chars = n,
        &[4_000, 1_500, 800, 500, 320, 240],
    ),
    (|told, n| told.answers = n, &[24, 16, 10, 6, 3]),
    // Calls with their arguments, because a tool's name alone says nothing.
    (
        |told, n| {
            (told.calls, told.call_chars) = (told.calls.max(n), told.call_chars.max(CALL_CHARS));
        },
        &[12, 8, 5, 3, 1],
    ),
    (
        |told, n| (told.call_chars, told.ended_chars) = (n, n / 2),
        &[240, 140],
    ),
    (|told, n| told.thoughts = n, &[12, 8, 5, 3]),
    (|told, n| told.calls = told.calls.max(n), &[24, 16]),
    (|told, n| told.short_words = n, &[60, 20, 5]),
];

/// Shorter answers are used only if there are too few longer ones.
const ANSWER_CHARS_LEAST: usize = 16;

/// Writes the notes of a request.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    tasks: TaskList,
    /// Number of items whose calls are in `tasks`.
    items: usize,
}

impl NoteWriter for Notes {
    fn write(&mut self, gap: &Gap<'_>, fits: &dyn Fn(&str) -> bool) -> Option<String> {
        // Open tasks as of this gap, so that later calls do not change a note that was sent.
        let tasks = self.tasks_behind(gap.items, gap.range.clone());
        let gone = DroppedContent::of(gap)?;
        let mut told = NoteLimits::default();
        let mut note = None;
        for (more, amounts) in MORE {
            let found = amounts.iter().find_map(|amount| {
                let mut with = told;
                more(&mut with, *amount);
                if with == told {
                    return None;
                }
                let text = gone.text(with, tasks.as_deref());
                fits(&text).then_some((with, text))
            });
            if let Some((with, longer)) = found {
                (told, note) = (with, Some(longer));
            }
        }
        note
    }
}

impl Notes {
    /// Returns the tasks that are open after the dropped items `gone`; `None` if no dropped call is
    /// about tasks. Must be called with items in order.
    fn tasks_behind(&mut self, items: &[Item], gone: Range<usize>) -> Option<String> {
        for item in items.get(self.items..gone.start).unwrap_or_default() {
            self.note(item);
        }
        self.items = gone.end;
        let notes = items[gone].iter().filter(|item| self.note(item));
        if notes.count() == 0 || self.tasks.count() == 0 {
            return None;
        }
        let open = self.tasks.open();
        Some(match open.is_empty() {
            true => "All tasks of the list were done then.".to_owned(),
            false => {
                let (count, open) = (self.tasks.count(), open.join("; "));
                format!("To do then, of {count} tasks: {open}.")
            }
        })
    }

    fn note(&mut self, item: &Item) -> bool {
        let Some(step) = item.step() else {
            return false;
        };
        let mut is_about = false;
        for call in step.calls() {
            let Outcome::Result(result) = &call.outcome else {
                continue;
            };
            let mut texts = result.parts.iter().filter_map(ContentPart::text);
            let returned = texts.next().unwrap_or_default();
            is_about |= self.tasks.note(
                &call.tool,
                call.arguments.as_str(),
                returned,
                result.success,
            );
        }
        is_about
    }
}

/// Returns the user's comment that takes the place of a call's result, and its event.
fn reply(call: &Call) -> Option<(EventRef, Reply<'_>)> {
    let Outcome::Result(result) = &call.outcome else {
        return None;
    };
    let mut texts = result.parts.iter().filter_map(ContentPart::text);
    let text = texts.next().unwrap_or(&result.error_message);
    Some((result.event, user_text::reply(text)?))
}

/// The dropped items.
struct DroppedContent<'a> {
    /// The conversation of the request.
    conversation: ConversationId,
    steps: usize,
    /// The beginning of the note.
    head: &'a str,
    last: EventRef,
    /// Calls, oldest first.
    calls: Vec<&'a Call>,
    /// Messages of the user, oldest first.
    words: Vec<UserQuote>,
    /// The model's last text without calls in each turn.
    answers: Vec<(EventRef, &'a str)>,
    /// Texts of the model beside calls.
    thoughts: Vec<(EventRef, &'a str)>,
    /// The directory to which paths in calls are shown relative, if there is one.
    below: Option<String>,
}

impl<'a> DroppedContent<'a> {
    fn of(gap: &Gap<'a>) -> Option<Self> {
        let items = gap.gone;
        steps::note(items.len());
        let last = *items.iter().flat_map(|item| &item.events).next_back()?;
        let steps = items.iter().filter_map(|item| item.step());
        let calls: Vec<&Call> = steps.flat_map(|step| step.calls()).collect();
        Some(Self {
            conversation: gap.conversation,
            steps: gap.steps,
            head: gap.head,
            last,
            below: shared_directory(&calls),
            calls,
            words: items.iter().flat_map(|item| words_of(item)).collect(),
            answers: answers(items),
            thoughts: thoughts(items),
        })
    }

    /// Returns the note with the newest contents.
    fn text(&self, told: NoteLimits, tasks: Option<&str>) -> String {
        let mut text = self.head.to_owned();
        if told.tools && !self.calls.is_empty() {
            let who = match self.steps {
                1 => "It",
                _ => "They",
            };
            let _ = write!(text, " {who} called {}.", self.tools());
        }
        if let Some(tasks) = tasks.filter(|_| told.tasks) {
            let _ = write!(text, " {tasks}");
        }
        let (lines, is_all) = self.lines(told);
        if let Some(below) = self.below.as_deref()
            && told.calls > 0
        {
            let _ = write!(text, " Paths are from {below}.");
        }
        match (lines.is_empty(), is_all) {
            (true, _) => {}
            (false, true) => text.push_str(" In short:"),
            (false, false) => text.push_str(" The last of it:"),
        }
        for line in lines {
            let _ = write!(text, "\n{line}");
        }
        text.push(']');
        text
    }

    /// Returns the last calls, messages of the user and answers, oldest first, and whether these
    /// are all.
    fn lines(&self, told: NoteLimits) -> (Vec<String>, bool) {
        let of = self.last.conversation;
        let of_here = |at: &EventRef| at.conversation == of;
        let calls = self.calls.iter().rev();
        let calls = calls.filter(|call| of_here(&call.request) && reply(call).is_none());
        let line = |call: &Call| line(call, told, self.below.as_deref());
        let (calls, grouped) = grouped(calls, told.calls, line);
        let replies = self.calls.iter().filter(|call| reply(call).is_some());
        let grouped = grouped + replies.count();
        let words = self.words.iter().filter(|word| of_here(&word.at));
        let words = last_words(words, told.words, told.short_words);
        let is_all = (grouped, words.len()) == (self.calls.len(), self.words.len())
            && told.answers >= self.answers.len()
            && told.thoughts >= self.thoughts.len();
        let words = words.into_iter().map(|word| {
            let line = match with_ends(&word.text, told.word_chars) {
                text if text.is_empty() => word.before.clone(),
                text => format!("{}: {text}", word.before),
            };
            (word.at.revision, line)
        });
        let said = |said: &[(EventRef, &str)], most: usize, before: &'static str| {
            let said = said.iter().filter(|(at, _)| of_here(at));
            let said = last_said(said, most, |(_, text)| text);
            let said = said.map(|(at, text)| {
                let text = quoted(text, ANSWER_CHARS);
                (at.revision, format!("{before}: {text}"))
            });
            said.collect::<Vec<_>>()
        };
        let answers = said(&self.answers, told.answers, "the answer");
        let thoughts = said(&self.thoughts, told.thoughts, "the model");
        let lines = calls.into_iter().chain(words);
        let mut lines: Vec<_> = lines.chain(answers).chain(thoughts).collect();
        lines.sort_by_key(|(at, _)| *at);
        let named = |at| {
            let event = EventRef {
                conversation: of,
                revision: at,
            };
            short_reference(self.conversation, event)
        };
        let lines = lines.into_iter();
        let lines = lines.map(|(at, line)| format!("{} {line}", named(at)));
        (lines.collect(), is_all)
    }

    /// Returns the tools with counts, most used first.
    fn tools(&self) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for call in &self.calls {
            *counts.entry(&call.tool).or_default() += 1;
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let more = counts.len().saturating_sub(TOOLS_LISTED_MAX);
        let told = counts.iter().take(TOOLS_LISTED_MAX).map(|(tool, count)| {
            let tool = clip(&one_line(tool), 40);
            match count {
                1 => tool,
                _ => format!("{tool} ({count})"),
            }
        });
        let mut told = told.collect::<Vec<_>>().join(", ");
        if more > 0 {
            let _ = write!(told, " and {more} other tools");
        }
        told
    }
}

/// A message of the user.
struct UserQuote {
    at: EventRef,
    /// Who wrote it, and about which call.
    before: String,
    text: String,
}

/// Returns the messages of the user in an item: the message itself, or comments on calls.
fn words_of(item: &Item) -> Vec<UserQuote> {
    if let Some(step) = item.step() {
        let replies = step.calls().filter_map(|call| {
            let (at, reply) = reply(call)?;
            let said = said_of(call.arguments.as_str(), REPLIED_CHARS, None);
            let call = format!("{} {said}", one_line(&call.tool));
            let told = reply.told(call.trim_end()).into_iter();
            let told = told.map(move |(to, text)| UserQuote {
                at,
                before: format!("the user {to}"),
                text: text.to_owned(),
            });
            Some(told.collect::<Vec<_>>())
        });
        return replies.flatten().collect();
    }
    let Content::Message(message) = &*item.content else {
        return Vec::new();
    };
    let said = user_text::of_texts(message.parts.iter().filter_map(|part| part.text()));
    let (Some(text), Some(at), true) = (said, item.events.first(), item.is_of_user()) else {
        return Vec::new();
    };
    vec![UserQuote {
        at: *at,
        before: "the user".to_owned(),
        text,
    }]
}

/// Returns the newest messages of the user. Messages that say little (`wow`, `go on`) are used only
/// if there is room left or if there are no others.
fn last_words<'w>(
    said: impl DoubleEndedIterator<Item = &'w UserQuote>,
    most: usize,
    most_short: usize,
) -> Vec<&'w UserQuote> {
    let (short, long): (Vec<_>, Vec<_>) = said
        .rev()
        .partition(|word| user_text::is_filler(&word.text));
    let most_short = match long.is_empty() {
        true => most.max(most_short),
        false if long.len() > most => 0,
        false => most_short,
    };
    let long = long.into_iter().take(most);
    long.chain(short.into_iter().take(most_short)).collect()
}

fn is_long(text: &str) -> bool {
    text.chars().nth(ANSWER_CHARS_LEAST).is_some()
}

/// Returns the newest `most` texts. Short texts are used only if there are too few long ones.
fn last_said<'w, W: 'w>(
    said: impl DoubleEndedIterator<Item = &'w W>,
    most: usize,
    text: impl Fn(&W) -> &str,
) -> impl Iterator<Item = &'w W> {
    let (long, short): (Vec<_>, Vec<_>) = said.rev().partition(|said| is_long(text(said)));
    long.into_iter().chain(short).take(most)
}

/// Returns the texts of the model beside its calls, if they are long enough to matter.
fn thoughts<'a>(items: &[&'a Item]) -> Vec<(EventRef, &'a str)> {
    let on_the_way = items.iter().filter(|item| !item.is_final());
    let said = on_the_way.filter_map(|item| {
        let parts = item.step()?.blocks.iter().filter_map(|block| match block {
            Block::Part(part) => part.text(),
            Block::Call(_) => None,
        });
        let mut long = parts.filter(|text| text.trim().len() > THOUGHT_BYTES_LEAST);
        Some((*item.events.first()?, long.next()?))
    });
    said.collect()
}

/// Returns the directory that saves most if paths are shown relative to it. None if it saves
/// little.
fn shared_directory(calls: &[&Call]) -> Option<String> {
    const LOOKED_AT: usize = 200;
    const SAVES_BYTES_LEAST: usize = 60;
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for call in calls.iter().rev().take(LOOKED_AT) {
        for path in paths(call.arguments.as_str()) {
            let ends = path
                .match_indices('/')
                .map(|(at, _)| at)
                .filter(|at| *at > 1);
            for end in ends {
                *counts.entry(path[..end].to_owned()).or_default() += 1;
            }
        }
    }
    let saves = |(directory, count): &(String, usize)| directory.len() * count.saturating_sub(1);
    let best = counts.into_iter().max_by_key(saves);
    best.filter(|best| saves(best) >= SAVES_BYTES_LEAST)
        .map(|(directory, _)| directory)
}

/// Returns the beginning of a text as one line.
fn quoted(text: &str, max_chars: usize) -> String {
    let text: String = text.chars().take(max_chars * 4).collect();
    clip(&one_line(&text), max_chars)
}

/// As [`quoted`], but keeps both ends of a long text, because users who paste a log ask their
/// question after it.
fn with_ends(text: &str, max_chars: usize) -> String {
    whole_or_ends(&one_line(text), max_chars)
}

/// Returns the answers that ended turns: in each turn, the last text of the model without calls.
fn answers<'a>(items: &[&'a Item]) -> Vec<(EventRef, &'a str)> {
    let mut answers: Vec<(u32, EventRef, &str)> = Vec::new();
    for item in items.iter().filter(|item| item.is_final()) {
        let said = item.step().and_then(|step| {
            let texts = step.blocks.iter().rev().filter_map(|block| match block {
                Block::Part(part) => part.text(),
                Block::Call(_) => None,
            });
            texts.into_iter().find(|text| !text.trim().is_empty())
        });
        let (Some(text), Some(at)) = (said, item.events.first()) else {
            continue;
        };
        match answers.last_mut() {
            Some(last) if last.0 == item.turn => *last = (item.turn, *at, text),
            _ => answers.push((item.turn, *at, text)),
        }
    }
    answers
        .into_iter()
        .map(|(_, at, text)| (at, text))
        .collect()
}

/// Returns at most `calls_max` lines of calls, newest first. Calls with the same line are grouped
/// at the newest one, and the line says whether their arguments were equal. Also returns the number
/// of calls in these lines.
fn grouped<'a>(
    last_first: impl Iterator<Item = &'a &'a Call>,
    calls_max: usize,
    line: impl Fn(&Call) -> (Revision, String),
) -> (Vec<(Revision, String)>, usize) {
    let mut groups: Vec<(Revision, String, Vec<&str>)> = Vec::new();
    for call in last_first.take(calls_max * 4) {
        let ((at, line), passed) = (line(call), call.arguments.as_str());
        match groups.iter().position(|group| group.1 == line) {
            Some(known) => groups[known].2.push(passed),
            None if groups.len() < calls_max => groups.push((at, line, vec![passed])),
            None => break,
        }
    }
    let calls = groups.iter().map(|(_, _, passed)| passed.len()).sum();
    let told = groups.into_iter().map(|(at, line, passed)| {
        let different: BTreeSet<&str> = passed.iter().copied().collect();
        let count = passed.len();
        match (count, different.len()) {
            (1, _) => (at, line),
            (_, 1) => (at, format!("{line} ({count} times)")),
            (_, different) if different == count => (at, format!("{line} ({count} different)")),
            (_, different) => (at, format!("{line} ({count} times, {different} different)")),
        }
    });
    (told.collect(), calls)
}

/// Returns a call with its purpose, and its outcome if that adds information.
fn line(call: &Call, told: NoteLimits, below: Option<&str>) -> (Revision, String) {
    let (at, ended): (Revision, &str) = match &call.outcome {
        Outcome::Result(result) if result.success => (result.event.revision, ""),
        Outcome::Result(result) => (result.event.revision, " (failed)"),
        Outcome::Snapshot(snapshot) if snapshot.success => (snapshot.event.revision, ""),
        Outcome::Snapshot(snapshot) => (snapshot.event.revision, " (failed)"),
        Outcome::Missing { .. } => (call.request.revision, " (no result)"),
    };
    let tool = clip(&one_line(&call.tool), 40);
    let said = said_of(call.arguments.as_str(), told.call_chars, below);
    let line = format!("{tool} {said}{ended}");
    match came(call, told.ended_chars) {
        came if came.is_empty() => (at, line),
        came => (at, format!("{line} → {came}")),
    }
}

/// Returns the shortened outcome of a call. Empty for successful reads and writes, whose line says
/// enough.
fn came(call: &Call, chars_max: usize) -> String {
    let Outcome::Result(result) = &call.outcome else {
        return String::new();
    };
    if chars_max == 0 || result.success && !reports_outcome(&call.tool) {
        return String::new();
    }
    let mut texts = result.parts.iter().filter_map(|part| part.text());
    let text = texts.next().unwrap_or(&result.error_message);
    let text = without_reminders(text);
    // The contents of a file are not the outcome of a command.
    if result.success && shows_a_file(call.arguments.as_str()) {
        return counted(text.lines().count(), "line");
    }
    match ended(text, chars_max) {
        told if told.is_empty() => clip(&one_line(&result.error_message), chars_max),
        told => told,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Repeated calls must share a line. In one note, five of six lines were reads of the same file.
    #[test]
    fn calls_that_come_again_are_one_line() {
        let calls: Vec<Call> = ["a", "b", "a", "a"]
            .iter()
            .map(|path| called(path))
            .collect();
        let last_first: Vec<&Call> = calls.iter().rev().collect();
        let line = |call: &Call| {
            let told = NoteLimits {
                call_chars: CALL_CHARS,
                ..NoteLimits::default()
            };
            line(call, told, None)
        };
        let (told, calls) = grouped(last_first.iter(), 2, line);
        assert_eq!(calls, 4);
        let told: Vec<_> = told.iter().map(|(_, line)| line.as_str()).collect();
        assert_eq!(told, ["Grep a (no result) (3 times)", "Grep b (no result)"]);
    }

    // A line such as `#151 Bash (17 times)` must not stand for 17 different commands.
    #[test]
    fn calls_that_differ_are_not_told_as_one() {
        let long = "x".repeat(CALL_CHARS);
        let commands = ["1", "2", "2", "3"].map(|end| called(&format!("{long} {end}")));
        let last_first: Vec<&Call> = commands.iter().rev().collect();
        let line = |call: &Call| {
            let told = NoteLimits {
                call_chars: CALL_CHARS,
                ..NoteLimits::default()
            };
            line(call, told, None)
        };
        let (told, calls) = grouped(last_first.iter(), 2, line);
        assert_eq!((told.len(), calls), (1, 4));
        assert!(told[0].1.ends_with(" (4 times, 3 different)"), "{told:?}");
        let (told, _) = grouped(last_first[..2].iter(), 2, line);
        assert!(told[0].1.ends_with(" (2 different)"), "{told:?}");
    }

    fn called(path: &str) -> Call {
        let arguments = format!(r#"{{"path":"{path}"}}"#);
        Call {
            call_id: String::new(),
            wire_id: String::new(),
            tool: "Grep".to_owned(),
            arguments: treering_domain::JsonText::from_checked(arguments.into()),
            arguments_shortened: false,
            item_id: String::new(),
            request: EventRef {
                conversation: ConversationId(uuid::Uuid::from_u128(1)),
                revision: Revision(1),
            },
            outcome: Outcome::Missing {
                why: String::new(),
                event: None,
                open: false,
            },
        }
    }
}
