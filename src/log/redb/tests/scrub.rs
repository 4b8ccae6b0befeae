//! Erased content is removed from disk, whatever happens meanwhile.

use std::collections::BTreeSet;

use super::*;
use crate::{Erasure, RecordBody, Salt, frame};

/// A text in every erased record; no sample contains it.
const NEEDLE: &[u8] = b"needle in a record qzx";
/// A text in an erased large body.
const LARGE_NEEDLE: &[u8] = b"needle in a large body qzx";

/// Returns a record with a needle in a text that compresses together with the others.
fn needled(revision: u64) -> Record {
    let mut body = samples::prose(700).to_vec();
    body.splice(300..300, NEEDLE.iter().copied());
    let hash = Record::hash_body(&body);
    let place = RecordBody::Inline(body.into());
    let header = samples::header(revision);
    let salted = Salt::random().hash(hash);
    Record::seal(Default::default(), header, place, salted, None).unwrap()
}

/// Creates frames, blocks and a large body, with needles in all of them and in the dictionary. Also
/// returns the erasure of the needles.
async fn planted(seed: u64) -> (SimulatedDisk, RedbLog<SimulatedDisk>, Erasure) {
    let disk = SimulatedDisk::new(seed);
    let log = RedbLog::open_with(disk.clone(), small(), OpenMode::Create).unwrap();
    let mut erasure = Erasure::default();
    for part in 0..3 {
        let head = log.acquire(SHARD).await.unwrap().head;
        let mut records = samples::records(150, 700);
        for at in (0..150).step_by(3) {
            records[at] = needled(at as u64 + 1);
            erasure
                .stubs
                .insert(head + 1 + at as u64, Bytes::from_static(b"a stub"));
        }
        append(&log, &records).await.unwrap();
        if part == 0 {
            let home = append_large(&log).await;
            erasure
                .stubs
                .insert(home, Bytes::from_static(b"another stub"));
            erasure.blobs.insert(home);
        }
        if part < 2 {
            log.seal_within(0..=u64::MAX).unwrap();
        }
        if part == 0 {
            let never = AtomicBool::new(false);
            while log.rewrite_next(&never).unwrap().is_some() {}
        }
    }
    (disk, log, erasure)
}

async fn append_large(log: &RedbLog<SimulatedDisk>) -> u64 {
    let owner = log.acquire(SHARD).await.unwrap();
    let home_offset = owner.head + 1;
    let mut body = samples::noise(300_000).to_vec();
    body.splice(100_000..100_000, LARGE_NEEDLE.iter().copied());
    let (bytes, hash) = (Bytes::from(body.clone()), Record::hash_body(&body));
    let header = samples::header(home_offset);
    let blob = NewBlob {
        namespace: header.namespace.clone(),
        hash,
        home_offset,
        bytes,
        patch: None,
    };
    let salted = Salt::random().hash(hash);
    let place = RecordBody::Blob(blob.reference());
    let record = Record::seal(Default::default(), header, place, salted, None).unwrap();
    let mut batch = samples::batch(home_offset, &[record]);
    batch.blobs.push(blob);
    log.append(SHARD, owner.epoch, owner.head, batch)
        .await
        .unwrap();
    home_offset
}

/// Returns where a needle is found: in the files' bytes, and in unpacked frames, blocks and
/// dictionaries.
async fn found(disk: &SimulatedDisk, log: &RedbLog<SimulatedDisk>) -> BTreeSet<&'static str> {
    let mut found = BTreeSet::new();
    let mut look = |place, bytes: &[u8]| {
        for needle in [NEEDLE, LARGE_NEEDLE] {
            if memchr::memmem::find(bytes, needle).is_some() {
                found.insert(place);
            }
        }
    };
    for name in disk.file_names() {
        look("a file", &disk.read(&name, u64::MAX).unwrap());
    }
    let head = log.acquire(SHARD).await.unwrap().head;
    let mut next = 1;
    while next <= head {
        for stored in log.read(SHARD, next, 1).await.unwrap() {
            next = stored.last_offset() + 1;
            if let Some(dictionary) = &stored.dictionary {
                look("a dictionary", dictionary.bytes());
            }
            for record in frame::decode(&stored).unwrap().records {
                look("a record", record.body.here());
            }
        }
    }
    found
}

