//! In-memory caches between requests: windows, token counts, and the requests sent last. All are
//! bounded, and none is needed for correctness.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use quick_cache::{Weighter, sync::Cache};

use crate::memory::{self, Shares};
use treering_context::{
    Provider,
    called_tools::CalledTools,
    prefix::SentUnits,
    tokens::{TextKey, TokenMemo},
    window::{FoldedWindow, LongTermEntry, WindowEvent},
};
use treering_domain::{
    BranchId, ConversationId, ConversationKey, EventRef, Limits, Namespace, Revision,
};

/// Maximum number of cached token counts: enough for the messages of a few thousand windows. About
/// 64 bytes each.
const COUNTS_MAX: usize = 1 << 17;
/// Size of a namespace's entry without its keys and values, in bytes.
const ENTRY_BYTES: u64 = 256;
/// Size of a cached event without its content, in bytes.
const EVENT_BYTES: u64 = 320;

/// A branch's window as last read.
#[derive(Debug)]
pub(super) struct CachedWindow {
    pub(crate) head: Revision,
    pub(crate) compaction: Option<EventRef>,
    pub(crate) events: Vec<Arc<WindowEvent>>,
    pub(crate) referred: BTreeMap<EventRef, Arc<WindowEvent>>,
    /// The items of its messages and steps, with token counts and explanations computed for earlier
    /// requests.
    pub(crate) folded: Arc<FoldedWindow>,
    /// Tools known from calls before the cut, if no tools are defined.
    pub(crate) earlier_tools: Arc<CalledTools>,
    /// Estimated size of its events, in bytes.
    pub(crate) bytes: u64,
    /// Estimated size of its items once counted and explained, in bytes.
    pub(crate) items_bytes: u64,
}

/// The cache key of a branch. An erasure changes it, so older entries are no longer found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct WindowKey {
    conversation: ConversationKey,
    branch: BranchId,
    erasures: u64,
}

#[derive(Clone)]
pub(super) struct WindowWeigher;

impl Weighter<WindowKey, Arc<CachedWindow>> for WindowWeigher {
    fn weight(&self, _: &WindowKey, window: &Arc<CachedWindow>) -> u64 {
        (window.bytes + window.items_bytes).max(1)
    }
}

/// Weighs a remembered request by its size, but by at least `least`, so that the number of requests
/// is bounded too.
#[derive(Clone)]
pub(super) struct SentWeigher {
    least: u64,
}

impl Weighter<SentKey, Arc<SentUnits>> for SentWeigher {
    fn weight(&self, to: &SentKey, sent: &Arc<SentUnits>) -> u64 {
        let names = to.model.len() + size_of::<SentKey>();
        (sent.memory_bytes() + names as u64).max(self.least)
    }
}

#[derive(Clone)]
pub(super) struct LongTermWeigher;

impl Weighter<(Namespace, u64), Arc<CachedLongTerm>> for LongTermWeigher {
    fn weight(&self, _: &(Namespace, u64), kept: &Arc<CachedLongTerm>) -> u64 {
        let bytes = kept
            .entries
            .iter()
            .map(|entry| size_of::<LongTermEntry>() + entry.key.len() + entry.value.as_str().len());
        ENTRY_BYTES + bytes.sum::<usize>() as u64
    }
}

/// The key of a remembered request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SentKey {
    pub(crate) namespace: Namespace,
    pub(crate) conversation: ConversationId,
    pub(crate) branch: BranchId,
    pub(crate) provider: Provider,
    pub(crate) model: String,
}

/// A namespace's long-term context as of a revision of its conversation.
#[derive(Debug)]
pub(super) struct CachedLongTerm {
    pub(crate) head: Revision,
    pub(crate) entries: Vec<LongTermEntry>,
}

struct Counts(Cache<TextKey, u64>);

impl TokenMemo for Counts {
    fn get(&self, key: TextKey) -> Option<u64> {
        self.0.get(&key)
    }

    fn put(&self, key: TextKey, tokens: u64) {
        self.0.insert(key, tokens);
    }
}

/// The caches.
pub(crate) struct ContextCaches {
    pub(super) windows: Cache<WindowKey, Arc<CachedWindow>, WindowWeigher>,
    pub(super) sent: Cache<SentKey, Arc<SentUnits>, SentWeigher>,
    /// By namespace and number of erasures.
    pub(super) long_term: Cache<(Namespace, u64), Arc<CachedLongTerm>, LongTermWeigher>,
    counts: Arc<Counts>,
    erasures: AtomicU64,
}

