//! Search by meaning on real data with a real model: scifact with its judgements. Runs when
//! `TREERING_TEST_DATA` names the data folder and `TREERING_TEST_MODEL` an embedder's folder;
//! `TREERING_TEST_VECTORS` may name a folder that keeps the vectors from run to run.

use std::{collections::HashMap, path::PathBuf, time::Instant};

use treering_embedders::LocalModel;
use treering_meaning::{Embedder, PassageVectors, QueryVector, StoredVector, TextRole, windows};

use super::{
    quality_tests::{Judged, data, scifact},
    *,
};
use treering_domain::{Namespace, Position};

pub(super) fn model() -> Option<LocalModel> {
    let dir = std::env::var_os("TREERING_TEST_MODEL").map(PathBuf::from);
    if dir.is_none() {
        println!("skipped: TREERING_TEST_MODEL names no embedder's folder");
    }
    dir.map(|dir| LocalModel::open(&dir).unwrap())
}

/// Embeds all passages of an index.
pub(super) fn embedded(
    index: &SearchIndex,
    texts: &HashMap<Position, String>,
    model: &LocalModel,
    name: &str,
) -> VectorIndex {
    let kept = std::env::var_os("TREERING_TEST_VECTORS").map(PathBuf::from);
    let vectors = match kept {
        Some(dir) => VectorIndex::open(&dir.join(name), model.model()).unwrap(),
        None => VectorIndex::in_memory(),
    };
    let (started, mut count) = (Instant::now(), 0);
    loop {
        let missing = vectors.missing(index, 256).unwrap();
        if missing.is_empty() {
            break;
        }
        let mut made = HashMap::new();
        for passage in &missing {
            let text = &texts[&passage.position];
            let passage_text = passage_at(text, passage.key.byte_start as usize)
                .unwrap()
                .text;
            let cut = windows(passage_text);
            let windows: Vec<&str> = cut.iter().map(|window| window.text(passage_text)).collect();
            count += windows.len();
            let rows = model.embed(&windows, TextRole::Passage).unwrap();
            let rows = cut.into_iter().zip(rows);
            let rows = rows.map(|(cut, row)| (cut, StoredVector::new(&row).unwrap()));
            made.insert(passage.key, PassageVectors(rows.collect()));
        }
        vectors.add(index, &made).unwrap();
        if count % 2_048 < 512 {
            println!("{name}: {count} windows in {:?}", started.elapsed());
        }
    }
    vectors
}

/// Returns the log offsets of the best events.
pub(super) fn found(
    index: &SearchIndex,
    vectors: &VectorIndex,
    model: &LocalModel,
    text: &str,
    with_words: bool,
) -> Vec<u64> {
    let vector = &model.embed(&[text], TextRole::Query).unwrap()[0];
    let vector = QueryVector::new(vector).unwrap();
    let query = SearchQuery {
        reading: QuerySyntax::Plain,
        ..SearchQuery::new(Namespace::default(), text)
    };
    let meaning = MeaningQuery {
        vectors,
        vector: &vector,
        with_words,
    };
    let results = index.search_by_meaning(&query, meaning).unwrap();
    results.hits.iter().map(|hit| hit.position.offset).collect()
}

// Both lists together must find more than words alone, else nobody should wait for a model.
#[test]
fn scifact_is_found_better_by_both_than_by_words() {
    let (Some(data), Some(model)) = (data(), model()) else {
        return;
    };
    let Judged {
        index,
        texts,
        queries,
    } = scifact(&data);
    let vectors = embedded(&index, &texts, &model, "scifact");
    let mean = |find: &dyn Fn(&str) -> Vec<u64>| {
        let of = queries
            .iter()
            .map(|query| query.ndcg_10(&find(&query.text)));
        of.sum::<f64>() / queries.len() as f64
    };
    let words = mean(&|text| super::quality_tests::ranked(&index, text, 10));
    let meaning = mean(&|text| found(&index, &vectors, &model, text, false));
    let both = mean(&|text| found(&index, &vectors, &model, text, true));
    println!("scifact nDCG@10: words {words:.4}, meaning {meaning:.4}, both {both:.4}");
    assert!(both > words + 0.02, "{both} {words}");
}
