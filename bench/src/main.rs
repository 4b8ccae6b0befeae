//! `treering-bench`: measures how fast this machine runs Treering, and compares it with plain
//! alternatives.
//!
//! Absolute figures depend on the machine and on what else it does. Each row therefore has a
//! baseline in the same run, and the two take turns. Each group of rows has a file; [`group`] and
//! [`empty`] are baselines. This crate contains no logic of the engine.

mod append;
mod budget;
mod build;
mod child;
#[cfg(unix)]
mod cluster;
mod disk;
mod empty;
mod folder;
mod fork;
mod group;
mod growth;
mod grpc;
mod kill;
mod machine;
mod meaning;
mod pages;
mod payload;
#[cfg(unix)]
#[path = "../../src/log_postgres/tests/installed.rs"]
#[allow(dead_code)]
mod postgres;
mod read;
mod rounds;
mod row;
mod search;
mod soak;
mod stores;
mod trust;
mod turns;

use std::{env, error::Error, fs, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, ValueEnum};
use indicatif::ProgressBar;

use folder::TempFolder;
use machine::Machine;
use payload::Payloads;
use row::Row;
use treering::domain::with_causes;
use treering_cli::{
    Color,
    output::{BarUnit, Out, progress},
};
use treering_client::error::{ClientError, Exit};

/// The same allocator as in the program that is measured.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Names the folder with real conversations.
const TRAJECTORIES_ENV: &str = "TREERING_TEST_DATA";

/// Measure speed, size and search quality on this machine
///
/// Each row is compared with a plain alternative (a raw file with fdatasync,
/// SQLite, an empty gRPC call) in the same run. The two take turns, and the
/// medians are shown; the ratios are more reliable than the figures. The stores
/// that it needs are created in a temporary folder and removed afterwards; your
/// own stores are not touched. Close other programs, and use a real disk: on
/// tmpfs, the figures of durable appends mean nothing.
#[derive(Parser, Debug, Clone)]
#[command(name = "treering-bench", version, max_term_width = 100)]
#[command(after_help = "\
Rows:
  append    durable appends of 256 writers, and of one, in this process
  grpc      durable appends over gRPC, unary and streamed
  fork      forks of a long and of a short conversation
  read      reading events in process and over gRPC; rebuilding the views
  disk      bytes on disk for each byte of real conversations
  search    searches over real tool results; how soon searches find an append
  quality   nDCG@10 on scifact
  meaning   search by meaning: speed, size and recall of vectors
  growth    each call in stores of 0.1, 1 and 10 million events (long; many GB of disk)
  kill      opening after kill -9; memory after many events
  build     requests, by window and by length of the history, hot, cold and over gRPC
  budget    how much of a budget requests use, and how much a prompt cache serves
  turns     tokens sent, and served by a prefix cache, by when digests replace results
  trust     the cost of keys, TLS, a continuous backup and erasing
  cluster   nodes over PostgreSQL, beside the embedded store; needs PostgreSQL's programs
  pages     how soon the inspector's pages answer, and how large they are
  soak      mixed load at half the peak for --minutes: what drifts (only with --only)

Examples:
  treering-bench --quick
  treering-bench --only append,grpc
  treering-bench --trajectories ./data --json > bench.jsonl
  treering-bench --dir /mnt/fast --only append
  treering-bench --only soak --minutes 60 --samples soak.csv")]
struct BenchArgs {
    /// Smaller stores and fewer rounds: minutes become seconds
    #[arg(long)]
    quick: bool,
    /// Only these rows, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "ROWS")]
    only: Vec<Group>,
    /// Folder for the temporary stores; default: the system's temporary folder
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Real conversations: *.jsonl or *.jsonl.zst in the format of `import`, in
    /// this folder or its `trajectories`; and `retrieval/scifact`. Without them,
    /// rows that need them are left out
    #[arg(long, value_name = "DIR", env = TRAJECTORIES_ENV)]
    trajectories: Option<PathBuf>,
    /// Duration of `soak`, in minutes
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    minutes: u64,
    /// Write the samples of `soak` to this file, as CSV
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,
    /// Print JSON, one object on each line
    #[arg(long)]
    json: bool,
    /// When to use colour
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    color: Color,
    /// Serve the empty call, the baseline that the bench starts
    #[arg(long, hide = true)]
    serve_empty: bool,
}

/// Rows that are measured together.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    Append,
    Grpc,
    Fork,
    Read,
    Disk,
    Search,
    Quality,
    Meaning,
    Growth,
    Kill,
    Build,
    Budget,
    Turns,
    Trust,
    Cluster,
    Pages,
    Soak,
}

impl Group {
    fn name(self) -> &'static str {
        match self {
            Self::Append => "append",
            Self::Grpc => "grpc",
            Self::Fork => "fork",
            Self::Read => "read",
            Self::Disk => "disk",
            Self::Search => "search",
            Self::Quality => "quality",
            Self::Meaning => "meaning",
            Self::Growth => "growth",
            Self::Kill => "kill",
            Self::Build => "build",
            Self::Budget => "budget",
            Self::Turns => "turns",
            Self::Trust => "trust",
            Self::Cluster => "cluster",
            Self::Pages => "pages",
            Self::Soak => "soak",
        }
    }
}

