//! Patterns of terms: path globs, and words that contain a string.
//!
//! A pattern is simulated step by step. A state table would be faster, but takes megabytes for a
//! glob with a few stars, and a search may have hundreds of globs.

use std::{fmt, sync::Arc};

use smallvec::{SmallVec, smallvec};
use tantivy::{
    query::{AutomatonWeight, EnableScoring, Query, Weight},
    schema::Field,
};
use tantivy_fst::Automaton;

use super::error::IndexSearchError;

/// Maximum number of bytes of a search's path globs together. A state of the simulation takes up to
/// about a quarter of this memory, and there is one state for each byte of the longest term.
pub(crate) const GLOBS_BYTES_MAX: usize = 8 << 10;

/// Checks the total length of path globs.
///
/// # Errors
/// [`IndexSearchError::GlobsTooLong`] when they are too long.
pub fn check_globs(globs: &[String]) -> Result<(), IndexSearchError> {
    let (bytes, max) = (globs.iter().map(String::len).sum(), GLOBS_BYTES_MAX);
    if bytes > max {
        return Err(IndexSearchError::GlobsTooLong { bytes, max });
    }
    Ok(())
}

#[derive(Clone, Debug)]
enum Step {
    /// This byte.
    Byte(u8),
    /// Any bytes.
    Any,
    /// Any bytes but `/`.
    Name,
    /// The first byte of a character that is not `/`.
    First,
    /// The other bytes of a character.
    Rest,
    /// Continue at each of these steps.
    Fork(Vec<usize>),
    /// The term matches if it ends here.
    Match,
}

/// A pattern of terms: alternatives after a common prefix.
#[derive(Clone, Debug, Default)]
pub(super) struct TermPattern {
    steps: Vec<Step>,
}

impl TermPattern {
    /// Matches terms that begin with `prefix`, followed by a match of one of these globs. `*` and
    /// `?` stay within a folder, `**` crosses folders; a glob without a leading `/` may begin in
    /// any folder.
    pub(crate) fn globs(prefix: &str, globs: &[String]) -> Self {
        let mut pattern = Self::default();
        pattern.bytes(prefix);
        let fork = pattern.steps.len();
        pattern.steps.push(Step::Fork(Vec::new()));
        let mut starts = Vec::with_capacity(globs.len());
        for glob in globs {
            starts.push(pattern.steps.len());
            pattern.glob(glob);
        }
        pattern.steps[fork] = Step::Fork(starts);
        pattern
    }

    fn bytes(&mut self, text: &str) {
        self.steps.extend(text.bytes().map(Step::Byte));
    }

    fn glob(&mut self, glob: &str) {
        if !glob.starts_with('/') {
            self.folders();
        }
        let mut rest = glob;
        while let Some(c) = rest.chars().next() {
            let length = match c {
                '*' if rest.starts_with("**/") => {
                    self.folders();
                    3
                }
                '*' if rest.starts_with("**") => {
                    self.steps.push(Step::Any);
                    2
                }
                '*' => {
                    self.steps.push(Step::Name);
                    1
                }
                '?' => {
                    self.steps.extend([Step::First, Step::Rest]);
                    1
                }
                c => {
                    self.bytes(&rest[..c.len_utf8()]);
                    c.len_utf8()
                }
            };
            rest = &rest[length..];
        }
        self.steps.push(Step::Match);
    }

    /// Adds any number of folders.
    fn folders(&mut self) {
        let at = self.steps.len();
        self.steps.push(Step::Fork(vec![at + 1, at + 3]));
        self.steps.extend([Step::Any, Step::Byte(b'/')]);
    }
}

/// The current steps, a bit each. A set is made for each byte of each term, so short patterns must
/// not allocate.
#[derive(Clone, Debug)]
pub(super) struct StepSet(SmallVec<[u64; 2]>);

impl StepSet {
    fn none(steps: usize) -> Self {
        Self(smallvec![0; steps.div_ceil(64)])
    }

    /// Returns false when the step was already present or does not exist.
    fn add(&mut self, step: usize) -> bool {
        let Some(word) = self.0.get_mut(step / 64) else {
            return false;
        };
        let before = std::mem::replace(word, *word | 1 << (step % 64));
        before != *word
    }

    fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(index, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some(index * 64 + bit)
            })
        })
    }
}

impl TermPattern {
    /// Adds a step and those that follow without consuming a byte.
    fn reach(&self, places: &mut StepSet, mut step: usize) {
        // If it is present, so are the steps that follow it.
        while places.add(step) {
            match self.steps.get(step) {
                Some(Step::Any | Step::Name | Step::Rest) => step += 1,
                Some(Step::Fork(targets)) => {
                    let Some((&last, others)) = targets.split_last() else {
                        return;
                    };
                    for &target in others {
                        self.reach(places, target);
                    }
                    step = last;
                }
                _ => return,
            }
        }
    }
}

impl Automaton for TermPattern {
    type State = StepSet;

    fn start(&self) -> StepSet {
        let mut places = StepSet::none(self.steps.len());
        self.reach(&mut places, 0);
        places
    }

    fn is_match(&self, places: &StepSet) -> bool {
        let is_end = |step| matches!(self.steps.get(step), Some(Step::Match));
        places.iter().any(is_end)
    }

    fn can_match(&self, places: &StepSet) -> bool {
        places.0.iter().any(|&word| word != 0)
    }

    fn accept(&self, places: &StepSet, byte: u8) -> StepSet {
        let mut next = StepSet::none(self.steps.len());
        let is_inner = (0x80..0xC0).contains(&byte);
        for at in places.iter() {
            let to = match self.steps.get(at) {
                Some(Step::Byte(wanted)) if *wanted == byte => at + 1,
                Some(Step::Any) => at,
                Some(Step::Name) if byte != b'/' => at,
                Some(Step::First) if byte != b'/' && !is_inner => at + 1,
                Some(Step::Rest) if is_inner => at,
                _ => continue,
            };
            self.reach(&mut next, to);
        }
        next
    }
}

/// Matches terms that begin with a prefix and contain a string after it (Knuth, Morris, Pratt).
/// Every term of a namespace is tried, so a step takes a few instructions.
#[derive(Clone, Debug)]
pub(super) struct SubstringPattern {
    prefix: Vec<u8>,
    piece: Vec<u8>,
    /// For each prefix of `piece`, the length of its longest proper prefix that is also its suffix.
    borders: Vec<usize>,
}

impl SubstringPattern {
    pub(crate) fn new(prefix: &str, piece: &str) -> Self {
        let piece = piece.as_bytes().to_vec();
        let mut borders = vec![0; piece.len()];
        let mut border = 0;
        for at in 1..piece.len() {
            while border > 0 && piece[at] != piece[border] {
                border = borders[border - 1];
            }
            border += usize::from(piece[at] == piece[border]);
            borders[at] = border;
        }
        Self {
            prefix: prefix.as_bytes().to_vec(),
            piece,
            borders,
        }
    }
}

impl Automaton for SubstringPattern {
    /// Number of matched bytes of the prefix and then of the piece; none if the prefix differs.
    type State = Option<usize>;

    fn start(&self) -> Self::State {
        Some(0)
    }

    fn is_match(&self, matched: &Self::State) -> bool {
        self.will_always_match(matched)
    }

    fn can_match(&self, matched: &Self::State) -> bool {
        matched.is_some()
    }

    fn will_always_match(&self, matched: &Self::State) -> bool {
        *matched == Some(self.prefix.len() + self.piece.len())
    }

    fn accept(&self, matched: &Self::State, byte: u8) -> Self::State {
        let matched = (*matched)?;
        if let Some(expected) = self.prefix.get(matched) {
            return (*expected == byte).then_some(matched + 1);
        }
        let mut of_piece = matched - self.prefix.len();
        loop {
            match self.piece.get(of_piece) {
                None => return Some(matched),
                Some(expected) if *expected == byte => {
                    return Some(self.prefix.len() + of_piece + 1);
                }
                Some(_) if of_piece == 0 => return Some(self.prefix.len()),
                Some(_) => of_piece = self.borders[of_piece - 1],
            }
        }
    }
}

