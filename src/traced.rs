//! Spans of what a call waits for, where somebody traces calls. Who makes the span of a call,
//! and where spans go, is not known here: a part is only told while it is done within a span of
//! [`TARGET`], so that it costs a look at a flag when nobody traces, and little for a call that
//! is not sampled. Nothing of what is stored is ever in a span.

use tracing::{Level, Span};

/// The target of all spans that are for traces.
pub const TARGET: &str = "treering::trace";

/// True within a call that is traced.
#[must_use]
pub fn is_within() -> bool {
    tracing::span_enabled!(target: TARGET, Level::DEBUG)
        && Span::current()
            .metadata()
            .is_some_and(|metadata| metadata.target() == TARGET)
}

/// The span of a part of the call that is under way; none when that is not traced.
#[macro_export]
#[doc(hidden)]
macro_rules! traced {
    ($name:literal $(, $($field:tt)*)?) => {
        if $crate::traced::is_within() {
            tracing::debug_span!(target: $crate::traced::TARGET, $name $(, $($field)*)?)
        } else {
            tracing::Span::none()
        }
    };
}

/// A request's way through the log's writer.
#[derive(Debug)]
pub struct Way {
    call: Span,
    queued: Span,
}

impl Way {
    /// It is handed in by a call. None: that is not traced.
    #[must_use]
    pub fn begin() -> Option<Self> {
        is_within().then(|| Self {
            call: Span::current(),
            queued: tracing::debug_span!(target: TARGET, "append.queue"),
        })
    }

    /// Its group is being made.
    #[must_use]
    pub fn taken(mut self) -> Self {
        self.queued = Span::none();
        self
    }

    /// Its group goes to the log, until what is returned is dropped.
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
