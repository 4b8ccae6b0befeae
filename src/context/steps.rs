//! Counts steps of loops, so that tests can measure how work grows with its input. Does nothing
//! outside tests.

/// Records `count` steps.
#[inline]
pub(crate) fn note(count: usize) {
    #[cfg(test)]
    counted::add(count);
    #[cfg(not(test))]
    let _ = count;
}

#[cfg(test)]
pub(crate) use counted::of;

#[cfg(test)]
mod counted {
    use std::cell::Cell;

    thread_local! {
        static STEPS: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn add(count: usize) {
        STEPS.set(STEPS.get() + count);
    }

    /// Runs some work and returns the steps that it took on this thread.
    pub(crate) fn of<T>(work: impl FnOnce() -> T) -> (usize, T) {
        let before = STEPS.get();
        let done = work();
        (STEPS.get() - before, done)
    }
}
