//! Conversation states: the writer's cache, and the states that callers load in advance for the
//! writer.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;

use super::{damage::QuarantineList, error::AppendError, memory::CacheAllowance};
use treering_domain::{ConversationKey, ConversationState};
use treering_projections::{KeyEntry, Projections};

/// The projections; a rebuild replaces them as a whole.
pub(super) type SharedProjections = Arc<ArcSwap<Projections>>;

/// A conversation according to the projections.
#[derive(Debug)]
pub(super) struct LoadedState {
    pub(crate) id: ConversationKey,
    /// The offset that the projections had reached.
    pub(crate) reached: u64,
    pub(crate) state: Option<ConversationState>,
}

/// An idempotency key according to the projections.
#[derive(Debug)]
pub(super) struct KeyFacts {
    /// The offset that the projections had reached.
    pub(crate) reached: u64,
    pub(crate) entry: Option<KeyEntry>,
}

/// The conversations in the writer's cache: a hint that saves callers from loading them. If it is
/// outdated, the writer loads the state itself.
#[derive(Debug, Default)]
pub(super) struct CachedConversations {
    conversations: RwLock<HashSet<ConversationKey>>,
    /// The memory allowance for their states.
    pub(crate) room: CacheAllowance,
    /// Number of erasures; each invalidates everything known before.
    erasures: AtomicU64,
    /// Large bodies with homes up to this offset are being erased: new events must not refer to
    /// them.
    erased_to: AtomicU64,
}

impl CachedConversations {
    pub(crate) fn contains(&self, id: ConversationKey) -> bool {
        self.read().contains(&id)
    }

    /// Returns how often everything was invalidated.
    pub(crate) fn erasures(&self) -> u64 {
        self.erasures.load(Ordering::Acquire)
    }

