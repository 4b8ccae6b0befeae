//! The conformance suite: what every backend must do. A new backend passes it before it is used.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;

use super::samples;
use crate::{
    erasure::{ErasableLog, Erasure, ErasureProgress},
    frame,
    port::{AcquiredShard, EventLog, FrameBatch, LogError, NewBlob},
    reader::LogReader,
    record::{BlobRef, Record, RecordBody},
    salt::{Salt, SaltSource},
};
use treering_domain::{Namespace, ShardId};

const SHARD: ShardId = ShardId(0);

/// Runs the suite on the logs that `make` returns, which must be empty. Needs a tokio runtime with
/// more than one thread.
///
/// # Panics
/// When the log violates the contract of [`EventLog`].
pub async fn run_all<L: EventLog>(make: impl Fn() -> L) {
    run_whatever_the_frames(&make).await;
    a_read_starts_at_the_frame_that_holds_the_offset(&make()).await;
    a_read_stops_at_its_bound(&make()).await;
    the_next_frame_is_found(&make()).await;
}

/// Runs the part of the suite that does not depend on the frames, for a log that stores records in
/// other units than the frames that it was given.
///
/// # Panics
/// As [`run_all`].
pub async fn run_whatever_the_frames<L: EventLog>(make: impl Fn() -> L) {
    a_log_knows_itself(&make());
    an_empty_log_has_no_head(&make()).await;
    what_is_appended_is_read_back(make()).await;
    a_wrong_head_appends_nothing(&make()).await;
    an_earlier_owner_cannot_append(&make()).await;
    a_gap_is_refused(&make()).await;
    large_bodies_come_back_as_their_record_names_them(&make()).await;
    a_blob_goes_with_its_batch(&make()).await;
    a_tail_wakes_when_the_head_moves(make()).await;
    stats_grow(&make()).await;
    a_closed_log_says_so(&make()).await;
}

async fn append(log: &impl EventLog, records: &[Record]) -> u64 {
    let owner = log.acquire(SHARD).await.unwrap();
    let batch = samples::batch(owner.head + 1, records);
    log.append(SHARD, owner.epoch, owner.head, batch)
        .await
        .unwrap()
}

fn a_log_knows_itself(log: &impl EventLog) {
    // Data derived from a log is used with that log only.
    assert_eq!(log.identity(), log.identity());
    assert!(log.knows_timeline(log.identity().timeline));
}

async fn an_empty_log_has_no_head(log: &impl EventLog) {
    // Offsets start at 1: reading an empty log from 0 or 1 returns nothing.
    assert_eq!(log.acquire(SHARD).await.unwrap().head, 0);
    assert!(log.read(SHARD, 0, 1 << 20).await.unwrap().is_empty());
    assert!(log.read(SHARD, 1, 1 << 20).await.unwrap().is_empty());
}

async fn what_is_appended_is_read_back(log: impl EventLog) {
    // Many groups of many sizes: every record comes back, in order, unchanged.
    let mut all = Vec::new();
    for size in [1, 2, 300, 7, 1] {
        let records = samples::records(size, 700);
        append(&log, &records).await;
        all.extend(records);
    }
    let reader = LogReader::new(Arc::new(log), SHARD, 1 << 20);
    let read = reader.records(1, usize::MAX, usize::MAX).await.unwrap();
    assert_eq!(read.len(), all.len());
    for (index, (offset, record)) in read.iter().enumerate() {
        assert_eq!(*offset, index as u64 + 1);
        assert_eq!(record, &all[index]);
    }
    assert_eq!(reader.record(150).await.unwrap(), all[149]);
    assert_eq!(
        reader.records(5, 3, usize::MAX).await.unwrap(),
        read[4..7].to_vec()
    );
    let beyond = all.len() as u64 + 1;
    assert!(matches!(
        reader.record(beyond).await,
        Err(LogError::NotFound { .. })
    ));
    assert!(reader.records(beyond, 1, 1).await.unwrap().is_empty());
}

