//! Packs a sequence of records into blocks.

use std::{io, sync::Arc};

use zstd::bulk::Compressor;

use super::{
    BODIES_BYTES_TARGET, CODEC_DICTIONARY, CODEC_NONE, CODEC_ZSTD, COLUMNS_BYTES_MAX, Dictionary,
    Header, Part, RECORDS_MAX, TEXTS_BYTES_MAX, crc_of,
    encode::{BlockEncoder, BlockParts},
};
use crate::{
    frame::{COMPRESS_BYTES_MIN, RAW_BYTES_MAX, looks_incompressible},
    port::{EncodedFrame, LogError},
    record::Record,
};

/// zstd level for sealed segments, which are written once and read often.
const ZSTD_LEVEL: i32 = 3;

/// Takes records in order and returns blocks as they fill.
pub struct Packer {
    dictionary: Option<Arc<Dictionary>>,
    /// `None`: the parts are stored uncompressed.
    compressors: Option<Compressors>,
    first_offset: u64,
    waiting: Vec<Record>,
    waiting_bodies: usize,
    waiting_texts: usize,
}

struct Compressors {
    columns: Compressor<'static>,
    bodies: Compressor<'static>,
}

impl Packer {
    /// Creates a packer for the records from an offset on.
    ///
    /// # Errors
    /// When zstd cannot allocate memory or load the dictionary.
    pub fn new(first_offset: u64, dictionary: Option<Arc<Dictionary>>) -> io::Result<Self> {
        let bodies = match &dictionary {
            Some(dictionary) => dictionary.compressor(ZSTD_LEVEL)?,
            None => Compressor::new(ZSTD_LEVEL)?,
        };
        let compressors = Compressors {
            columns: Compressor::new(ZSTD_LEVEL)?,
            bodies,
        };
        Ok(Self {
            dictionary,
            compressors: Some(compressors),
            ..Self::plain(first_offset)
        })
    }

    /// Creates a packer of uncompressed blocks, for callers that compress many of them together.
    #[must_use]
    pub fn plain(first_offset: u64) -> Self {
        Self {
            dictionary: None,
            compressors: None,
            first_offset,
            waiting: Vec::new(),
            waiting_bodies: 0,
            waiting_texts: 0,
        }
    }

    /// Adds the next record. When it does not fit into the current block, returns that block and
    /// starts a new one.
    ///
    /// # Errors
    /// [`LogError::TooLarge`] for a record that would not fit in a frame either.
    pub fn push(&mut self, record: Record) -> Result<Option<EncodedFrame>, LogError> {
        let body = record.body.here().len();
        if body > RAW_BYTES_MAX {
            return Err(LogError::TooLarge {
                what: "inline body",
                bytes: body,
                max: RAW_BYTES_MAX,
            });
        }
        let header = &record.header;
        let key = record.append_key.as_ref().map_or(0, |key| key.key.len());
        let texts = header.actor.len() + header.correlation_id.len() + key;
        let fits = self.waiting.len() < RECORDS_MAX
            && self.waiting_bodies + body <= BODIES_BYTES_TARGET
            && self.waiting_texts + texts <= TEXTS_BYTES_MAX;
        let full = if fits || self.waiting.is_empty() {
            None
        } else {
            self.finish()?
        };
        self.waiting_bodies += body;
        self.waiting_texts += texts;
        self.waiting.push(record);
        Ok(full)
    }

    /// Returns the block of the pending records, if there are any.
    ///
    /// # Errors
    /// When it cannot be compressed.
    pub fn finish(&mut self) -> Result<Option<EncodedFrame>, LogError> {
        if self.waiting.is_empty() {
            return Ok(None);
        }
        let block = self.seal(BlockEncoder::parts(self.first_offset, &self.waiting)?)?;
        self.first_offset += self.waiting.len() as u64;
        self.waiting.clear();
        self.waiting_bodies = 0;
        self.waiting_texts = 0;
        Ok(Some(block))
    }

    fn seal(&mut self, parts: BlockParts) -> Result<EncodedFrame, LogError> {
        if parts.columns.len() > COLUMNS_BYTES_MAX {
            return Err(LogError::TooLarge {
                what: "block of headers",
                bytes: parts.columns.len(),
                max: COLUMNS_BYTES_MAX,
            });
        }
        let packs = if self.dictionary.is_some() {
            CODEC_DICTIONARY
        } else {
            CODEC_ZSTD
        };
        let (for_columns, for_bodies) = match &mut self.compressors {
            Some(with) => (Some(&mut with.columns), Some(&mut with.bodies)),
            None => (None, None),
        };
        let (columns, columns_part) = pack(for_columns, CODEC_ZSTD, parts.columns)?;
        let (bodies, bodies_part) = pack(for_bodies, packs, parts.bodies)?;
        let dictionary = Some(&self.dictionary)
            .filter(|_| bodies_part.codec == CODEC_DICTIONARY)
            .and_then(Option::as_ref);
        let header = Header {
            first_offset: self.first_offset,
            count: self.waiting.len(),
            columns: columns_part,
            plain_len: parts.plain.len(),
            bodies: bodies_part,
            dictionary: dictionary.map_or(0, |dictionary| dictionary.crc()),
        };
        let mut bytes = Vec::with_capacity(super::HEADER_BYTES + columns.len() + bodies.len());
        header.write(&mut bytes);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&columns);
        bytes.extend_from_slice(&parts.plain);
        bytes.extend_from_slice(&bodies);
        let crc = crc_of(&bytes);
        bytes[super::HEADER_BYTES - 4..super::HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        Ok(EncodedFrame {
            first_offset: self.first_offset,
            count: self.waiting.len() as u32,
            bytes: bytes.into(),
            dictionary: dictionary.cloned(),
        })
    }
}

/// Compresses a part if a compressor is given and the result is smaller.
fn pack(
    compressor: Option<&mut Compressor<'static>>,
    codec: u8,
    raw: Vec<u8>,
) -> Result<(Vec<u8>, Part), LogError> {
    let raw_len = raw.len();
    let packed = match compressor {
        Some(compressor) if raw_len >= COMPRESS_BYTES_MIN && !looks_incompressible(&raw) => {
            let packed = compressor
                .compress(&raw)
                .map_err(|error| LogError::from_io("compressing a block", error))?;
            Some(packed).filter(|packed| packed.len() < raw_len)
        }
        _ => None,
    };
    let codec = if packed.is_some() { codec } else { CODEC_NONE };
    let stored = packed.unwrap_or(raw);
    let part = Part {
        codec,
        raw_len,
        stored_len: stored.len(),
    };
    Ok((stored, part))
}
