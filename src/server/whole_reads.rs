//! How many conversations each key has read whole of late, and which reads were noted.
//!
//! A client that takes much out of a store need not say so. What it reads shows it all the
//! same, if it reads conversations as such, and many in a short time.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::bounds::{READS_NOTED_MAX, WHOLE_READS_NOTED};
use crate::{
    access::KeyId,
    codec::pb,
    domain::{ConversationId, Namespace},
};

/// How long a conversation that was read is remembered: many are many within this.
const WITHIN: Duration = Duration::from_secs(60 * 60);
/// Parts of a read that come within this are noted as one.
const ONE_READ: Duration = Duration::from_secs(60);

/// What was read: of whom, and which conversation; none: all.
type ReadBy = (KeyId, Namespace, Option<ConversationId>);

/// Reads that were noted of late: one that comes in parts fills no log.
#[derive(Clone, Debug, Default)]
pub(super) struct NotedReads(Arc<Mutex<HashMap<ReadBy, Instant>>>);

impl NotedReads {
    /// True when such a read was noted a moment ago.
    pub fn is_recent(&self, key: &KeyId, of: &Namespace, which: Option<ConversationId>) -> bool {
        let noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = noted.get(&(key.clone(), of.clone(), which));
        at.is_some_and(|at| at.elapsed() < ONE_READ)
    }

    /// One was noted.
    pub fn remember(&self, key: &KeyId, of: &Namespace, which: Option<ConversationId>) {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.len() >= READS_NOTED_MAX {
            noted.retain(|_, at| at.elapsed() < ONE_READ);
        }
        // Beyond it they are noted more often, and none less.
        if noted.len() < READS_NOTED_MAX {
            noted.insert((key.clone(), of.clone(), which), Instant::now());
        }
    }
}

/// What each key has read whole.
#[derive(Clone, Debug, Default)]
pub(super) struct WholeReads(Arc<Mutex<HashMap<KeyId, Lately>>>);

#[derive(Debug)]
struct Lately {
    since: Instant,
    conversations: HashSet<ConversationId>,
}

impl WholeReads {
    /// A key reads a whole conversation. True: with this one they are many, and counting
    /// begins anew.
    pub fn are_many(&self, key: &KeyId, conversation: ConversationId) -> bool {
        let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lately = keys.entry(key.clone()).or_insert_with(|| Lately {
            since: Instant::now(),
            conversations: HashSet::new(),
        });
        if lately.since.elapsed() >= WITHIN {
            lately.since = Instant::now();
            lately.conversations.clear();
        }
        lately.conversations.insert(conversation);
        if lately.conversations.len() < WHOLE_READS_NOTED {
            return false;
        }
        keys.remove(key);
        true
    }
}

/// True when a read asks for all of its conversation or branch, bodies and all.
pub(super) fn is_whole(request: &pb::ReadRequest) -> bool {
    let from_start = request.from_revision <= 1 || request.backward;
    let to_end = request.to_revision == 0 && request.limit == 0;
    from_start && to_end && request.kinds.is_empty() && !request.headers_only
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> KeyId {
        KeyId::generate().unwrap()
    }

    // Who reads a store out one conversation at a time must be noticed, and an agent that
    // reads its own again and again, or some each hour, must not fill the audit.
    #[tokio::test(start_paused = true)]
    async fn many_conversations_are_many_within_an_hour() {
        let (reads, thief, agent) = (WholeReads::default(), key(), key());
        let own = ConversationId::generate();
        assert!((0..10_000).all(|_| !reads.are_many(&agent, own)));
        let mut noted = 0;
        for _ in 0..2 * WHOLE_READS_NOTED {
            noted += usize::from(reads.are_many(&thief, ConversationId::generate()));
        }
        assert_eq!(noted, 2);
        for _ in 0..WHOLE_READS_NOTED - 1 {
            assert!(!reads.are_many(&thief, ConversationId::generate()));
        }
        tokio::time::advance(WITHIN).await;
        assert!(!reads.are_many(&thief, ConversationId::generate()));
    }

    // A reader that read the log event by event made the log twice as long: a read in parts is
    // noted once a minute, of each key and each conversation.
    #[tokio::test(start_paused = true)]
    async fn a_read_in_parts_is_noted_once() {
        let (noted, one, other) = (NotedReads::default(), key(), key());
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

    // A page of a list is no whole conversation, and one read from its end is one.
    #[test]
    fn parts_are_not_whole() {
        let whole = pb::ReadRequest::default;
        let with = |change: fn(&mut pb::ReadRequest)| {
            let mut request = whole();
            change(&mut request);
            is_whole(&request)
        };
        assert!(
            is_whole(&whole()) && with(|it| it.from_revision = 1) && with(|it| it.backward = true)
        );
        for part in [
            with(|it| it.from_revision = 2),
            with(|it| it.to_revision = 9),
            with(|it| it.limit = 50),
            with(|it| it.kinds = vec![1]),
            with(|it| it.headers_only = true),
        ] {
            assert!(!part);
        }
    }
}
