//! Retention: finds conversations that are due to be erased by their age.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use crate::{Inner, ListFilter, ListOrder, ListQuery, error::ReadError};
use treering_domain::{ConversationId, ConversationInfo, Namespace, TimestampMicros};

/// Conversations per page.
const PAGE: usize = 1_000;
const MICROS_A_DAY: i64 = 24 * 60 * 60 * 1_000_000;

/// How long conversations are kept after their last append. A conversation is also kept while any
/// of its forks is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Days for any conversation; `None` for ever.
    pub keep_days: Option<u32>,
    /// Days for a sealed conversation; `None` for as long as any other.
    pub keep_sealed_days: Option<u32>,
    /// Applies only to conversations with all of these labels.
    pub labels: BTreeMap<String, String>,
}

/// The properties of a conversation that retention depends on.
struct Age<'a> {
    info: &'a ConversationInfo,
    sealed: bool,
    updated_at: TimestampMicros,
}

impl Retention {
    /// Returns true when a period is set.
    pub(super) fn says_something(&self) -> bool {
        self.keep_days.is_some() || self.keep_sealed_days.is_some()
    }

    fn is_over(&self, age: &Age<'_>, now: TimestampMicros) -> bool {
        let has = |(name, value): (&String, &String)| age.info.labels.get(name) == Some(value);
        let days = match self.keep_sealed_days.filter(|_| age.sealed) {
            // The shorter period applies.
            Some(sealed) => Some(self.keep_days.map_or(sealed, |any| any.min(sealed))),
            None => self.keep_days,
        };
        let kept = |days: u32| i64::from(days).saturating_mul(MICROS_A_DAY);
        let is_old = days.is_some_and(|days| now.0.saturating_sub(age.updated_at.0) > kept(days));
        is_old && self.labels.iter().all(has)
    }
}

impl std::fmt::Display for Retention {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let days =
            |days: Option<u32>| days.map_or("for ever".into(), |days| format!("{days} days"));
        write!(f, "conversations kept {}", days(self.keep_days))?;
        if let Some(sealed) = self.keep_sealed_days {
            write!(f, ", sealed ones {sealed} days")?;
        }
        for (name, value) in &self.labels {
            write!(f, ", with the label {name}={value}")?;
        }
        Ok(())
    }
}

impl Inner {
    /// Returns the conversations of a namespace that are due.
    pub(super) async fn due(
        self: &Arc<Self>,
        namespace: &Namespace,
        retention: &Retention,
    ) -> Result<HashSet<ConversationId>, ReadError> {
        let (inner, namespace) = (Arc::clone(self), namespace.clone());
        let retention = retention.clone();
        let look = move || inner.due_at(&namespace, &retention, TimestampMicros::now());
        tokio::task::spawn_blocking(look)
            .await
            .map_err(ReadError::storage)?
    }

    fn due_at(
        &self,
        namespace: &Namespace,
        retention: &Retention,
        now: TimestampMicros,
    ) -> Result<HashSet<ConversationId>, ReadError> {
        let mut due = HashSet::new();
        let mut kept = Vec::new();
        // Parent by conversation, for shared histories.
        let mut forked_from = HashMap::new();
        let mut query = ListQuery {
            namespace: namespace.clone(),
            limit: PAGE,
            after: None,
            source: None,
            order: ListOrder::default(),
            ascending: true,
        };
        loop {
            let page = self.list(&query, &ListFilter::default())?;
            for one in &page.conversations {
                let age = Age {
                    info: &one.info,
                    sealed: one.sealed,
                    updated_at: one.updated_at,
                };
                // A damaged conversation cannot record an erasure.
                match one.damage.is_none() && retention.is_over(&age, now) {
                    true => _ = due.insert(one.id),
                    false => kept.push(one.id),
                }
                if let Some(parent) = one.info.parent.as_ref().filter(|_| one.info.shares_history) {
                    forked_from.insert(one.id, parent.conversation);
                }
            }
            match page.next {
                Some(next) => query.after = Some(next),
                None => break,
            }
        }
        for mut id in kept {
            while let Some(parent) = forked_from.get(&id) {
                due.remove(parent);
                id = *parent;
            }
        }
        Ok(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use treering_domain::ConversationCreated;

    const DAY: i64 = MICROS_A_DAY;

    // Erasing a day too early, or with an unintended label, cannot be undone.
    #[test]
    fn only_old_conversations_with_the_labels_are_due() {
        let created = ConversationCreated {
            labels: BTreeMap::from([("team".to_owned(), "red".to_owned())]),
            ..ConversationCreated::default()
        };
        let info = ConversationInfo::new(&created, ConversationId::generate());
        let after = |days: i64, sealed| Age {
            info: &info,
            sealed,
            updated_at: TimestampMicros(-days * DAY),
        };
        let now = TimestampMicros(0);
        let any = Retention {
            keep_days: Some(90),
            ..Retention::default()
        };
        assert!(!any.is_over(&after(90, false), now) && any.is_over(&after(91, false), now));
        let both = Retention {
            keep_sealed_days: Some(7),
            ..any.clone()
        };
        assert!(both.is_over(&after(8, true), now) && !both.is_over(&after(8, false), now));
        let sealed = Retention {
            keep_days: None,
            ..both.clone()
        };
        assert!(!sealed.is_over(&after(9_999, false), now));
        for (value, expected) in [("red", true), ("blue", false)] {
            let labels = BTreeMap::from([("team".to_owned(), value.to_owned())]);
            let meant = Retention {
                labels,
                ..any.clone()
            };
            assert_eq!(meant.is_over(&after(91, false), now), expected);
        }
        // A clock that went back, or a time in the distant past.
        assert!(!any.is_over(&after(-9_999, false), now));
        assert!(any.is_over(
            &Age {
                updated_at: TimestampMicros(i64::MIN),
                ..after(0, false)
            },
            now
        ));
        assert!(!Retention::default().is_over(&after(9_999, true), now));
    }
}
