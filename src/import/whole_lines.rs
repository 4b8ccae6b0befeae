//! Reads the complete lines of a session's file within a size limit.
//!
//! The next import reads a last line that is still being written.

use std::{
    io,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use serde_json::Value;

use super::{
    record::first_object_end,
    source::{LineFault, LineSource},
};
use treering_domain::NameError;

/// Limit for a session with its sub-agents, in bytes, because all of it is in memory. The largest
/// real sessions have some tens of megabytes.
pub(crate) const SESSION_BYTES_MAX: usize = 512 << 20;

/// Why a session was not imported.
#[derive(Debug, thiserror::Error)]
pub enum SessionFault {
    /// A file cannot be read.
    #[error("{} cannot be read: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// A line of a file cannot be read.
    #[error("{}:{line}: {fault}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line number, from 1.
        line: u64,
        /// The cause.
        fault: LineFault,
    },
    /// The session is too large for memory.
    #[error("{} and the files before it exceed {max} bytes, the maximum for a session", path.display())]
    TooLarge {
        /// The file that exceeds the limit.
        path: PathBuf,
        /// The limit in bytes.
        max: usize,
    },
    /// A file that should be one JSON document is not valid JSON.
    #[error("{} is not a JSON document: {error}", path.display())]
    Document {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: serde_json::Error,
    },
    /// A database cannot be read.
    #[error("{} is not a readable database: {why}", path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// The cause, and what to do.
        why: String,
    },
    /// A branch could not be named.
    #[error(transparent)]
    Branch(#[from] NameError),
}

/// Opens a file (`-`: standard input).
pub(super) fn open(path: &Path) -> Result<LineSource, SessionFault> {
    LineSource::open(path, |_| {}).map_err(|error| SessionFault::Read {
        path: path.to_owned(),
        error,
    })
}

/// Opens a file that was discovered next to a named one.
pub(super) fn open_found(path: &Path) -> Result<LineSource, SessionFault> {
    LineSource::open_found(path, |_| {}).map_err(|error| SessionFault::Read {
        path: path.to_owned(),
        error,
    })
}

/// The complete lines of a file.
pub(super) struct CompleteLines {
    pub(super) lines: Vec<Bytes>,
    /// The file, when its last line is incomplete.
    pub(super) unfinished: Option<PathBuf>,
}

/// Reads a file. `left` is the number of bytes that the session may still use.
pub(super) fn read_lines(
    path: &Path,
    source: LineSource,
    left: &mut usize,
) -> Result<CompleteLines, SessionFault> {
    let (lines, has_end) = all_lines(path, source, left)?;
    Ok(whole_lines(path, lines, has_end))
}

/// Returns all lines, and whether the last one has a line end.
fn all_lines(
    path: &Path,
    mut source: LineSource,
    left: &mut usize,
) -> Result<(Vec<Bytes>, bool), SessionFault> {
    let mut lines = Vec::new();
    for (line, text) in &mut source {
        let text = text.map_err(|fault| SessionFault::Line {
            path: path.to_owned(),
            line,
            fault,
        })?;
        // A line takes some memory besides its text.
        let bytes = text.len() + size_of::<Bytes>();
        *left = left
            .checked_sub(bytes)
            .ok_or_else(|| SessionFault::TooLarge {
                path: path.to_owned(),
                max: SESSION_BYTES_MAX,
            })?;
        lines.push(text);
    }
    Ok((lines, source.last_line_ended()))
}

fn whole_lines(path: &Path, mut lines: Vec<Bytes>, has_end: bool) -> CompleteLines {
    let mut unfinished = None;
    if !has_end && let Some(last) = lines.pop() {
        let (whole, rest) = whole_objects(last);
        if !rest.is_empty() {
            unfinished = Some(path.to_owned());
        }
        lines.extend(Some(whole).filter(|whole| !whole.is_empty()));
    }
    CompleteLines { lines, unfinished }
}

/// Reads a file that is one document or has an object per line. A document becomes one line; an
/// incomplete document becomes none.
pub(super) fn read_lines_or_document(
    path: &Path,
    source: LineSource,
    left: &mut usize,
) -> Result<CompleteLines, SessionFault> {
    let (lines, has_end) = all_lines(path, source, left)?;
    let first = lines.first().map_or(&[][..], Bytes::as_ref);
    if lines.is_empty() || first_object_end(first).is_some() {
        return Ok(whole_lines(path, lines, has_end));
    }
    let value = parsed(path, &lines)?;
    Ok(CompleteLines {
        unfinished: value.is_none().then(|| path.to_owned()),
        lines: value
            .map(|value| value.to_string().into())
            .into_iter()
            .collect(),
    })
}

/// Returns the document in a file; `None` while it is still being written.
pub(super) fn document(
    path: &Path,
    source: LineSource,
    left: &mut usize,
) -> Result<Option<Value>, SessionFault> {
    let (lines, _) = all_lines(path, source, left)?;
    parsed(path, &lines)
}

fn parsed(path: &Path, lines: &[Bytes]) -> Result<Option<Value>, SessionFault> {
    match serde_json::from_slice(&lines.join(&b'\n')) {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_eof() => Ok(None),
        Err(error) => Err(SessionFault::Document {
            path: path.to_owned(),
            error,
        }),
    }
}

/// Splits a line into the complete JSON objects at its beginning and the rest.
fn whole_objects(mut line: Bytes) -> (Bytes, Bytes) {
    let mut end = 0;
    while let Some(object) = first_object_end(&line[end..]) {
        end += object;
    }
    let rest = line.split_off(end);
    if rest.iter().all(u8::is_ascii_whitespace) {
        return (line, Bytes::new());
    }
    (line, rest)
}
