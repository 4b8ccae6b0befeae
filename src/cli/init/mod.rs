//! `init`: adds the store to an agent's configuration.
//!
//! `agents` knows the configuration of each agent, `edit` changes a file and preserves the rest of
//! it, `options` merges given and existing options.

mod agents;
mod edit;
pub(super) mod options;

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use directories::BaseDirs;

use super::{
    args::{Common, DATA_ENV, SERVER_ENV},
    error::{ClientError, Exit},
    output::{Out, Tone},
    text::printable,
};
use agents::{AgentSetup, by_http, changes};
use edit::Change;
use options::Options;
use treering_base::disk;
use treering_mcp::MCP_PATH;

/// Add the store to an agent: as tools, and for Claude Code with a hook that imports sessions
///
/// Prints the changes to the agent's configuration. With --write it makes them: everything else in
/// the file stays unchanged, including comments and order, and the original is kept beside it
/// (.before-treering). A file that cannot be parsed is not touched.
///
/// Given options --data, --server, --namespace and --writable go into the configuration; without a
/// store, that of TREERING_SERVER or TREERING_DATA. A key does not: agents pass on TREERING_TOKEN. Options that are already in the configuration and not given
/// stay, and are reported; --anew removes them.
///
/// With --server it also prints how the agent reaches that server by HTTP, without this program.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering init claude-code                    show what would be written
  treering init claude-code --write            .mcp.json and .claude/settings.json
  treering init codex --write                  ~/.codex/config.toml
  treering init claude-code --write --user     for all projects: ~/.claude.json and ~/.claude
  treering init vscode --write --data ./store --writable
  treering init vscode --write --anew          replace earlier options
  treering init codex --server https://agents.example:7171")]
pub(crate) struct InitArgs {
    /// Name of the agent
    #[arg(value_enum)]
    agent: Agent,
    /// Write the changes
    #[arg(long)]
    write: bool,
    /// Folder of the project [default: the current folder; for codex your home]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// For all projects of this user, in the files below the home folder
    #[arg(long, conflicts_with = "folder")]
    user: bool,
    /// Let the agent store memories and fork conversations
    #[arg(long)]
    writable: bool,
    /// Remove options that are in the configuration and not given now
    #[arg(long)]
    anew: bool,
    /// For claude-code: without the hook that imports each session
    #[arg(long)]
    no_hook: bool,
}

/// A supported agent.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Agent {
    /// Claude Code.
    ClaudeCode,
    /// Codex CLI.
    Codex,
    /// opencode.
    Opencode,
    /// Gemini CLI.
    GeminiCli,
    /// Visual Studio Code (Copilot).
    Vscode,
}

/// The byte order mark with which editors on Windows begin a file.
const BYTE_ORDER: &str = "\u{feff}";
/// Suffix of the copy of the original file.
const KEPT_SUFFIX: &str = ".before-treering";

/// Shows or writes the configuration.
///
/// # Errors
/// [`ClientError::ReadFile`]; [`ClientError::Usage`] for a file that cannot be parsed.
pub(crate) fn run(args: &InitArgs, common: &Common, out: &mut Out) -> Result<(), ClientError> {
    let arguments = arguments(args, common)?;
    let folder = folder(args)?;
    let mut place = AgentSetup {
        is_home: is_home(&folder),
        folder,
        program: program(),
        given: (!args.anew).then(|| Options::of(&arguments)),
        arguments,
        hook: !args.no_hook,
    };
    let kept = place.keep(args.agent);
    place.add_store_of_environment()?;
    let mut edits = Vec::new();
    // Compute all changes before the first is written.
    for (path, change) in changes(args.agent, &place) {
        edits.push(Edit::prepare(path, &change)?);
    }
    let mut changed = false;
    for edit in edits {
        let path = printable(&edit.path.display().to_string());
        if edit.is_nothing() {
            out.line(format!("{path} is already up to date."))?;
            continue;
        }
        changed = true;
        out.lines(edit.diff().trim_end())?;
        if args.write {
            edit.write()?;
            let path = out.paint.text(Tone::Name, path);
            out.line(format!("Wrote {path}"))?;
        }
    }
    if !kept.is_empty() {
        let kept = printable(&kept.join(" "));
        out.line(format!(
            "Kept existing options: {kept} (--anew removes them)"
        ))?;
    }
    if changed && !args.write {
        out.lines("\nNothing was written; use --write to write it.")?;
    }
    if changed && args.write {
        out.line("Restart the agent to use the tools of `treering`.")?;
    }
    if let Some(server) = &common.server {
        let url = format!("{}{MCP_PATH}", server.trim_end_matches('/'));
        let namespace = Some(common.namespace.as_str()).filter(|name| *name != "default");
        let form = by_http(args.agent, &url, namespace);
        out.lines("\nTo use HTTP instead, without this program on the agent's machine:")?;
        out.lines(form.trim_end())?;
    }
    Ok(())
}

