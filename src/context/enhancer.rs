//! The pipeline of named enhancers, which turns a window into a draft.

use std::{fmt, sync::Arc};

use super::{
    draft::{Draft, Fate},
    enhancers,
    explain::EnhancerReport,
    policy::{ContextPolicy, EnhancerPolicy},
    tokens::Tally,
    window::WindowInput,
};

/// A stage of the pipeline, which changes the draft. It depends only on the draft, the window and
/// the policy.
///
/// It sets the [`Fate`] of items that it shortens or drops. The pipeline then counts the tokens.
pub trait Enhancer: fmt::Debug + Send + Sync {
    /// Name in policies and explanations, in snake case.
    fn name(&self) -> &str;

    /// Changes the draft and reports what it did.
    fn enhance(
        &self,
        window: &WindowInput,
        policy: &ContextPolicy,
        draft: &mut Draft,
    ) -> EnhancerReport;
}

impl EnhancerReport {
    /// Creates the report of an enhancer that ran.
    #[must_use]
    pub fn ran(name: &str, did: impl Into<String>, items: usize) -> Self {
        Self {
            name: name.to_owned(),
            enabled: true,
            did: did.into(),
            items: u32::try_from(items).unwrap_or(u32::MAX),
        }
    }

    fn off(name: &str, why: &str) -> Self {
        Self {
            enabled: false,
            ..Self::ran(name, why, 0)
        }
    }
}

/// Runs the built-in enhancers and then the caller's. Counts the tokens of new items, without a
/// calibration factor.
pub fn run(
    window: &WindowInput,
    policy: &ContextPolicy,
    own: &[Arc<dyn Enhancer>],
    tally: &Tally,
    draft: &mut Draft,
) -> Vec<EnhancerReport> {
    warn_of_unknown(policy, own, draft);
    let mut reports = Vec::new();
    for built_in in enhancers::built_in() {
        if tally.is_stopped() {
            return reports;
        }
        let set = policy.enhancers.get(built_in.name);
        let enabled = set.map_or(built_in.on_by_default, |set| set.enabled);
        reports.push(if enabled {
            if let Some(set) = set {
                warn_of_unknown_params(built_in, set, draft);
            }
            built_in.enhancer.enhance(window, policy, draft)
        } else if set.is_some() {
            EnhancerReport::off(built_in.name, "switched off by the policy")
        } else {
            EnhancerReport::off(built_in.name, "off unless the policy switches it on")
        });
        count_new(tally, draft);
    }
    for enhancer in own {
        let name = enhancer.name();
        let enabled = policy.enhancers.get(name).is_none_or(|set| set.enabled);
        reports.push(if enabled {
            enhancer.enhance(window, policy, draft)
        } else {
            EnhancerReport::off(name, "switched off by the policy")
        });
        count_new(tally, draft);
    }
    count_all(tally, draft, !own.is_empty());
    reports
}

/// Counts new items. Their first count becomes `whole_tokens`.
fn count_new(tally: &Tally, draft: &mut Draft) {
    for item in &mut draft.items {
        if item.whole_tokens == 0 && item.fate == Fate::Kept {
            tally.measure_item(item);
            item.whole_tokens = item.tokens;
        }
    }
}

fn count_all(tally: &Tally, draft: &mut Draft, anything_may_differ: bool) {
    draft.tools_tokens = tally.tools(&draft.tools);
    for item in &mut draft.items {
        if anything_may_differ || item.fate != Fate::Kept {
            tally.measure_item(item);
        }
        // The original size of an item that was added in shortened form is unknown.
        if item.whole_tokens == 0 {
            item.whole_tokens = item.tokens;
        }
    }
}

fn warn_of_unknown(policy: &ContextPolicy, own: &[Arc<dyn Enhancer>], draft: &mut Draft) {
    let built_in = enhancers::built_in();
    for name in policy.enhancers.keys() {
        let known = built_in.iter().any(|known| known.name == name)
            || own.iter().any(|known| known.name() == name);
        if !known {
            let names: Vec<_> = built_in.iter().map(|known| known.name).collect();
            draft.warnings.push(format!(
                "the policy names an enhancer {name:?} that does not exist; the enhancers are {}",
                names.join(", ")
            ));
        }
    }
}

fn warn_of_unknown_params(built_in: &enhancers::BuiltIn, set: &EnhancerPolicy, draft: &mut Draft) {
    for name in set.params.keys() {
        if built_in.params.iter().all(|known| known.name != name) {
            let names: Vec<_> = built_in.params.iter().map(|known| known.name).collect();
            let there = match names.as_slice() {
                [] => "it has none".to_owned(),
                names => format!("it has {}", names.join(", ")),
            };
            draft.warnings.push(format!(
                "the enhancer {} has no parameter {name:?}: {there}",
                built_in.name
            ));
        }
    }
}
