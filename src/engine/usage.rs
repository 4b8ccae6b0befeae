//! What namespaces with a quota hold, as of the last batch that was staged. The writer keeps
//! it: two batches that would fit one by one, and not both, are told apart here.
//!
//! A namespace is looked up in the views when it is met first, and counted from then on. What
//! was taken and the views do not have yet is remembered until they have it.

use std::collections::{HashMap, VecDeque};

use super::{error::AppendError, prepare::Prepared, states::SharedViews};
use crate::domain::{EventBody, Namespace, NamespaceUse, Quotas};

/// Namespaces that are remembered; beyond it they are looked up again.
const NAMESPACES_MAX: usize = 16_384;

/// A batch that the views may not have yet.
struct Taken {
    last_offset: u64,
    namespace: Namespace,
    adds: NamespaceUse,
}

/// What is used, by namespace.
pub(super) struct Usage {
    quotas: Quotas,
    views: SharedViews,
    known: HashMap<Namespace, NamespaceUse>,
    recent: VecDeque<Taken>,
    /// What was taken up to this offset is in the views only.
    pruned_to: u64,
}

impl Usage {
    /// Nothing was taken; the views have come to `committed`.
    pub fn new(quotas: Quotas, views: SharedViews, committed: u64) -> Self {
        Self {
            quotas,
            views,
            known: HashMap::new(),
            recent: VecDeque::new(),
            pruned_to: committed,
        }
    }

    /// Whether a batch fits into its namespace's quota. What says that something is erased
    /// always does: it makes room.
    ///
    /// # Errors
    /// [`AppendError::OverQuota`]; [`AppendError::Unready`] while the views do not say.
    pub fn check(&mut self, prepared: &Prepared) -> Result<(), AppendError> {
        let namespace = &prepared.command.namespace;
        let quota = self.quotas.of(namespace);
        if quota.is_none() || prepared.by_eraser {
            return Ok(());
        }
        let used = self.used(namespace)?;
        match quota.passed(used, adds(prepared)) {
            None => Ok(()),
            Some(passed) => Err(AppendError::OverQuota {
                namespace: namespace.clone(),
                passed,
            }),
        }
    }

    /// Counts a batch that was taken into the staged group.
    pub fn took(&mut self, prepared: &Prepared, last_offset: u64) {
        let namespace = &prepared.command.namespace;
        if self.quotas.of(namespace).is_none() {
            return;
        }
        let adds = adds(prepared);
        if let Some(used) = self.known.get_mut(namespace) {
            *used += adds;
        }
        self.recent.push_back(Taken {
            last_offset,
            namespace: namespace.clone(),
            adds,
        });
    }

    /// The views have all up to an offset.
    pub fn published(&mut self, offset: u64) {
        // They are in the order in which they were taken.
        let old = self
            .recent
            .partition_point(|taken| taken.last_offset <= offset);
        self.recent.drain(..old);
        self.pruned_to = offset;
    }

    /// What was staged behind an offset was not written.
    pub fn aborted(&mut self, committed: u64) {
        self.known.clear();
        self.recent.retain(|taken| taken.last_offset <= committed);
    }

    /// The views were made anew, with less in them, and have come to `published`.
    pub fn forget(&mut self, published: u64) {
        self.known.clear();
        self.recent.clear();
        self.pruned_to = published;
    }

    fn used(&mut self, namespace: &Namespace) -> Result<NamespaceUse, AppendError> {
        if let Some(used) = self.known.get(namespace) {
            return Ok(*used);
        }
        let read = self.views.load().used(namespace);
        let (reached, mut used) = read.map_err(AppendError::of_views)?;
        if reached < self.pruned_to {
            return Err(AppendError::views_behind());
        }
        let later = self
            .recent
            .iter()
            .filter(|taken| taken.last_offset > reached && taken.namespace == *namespace);
        later.for_each(|taken| used += taken.adds);
        if self.known.len() >= NAMESPACES_MAX {
            self.known.clear();
        }
        self.known.insert(namespace.clone(), used);
        Ok(used)
    }
}

/// What a batch brings.
fn adds(prepared: &Prepared) -> NamespaceUse {
    let mut adds = NamespaceUse::default();
    for (event, body) in prepared.command.events.iter().zip(&prepared.bodies) {
        let is_first = matches!(event.body.body(), EventBody::ConversationCreated(_));
        adds += NamespaceUse {
            bytes: NamespaceUse::event_bytes(body.bytes.len() as u64),
            conversations: u64::from(is_first),
        };
    }
    adds
}
