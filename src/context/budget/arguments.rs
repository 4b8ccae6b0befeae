//! Cuts long arguments of finished calls. A file that a call wrote is on disk, so the request need
//! not repeat its text.

use super::json;
use crate::{
    draft::{Block, Call, Content, Item, Outcome, Step},
    references::short_reference,
    shared::SharedContent,
};
use treering_domain::{ContentPart, ConversationId, JsonText};

/// Minimum length of cut arguments, in bytes. Arguments are cut only if they are more than twice as
/// long as their limit.
const LEAST_BYTES: usize = 480;
/// As [`LEAST_BYTES`], for a step that would otherwise be dropped.
const PARED_BYTES: usize = 240;

/// Whether a step has arguments that can be cut.
pub(super) fn are_long(item: &Item) -> bool {
    item.step()
        .is_some_and(|step| !thinks(step) && step.calls().any(|call| is_long(call, LEAST_BYTES)))
}

/// Returns the step with long texts in its arguments cut to about `bytes_max` bytes per call. The
/// arguments stay JSON with the same keys. None if nothing is cut. A step with signed reasoning is
/// never changed.
pub(super) fn cut(
    item: &Item,
    conversation: ConversationId,
    bytes_max: usize,
) -> Option<SharedContent> {
    cut_above(item, conversation, bytes_max.max(LEAST_BYTES))
}

/// As [`cut`], with a lower limit.
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

/// Whether the step has signed reasoning. Such a step must not be changed.
pub(super) fn thinks(step: &Step) -> bool {
    step.blocks.iter().any(|block| match block {
        Block::Part(part) => match &**part {
            ContentPart::Reasoning(reasoning) => !reasoning.signature.is_empty(),
            _ => false,
        },
        Block::Call(_) => false,
    })
}
