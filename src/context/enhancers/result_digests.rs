//! Replaces results of finished turns with digests.

use std::{collections::HashMap, sync::Arc};

use super::params::{Param, ParamKind, Params};
use crate::{
    draft::{Call, Content, Draft, Fate, Item, Outcome, ResultDigest, ResultOutcome, Section},
    enhancer::Enhancer,
    explain::EnhancerReport,
    heuristics::{Heuristics, ResultOf},
    policy::{ContextPolicy, ToolResults},
    references::short_reference,
    tokens::Counter,
    window::{WindowEvent, WindowInput},
};
use treering_domain::{
    ContentPart, ConversationId, EventBody, EventRef, Revision, ToolResultRecorded,
};

pub(super) const NAME: &str = "tool_snapshots";
pub(super) const PARAMS: &[Param] = &[
    Param::new(
        "max_chars",
        ParamKind::Number,
        "Maximum length of a result digest, in characters. Default: 600.",
    ),
    Param::new(
        "min_chars",
        ParamKind::Number,
        "Results with less text stay as they are. Default: 0.",
    ),
];
const MAX_CHARS: usize = 600;
/// Minimum size of a replaced result, in bytes. A reference alone takes a dozen.
const BYTES_MIN: usize = 48;
/// If a text has this many times the bytes of another, it always has more tokens.
const SURELY_LONGER: usize = 8;

/// Replaces results as [`ContextPolicy::tool_results`] says.
#[derive(Debug)]
pub(super) struct ResultDigests;

impl Enhancer for ResultDigests {
    fn name(&self) -> &str {
        NAME
    }

    fn enhance(
        &self,
        window: &WindowInput,
        policy: &ContextPolicy,
        draft: &mut Draft,
    ) -> EnhancerReport {
        let params = Params::of(policy, NAME);
        let min_chars = params.number("min_chars", draft).unwrap_or(0);
        params.number("max_chars", draft);
        let age = match policy.tool_results {
            ToolResults::Keep => {
                let did = "results stay in full until a compaction";
                return EnhancerReport::ran(NAME, did, 0);
            }
            ToolResults::TurnEnd => 0,
            ToolResults::OlderThanTurns(turns) => turns,
        };
        let finished = finished_turns(draft);
        let snapshots = DigestBuilder::new(window, policy);
        let mut count = 0;
        for item in &mut draft.items {
            if item.section == Section::Messages && item.turn + age <= finished {
                let reason = "its turn has ended: results shortened";
                count += usize::from(snapshots.replace(item, min_chars, reason));
            }
        }
        EnhancerReport::ran(NAME, format!("results of {count} steps shortened"), count)
    }
}

/// Number of the last finished turn.
fn finished_turns(draft: &Draft) -> u32 {
    let of_messages = draft
        .items
        .iter()
        .filter(|item| item.section == Section::Messages);
    of_messages.map(|item| item.turn).max().unwrap_or_default()
}

/// Builds the digests of a window's results.
pub(crate) struct DigestBuilder<'a> {
    heuristics: &'a dyn Heuristics,
    conversation: ConversationId,
    recorded: HashMap<(&'a str, Revision), &'a str>,
    events: HashMap<EventRef, &'a Arc<WindowEvent>>,
    max_chars: usize,
    counter: Counter,
}

impl<'a> DigestBuilder<'a> {
    pub fn new(window: &'a WindowInput, policy: &ContextPolicy) -> Self {
        let mut recorded = HashMap::new();
        let mut events = HashMap::new();
        for event in &window.events {
            match &event.body {
                EventBody::ToolSnapshotRecorded(snapshot) => {
                    let of = (snapshot.call_id.as_str(), snapshot.request_revision);
                    recorded.insert(of, snapshot.summary.as_str());
                }
                EventBody::ToolResultRecorded(_) => {
                    events.insert(event.at, event);
                }
                _ => {}
            }
        }
        let set = policy.enhancers.get(NAME);
        let max_chars = set.and_then(|set| set.params.get("max_chars")?.as_u64());
        Self {
            heuristics: &*window.heuristics,
            conversation: window.conversation,
            recorded,
            events,
            max_chars: max_chars.map_or(MAX_CHARS, |max| usize::try_from(max).unwrap_or(MAX_CHARS)),
            counter: Counter::for_model(&window.branch.config.model_id),
        }
    }

