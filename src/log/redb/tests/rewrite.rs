//! Rewriting sealed segments keeps the same events, whatever fails, and however often it is done.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64},
};

use async_trait::async_trait;

use super::*;
use crate::{
    BlobRef,
    redb::simulated_disk::{DiskFullAt, Fault, SimulatedDisk},
    testkit::samples::Random,
};
use treering_domain::ContentHash;

static NEVER: AtomicBool = AtomicBool::new(false);
/// A limit against hanging.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

impl<F: Folder> RedbLog<F> {
    /// Seals the last segment, and rewrites everything as blocks.
    fn dense(&self) -> Result<(), LogError> {
        self.seal_within(0..=u64::MAX)?;
        while self.rewrite_next(&NEVER)?.is_some() {}
        Ok(())
    }
}

/// A log that counts reads and, if told so, is rewritten as blocks after every append.
struct WatchedLog {
    log: RedbLog,
    always_dense: bool,
    reads: AtomicU64,
}

impl WatchedLog {
    fn new(path: &Path, always_dense: bool) -> Self {
        Self {
            log: RedbLog::open(path, small(), OpenMode::Create).unwrap(),
            always_dense,
            reads: AtomicU64::new(0),
        }
    }
}

#[async_trait]
impl EventLog for WatchedLog {
    fn identity(&self) -> LogIdentity {
        self.log.identity()
    }

    async fn acquire(&self, shard: ShardId) -> Result<AcquiredShard, LogError> {
        self.log.acquire(shard).await
    }

    async fn append(
        &self,
        shard: ShardId,
        epoch: Epoch,
        head: u64,
        batch: FrameBatch,
    ) -> Result<u64, LogError> {
        let head = self.log.append(shard, epoch, head, batch).await?;
        if self.always_dense {
            self.log.dense()?;
        }
        Ok(head)
    }

    async fn read(
        &self,
        shard: ShardId,
        from_offset: u64,
        bytes_max: usize,
    ) -> Result<Vec<EncodedFrame>, LogError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.log.read(shard, from_offset, bytes_max).await
    }

    async fn next_frame(&self, shard: ShardId, after: u64) -> Result<Option<u64>, LogError> {
        self.log.next_frame(shard, after).await
    }

    async fn blob(&self, shard: ShardId, blob: &BlobRef) -> Result<Bytes, LogError> {
        self.log.blob(shard, blob).await
    }

    async fn tail(&self, shard: ShardId, after_offset: u64) -> Result<u64, LogError> {
        self.log.tail(shard, after_offset).await
    }

    async fn stats(&self, shard: ShardId) -> Result<LogStats, LogError> {
        self.log.stats(shard).await
    }

    async fn close(&self) -> Result<(), LogError> {
        self.log.close().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn packed_log_passes_the_conformance_suite() {
    // Readers must not notice which form a segment has.
    let folder = tempfile::tempdir().unwrap();
    let next = std::sync::atomic::AtomicU32::new(0);
    conformance::run_whatever_the_frames(|| {
        let name = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        WatchedLog::new(&folder.path().join(name.to_string()), true)
    })
    .await;
}

#[tokio::test]
async fn cached_block_is_found_behind_cached_frames() {
    // Cached frames hid the block that replaced them: each read of a record between them decoded
    // the block again.
    let folder = tempfile::tempdir().unwrap();
    let log = Arc::new(WatchedLog::new(folder.path(), false));
    for _ in 0..20 {
        append(&log.log, &samples::records(3, 200)).await.unwrap();
    }
    let reader = LogReader::new(Arc::clone(&log) as Arc<dyn EventLog>, SHARD, 1 << 20);
    for offset in [4, 22, 40] {
        reader.record(offset).await.unwrap();
    }
    log.log.dense().unwrap();
    reader.record(1).await.unwrap();
    let before = log.reads.load(Ordering::Relaxed);
    for offset in 1..=60 {
        reader.record(offset).await.unwrap();
    }
    assert_eq!(log.reads.load(Ordering::Relaxed), before);
}

/// Returns records whose frames fill some segments; every fifth one is incompressible.
fn some_records(count: usize) -> Vec<Record> {
    let mut records = samples::records(count, 700);
    for record in records.iter_mut().step_by(5) {
        *record = samples::noisy_record(900);
    }
    records
}

/// Appends a large body and the record that references it.
async fn append_large<F: Folder>(log: &RedbLog<F>, bytes: usize) -> (Record, NewBlob) {
    let owner = log.acquire(SHARD).await.unwrap();
    let home_offset = owner.head + 1;
    let body = samples::noise(bytes);
    let hash = Record::hash_body(&body);
    let place = crate::RecordBody::Blob(crate::BlobRef {
        hash,
        bytes_len: body.len() as u64,
        home_offset,
    });
    let header = samples::header(home_offset);
    let blob = NewBlob {
        namespace: header.namespace.clone(),
        hash,
        home_offset,
        bytes: body,
        patch: None,
    };
    let salted = crate::Salt::random().hash(hash);
    let record = Record::seal(ContentHash::default(), header, place, salted, None).unwrap();
    let mut batch = samples::batch(home_offset, std::slice::from_ref(&record));
    batch.blobs.push(blob.clone());
    log.append(SHARD, owner.epoch, owner.head, batch)
        .await
        .unwrap();
    (record, blob)
}

fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder.join(LOG_FOLDER)).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".redb"))
        .collect();
    names.sort();
    names
}

