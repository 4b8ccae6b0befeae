//! Every limit, with its unit and its reason. Those in [`Limits`] can be configured; the
//! constants cannot, because formats depend on them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Maximum length of a namespace name, in bytes.
pub(crate) const NAMESPACE_BYTES_MAX: usize = 64;
/// Maximum length of a branch name, in bytes.
pub const BRANCH_NAME_BYTES_MAX: usize = 200;
/// Maximum length of a call id, tool name, key, actor or other short text, in bytes.
/// Providers' call ids have up to 64; synthetic ones in real data are longer.
pub const SHORT_TEXT_BYTES_MAX: usize = 512;
/// Maximum length of an event key, in bytes. Each key takes a row of its own in the index.
pub const EVENT_KEY_BYTES_MAX: usize = 512;
/// Maximum number of attributes of an event.
pub(crate) const ATTRIBUTES_MAX: usize = 32;
/// Maximum length of an attribute's name, in bytes.
pub(crate) const ATTRIBUTE_NAME_BYTES_MAX: usize = 128;
/// Maximum length of all attribute names and values of an event together, in bytes. They are
/// read with every header, so they must stay small.
pub(crate) const ATTRIBUTES_BYTES_MAX: usize = 8 * 1024;
/// Maximum number of events that one read scans when no index covers its filter: a few hundred
/// milliseconds.
pub const READ_SCAN_EVENTS_MAX: u64 = 50_000;
/// Maximum number of index rows that one read loads at once, 16 bytes each. Above that, it
/// scans the events instead.
pub const READ_INDEX_ROWS_MAX: usize = 100_000;
/// Bytes reserved in a 64 MiB message with one event for its header, its tags and the enclosing
/// messages.
pub(crate) const BODY_ENVELOPE_BYTES: usize = 64 << 10;
/// Maximum number of labels in an item's path.
pub const ITEM_PATH_LABELS_MAX: usize = 32;
/// Maximum number of item operations in one batch. Each is a look-up or an event.
pub const ITEM_OPS_MAX: usize = 1_000;
/// Maximum number of searches and path lists in one batch. Each may scan all items.
pub const ITEM_SEARCHES_MAX: usize = 100;
/// Default number of items that a search returns.
pub const ITEM_SEARCH_DEFAULT: usize = 10;
/// Maximum of limit plus offset for items and paths.
pub const ITEM_SEARCH_MAX: usize = 10_000;
/// Default number of paths that a list returns.
pub const ITEM_PATHS_DEFAULT: usize = 100;
/// Maximum number of items that one search or path list examines: about a second.
pub const ITEMS_LOOKED_AT_MAX: usize = 50_000;
/// Maximum time that a word search waits for the index to include earlier puts.
pub const ITEMS_INDEX_WAIT_MAX: Duration = Duration::from_secs(5);
/// Maximum size of a conversation's labels and metadata together, in bytes. They are held in
/// memory with the conversation.
pub(crate) const CONVERSATION_DESCRIBED_BYTES_MAX: usize = 64 * 1024;
/// Maximum length of an idempotency key, in bytes. The index holds it once per batch.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 256;
/// Maximum size of a body stored inline, in bytes. A larger one is stored in the blob table, once
/// for each distinct content.
pub const INLINE_BODY_BYTES_MAX: usize = 64 * 1024;
/// Minimum size of a body stored as a patch, in bytes. If such a body names a similar event, it is
/// stored separately. Smaller bodies compress well with their neighbours.
pub const PATCHED_BODY_BYTES_MIN: usize = 4 * 1024;
/// Maximum nesting depth of a JSON value. serde_json refuses more than 128.
pub const JSON_DEPTH_MAX: usize = 127;
/// Maximum number of values in one incoming JSON text. A reader that builds a tree needs up to
/// about 100 bytes per value, however short the text is.
pub const JSON_VALUES_MAX: usize = 1 << 20;

/// Bytes that an event counts against a quota in addition to its body: about the size of its header
/// and its projection rows, so that events without bodies are not free.
pub(crate) const QUOTA_EVENT_BYTES: u64 = 128;

