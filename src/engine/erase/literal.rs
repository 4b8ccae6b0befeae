//! Finds a literal to be erased, in any JSON spelling.

use std::borrow::Cow;

use memchr::{memchr, memmem::Finder};

/// Minimum length of a literal, in bytes: a shorter one occurs in nearly every event.
pub(super) const LITERAL_BYTES_MIN: usize = 4;
/// Maximum length of a literal, in bytes.
pub(super) const LITERAL_BYTES_MAX: usize = 64 << 10;
/// Maximum nesting of JSON that is examined. JSON within JSON within JSON does occur: a tool's
/// arguments inside a source's raw message.
const NESTED_MAX: usize = 3;

/// Finds a text literally and in JSON-escaped form. JSON writers escape differently, so the search
/// unescapes the stored bytes, once per nesting level, instead of escaping the text.
#[derive(Debug)]
pub(super) struct Literal(Box<Finder<'static>>);

impl Literal {
    pub(crate) fn new(literal: &[u8]) -> Self {
        Self(Box::new(Finder::new(literal).into_owned()))
    }

    pub(crate) fn is_in(&self, bytes: &[u8]) -> bool {
        let mut read = Cow::from(bytes);
        for _ in 0..NESTED_MAX {
            if self.0.find(&read).is_some() {
                return true;
            }
            let Some(first) = memchr(b'\\', &read) else {
                return false;
            };
            read = unescaped(&read, first).into();
        }
        self.0.find(&read).is_some()
    }
}

/// Decodes JSON escapes from offset `first` on; invalid escapes stay as they are.
fn unescaped(bytes: &[u8], first: usize) -> Vec<u8> {
    let mut read = Vec::with_capacity(bytes.len());
    read.extend_from_slice(&bytes[..first]);
    let mut rest = &bytes[first..];
    while let Some(&[next, ..]) = rest.first_chunk::<1>() {
        let escaped = (next == b'\\').then(|| escape(&rest[1..])).flatten();
        let Some((character, taken)) = escaped else {
            read.push(next);
            rest = &rest[1..];
            continue;
        };
        let mut buffer = [0; 4];
        read.extend_from_slice(character.encode_utf8(&mut buffer).as_bytes());
        rest = &rest[1 + taken..];
    }
    read
}

/// Decodes the escape after a backslash; returns the character and the number of bytes used.
fn escape(behind: &[u8]) -> Option<(char, usize)> {
    Some(match behind.first()? {
        b'"' => ('"', 1),
        b'\\' => ('\\', 1),
        b'/' => ('/', 1),
        b'b' => ('\u{8}', 1),
        b'f' => ('\u{c}', 1),
        b'n' => ('\n', 1),
        b'r' => ('\r', 1),
        b't' => ('\t', 1),
        b'u' => return unicode(&behind[1..]).map(|(character, taken)| (character, 1 + taken)),
        _ => return None,
    })
}

/// Decodes four hexadecimal digits, or a surrogate pair of such escapes.
fn unicode(digits: &[u8]) -> Option<(char, usize)> {
    let first = unit(digits)?;
    if let Some(character) = char::from_u32(first) {
        return Some((character, 4));
    }
    let second = unit(digits.get(4..)?.strip_prefix(b"\\u")?)?;
    let pair = [u16::try_from(first).ok()?, u16::try_from(second).ok()?];
    let character = char::decode_utf16(pair).next()?.ok()?;
    Some((character, 10))
}

fn unit(digits: &[u8]) -> Option<u32> {
    let four = digits.get(..4)?;
    let digit = |value: u32, byte: &u8| Some(value << 4 | char::from(*byte).to_digit(16)?);
    four.iter().try_fold(0, digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Escapes everything except letters and digits, with hex digits of either case.
    fn all_escaped(text: &str, upper: bool) -> String {
        let mut written = String::new();
        for character in text.chars() {
            if character.is_ascii_alphanumeric() {
                written.push(character);
                continue;
            }
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                written.push_str(&match upper {
                    true => format!("\\u{unit:04X}"),
                    false => format!("\\u{unit:04x}"),
                });
            }
        }
        written
    }

    // In JSON, a secret with a quote or an umlaut is stored as different bytes, and every JSON
    // writer escapes differently: a search for some spellings would miss the others.
    #[test]
    fn literal_is_found_in_any_json_escaping() {
        let secret = "pass \"wörd\" <a&b>/🌲\\\n";
        let literal = Literal::new(secret.as_bytes());
        let json = |text: &str| serde_json::json!({ "a": text }).to_string();
        let slashes = |text: &str| json(text).replace('/', "\\/");
        let go = |text: &str| {
            let text = json(text).replace('<', "\\u003c").replace('>', "\\u003e");
            text.replace('&', "\\u0026")
        };
        let php = |text: &str| {
            let text = slashes(text).replace('ö', "\\u00f6");
            text.replace('🌲', "\\ud83c\\udf32")
        };
        let upper = |text: &str| all_escaped(text, true);
        let lower = |text: &str| all_escaped(text, false);
        let writers: [&dyn Fn(&str) -> String; 6] = [&json, &slashes, &go, &php, &upper, &lower];
        assert!(literal.is_in(format!("x{secret}y").as_bytes()));
        for first in writers {
            let once = first(secret);
            assert!(literal.is_in(once.as_bytes()), "{once}");
            for second in writers {
                let twice = second(&once);
                assert!(literal.is_in(twice.as_bytes()), "{twice}");
                for third in writers {
                    let thrice = third(&twice);
                    assert!(literal.is_in(thrice.as_bytes()), "{thrice}");
                }
            }
        }
        assert!(!literal.is_in(b"pass word"));
        assert!(Literal::new(&[0xff, 0, 1, 2]).is_in(&[7, 0xff, 0, 1, 2]));
    }

    // Bytes that only look like an escape must be kept literally and must not end the search.
    #[test]
    fn invalid_escapes_are_literal_bytes() {
        let literal = Literal::new(b"C:\\users\\new");
        assert!(literal.is_in(br"at C:\users\new"));
        assert!(literal.is_in(br#"{"at":"C:\\users\\new"}"#));
        let found = Literal::new(b"secret");
        for before in [r"\", r"\u", r"\u00", r"\ud83c", r"\ud83c\u0041", r"\x"] {
            assert!(
                found.is_in(format!("{before} sec\\u0072et").as_bytes()),
                "{before}"
            );
        }
    }
}
