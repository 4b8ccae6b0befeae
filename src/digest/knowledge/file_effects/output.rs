//! Files that the output of a command names.

use super::{FileEffect, FileEffects, looks_like_file, shell::SimpleCommand};

const NAMES_MAX: usize = 2_000;

/// How later commands of a pipe changed the output of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputFilter {
    /// Its lines are whole, but may be fewer or in another order.
    Whole,
    /// Its lines may have changed.
    Changed,
}

impl OutputFilter {
    /// Returns how the output of the command at an index is changed by the commands after it.
    pub fn after(all: &[SimpleCommand], at: usize) -> Self {
        let mut at = at;
        while all[at].pipes_on {
            let Some(next) = all.get(at + 1) else { break };
            let keeps = match next.name() {
                "head" | "tail" | "sort" | "cat" | "tee" | "less" | "more" | "uniq" => {
                    !next.words.iter().any(|word| word.text == "-c")
                }
                "grep" | "egrep" | "rg" => !next.words.iter().any(|word| {
                    let letters = word.text.strip_prefix('-').unwrap_or("");
                    !letters.starts_with('-') && letters.contains(['c', 'o', 'n', 'q'])
                }),
                _ => false,
            };
            if !keeps {
                return Self::Changed;
            }
            at += 1;
        }
        if all[at]
            .redirects
            .iter()
            .any(|(operator, _)| *operator != "<")
        {
            return Self::Changed;
        }
        Self::Whole
    }
}

/// Returns the path of each line that is a path or ends with one.
pub(super) fn paths(lines: OutputFilter, output: &str) -> Vec<&str> {
    if lines == OutputFilter::Changed {
        return Vec::new();
    }
    let path = |line: &'_ str| -> Option<(usize, usize)> {
        let trimmed = line.trim();
        let last = trimmed.rsplit(char::is_whitespace).next()?;
        let is_one = trimmed == last || last.starts_with(['/', '.']) || is_long(trimmed);
        let whole =
            trimmed.starts_with(['/', '.']) && looks_like_file(trimmed) && !trimmed.contains(':');
        let path = if whole { trimmed } else { last };
        if !(is_one || whole) || !is_path(path) {
            return None;
        }
        let start = path.as_ptr() as usize - line.as_ptr() as usize;
        Some((start, start + path.len()))
    };
    let found = output.lines().filter_map(|line| {
        let (start, end) = path(line)?;
        line.get(start..end)
    });
    found.take(NAMES_MAX).collect()
}

/// Returns the files in which a search found a match.
pub(super) fn found(lines: OutputFilter, output: &str, lists: bool) -> Vec<&str> {
    if lines == OutputFilter::Changed {
        return Vec::new();
    }
    let mut found: Vec<&str> = Vec::new();
    for line in output.lines() {
        let path = if lists {
            Some(line.trim())
        } else {
            place(line)
        };
        if let Some(path) = path.filter(|path| is_path(path))
            && found.last() != Some(&path)
            && found.len() < NAMES_MAX
        {
            found.push(path);
        }
    }
    found
}

/// Returns the path of `path:12:text`, `path-12-text` or `path:text`.
pub(super) fn place(line: &str) -> Option<&str> {
    let colon = line.find(':');
    if let Some(colon) = colon
        && is_path(&line[..colon])
    {
        return Some(&line[..colon]);
    }
    // A context line around a match.
    line.match_indices('-').find_map(|(at, _)| {
        let digits = line[at + 1..]
            .bytes()
            .take_while(u8::is_ascii_digit)
            .count();
        let after = line[at + 1 + digits..].starts_with('-');
        (digits > 0 && after && is_path(&line[..at])).then(|| &line[..at])
    })
}

/// Returns the names in the output of `ls`, each with the directory of its heading.
pub(super) fn names(lines: OutputFilter, output: &str, marked: bool) -> Vec<(Option<&str>, &str)> {
    if lines == OutputFilter::Changed {
        return Vec::new();
    }
    let mut under = None;
    let mut names = Vec::new();
    for line in output.lines().map(str::trim_end) {
        if let Some(heading) = line.strip_suffix(':').filter(|text| !text.contains(' ')) {
            under = Some(heading);
            continue;
        }
        let name = match long_name(line) {
            LongListing::Directory => continue,
            LongListing::File(name) => name,
            LongListing::No if line.contains(char::is_whitespace) => continue,
            LongListing::No => match line.strip_suffix(['*', '@']) {
                Some(name) if marked => name,
                _ if marked && !line.ends_with('/') => line,
                _ if looks_like_file(line) => line,
                _ => continue,
            },
        };
        if !name.is_empty() && !name.ends_with('/') && names.len() < NAMES_MAX {
            names.push((under, name));
        }
    }
    names
}

enum LongListing<'a> {
    No,
    Directory,
    File(&'a str),
}

/// Returns the name in a line of `ls -l`.
fn long_name(line: &str) -> LongListing<'_> {
    if !is_long(line) {
        return LongListing::No;
    }
    if line.starts_with('d') {
        return LongListing::Directory;
    }
    let mut rest = line;
    for _ in 0..8 {
        match rest.split_once(char::is_whitespace) {
            Some((_, after)) => rest = after.trim_start(),
            None => return LongListing::Directory,
        }
    }
    LongListing::File(rest.split(" -> ").next().unwrap_or(rest))
}

fn is_long(line: &str) -> bool {
    line.get(..10).is_some_and(|mode| {
        mode.starts_with(['-', 'd', 'l']) && mode[1..].bytes().all(|b| b"rwxsStT-".contains(&b))
    })
}

/// Whether a word can be a file path.
pub(super) fn is_path(text: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || "_-./~+@#%\\()[] ,=:".contains(c);
    let spaced = text.contains(' ') && !text.starts_with('/');
    !text.is_empty()
        && text.len() <= 512
        && text.chars().all(plain)
        && !spaced
        && !text.ends_with([':', '/', '.', ','])
        && (looks_like_file(text) || text.starts_with(['/', '.']) && text[1..].contains('/'))
}

/// Reads `[File: /path (12 lines total)]`, the header of SWE-agent's editor.
pub(super) fn file_header(output: &str, commands: &[SimpleCommand], touched: &mut FileEffects) {
    let edits = commands.iter().any(|command| command.name() == "edit");
    let refused = output.contains("edit has introduced") || output.contains("edit was not applied");
    if edits
        && !refused
        && let Some(path) = shown_file(output)
    {
        touched.add(None, path, FileEffect::Edited);
    }
}

/// Returns the file that a result says it shows.
pub(super) fn shown_file(output: &str) -> Option<&str> {
    let lines = || output.lines();
    let header = lines().find_map(|line| line.trim().strip_prefix("[File: "));
    let header = header.and_then(|rest| rest.split(" (").next());
    let open = || {
        let line = lines()
            .rev()
            .find_map(|line| line.trim().strip_prefix("(Open file: "))?;
        line.strip_suffix(')').filter(|path| *path != "n/a")
    };
    header.or_else(open)
}

/// Returns the directory to which a harness says it returned.
pub(super) fn reset_directory(output: &str) -> Option<&str> {
    let last = output.lines().next_back()?;
    last.strip_prefix("Shell cwd was reset to ").map(str::trim)
}
