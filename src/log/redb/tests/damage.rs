//! Flipped bits in segment files.

use std::path::Path;

use super::*;
use crate::testkit::samples::Random;

fn segment_paths(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut paths: Vec<_> = std::fs::read_dir(folder.join(LOG_FOLDER))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "redb"))
        .collect();
    paths.sort();
    paths
}

#[tokio::test]
async fn flipped_byte_never_gives_wrong_data() {
    // A flipped bit anywhere in a segment file, in frames, large bodies or redb's own tree: a read
    // returns the right data or an error.
    let folder = tempfile::tempdir().unwrap();
    let mut expected = Vec::new();
    {
        let log = RedbLog::open(folder.path(), small(), OpenMode::Create).unwrap();
        for size in [1, 30, 200, 1, 1, 5] {
            let records = samples::records(size, 900);
            append(&log, &records).await.unwrap();
            expected.extend(records);
        }
        log.close().await.unwrap();
    }
    let path = segment_paths(folder.path()).pop().unwrap();
    let sound = std::fs::read(&path).unwrap();
    let mut random = Random(11);
    let mut errors = 0;
    // Most of a small file is empty, so half of the flips hit used bytes.
    let used: Vec<usize> = (0..sound.len()).filter(|at| sound[*at] != 0).collect();
    for turn in 0..400 {
        let at = if turn % 2 == 0 {
            used[random.below(used.len() as u64) as usize]
        } else {
            random.below(sound.len() as u64) as usize
        };
        let mut damaged = sound.clone();
        damaged[at] ^= 1 << random.below(8);
        std::fs::write(&path, &damaged).unwrap();
        let read = match RedbLog::open(folder.path(), small(), OpenMode::Create) {
            Ok(log) => all(Arc::new(log)).await,
            Err(error) => Err(error),
        };
        match read {
            Ok(read) => assert!(
                read == expected,
                "byte {at}: {} of {} records, or wrong ones",
                read.len(),
                expected.len()
            ),
            Err(error) => {
                errors += 1;
                assert!(
                    matches!(
                        error,
                        LogError::Damaged { .. }
                            | LogError::NewerFormat { .. }
                            | LogError::Regressed { .. }
                            | LogError::Io { .. }
                    ),
                    "byte {at}: {error:?}"
                );
            }
        }
        std::fs::write(&path, &sound).unwrap();
    }
    assert!(errors > 50, "only {errors} flips were noticed");
}

#[tokio::test]
async fn damage_of_a_file_header_is_detected() {
    // redb's header says which of two commits is the last one: a flip there must not silently
    // shorten the log.
    let folder = tempfile::tempdir().unwrap();
    let mut expected = Vec::new();
    {
        let log = RedbLog::open(folder.path(), small(), OpenMode::Create).unwrap();
        for size in [20, 20, 1] {
            let records = samples::records(size, 900);
            append(&log, &records).await.unwrap();
            expected.extend(records);
        }
        log.close().await.unwrap();
    }
    let path = segment_paths(folder.path()).pop().unwrap();
    let sound = std::fs::read(&path).unwrap();
    let mut wrong = Vec::new();
    for at in 0..320 {
        for bit in [0, 1, 5] {
            let mut damaged = sound.clone();
            damaged[at] ^= 1 << bit;
            std::fs::write(&path, &damaged).unwrap();
            if let Ok(log) = RedbLog::open(folder.path(), small(), OpenMode::Create)
                && let Ok(read) = all(Arc::new(log)).await
                && read != expected
            {
                wrong.push((at, bit, read.len()));
            }
        }
    }
    assert!(wrong.is_empty(), "byte, bit, records: {wrong:?}");
}

