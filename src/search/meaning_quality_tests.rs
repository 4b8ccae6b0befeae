//! Search by meaning on real data with a real model: scifact with its judgements, and known items.
//! Runs when `TREERING_TEST_DATA` names the data folder and `TREERING_TEST_MODEL` an embedder's
//! folder; `TREERING_TEST_VECTORS` may name a folder that keeps the vectors from run to run.

use std::{
    collections::{BTreeSet, HashMap},
    path::{Path, PathBuf},
    time::Instant,
};

use serde_json::Value;

use treering_embedders::LocalModel;
use treering_meaning::{Embedder, PassageVectors, QueryVector, StoredVector, TextRole, windows};

use super::{
    quality_tests::{Judged, data, index_of, json_lines, ranked, result, scifact},
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
        except: None,
        vector: &vector,
        with_words,
    };
    let results = index.search_by_meaning(&query, meaning).unwrap();
    results.hits.iter().map(|hit| hit.position.offset).collect()
}

// Both lists together must find more than words alone; otherwise a model is not worth the wait.
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
    let words = mean(&|text| ranked(&index, text, 10));
    let meaning = mean(&|text| found(&index, &vectors, &model, text, false));
    let both = mean(&|text| found(&index, &vectors, &model, text, true));
    println!("scifact nDCG@10: words {words:.4}, meaning {meaning:.4}, both {both:.4}");
    assert!(both > words + 0.02, "{both} {words}");
}

/// Number of messages before and after a known item that are searched with it. With
/// `TREERING_TEST_WHOLE`, its whole conversation is searched.
const AROUND: usize = 6;
/// Known items of a test run; all with `TREERING_TEST_ALL`, which takes several minutes.
const ITEMS: usize = 36;
/// Shorter texts are not searched, because a text such as "ok" can mean anything.
const TEXT_BYTES_MIN: usize = 80;

/// A text of a real session, and a query that paraphrases it.
struct KnownItem {
    position: Position,
    query: String,
}

/// Reads the known items, and the texts around them.
fn known_items(data: &Path) -> (SearchIndex, HashMap<Position, String>, Vec<KnownItem>) {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    let lines = std::fs::read_to_string(fixture.join("paraphrases.jsonl")).unwrap();
    let is_all = std::env::var_os("TREERING_TEST_ALL").is_some();
    let count = if is_all { usize::MAX } else { ITEMS };
    let lines: Vec<&str> = lines.lines().take(count).collect();
    let mut wanted: HashMap<(String, String), Vec<(usize, String)>> = HashMap::new();
    for line in &lines {
        let item: Value = serde_json::from_str(line).unwrap();
        let text = |key: &str| item[key].as_str().unwrap().to_owned();
        let message = item["message"].as_u64().unwrap() as usize;
        let of = wanted
            .entry((text("file"), text("conversation")))
            .or_default();
        of.push((message, text("query")));
    }
    let files: BTreeSet<&String> = wanted.keys().map(|(file, _)| file).collect();
    let is_whole = std::env::var_os("TREERING_TEST_WHOLE").is_some();
    let (mut events, mut texts, mut items) = (Vec::new(), HashMap::new(), Vec::new());
    for file in files {
        let path = data.join(format!("trajectories/{file}.jsonl.zst"));
        for conversation in json_lines(&path) {
            let id = conversation["id"].as_str().unwrap().to_owned();
            let Some(wanted) = wanted.get(&(file.clone(), id)) else {
                continue;
            };
            let messages = conversation["messages"].as_array().unwrap();
            for (at, message) in messages.iter().enumerate() {
                let query = wanted.iter().find(|(own, _)| *own == at);
                let is_near = wanted.iter().any(|(own, _)| own.abs_diff(at) <= AROUND);
                let text = message["content"].as_str().unwrap_or_default();
                let is_long = text.len() >= TEXT_BYTES_MIN;
                if query.is_none() && !(is_long && (is_near || is_whole)) {
                    continue;
                }
                let event = result(events.len() as u64 + 1, text.to_owned());
                let position = event.position;
                items.extend(query.map(|(_, query)| KnownItem {
                    position,
                    query: query.clone(),
                }));
                texts.insert(position, event.text.clone());
                events.push(event);
            }
        }
    }
    assert_eq!(items.len(), lines.len(), "known items were not found");
    (index_of(&events), texts, items)
}

