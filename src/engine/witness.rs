//! What views and index prove about the log: they are made from it, so what they
//! know must be in it.

use std::path::Path;

use uuid::Uuid;

use super::error::OpenError;
use crate::{
    log::{EventLog, LogIdentity, LogReader},
    views::{Origin, Views},
};

/// The name of the file in the index's folder that says what it is made from.
const INDEX_ORIGIN_FILE: &str = "origin";
/// Most bytes of that file.
const INDEX_ORIGIN_BYTES_MAX: u64 = 256;

/// Views and index of a timeline that the log has never had: it is a copy from
/// before that one began.
pub(super) const LATER_TIMELINE: &str = "the views or the index were made from it after a loss was \
     accepted, in a timeline that it does not know: the log is an older copy, from before that";

/// How what was made from a log stands to a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kinship {
    /// Made from this log as it is, or from nothing yet.
    Current,
    /// Made from it before a loss was accepted.
    Earlier,
    /// Made from this store in a timeline that the log does not know.
    Later,
    /// Of another store, or it does not say.
    Foreign,
}

fn kinship(made_from: Origin, log: &dyn EventLog) -> Kinship {
    let now = log.identity();
    if made_from.store != now.store {
        Kinship::Foreign
    } else if made_from.timeline == now.timeline {
        Kinship::Current
    } else if log.knows_timeline(made_from.timeline) {
        Kinship::Earlier
    } else {
        Kinship::Later
    }
}

/// How views stand to a log.
pub(super) fn kinship_of_views(views: &Views, log: &dyn EventLog) -> Kinship {
    match (views.origin(), views.reached()) {
        (Ok(Some(made_from)), Ok(_)) => kinship(made_from, log),
        (Ok(None), Ok(0)) => Kinship::Current,
        _ => Kinship::Foreign,
    }
}

/// How an index folder stands to a log.
pub(super) fn kinship_of_index(dir: &Path, log: &dyn EventLog) -> Kinship {
    index_origin_in(dir).map_or(Kinship::Foreign, |made_from| kinship(made_from, log))
}

fn origin(identity: LogIdentity) -> Origin {
    Origin {
        store: identity.store,
        timeline: identity.timeline,
    }
}

/// True when views were made from this log, or from nothing yet.
pub(super) fn are_of(views: &Views, log: &dyn EventLog) -> bool {
    kinship_of_views(views, log) == Kinship::Current
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
    head: u64,
) -> Result<(), OpenError> {
    let what = match kinship_of_views(views, &**reader.log()) {
        Kinship::Current => contradiction(views, reader, head).await,
        Kinship::Later => Some(LATER_TIMELINE.to_owned()),
        // Of another log, or from before a loss that was accepted: they prove nothing.
        Kinship::Earlier | Kinship::Foreign => None,
    };
    match what {
        None => Ok(()),
        Some(what) => Err(OpenError::WentBack {
            path: dir.to_owned(),
            what,
        }),
    }
}

/// What views that were made from this log know of it that is not so.
pub(super) async fn contradiction(views: &Views, reader: &LogReader, head: u64) -> Option<String> {
    // Views that cannot be read prove nothing.
    let reached = views.reached().ok().filter(|reached| *reached > 0)?;
    if reached > head {
        return Some(format!(
            "its log ends with event {head}, but the views have seen event {reached}: {} events are \
             missing",
            reached - head
        ));
    }
    // Damage is for the reads that meet it to report.
    let record = reader.record(reached).await.ok()?;
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
    differs.then(|| {
        format!(
            "event {reached} of its log is another one than the views have seen: the log is an \
             older copy that has gone on since"
        )
    })
}

/// True when an index folder is of this log; one that does not say is of none.
pub(super) fn index_is_of(dir: &Path, identity: LogIdentity) -> bool {
    index_origin_in(dir) == Some(origin(identity))
}

/// What an index folder says that it is made from. One changed byte must not make it
/// a witness of another timeline, so what does not check says nothing.
fn index_origin_in(dir: &Path) -> Option<Origin> {
    use std::io::Read;
    let mut text = String::new();
    let file = std::fs::File::open(dir.join(INDEX_ORIGIN_FILE)).ok()?;
    let mut file = file.take(INDEX_ORIGIN_BYTES_MAX);
    file.read_to_string(&mut text).ok()?;
    let (said, check) = text.split_at_checked(text.rfind("check ")?)?;
    if check != check_line(said) {
        return None;
    }
    let mut lines = said.lines();
    let mut id = |name: &str| Uuid::try_parse(lines.next()?.strip_prefix(name)?).ok();
    Some(Origin {
        store: id("store ")?,
        timeline: id("timeline ")?,
    })
}

fn check_line(said: &str) -> String {
    format!("check {:08x}\n", crc32c::crc32c(said.as_bytes()))
}

/// Writes down what an index folder is made from.
///
/// # Errors
/// What the system says.
pub(super) fn sign_index(dir: &Path, identity: LogIdentity) -> std::io::Result<()> {
    let mut text = format!("store {}\ntimeline {}\n", identity.store, identity.timeline);
    text.push_str(&check_line(&text));
    crate::disk::write(&dir.join(INDEX_ORIGIN_FILE), text.as_bytes())?;
    crate::disk::sync_folder(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    // One changed byte in this file made it a witness of a timeline that never was,
    // and a sound store was refused.
    #[test]
    fn a_changed_origin_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let identity = LogIdentity {
            store: Uuid::new_v4(),
            timeline: Uuid::new_v4(),
        };
        sign_index(dir.path(), identity).unwrap();
        assert!(index_is_of(dir.path(), identity));
        let path = dir.path().join(INDEX_ORIGIN_FILE);
        let sound = std::fs::read(&path).unwrap();
        for at in 0..sound.len() {
            for bit in 0..8 {
                let mut bytes = sound.clone();
                bytes[at] ^= 1 << bit;
                std::fs::write(&path, bytes).unwrap();
                assert_eq!(index_origin_in(dir.path()), None, "byte {at}");
            }
        }
    }
}
