//! The demo agent's tools. They really run in the current folder. They only read and are bounded,
//! so they are safe in any folder, including a home folder or `/`.

use std::{
    fs, io,
    path::{Component, Path, PathBuf},
    time::{Duration, Instant},
};

/// Maximum number of files and folders that one call visits.
const ENTRIES_MAX: usize = 4_000;
/// Deepest folder below the start.
const DEPTH_MAX: usize = 6;
/// Maximum number of lines that one call returns.
const LINES_MAX: usize = 200;
/// Maximum number of bytes that are read of one file.
const READ_BYTES_MAX: usize = 64 * 1024;
/// Longest duration of one call.
const TIME_MAX: Duration = Duration::from_secs(2);
/// Longest line that a search returns, in characters.
const LINE_CHARS_MAX: usize = 160;
/// Folders with generated files.
const SKIPPED: [&str; 4] = ["target", "node_modules", "__pycache__", "venv"];

/// A call to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// The files of the folder, with their sizes.
    ListFiles,
    /// A file's text.
    ReadFile(String),
    /// The lines with a text, ignoring case.
    SearchText(String),
    /// Number and bytes of files by type.
    MeasureFolder,
    /// Deletes a file. The demo's request is denied, so it never runs.
    DeleteFile(String),
}

impl Task {
    /// Name of the tool.
    pub(crate) fn tool(&self) -> &'static str {
        match self {
            Self::ListFiles => "list_files",
            Self::ReadFile(_) => "read_file",
            Self::SearchText(_) => "search_text",
            Self::MeasureFolder => "measure_folder",
            Self::DeleteFile(_) => "delete_file",
        }
    }

    /// The arguments, as JSON.
    pub(crate) fn arguments(&self) -> String {
        match self {
            Self::ListFiles | Self::MeasureFolder => serde_json::json!({ "path": "." }),
            Self::ReadFile(path) | Self::DeleteFile(path) => serde_json::json!({ "path": path }),
            Self::SearchText(text) => serde_json::json!({ "text": text, "path": "." }),
        }
        .to_string()
    }

    /// Runs in this folder.
    ///
    /// # Errors
    /// A text for the model that says what went wrong.
    pub(crate) fn run(&self, place: &Workplace) -> Result<String, String> {
        match self {
            Self::ListFiles => Ok(list_files(place)),
            Self::ReadFile(path) => read_file(&place.root, path),
            Self::SearchText(text) => Ok(search_text(place, text)),
            Self::MeasureFolder => Ok(measure_folder(place)),
            Self::DeleteFile(path) => Err(format!("{path}: this demo deletes nothing")),
        }
    }
}

/// The folder in which the tools work.
#[derive(Clone, Debug)]
pub(crate) struct Workplace {
    /// The folder.
    pub(crate) root: PathBuf,
    /// The demo's own store, which may be inside the folder and is skipped.
    store: Option<PathBuf>,
}

impl Workplace {
    /// Returns a folder, without the demo's own store.
    pub(crate) fn new(root: PathBuf, store: &Path) -> Self {
        Self {
            root,
            store: fs::canonicalize(store).ok(),
        }
    }

    fn leaves_out(&self, folder: &Path) -> bool {
        self.store.is_some() && fs::canonicalize(folder).ok() == self.store
    }
}

/// A file that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundFile {
    /// Path relative to the folder, with `/`.
    pub(crate) path: String,
    /// Size in bytes.
    pub(crate) bytes: u64,
}

