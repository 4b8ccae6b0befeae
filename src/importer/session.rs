//! Sessions of the tools that keep one in a file, or all in a store of their own.
//!
//! Each is lines, as they lie in its file or were put together from what the tool keeps;
//! [`ToolSession::import`] converts them.

use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::{
    ImportedConversation, codex,
    format::Format,
    gemini_cli, opencode, pi,
    record::Record,
    source::LineSource,
    whole_lines::{SESSION_BYTES_MAX, SessionFault, read_lines, read_lines_or_document},
};

/// A session as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolSession {
    /// Whose it is.
    pub format: Format,
    /// What it is called if its lines do not say: the name of its file.
    pub name: String,
    /// Its whole lines.
    pub lines: Vec<Bytes>,
    /// What of it is not whole yet; it is not among the lines.
    pub unfinished: Vec<PathBuf>,
}

impl ToolSession {
    /// Reads the file of a session (`-`: standard input).
    ///
    /// # Errors
    /// [`SessionFault`] names the file, and the line if one was at fault.
    pub fn read(format: Format, path: &Path, source: LineSource) -> Result<Self, SessionFault> {
        let mut left = SESSION_BYTES_MAX;
        let read = match format {
            Format::GeminiCli => read_lines_or_document(path, source, &mut left)?,
            _ => read_lines(path, source, &mut left)?,
        };
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        let name = stem.filter(|_| path.as_os_str() != "-").map(str::to_owned);
        let first = || blake3::hash(read.lines.first().map_or(&[], Bytes::as_ref)).to_string();
        Ok(Self {
            format,
            name: name.unwrap_or_else(first),
            lines: read.lines,
            unfinished: read.unfinished.into_iter().collect(),
        })
    }

    /// A hash of all that was read: two sessions with the same one are equal.
    #[must_use]
    pub fn content_hash(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.name.as_bytes());
        for line in &self.lines {
            hasher.update(&(line.len() as u64).to_le_bytes());
            hasher.update(line);
        }
        hasher.finalize()
    }

    /// Converts it. Odd lines are no error: they are kept, and come back as notes.
    ///
    /// # Errors
    /// [`SessionFault::Branch`] when a branch could not be named.
    pub fn import(&self) -> Result<ImportedConversation, SessionFault> {
        let records: Vec<Record> = self.lines.iter().flat_map(Record::read).collect();
        let imported = match self.format {
            Format::Pi => pi::import(&self.name, &records),
            Format::GeminiCli => gemini_cli::import(&self.name, &records),
            Format::OpenCode => opencode::import(&self.name, &records),
            _ => codex::import(&self.name, &records),
        };
        Ok(imported?)
    }
}
