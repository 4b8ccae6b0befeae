//! Tells those who wait that something was appended: to the log as a whole, or to
//! one conversation.
//!
//! Were there one channel, each append would wake everyone who waits anywhere.
//! Conversations share a fixed number of channels instead: an append wakes those
//! who wait for its conversation, and the few whose conversation shares the
//! channel; and who waits costs no memory beyond the wait itself.

use tokio::sync::watch;

use crate::domain::ConversationId;

/// Channels that conversations share. About 400 bytes each.
const CHANNELS: usize = 512;

/// Where news come from. The news end when it is dropped.
#[derive(Debug)]
pub(super) struct Sender {
    all: watch::Sender<u64>,
    shared: Vec<watch::Sender<u64>>,
}

/// Where news are heard. What is heard is the log offset that reads had come to.
#[derive(Debug)]
pub(super) struct News {
    all: watch::Receiver<u64>,
    shared: Vec<watch::Receiver<u64>>,
}

/// News from a log offset on.
pub(super) fn channel(reached: u64) -> (Sender, News) {
    let (all, hears_all) = watch::channel(reached);
    let (shared, hear) = (0..CHANNELS).map(|_| watch::channel(reached)).unzip();
    let sender = Sender { all, shared };
    let news = News {
        all: hears_all,
        shared: hear,
    };
    (sender, news)
}

impl Sender {
    /// Reads see the log up to this offset; these conversations have grown.
    pub fn tell(&self, reached: u64, conversations: impl Iterator<Item = ConversationId>) {
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

impl News {
    /// Of every append. What was told before it was asked for is news as well.
    pub fn of_log(&self) -> watch::Receiver<u64> {
        self.all.clone()
    }

    /// Of every append to this conversation from now on, and of some others.
    pub fn of(&self, conversation: ConversationId) -> watch::Receiver<u64> {
        let mut news = self.shared[channel_of(conversation)].clone();
        news.mark_unchanged();
        news
    }
}

fn channel_of(conversation: ConversationId) -> usize {
    // Clients choose ids: what is even in them is the hash's business.
    let hash = blake3::hash(conversation.0.as_bytes());
    let [first, second, ..] = *hash.as_bytes();
    usize::from(u16::from_le_bytes([first, second])) % CHANNELS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u128) -> ConversationId {
        ConversationId(uuid::Uuid::from_u128(number))
    }

    // Ten thousand agents that wait for a decision were all woken by each append of
    // any other one, and each looked its branch up.
    #[test]
    fn an_append_wakes_who_waits_for_its_conversation() {
        let (sender, news) = channel(0);
        let waiting: Vec<_> = (0..10_000).map(|number| news.of(id(number))).collect();
        sender.tell(1, std::iter::once(id(77)));
        assert_eq!(news.of(id(77)).has_changed().ok(), Some(false), "a new one");
        let is_woken = |news: &watch::Receiver<u64>| news.has_changed().is_ok_and(|news| news);
        assert!(is_woken(&waiting[77]));
        let woken = waiting.iter().filter(|news| is_woken(news)).count();
        assert!(woken < 100, "{woken} of 10,000 were woken");
        assert_eq!(*news.of_log().borrow(), 1);
    }

    #[test]
    fn news_end_with_their_sender() {
        let (sender, news) = channel(0);
        drop(sender);
        assert!(news.of(id(1)).has_changed().is_err());
        assert!(news.of_log().has_changed().is_err());
    }
}
