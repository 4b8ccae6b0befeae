//! Catches panics of libraries and turns them into errors.
//!
//! redb and tantivy trust a file that was closed properly, and panic on some files that were
//! changed since. Where their work can be discarded, such a panic means damage, to be reported in
//! our own words; a backtrace beside it would only alarm users.

use std::{
    cell::Cell,
    panic::{self, AssertUnwindSafe, catch_unwind},
};

thread_local! {
    /// How many calls of [`contained`] are active on this thread.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// The work panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PanicError;

/// Runs work and catches its panics. Nothing of the work may be kept when it panics.
///
/// # Errors
/// [`PanicError`]. The panic hook reports the message: see [`log_caught_panics`].
pub fn catch_panics<T>(work: impl FnOnce() -> T) -> Result<T, PanicError> {
    DEPTH.set(DEPTH.get() + 1);
    let done = catch_unwind(AssertUnwindSafe(work));
    DEPTH.set(DEPTH.get() - 1);
    done.map_err(|_| PanicError)
}

/// Installs a panic hook that reports contained panics in the log, at the level `debug`, instead of
/// on standard error. For programs: the hook applies to the whole process.
pub fn log_caught_panics() {
    let loud = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if DEPTH.get() == 0 {
            loud(panic);
        } else {
            tracing::debug!(%panic, "a library panicked on what it read");
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    // After a contained panic, also a nested one, the next uncontained panic must be reported
    // again.
    #[test]
    fn depth_is_restored_after_a_caught_panic() {
        let inner = || catch_panics(|| panic!("inner")).unwrap_err();
        assert_eq!(catch_panics(inner), Ok(PanicError));
        assert_eq!(DEPTH.get(), 0);
        assert_eq!(catch_panics(|| -> u8 { panic!("outer") }), Err(PanicError));
        assert_eq!(DEPTH.get(), 0);
    }
}
