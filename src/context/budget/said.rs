//! What an item says: what the user says stays longest, and what nobody says goes first.

use crate::{
    draft::{Call, Content, Item, Outcome},
    heuristics::{Heuristics, Reply},
};
use treering_domain::{ContentPart, EventRef};

/// What the user said in the place of a call's result, and where.
pub(super) fn reply<'c>(
    call: &'c Call,
    heuristics: &dyn Heuristics,
) -> Option<(EventRef, Reply<'c>)> {
    let Outcome::Result(result) = &call.outcome else {
        return None;
    };
    let mut texts = result.parts.iter().filter_map(ContentPart::text);
    let text = texts.next().unwrap_or(&result.error_message);
    Some((result.event, heuristics.reply(text)?))
}

/// A command without words (`/debug`): what is to be done is said elsewhere, or with it.
pub(super) fn is_bare_command(item: &Item, heuristics: &dyn Heuristics) -> bool {
    let Content::Message(message) = &*item.content else {
        return false;
    };
    let texts: Vec<&str> = message.parts.iter().filter_map(ContentPart::text).collect();
    let said = heuristics.said_with(&texts);
    said.is_some_and(|said| said.starts_with('/') && !said.contains(char::is_whitespace))
}

/// What the user says with it is a task, an answer, a question: no notice of a harness.
pub(super) fn is_said(item: &Item, heuristics: &dyn Heuristics) -> bool {
    let Content::Message(message) = &*item.content else {
        return false;
    };
    let mut texts = message
        .parts
        .iter()
        .filter_map(ContentPart::text)
        .peekable();
    // A picture alone says something, too.
    texts.peek().is_none() || texts.any(|text| heuristics.is_said(text))
}
