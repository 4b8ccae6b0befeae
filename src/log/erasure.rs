//! What is erased of a log: known by the places of its records, and told to those who read
//! the log until nothing of it is stored any more.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::record::Record;

/// What is to go, and what is left of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Erasure {
    /// Offsets of the records whose bodies go, and the stubs that stand in their place.
    pub stubs: BTreeMap<u64, Bytes>,
    /// Offsets of records whose append key loses the salt of its content hash: something of
    /// their batch goes.
    pub key_salts: BTreeSet<u64>,
    /// Homes of large bodies that nothing names any more.
    pub blobs: BTreeSet<u64>,
}

impl Erasure {
    /// True when nothing goes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stubs.is_empty() && self.key_salts.is_empty() && self.blobs.is_empty()
    }

    /// What is left of a record. One that was erased before stays as it is.
    #[must_use]
    pub fn left_of(&self, offset: u64, record: Record) -> Record {
        match self.stubs.get(&offset) {
            Some(stub) if !record.is_erased() => record.erased(stub.clone()),
            _ if self.key_salts.contains(&offset) => record.without_key_salt(),
            _ => record,
        }
    }

    /// True when something between two offsets goes, both included.
    #[must_use]
    pub fn touches(&self, first: u64, last: u64) -> bool {
        first <= last
            && (self.stubs.range(first..=last).next().is_some()
                || self.key_salts.range(first..=last).next().is_some()
                || self.blobs.range(first..=last).next().is_some())
    }
}
