//! API keys and their roles. All keys are in one file of the data folder, `keys.json`; commands
//! change it, and a server checks it for changes before each call.
//!
//! Modules: `token` (a key as it is sent), `role` (permissions of a key, and their namespaces),
//! `file` (the stored part of a key), `subject` (the identity in a certificate), `change`
//! (creation, rotation and revocation), `key_store` (the keys of a running server), `proof` (the
//! credentials of an HTTP request), `rate` (rate limits), `reads` (counts of reads). This crate
//! does not know gRPC: the server decides which method needs which role.
//!
//! A folder without keys is open to everyone. A folder whose keys have all expired or been revoked
//! is open to nobody.

#![cfg_attr(not(test), warn(unreachable_pub))]

mod change;
mod file;
mod key_store;
mod proof;
mod rate;
mod reads;
mod role;
mod subject;
mod token;

pub use change::{IssuedKey, KeyLimits, NewKey, create, create_for_certificate, revoke, rotate};
pub use file::{
    KeyFile, KeyFileError, KeyRecord, SecretRecord, change, had_keys, is_copy, last_uses,
    note_made, read,
};
pub use key_store::{ClientCertificate, KeyHolder, KeyRefusal, KeyStore};
pub use proof::CallerProof;
pub use rate::Rate;
pub use reads::{ExceededReadBound, ReadBounds, Reads};
pub use role::{Grant, GrantError, GrantScope, KeyRole};
pub use subject::{CertificateSubject, SubjectError};
pub use token::{KeyId, KeyToken, TokenError};
