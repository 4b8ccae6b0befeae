//! `init`: the store in an agent's configuration.
//!
//! `agents` knows where each agent has its configuration and what belongs there, `edit` changes
//! a file and nothing else in it, `options` what becomes of those that a configuration has.

mod agents;
mod edit;
mod options;

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use directories::BaseDirs;

use super::{
    args::Common,
    error::{CliError, Exit},
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
/// Prints what would change in the agent's configuration. With --write it changes it: what else
/// is in the file stays as it is, comments and order too, and the file as it was is kept beside
/// it (.before-treering). A file that cannot be read as what it should be is not touched.
///
/// What is given of --data, --server, --namespace and --writable goes into the configuration; a
/// key does not: agents hand on TREERING_TOKEN. Options that the configuration has already and
/// that are not given stay (and are told); --anew leaves them out.
///
/// With --server it prints, too, how the agent reaches that server by HTTP, without this program.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering init claude-code                    what would be written, here
  treering init claude-code --write            .mcp.json and .claude/settings.json
  treering init codex --write                  ~/.codex/config.toml
  treering init opencode --write --folder ~/.config/opencode
  treering init vscode --write --data ./store --writable
  treering init vscode --write --anew          the same without all options
  treering init codex --server https://agents.example:7171")]
pub struct InitArgs {
    /// Which agent
    #[arg(value_enum)]
    agent: Agent,
    /// Write it
    #[arg(long)]
    write: bool,
    /// The project, or home for all projects, whose configuration it is [default: where you
    /// are; of codex your home]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Let the agent remember things and fork conversations
    #[arg(long)]
    writable: bool,
    /// Leave out options that the configuration has and that are not given now
    #[arg(long)]
    anew: bool,
    /// For claude-code: without the hook that imports each session
    #[arg(long)]
    no_hook: bool,
}

/// An agent whose configuration is known.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agent {
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

/// The mark that editors of Windows begin a file with.
const BYTE_ORDER: &str = "\u{feff}";
/// Behind the name of a file: as it was before.
const KEPT_SUFFIX: &str = ".before-treering";

/// Shows or writes the configuration.
///
/// # Errors
/// [`CliError::ReadFile`], and [`CliError::Usage`] for a file that is not what it should be.
pub fn run(args: &InitArgs, common: &Common, out: &mut Out) -> Result<(), CliError> {
    let arguments = arguments(args, common)?;
    let mut place = AgentSetup {
        folder: folder(args)?,
        program: program(),
        given: (!args.anew).then(|| Options::of(&arguments)),
        arguments,
        hook: !args.no_hook,
    };
    let kept = place.keep(args.agent);
    let mut edits = Vec::new();
    // All are made before one is written.
    for (path, change) in changes(args.agent, &place) {
        edits.push(Edit::prepare(path, &change)?);
    }
    let mut changed = false;
    for edit in edits {
        let path = printable(&edit.path.display().to_string());
        if edit.is_nothing() {
            out.line(format!("{path} has it already."))?;
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
            "Kept of what is there: {kept} (--anew leaves it out)"
        ))?;
    }
    if changed && !args.write {
        out.lines("\nNothing was written; --write does.")?;
    }
    if changed && args.write {
        out.line("Start the agent anew: it has the tools of `treering` then.")?;
    }
    if let Some(server) = &common.server {
        let url = format!("{}{MCP_PATH}", server.trim_end_matches('/'));
        let namespace = Some(common.namespace.as_str()).filter(|name| *name != "default");
        let form = by_http(args.agent, &url, namespace);
        out.lines("\nBy HTTP, without this program where the agent runs, it is this instead:")?;
        out.lines(form.trim_end())?;
    }
    Ok(())
}

