//! Rate limits of a key: calls and bytes per second.
//!
//! A key may use one second's worth at once. A larger request is accepted too, since it could never
//! be sent otherwise. Its excess is a debt: later requests are refused until the limit has covered
//! it.

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use governor::{
    Quota, RateLimiter,
    clock::{Clock, DefaultClock},
    state::{InMemoryState, NotKeyed},
};

use super::change::KeyLimits;

type Limiter = RateLimiter<NotKeyed, InMemoryState, DefaultClock>;

/// The rate limiter of a key.
#[derive(Debug)]
pub struct Rate {
    limits: KeyLimits,
    requests: Option<Limiter>,
    bytes: Option<Limiter>,
    /// Bytes that were accepted above the limit and are not covered by it yet.
    debt: AtomicU64,
}

impl Rate {
    /// Returns a limiter with nothing used.
    #[must_use]
    pub fn new(limits: KeyLimits) -> Self {
        let limiter = |per_second| {
            let quota = Quota::per_second(NonZeroU32::new(per_second)?);
            Some(RateLimiter::direct(quota))
        };
        Self {
            limits,
            requests: limiter(limits.requests_per_second),
            bytes: limiter(limits.bytes_per_second),
            debt: AtomicU64::new(0),
        }
    }

    /// Returns the limits.
    #[must_use]
    pub fn limits(&self) -> KeyLimits {
        self.limits
    }

    /// Counts a call.
    ///
    /// # Errors
    /// The time to wait, if the limit is exceeded.
    pub fn call(&self) -> Result<(), Duration> {
        let Some(requests) = &self.requests else {
            return Ok(());
        };
        requests.check().map_err(|until| wait(&until))
    }

    /// Counts a request of this many bytes.
    ///
    /// # Errors
    /// The time to wait, if the limit does not allow the request yet.
    pub fn request(&self, bytes: usize) -> Result<(), Duration> {
        let Some(limiter) = &self.bytes else {
            return Ok(());
        };
        let most = u64::from(self.limits.bytes_per_second);
        let mut owed = self.debt.load(Ordering::Relaxed);
        while owed > 0 {
            let part = owed.min(most);
            pay(limiter, part)?;
            // Another call may have paid meanwhile, so the debt must not go below zero.
            let less = |owed: u64| Some(owed.saturating_sub(part));
            let _always = self
                .debt
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
            owed = self.debt.load(Ordering::Relaxed);
        }
        let part = (bytes as u64).min(most);
        pay(limiter, part)?;
        self.debt.fetch_add(bytes as u64 - part, Ordering::Relaxed);
        Ok(())
    }
}

/// Takes `part` bytes, at most a second's worth.
fn pay(limiter: &Limiter, part: u64) -> Result<(), Duration> {
    let part = u32::try_from(part).unwrap_or(u32::MAX);
    let Some(part) = NonZeroU32::new(part) else {
        return Ok(());
    };
    match limiter.check_n(part) {
        Ok(paid) => paid.map_err(|until| wait(&until)),
        Err(_more_than_a_second) => Ok(()),
    }
}

fn wait(until: &governor::NotUntil<<DefaultClock as Clock>::Instant>) -> Duration {
    until.wait_time_from(DefaultClock::default().now())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(requests_per_second: u32, bytes_per_second: u32) -> Rate {
        Rate::new(KeyLimits {
            requests_per_second,
            bytes_per_second,
        })
    }

    // A call over the limit must be refused with the time to wait. Calls below the limit, or
    // without one, must not be delayed.
    #[test]
    fn calls_over_the_rate_limit_are_refused_with_a_wait() {
        let free = rate(0, 0);
        assert!((0..10_000).all(|_| free.call().is_ok() && free.request(1 << 30).is_ok()));
        let slow = rate(2, 0);
        assert!(slow.call().is_ok() && slow.call().is_ok());
        let wait = slow.call().unwrap_err();
        assert!(
            wait > Duration::ZERO && wait <= Duration::from_secs(1),
            "{wait:?}"
        );
    }

    // A request larger than a second's worth must be accepted, since it could never be sent
    // otherwise. It must be paid for before the next request is accepted.
    #[test]
    fn oversized_request_passes_and_delays_the_next() {
        let slow = rate(0, 1_000);
        slow.request(1_000_000).unwrap();
        assert_eq!(slow.debt.load(Ordering::Relaxed), 999_000);
        assert!(slow.request(1).is_err(), "it owes a thousand seconds");
        assert!(slow.call().is_ok());
        let small = rate(0, 1_000);
        assert!((0..10).all(|_| small.request(100).is_ok()));
        assert!(small.request(1_000).is_err());
        assert_eq!(small.debt.load(Ordering::Relaxed), 0);
    }
}
