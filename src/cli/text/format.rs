//! Small pieces of text: times, sizes, shortened contents.

use prost_types::Timestamp;
use time::macros::format_description;

use super::super::json::moment;

/// Control characters of contents as visible signs: what a tool printed must
/// not be able to drive the reader's terminal.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars()
        .filter(|c| *c != '\r')
        .map(|c| match c {
            '\n' | '\t' => c,
            '\u{7f}' => '\u{2421}',
            c if u32::from(c) < 0x20 => char::from_u32(0x2400 + u32::from(c)).unwrap_or('\u{fffd}'),
            c if c.is_control() => '\u{fffd}',
            c => c,
        })
        .collect()
}

/// The first line that says something, cut to so many characters.
#[must_use]
pub fn first_line(text: &str, chars_max: usize) -> String {
    // Contents can be a megabyte: look no further than needed.
    let line = text
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .unwrap_or("");
    let mut chars = line.chars();
    let head: String = chars.by_ref().take(chars_max).collect();
    let cut = chars.next().is_some() || text.trim().len() > line.len();
    let head = printable(&head).replace('\t', " ");
    if cut { format!("{head} …") } else { head }
}

/// Text with so many spaces before each line, at most `lines_max` lines of at
/// most `chars_max` characters; says how much is left out.
#[must_use]
pub fn indent(text: &str, spaces: usize, lines_max: usize, chars_max: usize) -> Vec<String> {
    let margin = " ".repeat(spaces);
    let mut shown = Vec::new();
    let mut lines = text.trim_end().lines();
    for line in lines.by_ref().take(lines_max) {
        let mut chars = line.chars();
        let head: String = chars.by_ref().take(chars_max).collect();
        let rest = chars.count();
        let head = printable(&head);
        shown.push(match rest {
            0 => format!("{margin}{head}"),
            rest => format!("{margin}{head} … (+{rest} characters)"),
        });
    }
    match lines.count() {
        0 => {}
        1 => shown.push(format!("{margin}… 1 more line")),
        rest => shown.push(format!("{margin}… {} more lines", count(rest as u64))),
    }
    shown
}

/// The time of day, UTC, to the millisecond.
#[must_use]
pub fn clock(time: Option<&Timestamp>) -> String {
    let format = format_description!("[hour]:[minute]:[second].[subsecond digits:3]");
    time.and_then(moment)
        .and_then(|moment| moment.format(&format).ok())
        .unwrap_or_else(|| "--:--:--.---".into())
}

/// The day and time, UTC, to the second.
#[must_use]
pub fn day_clock(time: Option<&Timestamp>) -> String {
    let format = format_description!("[year]-[month]-[day] [hour]:[minute]:[second]");
    time.and_then(moment)
        .and_then(|moment| moment.format(&format).ok())
        .unwrap_or_else(|| "-".into())
}

/// A count with thousands apart: `12,345`.
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count of things, in the right number: `1 call`, `2,000 calls`.
#[must_use]
pub fn things(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// A size in the unit that fits: `1.5 MiB`.
#[must_use]
#[allow(clippy::cast_precision_loss)] // Three digits are shown.
pub fn bytes_human(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut size = bytes as f64 / 1024.0;
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    format!("{size:.1} {}", UNITS[unit])
}

/// The id that people type: the source's own, where it has one.
#[must_use]
pub fn short_id<'a>(source_id: &'a str, conversation_id: &'a str) -> &'a str {
    if source_id.is_empty() {
        conversation_id
    } else {
        source_id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tool result with terminal codes must not move the reader's cursor.
    #[test]
    fn control_characters_become_visible() {
        assert_eq!(printable("a\u{1b}[2J\tb\r\nc\u{9b}"), "a␛[2J\tb\nc\u{fffd}");
    }

    /// A long result is cut at characters, never inside one, and says so.
    #[test]
    fn long_text_is_cut_and_says_how_much() {
        assert_eq!(
            indent("äöü\nb\nc\n", 2, 1, 2),
            vec!["  äö … (+1 characters)", "  … 2 more lines"]
        );
        assert_eq!(first_line("\n  one two\nthree", 7), "one two …");
        assert_eq!(first_line("one", 7), "one");
        assert_eq!(first_line("", 7), "");
    }

    #[test]
    fn numbers_are_easy_to_read() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(count(number), text);
        }
        assert_eq!(things(1, "branch", "branches"), "1 branch");
        assert_eq!(things(2_000, "branch", "branches"), "2,000 branches");
        assert_eq!(bytes_human(1023), "1023 B");
        assert_eq!(bytes_human(1536), "1.5 KiB");
    }
}
