//! The note that stands where steps and messages went: how many, what they were, and how
//! to have them back.

use std::{collections::BTreeMap, fmt::Write as _};

use crate::{
    context::{
        draft::{Call, Content, Item, Message, Outcome, Section, Speaker},
        steps,
        summary::{clip, one_line},
        tokens::Tally,
    },
    domain::{EventRef, Revision},
};

/// Name in explanations.
pub(in crate::context) const BUDGET: &str = "budget";
/// Calls that are told one by one, the last ones; of what the user said so many for
/// each of these; and tools that are counted.
const CALLS_TOLD: usize = 12;
const CALLS_PER_WORD: usize = 3;
const TOOLS_TOLD: usize = 8;
/// Characters of a call's arguments, and of what the user said.
const ARGUMENT_CHARS: usize = 70;
const WORD_CHARS: usize = 160;
/// Arguments that say most of a call.
const TELLING: [&str; 12] = [
    "command",
    "cmd",
    "file_path",
    "path",
    "notebook_path",
    "pattern",
    "query",
    "url",
    "description",
    "name",
    "id",
    "code",
];

/// A note about neighbours that went; none when not even the shortest has so few tokens.
pub(super) fn note(gone: &[&Item], tally: &Tally, tokens_max: u64) -> Option<Item> {
    let gone = Gone::of(gone)?;
    let mut told = CALLS_TOLD;
    loop {
        let item = item(gone.text(told));
        let tokens = tally.item(&item);
        if tokens <= tokens_max {
            return Some(Item {
                tokens,
                whole_tokens: tokens,
                ..item
            });
        }
        if told == 0 {
            break;
        }
        told /= 2;
    }
    let item = item(gone.least());
    let tokens = tally.item(&item);
    (tokens <= tokens_max).then(|| Item {
        tokens,
        whole_tokens: tokens,
        ..item
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
    steps: usize,
    messages: usize,
    first: EventRef,
    last: EventRef,
    /// Oldest first.
    calls: Vec<&'a Call>,
    /// What the user said, and where: oldest first.
    words: Vec<(EventRef, &'a str)>,
}

impl<'a> Gone<'a> {
    fn of(items: &[&'a Item]) -> Option<Self> {
        steps::note(items.len());
        let all_steps = items.iter().filter_map(|item| item.step());
        let with_calls = all_steps
            .clone()
            .filter(|step| step.calls().next().is_some());
        let steps = with_calls.count();
        let mut events = items.iter().flat_map(|item| &item.events);
        let first = *events.next()?;
        Some(Self {
            steps,
            messages: items.len() - steps,
            first,
            last: events.next_back().copied().unwrap_or(first),
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
        let what = what.join(" and ");
        format!("[{what} of this conversation {verb} left out here: the request has a budget.")
    }

    /// Without a word on what it was.
    fn least(&self) -> String {
        format!("{} {}]", self.head(), self.place())
    }

    fn place(&self) -> String {
        let of = self.last.conversation;
        match self.first.conversation == of && self.first.revision < self.last.revision {
            true => format!(
                "Stored as treering:{of}/{} to /{}.",
                self.first.revision, self.last.revision
            ),
            false => format!("Stored as treering:{of}/{}.", self.last.revision),
        }
    }

    /// With the last of what went, so many calls of it.
    fn text(&self, told: usize) -> String {
        let mut text = self.head();
        if !self.calls.is_empty() {
            let _ = write!(text, " They called {}.", self.tools());
        }
        let lines = self.lines(told);
        if lines.is_empty() {
            let _ = write!(text, " {}]", self.place());
            return text;
        }
        let of = self.last.conversation;
        let _ = write!(
            text,
            " Each is stored: #NUMBER is treering:{of}/NUMBER. The last of them:"
        );
        for line in lines {
            let _ = write!(text, "\n{line}");
        }
        text.push(']');
        text
    }

    /// The last calls and what the user said last, oldest first.
    fn lines(&self, calls: usize) -> Vec<String> {
        let of = self.last.conversation;
        let last = self
            .calls
            .iter()
            .rev()
            .filter(|call| call.request.conversation == of);
        let told = last.take(calls).map(|call| line(call));
        let said = self
            .words
            .iter()
            .rev()
            .filter(|(at, _)| at.conversation == of);
        let said = said.take(calls.div_ceil(CALLS_PER_WORD)).map(|(at, text)| {
            let text: String = text.chars().take(WORD_CHARS * 4).collect();
            let text = clip(&one_line(&text), WORD_CHARS);
            (at.revision, format!("the user: {text}"))
        });
        let mut lines: Vec<_> = told.chain(said).collect();
        lines.sort_by_key(|(at, _)| *at);
        let lines = lines.into_iter().map(|(at, line)| format!("#{at} {line}"));
        lines.collect()
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

/// What a message of the user says first.
fn word(item: &Item) -> Option<(EventRef, &str)> {
    let Content::Message(message) = &*item.content else {
        return None;
    };
    let text = message.parts.iter().find_map(|part| part.text())?;
    let is_said = message.speaker == Speaker::User && !text.trim().is_empty();
    is_said.then_some((*item.events.first()?, text))
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

    // Paths of a deep tree were told without the name of their file.
    #[test]
    fn the_end_of_a_path_stays() {
        let path = "/home/me/".repeat(9) + "strategy/manual_commit_test.go";
        let told = clip_front(&path, 30);
        assert_eq!(told, "…trategy/manual_commit_test.go");
        assert_eq!(clip_front("src/main.rs", 30), "src/main.rs");
    }
}