    /// Makes the writer discard everything that it knows and everything that was looked up for it,
    /// because content was erased. The caller must block appends, and none may be in flight. New
    /// events no longer refer to large bodies with homes up to `erased_to`; `None` lifts this
    /// restriction.
    pub(crate) fn forget_all(&self, erased_to: Option<u64>) {
        self.erased_to
            .store(erased_to.unwrap_or_default(), Ordering::Release);
        self.write().clear();
        self.erasures.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns whether new events may refer to the large body with this home.
    pub(crate) fn may_refer_to(&self, home_offset: u64) -> bool {
        home_offset > self.erased_to.load(Ordering::Acquire)
    }

    fn insert(&self, id: ConversationKey) {
        if !self.contains(id) {
            self.write().insert(id);
        }
    }

    fn remove(&self, id: ConversationKey) {
        self.write().remove(&id);
    }

    fn read(&self) -> RwLockReadGuard<'_, HashSet<ConversationKey>> {
        self.conversations
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashSet<ConversationKey>> {
        self.conversations
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The writer's cache of states, each as of the last staged batch.
///
/// A state is dropped only when the projections have all of its events, so a missing state can be
/// read from there.
pub(super) struct StateCache {
    projections: SharedProjections,
    bytes: usize,
    clock: u64,
    states: HashMap<ConversationKey, CachedState>,
    cached_set: Arc<CachedConversations>,
    quarantine: Arc<QuarantineList>,
    /// The last event of any dropped state. A state loaded before the projections reached this
    /// offset may be outdated. The projections can fall back behind it: after a failure, they are
    /// reopened at their durable state.
    dropped_to: u64,
}

struct CachedState {
    state: ConversationState,
    bytes: usize,
    used: u64,
}

impl StateCache {
    /// Creates an empty cache; the log has reached `committed`.
    pub(crate) fn new(
        projections: SharedProjections,
        cached_set: Arc<CachedConversations>,
        quarantine: Arc<QuarantineList>,
        committed: u64,
    ) -> Self {
        let states = HashMap::new();
        Self {
            projections,
            bytes: 0,
            clock: 0,
            states,
            cached_set,
            quarantine,
            dropped_to: committed,
        }
    }

    pub(crate) fn projections(&self) -> Arc<Projections> {
        self.projections.load_full()
    }

    pub(crate) fn get(&self, id: ConversationKey) -> Option<&ConversationState> {
        self.states.get(&id).map(|cached| &cached.state)
    }

    /// Loads a conversation into the cache, if it exists. A state loaded by the caller saves the
    /// read.
    ///
    /// # Errors
    /// [`AppendError::Unready`] while the projections lack committed events: a decision based on
    /// them would assign revisions again.
    pub(crate) fn ensure(
        &mut self,
        id: ConversationKey,
        loaded: Option<LoadedState>,
    ) -> Result<(), AppendError> {
        self.clock += 1;
        let mut loaded = loaded;
        if self.quarantine.get(id).is_some() {
            // A state cached before a rebuild found damage must not be used.
            let whole = |state: &ConversationState| state.row.damage.is_none();
            if self.get(id).is_some_and(whole) {
                self.drop_state(id);
            }
            loaded = loaded.filter(|loaded| !loaded.state.as_ref().is_some_and(whole));
        }
        if let Some(cached) = self.states.get_mut(&id) {
            cached.used = self.clock;
            return Ok(());
        }
        let state = match loaded {
            Some(loaded) if loaded.reached >= self.dropped_to => loaded.state,
            _ => {
                let read = self.projections().state_with_mark(id);
                let (reached, state) = read.map_err(AppendError::from_projections)?;
                if reached < self.dropped_to {
                    return Err(AppendError::projections_behind());
                }
                state
            }
        };
        if let Some(state) = state {
            self.put(state);
        }
        Ok(())
    }

    /// Removes a state, to change it and put it back.
    pub(crate) fn take(&mut self, id: ConversationKey) -> Option<ConversationState> {
        let cached = self.states.remove(&id)?;
        self.bytes -= cached.bytes;
        Some(cached.state)
    }

    /// Adds a state that was not cached.
    pub(crate) fn put(&mut self, state: ConversationState) {
        self.cached_set.insert(state.row.key());
        self.put_back(state);
    }

    /// Puts back a state that was taken out. The hint for callers still lists it, so this needs no
    /// lock on the hint.
    pub(crate) fn put_back(&mut self, state: ConversationState) {
        self.clock += 1;
        let bytes = state.estimated_bytes();
        self.bytes += bytes;
        let cached = CachedState {
            bytes,
            used: self.clock,
            state,
        };
        if let Some(old) = self.states.insert(cached.state.row.key(), cached) {
            self.bytes -= old.bytes;
        }
    }

    /// Drops the least recently used states until usage is somewhat below the limit, but none with
    /// events that the projections lack.
    pub(crate) fn shrink(&mut self, published: u64) {
        let bytes_max = self.cached_set.room.bytes();
        self.cached_set.room.note_used(self.bytes);
        if self.bytes <= bytes_max {
            return;
        }
        let mut by_use: Vec<_> = self
            .states
            .iter()
            .filter(|(_, cached)| cached.state.row.last_position.offset <= published)
            .map(|(id, cached)| (cached.used, *id))
            .collect();
        by_use.sort_unstable();
        for (_, id) in by_use {
            if self.bytes <= bytes_max / 8 * 7 {
                break;
            }
            self.drop_state(id);
        }
    }

    /// Drops states whose last changes were not written.
    pub(crate) fn forget(&mut self, ids: impl Iterator<Item = ConversationKey>, committed: u64) {
        for id in ids {
            self.cached_set.remove(id);
            if let Some(cached) = self.states.remove(&id) {
                self.bytes -= cached.bytes;
            }
        }
        self.dropped_to = self.dropped_to.max(committed);
    }

    /// Drops all states; the projections must have all of their events.
    pub(crate) fn clear(&mut self) {
        let ids: Vec<_> = self.states.keys().copied().collect();
        for id in ids {
            self.drop_state(id);
        }
    }

    /// See [`CachedConversations::erasures`].
    pub(crate) fn erasures(&self) -> u64 {
        self.cached_set.erasures()
    }

    fn drop_state(&mut self, id: ConversationKey) {
        self.cached_set.remove(id);
        if let Some(state) = self.take(id) {
            self.dropped_to = self.dropped_to.max(state.row.last_position.offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The projections failed and were reopened at their durable state, behind the committed events.
    // A decision based on them would assign revisions a second time.
    #[test]
    fn projections_behind_committed_events_are_refused() {
        let projections = Arc::new(ArcSwap::from_pointee(Projections::in_memory().unwrap()));
        let mut cache = StateCache::new(projections, Arc::default(), Arc::default(), 5);
        let id = ConversationKey::default();
        let refused = |result| matches!(result, Err(AppendError::Unready { .. }));
        assert!(refused(cache.ensure(id, None)));
        let loaded = |reached| {
            let state = None;
            Some(LoadedState { id, reached, state })
        };
        assert!(refused(cache.ensure(id, loaded(4))));
        assert!(cache.ensure(id, loaded(5)).is_ok());
        cache.forget(std::iter::once(id), 9);
        assert!(refused(cache.ensure(id, loaded(5))));
    }
}
