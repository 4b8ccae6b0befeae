//! The note that stands where steps and messages went: how many, what they were, and how
//! to have them back.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use super::said::{is_final, is_of_user};
use crate::{
    context::{
        draft::{Block, Call, Content, Item, Message, Outcome, Section, Speaker},
        references::short_reference,
        steps,
        summary::{as_said, clip, is_said, one_line},
        tokens::Tally,
    },
    domain::{ConversationId, EventRef, Revision},
};

/// Name in explanations.
pub(in crate::context) const BUDGET: &str = "budget";
/// What is told one by one: the last ones, the most that has room. What was asked for
/// outlasts what was done about it. Which tools were called says least.
const TOLD: [Told; 18] = [
    Told::new(12, 60, 4_000, 24),
    Told::new(12, 60, 1_500, 20),
    Told::new(12, 50, 800, 16),
    Told::new(12, 40, 500, 12),
    Told::new(12, 30, 320, 10),
    Told::new(10, 24, 240, 8),
    Told::new(8, 20, 200, 6),
    Told::new(8, 16, 160, 5),
    Told::new(6, 13, 160, 4),
    Told::new(5, 10, 160, 3),
    Told::new(4, 8, 160, 2),
    Told::new(3, 7, 160, 1),
    Told::new(2, 6, 160, 1),
    Told::new(0, 5, 160, 0),
    Told::new(0, 3, 160, 0),
    Told::new(0, 1, 160, 0),
    Told {
        tools: false,
        ..Told::new(0, 1, 160, 0)
    },
    Told::new(0, 0, 0, 0),
];
/// No token has more bytes in a text of some length: what is longer is not counted.
const TOKEN_BYTES_MAX: u64 = 12;
/// Tools that are counted.
const TOOLS_TOLD: usize = 8;
/// Ranges of events that are told.
const RANGES_TOLD: usize = 4;
/// Characters of a call's arguments, and of an answer.
const ARGUMENT_CHARS: usize = 70;
const ANSWER_CHARS: usize = 200;
/// Arguments that say most of a call.
const TELLING: [&str; 14] = [
    "command",
    "cmd",
    "pattern",
    "regex",
    "query",
    "file_path",
    "path",
    "filename",
    "notebook_path",
    "url",
    "description",
    "name",
    "id",
    "code",
];

/// How much of each is told.
#[derive(Clone, Copy, Debug)]
struct Told {
    calls: usize,
    /// Requests of the user, and the characters of each.
    words: usize,
    word_chars: usize,
    /// Answers that ended turns.
    answers: usize,
    /// Tools by name.
    tools: bool,
}

/// What was said in fewer characters (`wow`, `go on`) has a place when nothing else needs it.
const WORD_CHARS_LEAST: usize = 16;

impl Told {
    const fn new(calls: usize, words: usize, word_chars: usize, answers: usize) -> Self {
        Self {
            calls,
            words,
            word_chars,
            answers,
            tools: true,
        }
    }
}

/// Of calls that look for something: what, and where.
const SOUGHT: [&str; 3] = ["pattern", "regex", "query"];
const PLACES: [&str; 4] = ["path", "glob", "file_path", "dir"];

/// A note about neighbours that went, of a request in which these events stay; none when
/// not even the shortest has so few tokens.
pub(super) fn note(
    gone: &[&Item],
    conversation: ConversationId,
    tally: &Tally,
    tokens_max: u64,
    stays: &BTreeSet<EventRef>,
) -> Option<Item> {
    let gone = Gone::of(gone, conversation, stays)?;
    let told = TOLD.iter().map(|told| gone.text(*told));
    let mut texts = told.chain([gone.least()]);
    texts.find_map(|text| {
        if text.len() as u64 > tokens_max * TOKEN_BYTES_MAX {
            return None;
        }
        let item = item(text);
        let tokens = tally.item(&item);
        (tokens <= tokens_max).then(|| Item {
            tokens,
            whole_tokens: tokens,
            ..item
        })
    })
}

