//! `import`: conversations from files into a store.
//!
//! [`feed`] reads and converts on a thread of its own, [`upload`] appends what it
//! brings over one pipelined stream, [`report`] keeps count and tells the user, [`watch`]
//! does it again whenever something has grown.

mod feed;
mod find;
mod hook;
mod report;
mod upload;
mod watch;

#[cfg(test)]
pub(super) use feed::refusal;
pub use hook::mild;
pub use report::Report;

use std::{fs, path::PathBuf, pin::pin, time::Instant};

use clap::{
    Args,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use futures::future;
use indicatif::ProgressBar;
use tokio::signal;

use super::{
    connect::Connection,
    error::{CliError, Exit},
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

/// What is odd in files is kept so far before a store is made for what may follow.
const ODD_MAX: usize = 10_000;

/// Each format that can be imported, by its name.
fn imported_format() -> impl TypedValueParser<Value = Format> {
    let named = |it: Format| PossibleValue::new(it.name()).help(it.to_string());
    PossibleValuesParser::new(Format::IMPORTED.map(named)).try_map(|name| {
        let mut all = Format::IMPORTED.into_iter();
        all.find(|it| it.name() == name).ok_or("no such format")
    })
}

/// Import conversations from files and folders
///
/// What a file holds is told from its content, and a file of another format is refused
/// by name. Importing the same again adds nothing; when it has grown, what is new is
/// added; where its past has changed, that becomes a branch. Folders are walked. Files
/// may be compressed (.gz, .zst); `-` reads standard input. A line that is no
/// conversation is reported and does not stop the rest; a last line that is still being
/// written is left for the next time.
///
/// Without a PATH it takes what the tools on this computer keep: the sessions of Claude
/// Code, Codex, Gemini CLI, opencode and pi, or of the one that `--format` names.
///
/// With `--watch` it stays, and appends what comes: new lines, and new files. It can be
/// stopped at any time, with Ctrl-C, too: what is in the store is not appended again. A
/// folder store is its own meanwhile; to look into it, start `treering serve` and give
/// `--server`.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering import conversations.jsonl more.jsonl.zst
  treering import ~/.claude/projects
  treering import                          # what the tools here keep
  treering import --format codex --watch   # and what comes, until Ctrl-C
  zcat old.gz | treering import -
  treering import --format claude-code --hook     what `treering init claude-code` adds
  treering import --format openai-chat --strict FILE || echo 'something was odd'")]
pub struct ImportArgs {
    /// What the files must hold [default: told from what each holds]
    #[arg(long, value_name = "FORMAT", value_parser = imported_format())]
    format: Option<Format>,
    /// Refuse conversations that contradict themselves (a result without its
    /// call …), and exit with 1 when there was one, or a line that is none
    #[arg(long)]
    strict: bool,
    /// As a hook of Claude Code: read from standard input which transcript it is. Says nothing
    /// when all is well
    #[arg(long, conflicts_with_all = ["files", "watch"])]
    hook: bool,
    /// Stay, and append what comes to the files, until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// Files and folders; `-` is standard input. None: where the tools keep their sessions
    #[arg(value_name = "PATH")]
    files: Vec<PathBuf>,
}

impl ImportArgs {
    /// The paths, or those of the tools.
    ///
    /// # Errors
    /// [`CliError::Outcome`] when there are none.
    fn paths(&self) -> Result<Vec<PathBuf>, CliError> {
        let is_piped = self.files.iter().any(|file| file.as_os_str() == "-");
        if self.watch && is_piped {
            return Err(CliError::Outcome {
                what: "standard input cannot be watched".into(),
                hint: "name files or folders; without --watch it is read to its end".into(),
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
        // What is watched may come later.
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
            false => format!(
                "name a PATH; this is where was looked: {}",
                looked.join(", ")
            ),
        };
        Err(CliError::Outcome {
            what: "no PATH is given, and no sessions of that kind are on this computer".into(),
            hint,
            exit: Exit::Usage,
        })
    }

    /// True when a hook has started it.
    pub fn is_hook(&self) -> bool {
        self.hook
    }

    /// Takes the files that a hook names. False: there are none, and nothing is to be done.
    ///
    /// # Errors
    /// When what it was given names none.
    pub fn take_hook(&mut self) -> Result<bool, CliError> {
        self.files = hook::files_of_stdin()?;
        Ok(!self.files.is_empty())
    }
}

/// Imports the files and says what came of it.
///
/// # Errors
/// [`CliError::Outcome`] when something could not be imported (or was odd, with
/// `--strict`); what the store or the output says.
pub async fn run(args: ImportArgs, store: &Connection, out: &mut Out) -> Result<(), CliError> {
    let (strict, is_hook) = (args.strict, args.hook);
    let paths = args.paths()?;
    if args.watch {
        return watch::run(&args, &paths, store, out).await;
    }
    let mut stop = pin!(signal::ctrl_c());
    let report = files_until(args.format, paths, strict, store, stop.as_mut()).await?;
    if is_hook {
        // Nobody reads it but the agent.
    } else if out.json {
        out.line(report.json())?;
    } else {
        out.lines(report.summary())?;
    }
    let mut is_interrupted = report.is_interrupted;
    if store.is_embedded() && !is_interrupted {
        out.flush()?;
        // Who searches next would do it instead, and each time anew.
        let started = Instant::now();
        let stats = store.admin().stats(pb::StatsRequest {}).await?;
        tokio::select! {
            indexed = wait_for_index(stats.get_ref(), store) => {
                indexed?;
                tell_time("Indexed", started);
            }
            _ = &mut stop => is_interrupted = true,
        }
    }
    // Closing takes its time, too, and is not waited for twice.
    tokio::spawn(async {
        if signal::ctrl_c().await.is_ok() {
            std::process::exit(Exit::Interrupted as i32);
        }
    });
    if is_interrupted {
        return Err(CliError::Outcome {
            what: "interrupted; what was appended is in the store".into(),
            hint: "import the same again: it goes on where this one ended".into(),
            exit: Exit::Interrupted,
        });
    }
    report.judge(strict)
}

/// From here on it is said how long something took that is done at the end, in seconds.
const TOLD_FROM: f64 = 1.0;

/// Says of what took long how long it took.
pub fn tell_time(what: &str, started: Instant) {
    let seconds = started.elapsed().as_secs_f64();
    if seconds >= TOLD_FROM {
        tell!("{what} in {seconds:.1} s");
    }
}

/// Looks at the files of an import that would make a store. True: there is nothing to
/// import in them, and that was told; so none is to be made.
pub async fn brings_nothing(
    args: &ImportArgs,
    namespace: &str,
    out: &mut Out,
) -> Result<bool, CliError> {
    // What is read from a pipe can be read only once.
    let is_pipe = |file: &PathBuf| {
        let meta = file.metadata();
        file.as_os_str() == "-" || meta.is_ok_and(|meta| !meta.is_file() && !meta.is_dir())
    };
    let is_piped = args.files.iter().any(is_pipe);
    let Ok(namespace) = Namespace::new(namespace) else {
        return Ok(false);
    };
    let paths = args.paths()?;
    // What is watched may still come.
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
        out.line("There is nothing to import, so no store was made.")?;
    }
    report.judge(args.strict)?;
    Ok(true)
}

/// Imports files: what a command, or the demo, does after that is its own.
///
/// # Errors
/// When the store goes away in the middle. What else goes wrong is in the
/// report.
pub async fn files(
    format: Option<Format>,
    files: Vec<PathBuf>,
    strict: bool,
    store: &Connection,
) -> Result<Report, CliError> {
    files_until(format, files, strict, store, future::pending::<()>()).await
}

/// The same, unless `stop` comes first: what is in the store then stays there.
async fn files_until<T>(
    format: Option<Format>,
    paths: Vec<PathBuf>,
    strict: bool,
    store: &Connection,
    stop: impl Future<Output = T>,
) -> Result<Report, CliError> {
    let files = find::candidates(&paths);
    let bar = progress("import", bytes_of(&files), BarUnit::Bytes);
    let report = Report::new(bar, strict);
    for folder in find::without_files(&paths, &files) {
        report.without_files(folder);
    }
    found_until(format, files, report, store, stop).await
}

/// Imports these files, unless `stop` comes first.
async fn found_until<T>(
    format: Option<Format>,
    files: Vec<Candidate>,
    mut report: Report,
    store: &Connection,
    stop: impl Future<Output = T>,
) -> Result<Report, CliError> {
    let started = Instant::now();
    let (bar, strict) = (report.bar().clone(), report.is_strict());
    // What is odd is told of what is read, so all of it is.
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

/// How much there is to read; unknown with standard input.
fn bytes_of(files: &[Candidate]) -> Option<u64> {
    files
        .iter()
        .map(|file| fs::metadata(&file.path).ok().filter(fs::Metadata::is_file))
        .map(|meta| meta.map(|meta| meta.len()))
        .sum()
}

impl Report {
    /// Whether the import went as it should.
    ///
    /// # Errors
    /// [`CliError::Outcome`] when something was not imported, or, with
    /// `--strict`, was odd.
    fn judge(&self, strict: bool) -> Result<(), CliError> {
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
                "not strictly as it should be: lines that are no conversation: {}, conversations \
                 that contradict themselves: {}",
                counts.bad_lines, counts.refused
            )
        } else {
            return Ok(());
        };
        Err(CliError::Outcome {
            what,
            hint: "they are named above by file and line; the others are imported, and importing \
                   again adds only what is missing"
                .into(),
            exit: Exit::Failed,
        })
    }
}

/// Prints beside a progress bar without tearing it.
fn note(bar: &ProgressBar, line: &str) {
    bar.suspend(|| tell!("{line}"));
}
