//! Reads sessions of tools that keep each session in a file, or all sessions in a database.
//!
//! A session is a list of lines: those of its file, or lines made from the tool's data;
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

/// The lines of a session, before they are converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolSession {
    /// The tool.
    pub format: Format,
    /// The name of the session's file: used if the lines do not name the session.
    pub name: String,
    /// The complete lines.
    pub lines: Vec<Bytes>,
    /// Files with an incomplete part, which is not among the lines.
    pub unfinished: Vec<PathBuf>,
}

impl ToolSession {
    /// Reads the file of a session (`-`: standard input).
    ///
    /// # Errors
    /// [`SessionFault`] names the file, and the line if one is at fault.
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

    /// Returns a hash of everything that was read: equal hashes mean equal sessions.
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

    /// Converts the session to events. Odd lines are not errors: they are kept and reported as
    /// notes.
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
