//! Shell completion of conversations, branches, commands and options.
//!
//! The shell calls this program to complete a word, so completions show the current state of the
//! store. Only a server, or a folder that no process has open, is read. On any error, there are no
//! completions and no message. Names that are not a single plain word for a shell are not offered,
//! because recorded names are untrusted and the shell runs the completed line.

use std::{
    collections::HashSet,
    env,
    ffi::{OsStr, OsString},
    iter,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{ArgMatches, Args, Command, CommandFactory, FromArgMatches};
use clap_complete::{ArgValueCompleter, CompleteEnv, CompletionCandidate, env::Shells};

use super::{
    Cli, FolderOptions,
    args::Common,
    connect::Connection,
    error::ClientError,
    output::Out,
    pb, read,
    text::{first_line, short_id},
};
use treering_engine::{OpenMode, PackingMode};

/// Arguments that name conversations.
const CONVERSATIONS: [&str; 3] = ["conversation", "conversations", "reference"];
/// Environment variable that the shell sets to request completions.
const VAR: &str = "COMPLETE";
/// Maximum number of conversations that one query to the store returns.
const OFFERED: u32 = 200;
/// Longest title, in characters.
const TITLE_CHARS: usize = 50;

/// Print a completion script for a shell
///
/// It completes commands, options, and the conversations and branches of the store that the line
/// names (or $TREERING_DATA, $TREERING_SERVER).
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
For bash, in ~/.bashrc:
  source <(treering completions bash)
For zsh, in ~/.zshrc:
  source <(treering completions zsh)
For fish, in ~/.config/fish/config.fish:
  treering completions fish | source")]
pub(crate) struct CompletionsArgs {
    /// Name of the shell
    shell: clap_complete::Shell,
}

/// Prints the script.
pub(crate) fn script(args: &CompletionsArgs, out: &mut Out) -> Result<(), ClientError> {
    let shells = Shells::builtins();
    let name = args.shell.to_string();
    let mut script = Vec::new();
    if let Some(shell) = shells.completer(&name) {
        shell.write_registration(VAR, "treering", "treering", "treering", &mut script)?;
    }
    Ok(out.recorded(&script)?)
}

/// Answers a completion request of the shell and exits. Returns if there is none.
pub(crate) fn answer() {
    CompleteEnv::with_factory(command).var(VAR).complete();
}

/// Returns the command with completers for names.
fn command() -> Command {
    with_names(Cli::command())
}

fn with_names(command: Command) -> Command {
    let command = command.mut_args(|arg| match arg.get_id().as_str() {
        name if CONVERSATIONS.contains(&name) => arg.add(ArgValueCompleter::new(conversations)),
        "branch" | "left" | "right" => arg.add(ArgValueCompleter::new(branches)),
        _ => arg,
    });
    command.mut_subcommands(with_names)
}

fn conversations(begun: &OsStr) -> Vec<CompletionCandidate> {
    let begun = begun.to_string_lossy().into_owned();
    ask(async |store| {
        let mut summaries = newest(&store).await?;
        if !begun.is_empty() {
            let known: HashSet<_> = summaries.iter().map(id_of).collect();
            let mut more = named(&store, &begun).await?;
            more.retain(|summary| !known.contains(&id_of(summary)));
            summaries.extend(more);
        }
        let offered = summaries.iter().filter_map(|summary| {
            let whole = match summary.source_id.as_str() {
                "" => summary.conversation_id.as_str(),
                source_id => source_id,
            };
            let short = short_id(&summary.source_id, &summary.conversation_id);
            let id = [short, whole, summary.conversation_id.as_str()]
                .into_iter()
                .find(|id| id.starts_with(&begun) && is_plain(id))?;
            let title = first_line(&summary.title, TITLE_CHARS);
            Some(CompletionCandidate::new(id).help(Some(title.into())))
        });
        Some(offered.collect())
    })
}

/// Returns true if every shell takes the word literally. Recorded names are untrusted, and a shell
/// inserts a completion unquoted and runs the line.
fn is_plain(word: &str) -> bool {
    let may_be = |c: char| c.is_alphanumeric() || "-_./:@+~".contains(c);
    !word.starts_with(['-', '~']) && word.chars().all(may_be)
}

fn id_of(summary: &pb::ConversationSummary) -> String {
    summary.conversation_id.clone()
}

async fn newest(store: &Connection) -> Option<Vec<pb::ConversationSummary>> {
    let request = pb::ListConversationsRequest {
        page_size: OFFERED,
        order: pb::ListOrder::Happened.into(),
        ..Default::default()
    };
    let page = store.conversations().list(request).await.ok()?;
    Some(page.into_inner().conversations)
}

/// Returns all conversations whose id has this prefix.
async fn named(store: &Connection, begun: &str) -> Option<Vec<pb::ConversationSummary>> {
    let request = pb::FindConversationsRequest {
        id_part: begun.to_owned(),
        limit: OFFERED,
    };
    let found = store.conversations().find(request).await.ok()?;
    Some(found.into_inner().conversations)
}

fn branches(begun: &OsStr) -> Vec<CompletionCandidate> {
    let begun = begun.to_string_lossy().into_owned();
    let Some(conversation) = conversation_typed(&typed()) else {
        return Vec::new();
    };
    ask(async |store| {
        let found = super::names::find(&store, &conversation).await.ok()?;
        let state = match found.state {
            Some(state) => state,
            None => read::state(&store, &found.id, "", 0).await.ok()?,
        };
        let names = state.branches.into_iter().map(|branch| branch.name);
        let names = names.filter(|name| name.starts_with(&begun) && is_plain(name));
        Some(names.map(CompletionCandidate::new).collect())
    })
}

/// Queries the store that the line names.
fn ask(
    question: impl AsyncFnOnce(Connection) -> Option<Vec<CompletionCandidate>>,
) -> Vec<CompletionCandidate> {
    let Ok(runtime) = tokio::runtime::Runtime::new() else {
        return Vec::new();
    };
    let answer = runtime.block_on(async {
        let opening = FolderOptions {
            with_meaning: false,
            mode: OpenMode::Read,
            packing: PackingMode::Never,
            fresh_projections: false,
        };
        let store = Connection::open(&common(&typed())?.connect_options().ok()?, opening)
            .await
            .ok()?;
        question(store).await
    });
    runtime.shutdown_timeout(Duration::from_millis(100));
    answer.unwrap_or_default()
}

/// Returns the words of the line so far, without the program name.
fn typed() -> Vec<OsString> {
    let words = env::args_os().skip_while(|word| word != "--");
    words.skip(2).collect()
}

/// Returns the common options in the line so far.
fn common(words: &[OsString]) -> Option<Common> {
    let mut common = Common::from_arg_matches(&parsed(words)?).ok()?;
    // The user is waiting for the completion.
    common.wait = Duration::from_millis(1);
    let credentials = &mut common.credentials;
    let paths = [
        &mut common.data,
        &mut credentials.ca,
        &mut credentials.client_cert,
        &mut credentials.client_key,
    ];
    for path in paths.into_iter().flatten() {
        *path = from_home(path);
    }
    Some(common)
}

/// Parses a line. An incomplete line is parsed as far as possible.
fn parsed(words: &[OsString]) -> Option<ArgMatches> {
    let line = iter::once(OsString::from("treering")).chain(words.iter().cloned());
    let command = Cli::command().ignore_errors(true);
    command.try_get_matches_from(line).ok()
}

/// Expands `~` in a path, since the shell has not done so.
fn from_home(dir: &Path) -> PathBuf {
    match (dir.strip_prefix("~"), env::home_dir()) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => dir.to_owned(),
    }
}

/// Returns the conversation whose branch is being completed.
fn conversation_typed(words: &[OsString]) -> Option<String> {
    let line = parsed(words)?;
    let mut matches = &line;
    let mut found = None;
    while let Some((_, inner)) = matches.subcommand() {
        matches = inner;
        let named = CONVERSATIONS.iter().find_map(|name| {
            let mut values = matches.try_get_many::<String>(name).ok()??;
            values.next().cloned()
        });
        found = named.or(found);
    }
    found
}
