//! Renders JSON, formatted and coloured.

use std::borrow::Cow;

use maud::{Markup, PreEscaped, html};
use serde::de::IgnoredAny;

use super::escape::{block, escaped};
use treering_present::text::pretty_json;

/// JSON with more commas and colons is shown unformatted: formatted and coloured, it would be ten
/// times as large.
const TOKENS_MAX: usize = 2_500;
/// JSON with fewer bytes per comma or colon is also shown unformatted, unless it is short.
const DENSE_BYTES: usize = 5;
/// JSON of up to this many bytes is formatted even if it is dense. See [`DENSE_BYTES`].
const SHORT_BYTES: usize = 100;

/// Formats JSON without changing its numbers or members: a person who approves a call must see what
/// the tool receives. Text that is not JSON is shown unchanged.
#[must_use]
pub(crate) fn pretty(text: &str) -> Markup {
    let tokens = text.bytes().filter(|byte| b",:".contains(byte)).count();
    if tokens > TOKENS_MAX || (text.len() > SHORT_BYTES && tokens * DENSE_BYTES > text.len()) {
        return block(text);
    }
    let is_json = serde_json::from_str::<IgnoredAny>(text).is_ok();
    let laid_out = match is_json {
        true => Cow::Owned(pretty_json(text)),
        false => Cow::Borrowed(text),
    };
    html! { pre.text.json tabindex="0" { (colored(&laid_out)) } }
}

/// Colours strings, names and numbers of JSON.
fn colored(text: &str) -> PreEscaped<String> {
    let mut out = String::with_capacity(text.len() * 2);
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (length, class) = match first {
            '"' => {
                let length = string_length(rest);
                let is_name = rest[length..].trim_start().starts_with(':');
                (length, if is_name { "jk" } else { "js" })
            }
            '-' | '0'..='9' => (span(rest, |c| "+-.eE0123456789".contains(c)), "jn"),
            c if c.is_ascii_alphabetic() => (span(rest, |c| c.is_ascii_alphabetic()), "jw"),
            _ => {
                let end = rest.find(|c: char| c == '"' || c == '-' || c.is_ascii_alphanumeric());
                (end.unwrap_or(rest.len()), "")
            }
        };
        let (piece, after) = rest.split_at(length.max(first.len_utf8()));
        match class {
            "" => out.push_str(&escaped(piece).0),
            class => out.push_str(&format!(
                "<span class=\"{class}\">{}</span>",
                escaped(piece).0
            )),
        }
        rest = after;
    }
    PreEscaped(out)
}

fn span(text: &str, is_of_it: impl Fn(char) -> bool) -> usize {
    text.find(|c| !is_of_it(c)).unwrap_or(text.len())
}

/// Returns the length in bytes of the string at the start of a text, with its quotes.
fn string_length(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Both values of a duplicate argument must be shown to the person who approves the call.
    #[test]
    fn formatted_json_shows_duplicate_keys() {
        let out = pretty(r#"{"run":"rm","run":"ls","n":1.10e2}"#).into_string();
        assert!(
            out.contains("rm") && out.contains("ls") && out.contains("1.10e2"),
            "{out}"
        );
        assert!(pretty("{ [  ]").into_string().contains("{ [  ]"));
    }

    // Colouring must not lose any text, even if it is not JSON.
    #[test]
    fn coloured_json_keeps_all_text() {
        for text in [
            r#"{"a\"b": [1, -2.5e3, true, null, "<b>ä</b>"]}"#,
            "\"open",
            "no json, - at all: é",
            "",
        ] {
            let out = colored(text).0;
            let mut plain = String::new();
            let mut is_tag = false;
            for c in out.chars() {
                match c {
                    '<' => is_tag = true,
                    '>' => is_tag = false,
                    c if !is_tag => plain.push(c),
                    _ => {}
                }
            }
            assert_eq!(plain, escaped(text).0, "{text}");
        }
        let dense = pretty(&format!("[{}1]", "1,".repeat(10_000))).into_string();
        assert!(dense.len() < 21_000, "{}", dense.len());
        let out = pretty(r#"{"k":"v"}"#).into_string();
        assert!(
            out.contains("class=\"jk\"") && out.contains("class=\"js\""),
            "{out}"
        );
    }
}
