//! Finds encoded data (base64, hexadecimal, encrypted) and NUL padding in texts. A model cannot use
//! it, but in some results it is most of the bytes.

use std::borrow::Cow;

/// Shorter runs are ids, hashes and keys.
const LEAST_BYTES: usize = 160;
/// Shorter runs of NUL bytes may be separators.
const FILLED_BYTES: usize = 32;
/// Minimum percentage of digits in encoded data. Names and paths have fewer.
const DIGITS_PERCENT: usize = 5;
/// Minimum percentage of bytes in encoded data whose kind (lower case, upper case, digit) differs
/// from that of the byte before. Names and paths have fewer.
const CHANGES_PERCENT: usize = 30;
/// How far before a run to look for the start of a URL, in bytes.
const ADDRESS_BYTES_MAX: usize = 2_048;

/// Whether a text has NUL padding, or is JSON with encoded data in several places (such as search
/// results with encrypted fields beside titles and URLs). A single piece of encoded data may be the
/// requested answer.
pub(super) fn are_beside(text: &str) -> bool {
    if filled(text, 0).is_some() {
        return true;
    }
    let is_json = text.trim_start().starts_with(['{', '[']);
    is_json && next(text, 0).is_some_and(|(_, end)| next(text, end).is_some())
}

/// Returns the text with each run of encoded data replaced by its first `head` bytes and the number
/// of omitted bytes.
pub(super) fn without(text: &str, head: usize) -> Cow<'_, str> {
    without_and_bytes(text, head).0
}

/// As [`without`], and returns the number of omitted bytes.
pub(super) fn without_and_bytes(text: &str, head: usize) -> (Cow<'_, str>, usize) {
    let Some(mut found) = next(text, 0) else {
        return (Cow::from(text), 0);
    };
    let mut told = String::new();
    let (mut done, mut gone) = (0, 0);
    loop {
        let (start, end) = found;
        told.push_str(&text[done..start + head]);
        told.push_str(&format!("[… {} bytes …]", end - start - head));
        gone += end - start - head;
        done = end;
        match next(text, done) {
            Some(more) => found = more,
            None => break,
        }
    }
    told.push_str(&text[done..]);
    (Cow::from(told), gone)
}

/// Start and end of the next run of encoded data or NUL padding.
fn next(text: &str, from: usize) -> Option<(usize, usize)> {
    match (encoded_at(text, from), filled(text, from)) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Start and end of the next run of NUL bytes.
fn filled(text: &str, from: usize) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    let mut at = from;
    while let Some(start) = bytes[at..].iter().position(|byte| *byte == 0) {
        let start = at + start;
        let run = bytes[start..].iter().position(|byte| *byte != 0);
        let end = run.map_or(bytes.len(), |run| start + run);
        if end - start >= FILLED_BYTES {
            return Some((start, end));
        }
        at = end;
    }
    None
}

/// Start and end of the next run of encoded data.
fn encoded_at(text: &str, from: usize) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    let mut at = from;
    while at + LEAST_BYTES <= bytes.len() {
        // A run of the minimum length contains this position or begins after it.
        let probe = at + LEAST_BYTES - 1;
        if !may_encode(bytes[probe]) {
            at = probe + 1;
            continue;
        }
        let start = bytes[at..probe].iter().rposition(|byte| !may_encode(*byte));
        let start = start.map_or(at, |before| at + before + 1);
        let end = bytes[probe..].iter().position(|byte| !may_encode(*byte));
        let end = end.map_or(bytes.len(), |more| probe + more);
        if is_encoded(&bytes[start..end]) && !is_address(text, start) {
            return Some((start, end));
        }
        at = end.max(probe + 1);
    }
    None
}

fn may_encode(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=' | b'_' | b'-')
}

