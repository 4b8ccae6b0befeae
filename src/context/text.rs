//! Shortens and cleans quotations.

/// Returns at most `max_chars` characters of a text, with `…` in place of the rest.
pub fn clip(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        None => text.to_owned(),
        Some(_) if max_chars == 0 => String::new(),
        Some(_) => {
            let end = text.char_indices().nth(max_chars - 1);
            let end = end.map_or(text.len(), |(end, _)| end);
            format!("{}…", before_word(text, end).trim_end())
        }
    }
}

/// Maximum length of a word that is not cut, in bytes. Longer words are cut in the middle.
const WORD_BYTES_MAX: usize = 24;

/// Returns the text up to `end`, without a word that would be cut.
fn before_word(text: &str, end: usize) -> &str {
    let (front, rest) = text.split_at(end);
    let is_cut = rest.starts_with(char::is_alphanumeric) && front.ends_with(char::is_alphanumeric);
    let blank = front.rfind(char::is_whitespace).filter(|_| is_cut);
    match blank.filter(|blank| end - blank <= WORD_BYTES_MAX && *blank > end / 2) {
        Some(blank) => &front[..blank],
        None => front,
    }
}

/// Returns the text from `start` on, without a word that would be cut.
fn behind_word(text: &str, start: usize) -> &str {
    let (front, rest) = text.split_at(start);
    let is_cut = rest.starts_with(char::is_alphanumeric) && front.ends_with(char::is_alphanumeric);
    let blank = rest.find(char::is_whitespace).filter(|_| is_cut);
    match blank.filter(|blank| *blank <= WORD_BYTES_MAX && *blank < rest.len() / 2) {
        Some(blank) => &rest[blank..],
        None => rest,
    }
}

/// Returns the text, or its beginning and end if it is too long.
pub fn whole_or_ends(text: &str, room: usize) -> String {
    let chars = text.chars().count();
    if chars <= room {
        return text.to_owned();
    }
    if room < 200 {
        return clip(text, room);
    }
    let mark = |left: usize| format!(" … ({} characters) … ", thousands(left));
    let room = room.saturating_sub(mark(chars).chars().count());
    let head = room * 2 / 3;
    let byte = |at: usize| text.char_indices().nth(at).map_or(text.len(), |(at, _)| at);
    let start = before_word(text, byte(head)).trim_end();
    let end = behind_word(text, byte(chars - (room - head))).trim_start();
    let left = chars - start.chars().count() - end.chars().count();
    format!("{start}{}{end}", mark(left))
}

/// Returns a text on one line: without control characters, terminal escape sequences and invisible
/// characters, and with single blanks.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len().min(4_096));
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            // ESC [ parameters letter: colours and similar codes.
            if chars.next_if_eq(&'[').is_some() {
                while chars
                    .next_if(|c| !('\u{40}'..='\u{7e}').contains(c) && !c.is_control())
                    .is_some()
                {}
                chars.next_if(|c| ('\u{40}'..='\u{7e}').contains(c));
            }
        } else if c.is_whitespace() {
            if !line.is_empty() && !line.ends_with(' ') {
                line.push(' ');
            }
        } else if !is_hidden(c) || joins(&line, c, chars.peek()) {
            line.push(c);
        }
    }
    line.truncate(line.trim_end().len());
    line
}

/// Returns a line with its indentation and without invisible characters.
pub fn seen(line: &str) -> String {
    let mut seen = String::with_capacity(line.len());
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '\t' {
            seen.push(' ');
        } else if !is_hidden(c) || joins(&seen, c, chars.peek()) {
            seen.push(c);
        }
    }
    seen
}

/// Whether a joiner is between two characters that need it: parts of an emoji (`🤷🏻‍♂️`) or
/// non-Latin letters.
fn joins(before: &str, c: char, next: Option<&char>) -> bool {
    let is_written_so = |c: char| !c.is_ascii() && !c.is_whitespace() && !is_hidden(c);
    matches!(c, '\u{200c}' | '\u{200d}')
        && before.chars().next_back().is_some_and(is_written_so)
        && next.copied().is_some_and(is_written_so)
}

/// Returns the first lines of a text that have content, as one line of at most `max_chars`
/// characters.
pub fn head(text: &str, max_chars: usize) -> String {
    // Read only a bounded part of a long text.
    let enough = max_chars.saturating_mul(8).max(1_024);
    let part = match text.char_indices().nth(enough) {
        Some((end, _)) => &text[..end],
        None => text,
    };
    let mut line = String::new();
    let mut left = false;
    for piece in part
        .lines()
        .map(one_line)
        .filter(|piece| says_something(piece))
    {
        if line.chars().count() > max_chars {
            left = true;
            break;
        }
        if !line.is_empty() {
            line.push_str(" / ");
        }
        line.push_str(&piece);
    }
    if (left || part.len() < text.len()) && line.chars().count() <= max_chars && !line.is_empty() {
        line.push('…');
    }
    clip(&line, max_chars)
}

