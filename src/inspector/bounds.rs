//! Every bound of the inspector, with its unit.

use std::time::Duration;

/// Largest body of a form, in bytes.
pub const FORM_BYTES_MAX: usize = 64 << 10;
/// No page is larger than this, in bytes: parts of it are left out, and say where they are.
pub const PAGE_BYTES_MAX: usize = 300 << 10;
/// How long a page may take.
pub const PAGE_MAX: Duration = Duration::from_secs(30);
/// Requests under way at once; more are told to come again.
pub const REQUESTS_MAX: usize = 256;
/// Streams of what is live at once.
pub const STREAMS_MAX: usize = 256;
/// What is live is told at most so often.
pub const TELL_EVERY: Duration = Duration::from_millis(700);
/// Between signs of life of a stream.
pub const HEARTBEAT: Duration = Duration::from_secs(15);
/// A stream ends after so long; the browser opens it again, with its key checked anew.
pub const STREAM_MAX: Duration = Duration::from_secs(1_800);

/// Sessions at once; the one that was used longest ago goes for a new one.
pub const SESSIONS_MAX: usize = 1_000;
/// A session that is not used for so long is over.
pub const SESSION_IDLE_MAX: Duration = Duration::from_secs(12 * 3_600);
/// A session is over after so long.
pub const SESSION_AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Longest key that is looked at, in bytes.
pub const KEY_BYTES_MAX: usize = 512;

/// Branches on a page of the tree.
pub const BRANCH_ROWS: usize = 80;
/// Branches of a conversation that are looked at.
pub const BRANCHES_MAX: usize = 5_000;
/// Compactions, and sub-contexts, that are drawn on branches: the newest.
pub const BRANCH_MARKS: u64 = 300;
/// Conversations that came from one and are named on its page.
pub const BRANCH_CHILDREN: usize = 60;
/// Conversations whose calls are counted together.
pub const CALLS_CONVERSATIONS: u32 = 20;
/// Calls of each of them: the newest.
pub const CALLS_OF_EACH: u32 = 200;
/// Conversations that are asked at once.
pub const ASKED_AT_ONCE: usize = 4;
/// Calls of a branch that are counted: as many as the store gives at once.
pub const CALLS_OF_BRANCH: u32 = 1_000;
/// Calls on a page.
pub const CALLS: usize = 50;
/// Tools in a table.
pub const TOOLS: usize = 200;
/// Calls that are looked through for one whose beginning and end are known.
pub const CALLS_BESIDE: u32 = 24;
/// Bytes of markup of a text: each of its bytes may become sixty.
pub const MARKUP_BYTES: usize = 160 << 10;
/// Bytes of a call's arguments on its page, and of each that waits for a decision.
pub const ARGUMENTS_BYTES: usize = 32 << 10;
/// Calls that wait for a decision on a page.
pub const PENDING: u32 = 50;
/// Bytes of all of their arguments.
pub const PENDING_BYTES: usize = 96 << 10;
/// Bytes of a request's body on the page about it.
pub const BODY_BYTES: usize = 24 << 10;
/// Items of a request on the page about it.
pub const ITEMS: usize = 250;
/// Lines of both bodies that are compared at most.
pub const COMPARED_LINES: usize = 60_000;
/// How long two bodies are compared.
pub const COMPARE_MAX: Duration = Duration::from_millis(400);
/// Lines of their difference on a page.
pub const DIFFERENT_LINES: usize = 250;
/// Characters of such a line.
pub const LINE_CHARS: usize = 300;
/// Events of each side of two branches on a page.
pub const SIDE_EVENTS: u64 = 60;
/// Characters of an event beside another one.
pub const SIDE_CHARS: usize = 500;

/// Conversations on a page.
pub const CONVERSATIONS: u32 = 100;
/// Pages that are asked for when those before have nothing that is wanted.
pub const PAGES_LOOKED_AT: usize = 20;
/// Labels of a conversation in the list.
pub const LABELS_SHOWN: usize = 4;
/// Sources of a namespace that are offered to filter by.
pub const SOURCES_KEPT: usize = 60;
/// Bytes of such a source.
pub const SOURCE_BYTES_MAX: usize = 64;
/// Namespaces whose sources are known.
pub const SOURCES_NAMESPACES: usize = 1_000;
/// Conversations whose numbers are kept.
pub const DIGESTS_KEPT: usize = 20_000;
/// Conversations that are counted at once.
pub const DIGESTS_AT_ONCE: usize = 4;
/// The first byte of the list waits so long for numbers that are not known yet.
pub const DIGEST_WAIT: Duration = Duration::from_millis(30);
/// Events of a transcript on a page.
pub const EVENTS: u64 = 200;
/// Hits of a search on a page.
pub const HITS: u32 = 30;
/// Characters of a title.
pub const TITLE_CHARS: usize = 120;

/// Lines of a text on a page.
pub const LINES: u64 = 400;
/// Lines before the one that is meant.
pub const LINES_BEFORE: u64 = 30;
/// Bytes of a text on a page. Escaped, with a number for each line, they stay below the bound
/// of pages.
pub const TEXT_BYTES: usize = 48 << 10;
/// Bytes of one line among others.
pub const LINE_BYTES_SHOWN: usize = 4 << 10;
/// Bytes of JSON, and of a text, on the page of an event.
pub const EVENT_JSON_BYTES: usize = 24 << 10;
/// An event whose text has more bytes is not taken for its page.
pub const EVENT_WHOLE_BYTES: u64 = 1 << 20;
/// Filters of one kind that are offered.
pub const CHIPS: usize = 8;
/// How far one can go through hits.
pub const HITS_OFFSET_MAX: u64 = 900;

/// Between looks at the store's figures.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(5);
/// Looks that are kept: ten minutes of them.
pub const SAMPLES: usize = 121;

/// Events before the one that is meant.
pub const EVENTS_BEFORE: u64 = 16;
/// Bytes of markup of the texts of all events on a page of a transcript. With what stands around
/// each they stay below the bound of pages.
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
/// Beginnings of large results that are taken at once.
pub const HEADS_AT_ONCE: usize = 8;
/// Questions of a conversation in the list beside it.
pub const QUESTIONS: u32 = 100;
