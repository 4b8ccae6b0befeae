//! `import`: imports conversations from files.
//!
//! [`feed`] reads and converts on a separate thread, [`upload`] appends over one pipelined stream,
//! [`report`] counts and prints, [`watch`] repeats this when a file has grown.

mod feed;
mod find;
mod hook;
mod report;
mod upload;
mod watch;

#[cfg(test)]
pub(super) use feed::refusal;
pub(crate) use hook::mild;
pub(crate) use report::Report;

use std::{
    fs,
    path::PathBuf,
    pin::pin,
    time::{Duration, Instant},
};

use clap::{
    Args,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use futures::future;
use indicatif::ProgressBar;
use tokio::signal;

use super::{
    connect::Connection,
    error::{ClientError, Exit},
    output::{BarUnit, Out, progress},
    safe::tell,
    search::wait_for_index,
    text::things,
};
use feed::{Feed, FeedItem};
use find::Candidate;
use treering_domain::Namespace;
use treering_import::format::Format;
use treering_proto::pb;
use upload::Upload;

/// Maximum number of items that are kept while no conversation has been found. If there are more,
/// the store is created.
const ODD_MAX: usize = 10_000;

/// Returns the parser of format names.
fn imported_format() -> impl TypedValueParser<Value = Format> {
    let named = |it: Format| PossibleValue::new(it.name()).help(it.to_string());
    PossibleValuesParser::new(Format::IMPORTED.map(named)).try_map(|name| {
        let mut all = Format::IMPORTED.into_iter();
        all.find(|it| it.name() == name).ok_or("unknown format")
    })
}

/// Import conversations from files and folders
///
/// The format of a file is recognised by its content, and other formats are refused by name.
/// Importing a file again adds nothing. If it has grown, the new part is added; if its past has
/// changed, that becomes a branch. Folders are searched recursively. Files may be compressed (.gz,
/// .zst); `-` reads standard input. A line that is not a conversation is reported and does not stop
/// the import. A last line that is still being written is left for the next import.
///
/// Without a PATH it imports the sessions of the tools on this computer: Claude Code, Codex, Gemini
/// CLI, opencode and pi, or only of the one in `--format`.
///
/// With `--watch` it keeps running and appends new lines and files as they arrive. It can be
/// stopped at any time, also with Ctrl-C: nothing is appended twice. It keeps a folder store open
/// all the time; to read it meanwhile, run `treering serve` and use `--server`.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering import conversations.jsonl more.jsonl.zst
  treering import ~/.claude/projects
  treering import                          # the sessions on this computer
  treering import --format codex --watch   # and new ones, until Ctrl-C
  zcat old.gz | treering import -
  treering import --format claude-code --hook     as `treering init claude-code` sets it up
  treering import --format openai-chat --strict FILE || echo 'invalid input'")]
pub(crate) struct ImportArgs {
    /// Required format of the files [default: recognised for each]
    #[arg(long, value_name = "FORMAT", value_parser = imported_format())]
    format: Option<Format>,
    /// Refuse inconsistent conversations (a result without its call …), and exit with 1 if there
    /// was one, or an invalid line
    #[arg(long)]
    strict: bool,
    /// Run as a hook of Claude Code: read the name of the transcript from standard input. Prints
    /// nothing on success
    #[arg(long, conflicts_with_all = ["files", "watch"])]
    hook: bool,
    /// Keep running, and append what is added to the files, until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// Files and folders; `-` for standard input. Default: the session folders of the tools
    #[arg(value_name = "PATH")]
    files: Vec<PathBuf>,
}

impl ImportArgs {
    /// Returns the given paths, or those of the tools.
    ///
    /// # Errors
    /// [`ClientError::Outcome`] if there are none.
    fn paths(&self) -> Result<Vec<PathBuf>, ClientError> {
        let is_piped = self.files.iter().any(|file| file.as_os_str() == "-");
        if self.watch && is_piped {
            return Err(ClientError::Outcome {
                what: "standard input cannot be watched".into(),
                hint: "name files or folders; without --watch, standard input is read to its end"
                    .into(),
                exit: Exit::Usage,
            });
        }
        if !self.files.is_empty() {
            return Ok(self.files.clone());
        }
        let folders = find::own_folders(self.format);
        let there: Vec<_> = folders
            .iter()
            .filter(|path| path.exists())
            .cloned()
            .collect();
        // A watch also waits for files that do not exist yet.
        if self.watch && !folders.is_empty() {
            return Ok(folders);
        }
        if !there.is_empty() {
            return Ok(there);
        }
        let looked: Vec<_> = folders
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let hint = match looked.is_empty() {
            true => "name files or folders: treering import PATH".to_owned(),
            false => format!("name a PATH; searched: {}", looked.join(", ")),
        };
        Err(ClientError::Outcome {
            what: "no PATH is given, and this computer has no such sessions".into(),
            hint,
            exit: Exit::Usage,
        })
    }

    /// Returns true if a hook started the import.
    pub(crate) fn is_hook(&self) -> bool {
        self.hook
    }

    /// Takes the files that a hook names. Returns false if there is nothing to import.
    ///
    /// # Errors
    /// If the hook's input names no transcript.
    pub(crate) fn take_hook(&mut self) -> Result<bool, ClientError> {
        self.files = hook::files_of_stdin()?;
        Ok(!self.files.is_empty())
    }
}

/// Imports the files and prints a summary.
///
/// # Errors
/// [`ClientError::Outcome`] if something could not be imported (with `--strict`, also if it was
/// inconsistent); errors of the store or the output.
pub(crate) async fn run(
    args: ImportArgs,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let (strict, is_hook) = (args.strict, args.hook);
    let paths = args.paths()?;
    if args.watch {
        return watch::run(&args, &paths, store, out).await;
    }
    let mut stop = pin!(signal::ctrl_c());
    let report = files_until(args.format, paths, strict, store, stop.as_mut()).await?;
    if is_hook {
        // A hook prints nothing, since only the agent would read it.
    } else if out.json {
        out.line(report.json())?;
    } else {
        out.lines(report.summary())?;
    }
    let mut is_interrupted = report.is_interrupted;
    if store.is_embedded() && !is_interrupted {
        out.flush()?;
        // Otherwise each later search would first have to index the new events.
        let started = Instant::now();
        let stats = store.admin().stats(pb::StatsRequest {}).await?;
        let too_long = match is_hook {
            true => Duration::from_millis(HOOK_INDEX_MS_MAX),
            false => Duration::MAX,
        };
        tokio::select! {
            indexed = wait_for_index(stats.get_ref(), store) => {
                indexed?;
                print_time("Indexed", started);
            }
            () = tokio::time::sleep(too_long) => {}
            _ = &mut stop => is_interrupted = true,
        }
    }
    // Closing takes time too; a second Ctrl-C exits at once.
    tokio::spawn(async {
        if signal::ctrl_c().await.is_ok() {
            std::process::exit(Exit::Interrupted as i32);
        }
    });
    if is_interrupted {
        return Err(ClientError::Outcome {
            what: "interrupted; what was appended stays in the store".into(),
            hint: "run the same import again: it continues where this one stopped".into(),
            exit: Exit::Interrupted,
        });
    }
    report.judge(strict)
}

/// Longest time that a hook waits for the index, in milliseconds: an agent waits for the hook.
const HOOK_INDEX_MS_MAX: u64 = 100;
/// Minimum duration that is reported, in seconds.
const TOLD_FROM: f64 = 1.0;

/// Prints how long something took, if it was long.
pub(crate) fn print_time(what: &str, started: Instant) {
    let seconds = started.elapsed().as_secs_f64();
    if seconds >= TOLD_FROM {
        tell!("{what} in {seconds:.1} s");
    }
}

/// Checks the files of an import that would create a store. Returns true if there is nothing to
/// import and this was reported, so that no store is created.
pub(crate) async fn is_empty_import(
    args: &ImportArgs,
    namespace: &str,
    out: &mut Out,
) -> Result<bool, ClientError> {
    // A pipe can be read only once.
    let is_pipe = |file: &PathBuf| {
        let meta = file.metadata();
        file.as_os_str() == "-" || meta.is_ok_and(|meta| !meta.is_file() && !meta.is_dir())
    };
    let is_piped = args.files.iter().any(is_pipe);
    let Ok(namespace) = Namespace::new(namespace) else {
        return Ok(false);
    };
    let paths = args.paths()?;
    // A watch waits for content.
    if is_piped || args.watch {
        return Ok(false);
    }
    let files = find::candidates(&paths);
    let without_files: Vec<_> = find::without_files(&paths, &files).cloned().collect();
    let hidden = ProgressBar::hidden();
    let mut feed = Feed::start(args.format, files, hidden.clone(), namespace, None);
    let mut odd = Vec::new();
    while let Some(found) = feed.next().await {
        if matches!(found, FeedItem::Conversation(_)) || odd.len() >= ODD_MAX {
            return Ok(false);
        }
        odd.push(found);
    }
    let report = Report::new(hidden, args.strict);
    for folder in &without_files {
        report.without_files(folder);
    }
    for found in odd {
        report.found(found);
    }
    if out.json {
        out.line(report.json())?;
    } else {
        out.lines(report.summary())?;
        out.line("There is nothing to import, so no store was created.")?;
    }
    report.judge(args.strict)?;
    Ok(true)
}

/// Imports files. Shared by the command and the demo.
///
/// # Errors
/// If the store becomes unavailable. Other errors are in the report.
pub(crate) async fn files(
    format: Option<Format>,
    files: Vec<PathBuf>,
    strict: bool,
    store: &Connection,
) -> Result<Report, ClientError> {
    files_until(format, files, strict, store, future::pending::<()>()).await
}

/// Like [`files`], unless `stop` completes first. Events that are stored by then stay.
async fn files_until<T>(
    format: Option<Format>,
    paths: Vec<PathBuf>,
    strict: bool,
    store: &Connection,
    stop: impl Future<Output = T>,
) -> Result<Report, ClientError> {
    let files = find::candidates(&paths);
    let bar = progress("import", bytes_of(&files), BarUnit::Bytes);
    let report = Report::new(bar, strict);
    for folder in find::without_files(&paths, &files) {
        report.without_files(folder);
    }
    found_until(format, files, report, store, stop).await
}

/// Imports these files, unless `stop` completes first.
async fn found_until<T>(
    format: Option<Format>,
    files: Vec<Candidate>,
    mut report: Report,
    store: &Connection,
    stop: impl Future<Output = T>,
) -> Result<Report, ClientError> {
    let started = Instant::now();
    let (bar, strict) = (report.bar().clone(), report.is_strict());
    // With `--strict`, known content is converted again, because only converted content is checked.
    let ask = (!strict).then(|| upload::asks(store));
    let namespace = store.namespace().clone();
    let feed = Feed::start(format, files, bar.clone(), namespace, ask);
    let done = {
        let upload = Upload::new(store, &report);
        tokio::select! {
            done = upload.run(feed) => Some(done),
            _ = stop => None,
        }
    };
    bar.finish_and_clear();
    report.is_interrupted = done.is_none();
    done.unwrap_or(Ok(()))?;
    Ok(report.timed(started.elapsed()))
}

/// Returns the number of bytes to read, or `None` if it is unknown, as with standard input.
fn bytes_of(files: &[Candidate]) -> Option<u64> {
    files
        .iter()
        .map(|file| fs::metadata(&file.path).ok().filter(fs::Metadata::is_file))
        .map(|meta| meta.map(|meta| meta.len()))
        .sum()
}

impl Report {
    /// Checks the outcome of the import.
    ///
    /// # Errors
    /// [`ClientError::Outcome`] if something was not imported or, with `--strict`, was
    /// inconsistent.
    fn judge(&self, strict: bool) -> Result<(), ClientError> {
        let counts = self.counts();
        let what = if counts.failed > 0 {
            format!(
                "{} not imported",
                things(
                    counts.failed,
                    "conversation or file was",
                    "conversations or files were"
                )
            )
        } else if strict && counts.bad_lines + counts.refused > 0 {
            format!(
                "not strictly valid: lines that are not conversations: {}, inconsistent \
                 conversations: {}",
                counts.bad_lines, counts.refused
            )
        } else {
            return Ok(());
        };
        Err(ClientError::Outcome {
            what,
            hint: "they are listed above by file and line; the others are imported, and importing \
                   again adds only what is missing"
                .into(),
            exit: Exit::Failed,
        })
    }
}

/// Prints a line without damaging the progress bar.
fn note(bar: &ProgressBar, line: &str) {
    bar.suspend(|| tell!("{line}"));
}
