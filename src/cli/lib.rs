//! The command line: arguments in, text or JSON lines out.
//!
//! Commands use only the gRPC services, so their output does not depend on where the store is.
//! There is one file for each command group. Shared modules are `args` (which store), `connect`
//! (the connection), `output`, `text` and `json` (formatting), and `error` (messages and exit
//! codes).

#![cfg_attr(not(test), warn(unreachable_pub))]

mod admin;
mod annotate;
mod append;
mod approve;
mod args;
mod audit;
mod backup;
mod branch;
mod branch_args;
mod cluster;
mod compact;
mod completions;
mod config;
mod context;
mod demo;
mod diff;
mod embedder_args;
mod erase;
mod export;
mod fork;
mod heads;
mod import;
mod init;
mod items;
mod keys;
mod kind_arg;
mod knowledge;
mod label;
mod log;
mod ls;
mod man;
mod mcp;
mod observe;
pub mod output;
mod pager;
mod proxy;
mod quota;
mod receipt_check;
mod repair;
mod replay;
mod restore;
mod result;
mod retention;
mod rewind;
mod salvage;
mod search;
mod serve;
mod set;
mod show;
mod sub;
mod summariser;
mod tag_args;
mod text_arg;
mod tool_stats;
mod tools;
mod upgrade;
mod web;

use std::{env, process::ExitCode, time::Instant};

use clap::{Parser, Subcommand};
use tracing_subscriber::{EnvFilter, Layer, layer::SubscriberExt};

pub use args::Color;
use args::Common;
use output::Out;
pub use serve::{listen_any, stdin_end, stop_signal};
use treering_client::{
    ClientError, Connection, FolderOptions, connect, embedded, error, error::EXIT_CODES_HELP,
    holder, names, read,
};
use treering_present::{json, safe, text, time_arg};

use treering_base::disk;
use treering_engine::{OpenMode, PackingMode};
use treering_otel::export::Traces;
use treering_proto::pb;

/// Records what agents do, and lets you read, fork, replay and search it
///
/// A store is a folder (--data DIR) or a server (--server URL). Every command works on both and
/// prints the same. Start with `treering demo`, or import your own conversations with `treering
/// import`.
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
    #[command(flatten)]
    Alone(StandaloneCommand),
    #[command(flatten)]
    OnStore(StoreCommand),
}

/// Display order that places a command after the commands on stores.
const LAST: usize = 100;

/// A command that opens what it needs itself.
#[derive(Subcommand, Debug, Clone)]
enum StandaloneCommand {
    Serve(Box<serve::ServeArgs>),
    Mcp(mcp::McpArgs),
    Proxy(proxy::ProxyArgs),
    Init(init::InitArgs),
    Keys(keys::KeysArgs),
    Cluster(cluster::ClusterCommandArgs),
    Demo(demo::DemoArgs),
    #[command(display_order = LAST)]
    Repair(repair::RepairArgs),
    #[command(display_order = LAST)]
    Salvage(salvage::SalvageArgs),
    #[command(display_order = LAST)]
    Restore(restore::RestoreArgs),
    #[command(display_order = LAST)]
    Upgrade(upgrade::UpgradeArgs),
    #[command(display_order = LAST)]
    Config(config::ConfigArgs),
    #[command(display_order = LAST)]
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
}

