//! Measures search by meaning: stored vectors compared with exact ones, and the speed of a local
//! model.

use std::{collections::HashMap, hint::black_box};

use super::{
    Setup, failed,
    rounds::{median, timed},
    row::{Row, Target, Unit},
};
use treering::domain::{
    BranchId, ConversationId, EventKind, Namespace, Position, Revision, TimestampMicros,
};
use treering_client::error::ClientError;
use treering_embedders::EmbedderPlace;
use treering_meaning::{PassageVectors, QueryVector, StoredVector, TextRole, TextWindow, windows};
use treering_search::{MeaningQuery, SearchIndex, SearchQuery, SearchableEvent, VectorIndex};

/// Dimensions of the vectors, as of a small model.
const DIMENSIONS: usize = 384;
/// Number of topics: vectors are clustered, like those of real texts.
const TOPICS: u64 = 1_000;
/// Share of a vector that does not come from its topic.
const OWN_SHARE: f32 = 0.7;
/// Number of hits that are compared with the exact ones.
const NEAREST: usize = 10;
/// Number of windows that a model embeds at once.
const BATCH: usize = 16;

/// Measures the rows of this group.
///
/// # Errors
/// When the index cannot be created.
pub(super) async fn measure(setup: &Setup) -> Result<Vec<Row>, ClientError> {
    let mut rows = Vec::new();
    for count in setup.or_quick(&[100_000, 1_000_000][..], &[20_000]) {
        setup.doing("meaning");
        rows.extend(search(setup, *count).await?);
    }
    match std::env::var("TREERING_EMBEDDER") {
        Ok(at) => rows.extend(embed(setup, &at).await?),
        Err(_) => setup.left_out("meaning.embed", "model in TREERING_EMBEDDER"),
    }
    Ok(rows)
}

/// Returns a vector that depends only on the number.
fn vector(number: u64) -> Vec<f32> {
    let mut topic = fastrand::Rng::with_seed(number % TOPICS);
    let mut own = fastrand::Rng::with_seed(number + TOPICS);
    let mut part = || (topic.f32() - 0.5) * (1.0 - OWN_SHARE) + (own.f32() - 0.5) * OWN_SHARE;
    let vector: Vec<f32> = (0..DIMENSIONS).map(|_| part()).collect();
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    vector.iter().map(|x| x / length).collect()
}

fn event(number: u64) -> SearchableEvent {
    SearchableEvent {
        namespace: Namespace::default(),
        conversation: ConversationId::default(),
        branch: BranchId::MAIN,
        revision: Revision(number),
        position: Position::local(number),
        kind: EventKind::ToolResultRecorded,
        role: None,
        tool: String::new(),
        paths: Vec::new(),
        success: Some(true),
        recalled: false,
        recorded_at: TimestampMicros(0),
        happened_at: TimestampMicros(0),
        text: format!("event {number}"),
    }
}

async fn search(setup: &Setup, count: u64) -> Result<Vec<Row>, ClientError> {
    let unmade = |error| failed("indexing", error);
    let folder = setup.folder()?;
    let index = SearchIndex::in_memory().map_err(unmade)?;
    let events: Vec<SearchableEvent> = (1..=count).map(event).collect();
    index.add(&events, Position::local(count)).map_err(unmade)?;
    index.commit().map_err(unmade)?;
    let vectors = VectorIndex::open(folder.path(), "bench").map_err(unmade)?;
    let exact: Vec<Vec<f32>> = (0..=count).map(vector).collect();
    let window = TextWindow { start: 0, len: 5 };
    let missing = vectors.missing(&index, usize::MAX).map_err(unmade)?;
    let mut made = HashMap::new();
    for passage in missing {
        let exact = &exact[passage.position.offset as usize];
        let stored = StoredVector::new(exact).map_err(|error| failed("rounding", error))?;
        made.insert(passage.key, PassageVectors(vec![(window, stored)]));
    }
    vectors.add(&index, &made).map_err(unmade)?;
    drop(made);
    let (mut own, mut other, mut same) = (Vec::new(), Vec::new(), 0);
    let queries = setup.or_quick(200, 50);
    for number in 0..queries {
        let query = vector(count + 1 + number * 7);
        let (found, micros) = timed(async { nearest(&index, &vectors, &query) }).await;
        let found = found?;
        own.push(micros / 1_000.0);
        let (nearest, micros) = timed(async { scanned(&exact, &query) }).await;
        other.push(micros / 1_000.0);
        same += nearest
            .iter()
            .filter(|number| found.contains(number))
            .count();
    }
    let coverage = vectors.coverage(&index);
    own.sort_by(f64::total_cmp);
    let last = own[own.len() * 99 / 100];
    let bytes = coverage.bytes as f64 / coverage.vectors as f64;
    let recall = same as f64 / (queries as usize * NEAREST) as f64;
    let (p50, scan) = (median(&own), median(&other));
    let what = format!("by meaning among {count} vectors of {DIMENSIONS}");
    Ok(vec![
        Row::new(
            "meaning.search",
            format!("{what}, p50"),
            p50,
            Unit::Milliseconds,
        )
        .beside("plain scan of floats", scan, p50 / scan)
        .aim(Target::AtMost(5.0))
        .note("one thread, without the query's encoding"),
        Row::new(
            "meaning.p99",
            format!("{what}, p99"),
            last,
            Unit::Milliseconds,
        ),
        Row::new(
            "meaning.recall",
            format!("{what}, recall@10"),
            recall,
            Unit::Plain,
        )
        .aim(Target::AtLeast(0.98))
        .note("of the ten nearest by exact vectors"),
        Row::new(
            "meaning.bytes",
            format!("{what}, bytes per vector"),
            bytes,
            Unit::Plain,
        )
        .aim(Target::AtMost(600.0)),
    ])
}

