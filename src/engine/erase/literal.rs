//! A text that somebody wants gone, in the forms in which it may be stored.

use memchr::memmem::Finder;

/// A shorter text is in nearly every event, in bytes.
pub(super) const LITERAL_BYTES_MIN: usize = 4;
/// No text that is looked for is longer, in bytes.
pub(super) const LITERAL_BYTES_MAX: usize = 64 << 10;
/// JSON within JSON within JSON is looked into: tools' arguments are that in what a source
/// sent.
const NESTED_MAX: usize = 2;

/// Finds a text as it is, and as JSON writes it.
#[derive(Debug)]
pub(super) struct Literal(Vec<Finder<'static>>);

impl Literal {
    pub fn new(literal: &[u8]) -> Self {
        let mut forms = vec![literal.to_vec()];
        let mut last = 0..1;
        for _ in 0..NESTED_MAX {
            let next = forms.len();
            for at in last {
                let Ok(text) = std::str::from_utf8(&forms[at]).map(str::to_owned) else {
                    continue;
                };
                for form in [
                    in_json(&text),
                    in_ascii_json(&text),
                    in_json(&text).replace('/', "\\/"),
                ] {
                    if !forms.contains(&form.clone().into_bytes()) {
                        forms.push(form.into_bytes());
                    }
                }
            }
            last = next..forms.len();
        }
        let finders = forms.iter().map(|form| Finder::new(form).into_owned());
        Self(finders.collect())
    }

    pub fn is_in(&self, bytes: &[u8]) -> bool {
        self.0.iter().any(|finder| finder.find(bytes).is_some())
    }
}

/// As the most writers of JSON have it.
fn in_json(text: &str) -> String {
    // A text is JSON.
    let quoted = serde_json::to_string(text).unwrap_or_default();
    let inner = quoted
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    inner.unwrap_or_default().to_owned()
}

/// As those have it that write nothing but ASCII.
fn in_ascii_json(text: &str) -> String {
    let mut written = String::new();
    for character in in_json(text).chars() {
        if character.is_ascii() {
            written.push(character);
            continue;
        }
        let mut units = [0; 2];
        for unit in character.encode_utf16(&mut units) {
            written.push_str(&format!("\\u{unit:04x}"));
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    // A secret with a quote or an umlaut is stored in other bytes than it was typed in
    // wherever it stands in JSON: whoever looks for those bytes only leaves it there.
    #[test]
    fn a_text_is_found_as_json_has_it() {
        let secret = "pass \"wörd\"/🌲\n";
        let literal = Literal::new(secret.as_bytes());
        let once = serde_json::json!({ "a": secret }).to_string();
        let twice = serde_json::json!({ "arguments": once }).to_string();
        let ascii = in_ascii_json(secret);
        for stored in [secret.to_owned(), once, twice, ascii] {
            assert!(literal.is_in(format!("x{stored}y").as_bytes()), "{stored}");
        }
        assert!(!literal.is_in(b"pass word"));
        assert!(Literal::new(&[0xff, 0, 1, 2]).is_in(&[7, 0xff, 0, 1, 2]));
    }
}
