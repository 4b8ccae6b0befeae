//! The note that replaces dropped steps and messages: how many there are, and how to read them.
//! The [`NoteWriter`] of the heuristics adds quotations.

use std::{collections::BTreeSet, fmt::Write as _, ops::Range};

use crate::{
    draft::{Content, Draft, Item, Message, Section, Speaker},
    heuristics::{Gap, NoteWriter},
    references::short_reference,
    steps,
    tokens::Tally,
};
use treering_domain::{ConversationId, EventRef};

/// Name of the budget in explanations.
pub(crate) const BUDGET: &str = "budget";
/// Maximum bytes per token of any long text. A text above this bound is rejected without counting.
const TOKEN_BYTES_MAX: u64 = 12;
/// Maximum number of ranges of events that a note lists.
const RANGES_TOLD: usize = 4;

/// Writes the notes of a request.
pub(super) struct Notes<'a> {
    pub writer: Box<dyn NoteWriter + 'a>,
    pub conversation: ConversationId,
    pub tally: &'a Tally,
    /// Events that stay in the request.
    pub stays: BTreeSet<EventRef>,
}

impl Notes<'_> {
    /// Returns a note of at most `tokens_max` tokens about adjacent dropped items. None if even the
    /// shortest note is longer.
    pub fn note(
        &mut self,
        draft: &Draft,
        range: Range<usize>,
        gone: &[&Item],
        tokens_max: u64,
    ) -> Option<Item> {
        steps::note(gone.len());
        let (steps, head) = head(gone, self.conversation, &self.stays)?;
        let fitted = |text: &str| {
            if text.len() as u64 > tokens_max * TOKEN_BYTES_MAX {
                return None;
            }
            let item = item(text.to_owned());
            let tokens = self.tally.item(&item);
            (tokens <= tokens_max).then(|| Item {
                tokens,
                whole_tokens: tokens,
                ..item
            })
        };
        let least = fitted(&format!("{head}]"))?;
        let gap = Gap {
            conversation: self.conversation,
            items: &draft.items,
            range,
            gone,
            steps,
            head: &head,
        };
        let longer = self.writer.write(&gap, &|text| fitted(text).is_some());
        Some(longer.and_then(|text| fitted(&text)).unwrap_or(least))
    }
}

fn item(text: String) -> Item {
    let content = Content::Message(Message::text(Speaker::User, text));
    let mut item = Item::new(Section::Messages, BUDGET, content);
    item.reason = "replaces what the budget removed".into();
    item
}

/// Returns the number of steps with calls, and the beginning of the note.
fn head(
    gone: &[&Item],
    conversation: ConversationId,
    stays: &BTreeSet<EventRef>,
) -> Option<(usize, String)> {
    let steps = gone.iter().filter_map(|item| item.step());
    let steps = steps.filter(|step| step.calls().next().is_some()).count();
    let messages = gone.len() - steps;
    let events: Vec<EventRef> = gone.iter().flat_map(|item| &item.events).copied().collect();
    if events.is_empty() {
        return None;
    }
    let count = |count: usize, of: &str| match count {
        0 => None,
        1 => Some(format!("1 {of}")),
        _ => Some(format!("{count} {of}s")),
    };
    let what = [count(steps, "step"), count(messages, "message")];
    let what: Vec<_> = what.into_iter().flatten().collect();
    let verb = match steps + messages {
        1 => "is",
        _ => "are",
    };
    let (what, place) = (
        what.join(" and "),
        place(conversation, &ranges(events, stays)),
    );
    let head = format!("[{what} {verb} left out here ({place}): the request has a budget.");
    Some((steps, head))
}

fn place(conversation: ConversationId, ranges: &[(EventRef, EventRef)]) -> String {
    let more = ranges.len().saturating_sub(RANGES_TOLD);
    let told = ranges.iter().take(RANGES_TOLD).map(|(first, last)| {
        let named = |at| short_reference(conversation, at);
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

/// Groups events into ranges without events that stay. Events are sorted first: a message kept
/// through a compaction comes after the summary although it was recorded before it.
fn ranges(mut events: Vec<EventRef>, stays: &BTreeSet<EventRef>) -> Vec<(EventRef, EventRef)> {
    // The inherited events of a fork come first and have their own numbers.
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

#[cfg(test)]
mod tests {
    use super::*;
    use treering_domain::Revision;

    // A message kept through a compaction was recorded before the summary but comes after it. A
    // note must not say `#922 to #1446` if #888 was dropped too, or `#889 to #1386` if #922 stayed.
    #[test]
    fn note_ranges_exclude_kept_events() {
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
        // Each conversation has its own numbers.
        assert_eq!(
            told(&[at(2, 4), at(2, 8), one(6)], &[one(5)]),
            [(4, 8), (6, 6)]
        );
    }
}
