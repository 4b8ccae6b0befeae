//! Whose word an item is: what the user says stays longest, and what nobody says goes first.

use crate::{
    context::{
        draft::{Block, Content, Item, Section, Speaker, Step},
        summary,
    },
    domain::ContentPart,
};

/// Said by the user: a result that came late is told as a message, and is none.
pub(super) fn is_of_user(item: &Item) -> bool {
    let by_user = matches!(
        &*item.content,
        Content::Message(message)
            if message.speaker == Speaker::User && message.parts.are_recorded() && !message.is_told
    );
    by_user && item.section != Section::Compaction
}

/// Told as a message and nobody's word: it gives way like a result.
pub(super) fn is_told(item: &Item) -> bool {
    matches!(&*item.content, Content::Message(message) if message.is_told)
}

/// The model says something with it, and does not only call.
pub(super) fn is_answer(item: &Item) -> bool {
    let says = |block: &Block| match block {
        Block::Part(part) => part.text().is_some_and(|text| !text.trim().is_empty()),
        Block::Call(_) => false,
    };
    item.step().is_some_and(|step| step.blocks.iter().any(says))
}

/// The model says something with it and calls nothing: with that, most turns end.
pub(super) fn is_final(item: &Item) -> bool {
    let calls = |step: &Step| step.calls().next().is_some();
    is_answer(item) && !item.step().is_some_and(calls)
}

/// What the user says with it is a task, an answer, a question: no notice of a harness.
pub(super) fn is_said(item: &Item) -> bool {
    let Content::Message(message) = &*item.content else {
        return false;
    };
    let is_text = |part: &&ContentPart| part.text().is_some();
    let mut texts = message.parts.iter().filter(is_text).peekable();
    // A picture alone says something, too.
    texts.peek().is_none() || texts.any(|part| part.text().is_some_and(summary::is_said))
}
