//! Bounded caches of conversations that received spans. The state of a conversation can be read
//! from the store again; the conversation of a trace or of a history cannot.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::bounds::{SPAN_CONVERSATIONS_BYTES, SPAN_CONVERSATIONS_MAX, SPAN_TRACES_MAX};
use treering_domain::{ConversationKey, Namespace, ShardId};
use treering_otel::MergeState;

/// A conversation's state, or `None` when it must be read. Locked while spans are compared with it.
pub(super) type Entry = Arc<tokio::sync::Mutex<Option<MergeState>>>;

/// The caches; see the module.
#[derive(Default)]
pub(crate) struct Conversations {
    shapes: Mutex<Shapes>,
    names: Mutex<Names>,
}

#[derive(Default)]
struct Shapes {
    entries: HashMap<ConversationKey, CachedState>,
    bytes: usize,
    uses: u64,
}

struct CachedState {
    entry: Entry,
    bytes: usize,
    used: u64,
}

#[derive(Default)]
struct Names {
    traces: BoundedMap<(Namespace, String)>,
    histories: BoundedMap<(Namespace, [u8; 32])>,
    /// In a cluster.
    shards: BoundedMap<(Namespace, String), ShardId>,
}

impl Conversations {
    /// Returns the entry of a conversation.
    pub(crate) fn entry(&self, id: ConversationKey) -> Entry {
        let mut shapes = lock(&self.shapes);
        shapes.uses += 1;
        let used = shapes.uses;
        let kept = shapes.entries.entry(id).or_insert_with(|| CachedState {
            entry: Entry::default(),
            bytes: 0,
            used,
        });
        kept.used = used;
        Arc::clone(&kept.entry)
    }

    /// Updates the memory of an entry, and evicts the least recently used ones over the limit.
    pub(crate) fn settle(&self, id: ConversationKey, bytes: usize) {
        let mut shapes = lock(&self.shapes);
        if let Some(kept) = shapes.entries.get_mut(&id) {
            let before = std::mem::replace(&mut kept.bytes, bytes);
            shapes.bytes = shapes.bytes - before + bytes;
        }
        while shapes.entries.len() > SPAN_CONVERSATIONS_MAX
            || shapes.bytes > SPAN_CONVERSATIONS_BYTES
        {
            // An entry in use must stay; otherwise there would be two for one conversation.
            let idle = shapes.entries.iter();
            let idle = idle.filter(|(_, kept)| Arc::strong_count(&kept.entry) == 1);
            let Some(oldest) = idle.min_by_key(|(_, kept)| kept.used).map(|(id, _)| *id) else {
                return;
            };
            if let Some(gone) = shapes.entries.remove(&oldest) {
                shapes.bytes -= gone.bytes;
            }
        }
    }

    /// Returns the conversation of a trace.
    pub(crate) fn of_trace(&self, namespace: &Namespace, trace: &str) -> Option<String> {
        let names = lock(&self.names);
        let key = (namespace.clone(), trace.to_owned());
        names.traces.values.get(&key).cloned()
    }

    /// Remembers the conversation of a trace.
    pub(crate) fn note_trace(&self, namespace: &Namespace, trace: &str, conversation: &str) {
        let key = (namespace.clone(), trace.to_owned());
        let conversation = conversation.to_owned();
        lock(&self.names).traces.put(key, conversation);
    }

    /// Returns the conversation that contains a history.
    pub(crate) fn of_history(&self, namespace: &Namespace, history: [u8; 32]) -> Option<String> {
        let names = lock(&self.names);
        let key = (namespace.clone(), history);
        names.histories.values.get(&key).cloned()
    }

    /// Remembers that a conversation contains a history.
    pub(crate) fn note_history(
        &self,
        namespace: &Namespace,
        history: [u8; 32],
        conversation: &str,
    ) {
        let key = (namespace.clone(), history);
        let conversation = conversation.to_owned();
        lock(&self.names).histories.put(key, conversation);
    }

    /// Returns the shard of a conversation.
    pub(crate) fn shard_of(&self, namespace: &Namespace, conversation: &str) -> Option<ShardId> {
        let names = lock(&self.names);
        let key = (namespace.clone(), conversation.to_owned());
        names.shards.values.get(&key).copied()
    }

    /// Remembers the shard of a conversation.
    pub(crate) fn note_shard(&self, namespace: &Namespace, conversation: &str, shard: ShardId) {
        let key = (namespace.clone(), conversation.to_owned());
        lock(&self.names).shards.put(key, shard);
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A bounded map that evicts the oldest key.
struct BoundedMap<K, V = String> {
    values: HashMap<K, V>,
    order: VecDeque<K>,
}

impl<K, V> Default for BoundedMap<K, V> {
    fn default() -> Self {
        Self {
            values: HashMap::new(),
            order: VecDeque::new(),
        }
    }
}

impl<K: Clone + Eq + Hash, V> BoundedMap<K, V> {
    fn put(&mut self, key: K, value: V) {
        if self.values.insert(key.clone(), value).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > SPAN_TRACES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.values.remove(&oldest);
        }
    }
}
