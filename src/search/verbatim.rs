//! Refines the order of the first hits by reading their texts. The index ignores signs and
//! capitals: for it, `foo::bar` is `foo bar`, and a pasted line equals any other with its words.
//!
//! The caller has the texts; this module says what to look for in them and how that changes the
//! order.

use std::cmp::Reverse;

use super::{
    hits::keep_in_order,
    query::{NameCompleteness, SearchQuery, SearchResults},
    query_terms::QueryNames,
    rank::Scores,
    syntax::QuerySyntax,
};

/// Number of first hits checked for a pasted line: one page, which is read anyway.
const LINE_HITS_MAX: usize = 10;
/// Number of first hits checked for names.
const NAME_HITS_MAX: usize = 32;
/// Bonus for a text that contains the whole query as typed, as a share of its score. Smaller than
/// the differences between kinds of events.
const LINE_WEIGHT: f32 = 0.15;

/// What to look for in the texts of the first hits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerbatimQuery {
    /// The number of first hits to check.
    pub hits: usize,
    line: Option<String>,
    names: Vec<String>,
}

/// How much of a query, as typed, a text contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerbatimMatch {
    /// The number of the query's names that the text contains.
    pub names: usize,
    /// Whether the text contains the whole query.
    pub line: bool,
}

impl VerbatimQuery {
    /// Returns what to look for, depending on how the query was parsed.
    pub(super) fn of(
        query: &SearchQuery,
        reading: QuerySyntax,
        names: &QueryNames,
        found: NameCompleteness,
    ) -> Self {
        let line = query.text.trim();
        let has_signs = line.contains(|c: char| !c.is_alphanumeric() && !c.is_whitespace());
        let is_line = reading != QuerySyntax::Query && has_signs && !line.contains('\n');
        let by_text =
            found == NameCompleteness::InARow || names.by_text && found == NameCompleteness::Whole;
        let names = match by_text {
            true => names.names.clone(),
            false => Vec::new(),
        };
        Self {
            hits: match (by_text, is_line) {
                (true, _) => NAME_HITS_MAX,
                (false, true) => LINE_HITS_MAX,
                (false, false) => 0,
            },
            line: is_line.then(|| line.to_owned()),
            names,
        }
    }

    /// Returns whether the texts decide if the query's names were found.
    #[must_use]
    pub fn decides_names(&self) -> bool {
        !self.names.is_empty()
    }

    /// Returns how much of the query, as typed, a passage contains.
    #[must_use]
    pub fn standing(&self, passage: &str) -> VerbatimMatch {
        let has = |wanted: &String| has_as_typed(passage, wanted);
        VerbatimMatch {
            names: self.names.iter().filter(|name| has(name)).count(),
            line: self.line.as_ref().is_some_and(has),
        }
    }

    /// Orders the first hits by what their texts contain, then cuts out the requested page.
    pub fn reorder(matches: Vec<VerbatimMatch>, results: &mut SearchResults, query: &SearchQuery) {
        let first = matches.len().min(results.hits.len());
        for (hit, as_typed) in results.hits.iter_mut().zip(matches) {
            hit.as_typed = as_typed;
        }
        // Hits of several shards are ordered once they are merged.
        if query.shared.is_some() {
            return;
        }
        order_by_texts(&mut results.hits[..first], |hit| {
            (hit.as_typed, &mut hit.score, &mut hit.scores)
        });
        keep_in_order(&mut results.hits);
        let before = query.offset.saturating_sub(results.first);
        results.hits.drain(..before.min(results.hits.len()));
        results.hits.truncate(query.limit);
        results.first = query.offset;
    }
}

/// Orders hits by how many names of the query their texts contain, and by score, to which a text
/// with the whole query adds.
pub(super) fn order_by_texts<T: Clone>(
    hits: &mut [T],
    parts: impl Fn(&mut T) -> (VerbatimMatch, &mut f32, &mut Scores),
) {
    let keyed = hits.iter_mut().map(|hit| {
        let (as_typed, score, scores) = parts(hit);
        if as_typed.line {
            scores.order += *score * LINE_WEIGHT / scores.kind;
            *score += *score * LINE_WEIGHT;
        }
        (as_typed.names, *score, hit.clone())
    });
    let mut keyed: Vec<_> = keyed.collect();
    keyed.sort_by(|(a_names, a_score, _), (b_names, b_score, _)| {
        let names = Reverse(a_names).cmp(&Reverse(b_names));
        names.then_with(|| b_score.total_cmp(a_score))
    });
    for (hit, (_, _, ordered)) in hits.iter_mut().zip(keyed) {
        *hit = ordered;
    }
}

/// Returns whether a text contains another, ignoring ASCII case.
fn has_as_typed(text: &str, typed: &str) -> bool {
    let typed = typed.as_bytes();
    let Some((first, rest)) = typed.split_first() else {
        return true;
    };
    let text = text.as_bytes();
    let last = text.len().saturating_sub(rest.len());
    (0..last).any(|at| {
        text[at].eq_ignore_ascii_case(first)
            && text[at + 1..at + typed.len()].eq_ignore_ascii_case(rest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_matches_only_as_typed() {
        assert!(has_as_typed("a Foo::Bar b", "foo::bar"));
        assert!(has_as_typed("get_feature_flags", "feature_flags"));
        assert!(has_as_typed("foo::bar", "foo::bar"));
        assert!(!has_as_typed("foo bar", "foo::bar"));
        assert!(!has_as_typed("foo::ba", "foo::bar"));
        assert!(!has_as_typed("", "é"));
        assert!(has_as_typed("é東", "東"));
    }
}
