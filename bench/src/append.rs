//! Durable appends in this process.

use std::{fs::File, sync::Arc};

use super::{
    Setup, failed,
    group::{Group, Job, append_raw, raw},
    payload::{BODY_BYTES, Payloads},
    rounds::{closed_loop, median, ratio, timed},
    row::{Row, Target, Unit},
    stores,
};
use treering::{domain::ConversationId, engine::Engine};
use treering_client::error::ClientError;

/// Concurrent writers; each has its own conversation.
const WRITERS: usize = 256;

/// Measures the rows of this group.
///
/// # Errors
/// When an append fails.
pub(super) async fn measure(setup: &Setup) -> Result<Vec<Row>, ClientError> {
    let folder = setup.folder()?;
    let engine = stores::open(&folder.path().join("store")).await?;
    let mut rows = many(setup, &engine, &folder).await?;
    rows.extend(lone(setup, &engine, &folder).await?);
    engine.close().await;
    Ok(rows)
}

async fn many(
    setup: &Setup,
    engine: &Engine,
    folder: &super::TempFolder,
) -> Result<Vec<Row>, ClientError> {
    let ids: Arc<[ConversationId]> = stores::conversations(engine, WRITERS).await?.into();
    let file = Group::raw_file(&folder.path().join("raw"))?;
    let sqlite = Group::sqlite(&folder.path().join("events.sqlite"))?;
    let (mut ours, mut files, mut sqlites) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=setup.rounds() {
        setup.doing("append: 256 writers");
        let plain = |group: &Group| baseline(setup, group.clone(), Arc::clone(&ids));
        let raw = plain(&file).await?;
        let own = ours_256(setup, engine, Arc::clone(&ids)).await?;
        let sql = plain(&sqlite).await?;
        // The first round is not counted: it creates files and fills caches.
        if round > 0 {
            files.push(raw);
            ours.push(own);
            sqlites.push(sql);
        }
    }
    let what = "durable append, in process, 256 writers";
    let row = |id| Row::new(id, what, median(&ours), Unit::PerSecond);
    Ok(vec![
        row("append.raw")
            .beside("raw file", median(&files), ratio(&ours, &files))
            .aim(Target::RatioAtLeast(0.32))
            .note(
                "1 KiB incompressible events, one per append, one conversation per writer; the \
                 file: the same bodies, one write and one fdatasync per group",
            ),
        row("append.sqlite")
            .beside("SQLite", median(&sqlites), ratio(&ours, &sqlites))
            .aim(Target::RatioAtLeast(2.2))
            .note(
                "SQLite: WAL, synchronous=FULL, one transaction per group, the same columns, an \
                 index on (conversation, revision)",
            ),
    ])
}

async fn ours_256(
    setup: &Setup,
    engine: &Engine,
    ids: Arc<[ConversationId]>,
) -> Result<f64, ClientError> {
    let (engine, payloads) = (engine.clone(), setup.payloads.clone());
    let done = closed_loop(ids.len(), setup.round_time(), move |writer| {
        let (engine, event) = (engine.clone(), payloads.event(ids[writer]));
        async move { stores::append(&engine, vec![event]).await.map(drop) }
    });
    Ok(done.await?.per_second)
}

async fn baseline(
    setup: &Setup,
    group: Group,
    ids: Arc<[ConversationId]>,
) -> Result<f64, ClientError> {
    let payloads = setup.payloads.clone();
    let done = closed_loop(ids.len(), setup.round_time(), move |writer| {
        let job = Job {
            conversation: ids[writer].0,
            revision: 1,
            body: payloads.bytes(),
        };
        let group = group.clone();
        async move { group.append(job).await }
    });
    Ok(done.await?.per_second)
}

/// Measures one writer that waits for each event. The baselines write the same bytes to a plain
/// file: one file grows, as a log does; the other was fully written before, so that a sync writes
/// only the data.
async fn lone(
    setup: &Setup,
    engine: &Engine,
    folder: &super::TempFolder,
) -> Result<Vec<Row>, ClientError> {
    setup.doing("append: one writer");
    let id = stores::conversations(engine, 1).await?[0];
    let mut growing = raw(&folder.path().join("growing"))?;
    let mut written = written_before(&folder.path().join("written"))?;
    let (mut ours, mut files, mut overwritten) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..setup.or_quick(500, 100) {
        // The order affects the sync times, so every other round runs in reverse.
        let order = if round % 2 == 0 { [0, 1, 2] } else { [2, 1, 0] };
        for turn in order {
            match turn {
                0 => files.push(one_raw(&mut growing, &setup.payloads).await?),
                1 => overwritten.push(one_raw(&mut written, &setup.payloads).await?),
                _ => {
                    let event = setup.payloads.event(id);
                    let (done, micros) = timed(stores::append(engine, vec![event])).await;
                    done?;
                    ours.push(micros);
                }
            }
        }
    }
    let row = |id, baseline, files: &[f64]| {
        let (own, file) = (median(&ours), median(files));
        let what = "durable append, in process, one writer";
        Row::new(id, what, own, Unit::Microseconds)
            .beside(baseline, file, own / file)
            .aim(Target::RatioAtMost(2.2))
    };
    let note = "one event after the other, ratio of the medians; the file grows, so a sync also \
                writes its size";
    Ok(vec![
        row("append.lone", "append + fdatasync", &files).note(note),
        row("append.lone_over", "overwrite + fdatasync", &overwritten)
            .note("the same, over a file whose bytes were all written before"),
    ])
}

/// Returns a file with room for all rounds. Every block of it was written before.
fn written_before(path: &std::path::Path) -> Result<File, ClientError> {
    let make = || {
        std::fs::write(path, vec![0; 4 << 20])?;
        let file = File::options().write(true).open(path)?;
        file.sync_all()?;
        Ok::<_, std::io::Error>(file)
    };
    make().map_err(|error| failed("making the raw file", error))
}

async fn one_raw(file: &mut File, payloads: &Payloads) -> Result<f64, ClientError> {
    let bytes = payloads.bytes();
    debug_assert_eq!(bytes.len(), BODY_BYTES);
    // Runs on this thread: the blocking pool would add a thread switch to the measured time.
    let (done, micros) = timed(async { append_raw(file, &bytes) }).await;
    done.map_err(|error| failed("the raw file", error))?;
    Ok(micros)
}
