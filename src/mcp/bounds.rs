//! Every bound of this door, with its unit. What an agent is given must fit into what it can
//! still think with, so answers are small, and say how to get more.

use std::time::Duration;

/// Longest message that is read from standard input, and longest body of a request, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Answers that wait to be written to standard output.
pub const ANSWERS_WAITING: usize = 64;
/// When all is over, how long somebody may take to read the last answers.
pub const LAST_WORDS_MAX: Duration = Duration::from_secs(5);
/// No answer is longer than this, in bytes, whatever was asked: some 16,000 tokens.
pub const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Characters of what went wrong, and of what to do.
pub const FAILURE_CHARS_MAX: usize = 600;
/// Longest address of a resource that an error repeats, in bytes.
pub const URI_BYTES_MAX: usize = 2 << 10;
/// How long one call may take.
pub const CALL_MAX: Duration = Duration::from_secs(60);
/// A folder is let go when nothing was asked for so long: others may want to write to it.
pub const FOLDER_IDLE: Duration = Duration::from_millis(500);
/// A folder that others wait for is let go after so long, however much is asked for …
pub const FOLDER_HELD_MAX: Duration = Duration::from_secs(1);
/// … for so long: who waits looks more often.
pub const FOLDER_LEFT: Duration = Duration::from_millis(150);
/// How long a search waits for the index.
pub const INDEX_WAIT: Duration = Duration::from_secs(2);

/// Hits of a search when nothing is said, and most of them.
pub const HITS: u32 = 8;
/// Most hits of a search.
pub const HITS_MAX: u32 = 30;
/// Lines of a hit's snippet.
pub const SNIPPET_LINES: usize = 4;
/// Characters of a line of a snippet.
pub const SNIPPET_CHARS: usize = 200;
/// Longest name of a tool that stands without quotation marks, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Characters of a title.
pub const TITLE_CHARS: usize = 80;

/// Events before and after one when nothing is said.
pub const AROUND: u32 = 3;
/// Most events before, and most after.
pub const AROUND_MAX: u32 = 20;
/// Characters of each event when nothing is said.
pub const AROUND_CHARS: u32 = 400;
/// Most characters of each event.
pub const AROUND_CHARS_MAX: u32 = 4_000;
/// Lines of each event.
pub const AROUND_LINES: usize = 40;

/// Bytes of a result when nothing is said: some 1,500 tokens.
pub const READ_BYTES: u32 = 6_000;
/// Most bytes of a result at once.
pub const READ_BYTES_MAX: u32 = 32_000;
/// Fewest: less shows nothing.
pub const READ_BYTES_MIN: u32 = 64;
/// Most bytes of a resource.
pub const RESOURCE_BYTES_MAX: u32 = 48_000;

/// Conversations of a list when nothing is said.
pub const LISTED: u32 = 15;
/// Most conversations of a list.
pub const LISTED_MAX: u32 = 100;
/// Conversations that are looked at for those that a filter lets through.
pub const LOOKED_AT_MAX: usize = 20_000;
/// Most branches of a list.
pub const BRANCHES_MAX: usize = 200;
/// Most calls of a list that wait for a decision.
pub const PENDING_MAX: u32 = 20;
/// Characters of a call's arguments in that list.
pub const ARGUMENTS_CHARS: usize = 2_000;

/// Characters of the arguments of one call that is asked for alone. Each may be shown as nine.
pub const ARGUMENTS_WHOLE_CHARS: usize = 6_000;

/// Tokens of a request when nothing is said.
pub const REQUEST_TOKENS: u64 = 4_000;
/// Most tokens of a request: what an answer has room for.
pub const REQUEST_TOKENS_MAX: u64 = 12_000;

/// Longest key that is remembered, in bytes.
pub const KEY_BYTES_MAX: usize = 128;
/// Largest value that is remembered, in bytes of JSON.
pub const VALUE_BYTES_MAX: usize = 16 << 10;
/// Keys that are recalled at once.
pub const RECALLED_MAX: usize = 50;
/// Characters of a value among others; alone it is given whole.
pub const RECALLED_CHARS: usize = 600;

/// Events at the end of a conversation that a digest has.
pub const DIGEST_EVENTS: u64 = 12;
/// Characters of each of them.
pub const DIGEST_CHARS: usize = 500;
/// Characters of the summary in a digest.
pub const SUMMARY_CHARS: usize = 4_000;

/// Requests by HTTP whose bodies are coming at once; the oldest gives way to one more.
pub const HTTP_BODIES_MAX: usize = 256;
/// Requests by HTTP that are answered at once; more are told to come again.
pub const HTTP_REQUESTS_MAX: usize = 256;
/// How long the body of a request by HTTP may take to come.
pub const HTTP_BODY_MAX: Duration = Duration::from_secs(10);
/// Bytes of the body of a request that is refused, which are taken and let go.
pub const HTTP_REFUSED_BYTES: usize = 1 << 20;
/// How long they may take to come.
pub const HTTP_REFUSED_WAIT: Duration = Duration::from_secs(1);
/// How long a browser may remember what it may ask for, in seconds.
pub const HTTP_PREFLIGHT_SECONDS: u32 = 600;
