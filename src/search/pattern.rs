//! Regular expressions over stored text.
//!
//! An index of words cannot answer a regular expression, but can exclude texts that cannot match:
//! the literals of the expression, cut into pieces as the analyser cuts words, must occur in the
//! words of the text. The remaining texts are read and verified.

use std::ops::Range;

use regex::{Regex, RegexBuilder};
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind};

use super::syntax::{QUERY_BYTES_MAX, QueryError};

/// Memory for a compiled expression, in bytes.
const COMPILED_BYTES_MAX: usize = 4 << 20;
/// Memory for the lazy DFA, in bytes, on each matching thread.
const MATCHING_BYTES_MAX: usize = 2 << 20;
/// Shortest useful piece, in bytes; shorter ones are in nearly every word.
const PIECE_BYTES_MIN: usize = 3;
/// Maximum number of branches of an alternation that are analysed.
const BRANCHES_MAX: usize = 64;

/// A regular expression.
#[derive(Clone, Debug)]
pub struct Pattern {
    regex: Regex,
    needs: Needs,
}

/// What the words of a text must contain for an expression to match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// Nothing that words can show.
    Nothing,
    /// A word that contains this lower-case string.
    Piece(String),
    /// All of these.
    All(Vec<Needs>),
    /// One of these.
    Any(Vec<Needs>),
}

impl Needs {
    /// Returns a list of pieces. Every matching text has a word that contains at least one of them.
    /// Returns `None` when words show nothing.
    pub(super) fn pieces(&self) -> Option<Vec<&str>> {
        match self {
            Self::Nothing => None,
            Self::Piece(piece) => Some(vec![piece]),
            Self::All(parts) => {
                let shortest = |pieces: &Vec<&str>| pieces.iter().map(|piece| piece.len()).min();
                parts.iter().filter_map(Self::pieces).max_by_key(shortest)
            }
            Self::Any(parts) => {
                let parts: Option<Vec<_>> = parts.iter().map(Self::pieces).collect();
                parts.map(|parts| parts.concat())
            }
        }
    }
}

impl Pattern {
    /// Parses an expression in the syntax of the `regex` crate; `^` and `$` match at line ends.
    ///
    /// # Errors
    /// [`QueryError::Regex`] when it is invalid, [`QueryError::TooLong`] when it is too long.
    pub fn new(text: &str) -> Result<Self, QueryError> {
        if text.len() > QUERY_BYTES_MAX {
            return Err(QueryError::TooLong {
                bytes: text.len(),
                max: QUERY_BYTES_MAX,
            });
        }
        let refused = |message: String| QueryError::Regex { message };
        let regex = RegexBuilder::new(text)
            .multi_line(true)
            .size_limit(COMPILED_BYTES_MAX)
            .dfa_size_limit(MATCHING_BYTES_MAX)
            .build()
            .map_err(|error| refused(error.to_string()))?;
        let parsed = regex_syntax::ParserBuilder::new()
            .multi_line(true)
            .build()
            .parse(text)
            .map_err(|error| refused(error.to_string()))?;
        Ok(Self {
            regex,
            needs: needs(&parsed),
        })
    }

    /// Returns the first non-empty match in a text.
    #[must_use]
    pub fn first_match(&self, text: &str) -> Option<Range<usize>> {
        let found = self.regex.find_iter(text).find(|found| !found.is_empty());
        found.map(|found| found.range())
    }

    /// Returns all non-empty matches in a piece of text.
    pub fn matches<'a>(&'a self, text: &'a str) -> impl Iterator<Item = Range<usize>> + 'a {
        let found = self.regex.find_iter(text).filter(|found| !found.is_empty());
        found.map(|found| found.range())
    }

    pub(super) fn needs(&self) -> &Needs {
        &self.needs
    }
}

fn needs(hir: &Hir) -> Needs {
    match hir.kind() {
        HirKind::Literal(literal) => literal_needs(&literal.0),
        HirKind::Capture(capture) => needs(&capture.sub),
        HirKind::Repetition(repetition) if repetition.min > 0 => needs(&repetition.sub),
        HirKind::Concat(parts) => sequence_needs(parts),
        HirKind::Alternation(branches) if branches.len() <= BRANCHES_MAX => {
            any(branches.iter().map(needs).collect())
        }
        _ => Needs::Nothing,
    }
}

/// Returns the needs of all parts. Letters that match in either case, as with `(?i)`, are joined.
fn sequence_needs(parts: &[Hir]) -> Needs {
    let mut found = Vec::new();
    let mut run = String::new();
    for part in parts {
        match caseless(part) {
            Some(text) => run.push_str(&text),
            None => {
                found.push(caseless_needs(&std::mem::take(&mut run)));
                found.push(needs(part));
            }
        }
    }
    found.push(caseless_needs(&run));
    all(found)
}

