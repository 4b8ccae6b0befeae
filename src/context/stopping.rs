//! Ends work that nobody waits for any more.
//!
//! A request of a large window takes seconds, and its client may go meanwhile. What
//! folds and renders looks here now and then, and breaks off; what it has made by
//! then is of no use, and whoever called [`until`] looks for itself whether it is.

use std::{cell::RefCell, rc::Rc};

/// Events, or items, between two looks: some milliseconds of work at most.
const STEP: usize = 1_024;

type Stopped = Rc<dyn Fn() -> bool>;

thread_local! {
    /// Of the work that this thread does.
    static STOPPED: RefCell<Option<Stopped>> = const { RefCell::new(None) };
}

/// Puts back what was there before, panics included.
struct Restored(Option<Stopped>);

impl Drop for Restored {
    fn drop(&mut self) {
        STOPPED.set(self.0.take());
    }
}

/// Works until `stopped` says that the work is not wanted any more; what comes out
/// then is not whole.
pub fn until<T>(stopped: impl Fn() -> bool + 'static, work: impl FnOnce() -> T) -> T {
    let _before = Restored(STOPPED.replace(Some(Rc::new(stopped))));
    work()
}

/// True once the work of this thread is not wanted any more.
pub(crate) fn is_stopped() -> bool {
    let stopped = STOPPED.with_borrow(Clone::clone);
    stopped.is_some_and(|stopped| stopped())
}

/// The same for a loop at its place `at`, which looks at every [`STEP`]th only.
pub(crate) fn is_stopped_at(at: usize) -> bool {
    at.is_multiple_of(STEP) && is_stopped()
}
