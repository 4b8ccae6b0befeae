//! Temporary folders, and the disk space of files.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

/// A temporary folder. Dropping it removes the folder with its content.
#[derive(Debug)]
pub struct TempFolder(PathBuf);

impl TempFolder {
    /// Creates an empty folder in `parent`.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn under(parent: &Path) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("treering-bench-{}-{number}", std::process::id());
        let path = parent.join(name);
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    /// The path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "a folder of the bench was not removed");
        }
    }
}

/// Returns the bytes that a file or folder takes on disk, without holes in files; 0 if it does not
/// exist.
#[must_use]
pub fn bytes_on_disk(path: &Path) -> u64 {
    let Ok(meta) = fs::symlink_metadata(path) else {
        return 0;
    };
    if !meta.is_dir() {
        return file_bytes(&meta);
    }
    let Ok(entries) = fs::read_dir(path) else {
        return 0;
    };
    entries
        .flatten()
        .map(|entry| bytes_on_disk(&entry.path()))
        .sum()
}

#[cfg(unix)]
fn file_bytes(meta: &fs::Metadata) -> u64 {
    const BLOCK_BYTES: u64 = 512;
    std::os::unix::fs::MetadataExt::blocks(meta) * BLOCK_BYTES
}

#[cfg(not(unix))]
fn file_bytes(meta: &fs::Metadata) -> u64 {
    meta.len()
}