/// Returns the lower-case text of a part that consists of digits, or that matches one letter in
/// either case.
fn caseless(part: &Hir) -> Option<String> {
    match part.kind() {
        HirKind::Literal(literal) if literal.0.iter().all(u8::is_ascii_digit) => {
            String::from_utf8(literal.0.to_vec()).ok()
        }
        HirKind::Class(Class::Unicode(class)) => {
            let letter = class.ranges().first()?.start().to_ascii_lowercase();
            let mut folded = ClassUnicode::new([ClassUnicodeRange::new(letter, letter)]);
            folded.case_fold_simple();
            (letter.is_ascii_lowercase() && *class == folded).then(|| letter.into())
        }
        _ => None,
    }
}

/// Returns the needs of a run of letters and digits that matches in any case. The index has words
/// in lower case, and uncut identifiers too. A caseless `s` also matches the long s (`ſ`), which
/// the index keeps as a separate letter.
fn caseless_needs(run: &str) -> Needs {
    let piece = Needs::Piece(run.to_owned());
    match run.contains('s') {
        _ if run.len() < PIECE_BYTES_MIN => Needs::Nothing,
        true => Needs::Any(vec![piece, Needs::Piece("ſ".to_owned())]),
        false => piece,
    }
}

fn all(mut parts: Vec<Needs>) -> Needs {
    parts.retain(|part| *part != Needs::Nothing);
    match parts.len() {
        0 => Needs::Nothing,
        1 => parts.remove(0),
        _ => Needs::All(parts),
    }
}

fn any(branches: Vec<Needs>) -> Needs {
    if branches.contains(&Needs::Nothing) {
        return Needs::Nothing;
    }
    Needs::Any(branches)
}

/// Returns pieces of a literal. Wherever the analyser cuts a text that contains the literal, each
/// piece is within one word of the index.
fn literal_needs(literal: &[u8]) -> Needs {
    let Ok(text) = std::str::from_utf8(literal) else {
        return Needs::Nothing;
    };
    let runs = text.split(|c: char| !c.is_ascii_alphanumeric());
    all(runs.flat_map(run_needs).collect())
}

/// Cuts a run of letters and digits at case changes, and returns the pieces that are long enough.
/// If there are none, as in a run of capitals, returns the whole run: the index has uncut
/// identifiers too.
fn run_needs(run: &str) -> Vec<Needs> {
    let mut pieces = vec![String::new()];
    let mut before = ' ';
    for c in run.chars() {
        let piece = pieces.last().map_or(0, String::len);
        let goes_on = match (before.is_ascii_uppercase(), c.is_ascii_uppercase()) {
            // The analyser may cut before any capital, depending on the letters around it.
            (_, true) => false,
            (true, false) => piece == 1,
            (false, false) => true,
        };
        if !goes_on {
            pieces.push(String::new());
        }
        if let Some(piece) = pieces.last_mut() {
            piece.push(c.to_ascii_lowercase());
        }
        before = c;
    }
    pieces.retain(|piece| piece.len() >= PIECE_BYTES_MIN);
    if pieces.is_empty() && run.len() >= PIECE_BYTES_MIN {
        pieces.push(run.to_ascii_lowercase());
    }
    pieces.into_iter().map(Needs::Piece).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(needs: &Needs) -> String {
        let list = |parts: &[Needs]| parts.iter().map(shown).collect::<Vec<_>>();
        match needs {
            Needs::Nothing => "-".to_owned(),
            Needs::Piece(piece) => piece.clone(),
            Needs::All(parts) => format!("({})", list(parts).join(" & ")),
            Needs::Any(parts) => format!("({})", list(parts).join(" | ")),
        }
    }

    // A matching text that is excluded here is lost silently.
    #[test]
    fn required_words_of_a_regex_are_found() {
        let cases = [
            ("parse_config", "(parse & config)"),
            ("parseConfig\\(", "(parse & config)"),
            (r"error\[E\d+\]: (foo|bar)", "(error & (foo | bar))"),
            ("HTTPServer", "server"),
            ("a+bc?d", "-"),
            ("(?i)error", "error"),
            ("(?i)Session lost", "((session | ſ) & (lost | ſ))"),
            ("(?i)e404", "e404"),
            ("(?i)éclair", "clair"),
            ("[eE][rR]", "-"),
            ("(foo|b)", "-"),
            (".*", "-"),
            ("(abc)+ x*", "abc"),
            ("(abc)* def", "def"),
            (r"README\.md", "readme"),
            ("JG7FMM", "jg7fmm"),
            ("SIGSEGV: seg", "(sigsegv & seg)"),
            ("GetID", "get"),
        ];
        for (pattern, expected) in cases {
            let pattern_needs = Pattern::new(pattern).unwrap();
            assert_eq!(shown(pattern_needs.needs()), expected, "{pattern}");
        }
        assert!(matches!(Pattern::new("("), Err(QueryError::Regex { .. })));
        assert!(matches!(
            Pattern::new(r"(\w{100}){100}"),
            Err(QueryError::Regex { .. })
        ));
    }

    #[test]
    fn regex_matches_are_found_by_line() {
        let pattern = Pattern::new(r"^b\d*").unwrap();
        assert_eq!(pattern.first_match("a\nb12\nb3"), Some(2..5));
        assert_eq!(pattern.matches("b\nb3").collect::<Vec<_>>(), [0..1, 2..4]);
        assert_eq!(Pattern::new("x*").unwrap().first_match("aa"), None);
    }
}
