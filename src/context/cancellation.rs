//! Cancels work that nobody waits for.
//!
//! A request for a large window takes seconds, and its client may disconnect. Folding and rendering
//! check a token at intervals and stop early. Their result is then incomplete; the caller must
//! check the token itself.

use std::{fmt, sync::Arc};

/// Number of events or items between two checks: some milliseconds of work.
const STEP: usize = 1_024;

/// Tells whether work was cancelled. Cheap to clone; the default is never cancelled.
#[derive(Clone, Default)]
pub struct CancellationToken(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl CancellationToken {
    /// Creates a token for work that is cancelled once `is_cancelled` returns true.
    #[must_use]
    pub fn new(is_cancelled: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(is_cancelled)))
    }

    /// Returns whether the work was cancelled.
    #[must_use]
    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.as_ref().is_some_and(|is_cancelled| is_cancelled())
    }

    /// As [`is_cancelled`](Self::is_cancelled), for a loop at index `at`. Checks only every 1,024th
    /// time.
    #[must_use]
    pub(crate) fn is_cancelled_at(&self, at: usize) -> bool {
        at.is_multiple_of(STEP) && self.is_cancelled()
    }
}

impl fmt::Debug for CancellationToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CancellationToken")
            .field(&self.is_cancelled())
            .finish()
    }
}
