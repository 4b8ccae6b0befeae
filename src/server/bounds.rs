//! Every bound of the server, with its unit and its reason.

use std::time::Duration;

/// Largest message that the server takes and that its clients should take, in
/// bytes: a full batch of the default limits and its envelopes. tonic's own
/// default of 4 MiB would refuse what the store itself can hold.
pub const MESSAGE_BYTES_MAX: usize = 80 << 20;

/// What a batch needs on the wire beyond its bodies, in bytes.
pub const ENVELOPE_BYTES_MAX: usize = 12 << 20;

/// A message of a read is sent once it holds so many bytes; a larger event goes
/// alone. Large enough to be cheap, small enough that others have their turn soon.
pub const READ_MESSAGE_BYTES: usize = 64 << 10;

/// A message of a result's text, in bytes.
pub const RESULT_CHUNK_BYTES: usize = 256 << 10;

/// Bodies in the answer of a diff, both sides together, in bytes.
pub const DIFF_BYTES_MAX: usize = 32 << 20;

/// Conversations that one key reads whole within an hour, and of which the audit is told.
pub const WHOLE_READS_NOTED: usize = 100;
/// Reads that the audit was told of lately, so that it is not told of each part of one.
pub const READS_NOTED_MAX: usize = 10_000;
/// Idempotency keys of one question: some hundred KiB, answered in milliseconds.
pub const KNOWN_KEYS_MAX: usize = 4_096;

/// Conversations of one look-up of their newest events.
pub const LATEST_CONVERSATIONS_MAX: usize = 256;

/// Events of one look-up. Each may unpack a frame of its own: some hundred milliseconds.
pub const LOOKUPS_MAX: usize = 4_096;

/// Bodies, or values, in the answer of a look-up, in bytes: a client with tonic's default
/// bound of 4 MiB can read it. A larger one goes alone.
pub const LOOKUP_BYTES_MAX: usize = 3 << 20;

/// Types of one filter. Each event is compared with all of them.
pub const FILTER_TYPES_MAX: usize = 64;

/// Keys of one look-up in an active context: as many as that has by default.
pub const CONTEXT_KEYS_MAX: usize = 10_000;

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

/// The longest that a search takes: it waits for the index, waits for its turn, and runs.
pub const SEARCH_WAIT_MAX: Duration = Duration::from_secs(30);

/// The longest wait for the log to reach the position that a request is built
/// at, and the longest build.
pub const BUILD_WAIT_MAX: Duration = Duration::from_secs(30);

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
pub const STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// See [`STREAM_WINDOW_BYTES`].
pub const CONNECTION_WINDOW_BYTES: u32 = 2 << 20;

/// What a stream holds for a connection that is not ready to take it, in bytes.
pub const SEND_BUFFER_BYTES: usize = 128 << 10;

/// Files and variables in an answer about knowledge, in bytes: a client with
/// tonic's default bound of 4 MiB can read it.
pub const KNOWLEDGE_BYTES_MAX: usize = 3 << 20;

/// Largest request of a method that carries no event's content, in bytes: ids,
/// names, filters and policies, with much room.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;

/// What decoding a request may allocate, in multiples of the method's message
/// bound. Received bytes, what they are inflated to and what is decoded from
/// them stay within four times the bound together.
pub const DECODED_PER_MESSAGE_BYTE_MAX: usize = 2;

/// Requests that were received in part, or whole and not handled yet, of all
/// connections together, in bytes: one of the largest batches, as it was received and
/// as it is decoded, and room beside it.
pub const BYTES_IN_FLIGHT_MAX: usize = 192 << 20;

/// A connection may hold so many times what is left free for all. Alone, it gets
/// three quarters of the whole: the largest batch. However many hold all that they
/// can, the next one still finds a share of what is left.
pub const CONNECTION_HOLDS_OF_FREE: usize = 3;

/// What each connection may always have under way, in bytes, however many others
/// hold what there is: small requests pass.
pub const CONNECTION_SHARE_BYTES: usize = 64 << 10;

/// When a client that found that room taken should try again.
pub const IN_FLIGHT_RETRY: Duration = Duration::from_millis(500);

/// The longest that a request may take to arrive, before its size is counted.
pub const MESSAGE_WAIT: Duration = Duration::from_secs(30);

/// The slowest that a large request may arrive, in bytes a second (2 Mbit/s).
/// Whoever is slower should send less at once: room that is held is others'.
pub const MESSAGE_BYTES_PER_SECOND_MIN: usize = 256 << 10;

/// A compressed message above this is inflated on a thread that may block.
pub const INFLATE_HERE_BYTES_MAX: usize = 4 << 10;

/// Connections at once, unless the limit of open files is low. Each may make
/// the server hold [`CONNECTION_WINDOW_BYTES`] unread.
pub const CONNECTIONS_MAX: usize = 1_024;

/// Of the files that the process may open, one in so many may be a connection:
/// the log, the views and the index need the others.
pub const FILES_PER_CONNECTION_MIN: usize = 2;

/// What a new connection gets to send the HTTP/2 preface and its settings.
pub const HANDSHAKE_WAIT: Duration = Duration::from_secs(10);

/// Those bytes, at least.
pub const HANDSHAKE_BYTES: u64 = 24 + 9;

/// A connection without a call for so long is asked to end; clients connect
/// again by themselves with their next call.
pub const IDLE_MAX: Duration = Duration::from_secs(300);

/// The oldest connection that takes new calls: after it, clients are sent to a
/// new one, so that those behind a balancer spread out again.
pub const CONNECTION_AGE_MAX: Duration = Duration::from_secs(24 * 3_600);

