//! Panics of libraries that are an answer like another.
//!
//! redb and tantivy trust a file that was closed properly, and panic on some that
//! were changed since. Where their work can be thrown away, that is damage, to be
//! said in our words; a backtrace beside it frightens, and helps nobody.

use std::{
    cell::Cell,
    panic::{self, AssertUnwindSafe, catch_unwind},
};

thread_local! {
    /// How many calls of [`contained`] this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// The work panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Panicked;

/// Runs work of which nothing is kept when it panics.
pub(crate) fn contained<T>(work: impl FnOnce() -> T) -> Result<T, Panicked> {
    DEPTH.set(DEPTH.get() + 1);
    let done = catch_unwind(AssertUnwindSafe(work));
    DEPTH.set(DEPTH.get() - 1);
    done.map_err(|_| Panicked)
}

/// Lets panics that are contained go to the log, at the level `debug`, instead of
/// to standard error. For programs: what panics is told to the whole process.
pub fn keep_contained_panics_quiet() {
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

    // A contained panic must leave the next one loud, also after one in another.
    #[test]
    fn the_depth_is_what_it_was() {
        let inner = || contained(|| panic!("inner")).unwrap_err();
        assert_eq!(contained(inner), Ok(Panicked));
        assert_eq!(DEPTH.get(), 0);
        assert_eq!(contained(|| -> u8 { panic!("outer") }), Err(Panicked));
        assert_eq!(DEPTH.get(), 0);
    }
}
