//! Turns text into terms. Handles the texts of agents: prose, identifiers, paths, code, numbers and
//! CJK. Indexing, queries and snippets share this analysis.
//!
//! - A run of letters and digits is a **part**, in lower case. `camelCase` and `HTTPServer` are cut
//!   at case changes. Any other character separates, so `snake_case`, `kebab-case`, `a.b`, `a::b`
//!   and paths are split too. Each part takes the next position: the words of a path form a phrase,
//!   and a query for the tail of a path finds the path.
//! - An identifier of several parts also gives one **whole** (`parseConfig` and `parse_config` both
//!   give `parseconfig`), at the position of its first part.
//! - An English word whose stem differs also gives its **stem**, at the same position: phrases
//!   match exact words, and single words match related forms.
//! - A run with many changes between letters and digits (a hash, a call id) is not cut. A run over
//!   `RUN_BYTES_MAX` is not indexed, but takes a position.
//! - A name after a defining keyword (`func`, `def`, `class` …) also gives a **definition**, since
//!   definitions are searched for more often than uses.
//! - CJK and other scripts without blanks give overlapping pairs.
//!
//! Any change here changes the contents of an index: raise `super::index::INDEX_VERSION`.

use std::{collections::HashMap, ops::Range};

use foldhash::fast::RandomState;
use frostem::{Algorithm, Stemmer};

use super::document::floor_boundary;

/// Longest run of letters and digits that is indexed, in bytes. A SHA-512 in hex has 128; longer
/// runs are encoded blobs that nobody types.
pub(crate) const RUN_BYTES_MAX: usize = 256;
/// Maximum number of parts of one identifier; one with more is noise and stays uncut.
const PARTS_MAX: usize = 16;
/// Shortest run that may be taken for a hash or an id, in bytes.
const OPAQUE_BYTES_MIN: usize = 10;
/// Maximum number of cached stems: about 4 MiB. The cache is cleared when it is full.
const STEMS_MAX: usize = 32_768;

/// How a term was derived from its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TermForm {
    /// A word, or a part of an identifier.
    Part,
    /// An identifier of several parts, without separators.
    Whole,
    /// The stem of the part before it.
    Stem,
    /// The last character of a CJK run, for queries of one character.
    Tail,
    /// A name where it is defined: `DEFINITION_MARK` and the name.
    Definition,
}

/// The first character of a definition's term. No other term begins with it.
pub(super) const DEFINITION_MARK: char = '=';
/// Keywords that precede a defined name.
const DEFINING: [&str; 13] = [
    "fn",
    "def",
    "func",
    "type",
    "enum",
    "class",
    "const",
    "trait",
    "struct",
    "module",
    "function",
    "interface",
    "namespace",
];
/// Longest receiver between `func` and the name of a Go method, in bytes.
const RECEIVER_BYTES_MAX: usize = 80;

/// A term and its place in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AnalysedTerm<'a> {
    /// The term, in lower case.
    pub(crate) term: &'a str,
    /// How it was derived.
    pub(crate) form: TermForm,
    /// The offset of its first byte in the text.
    pub(crate) start: usize,
    /// The offset after its last byte.
    pub(crate) end: usize,
    /// The position of its part: the first part of a whole, the last part of a definition.
    pub(crate) position: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    term_start: u32,
    term_end: u32,
    start: u32,
    end: u32,
    position: u32,
    form: TermForm,
}

/// The terms of a text, in order of position.
#[derive(Clone, Debug, Default)]
pub(crate) struct Analysis {
    arena: String,
    entries: Vec<Entry>,
}

impl Analysis {
    /// Returns true when the text has no terms.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the term at this index.
    #[must_use]
    pub(crate) fn get(&self, index: usize) -> Option<AnalysedTerm<'_>> {
        self.entries.get(index).map(|entry| self.term(entry))
    }

    /// Returns all terms.
    pub(crate) fn iter(&self) -> impl Iterator<Item = AnalysedTerm<'_>> {
        self.entries.iter().map(|entry| self.term(entry))
    }

    fn term(&self, entry: &Entry) -> AnalysedTerm<'_> {
        AnalysedTerm {
            term: &self.arena[entry.term_start as usize..entry.term_end as usize],
            form: entry.form,
            start: entry.start as usize,
            end: entry.end as usize,
            position: entry.position as usize,
        }
    }
}

