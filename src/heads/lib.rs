//! Signed heads: a few hundred bytes, kept elsewhere, that commit to a store's history.
//!
//! A head contains the root of a hash tree over all conversations as of a log position. Its holder
//! can later check that nothing before it was changed, removed or rolled back ([`check`]). This
//! crate has the tree (`tree`), the pass over the log that computes it ([`survey`]), the file
//! format ([`SignedHead`]), and a server's regular signing ([`HeadKeeper`]). It reads only the
//! log, never projections. `docs/FORMAT.md` gives the format, `docs/decisions/0012-signed-heads.md`
//! the reasons.

#![cfg_attr(not(test), warn(unreachable_pub))]

mod check;
mod error;
mod file;
mod keep;
mod survey;
mod target;
#[cfg(test)]
mod tests;
mod tree;
mod webhook;

pub use self::{
    check::check,
    error::HeadError,
    file::SignedHead,
    keep::{HeadKeeper, HeadKeeperHandle, HeadMeasures},
    survey::survey,
    target::{HeadTarget, write},
};