impl AgentSetup {
    /// Keeps the options that are in the configuration and were not given. Returns the kept
    /// options.
    fn keep(&mut self, agent: Agent) -> Vec<String> {
        let Some(given) = &self.given else {
            return Vec::new();
        };
        let there = changes(agent, self).into_iter().find_map(|(path, change)| {
            // An error is reported when the file is changed.
            let text = fs::read_to_string(path).ok()?;
            change.arguments_there(text.trim_start_matches(BYTE_ORDER))
        });
        let mut there = there.unwrap_or_default();
        // Common options may come before the subcommand.
        if let Some(at) = there.iter().rposition(|word| *word == self.arguments[0])
            && at > 0
            && there[0] != self.arguments[0]
        {
            there.remove(at);
        }
        let there = Options::of(&there);
        let (options, kept) = there.with(given);
        self.arguments.truncate(1);
        self.arguments.extend(options.words());
        kept
    }

    /// If the options name no store, adds the one that the environment names, since the agent may
    /// be started without that environment.
    fn add_store_of_environment(&mut self) -> Result<(), ClientError> {
        if Options::of(&self.arguments).names_store() {
            return Ok(());
        }
        let of = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        let store = match (of(SERVER_ENV), of(DATA_ENV)) {
            (Some(url), _) => ["--server".to_owned(), url.to_string_lossy().into_owned()],
            (None, Some(data)) => ["--data".to_owned(), absolute(Path::new(&data))?],
            (None, None) => return Ok(()),
        };
        self.given = self.given.take().map(|given| given.and(&store));
        self.arguments.extend(store);
        Ok(())
    }
}

/// Returns a folder as an absolute path, since the agent may start the program in another folder.
fn absolute(data: &Path) -> Result<String, ClientError> {
    let absolute = std::path::absolute(data).map_err(|cause| ClientError::ReadFile {
        path: data.to_owned(),
        cause,
    })?;
    Ok(absolute.to_string_lossy().into_owned())
}

fn is_home(folder: &Path) -> bool {
    let same = |home: PathBuf| Some(home.canonicalize().ok()? == folder.canonicalize().ok()?);
    home().ok().and_then(same).unwrap_or_default()
}

fn folder(args: &InitArgs) -> Result<PathBuf, ClientError> {
    let folder = match (&args.folder, args.agent) {
        (Some(folder), _) => folder.clone(),
        (None, Agent::Codex) => home()?,
        (None, _) if args.user => home()?,
        (None, _) => PathBuf::from("."),
    };
    if folder.is_dir() {
        return Ok(folder);
    }
    Err(ClientError::Usage {
        what: format!("{} is not a folder", folder.display()),
        hint: "give the project's folder with --folder".into(),
    })
}

fn home() -> Result<PathBuf, ClientError> {
    let dirs = BaseDirs::new();
    dirs.map(|dirs| dirs.home_dir().to_owned())
        .ok_or_else(|| ClientError::Usage {
            what: "this account has no home folder".into(),
            hint: "give the folder with --folder".into(),
        })
}

/// Returns the program that the agent starts: its name if `PATH` contains it, so that the file can
/// be shared.
fn program() -> String {
    const NAME: &str = "treering";
    let paths = env::var_os("PATH").unwrap_or_default();
    let is_found = env::split_paths(&paths).any(|dir| dir.join(NAME).is_file());
    match env::current_exe() {
        Ok(path) if !is_found => path.to_string_lossy().into_owned(),
        _ => NAME.to_owned(),
    }
}

/// Returns the arguments of the program: `mcp` and the given options.
fn arguments(args: &InitArgs, common: &Common) -> Result<Vec<String>, ClientError> {
    let mut arguments = vec!["mcp".to_owned()];
    let mut add = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
    if let Some(data) = &common.data {
        add("--data", absolute(data)?);
    }
    if let Some(server) = &common.server {
        add("--server", server.clone());
    }
    if common.namespace != "default" {
        add("--namespace", common.namespace.clone());
    }
    if args.writable {
        arguments.push("--writable".to_owned());
    }
    Ok(arguments)
}

/// A change of a file.
#[derive(Debug)]
struct Edit {
    path: PathBuf,
    /// `None` if the file does not exist.
    before: Option<String>,
    after: String,
}

