//! Turns a parsed query and filters into tantivy queries.
//!
//! An optional word matches leniently: an identifier or path matches as a whole (all parts in a
//! row, ranked first) and by its parts. A required or excluded word matches strictly: only with all
//! parts in a row.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use tantivy::{
    DocId, Searcher, SegmentReader, Term,
    columnar::Column,
    query::{
        Bm25StatisticsProvider, BooleanQuery, BoostQuery, ConstScoreQuery, DisjunctionMaxQuery,
        EmptyQuery, Occur, PhrasePrefixQuery, PhraseQuery, Query, TermQuery,
        doc_predicate_query::{DocPredicateQuery, FunctionPredicate},
    },
    schema::{Field, IndexRecordOption},
};

use super::{
    analyser::{Analyser, Analysis, TermForm, is_dense},
    columns::span,
    conversation_set::ChosenConversations,
    exclusion::Exclusion,
    lineage::ShownBranches,
    merge::SharedStatistics,
    query::{RecalledTexts, Scope, SearchFilters, SearchQuery},
    schema::{
        Fields, column, conversation_tag, kind_tag, namespace_tag, path_tag, recalled_tag,
        role_tag, success_tag, text_term, tool_tag,
    },
    syntax::{ClauseRole, Node},
    term_pattern::{SubstringPattern, TermPattern, term_query},
};
use treering_domain::Namespace;

/// Up to this many conversations are terms of the query; more are looked up in each segment.
pub(super) const TAGGED_CONVERSATIONS_MAX: usize = 1_024;

// The weights below are measured: docs/decisions/0023-search-ranking.md.

/// Added to a stem's score when the word matches exactly.
const EXACT_BONUS: f32 = 0.3;
/// Weight of a whole identifier or path beside its parts.
const WHOLE_BOOST: f32 = 1.0;
/// Maximum number of bytes of a substring that is looked for in words; the rest is ignored.
const PIECE_BYTES_MAX: usize = 64;
/// Maximum number of terms per segment that a prefix after other words expands to.
const PREFIX_TERMS_MAX: u32 = 256;
/// tantivy fixes BM25's length normalisation at b = 0.75, too strong for passages of similar
/// length. Reporting a longer average weakens it.
const AVERAGE_LENGTH_FACTOR: f32 = 1.5;

/// Builds queries for one namespace.
pub(super) struct Planner<'a> {
    pub(crate) fields: &'a Fields,
    pub(crate) namespace: &'a Namespace,
    pub(crate) text: &'a str,
    pub(crate) analyser: Analyser,
    pub(crate) purpose: Purpose,
    /// So far, the query is a union of single terms.
    pub(crate) is_flat: bool,
    /// Stop words are skipped.
    pub(crate) passes_small: bool,
    /// The query has no blank.
    pub(crate) is_one_word: bool,
    /// Passages with whole names are found by a query of their own, and rank first.
    pub(crate) puts_names_first: bool,
    /// Some passages of the namespace quote a memory.
    pub(crate) has_recalled: bool,
}

/// The purpose of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Finding the best hits.
    Rank,
    /// Counting: matches the same passages with fewer clauses.
    Count,
}

type Clause = (Occur, Box<dyn Query>);