/// Returns the files below a folder, sorted by path, and true if there may be more.
pub(crate) fn walk(place: &Workplace) -> (Vec<FoundFile>, bool) {
    let root = place.root.as_path();
    let started = Instant::now();
    let mut files = Vec::new();
    let mut seen = 0;
    let mut folders = vec![(root.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries.flatten() {
            seen += 1;
            if seen > ENTRIES_MAX || started.elapsed() > TIME_MAX {
                files.sort_by(|a: &FoundFile, b: &FoundFile| a.path.cmp(&b.path));
                return (files, true);
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with('.') || SKIPPED.contains(&name.as_str()) {
                continue;
            }
            // Links are not followed: they can lead anywhere, or in circles.
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            if kind.is_dir() && depth < DEPTH_MAX {
                if place.leaves_out(&entry.path()) {
                    continue;
                }
                folders.push((entry.path(), depth + 1));
            } else if kind.is_file() {
                files.push(FoundFile {
                    path: relative(root, &entry.path()),
                    bytes: entry.metadata().map_or(0, |meta| meta.len()),
                });
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    (files, false)
}

fn relative(root: &Path, path: &Path) -> String {
    let below = path.strip_prefix(root).unwrap_or(path);
    let parts: Vec<_> = below
        .components()
        .map(|part| part.as_os_str().to_string_lossy())
        .collect();
    parts.join("/")
}

fn list_files(place: &Workplace) -> String {
    let (files, cut) = walk(place);
    if files.is_empty() {
        return "0 files: the folder is empty (hidden files are not listed)".into();
    }
    let mut lines: Vec<_> = files
        .iter()
        .take(LINES_MAX)
        .map(|file| format!("{:>9}  {}", file.bytes, file.path))
        .collect();
    if files.len() > LINES_MAX {
        lines.push(format!("… and {} more files", files.len() - LINES_MAX));
    }
    if cut {
        lines.push("(there is more: the folder is large)".into());
    }
    lines.join("\n")
}

fn read_file(root: &Path, path: &str) -> Result<String, String> {
    let below = PathBuf::from(path);
    let inside = below
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if !inside {
        return Err(format!("{path}: outside of the folder"));
    }
    let bytes = read_head(&root.join(below)).map_err(|error| format!("{path}: {error}"))?;
    let text = String::from_utf8_lossy(&bytes);
    if text.contains('\0') {
        return Err(format!("{path}: not a text file"));
    }
    let cut = if bytes.len() == READ_BYTES_MAX {
        format!("\n(only the first {READ_BYTES_MAX} bytes)")
    } else {
        String::new()
    };
    Ok(format!("{text}{cut}"))
}

fn read_head(path: &Path) -> io::Result<Vec<u8>> {
    use io::Read;
    let mut bytes = Vec::new();
    fs::File::open(path)?
        .take(READ_BYTES_MAX as u64)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn search_text(place: &Workplace, text: &str) -> String {
    let started = Instant::now();
    let wanted = text.to_lowercase();
    let (files, _) = walk(place);
    let mut lines = Vec::new();
    let mut searched = 0;
    for file in &files {
        if lines.len() >= LINES_MAX || started.elapsed() > TIME_MAX {
            lines.push("(there may be more)".into());
            break;
        }
        let Ok(bytes) = read_head(&place.root.join(&file.path)) else {
            continue;
        };
        searched += 1;
        // A file with NUL bytes is not text.
        if bytes.contains(&0) {
            continue;
        }
        for (number, line) in String::from_utf8_lossy(&bytes).lines().enumerate() {
            if line.to_lowercase().contains(&wanted) && lines.len() < LINES_MAX {
                let head: String = line.trim().chars().take(LINE_CHARS_MAX).collect();
                lines.push(format!("{}:{}: {head}", file.path, number + 1));
            }
        }
    }
    if lines.is_empty() {
        return format!("no line contains \"{text}\" ({searched} files searched)");
    }
    lines.join("\n")
}

fn measure_folder(place: &Workplace) -> String {
    let (files, cut) = walk(place);
    let mut kinds: Vec<(String, u64, u64)> = Vec::new();
    for file in &files {
        let kind = Path::new(&file.path).extension().map_or_else(
            || "(no ending)".into(),
            |ending| format!(".{}", ending.to_string_lossy()),
        );
        match kinds.iter_mut().find(|(name, ..)| *name == kind) {
            Some((_, number, bytes)) => {
                *number += 1;
                *bytes += file.bytes;
            }
            None => kinds.push((kind, 1, file.bytes)),
        }
    }
    kinds.sort_by_key(|(name, _, bytes)| (std::cmp::Reverse(*bytes), name.clone()));
    let mut lines = vec![format!(
        "{} files, {} bytes{}",
        files.len(),
        files.iter().map(|file| file.bytes).sum::<u64>(),
        if cut { " (not all of it)" } else { "" }
    )];
    lines.extend(
        kinds
            .iter()
            .take(LINES_MAX)
            .map(|(kind, number, bytes)| format!("{kind:<14} {number:>6} files {bytes:>12} bytes")),
    );
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(dir: &tempfile::TempDir) -> Workplace {
        Workplace::new(dir.path().to_owned(), &dir.path().join("store"))
    }

    fn folder() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("src/deep")).unwrap();
        fs::create_dir_all(dir.path().join(".git")).unwrap();
        fs::create_dir_all(dir.path().join("target")).unwrap();
        fs::write(dir.path().join("README.md"), "Hello World\nsecond\n").unwrap();
        fs::write(dir.path().join("src/deep/a.rs"), "// hello again\n").unwrap();
        fs::write(dir.path().join("src/b.bin"), b"hello\0").unwrap();
        fs::write(dir.path().join(".git/config"), "hello").unwrap();
        fs::write(dir.path().join("target/out"), "hello").unwrap();
        fs::create_dir_all(dir.path().join("store")).unwrap();
        fs::write(dir.path().join("store/LOCK"), "hello").unwrap();
        dir
    }

    /// The demo runs in the user's current folder: generated and hidden files are skipped, and
    /// binary files must not reach the log.
    #[test]
    fn demo_tools_skip_hidden_generated_and_binary_files() {
        let dir = folder();
        let (files, cut) = walk(&at(&dir));
        let paths: Vec<_> = files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["README.md", "src/b.bin", "src/deep/a.rs"]);
        assert!(!cut);
        assert_eq!(
            Task::SearchText("HELLO".into()).run(&at(&dir)).unwrap(),
            "README.md:1: Hello World\nsrc/deep/a.rs:1: // hello again"
        );
        assert!(Task::ReadFile("src/b.bin".into()).run(&at(&dir)).is_err());
    }

    /// A path from a model must not lead out of the folder.
    #[test]
    fn read_file_refuses_paths_outside_the_folder() {
        let dir = folder();
        for path in ["../x", "/etc/hostname", "src/../../x"] {
            let error = Task::ReadFile(path.into()).run(&at(&dir)).unwrap_err();
            assert!(error.contains("outside"), "{path}: {error}");
        }
        assert!(Task::ReadFile("none".into()).run(&at(&dir)).is_err());
    }

    /// The demo works in an empty folder.
    #[test]
    fn demo_tools_accept_an_empty_folder() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Task::ListFiles.run(&at(&dir)).unwrap().contains("empty"));
        assert!(
            Task::MeasureFolder
                .run(&at(&dir))
                .unwrap()
                .starts_with("0 files")
        );
    }
}