/// Turns texts into terms. It keeps buffers and cached stems, so reuse it.
#[derive(Clone)]
pub(crate) struct Analyser {
    stemmer: Stemmer,
    /// Maps words to indices in `stems`.
    stem_of: HashMap<Box<str>, u32, RandomState>,
    /// Stems; an empty one stands for the word itself.
    stems: Vec<Box<str>>,
    parts: Vec<Range<usize>>,
    /// When set, plain words are skipped unless they begin with one of these bytes. A stem begins
    /// with the same byte as its word. Positions do not change.
    first_bytes: Option<Box<[bool; 256]>>,
}

impl Default for Analyser {
    fn default() -> Self {
        Self {
            stemmer: Stemmer::new(Algorithm::English),
            stem_of: HashMap::default(),
            stems: Vec::new(),
            parts: Vec::new(),
            first_bytes: None,
        }
    }
}

impl Analyser {
    /// Returns an analyser that may skip terms other than these, which is several times as fast.
    /// For finding terms, not for indexing.
    pub(super) fn looking_for<'a>(terms: impl Iterator<Item = &'a str>) -> Self {
        let mut wanted = Box::new([false; 256]);
        for first in terms.filter_map(|term| term.bytes().next()) {
            wanted[usize::from(first)] = true;
        }
        Self {
            first_bytes: Some(wanted),
            ..Self::default()
        }
    }

    /// Returns true for a lower-case word that cannot be one of the wanted terms.
    fn is_unwanted(&self, word: &[u8]) -> bool {
        let Some(wanted) = &self.first_bytes else {
            return false;
        };
        let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        (2..=RUN_BYTES_MAX).contains(&word.len())
            && !wanted[usize::from(word[0])]
            && word.iter().all(plain)
    }

    /// Returns the terms of a text.
    #[must_use]
    pub(crate) fn analyse(&mut self, text: &str) -> Analysis {
        let mut analysis = Analysis::default();
        self.analyse_into(text, &mut analysis);
        analysis
    }

    /// Writes the terms of a text into a buffer for reuse. Only the first 4 GiB of the text are
    /// analysed.
    pub(crate) fn analyse_into(&mut self, text: &str, analysis: &mut Analysis) {
        let text = &text[..floor_boundary(text, u32::MAX as usize)];
        analysis.arena.clear();
        analysis.entries.clear();
        let mut position = 0;
        let mut at = 0;
        // The offset where a defined name begins.
        let mut defined_at = usize::MAX;
        while at < text.len() {
            let (class, width) = class_at(text, at);
            let end = match class {
                Class::Blank => {
                    at += width;
                    continue;
                }
                class => run_end(text, at, class),
            };
            if class == Class::Dense {
                dense_run(text, at..end, &mut position, analysis);
            } else {
                let first = analysis.entries.len();
                self.identifier(text, at..end, &mut position, analysis);
                if at == defined_at {
                    definition(first, analysis);
                }
                if is_defining(&text[at..end]) {
                    defined_at = name_after(text, at..end);
                }
            }
            at = end;
        }
    }

    /// Analyses a run of letters, digits and underscores.
    fn identifier(
        &mut self,
        text: &str,
        run: Range<usize>,
        position: &mut u32,
        out: &mut Analysis,
    ) {
        if self.is_unwanted(&text.as_bytes()[run.clone()]) {
            *position = position.saturating_add(1);
            return;
        }
        let mut parts = std::mem::take(&mut self.parts);
        parts.clear();
        let mut skipped = 0;
        for piece in pieces(text, run.clone()) {
            if piece.len() > RUN_BYTES_MAX {
                skipped += 1;
            } else if is_possessive(text, &piece) {
                continue;
            } else {
                humps(text, piece, &mut parts);
            }
        }
        if parts.len() > PARTS_MAX && run.len() <= RUN_BYTES_MAX {
            parts.clear();
            parts.push(run.clone());
        }
        for (index, part) in parts.iter().enumerate() {
            self.part(text, part.clone(), *position, out);
            if index == 0 && parts.len() > 1 && run.len() <= RUN_BYTES_MAX {
                whole(text, &parts, *position, out);
            }
            *position = position.saturating_add(1);
        }
        *position = position.saturating_add(skipped);
        self.parts = parts;
    }

    fn part(&mut self, text: &str, range: Range<usize>, position: u32, out: &mut Analysis) {
        let term_start = out.arena.len();
        push_lower(&text[range.clone()], &mut out.arena);
        push(out, term_start, range.clone(), position, TermForm::Part);
        let Analysis { arena, .. } = out;
        let stem_start = arena.len();
        if let Some(stem) = self.stem(&arena[term_start..]) {
            arena.push_str(stem);
            push(out, stem_start, range, position, TermForm::Stem);
        }
    }

    /// Returns the stem of a lower-case English word, if it differs.
    fn stem(&mut self, word: &str) -> Option<&str> {
        let worth_it =
            (4..=40).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_lowercase());
        if !worth_it {
            return None;
        }
        let place = match self.stem_of.get(word) {
            Some(&place) => place,
            None => self.remember(word),
        };
        let stem = self.stems.get(place as usize).map(AsRef::as_ref);
        stem.filter(|stem: &&str| !stem.is_empty())
    }

    fn remember(&mut self, word: &str) -> u32 {
        if self.stems.len() >= STEMS_MAX {
            self.stem_of.clear();
            self.stems.clear();
        }
        let stem = match self.stemmer.stem(word) {
            stem if stem == word => Box::default(),
            stem => stem.into_owned().into_boxed_str(),
        };
        let place = u32::try_from(self.stems.len()).unwrap_or(u32::MAX);
        self.stems.push(stem);
        self.stem_of.insert(word.into(), place);
        place
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Blank,
    Identifier,
    Dense,
}

