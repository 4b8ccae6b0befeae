//! Backups: keeps the log of a store elsewhere, and restores a store from it.
//!
//! This crate defines the layout and the format of objects and generations in a target
//! ([`BackupTarget`]). It makes backups ([`Backup`]), keeps them up to date ([`follow`](follow())),
//! inspects them ([`generations`], [`verify`], [`prune`]) and restores them ([`restore`]). It reads
//! the store through [`BackupSource`]: an engine, or a server. `docs/BACKUP.md` gives the layout
//! and the reasons.

#![cfg_attr(not(test), warn(unreachable_pub))]

mod content;
mod error;
mod follow;
mod inspect;
mod manifest;
mod restore;
mod run;
mod seal;
mod source;
#[cfg(test)]
mod tests;
mod uploads;
mod walk;

pub use self::{
    error::BackupError,
    follow::follow,
    inspect::{
        BackupFault, GenerationInfo, PruneOutcome, RetentionRule, VerifyReport, generations, prune,
        verify,
    },
    restore::{RestoreOptions, RestoreOutcome, RestoreTo, STAGING as RESTORE_STAGING, restore},
    run::{Backup, BackupOptions, BackupOutcome, BackupStep},
    seal::EncryptionKey,
    source::BackupSource,
};
pub use treering_objects::ObjectStorage as BackupTarget;
