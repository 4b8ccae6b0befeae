//! Decodes the records of a block. Its bytes are untrusted: only their checksum has been verified.

use std::sync::Arc;

use bytes::Bytes;
use uuid::Uuid;

use super::{
    CHECK_BYTES, TEXTS_BYTES_MAX,
    columns::{
        BODY_ERASED, BODY_HASH_GIVEN, BODY_IN_BLOBS, CHAIN_GIVEN, COLUMNS, Column,
        ConversationTail, FIRST_LINK, HAS_APPEND_KEY, HAS_CAUSATION, HAS_OCCURRED_AT, ID_LOW_BYTES,
        KEY_ENDING, KEY_SALTED, PreviousRecord,
    },
    hashes::{Link, StoredHashes},
};
use crate::{
    codec::HEADER_BYTES_MAX,
    record::{AppendKey, BlobRef, Hashes, Record, RecordBody, Stub},
    salt::{KeySalt, Salt, SaltNode},
};
use treering_domain::{
    BranchId, ContentHash, ConversationId, EventHeader, EventId, Namespace, Revision,
    TimestampMicros,
};

/// A block's parts, unpacked.
pub(super) struct DecompressedBlock {
    pub(crate) first_offset: u64,
    pub(crate) count: usize,
    pub(crate) columns: Bytes,
    pub(crate) plain: Bytes,
    pub(crate) bodies: Bytes,
}

/// Why a block cannot be decoded.
type Fault = &'static str;

const SHORT: Fault = "a column ends early";
/// Maximum total length of a record's header texts, in bytes, so that the header stays within its
/// limit.
const TEXTS_OF_A_HEADER: usize = HEADER_BYTES_MAX - 512;
const NO_ROW: Fault = "a row number is out of range";

impl DecompressedBlock {
    /// Returns the check of a record.
    pub(super) fn check(&self, index: u32) -> Option<&[u8]> {
        let at = self.count * ID_LOW_BYTES + index as usize * CHECK_BYTES;
        self.plain.get(at..at + CHECK_BYTES)
    }

    /// Passes the records to `take` in order, without hashes, together with the stored information
    /// about their hashes.
    ///
    /// # Errors
    /// Why the block cannot be decoded; earlier records may have been passed already.
    pub(super) fn read(
        &self,
        mut take: impl FnMut(u32, Record, StoredHashes),
    ) -> Result<(), Fault> {
        let mut reader = BlockDecoder::new(self)?;
        for index in 0..self.count {
            let (record, kept) = reader.next(index)?;
            // A block has at most 1024 records.
            take(index as u32, record, kept);
        }
        reader.finish()
    }
}

#[derive(Clone, Copy, Default)]
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    #[inline]
    fn number(&mut self) -> Result<u64, Fault> {
        let (first, rest) = self.0.split_first().ok_or(SHORT)?;
        self.0 = rest;
        if *first < 0x80 {
            return Ok((*first).into());
        }
        let mut number = u64::from(first & 0x7f);
        for shift in (7..70).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(SHORT)?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if *byte < 0x80 {
                return Ok(number);
            }
        }
        Err("a number is too large")
    }

    #[inline]
    fn difference(&mut self, from: u64) -> Result<u64, Fault> {
        let number = self.number()?;
        let difference = (number >> 1) ^ (number & 1).wrapping_neg();
        Ok(from.wrapping_add(difference))
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Fault> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(SHORT)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn text(&mut self) -> Result<&'a str, Fault> {
        let len = usize::try_from(self.number()?).map_err(|_| SHORT)?;
        std::str::from_utf8(self.take(len)?).map_err(|_| "a text is not valid UTF-8")
    }
}

/// The tables of a block.
struct Tables<'a> {
    namespaces: Vec<Namespace>,
    conversations: Vec<(ConversationId, ConversationTail)>,
    texts: Vec<&'a str>,
}