/// What calls of such a connection get to finish. Subscriptions go on on a new
/// one from where they were.
pub const CONNECTION_AGE_GRACE: Duration = Duration::from_secs(3_600);

/// Between log lines about slow calls: when all are slow, there are ten a second.
pub const SLOW_LOG_EVERY: Duration = Duration::from_millis(100);

/// Connections at once of those who scrape the metrics or ask for health by HTTP.
pub const METRICS_CONNECTIONS_MAX: usize = 16;

/// The longest that one of them may take, its answer included.
pub const METRICS_CONNECTION_MAX: Duration = Duration::from_secs(30);

/// The head of their request, in bytes.
pub const METRICS_HEAD_BYTES_MAX: usize = 16 << 10;

/// Spans that wait to be sent to a collector. One has some hundred bytes, and at most
/// [`TRACE_STATE_BYTES_MAX`] of its caller's; one more is lost, and counted.
pub const TRACE_QUEUE_SPANS: usize = 4_096;

/// Spans that are sent at once.
pub const TRACE_BATCH_SPANS: usize = 512;

/// A span waits so long for others to be sent with.
pub const TRACE_SEND_EVERY: Duration = Duration::from_millis(500);

/// The longest that a collector may take for a batch, trying again included.
pub const TRACE_SEND_WAIT: Duration = Duration::from_secs(10);

/// The longest that a connection to it may take.
pub const TRACE_CONNECT_WAIT: Duration = Duration::from_secs(5);

/// What the last spans get at the end.
pub const TRACE_FLUSH_WAIT: Duration = Duration::from_secs(2);

/// Of a caller's `tracestate`, in bytes: what every participant has to take.
pub const TRACE_STATE_BYTES_MAX: usize = 512;

/// What a connection without calls gets to answer that it ends.
pub const GOODBYE_WAIT: Duration = Duration::from_millis(250);

/// Between looks at a connection that ends.
pub const GOODBYE_LOOK: Duration = Duration::from_millis(25);

/// After a connection could not be accepted (no file is free): without a pause
/// this would turn a core.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Between log lines about what happens at every connection.
pub const CONNECTION_LOG_EVERY: Duration = Duration::from_secs(10);

/// Bytes that a connection reads before its calls are started. Bounds what a
/// burst of calls that are cancelled at once can pile up.
pub const CONNECTION_TURN_BYTES: usize = 32 << 10;

/// Calls that were cancelled before they were started. More than fit into one
/// [`CONNECTION_TURN_BYTES`] and the frame that passes it, so that no client is
/// sent away for cancelling: a call and its end take at least 23 bytes.
pub const CANCELLED_UNSTARTED_MAX: usize = 4_096;

/// The headers of a call, in bytes as HTTP/2 counts them.
pub const HEADER_LIST_BYTES_MAX: u32 = 16 << 10;

/// Between looks at the keys, for calls that go on: a stream of a key that was revoked ends
/// so much later, at the latest. New calls look by themselves.
pub const KEYS_LOOK_EVERY: Duration = Duration::from_secs(1);

/// Between writings of when keys were used last. Lost with the process: no more than that.
pub const KEY_USES_EVERY: Duration = Duration::from_secs(60);

/// TLS handshakes at once: each takes a millisecond or so of a core, and those that take
/// longer wait for their client. When one more comes, the oldest ends.
pub const HANDSHAKES_MAX: usize = 256;

/// Between looks at the files of certificates.
pub const TLS_LOOK_EVERY: Duration = Duration::from_secs(5);

/// A client that has sent nothing for so long is taken for one that waits for the server's HTTP/2
/// settings, as some gRPC clients do for 20 s; a browser sends its request with the connection,
/// and opens another where one was opened ahead of use.
pub const FIRST_BYTE_WAIT: Duration = Duration::from_millis(200);

/// The head of a request by HTTP/1, which browsers send, comes within this time.
pub const HTTP1_HEAD_WAIT: Duration = Duration::from_secs(10);

/// Headers of a request by HTTP/1; browsers send some twenty.
pub const HTTP1_HEADERS_MAX: usize = 64;

/// What a connection by HTTP/1 holds unread, in bytes, and so the largest head.
pub const HTTP1_BUFFER_BYTES: usize = 64 << 10;

/// JSON values in the messages of one request of spans: a history of ten thousand messages,
/// a dozen times. As a tree, one takes up to about 100 bytes.
pub const SPAN_VALUES_MAX: usize = 1 << 20;

/// Spans of a model or a tool in one request: twenty full batches of an exporter.
pub const SPANS_MAX: usize = 10_240;

/// Events of one append of what spans add, unless one message has more calls.
pub const SPAN_EVENTS_MAX: usize = 1_000;

/// The same in bytes, unless one message is larger.
pub const SPAN_APPEND_BYTES: usize = 8 << 20;

/// Conversations whose shape is remembered to compare spans with it.
pub const SPAN_CONVERSATIONS_MAX: usize = 512;

/// The same in bytes, about.
pub const SPAN_CONVERSATIONS_BYTES: usize = 32 << 20;

/// Traces of which it is remembered which conversation they are of, and ends of histories.
pub const SPAN_TRACES_MAX: usize = 8_192;

/// How often spans are compared again when somebody else appends to their conversation.
pub const SPAN_TRIES: u32 = 4;

/// Spans of which an answer says what is wrong with them.
pub const SPAN_FAULTS_TOLD: usize = 5;