/// Returns a query for passages with a term in this field that a pattern matches.
pub(super) fn term_query<A>(field: Field, pattern: A) -> Box<dyn Query>
where
    A: Automaton<State: Clone> + Clone + fmt::Debug + Send + Sync + 'static,
{
    let pattern = Arc::new(pattern);
    Box::new(TermPatternQuery { field, pattern })
}

#[derive(Clone, Debug)]
struct TermPatternQuery<A> {
    field: Field,
    pattern: Arc<A>,
}

impl<A> Query for TermPatternQuery<A>
where
    A: Automaton<State: Clone> + Clone + fmt::Debug + Send + Sync + 'static,
{
    fn weight(&self, _: EnableScoring<'_>) -> tantivy::Result<Box<dyn Weight>> {
        let weight = AutomatonWeight::<A>::new(self.field, Arc::clone(&self.pattern));
        Ok(Box::new(weight))
    }
}

#[cfg(test)]
mod tests {
    use proptest::{prelude::*, proptest};

    use super::*;

    fn is_match<A: Automaton>(pattern: &A, term: &str) -> bool {
        let accept = |state: A::State, byte| pattern.accept(&state, byte);
        pattern.is_match(&term.bytes().fold(pattern.start(), accept))
    }

    // Each glob must match what it says, however many stars it has. State tables would not allow
    // that: 256 globs with four stars each would take 670 MiB, and a glob with many stars would
    // exceed a hidden limit and find nothing.
    #[test]
    fn patterns_match_terms() {
        for (glob, term, expected) in [
            ("*.rs", "a/b.rs", true),
            ("*.rs", "b.rs", true),
            ("*.rs", "b.rsx", false),
            ("a/*.rs", "a/b/c.rs", false),
            ("a/**/*.rs", "a/b/c.rs", true),
            ("a/**/*.rs", "a/c.rs", true),
            ("/a/**", "/a/b/c", true),
            ("/a", "b/a", false),
            ("?.md", "ü.md", true),
            ("?.md", "üü.md", false),
            ("?", "/", false),
            ("ü*", "x/üb", true),
            ("**", "any/thing", true),
            ("**/*a*b*c*7/**", "x/1a2b3c4-7/y", true),
            ("**/*a*b*c*7/**", "x/1a2b3c4-8/y", false),
            ("*a*a*a*a*a*a*a*a*a*a*a*a", "aaaaaaaaaaaaa", true),
        ] {
            let globs = ["zzz".to_owned(), glob.to_owned()];
            let pattern = TermPattern::globs("ns\u{1F}p", &globs);
            let found = is_match(&pattern, &format!("ns\u{1F}p{term}"));
            assert_eq!(found, expected, "{glob} {term}");
            assert!(!is_match(&pattern, &format!("other\u{1F}p{term}")));
        }
    }

    #[test]
    fn substring_is_found_after_a_prefix() {
        let pattern = SubstringPattern::new("n", "aab");
        for (term, expected) in [("naab", true), ("nxaaab/y", true), ("aab", false)] {
            assert_eq!(is_match(&pattern, term), expected, "{term}");
        }
    }

    proptest! {
        // A missed word is a lost hit of a regular expression. Two letters, so that beginnings of
        // the piece repeat within it.
        #[test]
        fn substring_is_found_wherever_it_stands(
            prefix in "[ab]{0,3}", word in "[ab]{0,16}", piece in "[ab]{1,5}",
        ) {
            let pattern = SubstringPattern::new(&prefix, &piece);
            let found = is_match(&pattern, &format!("{prefix}{word}"));
            prop_assert_eq!(found, word.contains(&piece));
        }
    }

    #[test]
    fn globs_are_limited_in_bytes() {
        let long = vec!["*".repeat(256); GLOBS_BYTES_MAX / 256];
        assert!(check_globs(&long).is_ok());
        let longer = [long, vec!["*".to_owned()]].concat();
        let refused = check_globs(&longer).unwrap_err();
        assert!(matches!(refused, IndexSearchError::GlobsTooLong { .. }));
    }
}
