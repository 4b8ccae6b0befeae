//! Reads patches in arguments: OpenAI's format and unified diffs.

use serde_json::Value;

use super::{FileEffect, FileEffects, ParsedCall};

/// Records the files of a patch.
pub(super) fn patch(spoken: ParsedCall<'_>, touched: &mut FileEffects) {
    let text = match spoken.arguments {
        Value::String(text) => Some(text.as_str()),
        Value::Object(members) => {
            let mut texts = members.values().filter_map(Value::as_str);
            texts.find(|text| text.contains("*** ") || text.contains("+++ "))
        }
        _ => None,
    };
    let Some(text) = text else { return };
    let mut last: Option<&str> = None;
    let mut before = None;
    for line in text.lines() {
        let line = line.trim_end();
        if let Some(path) = line.strip_prefix("*** Add File: ") {
            touched.add(None, path, FileEffect::Created);
        } else if let Some(path) = line.strip_prefix("*** Update File: ") {
            touched.add(None, path, FileEffect::Edited);
            last = Some(path);
        } else if let Some(path) = line.strip_prefix("*** Delete File: ") {
            touched.add(None, path, FileEffect::Deleted);
        } else if let Some(path) = line.strip_prefix("*** Move to: ") {
            if let Some(from) = last.take() {
                touched.add(None, from, FileEffect::Deleted);
            }
            touched.add(None, path, FileEffect::Created);
        } else if let Some(path) = line.strip_prefix("--- ") {
            before = Some(side(path));
        } else if let (Some(path), Some(before)) = (line.strip_prefix("+++ "), before.take()) {
            let after = side(path);
            match (before, after) {
                ("/dev/null", path) => touched.add(None, path, FileEffect::Created),
                (path, "/dev/null") => touched.add(None, path, FileEffect::Deleted),
                (_, path) => touched.add(None, path, FileEffect::Edited),
            }
        }
    }
}

/// Returns the path of one side of a diff, without `a/`, `b/` and the time.
fn side(text: &str) -> &str {
    let path = text.split('\t').next().unwrap_or(text).trim();
    path.strip_prefix("a/")
        .or_else(|| path.strip_prefix("b/"))
        .unwrap_or(path)
}
