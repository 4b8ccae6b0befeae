//! Counts listings, search matches and diffs by place.

use super::{
    kind::{OutputKind, is_path},
    lines::{Output, is_failed, is_located_error},
};
use crate::summary::reports_error;
use treering_context::text::counted;

/// Maximum number of places that are named. The others are counted.
const NAMED_MAX: usize = 12;

/// Returns the counts for the first line.
pub(super) fn counts(kind: OutputKind, output: &Output<'_>) -> Option<String> {
    match kind {
        OutputKind::Matches => {
            let places = by_place(output);
            let all: usize = places.iter().map(|(_, count)| count).sum();
            let matches = if all == 1 { "match" } else { "matches" };
            Some(format!(
                "{all} {matches} in {}",
                counted(places.len(), "file")
            ))
        }
        OutputKind::Compiler => {
            let is_error = |line: &&str| {
                let line = line.trim_start();
                reports_error(line) || is_located_error(line)
            };
            let errors = output.texts().filter(is_error).count();
            let warning = |line: &&str| line.trim_start().starts_with("warning");
            let warnings = output.texts().filter(warning).count();
            Some(format!(
                "{}, {}",
                counted(errors, "error line"),
                counted(warnings, "warning line")
            ))
        }
        OutputKind::Tests => {
            let failed = output.texts().filter(|line| is_failed(line.trim_start()));
            match failed.count() {
                0 => None,
                count => Some(counted(count, "line") + " of failures"),
            }
        }
        OutputKind::Table => Some(counted(output.lines.len().saturating_sub(1), "row")),
        OutputKind::Listing | OutputKind::Diff | OutputKind::Code | OutputKind::Text => None,
    }
}

/// Returns lines that summarise the output better than its own lines.
pub(super) fn of(kind: OutputKind, output: &Output<'_>) -> Vec<String> {
    match kind {
        OutputKind::Matches => vec![named(by_place(output), ": ")],
        OutputKind::Diff => changed(output),
        OutputKind::Listing => listed(output).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// Counts matches by file, in the order of the output.
fn by_place<'a>(output: &Output<'a>) -> Vec<(&'a str, usize)> {
    let mut places: Vec<(&str, usize)> = Vec::new();
    let mut at = std::collections::HashMap::new();
    for line in output.texts() {
        let Some((path, _)) = line.split_once(':') else {
            continue;
        };
        if !is_path(path) {
            continue;
        }
        let place = *at.entry(path).or_insert_with(|| {
            places.push((path, 0));
            places.len() - 1
        });
        places[place].1 += 1;
    }
    places
}

fn named(places: Vec<(&str, usize)>, between: &str) -> String {
    let more = places.len().saturating_sub(NAMED_MAX);
    let shown: Vec<String> = places
        .into_iter()
        .take(NAMED_MAX)
        .map(|(place, count)| format!("{place}{between}{count}"))
        .collect();
    let mut line = shown.join(", ");
    if more > 0 {
        line.push_str(&format!(", and {more} more"));
    }
    line
}

/// Returns directories with the number of their entries.
fn listed(output: &Output<'_>) -> Option<String> {
    let mut folders: Vec<(&str, usize)> = Vec::new();
    let mut at = std::collections::HashMap::new();
    for line in output.texts() {
        let line = line.trim();
        let Some((folder, _)) = line.rsplit_once('/').filter(|_| is_path(line)) else {
            continue;
        };
        let place = *at.entry(folder).or_insert_with(|| {
            folders.push((folder, 0));
            folders.len() - 1
        });
        folders[place].1 += 1;
    }
    let several = folders.len() > 1 && folders.len() * 2 <= output.lines.len();
    several.then(|| named(folders, "/ "))
}

/// Counts changed lines by file.
fn changed(output: &Output<'_>) -> Vec<String> {
    let mut files: Vec<(&str, usize, usize)> = Vec::new();
    for line in output.texts() {
        if let Some(name) = line.strip_prefix("diff --git ") {
            let name = name.rsplit_once(" b/").map_or(name, |(_, name)| name);
            files.push((name, 0, 0));
        } else if let Some(name) = line.strip_prefix("+++ ") {
            let name = name.split('\t').next().unwrap_or(name);
            let name = name.strip_prefix("b/").unwrap_or(name);
            match files.last_mut() {
                Some((last, 0, 0)) if *last == name || name == "/dev/null" => {}
                _ => files.push((name, 0, 0)),
            }
        } else if line.starts_with("--- ") {
        } else if let Some((_, added, removed)) = files.last_mut() {
            *added += usize::from(line.starts_with('+'));
            *removed += usize::from(line.starts_with('-'));
        }
    }
    let more = files.len().saturating_sub(NAMED_MAX);
    let mut told: Vec<String> = files
        .into_iter()
        .take(NAMED_MAX)
        .map(|(name, added, removed)| format!("{name} +{added} -{removed}"))
        .collect();
    if more > 0 {
        told.push(format!("and {} more", counted(more, "file")));
    }
    told
}

/// Returns the name in a line of `ls -l`.
pub(super) fn long_entry(line: &str) -> Option<&str> {
    let mode = line.get(..10)?;
    let is_mode =
        mode.starts_with(['-', 'd', 'l']) && mode[1..].bytes().all(|b| b"rwxsStT-".contains(&b));
    is_mode.then(|| line.rsplit(' ').next().unwrap_or(line))
}
