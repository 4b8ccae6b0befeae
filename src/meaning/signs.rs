//! The signs of vectors, one bit per dimension: which vectors may be near, from an eighth of the
//! bytes.
//!
//! The mean of a column's vectors is subtracted first: the vectors of some models all point to one
//! side, so that most signs are equal. Near vectors differ in few signs; of the passages with the
//! fewest different signs, the vectors themselves are compared (docs/decisions/0030-search-by-meaning.md).

use pulp::{Arch, NullaryFnOnce};

use super::{column::VectorColumn, vector::QueryVector};

/// Signs in a word.
const WORD_BITS: usize = u64::BITS as usize;
/// The distance of a document without vectors.
const NO_VECTOR: u16 = u16::MAX;

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

/// Keeps the documents whose signs differ least from those of a query: the best `count` of all
/// columns, and those with as many different signs as the last of them.
pub fn keep_nearest_by_signs(
    documents: &mut [(&VectorColumn, Vec<u32>)],
    query: &QueryVector,
    count: usize,
) {
    let distances: Vec<Vec<u16>> = documents
        .iter()
        .map(|(column, documents)| distances(column, documents, query))
        .collect();
    let mut with_distance = vec![0_usize; query.dimensions() + 1];
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
    let limit = limit.unwrap_or(query.dimensions());
    for ((_, documents), distances) in documents.iter_mut().zip(distances) {
        let mut distances = distances.into_iter().map(usize::from);
        documents.retain(|_| distances.next().is_some_and(|distance| distance <= limit));
    }
}

/// Returns the number of different signs for each document, by its nearest window.
fn distances(column: &VectorColumn, documents: &[u32], query: &QueryVector) -> Vec<u16> {
    if column.dimensions() != query.dimensions() {
        return vec![NO_VECTOR; documents.len()];
    }
    let mut query_signs = Vec::new();
    push_signs(query.values(), &column.mean(), &mut query_signs);
    let query_signs = words(&query_signs).collect::<Vec<u64>>();
    let mut distances = Vec::with_capacity(documents.len());
    Arch::new().dispatch(Distances {
        column,
        documents,
        query_signs: &query_signs,
        distances: &mut distances,
    });
    distances
}

/// The loop of [`distances`]. All of it is inlined, so that it is also compiled for processors that
/// count bits with one instruction.
struct Distances<'a> {
    column: &'a VectorColumn,
    documents: &'a [u32],
    query_signs: &'a [u64],
    distances: &'a mut Vec<u16>,
}

impl NullaryFnOnce for Distances<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let signs = self.column.signs();
        let size = size_of_val(self.query_signs);
        for document in self.documents {
            let mut nearest = NO_VECTOR;
            for row in self.column.rows_of(*document) {
                let mut different = 0;
                let words = words(&signs[row * size..(row + 1) * size]);
                for (word, of_query) in words.zip(self.query_signs) {
                    different += (word ^ of_query).count_ones();
                }
                nearest = nearest.min(different as u16);
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
            let count = exact.len() / 16;
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
