//! The memory limit of a search, and compact sets.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::{
    error::IndexSearchError,
    query::{DuplicateHandling, SearchQuery},
};

/// Maximum memory of one search besides its answer, in bytes, for data that grows with the store:
/// the conversations with a label, for example, or those with matches. It suffices for four million
/// conversations. Two long-running searches may run at once, and each has this limit.
pub const SEARCH_BYTES_MAX: usize = 64 << 20;

/// Approximate memory of an 8-byte hash in a set, in bytes.
pub const HASH_BYTES: usize = 24;

/// The memory of one search. Clones share it.
#[derive(Clone, Debug)]
pub struct SearchMemory {
    held: Arc<AtomicUsize>,
    max: usize,
}

impl Default for SearchMemory {
    fn default() -> Self {
        Self::of(SEARCH_BYTES_MAX)
    }
}

impl SearchMemory {
    /// Returns a limit of `max` bytes.
    #[must_use]
    pub fn of(max: usize) -> Self {
        let held = Arc::default();
        Self { held, max }
    }

    /// Returns a reservation, empty at first.
    pub fn holding(&self, what: ExceededBound) -> HeldMemory {
        HeldMemory {
            memory: self.clone(),
            bytes: 0,
            what,
        }
    }
}

/// The kind of data with which a search exceeds its memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExceededBound {
    /// Conversations selected by filters.
    Chosen,
    /// Branches of conversations that have several.
    Branches,
    /// Conversations with matches.
    Matching,
    /// Events that a regular expression may match.
    Candidates,
    /// Different texts that match.
    Texts,
}

impl std::fmt::Display for ExceededBound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Chosen => {
                "the conversations that match its labels, sources or not_sealed: use a rarer \
                 label, or drop these filters"
            }
            Self::Branches => {
                "the branches of conversations with several branches: search fewer conversations, \
                 or without active_branches_only"
            }
            Self::Matching => {
                "the conversations with matches: narrow it with a time, a tool or a rarer word, \
                 lower conversations_max, or search without by_conversation"
            }
            Self::Candidates => {
                "the events that may match the pattern: use a longer word, or narrow it with a \
                 time or a tool"
            }
            Self::Texts => {
                "the different texts that match: narrow it with a time, a tool or a rarer word, or \
                 search without count_all"
            }
        })
    }
}

/// A reservation of memory, released when dropped.
#[derive(Debug)]
pub struct HeldMemory {
    memory: SearchMemory,
    bytes: usize,
    what: ExceededBound,
}

impl HeldMemory {
    /// Reserves more bytes.
    ///
    /// # Errors
    /// [`IndexSearchError::TooMuchMemory`] when the search's limit is exceeded.
    pub fn more(&mut self, bytes: usize) -> Result<(), IndexSearchError> {
        self.bytes += bytes;
        let before = self.memory.held.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > self.memory.max {
            return Err(IndexSearchError::TooMuchMemory {
                what: self.what,
                max: self.memory.max,
            });
        }
        Ok(())
    }

    /// Reduces the reservation to at most this.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        self.bytes -= less;
        self.memory.held.fetch_sub(less, Ordering::Relaxed);
    }
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        self.memory.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The groups seen, each of which is one hit: events by offset, or texts by hash.
#[derive(Debug)]
pub(super) enum Groups {
    Events(EventSet),
    Texts(HashSet<u64>, HeldMemory),
}

impl Groups {
    pub(crate) fn new(query: &SearchQuery) -> Self {
        let held = query.memory.holding(ExceededBound::Texts);
        match query.copies {
            DuplicateHandling::Each => Self::Events(EventSet::new(held)),
            DuplicateHandling::Folded => Self::Texts(HashSet::new(), held),
        }
    }

    /// Returns false when the group was already present.
    pub(crate) fn insert(&mut self, group: u64) -> Result<bool, IndexSearchError> {
        match self {
            Self::Events(events) => events.insert(group),
            Self::Texts(texts, held) => {
                let is_new = texts.insert(group);
                if is_new {
                    held.more(HASH_BYTES)?;
                }
                Ok(is_new)
            }
        }
    }
}

/// Events by their log offset: one bit each, up to the last one. Searches see many events with
/// nearby offsets.
#[derive(Debug)]
pub(super) struct EventSet {
    words: Vec<u64>,
    held: HeldMemory,
}

impl EventSet {
    pub(crate) fn new(held: HeldMemory) -> Self {
        let words = Vec::new();
        Self { words, held }
    }

    /// Returns false when the offset was already present.
    pub(crate) fn insert(&mut self, offset: u64) -> Result<bool, IndexSearchError> {
        let (word, bit) = place_of(offset);
        if word >= self.words.len() {
            self.held.more((word + 1 - self.words.len()) * 8)?;
            self.words.resize(word + 1, 0);
        }
        let before = self.words[word];
        self.words[word] |= bit;
        Ok(before & bit == 0)
    }

    pub(crate) fn contains(&self, offset: u64) -> bool {
        let (word, bit) = place_of(offset);
        self.words.get(word).is_some_and(|word| word & bit != 0)
    }

    /// Keeps the events that both sets have.
    pub(crate) fn intersect(&mut self, other: &Self) {
        self.words.truncate(other.words.len());
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word &= other;
        }
    }

    /// Returns the events that either set has.
    pub(crate) fn unite(mut self, mut other: Self) -> Self {
        if self.words.len() < other.words.len() {
            std::mem::swap(&mut self, &mut other);
        }
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word |= other;
        }
        self
    }
}

fn place_of(offset: u64) -> (usize, u64) {
    let word = usize::try_from(offset / 64).unwrap_or(usize::MAX);
    (word, 1 << (offset % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(memory: &SearchMemory, offsets: &[u64]) -> EventSet {
        let mut set = EventSet::new(memory.holding(ExceededBound::Candidates));
        for offset in offsets {
            set.insert(*offset).unwrap();
        }
        set
    }

    fn of(set: &EventSet) -> Vec<u64> {
        (0..1_000).filter(|offset| set.contains(*offset)).collect()
    }

    // An event must take one bit. A pattern needs a set of events for each of its words; with 32
    // bytes for each event, these sets would exceed the store's own caches.
    #[test]
    fn event_set_uses_one_bit_per_event() {
        let memory = SearchMemory::of(1_000);
        let mut both = set(&memory, &[1, 64, 65, 700]);
        assert!(!both.insert(64).unwrap());
        assert!(both.insert(2).unwrap());
        both.intersect(&set(&memory, &[64, 2, 3]));
        assert_eq!(of(&both), [2, 64]);
        let either = both.unite(set(&memory, &[2, 900]));
        assert_eq!(of(&either), [2, 64, 900]);
        drop(either);
        assert_eq!(memory.held.load(Ordering::Relaxed), 0);
    }

    // One search's memory is bounded, whatever uses it, and is freed afterwards.
    #[test]
    fn search_memory_is_limited_and_freed() {
        let memory = SearchMemory::of(1_000);
        let mut first = memory.holding(ExceededBound::Chosen);
        first.more(900).unwrap();
        let mut events = EventSet::new(memory.holding(ExceededBound::Candidates));
        let refused = events.insert(64 * 20).unwrap_err();
        assert!(
            refused.to_string().contains("use a longer word"),
            "{refused}"
        );
        drop(first);
        drop(events);
        assert_eq!(memory.held.load(Ordering::Relaxed), 0);
    }
}
