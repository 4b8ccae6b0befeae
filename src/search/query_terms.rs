//! The words and names of a query, for reranking. Words have their order. Passages with a whole
//! name rank first.

use std::ops::Range;

use tantivy::query::{BooleanQuery, Occur, Query};

use super::{
    analyser::{AnalysedTerm, Analysis, DEFINITION_MARK, TermForm},
    names::{TypedName, names_in},
    plan::{Planner, parts, union_of},
    query::SearchQuery,
    rank::{Name, QueryWord, Words},
    stop_words::is_small,
    syntax::{ClauseRole, Node, QuerySyntax},
};

/// Distance between words that are not adjacent.
const APART: u32 = 1_000;
/// Maximum number of names that rank first; a query with more is a pasted text, ranked by how much
/// of it matches.
const NAMES_FIRST_MAX: usize = 8;

/// Queries for passages that contain names whole.
pub(super) struct WholeNames {
    /// Finds each name as one word. Names that the index does not have as one word are found as
    /// adjacent parts.
    pub(crate) query: Box<dyn Query>,
    /// Finds all names as adjacent parts. Used when `query` finds nothing: `get_feature_flags`
    /// contains the parts of `feature_flags`, but not the word.
    pub(crate) in_a_row: Option<Box<dyn Query>>,
    /// The names.
    pub(crate) typed: QueryNames,
}

/// The names of a query, as typed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueryNames {
    /// The names, without surrounding punctuation.
    pub names: Vec<String>,
    /// The query is one name and nothing else.
    pub is_all: bool,
    /// For some names the index shows only that the parts are adjacent. Only the texts show whether
    /// the characters between the parts match too.
    pub by_text: bool,
}

