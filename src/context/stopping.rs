//! Cancels work that nobody waits for.
//!
//! A request for a large window takes seconds, and its client may disconnect. Folding and rendering
//! check a flag at intervals and stop early. Their result is then incomplete; the caller of
//! [`until`] must check for cancellation itself.

use std::{cell::RefCell, rc::Rc};

/// Events or items between two checks: some milliseconds of work.
const STEP: usize = 1_024;

type Stopped = Rc<dyn Fn() -> bool>;

thread_local! {
    /// The stop condition of the current work on this thread.
    static STOPPED: RefCell<Option<Stopped>> = const { RefCell::new(None) };
}

/// Restores the previous value on drop, also after a panic.
struct Restored(Option<Stopped>);

impl Drop for Restored {
    fn drop(&mut self) {
        STOPPED.set(self.0.take());
    }
}

/// Runs `work` and cancels it when `stopped` returns true. The result is then incomplete.
pub fn until<T>(stopped: impl Fn() -> bool + 'static, work: impl FnOnce() -> T) -> T {
    let _before = Restored(STOPPED.replace(Some(Rc::new(stopped))));
    work()
}

/// Whether the work of this thread is cancelled.
pub(crate) fn is_stopped() -> bool {
    let stopped = STOPPED.with_borrow(Clone::clone);
    stopped.is_some_and(|stopped| stopped())
}

/// As [`is_stopped`], for a loop at index `at`. Checks only every [`STEP`]th time.
pub(crate) fn is_stopped_at(at: usize) -> bool {
    at.is_multiple_of(STEP) && is_stopped()
}
