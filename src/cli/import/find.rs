//! Finds the files of an import.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
};

use treering_import::{
    claude_code, codex,
    format::{self, Format},
    gemini_cli, opencode, pi,
    source::{self, LineSource},
};

/// Maximum number of levels of nested folders.
const FOLDERS_MAX: usize = 32;

/// Extensions of files that may have conversations.
const EXTENSIONS: [&str; 6] = ["jsonl", "ndjson", "json", "gz", "zst", "zstd"];

/// Returns these extensions as text for people.
pub(crate) fn looked_at() -> String {
    let names = EXTENSIONS.map(|extension| format!(".{extension}"));
    names.join(", ")
}

/// Returns the session folders of all tools, or of one. They may not exist.
pub(crate) fn own_folders(format: Option<Format>) -> Vec<PathBuf> {
    let of = |one: Format| format.is_none_or(|format| format == one);
    let mut folders = Vec::new();
    if of(Format::ClaudeCode) {
        folders.extend(claude_code::config_folder().map(|folder| folder.join("projects")));
    }
    if of(Format::Codex) {
        folders.extend(codex::sessions_folders());
    }
    if of(Format::GeminiCli) {
        folders.extend(gemini_cli::sessions_folder());
    }
    if of(Format::OpenCode) {
        folders.extend(opencode::data_folder().map_or_else(Vec::new, |data| stores_in(&data)));
    }
    if of(Format::Pi) {
        folders.extend(pi::sessions_folder());
    }
    folders
}

/// Returns the databases of opencode. If there are none, returns the folder of an older version;
/// newer versions migrate it to the database.
fn stores_in(data: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(data).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries.map(|entry| entry.path()).collect();
    found.retain(|path| opencode::is_named_as_database(path));
    found.sort();
    if found.is_empty() {
        found.push(data.join("storage/session"));
    }
    found
}

/// Returns the folders that contain none of these files.
pub(crate) fn without_files<'a>(
    paths: &'a [PathBuf],
    found: &[Candidate],
) -> impl Iterator<Item = &'a PathBuf> {
    let has = move |folder: &&PathBuf| found.iter().any(|file| file.path.starts_with(folder));
    paths.iter().filter(move |path| path.is_dir() && !has(path))
}

/// A file to import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Its path; `-` for standard input.
    pub(crate) path: PathBuf,
    /// The user named the file, so it must have a known format. A folder may have other files.
    pub(crate) is_named: bool,
    /// The folder in which it was found.
    pub(crate) folder: Option<PathBuf>,
}

impl Candidate {
    fn named(path: PathBuf) -> Self {
        Self {
            path,
            is_named: true,
            folder: None,
        }
    }

    fn found(path: PathBuf, folder: &Path) -> Self {
        Self {
            path,
            is_named: false,
            folder: Some(folder.to_owned()),
        }
    }

    /// Returns why it is not read, or `None` if it is read.
    pub(crate) fn why_left_out(&self) -> Option<&'static str> {
        let folder = self.folder.as_ref()?;
        source::why_left_out(&self.path, folder)
    }

    /// Opens it. A named file may be a pipe.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub(crate) fn open(&self, progress: impl FnMut(u64) + 'static) -> std::io::Result<LineSource> {
        match self.is_named {
            true => LineSource::open(&self.path, progress),
            false => LineSource::open_found(&self.path, progress),
        }
    }
}

/// Returns the files of these paths, which may be folders: first files that are not sessions, as
/// named or sorted by name, then sessions in the order in which they began. Links to folders are
/// not followed.
pub(crate) fn candidates(paths: &[PathBuf]) -> Vec<Candidate> {
    let mut found = Vec::new();
    for path in paths {
        if path.is_dir() {
            let mut files = Vec::new();
            walk(path, FOLDERS_MAX, &mut files);
            let files = files.into_iter();
            found.extend(files.map(|file| Candidate::found(file, path)));
        } else {
            found.push(Candidate::named(path.clone()));
        }
    }
    // A session may have several parts or older copies: the oldest first.
    found.sort_by_cached_key(began);
    found
}

/// Returns true if a file in a folder is read on its own.
fn is_candidate(path: &Path) -> bool {
    may_hold_conversations(path)
        && !claude_code::is_read_with_session(path)
        && !opencode::is_read_with_session(path)
}

fn walk(folder: &Path, levels: usize, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    let mut entries: Vec<_> = entries.flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        if path.is_dir() {
            if levels > 0 && !is_link {
                walk(&path, levels - 1, files);
            }
        } else if is_candidate(&path) {
            files.push(path);
        }
    }
}

/// Returns the files of these paths that are in `wanted`, in the order of [`candidates`].
pub(crate) fn candidates_among(paths: &[PathBuf], wanted: &HashSet<PathBuf>) -> Vec<Candidate> {
    let mut found: Vec<_> = wanted
        .iter()
        .filter(|path| path.is_file())
        .map(|file| {
            let folder = paths.iter().find(|path| file.starts_with(path));
            match folder.filter(|_| !paths.contains(file)) {
                Some(folder) => Candidate::found(file.clone(), folder),
                None => Candidate::named(file.clone()),
            }
        })
        .filter(|found| found.is_named || is_candidate(&found.path))
        .collect();
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found.sort_by_cached_key(began);
    found
}

