//! Large bodies stored as patches are read whole, whatever their base is and whatever happens to
//! it.

use std::collections::BTreeSet;

use super::*;
use crate::{BlobRef, Erasure, RecordBody, Salt, patch::PATCHES_MAX, testkit::samples::Random};

/// Returns a large body and the record that references it.
fn large(home_offset: u64, bytes: Vec<u8>, base: Option<&NewBlob>) -> (Record, NewBlob) {
    let bytes = Bytes::from(bytes);
    let hash = Record::hash_body(&bytes);
    let header = samples::header(home_offset);
    let place = RecordBody::Blob(BlobRef {
        hash,
        bytes_len: bytes.len() as u64,
        home_offset,
    });
    let blob = NewBlob {
        namespace: header.namespace.clone(),
        hash,
        home_offset,
        patch: base.map(|base| patch_on(base, &bytes)),
        bytes,
    };
    let salted = Salt::random().hash(hash);
    let record = Record::seal(Default::default(), header, place, salted, None).unwrap();
    (record, blob)
}

async fn append_all<F: Folder>(log: &RedbLog<F>, made: Vec<(Record, NewBlob)>) {
    let owner = log.acquire(SHARD).await.unwrap();
    let (records, blobs): (Vec<_>, Vec<_>) = made.into_iter().unzip();
    let mut batch = samples::batch(owner.head + 1, &records);
    batch.blobs = blobs;
    log.append(SHARD, owner.epoch, owner.head, batch)
        .await
        .unwrap();
}

/// Writes to the last segment, bypassing all checks.
fn write_unasked<F: Folder>(log: &RedbLog<F>, batch: FrameBatch) {
    let active = log.active().unwrap();
    let open = active.open.as_ref().unwrap();
    segment::append(&open.database, &batch).unwrap();
}

/// Returns the home offset of a stored body's base.
fn base_of<F: Folder>(log: &RedbLog<F>, home: u64) -> Option<u64> {
    log.in_segment(home, |segment| segment::base_of(&segment, home))
        .unwrap()
}

/// Returns how many patches are applied to read a body.
fn patches<F: Folder>(log: &RedbLog<F>, home: u64) -> usize {
    let mut count = 0;
    let mut next = base_of(log, home);
    while let Some(base) = next {
        count += 1;
        next = base_of(log, base);
    }
    count
}

fn changed(random: &mut Random, base: &[u8]) -> Vec<u8> {
    let at = random.below(base.len() as u64) as usize;
    let added = samples::noise(random.below(300) as usize);
    [&base[..at], b"a change", &added, &base[at..]].concat()
}

// Random trees of bodies, some in one batch, in segments that are sealed, rewritten and reopened:
// each body is read as appended, no chain exceeds its limit, and no body needs another segment.
#[tokio::test(flavor = "multi_thread")]
async fn patched_bodies_are_read_whole() {
    let (mut patched, mut longest) = (0, 0);
    for seed in 0..6 {
        let mut random = Random(seed << 32 | 77);
        let disk = SimulatedDisk::new(seed);
        let open = || RedbLog::open_with(disk.clone(), small(), OpenMode::Create).unwrap();
        let mut log = open();
        let mut blobs: Vec<NewBlob> = Vec::new();
        for round in 0..80 {
            let head = log.acquire(SHARD).await.unwrap().head;
            let mut made = Vec::new();
            for at in 0..1 + random.below(4) {
                // Mostly the last one, which makes long chains; otherwise any, which makes forks.
                let base = match (blobs.len(), random.below(80)) {
                    (0, _) | (_, 0) => None,
                    (count, 1..10) => blobs.get(random.below(count as u64) as usize),
                    _ => blobs.last(),
                };
                let body = match base {
                    Some(base) => changed(&mut random, &base.bytes),
                    None => samples::prose(5_000 + random.below(60_000) as usize).to_vec(),
                };
                let (record, blob) = large(head + 1 + at, body, base);
                blobs.push(blob.clone());
                made.push((record, blob));
            }
            append_all(&log, made).await;
            match random.below(60) {
                0 => {
                    log.seal_within(0..=u64::MAX).unwrap();
                }
                1 => {
                    let never = AtomicBool::new(false);
                    while log.rewrite_next(&never).unwrap().is_some() {}
                }
                2 => {
                    log.close().await.unwrap();
                    drop(log);
                    log = open();
                }
                _ => {}
            }
            if round % 20 == 19 {
                log.recent.forget();
                for blob in &blobs {
                    let read = log.blob(SHARD, &blob.reference()).await.unwrap();
                    assert!(read == blob.bytes, "seed {seed}: {}", blob.home_offset);
                }
            }
        }
        for blob in &blobs {
            let home = blob.home_offset;
            let count = patches(&log, home);
            assert!(count <= usize::from(PATCHES_MAX), "{count}");
            (patched, longest) = (patched + usize::from(count > 0), longest.max(count));
            if let Some(base) = base_of(&log, home) {
                assert_eq!(log.segment_of(base).unwrap(), log.segment_of(home).unwrap());
            }
        }
    }
    assert!(patched > 300, "{patched}");
    assert_eq!(longest, usize::from(PATCHES_MAX));
}

