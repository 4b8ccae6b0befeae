//! `cluster import`, `cluster export` and `cluster verify`.

use std::path::PathBuf;

use serde_json::json;

use super::node::{failed, of_database};
use crate::{
    args::{Common, Target},
    error::ClientError,
    output::{Out, Steps},
    text::count,
};
use treering_cluster::{
    ClusterVerification, MoveError, MoveOutcome, MoveStep, export_store, import_store,
    verify_cluster,
};
use treering_domain::with_causes;

/// Maximum number of damaged shards that are shown.
const SHOWN_MAX: usize = 20;

fn folder(common: &Common) -> Result<PathBuf, ClientError> {
    match common.target()? {
        Target::Data(dir) => Ok(dir),
        Target::Server(_) => Err(ClientError::Usage {
            what: "a store cannot be moved through a server".into(),
            hint: "stop the server, and name the store's folder: --data DIR".into(),
        }),
    }
}

fn refused(error: MoveError) -> ClientError {
    match error {
        MoveError::Database(error) => of_database(error),
        error => failed(with_causes(&error).to_string(), "see docs/CLUSTER.md"),
    }
}

/// Shows progress as a bar.
fn shown(bar: &Steps) -> impl FnMut(MoveStep) + Send {
    |step| bar.of(step.what, step.done, step.total)
}

/// Moves a store into a cluster.
///
/// # Errors
/// [`ClientError::Outcome`].
pub(super) async fn import(url: &str, common: &Common, out: &mut Out) -> Result<(), ClientError> {
    let dir = folder(common)?;
    let bar = Steps::start("import");
    let done = import_store(&dir, url, shown(&bar)).await;
    drop(bar);
    let done = done.map_err(refused)?;
    if out.json {
        return Ok(out.line(to_json(&done))?);
    }
    if done.continued_after > 0 {
        let before = count(done.continued_after);
        out.line(format!("An earlier import had copied {before} events."))?;
    }
    out.line(format!(
        "The cluster has all {} events of {} conversations, compared one by one.",
        count(done.events),
        count(done.conversations)
    ))?;
    Ok(out.line("Nodes can start now. Copy keys.json to the folder of the first one.")?)
}

/// Moves a cluster into a store.
///
/// # Errors
/// [`ClientError::Outcome`].
pub(super) async fn export(url: &str, common: &Common, out: &mut Out) -> Result<(), ClientError> {
    let dir = folder(common)?;
    let bar = Steps::start("export");
    let done = export_store(url, &dir, shown(&bar)).await;
    drop(bar);
    let done = done.map_err(refused)?;
    if out.json {
        return Ok(out.line(to_json(&done))?);
    }
    out.line(format!(
        "{} has all {} events of {} conversations, compared one by one.",
        dir.display(),
        count(done.events),
        count(done.conversations)
    ))?;
    Ok(out.line("Copy keys.json from the folder of a node.")?)
}

fn to_json(done: &MoveOutcome) -> serde_json::Value {
    json!({
        "events": done.events,
        "conversations": done.conversations,
        "continued_after": done.continued_after,
        "moved": done.moved,
    })
}

/// Verifies the log in the database.
///
/// # Errors
/// [`ClientError::Outcome`] if something is damaged.
pub(super) async fn verify(url: &str, out: &mut Out) -> Result<(), ClientError> {
    let bar = Steps::start("verify");
    let found = verify_cluster(url, shown(&bar)).await;
    drop(bar);
    let found = found.map_err(refused)?;
    show(&found, out)?;
    out.flush()?;
    match found.damaged.len() {
        0 => Ok(()),
        damaged => Err(failed(
            format!("{} of {} shards are damaged", damaged, found.shards),
            "restore the database, or put the rows back; other shards are sound",
        )),
    }
}

fn show(found: &ClusterVerification, out: &mut Out) -> Result<(), ClientError> {
    if out.json {
        let damaged = found.damaged.iter().map(|damage| {
            json!({
                "shard": damage.shard.0,
                "offset": damage.offset,
                "what": damage.what,
            })
        });
        let damaged: Vec<_> = damaged.collect();
        return Ok(out.line(json!({
            "shards": found.shards,
            "events": found.events,
            "conversations": found.conversations,
            "damaged": damaged,
        }))?);
    }
    for damage in found.damaged.iter().take(SHOWN_MAX) {
        out.line(format!(
            "shard {}: damaged at offset {}: {}",
            damage.shard.0, damage.offset, damage.what
        ))?;
    }
    Ok(out.line(format!(
        "{} events of {} conversations in {} shards are sound.",
        count(found.events),
        count(found.conversations),
        found.shards
    ))?)
}
