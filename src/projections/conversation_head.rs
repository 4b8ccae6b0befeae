//! The one row that every append to a conversation rewrites: its head, the event index since the
//! last full chunk, and its first branch. It is a single row because the cost of a group of appends
//! to many conversations depends on the number of rows.
//!
//! The bytes: length of the head (u16, little-endian), length of the index (the same), the head,
//! the index (see `chunk`), and the first branch to the end.

use treering_domain::{BranchState, ConversationKey, Revision};

use super::{
    chunk::{CHUNK_EVENTS, Chunk},
    codec::{self, HeadRow},
    delta::EventEntry,
    error::ProjectionsError,
};

const LENGTHS_BYTES: usize = 4;

/// A stored row, split into its parts.
#[derive(Clone, Copy)]
pub(super) struct ConversationHead<'a> {
    head: &'a [u8],
    index: &'a [u8],
    main: &'a [u8],
}

impl<'a> ConversationHead<'a> {
    /// Parses a row without its checksum.
    pub(super) fn of(row: &'a [u8]) -> Result<Self, ProjectionsError> {
        let parts = || {
            let (lengths, rest) = row.split_at_checked(LENGTHS_BYTES)?;
            let length =
                |at: usize| usize::from(u16::from_le_bytes([lengths[at], lengths[at + 1]]));
            let (head, rest) = rest.split_at_checked(length(0))?;
            let (index, main) = rest.split_at_checked(length(2))?;
            Some(Self { head, index, main })
        };
        parts().ok_or_else(|| ProjectionsError::damaged("a conversation's row is too short"))
    }

    pub(super) fn head(&self) -> Result<HeadRow, ProjectionsError> {
        codec::decode_value(self.head)
    }

    pub(super) fn main(&self) -> Result<BranchState, ProjectionsError> {
        codec::decode_value(self.main)
    }

    pub(super) fn main_bytes(&self) -> &'a [u8] {
        self.main
    }

    pub(super) fn chunk(&self) -> Result<Chunk, ProjectionsError> {
        Chunk::from_bytes(self.index).ok_or_else(index_damaged)
    }

    /// Returns the entries since the last full chunk.
    pub(super) fn entries(&self, id: ConversationKey) -> Result<Vec<EventEntry>, ProjectionsError> {
        let number = open_chunk(self.head()?.head());
        Chunk::entries(self.index, id, number).ok_or_else(index_damaged)
    }
}

/// Returns the number of the chunk for the event after this head.
pub(super) fn open_chunk(head: Revision) -> u64 {
    head.0 / CHUNK_EVENTS
}

fn index_damaged() -> ProjectionsError {
    ProjectionsError::damaged("the event index is corrupt")
}

/// Appends a row's bytes. `main` appends the bytes of the first branch.
pub(super) fn write(
    bytes: &mut Vec<u8>,
    head: &HeadRow,
    index: &Chunk,
    main: impl FnOnce(&mut Vec<u8>) -> Result<(), ProjectionsError>,
) -> Result<(), ProjectionsError> {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; LENGTHS_BYTES]);
    codec::encode(head, bytes)?;
    let head_bytes = length(bytes.len() - start - LENGTHS_BYTES)?;
    bytes.extend_from_slice(index.as_bytes());
    let index_bytes = length(index.as_bytes().len())?;
    bytes[start..start + 2].copy_from_slice(&head_bytes);
    bytes[start + 2..start + 4].copy_from_slice(&index_bytes);
    main(bytes)
}

fn length(bytes: usize) -> Result<[u8; 2], ProjectionsError> {
    match u16::try_from(bytes) {
        Ok(length) => Ok(length.to_le_bytes()),
        Err(error) => Err(ProjectionsError::Encode {
            what: error.to_string(),
        }),
    }
}
