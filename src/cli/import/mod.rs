//! `import`: conversations from files into a store.
//!
//! [`feed`] reads and converts on a thread of its own, [`upload`] appends what it
//! brings over one pipelined stream, [`report`] keeps count and tells the user.

mod feed;
mod find;
mod report;
mod upload;

#[cfg(test)]
pub(super) use feed::refusal;
pub use report::Report;

use std::{fs, path::PathBuf, time::Instant};

use clap::{Args, ValueEnum};
use indicatif::ProgressBar;

use super::{
    connect::Connection,
    error::{CliError, Exit},
    output::{Out, Unit, progress},
    search::wait_for_index,
    text::things,
};
use crate::{codec::pb, domain::Namespace, importer};
use feed::{Feed, Found};
use find::Candidate;
use upload::Upload;

/// What is odd in files is kept so far before a store is made for what may follow.
const ODD_MAX: usize = 10_000;

/// What files hold.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Told from what each file holds.
    Auto,
    /// One conversation a line: {"id", "source", "messages": [...]}.
    OpenaiChat,
    /// Session files of Claude Code; sub-agents become sub-contexts.
    ClaudeCode,
}

impl Format {
    /// What files must hold; none: anything that can be imported.
    fn required(self) -> Option<importer::format::Format> {
        match self {
            Self::Auto => None,
            Self::OpenaiChat => Some(importer::format::Format::OpenaiChat),
            Self::ClaudeCode => Some(importer::format::Format::ClaudeCode),
        }
    }
}

/// Import conversations from files and folders
///
/// What a file holds is told from its content, and a file of another format is refused
/// by name. Importing the same again adds nothing; when it has grown, what is new is
/// added; where its past has changed, that becomes a branch. Folders are walked. Files
/// may be compressed (.gz, .zst); `-` reads standard input. A line that is no
/// conversation is reported and does not stop the rest; a last line that is still being
/// written is left for the next time.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering import conversations.jsonl more.jsonl.zst
  treering import ~/.claude/projects
  zcat old.gz | treering import -
  treering import --format openai-chat --strict FILE || echo 'something was odd'")]
pub struct ImportArgs {
    /// What the files must hold
    #[arg(long, value_enum, default_value = "auto")]
    format: Format,
    /// Refuse conversations that contradict themselves (a result without its
    /// call …), and exit with 1 when there was one, or a line that is none
    #[arg(long)]
    strict: bool,
    /// Files and folders; `-` is standard input
    #[arg(required = true, value_name = "PATH")]
    files: Vec<PathBuf>,
}

/// Imports the files and says what came of it.
///
/// # Errors
/// [`CliError::Outcome`] when something could not be imported (or was odd, with
/// `--strict`); what the store or the output says.
pub async fn run(args: ImportArgs, store: &Connection, out: &mut Out) -> Result<(), CliError> {
    let strict = args.strict;
    let report = files(args.format, args.files, strict, store).await?;
    if out.json {
        out.line(report.json())?;
    } else {
        out.line(report.summary())?;
    }
    if store.is_embedded() {
        // Who searches next would do it instead, and each time anew.
        let stats = store.admin().stats(pb::StatsRequest {}).await?;
        wait_for_index(stats.get_ref(), store).await?;
    }
    report.judge(strict)
}

/// Looks at the files of an import that would make a store. True: there is nothing to
/// import in them, and that was told; so none is to be made.
///
/// # Errors
/// As [`run`].
pub async fn brings_nothing(
    args: &ImportArgs,
    namespace: &str,
    out: &mut Out,
) -> Result<bool, CliError> {
    // What is read from a pipe can be read only once.
    let is_piped = args.files.iter().any(|file| file.as_os_str() == "-");
    let Ok(namespace) = Namespace::new(namespace) else {
        return Ok(false);
    };
    if is_piped {
        return Ok(false);
    }
    let files = find::candidates(&args.files);
    let hidden = ProgressBar::hidden();
    let mut feed = Feed::start(
        args.format.required(),
        files,
        hidden.clone(),
        namespace,
        None,
    );
    let mut odd = Vec::new();
    while let Some(found) = feed.next().await {
        if matches!(found, Found::Conversation(_)) || odd.len() >= ODD_MAX {
            return Ok(false);
        }
        odd.push(found);
    }
    let report = Report::new(hidden, args.strict);
    for found in odd {
        match found {
            Found::File(format) => report.file(format),
            Found::BadLine(origin, why) => report.bad_line(&origin, &why),
            Found::Unfinished(origin) => report.unfinished(&origin),
            Found::BadFile(origin, why) => report.failed(&origin, &why),
            Found::Known | Found::Conversation(_) => {}
        }
    }
    if out.json {
        out.line(report.json())?;
    } else {
        out.line(report.summary())?;
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
    format: Format,
    files: Vec<PathBuf>,
    strict: bool,
    store: &Connection,
) -> Result<Report, CliError> {
    let started = Instant::now();
    let files = find::candidates(&files);
    let bar = progress("import", bytes_of(&files), Unit::Bytes);
    // What is odd is told of what is read, so all of it is.
    let ask = (!strict).then(|| upload::asks(store));
    let namespace = store.namespace().clone();
    let feed = Feed::start(format.required(), files, bar.clone(), namespace, ask);
    let report = Report::new(bar.clone(), strict);
    let done = Upload::new(store, &report).run(feed).await;
    bar.finish_and_clear();
    done?;
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
    bar.suspend(|| anstream::eprintln!("{line}"));
}