fn item(text: String) -> Item {
    let content = Content::Message(Message::text(Speaker::User, text));
    let mut item = Item::new(Section::Messages, BUDGET, content);
    item.reason = "stands for what went for the budget".into();
    item
}

/// What went.
struct Gone<'a> {
    /// Of the request.
    conversation: ConversationId,
    steps: usize,
    messages: usize,
    /// From which event to which, as they were recorded; nothing in between stays.
    ranges: Vec<(EventRef, EventRef)>,
    last: EventRef,
    /// Oldest first.
    calls: Vec<&'a Call>,
    /// What the user said, and where: oldest first.
    words: Vec<(EventRef, Cow<'a, str>)>,
    /// What the model said with which it called nothing, the last of each turn.
    answers: Vec<(EventRef, &'a str)>,
}

impl<'a> Gone<'a> {
    fn of(
        items: &[&'a Item],
        conversation: ConversationId,
        stays: &BTreeSet<EventRef>,
    ) -> Option<Self> {
        steps::note(items.len());
        let all_steps = items.iter().filter_map(|item| item.step());
        let with_calls = all_steps
            .clone()
            .filter(|step| step.calls().next().is_some());
        let steps = with_calls.count();
        let events = || items.iter().flat_map(|item| &item.events);
        let last = *events().next_back()?;
        Some(Self {
            conversation,
            steps,
            messages: items.len() - steps,
            ranges: ranges(events().copied().collect(), stays),
            last,
            calls: all_steps.flat_map(|step| step.calls()).collect(),
            words: items.iter().filter_map(|item| word(item)).collect(),
            answers: answers(items),
        })
    }

    fn head(&self) -> String {
        let count = |count: usize, of: &str| match count {
            0 => None,
            1 => Some(format!("1 {of}")),
            _ => Some(format!("{count} {of}s")),
        };
        let what = [count(self.steps, "step"), count(self.messages, "message")];
        let what: Vec<_> = what.into_iter().flatten().collect();
        let verb = match self.steps + self.messages {
            1 => "is",
            _ => "are",
        };
        let (what, place) = (what.join(" and "), self.place());
        format!("[{what} {verb} left out here ({place}): the request has a budget.")
    }

    /// Without a word on what it was.
    fn least(&self) -> String {
        format!("{}]", self.head())
    }

    fn place(&self) -> String {
        let more = self.ranges.len().saturating_sub(RANGES_TOLD);
        let told = self.ranges.iter().take(RANGES_TOLD).map(|(first, last)| {
            let named = |at| short_reference(self.conversation, at);
            match first == last {
                true => named(*last),
                false => format!("{} to {}", named(*first), named(*last)),
            }
        });
        let mut told = told.collect::<Vec<_>>().join(", ");
        if more > 0 {
            let _ = write!(told, " and more");
        }
        told
    }

    /// With the last of what went.
    fn text(&self, told: Told) -> String {
        let mut text = self.head();
        if told.tools && !self.calls.is_empty() {
            let who = match self.steps {
                1 => "It",
                _ => "They",
            };
            let _ = write!(text, " {who} called {}.", self.tools());
        }
        let (lines, is_all) = self.lines(told);
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

    /// The last calls, what the user said last, and answers, oldest first; and whether that
    /// is all that there were.
    fn lines(&self, told: Told) -> (Vec<String>, bool) {
        let of = self.last.conversation;
        let of_here = |at: &EventRef| at.conversation == of;
        let calls = self.calls.iter().rev();
        let (calls, grouped) = grouped(calls.filter(|call| of_here(&call.request)), told.calls);
        let words = self.words.iter().map(|(at, text)| (*at, &**text));
        let said = last_said(words.filter(|(at, _)| of_here(at)), told.words);
        let said: Vec<_> = said.collect();
        let words = said.len();
        let said = said.into_iter().map(|(at, text)| {
            let text = quoted(text, told.word_chars);
            (at.revision, format!("the user: {text}"))
        });
        let answers = self.answers.iter().copied();
        let answers = last_said(answers.filter(|(at, _)| of_here(at)), told.answers);
        let answers: Vec<_> = answers.collect();
        let all = (self.calls.len(), self.words.len(), self.answers.len());
        let is_all = (grouped, words, answers.len()) == all;
        let answers = answers.into_iter().map(|(at, text)| {
            let text = quoted(text, ANSWER_CHARS);
            (at.revision, format!("the answer: {text}"))
        });
        let mut lines: Vec<_> = calls.into_iter().chain(said).chain(answers).collect();
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

    /// Tools by how often they were called.
    fn tools(&self) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for call in &self.calls {
            *counts.entry(&call.tool).or_default() += 1;
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let more = counts.len().saturating_sub(TOOLS_TOLD);
        let told = counts.iter().take(TOOLS_TOLD).map(|(tool, count)| {
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

/// Events as ranges: a message that was kept through a compaction stands behind its summary
/// and was recorded before, so the order of a request does not say what is between two.
fn ranges(mut events: Vec<EventRef>, stays: &BTreeSet<EventRef>) -> Vec<(EventRef, EventRef)> {
    // Of a fork, what was inherited comes first and has its own numbers.
    events.sort_by_key(|at| at.revision);
    let mut of: Vec<Vec<EventRef>> = Vec::new();
    for at in events {
        match of
            .iter_mut()
            .find(|of| of[0].conversation == at.conversation)
        {
            Some(of) => of.push(at),
            None => of.push(vec![at]),
        }
    }
    let mut ranges: Vec<(EventRef, EventRef)> = Vec::new();
    for at in of.into_iter().flatten() {
        match ranges.last_mut() {
            Some((_, last))
                if last.conversation == at.conversation
                    && stays.range(*last..at).next().is_none() =>
            {
                *last = at;
            }
            _ => ranges.push((at, at)),
        }
    }
    ranges
}

/// What a message of the user says first.
fn word(item: &Item) -> Option<(EventRef, Cow<'_, str>)> {
    let Content::Message(message) = &*item.content else {
        return None;
    };
    let mut texts = message.parts.iter().filter_map(|part| part.text());
    let text = texts.find(|text| is_said(text))?;
    is_of_user(item).then_some((*item.events.first()?, as_said(text)))
}

/// So many of what was said, the last of it; short words only where there is not as much else.
fn last_said<'a>(
    said: impl DoubleEndedIterator<Item = (EventRef, &'a str)>,
    most: usize,
) -> impl Iterator<Item = (EventRef, &'a str)> {
    let is_long = |said: &(EventRef, &str)| said.1.chars().nth(WORD_CHARS_LEAST).is_some();
    let (long, short): (Vec<_>, Vec<_>) = said.rev().partition(is_long);
    long.into_iter().chain(short).take(most)
}

/// A text in one line, of a bounded part of it.
fn quoted(text: &str, max_chars: usize) -> String {
    let text: String = text.chars().take(max_chars * 4).collect();
    clip(&one_line(&text), max_chars)
}

/// With what turns ended, and where: the last that the model said in each, if it called
/// nothing with it.
fn answers<'a>(items: &[&'a Item]) -> Vec<(EventRef, &'a str)> {
    let mut answers: Vec<(u32, EventRef, &str)> = Vec::new();
    for item in items.iter().filter(|item| is_final(item)) {
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

/// So many calls, the last first, in a line each; several of the same are one line, where the
/// last of them was. How many calls the lines tell.
fn grouped<'a>(
    last_first: impl Iterator<Item = &'a &'a Call>,
    calls_max: usize,
) -> (Vec<(Revision, String)>, usize) {
    let mut groups: Vec<(Revision, String, usize)> = Vec::new();
    for call in last_first.take(calls_max * 4) {
        let (at, line) = line(call);
        match groups.iter().position(|group| group.1 == line) {
            Some(known) => groups[known].2 += 1,
            None if groups.len() < calls_max => groups.push((at, line, 1)),
            None => break,
        }
    }
    let calls = groups.iter().map(|(_, _, count)| count).sum();
    let told = groups.into_iter().map(|(at, line, count)| match count {
        1 => (at, line),
        count => (at, format!("{line} ({count} times)")),
    });
    (told.collect(), calls)
}

fn line(call: &Call) -> (Revision, String) {
    let (at, ended): (Revision, &str) = match &call.outcome {
        Outcome::Result(result) if result.success => (result.event.revision, ""),
        Outcome::Result(result) => (result.event.revision, " (failed)"),
        Outcome::Snapshot(snapshot) if snapshot.success => (snapshot.event.revision, ""),
        Outcome::Snapshot(snapshot) => (snapshot.event.revision, " (failed)"),
        Outcome::Missing { .. } => (call.request.revision, " (no result)"),
    };
    let tool = clip(&one_line(&call.tool), 40);
    (at, format!("{tool} {}{ended}", argument(call)))
}

/// What says most of what was asked for, in one line.
fn argument(call: &Call) -> String {
    let arguments = call.arguments.as_str();
    let object: Option<serde_json::Map<String, serde_json::Value>> =
        serde_json::from_str(arguments).ok();
    let telling = object.as_ref().and_then(|object| {
        let named = TELLING.iter().find_map(|name| object.get(*name)?.as_str());
        named.or_else(|| object.values().find_map(|value| value.as_str()))
    });
    // A text of megabytes is not gone through for a line of it.
    let text: String = telling.unwrap_or(arguments).chars().take(400).collect();
    let text = one_line(&text);
    if let Some(all) = object.as_ref().and_then(values) {
        return all;
    }
    // What was looked for says half of it.
    let place = object.as_ref().and_then(|object| {
        let looked_for = SOUGHT.iter().find_map(|name| object.get(*name)?.as_str());
        let place = PLACES.iter().find_map(|name| object.get(*name)?.as_str());
        looked_for
            .and(place)
            .filter(|place| Some(*place) != telling)
    });
    if let Some(place) = place {
        let (text, place) = (
            clip(&text, ARGUMENT_CHARS),
            one_line(&clip_front(place, ARGUMENT_CHARS / 2)),
        );
        return format!("{text} in {place}");
    }
    match text.contains('/') && !text.contains(' ') {
        true => clip_front(&text, ARGUMENT_CHARS),
        false => clip(&text, ARGUMENT_CHARS),
    }
}

/// Where no argument has a name that tells of it: all that are short, as far as there is room.
fn values(object: &serde_json::Map<String, serde_json::Value>) -> Option<String> {
    use serde_json::Value;
    if TELLING
        .iter()
        .any(|name| object.get(*name).is_some_and(Value::is_string))
    {
        return None;
    }
    let short = object.values().filter_map(|value| match value {
        Value::String(text) if text.len() <= ARGUMENT_CHARS / 2 => {
            Some(one_line(text)).filter(|text| !text.trim().is_empty())
        }
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    });
    let mut told = String::new();
    for value in short {
        if told.chars().count() + value.chars().count() >= ARGUMENT_CHARS {
            break;
        }
        if !told.is_empty() {
            told.push(' ');
        }
        told.push_str(&value);
    }
    (!told.is_empty()).then_some(told)
}

/// The end of a path: there its file stands.
fn clip_front(path: &str, max_chars: usize) -> String {
    let over = path.chars().count().saturating_sub(max_chars);
    if over == 0 {
        return path.to_owned();
    }
    let rest: String = path.chars().skip(over + 1).collect();
    format!("…{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    // A message that was kept through a compaction was recorded before its summary and stands
    // behind it: `#922 to #1446` was said where #888 was gone, too, and `#889 to #1386` where
    // #922 stayed.
    #[test]
    fn ranges_hold_nothing_that_stays() {
        let at = |conversation: u128, revision| EventRef {
            conversation: ConversationId(uuid::Uuid::from_u128(conversation)),
            revision: Revision(revision),
        };
        let told = |gone: &[EventRef], stays: &[EventRef]| {
            let ranges = ranges(gone.to_vec(), &stays.iter().copied().collect());
            let ranges = ranges.iter().map(|(a, b)| (a.revision.0, b.revision.0));
            ranges.collect::<Vec<_>>()
        };
        let one = |revision| at(1, revision);
        assert_eq!(told(&[one(9), one(3), one(5)], &[one(12)]), [(3, 9)]);
        assert_eq!(told(&[one(9), one(3), one(5)], &[one(7)]), [(3, 5), (9, 9)]);
        // Numbers of another conversation are its own.
        assert_eq!(
            told(&[at(2, 4), at(2, 8), one(6)], &[one(5)]),
            [(4, 8), (6, 6)]
        );
    }

    // `Grep` was told by where it looked, and not by what for.
    #[test]
    fn a_search_is_told_with_what_it_looked_for() {
        let told = |arguments: &str| {
            argument(&Call {
                arguments: crate::domain::JsonText::from_checked(arguments.to_owned().into()),
                ..called("")
            })
        };
        let both = r#"{"path":"/repo/src","pattern":"fn parse","output_mode":"content"}"#;
        assert_eq!(told(both), "fn parse in /repo/src");
        assert_eq!(told(r#"{"file_path":"a.rs","pattern":"x"}"#), "x in a.rs");
        assert_eq!(told(r#"{"query":"rust json"}"#), "rust json");
        assert_eq!(told(r#"{"path":"/repo/src"}"#), "/repo/src");
    }

    // `search_direct_flight MCO` told neither where to nor when, and there was room.
    #[test]
    fn a_call_without_a_telling_name_is_told_with_all_that_is_short() {
        let told = |arguments: &str| {
            argument(&Call {
                arguments: crate::domain::JsonText::from_checked(arguments.to_owned().into()),
                ..called("")
            })
        };
        let flight = r#"{"origin":"MCO","destination":"BOS","date":"2024-05-21","seats":2}"#;
        assert_eq!(told(flight), "MCO BOS 2024-05-21 2");
        let long = format!(r#"{{"to":"ada","text":"{}"}}"#, "so ".repeat(50));
        assert_eq!(told(&long), "ada");
        assert_eq!(told(r#"{"all":true}"#), r#"{"all":true}"#);
        let alone = format!(r#"{{"text":"{}"}}"#, "so ".repeat(50));
        assert!(told(&alone).starts_with("so so"), "{}", told(&alone));
    }

    // Of six lines of a note five were the reading of one file.
    #[test]
    fn calls_that_come_again_are_one_line() {
        let calls: Vec<Call> = ["a", "b", "a", "a"]
            .iter()
            .map(|path| called(path))
            .collect();
        let last_first: Vec<&Call> = calls.iter().rev().collect();
        let (told, calls) = grouped(last_first.iter(), 2);
        assert_eq!(calls, 4);
        let told: Vec<_> = told.iter().map(|(_, line)| line.as_str()).collect();
        assert_eq!(told, ["Grep a (no result) (3 times)", "Grep b (no result)"]);
    }

    fn called(path: &str) -> Call {
        let arguments = format!(r#"{{"path":"{path}"}}"#);
        Call {
            call_id: String::new(),
            wire_id: String::new(),
            tool: "Grep".to_owned(),
            arguments: crate::domain::JsonText::from_checked(arguments.into()),
            arguments_shortened: false,
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

    // Paths of a deep tree were told without the name of their file.
    #[test]
    fn the_end_of_a_path_stays() {
        let path = "/home/me/".repeat(9) + "strategy/manual_commit_test.go";
        let told = clip_front(&path, 30);
        assert_eq!(told, "…trategy/manual_commit_test.go");
        assert_eq!(clip_front("src/main.rs", 30), "src/main.rs");
    }
}
