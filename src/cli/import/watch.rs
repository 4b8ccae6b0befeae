//! `import --watch`: checks the files repeatedly, and imports those that changed.
//!
//! The only state is the store: events of a file that the store does not have are new. So the
//! process can be killed at any time, and two processes do not interfere. Files are polled, at
//! intervals such that polling and importing take a small part of the time. This works on every
//! file system, and for files that are replaced.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::{Path, PathBuf},
    pin::pin,
    time::{Duration, Instant, SystemTime},
};

use indicatif::ProgressBar;
use tokio::{signal, time::sleep};

use super::{
    ImportArgs, Report,
    find::{self, Candidate},
    found_until,
};
use crate::output::Out;
use treering_client::{connect::Connection, error::ClientError};
use treering_present::{
    safe::tell,
    text::{count, things},
};

/// Shortest pause between two passes.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// Pause after a pass, as a multiple of the duration of the pass.
const PAUSE_TIMES: u32 = 9;
/// Pause between two attempts to reach a server.
const SERVER_PAUSE: Duration = Duration::from_secs(2);
/// Longest pause between two passes.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Signature of a file's state: length, modification time, and file id.
type FileFingerprint = (u64, Option<SystemTime>, u64);

/// A file that failed is tried again after this time, even if it did not change.
const AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Maximum number of such attempts.
const AGAIN_MAX: u32 = 5;

/// State of the files.
#[derive(Default)]
struct WatchState {
    marks: HashMap<PathBuf, FileFingerprint>,
    /// Files that failed: when to try again, and the number of attempts.
    again: HashMap<PathBuf, (Instant, u32)>,
}

/// Imports the existing files, and then additions, until it is stopped.
///
/// # Errors
/// If the store or the output fails.
pub(crate) async fn run(
    args: &ImportArgs,
    paths: &[PathBuf],
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let mut seen = WatchState::default();
    let mut total = WatchTotals::default();
    let mut stop = pin!(ended());
    let mut is_away = false;
    let named: Vec<_> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    tell!("Watching {}; Ctrl-C ends it", named.join(", "));
    loop {
        let started = Instant::now();
        let changed = seen.changed(paths, started);
        if !changed.is_empty() {
            let files: Vec<_> = changed.iter().map(|file| file.path.clone()).collect();
            let report = Report::new(ProgressBar::hidden(), args.strict).of_watch();
            let done = found_until(args.format, changed, report, store, stop.as_mut()).await;
            let has_failed = match done {
                Ok(report) => {
                    is_away = false;
                    total.add(&report);
                    tell(&report, out)?;
                    if report.is_interrupted {
                        break;
                    }
                    report.counts().failed > 0
                }
                // A server may come back, but a failing folder will fail again.
                Err(error) if !store.is_embedded() && error.is_of_absent_server() => {
                    if !is_away {
                        tell!("{error}; retrying until it answers");
                    }
                    is_away = true;
                    seen.marks.clear();
                    tokio::select! {
                        () = sleep(SERVER_PAUSE) => continue,
                        () = stop.as_mut() => break,
                    }
                }
                Err(error) => return Err(error),
            };
            seen.note(&files, has_failed, started);
        }
        let pause = (started.elapsed() * PAUSE_TIMES).clamp(PAUSE_MIN, PAUSE_MAX);
        tokio::select! {
            () = sleep(pause) => {}
            () = stop.as_mut() => break,
        }
    }
    tell!("{}", total.describe());
    Ok(())
}

/// Prints the result of a pass, unless nothing was appended.
fn tell(report: &Report, out: &mut Out) -> Result<(), ClientError> {
    if let Some(news) = report.news() {
        let line = if out.json { report.json() } else { news };
        out.line(line)?;
        out.flush()?;
    }
    Ok(())
}