async fn a_read_starts_at_the_frame_that_holds_the_offset(log: &impl EventLog) {
    // Frames are the unit: an offset inside a frame returns the whole frame.
    append(log, &samples::records(3, 10)).await;
    append(log, &samples::records(4, 10)).await;
    for (from, first) in [(0, 1), (1, 1), (3, 1), (4, 4), (7, 4)] {
        let frames = log.read(SHARD, from, 1 << 20).await.unwrap();
        assert_eq!(frames[0].first_offset, first, "read from {from}");
        assert_eq!(frames.last().unwrap().last_offset(), 7);
    }
    assert!(log.read(SHARD, 8, 1 << 20).await.unwrap().is_empty());
}

async fn a_read_stops_at_its_bound(log: &impl EventLog) {
    // A reader of a large log must be able to read it in small pieces.
    for _ in 0..10 {
        append(log, &samples::records(1, 1000)).await;
    }
    assert_eq!(log.read(SHARD, 1, 0).await.unwrap().len(), 1);
    assert_eq!(log.read(SHARD, 1, 1).await.unwrap().len(), 1);
    let some = log.read(SHARD, 1, 2500).await.unwrap().len();
    assert!((2..10).contains(&some), "{some} frames");
}

async fn the_next_frame_is_found(log: &impl EventLog) {
    // A caller that continues after a damaged frame must find the following one, or the end.
    append(log, &samples::records(3, 10)).await;
    append(log, &samples::records(4, 10)).await;
    for (after, first) in [
        (0, Some(1)),
        (1, Some(4)),
        (3, Some(4)),
        (4, None),
        (7, None),
    ] {
        let found = log.next_frame(SHARD, after).await.unwrap();
        assert_eq!(found, first, "after {after}");
    }
}

async fn a_wrong_head_appends_nothing(log: &impl EventLog) {
    // A writer with an outdated head must not overwrite anything.
    append(log, &samples::records(2, 10)).await;
    let owner = log.acquire(SHARD).await.unwrap();
    for wrong in [0, 1, 3] {
        let batch = samples::batch(wrong + 1, &samples::records(1, 10));
        let error = log.append(SHARD, owner.epoch, wrong, batch).await;
        assert!(
            matches!(error, Err(LogError::HeadMismatch { expected, actual: 2 }) if expected == wrong),
            "{error:?}"
        );
    }
    assert_eq!(log.acquire(SHARD).await.unwrap().head, 2);
}

async fn an_earlier_owner_cannot_append(log: &impl EventLog) {
    // Two owners must never interleave: the later one fences off the earlier.
    let first = log.acquire(SHARD).await.unwrap();
    let second = log.acquire(SHARD).await.unwrap();
    assert!(second.epoch > first.epoch);
    let batch = samples::batch(1, &samples::records(1, 10));
    let error = log.append(SHARD, first.epoch, 0, batch.clone()).await;
    assert!(matches!(error, Err(LogError::NotOwner { .. })), "{error:?}");
    assert_eq!(log.append(SHARD, second.epoch, 0, batch).await.unwrap(), 1);
}

async fn a_gap_is_refused(log: &impl EventLog) {
    // Offsets have no gaps, whatever a writer appends.
    let owner = log.acquire(SHARD).await.unwrap();
    let batch = samples::batch(2, &samples::records(1, 10));
    let error = log.append(SHARD, owner.epoch, 0, batch).await;
    assert!(matches!(error, Err(LogError::Gap { .. })), "{error:?}");
    assert_eq!(log.acquire(SHARD).await.unwrap().head, 0);
}

/// Returns a record whose body is stored separately, and that body.
fn large(namespace: &Namespace, home_offset: u64, body: &Bytes) -> (Record, NewBlob) {
    let hash = Record::hash_body(body);
    let mut header = samples::header(1);
    header.namespace = namespace.clone();
    let place = RecordBody::Blob(BlobRef {
        hash,
        bytes_len: body.len() as u64,
        home_offset,
    });
    let salted = Salt::random().hash(hash);
    let record = Record::seal(Default::default(), header, place, salted, None).unwrap();
    let blob = NewBlob {
        namespace: namespace.clone(),
        hash,
        home_offset,
        bytes: body.clone(),
        patch: None,
    };
    (record, blob)
}

