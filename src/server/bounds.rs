//! Every bound of the server, with its unit and its reason.

use std::time::Duration;

/// Largest message that the server takes and that its clients should take, in
/// bytes: a full batch of the default limits and its envelopes. tonic's own
/// default of 4 MiB would refuse what the store itself can hold.
pub const MESSAGE_BYTES_MAX: usize = 160 << 20;

/// What a batch needs on the wire beyond its bodies, in bytes.
pub const ENVELOPE_BYTES_MAX: usize = 16 << 20;

/// A message of a read is sent once it holds so many bytes; a larger event goes
/// alone. Large enough to be cheap, small enough to keep memory flat.
pub const READ_MESSAGE_BYTES: usize = 256 << 10;

/// A message of a result's text, in bytes.
pub const RESULT_CHUNK_BYTES: usize = 256 << 10;

/// Bodies in the answer of a diff, both sides together, in bytes.
pub const DIFF_BYTES_MAX: usize = 32 << 20;

/// Requests of one append stream that wait for their answers.
pub const STREAM_APPENDS_MAX: usize = 256;

/// The same in bytes: one request above it still goes, alone.
pub const STREAM_BYTES_MAX: usize = 16 << 20;

/// Between heartbeats of a subscription, unless the client chooses.
pub const HEARTBEAT_DEFAULT: Duration = Duration::from_secs(15);

/// The longest that a client can choose.
pub const HEARTBEAT_MAX: Duration = Duration::from_secs(300);

/// The longest wait for a decision in one call, and the wait of a call that
/// names neither a timeout nor a deadline.
pub const DECISION_WAIT_MAX: Duration = Duration::from_secs(3_600);

/// The longest wait for the index to reach a position.
pub const INDEX_WAIT_MAX: Duration = Duration::from_secs(30);

/// Hits, conversations or calls in an answer, unless the client chooses.
pub const SEARCH_HITS_DEFAULT: usize = 10;
/// See [`SEARCH_HITS_DEFAULT`].
pub const PAGE_DEFAULT: usize = 100;

/// Longest error text, in bytes: it travels in an HTTP/2 header.
pub const ERROR_TEXT_BYTES_MAX: usize = 1_024;

/// Between looks at the engine's health by those who watch it.
pub const HEALTH_LOOK_EVERY: Duration = Duration::from_secs(1);

/// What streams get to end themselves after the grace period.
pub const CUT_WAIT: Duration = Duration::from_millis(500);

/// HTTP/2 flow-control windows, in bytes: enough for a fast local link, and what
/// one stream, or one connection, can make the server hold unread.
pub const STREAM_WINDOW_BYTES: u32 = 2 << 20;
/// See [`STREAM_WINDOW_BYTES`].
pub const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;

/// Files and variables in an answer about knowledge, in bytes: a client with
/// tonic's default bound of 4 MiB can read it.
pub const KNOWLEDGE_BYTES_MAX: usize = 3 << 20;