/// Returns every relevant file of these paths, including files that are read together with another
/// one, and write-ahead logs of databases.
pub(crate) fn all_files(paths: &[PathBuf]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            walk_all(path, FOLDERS_MAX, &mut files);
        } else {
            files.extend(wal_of(path));
            files.push(path.clone());
        }
    }
    files
}

fn walk_all(folder: &Path, levels: usize, files: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        let path = entry.path();
        let kind = entry.file_type();
        match kind.is_ok_and(|kind| kind.is_dir()) {
            true if levels > 0 => walk_all(&path, levels - 1, files),
            true => {}
            false if may_hold_conversations(&path) => {
                files.extend(wal_of(&path));
                files.push(path);
            }
            false => {}
        }
    }
}

/// Returns the path of the write-ahead log of a database.
fn wal_of(path: &Path) -> Option<PathBuf> {
    let mut name = path.file_name()?.to_owned();
    let is_database = path.extension().is_some_and(|extension| extension == "db");
    name.push(WAL);
    is_database.then(|| path.with_file_name(name))
}

/// Suffix of the write-ahead log.
const WAL: &str = "-wal";

/// Returns the files to import when this file has changed.
pub(crate) fn read_with(file: &Path) -> Vec<PathBuf> {
    let name = file.file_name().and_then(|name| name.to_str());
    if let Some(database) = name.and_then(|name| name.strip_suffix(WAL)) {
        return vec![file.with_file_name(database)];
    }
    if opencode::is_read_with_session(file) {
        return opencode::sessions_of(file);
    }
    if claude_code::is_read_with_session(file) {
        let sessions = file
            .ancestors()
            .skip(1)
            .map(|folder| folder.with_extension("jsonl"));
        let mut sessions = sessions
            .take(FOLDERS_MAX)
            .filter(|session| session.is_file());
        return sessions.next().into_iter().collect();
    }
    vec![file.to_owned()]
}

/// Returns when the session in a file began, and the size of the file.
fn began(found: &Candidate) -> Option<(String, u64)> {
    if found.why_left_out().is_some() {
        return None;
    }
    let mut source = LineSource::open_found(&found.path, |_| {}).ok()?;
    let head = source.head(format::HEAD_BYTES).ok()?;
    let bytes = std::fs::metadata(&found.path).map_or(0, |meta| meta.len());
    Some((claude_code::began(&head)?, bytes))
}

fn may_hold_conversations(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
        || opencode::is_named_as_database(path)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    // Files must not be read in the order of their names, which may be hashes: each part of a
    // session would become a branch.
    #[test]
    fn files_are_sorted_by_start_of_session() {
        let dir = tempfile::tempdir().unwrap();
        let line = |second: u8| {
            format!(
                r#"{{"type":"user","sessionId":"s","timestamp":"2026-01-01T00:00:0{second}Z"}}"#
            )
        };
        for (name, text) in [
            ("a.jsonl", line(3)),
            ("b.jsonl", line(1) + "\n" + &line(2)),
            ("c.jsonl", line(1)),
            ("d.jsonl", "{\"messages\": []}".into()),
        ] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let found = candidates(&[dir.path().to_owned()]);
        let names = found.iter().map(|found| found.path.file_stem().unwrap());
        assert_eq!(names.collect::<Vec<_>>(), ["d", "c", "b", "a"]);
    }

    // An import of a folder finds sessions in nested folders and compressed files. Files of
    // sub-agents are read only with their session.
    #[test]
    fn import_finds_files_in_subfolders() {
        let dir = tempfile::tempdir().unwrap();
        let project = dir.path().join("projects/-home-x");
        let agents = project.join("s1/subagents");
        fs::create_dir_all(&agents).unwrap();
        let line = r#"{"type":"user","sessionId":"s1","isSidechain":true}"#;
        for file in [
            project.join("s1.jsonl"),
            project.join("agent-old.jsonl"),
            agents.join("agent-a.jsonl"),
            dir.path().join("b.jsonl.zst"),
            dir.path().join("notes.md"),
        ] {
            fs::write(file, line).unwrap();
        }
        let orphans = dir.path().join("projects/orphans");
        fs::create_dir(&orphans).unwrap();
        fs::write(orphans.join("agent-z.jsonl"), line).unwrap();
        let named = dir.path().join("notes.md");
        let found = candidates(&[dir.path().to_owned(), named.clone(), "-".into()]);
        let expected = [
            (dir.path().join("b.jsonl.zst"), false),
            (project.join("s1.jsonl"), false),
            (orphans.join("agent-z.jsonl"), false),
            (named, true),
            (PathBuf::from("-"), true),
        ];
        let expected = expected.map(|(path, is_named)| match is_named {
            true => Candidate::named(path),
            false => Candidate::found(path, dir.path()),
        });
        assert_eq!(found, expected);
    }
}
