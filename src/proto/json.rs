//! Checks that bytes are JSON text, and keeps them unchanged.

use bytes::Bytes;
use serde::de::IgnoredAny;

use treering_domain::{
    JsonText,
    limits::{JSON_DEPTH_MAX, JSON_VALUES_MAX},
};

/// Why bytes are not accepted as JSON. Never quotes the payload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonFault {
    /// There are no bytes.
    #[error("the value is empty; send JSON text, for example {{}}")]
    Empty,
    /// The bytes are not UTF-8.
    #[error("not UTF-8 from byte {offset} on")]
    NotUtf8 {
        /// The first invalid byte.
        offset: usize,
    },
    /// The text is not JSON (RFC 8259).
    #[error("not JSON at byte {offset}")]
    Syntax {
        /// Where the parser stopped.
        offset: usize,
    },
    /// The nesting is deeper than readers accept.
    #[error("nested deeper than {max} levels at byte {offset}")]
    TooDeep {
        /// The byte where the limit was exceeded.
        offset: usize,
        /// The bound.
        max: usize,
    },
    /// There are more values than a reader should hold in memory.
    #[error("more than {max} values")]
    TooMany {
        /// The bound.
        max: usize,
    },
}

/// Checks and copies JSON text, byte for byte.
///
/// # Errors
/// [`JsonFault`] if the bytes are not one JSON value in UTF-8, or are nested too deeply.
pub fn check(bytes: &[u8]) -> Result<JsonText, JsonFault> {
    check_text(bytes)?;
    Ok(JsonText::from_checked(Bytes::copy_from_slice(bytes)))
}

/// Like [`check`], without copying.
///
/// # Errors
/// As [`check`].
pub fn check_bytes(bytes: Bytes) -> Result<JsonText, JsonFault> {
    check_text(&bytes)?;
    Ok(JsonText::from_checked(bytes))
}

/// Checks bytes from a client: like [`check_bytes`], and with at most [`JSON_VALUES_MAX`]
/// values. That limit does not apply to stored JSON.
///
/// # Errors
/// As [`check`].
pub fn check_incoming(bytes: Bytes) -> Result<JsonText, JsonFault> {
    check_values(&bytes, JSON_VALUES_MAX)?;
    check_bytes(bytes)
}

/// Checks only the number of values, see [`count_values`].
///
/// # Errors
/// [`JsonFault::TooMany`].
pub fn check_values(bytes: &[u8], max: usize) -> Result<(), JsonFault> {
    // A text of fewer bytes cannot have that many values.
    if bytes.len() / 2 >= max && count_values(bytes) > max {
        return Err(JsonFault::TooMany { max });
    }
    Ok(())
}

/// Counts values in bytes that may be JSON. Valid JSON has no more values than this.
#[must_use]
pub fn count_values(bytes: &[u8]) -> usize {
    let mut tokens = Tokens::default();
    // Every value except the first follows a comma, a colon or an opening bracket.
    let begins =
        |byte: &&u8| tokens.is_token(**byte) && matches!(**byte, b',' | b':' | b'[' | b'{');
    1 + bytes.iter().filter(begins).count()
}

/// Tracks which bytes of a text are outside its strings.
#[derive(Default)]
struct Tokens {
    in_string: bool,
    escaped: bool,
}

impl Tokens {
    fn is_token(&mut self, byte: u8) -> bool {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return false;
        }
        self.in_string = byte == b'"';
        true
    }
}

/// Checks JSON text.
///
/// # Errors
/// As [`check`].
pub fn check_text(bytes: &[u8]) -> Result<(), JsonFault> {
    if bytes.is_empty() {
        return Err(JsonFault::Empty);
    }
    let text = std::str::from_utf8(bytes).map_err(|error| JsonFault::NotUtf8 {
        offset: error.valid_up_to(),
    })?;
    // serde_json skips values without recursion and accepts any depth, so count it here.
    check_depth(bytes)?;
    serde_json::from_str::<IgnoredAny>(text).map_err(|error| JsonFault::Syntax {
        offset: offset_of(text, &error),
    })?;
    Ok(())
}

