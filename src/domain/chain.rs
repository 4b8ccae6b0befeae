//! Chain hashes that are worked out when somebody asks for them.

use std::{fmt, sync::Arc};

use super::id::ContentHash;

/// An event's chain hash. Where the log keeps only a part of it, the rest follows
/// from the events, and that costs more than to read them.
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

/// What works chain hashes out, and remembers them.
pub trait ChainHashes: Send + Sync {
    /// The hash of one of its records.
    fn chain_hash(&self, index: u32) -> ContentHash;
}

impl ChainHash {
    /// One that `of` is asked for when it is needed.
    #[must_use]
    pub fn later(of: Arc<dyn ChainHashes>, index: u32) -> Self {
        Self(Form::Later { of, index })
    }

    /// The hash.
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
