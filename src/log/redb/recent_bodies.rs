//! Bodies that were unpacked or appended last and that patches stand on: the next one of a
//! chain is most likely read or appended next, and need not be unpacked from its beginning.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;

/// What is kept, in bytes; and the newest whatever it takes.
const BYTES_MAX: usize = 8 << 20;

/// Some bodies, by their homes. They are no proof of anything: whoever reads one checks what
/// comes of it.
#[derive(Debug, Default)]
pub(super) struct RecentBodies(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// The last used at the end.
    bodies: VecDeque<(u64, Bytes)>,
    bytes: usize,
    generation: u64,
}

impl RecentBodies {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Worst, something is kept that is counted wrongly.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often everything was forgotten: what was read before is not kept.
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

    /// Keeps a body, unless all was forgotten meanwhile.
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

    /// Forgets everything: something was erased, or a place may be taken by another body.
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

    // Its memory is bounded, what was used last stays, and nothing that was read before
    // something was erased comes back.
    #[test]
    fn the_last_ones_are_kept_until_all_is_forgotten() {
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
