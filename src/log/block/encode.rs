//! Encodes records into the columns of a block.

use std::{collections::HashMap, hash::Hash, iter::Peekable, vec::IntoIter};

use super::{
    CHECK_BYTES,
    columns::{
        BODY_ERASED, BODY_HASH_GIVEN, BODY_IN_BLOBS, CHAIN_GIVEN, COLUMNS, Column,
        ConversationTail, FIRST_LINK, HAS_APPEND_KEY, HAS_CAUSATION, HAS_OCCURRED_AT, KEY_ENDING,
        KEY_SALTED, PreviousRecord, id_parts,
    },
};
use crate::{
    port::LogError,
    record::{Record, RecordBody},
    salt::{SaltNode, cover},
};
use treering_domain::{ContentHash, ConversationKey, EventHeader, EventId};

/// A block's parts before compression.
#[derive(Default)]
pub(super) struct BlockParts {
    pub(crate) columns: Vec<u8>,
    /// The low bytes of ids, the checks, and then by record: salt node, hash of a large body, body
    /// hash, chain hash, causation id, hash of the batch's content and its salt. None of it
    /// compresses.
    pub(crate) plain: Vec<u8>,
    pub(crate) bodies: Vec<u8>,
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Writes a wrapping difference, zigzag-encoded so that small differences of either sign are short.
fn put_difference(out: &mut Vec<u8>, number: u64, from: u64) {
    let difference = number.wrapping_sub(from) as i64;
    put(out, ((difference << 1) ^ (difference >> 63)) as u64);
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Returns the row number of a key, creating the row if it is missing.
fn row<K: Hash + Eq>(rows: &mut HashMap<K, u64>, key: K, make: impl FnOnce()) -> u64 {
    let next = rows.len() as u64;
    *rows.entry(key).or_insert_with(|| {
        make();
        next
    })
}

/// The encoder of a block.
pub(super) struct BlockEncoder<'a> {
    columns: [Vec<u8>; COLUMNS],
    id_lows: Vec<u8>,
    checks: Vec<u8>,
    given: Vec<u8>,
    bodies: Vec<u8>,
    namespaces: HashMap<&'a str, u64>,
    conversations: HashMap<ConversationKey, u64>,
    texts: HashMap<&'a str, u64>,
    ids: HashMap<EventId, u64>,
    before: HashMap<u64, (ConversationTail, ContentHash)>,
    previous: PreviousRecord,
    offset: u64,
    index: u64,
    salts: Peekable<IntoIter<(usize, SaltNode)>>,
}

impl<'a> BlockEncoder<'a> {
    /// Encodes records into the parts of a block.
    ///
    /// # Errors
    /// [`LogError::TooLarge`], as for frames.
    pub(super) fn parts(first_offset: u64, records: &'a [Record]) -> Result<BlockParts, LogError> {
        let mut writer = Self::new(first_offset, records);
        for record in records {
            writer.push(record)?;
        }
        Ok(writer.finish())
    }

    fn new(first_offset: u64, records: &'a [Record]) -> Self {
        let salts = records.iter().map(|record| record.salt.as_ref());
        Self {
            salts: cover(first_offset, salts).into_iter().peekable(),
            columns: Default::default(),
            id_lows: Vec::new(),
            checks: Vec::new(),
            given: Vec::new(),
            bodies: Vec::new(),
            namespaces: HashMap::new(),
            conversations: HashMap::new(),
            texts: HashMap::new(),
            ids: HashMap::new(),
            before: HashMap::new(),
            previous: PreviousRecord::default(),
            offset: first_offset,
            index: 0,
        }
    }

    fn column(&mut self, column: Column) -> &mut Vec<u8> {
        &mut self.columns[column as usize]
    }

    fn put(&mut self, column: Column, number: u64) {
        put(self.column(column), number);
    }

    fn push(&mut self, record: &'a Record) -> Result<(), LogError> {
        let header = &record.header;
        let mut flags = 0;
        let conversation = self.conversation(header);
        self.names(header);
        self.ids(header);
        self.times(header, &mut flags);
        self.put(Column::Kind, header.kind.into());
        self.put(Column::BodyBytes, record.body.bytes_len());
        self.salts();
        self.body(&record.body, &mut flags);
        self.hashes(record, conversation, &mut flags)?;
        self.causation(header, &mut flags);
        self.append_key(record, &mut flags);
        self.column(Column::Flags).push(flags);
        self.ids.insert(header.id, self.index);
        self.index += 1;
        self.offset = self.offset.wrapping_add(1);
        Ok(())
    }

    fn conversation(&mut self, header: &EventHeader) -> u64 {
        let ids = &mut self.columns[Column::Conversations as usize];
        // An id that occurs in two namespaces gets two rows.
        let number = row(&mut self.conversations, header.key(), || {
            ids.extend_from_slice(header.conversation.0.as_bytes());
        });
        self.put(Column::Conversation, number);
        let (before, _) = self.before.get(&number).copied().unwrap_or_default();
        let (branch, revision) = (header.branch.0, header.revision.0);
        put_difference(self.column(Column::Branch), branch, before.branch);
        let next = before.revision.wrapping_add(1);
        put_difference(self.column(Column::Revision), revision, next);
        let entry = self.before.entry(number).or_default();
        entry.0 = ConversationTail { branch, revision };
        number
    }

