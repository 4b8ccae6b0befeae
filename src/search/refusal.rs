//! Turns errors of tantivy and the system into [`IndexError`], telling damage from errors that may
//! pass.

use std::path::Path;

use tantivy::{TantivyError, directory::error::LockError};

use super::error::IndexError;

pub(super) fn rebuild(reason: impl Into<String>) -> IndexError {
    IndexError::NeedsRebuild {
        reason: reason.into(),
    }
}

pub(super) fn io_error(action: &'static str, dir: &Path, source: std::io::Error) -> IndexError {
    IndexError::Io {
        action,
        dir: dir.to_owned(),
        source,
    }
}

/// Classifies an error of opening: a lock, the system, or else damage.
pub(super) fn unreadable(dir: &Path, error: TantivyError) -> IndexError {
    match engine_error("opened", dir, error) {
        IndexError::Engine { source, .. } if is_damage(&source) => rebuild(source.to_string()),
        error @ IndexError::Io { .. } => match no_file_in(dir) {
            Some(name) => rebuild(format!("{name} is not a file")),
            None => error,
        },
        error => error,
    }
}

/// Returns the name of an entry in the folder that is not a file. Retrying cannot help then.
fn no_file_in(dir: &Path) -> Option<String> {
    let entries = std::fs::read_dir(dir).ok()?;
    entries.flatten().find_map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_wrong = match std::fs::metadata(entry.path()) {
            Ok(found) => !found.is_file(),
            // A dangling link.
            Err(error) => error.kind() == std::io::ErrorKind::NotFound && entry.path().is_symlink(),
        };
        is_wrong.then_some(name)
    })
}

/// Returns whether an error means damaged files, rather than a system that cannot read or write
/// now.
fn is_damage(error: &TantivyError) -> bool {
    !matches!(
        error,
        TantivyError::SystemError(_)
            | TantivyError::ErrorInThread(_)
            | TantivyError::Poisoned
            | TantivyError::LockFailure(..)
            | TantivyError::InvalidArgument(_)
    )
}

pub(super) fn engine_error(action: &'static str, dir: &Path, error: TantivyError) -> IndexError {
    use tantivy::directory::error::{OpenDirectoryError, OpenReadError, OpenWriteError};
    let io = |source: &std::io::Error| std::io::Error::new(source.kind(), source.to_string());
    let source = match &error {
        TantivyError::LockFailure(LockError::LockBusy, _) => {
            return IndexError::Locked {
                dir: dir.to_owned(),
            };
        }
        TantivyError::LockFailure(LockError::IoError(source), _)
        | TantivyError::IoError(source)
        | TantivyError::OpenDirectoryError(OpenDirectoryError::IoError {
            io_error: source, ..
        })
        | TantivyError::OpenReadError(OpenReadError::IoError {
            io_error: source, ..
        })
        | TantivyError::OpenWriteError(OpenWriteError::IoError {
            io_error: source, ..
        }) => io(source),
        _ => {
            return IndexError::Engine {
                action,
                source: error,
            };
        }
    };
    // Invalid or missing bytes are damage, not a system error.
    match source.kind() {
        std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof => {
            rebuild(source.to_string())
        }
        _ => io_error(action, dir, source),
    }
}