impl Planner<'_> {
    /// Prepares for a parsed query. If it was parsed as words, and not in the query language, stop
    /// words need not match beside other words, and names rank first if there are few.
    pub(crate) fn prepare(&mut self, node: &Node, reading: QuerySyntax) {
        let Node::Group(clauses) = node else { return };
        if reading == QuerySyntax::Query {
            return;
        }
        let words = || {
            clauses.iter().filter_map(|(_, node)| match node {
                Node::Word(range) => Some(range.clone()),
                _ => None,
            })
        };
        let text = self.text;
        let mut has_term = |range: Range<usize>| !self.analyser.analyse(&text[range]).is_empty();
        self.passes_small = words().any(|range| !is_small(&text[range.clone()]) && has_term(range));
        let is_alone = words().nth(1).is_none();
        let names: usize = words()
            .map(|range| self.first_names(range, is_alone).len())
            .sum();
        self.is_one_word = is_alone;
        self.puts_names_first = (1..=NAMES_FIRST_MAX).contains(&names);
    }

    /// Returns whether a word is skipped as a stop word.
    pub(crate) fn is_passed_over(&self, range: &Range<usize>) -> bool {
        self.passes_small && is_small(&self.text[range.clone()])
    }

    /// Returns the names in a word that may rank first.
    fn first_names(&mut self, range: Range<usize>, is_alone: bool) -> Vec<TypedName> {
        let word = &self.text[range];
        let analysis = self.analyser.analyse(word);
        let mut names = names_in(word, &analysis);
        names.retain(|name| is_alone || !name.may_be_words);
        names
    }

    /// Returns whether a word is one name that has a query of its own.
    pub(crate) fn is_one_first_name(&mut self, range: Range<usize>) -> bool {
        let all = parts(&self.analyser.analyse(&self.text[range.clone()])).count();
        let names = self.first_names(range, self.is_one_word);
        self.puts_names_first && names.len() == 1 && names[0].parts == (0..all)
    }

    /// Returns queries for the whole names, or `None` when there are none.
    pub(crate) fn whole_names(
        &mut self,
        node: &Node,
        words: &dyn Query,
        query: &SearchQuery,
    ) -> Option<WholeNames> {
        let Node::Group(clauses) = node else {
            return None;
        };
        if !self.puts_names_first {
            return None;
        }
        let was_flat = self.is_flat;
        let (mut as_one, mut in_a_row) = (Vec::new(), Vec::new());
        let mut typed = QueryNames::default();
        let (mut all_parts, mut has_identifier) = (0, false);
        for (_, node) in clauses {
            let Node::Word(range) = node else { continue };
            let word = &self.text[range.clone()];
            let analysis = self.analyser.analyse(word);
            all_parts += parts(&analysis).count();
            for name in self.first_names(range.clone(), self.is_one_word) {
                let own = self.analyser.analyse(&word[name.bytes.clone()]);
                let row = self.phrase(&own)?;
                as_one.push(match &name.whole {
                    Some(whole) => (Occur::Should, self.term(whole)),
                    None => (Occur::Should, row.box_clone()),
                });
                in_a_row.push((Occur::Should, row));
                has_identifier |= name.whole.is_some();
                typed.by_text |= name.whole.is_none();
                typed.names.push(word[name.bytes].to_owned());
                typed.is_all = name.parts.len() == all_parts;
            }
        }
        typed.is_all &= self.is_one_word && typed.names.len() == 1;
        self.is_flat = was_flat;
        let having = |names| {
            let clauses = vec![
                (Occur::Must, union_of(names)),
                (Occur::Should, words.box_clone()),
            ];
            self.filtered(Box::new(BooleanQuery::new(clauses)), query)
        };
        Some(WholeNames {
            query: having(as_one),
            in_a_row: has_identifier.then(|| having(in_a_row)),
            typed,
        })
    }

    /// Returns the words and names for reranking.
    pub(crate) fn query_terms(&mut self, node: &Node) -> Words {
        let mut words = Words::default();
        let mut position = 0;
        self.collect_words(node, &mut position, &mut words);
        words
    }

    fn collect_words(&mut self, node: &Node, position: &mut u32, words: &mut Words) {
        match node {
            Node::Group(clauses) => {
                let meant = clauses
                    .iter()
                    .filter(|(role, _)| *role != ClauseRole::MustNot);
                for (_, node) in meant {
                    self.collect_words(node, position, words);
                }
            }
            Node::Word(range) => self.add_words(range.clone(), true, position, words),
            Node::Phrase(range) => self.add_words(range.clone(), false, position, words),
            Node::Prefix(_) => *position += APART,
        }
    }

    fn add_words(
        &mut self,
        range: Range<usize>,
        is_typed: bool,
        position: &mut u32,
        words: &mut Words,
    ) {
        let analysis = self.analyser.analyse(&self.text[range.clone()]);
        let is_small = is_typed && self.is_passed_over(&range);
        let first = words.units.len();
        let mut last = *position;
        for (part, stem) in stems(&analysis) {
            last = *position + u32::try_from(part.position).unwrap_or(0);
            words.units.push(QueryWord {
                term: self.text_term(stem),
                position: last,
                is_small,
            });
        }
        *position = last + 1;
        if !is_typed || is_small {
            return;
        }
        let firsts = match self.puts_names_first {
            true => self.first_names(range.clone(), self.is_one_word),
            false => Vec::new(),
        };
        let word = &self.text[range];
        let mut names = names_in(word, &analysis);
        // A word of one part can have a definition, too.
        if let [single] = parts(&analysis).collect::<Vec<_>>()[..] {
            names.push(TypedName {
                parts: 0..1,
                bytes: single.start..single.end,
                whole: None,
                may_be_words: true,
            });
        }
        for name in names {
            let defined = match (&name.whole, name.parts.len()) {
                (Some(whole), _) => Some(whole.clone()),
                (None, 1) => Some(word[name.bytes.clone()].to_lowercase()),
                (None, _) => None,
            };
            words.names.push(Name {
                comes_first: firsts.contains(&name),
                whole: name.whole.map(|whole| self.text_term(&whole)),
                definition: defined.map(|name| self.text_term(&format!("{DEFINITION_MARK}{name}"))),
                units: first + name.parts.start..first + name.parts.end,
            });
        }
    }
}

/// Returns each part with its stem, or with itself if it has none.
fn stems(analysis: &Analysis) -> impl Iterator<Item = (AnalysedTerm<'_>, &str)> {
    let mut terms = analysis.iter().peekable();
    std::iter::from_fn(move || {
        let part = terms.find(|term| term.form == TermForm::Part)?;
        let stem = terms.next_if(|term| term.form == TermForm::Stem);
        Some((part, stem.unwrap_or(part).term))
    })
}
