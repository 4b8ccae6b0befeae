//! Conversation states: the writer's cache, and what callers load ahead of it.

use std::{
    collections::HashMap,
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;

use super::{damage::Marks, error::AppendError, memory::Room};
use crate::{
    domain::{ConversationId, ConversationState, Namespace},
    views::{KeyEntry, Views},
};

/// The views, which a rebuild replaces as a whole.
pub(super) type SharedViews = Arc<ArcSwap<Views>>;

/// A conversation as the views had it.
#[derive(Debug)]
pub(super) struct LoadedState {
    pub id: ConversationId,
    /// What the views had reached then.
    pub reached: u64,
    pub state: Option<ConversationState>,
}

/// An idempotency key as the views had it.
#[derive(Debug)]
pub(super) struct KeyFacts {
    /// What the views had reached then.
    pub reached: u64,
    pub entry: Option<KeyEntry>,
}

/// Which conversations the writer has at hand: a hint that saves callers the
/// loading. It may be out of date; the writer then reads for itself.
#[derive(Debug, Default)]
pub(super) struct HotSet {
    conversations: RwLock<HashMap<ConversationId, Namespace>>,
    /// What their states may take.
    pub room: Room,
    /// How often what was known before had to be forgotten: something was erased.
    erasures: AtomicU64,
    /// Large bodies whose homes are up to here are on their way out: nothing new may refer
    /// to them.
    erased_to: AtomicU64,
}

impl HotSet {
    pub fn contains(&self, id: ConversationId) -> bool {
        self.read().contains_key(&id)
    }

    /// True when the conversation is at hand and belongs to this namespace.
    pub fn is_of(&self, id: ConversationId, namespace: &Namespace) -> bool {
        self.read().get(&id) == Some(namespace)
    }

    /// How often everything was forgotten.
    pub fn erasures(&self) -> u64 {
        self.erasures.load(Ordering::Acquire)
    }

    /// Lets the writer forget all that it knows, and whatever was looked up for it before:
    /// content was erased. The caller keeps everybody from appending, and nothing is under
    /// way. Large bodies up to `erased_to` are not referred to any more; none: to all.
    pub fn forget_all(&self, erased_to: Option<u64>) {
        self.erased_to
            .store(erased_to.unwrap_or_default(), Ordering::Release);
        self.write().clear();
        self.erasures.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether something new may refer to the large body that is stored under a home.
    pub fn may_refer_to(&self, home_offset: u64) -> bool {
        home_offset > self.erased_to.load(Ordering::Acquire)
    }

    fn insert(&self, id: ConversationId, namespace: &Namespace) {
        if !self.contains(id) {
            self.write().insert(id, namespace.clone());
        }
    }

    fn remove(&self, id: ConversationId) {
        self.write().remove(&id);
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<ConversationId, Namespace>> {
        self.conversations
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<ConversationId, Namespace>> {
        self.conversations
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hot states, owned by the writer: always as of the last staged batch.
///
/// A state is dropped only when the views have all of its events, so a state
/// that is not here can be read from there.
pub(super) struct StateCache {
    views: SharedViews,
    bytes: usize,
    clock: u64,
    states: HashMap<ConversationId, Cached>,
    hot: Arc<HotSet>,
    marks: Arc<Marks>,
    /// The last event of any state that is not here: what was loaded before the
    /// views reached it may be out of date. The views can go back behind it: when
    /// they failed and are opened again they start at what was durable.
    dropped_to: u64,
}

struct Cached {
    state: ConversationState,
    bytes: usize,
    used: u64,
}

impl StateCache {
    /// Empty; the log has come to `committed`.
    pub fn new(views: SharedViews, hot: Arc<HotSet>, marks: Arc<Marks>, committed: u64) -> Self {
        let states = HashMap::new();
        Self {
            views,
            bytes: 0,
            clock: 0,
            states,
            hot,
            marks,
            dropped_to: committed,
        }
    }

    pub fn views(&self) -> Arc<Views> {
        self.views.load_full()
    }

    pub fn get(&self, id: ConversationId) -> Option<&ConversationState> {
        self.states.get(&id).map(|cached| &cached.state)
    }

    /// Makes sure that a conversation is here, if it exists. What the caller
    /// loaded saves the read; without it the views are asked.
    ///
    /// # Errors
    /// [`AppendError::Unready`] while the views lack events that are committed: a
    /// decision on what they have would use revisions again.
    pub fn ensure(
        &mut self,
        id: ConversationId,
        loaded: Option<LoadedState>,
    ) -> Result<(), AppendError> {
        self.clock += 1;
        let mut loaded = loaded;
        if self.marks.get(id).is_some() {
            // What was at hand before a rebuild found the damage is not to be built on.
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
                let read = self.views().state_with_mark(id);
                let (reached, state) = read.map_err(AppendError::of_views)?;
                if reached < self.dropped_to {
                    return Err(AppendError::views_behind());
                }
                state
            }
        };
        if let Some(state) = state {
            self.put(state);
        }
        Ok(())
    }

    /// Takes a state out, to change it and put it back.
    pub fn take(&mut self, id: ConversationId) -> Option<ConversationState> {
        let cached = self.states.remove(&id)?;
        self.bytes -= cached.bytes;
        Some(cached.state)
    }

    /// Puts a state in that was not here.
    pub fn put(&mut self, state: ConversationState) {
        self.hot.insert(state.row.id, &state.row.namespace);
        self.put_back(state);
    }

    /// Puts a state in that was taken: callers know already that it is at hand,
    /// and are not kept waiting for the lock on that.
    pub fn put_back(&mut self, state: ConversationState) {
        self.clock += 1;
        let bytes = state.estimated_bytes();
        self.bytes += bytes;
        let cached = Cached {
            bytes,
            used: self.clock,
            state,
        };
        if let Some(old) = self.states.insert(cached.state.row.id, cached) {
            self.bytes -= old.bytes;
        }
    }

    /// Drops the states unused for longest until the bound is kept with some
    /// room, but none with events that the views do not have.
    pub fn shrink(&mut self, published: u64) {
        let bytes_max = self.hot.room.bytes();
        self.hot.room.note_used(self.bytes);
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

    /// Drops states whose last changes never happened.
    pub fn forget(&mut self, ids: impl Iterator<Item = ConversationId>, committed: u64) {
        for id in ids {
            self.hot.remove(id);
            if let Some(cached) = self.states.remove(&id) {
                self.bytes -= cached.bytes;
            }
        }
        self.dropped_to = self.dropped_to.max(committed);
    }

    /// Drops all states: the views have every event of theirs.
    pub fn clear(&mut self) {
        let ids: Vec<_> = self.states.keys().copied().collect();
        for id in ids {
            self.drop_state(id);
        }
    }

    /// See [`HotSet::erasures`].
    pub fn erasures(&self) -> u64 {
        self.hot.erasures()
    }

    fn drop_state(&mut self, id: ConversationId) {
        self.hot.remove(id);
        if let Some(state) = self.take(id) {
            self.dropped_to = self.dropped_to.max(state.row.last_position.offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The views failed and were opened again where they were durable, behind what
    // is committed. Whoever decides on that writes revisions a second time.
    #[test]
    fn views_that_lack_committed_events_are_not_believed() {
        let views = Arc::new(ArcSwap::from_pointee(Views::in_memory().unwrap()));
        let mut cache = StateCache::new(views, Arc::default(), Arc::default(), 5);
        let id = ConversationId::generate();
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
