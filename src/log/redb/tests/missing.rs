//! Files that are missing, outdated, or from another store.

use std::path::Path;

use super::*;
use crate::redb::simulated_disk::SimulatedDisk;
use treering_base::disk::copying::copy_folder;

/// Fills a folder with some segments and closes the log.
async fn filled(folder: &Path) -> Vec<Record> {
    let log = RedbLog::open(folder, small(), OpenMode::Create).unwrap();
    let mut records = Vec::new();
    while log.stats(SHARD).await.unwrap().segments < 4 {
        let more: Vec<_> = (0..40).map(|_| samples::noisy_record(20_000)).collect();
        append(&log, &more).await.unwrap();
        records.extend(more);
    }
    log.close().await.unwrap();
    records
}

fn segments(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut paths: Vec<_> = std::fs::read_dir(folder.join(LOG_FOLDER))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "redb"))
        .collect();
    paths.sort();
    paths
}

fn reopened(folder: &Path) -> Result<RedbLog, LogError> {
    RedbLog::open(folder, small(), OpenMode::Append)
}

#[tokio::test]
async fn regressed_log_is_refused_and_unchanged() {
    // Each of these used to be accepted as a shorter log: offsets and idempotency keys were reused,
    // and a verification found no fault.
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path()).await;
    let last = segments(folder.path()).pop().unwrap();
    let older = folder.path().join("older");
    copy_folder(&folder.path().join(LOG_FOLDER), &older);
    {
        let log = reopened(folder.path()).unwrap();
        append(&log, &samples::records(5, 100)).await.unwrap();
        log.close().await.unwrap();
    }
    let log = folder.path().join(LOG_FOLDER);
    let whole = folder.path().join("whole");
    copy_folder(&log, &whole);
    type Harm<'a> = (&'a str, Box<dyn Fn() + 'a>);
    let harms: [Harm<'_>; 6] = [
        (
            "the last segment is deleted",
            Box::new(|| std::fs::remove_file(&last).unwrap()),
        ),
        (
            "the last segment is an older copy",
            Box::new(|| {
                std::fs::copy(older.join(last.file_name().unwrap()), &last).unwrap();
            }),
        ),
        (
            "the manifest is deleted",
            Box::new(|| std::fs::remove_file(log.join(MANIFEST)).unwrap()),
        ),
        (
            "the manifest is cut",
            Box::new(|| std::fs::write(log.join(MANIFEST), "{}").unwrap()),
        ),
        (
            "all segments are deleted",
            Box::new(|| {
                for path in segments(folder.path()) {
                    std::fs::remove_file(path).unwrap();
                }
            }),
        ),
        (
            "the last segment is empty",
            Box::new(|| std::fs::write(&last, "").unwrap()),
        ),
    ];
    for (what, harm) in harms {
        harm();
        let before = contents(&log);
        for mode in [OpenMode::Append, OpenMode::Create, OpenMode::Read] {
            let error = RedbLog::open(folder.path(), small(), mode).unwrap_err();
            assert!(
                matches!(error, LogError::Regressed { .. } | LogError::Damaged { .. }),
                "{what}, {mode:?}: {error:?}"
            );
            assert!(contents(&log) == before, "{what}, {mode:?}: it changed");
        }
        std::fs::remove_dir_all(&log).unwrap();
        copy_folder(&whole, &log);
        reopened(folder.path()).unwrap().close().await.unwrap();
    }
}

#[tokio::test]
async fn stray_segment_is_ignored() {
    // A file that was recognized by its name alone became the last segment, and the log continued
    // from its offset.
    let folder = tempfile::tempdir().unwrap();
    let records = filled(folder.path()).await;
    let other = tempfile::tempdir().unwrap();
    filled(other.path()).await;
    let stray = folder.path().join(LOG_FOLDER).join("0000000000ffffff.redb");
    std::fs::copy(&segments(other.path())[0], &stray).unwrap();
    let log = Arc::new(reopened(folder.path()).unwrap());
    assert!(all(Arc::clone(&log)).await.unwrap() == records);
    append(&log, &samples::records(1, 10)).await.unwrap();
    log.close().await.unwrap();
    assert!(stray.exists(), "what is not ours is not removed");
    // A file of this very store means that the manifest is outdated.
    std::fs::copy(&segments(folder.path())[1], &stray).unwrap();
    let error = reopened(folder.path()).unwrap_err();
    assert!(matches!(error, LogError::Regressed { .. }), "{error:?}");
}

