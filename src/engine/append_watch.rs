//! Notifies waiters of appends: to the whole log, or to one conversation.
//!
//! With a single channel, each append would wake every waiter. Conversations instead share a fixed
//! number of channels: an append wakes the waiters of its conversation and the few whose
//! conversations share the channel, and a waiter costs no memory beyond the wait itself.

use std::{
    hash::{BuildHasher, RandomState},
    sync::LazyLock,
};

use tokio::sync::watch;

use treering_domain::ConversationKey;

/// Number of channels that conversations share. About 400 bytes each.
const CHANNELS: usize = 512;

/// The sending side. Receivers end when it is dropped.
#[derive(Debug)]
pub(super) struct AppendNotifier {
    all: watch::Sender<u64>,
    shared: Vec<watch::Sender<u64>>,
}

/// The receiving side. A notification is the log offset that reads have reached.
#[derive(Debug)]
pub(super) struct AppendReceiver {
    all: watch::Receiver<u64>,
    shared: Vec<watch::Receiver<u64>>,
}

/// Creates the channels, starting at a log offset.
pub(super) fn channel(reached: u64) -> (AppendNotifier, AppendReceiver) {
    let (all, hears_all) = watch::channel(reached);
    let (shared, hear) = (0..CHANNELS).map(|_| watch::channel(reached)).unzip();
    let sender = AppendNotifier { all, shared };
    let news = AppendReceiver {
        all: hears_all,
        shared: hear,
    };
    (sender, news)
}

impl AppendNotifier {
    /// Announces that reads see the log up to this offset, and that these conversations have grown.
    pub(crate) fn announce(
        &self,
        reached: u64,
        conversations: impl Iterator<Item = ConversationKey>,
    ) {
        let mut told = [false; CHANNELS];
        for conversation in conversations {
            let channel = channel_of(conversation);
            if !std::mem::replace(&mut told[channel], true) {
                self.shared[channel].send_replace(reached);
            }
        }
        self.all.send_replace(reached);
    }
}

impl AppendReceiver {
    /// Returns a receiver for every append. Notifications from before this call count as unseen.
    pub(crate) fn of_log(&self) -> watch::Receiver<u64> {
        self.all.clone()
    }

    /// Returns a receiver for later appends to this conversation, and to some others.
    pub(crate) fn of(&self, conversation: ConversationKey) -> watch::Receiver<u64> {
        let mut news = self.shared[channel_of(conversation)].clone();
        news.mark_unchanged();
        news
    }
}

fn channel_of(conversation: ConversationKey) -> usize {
    // Clients choose ids, so only a hash that they do not know spreads them evenly.
    static HASH: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    HASH.hash_one(conversation) as usize % CHANNELS
}

#[cfg(test)]
mod tests {
    use super::*;
    use treering_domain::{ConversationId, Namespace};

    fn id(number: u128) -> ConversationKey {
        Namespace::default().key(ConversationId(uuid::Uuid::from_u128(number)))
    }

    // If each append woke ten thousand agents that wait for decisions, each of them would look up
    // its branch.
    #[test]
    fn append_wakes_waiters_of_its_conversation() {
        let (sender, news) = channel(0);
        let waiting: Vec<_> = (0..10_000).map(|number| news.of(id(number))).collect();
        sender.announce(1, std::iter::once(id(77)));
        assert_eq!(news.of(id(77)).has_changed().ok(), Some(false), "a new one");
        let is_woken = |news: &watch::Receiver<u64>| news.has_changed().is_ok_and(|news| news);
        assert!(is_woken(&waiting[77]));
        let woken = waiting.iter().filter(|news| is_woken(news)).count();
        assert!(woken < 100, "{woken} of 10,000 were woken");
        assert_eq!(*news.of_log().borrow(), 1);
    }

    #[test]
    fn watch_channels_close_with_their_sender() {
        let (sender, news) = channel(0);
        drop(sender);
        assert!(news.of(id(1)).has_changed().is_err());
        assert!(news.of_log().has_changed().is_err());
    }
}
