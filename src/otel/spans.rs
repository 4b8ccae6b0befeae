//! Spans of calls, independent of their exporter.

use std::fmt;

use http::HeaderMap;

/// Creates spans for calls.
pub trait CallSpans: fmt::Debug + Send + Sync {
    /// Returns the span of a call of this method, or [`tracing::Span::none`] when it is not traced.
    /// The server records the fields `rpc.grpc.status_code`, `otel.status_code` and
    /// `treering.namespace`, if the span has them.
    fn begin(&self, method: &str, headers: &HeaderMap) -> tracing::Span;

    /// Returns whether spans may name the namespace of a call.
    fn tells_namespaces(&self) -> bool;
}
