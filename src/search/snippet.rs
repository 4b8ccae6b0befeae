//! Snippets: plain text around the best match of a passage, with highlights.

use std::ops::Range;

use super::{
    analyser::{AnalysedTerm, Analyser, Analysis, TermForm},
    document::{ceil_boundary, floor_boundary},
    error::IndexSearchError,
    index::SearchIndex,
    query::SearchQuery,
    rank::SMALL_SHARE,
    schema::{namespace_tag, text_term},
    stop_words::is_small,
    syntax::{self, ClauseRole, Node},
};

/// A piece of a passage.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Snippet {
    /// Plain text, as in the passage.
    pub text: String,
    /// Byte ranges of the matches in `text`, in order, not overlapping.
    pub highlights: Vec<Range<usize>>,
    /// The offset of `text` in the passage, in bytes.
    pub byte_start: usize,
    /// The byte range, in the passage, of the first match in the best group of matches. For a name,
    /// it is the whole name; for a pasted line, the first matching word. `0..0` when nothing
    /// matches.
    pub first: Range<usize>,
}

/// Finds a query's words in passages.
#[derive(Clone)]
pub struct Snippeter {
    patterns: Vec<Pattern>,
    analyser: Analyser,
    /// The query asks for failed results, so lines that report a failure are preferred.
    wants_failures: bool,
}

/// Weight of a line that reports a failure, when failures are preferred: enough to be shown before
/// another line with the same words.
const FAILURE_SHARE: f32 = 1.05;
/// Words of such lines, in lower case.
const FAILURE_WORDS: [&str; 8] = [
    "error",
    "fail",
    "fatal",
    "panic",
    "exception",
    "denied",
    "not found",
    "undefined",
];

#[derive(Clone, Debug)]
struct Pattern {
    /// Terms in a row, one for each part.
    terms: Vec<String>,
    /// The last term is a prefix.
    is_prefix: bool,
    /// The worth of a match: the rarer, the higher.
    weight: f32,
    /// It is a stop word.
    is_small: bool,
}

impl Snippeter {
    /// Returns a snippeter for the words of a query, except excluded ones; their rarity comes from
    /// the index.
    ///
    /// # Errors
    /// [`IndexSearchError::Query`] for a query that cannot be searched.
    pub fn for_query(index: &SearchIndex, query: &SearchQuery) -> Result<Self, IndexSearchError> {
        let (parsed, _) = syntax::read(&query.text, query.reading)?;
        let mut this = Self::without_words(query);
        this.collect(&parsed, &query.text);
        Ok(this.weighed(index, query))
    }

    /// Returns a snippeter for the words of a text that passages share only by chance. Ignores stop
    /// words. The text may have no words.
    #[must_use]
    pub fn for_text(index: &SearchIndex, query: &SearchQuery) -> Self {
        let parsed = syntax::read(&query.text, query.reading);
        let mut this = Self::without_words(query);
        if let Ok((parsed, _)) = parsed {
            this.collect(&parsed, &query.text);
        }
        this.patterns.retain(|pattern| !pattern.is_small);
        this.weighed(index, query)
    }

    fn without_words(query: &SearchQuery) -> Self {
        Self {
            patterns: Vec::new(),
            analyser: Analyser::default(),
            wants_failures: query.filters.success == Some(false),
        }
    }

    fn weighed(mut self, index: &SearchIndex, query: &SearchQuery) -> Self {
        let terms = self.patterns.iter().flat_map(|pattern| &pattern.terms);
        self.analyser = Analyser::looking_for(terms.map(String::as_str));
        let searcher = index.published().searcher;
        let rarity = |tag| searcher.doc_freq(&tag).map_or(1.0, |count| count as f32);
        let all = rarity(index.fields.tag(&namespace_tag(&query.namespace)));
        let has_others = self.patterns.iter().any(|pattern| !pattern.is_small);
        for pattern in &mut self.patterns {
            for term in &pattern.terms {
                let key = text_term(&query.namespace, term);
                let count = rarity(tantivy::Term::from_field_text(index.fields.text, &key));
                pattern.weight += (1.0 + all / (count + 1.0)).ln();
            }
            if pattern.is_small && has_others {
                pattern.weight *= SMALL_SHARE;
            }
        }
        self
    }

