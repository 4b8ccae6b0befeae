//! Which files a call touched, and how: from its arguments, and from its result
//! where that names them.
//!
//! - [`rule`]: which tools are meant, and how their calls are read;
//! - `tools`: tools with one purpose: readers, writers, editors, searches;
//! - `shell`: a command line in words; `commands`: what each command does to files;
//!   `output`: the files that a command's output names; `git`: git's own;
//! - `patch`: patches in the arguments.
//!
//! What a call says is taken at its word, with the directory that it names itself
//! before relative paths. What only a shell could resolve is left out.

mod commands;
mod git;
mod output;
mod patch;
pub mod rule;
mod shell;
#[cfg(test)]
mod tests;
mod tools;

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::read::{PATH_BYTES_MAX, below, clean};
use crate::is_one_of;
pub use rule::{TouchForm, TouchRule};
use treering_domain::{ToolCallRequested, ToolResultRecorded};

/// Files of one call that are noted; of a longer list, the first.
const TOUCHES_MAX: usize = 2_000;
/// Longest text of a result that is looked at, in bytes.
pub(super) const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// What a call did to a file. Later ones in this list say more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Touch {
    /// Its name was told.
    Listed,
    /// Its text was shown, or given to a program.
    Read,
    /// A part of it was changed.
    Edited,
    /// It was written whole.
    Created,
    /// It was removed.
    Deleted,
}

impl Touch {
    /// As JSON and reports name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Listed => "listed",
            Self::Read => "read",
            Self::Edited => "edited",
            Self::Created => "created",
            Self::Deleted => "deleted",
        }
    }

    /// The file is another one than before.
    #[must_use]
    pub fn changes(self) -> bool {
        self >= Self::Edited
    }
}

/// A call as it is read for what it touched.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadCall<'a> {
    /// Its arguments; null where they are no JSON.
    pub arguments: &'a Value,
    /// What it returned; empty: nothing, or it is not known yet.
    pub output: &'a str,
}

/// What a call did to files, each once, in the order in which they came up, and
/// the directory that it left the shell in, if that is known.
#[derive(Debug, Default)]
pub(super) struct Touched {
    pub files: Vec<(String, Touch)>,
    places: HashMap<String, usize>,
    pub directory: Option<String>,
    pub left_out: u64,
}

impl Touched {
    /// By a rule.
    pub fn of(form: TouchForm, spoken: ReadCall<'_>) -> Self {
        let mut touched = Self::default();
        match form {
            TouchForm::Shell => commands::shell(spoken, &mut touched),
            TouchForm::Patch => patch::patch(spoken, &mut touched),
            form => tools::tool(form, spoken, &mut touched),
        }
        touched
    }

    /// Notes a file, below a directory where it is relative. What was said of it
    /// before gives way: the last thing is how it stands.
    fn add(&mut self, directory: Option<&str>, path: &str, touch: Touch) {
        let Some(path) = clean(path, PATH_BYTES_MAX).filter(|path| !is_no_file(path)) else {
            return;
        };
        let path = match directory {
            Some(directory) => below(Some(directory), path),
            None => path.strip_prefix("./").unwrap_or(path).to_owned(),
        };
        // The directory is as it was written, too.
        if clean(&path, PATH_BYTES_MAX).is_none() {
            self.left_out += 1;
            return;
        }
        if let Some(place) = self.places.get(&path) {
            let known = &mut self.files[*place].1;
            *known = and_then(*known, touch);
        } else if self.files.len() < TOUCHES_MAX {
            self.places.insert(path.clone(), self.files.len());
            self.files.push((path, touch));
        } else {
            self.left_out += 1;
        }
    }
}

/// How a file stands after two touches: reading or listing changes nothing, and
/// what was made here and then changed is still new.
#[must_use]
pub(crate) fn and_then(before: Touch, now: Touch) -> Touch {
    match (before, now) {
        (Touch::Created, Touch::Edited) => Touch::Created,
        (before, now) if now.changes() => {
            let _ = before;
            now
        }
        (before, now) => before.max(now),
    }
}

/// Names of directories and of what is not on a disk.
fn is_no_file(path: &str) -> bool {
    path.ends_with(['/', '\\'])
        || matches!(path, "." | ".." | "-" | "~")
        || path.starts_with("/dev/")
        || path.contains("://")
        || path.contains(['*', '?', '$', '`', '{', '<', '>', '|', '"'])
}

