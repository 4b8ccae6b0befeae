//! Describes search hits in words.

use crate::{
    deed, json, pb,
    text::{first_line, printable},
};

/// Returns what a hit is: the result or call of a tool, a message of a role, or an event kind.
#[must_use]
pub fn what(hit: &pb::SearchHit) -> String {
    let is = |kind: pb::EventKind| hit.kind == i32::from(kind);
    if hit.in_reasoning {
        return format!("{} thought", json::role_name(hit.role));
    }
    if hit.role != 0 && hit.tool.is_empty() {
        return format!("{} said", json::role_name(hit.role));
    }
    if is(pb::EventKind::ToolCallRequested) {
        return format!("call of {}", hit.tool);
    }
    if hit.tool.is_empty() {
        return json::kind_name(hit.kind).replace('_', " ");
    }
    hit.tool.clone()
}

/// Returns the title of the conversation, and what the call does.
#[must_use]
pub fn about(hit: &pb::SearchHit, chars_max: usize) -> Vec<String> {
    // The snippet of a call may already be what the call does, or a line that says nothing about
    // it.
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
        about.push(deed::shown(&hit.tool, &first_line(&hit.command, chars_max)));
    }
    if !hit.path.is_empty() && !hit.command.contains(&hit.path) && !is_shown(&hit.path) {
        about.push(printable(&hit.path));
    }
    about
}

#[cfg(test)]
mod tests {
    use super::*;

    // A call that matched only a filter was shown with its first argument, `replace_all: false`,
    // and not with its file.
    #[test]
    fn a_call_is_shown_with_what_it_is_about() {
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