/// Whether a line has content; false for rules, brackets and blank lines.
pub fn says_something(line: &str) -> bool {
    line.chars().any(char::is_alphanumeric) && !is_beside_output(line)
}

/// Whether a line is not output of the program itself: a command echoed by a task runner (`$ go
/// test`, `[test] $ go test`), or a harness's note that it reset the directory.
fn is_beside_output(line: &str) -> bool {
    let line = line.trim();
    let of_task = || {
        let (name, command) = line.strip_prefix('[')?.split_once("] $ ")?;
        (!command.is_empty() && !name.contains(char::is_whitespace)).then_some(())
    };
    line.starts_with("$ ") || line.starts_with("Shell cwd was reset to ") || of_task().is_some()
}

/// Formats 12345 as `12,345`.
pub fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a count: `1 line`, `2,000 lines`.
pub fn counted(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", thousands(number))
}

/// Whether a character is invisible or changes the writing direction. True for all joiners.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // Many results end with "Shell cwd was reset to", and test runs end with their command. If such
    // lines were quoted, nothing would show whether tests passed.
    #[test]
    fn shell_notices_are_not_meaningful_lines() {
        for line in [
            "---",
            "Shell cwd was reset to /home/dev/w",
            "[test] $ go test ./...",
            "[lint:go] $ golangci-lint run",
            "$ cargo test",
        ] {
            assert!(!says_something(line), "{line}");
        }
        for line in ["ok", "[1] costs $ 5", "0 issues.", "[error] no $ given"] {
            assert!(says_something(line), "{line}");
        }
    }

    /// A quotation must contain only what is visible, even if it is from terminal output or has
    /// hidden text.
    #[test]
    fn one_line_removes_control_and_hidden_characters() {
        for (text, expected) in [
            ("\u{1b}[31mred\u{1b}[0m  and\tgreen", "red and green"),
            ("a\0b\u{7}c\u{202e}d\u{200b}e", "abcde"),
            ("  two\r\nlines \u{85} here", "two lines here"),
            ("\u{1b}[", ""),
            ("\u{e0041}\u{e0042}tags", "tags"),
            ("🤷🏻\u{200d}♂️ a\u{200d}b", "🤷🏻\u{200d}♂️ ab"),
            ("می\u{200c}خواهم\u{200c}", "می\u{200c}خواهم"),
        ] {
            assert_eq!(one_line(text), expected, "{text:?}");
        }
    }

    // `the ta… (2 characters) …sk`: a word was cut, and the mark was longer than the text it
    // replaced.
    #[test]
    fn clip_cuts_between_words() {
        assert_eq!(clip("mend the parser again", 14), "mend the…");
        assert_eq!(clip("abcdefghijklmnop", 5), "abcd…");
        let text = "some words of a text ".repeat(30);
        let told = whole_or_ends(text.trim(), 300);
        let (start, rest) = told.split_once(" … (").unwrap();
        let (left, end) = rest.split_once(" characters) … ").unwrap();
        assert!(text.starts_with(&format!("{start} ")), "{told}");
        assert!(text.trim().ends_with(&format!(" {end}")), "{told}");
        let left: usize = left.parse().unwrap();
        assert_eq!(left + start.len() + end.len(), text.trim().len());
        assert!(told.chars().count() <= 300 && left > 20, "{told}");
    }

    /// Rules and blank lines are skipped; the lines after them are quoted.
    #[test]
    fn head_skips_rules_and_blank_lines() {
        assert_eq!(head("\n=====\n{\nTitle\n---\nbody\n", 80), "Title / body");
        assert_eq!(head("Title\nbody", 7), "Title…");
        assert_eq!(head("", 7), "");
    }

    #[test]
    fn thousands_are_separated_by_commas() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(counted(1, "line"), "1 line");
    }

    proptest! {
        /// For any text, a quotation is one bounded line without hidden characters.
        #[test]
        fn any_quote_is_bounded_and_visible(text in any::<String>(), max in 0_usize..60) {
            for quote in [head(&text, max), clip(&one_line(&text), max)] {
                prop_assert!(quote.chars().count() <= max);
                let is_joiner = |c: char| matches!(c, '\u{200c}' | '\u{200d}');
                prop_assert!(!quote.chars().any(|c| is_hidden(c) && !is_joiner(c)));
            }
        }
    }
}