impl Planner<'_> {
    /// Returns the query for a parsed text, or `None` when it has no terms.
    pub(crate) fn query(&mut self, node: &Node) -> Option<Box<dyn Query>> {
        self.node(node, ClauseRole::Should)
    }

    fn node(&mut self, node: &Node, role: ClauseRole) -> Option<Box<dyn Query>> {
        match node {
            Node::Word(range) => {
                self.is_flat &= role == ClauseRole::Should;
                match role {
                    ClauseRole::Should => {
                        let clauses = self.lenient(range.clone());
                        (!clauses.is_empty()).then(|| union_of(clauses))
                    }
                    ClauseRole::Must | ClauseRole::MustNot => {
                        let analysis = self.analyser.analyse(&self.text[range.clone()]);
                        self.strict(&analysis)
                    }
                }
            }
            Node::Phrase(range) => {
                let analysis = self.analyser.analyse(&self.text[range.clone()]);
                self.phrase(&analysis)
            }
            Node::Prefix(range) => {
                let analysis = self.analyser.analyse(&self.text[range.clone()]);
                self.prefix(&analysis)
            }
            Node::Group(clauses) => self.group(clauses),
        }
    }

    fn group(&mut self, clauses: &[(ClauseRole, Node)]) -> Option<Box<dyn Query>> {
        let mut planned: Vec<Clause> = Vec::with_capacity(clauses.len());
        let has_must = clauses.iter().any(|(role, _)| *role == ClauseRole::Must);
        for (role, node) in clauses {
            if let (ClauseRole::Should, Node::Word(range)) = (role, node) {
                // Inlined rather than one clause: tantivy prunes flat lists of terms.
                if !self.is_passed_over(range) {
                    planned.extend(self.lenient(range.clone()));
                }
                continue;
            }
            // A required word without terms is ignored.
            let Some(query) = self.node(node, *role) else {
                continue;
            };
            let occur = match role {
                ClauseRole::Should => Occur::Should,
                ClauseRole::Must => Occur::Must,
                ClauseRole::MustNot => Occur::MustNot,
            };
            self.is_flat = false;
            let query = match occur {
                Occur::MustNot => Box::new(Exclusion(query)) as Box<dyn Query>,
                Occur::Should | Occur::Must => query,
            };
            planned.push((occur, query));
        }
        if planned.is_empty() {
            return None;
        }
        if has_must && self.purpose == Purpose::Count && has(&planned, Occur::Must) {
            planned.retain(|(occur, _)| *occur != Occur::Should);
        }
        if planned.iter().all(|(occur, _)| *occur == Occur::MustNot) {
            planned.push((Occur::Must, constant(self.all(), 0.0)));
        }
        Some(union_of(planned))
    }

    /// Matches every passage of the namespace.
    pub(crate) fn all(&self) -> Box<dyn Query> {
        self.tag(&namespace_tag(self.namespace))
    }

    fn tag(&self, tag: &str) -> Box<dyn Query> {
        Box::new(TermQuery::new(
            self.fields.tag(tag),
            IndexRecordOption::Basic,
        ))
    }

    pub(crate) fn text_term(&self, term: &str) -> Term {
        Term::from_field_text(self.fields.text, &text_term(self.namespace, term))
    }

    pub(crate) fn term(&self, term: &str) -> Box<dyn Query> {
        Box::new(TermQuery::new(
            self.text_term(term),
            IndexRecordOption::WithFreqs,
        ))
    }

    /// Returns clauses of which one must match, each adding to the score.
    fn lenient(&mut self, range: std::ops::Range<usize>) -> Vec<Clause> {
        let analysis = &self.analyser.analyse(&self.text[range.clone()]);
        if let [single] = parts(analysis).collect::<Vec<_>>()[..]
            && is_one_dense(single.term)
        {
            let prefix = self.prefix(analysis);
            return prefix
                .into_iter()
                .map(|query| (Occur::Should, query))
                .collect();
        }
        let mut clauses: Vec<Clause> = Vec::new();
        for (index, term) in analysis.iter().enumerate() {
            let next = analysis.get(index + 1);
            let has_stem = next.is_some_and(|next| next.form == TermForm::Stem);
            let boost = match (term.form, self.purpose) {
                (TermForm::Part, Purpose::Count) if has_stem => continue,
                (TermForm::Part, Purpose::Rank) if has_stem => EXACT_BONUS,
                (TermForm::Part | TermForm::Stem, _) => 1.0,
                (TermForm::Whole | TermForm::Tail | TermForm::Definition, _) => continue,
            };
            clauses.push((Occur::Should, boosted(self.term(term.term), boost)));
        }
        if parts(analysis).count() > 1 {
            let whole = match whole_of(analysis) {
                Some(whole) => Some(self.term(whole)),
                // A passage with all parts in a row matches the parts anyway, so this affects only
                // the rank; whole names are found by a query of their own.
                None if self.purpose == Purpose::Count || self.is_one_first_name(range) => None,
                None => self.phrase(analysis),
            };
            clauses.extend(whole.map(|query| (Occur::Should, boosted(query, WHOLE_BOOST))));
        }
        clauses
    }

    /// Matches all parts in a row, in any spelling.
    fn strict(&mut self, analysis: &Analysis) -> Option<Box<dyn Query>> {
        if let [single] = parts(analysis).collect::<Vec<_>>()[..] {
            return self.word(analysis, single.term);
        }
        let phrase = self.phrase(analysis)?;
        Some(match whole_of(analysis) {
            Some(whole) => Box::new(DisjunctionMaxQuery::new(vec![phrase, self.term(whole)])),
            None => phrase,
        })
    }

    /// Matches one word: by its stem, scored higher when exact. One CJK character matches as the
    /// first or the last of a pair.
    fn word(&mut self, analysis: &Analysis, word: &str) -> Option<Box<dyn Query>> {
        if is_one_dense(word) {
            return self.prefix(analysis);
        }
        if let Some(stem) = analysis.iter().find(|term| term.form == TermForm::Stem) {
            if self.purpose == Purpose::Count {
                return Some(self.term(stem.term));
            }
            return Some(union_of(vec![
                (Occur::Must, self.term(stem.term)),
                (Occur::Should, boosted(self.term(word), EXACT_BONUS)),
            ]));
        }
        Some(self.term(word))
    }

    pub(crate) fn phrase(&mut self, analysis: &Analysis) -> Option<Box<dyn Query>> {
        let terms: Vec<(usize, Term)> = parts(analysis)
            .map(|part| (part.position, self.text_term(part.term)))
            .collect();
        match &terms[..] {
            [] => None,
            [(_, term)] => Some(Box::new(TermQuery::new(
                term.clone(),
                IndexRecordOption::WithFreqs,
            ))),
            _ => {
                self.is_flat = false;
                Some(Box::new(PhraseQuery::new_with_offset(terms)))
            }
        }
    }

    fn prefix(&mut self, analysis: &Analysis) -> Option<Box<dyn Query>> {
        self.is_flat = false;
        let terms: Vec<(usize, Term)> = parts(analysis)
            .map(|part| (part.position, self.text_term(part.term)))
            .collect();
        let whole = analysis.iter().find(|term| term.form == TermForm::Whole);
        let whole = whole.map(|whole| vec![(0, self.text_term(whole.term))]);
        let queries: Vec<Box<dyn Query>> = [Some(terms), whole]
            .into_iter()
            .flatten()
            .filter(|terms| !terms.is_empty())
            .map(|terms| {
                let mut query = PhrasePrefixQuery::new_with_offset(terms);
                query.set_max_expansions(PREFIX_TERMS_MAX);
                Box::new(query) as Box<dyn Query>
            })
            .collect();
        (!queries.is_empty()).then(|| Box::new(DisjunctionMaxQuery::new(queries)) as Box<dyn Query>)
    }

    /// Matches passages with a word that contains this substring.
    pub(crate) fn piece(&self, piece: &str) -> Box<dyn Query> {
        let end = piece.floor_char_boundary(PIECE_BYTES_MAX.min(piece.len()));
        let prefix = text_term(self.namespace, "");
        term_query(
            self.fields.text,
            SubstringPattern::new(&prefix, &piece[..end]),
        )
    }

    /// Returns the tags that filters accept: one of each list must match.
    pub(crate) fn filter_tags(&self, filters: &SearchFilters) -> Vec<Vec<Term>> {
        let namespace = self.namespace;
        let tools = filters.tools.iter().map(|tool| tool_tag(namespace, tool));
        let kinds = filters.kinds.iter().map(|&kind| kind_tag(namespace, kind));
        let roles = filters.roles.iter().map(|&role| role_tag(namespace, role));
        let outcomes = filters.success.iter();
        let outcomes = outcomes.map(|&success| success_tag(namespace, success));
        let lists: [Vec<String>; 4] = [
            tools.collect(),
            kinds.collect(),
            roles.collect(),
            outcomes.collect(),
        ];
        lists
            .into_iter()
            .filter(|tags| !tags.is_empty())
            .map(|tags| tags.iter().map(|tag| self.fields.tag(tag)).collect())
            .collect()
    }

    /// Adds filters, which restrict the matches and do not change scores.
    pub(crate) fn filtered(&self, query: Box<dyn Query>, asked: &SearchQuery) -> Box<dyn Query> {
        // `filter_tags` handles the filters that are ignored here.
        let SearchFilters {
            tools: _,
            success: _,
            recorded_from,
            recorded_to,
            happened_from,
            happened_to,
            kinds: _,
            roles: _,
            recalled,
            paths,
        } = &asked.filters;
        let mut clauses: Vec<Clause> = Vec::new();
        for tags in self.filter_tags(&asked.filters) {
            clauses.push((Occur::Must, constant(any_of(tags), 0.0)));
        }
        if let Some(scope) = &asked.scope {
            clauses.push((Occur::Must, constant(self.conversations(scope), 0.0)));
        }
        if let Some(Scope::Lineage(segments)) = &asked.scope {
            let only = ShownBranches::only(segments.clone());
            clauses.push((Occur::Must, constant(only.query(), 0.0)));
        }
        if !asked.shown.is_empty() {
            clauses.push((Occur::Must, constant(asked.shown.query(), 0.0)));
        }
        let recorded = span(*recorded_from, *recorded_to);
        let happened = span(*happened_from, *happened_to);
        for (column, span) in [
            (column::RECORDED_AT, recorded),
            (column::HAPPENED_AT, happened),
        ] {
            clauses
                .extend(span.map(|span| (Occur::Must, constant(only_within(column, span), 0.0))));
        }
        if !paths.is_empty() {
            let pattern = TermPattern::globs(&path_tag(self.namespace, ""), paths);
            let named = term_query(self.fields.tags, pattern);
            clauses.push((Occur::Must, constant(named, 0.0)));
        }
        let of_memory = || self.tag(&recalled_tag(self.namespace));
        match recalled {
            RecalledTexts::LeftOut if self.has_recalled => {
                clauses.push((Occur::MustNot, Box::new(Exclusion(of_memory()))));
            }
            RecalledTexts::Only => clauses.push((Occur::Must, constant(of_memory(), 0.0))),
            RecalledTexts::LeftOut | RecalledTexts::Included => {}
        }
        if clauses.is_empty() {
            return query;
        }
        clauses.push((Occur::Must, query));
        Box::new(BooleanQuery::new(clauses))
    }

    fn conversations(&self, scope: &Scope) -> Box<dyn Query> {
        let of_lineage: ChosenConversations;
        let chosen = match scope {
            Scope::Conversations(chosen) => chosen,
            Scope::Lineage(segments) => {
                of_lineage = segments.iter().map(|s| s.conversation).collect();
                &of_lineage
            }
        };
        let Some(ids) = chosen
            .ids()
            .filter(|ids| ids.len() <= TAGGED_CONVERSATIONS_MAX)
        else {
            return chosen.query();
        };
        if ids.is_empty() {
            return Box::new(EmptyQuery);
        }
        let tags = ids.iter();
        let tags = tags
            .map(|conversation| self.tag(&conversation_tag(self.namespace, *conversation)))
            .map(|query| (Occur::Should, query));
        union_of(tags.collect())
    }
}

