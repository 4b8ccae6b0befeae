//! The vectors of an index: they follow its segments, and nothing that was erased is found.

use std::{collections::HashMap, path::Path};

use treering_meaning::{PassageVectors, QueryVector, StoredVector, windows};

use super::{tests::result, *};
use treering_domain::Namespace;

/// Topics instead of a model, with a dimension each.
const TOPICS: [&str; 4] = ["car", "disk", "cake", "moon"];

fn vector(text: &str) -> Vec<f32> {
    let counts = TOPICS.map(|topic| text.matches(topic).count() as f32 + 0.01);
    counts.to_vec()
}

fn texts() -> Vec<SearchableEvent> {
    let of = [
        "car car car",
        "disk and car",
        "cake with a candle",
        "the moon",
        "disk disk",
        "car car car",
    ];
    (1..).zip(of).map(|(at, text)| result(at, text)).collect()
}

fn add(index: &SearchIndex, events: &[SearchableEvent]) {
    index.add(events, events.last().unwrap().position).unwrap();
    index.commit().unwrap();
}

/// Embeds what is missing, a few passages at a time. Returns how many were embedded.
fn embed(vectors: &VectorIndex, index: &SearchIndex, events: &[SearchableEvent]) -> usize {
    let mut embedded = 0;
    loop {
        let missing = vectors.missing(index, 2).unwrap();
        if missing.is_empty() {
            return embedded;
        }
        embedded += missing.len();
        let of = |passage: &MissingPassage| {
            let event = events
                .iter()
                .find(|event| event.position == passage.position);
            let text = &event.unwrap().text;
            let passage = passage_at(text, passage.key.byte_start as usize).unwrap();
            let rows = windows(passage.text).into_iter().map(|window| {
                let vector = vector(window.text(passage.text));
                (window, StoredVector::new(&vector).unwrap())
            });
            PassageVectors(rows.collect())
        };
        let made: HashMap<_, _> = missing.iter().map(|at| (at.key, of(at))).collect();
        vectors.add(index, &made).unwrap();
    }
}

fn query(text: &str) -> SearchQuery {
    SearchQuery::new(Namespace::new("default").unwrap(), text)
}

fn found(index: &SearchIndex, vectors: &VectorIndex, query: &SearchQuery) -> Vec<u64> {
    let vector = QueryVector::new(&vector(&query.text)).unwrap();
    let meaning = MeaningQuery {
        vectors,
        except: None,
        vector: &vector,
        with_words: false,
    };
    let results = index.search_by_meaning(query, meaning).unwrap();
    results.hits.iter().map(|hit| hit.position.offset).collect()
}

#[test]
fn most_similar_passages_come_first() {
    let index = SearchIndex::in_memory().unwrap();
    let (vectors, events) = (VectorIndex::in_memory(), texts());
    add(&index, &events);
    let vector_of_car = QueryVector::new(&vector("car")).unwrap();
    let meaning = MeaningQuery {
        vectors: &vectors,
        except: None,
        vector: &vector_of_car,
        with_words: false,
    };
    let none = index.search_by_meaning(&query("car"), meaning).unwrap();
    assert_eq!((none.hits.len(), none.not_embedded), (0, 6));
    // Equal texts are embedded once.
    assert_eq!(embed(&vectors, &index, &events), 5);
    let all = index.search_by_meaning(&query("car"), meaning).unwrap();
    assert_eq!(all.not_embedded, 0);
    assert_eq!(found(&index, &vectors, &query("car"))[..2], [1, 2]);
    assert_eq!(found(&index, &vectors, &query("car")).len(), 5);
    let mut one = query("disk");
    (one.limit, one.offset) = (1, 1);
    assert_eq!(found(&index, &vectors, &one), [2]);
    let mut copies = query("car");
    (copies.copies, copies.limit) = (DuplicateHandling::Each, 2);
    assert_eq!(found(&index, &vectors, &copies), [1, 6]);
    let mut filtered = query("car");
    filtered.filters.recorded_from = Some(events[2].recorded_at);
    assert_eq!(found(&index, &vectors, &filtered)[0], 6);
    let other = SearchQuery::new(Namespace::new("other").unwrap(), "car");
    assert_eq!(found(&index, &vectors, &other), [0; 0]);
    let mut far = query("car");
    (far.limit, far.offset) = (10, 1_000);
    let vector = QueryVector::new(&vector("car")).unwrap();
    let refused = index.search_by_meaning(
        &far,
        MeaningQuery {
            vectors: &vectors,
            except: None,
            vector: &vector,
            with_words: true,
        },
    );
    assert!(matches!(refused, Err(IndexSearchError::TooFar { .. })));
}

