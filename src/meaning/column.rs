//! The vectors of one segment of the index, as a file that never changes.
//!
//! All numbers are little-endian.
//!
//! | part | size |
//! |---|---|
//! | magic `TRVC`, format, dimensions, documents, passages, vectors | 6 × 4 bytes |
//! | passage of each document, `NO_PASSAGE` if it is not embedded | 4 bytes a document |
//! | passages in order of their first document: text hash, first byte, first vector | 16 bytes a passage |
//! | passages in order of their keys | 4 bytes a passage |
//! | vectors in order of their passages: factor, start and length of the window | 8 bytes a vector |
//! | the mean of the vectors | 4 bytes a dimension |
//! | the signs of each vector minus the mean, in whole words of 64 | 1 bit a dimension |
//! | the dimensions of each vector | 1 byte a dimension |
//! | CRC-32C of everything before | 4 bytes |

use std::collections::HashMap;

use bytes::Bytes;

use pulp::{Arch, NullaryFnOnce};

use super::{
    signs::{push_signs, sign_bytes},
    vector::{DIMENSIONS_MAX, QueryVector, StoredVector, values},
    windows::TextWindow,
};

/// The version of the file format.
pub const VECTOR_FORMAT: u32 = 2;
const MAGIC: u32 = u32::from_le_bytes(*b"TRVC");
const HEADER_BYTES: usize = 24;
const PASSAGE_BYTES: usize = 16;
const ROW_BYTES: usize = 8;
const MEAN_BYTES: usize = size_of::<f32>();
const NO_PASSAGE: u32 = u32::MAX;

/// Identifies a passage by its text. Equal passages of equal texts have equal keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PassageKey {
    /// The hash of the event's kind and text.
    pub text_hash: u64,
    /// The offset of the passage's first byte in that text.
    pub byte_start: u32,
}

/// The vectors of a passage: one for each of its windows. A blank passage has no vectors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PassageVectors(pub Vec<(TextWindow, StoredVector)>);

/// Why bytes are not a valid column.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ColumnError {
    /// Another format.
    #[error("the vectors have format {0}; this program uses {VECTOR_FORMAT}")]
    Format(u32),
    /// Something is missing or changed.
    #[error("the vectors are damaged")]
    Damaged,
    /// Vectors of one column have different lengths.
    #[error("a vector has {found} dimensions, and others of the model have {expected}")]
    Dimensions {
        /// Those of the column.
        expected: usize,
        /// Those of the vector.
        found: usize,
    },
}

/// Collects the vectors of a segment's documents, in their order.
#[derive(Debug, Default)]
pub struct VectorColumnBuilder {
    dimensions: usize,
    documents: Vec<u32>,
    known: HashMap<PassageKey, u32>,
    passages: Vec<(PassageKey, u32)>,
    rows: Vec<u8>,
    codes: Vec<u8>,
}

impl VectorColumnBuilder {
    /// Adds a document without vectors.
    pub fn skip(&mut self) {
        self.documents.push(NO_PASSAGE);
    }

    /// Adds a document if the vectors of its passage were added before. Returns whether they were.
    pub fn add_known(&mut self, key: PassageKey) -> bool {
        let known = self.known.get(&key);
        self.documents.extend(known);
        known.is_some()
    }

    /// Adds a document with the vectors of its passage.
    ///
    /// # Errors
    /// [`ColumnError::Dimensions`]; the builder is then useless.
    pub fn add(&mut self, key: PassageKey, vectors: &PassageVectors) -> Result<(), ColumnError> {
        self.begin(key);
        for (window, vector) in &vectors.0 {
            self.push(*window, vector.scale, &vector.codes)?;
        }
        Ok(())
    }

