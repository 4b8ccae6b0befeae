//! Measures how heavy reads slow down other calls, and memory under a mixed load. Both tests print,
//! and neither checks a time or a size.
//!
//! ```sh
//! cargo test --test main read_load -- --ignored --nocapture
//! TREERING_SOAK_SECONDS=600 cargo test --test main read_load::measure_memory -- --ignored --nocapture
//! ```

use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures::StreamExt;
use treering::{context::Provider, domain::*, engine::*};

use super::store::{append, call, conversation, message, ns, open, result};

/// Number of timed appends, before and during the load.
const SAMPLES: usize = 300;

fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

/// Returns the p99 of one turn of the runtime, which a health check takes, and of an append.
async fn latencies(engine: &Engine, id: ConversationId) -> (Duration, Duration) {
    let (mut turns, mut appends) = (Vec::new(), Vec::new());
    for number in 0..SAMPLES {
        let started = Instant::now();
        let healthy = tokio::spawn({
            let engine = engine.clone();
            async move { engine.health().ready }
        });
        healthy.await.unwrap().unwrap();
        turns.push(started.elapsed());
        let started = Instant::now();
        let event = message(id, &format!("small {number}"));
        append(engine, vec![event]).await.unwrap();
        appends.push(started.elapsed());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    (p99(turns), p99(appends))
}

async fn fill(engine: &Engine, events: usize) -> ConversationId {
    let id = conversation(engine).await;
    let mut left = events;
    while left > 0 {
        let batch = left.min(2_000);
        let said = (0..batch).map(|number| message(id, &format!("message {number} of a turn")));
        append(engine, said.collect()).await.unwrap();
        left -= batch;
    }
    id
}

fn build(id: ConversationId) -> BuildQuery {
    BuildQuery {
        policy: r#"{"budget_tokens": 1000}"#.to_owned(),
        ..BuildQuery::new(BranchAddress::active(ns(), id), Provider::OpenAiChat)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures for a minute"]
async fn measure_latency_under_heavy_reads() {
    let events = env::var("TREERING_LOAD_EVENTS").ok();
    let events = events
        .and_then(|events| events.parse().ok())
        .unwrap_or(30_000);
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let large = fill(&engine, events).await;
    let small = conversation(&engine).await;
    let (health, appends) = latencies(&engine, small).await;
    let busy = Arc::new(AtomicBool::new(true));
    let mut load = Vec::new();
    for _ in 0..2 {
        let (engine, busy) = (engine.clone(), Arc::clone(&busy));
        load.push(tokio::spawn(async move {
            while busy.load(Ordering::Relaxed) {
                let mut items = engine.verify(&ns(), true);
                while items.next().await.is_some() && busy.load(Ordering::Relaxed) {}
            }
        }));
    }
    for _ in 0..3 {
        let (engine, busy) = (engine.clone(), Arc::clone(&busy));
        load.push(tokio::spawn(async move {
            while busy.load(Ordering::Relaxed) {
                let _ = engine.build(build(large)).await;
            }
        }));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (health_busy, appends_busy) = latencies(&engine, small).await;
    busy.store(false, Ordering::Relaxed);
    let ratio = |busy: Duration, idle: Duration| busy.as_secs_f64() / idle.as_secs_f64();
    println!("two verifications and three requests of {events} messages at once:");
    println!(
        "  p99 of health {health:?} → {health_busy:?}: {:.1} × idle",
        ratio(health_busy, health)
    );
    println!(
        "  p99 of a small append {appends:?} → {appends_busy:?}: {:.1} × idle",
        ratio(appends_busy, appends)
    );
    let closing = Instant::now();
    engine.close().await;
    for task in load {
        task.await.unwrap();
    }
    println!("  everything had stopped after {:?}", closing.elapsed());
}

/// Returns the resident memory of this process in MiB.
fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or_default() / 1024
}

/// Runs one round of typical actions of agents and people.
async fn round(engine: &Engine, number: usize) {
    let id = conversation(engine).await;
    for turn in 0..5 {
        let call_id = format!("c{turn}");
        let text = format!("round {number} turn {turn} ").repeat(40);
        let events = vec![
            message(id, &text),
            call(id, &call_id, "look"),
            result(id, &call_id, &text),
        ];
        append(engine, events).await.unwrap();
        let _ = engine.build(build(id)).await;
    }
    let query = ReadQuery::all(ns(), EventSource::Conversation(id));
    engine.read_all(query).await.unwrap();
    engine.stats(&ns()).await.unwrap();
    let _ = engine.search(SearchRequest::new(ns(), "turn", 10)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures for minutes"]
async fn measure_memory_over_time() {
    let seconds = env::var("TREERING_SOAK_SECONDS").ok();
    let seconds = seconds.and_then(|s| s.parse().ok()).unwrap_or(60_u64);
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let started = Instant::now();
    let (mut rounds, mut next) = (0, Duration::ZERO);
    println!("seconds, events, resident MiB");
    while started.elapsed() < Duration::from_secs(seconds) {
        let four = (0..4).map(|task| round(&engine, rounds + task));
        futures::future::join_all(four).await;
        rounds += 4;
        if started.elapsed() >= next {
            println!(
                "{}, {}, {}",
                started.elapsed().as_secs(),
                engine.head().offset,
                resident_mib()
            );
            next += Duration::from_secs((seconds / 20).max(1));
        }
    }
    engine.close().await;
}
