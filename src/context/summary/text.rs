//! Quoting text that nobody vouches for.

/// At most `max_chars` characters of a text; `…` stands for what is left out.
pub(in crate::context) fn clip(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        None => text.to_owned(),
        Some(_) if max_chars == 0 => String::new(),
        Some(_) => {
            let kept: String = text.chars().take(max_chars - 1).collect();
            format!("{}…", kept.trim_end())
        }
    }
}

/// A text in one line: control characters, escape sequences of terminals and
/// invisible formatting characters are out, white space is one blank.
pub(in crate::context) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len().min(4_096));
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            // ESC [ parameters letter: colours and the like.
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
        } else if !is_hidden(c) {
            line.push(c);
        }
    }
    line.truncate(line.trim_end().len());
    line
}

/// The first lines of a text that say something, in one line, at most
/// `max_chars` characters.
pub(in crate::context) fn head(text: &str, max_chars: usize) -> String {
    // What is quoted is found in a bounded part, however long the text is.
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

/// False for rules, brackets and blank lines.
pub(in crate::context) fn says_something(line: &str) -> bool {
    line.chars().any(char::is_alphanumeric)
}

/// 12345 as `12,345`.
pub(super) fn thousands(number: usize) -> String {
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

/// `1 line`, `2,000 lines`.
pub(in crate::context) fn counted(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", thousands(number))
}

/// Characters that are not seen, and those that turn the direction of writing.
pub(super) fn is_hidden(c: char) -> bool {
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

    /// Output of a terminal, and text that hides or turns around: what is quoted
    /// must be what is seen.
    #[test]
    fn what_is_hidden_goes() {
        for (text, expected) in [
            ("\u{1b}[31mred\u{1b}[0m  and\tgreen", "red and green"),
            ("a\0b\u{7}c\u{202e}d\u{200b}e", "abcde"),
            ("  two\r\nlines \u{85} here", "two lines here"),
            ("\u{1b}[", ""),
            ("\u{e0041}\u{e0042}tags", "tags"),
        ] {
            assert_eq!(one_line(text), expected, "{text:?}");
        }
    }

    /// Rules and blank lines say nothing: the lines after them are quoted.
    #[test]
    fn lines_that_say_something() {
        assert_eq!(head("\n=====\n{\nTitle\n---\nbody\n", 80), "Title / body");
        assert_eq!(head("Title\nbody", 7), "Title…");
        assert_eq!(head("", 7), "");
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(counted(1, "line"), "1 line");
    }

    proptest! {
        /// Whatever the text: bounded, one line, nothing hidden.
        #[test]
        fn quotes_are_bounded_and_plain(text in any::<String>(), max in 0_usize..60) {
            for quote in [head(&text, max), clip(&one_line(&text), max)] {
                prop_assert!(quote.chars().count() <= max);
                prop_assert!(!quote.chars().any(is_hidden));
            }
        }
    }
}
