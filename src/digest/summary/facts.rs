//! Finds files, ids and open tasks in texts.

use std::collections::BTreeSet;

use super::text::{clip, one_line};

/// Maximum length of a file name or id, in bytes.
const NAME_BYTES_MAX: usize = 200;
/// Number of bytes read at the start and at the end of a text.
const LOOKED_AT_BYTES: usize = 32 << 10;

/// Files and ids in texts, each once, in order.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub files: Vec<String>,
    pub ids: Vec<String>,
    seen: BTreeSet<String>,
    max: usize,
}

impl Facts {
    /// Creates a list that keeps the last `max` files and the last `max` ids.
    pub fn new(max: usize) -> Self {
        Self {
            max,
            ..Self::default()
        }
    }

    /// Adds the files and ids in a text.
    pub fn note(&mut self, text: &str) {
        let (start, end) = ends(text);
        for token in tokens(start).chain(tokens(end)) {
            if is_file(token) {
                self.add(token, |facts| &mut facts.files);
            } else if is_id(token) {
                self.add(token, |facts| &mut facts.ids);
            }
        }
    }

    /// Adds an id with the name of its object.
    pub(crate) fn note_id(&mut self, id: &str, name: &str) {
        let (id, name) = (one_line(id), one_line(name));
        let told = if name.is_empty() {
            id
        } else {
            format!("{id} ({name})")
        };
        self.add(&clip(&told, 80), |facts| &mut facts.ids);
    }

    fn add(&mut self, token: &str, list: impl Fn(&mut Self) -> &mut Vec<String>) {
        let token = one_line(token);
        if token.is_empty() || !self.seen.insert(token.clone()) {
            return;
        }
        let max = self.max;
        let list = list(self);
        list.push(token);
        if list.len() > max {
            list.remove(0);
        }
    }
}

/// Returns the ids and dates in a text, in order.
pub(super) fn ids_and_dates(text: &str) -> impl Iterator<Item = &str> {
    let (start, end) = ends(text);
    let all = tokens(start).chain(tokens(end));
    all.filter(|token| !is_file(token) && (is_id(token) || is_date(token)))
}

/// Splits a text at blanks, quotes, brackets and punctuation.
fn tokens(text: &str) -> impl Iterator<Item = &str> {
    let parts = text.split(|c: char| c.is_whitespace() || "\"'`()[]{}<>,;|=“”".contains(c));
    let tokens = parts.map(|token| {
        let token = token.trim_start_matches([':', '!', '?', '*']);
        token.trim_end_matches(['.', ':', '!', '?', '*'])
    });
    tokens.filter(|token| (2..=NAME_BYTES_MAX).contains(&token.len()))
}

/// Whether a token is a date: `2026-11-22` or `2026-11-22T08:00`.
fn is_date(token: &str) -> bool {
    const FORM: &[u8] = b"0000-00-00";
    let (date, rest) = token.split_at_checked(FORM.len()).unwrap_or_default();
    let mut pairs = date.bytes().zip(FORM);
    let is_form = pairs.all(|(is, form)| match form {
        b'0' => is.is_ascii_digit(),
        _ => is == *form,
    });
    !date.is_empty() && is_form && (rest.is_empty() || rest.starts_with('T'))
}

/// Returns the start and end of a text without overlap, at most [`LOOKED_AT_BYTES`] each.
fn ends(text: &str) -> (&str, &str) {
    if text.len() <= 2 * LOOKED_AT_BYTES {
        return (text, "");
    }
    let (mut start, mut end) = (LOOKED_AT_BYTES, text.len() - LOOKED_AT_BYTES);
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    while !text.is_char_boundary(end) {
        end += 1;
    }
    (&text[..start], &text[end..])
}

/// Whether a token is a path or a name with an extension, and not a URL, number or abbreviation.
fn is_file(token: &str) -> bool {
    if token.contains("://") || token.contains('@') || !token.contains(['.', '/']) {
        return false;
    }
    let plain = |c: char| c.is_alphanumeric() || "_-./~+@#$%:\\".contains(c);
    if !token.chars().all(plain) {
        return false;
    }
    let name = token.rsplit('/').next().unwrap_or(token);
    let extension = name.rsplit_once('.').filter(|(stem, extension)| {
        stem.chars().any(char::is_alphanumeric)
            && (1..=8).contains(&extension.len())
            && extension.starts_with(|c: char| c.is_ascii_alphabetic())
            && extension.chars().all(|c| c.is_ascii_alphanumeric())
    });
    match extension {
        // "e.g" and "U.S" have only letters and dots.
        Some((stem, extension)) => {
            token.contains('/') || !(stem.chars().count() == 1 && extension.len() == 1)
        }
        None => {
            let rooted =
                token.starts_with('/') || token.starts_with("./") || token.starts_with("~/");
            rooted && token.chars().any(char::is_alphabetic)
        }
    }
}

