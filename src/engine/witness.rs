//! What views and index prove about the log: they are made from it, so what they
//! know must be in it.

use std::path::Path;

use super::error::OpenError;
use crate::{
    log::{LogIdentity, LogReader},
    views::{Origin, Views},
};

/// The name of the file in the index's folder that says what it is made from.
const INDEX_ORIGIN_FILE: &str = "origin";
/// Most bytes of that file.
const INDEX_ORIGIN_BYTES_MAX: u64 = 256;

fn origin(identity: LogIdentity) -> Origin {
    Origin {
        store: identity.store,
        timeline: identity.timeline,
    }
}

/// True when views were made from this log, or from nothing yet.
pub(super) fn are_of(views: &Views, identity: LogIdentity) -> bool {
    match (views.origin(), views.reached()) {
        (Ok(Some(there)), Ok(_)) => there == origin(identity),
        (Ok(None), Ok(reached)) => reached == 0,
        _ => false,
    }
}

/// Writes down what views are made from, if they do not say it yet.
pub(super) fn sign(views: &Views, identity: LogIdentity) -> Result<(), crate::views::ViewsError> {
    if views.origin()? == Some(origin(identity)) {
        return Ok(());
    }
    views.set_origin(origin(identity))
}

/// Refuses a log that has less, or something else, than the views that were made
/// from it.
///
/// # Errors
/// [`OpenError::WentBack`].
pub(super) async fn refuse_a_log_that_went_back(
    dir: &Path,
    views: &Views,
    reader: &LogReader,
    identity: LogIdentity,
    head: u64,
) -> Result<(), OpenError> {
    // Views of another log, or that cannot be read, prove nothing.
    let Ok(reached) = views.reached() else {
        return Ok(());
    };
    if reached == 0 || !are_of(views, identity) {
        return Ok(());
    }
    let refuse = |what: String| {
        Err(OpenError::WentBack {
            path: dir.to_owned(),
            what,
        })
    };
    if reached > head {
        return refuse(format!(
            "its log ends with event {head}, but the views have seen event {reached}: {} events are \
             missing",
            reached - head
        ));
    }
    let Ok(record) = reader.record(reached).await else {
        // Damage is for the reads that meet it to report.
        return Ok(());
    };
    let row = views.conversation(record.header.conversation);
    let differs = match row {
        Ok(Some(row)) if row.last_position.offset == reached => {
            row.chain_hash != record.chain_hash()
        }
        Ok(Some(row)) => row.last_position.offset > reached,
        // A damaged conversation may be unknown to them.
        Ok(None) => views.damaged().is_ok_and(|damaged| damaged.is_empty()),
        Err(_) => false,
    };
    if differs {
        return refuse(format!(
            "event {reached} of its log is another one than the views have seen: the log is an \
             older copy that has gone on since"
        ));
    }
    Ok(())
}

/// True when an index folder is of this log; one that does not say is of none.
pub(super) fn index_is_of(dir: &Path, identity: LogIdentity) -> bool {
    use std::io::Read;
    let mut text = String::new();
    let read = std::fs::File::open(dir.join(INDEX_ORIGIN_FILE))
        .and_then(|file| file.take(INDEX_ORIGIN_BYTES_MAX).read_to_string(&mut text));
    read.is_ok() && text == index_origin(identity)
}

/// Writes down what an index folder is made from.
///
/// # Errors
/// What the system says.
pub(super) fn sign_index(dir: &Path, identity: LogIdentity) -> std::io::Result<()> {
    crate::disk::write(
        &dir.join(INDEX_ORIGIN_FILE),
        index_origin(identity).as_bytes(),
    )?;
    crate::disk::sync_folder(dir)
}

fn index_origin(identity: LogIdentity) -> String {
    format!("store {}\ntimeline {}\n", identity.store, identity.timeline)
}
