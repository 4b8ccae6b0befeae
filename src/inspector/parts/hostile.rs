//! Recorded text as text. It was written by whoever could write to a page, a file or a terminal
//! that some agent once read: markup in it is shown, not obeyed; control characters and what
//! turns the order of letters are shown as signs; and it cannot turn the order of what stands
//! beside it.

use maud::{Markup, PreEscaped, html};

use crate::cli::text::turns_order;

/// How many bytes of a text make at most so many of markup: a letter can make fifty.
#[must_use]
pub fn fitting(text: &str, markup_max: usize) -> usize {
    // Nothing makes less than itself.
    let mut left = markup_max;
    for (at, c) in text.char_indices() {
        let bytes = match c {
            '&' | '\'' => 5,
            '<' | '>' => 4,
            '"' => 6,
            '\n' | '\t' => 1,
            c if is_unseen(c) => SIGN_BYTES,
            c => c.len_utf8(),
        };
        if bytes > left {
            return at;
        }
        left -= bytes;
    }
    text.len()
}

/// The most that [`sign`] makes.
const SIGN_BYTES: usize = 56;

/// Recorded text within a line of ours.
#[must_use]
pub fn shown(text: &str) -> Markup {
    html! { bdi { (escaped(text)) } }
}

/// The same, its first line, cut to so many characters.
#[must_use]
pub fn headline(text: &str, chars_max: usize) -> Markup {
    let first = first(text, chars_max);
    match fitting(&first, 8 * chars_max) {
        end if end < first.len() => html! { (shown(&first[..end])) " …" },
        _ => shown(&first),
    }
}

/// The first line that says something, cut; what would be a sign in it is left to [`shown`].
#[must_use]
pub fn first(text: &str, chars_max: usize) -> String {
    let mut lines = text.lines().map(str::trim);
    let line = lines.find(|line| !line.is_empty()).unwrap_or_default();
    match line.char_indices().nth(chars_max) {
        Some((at, _)) => format!("{} …", &line[..at]),
        None if text.trim().len() > line.len() => format!("{line} …"),
        None => line.to_owned(),
    }
}

/// Recorded text as it is, in lines of its own.
#[must_use]
pub fn block(text: &str) -> Markup {
    html! { pre.text dir="auto" tabindex="0" { (escaped(text)) } }
}

/// What stands for text in markup: signs for what is not to be seen, the rest escaped.
#[must_use]
pub fn escaped(text: &str) -> PreEscaped<String> {
    let mut out = String::with_capacity(text.len() + text.len() / 16);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            '\r' if chars.peek() == Some(&'\n') => {}
            c if is_unseen(c) => sign(&mut out, c),
            c => out.push(c),
        }
    }
    PreEscaped(out)
}

fn is_unseen(c: char) -> bool {
    c.is_control()
        || turns_order(c)
        || matches!(c, '\u{200b}'..='\u{200d}' | '\u{2060}' | '\u{feff}' | '\u{2028}' | '\u{2029}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

fn sign(out: &mut String, c: char) {
    let number = u32::from(c);
    let picture = match c {
        '\u{7f}' => Some('\u{2421}'),
        _ if number < 0x20 => char::from_u32(0x2400 + number),
        _ => None,
    };
    let picture = picture.map_or_else(|| format!("U+{number:04X}"), String::from);
    out.push_str(&format!(
        "<span class=\"sign\" title=\"U+{number:04X}\">{picture}</span>"
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    // A result was a page with a script in it; a name turned the letters after it around; a NUL
    // ended the page for a parser. All of it must come out as what it is: text.
    #[test]
    fn hostile_text_stays_text() {
        let text = "<script>alert('x')</script>&amp;\u{202e}txt.exe\0\u{1b}[2J\r\nend\u{200b}\"";
        let out = escaped(text).0;
        for wrong in ["<script", "\u{202e}", "\0", "\u{1b}", "\r", "\u{200b}", "'"] {
            assert!(!out.contains(wrong), "{wrong:?} in {out}");
        }
        assert!(out.starts_with("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;amp;"));
        assert!(out.contains(">U+202E</span>txt.exe") && out.contains(">\u{2400}</span>"));
        assert!(shown(text).into_string().starts_with("<bdi>"));
    }

    // A page of letters that are shown as signs, or of quotes, was ten times as large as one of
    // words: what is cut is cut by what it makes.
    #[test]
    fn markup_fits() {
        for text in ["\0\u{202e}", "\"'&<>", "é\u{e0041}日", "plain \r\n\t"] {
            let text = text.repeat(500);
            for max in [0, 1, 7, 100, 3_000] {
                let end = fitting(&text, max);
                assert!(escaped(&text[..end]).0.len() <= max, "{max}: {text:.20}");
            }
            assert_eq!(fitting(&text, 100_000), text.len());
        }
        assert_eq!(fitting("abc", 2), 2);
        assert!(headline(&"\0".repeat(500), 100).into_string().len() < 900);
    }

    // Words of any language are left as they are.
    #[test]
    fn plain_text_is_left_alone() {
        for text in ["שלום 日本 äöü 🙂", "a\tb\nc", ""] {
            assert_eq!(escaped(text).0, text);
        }
        assert_eq!(first("\n  one two\nthree", 7), "one two …");
        assert_eq!(first("äöü", 2), "äö …");
    }
}
