//! All limits of the server, with units and reasons.

use std::time::Duration;

use treering_access::ReadBounds;

/// Largest message that the server accepts and its clients should accept, in bytes: a full batch of
/// the default limits with its envelopes. tonic's default of 4 MiB would refuse what the store can
/// hold.
pub const MESSAGE_BYTES_MAX: usize = 80 << 20;

/// Bytes of a batch on the wire beyond its bodies.
pub(crate) const ENVELOPE_BYTES_MAX: usize = 12 << 20;

/// Bytes after which a message of a read is sent; a larger event is sent alone. Large enough to be
/// cheap, small enough that other calls soon get their turn.
pub const READ_MESSAGE_BYTES: usize = 64 << 10;

/// Size of a message with a part of a result's text, in bytes.
pub(crate) const RESULT_CHUNK_BYTES: usize = 256 << 10;

/// Maximum number of bytes of bodies in the answer of a diff, both sides together.
pub(crate) const DIFF_BYTES_MAX: usize = 32 << 20;

/// Reads of one key that are recorded in the audit: 100 conversations or 256 MiB of answers within
/// an hour. An agent reads less; copying a store reads more.
pub const MANY_READ: ReadBounds = ReadBounds {
    conversations: 100,
    bytes: 256 << 20,
    within: Duration::from_secs(3_600),
};
/// Maximum number of recent reads that are remembered, so that the audit does not record each part
/// of one read.
pub(crate) const READS_NOTED_MAX: usize = 10_000;
/// Maximum number of idempotency keys of one request: a few hundred KiB, answered in milliseconds.
pub(crate) const KNOWN_KEYS_MAX: usize = 4_096;

/// Maximum number of conversations of one look-up of newest events.
pub const LATEST_CONVERSATIONS_MAX: usize = 256;

/// Maximum number of events of one look-up. Each may require decompressing another frame, which
/// takes a few hundred milliseconds for all of them.
pub const LOOKUPS_MAX: usize = 4_096;

/// Maximum number of bytes of bodies or values in the answer of a look-up, within tonic's default
/// client limit of 4 MiB. A larger one is sent alone.
pub const LOOKUP_BYTES_MAX: usize = 3 << 20;

/// Maximum number of types in one filter. Each event is compared with all of them.
pub(crate) const FILTER_TYPES_MAX: usize = 64;

/// Maximum number of keys of one look-up in an active context: the default maximum number of keys
/// in an active context.
pub(crate) const CONTEXT_KEYS_MAX: usize = 10_000;

/// Maximum number of requests of one append stream that wait for their answers.
pub(crate) const STREAM_APPENDS_MAX: usize = 256;

/// The same in bytes; a single larger request is processed alone.
pub(crate) const STREAM_BYTES_MAX: usize = 16 << 20;

/// Heartbeat interval of a subscription, unless the client chooses one.
pub(crate) const HEARTBEAT_DEFAULT: Duration = Duration::from_secs(15);

/// Longest heartbeat interval that a client can choose.
pub(crate) const HEARTBEAT_MAX: Duration = Duration::from_secs(300);

/// Longest wait for a decision in one call, and the wait of a call without timeout or deadline.
pub(crate) const DECISION_WAIT_MAX: Duration = Duration::from_secs(3_600);

/// Longest search, including the waits for the index and for its turn.
pub(crate) const SEARCH_WAIT_MAX: Duration = Duration::from_secs(30);

/// Longest wait for the log position that a model request must include, and longest time to build
/// the request.
pub(crate) const BUILD_WAIT_MAX: Duration = Duration::from_secs(30);

/// Hits, conversations or calls in an answer, unless the client chooses.
pub(crate) const SEARCH_HITS_DEFAULT: usize = 10;
/// See [`SEARCH_HITS_DEFAULT`].
pub(crate) const PAGE_DEFAULT: usize = 100;

/// Longest error text, in bytes: it is sent in an HTTP/2 header.
pub(crate) const ERROR_TEXT_BYTES_MAX: usize = 1_024;

/// Interval of engine health checks for clients that watch the health of a service.
pub(crate) const HEALTH_LOOK_EVERY: Duration = Duration::from_secs(1);

/// Time for streams to end after the grace period.
pub(crate) const CUT_WAIT: Duration = Duration::from_millis(500);

/// HTTP/2 flow-control windows, in bytes: enough for a fast local link. They bound how much unread
/// data a stream or connection can make the server hold.
pub(crate) const STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// See [`STREAM_WINDOW_BYTES`].
pub(crate) const CONNECTION_WINDOW_BYTES: u32 = 2 << 20;

/// Bytes that a stream buffers for a connection that is not ready to send.
pub(crate) const SEND_BUFFER_BYTES: usize = 128 << 10;