fn is_encoded(run: &[u8]) -> bool {
    let kind = |byte: &u8| match byte {
        b'a'..=b'z' => Some(0_u8),
        b'A'..=b'Z' => Some(1),
        b'0'..=b'9' => Some(2),
        _ => None,
    };
    let (mut digits, mut changes, mut last) = (0, 0, None);
    for kind in run.iter().filter_map(kind) {
        digits += usize::from(kind == 2);
        changes += usize::from(last.is_some_and(|last| last != kind));
        last = Some(kind);
    }
    run.len() >= LEAST_BYTES
        && digits * 100 >= run.len() * DIGITS_PERCENT
        && changes * 100 >= run.len() * CHANGES_PERCENT
}

/// Whether the run is part of a URL (`https://…`). A cut URL is useless.
fn is_address(text: &str, at: usize) -> bool {
    let from = text.ceil_char_boundary(at.saturating_sub(ADDRESS_BYTES_MAX));
    let before = &text[from..at];
    let word = before.rfind(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '('));
    before[word.unwrap_or(0)..].contains("://")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Deterministic pseudo-random text over the base64 alphabet.
    fn encoded(bytes: usize) -> String {
        let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut state = 7_u64;
        let next = |_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            char::from(digits[(state >> 58) as usize])
        };
        (0..bytes).map(next).collect()
    }

    // A search result had 30 kB of encrypted text and 2 kB of titles and URLs.
    #[test]
    fn encoded_data_is_replaced_anywhere_in_a_text() {
        let blob = encoded(4_000);
        for (before, after) in [
            ("", ""),
            (r#"[{"encrypted_content": ""#, r#"", "title": "Weather"}]"#),
            ("see data:image/png;base64,", " and more"),
            ("x".repeat(1_000).as_str(), " ä"),
        ] {
            let text = format!("{before} {blob}{after}");
            let told = format!("{before} [… 4000 bytes …]{after}");
            assert_eq!(without(&text, 0), told);
        }
        let told = format!("{}[… 3984 bytes …]", &blob[..16]);
        assert_eq!(without(&blob, 16), told);

        let hex: String = encoded(900)
            .bytes()
            .map(|byte| format!("{:x}", byte % 16))
            .collect();
        assert_eq!(without(&hex, 0), "[… 900 bytes …]", "{hex}");
        let two = format!("{blob} and {blob}");
        assert_eq!(without(&two, 0), "[… 4000 bytes …] and [… 4000 bytes …]");
    }

    // The output of `cat message.b64` is the encoded data itself, so it stays while there is room.
    #[test]
    fn result_of_one_encoded_value_is_kept_while_it_fits() {
        let blob = encoded(900);
        let one = format!(r#"{{"stdout": "{blob}", "code": 0}}"#);
        let two = format!(r#" [{{"data": "{blob}"}}, {{"data": "{blob}"}}]"#);
        let plain = format!("{blob}\n{blob}\n");
        assert!(!are_beside(&blob) && !are_beside(&one) && !are_beside(&plain));
        assert!(are_beside(&two));
    }

    // `gunzip -c` of an archive printed 10,240 bytes, of which 10,127 were NUL. They took 5,154 of
    // 5,801 tokens.
    #[test]
    fn runs_of_nul_bytes_are_replaced() {
        let text = format!("a.txt{}hello\0\0{}", "\0".repeat(500), "\0".repeat(3));
        assert!(are_beside(&text));
        assert_eq!(without(&text, 0), "a.txt[… 500 bytes …]hello\0\0\0\0\0");
    }

    // Long paths, names, URLs, separators and short hashes are not encoded data.
    #[test]
    fn plain_text_is_not_taken_for_encoded_data() {
        let signed = format!("(https://host.example/a/b?sig={}&x=1)", encoded(600));
        for text in [
            "/home/dev/projects/2024-11-02-some-long-slug/".repeat(20),
            "TestConcurrentSessionWarningDisabledViaSetting".repeat(10),
            "a".repeat(5_000),
            "-".repeat(5_000),
            "0123456789".repeat(100),
            "3f2a9c1e7b".repeat(4),
            "ä".repeat(1_000),
            signed,
            String::new(),
        ] {
            assert_eq!(without(&text, 0), text);
        }
    }
}
