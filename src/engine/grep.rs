//! Searching by a regular expression: the index says which events may match, their
//! stored text says which do and where.

use std::collections::{HashMap, HashSet};

use super::{
    Inner,
    error::{ReadError, SearchError},
    hit::{Finds, HitReader},
    query::{ConversationHits, SearchAnswer, SearchHit},
    search::Names,
    work,
};
use crate::{
    domain::ConversationId,
    search::{Copies, Hit, Pattern, Reading, SearchQuery},
};

/// Candidates that are looked up at a time.
const CANDIDATES_BATCH: usize = 1_024;

/// What is asked besides the index's query.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub context_lines: u32,
    /// None: they are not asked for.
    pub conversations_max: Option<usize>,
}

impl Inner {
    /// The newest events that a pattern matches. Reading ends with the page, unless
    /// all are to be counted; then `total` is of all.
    pub(super) async fn search_pattern(
        &self,
        query: &SearchQuery,
        wanted: Wanted,
        head: u64,
    ) -> Result<SearchAnswer, SearchError> {
        let pattern = Pattern::new(&query.text).map_err(|error| SearchError::Query {
            message: error.to_string(),
        })?;
        let index = self.indexer.index();
        let candidates = index.candidates(&pattern, query);
        let candidates = candidates.map_err(|error| self.search_failed(&index, error))?;
        let mut names = Names::default();
        let mut reader = HitReader {
            namespace: &query.namespace,
            context_lines: wanted.context_lines,
            finds: Finds::Pattern(&pattern),
        };
        let (mut hits, mut of_page): (Vec<SearchHit>, Vec<Hit>) = (Vec::new(), Vec::new());
        // Texts that were looked at, and those of them that match.
        let (mut texts, mut matching) = (HashSet::new(), HashSet::new());
        let (mut total, mut more) = (0_usize, candidates.more);
        let mut counts: HashMap<ConversationId, u64> = HashMap::new();
        let counts_all = query.count_all || wanted.conversations_max.is_some();
        let mut read_to = 0;
        let mut batch = Vec::new().into_iter();
        loop {
            work::check()?;
            let Some(candidate) = batch.next() else {
                let next = candidates.hits(read_to, CANDIDATES_BATCH);
                let next = next.map_err(|error| self.search_failed(&index, error))?;
                if next.is_empty() {
                    break;
                }
                read_to += next.len();
                batch = next.into_iter();
                continue;
            };
            if self
                .marks
                .covers(candidate.conversation, candidate.revision)
            {
                continue;
            }
            if !texts.insert(candidate.text_hash) && query.copies == Copies::Folded {
                if wanted.conversations_max.is_some() && matching.contains(&candidate.text_hash) {
                    *counts.entry(candidate.conversation).or_default() += 1;
                }
                continue;
            }
            let is_full = hits.len() >= query.limit;
            let conversation = candidate.conversation;
            let found = match self.read_hit(&candidate, &mut reader).await {
                Ok(found) => found,
                Err(error @ ReadError::Damaged { .. }) => {
                    self.noticed(&error);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let Some(found) = found else { continue };
            // Only what was found says that there is more.
            if is_full && !counts_all {
                more = true;
                break;
            }
            total += 1;
            matching.insert(candidate.text_hash);
            *counts.entry(conversation).or_default() += 1;
            if total > query.offset && !is_full {
                hits.push(self.named(candidate.clone(), found, &mut names, query)?);
                of_page.push(candidate);
            }
        }
        let copies = index.copies(query, &of_page);
        let copies = copies.map_err(|error| self.search_failed(&index, error))?;
        for (hit, copies) in hits.iter_mut().zip(copies) {
            self.add_copies(hit, copies, &names, query)?;
        }
        let conversations = match wanted.conversations_max {
            Some(max) => {
                let best = best_conversations(counts, &HashMap::new(), max);
                self.hits_by_conversation(best, &mut names, query)?
            }
            None => Vec::new(),
        };
        let mut answer = self.answer(hits, candidates.reached, head);
        answer.total = total as u64;
        answer.more_than_total = more;
        answer.read_as = Reading::Plain;
        answer.conversations = conversations;
        Ok(answer)
    }

    /// Conversations with hits, with what they are called.
    pub(super) fn hits_by_conversation(
        &self,
        best: Vec<(ConversationId, u64, f32)>,
        names: &mut Names,
        query: &SearchQuery,
    ) -> Result<Vec<ConversationHits>, ReadError> {
        let named = best.into_iter().map(|(conversation, hits, score)| {
            let named = self.names(&query.namespace, conversation, names)?;
            Ok(ConversationHits {
                conversation,
                source_id: named.source_id.clone(),
                title: named.title.clone(),
                hits,
                score,
            })
        });
        named.collect()
    }
}

/// Conversations with hits and scores, the best first, then those with most; so many of them.
pub(super) fn best_conversations(
    counts: HashMap<ConversationId, u64>,
    scores: &HashMap<ConversationId, f32>,
    max: usize,
) -> Vec<(ConversationId, u64, f32)> {
    let score_of = |id| scores.get(&id).copied().unwrap_or_default();
    let all = counts.into_iter();
    let mut all: Vec<_> = all.map(|(id, hits)| (id, hits, score_of(id))).collect();
    all.sort_unstable_by(|(id, hits, score), (other, others, than)| {
        let by_hits = || others.cmp(hits).then(id.cmp(other));
        than.total_cmp(score).then_with(by_hits)
    });
    all.truncate(max);
    all
}