/// Maximum number of bytes of files and variables in an answer about knowledge, within tonic's
/// default client limit of 4 MiB.
pub(crate) const KNOWLEDGE_BYTES_MAX: usize = 3 << 20;

/// Largest request of a method without event content, in bytes: ids, names, filters and policies,
/// with ample room.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Maximum number of bytes that decoding a request may allocate, in multiples of the method's
/// message limit. Received, decompressed and decoded bytes together stay within four times the
/// limit.
pub(crate) const DECODED_PER_MESSAGE_BYTE_MAX: usize = 2;

/// Maximum number of bytes of requests that were partly or wholly received and not handled yet,
/// over all connections: one of the largest batches, received and decoded, with room to spare.
pub const BYTES_IN_FLIGHT_MAX: usize = 192 << 20;

/// A connection may hold this many times what is left free for all. Alone, it gets three quarters
/// of the whole, enough for the largest batch. However many hold their maximum, the next one still
/// gets a share of the rest.
pub(crate) const CONNECTION_HOLDS_OF_FREE: usize = 3;

/// Bytes that each connection may always hold, however much others hold, so that small requests
/// pass.
pub(crate) const CONNECTION_SHARE_BYTES: usize = 64 << 10;

/// Time after which a client should retry when too many request bytes were in flight.
pub(crate) const IN_FLIGHT_RETRY: Duration = Duration::from_millis(500);

/// Longest time for a request to arrive. A large request gets more time: see
/// [`MESSAGE_BYTES_PER_SECOND_MIN`].
pub(crate) const MESSAGE_WAIT: Duration = Duration::from_secs(30);

/// Slowest rate at which a large request may arrive, in bytes per second (2 Mbit/s). Slower clients
/// should send smaller requests, since they hold memory that others need.
pub(crate) const MESSAGE_BYTES_PER_SECOND_MIN: usize = 256 << 10;

/// Largest compressed message that is decompressed in place, in bytes. Larger ones are decompressed
/// on a blocking thread.
pub(crate) const INFLATE_HERE_BYTES_MAX: usize = 4 << 10;

/// Maximum number of connections, unless the limit of open files is low. Each may make the server
/// hold [`CONNECTION_WINDOW_BYTES`] unread.
pub(crate) const CONNECTIONS_MAX: usize = 1_024;

/// One in this many of the process's open files may be a connection: the log, the projections and
/// the index need the others.
pub(crate) const FILES_PER_CONNECTION_MIN: usize = 2;

/// Time for a new connection to send the HTTP/2 preface and settings. If HTTP/1 is served too, this
/// time starts at the first byte, for which the client has [`FIRST_BYTE_WAIT`].
pub(crate) const HANDSHAKE_WAIT: Duration = Duration::from_secs(10);

/// Minimum number of bytes of both: the 24-byte preface and a 9-byte frame header.
pub(crate) const HANDSHAKE_BYTES: u64 = 24 + 9;

/// Idle time after which a connection is closed; clients reconnect with their next call.
pub const IDLE_MAX: Duration = Duration::from_secs(300);

/// Age at which a connection stops taking new calls: clients reconnect, so that those behind a load
/// balancer spread out again.
pub(crate) const CONNECTION_AGE_MAX: Duration = Duration::from_secs(24 * 3_600);

/// Time for calls of such a connection to finish. Subscriptions resume on a new one.
pub(crate) const CONNECTION_AGE_GRACE: Duration = Duration::from_secs(3_600);

/// Minimum interval of log lines about slow calls: ten a second when all are slow.
pub(crate) const SLOW_LOG_EVERY: Duration = Duration::from_millis(100);

/// Maximum number of connections for metrics and health by HTTP.
pub(crate) const METRICS_CONNECTIONS_MAX: usize = 16;

/// Longest lifetime of such a connection, including its answer.
pub(crate) const METRICS_CONNECTION_MAX: Duration = Duration::from_secs(30);

/// Largest head of a request for metrics or health, in bytes.
pub(crate) const METRICS_HEAD_BYTES_MAX: usize = 16 << 10;

/// Time for an idle connection to acknowledge that it is closed.
pub(crate) const GOODBYE_WAIT: Duration = Duration::from_millis(250);

/// Interval of checks of a closing connection.
pub(crate) const GOODBYE_LOOK: Duration = Duration::from_millis(25);

/// Pause after a failed accept (no free file descriptor), to avoid a busy loop.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Minimum interval of log lines about events that may occur for every connection.
pub(crate) const CONNECTION_LOG_EVERY: Duration = Duration::from_secs(10);

/// Bytes that a connection reads before its calls are started. Bounds how many immediately
/// cancelled calls can pile up.
pub(crate) const CONNECTION_TURN_BYTES: usize = 32 << 10;

