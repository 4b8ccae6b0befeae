//! Counts loop steps, so that tests can measure how work grows with its input. Does nothing outside
//! tests.

/// Records `count` steps.
#[inline]
pub fn note(count: usize) {
    #[cfg(any(test, feature = "testkit"))]
    counted::add(count);
    #[cfg(not(any(test, feature = "testkit")))]
    let _ = count;
}

#[cfg(any(test, feature = "testkit"))]
pub use counted::of;

#[cfg(any(test, feature = "testkit"))]
mod counted {
    use std::cell::Cell;

    thread_local! {
        static STEPS: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn add(count: usize) {
        STEPS.set(STEPS.get() + count);
    }

    /// Runs some work and returns the number of steps that it took on this thread.
    pub fn of<T>(work: impl FnOnce() -> T) -> (usize, T) {
        let before = STEPS.get();
        let done = work();
        (STEPS.get() - before, done)
    }
}
