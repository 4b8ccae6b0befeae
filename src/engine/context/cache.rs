//! What is kept in memory between requests: windows, token counts, and what was
//! sent last. All of it is bounded, and none of it is needed.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use quick_cache::{Weighter, sync::Cache};

use crate::{
    context::{
        Provider,
        called::CalledTools,
        prefix::SentUnits,
        provider::Check,
        tokens::{TextKey, TokenMemo},
        window::{Folded, LongTermEntry, WindowEvent},
    },
    domain::{BranchId, ConversationId, EventRef, Limits, Namespace, Revision},
    engine::memory::{self, Shares},
};

/// Token counts that are remembered: those of some thousand windows' messages.
/// In memory about 64 bytes each.
const COUNTS_MAX: usize = 1 << 17;
/// Conversations whose first request is known to have been checked. In memory about
/// 64 bytes each; of one that is forgotten another request is checked.
const BEGUN_MAX: usize = 1 << 14;
/// What a namespace's entry takes beside its keys and values, in bytes.
const ENTRY_BYTES: u64 = 256;
/// What a kept event takes beside its content, in bytes.
const EVENT_BYTES: u64 = 320;

/// A branch's window as it was read last.
#[derive(Debug)]
pub(super) struct KeptWindow {
    pub head: Revision,
    pub compaction: Option<EventRef>,
    pub events: Vec<Arc<WindowEvent>>,
    pub referred: BTreeMap<EventRef, Arc<WindowEvent>>,
    /// The items of its messages and steps, with what requests have counted and told
    /// of them.
    pub folded: Arc<Folded>,
    /// What calls behind the cut have shown, where no tools are defined.
    pub earlier_tools: Arc<CalledTools>,
    /// Estimate of what its events take.
    pub bytes: u64,
    /// Estimate of what its items take, once they were counted and told.
    pub items_bytes: u64,
}

/// A branch, as long as nothing is erased: what was read before is not found afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct WindowKey {
    conversation: ConversationId,
    branch: BranchId,
    erasures: u64,
}

#[derive(Clone)]
pub(super) struct ByBytes;

impl Weighter<WindowKey, Arc<KeptWindow>> for ByBytes {
    fn weight(&self, _: &WindowKey, window: &Arc<KeptWindow>) -> u64 {
        (window.bytes + window.items_bytes).max(1)
    }
}

/// Weighs what was sent; never less than its part of the bound on their number.
#[derive(Clone)]
pub(super) struct SentWeight {
    least: u64,
}

impl Weighter<SentTo, Arc<SentUnits>> for SentWeight {
    fn weight(&self, to: &SentTo, sent: &Arc<SentUnits>) -> u64 {
        let names = to.model.len() + size_of::<SentTo>();
        (sent.memory_bytes() + names as u64).max(self.least)
    }
}

#[derive(Clone)]
pub(super) struct LongTermWeight;

impl Weighter<(Namespace, u64), Arc<KeptLongTerm>> for LongTermWeight {
    fn weight(&self, _: &(Namespace, u64), kept: &Arc<KeptLongTerm>) -> u64 {
        let bytes = kept
            .entries
            .iter()
            .map(|entry| size_of::<LongTermEntry>() + entry.key.len() + entry.value.as_str().len());
        ENTRY_BYTES + bytes.sum::<usize>() as u64
    }
}

/// Whose last request is remembered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SentTo {
    pub namespace: Namespace,
    pub conversation: ConversationId,
    pub branch: BranchId,
    pub provider: Provider,
    pub model: String,
}

/// A namespace's long-term context as of a revision of its conversation.
#[derive(Debug)]
pub(super) struct KeptLongTerm {
    pub head: Revision,
    pub entries: Vec<LongTermEntry>,
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

/// Which finished bodies are read again, to check them against their provider's
/// rules.
pub(super) struct Checks {
    /// One of so many; 0: none.
    one_in: u64,
    built: AtomicU64,
    /// Those whose first request was checked.
    begun: Cache<(ConversationId, Provider), ()>,
}

impl Checks {
    fn new(one_in: u64) -> Self {
        Self {
            one_in,
            built: AtomicU64::new(0),
            begun: Cache::new(BEGUN_MAX),
        }
    }

