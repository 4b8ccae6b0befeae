//! Measures the speed of searches over real tool results, compared with SQLite's FTS5 over the same
//! texts, and the quality of the ranking.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::Path,
    time::Duration,
};

use futures::StreamExt;
use rusqlite::{Connection as Sqlite, params};
use serde_json::Value;

use super::{
    Setup, failed,
    payload::created,
    rounds::{median, percentile, timed},
    row::{Row, Target, Unit},
    stores::{self, Filler},
};
use treering::{
    domain::{
        ConversationId, EventBody, EventKind, JsonText, MessageAppended, Namespace, NewEvent, Role,
        ToolCallRequested, ToolResultRecorded,
    },
    engine::{Engine, EventSource, ReadQuery, SearchRequest, searchable_text},
    import::source::LineSource,
    proto::body,
};
use treering_client::error::ClientError;

/// Maximum number of results of a search.
const LIMIT: usize = 10;
/// Published nDCG@10 of BM25 on scifact (bm25s). Anserini (flat) has 0.679.
const BM25_NDCG: f64 = 0.687;
/// Pause between two searches for an appended event.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Measures the rows of this group. Returns none if there are no real conversations.
///
/// # Errors
/// When an import or a search fails.
pub(super) async fn measure(setup: &Setup) -> Result<Vec<Row>, ClientError> {
    let mut files = setup.trajectory_files();
    if setup.quick {
        files.truncate(1);
    }
    if files.is_empty() {
        setup.left_out("search", "real conversations");
        return Ok(Vec::new());
    }
    let folder = setup.folder()?;
    setup.doing("search: importing");
    let engine = stores::open(&folder.path().join("store")).await?;
    stores::import(&engine, &files).await?;
    setup.doing("search: indexing");
    stores::indexed(&engine).await?;
    setup.doing("search: filling FTS5");
    let fts = Fts::fill(&folder.path().join("fts.sqlite"), &engine).await?;
    let queries = fts.queries(setup.or_quick(1_000, 200));
    let mut rows = speed(setup, &engine, &fts, &queries).await?;
    rows.extend(visible(setup, &engine).await?);
    engine.close().await;
    Ok(rows)
}

/// A query of one to three words and a filter.
struct Query {
    words: Vec<String>,
    filter: Filter,
}

enum Filter {
    Tool(String),
    Results,
    Success,
}

impl Query {
    fn request(&self) -> SearchRequest {
        let mut request = SearchRequest::new(Namespace::default(), self.words.join(" "), LIMIT);
        match &self.filter {
            Filter::Tool(tool) => request.filters.tools = vec![tool.clone()],
            Filter::Results => request.filters.kinds = vec![EventKind::ToolResultRecorded],
            Filter::Success => request.filters.success = Some(true),
        }
        request
    }
}

async fn speed(
    setup: &Setup,
    engine: &Engine,
    fts: &Fts,
    queries: &[Query],
) -> Result<Vec<Row>, ClientError> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..2 {
        setup.doing("search: searching");
        for query in queries {
            let (answer, micros) = timed(engine.search(query.request())).await;
            answer.map_err(|error| failed("searching", error))?;
            let (found, sqlite_micros) = timed(async { fts.search(query) }).await;
            found?;
            // The first round warms both up.
            if round > 0 {
                ours.push(micros / 1e3);
                theirs.push(sqlite_micros / 1e3);
            }
        }
    }
    let what = format!("search of {} results, 1–3 words and a filter", fts.results);
    let figure = |percent| {
        let (own, sqlite) = (percentile(&ours, percent), percentile(&theirs, percent));
        (own, sqlite, own / sqlite)
    };
    let (own, sqlite, ratio) = figure(50.0);
    let (own_99, sqlite_99, ratio_99) = figure(99.0);
    Ok(vec![
        Row::new(
            "search.p50",
            format!("{what}, p50"),
            own,
            Unit::Milliseconds,
        )
        .beside("FTS5", sqlite, ratio)
        .aim(Target::AtMost(0.7))
        .note(format!(
            "{} queries of words of random results, any word may match, best {LIMIT}; ours \
                 with names and snippets, FTS5 (bm25 order, {} texts, the same) with neither",
            queries.len(),
            fts.texts
        )),
        Row::new(
            "search.fts5",
            "FTS5's time over ours, p50",
            sqlite / own,
            Unit::Plain,
        )
        .aim(Target::AtLeast(12.0)),
        Row::new(
            "search.p99",
            format!("{what}, p99"),
            own_99,
            Unit::Milliseconds,
        )
        .beside("FTS5", sqlite_99, ratio_99),
    ])
}