    /// Adds a document with the vectors of its passage in another column. Returns false if that
    /// column has none.
    ///
    /// # Errors
    /// [`ColumnError`]; the builder is then useless.
    pub fn add_from(
        &mut self,
        column: &VectorColumn,
        key: PassageKey,
    ) -> Result<bool, ColumnError> {
        let Some(passage) = column.find(key) else {
            return Ok(false);
        };
        self.begin(key);
        for row in column.rows(passage) {
            self.push(column.window(row), column.scale(row), column.codes(row))?;
        }
        Ok(true)
    }

    fn begin(&mut self, key: PassageKey) {
        let next = number(self.passages.len());
        self.documents.push(next);
        self.known.insert(key, next);
        self.passages.push((key, self.row_count()));
    }

    fn row_count(&self) -> u32 {
        number(self.rows.len() / ROW_BYTES)
    }

    fn push(&mut self, window: TextWindow, scale: f32, codes: &[u8]) -> Result<(), ColumnError> {
        let (expected, found) = (self.dimensions, codes.len());
        if expected != 0 && expected != found {
            return Err(ColumnError::Dimensions { expected, found });
        }
        self.dimensions = found;
        self.rows.extend(scale.to_le_bytes());
        self.rows.extend(window.start.to_le_bytes());
        self.rows.extend(window.len.to_le_bytes());
        self.codes.extend_from_slice(codes);
        Ok(())
    }

    /// Returns the column's bytes. Equal documents with equal vectors give equal bytes.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        let rows = self.row_count();
        let sizes = [
            MAGIC,
            VECTOR_FORMAT,
            number(self.dimensions),
            number(self.documents.len()),
            number(self.passages.len()),
            rows,
        ];
        let mut bytes = Vec::with_capacity(
            HEADER_BYTES
                + self.documents.len() * 4
                + self.passages.len() * (PASSAGE_BYTES + 4)
                + self.rows.len()
                + self.dimensions * MEAN_BYTES
                + rows as usize * sign_bytes(self.dimensions)
                + self.codes.len()
                + 4,
        );
        bytes.extend(sizes.into_iter().flat_map(u32::to_le_bytes));
        bytes.extend(
            self.documents
                .iter()
                .flat_map(|passage| passage.to_le_bytes()),
        );
        for (key, first) in &self.passages {
            bytes.extend(key.text_hash.to_le_bytes());
            bytes.extend(key.byte_start.to_le_bytes());
            bytes.extend(first.to_le_bytes());
        }
        let mut by_key: Vec<u32> = (0..number(self.passages.len())).collect();
        by_key.sort_unstable_by_key(|passage| self.passages[*passage as usize].0);
        bytes.extend(by_key.into_iter().flat_map(u32::to_le_bytes));
        let mean = self.mean();
        bytes.extend(&self.rows);
        bytes.extend(mean.iter().flat_map(|value| value.to_le_bytes()));
        for vector in self.vectors() {
            push_signs(vector, &mean, &mut bytes);
        }
        bytes.extend(self.codes);
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend(checksum.to_le_bytes());
        bytes
    }
}

impl VectorColumnBuilder {
    fn vectors(&self) -> impl Iterator<Item = impl Iterator<Item = f32>> {
        let scales = self.rows.chunks_exact(ROW_BYTES).map(|row| word(row, 0));
        let codes = self.codes.chunks_exact(self.dimensions.max(1));
        scales
            .zip(codes)
            .map(|(scale, codes)| values(f32::from_bits(scale), codes))
    }

    fn mean(&self) -> Vec<f32> {
        let mut sums = vec![0.0_f64; self.dimensions];
        for vector in self.vectors() {
            for (sum, value) in sums.iter_mut().zip(vector) {
                *sum += f64::from(value);
            }
        }
        let count = f64::from(self.row_count().max(1));
        sums.into_iter().map(|sum| (sum / count) as f32).collect()
    }
}

