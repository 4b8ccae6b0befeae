//! Files and folders that last: made for their owner alone, and on disk together
//! with their names.
//!
//! A file's `fsync` does not put its *name* on disk: a folder is synced after
//! anything in it was made, renamed or removed. All of Treering's own files are
//! made, renamed and replaced through here, so that no caller can forget it. The
//! log does the same through its own port, `log::redb::Folder`, which is this
//! module on real disks and a disk that forgets in tests.

#[cfg(test)]
pub(crate) mod copying;
mod overlay;

pub(crate) use overlay::Overlay;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// Folders are their owner's: what agents saw is nobody else's business.
#[cfg(unix)]
const FOLDER_MODE: u32 = 0o700;
/// So are files.
#[cfg(unix)]
const FILE_MODE: u32 = 0o600;

/// Makes a folder and those above it that are missing, each with its name on
/// disk. One that exists stays as it is.
///
/// # Errors
/// What the system says; some of the folders may be there then.
pub fn make_folder(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let above = above(path);
    make_folder(&above)?;
    match folder_builder().create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
        Ok(()) => sync_folder(&above),
    }
}

fn folder_builder() -> fs::DirBuilder {
    #[cfg_attr(not(unix), allow(unused_mut))]
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, FOLDER_MODE);
    builder
}

/// The folder that a path is in.
fn above(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Lets this process make nothing that others may read, whichever library makes
/// it. For a program of its own; one that embeds Treering decides by itself.
pub fn keep_private() {
    #[cfg(target_os = "linux")]
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
}

/// How much room a disk has, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// What may be written.
    pub free_bytes: u64,
    /// All of it.
    pub size_bytes: u64,
}

impl DiskSpace {
    /// What a store should have free, unless it was told: room for a segment and what is
    /// written anew beside it, and on a small disk a fiftieth.
    #[must_use]
    pub fn floor_bytes(self) -> u64 {
        const FLOOR_BYTES: u64 = 256 << 20;
        FLOOR_BYTES.min(self.size_bytes / 50)
    }
}

/// The disk that a path is on; none: the system does not say.
#[must_use]
pub fn space(path: &Path) -> Option<DiskSpace> {
    #[cfg(target_os = "linux")]
    {
        let disk = rustix::fs::statvfs(path).ok()?;
        // Some file systems do not say how large they are.
        (disk.f_blocks > 0).then(|| DiskSpace {
            free_bytes: disk.f_bavail.saturating_mul(disk.f_frsize),
            size_bytes: disk.f_blocks.saturating_mul(disk.f_frsize),
        })
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = path;
        None
    }
}

/// How a file is opened that may have to be made: for reading and writing, with
/// the owner's rights only.
#[must_use]
pub fn file_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, FILE_MODE);
    options
}

/// Puts the names of a folder on disk.
///
/// # Errors
/// What the system says. A name that was not there before may be lost with the
/// power then, whatever a later sync says: make it anew.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// Gives a file another name, in place of what had it, and puts that on disk.
///
/// # Errors
/// What the system says.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_folder(&above(to))
}

/// Writes a whole file and puts it on disk, but not yet its name.
///
/// # Errors
/// What the system says; part of it may be there then.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = file_options().truncate(true).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Removes a file or a folder with all that is in it; fine when nothing is there.
///
/// # Errors
/// What the system says; part of a folder may be gone then.
pub fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(there) if there.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn what_is_made_is_its_owner_s_alone() {
        // Transcripts hold source code, mails and secrets; on a shared machine the
        // usual modes let everybody read them.
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b");
        make_folder(&deep).unwrap();
        write(&deep.join("file"), b"text").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&dir.path().join("a")), FOLDER_MODE);
        assert_eq!(mode(&deep), FOLDER_MODE);
        assert_eq!(mode(&deep.join("file")), FILE_MODE);
    }

    #[test]
    fn a_folder_of_no_name_is_here() {
        // `--data store` has an empty parent, which cannot be opened to be synced.
        assert_eq!(above(Path::new("store")), Path::new("."));
        assert_eq!(above(Path::new("/store")), Path::new("/"));
        make_folder(Path::new(".")).unwrap();
    }
}
