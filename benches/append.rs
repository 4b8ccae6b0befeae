//! Compares durable appends with a plain file that gets the same bytes and one `fdatasync` each.
//! Use it to check one change; `treering-bench` measures everything.

use std::{hint::black_box, io::Write, time::Instant};

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use futures::future::try_join_all;
use tokio::runtime::Runtime;
use treering::{domain::*, engine::*};

const BODY_BYTES: usize = 1_000;
/// Concurrent appends.
const WRITERS: usize = 64;

fn noise(seed: u64) -> Bytes {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(BODY_BYTES + 8);
    while bytes.len() < BODY_BYTES {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(BODY_BYTES);
    bytes.into()
}

fn event(conversation: ConversationId, seed: u64) -> NewEvent {
    let body = EventBody::Custom(Custom {
        type_name: "bench".into(),
        content_type: String::new(),
        data: noise(seed),
        text: String::new(),
        delta_of: String::new(),
    });
    NewEvent::new(conversation, body)
}

fn command(events: Vec<NewEvent>) -> AppendCommand {
    AppendCommand::new(Namespace::default(), events)
}

async fn store(dir: &std::path::Path) -> (Engine, Vec<ConversationId>) {
    let engine = Engine::open(treering::engine::OpenOptions::new(dir))
        .await
        .unwrap();
    let ids: Vec<_> = (0..WRITERS).map(|_| ConversationId::generate()).collect();
    for id in &ids {
        let created = EventBody::ConversationCreated(ConversationCreated::default());
        let first = command(vec![NewEvent::new(*id, created)]);
        engine.append(first).await.unwrap();
    }
    (engine, ids)
}

fn appends(criterion: &mut Criterion) {
    let runtime = Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (engine, ids) = runtime.block_on(store(&folder.path().join("store")));
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(folder.path().join("raw"))
        .unwrap();

    let mut seed = 0;
    let mut next = || {
        seed += 1;
        seed
    };
    let mut group = criterion.benchmark_group("append/one");
    group.sample_size(20);
    group.bench_function("raw file", |bencher| {
        bencher.iter(|| {
            file.write_all(&noise(next())).unwrap();
            file.sync_data().unwrap();
        });
    });
    group.bench_function("treering", |bencher| {
        bencher.iter(|| {
            let append = engine.append(command(vec![event(ids[0], next())]));
            runtime.block_on(append).unwrap()
        });
    });
    group.finish();

    let mut group = criterion.benchmark_group("append/64 at once");
    group.sample_size(20);
    group.throughput(Throughput::Elements(WRITERS as u64));
    group.bench_function("raw file, one sync", |bencher| {
        bencher.iter(|| {
            let bodies: Vec<_> = ids.iter().map(|_| noise(next())).collect();
            file.write_all(&bodies.concat()).unwrap();
            file.sync_data().unwrap();
        });
    });
    group.bench_function("treering", |bencher| {
        bencher.iter_custom(|rounds| {
            let started = Instant::now();
            for _ in 0..rounds {
                let appends = ids
                    .iter()
                    .map(|id| engine.append(command(vec![event(*id, next())])));
                black_box(runtime.block_on(try_join_all(appends)).unwrap());
            }
            started.elapsed()
        });
    });
    group.finish();
    runtime.block_on(engine.close());
}

criterion_group!(benches, appends);
criterion_main!(benches);
