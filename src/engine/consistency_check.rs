//! Consistency checks of the log against the projections and the index: they are derived from it,
//! so the log must contain everything that they contain.

use std::path::Path;

use uuid::Uuid;

use super::error::OpenError;
use treering_domain::ConversationRow;
use treering_log::{EventLog, LogIdentity, LogReader};
use treering_projections::{Origin, Projections};

/// Name of the file in the index's folder that states its origin.
const INDEX_ORIGIN_FILE: &str = "origin";
/// Maximum size of that file, in bytes.
const INDEX_ORIGIN_BYTES_MAX: u64 = 256;

/// The message for projections or an index from a timeline that the log has never had: the log is
/// an older copy.
pub(super) const LATER_TIMELINE: &str = "the projections or the index come from a later timeline \
                                         of this store, after an accepted loss: the log is an \
                                         older copy";

/// The relation of derived data to a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogRelation {
    /// Derived from this log in its current timeline, or still empty.
    Current,
    /// Derived from this log before a loss was accepted.
    Earlier,
    /// Derived from this store in a timeline that the log does not know.
    Later,
    /// Derived from another store, or of unknown origin.
    Foreign,
}

fn log_relation(made_from: Origin, log: &dyn EventLog) -> LogRelation {
    let now = log.identity();
    if made_from.store != now.store {
        LogRelation::Foreign
    } else if made_from.timeline == now.timeline {
        LogRelation::Current
    } else if log.knows_timeline(made_from.timeline) {
        LogRelation::Earlier
    } else {
        LogRelation::Later
    }
}

/// Returns the relation of projections to a log.
pub(super) fn relation_of_projections(
    projections: &Projections,
    log: &dyn EventLog,
) -> LogRelation {
    match (projections.origin(), projections.reached()) {
        (Ok(Some(made_from)), Ok(_)) => log_relation(made_from, log),
        (Ok(None), Ok(0)) => LogRelation::Current,
        _ => LogRelation::Foreign,
    }
}

/// Returns the relation of an index folder to a log.
pub(super) fn relation_of_index(dir: &Path, log: &dyn EventLog) -> LogRelation {
    index_origin_in(dir).map_or(LogRelation::Foreign, |made_from| {
        log_relation(made_from, log)
    })
}

fn origin(identity: LogIdentity) -> Origin {
    Origin {
        store: identity.store,
        timeline: identity.timeline,
    }
}

/// Returns true when the projections were derived from this log, or are still empty.
pub(super) fn belong_to(projections: &Projections, log: &dyn EventLog) -> bool {
    relation_of_projections(projections, log) == LogRelation::Current
}

/// Records the origin of the projections, if it is not recorded yet.
pub(super) fn sign(
    projections: &Projections,
    identity: LogIdentity,
) -> Result<(), treering_projections::ProjectionsError> {
    if projections.origin()? == Some(origin(identity)) {
        return Ok(());
    }
    projections.set_origin(origin(identity))
}

/// Errors if the log lacks or contradicts events that its projections have seen.
///
/// # Errors
/// [`OpenError::Regressed`].
pub(super) async fn refuse_a_log_that_went_back(
    dir: &Path,
    projections: &Projections,
    reader: &LogReader,
    head: u64,
) -> Result<(), OpenError> {
    let what = match relation_of_projections(projections, &**reader.log()) {
        LogRelation::Current => contradiction(projections, reader, head).await,
        LogRelation::Later => Some(LATER_TIMELINE.to_owned()),
        // Projections of another log, or from before an accepted loss, prove nothing.
        LogRelation::Earlier | LogRelation::Foreign => None,
    };
    match what {
        None => Ok(()),
        Some(what) => Err(OpenError::Regressed {
            path: dir.to_owned(),
            what,
        }),
    }
}

/// Returns how the projections of this log contradict it; `None` if they agree.
pub(super) async fn contradiction(
    projections: &Projections,
    reader: &LogReader,
    head: u64,
) -> Option<String> {
    // Unreadable projections prove nothing.
    let reached = projections.reached().ok().filter(|reached| *reached > 0)?;
    if reached > head {
        return Some(format!(
            "the log ends at event {head}, but the projections have event {reached}: {} events are \
             missing",
            reached - head
        ));
    }
    // Damage is reported by the reads that meet it.
    let record = reader.record(reached).await.ok()?;
    let row = projections.conversation(record.header.key());
    let differs = match row {
        Ok(Some(row)) if row.last_position.offset == reached => {
            row.chain_hash != record.chain_hash()
        }
        Ok(Some(row)) => row.last_position.offset > reached,
        // A damaged conversation may be missing from them, or be stored under a damaged key.
        Ok(None) => {
            let has_last = |row: &ConversationRow| row.last_position.offset == reached;
            let has_none = |rows: Vec<ConversationRow>| !rows.iter().any(has_last);
            projections.damaged().is_ok_and(|rows| rows.is_empty())
                && projections.every_conversation().is_ok_and(has_none)
        }
        Err(_) => false,
    };
    differs.then(|| {
        format!(
            "event {reached} of the log differs from the one in the projections: the log is an \
             older copy that was appended to"
        )
    })
}

/// Returns true when an index folder belongs to this log; one of unknown origin belongs to none.
pub(super) fn index_is_of(dir: &Path, identity: LogIdentity) -> bool {
    index_origin_in(dir) == Some(origin(identity))
}

/// Reads the recorded origin of an index folder. A file whose checksum does not match counts as
/// missing, because a single changed byte could name a timeline that never existed.
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

/// Records the origin of an index folder.
///
/// # Errors
/// The I/O error.
pub(super) fn sign_index(dir: &Path, identity: LogIdentity) -> std::io::Result<()> {
    let mut text = format!("store {}\ntimeline {}\n", identity.store, identity.timeline);
    text.push_str(&check_line(&text));
    treering_base::disk::write(&dir.join(INDEX_ORIGIN_FILE), text.as_bytes())?;
    treering_base::disk::sync_folder(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    // A single changed byte in this file could name a timeline that never existed; an intact store
    // would then be refused.
    #[test]
    fn changed_origin_file_is_ignored() {
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
