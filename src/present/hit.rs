//! Describes search hits in words.

use crate::{
    json, pb,
    text::{address, first_line, printable},
    tool_summary,
};

/// Returns what a hit is: the result or call of a tool, a message of a role, or an event kind.
/// `called` quotes the name of a tool, which is recorded text.
#[must_use]
pub fn what(hit: &pb::SearchHit, called: impl Fn(&str) -> String) -> String {
    let role = || json::role_name(hit.role);
    match hit.tool.as_str() {
        _ if hit.in_reasoning => format!("{} thought", role()),
        "" if hit.role != 0 => format!("{} said", role()),
        "" => json::kind_name(hit.kind).replace('_', " "),
        tool if hit.kind == i32::from(pb::EventKind::ToolCallRequested) => {
            format!("call of {}", called(tool))
        }
        tool => called(tool),
    }
}

/// Splits a snippet into pieces, and says which of them match. Skips ranges that do not fit into
/// the text: they are input, which may be wrong.
#[must_use]
pub fn pieces<'a>(text: &'a str, matches: &[pb::Highlight]) -> Vec<(&'a str, bool)> {
    let mut pieces = Vec::new();
    let mut done = 0;
    for range in matches {
        let (start, end) = (range.start as usize, range.end as usize);
        let (Some(before), Some(found)) = (text.get(done..start), text.get(start..end)) else {
            continue;
        };
        pieces.extend([(before, false), (found, true)]);
        done = end;
    }
    pieces.push((text.get(done..).unwrap_or_default(), false));
    pieces
}

/// Returns the addresses of at most `max` events with the same text, and the number of others.
#[must_use]
pub fn copies(hit: &pb::SearchHit, max: usize) -> (Vec<String>, u64) {
    let places = hit.copies_at.iter().take(max);
    let places: Vec<_> = places
        .map(|copy| address(&copy.source_id, &copy.conversation_id, copy.revision))
        .collect();
    let more = hit.copies.saturating_sub(places.len() as u64);
    (places, more)
}

/// Returns the title of the conversation, and what the call does.
#[must_use]
pub fn about(hit: &pb::SearchHit, chars_max: usize) -> Vec<String> {
    // The snippet of a call may already show what the call does, or it may be a line that says
    // nothing about that.
    let is_call = hit.kind == i32::from(pb::EventKind::ToolCallRequested);
    let is_shown = |text: &str| {
        let line = text.lines().map(str::trim).find(|line| !line.is_empty());
        is_call && line.is_none_or(|line| hit.snippet.contains(line))
    };
    let mut about = Vec::new();
    if !hit.title.is_empty() {
        about.push(first_line(&hit.title, chars_max));
    }
    if !hit.command.is_empty() && !is_shown(&hit.command) {
        about.push(tool_summary::summarise_call(
            &hit.tool,
            &first_line(&hit.command, chars_max),
        ));
    }
    if !hit.path.is_empty() && !hit.command.contains(&hit.path) && !is_shown(&hit.path) {
        about.push(printable(&hit.path));
    }
    if hit.recalled {
        about.push(quoted(hit));
    }
    about
}

/// Describes what a hit in recalled text quotes.
#[must_use]
pub fn quoted(hit: &pb::SearchHit) -> String {
    match hit.quotes.as_str() {
        "" => "quoted from a memory".to_owned(),
        address => format!("quoted from a memory: see {}", printable(address)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A call that matched only a filter was shown with its first argument, `replace_all: false`,
    // and not with its file.
    #[test]
    fn hit_of_a_call_shows_its_path() {
        let hit = |snippet: &str| pb::SearchHit {
            kind: pb::EventKind::ToolCallRequested.into(),
            tool: "Edit".into(),
            path: "src/a.rs".into(),
            snippet: snippet.into(),
            ..Default::default()
        };
        assert_eq!(about(&hit("replace_all: false"), 80), ["src/a.rs"]);
        assert_eq!(about(&hit("file_path: src/a.rs"), 80), Vec::<String>::new());
    }
}