    fn collect(&mut self, node: &Node, text: &str) {
        match node {
            Node::Group(clauses) => {
                for (role, node) in clauses {
                    if *role != ClauseRole::MustNot {
                        self.collect(node, text);
                    }
                }
            }
            Node::Word(range) => {
                let analysis = self.analyser.analyse(&text[range.clone()]);
                self.row(&analysis, false);
                for term in analysis.iter().filter(|term| term.form != TermForm::Tail) {
                    self.push(vec![term.term.to_owned()], false);
                }
            }
            Node::Phrase(range) => {
                let analysis = self.analyser.analyse(&text[range.clone()]);
                self.row(&analysis, false);
            }
            Node::Prefix(range) => {
                let analysis = self.analyser.analyse(&text[range.clone()]);
                self.row(&analysis, true);
                for whole in analysis.iter().filter(|term| term.form == TermForm::Whole) {
                    self.push(vec![whole.term.to_owned()], true);
                }
            }
        }
    }

    fn row(&mut self, analysis: &Analysis, is_prefix: bool) {
        let parts = analysis.iter().filter(|term| term.form == TermForm::Part);
        self.push(parts.map(|part| part.term.to_owned()).collect(), is_prefix);
    }

    fn push(&mut self, terms: Vec<String>, is_prefix: bool) {
        let known = self
            .patterns
            .iter()
            .any(|p| p.terms == terms && p.is_prefix == is_prefix);
        if !terms.is_empty() && !known {
            let is_small = matches!(&terms[..], [term] if !is_prefix && is_small(term));
            self.patterns.push(Pattern {
                terms,
                is_prefix,
                weight: 0.0,
                is_small,
            });
        }
    }

    /// Returns a copy that skips no words.
    #[cfg(test)]
    pub(super) fn thorough(self) -> Self {
        Self {
            analyser: Analyser::default(),
            ..self
        }
    }

    /// Returns the best piece of a passage, of at most `max_bytes` bytes.
    pub fn snippet(&mut self, passage: &str, max_bytes: usize) -> Snippet {
        let analysis = self.analyser.analyse(passage);
        let matches = self.matches(&analysis);
        let best = self.best(passage, &matches, max_bytes);
        let range = if passage.len() <= max_bytes {
            0..passage.len()
        } else {
            cut(passage, &best, max_bytes)
        };
        let first = joined(&matches, &(best.start..passage.len()));
        Snippet {
            text: passage[range.clone()].to_owned(),
            highlights: highlights(&matches, &range),
            byte_start: range.start,
            first: first.first().cloned().unwrap_or(0..0),
        }
    }

    /// Returns the matches, in order, each with its pattern's number.
    fn matches(&self, analysis: &Analysis) -> Vec<(Range<usize>, usize)> {
        let terms: Vec<AnalysedTerm<'_>> = analysis.iter().collect();
        let mut found = Vec::new();
        for (number, pattern) in self.patterns.iter().enumerate() {
            for start in 0..terms.len() {
                found.extend(pattern.match_at(&terms, start).map(|range| (range, number)));
            }
        }
        found.sort_by_key(|(range, number)| (range.start, range.end, *number));
        found
    }

    /// Returns the range of the most valuable group of nearby matches on one line, from the first
    /// match's start to the last one's end. The first of equal ones.
    fn best(
        &self,
        passage: &str,
        matches: &[(Range<usize>, usize)],
        max_bytes: usize,
    ) -> Range<usize> {
        let reach = max_bytes - max_bytes / 4;
        let mut best = (0..0, 0.0);
        let mut seen = vec![0_usize; self.patterns.len()];
        let (mut first, mut worth) = (0, 0.0);
        let (mut line_end, mut share) = (0, 1.0);
        for (index, (range, number)) in matches.iter().enumerate() {
            if range.start >= line_end {
                // A new line: matches of the previous one do not count.
                for (_, number) in &matches[first..index] {
                    seen[*number] = 0;
                }
                (first, worth) = (index, 0.0);
                let rest = &passage[range.start..];
                line_end = rest
                    .find('\n')
                    .map_or(passage.len(), |end| range.start + end + 1);
                let line = passage[..range.start].rfind('\n').map_or(0, |end| end + 1);
                share = self.share(&passage[line..line_end]);
            }
            seen[*number] += 1;
            if seen[*number] == 1 {
                worth += self.patterns[*number].weight;
            }
            // Drop matches that are too far away or repeated.
            while first < index {
                let (start, number) = (matches[first].0.start, matches[first].1);
                let is_far = range.end > start + reach;
                if !is_far && seen[number] == 1 {
                    break;
                }
                seen[number] -= 1;
                if seen[number] == 0 {
                    worth -= self.patterns[number].weight;
                }
                first += 1;
            }
            if worth * share > best.1 * 1.000_1 {
                best = (matches[first].0.start..range.end, worth * share);
            }
        }
        best.0
    }