/// A command that gets a store: a folder or a server.
#[derive(Subcommand, Debug, Clone)]
enum StoreCommand {
    Import(import::ImportArgs),
    Export(export::ExportArgs),
    Ls(ls::LsArgs),
    Show(show::ShowArgs),
    Log(log::LogArgs),
    Fork(fork::ForkArgs),
    Rewind(rewind::RewindArgs),
    Branch(branch::BranchesArgs),
    Replay(replay::ReplayArgs),
    Diff(diff::DiffArgs),
    Search(Box<search::SearchArgs>),
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
    /// Approve a pending tool call
    ///
    /// The approval applies only to exactly the arguments that are shown.
    #[command(after_help = "\
Example:
  treering approve CONVERSATION call_7 --reason 'only reads'")]
    Approve(approve::DecideArgs),
    /// Deny a pending tool call
    #[command(after_help = "\
Example:
  treering deny CONVERSATION call_7 --reason 'outside of the workspace'")]
    Deny(approve::DecideArgs),
    Annotate(annotate::AnnotateArgs),
    Label(label::LabelArgs),
    Erase(erase::EraseArgs),
    Audit(audit::AuditArgs),
    Verify(admin::VerifyArgs),
    Heads(heads::HeadsArgs),
    Rebuild(admin::RebuildArgs),
    Backup(backup::BackupArgs),
    /// Show statistics of the store
    Stats,
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    completions::answer();
    let words = match config::with_settings(env::args_os().collect()) {
        Ok(words) => words,
        Err(error) => return report(&error, Color::Auto),
    };
    let cli = Cli::parse_from(words);
    disk::keep_private();
    treering_base::catch_panics::log_caught_panics();
    // `serve` sets up its log later, when it knows where traces are sent. `proxy` also sets up its
    // own log.
    let is_server = matches!(
        cli.command,
        Command::Alone(StandaloneCommand::Serve(_) | StandaloneCommand::Proxy(_))
    );
    if !is_server {
        log_to_stderr(LogMode::Command);
    }
    let mut out = Out::stdout(cli.common.color, cli.common.json);
    out.absolute = cli.common.absolute;
    if let Command::OnStore(command) = &cli.command
        && command.is_read_at_length()
        && !cli.common.no_pager
    {
        out = out.paged();
    }
    main_with(cli.common.color, async {
        if out.is_paged() {
            tokio::spawn(pager::leave_interrupts());
        }
        let done = run(cli, &mut out).await;
        let closed = out.close();
        done?;
        closed.map_err(ClientError::from)
    })
}

/// Runs a program, and reports its error if it fails.
pub fn main_with(color: Color, program: impl Future<Output = Result<(), ClientError>>) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return report(&ClientError::Output(error), color),
    };
    match runtime.block_on(program) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error, color),
    }
}

/// The defaults of logging and tracing.
#[derive(Clone, Copy, Debug)]
enum LogMode<'a> {
    /// A command logs only warnings. The command itself reports a failed call.
    Command,
    /// A server logs its operation.
    Served {
        /// The collector of the spans of its calls, if any.
        traces: Option<&'a Traces>,
    },
    /// A proxy logs its operation, and warnings of the store, which it opens from time to time.
    Proxied,
}

