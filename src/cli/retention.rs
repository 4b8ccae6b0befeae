//! How long conversations are kept: what `erase` is told of it, and what `serve` does each day.

use std::{collections::BTreeMap, str::FromStr, time::Duration};

use clap::Args;
use futures::StreamExt;

use super::{args::pair, pb};
use treering_domain::{Namespace, with_causes};
use treering_engine::{
    Engine, EraseCommand, EraseError, EraseItem, EraseOutcome, EraseTarget, Retention,
};

/// When the first look is taken after a start, so that starting is not slowed down.
const FIRST_AFTER: Duration = Duration::from_secs(10 * 60);
const EVERY: Duration = Duration::from_secs(24 * 60 * 60);
/// Who erases, for the history.
const ACTOR: &str = "retention";

/// What is due, for `erase`.
#[derive(Args, Debug, Clone)]
pub struct RetentionArgs {
    /// Conversations to which nothing was appended for so many days. One that another was
    /// forked from stays as long as that one does
    #[arg(long, value_name = "DAYS", conflicts_with_all = ["what", "literal_from", "whole_namespace"])]
    keep_days: Option<u32>,
    /// The same of sealed ones
    #[arg(long, value_name = "DAYS", conflicts_with_all = ["what", "literal_from", "whole_namespace"])]
    keep_sealed_days: Option<u32>,
    /// Of them, only those with this label; several: with all of them
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = pair)]
    #[arg(conflicts_with_all = ["what", "literal_from", "whole_namespace"])]
    labels: Vec<(String, String)>,
}

impl RetentionArgs {
    /// What is said; none: nothing is.
    pub fn policy(&self) -> Option<pb::Retention> {
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

/// What a server keeps to, for one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetentionPolicy {
    namespace: Namespace,
    retention: Retention,
}

/// `NAMESPACE:keep_days=365,keep_sealed_days=90,label.team=red`.
impl FromStr for RetentionPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (namespace, rules) = text
            .split_once(':')
            .ok_or("give NAMESPACE:keep_days=N, as in default:keep_days=365")?;
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
                days.map_err(|_| format!("`{value}` is no number of days"))
            };
            match (name, name.strip_prefix("label.")) {
                ("keep_days", _) => retention.keep_days = Some(days()?),
                ("keep_sealed_days", _) => retention.keep_sealed_days = Some(days()?),
                (_, Some(label)) if !label.is_empty() => {
                    retention.labels.insert(label.to_owned(), value.to_owned());
                }
                _ => {
                    return Err(format!(
                        "`{name}` is none of keep_days, keep_sealed_days and label.NAME"
                    ));
                }
            }
        }
        if retention.keep_days.is_none() && retention.keep_sealed_days.is_none() {
            return Err("it is not said how long conversations are kept: keep_days=N".to_owned());
        }
        Ok(Self {
            namespace,
            retention,
        })
    }
}

/// Erases what is due, once a day, until it is dropped.
pub async fn keep_to(engine: Engine, policies: Vec<RetentionPolicy>) {
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
                    "what was due is erased: {}",
                    policy.retention
                ),
                Err(error) => tracing::error!(
                    namespace,
                    error = %with_causes(&error),
                    "what is due could not be erased; it is tried again tomorrow"
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
        // None, so that the event that says it is not due one day itself.
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

    // A policy that is read as another one erases what was to stay.
    #[test]
    fn policies_are_read_as_they_are_written() {
        let policy: RetentionPolicy = "support:keep_days=365,label.team=a=b".parse().unwrap();
        assert_eq!(policy.namespace.as_str(), "support");
        assert_eq!(policy.retention.keep_days, Some(365));
        assert_eq!(policy.retention.keep_sealed_days, None);
        assert_eq!(policy.retention.labels["team"], "a=b");
        for (wrong, said) in [
            ("keep_days=3", "give NAMESPACE"),
            ("x:", "has no `=`"),
            ("x:keep_day=3", "none of keep_days"),
            ("x:keep_days=-3", "no number of days"),
            ("x:label.a=b", "not said how long"),
            ("x:label.=b,keep_days=1", "none of keep_days"),
        ] {
            let error = wrong.parse::<RetentionPolicy>().unwrap_err();
            assert!(error.contains(said), "{wrong}: {error}");
        }
    }
}