    /// Returns the weight of the matches of a line.
    fn share(&self, line: &str) -> f32 {
        if !self.wants_failures {
            return 1.0;
        }
        let line = line.to_lowercase();
        match FAILURE_WORDS.iter().any(|word| line.contains(word)) {
            true => FAILURE_SHARE,
            false => 1.0,
        }
    }
}

impl Pattern {
    /// Returns the bytes of a match that begins with this term.
    fn match_at(&self, terms: &[AnalysedTerm<'_>], start: usize) -> Option<Range<usize>> {
        let first = &terms[start];
        let mut end = first.end;
        let mut next = start;
        for (index, wanted) in self.terms.iter().enumerate() {
            let is_beginning = self.is_prefix && index + 1 == self.terms.len();
            let fits = |term: &str| {
                if is_beginning {
                    term.starts_with(wanted.as_str())
                } else {
                    term == wanted
                }
            };
            let position = first.position + index;
            let rest = &terms[next..];
            let here = rest
                .iter()
                .take_while(|term| term.position <= position)
                .take(if index == 0 { 1 } else { rest.len() })
                .position(|term| term.position == position && fits(term.term))?;
            end = end.max(rest[here].end);
            next += here;
        }
        Some(first.start..end)
    }
}

/// Returns a piece that holds the best matches, or their beginning. It begins at the start of their
/// line if the text from there to the last match fits, otherwise at the start of a word.
fn cut(passage: &str, best: &Range<usize>, max_bytes: usize) -> Range<usize> {
    let (lead, at) = (max_bytes / 4, best.start);
    let latest = passage.len().saturating_sub(max_bytes);
    let line = passage[..at].rfind('\n').map_or(0, |end| end + 1);
    let start = match best.end - line <= max_bytes - lead {
        // Little text follows the last lines, so show more of what precedes them.
        true if line > latest => line_start(passage, latest, line),
        true => line,
        false => {
            let start = ceil_boundary(passage, latest.min(at.saturating_sub(lead)));
            word_start(passage, start, at)
        }
    };
    let start = start.min(floor_boundary(passage, at));
    let hard = floor_boundary(passage, (start + max_bytes).min(passage.len()));
    if hard == passage.len() {
        return start..hard;
    }
    let soft = floor_boundary(passage, start + max_bytes - lead).clamp(start, hard);
    let tail = &passage[soft..hard];
    let end = tail
        .rfind('\n')
        .or_else(|| tail.rfind(' '))
        .map_or(hard, |end| soft + end);
    start..end
}

/// Returns the first line start from `start` to `line`, which is a line start itself.
fn line_start(passage: &str, start: usize, line: usize) -> usize {
    let start = ceil_boundary(passage, start);
    let before = floor_boundary(passage, start.saturating_sub(1));
    let end = passage
        .get(before..line)
        .and_then(|before| before.find('\n'));
    end.map_or(line, |end| before + end + 1)
}

/// Returns the first place from `start` to `at` where a line or word begins, or part of a very long
/// word.
fn word_start(passage: &str, start: usize, at: usize) -> usize {
    let begins_line = start == 0 || passage[..start].ends_with('\n');
    if begins_line || start >= at {
        return start;
    }
    let end = floor_boundary(passage, at);
    // A blank just before the start counts: the text then begins with the word after it.
    let from = floor_boundary(passage, start - 1);
    let after = |is_end: fn(char) -> bool| {
        let mut chars = passage[from..end].char_indices();
        let found = chars.find(|(_, c)| is_end(*c));
        found.map(|(at, c)| from + at + c.len_utf8())
    };
    after(char::is_whitespace)
        .or_else(|| after(|c| !c.is_alphanumeric() && c != '_'))
        .map_or(start, |found| found.max(start))
}

/// Returns the matches inside a piece, merged where they touch, relative to the piece.
fn highlights(matches: &[(Range<usize>, usize)], piece: &Range<usize>) -> Vec<Range<usize>> {
    let mut joined = joined(matches, piece);
    for range in &mut joined {
        *range = range.start - piece.start..range.end - piece.start;
    }
    joined
}

/// Returns the matches inside a piece, merged where they touch.
fn joined(matches: &[(Range<usize>, usize)], piece: &Range<usize>) -> Vec<Range<usize>> {
    let mut joined: Vec<Range<usize>> = Vec::new();
    for (range, _) in matches {
        if range.start < piece.start || range.end > piece.end {
            continue;
        }
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range.clone()),
        }
    }
    joined
}