/// Looks like a file: its last part has an extension, or is a usual name.
pub(super) fn looks_like_file(path: &str) -> bool {
    const NAMES: &str =
        "Makefile Dockerfile LICENSE README NOTICE Gemfile Rakefile Procfile CODEOWNERS";
    let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
    if is_one_of(NAMES, name) {
        return true;
    }
    let stem = name.trim_start_matches('.');
    stem.len() < name.len() && !stem.is_empty() && !stem.contains('.') && is_dot_file(name)
        || stem.rsplit_once('.').is_some_and(|(before, extension)| {
            !before.is_empty()
                && (1..=12).contains(&extension.len())
                && extension
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '~'))
                && extension.chars().any(|c| c.is_ascii_alphabetic())
        })
}

/// `.env`, `.gitignore` and the like, and not `.git`.
fn is_dot_file(name: &str) -> bool {
    const KNOWN: &str = "env rc ignore config profile attributes modules";
    KNOWN.split(' ').any(|end| name.ends_with(end)) && name != ".config"
}

/// What one call that worked did to files, by the default rules. For summaries,
/// which are the same for every conversation.
pub(crate) fn touched_by(
    call: &ToolCallRequested,
    result: &ToolResultRecorded,
) -> Vec<(String, Touch)> {
    let arguments: Value = serde_json::from_str(call.arguments.as_str()).unwrap_or_default();
    let Some(form) = form_of(&call.tool) else {
        return Vec::new();
    };
    let output = super::fold::output_text(form, result);
    let spoken = ReadCall {
        arguments: &arguments,
        output: &output,
    };
    Touched::of(form, spoken).files
}

/// Whether a call's tool only looks at files: one that found nothing is no error
/// that is left open.
pub(crate) fn only_looks(call: &ToolCallRequested) -> bool {
    use TouchForm::{Glob, List, Read, Search, Stat};
    matches!(
        form_of(&call.tool),
        Some(Read | List | Glob | Search | Stat)
    )
}

/// Whether a call only looks for lines in files: those that have some were not read.
pub(crate) fn searches(call: &ToolCallRequested) -> bool {
    form_of(&call.tool) == Some(TouchForm::Search)
}

/// Whether a tool is known to work on files, or to run commands.
pub(crate) fn is_of_files(tool: &str) -> bool {
    form_of(tool).is_some()
}

/// Whether a tool is known to run commands.
pub(crate) fn runs_commands(tool: &str) -> bool {
    form_of(tool) == Some(TouchForm::Shell)
}

/// The command line of a call, if it has one.
pub(crate) fn command_line(call: &ToolCallRequested) -> Option<String> {
    if form_of(&call.tool) != Some(TouchForm::Shell) {
        return None;
    }
    let arguments: Value = serde_json::from_str(call.arguments.as_str()).ok()?;
    commands::line_of(&arguments)
}

/// The programs that a command line runs, each with what it is asked to do first:
/// `cargo test`, `git commit`, `mise run lint`.
pub(crate) fn programs(line: &str) -> Vec<String> {
    let named = |command: &shell::Simple| {
        let words = commands::unwrapped(&command.words);
        let verbs = words
            .iter()
            .map(|word| word.text.as_str())
            .filter(|word| !word.starts_with('-'))
            .take_while(|word| word.len() <= 40 && !word.contains(['\n', ' ', '(']));
        let first: Vec<&str> = verbs.take(3).collect();
        let count = match first.first() {
            Some(&("mise" | "npm" | "pnpm" | "yarn" | "bun" | "uv" | "poetry" | "make")) => 3,
            _ => 2,
        };
        first[..first.len().min(count)].join(" ")
    };
    let mut programs: Vec<String> = shell::commands(line).iter().map(named).collect();
    programs.retain(|program| !program.is_empty());
    programs
}

fn form_of(tool: &str) -> Option<TouchForm> {
    static RULES: std::sync::OnceLock<std::collections::BTreeMap<String, TouchRule>> =
        std::sync::OnceLock::new();
    let mut rules = RULES.get_or_init(rule::defaults).values();
    rules.find(|rule| rule.matches(tool)).map(|rule| rule.form)
}