impl Edit {
    fn prepare(path: PathBuf, change: &Change) -> Result<Self, ClientError> {
        let before = match fs::read_to_string(&path) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(cause) => return Err(ClientError::ReadFile { path, cause }),
        };
        if before.is_none() && path.is_symlink() {
            return Err(ClientError::Usage {
                what: format!("{} is a link to a missing file", path.display()),
                hint: "create that file, or remove the link".into(),
            });
        }
        // Keep a byte order mark.
        let text = before.as_deref().unwrap_or("");
        let (mark, text) = match text.strip_prefix(BYTE_ORDER) {
            Some(text) => (BYTE_ORDER, text),
            None => ("", text),
        };
        let after = change.applied(text).map(|after| format!("{mark}{after}"));
        let after = after.map_err(|why| ClientError::Usage {
            what: format!("{} is unchanged: {why}", path.display()),
            hint:
                "fix it and retry; with --folder NEW and without --write you see what belongs in a \
                 new file"
                    .into(),
        })?;
        Ok(Self {
            path,
            before,
            after,
        })
    }

    fn is_nothing(&self) -> bool {
        self.before.as_ref() == Some(&self.after)
    }

    fn diff(&self) -> String {
        let path = self.path.display().to_string();
        let before = self.before.as_deref().unwrap_or("");
        let from = if self.before.is_some() {
            &path
        } else {
            "/dev/null"
        };
        similar::TextDiff::from_lines(before, &self.after)
            .unified_diff()
            .header(from, &path)
            .to_string()
    }

    /// Replaces the file atomically.
    fn write(&self) -> Result<(), ClientError> {
        // The file may be a link, for example into a dotfiles folder: change its target.
        let path = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let failed = |cause: io::Error| ClientError::Outcome {
            what: format!("{} was not written: {cause}", path.display()),
            hint: "check owner and mode of the file and its folder".into(),
            exit: Exit::Failed,
        };
        let now = fs::read_to_string(&path).ok();
        if now != self.before {
            return Err(failed(io::Error::other("it has changed in the meantime")));
        }
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(failed)?;
        let mut new = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
        io::Write::write_all(&mut new, self.after.as_bytes()).map_err(failed)?;
        if let Some(before) = &self.before {
            let mut kept = path.clone().into_os_string();
            kept.push(KEPT_SUFFIX);
            let kept = PathBuf::from(kept);
            // Keep the first copy, which is the original.
            if !kept.exists() {
                fs::write(&kept, before).map_err(failed)?;
            }
            let mode = fs::metadata(&path).map_err(failed)?.permissions();
            if let Err(error) = fs::set_permissions(&kept, mode.clone()) {
                tracing::debug!(%error, "the copy has another mode than the original");
            }
            new.as_file().set_permissions(mode).map_err(failed)?;
        }
        new.as_file().sync_all().map_err(failed)?;
        new.persist(&path).map_err(|error| failed(error.error))?;
        disk::sync_folder(folder).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(path: &Path) -> Result<Edit, ClientError> {
        let place = AgentSetup {
            folder: path.parent().unwrap().to_owned(),
            is_home: false,
            program: "treering".into(),
            arguments: vec!["mcp".into()],
            given: None,
            hook: true,
        };
        let (_, change) = changes(Agent::Vscode, &place).remove(0);
        Edit::prepare(path.to_owned(), &change)
    }

    // The configuration must be complete after any failure, and unchanged if it cannot be parsed.
    #[test]
    fn configuration_file_is_replaced_atomically() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mcp.json");
        let kept = dir.path().join("mcp.json.before-treering");
        let old = "{\n\t// mine\n\t\"inputs\": [],\n}\n";
        fs::write(&path, old).unwrap();
        let first = edit(&path).unwrap();
        first.write().unwrap();
        let new = fs::read_to_string(&path).unwrap();
        assert!(
            new.contains("// mine") && new.contains("\"treering\""),
            "{new}"
        );
        assert_eq!(fs::read_to_string(&kept).unwrap(), old);
        // The second run changes nothing. `first` is outdated, so it is refused.
        assert!(edit(&path).unwrap().is_nothing());
        assert!(first.write().is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), new);
        // A byte order mark must not make the file invalid, and must stay.
        fs::write(&path, format!("\u{feff}{old}")).unwrap();
        edit(&path).unwrap().write().unwrap();
        let marked = fs::read_to_string(&path).unwrap();
        assert_eq!(marked.strip_prefix('\u{feff}'), Some(new.as_str()));
        for broken in ["{\"servers\": [1]}", "{\"servers\": {}", "[]", "{a: 1}"] {
            fs::write(&path, broken).unwrap();
            let error = edit(&path).unwrap_err();
            assert!(error.to_string().contains("is unchanged"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), broken);
        }
        let names = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(names, 2, "nothing else is left");
        #[cfg(unix)]
        {
            // A dangling link must be refused, not replaced by a file.
            fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink(dir.path().join("none"), &path).unwrap();
            assert!(edit(&path).unwrap_err().to_string().contains("is a link"));
            assert!(path.is_symlink());
        }
    }
}
