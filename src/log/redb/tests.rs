//! The redb backend: the common suite, reopening, segments, damage.

use std::sync::Arc;

use super::*;
use crate::log::{conformance, frame, reader::LogReader, samples};

const SHARD: ShardId = ShardId(0);

fn small() -> RedbLogOptions {
    RedbLogOptions {
        segment_bytes_max: 2 << 20,
        sealed_open_max: 2,
        ..RedbLogOptions::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_in_redb_conforms() {
    // The suite is what the port means; both backends must agree on it. Once
    // with one segment, once with many.
    for options in [RedbLogOptions::default(), small()] {
        let folder = tempfile::tempdir().unwrap();
        let next = std::sync::atomic::AtomicU32::new(0);
        conformance::run_all(|| {
            let name = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            RedbLog::open(&folder.path().join(name.to_string()), options).unwrap()
        })
        .await;
    }
}