fn class_at(text: &str, at: usize) -> (Class, usize) {
    let byte = text.as_bytes()[at];
    if byte.is_ascii() {
        let class = if byte.is_ascii_alphanumeric() || byte == b'_' {
            Class::Identifier
        } else {
            Class::Blank
        };
        return (class, 1);
    }
    let c = text[at..].chars().next().unwrap_or(' ');
    let class = match c {
        c if is_dense(c) => Class::Dense,
        c if c.is_alphanumeric() => Class::Identifier,
        _ => Class::Blank,
    };
    (class, c.len_utf8())
}

fn run_end(text: &str, start: usize, class: Class) -> usize {
    let bytes = text.as_bytes();
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let mut at = start;
    while at < bytes.len() {
        if class == Class::Identifier {
            // The fast path, for most text.
            at += bytes[at..].iter().take_while(|byte| is_plain(byte)).count();
            if at == bytes.len() {
                break;
            }
        }
        let (next, width) = class_at(text, at);
        if next != class {
            break;
        }
        at += width;
    }
    at
}

/// Returns true for characters of scripts that do not separate words by blanks.
pub(super) fn is_dense(c: char) -> bool {
    matches!(c,
        '\u{0E00}'..='\u{0EFF}'   // Thai, Lao
        | '\u{1000}'..='\u{109F}' // Myanmar
        | '\u{1100}'..='\u{11FF}' // Hangul Jamo
        | '\u{1780}'..='\u{17FF}' // Khmer
        | '\u{3005}'..='\u{3007}'
        | '\u{3040}'..='\u{30FF}' // Hiragana, Katakana
        | '\u{3100}'..='\u{312F}' // Bopomofo
        | '\u{3400}'..='\u{4DBF}'
        | '\u{4E00}'..='\u{9FFF}' // Han
        | '\u{AC00}'..='\u{D7AF}' // Hangul
        | '\u{F900}'..='\u{FAFF}'
        | '\u{FF66}'..='\u{FF9F}' // half-width Katakana
        | '\u{20000}'..='\u{3FFFF}')
}

/// Adds overlapping pairs, and the last character alone.
fn dense_run(text: &str, run: Range<usize>, position: &mut u32, out: &mut Analysis) {
    let mut previous: Option<usize> = None;
    for (offset, c) in text[run.clone()].char_indices() {
        let (start, end) = (run.start + offset, run.start + offset + c.len_utf8());
        if let Some(first) = previous {
            dense_term(text, first..end, position, out, TermForm::Part);
        }
        previous = Some(start);
    }
    let form = match previous {
        Some(last) if last > run.start => TermForm::Tail,
        _ => TermForm::Part,
    };
    if let Some(last) = previous {
        dense_term(text, last..run.end, position, out, form);
    }
}

fn dense_term(
    text: &str,
    range: Range<usize>,
    position: &mut u32,
    out: &mut Analysis,
    form: TermForm,
) {
    let term_start = out.arena.len();
    out.arena.push_str(&text[range.clone()]);
    push(out, term_start, range, *position, form);
    *position = position.saturating_add(1);
}

/// Returns the pieces between underscores.
fn pieces(text: &str, run: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let mut at = run.start;
    text[run].split('_').filter_map(move |piece| {
        let start = at;
        at += piece.len() + 1;
        (!piece.is_empty()).then(|| start..start + piece.len())
    })
}

