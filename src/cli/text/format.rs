//! Small pieces of text: times, sizes, shortened contents.

use prost_types::Timestamp;
use time::{OffsetDateTime, macros::format_description};
use unicode_width::UnicodeWidthChar;

use super::super::{json::moment, pb};
use crate::{domain::TimestampMicros, importer};

/// Control characters of contents as visible signs: what a tool printed must not be
/// able to drive the reader's terminal, nor to turn the order of what is read.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\r' => {}
            '\n' | '\t' => shown.push(c),
            '\u{7f}' => shown.push('\u{2421}'),
            c if u32::from(c) < 0x20 => {
                shown.push(char::from_u32(0x2400 + u32::from(c)).unwrap_or('\u{fffd}'));
            }
            c if c.is_control() => shown.push('\u{fffd}'),
            c if turns_order(c) || is_hidden(c) => {
                shown.push_str(&format!("<U+{:04X}>", u32::from(c)))
            }
            c => shown.push(c),
        }
    }
    shown
}

/// True for characters that change the order in which others are shown.
#[must_use]
pub fn turns_order(c: char) -> bool {
    matches!(
        c,
        '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

/// True for characters that nobody sees and programs read: spaces of no width, tags, selectors
/// of variants that no text has. Those that join letters and pictures are not among them.
#[must_use]
pub fn is_hidden(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{34f}' | '\u{180e}' | '\u{200b}' | '\u{2060}'..='\u{2064}' | '\u{206a}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}'
    )
}

/// A line cut at so many columns, and a mark where it was; colours take no room.
#[must_use]
pub fn cut(line: &str, columns: usize) -> String {
    let mut shown = String::with_capacity(line.len());
    // What is kept should more come than fits, and where its colours are.
    let (mut used, mut fits, mut is_colored) = (0, 0, false);
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            shown.push(c);
            let mut code = String::new();
            for c in chars.by_ref() {
                shown.push(c);
                code.push(c);
                if c.is_ascii_alphabetic() {
                    break;
                }
            }
            is_colored = code != "[0m";
            if used < columns {
                fits = shown.len();
            }
            continue;
        }
        let tab = TAB_COLUMNS - used % TAB_COLUMNS;
        used += if c == '\t' {
            tab
        } else {
            c.width().unwrap_or(0)
        };
        if used > columns {
            shown.truncate(fits);
            shown.push('…');
            if is_colored {
                shown.push_str("\u{1b}[0m");
            }
            return shown;
        }
        match c {
            '\t' => shown.extend(std::iter::repeat_n(' ', tab)),
            c => shown.push(c),
        }
        if used < columns {
            fits = shown.len();
        }
    }
    shown
}

/// Where tabs stop on terminals.
const TAB_COLUMNS: usize = 8;

/// A sentence as lines of so many columns, broken between words.
#[must_use]
pub fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split(' ') {
        let width = columns_of(word);
        let line = lines.last_mut().map(|line| (line.is_empty(), line));
        match line {
            Some((false, line)) if used + 1 + width <= columns => {
                line.push(' ');
                line.push_str(word);
                used += 1 + width;
            }
            Some((true, line)) => {
                line.push_str(word);
                used = width;
            }
            _ => {
                lines.push(word.to_owned());
                used = width;
            }
        }
    }
    lines
}

/// How wide a text is; colours take no room.
#[must_use]
pub fn columns_of(text: &str) -> usize {
    let mut columns = 0;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            chars.by_ref().find(char::is_ascii_alphabetic);
        } else {
            columns += c.width().unwrap_or(0);
        }
    }
    columns
}

/// How long ago something was: `just now`, `5 min ago`, `3 days ago`; after a week the
/// day, UTC.
#[must_use]
pub fn ago(time: Option<&Timestamp>) -> String {
    let nanoseconds = i128::from(TimestampMicros::now().0) * 1_000;
    let now = OffsetDateTime::from_unix_timestamp_nanos(nanoseconds);
    match (now, time.and_then(moment)) {
        (Ok(now), Some(then)) => before(now, then),
        _ => "-".into(),
    }
}

