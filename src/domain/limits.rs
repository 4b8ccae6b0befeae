//! Every bound, with its unit and its reason. Those of [`Limits`] can be set in
//! the configuration; the constants cannot, because formats depend on them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Longest namespace name, in bytes.
pub const NAMESPACE_BYTES_MAX: usize = 64;
/// Longest branch name, in bytes.
pub const BRANCH_NAME_BYTES_MAX: usize = 200;
/// Longest call id, tool name, key, actor or other short text, in bytes.
/// Providers' call ids have up to 64; synthetic ones in real data are longer.
pub const SHORT_TEXT_BYTES_MAX: usize = 512;
/// Longest key of an event, in bytes. It is in the index, in a row of its own.
pub const EVENT_KEY_BYTES_MAX: usize = 512;
/// Most attributes of an event.
pub const ATTRIBUTES_MAX: usize = 32;
/// Longest name of an attribute, in bytes.
pub const ATTRIBUTE_NAME_BYTES_MAX: usize = 128;
/// Names and values of an event's attributes, together, in bytes: they are read with every
/// header, so they stay small.
pub const ATTRIBUTES_BYTES_MAX: usize = 8 * 1024;
/// Events that one read looks at, when its filter has no index: some hundred milliseconds.
pub const READ_SCAN_EVENTS_MAX: u64 = 50_000;
/// Rows of the index that one read takes at once: 16 bytes each. With more it looks at the
/// events themselves.
pub const READ_INDEX_ROWS_MAX: usize = 100_000;
/// What is left free of a message of 64 MiB that holds one event: for its header, its tags and
/// the messages around it. In bytes.
pub const BODY_ENVELOPE_BYTES: usize = 64 << 10;
/// Most labels of an item's path.
pub const ITEM_PATH_LABELS_MAX: usize = 32;
/// Most operations on items in one batch. Each is a look-up or an event.
pub const ITEM_OPS_MAX: usize = 1_000;
/// Most searches and lists of paths in one batch. Each may go through all items.
pub const ITEM_SEARCHES_MAX: usize = 100;
/// Items that a search brings unless it says how many.
pub const ITEM_SEARCH_DEFAULT: usize = 10;
/// Furthest item, or path, that can be asked for: limit and offset together.
pub const ITEM_SEARCH_MAX: usize = 10_000;
/// Paths that a list brings unless it says how many.
pub const ITEM_PATHS_DEFAULT: usize = 100;
/// Items that one search, or one list of paths, looks at: about a second.
pub const ITEMS_LOOKED_AT_MAX: usize = 50_000;
/// The longest that a search for words waits for the index to have what was put.
pub const ITEMS_INDEX_WAIT_MAX: Duration = Duration::from_secs(5);
/// Labels and metadata of a conversation together, in bytes. They are with it in memory.
pub const CONVERSATION_DESCRIBED_BYTES_MAX: usize = 64 * 1024;
/// Longest idempotency key, in bytes. It is in the index, once for each batch.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 256;
/// A body above this goes to the blob table, once for each content. In bytes.
pub const INLINE_BODY_BYTES_MAX: usize = 64 * 1024;
/// A body that names another one that it is like is kept apart from this on, so that it can be
/// kept as a patch, in bytes. Smaller ones pack with their neighbours.
pub const PATCHED_BODY_BYTES_MIN: usize = 4 * 1024;
/// Deepest nesting of a JSON value. serde_json refuses more than 128.
pub const JSON_DEPTH_MAX: usize = 127;
/// Most values in one JSON text that comes in. A reader that makes a tree of them
/// takes up to about 100 bytes for each, whatever little they take as text.
pub const JSON_VALUES_MAX: usize = 1 << 20;

/// What an event counts against a quota besides its body, in bytes: about what its header and
/// its rows in the views take, so that events without bodies do not pass for nothing.
pub const QUOTA_EVENT_BYTES: u64 = 128;

