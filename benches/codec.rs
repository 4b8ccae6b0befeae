//! Compares encoding and decoding of bodies and frames with copying and compressing the same bytes.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use treering::{
    domain::*,
    log::{Record, RecordBody, Salt, frame},
    proto::{body, json},
};
use uuid::Uuid;

const ARGUMENTS: &[u8] =
    br#"{"path": "src/engine/append.rs", "from": 1, "to": 120, "options": {"numbers": true}}"#;
const RECORDS: u64 = 200;

fn result(number: u64) -> EventBody {
    let line = format!("{number}: pub fn append(&self, command: AppendCommand) -> Outcome {{\n");
    EventBody::ToolResultRecorded(ToolResultRecorded::text("call_1", line.repeat(12)))
}

fn record(number: u64) -> Record {
    let bytes = body::encode(&result(number));
    let hash = Record::hash_body(&bytes);
    let header = EventHeader {
        id: EventId(Uuid::from_u128(u128::from(number))),
        namespace: Namespace::default(),
        conversation: ConversationId(Uuid::from_u128(7)),
        branch: BranchId::MAIN,
        revision: Revision(number),
        kind: EventKind::ToolResultRecorded.number(),
        recorded_at: TimestampMicros(1_700_000_000_000_000),
        occurred_at: None,
        actor: String::new(),
        causation_id: None,
        correlation_id: String::new(),
    };
    let body = RecordBody::Inline(bytes);
    let salted = Salt::random().hash(hash);
    Record::seal(ContentHash::default(), header, body, salted, None).unwrap()
}

fn bodies(criterion: &mut Criterion) {
    let event = result(1);
    let encoded = body::encode(&event);
    let mut group = criterion.benchmark_group("codec/body");
    group.throughput(Throughput::Bytes(encoded.len() as u64));
    group.bench_function("copy", |bencher| {
        bencher.iter(|| Bytes::copy_from_slice(black_box(&encoded)));
    });
    group.bench_function("encode", |bencher| {
        bencher.iter(|| body::encode(black_box(&event)));
    });
    group.bench_function("decode", |bencher| {
        let kind = EventKind::ToolResultRecorded;
        bencher.iter(|| body::decode(kind, black_box(&encoded)).unwrap());
    });
    group.finish();

    let mut group = criterion.benchmark_group("codec/json");
    group.throughput(Throughput::Bytes(ARGUMENTS.len() as u64));
    group.bench_function("utf8 only", |bencher| {
        bencher.iter(|| std::str::from_utf8(black_box(ARGUMENTS)).is_ok());
    });
    group.bench_function("check", |bencher| {
        bencher.iter(|| json::check_text(black_box(ARGUMENTS)).is_ok());
    });
    group.finish();
}

fn frames(criterion: &mut Criterion) {
    let records: Vec<_> = (1..=RECORDS).map(record).collect();
    let frames = frame::encode_group(1, &records).unwrap();
    let mut raw = Vec::new();
    for number in 1..=RECORDS {
        raw.extend_from_slice(&body::encode(&result(number)));
    }
    let mut group = criterion.benchmark_group("codec/frame");
    group.throughput(Throughput::Elements(RECORDS));
    group.bench_function("zstd of the bodies", |bencher| {
        bencher.iter(|| zstd::bulk::compress(black_box(&raw), 1).unwrap());
    });
    group.bench_function("encode", |bencher| {
        bencher.iter(|| frame::encode_group(1, black_box(&records)).unwrap());
    });
    group.bench_function("decode", |bencher| {
        bencher.iter(|| {
            for frame in &frames {
                black_box(frame::decode(black_box(frame)).unwrap());
            }
        });
    });
    group.finish();
}

criterion_group!(benches, bodies, frames);
criterion_main!(benches);
