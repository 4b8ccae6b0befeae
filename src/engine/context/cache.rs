//! What is kept in memory between requests: windows, token counts, and what was
//! sent last. All of it is bounded, and none of it is needed.

use std::{collections::BTreeMap, fmt, sync::Arc};

use quick_cache::{Weighter, sync::Cache};

use crate::{
    context::{
        Provider,
        prefix::SentUnits,
        tokens::{TextKey, TokenMemo},
        window::{LongTermEntry, WindowEvent},
    },
    domain::{BranchId, ConversationId, EventRef, Limits, Namespace, Revision},
};

/// Token counts that are remembered: those of some thousand windows' messages.
/// In memory about 64 bytes each.
const COUNTS_MAX: usize = 1 << 17;
/// Namespaces whose long-term context is kept.
const LONG_TERM_MAX: usize = 256;
/// What a kept event takes beside its content, in bytes.
const EVENT_BYTES: u64 = 320;

/// A branch's window as it was read last.
#[derive(Debug)]
pub(super) struct KeptWindow {
    pub head: Revision,
    pub compaction: Option<EventRef>,
    pub events: Vec<Arc<WindowEvent>>,
    pub referred: BTreeMap<EventRef, Arc<WindowEvent>>,
    /// Estimate of what all of it takes.
    pub bytes: u64,
}

#[derive(Clone)]
pub(super) struct ByBytes;

impl Weighter<(ConversationId, BranchId), Arc<KeptWindow>> for ByBytes {
    fn weight(&self, _: &(ConversationId, BranchId), window: &Arc<KeptWindow>) -> u64 {
        window.bytes.max(1)
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

/// All of it.
pub(in crate::engine) struct ContextCaches {
    pub(super) windows: Cache<(ConversationId, BranchId), Arc<KeptWindow>, ByBytes>,
    pub(super) sent: Cache<SentTo, Arc<SentUnits>>,
    pub(super) long_term: Cache<Namespace, Arc<KeptLongTerm>>,
    counts: Arc<Counts>,
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
    pub(in crate::engine) fn new(limits: &Limits) -> Self {
        /// So few keep the cache in one piece: in several, none could hold a
        /// window that is larger than its share.
        const WINDOWS_EXPECTED: usize = 32;
        let bytes_max = limits.window_cache_bytes as u64;
        Self {
            windows: Cache::with_weighter(WINDOWS_EXPECTED, bytes_max, ByBytes),
            sent: Cache::new(limits.remembered_requests_max),
            long_term: Cache::new(LONG_TERM_MAX),
            counts: Arc::new(Counts(Cache::new(COUNTS_MAX))),
        }
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
