//! Replaces characters that control a terminal or are invisible. Recorded text comes from anyone
//! who could write to a page, a file or a terminal that an agent read: it must not control the
//! reader's terminal, reorder the displayed text, or imitate our own output.

use std::borrow::Cow;

/// Returns recorded text as one line; unsafe characters, line ends included, are replaced by signs.
#[must_use]
pub fn printable(text: &str) -> String {
    with_signs(text, |c| c == '\t').into_owned()
}

/// Returns recorded text of several lines; only line ends and tabs are kept as they are.
#[must_use]
pub fn printable_lines(text: &str) -> String {
    match text.contains('\r') {
        true => with_signs(&text.replace("\r\n", "\n"), is_layout).into_owned(),
        false => with_signs(text, is_layout).into_owned(),
    }
}

/// Returns equivalent JSON text without unsafe characters. They can only occur in strings, where
/// they are escaped.
#[must_use]
pub fn printable_json(json: &str) -> Cow<'_, str> {
    if !json.contains(|c| is_unseen(c) && !is_layout(c)) {
        return json.into();
    }
    let mut shown = String::with_capacity(json.len() + json.len() / 16);
    for c in json.chars() {
        match c {
            // Outside of strings it is whitespace, and strings cannot contain it.
            '\r' => shown.push(' '),
            c if is_unseen(c) && !is_layout(c) => push_escape(&mut shown, c),
            c => shown.push(c),
        }
    }
    shown.into()
}

/// Appends a character as a JSON escape: `\u202e`.
pub fn push_escape(to: &mut String, c: char) {
    let mut units = [0; 2];
    for unit in c.encode_utf16(&mut units) {
        to.push_str(&format!("\\u{unit:04x}"));
    }
}

fn with_signs(text: &str, is_kept: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_shown_otherwise = |c: char| is_unseen(c) && !is_kept(c);
    if !text.contains(is_shown_otherwise) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + text.len() / 16);
    for c in text.chars() {
        match is_shown_otherwise(c) {
            true => shown.push_str(&sign(c)),
            false => shown.push(c),
        }
    }
    shown.into()
}

fn is_layout(c: char) -> bool {
    matches!(c, '\n' | '\t')
}

/// Returns the sign that replaces a character: `␛`, `<U+202E>`.
#[must_use]
pub(crate) fn sign(c: char) -> String {
    match picture(c) {
        Some(picture) => picture.into(),
        None => format!("<U+{:04X}>", u32::from(c)),
    }
}

/// Returns the Unicode control picture of a character; only C0 controls and DEL have one.
#[must_use]
pub fn picture(c: char) -> Option<char> {
    match u32::from(c) {
        0x7f => Some('\u{2421}'),
        number if number < 0x20 => char::from_u32(0x2400 + number),
        _ => None,
    }
}

/// True for characters that control a terminal, change the text direction, or are invisible.
#[must_use]
pub fn is_unseen(c: char) -> bool {
    // Fast path: nearly all text is printable ASCII.
    if (' '..='~').contains(&c) {
        return false;
    }
    c.is_control() || turns_order(c) || is_hidden(c)
}

/// True for characters that change the order in which others are displayed.
#[must_use]
pub(crate) fn turns_order(c: char) -> bool {
    matches!(
        c,
        '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

/// True for characters that are invisible to people but read by programs: zero-width spaces, tags,
/// and variation selectors that no text uses. Joiners of letters and emoji are not included.
#[must_use]
pub(crate) fn is_hidden(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{34f}' | '\u{180e}' | '\u{200b}' | '\u{2060}'..='\u{2064}' | '\u{206a}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Terminal codes in a tool result must not move the reader's cursor, and a line end in a name
    /// must not start a new line of output.
    #[test]
    fn control_characters_become_visible() {
        let text = "a\u{1b}[2J\tb\r\nc\u{9b}\rd\u{7f}";
        assert_eq!(printable(text), "a␛[2J\tb␍␊c<U+009B>␍d␡");
        assert_eq!(printable_lines(text), "a␛[2J\tb\nc<U+009B>␍d␡");
    }

    /// A name with a direction override reads as another one: `exe.txt` for `txt.exe`. The override
    /// must be shown, not applied.
    #[test]
    fn direction_overrides_become_visible() {
        assert_eq!(
            printable("a\u{202e}txt.exe\u{2066}"),
            "a<U+202E>txt.exe<U+2066>"
        );
        assert_eq!(
            printable("שלום 日本 👩\u{200d}💻"),
            "שלום 日本 👩\u{200d}💻"
        );
    }

    /// `--json` printed control characters, and the terminal interpreted them. With escapes, the
    /// string has the same meaning, and programs read what was recorded.
    #[test]
    fn json_escapes_control_characters() {
        let text = "a\u{9b}2J\u{7f}\u{202e}\u{200b}\u{e0041}\u{1b}é\n";
        let json = serde_json::to_string(text).unwrap();
        let shown = printable_json(&json);
        assert!(!shown.contains(is_unseen), "{shown:?}");
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), text);
        let pretty = "{\r\n\t\"a\": 1.50\r\n}";
        assert_eq!(printable_json(pretty), "{ \n\t\"a\": 1.50 \n}");
    }
}