fn has(clauses: &[Clause], wanted: Occur) -> bool {
    clauses.iter().any(|(occur, _)| *occur == wanted)
}

/// Returns the term of the identifier that spans the whole word.
fn whole_of(analysis: &Analysis) -> Option<&str> {
    let (first, last) = (parts(analysis).next()?, parts(analysis).last()?);
    let is_all = |start, end| start == first.start && end == last.end;
    let mut wholes = analysis.iter().filter(|term| term.form == TermForm::Whole);
    wholes
        .find(|whole| is_all(whole.start, whole.end))
        .map(|whole| whole.term)
}

/// Returns the terms that phrases consist of.
pub(super) fn parts(
    analysis: &Analysis,
) -> impl Iterator<Item = super::analyser::AnalysedTerm<'_>> {
    analysis.iter().filter(|term| term.form == TermForm::Part)
}

/// Returns true for a single CJK character. The index has pairs, and this begins one.
fn is_one_dense(word: &str) -> bool {
    let mut chars = word.chars();
    chars.next().is_some_and(is_dense) && chars.next().is_none()
}

pub(super) fn union_of(mut clauses: Vec<Clause>) -> Box<dyn Query> {
    if clauses.len() == 1 && clauses[0].0 != Occur::MustNot {
        return clauses.remove(0).1;
    }
    Box::new(BooleanQuery::new(clauses))
}

