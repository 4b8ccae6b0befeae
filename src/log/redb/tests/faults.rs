//! Failing syncs, exhausted handles and failing renames, at each call of an append, a seal and a
//! recovery.

use super::*;
use crate::{
    redb::simulated_disk::{Fault, SimulatedDisk},
    testkit::samples::Random,
};

fn options() -> RedbLogOptions {
    RedbLogOptions {
        segment_bytes_max: 1600 << 10,
        cache_bytes: 1 << 20,
        ..small()
    }
}

/// Appends `count` records and adds them to `kept` if they were acknowledged.
async fn try_append(
    log: &RedbLog<SimulatedDisk>,
    kept: &mut Vec<Record>,
    count: usize,
    bytes: usize,
) -> Result<(), LogError> {
    let records: Vec<_> = (0..count).map(|_| samples::noisy_record(bytes)).collect();
    append(log, &records).await?;
    kept.extend(records);
    Ok(())
}

/// Checks that after a crash now everything acknowledged is there, and that appends continue. A
/// batch that failed with an unknown outcome may be there after it.
async fn assert_kept(disk: &SimulatedDisk, kept: &[Record], unknown: bool, story: &str) {
    let log = RedbLog::open_with(disk.if_it_crashed(), options(), OpenMode::Append)
        .unwrap_or_else(|error| panic!("{story}: the log does not open: {error}"));
    let log = Arc::new(log);
    let read = all(Arc::clone(&log))
        .await
        .unwrap_or_else(|error| panic!("{story}: {error}"));
    assert!(read.len() >= kept.len(), "{story}: events are lost");
    assert!(read[..kept.len()] == *kept, "{story}: other events");
    assert!(
        unknown || read.len() == kept.len(),
        "{story}: what was refused is there"
    );
    append(&log, &samples::records(1, 10)).await.unwrap();
}

#[tokio::test]
async fn failed_seal_loses_no_acknowledged_event() {
    // A seal that failed after its rename left the old segment in use: later appends were
    // acknowledged and went there, and after a restart the empty new segment replaced it. Whichever
    // call fails, and whenever the power fails then, the same log must come back.
    let faults = [
        Fault::Handle,
        Fault::Rename,
        Fault::FolderSync,
        Fault::Sync,
        Fault::SyncAndForget,
    ];
    let (mut came, mut refused) = (0, 0);
    for fault in faults {
        for after in 0..12 {
            let story = format!("{fault:?} after {after}");
            let disk = SimulatedDisk::new(after);
            let log = RedbLog::open_with(disk.clone(), options(), OpenMode::Create).unwrap();
            let mut kept = Vec::new();
            while log.stats(SHARD).await.unwrap().segments < 2 {
                try_append(&log, &mut kept, 20, 5_000).await.unwrap();
            }
            disk.fail(fault, after);
            let mut unknown = false;
            for _ in 0..60 {
                match try_append(&log, &mut kept, 20, 5_000).await {
                    Ok(()) => unknown = false,
                    Err(error) => {
                        refused += 1;
                        unknown = matches!(error, LogError::UnknownOutcome { .. });
                        assert_kept(&disk, &kept, unknown, &story).await;
                    }
                }
            }
            came += u32::from(disk.faults_left() == 0);
            disk.clear_faults();
            // The log recovers by itself.
            try_append(&log, &mut kept, 3, 100)
                .await
                .unwrap_or_else(|error| panic!("{story}: {error}"));
            assert_kept(&disk, &kept, unknown, &story).await;
            let read = log.read(SHARD, 1, usize::MAX).await.unwrap();
            assert_eq!(read.last().unwrap().last_offset(), kept.len() as u64);
        }
    }
    println!("{came} faults came, {refused} appends were refused");
    assert!(came > 40 && refused > 3);
}

#[tokio::test]
async fn failed_sync_is_never_acknowledged() {
    // The system treats the pages of a failed sync as written: reading them back shows the batch,
    // and the next power loss removes it or tears what was written after it. A batch whose sync
    // failed must not be acknowledged, and later batches must not depend on it.
    for fault in [Fault::Sync, Fault::SyncAndForget] {
        for seed in 0..40 {
            let story = format!("{fault:?}, seed {seed}");
            let disk = SimulatedDisk::new(seed);
            let mut random = Random(seed);
            let log = RedbLog::open_with(disk.clone(), options(), OpenMode::Create).unwrap();
            let mut kept = Vec::new();
            for _ in 0..1 + random.below(20) {
                try_append(&log, &mut kept, 3, 2_000).await.unwrap();
            }
            disk.fail(fault, 0);
            let failed = try_append(&log, &mut kept, 3, 2_000).await;
            assert!(failed.is_err(), "{story}");
            assert_kept(&disk, &kept, false, &story).await;
            for _ in 0..1 + random.below(10) {
                try_append(&log, &mut kept, 3, 2_000).await.unwrap();
                assert_kept(&disk, &kept, false, &story).await;
            }
            log.close().await.unwrap();
            assert_kept(&disk, &kept, false, &story).await;
        }
    }
}

#[tokio::test]
async fn failing_disk_stops_appends_but_not_reads() {
    // While no sync succeeds, nothing can be acknowledged, but reads always work; once the disk
    // recovers, appends continue without reopening the log.
    let disk = SimulatedDisk::new(5);
    let log = Arc::new(RedbLog::open_with(disk.clone(), options(), OpenMode::Create).unwrap());
    let mut kept = Vec::new();
    for _ in 0..10 {
        try_append(&log, &mut kept, 5, 3_000).await.unwrap();
    }
    for _ in 0..500 {
        disk.fail(Fault::SyncAndForget, 0);
    }
    for _ in 0..30 {
        let failed = try_append(&log, &mut kept, 2, 100).await;
        assert!(failed.is_err());
        let read = all(Arc::clone(&log)).await.unwrap();
        assert!(read == kept);
    }
    disk.clear_faults();
    try_append(&log, &mut kept, 2, 100).await.unwrap();
    assert!(all(Arc::clone(&log)).await.unwrap() == kept);
    assert_kept(&disk, &kept, false, "after it was well again").await;
    let names = disk.file_names();
    let segments = names.iter().filter(|name| name.ends_with(".redb"));
    assert_eq!(segments.count(), 1, "left over: {names:?}");
}