    fn names(&mut self, header: &'a EventHeader) {
        let names = &mut self.columns[Column::Namespaces as usize];
        let name = header.namespace.as_str();
        let number = row(&mut self.namespaces, name, || put_text(names, name));
        self.put(Column::Namespace, number);
        for (column, text) in [
            (Column::Actor, header.actor.as_str()),
            (Column::Correlation, header.correlation_id.as_str()),
        ] {
            let texts = &mut self.columns[Column::Texts as usize];
            let number = match text {
                "" => 0,
                text => row(&mut self.texts, text, || put_text(texts, text)) + 1,
            };
            self.put(column, number);
        }
    }

    fn ids(&mut self, header: &EventHeader) {
        let (high, middle, low) = id_parts(header.id.0);
        let previous = self.previous;
        put_difference(self.column(Column::IdHigh), high, previous.id_high);
        let difference = middle.wrapping_sub(previous.id_middle) as i32;
        put_difference(
            self.column(Column::IdMiddle),
            i64::from(difference) as u64,
            0,
        );
        self.id_lows.extend_from_slice(&low);
        self.previous.id_high = high;
        self.previous.id_middle = middle;
    }

    fn times(&mut self, header: &EventHeader, flags: &mut u8) {
        let recorded = header.recorded_at.0;
        let before = self.previous.recorded_at;
        put_difference(
            self.column(Column::RecordedAt),
            recorded as u64,
            before as u64,
        );
        self.previous.recorded_at = recorded;
        if let Some(occurred) = header.occurred_at {
            *flags |= HAS_OCCURRED_AT;
            let before = self.previous.occurred_at.unwrap_or(recorded);
            let column = self.column(Column::OccurredAt);
            put_difference(column, occurred.0 as u64, before as u64);
            self.previous.occurred_at = Some(occurred.0);
        }
    }

    /// Writes the salt node that starts at this record, if there is one.
    fn salts(&mut self) {
        let index = self.index;
        let here = |(first, _): &(usize, SaltNode)| *first as u64 == index;
        if let Some((_, node)) = self.salts.next_if(here) {
            self.put(Column::SaltHeight, node.height().into());
            self.given.extend_from_slice(&node.key());
        }
    }

    fn body(&mut self, body: &RecordBody, flags: &mut u8) {
        self.bodies.extend_from_slice(body.here());
        match body {
            RecordBody::Inline(_) => {}
            RecordBody::Blob(blob) => {
                *flags |= BODY_IN_BLOBS;
                let offset = self.offset;
                put_difference(self.column(Column::BlobHome), offset, blob.home_offset);
                self.given.extend_from_slice(&blob.hash.0);
            }
            RecordBody::Stub(stub) => {
                *flags |= BODY_ERASED;
                self.put(Column::Stub, stub.bytes.len() as u64);
            }
        }
    }

    /// Writes the hashes that cannot be derived.
    fn hashes(
        &mut self,
        record: &Record,
        conversation: u64,
        flags: &mut u8,
    ) -> Result<(), LogError> {
        let (body_hash, chain_hash) = (record.body_hash(), record.chain_hash());
        if record.hash_of_body() != Some(body_hash) {
            *flags |= BODY_HASH_GIVEN;
            self.given.extend_from_slice(&body_hash.0);
        }
        let entry = self.before.entry(conversation).or_default();
        let previous = std::mem::replace(&mut entry.1, chain_hash);
        let behind = |previous| record.expected_chain_hash(previous, body_hash);
        if behind(previous)? != chain_hash {
            if behind(ContentHash::default())? == chain_hash {
                *flags |= FIRST_LINK;
            } else {
                *flags |= CHAIN_GIVEN;
                self.given.extend_from_slice(&chain_hash.0);
            }
        }
        self.checks.extend_from_slice(&chain_hash.0[..CHECK_BYTES]);
        Ok(())
    }

    fn causation(&mut self, header: &EventHeader, flags: &mut u8) {
        let Some(id) = header.causation_id else {
            return;
        };
        *flags |= HAS_CAUSATION;
        match self.ids.get(&id) {
            Some(index) => {
                let back = self.index - index;
                self.put(Column::Causation, back);
            }
            None => {
                self.put(Column::Causation, 0);
                self.given.extend_from_slice(id.0.as_bytes());
            }
        }
    }

    fn append_key(&mut self, record: &Record, flags: &mut u8) {
        let Some(key) = &record.append_key else {
            return;
        };
        *flags |= HAS_APPEND_KEY;
        let column = self.column(Column::AppendKey);
        put_text(column, &key.key);
        put(column, key.events.into());
        let (salted, ending) = (key.salt.is_some(), key.ends_at.is_some());
        put(
            column,
            (u64::from(salted) * KEY_SALTED) | (u64::from(ending) * KEY_ENDING),
        );
        if let Some(ends_at) = key.ends_at {
            let recorded_at = record.header.recorded_at;
            put_difference(column, ends_at.0 as u64, recorded_at.0 as u64);
        }
        self.given.extend_from_slice(&key.content_hash.0);
        if let Some(salt) = &key.salt {
            self.given.extend_from_slice(&salt.0);
        }
    }

    fn finish(self) -> BlockParts {
        let mut columns = Vec::new();
        for column in &self.columns {
            put(&mut columns, column.len() as u64);
        }
        columns.extend(self.columns.iter().flatten());
        BlockParts {
            columns,
            plain: [self.id_lows, self.checks, self.given].concat(),
            bodies: self.bodies,
        }
    }
}
