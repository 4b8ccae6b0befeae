//! Digest of a tool result: its kind, and the lines that the next step needs.
//!
//! The first line has the outcome and the size. Lines of the result follow in order, with `…` in
//! place of omitted lines. Errors and totals take precedence, then the end and the beginning.
//!
//! - [`digest`]: the text that replaces a result;
//! - `kind`: recognises the kind of output by its lines and the call;
//! - `groups`: counts listings, matches and diffs by place;
//! - `lines`: rates each line;
//! - `run`: recognises passing and failing lines.
//!
//! Quotes are single lines with their indentation, without control characters.

mod groups;
mod json;
mod kind;
mod lines;
mod run;
#[cfg(test)]
mod tests;

use crate::{
    summary::{json_members, result_summary},
    user_text::without_reminders,
};
use treering_context::{
    heuristics::ResultOf,
    steps,
    text::{clip, counted, one_line, says_something},
};
use treering_domain::{ContentPart, ToolResultRecorded};

pub use kind::OutputKind;
pub(crate) use lines::{is_total, numberless};
pub(crate) use run::{RunLine, run_lines};

/// Maximum length of a quoted line, in characters.
const LINE_CHARS_MAX: usize = 200;
/// Number of bytes read at the beginning and at the end of a longer text.
const LOOKED_AT_BYTES: usize = 256 << 10;

/// Returns the digest of a result: never empty, of at most `max_chars` characters. A `max_chars` of
/// 0 counts as 1.
#[must_use]
pub fn digest(said: ResultOf<'_>, result: &ToolResultRecorded, max_chars: usize) -> String {
    let text = text_of(result);
    let short = text.len() <= max_chars && text.lines().nth(1).is_none();
    if short || !says_something(&text) || has_media(result) {
        return result_summary(result, max_chars);
    }
    if let Some(members) = json_members(&text) {
        return of_json(result, &text, &members, max_chars);
    }
    let output = lines::Output::of(&text, LOOKED_AT_BYTES);
    steps::note(output.lines.len());
    let kind = OutputKind::of(said, &output);
    let mut page = Page::new(max_chars);
    page.put(&heading(result, &text, &output, kind));
    for group in groups::of(kind, &output) {
        page.put(&group);
    }
    page.lines(&output, kind);
    page.text
}

/// Whether a result reports a failure (an exit code, a failed test), even if it was recorded as a
/// success.
#[must_use]
pub(crate) fn tells_failure(result: &ToolResultRecorded) -> bool {
    if !result.success {
        return true;
    }
    let text = text_of(result);
    let output = lines::Output::of(&text, 16 << 10);
    match output.exit_code() {
        Some(code) => code != 0,
        None => output.texts().any(lines::is_failed_run),
    }
}

/// Returns the contents of JSON: short members whole, then leaves of long members while there is
/// room. Very long JSON is only described by type and size.
fn of_json(
    result: &ToolResultRecorded,
    text: &str,
    members: &[String],
    max_chars: usize,
) -> String {
    let mut page = Page::new(max_chars);
    let failed = if result.success { "" } else { "failed, " };
    let error = one_line(&result.error_message);
    let error = if error.is_empty() {
        error
    } else {
        format!("{error}, ")
    };
    page.put(&format!(
        "{failed}{error}JSON, {}",
        counted(text.len(), "byte")
    ));
    match json::told(text, page.left) {
        Some(lines) => lines.iter().for_each(|line| page.put(line)),
        None => members.iter().for_each(|member| page.put(member)),
    }
    page.text
}

/// Returns the outcome and the size.
fn heading(
    result: &ToolResultRecorded,
    text: &str,
    output: &lines::Output,
    kind: OutputKind,
) -> String {
    let mut told = Vec::new();
    if !result.success {
        told.push("failed".to_owned());
    }
    told.extend(output.exit_code().map(|code| format!("exit code {code}")));
    let error = one_line(&result.error_message);
    if !error.is_empty() && !text.contains(result.error_message.trim()) {
        told.push(error);
    }
    let lines = without_reminders(text).lines().count();
    told.push(counted(lines, "line"));
    told.push(counted(text.len(), "byte"));
    told.extend(groups::counts(kind, output));
    told.join(", ")
}

fn text_of(result: &ToolResultRecorded) -> String {
    let texts: Vec<&str> = result.parts.iter().filter_map(ContentPart::text).collect();
    let text = texts.join("\n");
    if says_something(&text) {
        return text;
    }
    if !result.structured.is_absent() {
        return result.structured.as_str().to_owned();
    }
    // A failed result may have only its error message.
    result.error_message.clone()
}

fn has_media(result: &ToolResultRecorded) -> bool {
    result.parts.iter().any(|part| {
        matches!(
            part,
            ContentPart::Image(_) | ContentPart::File(_) | ContentPart::Audio(_)
        )
    })
}

/// Lines of text within a size limit.
struct Page {
    text: String,
    left: usize,
}

impl Page {
    fn new(max_chars: usize) -> Self {
        Self {
            text: String::new(),
            left: max_chars.max(1),
        }
    }

    /// Adds a line, clipped to the remaining room.
    fn put(&mut self, line: &str) {
        self.put_as_it_is(&one_line(line));
    }

    /// As [`Self::put`], for a line without control characters.
    fn put_as_it_is(&mut self, line: &str) {
        let newline = usize::from(!self.text.is_empty());
        if self.left <= newline {
            return;
        }
        let line = clip(line, self.left - newline);
        if line.trim().is_empty() {
            return;
        }
        if newline > 0 {
            self.text.push('\n');
        }
        self.left -= line.chars().count() + newline;
        self.text.push_str(&line);
    }

    /// Adds the most important lines of the output that fit, in the order of the output.
    fn lines(&mut self, output: &lines::Output, kind: OutputKind) {
        let mut by_worth = lines::worth(output, kind);
        by_worth.sort_by_key(|(worth, at)| (std::cmp::Reverse(*worth), *at));
        let mut chosen = Vec::new();
        // A gap mark between two lines takes two characters.
        let mut room = self.left;
        for (_, at) in by_worth {
            let line = lines::as_it_stands(output.lines[at].text, kind);
            let line = clip(&line, LINE_CHARS_MAX);
            let needs = line.chars().count() + 3;
            if needs <= room {
                room -= needs;
                chosen.push((at, line));
            } else if room < 24 {
                break;
            }
        }
        chosen.sort_unstable_by_key(|(at, _)| *at);
        let mut next = 0;
        for (at, line) in chosen {
            let skipped = output.says_something_between(next, at);
            // Keep the indentation as in the surrounding lines.
            self.put_as_it_is(&if skipped { format!("… {line}") } else { line });
            next = at + 1;
        }
        let is_open = next < output.lines.len() || output.ends_in_gap;
        // A newline and a mark for the lines omitted at the end.
        if is_open && next > 0 && self.left >= 2 {
            self.put_as_it_is("…");
        }
    }
}