fn bytes_of(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder.join(LOG_FOLDER)).unwrap();
    entries.map(|e| e.unwrap().metadata().unwrap().len()).sum()
}

#[tokio::test]
async fn packed_log_has_the_same_records() {
    // Every record, large body and hash comes back, now and after reopening; appends continue;
    // nothing of the old files is left.
    let folder = tempfile::tempdir().unwrap();
    let log = Arc::new(RedbLog::open(folder.path(), small(), OpenMode::Create).unwrap());
    let mut expected = Vec::new();
    let mut blobs = Vec::new();
    while log.stats(SHARD).await.unwrap().segments < 4 {
        let records = some_records(400);
        append(&log, &records).await.unwrap();
        expected.extend(records);
        let (record, blob) = append_large(&log, 100_000).await;
        expected.push(record);
        blobs.push(blob);
    }
    let before = bytes_of(folder.path());
    let done = log.pack_log(u64::MAX, &NEVER).unwrap();
    assert!(
        done.segments >= 4 && done.records == expected.len() as u64,
        "{done:?}"
    );
    let after = bytes_of(folder.path());
    assert!(after < before, "{before} bytes became {after}");
    for _ in 0..2 {
        let log = if log.head.borrow().closed {
            Arc::new(RedbLog::open(folder.path(), small(), OpenMode::Append).unwrap())
        } else {
            Arc::clone(&log)
        };
        assert!(all(Arc::clone(&log)).await.unwrap() == expected);
        let reader = LogReader::new(Arc::clone(&log) as Arc<dyn EventLog>, SHARD, 1 << 20);
        let mut random = Random(3);
        for _ in 0..200 {
            let at = random.below(expected.len() as u64);
            let record = reader.record(at + 1).await.unwrap();
            assert!(record == expected[at as usize] && record.is_sound());
        }
        for blob in &blobs {
            let named = BlobRef {
                hash: blob.hash,
                bytes_len: blob.bytes.len() as u64,
                home_offset: blob.home_offset,
            };
            let read = log.blob(SHARD, &named).await;
            assert!(read.unwrap() == blob.bytes);
        }
        // Blocks are consecutive through all segments.
        let mut next = 1;
        while let Some(found) = log.next_frame(SHARD, next).await.unwrap() {
            assert!(found > next);
            let frames = log.read(SHARD, found, 1).await.unwrap();
            assert_eq!(frames[0].first_offset, found);
            next = found;
        }
        let more = some_records(3);
        append(&log, &more).await.unwrap();
        expected.extend(more);
        log.close().await.unwrap();
    }
    let log = RedbLog::open(folder.path(), small(), OpenMode::Append).unwrap();
    let named: Vec<_> = log
        .manifest()
        .segments
        .iter()
        .map(|s| s.file.clone().unwrap())
        .collect();
    assert_eq!(files(folder.path()), named);
    assert!(!log.has_to_rewrite());
    assert!(log.rewrite_next(&NEVER).unwrap().is_none());
}

