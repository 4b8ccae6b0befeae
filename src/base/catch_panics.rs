//! Catches panics of libraries and turns them into errors.
//!
//! redb and tantivy trust a file that was closed properly, and panic on some files that changed
//! since. Such a panic means that the file is damaged. Where the work can be discarded, it is
//! reported as an error, without a backtrace, which would only alarm users.

use std::{
    cell::Cell,
    panic::{self, AssertUnwindSafe, catch_unwind},
};

thread_local! {
    /// Number of active calls of [`catch_panics`] on this thread.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// The work panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PanicError;

/// Runs work and catches its panics. If it panics, its state must be discarded.
///
/// # Errors
/// [`PanicError`]. The panic hook reports the message: see [`log_caught_panics`].
pub fn catch_panics<T>(work: impl FnOnce() -> T) -> Result<T, PanicError> {
    DEPTH.set(DEPTH.get() + 1);
    let done = catch_unwind(AssertUnwindSafe(work));
    DEPTH.set(DEPTH.get() - 1);
    done.map_err(|_| PanicError)
}

/// Installs a panic hook that logs caught panics at the level `debug`, instead of printing them to
/// standard error. For programs: the hook applies to the whole process.
pub fn log_caught_panics() {
    let loud = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if DEPTH.get() == 0 {
            loud(panic);
        } else {
            tracing::debug!(%panic, "a library panicked on its input");
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    // After a caught panic, even a nested one, the next uncaught panic must be reported again.
    #[test]
    fn depth_is_restored_after_a_caught_panic() {
        let inner = || catch_panics(|| panic!("inner")).unwrap_err();
        assert_eq!(catch_panics(inner), Ok(PanicError));
        assert_eq!(DEPTH.get(), 0);
        assert_eq!(catch_panics(|| -> u8 { panic!("outer") }), Err(PanicError));
        assert_eq!(DEPTH.get(), 0);
    }
}
