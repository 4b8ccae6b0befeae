//! Regular expressions over stored text: which words a text must have to match, so
//! that only few texts are read, and the matching itself.
//!
//! An index of words cannot answer a regular expression. It can leave out texts that
//! cannot match: what an expression must have literally stands in the words of the
//! text, cut where the analyser cuts. What remains is verified on the text.

use std::ops::Range;

use regex::{Regex, RegexBuilder};
use regex_syntax::hir::{Hir, HirKind};

use super::syntax::{QUERY_BYTES_MAX, QueryError};

/// Memory for a compiled expression, in bytes.
const COMPILED_BYTES_MAX: usize = 4 << 20;
/// Memory for what matching learns of it, in bytes, on each thread that matches.
const MATCHING_BYTES_MAX: usize = 2 << 20;
/// Shorter pieces are in nearly every word.
const PIECE_BYTES_MIN: usize = 3;
/// Most branches that are told apart.
const BRANCHES_MAX: usize = 64;

/// A regular expression.
#[derive(Clone, Debug)]
pub struct Pattern {
    regex: Regex,
    needs: Needs,
}

/// What the words of a text must have for an expression to match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// Nothing that words show.
    Nothing,
    /// A word with these letters in a row, in lower case.
    Piece(String),
    /// All of these.
    All(Vec<Needs>),
    /// One of these.
    Any(Vec<Needs>),
}

impl Pattern {
    /// Reads an expression in the syntax of the `regex` crate; `^` and `$` are ends of
    /// lines.
    ///
    /// # Errors
    /// [`QueryError::Regex`] when it is none, [`QueryError::TooLong`] over its bound.
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

    /// The first match in a text that is not empty.
    #[must_use]
    pub fn first_match(&self, text: &str) -> Option<Range<usize>> {
        let found = self.regex.find_iter(text).find(|found| !found.is_empty());
        found.map(|found| found.range())
    }

    /// All matches in a piece of text.
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
        HirKind::Concat(parts) => all(parts.iter().map(needs).collect()),
        HirKind::Alternation(branches) if branches.len() <= BRANCHES_MAX => {
            any(branches.iter().map(needs).collect())
        }
        _ => Needs::Nothing,
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

/// Pieces of a literal that stand within one word of the index, wherever it is cut.
fn literal_needs(literal: &[u8]) -> Needs {
    let Ok(text) = std::str::from_utf8(literal) else {
        return Needs::Nothing;
    };
    let runs = text.split(|c: char| !c.is_ascii_alphanumeric());
    all(runs.flat_map(run_needs).collect())
}

/// Of a run of letters and digits: what no hump goes through. Where there is nothing
/// like that, as in capitals, the run: an identifier is in the index uncut, too.
fn run_needs(run: &str) -> Vec<Needs> {
    let mut pieces = vec![String::new()];
    let mut before = ' ';
    for c in run.chars() {
        let piece = pieces.last().map_or(0, String::len);
        let goes_on = match (before.is_ascii_uppercase(), c.is_ascii_uppercase()) {
            // A hump may begin at any capital, and before the last of several.
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

    // A text that is left out here and would match is lost without a word.
    #[test]
    fn what_words_must_have_is_known() {
        let cases = [
            ("parse_config", "(parse & config)"),
            ("parseConfig\\(", "(parse & config)"),
            (r"error\[E\d+\]: (foo|bar)", "(error & (foo | bar))"),
            ("HTTPServer", "server"),
            ("a+bc?d", "-"),
            ("(?i)error", "-"),
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
    fn the_first_match_is_found() {
        let pattern = Pattern::new(r"^b\d*").unwrap();
        assert_eq!(pattern.first_match("a\nb12\nb3"), Some(2..5));
        assert_eq!(pattern.matches("b\nb3").collect::<Vec<_>>(), [0..1, 2..4]);
        assert_eq!(Pattern::new("x*").unwrap().first_match("aa"), None);
    }
}