/// Pauses before successive queries to the log about the outcome of a group in doubt, while callers
/// wait. The total is 1.76 s. Most disk or network problems are over by then, and a caller should
/// not wait much longer for an "outcome unknown".
pub const ASK_WHILE_WAITING: [Duration; 6] = [
    Duration::ZERO,
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
];
/// First pause between later queries. Each pause is twice the previous one.
pub const ASK_PAUSE_MIN: Duration = Duration::from_millis(250);
/// Maximum pause between later queries: a recovered disk is noticed within seconds, and a failed
/// one is not polled too often.
pub const ASK_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Minimum of a retry hint, so that callers do not spin.
pub const RETRY_MIN: Duration = Duration::from_millis(50);
/// A writer thread that has been busy with one operation for this long counts as stuck. A commit to
/// a busy disk may take seconds.
pub const STALL_MAX: Duration = Duration::from_secs(30);
/// After the append of a group fails, health reports for this long that appends are refused. Then
/// it reports healthy again, because only another append shows whether, say, a full disk has space.
pub const APPENDS_DOUBTED_FOR: Duration = Duration::from_secs(5);
/// Maximum time that the writer waits, after a group failed, for the projections to apply
/// everything committed. Afterwards appends to conversations that lag are refused until they
/// catch up.
pub const PUBLISH_WAIT_MAX: Duration = Duration::from_secs(2);
/// Retry hint while the projections catch up with the log.
pub const VIEWS_RETRY: Duration = Duration::from_millis(250);
/// Retry hint while the database of the log does not answer.
pub const LOG_RETRY: Duration = Duration::from_secs(1);
/// Retry hint for a search that met a damaged index, which is being rebuilt.
pub const INDEX_RETRY: Duration = Duration::from_secs(5);

/// Default of [`Limits::memory_bytes`].
pub(crate) const MEMORY_BYTES: usize = 256 << 20;
/// The part of [`Limits::memory_bytes`] for pages of the log's files (24 MiB), pages of the
/// projections' file (32), the index writer (32), and events queued for it (4). In bytes.
pub const MEMORY_OF_FILES_BYTES: usize = 92 << 20;
/// Memory for cached results of search filters, in bytes. Each conversation takes 32 bytes.
pub const FACET_SETS_BYTES_MAX: usize = 16 << 20;
/// Maximum number of search filters with cached results. Each search scans all of them.
pub const FACET_SETS_MAX: usize = 256;

/// Limits that can be configured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Maximum size of an encoded event body, in bytes.
    pub body_bytes_max: usize,
    /// Maximum number of events in one batch.
    pub batch_events_max: usize,
    /// Maximum size of all bodies of a batch together, in bytes.
    pub batch_bytes_max: usize,
    /// Maximum number of branches of one conversation.
    pub branches_max: usize,
    /// Maximum depth of a chain of forks, within or across conversations, or of sub-contexts.
    pub lineage_depth_max: usize,
    /// Maximum number of open calls on a branch.
    pub open_calls_max: usize,
    /// Maximum number, on a branch, of active-context keys, of discovered tools, of guidance, of
    /// entities, and of running sub-contexts; each is counted separately.
    pub branch_items_max: usize,
    /// Maximum number of appends that wait for the writer; further ones are refused.
    pub queue_appends_max: usize,
    /// Maximum bytes of appends that wait for the writer; further ones are refused.
    pub queue_bytes_max: usize,
    /// Maximum number of events in one answer of a unary read.
    pub page_events_max: usize,
    /// Memory for all caches together, in bytes. [`MEMORY_OF_FILES_BYTES`] of it goes to file
    /// pages, the index writer and its queue. The rest is shared by conversation states, records,
    /// request windows, remembered requests, long-term contexts and knowledge: half of it in fixed
    /// shares, the other half as a pool for full caches.
    pub memory_bytes: usize,
    /// Free space on the store's disk below which health reports not ready, in bytes. Appends
    /// continue until the disk is full. `None`: 256 MiB, or 1/50 of a small disk.
    pub disk_floor_bytes: Option<u64>,
    /// Maximum number of branches (each with a provider and a model) whose last request is
    /// remembered, to detect what the next one repeats.
    pub remembered_requests_max: usize,
    /// Maximum nesting depth of sub-contexts.
    pub sub_context_depth_max: usize,
    /// Maximum number of files, and of variables, in a branch's knowledge.
    pub knowledge_items_max: usize,
    /// Maximum number of concurrent CPU-bound reads that take milliseconds; further ones wait.
    /// Small, because they share the processor with the threads that serve calls.
    pub short_reads_max: usize,
    /// Maximum number of concurrent reads of second and later pages; further ones wait.
    pub bulk_reads_max: usize,
    /// Maximum number of concurrent long CPU-bound reads (requests of large windows, folds of long
    /// histories); further ones wait, so that their memory is bounded.
    pub long_reads_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // With its envelope, a body fits in a message of 64 MiB, a common limit of clients.
            body_bytes_max: (64 << 20) - BODY_ENVELOPE_BYTES,
            batch_events_max: 10_000,
            batch_bytes_max: 68 << 20,
            branches_max: 100_000,
            lineage_depth_max: 10_000,
            open_calls_max: 1_024,
            branch_items_max: 10_000,
            queue_appends_max: 8_192,
            queue_bytes_max: 256 << 20,
            page_events_max: 1_000,
            memory_bytes: MEMORY_BYTES,
            disk_floor_bytes: None,
            remembered_requests_max: 4_096,
            sub_context_depth_max: 8,
            knowledge_items_max: 10_000,
            short_reads_max: 4,
            bulk_reads_max: 2,
            long_reads_max: 1,
        }
    }
}
