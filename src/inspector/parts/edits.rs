//! Finds the edits in a call's arguments: pairs of old and new text, and patches.

use serde_json::Value;

use super::line_diff::LineDiff;
use crate::bounds::ARGUMENTS_BYTES;

/// Names of the arguments with the old and the new text, in common tools.
const PAIRS: [[&str; 2]; 5] = [
    ["old_string", "new_string"],
    ["old_str", "new_str"],
    ["oldText", "newText"],
    ["oldString", "newString"],
    ["search", "replace"],
];
/// Number of edits of a call that are shown.
const EDITS_MAX: usize = 20;

/// Returns the edits in the arguments of a call, of at most `lines_max` lines each; none if the
/// arguments are too long.
#[must_use]
pub(crate) fn edits(arguments: &str, lines_max: usize) -> Vec<LineDiff> {
    let mut found = Vec::new();
    if arguments.len() <= ARGUMENTS_BYTES
        && let Ok(value) = serde_json::from_str(arguments)
    {
        look(&value, lines_max, &mut found);
    }
    found
}

fn look(value: &Value, lines_max: usize, found: &mut Vec<LineDiff>) {
    if found.len() == EDITS_MAX {
        return;
    }
    match value {
        Value::String(text) => found.extend(LineDiff::of_patch(text, lines_max)),
        Value::Array(items) => items.iter().for_each(|item| look(item, lines_max, found)),
        Value::Object(fields) => {
            let text = |name: &str| fields.get(name).and_then(Value::as_str);
            let pair = PAIRS
                .iter()
                .find_map(|[old, new]| Some((text(old)?, text(new)?)));
            match pair {
                Some((old, new)) => found.push(LineDiff::new(old, new, lines_max)),
                None => fields
                    .values()
                    .for_each(|item| look(item, lines_max, found)),
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Agents use different names for the texts of an edit. A command that mentions a patch is not
    // an edit.
    #[test]
    fn edits_of_common_agents_are_found() {
        for (arguments, expected) in [
            (
                r#"{"file_path": "a", "old_string": "x", "new_string": "y"}"#,
                1,
            ),
            (
                r#"{"path": "a", "edits": [{"oldText": "x", "newText": "y"}, {"oldText": "", "newText": "y"}]}"#,
                2,
            ),
            (
                r#"{"command": "str_replace", "old_str": "x", "new_str": "y"}"#,
                1,
            ),
            (
                r#"{"input": "*** Begin Patch\n*** Add File: a\n+x\n*** End Patch"}"#,
                1,
            ),
            (r#"{"command": ["apply_patch", "*** Begin Patch\n+x"]}"#, 1),
            (r#"{"command": "git diff --git a b"}"#, 0),
            (r#"{"old_string": "x"}"#, 0),
            ("no json", 0),
        ] {
            assert_eq!(edits(arguments, 40).len(), expected, "{arguments}");
        }
    }
}
