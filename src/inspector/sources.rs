//! Sources of listed conversations, offered as filters: a filter must match a source exactly, and
//! users may not know how it is written.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
};

use super::bounds::{SOURCE_BYTES_MAX, SOURCES_KEPT, SOURCES_NAMESPACES};
use treering_proto::pb;

/// Sources by namespace.
#[derive(Debug, Default)]
pub(crate) struct SourceCache(Mutex<BTreeMap<String, BTreeSet<String>>>);

impl SourceCache {
    /// Adds the sources on a page of conversations and returns all known sources of the namespace.
    #[must_use]
    pub(crate) fn of(&self, namespace: &str, page: &[pb::ConversationSummary]) -> Vec<String> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= SOURCES_NAMESPACES && !seen.contains_key(namespace) {
            seen.pop_first();
        }
        let known = seen.entry(namespace.to_owned()).or_default();
        for source in page.iter().map(|summary| &summary.source) {
            let fits = !source.is_empty() && source.len() <= SOURCE_BYTES_MAX;
            if fits && known.len() < SOURCES_KEPT && !known.contains(source) {
                known.insert(source.clone());
            }
        }
        known.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A tenant must not see the sources of another tenant, and a client that uses a new source for
    // each conversation must not fill the server's memory.
    #[test]
    fn sources_are_kept_per_namespace_and_limited() {
        let page = |sources: &[&str]| -> Vec<pb::ConversationSummary> {
            let summary = |source: &&str| pb::ConversationSummary {
                source: (*source).to_owned(),
                ..Default::default()
            };
            sources.iter().map(summary).collect()
        };
        let seen = SourceCache::default();
        assert_eq!(seen.of("a", &page(&["x", "", "w", "x"])), ["w", "x"]);
        assert_eq!(seen.of("a", &page(&["y"])), ["w", "x", "y"]);
        assert!(seen.of("b", &[]).is_empty());
        let long = "s".repeat(SOURCE_BYTES_MAX + 1);
        assert!(seen.of("b", &page(&[&long])).is_empty());
        for number in 0..2 * SOURCES_KEPT {
            let _ = seen.of("b", &page(&[&number.to_string()]));
        }
        assert_eq!(seen.of("b", &[]).len(), SOURCES_KEPT);
        for number in 0..2 * SOURCES_NAMESPACES {
            let _ = seen.of(&number.to_string(), &[]);
        }
        assert_eq!(seen.0.lock().unwrap().len(), SOURCES_NAMESPACES);
    }
}
