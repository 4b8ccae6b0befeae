//! Tells a repeated result once, at its last occurrence (a file that is read several times).

use std::{borrow::Cow, collections::HashMap};

use super::Scope;
use crate::{
    draft::{Content, Item, Outcome, ResultOutcome},
    heuristics::Heuristics,
    references::short_reference,
    shared::SharedContent,
};
use treering_domain::{ContentPart, EventRef};

/// Shorter results are repeated, because the note would not be much shorter.
const LEAST_BYTES: usize = 400;

/// The text by which repeated results are recognised. None for failures, media and short results.
pub(super) fn repeatable<'r>(
    result: &'r ResultOutcome,
    heuristics: &dyn Heuristics,
) -> Option<Cow<'r, str>> {
    let texts: Option<Vec<&str>> = result.parts.iter().map(ContentPart::text).collect();
    let text = match texts?.as_slice() {
        [] => Cow::from(result.structured.as_str()),
        [one] => Cow::from(heuristics.without_notices(one)),
        several => Cow::from(several.concat()),
    };
    (result.success && !result.shortened && text.len() >= LEAST_BYTES).then_some(text)
}

/// The step with repeated results replaced by a note. None if there are none.
pub(super) fn step(
    item: &Item,
    scope: Scope<'_>,
    later: &HashMap<EventRef, EventRef>,
) -> Option<SharedContent> {
    let comes_again = |outcome: &Outcome| match outcome {
        Outcome::Result(result) => later.get(&result.event).copied(),
        _ => None,
    };
    let mut outcomes = item.step()?.calls().map(|call| &call.outcome);
    outcomes.find(|outcome| comes_again(outcome).is_some())?;
    let mut content = item.content.clone();
    if let Content::Step(step) = content.make_mut() {
        for call in step.calls_mut() {
            if let Some(at) = comes_again(&call.outcome)
                && let Outcome::Result(result) = &mut call.outcome
                && let Some(text) = repeatable(result, scope.heuristics)
            {
                let whole = short_reference(scope.conversation, at);
                let told = format!(
                    "[… {} bytes are left out: the same result comes again further on; the \
                     whole: {whole} …]",
                    text.len()
                );
                result.parts = vec![ContentPart::Text(told)].into();
                result.shortened = true;
            }
        }
    }
    Some(content)
}
