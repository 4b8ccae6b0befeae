//! Every limit of this interface, with its unit. Answers must fit into an agent's context, so they
//! are small and say how to get more.

use std::time::Duration;

/// Longest message on standard input, and largest body of a request, in bytes.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Maximum number of answers that wait to be written to standard output.
pub(crate) const ANSWERS_WAITING: usize = 64;
/// After the end of input, how long a client may take to read the last answers.
pub(crate) const LAST_WORDS_MAX: Duration = Duration::from_secs(5);
/// Maximum size of an answer, in bytes: about 16,000 tokens. The tool `request` has its own limit.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Maximum number of characters of an error, and of its hint.
pub(crate) const FAILURE_CHARS_MAX: usize = 600;
/// Longest resource address that an error repeats, in bytes.
pub(crate) const URI_BYTES_MAX: usize = 2 << 10;
/// Longest duration of a call.
pub(crate) const CALL_MAX: Duration = Duration::from_secs(60);
/// A folder is released after this long without a call, because others may want to write to it.
pub(crate) const FOLDER_IDLE: Duration = Duration::from_millis(500);
/// A folder that locks others out takes no new calls after this long. It is released once the
/// running calls have ended.
pub(crate) const FOLDER_HELD_MAX: Duration = Duration::from_secs(1);
/// How long a folder stays released. Others that wait for the folder check more often than that.
pub(crate) const FOLDER_LEFT: Duration = Duration::from_millis(150);
/// How long a search waits for the index.
pub(crate) const INDEX_WAIT: Duration = Duration::from_secs(2);

/// Default number of hits of a search.
pub(crate) const HITS: u32 = 8;
/// Maximum number of hits of a search.
pub(crate) const HITS_MAX: u32 = 30;
/// Maximum number of lines of a hit's snippet.
pub(crate) const SNIPPET_LINES: usize = 4;
/// Maximum number of characters of a line of a snippet.
pub(crate) const SNIPPET_CHARS: usize = 200;
/// Longest tool name that is shown without quotation marks, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 64;
/// Maximum number of characters of a title.
pub(crate) const TITLE_CHARS: usize = 80;

/// Default number of events before, and of events after, the given one.
pub(crate) const AROUND: u32 = 3;
/// Maximum number of events before, and of events after.
pub(crate) const AROUND_MAX: u32 = 20;
/// Default maximum number of characters of each event.
pub(crate) const AROUND_CHARS: u32 = 400;
/// Maximum number of characters of each event.
pub(crate) const AROUND_CHARS_MAX: u32 = 4_000;
/// Maximum number of lines of each event.
pub(crate) const AROUND_LINES: usize = 40;

/// Default maximum number of bytes of a result: about 1,500 tokens.
pub(crate) const READ_BYTES: u32 = 6_000;
/// Maximum number of bytes of a result in one answer.
pub(crate) const READ_BYTES_MAX: u32 = 32_000;
/// Minimum number of bytes of a result in one answer.
pub(crate) const READ_BYTES_MIN: u32 = 64;
/// Maximum number of bytes of a resource.
pub(crate) const RESOURCE_BYTES_MAX: u32 = 48_000;

/// Default maximum number of conversations in a list.
pub(crate) const LISTED: u32 = 15;
/// Maximum number of conversations in a list.
pub(crate) const LISTED_MAX: u32 = 100;
/// Maximum number of conversations that are tested against a filter.
pub(crate) const LOOKED_AT_MAX: usize = 20_000;
/// Maximum number of branches in a list.
pub(crate) const BRANCHES_MAX: usize = 200;
/// Maximum number of pending calls in a list.
pub(crate) const PENDING_MAX: u32 = 20;
/// Maximum number of characters of a call's arguments in that list.
pub(crate) const ARGUMENTS_CHARS: usize = 2_000;

/// Maximum number of characters of the arguments when a single call is shown. Each character may
/// take up to nine in the output.
pub(crate) const ARGUMENTS_WHOLE_CHARS: usize = 6_000;

/// Default maximum number of tokens of a request.
pub(crate) const REQUEST_TOKENS: u64 = 4_000;
/// Maximum number of tokens of a request. Its JSON text has up to 50 % more tokens, and agents cut
/// answers at about 25,000 tokens.
pub(crate) const REQUEST_TOKENS_MAX: u64 = 12_000;
/// Maximum number of bytes of a request, which is never cut.
pub(crate) const REQUEST_BYTES_MAX: usize = 128 << 10;

/// Longest key in long-term memory, in bytes.
pub(crate) const KEY_BYTES_MAX: usize = 128;
/// Largest value in long-term memory, in bytes of JSON.
pub(crate) const VALUE_BYTES_MAX: usize = 16 << 10;
/// Maximum number of keys in one answer.
pub(crate) const RECALLED_MAX: usize = 50;
/// Maximum number of characters of a value in a list; a single value is returned completely.
pub(crate) const RECALLED_CHARS: usize = 600;

/// Number of events in a digest: the last ones of the conversation.
pub(crate) const DIGEST_EVENTS: u64 = 12;
/// Maximum number of characters of each of these events.
pub(crate) const DIGEST_CHARS: usize = 500;
/// Maximum number of characters of the summary in a digest.
pub(crate) const SUMMARY_CHARS: usize = 4_000;

/// Maximum number of HTTP requests whose bodies are being received; one more cancels the oldest.
pub(crate) const HTTP_BODIES_MAX: usize = 256;
/// Maximum number of HTTP requests that are answered at once; more are told to retry.
pub(crate) const HTTP_REQUESTS_MAX: usize = 256;
/// Longest time for receiving the body of an HTTP request.
pub(crate) const HTTP_BODY_MAX: Duration = Duration::from_secs(10);
/// Maximum number of bytes of a refused request's body that are read and discarded.
pub(crate) const HTTP_REFUSED_BYTES: usize = 1 << 20;
/// Longest time for reading and discarding it.
pub(crate) const HTTP_REFUSED_WAIT: Duration = Duration::from_secs(1);
/// How long a browser may cache a preflight answer, in seconds.
pub(crate) const HTTP_PREFLIGHT_SECONDS: u32 = 600;
