//! The signs of vectors, one bit per dimension: which vectors may be near, from an eighth of the
//! bytes.
//!
//! The mean of a column's vectors is subtracted first: the vectors of some models all point to one
//! side, so that most signs are equal. A passage whose signs agree with the large dimensions of the
//! query is likely to be near; of the passages with the best agreement, the vectors themselves are
//! compared (docs/decisions/0030-search-by-meaning.md). The query has a few bits per dimension, as in
//! RaBitQ (J. Gao, C. Long, arXiv 2405.12497): with its signs alone, four times as many passages must
//! be compared to have as many of the nearest ones among them.

use pulp::{Arch, NullaryFnOnce};

use super::{column::VectorColumn, vector::QueryVector};

/// Signs in a word.
const WORD_BITS: usize = u64::BITS as usize;
/// Bits of a dimension of the query.
const QUERY_BITS: usize = 3;
/// The largest step of a dimension of the query; half of it stands for the mean.
const STEP_MAX: u16 = (1 << QUERY_BITS) - 1;
/// The distance of a document without vectors. Other distances are smaller: at most `STEP_MAX` for
/// each dimension.
const NO_VECTOR: u16 = u16::MAX;
/// All documents of a column with at most so many vectors are kept: of few vectors, the mean is too
/// close to each of them. New texts are in small segments.
const SMALL_COLUMN: usize = 1_024;

/// Returns the number of bytes of the signs of a vector.
pub(crate) fn sign_bytes(dimensions: usize) -> usize {
    dimensions.div_ceil(WORD_BITS) * size_of::<u64>()
}

/// Appends the signs of a vector, relative to the mean.
pub(crate) fn push_signs(vector: impl IntoIterator<Item = f32>, mean: &[f32], bytes: &mut Vec<u8>) {
    let mut vector = vector.into_iter();
    for mean in mean.chunks(WORD_BITS) {
        let mut word = 0_u64;
        for (bit, (mean, value)) in mean.iter().zip(vector.by_ref()).enumerate() {
            word |= u64::from(value > *mean) << bit;
        }
        bytes.extend(word.to_le_bytes());
    }
}

/// Keeps the documents whose signs agree best with a query: the best `count` of all columns, those as
/// near as the last of them, and all of small columns.
pub fn keep_nearest_by_signs(
    documents: &mut [(&VectorColumn, Vec<u32>)],
    query: &QueryVector,
    count: usize,
) {
    let mut large: Vec<_> = documents
        .iter_mut()
        .filter(|(column, _)| column.vector_count() > SMALL_COLUMN)
        .collect();
    let distances: Vec<Vec<u16>> = large
        .iter()
        .map(|(column, documents)| distances(column, documents, query))
        .collect();
    let farthest = usize::from(STEP_MAX) * query.dimensions();
    let mut with_distance = vec![0_usize; farthest + 1];
    for distance in distances.iter().flatten() {
        if let Some(known) = with_distance.get_mut(usize::from(*distance)) {
            *known += 1;
        }
    }
    let mut nearer = 0;
    let limit = with_distance.iter().position(|at_distance| {
        nearer += at_distance;
        nearer >= count
    });
    let limit = limit.unwrap_or(farthest);
    for ((_, documents), distances) in large.iter_mut().zip(distances) {
        let mut distances = distances.into_iter().map(usize::from);
        documents.retain(|_| distances.next().is_some_and(|distance| distance <= limit));
    }
}

/// Returns the distance of each document, by its nearest window.
fn distances(column: &VectorColumn, documents: &[u32], query: &QueryVector) -> Vec<u16> {
    if column.dimensions() != query.dimensions() {
        return vec![NO_VECTOR; documents.len()];
    }
    let query = planes(query, &column.mean());
    let mut distances = Vec::with_capacity(documents.len());
    Arch::new().dispatch(Distances {
        column,
        documents,
        query: &query,
        distances: &mut distances,
    });
    distances
}

