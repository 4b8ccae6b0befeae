//! Adds the summary of a compaction and the dialogue summary.

use super::params::{Param, ParamKind, Params};
use crate::{
    draft::{Content, Draft, Item, Message, Section, Speaker, full_result_ref},
    enhancer::Enhancer,
    explain::EnhancerReport,
    policy::ContextPolicy,
    window::WindowInput,
};
use treering_domain::{EventBody, EventRef, Revision};

pub(super) const COMPACTION: &str = "compaction_summary";
pub(super) const COMPACTION_PARAMS: &[Param] = &[Param::new(
    "reference",
    ParamKind::Flag,
    "Say where the messages that it replaces can be read. Default: true.",
)];
pub(super) const DIALOGUE: &str = "dialogue_summary";
pub(super) const DIALOGUE_PARAMS: &[Param] = &[Param::new(
    "max_chars",
    ParamKind::Number,
    "Maximum number of characters. Default: no maximum.",
)];

/// The text before a compaction's summary, and the beginning of the text after it.
const BEFORE: &str = "[CONVERSATION SUMMARY]\n";
const BEHIND: &str = "\n\n(It stands for ";

/// Splits a framed summary into the text before, the recorded summary, and the text after.
pub(crate) fn framed(text: &str) -> (&str, &str, &str) {
    let start = if text.starts_with(BEFORE) {
        BEFORE.len()
    } else {
        0
    };
    let end = match text.rfind(BEHIND) {
        Some(end) if end >= start && text.ends_with(".)") => end,
        _ => text.len(),
    };
    (&text[..start], &text[start..end], &text[end..])
}

/// Adds `[CONVERSATION SUMMARY]` in place of the compacted events.
#[derive(Debug)]
pub(super) struct CompactionSummary;

impl Enhancer for CompactionSummary {
    fn name(&self) -> &str {
        COMPACTION
    }

    fn enhance(
        &self,
        window: &WindowInput,
        policy: &ContextPolicy,
        draft: &mut Draft,
    ) -> EnhancerReport {
        let event = window.referred(window.branch.compaction);
        let Some((event, compacted)) = event.and_then(|event| match &event.body {
            EventBody::Compacted(compacted) => Some((event, compacted)),
            _ => None,
        }) else {
            return EnhancerReport::ran(COMPACTION, "there was no compaction", 0);
        };
        if compacted.summary.is_empty() {
            let did = "the compaction has no summary of its own: it is a message of the window";
            return EnhancerReport::ran(COMPACTION, did, 0);
        }
        let params = Params::of(policy, COMPACTION);
        let mut text = format!("{BEFORE}{}", compacted.summary);
        if params.flag("reference", draft).unwrap_or(true) {
            let first = full_result_ref(EventRef {
                revision: Revision(1),
                ..event.at
            });
            let cut = compacted.stands_until(event.at.revision);
            // A session that continues another session in a new file begins with a summary of
            // events that are not in this log.
            if cut > Revision(1) {
                text.push_str(&format!("{BEHIND}{first} to /{cut}.)"));
            }
        }
        let message = Message::text(Speaker::User, text);
        let mut item = Item::new(Section::Compaction, COMPACTION, Content::Message(message));
        item.events = vec![event.at];
        let cut = compacted.stands_until(event.at.revision);
        item.reason = format!("replaces everything up to revision {cut}").into();
        draft.items.push(item);
        EnhancerReport::ran(COMPACTION, "the summary replaces what was cut", 1)
    }
}

/// Adds the last dialogue summary.
#[derive(Debug)]
pub(super) struct DialogueSummary;

impl Enhancer for DialogueSummary {
    fn name(&self) -> &str {
        DIALOGUE
    }

    fn enhance(
        &self,
        window: &WindowInput,
        policy: &ContextPolicy,
        draft: &mut Draft,
    ) -> EnhancerReport {
        let event = window.referred(window.branch.summary);
        let Some((event, summary)) = event.and_then(|event| match &event.body {
            EventBody::SummaryRecorded(summary) => Some((event, summary)),
            _ => None,
        }) else {
            return EnhancerReport::ran(DIALOGUE, "none was recorded", 0);
        };
        let params = Params::of(policy, DIALOGUE);
        let max = params.number("max_chars", draft).unwrap_or(usize::MAX);
        let content: String = summary.content.chars().take(max).collect();
        if content.is_empty() {
            return EnhancerReport::ran(DIALOGUE, "it is empty", 0);
        }
        let text = super::volatile::tagged("DIALOGUE_SUMMARY", &content);
        let message = Message::text(Speaker::User, text);
        let content = Content::Message(message);
        let mut item = Item::new(Section::DialogueSummary, DIALOGUE, content);
        item.events = vec![event.at];
        item.is_volatile = true;
        item.reason = format!(
            "covers revisions {} to {}",
            summary.from_revision, summary.to_revision
        )
        .into();
        draft.items.push(item);
        EnhancerReport::ran(DIALOGUE, "the last one that was recorded", 1)
    }
}