#[tokio::test]
async fn segments_of_short_sessions_are_joined() {
    // Each close of a small store would leave a separate file; they are joined as the log grows,
    // without rewriting the same data over and over.
    let folder = tempfile::tempdir().unwrap();
    let mut expected = Vec::new();
    let mut written = 0;
    let options = RedbLogOptions::default();
    for _ in 0..24 {
        let log = Arc::new(RedbLog::open(folder.path(), options, OpenMode::Create).unwrap());
        for _ in 0..3 {
            let records: Vec<_> = (0..60).map(|_| samples::noisy_record(2_000)).collect();
            append(&log, &records).await.unwrap();
            expected.extend(records);
        }
        written += log.pack_log(u64::MAX, &NEVER).unwrap().bytes_after;
        log.close().await.unwrap();
    }
    let log = Arc::new(RedbLog::open(folder.path(), options, OpenMode::Create).unwrap());
    let stats = log.stats(SHARD).await.unwrap();
    println!("{stats:?}, {written} bytes were written");
    assert!(stats.segments <= 8, "{stats:?}");
    assert!(written < stats.bytes * 6);
    assert!(all(log).await.unwrap() == expected);
}

/// Creates a log of three sealed segments on a disk of its own.
async fn three_segments(seed: u64) -> (SimulatedDisk, RedbLog<SimulatedDisk>, Vec<Record>) {
    let disk = SimulatedDisk::new(seed);
    let log = RedbLog::open_with(disk.clone(), options(), OpenMode::Create).unwrap();
    let mut kept = Vec::new();
    for round in 0..3 {
        append(&log, &some_records(60 + round * 10)).await.unwrap();
        append_large(&log, 70_000).await;
        kept = all_of(&log).await;
        log.seal_within(0..=u64::MAX).unwrap();
        if round == 0 {
            // So that a segment of blocks exists to be joined.
            log.rewrite_next(&NEVER).unwrap().unwrap();
        }
    }
    (disk, log, kept)
}

fn options() -> RedbLogOptions {
    RedbLogOptions {
        segment_bytes_max: 32 << 20,
        cache_bytes: 1 << 20,
        ..small()
    }
}

async fn all_of<F: Folder>(log: &RedbLog<F>) -> Vec<Record> {
    let mut records = Vec::new();
    for frame in log.read(SHARD, 1, usize::MAX).await.unwrap() {
        records.extend(crate::frame::decode(&frame).unwrap().records);
    }
    records
}

/// Opens what a crash left: the same events; the rewrite can be finished, and appends continue.
async fn assert_same(disk: SimulatedDisk, kept: &[Record], story: &str) {
    let log = RedbLog::open_with(disk.clone(), options(), OpenMode::Append)
        .unwrap_or_else(|error| panic!("{story}: the log does not open: {error}"));
    let read = all_of(&log).await;
    assert!(
        read[..] == *kept,
        "{story}: {} of {} events",
        read.len(),
        kept.len()
    );
    log.dense()
        .unwrap_or_else(|error| panic!("{story}: {error}"));
    assert!(
        all_of(&log).await == *kept,
        "{story}: other events once it is dense"
    );
    let large = kept.iter().filter_map(|record| match &record.body {
        crate::RecordBody::Blob(blob) => Some(blob),
        _ => None,
    });
    for blob in large {
        log.blob(SHARD, blob)
            .await
            .unwrap_or_else(|error| panic!("{story}: {error}"));
    }
    append(&log, &samples::records(1, 10)).await.unwrap();
    log.close().await.unwrap();
    let names = disk.file_names();
    let segments = names.iter().filter(|name| name.ends_with(".redb")).count();
    assert_eq!(
        segments,
        log.manifest().segments.len(),
        "{story}: left over: {names:?}"
    );
}

#[tokio::test]
async fn crash_at_any_step_of_a_rewrite_loses_nothing() {
    // The power fails before or after the manifest names the new file: the same events, and the
    // next opening continues from there.
    let mut steps = 0;
    let mut finished = 0;
    loop {
        let (disk, log, kept) = three_segments(steps).await;
        disk.crash_after(steps);
        let done = log.dense();
        finished += u32::from(done.is_ok());
        assert_same(disk.after_crash(), &kept, &format!("after {steps} steps")).await;
        if done.is_ok() && finished > 3 {
            break;
        }
        // Every step where names change, and a sample of the many writes before.
        steps += if steps < 40 { 1 } else { 3 };
    }
    println!("{steps} steps");
    assert!(steps > 50);
}