// People remember the meaning of a session, not its words.
#[test]
fn paraphrases_of_real_texts_are_found_by_meaning() {
    let (Some(data), Some(model)) = (data(), model()) else {
        return;
    };
    let (index, texts, items) = known_items(&data);
    let vectors = embedded(&index, &texts, &model, "paraphrases");
    let shares = |find: &dyn Fn(&str) -> Vec<u64>| {
        [1, 5].map(|first| {
            let is_found = |item: &&KnownItem| {
                let found = find(&item.query);
                let mut found = found.iter().take(first);
                found.any(|at| texts[&Position::local(*at)] == texts[&item.position])
            };
            items.iter().filter(is_found).count() as f64 / items.len() as f64
        })
    };
    let words = shares(&|text| ranked(&index, text, 10));
    let meaning = shares(&|text| found(&index, &vectors, &model, text, false));
    let both = shares(&|text| found(&index, &vectors, &model, text, true));
    println!(
        "{} known items among {} texts, success@1 and @5: words {words:.2?}, meaning \
         {meaning:.2?}, both {both:.2?}",
        items.len(),
        texts.len()
    );
    // The goal is 0.55. Of all items, which are harder, the model of the Python package finds 0.50.
    let least = if items.len() > ITEMS { 0.45 } else { 0.55 };
    assert!(both[1] >= least && both[1] >= words[1]);
}

/// Known items are searched among their answers, and one in so many of the other texts.
const OTHERS: usize = 60;
/// Longer texts are left out, because embedding takes a second for 15 kB.
const TEXT_BYTES_MAX: usize = 8_000;

// Somebody who remembers words of a text must find it as well as by words alone, or nearly so.
#[test]
fn known_items_are_found_by_both_as_by_words() {
    let (Some(data), Some(model)) = (data(), model()) else {
        return;
    };
    if std::env::var_os("TREERING_TEST_ALL").is_none() {
        println!("skipped: TREERING_TEST_ALL is not set");
        return;
    }
    let items = known_items_tests::items();
    let mut events = known_items_tests::texts(&data.join("trajectories"));
    events.retain(|event| {
        let is_chosen = event.revision.0.is_multiple_of(OTHERS as u64);
        event.text.len() <= TEXT_BYTES_MAX
            && (is_chosen || items.iter().any(|item| item.is_answered_by(event)))
    });
    let index = index_of(&events);
    let text_of = |event: &SearchableEvent| (event.position, event.text.clone());
    let texts: HashMap<Position, String> = events.iter().map(text_of).collect();
    let vectors = embedded(&index, &texts, &model, "known items");
    let answers = |item: &known_items_tests::Item| -> BTreeSet<u64> {
        let answers = events.iter().filter(|event| item.is_answered_by(event));
        answers.map(|event| event.position.offset).collect()
    };
    let answered: Vec<_> = items
        .iter()
        .map(|item| (&item.query, answers(item)))
        .filter(|(_, answers)| !answers.is_empty())
        .collect();
    let first = |find: &dyn Fn(&str) -> Vec<u64>| {
        let is_first = |query: &str, answers: &BTreeSet<u64>| {
            let found = find(query);
            found.first().is_some_and(|first| answers.contains(first))
        };
        let count = answered
            .iter()
            .filter(|(query, answers)| is_first(query, answers));
        count.count() as f64 / answered.len() as f64
    };
    let words = first(&|text| ranked(&index, text, 1));
    let meaning = first(&|text| found(&index, &vectors, &model, text, false));
    let both = first(&|text| found(&index, &vectors, &model, text, true));
    println!(
        "{} known items among {} texts, success@1: words {words:.3}, meaning {meaning:.3}, both \
         {both:.3}",
        answered.len(),
        texts.len()
    );
    assert!(both >= words - 0.03, "{both} {words}");
}
