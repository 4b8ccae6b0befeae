//! Speed of search over real tool results: indexing, size on disk, latency of
//! queries of one to three words with and without filters, commits, snippets.
//! Needs the data folder in `TREERING_TEST_DATA`.
//!
//! `cargo bench --bench search`

use std::{
    collections::HashMap,
    io::{BufRead, BufReader},
    path::Path,
    time::{Duration, Instant},
};

use serde_json::Value;
use treering::{
    domain::{BranchId, ConversationId, EventKind, Namespace, Position, Revision, TimestampMicros},
    search::{
        LineageSegment, Scope, SearchFilters, SearchIndex, SearchOptions, SearchQuery,
        SearchableEvent, Snippeter, passage_at,
    },
};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const SOURCES: [&str; 4] = [
    "agentdojo",
    "intercode",
    "claude-code-entire",
    "agentdojo-rest",
];
const QUERIES: usize = 2_000;

fn main() -> Outcome<()> {
    let Some(data) = std::env::var_os("TREERING_TEST_DATA") else {
        println!("skipped: TREERING_TEST_DATA names no data folder");
        return Ok(());
    };
    let mut events = Vec::new();
    for source in SOURCES {
        read_results(
            &Path::new(&data).join(format!("trajectories/{source}.jsonl.zst")),
            &mut events,
        )?;
    }
    let text_bytes: usize = events.iter().map(|event| event.text.len()).sum();
    let dir = tempfile::tempdir()?;
    let index = SearchIndex::open(dir.path(), SearchOptions::default())?;
    let started = Instant::now();
    for batch in events.chunks(1_000) {
        index.add(batch, batch[batch.len() - 1].position)?;
    }
    index.commit()?;
    let took = started.elapsed().as_secs_f64();
    let size = index.size_bytes()?;
    println!(
        "{} results, {} passages, {:.1} MB of text",
        events.len(),
        index.passage_count(),
        mb(text_bytes)
    );
    println!(
        "indexing: {took:.1} s, {:.0} results/s, {:.1} MB/s",
        events.len() as f64 / took,
        mb(text_bytes) / took
    );
    println!(
        "index: {:.1} MB, {:.2} of the text",
        size as f64 / 1e6,
        size as f64 / text_bytes as f64
    );
    latencies(&index, &events)?;
    snippets(&index, &events)?;
    commits(&index, &events)
}

fn mb(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}

fn read_results(path: &Path, events: &mut Vec<SearchableEvent>) -> Outcome<()> {
    let lines = BufReader::new(zstd::Decoder::new(std::fs::File::open(path)?)?).lines();
    for line in lines {
        let conversation: Value = serde_json::from_str(&line?)?;
        let id = ConversationId(uuid::Uuid::now_v7());
        let mut tools: HashMap<String, String> = HashMap::new();
        let messages = conversation["messages"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        for (at, message) in (1_u64..).zip(messages) {
            for call in message["tool_calls"].as_array().into_iter().flatten() {
                tools.insert(text(&call["id"]), text(&call["function"]["name"]));
            }
            let content = text(&message["content"]);
            if message["role"] != "tool" || content.is_empty() {
                continue;
            }
            let call_id = text(&message["tool_call_id"]);
            let position = events.len() as u64 + 1;
            events.push(SearchableEvent {
                namespace: Namespace::default(),
                conversation: id,
                branch: BranchId::MAIN,
                revision: Revision(at),
                position: Position::local(position),
                kind: EventKind::ToolResultRecorded,
                role: None,
                tool: tools.get(&call_id).cloned().unwrap_or_default(),
                paths: Vec::new(),
                success: Some(message["x"]["is_error"] != true && message["x"]["error"].is_null()),
                recalled: false,
                recorded_at: TimestampMicros(i64::try_from(position)? * 1_000),
                happened_at: TimestampMicros(i64::try_from(position)? * 1_000),
                text: content,
            });
        }
    }
    Ok(())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// A small random generator, so that every run uses the same queries.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 11).unwrap_or(0) % bound.max(1)
    }
}

