//! Formats JSON text with line breaks. It works on the text, because parsing it would change
//! numbers, and a request must be shown as it would be sent.

use super::{is_unseen, push_escape};

/// Spaces per level.
const STEP: usize = 2;

/// Puts each member and element of a JSON text on its own line. Everything except whitespace
/// between tokens is unchanged, even if the text is not valid JSON; control characters in strings
/// are written as escapes.
#[must_use]
pub fn pretty_json(text: &str) -> String {
    let mut to = String::with_capacity(text.len() * 5 / 4);
    let mut depth = 0_usize;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' => {
                to.push('"');
                string(&mut chars, &mut to);
            }
            '{' | '[' => {
                to.push(c);
                while chars.next_if(|c| c.is_ascii_whitespace()).is_some() {}
                match chars.next_if(|c| matches!(c, '}' | ']')) {
                    Some(end) => to.push(end),
                    None => {
                        depth += 1;
                        new_line(&mut to, depth);
                    }
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                new_line(&mut to, depth);
                to.push(c);
            }
            ',' => {
                to.push(',');
                new_line(&mut to, depth);
            }
            ':' => to.push_str(": "),
            c if c.is_ascii_whitespace() => {}
            c => to.push(c),
        }
    }
    to
}

/// Copies the rest of a string, with its escapes.
fn string(chars: &mut impl Iterator<Item = char>, to: &mut String) {
    while let Some(c) = chars.next() {
        match c {
            // An escape means the same in JSON, and a terminal does not interpret it.
            c if is_unseen(c) => push_escape(to, c),
            '\\' => {
                to.push(c);
                to.extend(chars.next());
            }
            '"' => {
                to.push(c);
                return;
            }
            c => to.push(c),
        }
    }
}

fn new_line(to: &mut String, depth: usize) {
    to.push('\n');
    to.extend(std::iter::repeat_n(' ', depth * STEP));
}

#[cfg(test)]
mod tests {
    use super::*;

    // Users copy and send the output: numbers, key order, duplicate keys and string contents must
    // not change.
    #[test]
    fn pretty_json_changes_only_white_space() {
        let text = r#"{"b":1.10e2,"a":[ ],"o":{},"l":[1, 2],"s":"x: [\"y\",\\","s":"ü"}"#;
        let expected = r#"{
  "b": 1.10e2,
  "a": [],
  "o": {},
  "l": [
    1,
    2
  ],
  "s": "x: [\"y\",\\",
  "s": "ü"
}"#;
        assert_eq!(pretty_json(text), expected);
        assert_eq!(pretty_json("\"open"), "\"open");
        assert_eq!(pretty_json("\"\u{9b}2J\""), "\"\\u009b2J\"");
        assert_eq!(pretty_json("\"\u{202e}\""), "\"\\u202e\"");
        assert_eq!(pretty_json("]]"), "\n]\n]");
    }
}
