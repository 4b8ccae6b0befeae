//! Which files an import is about.

use std::path::{Path, PathBuf};

use crate::importer::{claude_code, format, source::LineSource};

/// How deep folders are walked.
const FOLDERS_MAX: usize = 32;

/// Names of files that may hold conversations, in folders.
const EXTENSIONS: [&str; 6] = ["jsonl", "ndjson", "json", "gz", "zst", "zstd"];

/// The names that files must have in folders, for people.
#[must_use]
pub fn looked_at() -> String {
    let names = EXTENSIONS.map(|extension| format!(".{extension}"));
    names.join(", ")
}

/// Those of the paths that are folders without any such file.
pub fn without_files<'a>(
    paths: &'a [PathBuf],
    found: &[Candidate],
) -> impl Iterator<Item = &'a PathBuf> {
    let has = move |folder: &&PathBuf| found.iter().any(|file| file.path.starts_with(folder));
    paths.iter().filter(move |path| path.is_dir() && !has(path))
}

/// A file to import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Where it is; `-` is standard input.
    pub path: PathBuf,
    /// It was named itself: what it holds must be something that can be imported. In a
    /// folder there may be other things.
    pub is_named: bool,
}

/// The files of these paths, folders walked: first what is no session, as it was named or
/// in the order of names, then sessions as they began. Links to folders are not followed.
#[must_use]
pub fn candidates(paths: &[PathBuf]) -> Vec<Candidate> {
    let mut found = Vec::new();
    for path in paths {
        if path.is_dir() {
            let mut files = Vec::new();
            walk(path, FOLDERS_MAX, &mut files);
            found.extend(files.into_iter().map(|path| Candidate {
                path,
                is_named: false,
            }));
        } else {
            found.push(Candidate {
                path: path.clone(),
                is_named: true,
            });
        }
    }
    // Of one session there may be parts, and older copies: the past first.
    found.sort_by_cached_key(|found| began(&found.path));
    found
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
        } else if may_hold_conversations(&path) && !claude_code::is_read_with_session(&path) {
            files.push(path);
        }
    }
}

/// When the session in a file began, and how large it is.
fn began(file: &Path) -> Option<(String, u64)> {
    if !file.is_file() {
        return None;
    }
    let mut source = LineSource::open(file, |_| {}).ok()?;
    let head = source.head(format::HEAD_BYTES).ok()?;
    let bytes = std::fs::metadata(file).map_or(0, |meta| meta.len());
    Some((claude_code::began(&head)?, bytes))
}

fn may_hold_conversations(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    // Parts of a session in files that were named by a hash were taken in the order of the
    // hashes, so that each became a branch.
    #[test]
    fn sessions_come_as_they_began() {
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

    // A folder is imported as it lies there: sessions in folders below it, archives, and
    // files of sub-agents only with the session that they belong to.
    #[test]
    fn folders_are_walked() {
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
        let expected = expected.map(|(path, is_named)| Candidate { path, is_named });
        assert_eq!(found, expected);
    }
}
