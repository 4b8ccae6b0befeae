//! The redb backend: the conformance suite, reopening, segments, power loss, full disks, damage.

mod damage;
mod faults;
mod folder;
mod full_disk;
mod measure;
mod missing;
mod patches;
mod power_loss;
mod rewrite;
mod scrub;

use std::sync::Arc;

use super::{simulated_disk::SimulatedDisk, *};
use crate::{
    patch::{self, BodyPatch},
    port::NewBlob,
    reader::LogReader,
    record::Record,
    testkit::{conformance, samples},
};

const SHARD: ShardId = ShardId(0);

/// Options with segments so small that a test fills several.
fn small() -> RedbLogOptions {
    RedbLogOptions {
        segment_bytes_max: 2 << 20,
        sealed_open_max: 2,
        ..RedbLogOptions::default()
    }
}

async fn append<F: Folder>(log: &RedbLog<F>, records: &[Record]) -> Result<u64, LogError> {
    let owner = log.acquire(SHARD).await?;
    let batch = samples::batch(owner.head + 1, records);
    log.append(SHARD, owner.epoch, owner.head, batch).await
}

/// Returns the patch from a stored body to another one.
fn patch_on(base: &NewBlob, body: &[u8]) -> BodyPatch {
    let bytes = patch::diff(&base.bytes, body).unwrap();
    BodyPatch {
        base_home: base.home_offset,
        bytes: bytes.expect("they are alike").into(),
    }
}

async fn all<F: Folder>(log: Arc<RedbLog<F>>) -> Result<Vec<Record>, LogError> {
    let reader = LogReader::new(log, SHARD, 4 << 20);
    let read = reader.records(1, usize::MAX, usize::MAX).await?;
    Ok(read.into_iter().map(|(_, record)| record).collect())
}

/// Inspects a log and repairs it if allowed.
fn repair(data: &Path, witness: &ConsistencyEvidence, accept: bool) -> Result<LogRepair, LogError> {
    let looking = RepairSession::to_look(data)?;
    let told = looking.look(witness)?;
    if !told.can_be_rebuilt && (!accept || told.is_whole()) {
        return Ok(told);
    }
    drop(looking);
    RepairSession::to_mend(data)?.mend(witness, accept)
}

#[tokio::test(flavor = "multi_thread")]
async fn redb_log_passes_the_conformance_suite() {
    // The suite defines the port; all backends must pass it. Once with one segment, once with many.
    for options in [RedbLogOptions::default(), small()] {
        let folder = tempfile::tempdir().unwrap();
        let next = std::sync::atomic::AtomicU32::new(0);
        let make = || {
            let name = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            RedbLog::open(
                &folder.path().join(name.to_string()),
                options,
                OpenMode::Create,
            )
            .unwrap()
        };
        conformance::run_all(make).await;
        conformance::run_erasing(make).await;
    }
}

#[tokio::test]
async fn log_of_many_segments_reopens_unchanged() {
    // Whichever segment a record is in, and whether the log was closed or only dropped: reopening
    // changes nothing, and appends continue.
    let folder = tempfile::tempdir().unwrap();
    let mut expected = Vec::new();
    for round in 0..4 {
        let log = Arc::new(RedbLog::open(folder.path(), small(), OpenMode::Create).unwrap());
        assert_eq!(
            log.acquire(SHARD).await.unwrap().head,
            expected.len() as u64
        );
        for _ in 0..3 {
            let records: Vec<_> = (0..50).map(|_| samples::noisy_record(20_000)).collect();
            append(&log, &records).await.unwrap();
            expected.extend(records);
        }
        assert!(all(Arc::clone(&log)).await.unwrap() == expected, "{round}");
        if round % 2 == 0 {
            log.close().await.unwrap();
        }
    }
    let log = RedbLog::open(folder.path(), small(), OpenMode::Create).unwrap();
    let stats = log.stats(SHARD).await.unwrap();
    assert!(stats.segments > 3, "{stats:?}");
}

#[tokio::test]
async fn second_log_on_one_folder_is_refused() {
    // Two processes that append to one folder would destroy it.
    let folder = tempfile::tempdir().unwrap();
    let log = RedbLog::open(folder.path(), small(), OpenMode::Create).unwrap();
    let secret = crate::HolderSecret::generate().unwrap();
    log.announce("http://127.0.0.1:7171", &secret).unwrap();
    let error = RedbLog::open(folder.path(), small(), OpenMode::Create).unwrap_err();
    assert!(matches!(error, LogError::Locked { .. }), "{error}");
    log.close().await.unwrap();
    RedbLog::open(folder.path(), small(), OpenMode::Create).unwrap();
}

#[tokio::test]
async fn single_append_syncs_once() {
    // The sync is most of an append's cost: a second one would double it.
    let disk = SimulatedDisk::new(1);
    let log =
        RedbLog::open_with(disk.clone(), RedbLogOptions::default(), OpenMode::Create).unwrap();
    append(&log, &samples::records(1, 1000)).await.unwrap();
    let before = disk.syncs();
    for _ in 0..20 {
        append(&log, &samples::records(1, 1000)).await.unwrap();
    }
    assert_eq!(disk.syncs() - before, 20);
}
