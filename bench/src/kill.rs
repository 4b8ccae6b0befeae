//! Measures opening after `kill -9`, and memory use after many events.

use std::{path::Path, time::Duration};

use super::{
    Setup,
    child::Child,
    folder::bytes_on_disk,
    rounds::timed,
    row::{Row, Target, Unit},
    stores,
};
use treering_client::error::ClientError;

/// Events in each append, and in each conversation.
const EACH: usize = 100;
/// Pause before the memory of an idle server is measured.
const REST: Duration = Duration::from_secs(5);

/// Measures the rows of this group.
///
/// # Errors
/// When a server does not start or an append fails.
pub(super) async fn measure(setup: &Setup) -> Result<Vec<Row>, ClientError> {
    let small = killed(setup, "kill.small", setup.or_quick(100_000, 20_000), false).await?;
    let large = killed(
        setup,
        "kill.large",
        setup.or_quick(1_000_000, 100_000),
        true,
    )
    .await?;
    Ok(small.into_iter().chain(large).collect())
}

async fn killed(
    setup: &Setup,
    id: &'static str,
    events: u64,
    memory: bool,
) -> Result<Vec<Row>, ClientError> {
    let folder = setup.folder()?;
    let store = folder.path();
    let mut rows = Vec::new();
    let child = Child::serve(store).await?;
    let server = child.connect().await?;
    setup.doing("kill: filling");
    stores::stream_to(&server, &setup.payloads, events, EACH).await?;
    if memory {
        setup.doing("kill: idle");
        stores::idle(&server, REST).await?;
        rows.extend(memory_row(
            &child,
            "memory.filled",
            events,
            "after storing them",
        ));
    }
    setup.doing("kill: killing");
    // The server is killed in the middle of appends, not while it idles.
    let payloads = setup.payloads.clone();
    let appending = tokio::spawn(async move {
        // This fails when the server dies, as intended.
        let _ = stores::stream_to(&server, &payloads, u64::MAX / 2, EACH).await;
    });
    tokio::time::sleep(Duration::from_millis(700)).await;
    child.kill().await?;
    appending.abort();
    rows.push(opened(store, id).await?);
    if memory {
        let child = Child::serve(store).await?;
        let server = child.connect().await?;
        stores::idle(&server, REST).await?;
        rows.extend(memory_row(
            &child,
            "memory.opened",
            events,
            "after opening them",
        ));
    }
    Ok(rows)
}

async fn opened(store: &Path, id: &'static str) -> Result<Row, ClientError> {
    let megabytes = bytes_on_disk(store) as f64 / 1e6;
    let (engine, micros) = timed(stores::open(store)).await;
    let engine = engine?;
    let events = engine.head().offset;
    engine.close().await;
    let what = format!("open after kill -9, {megabytes:.0} MB");
    Ok(Row::new(id, what, micros / 1e6, Unit::Seconds)
        .aim(Target::AtMost(0.2))
        .note(format!(
            "{events} events of 1 KiB; killed while it appended; until reads and appends work"
        )))
}

fn memory_row(child: &Child, id: &'static str, events: u64, when: &str) -> Option<Row> {
    let resident = child.resident_mib()?;
    let what = format!("resident memory, {events} events, idle, {when}");
    Some(
        Row::new(id, what, resident, Unit::Mebibytes)
            .aim(Target::AtMost(160.0))
            .note("the server's process, conversations of 100 events of 1 KiB"),
    )
}
