//! Counts bytes received but not handled yet, for each connection and the whole server.
//!
//! A connection may hold up to a fixed multiple of the memory that is still free, and always its
//! own share. A single client can therefore send the largest message, many clients divide the
//! memory, and a small request passes even when others hold their maximum.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use crate::bounds::{CONNECTION_HOLDS_OF_FREE, CONNECTION_SHARE_BYTES};

/// The bytes of all connections. Never more than `bytes_max` plus a share for each connection.
#[derive(Debug)]
pub(crate) struct Pool {
    bytes_max: usize,
    bytes: AtomicUsize,
}

impl Pool {
    pub(crate) fn new(bytes_max: usize) -> Arc<Self> {
        let bytes = AtomicUsize::new(0);
        Arc::new(Self { bytes_max, bytes })
    }

    /// Returns how much of `bytes_max` a single connection can hold.
    pub(crate) fn most_for_one(bytes_max: usize) -> usize {
        bytes_max / (CONNECTION_HOLDS_OF_FREE + 1) * CONNECTION_HOLDS_OF_FREE
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// The bytes of one connection.
#[derive(Debug)]
pub(crate) struct Account {
    pool: Arc<Pool>,
    bytes: AtomicUsize,
}

impl Account {
    pub(crate) fn new(pool: Arc<Pool>) -> Arc<Self> {
        let bytes = AtomicUsize::new(0);
        Arc::new(Self { pool, bytes })
    }
}

/// The connection may not hold more now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionFull;

/// The bytes of one call, released when it is dropped.
#[derive(Debug)]
pub(super) struct Charge {
    account: Arc<Account>,
    bytes: AtomicUsize,
    /// All bytes received from the network.
    received: AtomicU64,
}

impl Charge {
    pub(crate) fn new(account: Arc<Account>) -> Self {
        Self {
            account,
            bytes: AtomicUsize::new(0),
            received: AtomicU64::new(0),
        }
    }

    /// Counts bytes received from the network.
    pub(crate) fn note_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Returns the bytes received from the network.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Charges more bytes.
    ///
    /// # Errors
    /// [`ConnectionFull`]; nothing was charged then.
    pub(crate) fn grow(&self, bytes: usize) -> Result<(), ConnectionFull> {
        let pool = &self.account.pool;
        let all = pool.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let own = self.account.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let free = pool.bytes_max.saturating_sub(all);
        let most = free.saturating_mul(CONNECTION_HOLDS_OF_FREE);
        if own > most.max(CONNECTION_SHARE_BYTES) {
            self.shrink(bytes);
            return Err(ConnectionFull);
        }
        Ok(())
    }

    /// Releases some of the bytes.
    pub(crate) fn shrink(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.account.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.account.pool.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.shrink(self.bytes.load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charges(pool: &Arc<Pool>, count: usize) -> Vec<Charge> {
        let account = || Account::new(Arc::clone(pool));
        (0..count).map(|_| Charge::new(account())).collect()
    }

    const MIB: usize = 1 << 20;

    // However many connections take all they can get, the next one must have room for a small
    // request; otherwise the first few clients lock out the others.
    #[test]
    fn each_connection_keeps_a_share() {
        let pool = Pool::new(10 * MIB);
        let greedy = charges(&pool, 100);
        for charge in &greedy {
            while charge.grow(1_000).is_ok() {}
        }
        assert!(pool.held() <= 10 * MIB + 100 * CONNECTION_SHARE_BYTES);
        let next = &charges(&pool, 1)[0];
        assert_eq!(next.grow(CONNECTION_SHARE_BYTES), Ok(()));
        assert_eq!(next.grow(1), Err(ConnectionFull));
    }

    // Half-sent messages must not use up the memory of a small machine. The default has room for
    // one of the largest messages and little more, and a configuration with larger messages must
    // still admit one of them.
    #[test]
    fn one_largest_message_fits_the_budget() {
        use crate::{bounds, bytes_in_flight_max};
        use treering_domain::Limits;
        let limits = Limits::default();
        assert_eq!(bytes_in_flight_max(&limits), bounds::BYTES_IN_FLIGHT_MAX);
        let large = Limits {
            batch_bytes_max: 1 << 30,
            ..Limits::default()
        };
        for limits in [limits, large] {
            let pool = Pool::new(bytes_in_flight_max(&limits));
            let one = &charges(&pool, 1)[0];
            // Once as received, and once as decoded.
            assert_eq!(one.grow(limits.batch_bytes_max), Ok(()));
            assert_eq!(one.grow(limits.batch_bytes_max), Ok(()));
            // Another one of that size waits; a light call does not.
            let others = charges(&pool, 2);
            assert_eq!(others[0].grow(limits.batch_bytes_max), Err(ConnectionFull));
            assert_eq!(others[1].grow(CONNECTION_SHARE_BYTES), Ok(()));
        }
    }

    // A single client may send a message of three quarters of the memory, on one call or several,
    // and everything is released to the last byte.
    #[test]
    fn released_bytes_return_to_the_pool() {
        let pool = Pool::new(8 * MIB);
        let account = Account::new(Arc::clone(&pool));
        let first = Charge::new(Arc::clone(&account));
        let second = Charge::new(account);
        assert_eq!(first.grow(4 * MIB), Ok(()));
        assert_eq!(second.grow(2 * MIB + 1), Err(ConnectionFull));
        assert_eq!(second.grow(2 * MIB), Ok(()));
        first.shrink(50);
        assert_eq!(pool.held(), 6 * MIB - 50);
        drop(first);
        assert_eq!(pool.held(), 2 * MIB);
        drop(second);
        assert_eq!(pool.held(), 0);
    }
}