/// Returns true if the bytes are JSON of any depth.
pub(super) fn is_syntax(bytes: &[u8]) -> bool {
    // serde_json skips values without recursion.
    serde_json::from_slice::<IgnoredAny>(bytes).is_ok()
}

fn check_depth(bytes: &[u8]) -> Result<(), JsonFault> {
    let mut depth = 0_usize;
    let mut tokens = Tokens::default();
    for (offset, byte) in bytes.iter().enumerate() {
        if !tokens.is_token(*byte) {
            continue;
        }
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > JSON_DEPTH_MAX {
            let max = JSON_DEPTH_MAX;
            return Err(JsonFault::TooDeep { offset, max });
        }
    }
    Ok(())
}

/// Converts the line and column of a `serde_json` error (both from 1) to a byte offset.
fn offset_of(text: &str, error: &serde_json::Error) -> usize {
    let before: usize = text
        .split_inclusive('\n')
        .take(error.line().saturating_sub(1))
        .map(str::len)
        .sum();
    (before + error.column().saturating_sub(1)).min(text.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // White space, key order, duplicate keys and the spelling of numbers must survive:
    // accepted JSON comes back byte for byte.
    #[test]
    fn accepted_json_is_unchanged() {
        for text in [
            "null",
            " {\"b\":1.50,\"a\":1e2,\"b\":3}\n",
            "\"\\ud83d\\ude00 ü\"",
            "123456789012345678901234567890",
            "[[],{}]",
        ] {
            let kept = check(text.as_bytes()).unwrap();
            assert_eq!(kept.as_str(), text);
        }
    }

    // An error must contain the offset, and must not contain the payload.
    #[test]
    fn json_fault_names_the_offset() {
        assert_eq!(check(b""), Err(JsonFault::Empty));
        assert_eq!(check(b"\"ab\xff\""), Err(JsonFault::NotUtf8 { offset: 3 }));
        assert_eq!(
            check(b"{\n \"a\": secret}"),
            Err(JsonFault::Syntax { offset: 8 })
        );
        let fault = check(b"{\"a\": 1} secret").unwrap_err();
        assert!(!fault.to_string().contains("secret"), "{fault}");
    }

    // serde_json reads at most 127 levels: deeper text would be stored and could not
    // be read again.
    #[test]
    fn json_depth_is_limited() {
        let nested = |depth: usize| [vec![b'['; depth], vec![b']'; depth]].concat();
        let deepest = nested(JSON_DEPTH_MAX);
        assert!(check(&deepest).is_ok());
        assert!(serde_json::from_slice::<serde_json::Value>(&deepest).is_ok());
        assert!(matches!(
            check(&nested(JSON_DEPTH_MAX + 1)),
            Err(JsonFault::TooDeep { offset: 127, .. })
        ));
        assert!(check(&nested(1_000_000)).is_err());
        assert!(check(b"\"[[[[\\\"[[[\"").is_ok());
    }

    // Two bytes of a list become 32 bytes in memory, and more in a map: a text within
    // its size limit can still be too large for a reader. Commas in strings do not count.
    #[test]
    fn incoming_json_values_are_limited() {
        let list = |values: usize| format!("[0{}]", ",0".repeat(values - 2));
        let most = list(JSON_VALUES_MAX);
        assert!(check_incoming(most.into()).is_ok());
        let more = list(JSON_VALUES_MAX + 1);
        let fault = check_incoming(more.clone().into()).unwrap_err();
        assert_eq!(
            fault,
            JsonFault::TooMany {
                max: JSON_VALUES_MAX
            }
        );
        assert!(check(more.as_bytes()).is_ok(), "what is stored is read");
        let text = format!("[\"{}\"]", ",\\\",".repeat(JSON_VALUES_MAX));
        assert!(check_incoming(text.into()).is_ok());
    }

    proptest! {
        // Arbitrary bytes must return a result without a panic, with an offset inside the
        // text.
        #[test]
        fn any_bytes_are_checked_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Err(JsonFault::Syntax { offset } | JsonFault::NotUtf8 { offset }) = check(&bytes) {
                prop_assert!(offset <= bytes.len());
            }
        }
    }
}