#[tokio::test]
async fn segment_of_another_store_is_refused() {
    // The log served the other store's conversations without an error.
    let folder = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let records = filled(folder.path()).await;
    filled(other.path()).await;
    let (ours, theirs) = (segments(folder.path()), segments(other.path()));
    std::fs::copy(&theirs[0], &ours[0]).unwrap();
    let log = Arc::new(reopened(folder.path()).unwrap());
    let reader = LogReader::new(Arc::clone(&log) as Arc<dyn EventLog>, SHARD, 1 << 20);
    let error = reader.record(1).await.unwrap_err();
    assert!(matches!(error, LogError::Damaged { .. }), "{error:?}");
    let last = records.len() as u64;
    assert!(reader.record(last).await.unwrap() == records[records.len() - 1]);
    log.close().await.unwrap();
    // Nor may another segment of this store take its place.
    std::fs::copy(&ours[1], &ours[2]).unwrap();
    let log = Arc::new(reopened(folder.path()).unwrap());
    let reader = LogReader::new(Arc::clone(&log) as Arc<dyn EventLog>, SHARD, 1 << 20);
    let name = ours[2].file_stem().unwrap().to_str().unwrap();
    let first = u64::from_str_radix(name, 16).unwrap();
    let error = reader.record(first).await.unwrap_err();
    assert!(matches!(error, LogError::Damaged { .. }), "{error:?}");
    log.close().await.unwrap();
    // The last segment is checked before anything is appended.
    std::fs::copy(&theirs[3], &ours[3]).unwrap();
    let error = reopened(folder.path()).unwrap_err();
    assert!(matches!(error, LogError::Damaged { .. }), "{error:?}");
}

#[tokio::test]
async fn segments_have_their_own_locks() {
    // `LOCK` alone guarded the log: when it was deleted as stale under a running server, another
    // process could repair the live segment, and acknowledged events were damaged. A second folder
    // whose `log/` is the same folder has the same effect.
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path()).await;
    let served = Arc::new(reopened(folder.path()).unwrap());
    append(&served, &samples::records(3, 100)).await.unwrap();
    std::fs::remove_file(folder.path().join(LOCK_FILE)).unwrap();
    for mode in [OpenMode::Append, OpenMode::Create, OpenMode::Read] {
        let error = RedbLog::open(folder.path(), small(), mode).unwrap_err();
        assert!(
            matches!(error, LogError::Locked { .. }),
            "{mode:?}: {error:?}"
        );
    }
    #[cfg(unix)]
    {
        let beside = tempfile::tempdir().unwrap();
        let log = folder.path().join(LOG_FOLDER);
        std::os::unix::fs::symlink(log, beside.path().join(LOG_FOLDER)).unwrap();
        for mode in [OpenMode::Append, OpenMode::Read] {
            let error = RedbLog::open(beside.path(), small(), mode).unwrap_err();
            assert!(
                matches!(error, LogError::Locked { .. }),
                "{mode:?}: {error:?}"
            );
        }
    }
    append(&served, &samples::records(3, 100)).await.unwrap();
    let expected = all(Arc::clone(&served)).await.unwrap();
    served.close().await.unwrap();
    let again = Arc::new(reopened(folder.path()).unwrap());
    assert!(all(again).await.unwrap() == expected);
}

/// Returns every file of a folder with its bytes.
fn contents(folder: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(contents(&path));
        } else {
            files.push((path.clone(), std::fs::read(&path).unwrap()));
        }
    }
    files.sort();
    files
}

