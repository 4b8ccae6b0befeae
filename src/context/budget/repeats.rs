//! Keeps a repeated result (a file that is read several times) only at its last occurrence. Does
//! the same for repeated notices and reminders of a harness.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use super::Scope;
use crate::{
    draft::{Content, Item, Outcome, ResultOutcome},
    heuristics::Heuristics,
    references::short_reference,
    shared::SharedContent,
};
use treering_domain::{ContentPart, EventRef};

/// Shorter results stay, because the note would not be much shorter.
const LEAST_BYTES: usize = 400;

/// Returns the text that identifies repeated results. None for failures, media and short results.
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

/// Returns the text that identifies repeated notices of a harness, and their event.
pub(super) fn notice(item: &Item) -> Option<(&str, EventRef)> {
    let Content::Message(message) = &*item.content else {
        return None;
    };
    match &message.parts[..] {
        [part] if message.is_told => Some((part.text()?, *item.events.first()?)),
        _ => None,
    }
}

/// Returns the item with repeated results, or a repeated notice, replaced by a note. None if there
/// are none.
pub(super) fn item(
    item: &Item,
    scope: Scope<'_>,
    later: &HashMap<EventRef, EventRef>,
) -> Option<SharedContent> {
    if let Some((_, at)) = notice(item) {
        let whole = short_reference(scope.conversation, *later.get(&at)?);
        let told = format!("[… the same notice comes again further on: {whole} …]");
        let mut content = item.content.clone();
        if let Content::Message(message) = content.make_mut() {
            message.parts = vec![ContentPart::Text(told)].into();
        }
        return Some(content);
    }
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

/// Removes the reminders at the end of results that are in `later`, and adds the others to `later`.
/// None if nothing was removed.
pub(super) fn without_told_reminders(
    content: &SharedContent,
    later: &mut HashSet<String>,
    heuristics: &dyn Heuristics,
) -> Option<SharedContent> {
    let Content::Step(step) = &**content else {
        return None;
    };
    let mut repeated = HashSet::new();
    let results = step.calls().filter_map(|call| match &call.outcome {
        Outcome::Result(result) => Some(result),
        _ => None,
    });
    for result in results.collect::<Vec<_>>().into_iter().rev() {
        let Some(text) = result.parts.last().and_then(ContentPart::text) else {
            continue;
        };
        let reminder = text[heuristics.without_notices(text).len()..].trim();
        if !reminder.is_empty() && !later.insert(reminder.to_owned()) {
            repeated.insert(result.event);
        }
    }
    if repeated.is_empty() {
        return None;
    }
    let mut content = content.clone();
    if let Content::Step(step) = content.make_mut() {
        for call in step.calls_mut() {
            if let Outcome::Result(result) = &mut call.outcome
                && repeated.contains(&result.event)
            {
                let mut parts = result.parts.to_vec();
                if let Some(ContentPart::Text(text)) = parts.last_mut() {
                    *text = heuristics.without_notices(text).to_owned();
                }
                result.parts = parts.into();
                result.shortened = true;
            }
        }
    }
    Some(content)
}
