//! How many conversations each key has read whole of late.
//!
//! A client that takes much out of a store need not say so. What it reads shows it all the
//! same, if it reads conversations as such, and many in a short time.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::bounds::WHOLE_READS_NOTED;
use crate::{access::KeyId, codec::pb, domain::ConversationId};

/// How long a conversation that was read is remembered: many are many within this.
const WITHIN: Duration = Duration::from_secs(60 * 60);

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
