//! Power loss in the middle of any operation.

use super::*;
use crate::{
    record::{BlobRef, RecordBody},
    salt::Salt,
    testkit::samples::Random,
};
use treering_domain::ContentHash;

/// Returns the number of seeds; `TREERING_POWER_LOSS_SEEDS` overrides it.
fn seeds() -> u64 {
    std::env::var("TREERING_POWER_LOSS_SEEDS")
        .ok()
        .and_then(|seeds| seeds.parse().ok())
        .unwrap_or(200)
}

fn options() -> RedbLogOptions {
    RedbLogOptions {
        segment_bytes_max: 1600 << 10,
        cache_bytes: 1 << 20,
        ..small()
    }
}

/// Returns a random group of records, sometimes with a large body, which may be a patch on an
/// earlier one.
fn group(random: &mut Random, first_offset: u64, before: &[NewBlob]) -> FrameBatch {
    let mut blobs = Vec::new();
    let mut records: Vec<_> = (0..1 + random.below(12))
        .map(|_| samples::noisy_record(random.below(3_000) as usize))
        .collect();
    if random.below(4) == 0 {
        let like = match before.len() {
            0 => None,
            count => before.get(random.below(2 * count as u64) as usize),
        };
        let body = match like {
            Some(base) => [b"another ", base.bytes.as_ref()].concat().into(),
            None => samples::noise(66_000 + random.below(200_000) as usize),
        };
        let hash = Record::hash_body(&body);
        let home_offset = first_offset + records.len() as u64;
        let place = RecordBody::Blob(BlobRef {
            hash,
            bytes_len: body.len() as u64,
            home_offset,
        });
        let header = samples::header(home_offset);
        let namespace = header.namespace.clone();
        let salted = Salt::random().hash(hash);
        records.push(Record::seal(ContentHash::default(), header, place, salted, None).unwrap());
        blobs.push(NewBlob {
            namespace,
            hash,
            home_offset,
            patch: like.map(|base| patch_on(base, &body)),
            bytes: body,
        });
    }
    let mut batch = samples::batch(first_offset, &records);
    batch.blobs = blobs;
    batch
}

/// What was acknowledged, and the batch whose outcome is unknown.
#[derive(Default)]
struct Model {
    acknowledged: Vec<EncodedFrame>,
    blobs: Vec<NewBlob>,
    in_flight: Option<FrameBatch>,
    seen: TestStatistics,
}

/// Statistics, to show that the test covered something.
#[derive(Default)]
struct TestStatistics {
    survived: u64,
    lost: u64,
    segments: u64,
}

impl Model {
    fn head(&self) -> u64 {
        self.acknowledged
            .last()
            .map_or(0, EncodedFrame::last_offset)
    }

    fn acknowledge(&mut self, batch: FrameBatch) {
        self.acknowledged.extend(batch.frames);
        self.blobs.extend(batch.blobs);
    }

    async fn check(&mut self, log: &RedbLog<SimulatedDisk>, seed: u64) {
        let head = log.acquire(SHARD).await.unwrap().head;
        if let Some(batch) = self.in_flight.take() {
            if head == self.head() {
                self.seen.lost += 1;
            } else {
                let whole = batch.new_head(0);
                assert_eq!(head, whole, "seed {seed}: a group is there in part");
                self.seen.survived += 1;
                self.acknowledge(batch);
            }
        }
        self.seen.segments += log.stats(SHARD).await.unwrap().segments - 1;
        assert_eq!(head, self.head(), "seed {seed}");
        let read = log.read(SHARD, 1, usize::MAX).await.unwrap();
        assert!(read == self.acknowledged, "seed {seed}: frames differ");
        for blob in &self.blobs {
            let body = log.blob(SHARD, &blob.reference()).await.unwrap();
            assert!(body == blob.bytes, "seed {seed}: a large body differs");
        }
    }
}

async fn run_seed(seed: u64) -> TestStatistics {
    let mut random = Random(seed << 32);
    let mut disk = SimulatedDisk::new(seed);
    let mut model = Model::default();
    for _round in 0..4 {
        // Short delays crash it while it opens and repairs.
        let fuse = [40, 400, 1500][random.below(3) as usize];
        disk.crash_after(random.below(fuse));
        if let Ok(log) = RedbLog::open_with(disk.clone(), options(), OpenMode::Create) {
            loop {
                let Ok(owner) = log.acquire(SHARD).await else {
                    break;
                };
                let batch = group(&mut random, model.head() + 1, &model.blobs);
                match log
                    .append(SHARD, owner.epoch, owner.head, batch.clone())
                    .await
                {
                    Ok(_) => model.acknowledge(batch),
                    Err(_) => {
                        model.in_flight = Some(batch);
                        break;
                    }
                }
            }
        }
        disk = disk.after_crash();
        let log = RedbLog::open_with(disk.clone(), options(), OpenMode::Create).unwrap();
        model.check(&log, seed).await;
        // The next crash finds the log open or closed.
        if random.below(2) == 0 {
            log.close().await.unwrap();
        }
        drop(log);
    }
    model.seen
}

#[tokio::test]
async fn acknowledged_records_survive_power_loss() {
    // The disk loses or tears any part of what was not synced. Every acknowledged frame and large
    // body is there, in order; the group in flight is there as a whole or not at all; appends
    // continue.
    let mut all = TestStatistics::default();
    for seed in 0..seeds() {
        let seen = run_seed(seed).await;
        all.survived += seen.survived;
        all.lost += seen.lost;
        all.segments += seen.segments;
    }
    println!(
        "on their way when the power went: {} groups survived, {} did not; {} segments were sealed",
        all.survived, all.lost, all.segments
    );
    assert!(all.survived > 0 && all.lost > 0 && all.segments > 0);
}
