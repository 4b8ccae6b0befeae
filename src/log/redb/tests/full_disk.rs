//! A disk that is full for a while.

use super::*;
use crate::redb::simulated_disk::DiskFullAt;

#[tokio::test]
async fn full_disk_refuses_only_appends() {
    // Wherever the system reports a full disk, appends fail with NoSpace, reads work, nothing is
    // lost or partly written, and appends work again once there is space, without reopening the
    // log.
    for full in [DiskFullAt::Asked, DiskFullAt::Growth, DiskFullAt::Write] {
        for room in [0, 100_000, 1_000_000, 5_000_000] {
            let disk = SimulatedDisk::new(room);
            let log =
                Arc::new(RedbLog::open_with(disk.clone(), small(), OpenMode::Create).unwrap());
            let mut expected = Vec::new();
            let mut refused = 0;
            for round in 0..3 {
                for _ in 0..5 {
                    let records: Vec<_> = (0..20).map(|_| samples::noisy_record(5_000)).collect();
                    append(&log, &records).await.unwrap();
                    expected.extend(records);
                }
                disk.set_room(Some((room, full)));
                for _ in 0..150 {
                    let records: Vec<_> = (0..20).map(|_| samples::noisy_record(5_000)).collect();
                    match append(&log, &records).await {
                        Ok(_) => expected.extend(records),
                        Err(LogError::NoSpace { .. }) => {
                            refused += 1;
                            break;
                        }
                        Err(error) => panic!("{full:?}, room {room}, round {round}: {error}"),
                    }
                }
                let read = all(Arc::clone(&log)).await;
                let read = read.unwrap_or_else(|e| panic!("{full:?}, room {room}: {e}"));
                assert!(read == expected, "{full:?}, room {room}, round {round}");
                disk.set_room(None);
            }
            assert!(refused > 0, "{full:?}, room {room}");
            append(&log, &samples::records(3, 100)).await.unwrap();
        }
    }
}

#[tokio::test]
async fn full_file_system_refuses_only_appends() {
    // The same on a real file system, if one is given: an empty folder on a small one (32 MiB or
    // so), in `TREERING_SMALL_DISK`.
    let Some(place) = std::env::var_os("TREERING_SMALL_DISK") else {
        println!("skipped: TREERING_SMALL_DISK names no small file system");
        return;
    };
    let folder = tempfile::tempdir_in(place).unwrap();
    let ballast = folder.path().join("ballast");
    let log = Arc::new(RedbLog::open(folder.path(), small(), OpenMode::Create).unwrap());
    let mut expected = Vec::new();
    for round in 0..3 {
        std::fs::write(&ballast, samples::noise(6 << 20)).unwrap();
        loop {
            let records: Vec<_> = (0..20).map(|_| samples::noisy_record(5_000)).collect();
            match append(&log, &records).await {
                Ok(_) => expected.extend(records),
                Err(LogError::NoSpace { .. }) => break,
                Err(error) => panic!("round {round}: {error}"),
            }
        }
        let read = all(Arc::clone(&log)).await.unwrap();
        assert!(read == expected, "round {round}");
        std::fs::remove_file(&ballast).unwrap();
        let records = samples::records(3, 100);
        append(&log, &records).await.unwrap();
        expected.extend(records);
        println!("round {round}: {} records", expected.len());
    }
}
