//! Limits of the export of spans.

use std::time::Duration;

/// Maximum number of spans that wait to be sent to a collector. Each takes some hundred bytes, and
/// at most [`TRACE_STATE_BYTES_MAX`] of trace state. Further spans are dropped and counted.
pub(crate) const TRACE_QUEUE_SPANS: usize = 4_096;

/// Maximum number of spans sent at once.
pub(crate) const TRACE_BATCH_SPANS: usize = 512;

/// How long a span waits for others to be sent with it.
pub(crate) const TRACE_SEND_EVERY: Duration = Duration::from_millis(500);

/// Longest time for a collector to take a batch, including retries.
pub(crate) const TRACE_SEND_WAIT: Duration = Duration::from_secs(10);

/// Longest time to connect to the collector.
pub(crate) const TRACE_CONNECT_WAIT: Duration = Duration::from_secs(5);

/// Time to send the last spans at shutdown.
pub(crate) const TRACE_FLUSH_WAIT: Duration = Duration::from_secs(2);

/// Longest `tracestate` of a caller, in bytes: the length that W3C Trace Context asks everyone to
/// propagate.
pub(crate) const TRACE_STATE_BYTES_MAX: usize = 512;
