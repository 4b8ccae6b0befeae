//! The only source of chance in a simulation: numbers that follow from the seed.

use std::time::Duration;

/// SplitMix64.
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.number() % bound as u64) as usize
    }

    /// Returns true in so many of a thousand cases.
    pub(super) fn happens(&mut self, per_mille: usize) -> bool {
        self.below(1_000) < per_mille
    }

    pub(super) fn millis(&mut self, from: usize, to: usize) -> Duration {
        let micros = from * 1_000 + self.below((to - from) * 1_000 + 1);
        Duration::from_micros(micros as u64)
    }
}
