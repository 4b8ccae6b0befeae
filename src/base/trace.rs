//! Trace spans for the parts of a call. This module does not know who creates a call's span or
//! where spans are sent. A part creates a span only inside a span of [`TARGET`]: this costs a flag
//! check when tracing is off, and little for a call that is not sampled. Spans never contain stored
//! content.

use tracing::{Level, Span};

/// The target of all spans for tracing.
pub const TARGET: &str = "treering::trace";

/// Returns true inside a traced call.
#[must_use]
pub fn is_within() -> bool {
    tracing::span_enabled!(target: TARGET, Level::DEBUG)
        && Span::current()
            .metadata()
            .is_some_and(|metadata| metadata.target() == TARGET)
}

/// Creates a span for a part of the current call, or a disabled one when the call is not traced.
#[macro_export]
#[doc(hidden)]
macro_rules! traced {
    ($name:literal $(, $($field:tt)*)?) => {
        if $crate::trace::is_within() {
            tracing::debug_span!(target: $crate::trace::TARGET, $name $(, $($field)*)?)
        } else {
            tracing::Span::none()
        }
    };
}

/// The trace of a request through the log's writer.
#[derive(Debug)]
pub struct WriteTrace {
    call: Span,
    queued: Span,
}

impl WriteTrace {
    /// Starts the trace when a call submits the request. Returns `None` when the call is not
    /// traced.
    #[must_use]
    pub fn begin() -> Option<Self> {
        is_within().then(|| Self {
            call: Span::current(),
            queued: tracing::debug_span!(target: TARGET, "append.queue"),
        })
    }

    /// Ends the queue span when the writer takes the request.
    #[must_use]
    pub fn taken(mut self) -> Self {
        self.queued = Span::none();
        self
    }

    /// Returns the span of the group's commit, which ends when it is dropped.
    #[must_use]
    pub fn commit(&self, group_appends: usize, group_events: usize) -> Span {
        tracing::debug_span!(
            target: TARGET,
            parent: &self.call,
            "append.commit",
            group_appends,
            group_events
        )
    }
}
