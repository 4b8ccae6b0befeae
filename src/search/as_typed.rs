//! A third look, at the texts of the first hits. The index knows no signs and no capitals:
//! to it, `foo::bar` is `foo bar`, and a pasted line all others with its words.
//!
//! Whoever asks has the texts; here is what is looked for in them, and what it changes.

use std::cmp::Reverse;

use super::{
    hits::keep_in_order,
    looked_for::TypedNames,
    query::{Hit, SearchQuery, SearchResults, Wholeness},
    syntax::Reading,
};

/// First hits that are looked at for a line that was pasted: as many as a page has, which
/// are read anyway.
const LINE_HITS_MAX: usize = 10;
/// First hits that are looked at for names.
const NAME_HITS_MAX: usize = 32;
/// What all of a query as it was typed adds, as a share of the score. Less than what
/// kinds of events differ by.
const LINE_WEIGHT: f32 = 0.15;

/// What is looked for in the texts of the first hits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AsTyped {
    /// Of so many.
    pub hits: usize,
    line: Option<String>,
    names: Vec<String>,
}

/// What a text has of a query as it was typed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// So many of its names.
    pub names: usize,
    /// All of it.
    pub line: bool,
}

impl AsTyped {
    /// What texts tell about a query that was read so.
    pub(super) fn of(
        query: &SearchQuery,
        reading: Reading,
        names: &TypedNames,
        found: Wholeness,
    ) -> Self {
        let line = query.text.trim();
        let has_signs = line.contains(|c: char| !c.is_alphanumeric() && !c.is_whitespace());
        let is_line = reading != Reading::Query && has_signs && !line.contains('\n');
        let by_text = found == Wholeness::InARow || names.by_text && found == Wholeness::Whole;
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

    /// Whether texts say if something has the query's names.
    #[must_use]
    pub fn tells_names(&self) -> bool {
        !self.names.is_empty()
    }

    /// What a passage has of it.
    #[must_use]
    pub fn standing(&self, passage: &str) -> Standing {
        let has = |wanted: &String| has_as_typed(passage, wanted);
        Standing {
            names: self.names.iter().filter(|name| has(name)).count(),
            line: self.line.as_ref().is_some_and(has),
        }
    }

    /// Puts the first hits in the order that their texts tell, and cuts the page that was
    /// asked for.
    pub fn reorder(standings: Vec<Standing>, results: &mut SearchResults, query: &SearchQuery) {
        let told = standings.len().min(results.hits.len());
        let first = results.hits.drain(..told);
        let mut first: Vec<(Standing, Hit)> = standings.into_iter().zip(first).collect();
        for (standing, hit) in &mut first {
            if standing.line {
                hit.scores.order += hit.score * LINE_WEIGHT / hit.scores.kind;
                hit.score += hit.score * LINE_WEIGHT;
            }
        }
        first.sort_by(|(a, a_hit), (b, b_hit)| {
            let names = Reverse(a.names).cmp(&Reverse(b.names));
            names.then_with(|| b_hit.score.total_cmp(&a_hit.score))
        });
        let first = first.into_iter().map(|(_, hit)| hit);
        results.hits.splice(..0, first);
        keep_in_order(&mut results.hits);
        let before = query.offset.saturating_sub(results.first);
        results.hits.drain(..before.min(results.hits.len()));
        results.hits.truncate(query.limit);
        results.first = query.offset;
    }
}

/// Whether a text has another as it was typed, whatever its capitals.
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
    fn a_name_is_found_as_it_was_typed() {
        assert!(has_as_typed("a Foo::Bar b", "foo::bar"));
        assert!(has_as_typed("get_feature_flags", "feature_flags"));
        assert!(has_as_typed("foo::bar", "foo::bar"));
        assert!(!has_as_typed("foo bar", "foo::bar"));
        assert!(!has_as_typed("foo::ba", "foo::bar"));
        assert!(!has_as_typed("", "é"));
        assert!(has_as_typed("é東", "東"));
    }
}
