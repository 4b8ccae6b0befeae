//! Every limit of the inspector, with its unit.

use std::time::Duration;

/// Largest body of a form, in bytes.
pub(crate) const FORM_BYTES_MAX: usize = 64 << 10;
/// Largest page in bytes: parts beyond it are left out, with a link to them.
pub(crate) const PAGE_BYTES_MAX: usize = 300 << 10;
/// Longest time for a page.
pub(crate) const PAGE_MAX: Duration = Duration::from_secs(30);
/// Maximum number of concurrent requests; further requests are refused with a hint to retry.
pub(crate) const REQUESTS_MAX: usize = 256;
/// Maximum number of concurrent live streams.
pub(crate) const STREAMS_MAX: usize = 256;
/// Shortest interval between two notifications of a stream.
pub(crate) const TELL_EVERY: Duration = Duration::from_millis(700);
/// Interval of a stream's keep-alive messages.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(15);
/// Longest life of a stream; then the browser opens it again, and its key is checked again.
pub(crate) const STREAM_MAX: Duration = Duration::from_secs(1_800);

/// Maximum number of login sessions; a new one replaces the least recently used.
pub(crate) const SESSIONS_MAX: usize = 1_000;
/// A session expires after this long without use.
pub(crate) const SESSION_IDLE_MAX: Duration = Duration::from_secs(12 * 3_600);
/// A session expires after this long in any case.
pub(crate) const SESSION_AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Longest key that is accepted, in bytes.
pub(crate) const KEY_BYTES_MAX: usize = 512;

/// Branches on a page of the tree.
pub(crate) const BRANCH_ROWS: usize = 80;
/// Branches of a conversation that are read.
pub(crate) const BRANCHES_MAX: usize = 5_000;
/// Compactions and sub-contexts that are drawn on branches, the newest ones.
pub(crate) const BRANCH_MARKS: u64 = 300;
/// Child conversations that are named on the page of branches.
pub(crate) const BRANCH_CHILDREN: usize = 60;
/// Conversations whose calls are counted together.
pub(crate) const CALLS_CONVERSATIONS: u32 = 20;
/// Calls per conversation that are counted, the newest ones.
pub(crate) const CALLS_OF_EACH: u32 = 200;
/// Conversations whose model calls are counted together.
pub(crate) const USAGE_CONVERSATIONS: u32 = 50;
/// Messages per conversation whose model calls are counted together, the newest ones.
pub(crate) const USAGE_MESSAGES_OF_EACH: u64 = 1_000;
/// Messages whose model calls are counted on the page of their conversation, the newest ones.
pub(crate) const USAGE_MESSAGES: u64 = 20_000;
/// Days in a table, the newest ones.
pub(crate) const USAGE_DAYS: usize = 92;
/// Conversations that are queried concurrently.
pub(crate) const ASKED_AT_ONCE: usize = 4;
/// Calls of a branch that are counted: the store's limit for one answer.
pub(crate) const CALLS_OF_BRANCH: u32 = 1_000;
/// Calls on a page.
pub(crate) const CALLS: usize = 50;
/// Tools in a table.
pub(crate) const TOOLS: usize = 200;
/// Calls that are read to find a call whose start and end are known.
pub(crate) const CALLS_BESIDE: u32 = 24;
/// Bytes of markup of a text: each byte of text may become sixty bytes.
pub(crate) const MARKUP_BYTES: usize = 160 << 10;
/// Bytes of a call's arguments on its page, and of each pending call.
pub(crate) const ARGUMENTS_BYTES: usize = 32 << 10;
/// Pending calls on a page.
pub(crate) const PENDING: u32 = 50;
/// Bytes of the arguments of all pending calls on a page.
pub(crate) const PENDING_BYTES: usize = 96 << 10;
/// Bytes of a request's body on its page.
pub(crate) const BODY_BYTES: usize = 24 << 10;
/// Items of a request on its page.
pub(crate) const ITEMS: usize = 250;
/// Maximum number of lines of two bodies together that are compared.
pub(crate) const COMPARED_LINES: usize = 60_000;
/// Longest time for comparing two bodies.
pub(crate) const COMPARE_MAX: Duration = Duration::from_millis(400);
/// Lines of a difference on a page.
pub(crate) const DIFFERENT_LINES: usize = 250;
/// Characters of a line of a difference.
pub(crate) const LINE_CHARS: usize = 300;
/// Events of each of two compared branches on a page.
pub(crate) const SIDE_EVENTS: u64 = 60;
/// Characters of an event in a comparison.
pub(crate) const SIDE_CHARS: usize = 500;

