//! Events that cannot be compressed.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;

use treering::{
    domain::{ConversationCreated, ConversationId, Custom, EventBody, NewEvent},
    proto::body,
};

/// Size of an event's body, in bytes.
pub const BODY_BYTES: usize = 1024;
/// Size of the pool that payloads are cut from. It is larger than any frame or group, so that no
/// bytes repeat within a compressed unit.
const POOL_BYTES: usize = 32 << 20;

/// Random bytes that payloads are cut from. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Payloads {
    pool: Bytes,
    next: Arc<AtomicUsize>,
    data_bytes: usize,
}

impl Payloads {
    /// Creates the pool.
    #[must_use]
    pub fn new() -> Self {
        let mut pool = Vec::with_capacity(POOL_BYTES);
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        while pool.len() < POOL_BYTES {
            // xorshift64*: fast, and random enough to be incompressible.
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            pool.extend_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
        }
        let pool = Bytes::from(pool);
        // The encoded body is slightly larger than its data.
        let whole = body::encode(&custom(pool.slice(..BODY_BYTES))).len();
        Self {
            pool,
            next: Arc::default(),
            data_bytes: 2 * BODY_BYTES - whole,
        }
    }

    fn cut(&self, bytes: usize) -> Bytes {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let at = number % (POOL_BYTES / BODY_BYTES) * BODY_BYTES;
        self.pool.slice(at..at + bytes)
    }

    /// Returns an encoded body, for baselines that store only bytes.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.cut(BODY_BYTES)
    }

    /// Returns an event whose encoded body has [`BODY_BYTES`] bytes.
    #[must_use]
    pub fn event(&self, conversation: ConversationId) -> NewEvent {
        NewEvent::new(conversation, custom(self.cut(self.data_bytes)))
    }

    /// Returns a new conversation with `events` events after the first.
    #[must_use]
    pub fn conversation(&self, events: usize) -> Vec<NewEvent> {
        let id = ConversationId::generate();
        let rest = (0..events).map(|_| self.event(id));
        std::iter::once(created(id)).chain(rest).collect()
    }
}

/// Returns the first event of a conversation.
#[must_use]
pub fn created(id: ConversationId) -> NewEvent {
    NewEvent::new(
        id,
        EventBody::ConversationCreated(ConversationCreated::default()),
    )
}

fn custom(data: Bytes) -> EventBody {
    EventBody::Custom(Custom {
        type_name: "bench".to_owned(),
        content_type: "application/octet-stream".to_owned(),
        data,
        text: String::new(),
        delta_of: String::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Baselines store `bytes()`, Treering stores `event()`: both must have the same size and be
    /// incompressible.
    #[test]
    fn payloads_have_one_size_and_do_not_compress() {
        let payloads = Payloads::new();
        let event = payloads.event(ConversationId::generate());
        assert_eq!(body::encode(&event.body).len(), BODY_BYTES);
        let mut bytes = Vec::new();
        for _ in 0..64 {
            bytes.extend_from_slice(&payloads.bytes());
        }
        assert!(zstd::bulk::compress(&bytes, 1).unwrap().len() >= bytes.len());
    }
}
