//! A store's notes about its backups: one small file per target in the data folder. An erasure uses
//! them to report backups that still hold erased content.

use std::path::{Path, PathBuf};

use super::{Engine, error::ReadError, ship::BackupNote};
use treering_base::disk;

/// Name of the folder with these files.
pub(super) const FOLDER: &str = "backups";

impl Engine {
    /// Records the state of a backup of this store, replacing the previous note of the same target.
    /// A store in memory keeps no notes.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub async fn note_backup(&self, note: BackupNote) -> Result<(), ReadError> {
        if self.inner.upkeep.files.is_none() {
            return Ok(());
        }
        let folder = self.inner.options.data_dir.join(FOLDER);
        let written = tokio::task::spawn_blocking(move || write(&folder, &note)).await;
        let written = written.map_err(ReadError::storage)?;
        written.map_err(ReadError::storage)
    }

    /// Returns the notes of this store's backups, by target.
    #[must_use]
    pub fn backups(&self) -> Vec<BackupNote> {
        notes(&self.inner.options.data_dir)
    }
}

fn write(folder: &Path, note: &BackupNote) -> std::io::Result<()> {
    disk::make_folder(folder)?;
    let path = file_of(folder, &note.target);
    let beside = path.with_extension("new");
    disk::write(&beside, &serde_json::to_vec(note)?)?;
    disk::rename(&beside, &path)
}

fn file_of(folder: &Path, target: &str) -> PathBuf {
    let name = blake3::hash(target.as_bytes()).to_hex();
    folder.join(format!("{}.json", &name[..16]))
}

/// Reads the notes in a data folder. Unreadable ones are skipped: the next backup rewrites them.
pub(super) fn notes(data_dir: &Path) -> Vec<BackupNote> {
    let entries = std::fs::read_dir(data_dir.join(FOLDER));
    let paths = entries.into_iter().flatten().flatten();
    let paths = paths.map(|entry| entry.path());
    let mut notes: Vec<BackupNote> = paths
        .filter(|path| path.extension().is_some_and(|is| is == "json"))
        .filter_map(|path| serde_json::from_slice(&std::fs::read(path).ok()?).ok())
        .collect();
    notes.sort_by(|one, other| one.target.cmp(&other.target));
    notes
}