#[tokio::test]
async fn damage_of_one_segment_leaves_others_readable() {
    // A damaged or missing sealed segment is reported by offset; everything else is readable, and
    // appends continue.
    let folder = tempfile::tempdir().unwrap();
    let log = RedbLog::open(folder.path(), small(), OpenMode::Create).unwrap();
    for _ in 0..8 {
        let records: Vec<_> = (0..40).map(|_| samples::noisy_record(20_000)).collect();
        append(&log, &records).await.unwrap();
    }
    log.close().await.unwrap();
    let paths = segment_paths(folder.path());
    assert!(paths.len() > 3, "{paths:?}");
    let sound = std::fs::read(&paths[1]).unwrap();
    let second = {
        let name = paths[1].file_stem().unwrap().to_str().unwrap();
        u64::from_str_radix(name, 16).unwrap()
    };
    for damage in ["noise", "cut", "gone"] {
        match damage {
            "noise" => std::fs::write(&paths[1], samples::noise(sound.len())).unwrap(),
            "cut" => std::fs::write(&paths[1], &sound[..sound.len() / 2]).unwrap(),
            _ => std::fs::remove_file(&paths[1]).unwrap(),
        }
        let log = Arc::new(RedbLog::open(folder.path(), small(), OpenMode::Create).unwrap());
        let head = append(&log, &samples::records(1, 10)).await.unwrap();
        let reader = LogReader::new(Arc::clone(&log) as Arc<dyn EventLog>, SHARD, 1 << 20);
        assert!(reader.record(1).await.is_ok());
        assert!(reader.record(head).await.is_ok());
        let error = reader.records(second, 1, 1).await.unwrap_err();
        assert!(
            matches!(error, LogError::Damaged { offset, .. } if offset >= second - 1),
            "{damage}: {error:?}"
        );
        // A read that starts before the damage returns the sound part, then the error.
        let before = reader.records(1, usize::MAX, usize::MAX).await;
        assert!(matches!(before, Err(LogError::Damaged { .. })), "{damage}");
        log.close().await.unwrap();
    }
}

// A read that continued after a sound frame reached a corrupt tree page, and the whole read failed
// as if the sound frame were damaged. Salvage then left out readable events.
#[tokio::test]
async fn damage_behind_a_frame_does_not_hide_the_frame() {
    const PAGE: usize = 4096;
    for as_blocks in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let log =
            RedbLog::open(folder.path(), RedbLogOptions::default(), OpenMode::Create).unwrap();
        let records: Vec<_> = (0..400).map(|_| samples::noisy_record(300)).collect();
        for batch in records.chunks(2) {
            append(&log, batch).await.unwrap();
        }
        log.seal(400).unwrap();
        if as_blocks {
            let never = std::sync::atomic::AtomicBool::new(false);
            while log.rewrite_next(&never).unwrap().is_some() {}
        }
        log.close().await.unwrap();
        let path = segment_paths(folder.path()).remove(0);
        let sound = std::fs::read(&path).unwrap();
        let (mut damaged_pages, mut hidden, mut given_up) = (0, Vec::new(), Vec::new());
        // Noise that ends within a page destroys its header and leaves its values, or the reverse.
        for at in (PAGE..sound.len() - PAGE).step_by(PAGE / 2) {
            if sound[at..at + PAGE].iter().all(|byte| *byte == 0) {
                continue;
            }
            let mut damaged = sound.clone();
            damaged[at..at + PAGE].copy_from_slice(&samples::noise(PAGE));
            std::fs::write(&path, &damaged).unwrap();
            let opened = RedbLog::open(folder.path(), RedbLogOptions::default(), OpenMode::Read);
            let Ok(log) = opened else { continue };
            damaged_pages += 1;
            let mut readable = 0;
            for offset in (1..=400).step_by(7) {
                let alone = log.read(SHARD, offset, 1).await;
                let with_more = log.read(SHARD, offset, 1 << 20).await;
                readable += usize::from(alone.is_ok());
                if alone.is_ok() && with_more.is_err() {
                    hidden.push((at, offset));
                }
            }
            log.close().await.unwrap();
            // Repair gave up whole segments because of one corrupt page, although their other
            // frames could be read.
            let session = RepairSession::to_look(folder.path()).unwrap();
            let seen = session.look(&ConsistencyEvidence::default()).unwrap();
            let is_end_lost = |why: &str| why.contains("reading the last");
            let mut unusable = seen.unusable.clone();
            // A segment whose end is unknown is rightly unusable.
            unusable.retain(|(_, why)| !is_end_lost(why));
            if readable > 0 && !unusable.is_empty() {
                given_up.push((at, readable, unusable));
            }
        }
        assert!(damaged_pages > 5, "{damaged_pages} pages");
        assert!(hidden.is_empty(), "blocks: {as_blocks}; {hidden:?}");
        assert!(given_up.is_empty(), "blocks: {as_blocks}; {given_up:?}");
    }
}