/// Returns the steps of a query relative to the mean: for each word of signs, the lowest bits of its
/// dimensions' steps, then the next ones.
fn planes(query: &QueryVector, mean: &[f32]) -> Vec<[u64; QUERY_BITS]> {
    let differences: Vec<f32> = query.values().zip(mean).map(|(x, mean)| x - mean).collect();
    let largest = differences
        .iter()
        .fold(f32::MIN_POSITIVE, |largest, x| largest.max(x.abs()));
    let step = |x: f32| ((x / largest + 1.0) / 2.0 * f32::from(STEP_MAX)).round() as u64;
    let planes_of = |differences: &[f32]| {
        let mut planes = [0; QUERY_BITS];
        for (at, x) in differences.iter().enumerate() {
            for (bit, plane) in planes.iter_mut().enumerate() {
                *plane |= (step(*x) >> bit & 1) << at;
            }
        }
        planes
    };
    differences.chunks(WORD_BITS).map(planes_of).collect()
}

/// The loop of [`distances`]: a vector is as far from the query as the steps of all dimensions are
/// from the ends of their scales that the signs name, 0 or `STEP_MAX`.
///
/// All of it is inlined, so that it is also compiled for processors that
/// count bits with one instruction.
struct Distances<'a> {
    column: &'a VectorColumn,
    documents: &'a [u32],
    query: &'a [[u64; QUERY_BITS]],
    distances: &'a mut Vec<u16>,
}

impl NullaryFnOnce for Distances<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let signs = self.column.signs();
        let size = self.query.len() * size_of::<u64>();
        let weighed = |words: [u64; QUERY_BITS]| {
            let bits = words.into_iter().enumerate();
            bits.map(|(bit, word)| word.count_ones() << bit)
                .sum::<u32>()
        };
        let of_no_signs: u32 = self.query.iter().map(|planes| weighed(*planes)).sum();
        for document in self.documents {
            let mut nearest = NO_VECTOR;
            for row in self.column.rows_of(*document) {
                // A sign changes its dimension's part from the step to `STEP_MAX` - step.
                let (mut signs_set, mut steps) = (0, 0);
                let words = words(&signs[row * size..(row + 1) * size]);
                for (word, planes) in words.zip(self.query) {
                    signs_set += word.count_ones();
                    steps += weighed(planes.map(|plane| word & plane));
                }
                let distance = of_no_signs + u32::from(STEP_MAX) * signs_set - 2 * steps;
                nearest = nearest.min(distance as u16);
            }
            self.distances.push(nearest);
        }
    }
}

