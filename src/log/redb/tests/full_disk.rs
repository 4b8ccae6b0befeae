//! The disk is full, and then it is not.

use super::*;
use crate::log::redb::simulated::Full;

#[tokio::test]
async fn a_full_disk_refuses_appends_and_nothing_else() {
    // Wherever the system says that the disk is full: appends fail as NoSpace,
    // reads go on, nothing is lost or half there, and appends work again once
    // there is room, without opening the log again.
    for full in [Full::AtReserve, Full::AtGrowth, Full::AtWrite] {
        for room in [0, 100_000, 1_000_000, 5_000_000] {
            let disk = SimulatedDisk::new(room);
            let log = Arc::new(RedbLog::open_with(disk.clone(), small()).unwrap());
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