/// Logs to standard error. `TREERING_LOG` sets the filter, for example `debug`.
fn log_to_stderr(logging: LogMode<'_>) {
    let (default, traces) = match logging {
        // Invalid requests of agents are reported to the agents.
        LogMode::Served { traces } => ("treering=info,rmcp=error,warn", traces),
        LogMode::Proxied => ("treering_proxy=info,warn", None),
        LogMode::Command => (
            "error,treering_server::status=off,treering_engine::health=off",
            None,
        ),
    };
    let filter =
        EnvFilter::try_from_env("TREERING_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
    // An embedding program may have set its own subscriber.
    let _ = match traces {
        // Only the log reads spans, so a single global filter is faster.
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

async fn run(mut cli: Cli, out: &mut Out) -> Result<(), ClientError> {
    if let Command::OnStore(StoreCommand::Import(args)) = &mut cli.command
        && args.is_hook()
    {
        if !args.take_hook()? {
            return Ok(());
        }
        return run_command(cli, out).await.map_err(import::mild);
    }
    run_command(cli, out).await
}

async fn run_command(mut cli: Cli, out: &mut Out) -> Result<(), ClientError> {
    let common = &mut cli.common;
    let command = match cli.command {
        Command::Alone(command) => return run_alone(command, common, out).await,
        Command::OnStore(command) => command,
    };
    // Some commands finish here, before a store is opened.
    match &command {
        StoreCommand::Audit(_) => common.namespace = audit::namespace(),
        StoreCommand::Heads(heads::HeadsArgs {
            make_key: Some(path),
            ..
        }) => return heads::make_key(path, out),
        StoreCommand::Backup(backup::BackupArgs {
            command: Some(about),
            ..
        }) => return backup::about(about, out).await,
        StoreCommand::Replay(args) if let Some(addr) = args.listens() => {
            return replay::serve_tools::listen(args, addr, common, out).await;
        }
        StoreCommand::Import(args)
            if would_make_a_store(common)?
                && import::is_empty_import(args, &common.namespace, out).await? =>
        {
            return Ok(());
        }
        _ => {}
    }
    let opening = command.opening(common)?;
    match open_and_run(command.clone(), opening, common, out).await {
        // A command that only reads cannot rebuild the projections, but works without them.
        Err(error) if error.is_damaged_projections() && opening.mode.is_read_only() => {
            if out.is_begun() || common.is_for_a_server()? {
                return Err(error);
            }
            let anew = FolderOptions {
                fresh_projections: true,
                ..opening
            };
            open_and_run(command, anew, common, out).await
        }
        done => done,
    }
}

async fn run_alone(
    command: StandaloneCommand,
    common: &Common,
    out: &mut Out,
) -> Result<(), ClientError> {
    match command {
        StandaloneCommand::Serve(args) => serve::run(&args, common, out).await,
        StandaloneCommand::Mcp(args) => mcp::run(&args, common).await,
        StandaloneCommand::Proxy(args) => proxy::run(&args, common, out).await,
        StandaloneCommand::Init(args) => init::run(&args, common, out),
        StandaloneCommand::Keys(args) => keys::run(args, common, out).await,
        StandaloneCommand::Cluster(args) => cluster::run(&args, common, out).await,
        StandaloneCommand::Demo(args) => demo::run(&args, common, out).await,
        StandaloneCommand::Repair(args) => repair::run(&args, common, out).await,
        StandaloneCommand::Salvage(args) => salvage::run(&args, common, out).await,
        StandaloneCommand::Restore(args) => restore::run(&args, out).await,
        StandaloneCommand::Upgrade(args) => upgrade::run(&args, common, out).await,
        StandaloneCommand::Config(args) => config::run(&args, out),
        StandaloneCommand::Completions(args) => completions::script(&args, out),
        StandaloneCommand::Man(args) => man::run(&args, out),
    }
}

/// Returns true if the folder has no store yet.
fn would_make_a_store(common: &Common) -> Result<bool, ClientError> {
    Ok(common
        .folder()?
        .is_some_and(|dir| !connect::has_store(&dir)))
}

async fn open_and_run(
    command: StoreCommand,
    opening: FolderOptions,
    common: &Common,
    out: &mut Out,
) -> Result<(), ClientError> {
    let store = Connection::open(&common.connect_options()?, opening).await?;
    let packs = command.ends_dense();
    let done = on_store(command, &store, common, out).await;
    // Show the output before the engine closes, which takes time.
    let shown = out.flush();
    let started = Instant::now();
    let closed = store.close().await;
    if packs {
        import::print_time("Packed", started);
    }
    done?;
    shown?;
    closed
}

async fn on_store(
    command: StoreCommand,
    store: &Connection,
    common: &Common,
    out: &mut Out,
) -> Result<(), ClientError> {
    match command {
        StoreCommand::Import(args) => import::run(args, store, out).await,
        StoreCommand::Export(args) => export::run(args, store, out).await,
        StoreCommand::Ls(args) => ls::run(&args, store, out).await,
        StoreCommand::Show(args) => show::run(&args, store, out).await,
        StoreCommand::Log(args) => log::run(&args, store, out).await,
        StoreCommand::Fork(args) => fork::run(args, store, out).await,
        StoreCommand::Rewind(args) => rewind::run(args, store, out).await,
        StoreCommand::Branch(args) => branch::run(args, store, out).await,
        StoreCommand::Replay(args) => replay::run(&args, store, out).await,
        StoreCommand::Diff(args) => diff::run(&args, store, out).await,
        StoreCommand::Search(args) => search::run(*args, store, out).await,
        StoreCommand::Tools(args) => tools::run(&args, store, out).await,
        StoreCommand::Result(args) => result::run(args, store, out).await,
        StoreCommand::Knowledge(args) => knowledge::run(args, store, out).await,
        StoreCommand::Context(args) => context::run(args, store, out).await,
        StoreCommand::Compact(args) => compact::run(args, store, out).await,
        StoreCommand::Items(args) => items::run(args, store, out).await,
        StoreCommand::Set(args) => set::set(args, store, out).await,
        StoreCommand::Watch(args) => set::watch(args, store, out).await,
        StoreCommand::Sub(args) => sub::run(args, store, out).await,
        StoreCommand::Append(args) => append::run(args, store, out).await,
        StoreCommand::Pending(args) => approve::pending(args, store, out).await,
        StoreCommand::Approve(args) => {
            approve::decide(args, pb::Decision::Approved, store, out).await
        }
        StoreCommand::Deny(args) => approve::decide(args, pb::Decision::Denied, store, out).await,
        StoreCommand::Annotate(args) => annotate::run(args, store, out).await,
        StoreCommand::Label(args) => label::run(args, store, out).await,
        StoreCommand::Erase(args) => erase::run(args, store, out).await,
        StoreCommand::Audit(args) => audit::run(&args, store, out).await,
        StoreCommand::Verify(args) => admin::verify(&args, common, store, out).await,
        StoreCommand::Heads(args) => heads::run(&args, common, store, out).await,
        StoreCommand::Rebuild(args) => admin::rebuild(&args, store, out).await,
        StoreCommand::Backup(args) => backup::run(args, store, out).await,
        StoreCommand::Stats => admin::stats(store, out).await,
    }
}

impl StoreCommand {
    fn opening(&self, common: &Common) -> Result<FolderOptions, ClientError> {
        Ok(FolderOptions {
            mode: self.opens(common)?,
            packing: match self.ends_dense() {
                true => PackingMode::WhenClosed,
                false => PackingMode::Usually,
            },
            fresh_projections: false,
            with_meaning: match self {
                Self::Search(args) => args.compares_meanings(),
                Self::Items(args) => args.compares_meanings(),
                _ => false,
            },
        })
    }

    /// Returns true if its output is for people and may be long, so that a pager is used.
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

    /// Returns true for an import, which packs the store when it closes, since it takes long
    /// anyway. An import by a hook does not pack, since an agent waits for the hook; a later
    /// command packs instead.
    fn ends_dense(&self) -> bool {
        matches!(self, Self::Import(args) if !args.is_hook())
    }

    /// Returns the mode for opening a folder. A command that only reads changes nothing. Only
    /// commands that append first events may create a store.
    fn opens(&self, common: &Common) -> Result<OpenMode, ClientError> {
        let begins = match self {
            Self::Import(_) => true,
            Self::Append(args) => args.begins(),
            Self::Items(args) => args.begins(),
            _ => false,
        };
        let appends = match self {
            Self::Append(_)
            | Self::Fork(_)
            | Self::Rewind(_)
            | Self::Set(_)
            | Self::Approve(_)
            | Self::Deny(_)
            | Self::Annotate(_)
            | Self::Label(_)
            | Self::Rebuild(_) => true,
            Self::Items(args) => args.changes() || args.waits(),
            Self::Compact(args) => args.appends(),
            Self::Erase(args) => args.erases(),
            Self::Sub(args) => args.appends(),
            Self::Branch(args) => args.appends(),
            Self::Heads(args) => args.makes_own_key(common)?,
            // The index entries that it adds are kept.
            Self::Search(args) => args.waits(),
            _ => false,
        };
        Ok(match (begins, appends) {
            (true, _) => OpenMode::Create,
            (false, true) => OpenMode::Append,
            (false, false) => OpenMode::Read,
        })
    }
}

/// Prints one line with the error and one with advice. Returns the exit code.
fn report(error: &ClientError, color: args::Color) -> ExitCode {
    if !matches!(error, ClientError::OutputClosed) {
        let choice = match color {
            args::Color::Always => anstream::ColorChoice::Always,
            args::Color::Never => anstream::ColorChoice::Never,
            args::Color::Auto => anstream::AutoStream::choice(&std::io::stderr()),
        };
        safe::report(&error.to_string(), error.hint().as_deref(), choice);
    }
    error.exit()
}

#[cfg(test)]
mod end_to_end;
#[cfg(test)]
mod holder_tests;
#[cfg(test)]
mod newcomer_tests;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use clap::CommandFactory;

    use super::*;

    /// clap reports conflicting options only when the command is built.
    #[test]
    fn clap_accepts_the_command_definitions() {
        Cli::command().debug_assert();
    }

    // A command without a description is blank in `--help`, and indexers reject its manual page.
    #[test]
    fn every_command_has_help_text() {
        let mut waiting = vec![Cli::command()];
        while let Some(command) = waiting.pop() {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            waiting.extend(command.get_subcommands().cloned());
        }
    }

    /// The README's image must not be outdated: every command in it must parse, ids must be short,
    /// and the port must be the default one.
    #[test]
    fn commands_in_the_readme_image_parse() {
        let picture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/images/demo.svg");
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

    /// An option must have the same short name in all commands, and `--kinds` must be an alias of
    /// `--kind`.
    #[test]
    fn options_have_the_same_short_name_in_all_commands() {
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

    /// Scripts rely on these command lines.
    #[test]
    fn stable_command_lines_parse() {
        for line in [
            "treering search --data D --json -k 5 --tool T --conversation C --branch B words here",
            "treering search --data D --json -k 5 one",
            "treering fork --data D C --at 7 --name N",
            "treering log --data D C --json",
            "treering ls --data D --json",
            "treering stats --data D --json",
            "treering verify --data D",
            "treering verify --data D --since H --restored --json",
            "treering heads --data D --key K --out H --json",
            "treering heads --make-key K",
            "treering serve --data D --heads 60s --heads-to https://h/x --heads-key K",
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