async fn large_bodies_come_back_as_their_record_names_them(log: &impl EventLog) {
    // Sizes around the chunk limit, compressible and not.
    let ours = Namespace::default();
    let mut head = 0;
    for bytes in [0, 1, 28 * 1024, 28 * 1024 + 1, 100_000, 3_000_000] {
        for body in [samples::noise(bytes), samples::prose(bytes)] {
            let owner = log.acquire(SHARD).await.unwrap();
            let (record, blob) = large(&ours, head + 1, &body);
            let mut batch = samples::batch(head + 1, &[record]);
            batch.blobs.push(blob.clone());
            head = log.append(SHARD, owner.epoch, head, batch).await.unwrap();
            let named = blob.reference();
            let read = log.blob(SHARD, &named).await.unwrap();
            assert!(read == body, "{bytes} bytes");
            // A different body, a different length, or one that was never stored.
            let mut others = [named; 3];
            others[0].hash.0[7] ^= 1;
            others[1].bytes_len += 1;
            others[2].home_offset += 1;
            for other in others {
                let error = log.blob(SHARD, &other).await;
                assert!(error.is_err(), "{other:?}");
            }
        }
    }
}

async fn a_blob_goes_with_its_batch(log: &impl EventLog) {
    // Atomicity includes blobs: a refused batch leaves none behind.
    let namespace = Namespace::default();
    let body = samples::noise(70_000);
    let (record, blob) = large(&namespace, 1, &body);
    let owner = log.acquire(SHARD).await.unwrap();
    let batch = FrameBatch {
        frames: frame::encode_group(5, &[record]).unwrap(),
        blobs: vec![blob.clone()],
    };
    assert!(log.append(SHARD, owner.epoch, 0, batch).await.is_err());
    assert!(log.blob(SHARD, &blob.reference()).await.is_err());
}