// A word that only one text has, and a meaning that only another has: both are found.
#[test]
fn both_finds_by_words_and_by_meaning() {
    let index = SearchIndex::in_memory().unwrap();
    let (vectors, events) = (VectorIndex::in_memory(), texts());
    add(&index, &events);
    embed(&vectors, &index, &events);
    let vector = QueryVector::new(&[0.01, 0.01, 0.01, 1.0]).unwrap();
    let meaning = MeaningQuery {
        vectors: &vectors,
        except: None,
        vector: &vector,
        with_words: true,
    };
    let results = index.search_by_meaning(&query("candle"), meaning).unwrap();
    let first: Vec<u64> = results.hits[..2]
        .iter()
        .map(|hit| hit.position.offset)
        .collect();
    assert_eq!(first.len(), 2);
    assert!(first.contains(&3) && first.contains(&4), "{first:?}");
    let words = |offset| {
        let hit = results
            .hits
            .iter()
            .find(|hit| hit.position.offset == offset);
        hit.unwrap().scores
    };
    assert!(words(3).words > 0.0 && words(4).words <= 0.0 && words(4).meaning > 0.0);
    // When nothing is embedded, the words alone decide.
    let empty = VectorIndex::in_memory();
    let meaning = MeaningQuery {
        vectors: &empty,
        except: None,
        ..meaning
    };
    let results = index.search_by_meaning(&query("candle"), meaning).unwrap();
    assert_eq!(results.hits.len(), 1);
}

fn files(dir: &Path) -> usize {
    let folders = std::fs::read_dir(dir).unwrap();
    let files = folders.flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap());
    files.count()
}

// An hour of a model's work must not be lost by a merge, a rebuild or a crash.
#[test]
fn vectors_outlive_merges_rebuilds_and_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let index = SearchIndex::in_memory().unwrap();
    let vectors = VectorIndex::open(dir.path(), "topics").unwrap();
    let events = texts();
    add(&index, &events[..3]);
    assert_eq!(embed(&vectors, &index, &events), 3);
    add(&index, &events[3..]);
    // One text is known from the other segment.
    assert_eq!(embed(&vectors, &index, &events), 2);
    let before = found(&index, &vectors, &query("disk"));
    assert_eq!(files(dir.path()), 2);
    index.join_before_closing().unwrap();
    assert_eq!(vectors.missing(&index, 10).unwrap(), []);
    assert_eq!(files(dir.path()), 1);
    assert_eq!(found(&index, &vectors, &query("disk")), before);
    drop(vectors);
    let vectors = VectorIndex::open(dir.path(), "topics").unwrap();
    assert_eq!(found(&index, &vectors, &query("disk")), before);
    let rebuilt = SearchIndex::in_memory().unwrap();
    add(&rebuilt, &events);
    assert_eq!(vectors.missing(&rebuilt, 10).unwrap(), []);
    assert_eq!(found(&rebuilt, &vectors, &query("disk")), before);
    let coverage = vectors.coverage(&rebuilt);
    assert_eq!((coverage.passages, coverage.embedded), (6, 6));
    assert_eq!(coverage.vectors, 5);
}

#[test]
fn another_model_begins_anew_and_removes_the_old_one() {
    let dir = tempfile::tempdir().unwrap();
    let index = SearchIndex::in_memory().unwrap();
    let events = texts();
    add(&index, &events);
    let old = VectorIndex::open(dir.path(), "old").unwrap();
    embed(&old, &index, &events);
    let new = VectorIndex::open(dir.path(), "new").unwrap();
    assert_eq!(new.missing(&index, 10).unwrap().len(), 5);
    embed(&new, &index, &events);
    new.remove_other_models(None).unwrap();
    assert_eq!(files(dir.path()), 1);
    assert_eq!(found(&index, &new, &query("moon"))[0], 4);
}

#[test]
fn damaged_files_are_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let index = SearchIndex::in_memory().unwrap();
    let events = texts();
    add(&index, &events);
    let vectors = VectorIndex::open(dir.path(), "topics").unwrap();
    embed(&vectors, &index, &events);
    drop(vectors);
    let folder = std::fs::read_dir(dir.path())
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let file = std::fs::read_dir(folder.path())
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let mut bytes = std::fs::read(file.path()).unwrap();
    bytes[40] ^= 1;
    std::fs::write(file.path(), bytes).unwrap();
    std::fs::write(folder.path().join("0.unfinished"), "x").unwrap();
    let vectors = VectorIndex::open(dir.path(), "topics").unwrap();
    assert_eq!(files(dir.path()), 0);
    assert_eq!(embed(&vectors, &index, &events), 5);
}

// The vectors of an erased event must not stay on the disk.
#[test]
fn erased_passages_lose_their_vectors() {
    let dir = tempfile::tempdir().unwrap();
    let index = SearchIndex::in_memory().unwrap();
    let events = texts();
    add(&index, &events);
    let vectors = VectorIndex::open(dir.path(), "topics").unwrap();
    embed(&vectors, &index, &events);
    index.erase(&[4].into(), &[]).unwrap();
    assert!(!found(&index, &vectors, &query("moon")).contains(&4));
    index.purge().unwrap();
    vectors.missing(&index, 10).unwrap();
    assert_eq!(vectors.coverage(&index).vectors, 4);
    let moon = StoredVector::new(&vector("the moon")).unwrap();
    let mut builder = treering_meaning::VectorColumnBuilder::default();
    let window = windows("the moon")[0];
    let key = treering_meaning::PassageKey {
        text_hash: 0,
        byte_start: 0,
    };
    builder
        .add(key, &PassageVectors(vec![(window, moon)]))
        .unwrap();
    let bytes = builder.finish();
    let codes = &bytes[bytes.len() - 8..bytes.len() - 4];
    let folder = std::fs::read_dir(dir.path())
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let stored = std::fs::read(file.unwrap().path()).unwrap();
        let stored = &stored[stored.len() - 4 - 4 * codes.len()..stored.len() - 4];
        assert!(stored.chunks(codes.len()).all(|other| other != codes));
    }
}