/// Conversations on a page.
pub(crate) const CONVERSATIONS: u32 = 100;
/// Further pages that are requested while nothing matches a filter.
pub(crate) const PAGES_LOOKED_AT: usize = 20;
/// Labels of a conversation in the list.
pub(crate) const LABELS_SHOWN: usize = 4;
/// Sources of a namespace that are offered as filters.
pub(crate) const SOURCES_KEPT: usize = 60;
/// Longest name of an offered source in bytes.
pub(crate) const SOURCE_BYTES_MAX: usize = 64;
/// Namespaces whose sources are kept.
pub(crate) const SOURCES_NAMESPACES: usize = 1_000;
/// Conversations whose statistics are cached.
pub(crate) const DIGESTS_KEPT: usize = 20_000;
/// Conversations that are counted concurrently.
pub(crate) const DIGESTS_AT_ONCE: usize = 4;
/// How long the list waits for statistics that are not cached.
pub(crate) const DIGEST_WAIT: Duration = Duration::from_millis(30);
/// Events of a transcript on a page.
pub(crate) const EVENTS: u64 = 200;
/// Hits of a search on a page.
pub(crate) const HITS: u32 = 30;
/// Characters of a title.
pub(crate) const TITLE_CHARS: usize = 120;

/// Lines of a text on a page.
pub(crate) const LINES: u64 = 400;
/// Lines before the requested one.
pub(crate) const LINES_BEFORE: u64 = 30;
/// Bytes of a text on a page. Escaped, and with a number for each line, they stay below the limit
/// of pages.
pub(crate) const TEXT_BYTES: usize = 48 << 10;
/// Bytes of a line on a page with several lines.
pub(crate) const LINE_BYTES_SHOWN: usize = 4 << 10;
/// Bytes of JSON and of text on the page of an event.
pub(crate) const EVENT_JSON_BYTES: usize = 24 << 10;
/// An event with more bytes of text is not read completely for its page.
pub(crate) const EVENT_WHOLE_BYTES: u64 = 1 << 20;
/// Number of offered filters of one kind.
pub(crate) const CHIPS: usize = 8;
/// Largest offset into the hits of a search.
pub(crate) const HITS_OFFSET_MAX: u64 = 900;

/// Interval of samples of the store's metrics.
pub(crate) const SAMPLE_EVERY: Duration = Duration::from_secs(5);
/// Samples that are kept: ten minutes.
pub(crate) const SAMPLES: usize = 121;

/// Events before the requested one.
pub(crate) const EVENTS_BEFORE: u64 = 16;
/// Bytes of markup of all texts on a page of a transcript. With the markup around each text, they
/// stay below the limit of pages.
pub(crate) const TRANSCRIPT_BYTES: usize = 68 << 10;
/// Bytes of markup of a snippet.
pub(crate) const SNIPPET_BYTES: usize = 4 << 10;
/// Bytes of a message.
pub(crate) const SAID_BYTES: usize = 6 << 10;
/// Bytes of reasoning.
pub(crate) const REASONING_BYTES: usize = 2 << 10;
/// Bytes of a call's arguments.
pub(crate) const ARGUMENT_BYTES: usize = 1_500;
/// Lines of each edit in a transcript.
pub(crate) const EDIT_LINES: usize = 40;
/// Bytes of the beginning of a result.
pub(crate) const HEAD_BYTES: usize = 1_500;
/// Beginnings of large results that are read concurrently.
pub(crate) const HEADS_AT_ONCE: usize = 8;
/// Questions of a conversation in the list beside it.
pub(crate) const QUESTIONS: u32 = 100;