#[tokio::test]
async fn failed_rewrite_changes_no_record() {
    // Each call that can fail, one after another: reads and appends continue, a crash afterwards
    // finds the same events, and the rewrite can be repeated.
    let faults = [
        Fault::Handle,
        Fault::Rename,
        Fault::FolderSync,
        Fault::Sync,
        Fault::SyncAndForget,
    ];
    let (mut came, mut failed) = (0, 0);
    for fault in faults {
        for after in 0..14 {
            let story = format!("{fault:?} after {after}");
            let (disk, log, mut kept) = three_segments(after).await;
            disk.fail(fault, after);
            failed += u32::from(log.dense().is_err());
            came += u32::from(disk.faults_left() == 0);
            disk.clear_faults();
            assert!(all_of(&log).await == kept, "{story}: other events");
            assert_same(disk.if_it_crashed(), &kept, &story).await;
            let more = some_records(3);
            append(&log, &more).await.unwrap();
            kept.extend(more);
            assert_same(disk.if_it_crashed(), &kept, &story).await;
            log.dense()
                .unwrap_or_else(|error| panic!("{story}: {error}"));
            assert!(
                all_of(&log).await == kept,
                "{story}: other events in the end"
            );
            log.close().await.unwrap();
            assert_same(disk.if_it_crashed(), &kept, &story).await;
        }
    }
    println!("{came} faults came, {failed} passes failed");
    assert!(came > 25 && failed > 10);
}

#[tokio::test]
async fn full_disk_leaves_segments_unchanged() {
    // The old and the new file exist together for a moment: when there is no space for that, the
    // old one stays, and appends that fit continue.
    for full in [DiskFullAt::Asked, DiskFullAt::Growth, DiskFullAt::Write] {
        for room in [0, 50_000, 200_000, 600_000] {
            let story = format!("{full:?}, room {room}");
            let (disk, log, kept) = three_segments(room).await;
            disk.set_room(Some((room, full)));
            let failed = log.dense();
            assert!(all_of(&log).await == kept, "{story}");
            assert!(
                matches!(failed, Ok(()) | Err(LogError::NoSpace { .. })),
                "{story}: {failed:?}"
            );
            disk.set_room(None);
            assert_same(disk.if_it_crashed(), &kept, &story).await;
            log.dense().unwrap();
            append(&log, &samples::records(1, 10)).await.unwrap();
        }
    }
}

#[tokio::test]
async fn stopped_rewrite_changes_nothing() {
    // Closing must not wait for the rewrite of a large segment.
    let (disk, log, kept) = three_segments(1).await;
    let before = disk.file_names();
    let stopped = log.rewrite_next(&AtomicBool::new(true)).unwrap();
    assert!(stopped.is_none());
    assert_eq!(disk.file_names(), before);
    assert_same(disk.if_it_crashed(), &kept, "stopped").await;
}

