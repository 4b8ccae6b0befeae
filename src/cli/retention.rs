//! Retention: the options of `erase`, and the daily erasures of `serve`.

use std::{collections::BTreeMap, str::FromStr, time::Duration};

use clap::Args;
use futures::StreamExt;

use super::{args::pair, pb};
use treering_domain::{Namespace, with_causes};
use treering_engine::{
    Engine, EraseCommand, EraseError, EraseItem, EraseOutcome, EraseTarget, Retention,
};

/// Delay of the first run after a start, so that it does not slow down the start.
const FIRST_AFTER: Duration = Duration::from_secs(10 * 60);
const EVERY: Duration = Duration::from_secs(24 * 60 * 60);
/// Actor of the erasures.
const ACTOR: &str = "retention";

/// Retention options of `erase`.
#[derive(Args, Debug, Clone)]
pub(crate) struct RetentionArgs {
    /// Erase conversations without new events for this many days. A conversation with forks stays
    /// as long as they do
    #[arg(long, value_name = "DAYS", conflicts_with_all = ["what", "literal_from", "whole_namespace"])]
    keep_days: Option<u32>,
    /// As --keep-days, for sealed conversations
    #[arg(long, value_name = "DAYS", conflicts_with_all = ["what", "literal_from", "whole_namespace"])]
    keep_sealed_days: Option<u32>,
    /// Only those of them with this label (may be given again: with all of them)
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = pair)]
    #[arg(conflicts_with_all = ["what", "literal_from", "whole_namespace"])]
    labels: Vec<(String, String)>,
}

impl RetentionArgs {
    /// Returns the policy, or `None` if no option is given.
    pub(crate) fn policy(&self) -> Option<pb::Retention> {
        if self.keep_days.is_none() && self.keep_sealed_days.is_none() {
            return None;
        }
        Some(pb::Retention {
            keep_days: self.keep_days,
            keep_sealed_days: self.keep_sealed_days,
            labels: self.labels.iter().cloned().collect(),
        })
    }
}

/// Retention policy of a server for one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RetentionPolicy {
    namespace: Namespace,
    retention: Retention,
}

/// Parses `NAMESPACE:keep_days=365,keep_sealed_days=90,label.team=red`.
impl FromStr for RetentionPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (namespace, rules) = text
            .split_once(':')
            .ok_or("expected NAMESPACE:keep_days=N, for example default:keep_days=365")?;
        let namespace = Namespace::new(namespace).map_err(|error| error.to_string())?;
        let mut retention = Retention {
            keep_days: None,
            keep_sealed_days: None,
            labels: BTreeMap::new(),
        };
        for rule in rules.split(',') {
            let (name, value) = rule
                .split_once('=')
                .ok_or_else(|| format!("`{rule}` has no `=`"))?;
            let days = || {
                let days = value.parse::<u32>();
                days.map_err(|_| format!("`{value}` is not a number of days"))
            };
            match (name, name.strip_prefix("label.")) {
                ("keep_days", _) => retention.keep_days = Some(days()?),
                ("keep_sealed_days", _) => retention.keep_sealed_days = Some(days()?),
                (_, Some(label)) if !label.is_empty() => {
                    retention.labels.insert(label.to_owned(), value.to_owned());
                }
                _ => {
                    return Err(format!(
                        "`{name}` is not one of keep_days, keep_sealed_days, label.NAME"
                    ));
                }
            }
        }
        if retention.keep_days.is_none() && retention.keep_sealed_days.is_none() {
            return Err("keep_days=N is missing".to_owned());
        }
        Ok(Self {
            namespace,
            retention,
        })
    }
}

/// Once a day, erases conversations whose retention time is over, until the future is dropped.
pub(crate) async fn run_policy(engine: Engine, policies: Vec<RetentionPolicy>) {
    if policies.is_empty() {
        return std::future::pending().await;
    }
    tokio::time::sleep(FIRST_AFTER).await;
    loop {
        for policy in &policies {
            let namespace = policy.namespace.as_str();
            match erase_due(&engine, policy).await {
                Ok(EraseOutcome { events: 0, .. }) => {}
                Ok(outcome) => tracing::info!(
                    namespace,
                    events = outcome.events,
                    receipt = outcome.receipt.unwrap_or_default(),
                    "retention erased conversations: {}",
                    policy.retention
                ),
                Err(error) => tracing::error!(
                    namespace,
                    error = %with_causes(&error),
                    "retention could not erase conversations; retrying tomorrow"
                ),
            }
        }
        tokio::time::sleep(EVERY).await;
    }
}

async fn erase_due(engine: &Engine, policy: &RetentionPolicy) -> Result<EraseOutcome, EraseError> {
    let mut items = engine.erase(EraseCommand {
        namespace: policy.namespace.clone(),
        target: EraseTarget::Due(policy.retention.clone()),
        keep_derived: false,
        dry_run: false,
        // The reason is empty, so that the event that records the erasure never becomes due itself.
        reason: String::new(),
        actor: ACTOR.to_owned(),
    });
    let mut outcome = EraseOutcome::default();
    while let Some(item) = items.next().await {
        if let EraseItem::Outcome(done) = item? {
            outcome = done;
        }
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    // A misread policy would erase conversations that should stay.
    #[test]
    fn retention_policies_are_parsed() {
        let policy: RetentionPolicy = "support:keep_days=365,label.team=a=b".parse().unwrap();
        assert_eq!(policy.namespace.as_str(), "support");
        assert_eq!(policy.retention.keep_days, Some(365));
        assert_eq!(policy.retention.keep_sealed_days, None);
        assert_eq!(policy.retention.labels["team"], "a=b");
        for (wrong, said) in [
            ("keep_days=3", "expected NAMESPACE"),
            ("x:", "has no `=`"),
            ("x:keep_day=3", "not one of keep_days"),
            ("x:keep_days=-3", "not a number of days"),
            ("x:label.a=b", "keep_days=N is missing"),
            ("x:label.=b,keep_days=1", "not one of keep_days"),
        ] {
            let error = wrong.parse::<RetentionPolicy>().unwrap_err();
            assert!(error.contains(said), "{wrong}: {error}");
        }
    }
}