/// The same texts in an SQLite database.
struct Fts {
    database: Sqlite,
    results: u64,
    texts: u64,
}

impl Fts {
    async fn fill(path: &Path, engine: &Engine) -> Result<Self, ClientError> {
        let refused = |error: rusqlite::Error| failed("filling FTS5", error);
        let database = Sqlite::open(path).map_err(refused)?;
        database
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; PRAGMA cache_size = -65536;
                 CREATE VIRTUAL TABLE text USING fts5(body);
                 CREATE TABLE doc (id INTEGER PRIMARY KEY, kind INTEGER, tool TEXT, success INTEGER);
                 BEGIN",
            )
            .map_err(refused)?;
        let mut sum = Self {
            database,
            results: 0,
            texts: 0,
        };
        let mut tools: HashMap<(ConversationId, String), String> = HashMap::new();
        let mut batches = engine.read(ReadQuery::all(Namespace::default(), EventSource::Log));
        while let Some(batch) = batches.next().await {
            for event in batch.map_err(|error| failed("reading", error))? {
                let header = &event.event.header;
                let Some(kind) = header.kind() else { continue };
                let found = body::decode(kind, &event.event.body)
                    .map_err(|error| failed("decoding", error))?;
                if let EventBody::ToolCallRequested(call) = &found {
                    let key = (header.conversation, call.call_id.clone());
                    tools.insert(key, call.tool.clone());
                }
                let at = event.event.position.offset.cast_signed();
                sum.add(at, header.conversation, &found, &tools)
                    .map_err(refused)?;
            }
        }
        sum.database
            .execute_batch("COMMIT; INSERT INTO text (text) VALUES ('optimize')")
            .map_err(refused)?;
        Ok(sum)
    }

    fn add(
        &mut self,
        at: i64,
        conversation: ConversationId,
        found: &EventBody,
        tools: &HashMap<(ConversationId, String), String>,
    ) -> rusqlite::Result<()> {
        let Some(text) = searchable_text(found).filter(|text| !text.is_empty()) else {
            return Ok(());
        };
        let (mut tool, mut success) = (None, None);
        if let EventBody::ToolResultRecorded(result) = found {
            tool = tools.get(&(conversation, result.call_id.clone()));
            success = Some(result.success);
            self.results += 1;
        }
        self.texts += 1;
        self.database
            .prepare_cached("INSERT INTO text (rowid, body) VALUES (?1, ?2)")?
            .execute(params![at, text])?;
        self.database
            .prepare_cached("INSERT INTO doc VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![at, found.kind().number(), tool, success])?;
        Ok(())
    }

    /// Returns the ids of the best results.
    fn search(&self, query: &Query) -> Result<Vec<i64>, ClientError> {
        let quoted: Vec<_> = query
            .words
            .iter()
            .map(|word| format!("\"{word}\""))
            .collect();
        let (clause, value): (_, rusqlite::types::Value) = match &query.filter {
            Filter::Tool(tool) => ("doc.tool = ?2", tool.clone().into()),
            Filter::Results => (
                "doc.kind = ?2",
                i64::from(EventKind::ToolResultRecorded.number()).into(),
            ),
            Filter::Success => ("doc.success = ?2", 1.into()),
        };
        // `rank` is bm25() in the form that FTS5 sorts fastest.
        let sql = format!(
            "SELECT text.rowid FROM text JOIN doc ON doc.id = text.rowid
             WHERE text MATCH ?1 AND {clause} ORDER BY rank LIMIT {LIMIT}"
        );
        let found = || {
            self.database
                .prepare_cached(&sql)?
                .query_map(params![quoted.join(" OR "), value], |row| row.get(0))?
                .collect::<rusqlite::Result<Vec<i64>>>()
        };
        found().map_err(|error| failed("searching FTS5", error))
    }

    /// Returns queries made of words from random results.
    fn queries(&self, number: usize) -> Vec<Query> {
        let read = || {
            self.database
                .prepare(
                    "SELECT body, tool FROM doc JOIN text ON text.rowid = doc.id
                     WHERE tool IS NOT NULL ORDER BY (doc.id * 2654435761) % 4294967296 LIMIT ?1",
                )?
                .query_map([number as i64], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect::<rusqlite::Result<Vec<(String, String)>>>()
        };
        let results = read().unwrap_or_default();
        results
            .into_iter()
            .enumerate()
            .filter_map(|(number, (text, tool))| query(number, &text, tool))
            .collect()
    }
}

/// Returns a query made of words from this result.
fn query(number: usize, text: &str, tool: String) -> Option<Query> {
    let mut words: Vec<_> = text
        .split(|c: char| !c.is_ascii_alphabetic())
        .filter(|word| (4..=14).contains(&word.len()))
        .take(2_000)
        .map(str::to_lowercase)
        .collect();
    words.sort_unstable();
    words.dedup();
    if words.is_empty() {
        return None;
    }
    let step = words.len().div_ceil(3);
    let chosen: Vec<_> = (0..=number % 3)
        .map(|word| words[(number * 31 + word * step) % words.len()].clone())
        .collect();
    let filter = match number / 3 % 3 {
        0 => Filter::Tool(tool),
        1 => Filter::Results,
        _ => Filter::Success,
    };
    Some(Query {
        words: chosen,
        filter,
    })
}

/// Measures how long after its acknowledgement an event can be found.
async fn visible(setup: &Setup, engine: &Engine) -> Result<Vec<Row>, ClientError> {
    let id = stores::conversations(engine, 1).await?[0];
    let (mut waited, mut asked) = (Vec::new(), Vec::new());
    for round in 0..setup.or_quick(20_u64, 8) {
        setup.doing("search: visibility");
        // Varies the pause, so that rounds are not in step with the clock of the indexer.
        tokio::time::sleep(Duration::from_millis(37 * (round % 7))).await;
        let (_, word) = say(engine, id).await?;
        let (found, micros) = timed(look_for(engine, &word)).await;
        found?;
        waited.push(micros / 1e3);
        let (at, word) = say(engine, id).await?;
        let mut request = SearchRequest::new(Namespace::default(), word, 1);
        request.at_least = Some(at);
        let (answer, micros) = timed(engine.search(request)).await;
        answer.map_err(|error| failed("searching", error))?;
        asked.push(micros / 1e3);
    }
    let row = |id, what, values: &[f64]| Row::new(id, what, median(values), Unit::Milliseconds);
    Ok(vec![
        row(
            "search.visible",
            "visible to search after an append",
            &waited,
        )
        .aim(Target::AtMost(50.0))
        .note("from the acknowledgement on, p50, in the same large store"),
        row(
            "search.at_once",
            "the same, when the query asks for it",
            &asked,
        )
        .note("a query that names the append's position waits for it"),
    ])
}

/// Appends a message with a word that no other event contains. Returns its position and the word.
async fn say(
    engine: &Engine,
    id: ConversationId,
) -> Result<(treering::domain::Position, String), ClientError> {
    let word = format!("w{}", treering::domain::EventId::generate().0.simple());
    let message = MessageAppended::text(Role::User, format!("Have you heard of {word}?"));
    let event = NewEvent::new(id, EventBody::MessageAppended(message));
    let outcome = stores::append(engine, vec![event]).await?;
    let position = outcome.events.first().map(|event| event.position);
    Ok((position.unwrap_or_default(), word))
}

async fn look_for(engine: &Engine, word: &str) -> Result<(), ClientError> {
    loop {
        let request = SearchRequest::new(Namespace::default(), word, 1);
        let answer = engine
            .search(request)
            .await
            .map_err(|error| failed("searching", error))?;
        if !answer.hits.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Measures nDCG@10 on scifact; each document is one tool result. Returns no rows if scifact is
/// missing.
///
/// # Errors
/// When its files cannot be read, or a search fails.
pub(super) async fn quality(setup: &Setup) -> Result<Vec<Row>, ClientError> {
    let Some(scifact) = setup
        .trajectories
        .as_ref()
        .map(|dir| dir.join("retrieval/scifact"))
        .filter(|dir| dir.is_dir())
    else {
        setup.left_out("quality", "retrieval/scifact");
        return Ok(Vec::new());
    };
    setup.doing("quality: scifact");
    let folder = setup.folder()?;
    let engine = stores::open(folder.path()).await?;
    fill_scifact(&engine, &scifact.join("corpus.jsonl.zst")).await?;
    stores::indexed(&engine).await?;
    let judged = judgements(&scifact.join("qrels/test.tsv"))?;
    let mut scores = Vec::new();
    for query in json_lines(&scifact.join("queries.jsonl.zst"))? {
        let query = query?;
        if let Some(judged) = judged.get(text(&query, "_id")) {
            let found = best(&engine, text(&query, "text")).await?;
            scores.push(ndcg_10(&found, judged));
        }
    }
    engine.close().await;
    let mean = scores.iter().sum::<f64>() / scores.len().max(1) as f64;
    Ok(vec![
        Row::new("quality.scifact", "nDCG@10, scifact", mean, Unit::Plain)
            .beside("published BM25", BM25_NDCG, mean / BM25_NDCG)
            .aim(Target::AtLeast(BM25_NDCG))
            .note(format!(
                "{} queries through the engine, each document one tool result; published: 0.679 \
                 (Anserini, flat) to 0.687 (bm25s)",
                scores.len()
            )),
    ])
}

fn json_lines(
    path: &Path,
) -> Result<impl Iterator<Item = Result<Value, ClientError>> + use<>, ClientError> {
    let lines = LineSource::open(path, |_| {}).map_err(|cause| ClientError::ReadFile {
        path: path.to_owned(),
        cause,
    })?;
    Ok(lines.map(|(_, line)| {
        let line = line.map_err(|error| failed("reading scifact", error))?;
        serde_json::from_slice(&line).map_err(|error| failed("reading scifact", error))
    }))
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// Appends a tool call and a result for each document, in one conversation. The call id is the
/// document's id.
async fn fill_scifact(engine: &Engine, corpus: &Path) -> Result<(), ClientError> {
    let id = ConversationId::generate();
    let mut filler = Filler::new(engine);
    filler.append(vec![created(id)]).await?;
    let lines: Vec<_> = json_lines(corpus)?.collect();
    for document in lines {
        let document = document?;
        let call_id = text(&document, "_id").to_owned();
        let passage = format!("{}\n{}", text(&document, "title"), text(&document, "text"));
        let arguments = bytes::Bytes::from_static(b"{}");
        let call = ToolCallRequested {
            call_id: call_id.clone(),
            tool: "read".to_owned(),
            arguments_hash: treering::domain::ContentHash(*blake3::hash(&arguments).as_bytes()),
            arguments: JsonText::from_checked(arguments),
            message_revision: None,
            needs_approval: false,
            ..ToolCallRequested::default()
        };
        let result = ToolResultRecorded::text(call_id, passage);
        let bodies = [
            EventBody::ToolCallRequested(call),
            EventBody::ToolResultRecorded(result),
        ];
        let events = bodies.map(|body| NewEvent::new(id, body));
        filler.append(events.into()).await?;
    }
    filler.settle().await
}

type Judgements = BTreeMap<String, f64>;

fn judgements(path: &Path) -> Result<HashMap<String, Judgements>, ClientError> {
    let file = fs::read_to_string(path).map_err(|cause| ClientError::ReadFile {
        path: path.to_owned(),
        cause,
    })?;
    let mut judged: HashMap<String, Judgements> = HashMap::new();
    for line in file.lines().skip(1) {
        let mut fields = line.split('\t');
        let (Some(query), Some(document), Some(gain)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let gain = gain.trim().parse().unwrap_or_default();
        judged
            .entry(query.to_owned())
            .or_default()
            .insert(document.to_owned(), gain);
    }
    Ok(judged)
}

/// Returns the best documents, without duplicates.
async fn best(engine: &Engine, question: &str) -> Result<Vec<String>, ClientError> {
    // A sentence is not in query syntax: drop its brackets, dashes and quotes.
    let words: Vec<_> = question
        .split(|c: char| c.is_whitespace() || "\"()*+".contains(c))
        .map(|word| word.trim_start_matches('-'))
        .filter(|word| !word.is_empty())
        .collect();
    // A long document may have several hits.
    let request = SearchRequest::new(Namespace::default(), words.join(" "), 3 * LIMIT);
    let answer = engine
        .search(request)
        .await
        .map_err(|error| failed("searching", error))?;
    let mut documents: Vec<String> = Vec::new();
    for hit in answer.hits {
        let call_id = hit.details.call_id;
        if !documents.contains(&call_id) {
            documents.push(call_id);
        }
    }
    documents.truncate(10);
    Ok(documents)
}

/// Returns nDCG@10, with the judgement as gain.
fn ndcg_10(found: &[String], judged: &Judgements) -> f64 {
    let discounted = |gains: &mut dyn Iterator<Item = f64>| -> f64 {
        gains
            .take(10)
            .enumerate()
            .map(|(rank, gain)| gain / (rank as f64 + 2.0).log2())
            .sum()
    };
    let mut ideal: Vec<f64> = judged.values().copied().collect();
    ideal.sort_by(|a, b| b.total_cmp(a));
    let best = discounted(&mut ideal.into_iter());
    let own = discounted(
        &mut found
            .iter()
            .map(|id| judged.get(id).copied().unwrap_or_default()),
    );
    if best > 0.0 { own / best } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This score decides whether ranking got worse, so it is compared with a value computed by
    /// hand.
    #[test]
    fn ndcg_is_as_by_hand() {
        let judged = Judgements::from([("a".to_owned(), 1.0), ("b".to_owned(), 1.0)]);
        let found = ["a", "x", "b"].map(str::to_owned);
        let ideal = 1.0 + 1.0 / 3_f64.log2();
        let own = 1.0 + 1.0 / 4_f64.log2();
        assert!((ndcg_10(&found, &judged) - own / ideal).abs() < 1e-12);
        assert!(ndcg_10(&[], &judged).abs() < 1e-12);
    }

    /// Both engines must get words that they can search for.
    #[test]
    fn queries_are_of_plain_words() {
        let text = "fn open(path: &Path) -> Result<Self> { \"no space left\" }";
        for number in 0..9 {
            let query = query(number, text, "read".to_owned()).unwrap();
            assert_eq!(query.words.len(), number % 3 + 1);
            for word in &query.words {
                assert!(word.bytes().all(|b| b.is_ascii_lowercase()), "{word}");
            }
        }
        assert!(query(0, "1 2 3", String::new()).is_none());
    }
}