/// Returns consecutive words of some result.
fn words(random: &mut Random, events: &[SearchableEvent], count: usize) -> (usize, String) {
    loop {
        let place = random.below(events.len());
        let all: Vec<&str> = events[place]
            .text
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .filter(|word| (3..=30).contains(&word.len()))
            .collect();
        if all.len() >= count {
            let start = random.below(all.len() - count + 1);
            return (place, all[start..start + count].join(" "));
        }
    }
}

fn latencies(index: &SearchIndex, events: &[SearchableEvent]) -> Outcome<()> {
    let all = |text: String| SearchQuery::new(Namespace::default(), text);
    let tool = |event: &SearchableEvent, text| SearchQuery {
        filters: SearchFilters {
            tools: vec![event.tool.clone()],
            success: Some(true),
            ..SearchFilters::default()
        },
        ..all(text)
    };
    let conversation = |event: &SearchableEvent, text| SearchQuery {
        scope: Some(Scope::Conversations(vec![event.conversation].into())),
        ..all(text)
    };
    let half = |event: &SearchableEvent, text| SearchQuery {
        filters: SearchFilters {
            recorded_to: Some(event.recorded_at),
            ..SearchFilters::default()
        },
        ..all(text)
    };
    let lineage = |event: &SearchableEvent, text| {
        let segment = |branch| LineageSegment {
            conversation: event.conversation,
            branch: BranchId(branch),
            up_to: event.revision,
        };
        SearchQuery {
            scope: Some(Scope::Lineage((0..1_000).map(segment).collect())),
            ..all(text)
        }
    };
    let none = |_: &SearchableEvent, text| all(text);
    type Filter<'a> = &'a dyn Fn(&SearchableEvent, String) -> SearchQuery;
    let filters: [(&str, Filter<'_>); 5] = [
        ("no filter", &none),
        ("tool and success", &tool),
        ("conversation", &conversation),
        ("recorded until", &half),
        ("lineage of 1,000 segments", &lineage),
    ];
    for (name, filter) in filters {
        let mut all = Vec::new();
        for count in 1..=3 {
            let mut random = Random(0x9E37_79B9_7F4A_7C15);
            let mut times = Vec::with_capacity(QUERIES);
            for _ in 0..QUERIES {
                let (place, text) = words(&mut random, events, count);
                let query = filter(&events[place], text);
                let started = Instant::now();
                let results = index.search(&query)?;
                times.push(started.elapsed());
                std::hint::black_box(results);
            }
            print_times(&format!("search, {count} words, {name}"), &mut times);
            all.extend(times);
        }
        print_times(&format!("search, 1-3 words, {name}"), &mut all);
    }
    Ok(())
}

fn snippets(index: &SearchIndex, events: &[SearchableEvent]) -> Outcome<()> {
    let mut random = Random(7);
    let mut times = Vec::new();
    for _ in 0..QUERIES / 10 {
        let (_, text) = words(&mut random, events, 2);
        let query = SearchQuery::new(Namespace::default(), text);
        let results = index.search(&query)?;
        let started = Instant::now();
        let mut snippeter = Snippeter::for_query(index, &query)?;
        for hit in &results.hits {
            let event = &events[usize::try_from(hit.position.offset - 1)?];
            let passage = passage_at(&event.text, usize::try_from(hit.byte_start)?);
            let passage = passage.ok_or("a hit names a passage that is not there")?;
            std::hint::black_box(snippeter.snippet(passage.text, 240));
        }
        times.push(started.elapsed());
    }
    print_times("snippets of a page of 10 hits", &mut times);
    Ok(())
}

fn commits(index: &SearchIndex, events: &[SearchableEvent]) -> Outcome<()> {
    let mut times = Vec::new();
    for (more, event) in (1..=200).zip(events) {
        let position = Position::local(events.len() as u64 + more);
        let event = SearchableEvent {
            position,
            ..event.clone()
        };
        let started = Instant::now();
        index.add(&[event], position)?;
        index.commit()?;
        times.push(started.elapsed());
    }
    print_times("one event added and committed", &mut times);
    Ok(())
}

fn print_times(name: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    println!(
        "{name}: p50 {:.3} ms, p99 {:.3} ms, max {:.3} ms",
        at(0.5),
        at(0.99),
        at(1.0)
    );
}