#[tokio::test]
async fn read_only_open_changes_no_file() {
    // Read commands used to open the log for writing, repair it, and create a store where there was
    // none. A log that was closed, one that was not, and one with damage in redb's own metadata can
    // be read without changing a byte, even by two readers at once.
    let nothing = tempfile::tempdir().unwrap();
    let error = RedbLog::open(nothing.path(), small(), OpenMode::Read).unwrap_err();
    assert!(matches!(error, LogError::NoStore { .. }), "{error:?}");
    assert_eq!(contents(nothing.path()), []);

    let folder = tempfile::tempdir().unwrap();
    let records = filled(folder.path()).await;
    let crashed = tempfile::tempdir().unwrap();
    let log = Arc::new(reopened(folder.path()).unwrap());
    append(&log, &samples::records(3, 100)).await.unwrap();
    // A copy of the folder as kill -9 leaves it.
    copy_folder(folder.path(), crashed.path());
    log.close().await.unwrap();
    for (folder, more) in [(folder.path(), 3), (crashed.path(), 3)] {
        let before = contents(folder);
        let one = Arc::new(RedbLog::open(folder, small(), OpenMode::Read).unwrap());
        let two = Arc::new(RedbLog::open(folder, small(), OpenMode::Read).unwrap());
        assert_eq!(
            all(Arc::clone(&one)).await.unwrap().len(),
            records.len() + more
        );
        assert_eq!(
            all(Arc::clone(&two)).await.unwrap().len(),
            records.len() + more
        );
        let refused = append(&one, &samples::records(1, 10)).await.unwrap_err();
        assert!(matches!(refused, LogError::OpenedToRead), "{refused:?}");
        one.close().await.unwrap();
        two.close().await.unwrap();
        drop((one, two));
        assert!(contents(folder) == before, "something changed");
    }
}

/// Returns the witness of projections that belong to the log and have processed this many events.
fn seen(events: usize) -> ConsistencyEvidence {
    ConsistencyEvidence {
        is_there: true,
        reached: events as u64,
        contradiction: None,
    }
}

#[tokio::test]
async fn repair_reports_the_loss_and_starts_a_timeline() {
    // After a loss the store must be usable again, but only on request, and a reader that remembers
    // an earlier position must notice the loss.
    let folder = tempfile::tempdir().unwrap();
    let records = filled(folder.path()).await;
    let identity = {
        let log = reopened(folder.path()).unwrap();
        let identity = log.identity();
        log.close().await.unwrap();
        identity
    };
    assert!(
        repair(folder.path(), &ConsistencyEvidence::default(), false)
            .unwrap()
            .is_whole()
    );
    let paths = segments(folder.path());
    let first_of = |path: &Path| {
        let name = path.file_stem().unwrap().to_str().unwrap();
        u64::from_str_radix(name, 16).unwrap()
    };
    std::fs::remove_file(&paths[3]).unwrap();
    std::fs::write(&paths[1], samples::noise(4096)).unwrap();
    let before = contents(folder.path());
    let told = repair(folder.path(), &seen(records.len()), false).unwrap();
    assert!(contents(folder.path()) == before, "telling changes nothing");
    let (second, third) = (first_of(&paths[1]), first_of(&paths[2]));
    let fourth = first_of(&paths[3]);
    let expected = [(second, third - 1), (fourth, records.len() as u64)];
    let lost: Vec<_> = told.lost.iter().map(|lost| (lost.from, lost.to)).collect();
    assert_eq!(lost, expected);
    assert_eq!(told.head, fourth - 1);
    let done = repair(folder.path(), &seen(records.len()), true).unwrap();
    assert!(done.moved_to.is_some());
    let log = Arc::new(reopened(folder.path()).unwrap());
    assert_eq!(log.identity().store, identity.store);
    assert_ne!(log.identity().timeline, identity.timeline);
    let reader = LogReader::new(Arc::clone(&log) as Arc<dyn EventLog>, SHARD, 1 << 20);
    assert!(reader.record(second - 1).await.is_ok());
    assert!(reader.record(second).await.is_err());
    assert!(reader.record(third).await.is_ok());
    assert_eq!(log.next_frame(SHARD, second).await.unwrap(), Some(third));
    assert_eq!(
        append(&log, &samples::records(1, 10)).await.unwrap(),
        fourth
    );
    log.close().await.unwrap();
    assert!(
        repair(folder.path(), &seen(fourth as usize), false)
            .unwrap()
            .is_whole()
    );
}