impl<'a> Tables<'a> {
    /// Reads the tables. A table must not have more rows than records can reference.
    fn read(columns: &[Cursor<'a>; COLUMNS], records: usize) -> Result<Self, Fault> {
        const TEXTS_OF_A_RECORD: usize = 2;
        let mut tables = Self {
            namespaces: Vec::new(),
            conversations: Vec::new(),
            texts: Vec::new(),
        };
        let mut names = columns[Column::Namespaces as usize];
        while !names.0.is_empty() && tables.namespaces.len() < records {
            let name = Namespace::new(names.text()?).map_err(|_| "a namespace is invalid")?;
            tables.namespaces.push(name);
        }
        let mut ids = columns[Column::Conversations as usize];
        while !ids.0.is_empty() && tables.conversations.len() < records {
            let id = ConversationId(Uuid::from_bytes(ids.array()?));
            tables.conversations.push((id, ConversationTail::default()));
        }
        let mut texts = columns[Column::Texts as usize];
        while !texts.0.is_empty() && tables.texts.len() < records * TEXTS_OF_A_RECORD {
            tables.texts.push(texts.text()?);
        }
        if [names, ids, texts]
            .iter()
            .any(|column| !column.0.is_empty())
        {
            return Err("a table has more rows than the block has records");
        }
        Ok(tables)
    }
}

/// The decoder of a block.
struct BlockDecoder<'a> {
    of: &'a DecompressedBlock,
    columns: [Cursor<'a>; COLUMNS],
    tables: Tables<'a>,
    id_lows: Cursor<'a>,
    given: Cursor<'a>,
    bodies_at: usize,
    /// Remaining total length of texts, in bytes. Without this limit, all records could reference
    /// the same long text.
    texts_left: usize,
    ids: Vec<EventId>,
    previous: PreviousRecord,
    /// The node of the last salt.
    salts: Option<Arc<SaltNode>>,
}

impl<'a> BlockDecoder<'a> {
    fn new(of: &'a DecompressedBlock) -> Result<Self, Fault> {
        let mut rest = Cursor(&of.columns);
        let mut lens = [0; COLUMNS];
        for len in &mut lens {
            *len = usize::try_from(rest.number()?).map_err(|_| SHORT)?;
        }
        let mut columns = [Cursor::default(); COLUMNS];
        for (column, len) in columns.iter_mut().zip(lens) {
            *column = Cursor(rest.take(len)?);
        }
        if !rest.0.is_empty() || lens[Column::Flags as usize] != of.count {
            return Err("column lengths do not add up");
        }
        let mut plain = Cursor(&of.plain);
        let id_lows = Cursor(plain.take(of.count * ID_LOW_BYTES)?);
        plain.take(of.count * CHECK_BYTES)?;
        Ok(Self {
            of,
            tables: Tables::read(&columns, of.count)?,
            columns,
            id_lows,
            given: plain,
            bodies_at: 0,
            texts_left: TEXTS_BYTES_MAX + HEADER_BYTES_MAX,
            ids: Vec::with_capacity(of.count),
            previous: PreviousRecord::default(),
            salts: None,
        })
    }

    fn column(&mut self, column: Column) -> &mut Cursor<'a> {
        &mut self.columns[column as usize]
    }

    fn number(&mut self, column: Column) -> Result<u64, Fault> {
        self.column(column).number()
    }

    /// Reads a number that is used as an index.
    fn place(&mut self, column: Column) -> Result<usize, Fault> {
        usize::try_from(self.number(column)?).map_err(|_| NO_ROW)
    }

