//! Cutting long results to head and tail.

use crate::{
    context::draft::{Call, Content, Fate, Item, Outcome, ResultOutcome, full_result_ref},
    domain::ContentPart,
};

/// Characters of a result's text that stay in front and at the end: what a
/// command says first, and its last lines, where errors are.
const HEAD_CHARS: usize = 1_200;
const TAIL_CHARS: usize = 800;
/// Shorter texts stay whole: a cut would save next to nothing.
const WHOLE_CHARS_MAX: usize = 2_400;

/// Cuts the long results of a step; false when none is long.
pub(super) fn results(item: &mut Item) -> bool {
    let long = |call: &Call| matches!(&call.outcome, Outcome::Result(result) if is_long(result));
    if !item.step().is_some_and(|step| step.calls().any(long)) {
        return false;
    }
    if let Content::Step(step) = item.content.make_mut() {
        for call in step.calls_mut() {
            if let Outcome::Result(result) = &mut call.outcome
                && is_long(result)
            {
                shorten(result);
            }
        }
    }
    item.fate = Fate::Shortened;
    item.reason = "over the budget: long results are cut to head and tail".into();
    true
}

fn is_long(result: &ResultOutcome) -> bool {
    let long = |part: &ContentPart| match part.text() {
        Some(text) => text.len() > WHOLE_CHARS_MAX,
        None => true,
    };
    !result.shortened && (result.parts.iter().any(long) || structured_is_long(result))
}

fn structured_is_long(result: &ResultOutcome) -> bool {
    result.parts.is_empty() && result.structured.as_str().len() > WHOLE_CHARS_MAX
}

fn shorten(result: &mut ResultOutcome) {
    let reference = full_result_ref(result.event);
    let parts: Vec<ContentPart> = if structured_is_long(result) {
        vec![ContentPart::Text(cut(
            result.structured.as_str(),
            &reference,
        ))]
    } else {
        let parts = result.parts.iter().map(|part| match part.text() {
            Some(text) if text.len() > WHOLE_CHARS_MAX => ContentPart::Text(cut(text, &reference)),
            Some(_) => part.clone(),
            None => ContentPart::Text(format!("[a medium is left out; in full: {reference}]")),
        });
        parts.collect()
    };
    result.parts = parts.into();
    result.shortened = true;
}

fn cut(text: &str, reference: &str) -> String {
    let head = floor(text, HEAD_CHARS);
    let tail = ceil(text, text.len() - TAIL_CHARS);
    format!(
        "{}\n[… {} bytes are left out; in full: {reference} …]\n{}",
        &text[..head],
        tail - head,
        &text[tail..]
    )
}

fn floor(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

fn ceil(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at += 1;
    }
    at
}