/// Checks that everything is there, the chain included, and that what was erased is a stub.
fn check(before: &[Record], after: &[Record], erasure: &Erasure) {
    assert_eq!(before.len(), after.len());
    for (offset, (before, after)) in (1..).zip(before.iter().zip(after)) {
        let stub = erasure.stubs.get(&offset);
        assert_eq!(after.is_erased(), stub.is_some(), "{offset}");
        assert_eq!(before.header, after.header);
        assert_eq!(before.body_hash(), after.body_hash());
        assert_eq!(before.chain_hash(), after.chain_hash());
        match stub {
            Some(stub) => {
                assert_eq!(after.body.here(), stub);
                assert_eq!(after.body.bytes_len(), before.body.bytes_len());
            }
            None => assert_eq!(before, after),
        }
    }
}

// Overwriting rows in place left 412 of 413 frames in redb's free pages, and a dictionary kept what
// it was trained on. After a scrub, no file may have the erased content, and nothing else may have
// changed.
#[tokio::test(flavor = "multi_thread")]
async fn erased_content_is_removed_from_disk() {
    let (disk, log, erasure) = planted(1).await;
    let log = Arc::new(log);
    let before = all(Arc::clone(&log)).await.unwrap();
    assert!(found(&disk, &log).await.contains("a record"));
    log.begin_erasing().unwrap();
    let done = log.scrub(&erasure, |_, _| {}).unwrap();
    assert_eq!(done.segments, 3);
    assert_eq!(found(&disk, &log).await, BTreeSet::new());
    check(&before, &all(Arc::clone(&log)).await.unwrap(), &erasure);
    log.end_erasing(7).unwrap();
    // No frame reveals a salt of a sealed record any more, and new records use another tree.
    let manifest = log.manifest().clone();
    assert!(
        manifest
            .segments
            .iter()
            .all(|entry| entry.sealed.is_none() || entry.form.is_some())
    );
    assert_eq!((manifest.erased, manifest.erasing), (7, None));
    // Nothing is left to do.
    let again = log.scrub(&erasure, |_, _| {}).unwrap();
    check(&before, &all(Arc::clone(&log)).await.unwrap(), &erasure);
    assert_eq!(again.before.len(), again.after.len());
}

// The power fails at every step. The next opening finds that an erasure was in progress and repeats
// it; afterwards no erased content is on disk.
#[tokio::test(flavor = "multi_thread")]
async fn interrupted_scrub_is_repeated_at_open() {
    let (mut steps, mut finished, mut interrupted) = (0, 0, 0);
    while finished < 3 {
        let (disk, log, erasure) = planted(steps).await;
        let log = Arc::new(log);
        let before = all(Arc::clone(&log)).await.unwrap();
        log.begin_erasing().unwrap();
        disk.crash_after(steps);
        let done = log
            .scrub(&erasure, |_, _| {})
            .and_then(|_| log.end_erasing(7));
        let disk = disk.after_crash();
        let log = RedbLog::open_with(disk.clone(), small(), OpenMode::Append).unwrap();
        let log = Arc::new(log);
        if done.is_ok() {
            finished += 1;
            assert_eq!(log.erasing(), None);
        } else if log.erasing().is_some() {
            interrupted += 1;
            log.scrub(&erasure, |_, _| {}).unwrap();
            log.end_erasing(7).unwrap();
        }
        assert_eq!(
            found(&disk, &log).await,
            BTreeSet::new(),
            "after {steps} steps"
        );
        check(&before, &all(log).await.unwrap(), &erasure);
        steps += if steps < 30 { 1 } else { 7 };
    }
    assert!(interrupted > 30, "{interrupted}");
}