/// Matches passages that have one of these tags.
pub(super) fn any_of(tags: Vec<Term>) -> Box<dyn Query> {
    let having = tags.into_iter().map(|tag| {
        let tag = TermQuery::new(tag, IndexRecordOption::Basic);
        (Occur::Should, Box::new(tag) as Box<dyn Query>)
    });
    union_of(having.collect())
}

fn boosted(query: Box<dyn Query>, boost: f32) -> Box<dyn Query> {
    if (boost - 1.0).abs() < f32::EPSILON {
        return query;
    }
    Box::new(BoostQuery::new(query, boost))
}

fn constant(query: Box<dyn Query>, score: f32) -> Box<dyn Query> {
    Box::new(ConstScoreQuery::new(query, score))
}

/// Matches passages whose time is in a span, both ends included.
fn only_within(column: &'static str, (from, to): (i64, i64)) -> Box<dyn Query> {
    let predicate = FunctionPredicate::from(move |segment: &SegmentReader| {
        let times: Column<i64> = segment.fast_fields().i64(column)?;
        Ok(move |doc: DocId| {
            times
                .first(doc)
                .is_some_and(|time| (from..=to).contains(&time))
        })
    });
    Box::new(DocPredicateQuery::from(predicate))
}

/// Matches the passages of events at some offsets.
pub(super) fn only_offsets(offsets: &BTreeSet<u64>) -> Box<dyn Query> {
    let wanted = Arc::new(offsets.clone());
    let predicate = FunctionPredicate::from(move |segment: &SegmentReader| {
        let wanted = Arc::clone(&wanted);
        let offsets = segment.fast_fields().u64(column::OFFSET)?;
        Ok(move |doc: DocId| offsets.first(doc).is_some_and(|at| wanted.contains(&at)))
    });
    Box::new(DocPredicateQuery::from(predicate))
}