    fn next(&mut self, index: usize) -> Result<(Record, StoredHashes), Fault> {
        let [flags] = self.column(Column::Flags).array()?;
        let has = |flag: u8| flags & flag != 0;
        let is_impossible = has(FIRST_LINK) && has(CHAIN_GIVEN)
            || has(BODY_ERASED) && (has(BODY_IN_BLOBS) || !has(BODY_HASH_GIVEN));
        if is_impossible {
            return Err("unknown flags");
        }
        let conversation = self.place(Column::Conversation)?;
        let (recorded_at, occurred_at) = self.times(has(HAS_OCCURRED_AT))?;
        let (id, before) = self.place_in(conversation)?;
        let header = EventHeader {
            id: self.id()?,
            namespace: self.namespace()?,
            conversation: id,
            branch: BranchId(before.branch),
            revision: Revision(before.revision),
            kind: u16::try_from(self.number(Column::Kind)?)
                .map_err(|_| "an event kind is out of range")?,
            recorded_at,
            occurred_at,
            actor: self.text(Column::Actor)?.to_owned(),
            causation_id: None,
            correlation_id: self.text(Column::Correlation)?.to_owned(),
        };
        let salt = match has(BODY_ERASED) {
            true => None,
            false => Some(self.salt(self.of.first_offset + index as u64)?),
        };
        let body = self.body(index, flags)?;
        let body_hash = match has(BODY_HASH_GIVEN) {
            true => Some(ContentHash(self.given.array()?)),
            false => None,
        };
        let kept = StoredHashes {
            body: body_hash,
            link: self.link(flags)?,
            conversation,
        };
        let causation_id = match has(HAS_CAUSATION) {
            true => Some(self.causation(index)?),
            false => None,
        };
        let append_key = match has(HAS_APPEND_KEY) {
            true => Some(self.append_key(header.recorded_at)?),
            false => None,
        };
        let key_bytes = append_key
            .as_ref()
            .map_or(0, |key: &AppendKey| key.key.len());
        if header.actor.len() + header.correlation_id.len() + key_bytes > TEXTS_OF_A_HEADER {
            return Err("the texts are too long");
        }
        self.ids.push(header.id);
        let record = Record {
            header: EventHeader {
                causation_id,
                ..header
            },
            body,
            append_key,
            hashes: Hashes::Known {
                body: ContentHash::default(),
                chain: ContentHash::default(),
            },
            salt,
        };
        Ok((record, kept))
    }

    fn place_in(
        &mut self,
        conversation: usize,
    ) -> Result<(ConversationId, ConversationTail), Fault> {
        let columns = &mut self.columns;
        let row = self.tables.conversations.get_mut(conversation);
        let (id, before) = row.ok_or(NO_ROW)?;
        let next = before.revision.wrapping_add(1);
        before.branch = columns[Column::Branch as usize].difference(before.branch)?;
        before.revision = columns[Column::Revision as usize].difference(next)?;
        Ok((*id, *before))
    }

    fn namespace(&mut self) -> Result<Namespace, Fault> {
        let number = self.place(Column::Namespace)?;
        self.tables.namespaces.get(number).cloned().ok_or(NO_ROW)
    }

