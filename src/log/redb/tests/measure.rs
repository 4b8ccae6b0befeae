//! Compares segments, one file, one file with quick repair, and a raw file. Source of the table in
//! `docs/decisions/0001-log-segments.md`:
//!
//! `cargo test -p treering-log --lib redb::tests::measure -- --ignored --nocapture`

use std::{
    fs::File,
    io::Write,
    ops::Bound,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use ::redb::{Builder, Database, ReadableDatabase, ReadableTable, TableDefinition};

use super::*;

const FRAMES: TableDefinition<u64, &[u8]> = TableDefinition::new("frames");
const EVENT_BYTES: usize = 1024;
const CHILD: &str = "TREERING_MEASURE_CHILD";
const FOLDER: &str = "TREERING_MEASURE_FOLDER";
const VARIANTS: [Variant; 4] = [
    Variant::Raw,
    Variant::Segments,
    Variant::OneFile,
    Variant::QuickRepair,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    Raw,
    Segments,
    OneFile,
    QuickRepair,
}

/// A store to which a group can be appended.
#[allow(clippy::large_enum_variant)]
enum Store {
    Raw(File),
    Segments(RedbLog, Epoch),
    One(Database, bool),
}

impl Store {
    fn open(variant: Variant, folder: &Path) -> Self {
        std::fs::create_dir_all(folder).unwrap();
        match variant {
            Variant::Raw => Self::Raw(
                File::options()
                    .create(true)
                    .append(true)
                    .open(folder.join("raw"))
                    .unwrap(),
            ),
            Variant::Segments => {
                let log =
                    RedbLog::open(folder, RedbLogOptions::default(), OpenMode::Create).unwrap();
                let epoch = futures::executor::block_on(log.acquire(SHARD))
                    .unwrap()
                    .epoch;
                Self::Segments(log, epoch)
            }
            Variant::OneFile | Variant::QuickRepair => Self::One(
                Builder::new()
                    .set_cache_size(16 << 20)
                    .create(folder.join("one.redb"))
                    .unwrap(),
                variant == Variant::QuickRepair,
            ),
        }
    }

    fn append(&mut self, head: u64, batch: FrameBatch, raw: &[u8]) {
        match self {
            Self::Raw(file) => {
                file.write_all(raw).unwrap();
                file.sync_data().unwrap();
            }
            Self::Segments(log, epoch) => {
                futures::executor::block_on(log.append(SHARD, *epoch, head, batch)).unwrap();
            }
            Self::One(database, quick) => {
                let mut transaction = database.begin_write().unwrap();
                transaction.set_quick_repair(*quick);
                {
                    let mut table = transaction.open_table(FRAMES).unwrap();
                    let mut edge = table.upper_bound_mut(Bound::<u64>::Unbounded).unwrap();
                    for frame in &batch.frames {
                        edge.insert_before(frame.first_offset, frame.bytes.as_ref())
                            .unwrap();
                    }
                    edge.close().unwrap();
                }
                transaction.commit().unwrap();
            }
        }
    }
}

fn group(first_offset: u64, size: usize) -> FrameBatch {
    let records: Vec<_> = (0..size)
        .map(|_| samples::noisy_record(EVENT_BYTES))
        .collect();
    samples::batch(first_offset, &records)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

#[test]
#[ignore = "measures for minutes"]
fn commit_latency() {
    // The cost of a durable commit as a multiple of a raw file with one fdatasync per group, all in
    // one run, with the variants taking turns.
    let folder = tempfile::tempdir().unwrap();
    for (size, rounds) in [(1, 400), (16, 400), (128, 200), (1024, 60)] {
        let mut stores: Vec<_> = VARIANTS
            .iter()
            .map(|v| {
                let path = folder.path().join(format!("{v:?}-{size}"));
                (Store::open(*v, &path), Vec::new())
            })
            .collect();
        let mut head = 0;
        for _ in 0..rounds {
            let batch = group(head + 1, size);
            let raw: Vec<u8> = batch.frames.iter().flat_map(|f| f.bytes.to_vec()).collect();
            let new_head = batch.new_head(head);
            for (store, times) in &mut stores {
                let batch = batch.clone();
                let start = Instant::now();
                store.append(head, batch, &raw);
                times.push(start.elapsed());
            }
            head = new_head;
        }
        let medians: Vec<_> = stores.into_iter().map(|(_, times)| median(times)).collect();
        let raw = medians[0].as_secs_f64();
        for (variant, time) in VARIANTS.iter().zip(&medians) {
            println!(
                "group of {size:4}: {variant:?}: {:.0} us, {:.2} x raw",
                time.as_secs_f64() * 1e6,
                time.as_secs_f64() / raw
            );
        }
    }
}

#[test]
#[ignore = "writes several GB"]
fn open_after_kill() {
    // After a process is killed without closing anything, how long it takes until the next one can
    // append. The child process is this test binary.
    let mib = std::env::var("TREERING_MEASURE_MIB").map_or(1024, |n| n.parse().unwrap());
    let only = std::env::var("TREERING_MEASURE_ONLY").unwrap_or_default();
    let chosen = |v: &Variant| *v != Variant::Raw && format!("{v:?}").starts_with(&only);
    for variant in VARIANTS.into_iter().filter(chosen) {
        let folder = tempfile::tempdir().unwrap();
        let start = Instant::now();
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "redb::tests::measure::child"])
            .env(CHILD, format!("{variant:?} {mib}"))
            .env(FOLDER, folder.path())
            .status()
            .unwrap();
        assert!(!status.success(), "the child was to abort");
        let wrote = start.elapsed();
        let start = Instant::now();
        let store = Store::open(variant, folder.path());
        let opened = start.elapsed();
        let frames = match &store {
            Store::Segments(log, _) => log.head.borrow().offset,
            Store::One(database, _) => {
                let table = database.begin_read().unwrap().open_table(FRAMES).unwrap();
                table.last().unwrap().unwrap().0.value()
            }
            Store::Raw(_) => 0,
        };
        println!(
            "{variant:?}: {mib} MiB written in {:.1} s, opened in {:.3} s, last row {frames}",
            wrote.as_secs_f64(),
            opened.as_secs_f64()
        );
    }
}

#[test]
#[ignore = "part of open_after_kill"]
fn child() {
    // Writes what `open_after_kill` asks for, then dies with everything open.
    let Ok(what) = std::env::var(CHILD) else {
        return;
    };
    let (name, mib) = what.split_once(' ').unwrap();
    let variant = VARIANTS
        .into_iter()
        .find(|v| format!("{v:?}") == name)
        .unwrap();
    let folder = std::env::var(FOLDER).unwrap();
    let mut store = Store::open(variant, Path::new(&folder));
    let mut head = 0;
    let mib: usize = mib.parse().unwrap();
    for _ in 0..mib {
        let batch = group(head + 1, 1024);
        let new_head = batch.new_head(head);
        store.append(head, batch, &[]);
        head = new_head;
    }
    std::process::abort();
}
