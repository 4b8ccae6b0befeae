//! Summaries without a model: first lines, the shape of JSON, counts, errors.

use crate::domain::{ContentPart, ToolResultRecorded};

/// A result in short: at most `max_chars` characters, never empty.
#[must_use]
pub fn result_summary(result: &ToolResultRecorded, max_chars: usize) -> String {
    let text = result
        .parts
        .iter()
        .find_map(ContentPart::text)
        .unwrap_or("");
    let line = text.lines().find(|line| !line.trim().is_empty());
    line.unwrap_or("no text").chars().take(max_chars).collect()
}
