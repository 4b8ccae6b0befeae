//! Tokens of a window, before and after a cut.

use std::collections::BTreeMap;

use crate::{
    context::{
        policy::{ContextPolicy, ToolResults},
        summary::result_summary,
        tokens::Counter,
        window::WindowInput,
    },
    domain::{ContentPart, EventBody, EventRef, Role, ToolResultRecorded},
};

/// What a provider adds around a message, a call or a result, in tokens.
const FRAMING_TOKENS: u64 = 4;
/// An image, a file or a sound: their tokens depend on the provider.
const MEDIUM_TOKENS: u64 = 1_000;
/// Longest snapshot that stands for a result, in characters.
const SNAPSHOT_CHARS_MAX: usize = 300;

/// Tokens of a window.
pub(super) struct WindowTokens {
    /// All of it.
    pub before: u64,
    /// What stays after the cut, without the summary.
    pub kept: u64,
    /// What they were counted with.
    pub counter: Counter,
}

impl WindowTokens {
    /// Counts a window whose events before `cut_end` would be cut.
    pub fn of(
        window: &WindowInput,
        policy: &ContextPolicy,
        counter: Counter,
        cut_end: usize,
    ) -> Self {
        let snapshots_before = snapshots_before(window, policy);
        let mut by_place = BTreeMap::new();
        for (index, event) in window.events.iter().enumerate() {
            let shortened = index < snapshots_before;
            by_place.insert(event.at, (index, spoken(counter, &event.body, shortened)));
        }
        let dialogue = |from: usize| -> u64 {
            by_place
                .values()
                .filter(|(index, _)| *index >= from)
                .map(|(_, tokens)| tokens)
                .sum()
        };
        let standing = |from: usize| -> u64 {
            let counted = |at: &EventRef| {
                by_place
                    .get(at)
                    .is_some_and(|(index, tokens)| *index >= from && *tokens > 0)
            };
            let referred = window.referred.iter().filter(|(at, _)| !counted(at));
            referred
                .map(|(_, event)| stands(counter, &event.body))
                .sum()
        };
        let summary = window
            .branch
            .compaction
            .and_then(|at| window.referred.get(&at))
            .map_or(0, |event| match &event.body {
                EventBody::Compacted(compacted) => counter.count(&compacted.summary),
                _ => 0,
            });
        let long_term: u64 = window
            .long_term
            .iter()
            .map(|entry| counter.count(&entry.key) + counter.count(entry.value.as_str()))
            .sum();
        Self {
            before: summary + long_term + standing(0) + dialogue(0),
            kept: long_term + standing(cut_end) + dialogue(cut_end),
            counter,
        }
    }
}

/// Index of the first event whose results are sent in full.
fn snapshots_before(window: &WindowInput, policy: &ContextPolicy) -> usize {
    let older_than = match policy.tool_results {
        ToolResults::Keep => return 0,
        ToolResults::TurnEnd => 0,
        ToolResults::OlderThanTurns(turns) => turns,
    };
    crate::context::compaction::cut(window, older_than).map_or(0, |cut| cut.end)
}

/// Tokens of an event that is shown at its own place.
fn spoken(counter: Counter, body: &EventBody, shortened: bool) -> u64 {
    match body {
        EventBody::MessageAppended(message) => FRAMING_TOKENS + parts(counter, &message.parts),
        EventBody::ToolCallRequested(call) => {
            FRAMING_TOKENS + counter.count(&call.tool) + counter.count(call.arguments.as_str())
        }
        EventBody::ToolResultRecorded(result) => {
            let whole = whole_result(counter, result);
            let tokens = if shortened {
                let summary = result_summary(result, SNAPSHOT_CHARS_MAX);
                whole.min(counter.count(&summary) + 10 * FRAMING_TOKENS)
            } else {
                whole
            };
            FRAMING_TOKENS + tokens
        }
        EventBody::ToolCallCancelled(cancelled) => {
            FRAMING_TOKENS + counter.count(&cancelled.detail)
        }
        EventBody::GuidanceGiven { guidance } => {
            guidance.iter().map(|told| counter.count(&told.text)).sum()
        }
        EventBody::SubContextReturned(returned) => counter.count(&returned.summary),
        _ => 0,
    }
}

/// Tokens of an event that holds on, wherever it is.
fn stands(counter: Counter, body: &EventBody) -> u64 {
    match body {
        EventBody::MessageAppended(message)
            if matches!(message.role, Role::System | Role::Developer) =>
        {
            FRAMING_TOKENS + parts(counter, &message.parts)
        }
        EventBody::SystemPromptSet(prompt) | EventBody::UserPromptSet(prompt) => {
            FRAMING_TOKENS + counter.count(&prompt.content)
        }
        EventBody::BranchForked(forked) => counter.count(&forked.system_prompt),
        EventBody::ContextSet(set) => counter.count(&set.key) + counter.count(set.value.as_str()),
        EventBody::SummaryRecorded(summary) => counter.count(&summary.content),
        EventBody::ToolsDefined { tools } => tools
            .iter()
            .filter(|tool| !tool.discoverable)
            .map(|tool| {
                2 * FRAMING_TOKENS
                    + counter.count(&tool.name)
                    + counter.count(&tool.description)
                    + counter.count(tool.input_schema.as_str())
            })
            .sum(),
        _ => 0,
    }
}

fn whole_result(counter: Counter, result: &ToolResultRecorded) -> u64 {
    parts(counter, &result.parts) + counter.count(&result.error_message)
}

fn parts(counter: Counter, parts: &[ContentPart]) -> u64 {
    let tokens = parts.iter().map(|part| match part {
        ContentPart::Image(_) | ContentPart::File(_) | ContentPart::Audio(_) => MEDIUM_TOKENS,
        ContentPart::Reasoning(reasoning) => counter.count(&reasoning.text),
        _ => part.text().map_or(0, |text| counter.count(text)),
    });
    tokens.sum()
}