    fn text(&mut self, column: Column) -> Result<&'a str, Fault> {
        let text = match self.place(column)?.checked_sub(1) {
            None => "",
            Some(row) => self.tables.texts.get(row).copied().ok_or(NO_ROW)?,
        };
        self.count_text(text)?;
        Ok(text)
    }

    fn count_text(&mut self, text: &str) -> Result<(), Fault> {
        let left = self.texts_left.checked_sub(text.len());
        self.texts_left = left.ok_or("a header's texts are too long")?;
        Ok(())
    }

    fn id(&mut self) -> Result<EventId, Fault> {
        let before = self.previous;
        let high = self.column(Column::IdHigh).difference(before.id_high)?;
        let difference = self.column(Column::IdMiddle).difference(0)?;
        // The difference was encoded as 32 bits.
        let middle = before.id_middle.wrapping_add(difference as u32);
        let low = u32::from_be_bytes(self.id_lows.array()?);
        self.previous.id_high = high;
        self.previous.id_middle = middle;
        let number = u128::from(high) << 64 | u128::from(middle) << 32 | u128::from(low);
        Ok(EventId(Uuid::from_u128(number)))
    }

    fn times(
        &mut self,
        has_occurred: bool,
    ) -> Result<(TimestampMicros, Option<TimestampMicros>), Fault> {
        let before = self.previous.recorded_at as u64;
        let recorded = self.column(Column::RecordedAt).difference(before)? as i64;
        self.previous.recorded_at = recorded;
        if !has_occurred {
            return Ok((TimestampMicros(recorded), None));
        }
        let before = self.previous.occurred_at.unwrap_or(recorded) as u64;
        let occurred = self.column(Column::OccurredAt).difference(before)? as i64;
        self.previous.occurred_at = Some(occurred);
        Ok((TimestampMicros(recorded), Some(TimestampMicros(occurred))))
    }

    fn link(&mut self, flags: u8) -> Result<Link, Fault> {
        Ok(if flags & CHAIN_GIVEN != 0 {
            Link::Given(ContentHash(self.given.array()?))
        } else if flags & FIRST_LINK != 0 {
            Link::First
        } else {
            Link::Previous
        })
    }

    /// Returns the salt of the record at an offset, derived from the current node if that covers
    /// the offset, or else from the next node.
    fn salt(&mut self, offset: u64) -> Result<Salt, Fault> {
        let covers = |node: &Arc<SaltNode>| node.covers(offset);
        if !self.salts.as_ref().is_some_and(covers) {
            let height = u8::try_from(self.number(Column::SaltHeight)?);
            let node = SaltNode::new(offset, height.unwrap_or(u8::MAX), self.given.array()?);
            self.salts = Some(Arc::new(node.ok_or("a salt is invalid")?));
        }
        let node = self.salts.as_ref().ok_or(SHORT)?;
        Ok(Salt::below(node, offset))
    }

    fn body(&mut self, index: usize, flags: u8) -> Result<RecordBody, Fault> {
        let bytes_len = self.number(Column::BodyBytes)?;
        if flags & BODY_IN_BLOBS != 0 {
            // Does not overflow: the block's header was checked.
            let offset = self.of.first_offset + index as u64;
            let back = self.column(Column::BlobHome).difference(0)?;
            return Ok(RecordBody::Blob(BlobRef {
                hash: ContentHash(self.given.array()?),
                bytes_len,
                home_offset: offset.wrapping_sub(back),
            }));
        }
        if flags & BODY_ERASED != 0 {
            let len = self.number(Column::Stub)?;
            let bytes = self.here(len)?;
            return Ok(RecordBody::Stub(Stub { bytes, bytes_len }));
        }
        self.here(bytes_len).map(RecordBody::Inline)
    }

    /// Returns the next body that is stored in the block.
    fn here(&mut self, len: u64) -> Result<Bytes, Fault> {
        let end = usize::try_from(len)
            .ok()
            .and_then(|len| self.bodies_at.checked_add(len))
            .filter(|end| *end <= self.of.bodies.len())
            .ok_or("a body extends beyond the block")?;
        let body = self.of.bodies.slice(self.bodies_at..end);
        self.bodies_at = end;
        Ok(body)
    }

    fn causation(&mut self, index: usize) -> Result<EventId, Fault> {
        match self.place(Column::Causation)? {
            0 => Ok(EventId(Uuid::from_bytes(self.given.array()?))),
            back => {
                let at = index.checked_sub(back);
                at.and_then(|at| self.ids.get(at).copied()).ok_or(NO_ROW)
            }
        }
    }

    fn append_key(&mut self, recorded_at: TimestampMicros) -> Result<AppendKey, Fault> {
        let key = self.column(Column::AppendKey).text()?;
        self.count_text(key)?;
        let events = self.number(Column::AppendKey)?;
        let has = self.number(Column::AppendKey)?;
        if has & !(KEY_SALTED | KEY_ENDING) != 0 {
            return Err("an idempotency key has unknown flags");
        }
        let ends_at = match has & KEY_ENDING {
            0 => None,
            _ => {
                let column = self.column(Column::AppendKey);
                let ends_at = column.difference(recorded_at.0 as u64)?;
                Some(TimestampMicros(ends_at as i64))
            }
        };
        Ok(AppendKey {
            key: key.to_owned(),
            events: u32::try_from(events).map_err(|_| "a batch has too many events")?,
            content_hash: ContentHash(self.given.array()?),
            salt: match has & KEY_SALTED {
                0 => None,
                _ => Some(KeySalt(self.given.array()?)),
            },
            ends_at,
        })
    }

    /// Checks that every byte belonged to some record.
    fn finish(self) -> Result<(), Fault> {
        let per_record = &self.columns[Column::Flags as usize..];
        let left = per_record.iter().any(|column| !column.0.is_empty());
        if left || !self.given.0.is_empty() || self.bodies_at != self.of.bodies.len() {
            return Err("bytes follow the last record");
        }
        Ok(())
    }
}