#[tokio::test]
async fn manifest_is_rebuilt_from_segments() {
    // When only the manifest is lost, and the segments and witnesses prove what it said, nothing
    // else is lost.
    let folder = tempfile::tempdir().unwrap();
    let records = filled(folder.path()).await;
    let manifest = folder.path().join(LOG_FOLDER).join(MANIFEST);
    let sound = std::fs::read(&manifest).unwrap();
    std::fs::write(&manifest, "no").unwrap();
    let told = repair(folder.path(), &seen(records.len()), false).unwrap();
    assert!(told.is_whole() && told.manifest_rebuilt, "{told:?}");
    let aside = Path::new(told.moved_to.as_ref().unwrap()).join(MANIFEST);
    assert_eq!(std::fs::read(aside).unwrap(), b"no");
    let timelines = |bytes: &[u8]| {
        let manifest = Manifest::decode(bytes).unwrap();
        let ids = manifest.timelines.iter().map(|timeline| timeline.id);
        (ids.collect::<Vec<_>>(), manifest.segments, manifest.reached)
    };
    assert_eq!(
        timelines(&std::fs::read(&manifest).unwrap()),
        timelines(&sound)
    );
    let log = Arc::new(reopened(folder.path()).unwrap());
    assert!(all(Arc::clone(&log)).await.unwrap() == records);
    append(&log, &samples::records(1, 10)).await.unwrap();
    log.close().await.unwrap();
}

#[tokio::test]
async fn unproven_manifest_needs_consent() {
    // What the segments cannot prove is reported, and requires acceptance.
    let folder = tempfile::tempdir().unwrap();
    let records = filled(folder.path()).await;
    let log = folder.path().join(LOG_FOLDER);
    std::fs::remove_file(log.join(MANIFEST)).unwrap();
    let paths = segments(folder.path());
    let whole = seen(records.len());
    let unproven = [ConsistencyEvidence::default(), seen(records.len() + 1)];
    for witness in &unproven {
        let told = repair(folder.path(), witness, false).unwrap();
        assert!(!told.is_whole() && !told.manifest_rebuilt, "{told:?}");
        assert!(told.unproven.is_some() != (told.events_lost() == 1));
        assert!(!log.join(MANIFEST).exists());
    }
    for harmed in [1, 3] {
        let sound = std::fs::read(&paths[harmed]).unwrap();
        std::fs::write(&paths[harmed], samples::noise(8192)).unwrap();
        let told = repair(folder.path(), &whole, false).unwrap();
        assert!(!told.is_whole() && !told.manifest_rebuilt, "{told:?}");
        assert_eq!(told.unusable.len(), 1, "{told:?}");
        assert!(!told.lost.is_empty(), "{told:?}");
        std::fs::write(&paths[harmed], sound).unwrap();
    }
    // A superfluous segment: only the manifest knew which one belonged to the log.
    let stray = log.join("0000000000ffffff.redb");
    std::fs::copy(&paths[1], &stray).unwrap();
    let told = repair(folder.path(), &whole, false).unwrap();
    assert!(!told.is_whole() && !told.manifest_rebuilt, "{told:?}");
    std::fs::remove_file(stray).unwrap();
    assert!(repair(folder.path(), &whole, false).unwrap().is_whole());
}

