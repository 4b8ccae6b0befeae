//! Counters and histograms of a running store. They use only atomics: an update is cheap, and an
//! application that embeds the store needs no metrics recorder. The code that exports them defines
//! their names and format.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// A counter that only increases until the process ends.
#[derive(Debug, Default)]
pub struct Total(AtomicU64);

impl Total {
    /// Adds one.
    pub fn add_one(&self) {
        self.add(1);
    }

    /// Adds `more`.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Returns the current value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Bucket bounds of durations, in microseconds: from a sync on a fast disk to a call that its
/// caller gave up on long ago.
pub const MICROS: &[u64] = &[
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000,
];

/// Bucket bounds of counts, such as group sizes.
pub const COUNTS: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 4_096, 16_384];

/// A histogram with fixed buckets.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// One more than the bounds: the last bucket has the values above all of them.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Histogram {
    /// Creates an empty histogram. `bounds` are inclusive upper bounds, in increasing order.
    #[must_use]
    pub fn new(bounds: &'static [u64]) -> Self {
        Self {
            bounds,
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        }
    }

    /// Creates a histogram of durations, in microseconds.
    #[must_use]
    pub fn of_durations() -> Self {
        Self::new(MICROS)
    }

    /// Creates a histogram of counts.
    #[must_use]
    pub fn of_counts() -> Self {
        Self::new(COUNTS)
    }

    /// Records a value.
    pub fn note(&self, value: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// Records a duration.
    pub fn note_duration(&self, duration: Duration) {
        self.note(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
    }

    /// Records the time from `start` until now.
    pub fn note_since(&self, start: Instant) {
        self.note_duration(start.elapsed());
    }

    /// Returns the values recorded so far. A value recorded concurrently may be partly included.
    #[must_use]
    pub fn read(&self) -> Distribution {
        let counts = self.counts.iter();
        Distribution {
            bounds: self.bounds,
            counts: counts.map(|count| count.load(Ordering::Relaxed)).collect(),
            sum: self.sum.load(Ordering::Relaxed),
        }
    }
}

/// A snapshot of a histogram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution {
    /// Inclusive upper bounds of all buckets but the last.
    pub bounds: &'static [u64],
    /// Number of values in each bucket, not cumulative.
    pub counts: Vec<u64>,
    /// Sum of all values.
    pub sum: u64,
}

impl Distribution {
    /// Returns the number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A value in the wrong bucket shifts every quantile: a value equal to a bound belongs to that
    // bound's bucket, as with Prometheus' `le`, and no value is too large to be counted.
    #[test]
    fn histogram_puts_each_value_in_its_bucket() {
        let histogram = Histogram::new(&[1, 4]);
        for value in [0, 1, 2, 4, 5, u64::from(u32::MAX)] {
            histogram.note(value);
        }
        let read = histogram.read();
        assert_eq!(read.counts, [2, 2, 2]);
        assert_eq!((read.count(), read.sum), (6, 12 + u64::from(u32::MAX)));
        let durations = Histogram::of_durations();
        durations.note_duration(Duration::from_millis(1));
        durations.note_duration(Duration::MAX);
        let counts = durations.read().counts;
        assert_eq!((counts[3], counts[MICROS.len()]), (1, 1));
    }

    #[test]
    fn histogram_bounds_are_ascending() {
        for bounds in [MICROS, COUNTS] {
            assert!(bounds.is_sorted_by(|a, b| a < b));
        }
    }
}
