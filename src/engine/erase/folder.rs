//! The folder of a shard: which erasures what was derived in it has.
//!
//! Any node may erase from a shard, and each folder of an earlier owner then still has the content.
//! A file in the folder names the last erasure that its projections and index have. A folder that
//! is behind the log is emptied, by the node that opens the shard or by the one that finds it.

use std::{io, path::Path};

use super::resume::wipe;
use crate::{
    error::OpenError,
    open::{failed, log_refused},
};
use treering_base::disk;
use treering_log::{FolderLock, LogError};

/// Name of the file with the offset of the last erasure. A missing or unreadable file means none.
const MARK_FILE: &str = "erased";

/// Removes what was derived from a shard into this folder, if it lacks the erasure that was
/// requested at this offset. Returns false if an engine uses the folder; that engine sees to it.
///
/// # Errors
/// [`OpenError`] when something cannot be removed.
pub fn forget_erased(dir: &Path, erased: u64) -> Result<bool, OpenError> {
    if erased <= mark(dir) || !dir.is_dir() {
        return Ok(true);
    }
    let _lock = match FolderLock::acquire(dir) {
        Ok(lock) => lock,
        Err(LogError::Locked { .. }) => return Ok(false),
        Err(error) => return Err(log_refused(dir, error)),
    };
    bring_up(dir, erased)?;
    Ok(true)
}

/// Like [`forget_erased`], for the holder of the folder's lock.
pub(crate) fn bring_up(dir: &Path, erased: u64) -> Result<(), OpenError> {
    if erased <= mark(dir) {
        return Ok(());
    }
    tracing::info!(
        dir = %dir.display(),
        erased,
        "content was erased elsewhere: the projections and the index are removed"
    );
    wipe(dir)?;
    set_mark(dir, erased).map_err(|error| failed(dir, error))
}

/// Notes that the folder has the erasure that was requested at this offset.
pub(crate) fn set_mark(dir: &Path, erased: u64) -> io::Result<()> {
    let path = dir.join(MARK_FILE);
    let beside = path.with_extension("new");
    disk::write(&beside, format!("{erased}\n").as_bytes())?;
    disk::rename(&beside, &path)
}

fn mark(dir: &Path) -> u64 {
    let text = std::fs::read_to_string(dir.join(MARK_FILE)).unwrap_or_default();
    text.strip_suffix('\n')
        .and_then(|number| number.parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::{INDEX_FOLDER, VIEWS_FILE};

    // A node that had a shard before keeps no erased text, and keeps what is up to date: rebuilding
    // takes long.
    #[test]
    fn only_a_folder_that_lacks_the_erasure_is_emptied() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("7");
        let derived = [dir.join(VIEWS_FILE), dir.join(INDEX_FOLDER).join("segment")];
        let fill = || {
            for path in &derived {
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, "needle").unwrap();
            }
        };
        let is_there = || derived.iter().any(|path| path.exists());
        assert!(forget_erased(&dir, 9).unwrap() && !dir.exists());
        fill();
        assert!(forget_erased(&dir, 0).unwrap() && is_there());
        let lock = FolderLock::acquire(&dir).unwrap();
        assert!(!forget_erased(&dir, 9).unwrap() && is_there());
        drop(lock);
        assert!(forget_erased(&dir, 9).unwrap() && !is_there());
        fill();
        assert!(forget_erased(&dir, 9).unwrap() && is_there());
        assert!(forget_erased(&dir, 10).unwrap() && !is_there());
        // A broken mark counts as none.
        fill();
        std::fs::write(dir.join(MARK_FILE), "1").unwrap();
        assert!(forget_erased(&dir, 10).unwrap() && !is_there());
    }
}