/// Counts in a segment fit in 32 bits: the number of documents does, and a passage has few windows.
fn number(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

/// The vectors of a segment's documents.
#[derive(Clone, Debug)]
pub struct VectorColumn {
    bytes: Bytes,
    dimensions: usize,
    documents: usize,
    passages: usize,
    rows: usize,
}

impl VectorColumn {
    /// Reads a column, and verifies all of it.
    ///
    /// # Errors
    /// [`ColumnError::Format`], [`ColumnError::Damaged`].
    pub fn open(bytes: Bytes) -> Result<Self, ColumnError> {
        let header: Vec<u32> = bytes
            .get(..HEADER_BYTES)
            .ok_or(ColumnError::Damaged)?
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes(word.try_into().unwrap_or_default()))
            .collect();
        let [MAGIC, format, dimensions, documents, passages, rows] = header[..] else {
            return Err(ColumnError::Damaged);
        };
        if format != VECTOR_FORMAT {
            return Err(ColumnError::Format(format));
        }
        let column = Self {
            dimensions: dimensions as usize,
            documents: documents as usize,
            passages: passages as usize,
            rows: rows as usize,
            bytes,
        };
        match column.is_sound() {
            true => Ok(column),
            false => Err(ColumnError::Damaged),
        }
    }

    fn is_sound(&self) -> bool {
        if self.dimensions > DIMENSIONS_MAX {
            return false;
        }
        let end = self.codes_start() + self.rows * self.dimensions;
        if end + 4 != self.bytes.len() {
            return false;
        }
        let (body, checksum) = self.bytes.split_at(self.bytes.len() - 4);
        if crc32c::crc32c(body).to_le_bytes() != checksum {
            return false;
        }
        let rows = (0..self.passages).map(|passage| self.first_row(passage));
        let documents = (0..self.documents).map(|at| self.word(HEADER_BYTES + at * 4));
        let is_passage = |passage: u32| (passage as usize) < self.passages;
        rows.is_sorted()
            && self.first_row(self.passages) == self.rows
            && documents
                .into_iter()
                .all(|at| at == NO_PASSAGE || is_passage(at))
            && (0..self.passages).all(|at| is_passage(self.word(self.by_key_start() + at * 4)))
    }

    /// Returns the number of dimensions; 0 for a column without vectors.
    #[must_use]
    pub fn dimensions(&self) -> usize {
        self.dimensions
    }

    /// Returns the number of vectors.
    #[must_use]
    pub fn vector_count(&self) -> usize {
        self.rows
    }

    /// Returns the size of the file, in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether the passage of this document was embedded.
    #[must_use]
    pub fn has(&self, document: u32) -> bool {
        self.passage_of(document).is_some()
    }

    /// Returns the similarity of a document's most similar window, and that window. `None` if the
    /// document has no vectors, or if the query has another number of dimensions.
    #[must_use]
    pub fn similarity(&self, document: u32, query: &QueryVector) -> Option<(f32, TextWindow)> {
        if query.dimensions() != self.dimensions {
            return None;
        }
        let mut best: Option<(f32, usize)> = None;
        for row in self.rows_of(document) {
            let similarity = query.similarity(self.scale(row), self.codes(row));
            if best.is_none_or(|(known, _)| similarity > known) {
                best = Some((similarity, row));
            }
        }
        best.map(|(similarity, row)| (similarity, self.window(row)))
    }

    /// Appends the similarity of each document's most similar window. Leaves out documents without
    /// vectors; all, if the query has another number of dimensions.
    pub fn similarities(
        &self,
        documents: &[u32],
        query: &QueryVector,
        found: &mut Vec<(f32, u32)>,
    ) {
        if query.dimensions() != self.dimensions {
            return;
        }
        Arch::new().dispatch(Similarities {
            column: self,
            documents,
            query,
            found,
        });
    }

    /// Returns the rows of a document's vectors.
    #[inline(always)]
    pub(crate) fn rows_of(&self, document: u32) -> std::ops::Range<usize> {
        let passage = self.passage_of(document);
        passage.map_or(0..0, |passage| self.rows(passage))
    }

    /// Returns the mean of the vectors.
    pub(crate) fn mean(&self) -> Vec<f32> {
        let start = self.mean_start();
        let words = (0..self.dimensions).map(|at| self.word(start + at * MEAN_BYTES));
        words.map(f32::from_bits).collect()
    }

    /// Returns the signs of all vectors, relative to the mean.
    pub(crate) fn signs(&self) -> &[u8] {
        &self.bytes[self.signs_start()..self.codes_start()]
    }

    #[inline(always)]
    fn passage_of(&self, document: u32) -> Option<usize> {
        let document = document as usize;
        if document >= self.documents {
            return None;
        }
        let passage = self.word(HEADER_BYTES + document * 4);
        (passage != NO_PASSAGE).then_some(passage as usize)
    }

    fn find(&self, key: PassageKey) -> Option<usize> {
        let (mut low, mut high) = (0, self.passages);
        while low < high {
            let middle = low.midpoint(high);
            let passage = self.word(self.by_key_start() + middle * 4) as usize;
            match self.key(passage).cmp(&key) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Some(passage),
            }
        }
        None
    }

    #[inline(always)]
    fn rows(&self, passage: usize) -> std::ops::Range<usize> {
        self.first_row(passage)..self.first_row(passage + 1)
    }

    fn key(&self, passage: usize) -> PassageKey {
        let at = self.passages_start() + passage * PASSAGE_BYTES;
        PassageKey {
            text_hash: u64::from(self.word(at)) | u64::from(self.word(at + 4)) << 32,
            byte_start: self.word(at + 8),
        }
    }

    #[inline(always)]
    fn first_row(&self, passage: usize) -> usize {
        if passage >= self.passages {
            return self.rows;
        }
        self.word(self.passages_start() + passage * PASSAGE_BYTES + 12) as usize
    }

    fn window(&self, row: usize) -> TextWindow {
        let word = self.word(self.rows_start() + row * ROW_BYTES + 4);
        TextWindow {
            start: (word & 0xFFFF) as u16,
            len: (word >> 16) as u16,
        }
    }

    #[inline(always)]
    fn scale(&self, row: usize) -> f32 {
        f32::from_bits(self.word(self.rows_start() + row * ROW_BYTES))
    }

    #[inline(always)]
    fn codes(&self, row: usize) -> &[u8] {
        let start = self.codes_start() + row * self.dimensions;
        &self.bytes[start..start + self.dimensions]
    }

    #[inline(always)]
    fn passages_start(&self) -> usize {
        HEADER_BYTES + self.documents * 4
    }

    #[inline(always)]
    fn by_key_start(&self) -> usize {
        self.passages_start() + self.passages * PASSAGE_BYTES
    }

    #[inline(always)]
    fn rows_start(&self) -> usize {
        self.by_key_start() + self.passages * 4
    }

    #[inline(always)]
    fn mean_start(&self) -> usize {
        self.rows_start() + self.rows * ROW_BYTES
    }

    #[inline(always)]
    fn signs_start(&self) -> usize {
        self.mean_start() + self.dimensions * MEAN_BYTES
    }

    #[inline(always)]
    fn codes_start(&self) -> usize {
        self.signs_start() + self.rows * sign_bytes(self.dimensions)
    }

    #[inline(always)]
    fn word(&self, at: usize) -> u32 {
        word(&self.bytes, at)
    }
}

