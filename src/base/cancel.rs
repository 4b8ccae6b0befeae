//! Cancellation of work. Code in any layer that reads a lot checks whether its result is still
//! wanted.
//!
//! The thread that does the work is marked with its [`CancelToken`]. On threads without a mark,
//! work is always wanted.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// A cancellation token. Cheap to clone; all clones share one state.
#[derive(Clone, Debug)]
pub struct CancelToken {
    asked: Arc<AtomicBool>,
    closing: Arc<AtomicBool>,
}

impl CancelToken {
    /// Creates the token of new work in a store; `closing` is set when the store closes.
    pub fn new(closing: &Arc<AtomicBool>) -> Self {
        Self {
            asked: Arc::default(),
            closing: Arc::clone(closing),
        }
    }

    /// Returns true once nobody waits for the work any more, or the store is closing.
    pub fn is_set(&self) -> bool {
        self.asked.load(Ordering::Relaxed) || self.closing.load(Ordering::Relaxed)
    }

    /// Fails if the work was cancelled.
    ///
    /// # Errors
    /// [`Cancelled`].
    pub fn check(&self) -> Result<(), Cancelled> {
        match self.is_set() {
            true => Err(Cancelled),
            false => Ok(()),
        }
    }

    /// Returns a guard that cancels the work when it is dropped.
    pub fn guard(&self) -> CancelGuard {
        CancelGuard(Some(self.clone()))
    }
}

/// The work is not wanted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled;

/// Cancels its work when it is dropped. This has no effect on finished work.
#[derive(Debug)]
pub struct CancelGuard(Option<CancelToken>);

impl CancelGuard {
    /// Releases the guard without cancelling, because the work has finished.
    pub fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for CancelGuard {
    fn drop(&mut self) {
        if let Some(stop) = &self.0 {
            stop.asked.store(true, Ordering::Relaxed);
        }
    }
}

thread_local! {
    /// The token of the work on this thread.
    static CURRENT: RefCell<Option<CancelToken>> = const { RefCell::new(None) };
}

/// Returns the token of the work on this thread; `None` when the thread is not marked.
pub fn current() -> Option<CancelToken> {
    CURRENT.with_borrow(Clone::clone)
}

/// Returns false once the work on this thread was cancelled.
pub fn is_wanted() -> bool {
    CURRENT.with_borrow(|stop| stop.as_ref().is_none_or(|stop| !stop.is_set()))
}

/// Marks a thread with the token of its work. Dropping the scope removes the mark, also
/// during a panic.
pub struct WorkScope;

impl WorkScope {
    /// Marks this thread with `stop`.
    pub fn on(stop: CancelToken) -> Self {
        CURRENT.set(Some(stop));
        Self
    }
}

impl Drop for WorkScope {
    fn drop(&mut self) {
        CURRENT.set(None);
    }
}