/// Whether a token is an id: `#123` (`#5` is a count), `ABC-1`, a UUID, a long hexadecimal number,
/// `name_123abc`, `gift_card_8190333`. Not `i-1`, `utf-8` or `0-9a-fA-F`.
pub(super) fn is_id(token: &str) -> bool {
    let digits = token.chars().filter(char::is_ascii_digit).count();
    if digits == 0 || !token.is_ascii() {
        return false;
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if let Some(number) = token.strip_prefix('#') {
        return number.len() > 1 && number.chars().all(plain);
    }
    if !token.chars().all(plain) {
        return false;
    }
    let is_hex = token.chars().all(|c| c.is_ascii_hexdigit());
    let has_letter = token.contains(|c: char| c.is_ascii_alphabetic());
    if is_hex && token.len() >= 7 && has_letter || is_uuid(token) {
        return true;
    }
    let Some((word, rest)) = token.rsplit_once(['-', '_']) else {
        return is_code(token);
    };
    let of_words = |c: char| c.is_ascii_alphabetic() || c == '-' || c == '_';
    let is_name = word.starts_with(|c: char| c.is_ascii_alphabetic()) && word.chars().all(of_words);
    let is_key = word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase());
    let is_known = ["UTF", "SHA", "ISO", "AES", "RSA", "MD"]
        .iter()
        .any(|known| word.eq_ignore_ascii_case(known));
    let rest_digits = rest.chars().filter(char::is_ascii_digit).count();
    let begins = rest.starts_with(|c: char| c.is_ascii_digit());
    is_name && begins && !is_known && (rest_digits > 1 || is_key)
}

fn is_uuid(token: &str) -> bool {
    let lengths = token.split('-').map(str::len);
    let is_hex = |c: char| c.is_ascii_hexdigit() || c == '-';
    lengths.eq([8, 4, 4, 4, 12]) && token.chars().all(is_hex)
}

/// Whether a token is a booking code like `OBUT9V`, with mixed capitals and digits. `SHA256` and
/// `R2D2` are not.
fn is_code(token: &str) -> bool {
    let is_capital = |c: char| c.is_ascii_uppercase();
    let plain = |c: char| is_capital(c) || c.is_ascii_digit();
    let turns = token.as_bytes().windows(2);
    let turns = turns.filter(|pair| pair[0].is_ascii_digit() != pair[1].is_ascii_digit());
    (6..=12).contains(&token.len())
        && token.chars().all(plain)
        && token.contains(is_capital)
        && turns.count() > 1
}

/// Returns the open tasks in a text: unticked boxes, and lines that begin with `TODO`.
pub(super) fn open_tasks(text: &str) -> Vec<String> {
    const SIGNS: [&str; 5] = ["- [ ]", "* [ ]", "[ ]", "☐", "TODO"];
    let mut tasks = Vec::new();
    let (start, end) = ends(text);
    for line in start.lines().chain(end.lines()) {
        let line = line.trim_start();
        let rest = SIGNS.iter().find_map(|sign| line.strip_prefix(sign));
        let task = rest.map(|rest| one_line(rest.trim_start_matches(':')));
        tasks.extend(
            task.filter(|task| !task.is_empty())
                .map(|task| clip(task.trim(), 160)),
        );
    }
    tasks
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The model that continues needs files and ids, not numbers, dates, URLs or abbreviations.
    #[test]
    fn facts_list_files_and_ids() {
        let mut facts = Facts::new(20);
        facts.note(
            "Changed src/main.rs and `Cargo.toml` (see /etc/hosts, ./run), e.g. for #1204, point #5; \
             order ORD-7731, commit 3f2a9bc1, version 1.2.3, on 2026-11-22, 42 times. \
             {\"path\":\"data/rows.csv\",\"user\":\"user_12\"} https://example.org/a.html",
        );
        facts.note("again src/main.rs");
        facts.note_id("cust-1", "Ada");
        assert_eq!(
            facts.files,
            [
                "src/main.rs",
                "Cargo.toml",
                "/etc/hosts",
                "./run",
                "data/rows.csv"
            ]
        );
        assert_eq!(
            facts.ids,
            ["#1204", "ORD-7731", "3f2a9bc1", "user_12", "cust-1 (Ada)"]
        );
    }

    // `0-9a-fA-F` and `N-1` only look like ids; the booking code `OBUT9V` is one.
    #[test]
    fn ids_are_recognised() {
        for id in [
            "OBUT9V",
            "KA7I60",
            "ENT-7",
            "gift_card_7480005",
            "sofia_kim_7287",
            "01a20421-a317-758a-80c0-fb969e7daa93",
            "#123",
        ] {
            assert!(is_id(id), "{id}");
        }
        for other in [
            "0-9a-fA-F",
            "i-1",
            "sessionCount-1",
            "N-1",
            "utf-8",
            "SHA-256",
            "SHA256",
            "2026-11-22",
            "README",
            "#5",
        ] {
            assert!(!is_id(other), "{other}");
        }
    }

    /// A long history names more files than a summary can list. The last ones matter most.
    #[test]
    fn facts_keep_the_newest_files() {
        let mut facts = Facts::new(2);
        facts.note("a/1.rs a/2.rs a/3.rs");
        assert_eq!(facts.files, ["a/2.rs", "a/3.rs"]);
    }

    #[test]
    fn open_tasks_are_found_in_checklists() {
        let text = "Plan:\n- [x] read\n- [ ] write tests\n  TODO: docs\n[ ]\n";
        assert_eq!(open_tasks(text), ["write tests", "docs"]);
    }
}