/// The loop of [`VectorColumn::similarities`]. All of it is inlined, so that it is also compiled for
/// processors with wider vectors than the oldest that are supported.
struct Similarities<'a> {
    column: &'a VectorColumn,
    documents: &'a [u32],
    query: &'a QueryVector,
    found: &'a mut Vec<(f32, u32)>,
}

impl NullaryFnOnce for Similarities<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for document in self.documents {
            let mut best: Option<f32> = None;
            for row in self.column.rows_of(*document) {
                let (scale, codes) = (self.column.scale(row), self.column.codes(row));
                let similarity = self.query.similarity(scale, codes);
                best = Some(best.map_or(similarity, |best| best.max(similarity)));
            }
            if let Some(best) = best {
                self.found.push((best, *document));
            }
        }
    }
}

/// Reads a word; 0 after the end.
#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    word.map_or(0, u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text_hash: u64) -> PassageKey {
        PassageKey {
            text_hash,
            byte_start: 0,
        }
    }

    fn vectors(of: &[&[f32]]) -> PassageVectors {
        let window = |at: usize| TextWindow {
            start: at as u16 * 10,
            len: 10,
        };
        let rows = of.iter().enumerate();
        PassageVectors(
            rows.map(|(at, vector)| (window(at), StoredVector::new(vector).unwrap()))
                .collect(),
        )
    }

    fn sample() -> VectorColumn {
        let mut builder = VectorColumnBuilder::default();
        builder
            .add(key(9), &vectors(&[&[1.0, 0.0], &[0.0, 1.0]]))
            .unwrap();
        builder.skip();
        builder
            .add(key(u64::MAX), &vectors(&[&[-1.0, 0.0]]))
            .unwrap();
        assert!(builder.add_known(key(9)) && !builder.add_known(key(4)));
        builder.add(key(4), &PassageVectors::default()).unwrap();
        VectorColumn::open(builder.finish().into()).unwrap()
    }

    #[test]
    fn documents_are_as_similar_as_their_best_window() {
        let column = sample();
        let query = QueryVector::new(&[0.0, 2.0]).unwrap();
        let found: Vec<_> = (0..6).map(|doc| column.similarity(doc, &query)).collect();
        let second = TextWindow { start: 10, len: 10 };
        for doc in [0, 3] {
            let (similarity, window) = found[doc].unwrap();
            assert!((similarity - 1.0).abs() < 1e-3 && window == second);
        }
        assert!(found[2].unwrap().0.abs() < 1e-3);
        assert_eq!((found[1], found[4], found[5]), (None, None, None));
        // A blank passage counts as embedded, though it has no vectors.
        assert_eq!(
            (column.has(1), column.has(4), column.has(5)),
            (false, true, false)
        );
        assert_eq!(column.vector_count(), 3);
        let other = QueryVector::new(&[1.0, 0.0, 0.0]).unwrap();
        assert_eq!(column.similarity(0, &other), None);
    }

    // After a merge of segments, or a rebuild, no passage is embedded again.
    #[test]
    fn vectors_are_copied_from_another_column() {
        let column = sample();
        let mut builder = VectorColumnBuilder::default();
        assert!(builder.add_from(&column, key(u64::MAX)).unwrap());
        assert!(builder.add_from(&column, key(9)).unwrap());
        assert!(builder.add_from(&column, key(4)).unwrap());
        assert!(!builder.add_from(&column, key(5)).unwrap());
        let copied = VectorColumn::open(builder.finish().into()).unwrap();
        let query = QueryVector::new(&[0.3, 0.7]).unwrap();
        for (from, to) in [(2, 0), (0, 1), (4, 2)] {
            assert_eq!(
                column.similarity(from, &query),
                copied.similarity(to, &query)
            );
        }
    }

    #[test]
    fn vectors_of_other_dimensions_are_refused() {
        let mut builder = VectorColumnBuilder::default();
        builder.add(key(1), &vectors(&[&[1.0, 0.0]])).unwrap();
        let other = builder.add(key(2), &vectors(&[&[1.0, 0.0, 0.0]]));
        let (expected, found) = (2, 3);
        assert_eq!(other, Err(ColumnError::Dimensions { expected, found }));
    }

    // A search would return wrong passages from a damaged file.
    #[test]
    fn damaged_bytes_are_refused() {
        let whole = sample().bytes.to_vec();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x40;
            assert!(VectorColumn::open(changed.into()).is_err(), "byte {at}");
            assert!(VectorColumn::open(whole[..at].to_vec().into()).is_err());
        }
        assert!(VectorColumn::open(whole.into()).is_ok());
    }
}