#[tokio::test]
async fn second_repair_changes_nothing() {
    // The empty segment with which a repair begins the next timeline was itself taken for an
    // unnamed file: each further repair moved it aside and began another timeline, and an
    // inspection reported a repaired store as damaged.
    let folder = tempfile::tempdir().unwrap();
    let records = filled(folder.path()).await;
    let last = segments(folder.path()).pop().unwrap();
    std::fs::remove_file(last).unwrap();
    let before = contents(folder.path());
    assert!(
        repair(folder.path(), &seen(records.len()), true)
            .unwrap()
            .went_on
    );
    let after = contents(folder.path());
    let all: Vec<_> = after.iter().map(|(_, bytes)| bytes).collect();
    for (path, bytes) in &before {
        let is_lock = path.ends_with(LOCK_FILE);
        assert!(
            is_lock || all.contains(&bytes),
            "{} is gone",
            path.display()
        );
    }
    for accept in [true, false] {
        let again = repair(folder.path(), &ConsistencyEvidence::default(), accept).unwrap();
        assert!(again.is_whole() && !again.went_on, "{again:?}");
        assert!(
            contents(folder.path()) == after,
            "a second repair changed something"
        );
    }
}

#[tokio::test]
async fn accepted_loss_is_not_reported_again() {
    // After the loss of a segment's end was accepted, each later repair reported it as lost again
    // and began another timeline; so did a repair after a gap that was recorded only in the
    // manifest.
    let folder = tempfile::tempdir().unwrap();
    let records = filled(folder.path()).await;
    let log = folder.path().join(LOG_FOLDER);
    let paths = segments(folder.path());
    std::fs::remove_file(log.join(MANIFEST)).unwrap();
    std::fs::remove_file(&paths[1]).unwrap();
    let done = repair(folder.path(), &seen(records.len()), true).unwrap();
    assert!(done.went_on && done.events_lost() > 0, "{done:?}");
    // A truncated sealed segment: its state before its last batch.
    let manifest = std::fs::read(log.join(MANIFEST)).unwrap();
    let mut manifest = Manifest::decode(&manifest).unwrap();
    let after = contents(folder.path());
    let again = repair(folder.path(), &seen(records.len()), true).unwrap();
    assert!(again.is_whole() && !again.went_on, "{again:?}");
    assert!(
        contents(folder.path()) == after,
        "a second repair changed something"
    );
    let third = &mut manifest.segments[2];
    let end = third.sealed.as_mut().unwrap();
    end.offset += 7;
    manifest.segments.truncate(3);
    let first = manifest.segments[2].sealed.as_ref().unwrap().offset + 1;
    manifest.segments.push(SegmentEntry {
        first,
        file: Some("0000000000ffffff.redb".to_owned()),
        sealed: None,
        form: None,
    });
    std::fs::write(log.join(MANIFEST), manifest.encode()).unwrap();
    let done = repair(folder.path(), &ConsistencyEvidence::default(), true).unwrap();
    assert!(done.went_on, "{done:?}");
    let again = repair(folder.path(), &ConsistencyEvidence::default(), false).unwrap();
    assert!(again.is_whole(), "{again:?}");
    reopened(folder.path()).unwrap().close().await.unwrap();
}

#[tokio::test]
async fn leftover_files_are_not_damage() {
    // A copy that replaced a segment leaves the old file behind when its process is killed, and
    // unrelated files may be in the folder: opening ignores both, but a repair reported them as
    // damage.
    let folder = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    filled(folder.path()).await;
    filled(other.path()).await;
    let log = folder.path().join(LOG_FOLDER);
    std::fs::copy(
        &segments(other.path())[0],
        log.join("0000000000ffffff.redb"),
    )
    .unwrap();
    let last = segments(folder.path()).into_iter().rev().nth(1).unwrap();
    let name = last.file_stem().unwrap().to_str().unwrap();
    std::fs::copy(&last, log.join(format!("{name}-1.redb"))).unwrap();
    let told = repair(folder.path(), &ConsistencyEvidence::default(), true).unwrap();
    assert!(told.is_whole() && !told.went_on, "{told:?}");
}

