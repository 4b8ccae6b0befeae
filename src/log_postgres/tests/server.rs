//! Logs in PostgreSQL, and records for them.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use treering_domain::ShardId;
use treering_log::{EventLog, FrameBatch, LogError, Record, testkit::samples};
use treering_log_postgres::{PostgresLog, PostgresLogOptions, create_schema};

#[path = "installed.rs"]
mod installed;

pub use installed::Server;

pub const SHARD: ShardId = ShardId(0);

impl Server {
    /// Creates a database with an empty log.
    pub async fn new_log(&self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("log{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.sql(&format!("create database {name}")).await;
        create_schema(&self.url(&name), 64).await.unwrap();
        name
    }
}

/// Options of tests: short waits.
pub fn quick() -> PostgresLogOptions {
    PostgresLogOptions {
        deadline: Duration::from_secs(2),
        poll_interval: Duration::from_millis(50),
        ..PostgresLogOptions::default()
    }
}

/// Options for one server.
pub fn single_copy() -> PostgresLogOptions {
    PostgresLogOptions {
        accept_single_copy: true,
        deadline: Duration::from_secs(30),
        ..quick()
    }
}

pub async fn open(url: &str, options: PostgresLogOptions) -> PostgresLog {
    PostgresLog::open(url, options).await.unwrap()
}

/// Returns records, and a batch of them after a head.
pub fn batch(head: u64, count: usize) -> (Vec<Record>, FrameBatch) {
    let records = samples::records(count, 300);
    let batch = samples::batch(head + 1, &records);
    (records, batch)
}

/// Acquires the shard; retries until it succeeds.
pub async fn acquire(log: &impl EventLog) -> treering_log::AcquiredShard {
    for _ in 0..200 {
        match log.acquire(SHARD).await {
            Ok(acquired) => return acquired,
            Err(
                error @ (LogError::Io { .. }
                | LogError::Unavailable { .. }
                | LogError::UnknownOutcome { .. }),
            ) => {
                println!("acquire: {error}");
            }
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the shard cannot be acquired");
}

/// Reads all records.
pub async fn read_all(log: &impl EventLog) -> Vec<Record> {
    let mut records = Vec::new();
    loop {
        let from = records.len() as u64 + 1;
        let frames = log.read(SHARD, from, 1 << 20).await.unwrap();
        if frames.is_empty() {
            return records;
        }
        for stored in frames {
            assert_eq!(stored.first_offset, records.len() as u64 + 1);
            records.extend(treering_log::frame::decode(&stored).unwrap().records);
        }
    }
}
