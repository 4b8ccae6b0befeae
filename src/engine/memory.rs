//! One budget for the caches of a store. Each may use its room; what some do not use,
//! those that are full have. Looked at every second, by [`share`].

use std::sync::atomic::{AtomicU64, Ordering};

use super::Inner;
use crate::domain::{Limits, limits::MEMORY_OF_FILES_BYTES};

/// A cache, as far as the budget looks at it. All in bytes.
pub(super) trait Cache {
    /// What it holds.
    fn used(&self) -> u64;
    /// What it may hold.
    fn room(&self) -> u64;
    /// Lets it hold so much; it gives up what is more.
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

/// The room of a cache that another thread keeps.
#[derive(Debug, Default)]
pub(super) struct Room {
    used: AtomicU64,
    bytes: AtomicU64,
}

impl Room {
    pub fn note_used(&self, bytes: usize) {
        self.used.store(bytes as u64, Ordering::Relaxed);
    }

    pub fn bytes(&self) -> usize {
        usize::try_from(self.bytes.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
    }
}

impl Cache for Room {
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

/// What each cache has to begin with, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shares {
    pub states: u64,
    pub frames: u64,
    pub windows: u64,
    pub remembered_requests: u64,
    pub long_term: u64,
    pub knowledge: u64,
}

/// What the caches have together, in bytes.
fn shared(limits: &Limits) -> u64 {
    limits.memory_bytes.saturating_sub(MEMORY_OF_FILES_BYTES) as u64
}

impl Shares {
    pub fn of(limits: &Limits) -> Self {
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
}

impl Inner {
    /// Gives caches that are full what others do not use.
    pub(super) fn share_memory(&self) {
        let [windows, sent, long_term] = self.contexts.shared();
        let caches: [&dyn Cache; 6] = [
            &self.hot.room,
            self.reader.cache(),
            windows,
            sent,
            long_term,
            self.knowledge.cache(),
        ];
        let now = caches.map(|cache| Use {
            used: cache.used(),
            room: cache.room(),
        });
        let rooms = share(shared(&self.options.limits), now);
        // Those that get smaller first: together they never have more.
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
}

impl Use {
    fn is_full(self) -> bool {
        self.used >= self.room / 8 * 7
    }
}

/// Of what is shared, each cache always has this part.
const LEAST_PART: u64 = 32;

/// The room that each should have: one that is not full what it uses and a quarter,
/// those that are full the rest, in equal parts. While none is full nothing changes.
fn share<const N: usize>(bytes: u64, now: [Use; N]) -> [u64; N] {
    let full = now.iter().filter(|cache| cache.is_full()).count() as u64;
    if full == 0 {
        return now.map(|cache| cache.room);
    }
    let least = bytes / LEAST_PART;
    let wanted = |cache: &Use| (cache.used + cache.used / 4).clamp(least, cache.room.max(least));
    let kept: u64 = now.iter().filter(|c| !c.is_full()).map(wanted).sum();
    let each = bytes.saturating_sub(kept) / full;
    let fits = each >= least;
    now.map(|cache| match (fits, cache.is_full()) {
        // Only after the budget itself has become smaller.
        (false, _) => bytes / N as u64,
        (true, true) => each,
        (true, false) => wanted(&cache),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_one_does_not_use_another_has() {
        let quiet = Use { used: 1, room: 100 };
        let full = Use {
            used: 99,
            room: 100,
        };
        let rooms = share(320, [full, quiet, quiet]);
        assert_eq!(rooms, [300, 10, 10]);
        // It wants some again, and gets it from the one that has most.
        let wakes = Use { used: 10, room: 10 };
        let grown = Use {
            used: 290,
            room: 300,
        };
        assert_eq!(share(320, [grown, wakes, quiet]), [155, 155, 10]);
    }

    proptest! {
        // Whatever the caches hold, together they may not hold more than the budget,
        // and none is left without any.
        #[test]
        fn rooms_are_within_the_budget(bytes in 64_u64..1 << 40, used in any::<[u32; 6]>()) {
            let shares = Shares::of(&Limits {
                memory_bytes: usize::try_from(bytes).unwrap() + MEMORY_OF_FILES_BYTES,
                ..Limits::default()
            });
            let mut rooms = [
                shares.states,
                shares.frames,
                shares.windows,
                shares.remembered_requests,
                shares.long_term,
                shares.knowledge,
            ];
            for turn in 0..4 {
                let mut at = 0;
                let now = rooms.map(|room| {
                    at += 1;
                    let part = u64::from(used[(at + turn) % 6]) + 1;
                    Use { used: (u128::from(room) * u128::from(part) >> 32) as u64, room }
                });
                rooms = share(bytes, now);
                prop_assert!(rooms.iter().sum::<u64>() <= bytes, "{rooms:?}");
                prop_assert!(rooms.iter().all(|room| *room >= bytes / LEAST_PART / 2));
            }
        }
    }
}
