//! Erased content, identified by the offsets of its records. Readers hide it until it is removed
//! from storage.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::record::Record;

/// The erased content of a log, and the stubs that replace bodies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Erasure {
    /// Offsets of the records whose bodies are erased, with the stubs that replace them.
    pub stubs: BTreeMap<u64, Bytes>,
    /// Offsets of records whose append key loses the salt of its content hash, because an event of
    /// their batch is erased.
    pub key_salts: BTreeSet<u64>,
    /// Home offsets of large bodies that no record references any more.
    pub blobs: BTreeSet<u64>,
}

impl Erasure {
    /// Returns true when nothing is erased.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stubs.is_empty() && self.key_salts.is_empty() && self.blobs.is_empty()
    }

    /// Returns a record without its erased content. A record that is already erased keeps its stub.
    #[must_use]
    pub(crate) fn left_of(&self, offset: u64, record: Record) -> Record {
        match self.stubs.get(&offset) {
            Some(stub) if !record.is_erased() => record.erased(stub.clone()),
            _ if self.key_salts.contains(&offset) => record.without_key_salt(),
            _ => record,
        }
    }

    /// Returns true when content between two offsets, both included, is erased.
    #[must_use]
    pub fn touches(&self, first: u64, last: u64) -> bool {
        first <= last
            && (self.stubs.range(first..=last).next().is_some()
                || self.key_salts.range(first..=last).next().is_some()
                || self.blobs.range(first..=last).next().is_some())
    }
}