/// Returns true for the `s` of `parkinson's`.
fn is_possessive(text: &str, piece: &Range<usize>) -> bool {
    let before = &text[..piece.start];
    let owner = before
        .strip_suffix('\'')
        .or_else(|| before.strip_suffix('’'));
    matches!(&text[piece.clone()], "s" | "S")
        && owner.is_some_and(|owner| owner.ends_with(char::is_alphabetic))
}

/// Cuts `fooBar` and `FOOBar` after `foo`. Pieces of one character stay with their neighbour
/// (`mRNA`, `planB`); hashes and ids stay whole.
fn humps(text: &str, piece: Range<usize>, out: &mut Vec<Range<usize>>) {
    let word = &text[piece.clone()];
    let has_upper = word
        .bytes()
        .skip(1)
        .any(|b| b.is_ascii_uppercase() || !b.is_ascii());
    if !has_upper || is_opaque(word) {
        out.push(piece);
        return;
    }
    let mut start = 0;
    let mut before = None::<(usize, char)>;
    for (at, c) in word.char_indices() {
        let hump_at = match before {
            Some((_, b)) if c.is_uppercase() && !b.is_uppercase() => Some(at),
            Some((b_at, b)) if c.is_lowercase() && b.is_uppercase() => Some(b_at),
            _ => None,
        };
        if let Some(hump) = hump_at.filter(|&hump| longer_than_one(&word[start..hump])) {
            let rest_is_long = longer_than_one(&word[hump..]);
            if rest_is_long {
                out.push(piece.start + start..piece.start + hump);
                start = hump;
            }
        }
        before = Some((at, c));
    }
    out.push(piece.start + start..piece.end);
}

fn longer_than_one(text: &str) -> bool {
    text.chars().nth(1).is_some()
}

/// Returns true for a hash, a UUID's group or a generated id.
fn is_opaque(word: &str) -> bool {
    if word.len() < OPAQUE_BYTES_MIN || !word.is_ascii() {
        return false;
    }
    let bytes = word.as_bytes();
    let changes = bytes
        .windows(2)
        .filter(|pair| pair[0].is_ascii_digit() != pair[1].is_ascii_digit())
        .count();
    changes >= 3
}

fn is_defining(word: &str) -> bool {
    // Length and first byte exclude nearly all words.
    (2..=9).contains(&word.len())
        && matches!(
            word.as_bytes()[0],
            b'c'..=b'f' | b'i' | b'm' | b'n' | b's' | b't'
        )
        && DEFINING.contains(&word)
}

/// Returns where the name after a defining keyword begins, skipping the receiver of a Go method.
fn name_after(text: &str, word: Range<usize>) -> usize {
    let skip_blanks = |at: usize| at + text[at..].len() - text[at..].trim_start_matches(' ').len();
    let at = skip_blanks(word.end);
    if &text[word] != "func" || text.as_bytes().get(at) != Some(&b'(') {
        return at;
    }
    let end = floor_boundary(text, at + RECEIVER_BYTES_MAX);
    text[at..end]
        .find(')')
        .map_or(usize::MAX, |close| skip_blanks(at + close + 1))
}

/// Adds a definition term for the identifier whose terms begin with this entry.
fn definition(first: usize, out: &mut Analysis) {
    let own = &out.entries[first..];
    let whole = own.iter().find(|entry| entry.form == TermForm::Whole);
    let Some(&name) = whole.or(own.first()) else {
        return;
    };
    let term_start = out.arena.len();
    out.arena.push(DEFINITION_MARK);
    let word = out.arena[name.term_start as usize..name.term_end as usize].to_owned();
    out.arena.push_str(&word);
    let range = name.start as usize..name.end as usize;
    // Terms must stay in order of position.
    let position = out.entries[out.entries.len() - 1].position;
    push(out, term_start, range, position, TermForm::Definition);
}

/// Adds the joined parts: one term for the identifier.
fn whole(text: &str, parts: &[Range<usize>], position: u32, out: &mut Analysis) {
    let term_start = out.arena.len();
    for part in parts {
        push_lower(&text[part.clone()], &mut out.arena);
    }
    let (start, end) = (parts[0].start, parts[parts.len() - 1].end);
    push(out, term_start, start..end, position, TermForm::Whole);
}

fn push_lower(text: &str, arena: &mut String) {
    if text.is_ascii() {
        let start = arena.len();
        arena.push_str(text);
        arena[start..].make_ascii_lowercase();
    } else {
        arena.extend(text.chars().flat_map(char::to_lowercase));
    }
}

