//! Counts how much a key has read recently, over all methods: conversations, and bytes of answers.
//!
//! Counts are lost when the server stops. When the reads of a key reach a bound, the server must
//! record that in the audit log, at most once per time window.

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use treering_domain::{ConversationId, ConversationKey, Namespace};

/// The bounds at which a key's reads must be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadBounds {
    /// Different conversations.
    pub conversations: usize,
    /// Bytes of answers.
    pub bytes: u64,
    /// The length of the time window, which begins with a read.
    pub within: Duration,
}

/// The bound that was passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExceededReadBound {
    /// The number of conversations.
    Conversations(usize),
    /// The number of bytes.
    Bytes(u64),
}

/// Counts of a key's reads.
#[derive(Debug, Default)]
pub struct Reads(Mutex<ReadCounts>);

#[derive(Debug, Default)]
struct ReadCounts {
    since: Option<Instant>,
    /// Not more than the bound: further conversations do not matter.
    conversations: HashSet<ConversationKey>,
    bytes: u64,
    of_conversations: BoundStatus,
    of_bytes: BoundStatus,
}

/// Whether a bound was passed in this time window, and whether that was recorded.
#[derive(Debug, Default)]
enum BoundStatus {
    #[default]
    Below,
    /// Passed by a read of this namespace, not recorded yet.
    Due(Namespace),
    Done,
}

impl BoundStatus {
    fn pass(&mut self, namespace: &Namespace) {
        if matches!(self, Self::Below) {
            *self = Self::Due(namespace.clone());
        }
    }

    fn restart_window(&mut self) {
        if matches!(self, Self::Done) {
            *self = Self::Below;
        }
    }

    fn due(&self) -> Option<&Namespace> {
        match self {
            Self::Due(namespace) => Some(namespace),
            Self::Below | Self::Done => None,
        }
    }
}

impl Reads {
    fn lock(&self) -> MutexGuard<'_, ReadCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts conversations of a namespace that are read.
    pub fn add_conversations(
        &self,
        namespace: &Namespace,
        ids: impl IntoIterator<Item = ConversationId>,
        bounds: ReadBounds,
    ) {
        let mut counted = self.lock();
        counted.look_at_clock(bounds);
        for id in ids {
            if counted.conversations.len() >= bounds.conversations {
                break;
            }
            counted.conversations.insert(namespace.key(id));
        }
        if counted.conversations.len() >= bounds.conversations {
            counted.of_conversations.pass(namespace);
        }
    }

    /// Counts bytes of an answer to a call in a namespace.
    pub fn add_bytes(&self, namespace: &Namespace, bytes: usize, bounds: ReadBounds) {
        let mut counted = self.lock();
        counted.look_at_clock(bounds);
        counted.bytes = counted.bytes.saturating_add(bytes as u64);
        if counted.bytes >= bounds.bytes {
            counted.of_bytes.pass(namespace);
        }
    }

    /// Returns the passed bounds that are not recorded yet, each with the namespace of the read
    /// that passed it.
    #[must_use]
    pub fn due(&self, bounds: ReadBounds) -> Vec<(ExceededReadBound, Namespace)> {
        let counted = self.lock();
        let conversations = ExceededReadBound::Conversations(bounds.conversations);
        let bytes = ExceededReadBound::Bytes(bounds.bytes);
        let of = [
            (conversations, &counted.of_conversations),
            (bytes, &counted.of_bytes),
        ];
        of.into_iter()
            .filter_map(|(many, noted)| Some((many, noted.due()?.clone())))
            .collect()
    }

    /// Marks a passed bound as recorded.
    pub fn note(&self, many: ExceededReadBound) {
        let mut counted = self.lock();
        match many {
            ExceededReadBound::Conversations(_) => counted.of_conversations = BoundStatus::Done,
            ExceededReadBound::Bytes(_) => counted.of_bytes = BoundStatus::Done,
        }
    }

    /// Returns the number of different conversations, up to the bound.
    #[must_use]
    pub fn conversations(&self) -> usize {
        self.lock().conversations.len()
    }

    /// Returns the bytes of answers.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.lock().bytes
    }
}

impl ReadCounts {
    fn look_at_clock(&mut self, bounds: ReadBounds) {
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= bounds.within {
            self.since = Some(Instant::now());
            self.conversations.clear();
            self.bytes = 0;
            self.of_conversations.restart_window();
            self.of_bytes.restart_window();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: ReadBounds = ReadBounds {
        conversations: 100,
        bytes: 1_000,
        within: Duration::from_secs(3_600),
    };

    // A key that reads a whole store must be recorded, once an hour and not at each read. An agent
    // that rereads its own conversation must not be recorded.
    #[tokio::test(start_paused = true)]
    async fn mass_reading_is_recorded_once_an_hour() {
        let (thief, agent) = (Reads::default(), Reads::default());
        let (namespace, own) = (Namespace::default(), ConversationId::generate());
        let read = |reads: &Reads, count: usize| {
            let ids = std::iter::repeat_with(ConversationId::generate).take(count);
            reads.add_conversations(&namespace, ids, BOUNDS);
        };
        for _ in 0..10_000 {
            agent.add_conversations(&namespace, [own], BOUNDS);
        }
        assert_eq!((agent.conversations(), agent.due(BOUNDS)), (1, vec![]));

        read(&thief, 99);
        assert!(thief.due(BOUNDS).is_empty());
        read(&thief, 10_000);
        let many = ExceededReadBound::Conversations(100);
        assert_eq!(thief.due(BOUNDS), [(many, namespace.clone())]);
        assert_eq!(thief.conversations(), 100, "no more are kept");
        thief.note(many);
        read(&thief, 10_000);
        assert!(thief.due(BOUNDS).is_empty(), "it was noted this hour");

        tokio::time::advance(BOUNDS.within).await;
        read(&thief, 1);
        assert_eq!((thief.conversations(), thief.due(BOUNDS)), (1, vec![]));
        read(&thief, 100);
        assert_eq!(thief.due(BOUNDS).len(), 1);
    }

    // A passed bound that could not be recorded within its hour must stay due.
    #[tokio::test(start_paused = true)]
    async fn unrecorded_mass_reading_stays_due() {
        let (reads, namespace) = (Reads::default(), Namespace::default());
        reads.add_bytes(&namespace, 999, BOUNDS);
        assert!(reads.due(BOUNDS).is_empty());
        reads.add_bytes(&namespace, 1, BOUNDS);
        tokio::time::advance(BOUNDS.within).await;
        reads.add_bytes(&namespace, 1, BOUNDS);
        assert_eq!(reads.bytes(), 1);
        let due = [(ExceededReadBound::Bytes(1_000), namespace)];
        assert_eq!(reads.due(BOUNDS), due);
        reads.note(due[0].0);
        assert!(reads.due(BOUNDS).is_empty());
    }
}