#[inline(always)]
fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let words = bytes.chunks_exact(size_of::<u64>());
    words.map(|word| word.try_into().map_or(0, u64::from_le_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PassageKey, PassageVectors, StoredVector, TextWindow, VectorColumnBuilder};

    const DIMENSIONS: usize = 100;
    const DOCUMENTS: u32 = 4_000;

    /// Vectors around some topics, all of which point to one side.
    fn vector(random: &mut fastrand::Rng, topics: u64) -> Vec<f32> {
        let mut topic = fastrand::Rng::with_seed(random.u64(..topics));
        let mut part = || 0.7 + (topic.f32() - 0.5) + (random.f32() - 0.5);
        (0..DIMENSIONS).map(|_| part()).collect()
    }

    fn column(seed: u64) -> VectorColumn {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut builder = VectorColumnBuilder::default();
        for document in 0..DOCUMENTS {
            let key = PassageKey {
                text_hash: u64::from(document),
                byte_start: 0,
            };
            let window = TextWindow { start: 0, len: 1 };
            let stored = StoredVector::new(&vector(&mut random, 50)).unwrap();
            builder
                .add(key, &PassageVectors(vec![(window, stored)]))
                .unwrap();
        }
        builder.skip();
        VectorColumn::open(builder.finish().into()).unwrap()
    }

    #[test]
    fn each_dimension_has_its_bit() {
        let mean: Vec<f32> = (0..DIMENSIONS).map(|at| at as f32).collect();
        let above = |at: usize| at.is_multiple_of(3) || at == DIMENSIONS - 1;
        let vector = mean.iter().enumerate();
        let vector = vector.map(|(at, mean)| mean + if above(at) { 0.5 } else { -0.5 });
        let mut bytes = Vec::new();
        push_signs(vector, &mean, &mut bytes);
        assert_eq!(bytes.len(), sign_bytes(DIMENSIONS));
        let words: Vec<u64> = words(&bytes).collect();
        for at in 0..2 * WORD_BITS {
            let is_set = words[at / WORD_BITS] >> (at % WORD_BITS) & 1 == 1;
            assert_eq!(is_set, at < DIMENSIONS && above(at), "dimension {at}");
        }
    }

    // In a large store, only the documents with the nearest signs are compared. Almost all of the
    // nearest must be among them, also for a model whose vectors all point to one side.
    #[test]
    fn nearest_documents_have_near_signs() {
        let columns = [column(1), column(2)];
        let all = || -> Vec<(&VectorColumn, Vec<u32>)> {
            let documents = (0..=DOCUMENTS).collect::<Vec<u32>>();
            columns
                .iter()
                .map(|column| (column, documents.clone()))
                .collect()
        };
        let mut random = fastrand::Rng::with_seed(3);
        let (mut among, mut queries) = (0, 0);
        while queries < 50 {
            queries += 1;
            let query = QueryVector::new(&vector(&mut random, 50)).unwrap();
            let mut exact = Vec::new();
            for (at, (column, documents)) in all().iter().enumerate() {
                let mut found = Vec::new();
                column.similarities(documents, &query, &mut found);
                exact.extend(
                    found
                        .into_iter()
                        .map(|(similarity, doc)| (similarity, at, doc)),
                );
            }
            assert_eq!(exact.len(), 2 * DOCUMENTS as usize);
            exact.sort_by(|a, b| b.0.total_cmp(&a.0));
            let mut kept = all();
            let count = exact.len() / 32;
            keep_nearest_by_signs(&mut kept, &query, count);
            let size: usize = kept.iter().map(|(_, documents)| documents.len()).sum();
            assert!((count..2 * count).contains(&size), "{size}");
            let nearest = exact[..10].iter();
            among += nearest
                .filter(|(_, at, document)| kept[*at].1.contains(document))
                .count();
        }
        assert!(among >= queries * 10 * 98 / 100, "{among}");
    }

    // A text that was just recorded is alone in its segment, and so it is the mean of it.
    #[test]
    fn documents_of_small_columns_are_kept() {
        let large = column(1);
        let mut builder = VectorColumnBuilder::default();
        let mut random = fastrand::Rng::with_seed(9);
        let new = vector(&mut random, 50);
        let window = TextWindow { start: 0, len: 1 };
        let vectors = PassageVectors(vec![(window, StoredVector::new(&new).unwrap())]);
        let key = PassageKey {
            text_hash: 1,
            byte_start: 0,
        };
        builder.add(key, &vectors).unwrap();
        let small = VectorColumn::open(builder.finish().into()).unwrap();
        let mut documents = [(&large, (0..DOCUMENTS).collect()), (&small, vec![0])];
        keep_nearest_by_signs(&mut documents, &QueryVector::new(&new).unwrap(), 10);
        assert_eq!(documents[1].1, [0]);
        assert!((10..40).contains(&documents[0].1.len()));
    }

    // Fewer documents than wanted are all kept, but for those without vectors.
    #[test]
    fn few_documents_are_all_kept() {
        let column = column(1);
        let query = QueryVector::new(&[1.0; DIMENSIONS]).unwrap();
        let mut some = [(&column, vec![3, 5, DOCUMENTS, DOCUMENTS + 9])];
        keep_nearest_by_signs(&mut some, &query, 1_000);
        assert_eq!(some[0].1, [3, 5]);
        let other = QueryVector::new(&[1.0; DIMENSIONS + 1]).unwrap();
        keep_nearest_by_signs(&mut some, &other, 1_000);
        assert_eq!(some[0].1, [0_u32; 0]);
    }
}
