//! Keys, and what they may do. One file of the data folder, `keys.json`, has all of them;
//! commands change it, and a server looks at it before each call.
//!
//! `token` is a key as it is sent, `role` what it may do and where, `file` what is kept of
//! it, `subject` whom a certificate names, `change` how keys come and go, `ring` the keys of a server that runs, `proof` what a
//! request by HTTP shows, `rate` how much they may use. Nothing here knows gRPC: which method needs which role is the server's matter.
//!
//! A folder in which no key was ever made is open. One whose keys have all ended is not.

mod change;
mod file;
mod proof;
mod rate;
mod ring;
mod role;
mod subject;
mod token;

pub use change::{KeyLimits, MadeKey, NewKey, create, create_for_certificate, revoke, rotate};
pub use file::{KeyFile, KeyFileError, KeyRecord, SecretRecord, last_uses, read};
pub use proof::CallerProof;
pub use rate::Rate;
pub use ring::{ClientCertificate, Holder, KeyRefusal, KeyRing};
pub use role::{Grant, GrantError, GrantReach, KeyRole};
pub use subject::{CertificateSubject, SubjectError};
pub use token::{KeyId, Token, TokenError};