/// Maximum number of calls cancelled before they were started. More than fit into one
/// [`CONNECTION_TURN_BYTES`] plus the frame that exceeds it, so that no client is disconnected for
/// cancelling: a call and its end take at least 23 bytes.
pub(crate) const CANCELLED_UNSTARTED_MAX: usize = 4_096;

/// Largest headers of a call, in bytes as HTTP/2 counts them.
pub(crate) const HEADER_LIST_BYTES_MAX: u32 = 16 << 10;

/// Interval of key checks for running calls: a stream ends at most this long after its key was
/// revoked. New calls check by themselves.
pub(crate) const KEYS_LOOK_EVERY: Duration = Duration::from_secs(1);

/// Interval at which the times of last use of keys are written. A crash loses the uses of at most
/// one interval.
pub(crate) const KEY_USES_EVERY: Duration = Duration::from_secs(60);

/// Maximum number of concurrent TLS handshakes: each takes about a millisecond of a core, and slow
/// ones wait for their client. One more ends the oldest.
pub(crate) const HANDSHAKES_MAX: usize = 256;

/// Interval of checks of certificate files.
pub(crate) const TLS_LOOK_EVERY: Duration = Duration::from_secs(5);

/// Time to the first byte on a connection that may come from a browser. Browsers open spare
/// connections in advance and reopen them if they are closed unused.
pub(crate) const FIRST_BYTE_WAIT: Duration = Duration::from_secs(60);

/// Time for the head of an HTTP/1 request from a browser.
pub(crate) const HTTP1_HEAD_WAIT: Duration = Duration::from_secs(10);

/// Maximum number of headers of an HTTP/1 request; browsers send some twenty.
pub(crate) const HTTP1_HEADERS_MAX: usize = 64;

/// Unread bytes that an HTTP/1 connection holds, and so the largest head.
pub(crate) const HTTP1_BUFFER_BYTES: usize = 64 << 10;

/// Maximum number of JSON values in the messages of one request of spans: a dozen histories of
/// 10,000 messages. As a tree, a value takes up to about 100 bytes.
pub(crate) const SPAN_VALUES_MAX: usize = 1 << 20;

/// Maximum number of model and tool spans in one request: twenty full batches of an exporter.
pub(crate) const SPANS_MAX: usize = 10_240;

/// Maximum number of events in one append from spans, unless one message has more calls.
pub(crate) const SPAN_EVENTS_MAX: usize = 1_000;

/// The same in bytes, unless one message is larger.
pub(crate) const SPAN_APPEND_BYTES: usize = 8 << 20;

/// Maximum number of conversations whose shape is cached to compare spans with it.
pub(crate) const SPAN_CONVERSATIONS_MAX: usize = 512;

/// The same in bytes, approximately.
pub(crate) const SPAN_CONVERSATIONS_BYTES: usize = 32 << 20;

/// Maximum number of traces whose conversation is cached. The same limit applies to histories.
pub(crate) const SPAN_TRACES_MAX: usize = 8_192;

/// Attempts to compare spans when others append to their conversation.
pub(crate) const SPAN_TRIES: u32 = 4;

/// Maximum number of spans whose faults are listed in an answer.
pub(crate) const SPAN_FAULTS_TOLD: usize = 5;

/// Longest time that a call waits for its shard to be served, unless its deadline is sooner: a
/// lease ends, another node claims the shard and opens its engine.
pub(crate) const ROUTE_WAIT_MAX: Duration = Duration::from_secs(30);

/// First pause before a call looks for the owner of its shard again. Each pause is twice as long as
/// the one before.
pub(crate) const ROUTE_PAUSE_MIN: Duration = Duration::from_millis(20);
/// The longest of these pauses.
pub(crate) const ROUTE_PAUSE_MAX: Duration = Duration::from_millis(500);

/// Maximum number of shards that one call asks at a time.
pub(crate) const SHARDS_ASKED_MAX: usize = 16;

/// Interval of checks that a stream without messages comes from a shard that this node may serve.
pub(crate) const SHARD_LOOK_EVERY: Duration = Duration::from_millis(250);

/// Maximum number of connections to other nodes. One more closes all that are unused.
pub(crate) const OWNER_CHANNELS_MAX: usize = 256;

/// Time to connect to another node, which is in the same network.
pub(crate) const OWNER_CONNECT_WAIT: Duration = Duration::from_secs(2);

/// Interval of HTTP/2 pings on a connection to another node.
pub(crate) const OWNER_PING_EVERY: Duration = Duration::from_secs(5);
/// A connection to another node that does not answer a ping for this long is closed.
pub(crate) const OWNER_PING_WAIT: Duration = Duration::from_secs(5);