#[allow(clippy::cast_possible_truncation)] // `analyse_into` bounds the text.
fn push(out: &mut Analysis, term_start: usize, range: Range<usize>, position: u32, form: TermForm) {
    out.entries.push(Entry {
        term_start: term_start as u32,
        term_end: out.arena.len() as u32,
        start: range.start as u32,
        end: range.end as u32,
        position,
        form,
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Formats terms as `term@position`, with `=` before a whole, `~` before a stem, `.` before a
    /// tail.
    fn terms(text: &str) -> String {
        let analysis = Analyser::default().analyse(text);
        let shown = analysis.iter().map(|term| {
            let mark = match term.form {
                TermForm::Part => "",
                TermForm::Whole => "=",
                TermForm::Stem => "~",
                TermForm::Tail => ".",
                TermForm::Definition => "",
            };
            format!("{mark}{}@{}", term.term, term.position)
        });
        shown.collect::<Vec<_>>().join(" ")
    }

    // Agents must find text by the parts that they expect, so the cuts are fixed here.
    #[test]
    fn text_is_split_into_terms() {
        let cases = [
            ("The QUICK fox", "the@0 quick@1 fox@2"),
            ("connections", "connections@0 ~connect@0"),
            ("Parkinson's disease", "parkinson@0 disease@1 ~diseas@1"),
            ("parse_config", "parse@0 ~pars@0 =parseconfig@0 config@1"),
            ("parseConfig", "parse@0 ~pars@0 =parseconfig@0 config@1"),
            ("__init__", "init@0"),
            ("HTTPServer", "http@0 =httpserver@0 server@1"),
            (
                "XMLHttpRequest2",
                "xml@0 =xmlhttprequest2@0 http@1 request2@2",
            ),
            ("mRNA planB iPhone", "mrna@0 planb@1 iphone@2 ~iphon@2"),
            ("MAX_BYTES", "max@0 =maxbytes@0 bytes@1 ~byte@1"),
            ("utf8 sha256 p53", "utf8@0 sha256@1 p53@2"),
            ("my-crate a.b c::d", "my@0 crate@1 a@2 b@3 c@4 d@5"),
            ("/etc/app/main.rs:42:7", "etc@0 app@1 main@2 rs@3 42@4 7@5"),
            (r"C:\src\Main.java", "c@0 src@1 main@2 java@3"),
            ("a94a8fe5ccb19ba61c4c", "a94a8fe5ccb19ba61c4c@0"),
            (
                "toolu_01AbCd2EfGh3",
                "toolu@0 =toolu01abcd2efgh3@0 01abcd2efgh3@1",
            ),
            ("550e8400-e29b-41d4", "550e8400@0 e29b@1 41d4@2"),
            ("3.14 0xFF 0xff", "3@0 14@1 0x@2 =0xff@2 ff@3 0xff@4"),
            ("Straße ÉCOLE", "straße@0 école@1"),
            ("東京都 x", "東京@0 京都@1 .都@2 x@3"),
            ("京", "京@0"),
            ("한국어", "한국@0 국어@1 .어@2"),
            ("ab東京", "ab@0 東京@1 .京@2"),
            ("fn run(", "fn@0 run@1 =run@1"),
            (
                "func (s *Store) ReadAll(id",
                "func@0 s@1 store@2 read@3 =readall@3 all@4 =readall@4 id@5",
            ),
            ("class\nOf", "class@0 of@1"),
            ("🌲 -- !?", ""),
            ("", ""),
        ];
        for (text, expected) in cases {
            assert_eq!(terms(text), expected, "{text}");
        }
    }

    // A blob must not fill the dictionary, nor make its neighbours adjacent.
    #[test]
    fn long_runs_are_not_indexed() {
        assert_eq!(terms(&format!("a {} b", "x".repeat(300))), "a@0 b@2");
        assert_eq!(terms(&"x".repeat(256)), format!("{}@0", "x".repeat(256)));
        let many_humps = "Ab".repeat(40);
        assert_eq!(
            terms(&many_humps),
            format!("{}@0", many_humps.to_lowercase())
        );
    }

    proptest! {
        // Highlights cut texts at these places: they must be character boundaries, in order of
        // position, and free of the separator.
        #[test]
        fn terms_of_any_text_have_valid_ranges(text in "\\PC{0,200}|[a-zA-Z0-9_東京é'\u{1F} /.:-]{0,200}") {
            let analysis = Analyser::default().analyse(&text);
            let mut position = 0;
            for term in analysis.iter() {
                prop_assert!(text.get(term.start..term.end).is_some_and(|t| !t.is_empty()));
                prop_assert!(term.position >= position);
                let is_clean = !term.term.is_empty() && !term.term.contains('\u{1F}');
                prop_assert!(is_clean);
                position = term.position;
            }
        }
    }
}
