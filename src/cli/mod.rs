//! The command line: arguments in, text or JSON lines out.
//!
//! Commands know the gRPC services and nothing behind them, so what they print
//! does not depend on where the store is. One file a command group; shared are
//! `args` (which store), `connect` (the way to it), `output`, `text` and
//! `json` (how things look), `error` (messages and exit codes).

mod admin;
mod annotate;
mod append;
mod approve;
pub mod args;
mod audit;
mod backup;
mod bench;
mod branch;
mod compact;
mod completions;
mod config;
pub mod connect;
mod context;
mod dashes;
pub mod demo;
mod diff;
mod embedded;
mod erase;
mod erased;
pub mod error;
mod export;
mod fork;
mod found_by;
mod import;
mod init;
mod inspector;
mod items;
pub(crate) mod json;
mod keys;
mod knowledge;
mod label;
mod log;
pub(crate) mod ls;
mod man;
mod mcp;
mod named;
pub(crate) mod names;
mod observe;
pub mod output;
mod pager;
mod quota;
pub(crate) mod read;
mod repair;
mod replay;
mod restore;
pub(crate) mod result;
mod retention;
mod rewind;
mod salvage;
pub(crate) mod search;
pub mod serve;
mod set;
mod show;
mod sub;
mod summariser;
pub(crate) mod text;
mod text_arg;
pub(crate) mod time_arg;
mod tool_stats;
mod tools;
mod top;
mod upgrade;
mod web;

use std::{env, io::Write, process::ExitCode, time::Instant};

use clap::{CommandFactory, Parser, Subcommand};
use tracing_subscriber::{EnvFilter, Layer, layer::SubscriberExt};

pub use args::{Color, Common};
pub use connect::{Connection, Opening};
pub use error::{CliError, EXIT_CODES_HELP};
use output::{Out, Paint, Tone};

use crate::{
    codec::pb,
    disk,
    engine::{Dense, OpenMode},
    server::otlp::Traces,
};

/// Keeps what agents do, and lets you read, fork, replay and search it
///
/// A store is a folder (--data DIR) or a server (--server URL); every command
/// works on both and prints the same. Start with `treering demo`, or import
/// conversations of your own with `treering import`.
#[derive(Parser, Debug, Clone)]
#[command(name = "treering", version, after_help = EXIT_CODES_HELP, max_term_width = 100)]
#[command(arg_required_else_help = true, infer_subcommands = false)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug, Clone)]
enum Command {
    Serve(Box<serve::ServeArgs>),
    Mcp(mcp::McpArgs),
    Init(init::InitArgs),
    Keys(keys::KeysArgs),
    Audit(audit::AuditArgs),
    Demo(demo::DemoArgs),
    Import(import::ImportArgs),
    Export(export::ExportArgs),
    Ls(ls::LsArgs),
    Show(show::ShowArgs),
    Log(log::LogArgs),
    Fork(fork::ForkArgs),
    Rewind(rewind::RewindArgs),
    Branch(branch::BranchArgs),
    Replay(replay::ReplayArgs),
    Diff(diff::DiffArgs),
    Search(search::SearchArgs),
    Tools(tools::ToolsArgs),
    Result(result::ResultArgs),
    Knowledge(knowledge::KnowledgeArgs),
    Context(context::ContextArgs),
    Compact(compact::CompactArgs),
    Items(items::ItemsArgs),
    Set(set::SetArgs),
    Watch(set::WatchArgs),
    Sub(sub::SubArgs),
    Append(append::AppendArgs),
    Pending(approve::PendingArgs),
    Approve(approve::ApproveArgs),
    Deny(approve::DenyArgs),
    Annotate(annotate::AnnotateArgs),
    Label(label::LabelArgs),
    Erase(erase::EraseArgs),
    Verify(admin::VerifyArgs),
    Rebuild(admin::RebuildArgs),
    Repair(repair::RepairArgs),
    Salvage(salvage::SalvageArgs),
    Backup(backup::BackupArgs),
    Restore(restore::RestoreArgs),
    Upgrade(upgrade::UpgradeArgs),
    Stats(admin::StatsArgs),
    Top(top::TopArgs),
    Bench(bench::BenchArgs),
    Config(config::ConfigArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    completions::answer();
    let words = env::args_os().collect();
    let words = dashes::told_apart(words, Cli::command());
    let words = match config::with_settings(words) {
        Ok(words) => words,
        Err(error) => return report(&error, Color::Auto),
    };
    let cli = Cli::parse_from(words);
    disk::keep_private();
    crate::contained::keep_contained_panics_quiet();
    // A server has to know first where its traces go.
    if !matches!(cli.command, Command::Serve(_)) {
        log_to_stderr(Logging::Command);
    }
    let mut out = Out::stdout(cli.common.color, cli.common.json);
    out.absolute = cli.common.absolute;
    if !cli.common.no_pager && cli.command.is_read_at_length() {
        out = out.paged();
    }
    main_with(cli.common.color, async {
        if out.is_paged() {
            tokio::spawn(pager::leave_interrupts());
        }
        let done = run(cli, &mut out).await;
        let closed = out.close();
        done?;
        closed.map_err(CliError::from)
    })
}

/// Runs a program to its end, and tells how it failed if it did.
pub fn main_with(color: Color, program: impl Future<Output = Result<(), CliError>>) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return report(&CliError::Output(error), color),
    };
    match runtime.block_on(program) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error, color),
    }
}