// Damage of a base is reported for the bodies that depend on it, with both offsets, and for no
// others.
#[tokio::test(flavor = "multi_thread")]
async fn damage_of_a_patch_base_is_reported() {
    let disk = SimulatedDisk::new(1);
    let log = RedbLog::open_with(disk, small(), OpenMode::Create).unwrap();
    let body = samples::prose(80_000).to_vec();
    let base = large(1, body.clone(), None);
    let other = large(2, samples::prose(70_000).to_vec(), None);
    let next = large(3, [body.as_slice(), b"more"].concat(), Some(&base.1));
    let named = [&base.1, &other.1, &next.1].map(NewBlob::reference);
    append_all(&log, vec![base, other, next]).await;
    assert_eq!(base_of(&log, 3), Some(1));
    // A different body of the same length in its place.
    let swapped = large(1, samples::noise(80_000).to_vec(), None).1;
    write_unasked(
        &log,
        FrameBatch {
            frames: Vec::new(),
            blobs: vec![swapped],
        },
    );
    log.recent.forget();
    for (at, named) in named.iter().enumerate() {
        match log.blob(SHARD, named).await {
            Ok(_) => assert_eq!(at, 1),
            Err(LogError::Damaged { offset, .. }) => assert_eq!(offset, named.home_offset),
            Err(error) => panic!("{error:?}"),
        }
    }
}

const NEEDLE: &[u8] = b"needle in a base qzx";

/// Creates a tree: 1 has a needle; 2 and 4 are patches on it, and 3 on 2; 5 is whole.
async fn planted(disk: &SimulatedDisk) -> (RedbLog<SimulatedDisk>, Vec<NewBlob>) {
    let log = RedbLog::open_with(disk.clone(), small(), OpenMode::Create).unwrap();
    let plain = samples::noise(90_000).to_vec();
    let with = |needle: &[u8]| [&plain[..40_000], needle, &plain[40_000..]].concat();
    let first = large(1, with(NEEDLE), None);
    let second = large(2, with(b"something else"), Some(&first.1));
    let third = large(3, with(b"something else again"), Some(&second.1));
    let fourth = large(4, with(b"a branch"), Some(&first.1));
    let fifth = large(5, samples::noise(70_000).to_vec(), None);
    let made = vec![first, second, third, fourth, fifth];
    let blobs = made.iter().map(|(_, blob)| blob.clone()).collect();
    append_all(&log, made).await;
    (log, blobs)
}

async fn check_erased(disk: &SimulatedDisk, log: &RedbLog<SimulatedDisk>, blobs: &[NewBlob]) {
    for name in disk.file_names() {
        let bytes = disk.read(&name, u64::MAX).unwrap();
        assert!(memchr::memmem::find(&bytes, NEEDLE).is_none(), "{name}");
    }
    assert!(log.blob(SHARD, &blobs[0].reference()).await.is_err());
    for blob in &blobs[1..] {
        let read = log.blob(SHARD, &blob.reference()).await.unwrap();
        assert!(read == blob.bytes, "{}", blob.home_offset);
    }
    let bases: Vec<_> = (2..=5).map(|home| base_of(log, home)).collect();
    assert_eq!(bases, [None, Some(2), None, None]);
}

// A patch on an erased body must stay readable, and nothing of the erased body may stay: the patch
// is stored whole. The power fails at every step, and the next opening finishes the erasure.
#[tokio::test(flavor = "multi_thread")]
async fn patches_on_an_erased_body_stay_readable() {
    let erasure = Erasure {
        stubs: [(1, Bytes::from_static(b"a stub"))].into(),
        blobs: BTreeSet::from([1]),
        ..Erasure::default()
    };
    let (mut steps, mut finished, mut interrupted) = (0, 0, 0);
    while finished < 3 {
        let disk = SimulatedDisk::new(steps);
        let (log, blobs) = planted(&disk).await;
        assert_eq!(base_of(&log, 3), Some(2));
        assert_eq!(base_of(&log, 4), Some(1));
        log.begin_erasing().unwrap();
        disk.crash_after(steps);
        let done = log
            .scrub(&erasure, |_, _| {})
            .and_then(|_| log.end_erasing(7));
        let disk = disk.after_crash();
        let log = RedbLog::open_with(disk.clone(), small(), OpenMode::Append).unwrap();
        if done.is_ok() {
            finished += 1;
        } else if log.erasing().is_some() {
            interrupted += 1;
            log.scrub(&erasure, |_, _| {}).unwrap();
            log.end_erasing(7).unwrap();
        }
        check_erased(&disk, &log, &blobs).await;
        steps += if steps < 30 { 1 } else { 7 };
    }
    assert!(interrupted > 10, "{interrupted}");
}

// A failed sync leaves the batch in the old file. The next body at the same offset may have fewer
// pieces: the remaining pieces of the old one must not be appended to it.
#[tokio::test(flavor = "multi_thread")]
async fn unacknowledged_body_leaves_no_pieces() {
    let disk = SimulatedDisk::new(3);
    let log = RedbLog::open_with(disk.clone(), small(), OpenMode::Create).unwrap();
    append(&log, &samples::records(2, 100)).await.unwrap();
    // As if it had been written and its sync had failed.
    let lost = large(3, samples::noise(200_000).to_vec(), None);
    let mut batch = samples::batch(3, &[lost.0]);
    batch.blobs.push(lost.1);
    write_unasked(&log, batch);
    log.poisoned.store(true, Ordering::Release);
    let (record, blob) = large(3, samples::noise(70_000).to_vec(), None);
    let named = blob.reference();
    append_all(&log, vec![(record, blob.clone())]).await;
    assert!(log.blob(SHARD, &named).await.unwrap() == blob.bytes);
}
