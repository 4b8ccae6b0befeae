//! Effects of git commands on files.

use super::{
    FileEffect,
    commands::Run,
    looks_like_file,
    output::{self, OutputFilter},
    shell::ShellWord,
};

/// Records the files of `git …`.
pub(super) fn git(run: &mut Run<'_, '_>, words: &[ShellWord], lines: OutputFilter) {
    let mut words = words;
    while let Some((option, rest)) = words.split_first() {
        match (option.text.as_str(), rest.split_first()) {
            ("-C", Some((directory, rest))) => {
                run.is_in(directory);
                words = rest;
            }
            ("-c", Some((_, rest))) => words = rest,
            (text, _) if text.starts_with('-') => words = rest,
            _ => break,
        }
    }
    let Some((command, rest)) = words.split_first() else {
        return;
    };
    let output = run.output;
    match command.text.as_str() {
        "add" | "commit" | "stash" | "update-index" => {
            operands(run, rest, FileEffect::Listed);
            committed(run, output);
        }
        "rm" => operands(run, rest, FileEffect::Deleted),
        "checkout" | "restore" => {
            after_dashes(run, rest, command.text == "restore", FileEffect::Edited)
        }
        "blame" | "annotate" => operands(run, rest, FileEffect::Read),
        "mv" => moved(run, rest),
        "grep" => {
            for path in output::found(lines, output, false) {
                run.path(path, FileEffect::Read);
            }
        }
        "ls-files" | "ls-tree" => {
            for path in output::paths(lines, output) {
                run.path(path, FileEffect::Listed);
            }
        }
        "status" => of_status(run, lines),
        "diff" | "show" | "log" => of_diff(run, rest, lines, &command.text),
        "merge" | "pull" | "cherry-pick" | "rebase" => merged(run, output),
        _ => {}
    }
}

fn files(words: &[ShellWord]) -> impl Iterator<Item = &ShellWord> {
    words
        .iter()
        .filter(|word| word.is_plain && !word.text.starts_with('-') && looks_like_file(&word.text))
        .filter(|word| !word.text.contains(char::is_whitespace) && !word.text.contains(".."))
}

fn operands(run: &mut Run<'_, '_>, words: &[ShellWord], touch: FileEffect) {
    // The word after `-m` is a message.
    let mut message = false;
    for word in words {
        let is_message = std::mem::replace(
            &mut message,
            matches!(word.text.as_str(), "-m" | "--message" | "-F" | "-am" | "-L"),
        );
        if !is_message && let Some(file) = files(std::slice::from_ref(word)).next() {
            run.file(file, touch);
        }
    }
}

fn after_dashes(run: &mut Run<'_, '_>, words: &[ShellWord], all: bool, touch: FileEffect) {
    let dashes = words.iter().position(|word| word.text == "--");
    let words = match dashes {
        Some(at) => &words[at + 1..],
        None if all => words,
        None => return,
    };
    let staged = words.iter().any(|word| word.text == "--staged");
    let touch = if staged { FileEffect::Listed } else { touch };
    for word in files(words) {
        run.file(word, touch);
    }
}

fn moved(run: &mut Run<'_, '_>, words: &[ShellWord]) {
    let words: Vec<&ShellWord> = words
        .iter()
        .filter(|word| word.is_plain && !word.text.starts_with('-'))
        .collect();
    if let [from, to] = words.as_slice() {
        run.file(from, FileEffect::Deleted);
        run.file(to, FileEffect::Created);
    }
}

/// Reads lines of `git status`: `modified:   path`, ` M path`, `?? path`.
fn of_status(run: &mut Run<'_, '_>, lines: OutputFilter) {
    if lines == OutputFilter::Changed {
        return;
    }
    let output = run.output;
    let mut is_untracked = false;
    for line in output.lines() {
        if line.starts_with("Untracked files:") {
            is_untracked = true;
        } else if !line.starts_with(['\t', ' ']) && !line.trim().is_empty() {
            is_untracked = false;
        }
        let text = line.trim();
        let long = [
            "modified:",
            "new file:",
            "deleted:",
            "renamed:",
            "both modified:",
        ]
        .iter()
        .find_map(|word| text.strip_prefix(word));
        let short = || {
            let (state, path) = line.split_at_checked(3)?;
            let is_state = state.ends_with(' ')
                && state.bytes().all(|b| b" MADRCU?!".contains(&b))
                && !state.trim().is_empty();
            is_state.then_some(path)
        };
        let untracked = || (is_untracked && line.starts_with('\t')).then_some(text);
        if let Some(path) = long.or_else(short).or_else(untracked) {
            let path = path.rsplit(" -> ").next().unwrap_or(path).trim();
            if !path.contains(' ') {
                run.path(path, FileEffect::Listed);
            }
        }
    }
}

fn of_diff(run: &mut Run<'_, '_>, words: &[ShellWord], lines: OutputFilter, command: &str) {
    let touch = if command == "log" {
        FileEffect::Listed
    } else {
        FileEffect::Read
    };
    let names = words.iter().any(|word| {
        word.text.starts_with("--stat")
            || word.text.starts_with("--name-")
            || word.text == "--numstat"
    });
    let touch = if names { FileEffect::Listed } else { touch };
    for word in files(words) {
        // `HEAD:path` is an earlier version of the file.
        let path = word
            .text
            .rsplit_once(':')
            .map_or(word.text.as_str(), |(_, path)| path);
        run.path(path, touch);
    }
    if lines == OutputFilter::Changed {
        return;
    }
    let output = run.output;
    for line in output.lines() {
        if let Some(name) = line.strip_prefix("+++ b/") {
            run.path(name.trim(), FileEffect::Read);
        } else if names && let Some(path) = stat_line(line) {
            run.path(path, FileEffect::Listed);
        }
    }
}

/// Returns the path in ` path | 12 ++--`, `M\tpath` or `path`.
fn stat_line(line: &str) -> Option<&str> {
    let text = line.trim();
    let path = match text.split_once(" | ") {
        Some((path, _)) => path.trim(),
        None => text.rsplit('\t').next().unwrap_or(text),
    };
    let whole = !path.starts_with("...") && !path.contains(['{', ' ']);
    (whole && output::is_path(path)).then_some(path)
}

/// Reads ` create mode 100644 path` and ` delete mode 100644 path` in the output of a commit.
fn committed(run: &mut Run<'_, '_>, output: &str) {
    for line in output.lines() {
        let told = line
            .strip_prefix(" create mode ")
            .or_else(|| line.strip_prefix(" delete mode "));
        if let Some((_, path)) = told.and_then(|rest| rest.split_once(' ')) {
            run.path(path.trim(), FileEffect::Listed);
        }
    }
}

fn merged(run: &mut Run<'_, '_>, output: &str) {
    for line in output.lines() {
        if let Some(path) = line.strip_prefix("Auto-merging ") {
            run.path(path.trim(), FileEffect::Edited);
        } else if line.contains(" | ")
            && let Some(path) = stat_line(line)
        {
            run.path(path, FileEffect::Edited);
        }
    }
}