impl fmt::Debug for ContextCaches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContextCaches")
            .field("windows", &self.windows.len())
            .field("sent", &self.sent.len())
            .field("counts", &self.counts.0.len())
            .finish_non_exhaustive()
    }
}

impl ContextCaches {
    pub(crate) fn new(limits: &Limits, shares: Shares) -> Self {
        /// This small number keeps each cache in one shard. With several shards, none could hold a
        /// window larger than its share.
        const WINDOWS_EXPECTED: usize = 32;
        let sent_bytes_max = shares.remembered_requests;
        let sent_weight = SentWeigher {
            least: sent_bytes_max / limits.remembered_requests_max.max(1) as u64,
        };
        Self {
            windows: Cache::with_weighter(WINDOWS_EXPECTED, shares.windows, WindowWeigher),
            sent: Cache::with_weighter(WINDOWS_EXPECTED, sent_bytes_max, sent_weight),
            long_term: Cache::with_weighter(WINDOWS_EXPECTED, shares.long_term, LongTermWeigher),
            counts: Arc::new(Counts(Cache::new(COUNTS_MAX))),
            erasures: AtomicU64::new(0),
        }
    }

    /// Clears all caches after an erasure. Content of reads in progress is not cached either.
    pub(crate) fn forget(&self) {
        self.erasures.fetch_add(1, Ordering::AcqRel);
        self.windows.clear();
        self.sent.clear();
        self.long_term.clear();
        self.counts.0.clear();
    }

    /// Returns how often the caches were cleared.
    pub(super) fn erasures(&self) -> u64 {
        self.erasures.load(Ordering::Acquire)
    }

    /// Returns the cache key for a read of a branch's window that starts now.
    pub(super) fn window_key(&self, conversation: ConversationKey, branch: BranchId) -> WindowKey {
        WindowKey {
            conversation,
            branch,
            erasures: self.erasures(),
        }
    }

    /// Returns the caches that share the store's memory.
    pub(crate) fn shared(&self) -> [&dyn memory::Cache; 3] {
        [&self.windows, &self.sent, &self.long_term]
    }

    /// Returns the cache of token counts.
    pub(super) fn counts(&self) -> Arc<dyn TokenMemo> {
        Arc::clone(&self.counts) as Arc<dyn TokenMemo>
    }
}

/// Estimates the memory size of an event from the length of its body.
pub(super) fn event_bytes(body: u64) -> u64 {
    // The text itself, and the overhead of its strings.
    EVENT_BYTES + body + body / 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use treering_context::{Draft, Provider, provider::CacheUnit};
    use treering_domain::Config;

    fn sent(units: usize) -> Arc<SentUnits> {
        let draft = Draft {
            provider: Provider::Neutral,
            config: Config::default(),
            tools: Vec::new(),
            tools_tokens: 0,
            items: Vec::new(),
            warnings: Vec::new(),
        };
        let unit = CacheUnit {
            hash: 0,
            bytes: 1,
            items: Vec::new(),
        };
        Arc::new(SentUnits::new(Revision(1), &draft, &vec![unit; units]))
    }

    // A bound on the number of remembered requests does not bound their memory: a request of a
    // large window takes megabytes.
    #[test]
    fn request_cache_is_bounded_in_bytes() {
        let limits = Limits {
            remembered_requests_max: 100,
            ..Limits::default()
        };
        let shares = Shares {
            remembered_requests: 1 << 20,
            ..Shares::of(&limits)
        };
        let caches = ContextCaches::new(&limits, shares);
        let fill = |units: usize| {
            for number in 0..300 {
                let to = SentKey {
                    namespace: Namespace::default(),
                    conversation: ConversationId(uuid::Uuid::from_u128(number)),
                    branch: BranchId::MAIN,
                    provider: Provider::Neutral,
                    model: String::new(),
                };
                caches.sent.insert(to, sent(units));
            }
            (caches.sent.len(), caches.sent.weight())
        };
        let (small, _) = fill(1);
        assert!((50..=100).contains(&small), "{small} small ones");
        let (_, bytes) = fill(2_000);
        assert!(bytes <= 1 << 20, "{bytes} bytes of large ones");
    }
}
