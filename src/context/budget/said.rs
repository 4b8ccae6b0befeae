//! Who is the author of an item: messages of the user stay longest.

use crate::{
    draft::{Block, Call, Content, Item, Outcome, Section, Speaker, Step},
    summary::TaskList,
    words::{self, Reply},
};
use treering_domain::{ContentPart, EventRef};

/// Whether the user wrote the item. A late result told as a message does not count.
pub(super) fn is_of_user(item: &Item) -> bool {
    let by_user = matches!(
        &*item.content,
        Content::Message(message)
            if message.speaker == Speaker::User && message.parts.are_recorded() && !message.is_told
    );
    by_user && item.section != Section::Compaction
}

/// The user's comment in place of the result of a call, and its event.
pub(super) fn reply(call: &Call) -> Option<(EventRef, Reply<'_>)> {
    let Outcome::Result(result) = &call.outcome else {
        return None;
    };
    let mut texts = result.parts.iter().filter_map(ContentPart::text);
    let text = texts.next().unwrap_or(&result.error_message);
    Some((result.event, Reply::read(text)?))
}

/// Whether the model wrote text in this item, and not only calls.
pub(super) fn is_answer(item: &Item) -> bool {
    let says = |block: &Block| match block {
        Block::Part(part) => part.text().is_some_and(|text| !text.trim().is_empty()),
        Block::Call(_) => false,
    };
    item.step().is_some_and(|step| step.blocks.iter().any(says))
}

/// Whether the model wrote text and made no call. Most turns end that way.
pub(super) fn is_final(item: &Item) -> bool {
    let calls = |step: &Step| step.calls().next().is_some();
    is_answer(item) && !item.step().is_some_and(calls)
}

/// Whether the item is a command without text (`/debug`).
pub(super) fn is_bare_command(item: &Item) -> bool {
    let Content::Message(message) = &*item.content else {
        return false;
    };
    let said = words::of_texts(message.parts.iter().filter_map(ContentPart::text));
    said.is_some_and(|said| said.starts_with('/') && !said.contains(char::is_whitespace))
}

/// Whether the item has a message of the user, and not a notice of a harness.
pub(super) fn is_said(item: &Item) -> bool {
    let Content::Message(message) = &*item.content else {
        return false;
    };
    let is_text = |part: &&ContentPart| part.text().is_some();
    let mut texts = message.parts.iter().filter(is_text).peekable();
    // An image without text counts.
    texts.peek().is_none() || texts.any(|part| part.text().is_some_and(words::is_said))
}

/// The task list of the conversation, up to the items read so far.
#[derive(Debug, Default)]
pub(super) struct Listed {
    tasks: TaskList,
    items: usize,
}

impl Listed {
    /// The tasks that are open after the dropped items `gone`. Items must be passed in order. None
    /// if no dropped call is about tasks.
    pub fn told(&mut self, items: &[Item], gone: std::ops::Range<usize>) -> Option<String> {
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