#[tokio::test]
async fn replaced_segment_files_are_removed() {
    // The process ended after replacing the manifest and before removing the source files, or when
    // a joined copy was complete but not yet named.
    let folder = tempfile::tempdir().unwrap();
    let log = RedbLog::open(folder.path(), options(), OpenMode::Create).unwrap();
    for _ in 0..3 {
        append(&log, &some_records(60)).await.unwrap();
        log.seal_within(0..=u64::MAX).unwrap();
    }
    let expected = all_of(&log).await;
    let path = folder.path().join(LOG_FOLDER);
    let keep = folder.path().join("before");
    let copy = |from: &Path, to: &Path| {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    };
    log.close().await.unwrap();
    copy(&path, &keep);
    let log = RedbLog::open(folder.path(), options(), OpenMode::Append).unwrap();
    log.dense().unwrap();
    assert!(log.manifest().segments.len() < 4);
    log.close().await.unwrap();
    let named = files(folder.path());
    let after = folder.path().join("after");
    copy(&path, &after);
    // The source files are back, beside the copy.
    for entry in std::fs::read_dir(&keep).unwrap() {
        let entry = entry.unwrap();
        let target = path.join(entry.file_name());
        if !target.exists() {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
    assert!(files(folder.path()).len() > named.len());
    let log = RedbLog::open(folder.path(), options(), OpenMode::Append).unwrap();
    assert!(all_of(&log).await == expected);
    log.acquire(SHARD).await.unwrap();
    log.close().await.unwrap();
    assert_eq!(files(folder.path()), named);
    // The previous manifest, with all files present.
    copy(&keep, &path);
    let log = RedbLog::open(folder.path(), options(), OpenMode::Append).unwrap();
    assert!(all_of(&log).await == expected);
    log.dense().unwrap();
    assert!(all_of(&log).await == expected);
    log.close().await.unwrap();
    // The previous manifest, without the files that it names: nothing is guessed.
    std::fs::remove_dir_all(&path).unwrap();
    copy(&after, &path);
    std::fs::copy(keep.join(MANIFEST), path.join(MANIFEST)).unwrap();
    let error = RedbLog::open(folder.path(), options(), OpenMode::Append).unwrap_err();
    assert!(matches!(error, LogError::Regressed { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_and_appends_continue_during_a_rewrite() {
    // Files are removed while readers use them, and segments are joined: no read may fail or return
    // anything else.
    let folder = tempfile::tempdir().unwrap();
    let log = Arc::new(RedbLog::open(folder.path(), small(), OpenMode::Create).unwrap());
    let (passes, rounds) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let rewriter = std::thread::spawn({
        let (log, passes) = (Arc::clone(&log), Arc::clone(&passes));
        move || {
            while !log.head.borrow().closed {
                match log.pack_log(u64::MAX, &NEVER) {
                    Ok(done) => {
                        passes.fetch_add(done.segments as u64, Ordering::SeqCst);
                    }
                    Err(LogError::Closed) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
    });
    let reader = tokio::spawn({
        let (log, rounds) = (Arc::clone(&log), Arc::clone(&rounds));
        async move {
            loop {
                // No cache: every read goes to the files.
                let reader = LogReader::new(Arc::clone(&log) as Arc<dyn EventLog>, SHARD, 1);
                match reader.records(1, usize::MAX, usize::MAX).await {
                    Ok(read) => {
                        for (index, (offset, _)) in read.iter().enumerate() {
                            assert_eq!(*offset, index as u64 + 1);
                        }
                        rounds.fetch_add(1, Ordering::SeqCst);
                    }
                    Err(LogError::Closed) => return,
                    Err(error) => panic!("{error}"),
                }
                tokio::task::yield_now().await;
            }
        }
    });
    let mut expected = Vec::new();
    for _ in 0..60 {
        let records: Vec<_> = (0..40).map(|_| samples::noisy_record(4_000)).collect();
        append(&log, &records).await.unwrap();
        expected.extend(records);
    }
    assert!(all(Arc::clone(&log)).await.unwrap() == expected);
    // On a busy machine, no rewrite or read may have finished yet.
    let both = async {
        while passes.load(Ordering::SeqCst) < 2 || rounds.load(Ordering::SeqCst) < 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, both)
        .await
        .expect("nothing was rewritten, or read");
    log.close().await.unwrap();
    rewriter.join().unwrap();
    reader.await.unwrap();
    let log = Arc::new(RedbLog::open(folder.path(), small(), OpenMode::Append).unwrap());
    assert!(all(log).await.unwrap() == expected);
}

#[tokio::test]
async fn rewrite_waits_for_a_closing_segment() {
    // The manifest says that a segment is sealed before its file is closed. A rewrite in between
    // failed to open it and did not retry for a long time.
    let folder = tempfile::tempdir().unwrap();
    let log = RedbLog::open(folder.path(), options(), OpenMode::Create).unwrap();
    append(&log, &some_records(200)).await.unwrap();
    log.seal_within(0..=u64::MAX).unwrap();
    let path = folder
        .path()
        .join(LOG_FOLDER)
        .join(&files(folder.path())[0]);
    let closing = std::fs::File::open(path).unwrap();
    closing.lock().unwrap();
    let closer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        closing.unlock().unwrap();
    });
    assert!(log.rewrite_next(&NEVER).unwrap().is_some());
    closer.join().unwrap();
}

#[tokio::test]
async fn rewrite_skips_a_damaged_segment() {
    // An unreadable segment cannot be rewritten: it is left for a restore or salvage, and does not
    // prevent the others from being rewritten.
    let folder = tempfile::tempdir().unwrap();
    let log = RedbLog::open(folder.path(), options(), OpenMode::Create).unwrap();
    for _ in 0..3 {
        append(&log, &some_records(200)).await.unwrap();
        log.seal_within(0..=u64::MAX).unwrap();
    }
    log.close().await.unwrap();
    let path = folder
        .path()
        .join(LOG_FOLDER)
        .join(&files(folder.path())[1]);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes
        .windows(4)
        .position(|window| window == b"TRF\x02")
        .unwrap();
    bytes[at + 100] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let log = RedbLog::open(folder.path(), options(), OpenMode::Append).unwrap();
    let mut errors = 0;
    while log.has_to_rewrite() {
        errors += u32::from(log.rewrite_next(&NEVER).is_err());
    }
    assert_eq!(errors, 1);
    let forms: Vec<_> = log
        .manifest()
        .segments
        .iter()
        .map(|s| s.form.is_some())
        .collect();
    assert_eq!(forms, [true, false, true, false]);
    assert!(std::fs::read(&path).unwrap() == bytes);
}

#[tokio::test]
async fn read_only_log_is_not_rewritten() {
    let folder = tempfile::tempdir().unwrap();
    let log = RedbLog::open(folder.path(), options(), OpenMode::Create).unwrap();
    append(&log, &some_records(200)).await.unwrap();
    log.seal_within(0..=u64::MAX).unwrap();
    log.close().await.unwrap();
    let before = files(folder.path());
    let log = RedbLog::open(folder.path(), options(), OpenMode::Read).unwrap();
    assert!(matches!(
        log.rewrite_next(&NEVER),
        Err(LogError::OpenedToRead)
    ));
    assert!(!log.seal_within(0..=u64::MAX).unwrap());
    assert_eq!(files(folder.path()), before);
}

#[tokio::test]
async fn newer_segment_form_is_reported_as_newer() {
    // If a newer form were reported as damage, a user might repair the segment and lose it.
    let folder = tempfile::tempdir().unwrap();
    let log = RedbLog::open(folder.path(), options(), OpenMode::Create).unwrap();
    append(&log, &some_records(20)).await.unwrap();
    log.dense().unwrap();
    log.close().await.unwrap();
    let path = folder
        .path()
        .join(LOG_FOLDER)
        .join(&files(folder.path())[0]);
    {
        let database = ::redb::Database::open(&path).unwrap();
        let transaction = database.begin_write().unwrap();
        {
            let mut meta = transaction.open_table(segment::META).unwrap();
            meta.insert("form", 2_u32.to_le_bytes().as_slice()).unwrap();
        }
        transaction.commit().unwrap();
    }
    let log = RedbLog::open(folder.path(), options(), OpenMode::Append).unwrap();
    let error = log.read(SHARD, 1, 1).await.unwrap_err();
    assert!(
        matches!(error, LogError::NewerFormat { version: 2, .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn manifest_is_rebuilt_from_packed_segments() {
    let folder = tempfile::tempdir().unwrap();
    let log = RedbLog::open(folder.path(), options(), OpenMode::Create).unwrap();
    for _ in 0..2 {
        append(&log, &some_records(300)).await.unwrap();
        log.dense().unwrap();
    }
    append(&log, &some_records(10)).await.unwrap();
    let expected = all_of(&log).await;
    log.close().await.unwrap();
    std::fs::write(folder.path().join(LOG_FOLDER).join(MANIFEST), "no").unwrap();
    let told = repair(
        folder.path(),
        &ConsistencyEvidence {
            is_there: true,
            reached: expected.len() as u64,
            contradiction: None,
        },
        true,
    )
    .unwrap();
    assert!(told.manifest_lost && told.lost.is_empty(), "{told:?}");
    let log = RedbLog::open(folder.path(), options(), OpenMode::Append).unwrap();
    assert!(all_of(&log).await == expected);
    let dense = log
        .manifest()
        .segments
        .iter()
        .filter(|s| s.form.is_some())
        .count();
    assert!(dense > 0);
    log.dense().unwrap();
    assert!(all_of(&log).await == expected);
}

#[tokio::test]
async fn flipped_byte_of_a_packed_segment_is_an_error() {
    // A flipped bit in blocks, their index, the dictionary, large bodies or redb's own tree: a read
    // returns the right data or a specific error; nothing panics, and the next segment is served.
    let folder = tempfile::tempdir().unwrap();
    let log = RedbLog::open(folder.path(), options(), OpenMode::Create).unwrap();
    append(&log, &some_records(1_500)).await.unwrap();
    append_large(&log, 70_000).await;
    log.dense().unwrap();
    append(&log, &some_records(2)).await.unwrap();
    let expected = all_of(&log).await;
    log.close().await.unwrap();
    let path = folder
        .path()
        .join(LOG_FOLDER)
        .join(&files(folder.path())[0]);
    let sound = std::fs::read(&path).unwrap();
    let used: Vec<usize> = (0..sound.len()).filter(|at| sound[*at] != 0).collect();
    let mut random = Random(17);
    let (mut errors, mut read_beside) = (0, 0);
    for _ in 0..flips() {
        let at = used[random.below(used.len() as u64) as usize];
        let mut damaged = sound.clone();
        damaged[at] ^= 1 << random.below(8);
        std::fs::write(&path, &damaged).unwrap();
        let log = RedbLog::open(folder.path(), options(), OpenMode::Read).unwrap();
        let log = Arc::new(log);
        let reader = LogReader::new(Arc::clone(&log) as Arc<dyn EventLog>, SHARD, 1 << 20);
        let mut next = 1;
        let mut lost = false;
        while next <= expected.len() as u64 {
            match reader.records(next, usize::MAX, 1 << 20).await {
                Ok(records) => {
                    for (offset, record) in records {
                        assert!(record == expected[offset as usize - 1], "byte {at}");
                        read_beside += u64::from(lost);
                        next = offset + 1;
                    }
                }
                Err(error) => {
                    assert!(
                        matches!(
                            error,
                            LogError::Damaged { .. }
                                | LogError::NewerFormat { .. }
                                | LogError::Io { .. }
                        ),
                        "byte {at}: {error:?}"
                    );
                    lost = true;
                    match log.next_frame(SHARD, next).await {
                        Ok(Some(behind)) => next = behind,
                        _ => break,
                    }
                }
            }
        }
        errors += u32::from(lost);
    }
    println!("{errors} flips were noticed; {read_beside} records were read behind damage");
    assert!(errors > flips() as u32 / 3 && read_beside > 1_000);
}

/// Returns the number of flips; `TREERING_FLIPS` overrides it.
fn flips() -> u64 {
    let flips = std::env::var("TREERING_FLIPS");
    flips
        .ok()
        .and_then(|flips| flips.parse().ok())
        .unwrap_or(300)
}

/// Rewrites the store in the folder `TREERING_MEASURE_STORE` as blocks. Source of the figures in
/// `docs/decisions/0005-block-compression.md`:
///
/// `cargo test -p treering-log --release --lib measure_dense -- --ignored --nocapture`
#[tokio::test]
#[ignore = "measures a store, and changes it"]
async fn measure_dense() {
    let folder = std::env::var_os("TREERING_MEASURE_STORE").unwrap();
    let log = RedbLog::open(folder.as_ref(), RedbLogOptions::default(), OpenMode::Append).unwrap();
    let read = |what: &'static str| {
        let log = &log;
        async move {
            let started = std::time::Instant::now();
            let (mut next, mut bytes, mut stored) = (1, 0, 0);
            let mut parts = [0; 3];
            loop {
                let frames = log.read(SHARD, next, 1 << 20).await.unwrap();
                let Some(last) = frames.last() else { break };
                next = last.last_offset() + 1;
                for frame in &frames {
                    stored += frame.bytes.len();
                    bytes += crate::frame::decode(frame).unwrap().raw_bytes;
                    for (part, at) in parts.iter_mut().zip([24, 28, 36]) {
                        let word = frame.bytes[at..at + 4].try_into().unwrap();
                        *part += u64::from(u32::from_le_bytes(word));
                    }
                }
            }
            println!(
                "{what}: {} records, {stored} bytes stored, {bytes} unpacked, in {:?}; columns, plain, bodies: {parts:?}",
                next - 1,
                started.elapsed()
            );
        }
    };
    read("frames").await;
    let started = std::time::Instant::now();
    let done = log.pack_log(u64::MAX, &NEVER).unwrap();
    println!("{done:?} in {:?}", started.elapsed());
    read("blocks").await;
    log.close().await.unwrap();
    println!("{} bytes in all", bytes_of(folder.as_ref()));
}
