//! Bytes that were received and are not handled yet: counted for each
//! connection and for the whole server.
//!
//! A connection may hold a few times what is still free for all, and always its share.
//! So one client alone can send the largest message, many divide what there is,
//! and however many hold all they can, a small request of the next passes.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use crate::server::bounds::{CONNECTION_HOLDS_OF_FREE, CONNECTION_SHARE_BYTES};

/// What all connections hold together. Never more than `bytes_max` and a share
/// for each connection.
#[derive(Debug)]
pub(in crate::server) struct Pool {
    bytes_max: usize,
    bytes: AtomicUsize,
}

impl Pool {
    pub fn new(bytes_max: usize) -> Arc<Self> {
        let bytes = AtomicUsize::new(0);
        Arc::new(Self { bytes_max, bytes })
    }

    /// What a connection can hold that is alone, of so many bytes.
    pub fn most_for_one(bytes_max: usize) -> usize {
        bytes_max / (CONNECTION_HOLDS_OF_FREE + 1) * CONNECTION_HOLDS_OF_FREE
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// What one connection holds.
#[derive(Debug)]
pub(in crate::server) struct Account {
    pool: Arc<Pool>,
    bytes: AtomicUsize,
}

impl Account {
    pub fn new(pool: Arc<Pool>) -> Arc<Self> {
        let bytes = AtomicUsize::new(0);
        Arc::new(Self { pool, bytes })
    }
}

/// There is no room for more of this connection now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// What one call holds; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Charge {
    account: Arc<Account>,
    bytes: AtomicUsize,
    /// All that came of it from the network.
    received: AtomicU64,
}

impl Charge {
    pub fn new(account: Arc<Account>) -> Self {
        Self {
            account,
            bytes: AtomicUsize::new(0),
            received: AtomicU64::new(0),
        }
    }

    /// More of it came from the network.
    pub fn note_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes of it that came from the network.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Takes more.
    ///
    /// # Errors
    /// [`Full`]; nothing was taken then.
    pub fn grow(&self, bytes: usize) -> Result<(), Full> {
        let pool = &self.account.pool;
        let all = pool.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let own = self.account.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let free = pool.bytes_max.saturating_sub(all);
        let most = free.saturating_mul(CONNECTION_HOLDS_OF_FREE);
        if own > most.max(CONNECTION_SHARE_BYTES) {
            self.shrink(bytes);
            return Err(Full);
        }
        Ok(())
    }

    /// Gives some of it back.
    pub fn shrink(&self, bytes: usize) {
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

    // However many connections take all they can get, one after the other, the
    // next one must find room for a small request: else the first few clients
    // lock out the others.
    #[test]
    fn whoever_takes_all_leaves_a_share() {
        let pool = Pool::new(10 * MIB);
        let greedy = charges(&pool, 100);
        for charge in &greedy {
            while charge.grow(1_000).is_ok() {}
        }
        assert!(pool.held() <= 10 * MIB + 100 * CONNECTION_SHARE_BYTES);
        let next = &charges(&pool, 1)[0];
        assert_eq!(next.grow(CONNECTION_SHARE_BYTES), Ok(()));
        assert_eq!(next.grow(1), Err(Full));
    }

    // Half-sent messages could hold 480 MiB of a machine that has a gigabyte. The
    // default holds one message of the largest kind and little beside it, and a
    // configuration that allows larger ones still lets one of them in.
    #[test]
    fn one_of_the_largest_messages_fits() {
        use crate::{
            domain::Limits,
            server::{bounds, bytes_in_flight_max},
        };
        let limits = Limits::default();
        assert_eq!(bytes_in_flight_max(&limits), bounds::BYTES_IN_FLIGHT_MAX);
        let large = Limits {
            batch_bytes_max: 1 << 30,
            ..Limits::default()
        };
        for limits in [limits, large] {
            let pool = Pool::new(bytes_in_flight_max(&limits));
            let one = &charges(&pool, 1)[0];
            // Received, and decoded.
            assert_eq!(one.grow(limits.batch_bytes_max), Ok(()));
            assert_eq!(one.grow(limits.batch_bytes_max), Ok(()));
            // One more of its kind waits; a light call does not.
            let others = charges(&pool, 2);
            assert_eq!(others[0].grow(limits.batch_bytes_max), Err(Full));
            assert_eq!(others[1].grow(CONNECTION_SHARE_BYTES), Ok(()));
        }
    }

    // One client alone may send a message that takes three quarters of it, on one call
    // or on several, and what ends is given back to the last byte.
    #[test]
    fn what_ends_is_given_back() {
        let pool = Pool::new(8 * MIB);
        let account = Account::new(Arc::clone(&pool));
        let first = Charge::new(Arc::clone(&account));
        let second = Charge::new(account);
        assert_eq!(first.grow(4 * MIB), Ok(()));
        assert_eq!(second.grow(2 * MIB + 1), Err(Full));
        assert_eq!(second.grow(2 * MIB), Ok(()));
        first.shrink(50);
        assert_eq!(pool.held(), 6 * MIB - 50);
        drop(first);
        assert_eq!(pool.held(), 2 * MIB);
        drop(second);
        assert_eq!(pool.held(), 0);
    }
}
