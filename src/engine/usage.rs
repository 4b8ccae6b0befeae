//! Usage of namespaces with a quota, as of the last staged batch. The writer maintains it, to
//! detect two batches that fit separately but not together.
//!
//! A namespace's usage is read from the projections at the first use and counted from then on.
//! Batches that the projections lack are remembered until the projections have them.

use std::collections::{HashMap, VecDeque};

use super::{error::AppendError, prepare::ValidatedBatch, states::SharedProjections};
use treering_domain::{EventBody, Namespace, NamespaceUse, Quotas};

/// Maximum number of cached namespaces. At the limit, the cache is cleared.
const NAMESPACES_MAX: usize = 16_384;

/// A batch that the projections may lack.
struct PendingUsage {
    last_offset: u64,
    namespace: Namespace,
    adds: NamespaceUse,
}

/// The usage by namespace.
pub(super) struct Usage {
    quotas: Quotas,
    projections: SharedProjections,
    known: HashMap<Namespace, NamespaceUse>,
    recent: VecDeque<PendingUsage>,
    /// Batches up to this offset are no longer remembered, because the projections have them.
    pruned_to: u64,
}

impl Usage {
    /// Creates an empty count; the projections have reached `committed`.
    pub(crate) fn new(quotas: Quotas, projections: SharedProjections, committed: u64) -> Self {
        Self {
            quotas,
            projections,
            known: HashMap::new(),
            recent: VecDeque::new(),
            pruned_to: committed,
        }
    }

    /// Checks that a batch fits its namespace's quota. Records of erasures always fit, because they
    /// make room.
    ///
    /// # Errors
    /// [`AppendError::OverQuota`]; [`AppendError::Unready`] while the projections cannot tell.
    pub(crate) fn check(&mut self, prepared: &ValidatedBatch) -> Result<(), AppendError> {
        let namespace = &prepared.command.namespace;
        let quota = self.quotas.of(namespace);
        if quota.is_none() || prepared.by_eraser {
            return Ok(());
        }
        let used = self.used(namespace)?;
        match quota.exceeded_part(used, adds(prepared)) {
            None => Ok(()),
            Some(passed) => Err(AppendError::OverQuota {
                namespace: namespace.clone(),
                passed,
            }),
        }
    }

    /// Counts a batch that was added to the staged group.
    pub(crate) fn took(&mut self, prepared: &ValidatedBatch, last_offset: u64) {
        let namespace = &prepared.command.namespace;
        if self.quotas.of(namespace).is_none() {
            return;
        }
        let adds = adds(prepared);
        if let Some(used) = self.known.get_mut(namespace) {
            *used += adds;
        }
        self.recent.push_back(PendingUsage {
            last_offset,
            namespace: namespace.clone(),
            adds,
        });
    }

    /// Forgets batches up to an offset that the projections have reached.
    pub(crate) fn published(&mut self, offset: u64) {
        // The batches are in the order of staging.
        let old = self
            .recent
            .partition_point(|taken| taken.last_offset <= offset);
        self.recent.drain(..old);
        self.pruned_to = offset;
    }

    /// Forgets batches that were staged after an offset and not written.
    pub(crate) fn aborted(&mut self, committed: u64) {
        self.known.clear();
        self.recent.retain(|taken| taken.last_offset <= committed);
    }

    /// Resets the counts after the projections were rebuilt with less content and have reached
    /// `published`.
    pub(crate) fn forget(&mut self, published: u64) {
        self.known.clear();
        self.recent.clear();
        self.pruned_to = published;
    }

    fn used(&mut self, namespace: &Namespace) -> Result<NamespaceUse, AppendError> {
        if let Some(used) = self.known.get(namespace) {
            return Ok(*used);
        }
        let read = self.projections.load().used(namespace);
        let (reached, mut used) = read.map_err(AppendError::from_projections)?;
        if reached < self.pruned_to {
            return Err(AppendError::projections_behind());
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

/// Returns what a batch adds.
fn adds(prepared: &ValidatedBatch) -> NamespaceUse {
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