impl AgentSetup {
    /// Takes over the options that the configuration has and that were not given; which those
    /// are.
    fn keep(&mut self, agent: Agent) -> Vec<String> {
        let Some(given) = &self.given else {
            return Vec::new();
        };
        let there = changes(agent, self).into_iter().find_map(|(path, change)| {
            // What cannot be read is told when it is to be changed.
            let text = fs::read_to_string(path).ok()?;
            change.arguments_there(text.trim_start_matches(BYTE_ORDER))
        });
        let mut there = there.unwrap_or_default();
        // Options of every command may stand before it.
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
}

fn folder(args: &InitArgs) -> Result<PathBuf, CliError> {
    let folder = match (&args.folder, args.agent) {
        (Some(folder), _) => folder.clone(),
        (None, Agent::Codex) => home()?,
        (None, _) => PathBuf::from("."),
    };
    if folder.is_dir() {
        return Ok(folder);
    }
    Err(CliError::Usage {
        what: format!("{} is no folder", folder.display()),
        hint: "name the project's folder with --folder".into(),
    })
}

fn home() -> Result<PathBuf, CliError> {
    let dirs = BaseDirs::new();
    dirs.map(|dirs| dirs.home_dir().to_owned())
        .ok_or_else(|| CliError::Usage {
            what: "this account has no home folder".into(),
            hint: "name the folder with --folder".into(),
        })
}

/// What the agent starts: by its name where that finds it, so that the file can be shared.
fn program() -> String {
    const NAME: &str = "treering";
    let paths = env::var_os("PATH").unwrap_or_default();
    let is_found = env::split_paths(&paths).any(|dir| dir.join(NAME).is_file());
    match env::current_exe() {
        Ok(path) if !is_found => path.to_string_lossy().into_owned(),
        _ => NAME.to_owned(),
    }
}

/// Behind the program: the store that was named, and nothing that was not.
fn arguments(args: &InitArgs, common: &Common) -> Result<Vec<String>, CliError> {
    let mut arguments = vec!["mcp".to_owned()];
    let mut add = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
    if let Some(data) = &common.data {
        // The agent may start it elsewhere.
        let data = std::path::absolute(data).map_err(|cause| CliError::ReadFile {
            path: data.clone(),
            cause,
        })?;
        add("--data", data.to_string_lossy().into_owned());
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

/// A file that would change.
#[derive(Debug)]
struct Edit {
    path: PathBuf,
    /// None: there is no such file.
    before: Option<String>,
    after: String,
}

impl Edit {
    fn prepare(path: PathBuf, change: &Change) -> Result<Self, CliError> {
        let before = match fs::read_to_string(&path) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(cause) => return Err(CliError::ReadFile { path, cause }),
        };
        if before.is_none() && path.is_symlink() {
            return Err(CliError::Usage {
                what: format!("{} is a link to a file that there is not", path.display()),
                hint: "make that file, or remove the link".into(),
            });
        }
        // Some editors begin a file with a mark; it stays.
        let text = before.as_deref().unwrap_or("");
        let (mark, text) = match text.strip_prefix(BYTE_ORDER) {
            Some(text) => (BYTE_ORDER, text),
            None => ("", text),
        };
        let after = change.applied(text).map(|after| format!("{mark}{after}"));
        let after = after.map_err(|why| CliError::Usage {
            what: format!("{} is left as it is: {why}", path.display()),
            hint: "mend it and try again; without --write you see what belongs there in a new \
                   file, with --folder"
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

    /// Puts the new text in the place of the old one: whole, or not at all.
    fn write(&self) -> Result<(), CliError> {
        // A file may be a link into somebody's collection of such files: that one is meant.
        let path = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let failed = |cause: io::Error| CliError::Outcome {
            what: format!("{} was not written: {cause}", path.display()),
            hint: "check its owner and mode, and those of its folder".into(),
            exit: Exit::Failed,
        };
        let now = fs::read_to_string(&path).ok();
        if now != self.before {
            return Err(failed(io::Error::other("it has changed meanwhile")));
        }
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(failed)?;
        let mut new = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
        io::Write::write_all(&mut new, self.after.as_bytes()).map_err(failed)?;
        if let Some(before) = &self.before {
            let mut kept = path.clone().into_os_string();
            kept.push(KEPT_SUFFIX);
            let kept = PathBuf::from(kept);
            // The first one is that from before.
            if !kept.exists() {
                fs::write(&kept, before).map_err(failed)?;
            }
            let mode = fs::metadata(&path).map_err(failed)?.permissions();
            if let Err(error) = fs::set_permissions(&kept, mode.clone()) {
                tracing::debug!(%error, "the copy has a mode of its own");
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

    fn edit(path: &Path) -> Result<Edit, CliError> {
        let place = AgentSetup {
            folder: path.parent().unwrap().to_owned(),
            program: "treering".into(),
            arguments: vec!["mcp".into()],
            given: None,
            hook: true,
        };
        let (_, change) = changes(Agent::Vscode, &place).remove(0);
        Edit::prepare(path.to_owned(), &change)
    }

    // Somebody's configuration has to be there whole after each way in which this can end, and
    // as it was when it cannot be understood.
    #[test]
    fn a_file_changes_whole_or_not_at_all() {
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
        // Once more: nothing to do. The other one was made of a file that is no more.
        assert!(edit(&path).unwrap().is_nothing());
        assert!(first.write().is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), new);
        // With a mark of the order of bytes it was "no JSON".
        fs::write(&path, format!("\u{feff}{old}")).unwrap();
        edit(&path).unwrap().write().unwrap();
        let marked = fs::read_to_string(&path).unwrap();
        assert_eq!(marked.strip_prefix('\u{feff}'), Some(new.as_str()));
        for broken in ["{\"servers\": [1]}", "{\"servers\": {}", "[]", "{a: 1}"] {
            fs::write(&path, broken).unwrap();
            let error = edit(&path).unwrap_err();
            assert!(error.to_string().contains("left as it is"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), broken);
        }
        let names = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(names, 2, "nothing else is left");
        #[cfg(unix)]
        {
            // A link that leads nowhere became a file.
            fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink(dir.path().join("none"), &path).unwrap();
            assert!(edit(&path).unwrap_err().to_string().contains("is a link"));
            assert!(path.is_symlink());
        }
    }
}