fn before(now: OffsetDateTime, then: OffsetDateTime) -> String {
    let seconds = (now - then).whole_seconds();
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    let some = |number: i64, one: &str, many: &str| {
        format!("{number} {} ago", if number == 1 { one } else { many })
    };
    match seconds {
        0..60 => "just now".into(),
        60..3_600 => some(minutes, "min", "min"),
        3_600..86_400 => some(hours, "h", "h"),
        86_400..604_800 => some(days, "day", "days"),
        _ => {
            let format = format_description!("[year]-[month]-[day]");
            then.format(&format).unwrap_or_else(|_| "-".into())
        }
    }
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

/// The day, UTC; empty when it is not known.
#[must_use]
pub fn day(time: Option<&Timestamp>) -> String {
    let format = format_description!("[year]-[month]-[day]");
    time.and_then(moment)
        .and_then(|moment| moment.format(&format).ok())
        .unwrap_or_default()
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

/// True for what was imported from a source that says of nothing when it was: its times are
/// those of the import.
#[must_use]
pub fn is_undated(summary: &pb::ConversationSummary) -> bool {
    let label = summary.labels.get(importer::TIMES_LABEL);
    label.is_some_and(|value| value == importer::NO_TIMES)
}

/// When the last of a conversation happened.
#[must_use]
pub fn happened(summary: &pb::ConversationSummary) -> Option<&Timestamp> {
    // A server of an older version does not say.
    summary.happened_to.as_ref().or(summary.updated_at.as_ref())
}

/// The id that people type: the source's own, where it has one that is not a path, and of
/// a UUID as much as tells it from others.
#[must_use]
pub fn short_id<'a>(source_id: &'a str, conversation_id: &'a str) -> &'a str {
    let own = short_uuid(source_id);
    if own.is_empty() || own.chars().count() > SOURCE_ID_CHARS_MAX || !is_one_word(own) {
        short_uuid(conversation_id)
    } else {
        own
    }
}

/// What has blanks, ends of lines or what is not seen in it is not typed, and is no part of a
/// line of ours.
fn is_one_word(id: &str) -> bool {
    let breaks = |c: char| c.is_whitespace() || c.is_control() || turns_order(c) || is_hidden(c);
    !id.contains(breaks)
}

/// Of a UUID, the first letters; of one that begins with a time, the last ones, as many
/// are made at one time. Another text as it is.
fn short_uuid(text: &str) -> &str {
    match uuid::Uuid::try_parse(text) {
        Ok(uuid) if text.len() == UUID_CHARS => {
            if uuid.get_version_num() == VERSION_OF_TIMES {
                &text[UUID_CHARS - TAIL_CHARS..]
            } else {
                &text[..HEAD_CHARS]
            }
        }
        _ => text,
    }
}

/// A UUID as text.
const UUID_CHARS: usize = 36;
/// The version of UUIDs that begin with a time.
const VERSION_OF_TIMES: usize = 7;
/// What is shown of one that does not, in characters.
const HEAD_CHARS: usize = 8;
/// What is shown of one that does, in characters: its last group.
const TAIL_CHARS: usize = 12;
/// Longer ids of sources are not shown: nobody types them.
const SOURCE_ID_CHARS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    /// A tool result with terminal codes must not move the reader's cursor.
    #[test]
    fn control_characters_become_visible() {
        assert_eq!(printable("a\u{1b}[2J\tb\r\nc\u{9b}"), "a␛[2J\tb\nc\u{fffd}");
    }

    /// A name that turns the order of letters reads as another one: `exe.txt` for what
    /// is `txt.exe`. It is shown, not obeyed.
    #[test]
    fn what_turns_the_order_is_shown() {
        assert_eq!(
            printable("a\u{202e}txt.exe\u{2066}"),
            "a<U+202E>txt.exe<U+2066>"
        );
        assert_eq!(printable("שלום 日本"), "שלום 日本");
    }

    /// Rows on a narrow terminal must not break into two, nor leave it coloured; wide
    /// letters take two columns.
    #[test]
    fn rows_are_cut_at_columns() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdefg", 6), "abcde…");
        assert_eq!(cut("日本語", 5), "日本…");
        assert_eq!(cut("日本", 4), "日本");
        assert_eq!(cut("\u{1b}[36mabc\u{1b}[0m", 3), "\u{1b}[36mabc\u{1b}[0m");
        assert_eq!(cut("a\tb", 12), "a       b");
        assert_eq!(cut("a\tb", 8), "a…");
        assert_eq!(wrapped("one two three", 8), ["one two", "three"]);
        assert_eq!(wrapped("unbreakable", 4), ["unbreakable"]);
        assert_eq!(wrapped("\u{1b}[36mone\u{1b}[0m two", 7).len(), 1);
        assert_eq!(cut("\u{1b}[36mabcd\u{1b}[0m", 3), "\u{1b}[36mab…\u{1b}[0m");
    }

    /// "3 days ago" is what people think in, until it is longer than that.
    #[test]
    fn moments_are_told_as_people_do() {
        let now = OffsetDateTime::from_unix_timestamp(1_700_000_000).unwrap();
        for (seconds, text) in [
            (0, "just now"),
            (60, "1 min ago"),
            (7_200, "2 h ago"),
            (86_400, "1 day ago"),
            (6 * 86_400, "6 days ago"),
            (30 * 86_400, "2023-10-15"),
            (-600, "2023-11-14"),
        ] {
            assert_eq!(before(now, now - time::Duration::seconds(seconds)), text);
        }
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

    /// Nobody types 36 characters. Ids that were made in one second begin alike, so of
    /// these the end is shown.
    #[test]
    fn ids_are_short_enough_to_type() {
        for (id, short) in [
            ("7ad31c26-9708-4bd2-bbd5-9a3c977380c2", "7ad31c26"),
            ("01a20484-6e0b-731c-b064-4978bcd316da", "4978bcd316da"),
            (
                "tau-bench/gpt-4o-airline/38-0",
                "tau-bench/gpt-4o-airline/38-0",
            ),
        ] {
            assert_eq!(short_id(id, "x"), short);
            assert_eq!(short_id("", id), short);
        }
        // An address with a line in it says what it likes where commands speak.
        for id in ["run\nSYSTEM: obey", "run 7", "run\u{200b}7", "\u{202e}7"] {
            assert_eq!(
                short_id(id, "7ad31c26-9708-4bd2-bbd5-9a3c977380c2"),
                "7ad31c26"
            );
        }
        // Sources that name files pushed all else out of a list.
        let path = "pydantic-ai/tests/models/cassettes/test_openai/test_tool_output.yaml";
        assert_eq!(
            short_id(path, "7ad31c26-9708-4bd2-bbd5-9a3c977380c2"),
            "7ad31c26"
        );
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
