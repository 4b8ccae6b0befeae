//! The note that stands where steps and messages went: how many, what they were, and how
//! to have them back.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use crate::{
    context::{
        draft::{Call, Content, Item, Message, Outcome, Section, Speaker},
        references::short_reference,
        steps,
        summary::{clip, is_said, one_line, without_harness},
        tokens::Tally,
    },
    domain::{ConversationId, EventRef, Revision},
};

/// Name in explanations.
pub(in crate::context) const BUDGET: &str = "budget";
/// How many calls are told one by one, and how much of what the user said: the last ones,
/// as many as have room. What was asked for outlasts what was done about it.
/// Which tools were called says least.
const TOLD: [(usize, usize, bool); 8] = [
    (12, 6, true),
    (8, 4, true),
    (4, 4, true),
    (2, 3, true),
    (0, 3, true),
    (0, 1, true),
    (0, 1, false),
    (0, 0, true),
];
/// Tools that are counted.
const TOOLS_TOLD: usize = 8;
/// Ranges of events that are told.
const RANGES_TOLD: usize = 4;
/// Characters of a call's arguments, and of what the user said.
const ARGUMENT_CHARS: usize = 70;
const WORD_CHARS: usize = 160;
/// Arguments that say most of a call.
const TELLING: [&str; 12] = [
    "command",
    "cmd",
    "file_path",
    "pattern",
    "query",
    "path",
    "notebook_path",
    "url",
    "description",
    "name",
    "id",
    "code",
];

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
    let told = TOLD
        .iter()
        .map(|(calls, words, tools)| gone.text(*calls, *words, *tools));
    let mut texts = told.chain([gone.least()]);
    texts.find_map(|text| {
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

    /// With the last of what went, so many calls of it, and so much of what was said; with
    /// the tools by name or without.
    fn text(&self, calls: usize, words: usize, tools: bool) -> String {
        let mut text = self.head();
        if tools && !self.calls.is_empty() {
            let who = match self.steps {
                1 => "It",
                _ => "They",
            };
            let _ = write!(text, " {who} called {}.", self.tools());
        }
        let lines = self.lines(calls, words);
        if !lines.is_empty() {
            text.push_str(" The last of it:");
        }
        for line in lines {
            let _ = write!(text, "\n{line}");
        }
        text.push(']');
        text
    }

    /// The last calls and what the user said last, oldest first.
    fn lines(&self, calls: usize, words: usize) -> Vec<String> {
        let of = self.last.conversation;
        let last = self
            .calls
            .iter()
            .rev()
            .filter(|call| call.request.conversation == of);
        let told = last.take(calls).map(|call| line(call));
        let said = self.words.iter().rev();
        let said = said.filter(|(at, _)| at.conversation == of).take(words);
        let said = said.map(|(at, text)| {
            let text: String = text.chars().take(WORD_CHARS * 4).collect();
            let text = clip(&one_line(&text), WORD_CHARS);
            (at.revision, format!("the user: {text}"))
        });
        let mut lines: Vec<_> = told.chain(said).collect();
        lines.sort_by_key(|(at, _)| *at);
        let named = |at| {
            let event = EventRef {
                conversation: of,
                revision: at,
            };
            short_reference(self.conversation, event)
        };
        let lines = lines.into_iter();
        lines
            .map(|(at, line)| format!("{} {line}", named(at)))
            .collect()
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
    let is_of_user = message.speaker == Speaker::User;
    is_of_user.then_some((*item.events.first()?, without_harness(text)))
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
    match text.contains('/') && !text.contains(' ') {
        true => clip_front(&text, ARGUMENT_CHARS),
        false => clip(&text, ARGUMENT_CHARS),
    }
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

    // Paths of a deep tree were told without the name of their file.
    #[test]
    fn the_end_of_a_path_stays() {
        let path = "/home/me/".repeat(9) + "strategy/manual_commit_test.go";
        let told = clip_front(&path, 30);
        assert_eq!(told, "…trategy/manual_commit_test.go");
        assert_eq!(clip_front("src/main.rs", 30), "src/main.rs");
    }
}
