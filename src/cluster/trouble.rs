//! Logs a failure that repeats once, and its end.

use std::sync::{Mutex, PoisonError};

/// A failure of something that is tried again and again.
pub(crate) struct Trouble {
    doing: &'static str,
    current: Mutex<Option<String>>,
}

impl Trouble {
    pub(crate) fn new(doing: &'static str) -> Self {
        Self {
            doing,
            current: Mutex::default(),
        }
    }

    /// Logs a failure, unless the last attempt failed too.
    pub(crate) fn note(&self, error: &str) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.is_none() {
            tracing::error!(
                doing = self.doing,
                error,
                "the cluster's database does not answer as it should; this is tried again. This \
                 node serves nothing without a lease. Check that PostgreSQL and its synchronous \
                 standby run and can be reached"
            );
        }
        *current = Some(error.to_owned());
    }

    /// Logs that it works again, if it did not.
    pub(crate) fn end(&self) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.take().is_some() {
            tracing::info!(doing = self.doing, "the cluster's database answers");
        }
    }
}
