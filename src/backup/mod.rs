//! Backups: the log of a store, kept somewhere else, and a store made of it again.
//!
//! What lives here: what is put where ([`BackupTarget`]), how it is wrapped and named, the
//! generations, following a store ([`Backup`]), what can be said of a backup
//! ([`generations`], [`verify`], [`prune`]), and [`restore`]. A store is a [`BackupSource`] here:
//! the engine, or a server somewhere. `docs/BACKUP.md` gives the layout and the reasons.

#[cfg(feature = "cloud")]
mod cloud;
mod content;
mod error;
mod following;
mod look;
mod manifest;
mod restore;
mod run;
mod seal;
mod source;
mod target;
#[cfg(test)]
mod tests;
mod uploads;
mod walk;

pub use self::{
    error::BackupError,
    following::follow,
    look::{BackupFault, GenerationInfo, Keep, Pruned, Verified, generations, prune, verify},
    restore::{RestoreOptions, RestoreTo, Restored, STAGING as RESTORE_STAGING, restore},
    run::{Backup, BackupOptions, BackupOutcome, BackupStep},
    seal::Key,
    source::BackupSource,
    target::BackupTarget,
};
