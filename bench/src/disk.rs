//! Measures the size of real conversations on disk, and the speed of their import.

use std::time::Instant;

use super::{
    Setup,
    folder::bytes_on_disk,
    row::{Row, Target, Unit},
    stores,
};
use treering_client::error::ClientError;

/// Largest file that a quick run imports, in bytes.
const QUICK_FILES_BYTES: u64 = 3 << 20;

/// Measures the rows of this group. Returns none if there are no real conversations.
///
/// # Errors
/// When an import fails.
pub(super) async fn measure(setup: &Setup) -> Result<Vec<Row>, ClientError> {
    let mut files = setup.trajectory_files();
    if setup.quick {
        files.retain(|file| {
            std::fs::metadata(file).is_ok_and(|meta| meta.len() <= QUICK_FILES_BYTES)
        });
    }
    if files.is_empty() {
        setup.left_out("disk", "real conversations");
        return Ok(Vec::new());
    }
    let folder = setup.folder()?;
    let store = folder.path();
    setup.doing("disk: importing");
    let engine = stores::open_dense(store).await?;
    let started = Instant::now();
    let imported = stores::import(&engine, &files).await?;
    let seconds = started.elapsed().as_secs_f64();
    setup.doing("disk: indexing");
    stores::indexed(&engine).await?;
    let indexed_seconds = started.elapsed().as_secs_f64();
    let closing = Instant::now();
    engine.close().await;
    drop(engine);
    let closing_seconds = closing.elapsed().as_secs_f64();

    let per_byte = |names: &[&str]| {
        let bytes: u64 = names
            .iter()
            .map(|name| bytes_on_disk(&store.join(name)))
            .sum();
        bytes as f64 / imported.bytes as f64
    };
    let row = |id, what: &str, names: &[&str]| {
        Row::new(
            id,
            format!("bytes on disk for each byte of JSONL, {what}"),
            per_byte(names),
            Unit::Plain,
        )
    };
    let megabytes = imported.bytes as f64 / 1e6;
    let mut rows = vec![
        row("disk.all", "all", &["log", "views.redb", "index"])
            .aim(Target::AtMost(0.45))
            .note(format!(
                "{} real conversations, {} events, {megabytes:.0} MB of JSONL, not compressed; \
                 blocks that the files take, after closing, which took {closing_seconds:.1} s",
                imported.conversations, imported.events
            )),
        row("disk.log", "log", &["log"]).aim(Target::AtMost(0.18)),
        row("disk.views", "views", &["views.redb"]).aim(Target::AtMost(0.06)),
        row("disk.index", "index", &["index"]).aim(Target::AtMost(0.24)),
        Row::new(
            "disk.import",
            "import of real conversations, durable",
            megabytes / seconds,
            Unit::MegabytesPerSecond,
        )
        .note(format!(
            "MB of JSONL; reading and converting included, in process; {:.0} events/s; with all \
             of it searchable {:.1} MB/s",
            imported.events as f64 / seconds,
            megabytes / indexed_seconds
        )),
    ];
    setup.doing("disk: a new index");
    let engine = stores::open(store).await?;
    let rate = stores::rebuilt(&engine, false, true).await?;
    engine.close().await;
    rows.push(
        Row::new(
            "disk.indexing",
            "indexing of real conversations",
            rate,
            Unit::PerSecond,
        )
        .aim(Target::AtLeast(40_000.0))
        .note("events of the log; the index is rebuilt, reading included"),
    );
    Ok(rows)
}
