//! A measurement, which asserts nothing about times.

use std::{sync::Arc, time::Instant};

use tokio::task::JoinSet;
use treering_domain::ShardId;
use treering_log::{EventLog, Record, testkit::samples};

use crate::server::{Server, open, quick};

const IN_FLIGHT: u32 = 32;
const GROUPS_EACH: usize = 100;

fn stored_bytes(records: &[Record]) -> usize {
    let batch = samples::batch(1, records);
    batch.frames.iter().map(|frame| frame.bytes.len()).sum()
}

// Compares appends with what PostgreSQL can commit: appends to 32 shards, and plain inserts of as
// many bytes on 32 connections, both with a synchronous standby.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement: .ci/postgres.sh --measure"]
async fn appends_beside_plain_inserts() {
    let Some((primary, _standby)) = Server::pair().await else {
        return;
    };
    let database = primary.new_log().await;
    let url = primary.url(&database);
    let log = Arc::new(open(&url, quick()).await);
    let plain = "create table plain (id bigserial primary key, bytes bytea not null); \
                 alter table plain alter column bytes set storage external";
    primary.sql_in(&database, plain).await;
    for (step, events) in [10, 170].into_iter().enumerate() {
        let records = samples::records(events, 1_024);
        let bytes = stored_bytes(&records);
        let started = Instant::now();
        let mut inserts = JoinSet::new();
        for _ in 0..IN_FLIGHT {
            let connecting = tokio_postgres::connect(&url, tokio_postgres::NoTls).await;
            let (client, connection) = connecting.unwrap();
            tokio::spawn(connection);
            let body = samples::noise(bytes);
            inserts.spawn(async move {
                let insert = client
                    .prepare("insert into plain (bytes) values ($1)")
                    .await
                    .unwrap();
                for _ in 0..GROUPS_EACH {
                    client.execute(&insert, &[&&*body]).await.unwrap();
                }
            });
        }
        inserts.join_all().await;
        let plain = started.elapsed();
        // Encoding is not PostgreSQL's work, so it is not measured.
        let mut batches: Vec<_> = (0..GROUPS_EACH)
            .map(|group| (group * events) as u64)
            .map(|head| (head, samples::batch(head + 1, &records)))
            .collect();
        batches.reverse();
        let started = Instant::now();
        let mut appends = JoinSet::new();
        for number in 0..IN_FLIGHT {
            let (log, mut batches) = (Arc::clone(&log), batches.clone());
            let shard = ShardId(IN_FLIGHT * u32::try_from(step).unwrap() + number);
            appends.spawn(async move {
                let epoch = log.acquire(shard).await.unwrap().epoch;
                while let Some((head, batch)) = batches.pop() {
                    log.append(shard, epoch, head, batch).await.unwrap();
                }
            });
        }
        appends.join_all().await;
        let appended = started.elapsed();
        let groups = f64::from(IN_FLIGHT) * GROUPS_EACH as f64;
        println!(
            "groups of {} KB: {:.2} of plain inserts ({:.0} events/s, {:.0} MB/s stored)",
            bytes / 1_000,
            plain.as_secs_f64() / appended.as_secs_f64(),
            groups * events as f64 / appended.as_secs_f64(),
            groups * bytes as f64 / appended.as_secs_f64() / 1e6,
        );
    }
}