/// Pauses before the log is asked what became of a group, while those who wait
/// for its answer are kept waiting: 1.76 s together. Most troubles of a disk or a
/// line are over by then; nobody should wait much longer for a "not known".
pub const ASK_WHILE_WAITING: [Duration; 6] = [
    Duration::ZERO,
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
];
/// The first pause between later questions. Each is twice the one before …
pub const ASK_PAUSE_MIN: Duration = Duration::from_millis(250);
/// … up to this: a disk that is well again is found within some seconds, and one
/// that is not is left in peace.
pub const ASK_PAUSE_MAX: Duration = Duration::from_secs(5);
/// A hint to come again is at least this, so that nobody spins.
pub const RETRY_MIN: Duration = Duration::from_millis(50);
/// A thread of the writer that has been at one thing for so long counts as
/// hanging. A commit to a busy disk may take seconds.
pub const STALL_MAX: Duration = Duration::from_secs(30);
/// So long after a group could not be appended, health says that appends cannot
/// be taken. Then it does not: only trying tells, for example, whether a full disk
/// has room again.
pub const APPENDS_DOUBTED_FOR: Duration = Duration::from_secs(5);
/// Longest that the writer waits for the views to have all that was committed,
/// after a group failed. Then appends to what they lack are refused until they do.
pub const PUBLISH_WAIT_MAX: Duration = Duration::from_secs(2);
/// A hint when to come again while the views catch up with the log.
pub const VIEWS_RETRY: Duration = Duration::from_millis(250);
/// After how long a search makes sense again that has met a damaged index, which is
/// made anew.
pub const INDEX_RETRY: Duration = Duration::from_secs(5);

/// See [`Limits::memory_bytes`].
pub const MEMORY_BYTES: usize = 256 << 20;
/// Of [`Limits::memory_bytes`]: pages of the log's files (24 MiB) and of the views' file
/// (32), the writer of the index (32), and events on their way to it (4). In bytes.
pub const MEMORY_OF_FILES_BYTES: usize = 92 << 20;

/// Bounds that the configuration can change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Largest encoded event body, in bytes.
    pub body_bytes_max: usize,
    /// Most events in one batch.
    pub batch_events_max: usize,
    /// Largest batch, all bodies together, in bytes.
    pub batch_bytes_max: usize,
    /// Most branches of one conversation.
    pub branches_max: usize,
    /// Deepest chain of forks of forks, of conversations or of sub-contexts.
    pub lineage_depth_max: usize,
    /// Most calls open at once on a branch.
    pub open_calls_max: usize,
    /// Most active-context keys, discovered tools or entities of a branch.
    pub branch_items_max: usize,
    /// Most appends that wait for the writer; one more is refused.
    pub queue_appends_max: usize,
    /// Most bytes that wait for the writer; more is refused.
    pub queue_bytes_max: usize,
    /// Most events in one answer of a unary read.
    pub page_events_max: usize,
    /// Memory for what is kept because it may be wanted again, all of it together, in
    /// bytes. [`MEMORY_OF_FILES_BYTES`] of it are pages of files, the index's writer and
    /// what waits for it; the rest is shared by conversation states, records, windows of
    /// requests, what of requests is remembered, long-term contexts and knowledge: half of
    /// it in fixed shares, and what of the other half some do not use the others have.
    pub memory_bytes: usize,
    /// Free room on the store's disk below which health says that it is not ready, in bytes.
    /// Appends go on until it is full. None: 256 MiB, or a fiftieth of a small disk.
    pub disk_floor_bytes: Option<u64>,
    /// Of the requests that are built, one in so many is read again whole, to check it
    /// against its provider's rules; and the first of each conversation and provider.
    /// 1: all; 0: none. A debug build checks all.
    pub check_one_in: u32,
    /// Branches (each with a provider and a model) whose last request is
    /// remembered, to tell what the next one repeats.
    pub remembered_requests_max: usize,
    /// Deepest chain of sub-contexts of sub-contexts.
    pub sub_context_depth_max: usize,
    /// Most files, and most variables, that a branch's knowledge holds.
    pub knowledge_items_max: usize,
    /// Most reads that compute at once and end within milliseconds; more wait. A
    /// few: they share the processor with the threads that serve calls.
    pub short_reads_max: usize,
    /// Most pages of reads beyond their first that are made at once; more wait.
    pub bulk_reads_max: usize,
    /// Most reads that take long and compute at once (requests of large windows,
    /// folds of long histories); more wait, so that their memory is bounded.
    pub long_reads_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // With its envelope it fits a message of 64 MiB, which readers commonly take.
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
            check_one_in: 64,
            remembered_requests_max: 4_096,
            sub_context_depth_max: 8,
            knowledge_items_max: 10_000,
            short_reads_max: 4,
            bulk_reads_max: 2,
            long_reads_max: 1,
        }
    }
}
