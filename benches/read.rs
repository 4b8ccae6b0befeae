//! Reading events back, beside reading a plain file with the same bytes.

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

async fn read(engine: &Engine, source: Source) -> u64 {
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
        bencher.iter(|| runtime.block_on(read(&engine, Source::Log)));
    });
    group.bench_function("branch", |bencher| {
        let source = Source::Branch {
            conversation: id,
            branch: None,
        };
        bencher.iter(|| runtime.block_on(read(&engine, source.clone())));
    });
    group.finish();
    runtime.block_on(engine.close());
}

criterion_group!(benches, reads);
criterion_main!(benches);
