//! Every limit of the inspector, with its unit.

use std::time::Duration;

/// Largest body of a form, in bytes.
pub const FORM_BYTES_MAX: usize = 64 << 10;
/// Largest page in bytes: parts beyond it are left out, with a link to them.
pub const PAGE_BYTES_MAX: usize = 300 << 10;
/// Longest time for a page.
pub const PAGE_MAX: Duration = Duration::from_secs(30);
/// Requests at once; more are told to retry.
pub const REQUESTS_MAX: usize = 256;
/// Live streams at once.
pub const STREAMS_MAX: usize = 256;
/// Shortest interval between two notifications of a stream.
pub const TELL_EVERY: Duration = Duration::from_millis(700);
/// Interval of a stream's keep-alive messages.
pub const HEARTBEAT: Duration = Duration::from_secs(15);
/// Longest life of a stream; then the browser opens it again, and its key is checked again.
pub const STREAM_MAX: Duration = Duration::from_secs(1_800);

/// Sessions at once; a new one replaces the least recently used.
pub const SESSIONS_MAX: usize = 1_000;
/// A session expires after this long without use.
pub const SESSION_IDLE_MAX: Duration = Duration::from_secs(12 * 3_600);
/// A session expires after this long in any case.
pub const SESSION_AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Longest key that is accepted, in bytes.
pub const KEY_BYTES_MAX: usize = 512;

/// Branches on a page of the tree.
pub const BRANCH_ROWS: usize = 80;
/// Branches of a conversation that are read.
pub const BRANCHES_MAX: usize = 5_000;
/// Compactions and sub-contexts that are drawn on branches, the newest ones.
pub const BRANCH_MARKS: u64 = 300;
/// Child conversations that are named on the page of branches.
pub const BRANCH_CHILDREN: usize = 60;
/// Conversations whose calls are counted together.
pub const CALLS_CONVERSATIONS: u32 = 20;
/// Calls of each of them, the newest ones.
pub const CALLS_OF_EACH: u32 = 200;
/// Conversations that are queried at once.
pub const ASKED_AT_ONCE: usize = 4;
/// Calls of a branch that are counted: the store's limit for one answer.
pub const CALLS_OF_BRANCH: u32 = 1_000;
/// Calls on a page.
pub const CALLS: usize = 50;
/// Tools in a table.
pub const TOOLS: usize = 200;
/// Calls that are searched for one whose start and end are known.
pub const CALLS_BESIDE: u32 = 24;
/// Bytes of markup of a text: each byte of it may become sixty.
pub const MARKUP_BYTES: usize = 160 << 10;
/// Bytes of a call's arguments on its page, and of each pending call.
pub const ARGUMENTS_BYTES: usize = 32 << 10;
/// Pending calls on a page.
pub const PENDING: u32 = 50;
/// Bytes of the arguments of all pending calls on a page.
pub const PENDING_BYTES: usize = 96 << 10;
/// Bytes of a request's body on its page.
pub const BODY_BYTES: usize = 24 << 10;
/// Items of a request on its page.
pub const ITEMS: usize = 250;
/// Most lines of two bodies together that are compared.
pub const COMPARED_LINES: usize = 60_000;
/// Longest time for comparing two bodies.
pub const COMPARE_MAX: Duration = Duration::from_millis(400);
/// Lines of a difference on a page.
pub const DIFFERENT_LINES: usize = 250;
/// Characters of a line of a difference.
pub const LINE_CHARS: usize = 300;
/// Events of each of two compared branches on a page.
pub const SIDE_EVENTS: u64 = 60;
/// Characters of an event in a comparison.
pub const SIDE_CHARS: usize = 500;

/// Conversations on a page.
pub const CONVERSATIONS: u32 = 100;
/// Further pages that are requested while nothing matches a filter.
pub const PAGES_LOOKED_AT: usize = 20;
/// Labels of a conversation in the list.
pub const LABELS_SHOWN: usize = 4;
/// Sources of a namespace that are offered as filters.
pub const SOURCES_KEPT: usize = 60;
/// Longest such source in bytes.
pub const SOURCE_BYTES_MAX: usize = 64;
/// Namespaces whose sources are kept.
pub const SOURCES_NAMESPACES: usize = 1_000;
/// Conversations whose statistics are cached.
pub const DIGESTS_KEPT: usize = 20_000;
/// Conversations that are counted at once.
pub const DIGESTS_AT_ONCE: usize = 4;
/// How long the list waits for statistics that are not cached.
pub const DIGEST_WAIT: Duration = Duration::from_millis(30);
/// Events of a transcript on a page.
pub const EVENTS: u64 = 200;
/// Hits of a search on a page.
pub const HITS: u32 = 30;
/// Characters of a title.
pub const TITLE_CHARS: usize = 120;

/// Lines of a text on a page.
pub const LINES: u64 = 400;
/// Lines before the requested one.
pub const LINES_BEFORE: u64 = 30;
/// Bytes of a text on a page. Escaped, and with a number for each line, they stay below the limit
/// of pages.
pub const TEXT_BYTES: usize = 48 << 10;
/// Bytes of one line among others.
pub const LINE_BYTES_SHOWN: usize = 4 << 10;
/// Bytes of JSON and of text on the page of an event.
pub const EVENT_JSON_BYTES: usize = 24 << 10;
/// An event with more bytes of text is not read completely for its page.
pub const EVENT_WHOLE_BYTES: u64 = 1 << 20;
/// Filters of one kind that are offered.
pub const CHIPS: usize = 8;
/// Largest offset into the hits of a search.
pub const HITS_OFFSET_MAX: u64 = 900;

/// Interval of samples of the store's metrics.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(5);
/// Samples that are kept: ten minutes.
pub const SAMPLES: usize = 121;

/// Events before the requested one.
pub const EVENTS_BEFORE: u64 = 16;
/// Bytes of markup of all texts on a page of a transcript. With the markup around each text, they
/// stay below the limit of pages.
pub const TRANSCRIPT_BYTES: usize = 68 << 10;
/// Bytes of markup of a snippet.
pub const SNIPPET_BYTES: usize = 4 << 10;
/// Bytes of a message.
pub const SAID_BYTES: usize = 6 << 10;
/// Bytes of reasoning.
pub const REASONING_BYTES: usize = 2 << 10;
/// Bytes of a call's arguments.
pub const ARGUMENT_BYTES: usize = 1_500;
/// Bytes of the beginning of a result.
pub const HEAD_BYTES: usize = 1_500;
/// Beginnings of large results that are read at once.
pub const HEADS_AT_ONCE: usize = 8;
/// Questions of a conversation in the list beside it.
pub const QUESTIONS: u32 = 100;