/// Completes on Ctrl-C or the signal that ends services.
async fn ended() {
    #[cfg(unix)]
    {
        use signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    // Without signals, it can only be killed.
    if signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Totals since the start.
#[derive(Default)]
struct WatchTotals {
    events: u64,
    new: u64,
    failed: u64,
}

impl WatchTotals {
    fn add(&mut self, report: &Report) {
        let counts = report.counts();
        self.events += counts.events;
        self.new += counts.new;
        self.failed += counts.failed;
    }

    fn describe(&self) -> String {
        let mut text = format!(
            "Stopped: {} appended, {}",
            things(self.events, "event", "events"),
            things(self.new, "new conversation", "new conversations")
        );
        if self.failed > 0 {
            text.push_str(&format!(
                "; {} times a file was not imported (see above)",
                count(self.failed)
            ));
        }
        text
    }
}

impl WatchState {
    /// Returns the files to import: new and changed ones, and those that are read together with one
    /// of these.
    fn changed(&mut self, paths: &[PathBuf], now: Instant) -> Vec<Candidate> {
        let files = find::all_files(paths);
        let due = self
            .again
            .iter()
            .filter(|(_, (at, tries))| *at <= now && *tries <= AGAIN_MAX);
        let mut changed: HashSet<PathBuf> = due.map(|(file, _)| file.clone()).collect();
        let mut marks = HashMap::with_capacity(files.len());
        for file in files {
            let Some(mark) = mark(&file) else {
                continue;
            };
            if self.marks.get(&file) != Some(&mark) {
                changed.extend(find::read_with(&file));
            }
            marks.insert(file, mark);
        }
        // A deleted file that comes back is new.
        self.marks = marks;
        if changed.is_empty() {
            return Vec::new();
        }
        find::candidates_among(paths, &changed)
    }

    /// Records the files of one pass.
    fn note(&mut self, files: &[PathBuf], has_failed: bool, now: Instant) {
        for file in files {
            match has_failed {
                true => {
                    let (at, tries) = self.again.entry(file.clone()).or_insert((now, 0));
                    *at = now + AGAIN_AFTER;
                    *tries += 1;
                }
                false => drop(self.again.remove(file)),
            }
        }
    }
}

fn mark(file: &Path) -> Option<FileFingerprint> {
    let meta = fs::metadata(file).ok()?;
    Some((meta.len(), meta.modified().ok(), id_of(&meta)))
}

#[cfg(unix)]
fn id_of(meta: &fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(meta)
}

#[cfg(not(unix))]
fn id_of(_: &fs::Metadata) -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(found: Vec<Candidate>) -> Vec<String> {
        let name = |found: &Candidate| found.path.file_name().unwrap().to_str().unwrap().to_owned();
        found.iter().map(name).collect()
    }

    // A watch must not read every file on each pass. It must not miss a file that was replaced, or
    // one that is read together with another.
    #[test]
    fn watch_returns_only_changed_files() {
        let folder = tempfile::tempdir().unwrap();
        let paths = [folder.path().to_owned()];
        let write = |name: &str, text: &str| {
            let file = folder.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let line = r#"{"type":"user","sessionId":"s1","isSidechain":true}"#;
        let now = Instant::now();
        let mut seen = WatchState::default();
        assert_eq!(seen.changed(&paths, now), []);
        write("s1.jsonl", line);
        write("b.jsonl", "{}");
        write("notes.md", "no");
        assert_eq!(names(seen.changed(&paths, now)), ["b.jsonl", "s1.jsonl"]);
        assert_eq!(seen.changed(&paths, now), []);
        write("b.jsonl", "{}\n{}");
        assert_eq!(names(seen.changed(&paths, now)), ["b.jsonl"]);
        // A sub-agent is read with its session.
        write("s1/subagents/agent-a.jsonl", line);
        assert_eq!(names(seen.changed(&paths, now)), ["s1.jsonl"]);
        assert_eq!(seen.changed(&paths, now), []);
        // Another file in its place, with the same length.
        write("new", "{}\n[]");
        fs::rename(folder.path().join("new"), folder.path().join("b.jsonl")).unwrap();
        assert_eq!(names(seen.changed(&paths, now)), ["b.jsonl"]);
        fs::remove_file(folder.path().join("b.jsonl")).unwrap();
        assert_eq!(seen.changed(&paths, now), []);
        write("b.jsonl", "{}\n[]");
        assert_eq!(names(seen.changed(&paths, now)), ["b.jsonl"]);
        // Recent data of a database is in its write-ahead log.
        write("opencode.db", "x");
        seen.changed(&paths, now);
        write("opencode.db-wal", "y");
        assert_eq!(names(seen.changed(&paths, now)), ["opencode.db"]);
        // A failed file is tried again after some time, but not forever.
        let failed = [folder.path().join("b.jsonl")];
        for _ in 0..AGAIN_MAX {
            seen.note(&failed, true, now);
            assert_eq!(seen.changed(&paths, now), []);
            let later = now + AGAIN_AFTER;
            assert_eq!(names(seen.changed(&paths, later)), ["b.jsonl"]);
        }
        seen.note(&failed, true, now);
        assert_eq!(seen.changed(&paths, now + AGAIN_AFTER), []);
        // A file that the user names may have any extension.
        let named = [folder.path().join("notes.md")];
        assert_eq!(
            names(WatchState::default().changed(&named, now)),
            ["notes.md"]
        );
    }
}
