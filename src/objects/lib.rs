//! Object storage: a folder, or a bucket of S3, Google Cloud Storage or Azure.
//!
//! This crate puts, gets, lists and removes whole objects ([`ObjectStorage`]). It does not know what
//! is in them: backups and the log of a cluster have formats of their own.

#![cfg_attr(not(test), warn(unreachable_pub))]

#[cfg(feature = "cloud")]
mod cloud;
mod error;
mod storage;

pub use self::{
    error::ObjectError,
    storage::{ObjectEntry, ObjectStorage, PutOutcome, WriteMode},
};