/// What is logged, and of what traces are made.
#[derive(Clone, Copy, Debug)]
enum Logging<'a> {
    /// A command: only what it should not hide; a call that failed it tells itself.
    Command,
    /// A server: what it does.
    Served {
        /// Where its calls go as spans; none: nowhere.
        traces: Option<&'a Traces>,
    },
}

/// Logs go to standard error. `TREERING_LOG` sets what, for example `debug`.
fn log_to_stderr(logging: Logging<'_>) {
    let (default, traces) = match logging {
        // What agents ask wrongly is theirs to know.
        Logging::Served { traces } => ("treering=info,rmcp=error,warn", traces),
        Logging::Command => (
            "error,treering::server::status=off,treering::engine::health=off",
            None,
        ),
    };
    let filter =
        EnvFilter::try_from_env("TREERING_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
    // An embedding program may have set its own.
    let _ = match traces {
        // Nobody but the log looks at spans: one filter for all is faster.
        None => tracing::subscriber::set_global_default(
            tracing_subscriber::fmt()
                .with_env_filter(filter)
                .with_writer(std::io::stderr)
                .with_ansi(ansi)
                .finish(),
        ),
        Some(traces) => {
            let lines = tracing_subscriber::fmt::layer()
                .with_writer(std::io::stderr)
                .with_ansi(ansi)
                .with_filter(filter);
            let all = tracing_subscriber::registry().with(lines);
            tracing::subscriber::set_global_default(all.with(traces.layer()))
        }
    };
}

async fn run(mut cli: Cli, out: &mut Out) -> Result<(), CliError> {
    if let Command::Import(args) = &mut cli.command
        && args.is_hook()
    {
        if !args.take_hook()? {
            return Ok(());
        }
        return run_command(cli, out).await.map_err(import::mild);
    }
    run_command(cli, out).await
}

async fn run_command(mut cli: Cli, out: &mut Out) -> Result<(), CliError> {
    if matches!(cli.command, Command::Audit(_)) {
        cli.common.namespace = audit::namespace();
    }
    match cli.command {
        Command::Serve(args) => serve::run(&args, &cli.common, out).await,
        Command::Mcp(args) => mcp::run(&args, &cli.common).await,
        Command::Init(args) => init::run(&args, &cli.common, out),
        Command::Demo(args) => demo::run(&args, &cli.common, out).await,
        Command::Bench(args) => bench::run(args, &cli.common),
        Command::Completions(args) => completions::script(&args, out),
        Command::Keys(args) => keys::run(args, &cli.common, out),
        Command::Upgrade(args) => upgrade::run(&args, &cli.common, out).await,
        Command::Config(args) => config::run(&args, out),
        Command::Top(args) => top::run(&args, &cli.common, out).await,
        Command::Man(args) => man::run(&args, out),
        Command::Repair(args) => repair::run(&args, &cli.common, out).await,
        Command::Salvage(args) => salvage::run(&args, &cli.common, out).await,
        Command::Backup(args) if args.is_about_target() => backup::about(args, out).await,
        Command::Restore(args) => restore::run(&args, out).await,
        Command::Replay(args) if args.listens() => {
            replay::serve_tools::listen(&args, &cli.common, out).await
        }
        Command::Import(args)
            if would_make_a_store(&cli.common)?
                && import::brings_nothing(&args, &cli.common.namespace, out).await? =>
        {
            Ok(())
        }
        command => {
            let opening = command.opening();
            match open_and_run(command.clone(), opening, &cli.common, out).await {
                // A command that reads cannot mend them, but can do without.
                Err(error) if error.is_of_damaged_views() && opening.mode.is_read_only() => {
                    if out.is_begun() || cli.common.is_for_a_server()? {
                        return Err(error);
                    }
                    let anew = Opening {
                        views_anew: true,
                        ..opening
                    };
                    open_and_run(command, anew, &cli.common, out).await
                }
                done => done,
            }
        }
    }
}

/// True when a folder is named that has no store.
fn would_make_a_store(common: &Common) -> Result<bool, CliError> {
    Ok(match common.target()? {
        args::Target::Data(dir) => !connect::has_store(&dir),
        args::Target::Server(_) => false,
    })
}

async fn open_and_run(
    command: Command,
    opening: Opening,
    common: &Common,
    out: &mut Out,
) -> Result<(), CliError> {
    let store = Connection::open(common, opening).await?;
    let packs = command.ends_dense();
    let done = on_store(command, &store, out).await;
    // What was printed is shown before the engine takes its time to end.
    let shown = out.flush();
    let started = Instant::now();
    let closed = store.close().await;
    if packs {
        import::tell_time("Packed", started);
    }
    done?;
    shown?;
    closed
}

async fn on_store(mut command: Command, store: &Connection, out: &mut Out) -> Result<(), CliError> {
    named::resolve(&mut command, store).await?;
    match command {
        Command::Import(args) => import::run(args, store, out).await,
        Command::Export(args) => export::run(args, store, out).await,
        Command::Ls(args) => ls::run(&args, store, out).await,
        Command::Show(args) => show::run(&args, store, out).await,
        Command::Log(args) => log::run(&args, store, out).await,
        Command::Fork(args) => fork::run(args, store, out).await,
        Command::Rewind(args) => rewind::run(args, store, out).await,
        Command::Branch(args) => branch::run(args, store, out).await,
        Command::Replay(args) => replay::run(&args, store, out).await,
        Command::Diff(args) => diff::run(&args, store, out).await,
        Command::Search(args) => search::run(args, store, out).await,
        Command::Tools(args) => tools::run(&args, store, out).await,
        Command::Result(args) => result::run(args, store, out).await,
        Command::Knowledge(args) => knowledge::run(args, store, out).await,
        Command::Context(args) => context::run(args, store, out).await,
        Command::Compact(args) => compact::run(args, store, out).await,
        Command::Items(args) => items::run(args, store, out).await,
        Command::Set(args) => set::set(args, store, out).await,
        Command::Watch(args) => set::watch(args, store, out).await,
        Command::Sub(args) => sub::run(args, store, out).await,
        Command::Append(args) => append::run(args, store, out).await,
        Command::Pending(args) => approve::pending(args, store, out).await,
        Command::Approve(args) => approve::approve(args, store, out).await,
        Command::Deny(args) => approve::deny(args, store, out).await,
        Command::Annotate(args) => annotate::run(args, store, out).await,
        Command::Label(args) => label::run(args, store, out).await,
        Command::Erase(args) => erase::run(args, store, out).await,
        Command::Audit(args) => audit::run(&args, store, out).await,
        Command::Verify(args) => admin::verify(&args, store, out).await,
        Command::Rebuild(args) => admin::rebuild(&args, store, out).await,
        Command::Stats(_) => admin::stats(store, out).await,
        Command::Backup(args) => backup::run(args, store, out).await,
        // These need no store of their own; `run` has dealt with them.
        Command::Serve(_)
        | Command::Mcp(_)
        | Command::Init(_)
        | Command::Keys(_)
        | Command::Demo(_)
        | Command::Bench(_)
        | Command::Repair(_)
        | Command::Salvage(_)
        | Command::Restore(_)
        | Command::Upgrade(_)
        | Command::Config(_)
        | Command::Top(_)
        | Command::Man(_)
        | Command::Completions(_) => Ok(()),
    }
}

impl Command {
    fn opening(&self) -> Opening {
        Opening {
            mode: self.opens(),
            dense: if self.ends_dense() {
                Dense::WhenClosed
            } else {
                Dense::Usually
            },
            views_anew: false,
        }
    }

    /// True when its output is for reading, and may be long.
    fn is_read_at_length(&self) -> bool {
        match self {
            Self::Replay(args) => !args.is_timed(),
            Self::Ls(_)
            | Self::Show(_)
            | Self::Log(_)
            | Self::Diff(_)
            | Self::Search(_)
            | Self::Tools(_)
            | Self::Result(_)
            | Self::Knowledge(_)
            | Self::Context(_) => true,
            Self::Compact(args) => !args.appends(),
            Self::Branch(args) => !args.appends(),
            _ => false,
        }
    }

    /// True when the command takes its time anyway, and may as well leave a store
    /// that takes little room.
    fn ends_dense(&self) -> bool {
        matches!(self, Self::Import(_))
    }

    /// What a folder is opened for. Looking changes nothing, and only what brings
    /// the first events may make a store.
    fn opens(&self) -> OpenMode {
        match self {
            Self::Serve(_) | Self::Demo(_) | Self::Bench(_) | Self::Import(_) => OpenMode::Create,
            Self::Append(args) if args.begins() => OpenMode::Create,
            Self::Items(args) if args.begins() => OpenMode::Create,
            Self::Items(args) if args.changes() || args.waits() => OpenMode::Append,
            Self::Append(_)
            | Self::Fork(_)
            | Self::Rewind(_)
            | Self::Set(_)
            | Self::Approve(_)
            | Self::Deny(_)
            | Self::Annotate(_)
            | Self::Label(_)
            | Self::Repair(_)
            | Self::Upgrade(_)
            | Self::Rebuild(_) => OpenMode::Append,
            Self::Compact(args) if args.appends() => OpenMode::Append,
            Self::Erase(args) if args.erases() => OpenMode::Append,
            Self::Sub(args) if args.appends() => OpenMode::Append,
            Self::Branch(args) if args.appends() => OpenMode::Append,
            // What it indexes is kept.
            Self::Search(args) if args.waits() => OpenMode::Append,
            Self::Export(_)
            | Self::Ls(_)
            | Self::Show(_)
            | Self::Log(_)
            | Self::Replay(_)
            | Self::Diff(_)
            | Self::Search(_)
            | Self::Tools(_)
            | Self::Result(_)
            | Self::Knowledge(_)
            | Self::Context(_)
            | Self::Items(_)
            | Self::Compact(_)
            | Self::Erase(_)
            | Self::Watch(_)
            | Self::Sub(_)
            | Self::Branch(_)
            | Self::Pending(_)
            | Self::Verify(_)
            | Self::Stats(_)
            | Self::Salvage(_)
            | Self::Mcp(_)
            | Self::Init(_)
            | Self::Keys(_)
            | Self::Audit(_)
            | Self::Backup(_)
            | Self::Restore(_)
            | Self::Config(_)
            | Self::Top(_)
            | Self::Man(_)
            | Self::Completions(_) => OpenMode::Read,
        }
    }
}

/// One line on what happened, one on what to do; and the exit code.
fn report(error: &CliError, color: args::Color) -> ExitCode {
    if !matches!(error, CliError::OutputClosed) {
        let choice = match color {
            args::Color::Always => anstream::ColorChoice::Always,
            args::Color::Never => anstream::ColorChoice::Never,
            args::Color::Auto => anstream::AutoStream::choice(&std::io::stderr()),
        };
        let paint = Paint(!matches!(choice, anstream::ColorChoice::Never));
        let mut stderr = anstream::AutoStream::new(std::io::stderr(), choice);
        // With standard error gone there is nobody left to tell.
        // Paths and names are other people's: they may not drive the terminal.
        let said = text::printable(&error.to_string());
        let _ = writeln!(stderr, "{} {said}", paint.text(Tone::Bad, "error:"));
        if let Some(hint) = error.hint() {
            let hint = text::printable(&hint);
            let _ = writeln!(stderr, "{} {hint}", paint.text(Tone::Dim, " hint:"));
        }
    }
    error.exit()
}

#[cfg(test)]
mod end_to_end;
#[cfg(test)]
mod newcomer_tests;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// clap finds clashing options only when the command is built: build it.
    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    // A command without a word about it had none in `--help`, and a manual page that no index
    // could take.
    #[test]
    fn every_command_says_what_it_does() {
        let mut waiting = vec![Cli::command()];
        while let Some(command) = waiting.pop() {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            waiting.extend(command.get_subcommands().cloned());
        }
    }

    /// The README's picture showed options that were gone, ids that nobody types, and a port
    /// that was not the default one: what it shows to type must be understood.
    #[test]
    fn the_picture_shows_what_can_be_typed() {
        let picture = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/images/demo.svg");
        let picture = std::fs::read_to_string(picture).unwrap();
        let texts = picture.split("<text ").skip(1).filter_map(|text| {
            let (attributes, rest) = text.split_once('>')?;
            let (said, _) = rest.split_once("</text>")?;
            let row = attributes.split("y=\"").nth(1)?.split('"').next()?;
            Some((row.to_owned(), said.replace("&#160;", " ")))
        });
        let mut rows: Vec<(String, String)> = Vec::new();
        for (row, said) in texts {
            match rows.last_mut() {
                Some((last, line)) if *last == row => line.push_str(&said),
                _ => rows.push((row, said)),
            }
        }
        let typed = |line: &str| {
            line.trim_start_matches(['$', ' '])
                .starts_with("treering -")
        };
        let lines: Vec<String> = rows.into_iter().map(|(_, line)| line).collect();
        let commands: Vec<&String> = lines.iter().filter(|line| typed(line)).collect();
        assert!(commands.len() > 5, "{lines:#?}");
        for line in commands {
            let words = line.split_whitespace().skip_while(|word| *word == "$");
            let words: Vec<&str> = words.collect();
            assert!(
                Cli::try_parse_from(&words).is_ok(),
                "not understood: {line}"
            );
            assert!(words.iter().all(|word| word.len() < 36), "{line}");
        }
        let served = format!("http://{}", serve::listen_default());
        assert!(
            lines.iter().any(|line| line.contains(&served)),
            "{lines:#?}"
        );
    }

    /// `-n` here and `-k` there, `--kind` and `--kinds`: what one command was asked with was
    /// refused by the next. An option has one short name wherever it is.
    #[test]
    fn one_flag_for_one_thing() {
        type Shorts = HashMap<String, (Option<char>, String)>;
        fn walk(command: &clap::Command, shorts: &mut Shorts, clashes: &mut Vec<String>) {
            for arg in command.get_arguments() {
                let Some(long) = arg.get_long() else { continue };
                let here = (arg.get_short(), command.get_name().to_owned());
                let first = shorts.entry(long.to_owned()).or_insert(here);
                if first.0 != arg.get_short() {
                    clashes.push(format!(
                        "--{long} of {} and {}",
                        first.1,
                        command.get_name()
                    ));
                }
                if long == "kind" {
                    let aliases = arg.get_all_aliases().unwrap_or_default();
                    assert!(aliases.contains(&"kinds"), "{}", command.get_name());
                }
            }
            for command in command.get_subcommands() {
                walk(command, shorts, clashes);
            }
        }
        let mut shorts = HashMap::new();
        let mut clashes = Vec::new();
        walk(&Cli::command(), &mut shorts, &mut clashes);
        assert_eq!(clashes, [] as [String; 0]);
        assert_eq!(shorts["limit"].0, Some('n'));
        assert!(!shorts.contains_key("kinds"), "another flag for --kind");
    }

    /// Scripts rely on these lines as they stand.
    #[test]
    fn the_fixed_command_lines_are_understood() {
        for line in [
            "treering search --data D --json -k 5 --tool T --conversation C --branch B words here",
            "treering search --data D --json -k 5 one",
            "treering fork --data D C --at 7 --name N",
            "treering log --data D C --json",
            "treering ls --data D --json",
            "treering stats --data D --json",
            "treering verify --data D",
            "treering salvage --data D --to E --json",
            "treering backup T --data D --json --key-file K",
            "treering backup s3://b/p --server http://h:1 --follow",
            "treering backup ls T --json",
            "treering backup verify T --store 01900000-0000-7000-8000-000000000001",
            "treering backup prune T --keep 3 --keep-days 7 --yes",
            "treering restore T --to D --at 2026-01-31 --generation 4",
            "treering restore T --to D --position 41200 --json",
            "treering --server http://h:1 show C",
            "treering serve --data D --listen 127.0.0.1:0",
            "treering serve --data D --listen 0.0.0.0:7171 --tls-cert c --tls-key k --client-ca a",
            "treering serve --data D --listen 0.0.0.0:7171 --insecure",
            "treering keys create ci --role writer --namespace a --role reader:b --expires 90d",
            "treering keys ls --data D --json",
            "treering keys rotate ci --grace 0s",
            "treering keys revoke ci",
            "treering audit --data D --from 7",
            "treering ls --server https://h:1 --token t --ca c",
            "treering demo --exit --data D",
            "treering import --data D ~/.claude/projects",
            "treering import --data D --format openai-chat a.jsonl b.jsonl.zst -",
            "treering import --data D --format openai-chat --strict a.jsonl",
            "treering export --data D --format openai-chat",
            "treering export --data D --format openai-chat C1 C2",
            "treering approve C call_1 --by me --reason fine",
            "treering annotate C --score 0.5",
            "treering label C team=blue --remove old --title T --metadata k=1 --json",
            "treering replay C --speed 2 --until 9 --as-of 12",
            "treering diff C main other",
            "treering knowledge C --branch b --as-of 9 --tool t --recent 3 --json",
            "treering knowledge C suggest read_file {}",
            "treering knowledge C prerequisites plot --branch b",
            "treering knowledge C guidance",
            "treering tools C --tool t --as-of 9 -n 5 --json",
            "treering tools C --snapshots",
            "treering tools C --offered --branch b",
            "treering replay C --serve-tools --branch retry --from main --until-idle 5",
            "treering replay C --serve-tools --fork-at 9 --name again --approve recorded --on-miss fail",
            "treering append new message user hello --json",
            "treering append C -b retry --expect 7 call c1 grep {} --needs-approval",
            "treering append C config --model m --parameter temperature=0.2",
            "treering result treering:C/7 --lines 10-20",
            "treering result C --call call_1 --branch b --json",
            "treering context C --at-least 9 --json",
            "treering context C --provider openai-chat --budget 9000 --as-of 7 --branch B --explain",
            "treering context C --json --provider gemini --tool-results older-than=3 --without knowledge",
            "treering compact C",
            "treering compact C plan --keep-turns 2 --material",
            "treering compact C --branch B apply --summary @file",
            "treering compact C apply --extract",
            "treering compact C expand --revision 9",
            "treering set C key 1 other [2]",
            "treering set --long-term key 1",
            "treering watch C --once --key k",
            "treering sub spawn C --call c1 --purpose p",
            "treering sub return CHILD --summary done",
            "treering sub ls C",
            "treering top http://127.0.0.1:9464 --every 500ms",
            "treering top --once --json --data D --config F",
            "treering bench --json --quick --only append,grpc --dir D --trajectories T",
        ] {
            assert!(
                Cli::try_parse_from(line.split(' ')).is_ok(),
                "not understood: {line}"
            );
        }
        for line in [["treering", "annotate", "C"], ["treering", "label", "C"]] {
            assert!(Cli::try_parse_from(line).is_err(), "{line:?}");
        }
        assert!(Cli::try_parse_from(["treering", "ls", "--data", "d", "--server", "s"]).is_err());
    }
}
