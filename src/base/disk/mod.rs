//! Durable files and folders. They are private to their owner, and their names are synced too.
//!
//! A file's `fsync` does not make its *name* durable: the folder must be synced after anything in
//! it was created, renamed or removed. All of Treering's own files are created, renamed and
//! replaced through this module, so that no caller can forget it. The log does the same through its
//! own port, `treering_log::redb::Folder`, which uses a real disk or, in tests, a simulated one
//! that loses unsynced data.

#[cfg(any(test, feature = "testkit"))]
pub mod copying;
mod overlay;

pub use overlay::Overlay;

use std::{
    fs::{self, File, Metadata, OpenOptions},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

/// Folders are private to their owner, because they contain what agents saw.
#[cfg(unix)]
const FOLDER_MODE: u32 = 0o700;
/// Files are private too.
#[cfg(unix)]
const FILE_MODE: u32 = 0o600;

/// Creates a folder and its missing parents, each with a durable name. An existing folder stays as
/// it is.
///
/// # Errors
/// I/O errors; some of the folders may have been created.
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

/// Returns the folder that contains a path.
fn above(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Makes everything that this process creates private, whichever library creates it. Only
/// Treering's own programs call this: an application that embeds Treering decides for itself.
pub fn keep_private() {
    #[cfg(target_os = "linux")]
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
}

/// The space on a disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// Space that this process may use.
    pub free_bytes: u64,
    /// Total size.
    pub size_bytes: u64,
}

impl DiskSpace {
    /// Returns the default minimum of free space for a store, in bytes: enough for a segment and
    /// its rewritten copy, but at most a fiftieth of the disk.
    #[must_use]
    pub fn floor_bytes(self) -> u64 {
        const FLOOR_BYTES: u64 = 256 << 20;
        FLOOR_BYTES.min(self.size_bytes / 50)
    }
}

/// Returns the space of the disk that contains a path; `None` when the system does not report it.
#[must_use]
pub fn space(path: &Path) -> Option<DiskSpace> {
    #[cfg(target_os = "linux")]
    {
        let disk = rustix::fs::statvfs(path).ok()?;
        // Some file systems do not report their size.
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

/// Returns options to open a file for reading and writing, creating it with access for its owner
/// only.
#[must_use]
pub fn file_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, FILE_MODE);
    options
}

/// Makes the names in a folder durable.
///
/// # Errors
/// I/O errors. A new name may then be lost in a power failure, even if a later sync succeeds:
/// create it again.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// Renames a file, replacing the target, and makes that durable.
///
/// # Errors
/// I/O errors.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_folder(&above(to))
}

/// Writes a whole file and syncs its content, but not its name.
///
/// # Errors
/// I/O errors; the file may then be partly written.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = file_options().truncate(true).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Opens a file that contains a secret.
///
/// # Errors
/// I/O errors; [`io::ErrorKind::PermissionDenied`] as for [`check_secret`].
pub fn open_secret(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    check_secret(path, &file)?;
    Ok(file)
}

/// Reads a file that contains a secret.
///
/// # Errors
/// As [`open_secret`].
pub fn read_secret(path: &Path) -> io::Result<Vec<u8>> {
    let mut secret = Vec::new();
    open_secret(path)?.read_to_end(&mut secret)?;
    Ok(secret)
}

/// Refuses a secret that anyone but its owner can read. As in PostgreSQL, a file that root owns may
/// be readable by its group if this process is not root: services get their secrets this way.
///
/// # Errors
/// [`io::ErrorKind::PermissionDenied`]; the message says what to do.
pub fn check_secret(path: &Path, file: &File) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let metadata = file.metadata()?;
        let user = rustix::process::geteuid().as_raw();
        let mode = metadata.mode() & 0o7777;
        if metadata.is_file() && is_exposed(mode, metadata.uid(), user) {
            let path = path.display();
            let what = format!(
                "it has mode {mode:04o}, so users other than its owner can read it: run `chmod 600 \
                 {path}`; for a service, mode 0440 or 0640 is accepted too if root owns the file"
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
    }
    #[cfg(not(unix))]
    let _ = (path, file);
    Ok(())
}

/// Returns true when a secret with this mode and owner is readable or writable by someone who must
/// not have access.
#[cfg(unix)]
fn is_exposed(mode: u32, owner: u32, user: u32) -> bool {
    const ROOT: u32 = 0;
    let may_not = match owner == ROOT && user != ROOT {
        true => 0o037,
        false => 0o077,
    };
    mode & may_not != 0
}

/// Returns when a file was last changed, including its owner and mode, in seconds and nanoseconds.
#[must_use]
pub fn changed_at(metadata: &Metadata) -> (i64, i64) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        (metadata.ctime(), metadata.ctime_nsec())
    }
    #[cfg(not(unix))]
    {
        let since = metadata
            .modified()
            .ok()
            .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok())
            .unwrap_or_default();
        (since.as_secs().cast_signed(), since.subsec_nanos().into())
    }
}

/// Removes a file, or a folder with its contents; succeeds when nothing is there.
///
/// # Errors
/// I/O errors; part of a folder may have been removed.
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
    fn new_files_and_folders_are_private_to_the_owner() {
        // Transcripts contain source code, emails and secrets; on a shared machine, the default
        // modes let everybody read them.
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

    // A key or token that everybody on the machine can read must not be accepted silently.
    #[cfg(unix)]
    #[test]
    fn secret_file_readable_by_others_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        write(&path, b"secret").unwrap();
        for mode in [0o600, 0o400] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read_secret(&path).unwrap(), b"secret");
        }
        for mode in [0o644, 0o640, 0o604, 0o620, 0o602, 0o610] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = read_secret(&path).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            let told = error.to_string();
            let mend = format!("`chmod 600 {}`", path.display());
            let mode = format!("mode {mode:04o}");
            for part in [&mode, &mend, "root", "0440"] {
                assert!(told.contains(part), "{told}");
            }
        }
    }

    // systemd and Kubernetes give services secrets that root owns and that the service's group can
    // read. For the service, such a file is as safe as one that it owns. For root, it is not.
    #[cfg(unix)]
    #[test]
    fn group_may_read_a_secret_owned_by_root() {
        let (root, service, other) = (0, 1_000, 1_001);
        for (mode, owner, user, exposed) in [
            (0o640, root, service, false),
            (0o440, root, service, false),
            (0o660, root, service, true),
            (0o644, root, service, true),
            (0o640, root, root, true),
            (0o600, root, root, false),
            (0o640, service, service, true),
            (0o640, other, service, true),
            (0o600, service, root, false),
        ] {
            let is = is_exposed(mode, owner, user);
            assert_eq!(is, exposed, "{mode:o} of {owner} for {user}");
        }
    }

    #[test]
    fn empty_parent_path_is_the_current_folder() {
        // `--data store` has an empty parent, which cannot be opened for a sync.
        assert_eq!(above(Path::new("store")), Path::new("."));
        assert_eq!(above(Path::new("/store")), Path::new("/"));
        make_folder(Path::new(".")).unwrap();
    }
}
