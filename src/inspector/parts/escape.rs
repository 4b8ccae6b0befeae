//! Renders recorded text safely. The text is untrusted: it may come from any page, file or terminal
//! that an agent has read. Its markup is shown as text. Control characters and direction overrides
//! are shown as visible signs. Recorded text cannot reorder the text beside it.

use maud::{Markup, PreEscaped, html};

use treering_present::text::{is_unseen, picture};

/// Returns how many bytes of a text produce at most `markup_max` bytes of markup; one character can
/// produce [`SIGN_BYTES`].
#[must_use]
pub(crate) fn fitting(text: &str, markup_max: usize) -> usize {
    // An upper bound: a `\r` before `\n` counts as a sign here, but produces nothing.
    let mut left = markup_max;
    for (at, c) in text.char_indices() {
        let bytes = match c {
            '&' | '\'' => 5,
            '<' | '>' => 4,
            '"' => 6,
            '\n' | '\t' => 1,
            c if is_sign(c) => SIGN_BYTES,
            c => c.len_utf8(),
        };
        if bytes > left {
            return at;
        }
        left -= bytes;
    }
    text.len()
}

/// Maximum length of a sign's markup, in bytes.
const SIGN_BYTES: usize = 56;

/// Renders recorded text within a line of the page.
#[must_use]
pub(crate) fn escape_inline(text: &str) -> Markup {
    html! { bdi { (escaped(text)) } }
}

/// Renders the first line of recorded text, cut to `chars_max` characters.
#[must_use]
pub(crate) fn headline(text: &str, chars_max: usize) -> Markup {
    let first = first(text, chars_max);
    match fitting(&first, 8 * chars_max) {
        end if end < first.len() => html! { (escape_inline(&first[..end])) " …" },
        _ => escape_inline(&first),
    }
}

/// Returns the first line that is not blank, cut to `chars_max` characters; unsafe characters are
/// left for [`escaped`] to replace.
#[must_use]
pub(crate) fn first(text: &str, chars_max: usize) -> String {
    let mut lines = text.lines().map(str::trim);
    let line = lines.find(|line| !line.is_empty()).unwrap_or_default();
    match line.char_indices().nth(chars_max) {
        Some((at, _)) => format!("{} …", &line[..at]),
        None if text.trim().len() > line.len() => format!("{line} …"),
        None => line.to_owned(),
    }
}

/// Renders recorded text as a block with its own lines.
#[must_use]
pub(crate) fn block(text: &str) -> Markup {
    html! { pre.text dir="auto" tabindex="0" { (escaped(text)) } }
}

/// Returns the markup of a text: signs for invisible characters, the rest escaped.
#[must_use]
pub(crate) fn escaped(text: &str) -> PreEscaped<String> {
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
            c if is_sign(c) => sign(&mut out, c),
            c => out.push(c),
        }
    }
    PreEscaped(out)
}

/// Replaces characters in a finished page that could control a terminal or override the text
/// direction. They come from form values. Most become character references, which browsers resolve.
/// Browsers resolve references to NUL and C1 control characters to other characters, so these
/// become text such as `<U+009B>`.
#[must_use]
pub(crate) fn referenced(page: String) -> String {
    let is_raw = |c: char| is_unseen(c) && !matches!(c, '\n' | '\t');
    if !page.contains(is_raw) {
        return page;
    }
    let mut out = String::with_capacity(page.len() + page.len() / 16);
    for c in page.chars() {
        match c {
            '\0' | '\u{80}'..='\u{9f}' => out.push_str(&format!("&lt;U+{:04X}&gt;", u32::from(c))),
            c if is_raw(c) => out.push_str(&format!("&#x{:x};", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

/// True for a character that is shown as a sign. On a page, these include joiners and the Unicode
/// line and paragraph separators.
fn is_sign(c: char) -> bool {
    is_unseen(c) || matches!(c, '\u{200c}' | '\u{200d}' | '\u{2028}' | '\u{2029}')
}

fn sign(out: &mut String, c: char) {
    let number = u32::from(c);
    let shown = picture(c).map_or_else(|| format!("U+{number:04X}"), String::from);
    out.push_str(&format!(
        "<span class=\"sign\" title=\"U+{number:04X}\">{shown}</span>"
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    // A script in a result, an override that reverses the letters after it, and a NUL that ends the
    // page for a parser must all be output as text.
    #[test]
    fn hostile_text_is_escaped() {
        let text = "<script>alert('x')</script>&amp;\u{202e}txt.exe\0\u{1b}[2J\r\nend\u{200b}\"";
        let out = escaped(text).0;
        for wrong in ["<script", "\u{202e}", "\0", "\u{1b}", "\r", "\u{200b}", "'"] {
            assert!(!out.contains(wrong), "{wrong:?} in {out}");
        }
        assert!(out.starts_with("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;amp;"));
        assert!(out.contains(">U+202E</span>txt.exe") && out.contains(">\u{2400}</span>"));
        assert!(escape_inline(text).into_string().starts_with("<bdi>"));
    }

    // A page of quotes, or of characters that become signs, would be ten times as large as a page
    // of words. Texts must be cut by the size of their markup.
    #[test]
    fn text_is_cut_by_the_size_of_its_markup() {
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

    // The value of a form must be returned unchanged, so it may contain characters that are shown
    // as signs elsewhere. They must not control the terminal of somebody who views a page with
    // `curl`.
    #[test]
    fn form_values_are_encoded_without_control_characters() {
        let page = html! { input value="a\u{1b}[2J\r\n\u{202e}\u{9b}m\0é"; }.into_string();
        let page = referenced(page);
        assert_eq!(
            page,
            "<input value=\"a&#x1b;[2J&#xd;\n&#x202e;&lt;U+009B&gt;m&lt;U+0000&gt;é\">"
        );
        assert_eq!(referenced(page.clone()), page);
    }

    // Words of any language must not be changed.
    #[test]
    fn plain_text_is_not_changed() {
        for text in ["שלום 日本 äöü 🙂", "a\tb\nc", ""] {
            assert_eq!(escaped(text).0, text);
        }
        assert_eq!(first("\n  one two\nthree", 7), "one two …");
        assert_eq!(first("äöü", 2), "äö …");
    }
}
