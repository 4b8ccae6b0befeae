//! The event index of a conversation, in chunks: the log offset, branch and kind of each revision,
//! in about four bytes per event.
//!
//! Chunk `n` holds the revisions `n × 128 + 1` to `n × 128 + 128`. Its head is the number of
//! entries (u8), then the offset and the branch of the last entry (u64 each, little-endian). An
//! append decodes only the head. Each entry is three LEB128 numbers:
//!
//! 1. the increase of the offset since the previous entry
//! 2. the change of the branch since the previous entry (zigzag)
//! 3. the kind

use treering_domain::{BranchId, ConversationKey, Revision};

use super::delta::EventEntry;

/// Maximum number of entries in a chunk. At four bytes each it stays well within a page of the
/// store, which an append rewrites.
pub(super) const CHUNK_EVENTS: u64 = 128;

const HEAD_BYTES: usize = 1 + 8 + 8;
/// Three one-byte numbers.
const ENTRY_BYTES_MIN: usize = 3;

/// Returns the number of the chunk that contains a revision.
pub(super) fn chunk_of(revision: Revision) -> u64 {
    revision.0.saturating_sub(1) / CHUNK_EVENTS
}

/// Returns the first revision of a chunk.
pub(super) fn first_revision(chunk: u64) -> Revision {
    Revision(chunk.saturating_mul(CHUNK_EVENTS).saturating_add(1))
}

/// A stored chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    bytes: Vec<u8>,
}

impl Chunk {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; HEAD_BYTES],
        }
    }

    /// Returns `None` when the bytes are too short for a chunk.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        (bytes.len() >= HEAD_BYTES).then(|| Self {
            bytes: bytes.to_vec(),
        })
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn len(&self) -> u64 {
        u64::from(self.bytes[0])
    }

    fn last(&self) -> (u64, u64) {
        (read_u64(&self.bytes[1..9]), read_u64(&self.bytes[9..17]))
    }

    /// Adds the next entry. Returns false when the chunk is full or the offset does not increase.
    #[must_use]
    pub(super) fn push(&mut self, entry: &EventEntry) -> bool {
        let (last_offset, last_branch) = self.last();
        if self.len() >= CHUNK_EVENTS || entry.offset <= last_offset {
            return false;
        }
        let branch = entry.branch.0;
        write_varint(&mut self.bytes, entry.offset - last_offset);
        write_varint(
            &mut self.bytes,
            zigzag(branch.wrapping_sub(last_branch).cast_signed()),
        );
        write_varint(&mut self.bytes, u64::from(entry.kind));
        self.bytes[0] += 1;
        self.bytes[1..9].copy_from_slice(&entry.offset.to_le_bytes());
        self.bytes[9..17].copy_from_slice(&branch.to_le_bytes());
        true
    }

    /// Decodes the entries; `None` when the bytes are inconsistent.
    pub(super) fn entries(
        bytes: &[u8],
        conversation: ConversationKey,
        chunk: u64,
    ) -> Option<Vec<EventEntry>> {
        let head = bytes.get(..HEAD_BYTES)?;
        let mut rest = &bytes[HEAD_BYTES..];
        let (mut offset, mut branch) = (0_u64, 0_u64);
        let mut revision = first_revision(chunk);
        // A wrong count must not allocate memory for entries that cannot exist.
        if usize::from(head[0]) > rest.len() / ENTRY_BYTES_MIN {
            return None;
        }
        let mut entries = Vec::with_capacity(usize::from(head[0]));
        for _ in 0..head[0] {
            offset = offset.checked_add(read_varint(&mut rest)?)?;
            branch = branch.wrapping_add(unzigzag(read_varint(&mut rest)?).cast_unsigned());
            entries.push(EventEntry {
                conversation,
                revision,
                branch: BranchId(branch),
                kind: u16::try_from(read_varint(&mut rest)?).ok()?,
                offset,
            });
            revision = Revision(revision.0.checked_add(1)?);
        }
        let adds_up =
            rest.is_empty() && (offset, branch) == (read_u64(&head[1..9]), read_u64(&head[9..17]));
        adds_up.then_some(entries)
    }
}

fn read_u64(bytes: &[u8]) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(bytes);
    u64::from_le_bytes(number)
}

fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -((number & 1).cast_signed())
}

/// Appends a number as LEB128: seven bits per byte, the low ones first.
pub(super) fn write_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

pub(super) fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        // Entries are encoded as differences: for any branches, kinds and gaps in the log, each
        // must come back unchanged.
        #[test]
        fn chunk_entries_round_trip(
            steps in prop::collection::vec((1_u64..1 << 40, any::<u64>(), any::<u16>()), 1..=128),
            number in 0_u64..1 << 30,
        ) {
            let mut offset = 0;
            let entries: Vec<EventEntry> = steps
                .into_iter()
                .enumerate()
                .map(|(index, (step, branch, kind))| {
                    offset += step;
                    let revision = Revision(number * CHUNK_EVENTS + 1 + index as u64);
                    let conversation = ConversationKey::default();
                    EventEntry { conversation, revision, branch: BranchId(branch), kind, offset }
                })
                .collect();
            let mut chunk = Chunk::new();
            for entry in &entries {
                prop_assert!(chunk.push(entry));
            }
            let read = Chunk::entries(chunk.as_bytes(), ConversationKey::default(), number);
            prop_assert_eq!(read, Some(entries));
        }

        // Arbitrary bytes must never make the decoder panic.
        #[test]
        fn any_bytes_are_decoded_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Chunk::entries(&bytes, ConversationKey::default(), 3);
        }
    }

    // A full chunk must refuse more entries, and every chunk an offset that does not increase:
    // accepting either would silently break the index.
    #[test]
    fn full_chunk_and_repeated_offset_are_refused() {
        let mut entry = EventEntry {
            conversation: ConversationKey::default(),
            revision: Revision(1),
            branch: BranchId::MAIN,
            kind: 28,
            offset: 7,
        };
        let mut chunk = Chunk::new();
        assert!(chunk.push(&entry));
        assert!(!chunk.push(&entry), "the same offset again");
        for _ in 1..CHUNK_EVENTS {
            entry.offset += 1;
            assert!(chunk.push(&entry));
        }
        entry.offset += 1;
        assert!(!chunk.push(&entry), "one more than fits");
    }

    // A steady stream of events on one branch is the common case: it must stay at a few bytes per
    // event, or the index outgrows the log.
    #[test]
    fn event_index_takes_few_bytes_per_event() {
        let mut chunk = Chunk::new();
        for n in 1..=CHUNK_EVENTS {
            assert!(chunk.push(&EventEntry {
                conversation: ConversationKey::default(),
                revision: Revision(n),
                branch: BranchId::MAIN,
                kind: 28,
                offset: n * 300,
            }));
        }
        assert!(chunk.as_bytes().len() <= 5 * CHUNK_EVENTS as usize);
    }
}
