//! Remembers recently recorded reads, so that a read in parts is recorded once.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::bounds::READS_NOTED_MAX;
use treering_access::KeyId;
use treering_domain::{ConversationId, Namespace};

/// Parts of a read within this time are recorded as one.
const ONE_READ: Duration = Duration::from_secs(60);

/// Who read, and which conversation; `None` means all.
type ReadBy = (KeyId, Namespace, Option<ConversationId>);

/// Recently recorded reads. A read in parts does not fill the log.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentReads(Arc<Mutex<HashMap<ReadBy, Instant>>>);

impl RecentReads {
    /// Returns true when such a read was recorded recently.
    pub(crate) fn is_recent(
        &self,
        key: &KeyId,
        of: &Namespace,
        which: Option<ConversationId>,
    ) -> bool {
        let noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = noted.get(&(key.clone(), of.clone(), which));
        at.is_some_and(|at| at.elapsed() < ONE_READ)
    }

    /// Remembers that a read was recorded.
    pub(crate) fn remember(&self, key: &KeyId, of: &Namespace, which: Option<ConversationId>) {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.len() >= READS_NOTED_MAX {
            noted.retain(|_, at| at.elapsed() < ONE_READ);
        }
        // Beyond the limit, reads are recorded more often, never less.
        if noted.len() < READS_NOTED_MAX {
            noted.insert((key.clone(), of.clone(), which), Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A client that reads events one by one must not add an audit entry for each of them. A read in
    // parts is recorded once a minute, for each key and conversation.
    #[tokio::test(start_paused = true)]
    async fn read_in_parts_is_recorded_once() {
        let key = || KeyId::generate().unwrap();
        let (noted, one, other) = (RecentReads::default(), key(), key());
        let namespace = Namespace::default();
        let conversation = Some(ConversationId::generate());
        assert!(!noted.is_recent(&one, &namespace, None));
        noted.remember(&one, &namespace, None);
        assert!(noted.is_recent(&one, &namespace, None));
        assert!(!noted.is_recent(&other, &namespace, None));
        assert!(!noted.is_recent(&one, &namespace, conversation));
        tokio::time::advance(ONE_READ).await;
        assert!(!noted.is_recent(&one, &namespace, None));
        for _ in 0..READS_NOTED_MAX + 1 {
            noted.remember(&one, &namespace, Some(ConversationId::generate()));
        }
        assert_eq!(noted.0.lock().unwrap().len(), READS_NOTED_MAX);
    }
}
