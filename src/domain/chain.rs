//! Chain hashes that are computed on demand.

use std::{fmt, sync::Arc};

use super::id::ContentHash;

/// The chain hash of an event. The log stores only a part of some hashes; the rest is then computed
/// from the events, which costs more than reading a stored hash.
#[derive(Clone)]
pub struct ChainHash(Form);

#[derive(Clone)]
enum Form {
    Known(ContentHash),
    Later {
        of: Arc<dyn ChainHashes>,
        index: u32,
    },
}

/// Computes and caches the chain hashes of a group of records.
pub trait ChainHashes: Send + Sync {
    /// Returns the chain hash of the record at `index`.
    fn chain_hash(&self, index: u32) -> ContentHash;
}

impl ChainHash {
    /// Creates a chain hash that `of` computes on first use.
    #[must_use]
    pub fn later(of: Arc<dyn ChainHashes>, index: u32) -> Self {
        Self(Form::Later { of, index })
    }

    /// Returns the hash; computes it if it is not known yet.
    #[must_use]
    pub fn get(&self) -> ContentHash {
        match &self.0 {
            Form::Known(hash) => *hash,
            Form::Later { of, index } => of.chain_hash(*index),
        }
    }
}

impl From<ContentHash> for ChainHash {
    fn from(hash: ContentHash) -> Self {
        Self(Form::Known(hash))
    }
}

impl Default for ChainHash {
    fn default() -> Self {
        ContentHash::default().into()
    }
}

impl PartialEq for ChainHash {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for ChainHash {}

impl fmt::Debug for ChainHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.get(), f)
    }
}
