//! Long arguments of calls that have ended long ago: a file that was written is in the files,
//! and its text in the request only takes room.

use super::json;
use crate::{
    draft::{Block, Call, Content, Item, Outcome, Step},
    references::short_reference,
    shared::SharedContent,
};
use treering_domain::{ContentPart, ConversationId, JsonText};

/// Arguments that are cut keep so many bytes at least, and are cut where they are twice as
/// long as what they may have.
const LEAST_BYTES: usize = 480;
/// The same where a step has no place otherwise.
const PARED_BYTES: usize = 240;

/// Whether a step has arguments that can be cut.
pub(super) fn are_long(item: &Item) -> bool {
    item.step()
        .is_some_and(|step| !thinks(step) && step.calls().any(|call| is_long(call, LEAST_BYTES)))
}

/// The same step with long texts in its arguments cut, to about `bytes_max` bytes a call: the
/// same keys, and JSON. None where there is nothing to cut. A step whose reasoning may be
/// signed stays as its model wrote it.
pub(super) fn cut(
    item: &Item,
    conversation: ConversationId,
    bytes_max: usize,
) -> Option<SharedContent> {
    cut_above(item, conversation, bytes_max.max(LEAST_BYTES))
}

/// The same, shorter still.
pub(super) fn pare(
    item: &Item,
    conversation: ConversationId,
    bytes_max: usize,
) -> Option<SharedContent> {
    cut_above(item, conversation, bytes_max.max(PARED_BYTES))
}

fn cut_above(item: &Item, conversation: ConversationId, each_max: usize) -> Option<SharedContent> {
    let step = item.step().filter(|step| !thinks(step))?;
    step.calls().find(|call| is_long(call, each_max))?;
    let mut content = item.content.clone();
    let mut changed = false;
    if let Content::Step(step) = content.make_mut() {
        for call in step.calls_mut().filter(|call| is_long(call, each_max)) {
            let whole = short_reference(conversation, call.request);
            let whole = format!("; the whole: {whole}");
            if let Some(told) = json::cut_texts(call.arguments.as_str(), each_max, &whole) {
                call.arguments = JsonText::from_checked(told.into());
                call.arguments_shortened = true;
                changed = true;
            }
        }
    }
    changed.then_some(content)
}

fn is_long(call: &Call, bytes_max: usize) -> bool {
    let is_open = matches!(call.outcome, Outcome::Missing { open: true, .. });
    !is_open && call.arguments.as_str().len() > 2 * bytes_max
}

/// Its reasoning may be signed: it stays as its model wrote it.
pub(super) fn thinks(step: &Step) -> bool {
    step.blocks.iter().any(|block| match block {
        Block::Part(part) => match &**part {
            ContentPart::Reasoning(reasoning) => !reasoning.signature.is_empty(),
            _ => false,
        },
        Block::Call(_) => false,
    })
}