#[tokio::test]
async fn damage_of_redb_metadata_loses_no_event() {
    // With one damaged byte in the record of free pages, or in the last frame, the store did not
    // open at all, although every other event was intact.
    let folder = tempfile::tempdir().unwrap();
    let mut records = Vec::new();
    {
        let log = RedbLog::open(folder.path(), small(), OpenMode::Create).unwrap();
        for _ in 0..20 {
            let more = samples::records(10, 900);
            append(&log, &more).await.unwrap();
            records.extend(more);
        }
        log.close().await.unwrap();
    }
    let path = segments(folder.path()).pop().unwrap();
    let sound = std::fs::read(&path).unwrap();
    let manifest = folder.path().join(LOG_FOLDER).join(MANIFEST);
    let sound_manifest = std::fs::read(&manifest).unwrap();
    // Damage in the last frame's payload; its header stays intact.
    let last = sound
        .windows(4)
        .rposition(|window| window == b"TRF\x02")
        .unwrap();
    let mut damaged = sound.clone();
    damaged[last + 100] ^= 1;
    std::fs::write(&path, &damaged).unwrap();
    let log = Arc::new(reopened(folder.path()).unwrap());
    let reader = LogReader::new(Arc::clone(&log) as Arc<dyn EventLog>, SHARD, 1 << 20);
    assert!(reader.record(1).await.is_ok());
    assert_eq!(
        append(&log, &samples::records(1, 10)).await.unwrap(),
        records.len() as u64 + 1
    );
    log.close().await.unwrap();
    // Damage in the allocator state: testing every used byte would take too long, so a sample of
    // them.
    let mut random = samples::Random(7);
    let mut opened = 0;
    let used: Vec<usize> = (0..sound.len()).filter(|at| sound[*at] != 0).collect();
    for _ in 0..300 {
        for path in segments(folder.path()) {
            std::fs::remove_file(path).unwrap();
        }
        let mut damaged = sound.clone();
        damaged[used[random.below(used.len() as u64) as usize]] ^= 1 << random.below(8);
        std::fs::write(&path, &damaged).unwrap();
        std::fs::write(&manifest, &sound_manifest).unwrap();
        match reopened(folder.path()) {
            Ok(log) => {
                let log = Arc::new(log);
                if let Ok(read) = all(Arc::clone(&log)).await {
                    assert!(records.starts_with(&read), "wrong data");
                    assert_eq!(log.head(), records.len() as u64);
                    // A read may end before the damage; the next one reports it.
                    if read.len() < records.len() {
                        let reader = LogReader::new(log, SHARD, 1 << 20);
                        assert!(reader.record(read.len() as u64 + 1).await.is_err());
                    } else {
                        opened += 1;
                    }
                }
            }
            Err(error) => assert!(
                matches!(
                    error,
                    LogError::Damaged { .. }
                        | LogError::Regressed { .. }
                        | LogError::NewerFormat { .. }
                        | LogError::Io { .. }
                ),
                "{error:?}"
            ),
        }
    }
    println!("{opened} of 300 flips cost nothing at all");
}

#[tokio::test]
async fn interrupted_creation_can_be_repeated() {
    // The power fails while the first segment or the manifest is created: there is nothing to lose,
    // and no leftover may prevent a new start.
    for operations in 0..60 {
        let disk = SimulatedDisk::new(operations);
        disk.crash_after(operations);
        let _interrupted = RedbLog::open_with(disk.clone(), small(), OpenMode::Create);
        let after = disk.after_crash();
        let log = RedbLog::open_with(after, small(), OpenMode::Create)
            .unwrap_or_else(|error| panic!("after {operations} operations: {error}"));
        append(&log, &samples::records(1, 10)).await.unwrap();
    }
}

#[tokio::test]
async fn lost_last_segment_is_detected() {
    let disk = SimulatedDisk::new(3);
    let log = RedbLog::open_with(disk.clone(), small(), OpenMode::Create).unwrap();
    append(&log, &samples::records(5, 100)).await.unwrap();
    log.close().await.unwrap();
    drop(log);
    disk.lose_file("0000000000000001.redb");
    let error = RedbLog::open_with(disk, small(), OpenMode::Create).unwrap_err();
    assert!(matches!(error, LogError::Regressed { .. }), "{error:?}");
}