fn nearest(
    index: &SearchIndex,
    vectors: &VectorIndex,
    query: &[f32],
) -> Result<Vec<u64>, ClientError> {
    let vector = QueryVector::new(query).map_err(|error| failed("rounding", error))?;
    let meaning = MeaningQuery {
        vectors,
        except: None,
        vector: &vector,
        with_words: false,
    };
    let query = SearchQuery {
        limit: NEAREST,
        ..SearchQuery::new(Namespace::default(), "event")
    };
    let found = index.search_by_meaning(&query, meaning);
    let found = found.map_err(|error| failed("searching", error))?;
    Ok(found.hits.iter().map(|hit| hit.position.offset).collect())
}

/// Returns the numbers of the nearest vectors, found by a full scan.
fn scanned(all: &[Vec<f32>], query: &[f32]) -> Vec<u64> {
    let dot = |vector: &[f32]| vector.iter().zip(query).map(|(x, y)| x * y).sum::<f32>();
    let mut scored: Vec<(f32, u64)> = (1..)
        .zip(&all[1..])
        .map(|(number, vector)| (dot(vector), number))
        .collect();
    scored.select_nth_unstable_by(NEAREST, |a, b| b.0.total_cmp(&a.0));
    scored[..NEAREST]
        .iter()
        .map(|(_, number)| *number)
        .collect()
}

async fn embed(setup: &Setup, at: &str) -> Result<Vec<Row>, ClientError> {
    let place = EmbedderPlace {
        at: at.to_owned(),
        model: std::env::var("TREERING_EMBEDDER_MODEL").ok(),
        key: std::env::var("TREERING_EMBEDDER_KEY").unwrap_or_default(),
    };
    let model = place
        .open()
        .map_err(|error| failed("opening the model", error))?;
    let text = include_str!("../../README.md");
    let cut: Vec<&str> = windows(text)
        .iter()
        .map(|window| window.text(text))
        .collect();
    let ask = |texts: &[&str], role| {
        let embedded = model.embed(texts, role);
        embedded.map_err(|error| failed("embedding", error))
    };
    let (mut passages, mut queries) = (Vec::new(), Vec::new());
    for round in 0..setup.rounds() {
        let batch: Vec<&str> = cut
            .iter()
            .copied()
            .cycle()
            .skip(round)
            .take(BATCH)
            .collect();
        let (done, micros) = timed(async { ask(&batch, TextRole::Passage) }).await;
        black_box(done?);
        passages.push(BATCH as f64 * 1e6 / micros);
        let query = ["why did the build fail on the second try"];
        let (done, micros) = timed(async { ask(&query, TextRole::Query) }).await;
        black_box(done?);
        queries.push(micros / 1_000.0);
    }
    let what = |doing: &str| format!("{doing} by {}", model.model());
    Ok(vec![
        Row::new(
            "meaning.embed",
            what("windows embedded"),
            median(&passages),
            Unit::PerSecond,
        )
        .note("of this project's README; a local model has one thread"),
        Row::new(
            "meaning.query",
            what("a query embedded"),
            median(&queries),
            Unit::Milliseconds,
        )
        .aim(Target::AtMost(10.0)),
    ])
}
