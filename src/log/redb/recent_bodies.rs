//! Cache of recently unpacked or appended bodies that are bases of patches. The next body of a
//! chain is often read or appended next; with its base cached, the chain is not unpacked from the
//! start.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;

/// Maximum cache size, in bytes; the newest body is kept even if it is larger.
const BYTES_MAX: usize = 8 << 20;

/// Cached bodies by home offset. They are not verified: callers must check the result.
#[derive(Debug, Default)]
pub(super) struct RecentBodies(Mutex<CachedBodies>);

#[derive(Debug, Default)]
struct CachedBodies {
    /// Bodies with their home offsets, the most recently used last.
    bodies: VecDeque<(u64, Bytes)>,
    bytes: usize,
    generation: u64,
}

impl RecentBodies {
    fn kept(&self) -> MutexGuard<'_, CachedBodies> {
        // After a panic, at worst the size is counted wrongly.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how often the cache was cleared. A body that was read before the last clear is not
    /// cached.
    pub(super) fn generation(&self) -> u64 {
        self.kept().generation
    }

    pub(super) fn get(&self, home: u64) -> Option<Bytes> {
        let mut kept = self.kept();
        let at = kept.bodies.iter().position(|(of, _)| *of == home)?;
        let body = kept.bodies.remove(at)?;
        let bytes = body.1.clone();
        kept.bodies.push_back(body);
        Some(bytes)
    }

    /// Caches a body, unless the cache was cleared meanwhile.
    pub(super) fn keep(&self, home: u64, body: Bytes, generation: u64) {
        let mut kept = self.kept();
        if kept.generation != generation {
            return;
        }
        if let Some(at) = kept.bodies.iter().position(|(of, _)| *of == home)
            && let Some((_, old)) = kept.bodies.remove(at)
        {
            kept.bytes -= old.len();
        }
        kept.bytes += body.len();
        kept.bodies.push_back((home, body));
        while kept.bytes > BYTES_MAX && kept.bodies.len() > 1 {
            if let Some((_, old)) = kept.bodies.pop_front() {
                kept.bytes -= old.len();
            }
        }
    }

    /// Clears the cache, because something was erased or an offset may be reused for another body.
    pub(super) fn forget(&self) {
        let mut kept = self.kept();
        kept.bodies.clear();
        kept.bytes = 0;
        kept.generation += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The cache is bounded, keeps the most recently used bodies, and does not accept a body that
    // was read before an erasure.
    #[test]
    fn cache_keeps_recent_bodies_until_cleared() {
        let recent = RecentBodies::default();
        let body = || Bytes::from(vec![7; BYTES_MAX / 4]);
        for home in 1..=4 {
            recent.keep(home, body(), 0);
        }
        assert!(recent.get(1).is_some());
        recent.keep(5, body(), 0);
        assert!(recent.get(2).is_none() && recent.get(1).is_some());
        recent.keep(5, body(), 0);
        assert!(recent.get(3).is_some(), "the same one counts once");
        recent.keep(6, Bytes::from(vec![7; BYTES_MAX * 2]), 0);
        assert!(recent.get(6).is_some() && recent.get(5).is_none());
        let before = recent.generation();
        recent.forget();
        recent.keep(7, body(), before);
        assert!(recent.get(6).is_none() && recent.get(7).is_none());
    }
}