    /// Whether to check the next request of a conversation.
    pub fn next(&self, conversation: ConversationId, provider: Provider) -> Check {
        let to = (conversation, provider);
        let wanted = match self.one_in {
            0 => false,
            1 => true,
            one_in => {
                let is_first = self.begun.get(&to).is_none();
                if is_first {
                    self.begun.insert(to, ());
                }
                is_first
                    || self
                        .built
                        .fetch_add(1, Ordering::Relaxed)
                        .is_multiple_of(one_in)
            }
        };
        if wanted { Check::Body } else { Check::Nothing }
    }
}

/// All of it.
pub(in crate::engine) struct ContextCaches {
    pub(super) windows: Cache<WindowKey, Arc<KeptWindow>, ByBytes>,
    pub(super) sent: Cache<SentTo, Arc<SentUnits>, SentWeight>,
    /// By namespace, as long as nothing is erased.
    pub(super) long_term: Cache<(Namespace, u64), Arc<KeptLongTerm>, LongTermWeight>,
    pub(super) checks: Checks,
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
    pub(in crate::engine) fn new(limits: &Limits, shares: Shares) -> Self {
        /// So few keep a cache in one piece: in several, none could hold a
        /// window that is larger than its share.
        const WINDOWS_EXPECTED: usize = 32;
        let sent_bytes_max = shares.remembered_requests;
        let sent_weight = SentWeight {
            least: sent_bytes_max / limits.remembered_requests_max.max(1) as u64,
        };
        Self {
            windows: Cache::with_weighter(WINDOWS_EXPECTED, shares.windows, ByBytes),
            sent: Cache::with_weighter(WINDOWS_EXPECTED, sent_bytes_max, sent_weight),
            long_term: Cache::with_weighter(WINDOWS_EXPECTED, shares.long_term, LongTermWeight),
            checks: Checks::new(u64::from(limits.check_one_in)),
            counts: Arc::new(Counts(Cache::new(COUNTS_MAX))),
            erasures: AtomicU64::new(0),
        }
    }

    /// Forgets everything: something was erased. What is being read is not kept either.
    pub(in crate::engine) fn forget(&self) {
        self.erasures.fetch_add(1, Ordering::AcqRel);
        self.windows.clear();
        self.sent.clear();
        self.long_term.clear();
        self.counts.0.clear();
    }

    /// How often everything was forgotten.
    pub(super) fn erasures(&self) -> u64 {
        self.erasures.load(Ordering::Acquire)
    }

    /// Under which a branch's window is kept that is read from now on.
    pub(super) fn window_key(&self, conversation: ConversationId, branch: BranchId) -> WindowKey {
        WindowKey {
            conversation,
            branch,
            erasures: self.erasures(),
        }
    }

    /// Those that share the store's memory.
    pub(in crate::engine) fn shared(&self) -> [&dyn memory::Cache; 3] {
        [&self.windows, &self.sent, &self.long_term]
    }

    /// Where token counts are kept.
    pub(super) fn counts(&self) -> Arc<dyn TokenMemo> {
        Arc::clone(&self.counts) as Arc<dyn TokenMemo>
    }
}

/// What an event takes in memory, from the length of its body.
pub(super) fn event_bytes(body: u64) -> u64 {
    // Text once, and its strings' own overhead.
    EVENT_BYTES + body + body / 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        context::{Draft, Provider, provider::CacheUnit},
        domain::Config,
    };

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

    // Reading every body again took half of the time of making it. The first one of
    // each conversation and provider is read, and then one of so many; all or none
    // where that is asked for.
    #[test]
    fn bodies_are_checked_as_the_limit_says() {
        let checked = |one_in: u32, requests: &[(u128, Provider)]| {
            let checks = Checks::new(u64::from(one_in));
            let check = |&(number, provider): &(u128, Provider)| {
                let id = ConversationId(uuid::Uuid::from_u128(number));
                checks.next(id, provider) == Check::Body
            };
            requests.iter().map(check).collect::<Vec<_>>()
        };
        let (a, b) = ((1, Provider::Anthropic), (1, Provider::Gemini));
        let other = (2, Provider::Anthropic);
        assert_eq!(checked(64, &[a, b, other]), [true; 3]);
        let many = checked(64, &[a; 641]);
        assert_eq!(many.iter().filter(|checked| **checked).count(), 11);
        assert_eq!(checked(1, &[a; 9]), [true; 9]);
        assert_eq!(checked(0, &[a; 9]), [false; 9]);
    }

    // Memory went on rising under a mixed load: what was sent was bounded by number,
    // and a request of a large window is remembered with megabytes.
    #[test]
    fn requests_are_remembered_within_a_bound_of_bytes() {
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
                let to = SentTo {
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