/// Statistics for ranking, of one namespace alone.
pub(super) struct NamespaceStatistics<'a> {
    pub(crate) searcher: &'a Searcher,
    /// The namespace's passages, in all shards if the query has statistics of all.
    pub(crate) passages: u64,
    /// The namespace's passages in this index.
    pub(crate) own_passages: u64,
    shared: Option<&'a SharedStatistics>,
    /// Notes what is asked for, to be added to the statistics of other shards.
    noted: Option<Mutex<SharedStatistics>>,
}

impl<'a> NamespaceStatistics<'a> {
    pub(crate) fn of(
        searcher: &'a Searcher,
        fields: &Fields,
        query: &'a SearchQuery,
    ) -> tantivy::Result<Self> {
        let own_passages = searcher.doc_freq(&fields.tag(&namespace_tag(&query.namespace)))?;
        let shared = query.shared.as_ref().map(|shared| &shared.statistics);
        Ok(Self {
            searcher,
            passages: shared.map_or(own_passages, |shared| shared.passages),
            own_passages,
            shared,
            noted: None,
        })
    }

    /// Returns statistics that note what is asked for.
    pub(crate) fn noting(
        searcher: &'a Searcher,
        fields: &Fields,
        query: &'a SearchQuery,
    ) -> tantivy::Result<Self> {
        let statistics = Self::of(searcher, fields, query)?;
        let noted = SharedStatistics {
            passages: statistics.own_passages,
            documents: searcher.total_num_docs()?,
            ..SharedStatistics::default()
        };
        Ok(Self {
            noted: Some(Mutex::new(noted)),
            ..statistics
        })
    }

    /// Returns what was asked for.
    pub(crate) fn into_noted(self) -> SharedStatistics {
        let noted = self.noted.unwrap_or_default();
        noted.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, note: impl FnOnce(&mut SharedStatistics)) {
        if let Some(noted) = &self.noted {
            note(&mut noted.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl Bm25StatisticsProvider for NamespaceStatistics<'_> {
    // The average length is that of all namespaces, since tantivy keeps no other. It changes scores
    // slightly and reveals nothing about any text.
    fn total_num_tokens(&self, field: Field) -> tantivy::Result<u64> {
        let id = field.field_id();
        let shared = self.shared.and_then(|shared| shared.tokens.get(&id));
        let (tokens, all) = match (shared, self.shared) {
            (Some(tokens), Some(shared)) => (*tokens, shared.documents),
            _ => (
                self.searcher.total_num_tokens(field)?,
                self.searcher.total_num_docs()?,
            ),
        };
        self.note(|noted| {
            noted.tokens.insert(id, tokens);
        });
        let average = tokens as f64 / all.max(1) as f64 * f64::from(AVERAGE_LENGTH_FACTOR);
        Ok((average * self.passages.max(1) as f64) as u64)
    }

    fn total_num_docs(&self) -> tantivy::Result<u64> {
        Ok(self.passages.max(1))
    }

    fn doc_freq(&self, term: &Term) -> tantivy::Result<u64> {
        let passages_max = self.passages.max(1);
        if self.shared.is_none() && self.noted.is_none() {
            return Ok(self.searcher.doc_freq(term)?.min(passages_max));
        }
        let field = term.field().field_id().to_be_bytes();
        let key = [&field[..], term.serialized_value_bytes()].concat();
        let shared = self.shared.and_then(|shared| shared.terms.get(&key));
        let passages = match shared {
            Some(passages) => *passages,
            None => self.searcher.doc_freq(term)?,
        };
        self.note(|noted| {
            noted.terms.insert(key, passages);
        });
        Ok(passages.min(passages_max))
    }
}
