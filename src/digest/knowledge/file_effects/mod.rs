//! Effects of a call on files. They are read from its arguments, and from its result if the result
//! names files.
//!
//! - [`rule`]: which tools touch files, and how their calls are read;
//! - `tools`: tools with one purpose: readers, writers, editors, searches;
//! - `shell`: splits a command line into words; `commands`: what each command does to files;
//!   `output`: the files that a command's output names; `git`: git's commands;
//! - `patch`: patches in the arguments.
//!
//! Paths stay as the call wrote them, relative to the directory that the call names. Words that
//! only a shell can expand are ignored.

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
pub use rule::{FileEffectForm, FileEffectRule};
use treering_domain::{ToolCallRequested, ToolResultRecorded};

/// Maximum number of files of one call. Further files are only counted.
const TOUCHES_MAX: usize = 2_000;
/// Maximum number of bytes of a result that are read.
pub(super) const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// Effect of a call on a file, in ascending order of importance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileEffect {
    /// Its name was listed.
    Listed,
    /// Its text was shown, or passed to a program.
    Read,
    /// Part of it was changed.
    Edited,
    /// It was written as a whole.
    Created,
    /// It was deleted.
    Deleted,
}

impl FileEffect {
    /// Name in JSON and reports.
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

    /// Whether the effect changes the file.
    #[must_use]
    pub fn changes(self) -> bool {
        self >= Self::Edited
    }
}

/// A call whose file effects are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct ParsedCall<'a> {
    /// Arguments; null if they are not JSON.
    pub arguments: &'a Value,
    /// Result text; empty if there is none yet.
    pub output: &'a str,
}

/// The files of a call, each once, in the order of first mention, and the working directory after
/// the call, if it is known.
#[derive(Debug, Default)]
pub(super) struct FileEffects {
    pub files: Vec<(String, FileEffect)>,
    places: HashMap<String, usize>,
    pub directory: Option<String>,
    pub left_out: u64,
}

impl FileEffects {
    /// Reads a call in the form that a rule gives.
    pub fn of(form: FileEffectForm, spoken: ParsedCall<'_>) -> Self {
        let mut touched = Self::default();
        match form {
            FileEffectForm::Shell => commands::shell(spoken, &mut touched),
            FileEffectForm::Patch => patch::patch(spoken, &mut touched),
            form => tools::tool(form, spoken, &mut touched),
        }
        touched
    }

    /// Records an effect. A relative path starts at `directory`. Several effects on one file are
    /// combined by [`and_then`].
    fn add(&mut self, directory: Option<&str>, path: &str, touch: FileEffect) {
        let Some(path) = clean(path, PATH_BYTES_MAX).filter(|path| !is_no_file(path)) else {
            return;
        };
        let path = match directory {
            Some(directory) => below(Some(directory), path),
            None => path.strip_prefix("./").unwrap_or(path).to_owned(),
        };
        // The directory has not been checked before.
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

/// Returns the state of a file after two effects. Reading and listing change nothing, and a file
/// that was created and then edited is still new.
#[must_use]
pub(crate) fn and_then(before: FileEffect, now: FileEffect) -> FileEffect {
    match (before, now) {
        (FileEffect::Created, FileEffect::Edited) => FileEffect::Created,
        (before, now) if now.changes() => {
            let _ = before;
            now
        }
        (before, now) => before.max(now),
    }
}

/// Whether the path does not name one file on a disk: a directory, device, URL or pattern.
fn is_no_file(path: &str) -> bool {
    path.ends_with(['/', '\\'])
        || matches!(path, "." | ".." | "-" | "~")
        || path.starts_with("/dev/")
        || path.contains("://")
        || path.contains(['*', '?', '$', '`', '{', '<', '>', '|', '"'])
}

/// Whether a path looks like a file: its last component has an extension or is a common name.
pub(super) fn looks_like_file(path: &str) -> bool {
    const NAMES: [&str; 9] = [
        "Makefile",
        "Dockerfile",
        "LICENSE",
        "README",
        "NOTICE",
        "Gemfile",
        "Rakefile",
        "Procfile",
        "CODEOWNERS",
    ];
    let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
    if NAMES.contains(&name) {
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

/// Whether a name is like `.env` or `.gitignore`, but not `.git`.
fn is_dot_file(name: &str) -> bool {
    let known = [
        "env",
        "rc",
        "ignore",
        "config",
        "profile",
        "attributes",
        "modules",
    ];
    known.iter().any(|end| name.ends_with(end)) && name != ".config"
}

/// Returns the effects of one successful call on files, by the default rules. For summaries, which
/// do not depend on the conversation's policy.
pub(crate) fn touched_by(
    call: &ToolCallRequested,
    result: &ToolResultRecorded,
) -> Vec<(String, FileEffect)> {
    let arguments: Value = serde_json::from_str(call.arguments.as_str()).unwrap_or_default();
    let Some(form) = form_of(&call.tool) else {
        return Vec::new();
    };
    let output = super::fold::output_text(form, result);
    let spoken = ParsedCall {
        arguments: &arguments,
        output: &output,
    };
    FileEffects::of(form, spoken).files
}

/// Whether a call's tool only looks at files. If such a call fails because it finds nothing, that
/// is not an error that remains to be solved.
pub(crate) fn only_looks(call: &ToolCallRequested) -> bool {
    use FileEffectForm::{Glob, List, Read, Search, Stat};
    matches!(
        form_of(&call.tool),
        Some(Read | List | Glob | Search | Stat)
    )
}

/// Whether a call only searches for lines. Such a call does not read the matching files.
pub(crate) fn searches(call: &ToolCallRequested) -> bool {
    form_of(&call.tool) == Some(FileEffectForm::Search)
}

/// Whether a tool is known to work on files or to run commands.
pub(crate) fn is_of_files(tool: &str) -> bool {
    form_of(tool).is_some()
}

/// Whether a tool is known to run commands.
pub(crate) fn runs_commands(tool: &str) -> bool {
    form_of(tool) == Some(FileEffectForm::Shell)
}

/// Returns the command line of a call, if it has one.
pub(crate) fn command_line(call: &ToolCallRequested) -> Option<String> {
    if form_of(&call.tool) != Some(FileEffectForm::Shell) {
        return None;
    }
    let arguments: Value = serde_json::from_str(call.arguments.as_str()).ok()?;
    commands::line_of(&arguments)
}

/// Returns the programs of a command line, each with its subcommand: `cargo test`, `git commit`,
/// `mise run lint`.
pub(crate) fn programs(line: &str) -> Vec<String> {
    let named = |command: &shell::SimpleCommand| {
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

fn form_of(tool: &str) -> Option<FileEffectForm> {
    static RULES: std::sync::OnceLock<std::collections::BTreeMap<String, FileEffectRule>> =
        std::sync::OnceLock::new();
    let mut rules = RULES.get_or_init(rule::defaults).values();
    rules.find(|rule| rule.matches(tool)).map(|rule| rule.form)
}
