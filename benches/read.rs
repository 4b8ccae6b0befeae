//! Compares reading events with reading a plain file that has the same bytes.

use std::{fs, hint::black_box};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use futures::StreamExt;
use tokio::runtime::Runtime;
use treering::{domain::*, engine::*};

const EVENTS: u64 = 20_000;
const TEXT: &str = "What a tool said, in a line of about the length that lines have. ";

fn message(conversation: ConversationId, number: u64) -> NewEvent {
    let text = format!("{number} {}", TEXT.repeat(8));
    NewEvent::new(
        conversation,
        EventBody::MessageAppended(MessageAppended::text(Role::Assistant, text)),
    )
}

async fn store(dir: &std::path::Path) -> (Engine, ConversationId) {
    let engine = Engine::open(OpenOptions::new(dir)).await.unwrap();
    let id = ConversationId::generate();
    let created = EventBody::ConversationCreated(ConversationCreated::default());
    let mut events = vec![NewEvent::new(id, created)];
    for number in 1..EVENTS {
        events.push(message(id, number));
        if events.len() == 1_000 {
            let batch = AppendCommand::new(Namespace::default(), std::mem::take(&mut events));
            engine.append(batch).await.unwrap();
        }
    }
    let rest = AppendCommand::new(Namespace::default(), events);
    if !rest.events.is_empty() {
        engine.append(rest).await.unwrap();
    }
    (engine, id)
}

async fn read(engine: &Engine, source: EventSource) -> u64 {
    let mut batches = engine.read(ReadQuery::all(Namespace::default(), source));
    let mut events = 0;
    while let Some(batch) = batches.next().await {
        events += batch.unwrap().len() as u64;
    }
    events
}

fn reads(criterion: &mut Criterion) {
    let runtime = Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (engine, id) = runtime.block_on(store(&folder.path().join("store")));
    let plain = folder.path().join("plain");
    fs::write(&plain, TEXT.repeat(8).repeat(EVENTS as usize)).unwrap();

    let mut group = criterion.benchmark_group("read");
    group.sample_size(10);
    group.throughput(Throughput::Elements(EVENTS));
    group.bench_function("plain file", |bencher| {
        bencher.iter(|| black_box(fs::read(&plain).unwrap()));
    });
    group.bench_function("log", |bencher| {
        bencher.iter(|| runtime.block_on(read(&engine, EventSource::Log)));
    });
    group.bench_function("branch", |bencher| {
        let source = EventSource::Branch {
            conversation: id,
            branch: None,
        };
        bencher.iter(|| runtime.block_on(read(&engine, source.clone())));
    });
    group.finish();
    runtime.block_on(engine.close());
}

/// Looks up the newest event with a key, and of a type, in conversations of growing length. The
/// baseline reads backward event by event.
fn look_ups(criterion: &mut Criterion) {
    let runtime = Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut group = criterion.benchmark_group("look up");
    group.sample_size(50);
    for length in [200_u64, 2_000, 20_000] {
        let dir = folder.path().join(length.to_string());
        let (engine, id) = runtime.block_on(checkpoints(&dir, length));
        let middle = format!("checkpoint/{}", length / 2);
        let latest = |wanted: Vec<EventSelector>| LatestQuery {
            namespace: Namespace::default(),
            conversations: vec![id],
            branch: None,
            wanted,
            as_of: None,
            headers_only: false,
            bytes_max: 1 << 20,
        };
        for (name, wanted) in [
            ("by key", EventSelector::Key(middle.clone())),
            ("by type", EventSelector::Type("checkpoint".into())),
        ] {
            let query = latest(vec![wanted]);
            group.bench_function(format!("{name}, {length} events"), |bencher| {
                bencher.iter(|| runtime.block_on(engine.latest(query.clone())).unwrap());
            });
        }
        let source = EventSource::Branch {
            conversation: id,
            branch: None,
        };
        let query = ReadQuery {
            backward: true,
            limit: length / 2,
            ..ReadQuery::all(Namespace::default(), source)
        };
        group.bench_function(format!("backward, {length} events"), |bencher| {
            bencher.iter(|| runtime.block_on(engine.read_all(query.clone())).unwrap());
        });
        runtime.block_on(engine.close());
    }
    group.finish();
}

/// Creates a conversation of checkpoints, each with its event key.
async fn checkpoints(dir: &std::path::Path, length: u64) -> (Engine, ConversationId) {
    let engine = Engine::open(OpenOptions::new(dir)).await.unwrap();
    let id = ConversationId::generate();
    let created = EventBody::ConversationCreated(ConversationCreated::default());
    let mut events = vec![NewEvent::new(id, created)];
    for number in 0..length {
        let checkpoint = EventBody::Custom(Custom {
            type_name: "checkpoint".into(),
            content_type: "text/plain".into(),
            data: TEXT.repeat(8).into(),
            text: String::new(),
            delta_of: String::new(),
        });
        let key = format!("checkpoint/{number}");
        events.push(NewEvent::new(id, checkpoint).with_key(key));
        if events.len() >= 1_000 || number + 1 == length {
            let events = std::mem::take(&mut events);
            let batch = AppendCommand::new(Namespace::default(), events);
            engine.append(batch).await.unwrap();
        }
    }
    (engine, id)
}

criterion_group!(benches, reads, look_ups);
criterion_main!(benches);