async fn a_tail_wakes_when_the_head_moves(log: impl EventLog) {
    // Subscribers sleep until something is appended, and miss nothing.
    let log = Arc::new(log);
    append(&*log, &samples::records(2, 10)).await;
    assert_eq!(log.tail(SHARD, 0).await.unwrap(), 2);
    let waiting = tokio::spawn({
        let log = Arc::clone(&log);
        async move { log.tail(SHARD, 2).await }
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!waiting.is_finished());
    append(&*log, &samples::records(3, 10)).await;
    assert_eq!(waiting.await.unwrap().unwrap(), 5);
}

async fn stats_grow(log: &impl EventLog) {
    // Disk monitoring must see the log grow.
    let before = log.stats(SHARD).await.unwrap();
    let records: Vec<_> = (0..400).map(|_| samples::noisy_record(10_000)).collect();
    append(log, &records).await;
    let after = log.stats(SHARD).await.unwrap();
    assert!(after.bytes > before.bytes, "{before:?} {after:?}");
    assert!(after.segments >= 1);
}

async fn a_closed_log_says_so(log: &impl EventLog) {
    // After a close nothing hangs and nothing is silently lost.
    append(log, &samples::records(1, 10)).await;
    let owner = log.acquire(SHARD).await.unwrap();
    log.close().await.unwrap();
    let batch = samples::batch(2, &samples::records(1, 10));
    for error in [
        log.acquire(SHARD).await.err(),
        log.append(SHARD, owner.epoch, 1, batch).await.err(),
        log.read(SHARD, 1, 1).await.err(),
        log.tail(SHARD, 1).await.err(),
        log.stats(SHARD).await.err(),
    ] {
        assert!(matches!(error, Some(LogError::Closed)), "{error:?}");
    }
}

/// Runs the part of the suite for logs from which content can be erased
/// ([`EventLog::erasable`]).
///
/// # Panics
/// As [`run_all`].
pub async fn run_erasing<L: EventLog>(make: impl Fn() -> L) {
    an_erasure_is_marked_until_it_is_done(make()).await;
    erased_content_is_removed_and_the_rest_stays(make()).await;
    no_frame_reveals_the_salt_of_an_erased_body(make()).await;
}

/// Appends records one by one, so that each has a frame of its own, with salts of one tree.
async fn append_with_tree(log: &impl EventLog, count: usize) -> (AcquiredShard, Vec<Record>) {
    let mut owner = log.acquire(SHARD).await.unwrap();
    let mut salts = SaltSource::default();
    let mut records = Vec::new();
    let mut previous = Default::default();
    for revision in 1..=count as u64 {
        let body = samples::prose(900);
        let salted = salts.at(owner.head + 1).hash(Record::hash_body(&body));
        let body = RecordBody::Inline(body);
        let record = Record::seal(previous, samples::header(revision), body, salted, None);
        let record = record.unwrap();
        previous = record.chain_hash();
        let batch = samples::batch(owner.head + 1, std::slice::from_ref(&record));
        owner.head = log
            .append(SHARD, owner.epoch, owner.head, batch)
            .await
            .unwrap();
        records.push(record);
    }
    (owner, records)
}

fn erasable<L: EventLog>(log: &Arc<L>, owner: &AcquiredShard) -> Arc<dyn ErasableLog> {
    let log = Arc::clone(log);
    log.erasable(SHARD, owner.epoch).unwrap()
}

/// Returns an erasure of records, each replaced by a stub.
fn erasure_of(offsets: &[u64]) -> Erasure {
    Erasure {
        stubs: offsets.iter().map(|it| (*it, stub(*it))).collect(),
        ..Erasure::default()
    }
}

fn stub(offset: u64) -> Bytes {
    Bytes::from(format!("stub {offset}"))
}

async fn an_erasure_is_marked_until_it_is_done(log: impl EventLog) {
    // Whoever opens the log after a crash must learn that an erasure is unfinished, and since when.
    let log = Arc::new(log);
    append(&*log, &samples::records(3, 10)).await;
    let owner = log.acquire(SHARD).await.unwrap();
    let port = erasable(&log, &owner);
    assert_eq!(port.progress().await.unwrap(), ErasureProgress::default());
    Arc::clone(&port).mark_begun().await.unwrap();
    let begun = |erased| ErasureProgress {
        erasing: Some(4),
        erased,
    };
    assert_eq!(port.progress().await.unwrap(), begun(0));
    let batch = samples::batch(4, &samples::records(1, 10));
    log.append(SHARD, owner.epoch, 3, batch).await.unwrap();
    // Begun again, it still starts where it started first.
    Arc::clone(&port).mark_begun().await.unwrap();
    assert_eq!(port.progress().await.unwrap(), begun(0));
    Arc::clone(&port).mark_done(4).await.unwrap();
    let done = ErasureProgress {
        erasing: None,
        erased: 4,
    };
    assert_eq!(port.progress().await.unwrap(), done);
    // An erasure that recorded nothing changes nothing.
    Arc::clone(&port).mark_begun().await.unwrap();
    Arc::clone(&port).mark_done(0).await.unwrap();
    assert_eq!(port.progress().await.unwrap(), done);
}

async fn erased_content_is_removed_and_the_rest_stays(log: impl EventLog) {
    // Erased bodies are gone, wherever they were; every other record, and the chain, is unchanged.
    let log = Arc::new(log);
    let group = samples::records(40, 300);
    append(&*log, &group).await;
    let owner = log.acquire(SHARD).await.unwrap();
    let mut blobs = Vec::new();
    let mut head = owner.head;
    for _ in 0..2 {
        let body = samples::noise(90_000);
        let (record, blob) = large(&Namespace::default(), head + 1, &body);
        let mut batch = samples::batch(head + 1, &[record]);
        batch.blobs.push(blob.clone());
        head = log.append(SHARD, owner.epoch, head, batch).await.unwrap();
        blobs.push(blob.reference());
    }
    let before = read_all(&log).await;
    let mut erasure = erasure_of(&[2, 3, 17, 41]);
    erasure.blobs.insert(41);
    let erasure = Arc::new(erasure);
    let reports = Arc::new(Mutex::new(0));
    let port = erasable(&log, &owner);
    Arc::clone(&port).mark_begun().await.unwrap();
    for _ in 0..2 {
        let reported = Arc::clone(&reports);
        let report = move |done, total| {
            assert!(done <= total);
            *reported.lock().unwrap() += 1;
        };
        let removed = Arc::clone(&port).remove(Arc::clone(&erasure), Box::new(report));
        removed.await.unwrap();
        let after = read_all(&log).await;
        assert_eq!(after.len(), before.len());
        for (offset, (before, after)) in (1..).zip(before.iter().zip(&after)) {
            assert_eq!(before.chain_hash(), after.chain_hash(), "{offset}");
            match erasure.stubs.get(&offset) {
                Some(stub) => assert_eq!(after.body.here(), stub, "{offset}"),
                None => assert_eq!(before, after, "{offset}"),
            }
        }
        assert!(log.blob(SHARD, &blobs[0]).await.is_err());
        log.blob(SHARD, &blobs[1]).await.unwrap();
    }
    assert!(*reports.lock().unwrap() > 0);
    Arc::clone(&port).mark_done(head).await.unwrap();
    // The log still takes appends.
    let batch = samples::batch(head + 1, &samples::records(1, 10));
    log.append(SHARD, owner.epoch, head, batch).await.unwrap();
}

async fn read_all<L: EventLog>(log: &Arc<L>) -> Vec<Record> {
    let reader = LogReader::new(Arc::clone(log) as _, SHARD, 1 << 20);
    let read = reader.records(1, usize::MAX, usize::MAX).await.unwrap();
    read.into_iter().map(|(_, record)| record).collect()
}

async fn no_frame_reveals_the_salt_of_an_erased_body(log: impl EventLog) {
    // A frame stores a node above its salts, which is also above those of its neighbours. With the
    // salt of an erased body, a guess of the body could be checked against its hash.
    let log = Arc::new(log);
    let (owner, records) = append_with_tree(&*log, 9).await;
    let erasure = erasure_of(&[4, 5]);
    let port = erasable(&log, &owner);
    Arc::clone(&port).mark_begun().await.unwrap();
    let removed = Arc::clone(&port).remove(Arc::new(erasure.clone()), Box::new(|_, _| {}));
    removed.await.unwrap();
    let mut next = 1;
    while next <= owner.head {
        for stored in log.read(SHARD, next, 1 << 20).await.unwrap() {
            next = stored.last_offset() + 1;
            let decoded = frame::decode(&stored).unwrap();
            for (offset, record) in (decoded.first_offset..).zip(&decoded.records) {
                let Some(salt) = &record.salt else {
                    assert!(erasure.stubs.contains_key(&offset));
                    continue;
                };
                assert_eq!(records[offset as usize - 1], *record);
                let below = salt.range_at(offset);
                assert!(erasure.stubs.range(below).next().is_none(), "{offset}");
            }
        }
    }
}

/// Part of the suite for logs that several processes use.
///
/// # Panics
/// As [`run_all`].
pub async fn an_earlier_owner_cannot_erase<L: EventLog>(log: L) {
    // A process that lost a shard has an outdated plan: it must change nothing there.
    let log = Arc::new(log);
    append(&*log, &samples::records(5, 300)).await;
    let first = log.acquire(SHARD).await.unwrap();
    let second = log.acquire(SHARD).await.unwrap();
    let before = read_all(&log).await;
    let port = erasable(&log, &first);
    let removed = Arc::clone(&port).remove(Arc::new(erasure_of(&[2])), Box::new(|_, _| {}));
    for refused in [
        Arc::clone(&port).mark_begun().await.err(),
        removed.await.err(),
        Arc::clone(&port).mark_done(5).await.err(),
    ] {
        assert!(
            matches!(refused, Some(LogError::NotOwner { .. })),
            "{refused:?}"
        );
    }
    assert_eq!(read_all(&log).await, before);
    let port = erasable(&log, &second);
    assert_eq!(port.progress().await.unwrap(), ErasureProgress::default());
}
