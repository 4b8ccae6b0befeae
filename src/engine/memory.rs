//! One memory budget for all caches of a store. Half of it guarantees each cache a fixed minimum.
//! Of the other half, full caches share what the other caches do not use. The budget is
//! redistributed every second.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Inner;
use treering_domain::{Limits, limits::MEMORY_OF_FILES_BYTES};

/// A cache as the budget sees it. All sizes are in bytes.
pub(super) trait Cache {
    /// Returns its current size.
    fn used(&self) -> u64;
    /// Returns its capacity.
    fn room(&self) -> u64;
    /// Sets its capacity; the cache evicts the excess.
    fn set_room(&self, bytes: u64);
}

impl<K, V, W, B, L> Cache for quick_cache::sync::Cache<K, V, W, B, L>
where
    K: Eq + std::hash::Hash,
    V: Clone,
    W: quick_cache::Weighter<K, V> + Clone,
    B: std::hash::BuildHasher + Clone,
    L: quick_cache::Lifecycle<K, V> + Clone,
{
    fn used(&self) -> u64 {
        self.weight()
    }

    fn room(&self) -> u64 {
        self.capacity()
    }

    fn set_room(&self, bytes: u64) {
        self.set_capacity(bytes);
    }
}

/// The capacity of a cache that another thread owns.
#[derive(Debug, Default)]
pub(super) struct CacheAllowance {
    used: AtomicU64,
    bytes: AtomicU64,
}

impl CacheAllowance {
    pub(crate) fn note_used(&self, bytes: usize) {
        self.used.store(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn bytes(&self) -> usize {
        usize::try_from(self.bytes.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
    }
}

impl Cache for CacheAllowance {
    fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    fn room(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn set_room(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }
}

/// The initial capacity of each cache, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shares {
    pub(crate) states: u64,
    pub(crate) frames: u64,
    pub(crate) windows: u64,
    pub(crate) remembered_requests: u64,
    pub(crate) long_term: u64,
    pub(crate) knowledge: u64,
}

/// Returns the total for all caches, in bytes.
fn shared(limits: &Limits) -> u64 {
    limits.memory_bytes.saturating_sub(MEMORY_OF_FILES_BYTES) as u64
}

impl Shares {
    pub(crate) fn of(limits: &Limits) -> Self {
        let sixteenth = shared(limits) / 16;
        Self {
            states: 4 * sixteenth,
            frames: 3 * sixteenth,
            windows: 5 * sixteenth,
            remembered_requests: 2 * sixteenth,
            long_term: sixteenth,
            knowledge: sixteenth,
        }
    }

    fn in_order(self) -> [u64; 6] {
        [
            self.states,
            self.frames,
            self.windows,
            self.remembered_requests,
            self.long_term,
            self.knowledge,
        ]
    }
}

impl Inner {
    /// Returns all caches with their names, in the order of [`Shares::in_order`].
    pub(super) fn caches(&self) -> [(&'static str, &dyn Cache); 6] {
        let [windows, sent, long_term] = self.context.windows.shared();
        [
            ("states", &self.appends.cached_set.room),
            ("frames", self.reads.reader.cache()),
            ("windows", windows),
            ("remembered_requests", sent),
            ("long_term", long_term),
            ("knowledge", self.context.knowledge.cache()),
        ]
    }

    /// Gives full caches the memory that others do not use.
    pub(super) fn share_memory(&self) {
        let caches = self.caches().map(|(_, cache)| cache);
        let limits = &self.options.limits;
        let mut shares = Shares::of(limits).in_order().into_iter();
        let now = caches.map(|cache| Use {
            used: cache.used(),
            room: cache.room(),
            least: shares.next().unwrap_or_default() / 2,
        });
        let rooms = share(shared(limits), now);
        // Shrink before growing, so that the total never exceeds the budget.
        for grows in [false, true] {
            for (at, cache) in caches.iter().enumerate() {
                if rooms[at] != now[at].room && (rooms[at] > now[at].room) == grows {
                    cache.set_room(rooms[at]);
                }
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Use {
    used: u64,
    room: u64,
    /// Minimum capacity. A cache does not admit an item larger than itself, so a cache that is too
    /// small would stay empty and never count as full.
    least: u64,
}

impl Use {
    fn is_full(self) -> bool {
        self.used >= self.room / 8 * 7
    }

    /// Returns the capacity that the cache keeps: its size plus a quarter, or `least` if it is
    /// full.
    fn kept(self) -> u64 {
        if self.is_full() {
            return self.least;
        }
        (self.used + self.used / 4).clamp(self.least, self.room.max(self.least))
    }
}

/// Returns the capacity of each cache: full ones share equally what the others do not use. While
/// none is full, nothing changes.
fn share<const N: usize>(bytes: u64, now: [Use; N]) -> [u64; N] {
    let full = now.iter().filter(|cache| cache.is_full()).count() as u64;
    if full == 0 {
        return now.map(|cache| cache.room);
    }
    let kept: u64 = now.iter().map(|cache| cache.kept()).sum();
    let more = bytes.saturating_sub(kept) / full;
    now.map(|cache| match cache.is_full() {
        true => cache.kept() + more,
        false => cache.kept(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cache(used: u64, room: u64) -> Use {
        let least = 10;
        Use { used, room, least }
    }

    #[test]
    fn unused_cache_memory_goes_to_full_caches() {
        let quiet = cache(1, 100);
        assert_eq!(share(320, [cache(99, 100), quiet, quiet]), [300, 10, 10]);
        // A cache that grows again gets memory back from the largest one.
        let (grown, wakes) = (cache(290, 300), cache(10, 10));
        assert_eq!(share(320, [grown, wakes, quiet]), [155, 155, 10]);
        assert_eq!(share(320, [quiet, quiet]), [100, 100]);
    }

    proptest! {
        // Whatever the caches hold, their capacities together must not exceed the budget, and each
        // has at least half of its own share.
        #[test]
        fn cache_capacities_stay_within_the_budget(bytes in 0_u64..1 << 40, used in any::<[u32; 6]>()) {
            let shares = Shares::of(&Limits {
                memory_bytes: usize::try_from(bytes).unwrap() + MEMORY_OF_FILES_BYTES,
                ..Limits::default()
            });
            let shares = shares.in_order();
            let mut rooms = shares;
            for turn in 0..4 {
                let now: [Use; 6] = std::array::from_fn(|at| {
                    let part = u128::from(used[(at + turn) % 6]) + 1;
                    Use {
                        used: u64::try_from((u128::from(rooms[at]) * part) >> 32).unwrap(),
                        room: rooms[at],
                        least: shares[at] / 2,
                    }
                });
                rooms = share(bytes, now);
                prop_assert!(rooms.iter().sum::<u64>() <= bytes, "{rooms:?}");
                for (room, share) in rooms.iter().zip(shares) {
                    prop_assert!(*room >= share / 2, "{rooms:?}");
                }
            }
        }
    }
}