/// Options and resources that all measurements share.
struct Setup {
    parent: PathBuf,
    trajectories: Option<PathBuf>,
    payloads: Payloads,
    quick: bool,
    soak: soak::SoakOptions,
    bar: ProgressBar,
}

impl Setup {
    /// Creates an empty folder for a store.
    fn folder(&self) -> Result<TempFolder, ClientError> {
        TempFolder::under(&self.parent).map_err(|error| failed("making a temporary folder", error))
    }

    /// Returns `quick` in a quick run, otherwise `whole`.
    fn or_quick<T>(&self, whole: T, quick: T) -> T {
        if self.quick { quick } else { whole }
    }

    fn rounds(&self) -> usize {
        self.or_quick(7, 3)
    }

    /// Duration of a round of a closed loop.
    fn round_time(&self) -> Duration {
        Duration::from_millis(self.or_quick(1_000, 300))
    }

    /// Shows the current work in the progress bar.
    fn doing(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    /// Tells the user which rows are left out, and why.
    fn left_out(&self, rows: &str, missing: &str) {
        self.bar.suspend(|| {
            anstream::eprintln!(
                "{rows}: skipped, no {missing} (give their folder with --trajectories)"
            );
        });
    }

    /// Returns the files with real conversations, sorted by name.
    fn trajectory_files(&self) -> Vec<PathBuf> {
        let Some(dir) = &self.trajectories else {
            return Vec::new();
        };
        let inner = dir.join("trajectories");
        let dir = if inner.is_dir() { &inner } else { dir };
        let mut files: Vec<_> = fs::read_dir(dir)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| {
                let name = path.to_string_lossy();
                [".jsonl", ".jsonl.zst", ".jsonl.gz"]
                    .iter()
                    .any(|end| name.ends_with(end))
            })
            .collect();
        files.sort();
        files
    }
}

/// Makes an error of a failed measurement, with all its causes.
fn failed(doing: &'static str, why: impl Into<Box<dyn Error + Send + Sync>>) -> ClientError {
    let why = why.into();
    ClientError::Outcome {
        what: format!("{doing} failed: {}", with_causes(&*why)),
        hint: "`treering-bench --only ROWS` measures the other rows; --dir chooses another disk"
            .into(),
        exit: Exit::Failed,
    }
}

fn main() -> ExitCode {
    // The bench starts the servers that it measures from this same program.
    if env::args_os().nth(1).is_some_and(|first| first == "serve") {
        return treering_cli::main();
    }
    let args = BenchArgs::parse();
    let color = args.color;
    treering_cli::main_with(color, run(args))
}

/// Measures and prints the rows.
///
/// # Errors
/// [`ClientError::Outcome`] when a row cannot be measured.
async fn run(args: BenchArgs) -> Result<(), ClientError> {
    let out = &mut Out::stdout(args.color, args.json);
    if args.serve_empty {
        return empty::serve(out).await;
    }
    let parent = args.dir.unwrap_or_else(std::env::temp_dir);
    let setup = Setup {
        trajectories: args.trajectories,
        payloads: Payloads::new(),
        quick: args.quick,
        soak: soak::SoakOptions {
            time: Duration::from_secs(args.minutes * 60),
            samples: args.samples,
        },
        bar: progress("bench", None, BarUnit::Things),
        parent,
    };
    let machine = Machine::with(&setup.parent);
    if out.json {
        out.line(machine.json())?;
    } else {
        out.line(machine.line())?;
        out.line("")?;
    }
    out.flush()?;
    let mut rows = Vec::new();
    for group in Group::value_variants() {
        let by_default = args.only.is_empty() && *group != Group::Soak;
        if by_default || args.only.contains(group) {
            let measured = setup.measure(*group).await?;
            if out.json {
                for row in &measured {
                    out.line(row.json())?;
                }
                out.flush()?;
            }
            rows.extend(measured);
        }
    }
    setup.bar.finish_and_clear();
    if !out.json {
        row::print(&rows, out)?;
    }
    Ok(())
}

impl Setup {
    async fn measure(&self, group: Group) -> Result<Vec<Row>, ClientError> {
        self.doing(group.name());
        self.bar.inc(1);
        match group {
            Group::Append => append::measure(self).await,
            Group::Grpc => grpc::measure(self).await,
            Group::Fork => fork::measure(self).await,
            Group::Read => read::measure(self).await,
            Group::Disk => disk::measure(self).await,
            Group::Search => search::measure(self).await,
            Group::Quality => search::quality(self).await,
            Group::Meaning => meaning::measure(self).await,
            Group::Growth => growth::measure(self).await,
            Group::Kill => kill::measure(self).await,
            Group::Build => build::measure(self).await,
            Group::Budget => budget::measure(self).await,
            Group::Turns => turns::measure(self).await,
            Group::Trust => trust::measure(self).await,
            #[cfg(unix)]
            Group::Cluster => cluster::measure(self).await,
            #[cfg(not(unix))]
            Group::Cluster => Ok(Vec::new()),
            Group::Pages => pages::measure(self).await,
            Group::Soak => soak::measure(self, &self.soak).await,
        }
    }
}