    /// Replaces each result of a step by its digest if that saves at least a quarter of the tokens.
    /// Returns false if none was replaced.
    pub fn replace(&self, item: &mut Item, min_chars: usize, reason: &'static str) -> bool {
        let Some(step) = item.step() else {
            return false;
        };
        let short: Vec<Option<ResultDigest>> = step
            .calls()
            .map(|call| self.shorter(call, min_chars))
            .collect();
        if short.iter().all(Option::is_none) {
            return false;
        }
        if let Content::Step(step) = item.content.make_mut() {
            for (call, short) in step.calls_mut().zip(short) {
                if let Some(snapshot) = short {
                    call.outcome = Outcome::Snapshot(snapshot);
                }
            }
        }
        item.fate = Fate::Shortened;
        item.reason = reason.into();
        true
    }

    /// Returns the digest of a call's result, if it is much shorter.
    fn shorter(&self, call: &Call, min_chars: usize) -> Option<ResultDigest> {
        let Outcome::Result(result) = &call.outcome else {
            return None;
        };
        let whole_bytes = chars(result);
        if whole_bytes < min_chars || whole_bytes <= BYTES_MIN {
            return None;
        }
        let snapshot = self.snapshot(call, result);
        self.saves(result, whole_bytes, &snapshot.text())
            .then_some(snapshot)
    }

    /// Whether a text has at most three quarters of a result's tokens.
    fn saves(&self, result: &ResultOutcome, whole_bytes: usize, short: &str) -> bool {
        // If the sizes differ this much, the tokens need not be counted.
        if whole_bytes >= short.len().saturating_mul(SURELY_LONGER) {
            return true;
        }
        let texts = result.parts.iter().filter_map(ContentPart::text);
        let mut whole: u64 = texts.map(|text| self.counter.count(text)).sum();
        if result.parts.is_empty() {
            whole += self.counter.count(result.structured.as_str());
        }
        whole += self.counter.count(&result.error_message);
        self.counter.count(short) * 4 <= whole * 3
    }

    fn snapshot(&self, call: &Call, result: &ResultOutcome) -> ResultDigest {
        let of = (call.call_id.as_str(), call.request.revision);
        let recorded = self.recorded.get(&of);
        let summary = match recorded {
            Some(summary) => (*summary).to_owned(),
            None => self.summary(call, result),
        };
        ResultDigest {
            event: result.event,
            success: result.success,
            summary,
            reference: short_reference(self.conversation, result.event),
            recorded: recorded.is_some(),
        }
    }

    fn summary(&self, call: &Call, result: &ResultOutcome) -> String {
        let said = ResultOf {
            tool: &call.tool,
            arguments: call.arguments.as_str(),
        };
        if let Some(event) = self.events.get(&result.event)
            && let EventBody::ToolResultRecorded(recorded) = &event.body
        {
            return self.heuristics.digest(said, recorded, self.max_chars);
        }
        let recorded = ToolResultRecorded {
            success: result.success,
            error_message: result.error_message.clone(),
            parts: result.parts.to_vec(),
            structured: result.structured.clone(),
            ..ToolResultRecorded::text(call.call_id.clone(), "")
        };
        self.heuristics.digest(said, &recorded, self.max_chars)
    }
}

fn chars(result: &ResultOutcome) -> usize {
    let texts = result.parts.iter().map(|part| match part.text() {
        Some(text) => text.len(),
        // Media are always large.
        None => usize::MAX / 1_024,
    });
    texts.sum::<usize>() + result.structured.as_str().len() + result.error_message.len()
}
