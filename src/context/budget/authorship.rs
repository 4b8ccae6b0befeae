//! Finds the user's words in an item. The budget keeps them longest. [`Heuristics`] distinguishes
//! them from notices of a harness.

use crate::{
    draft::{Call, Content, Item, Outcome},
    heuristics::{Heuristics, Reply},
};
use treering_domain::{ContentPart, EventRef};

/// Returns the comment that the user gave in place of a call's result, and its event.
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

/// Whether the item is a command without text (`/debug`).
pub(super) fn is_bare_command(item: &Item, heuristics: &dyn Heuristics) -> bool {
    let Content::Message(message) = &*item.content else {
        return false;
    };
    let texts: Vec<&str> = message.parts.iter().filter_map(ContentPart::text).collect();
    let said = heuristics.said_with(&texts);
    said.is_some_and(|said| said.starts_with('/') && !said.contains(char::is_whitespace))
}

/// Whether the item has a message of the user rather than a notice of a harness.
pub(super) fn is_said(item: &Item, heuristics: &dyn Heuristics) -> bool {
    let Content::Message(message) = &*item.content else {
        return false;
    };
    let mut texts = message
        .parts
        .iter()
        .filter_map(ContentPart::text)
        .peekable();
    // An image without text counts.
    texts.peek().is_none() || texts.any(|text| heuristics.is_said(text))
}
