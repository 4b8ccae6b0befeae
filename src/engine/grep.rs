//! Search by regular expression: the index selects candidates, and their stored text decides which
//! of them match and where.

use std::collections::{HashMap, HashSet};

use super::{
    Inner, ReadPath,
    error::{ReadError, SearchError},
    hit::{HitReader, MatchFinder},
    search::{Names, refused},
    search_query::{ConversationHits, SearchAnswer, SearchHit},
    work,
};
use treering_domain::ConversationId;
use treering_search::{
    DuplicateHandling, ExceededBound, HASH_BYTES, HeldMemory, Hit, Pattern, QuerySyntax,
    SearchQuery,
};

/// Size of a conversation's count in a map, in bytes.
const COUNT_BYTES: usize = 48;
/// Size of a conversation's entry without its names, in bytes.
const NAMED_BYTES: usize = 256;
/// Number of candidates in the first look-up and in the largest one.
const FIRST_BATCH: usize = 32;
const LARGEST_BATCH: usize = 1_024;

/// Options besides the index query.
#[derive(Clone, Copy, Debug)]
pub(super) struct GrepOptions {
    pub context_lines: u32,
    /// `None` if conversations are not requested.
    pub conversations_max: Option<usize>,
}

impl Inner {
    /// Returns the newest events that a pattern matches. Reading stops when the page is full,
    /// unless all matches must be counted; then `total` counts all.
    pub(super) async fn search_pattern(
        &self,
        query: &SearchQuery,
        wanted: GrepOptions,
        head: u64,
    ) -> Result<SearchAnswer, SearchError> {
        let pattern = Pattern::new(&query.text).map_err(|error| SearchError::Query {
            message: error.to_string(),
        })?;
        let index = self.search.indexer.index();
        let candidates = index.candidates(&pattern, query);
        let mut candidates = candidates.map_err(|error| self.search_failed(&index, error))?;
        let mut names = Names::default();
        let mut reader = HitReader {
            namespace: &query.namespace,
            context_lines: wanted.context_lines,
            finds: MatchFinder::Pattern(&pattern),
        };
        let (mut hits, mut of_page): (Vec<SearchHit>, Vec<Hit>) = (Vec::new(), Vec::new());
        // Hashes of texts that were examined, and of those that match.
        let (mut texts, mut matching) = (HashSet::new(), HashSet::new());
        let mut held = query.memory.holding(ExceededBound::Candidates);
        let hold = |held: &mut HeldMemory, bytes| held.more(bytes).map_err(refused);
        let mut total = 0_usize;
        let mut counts: HashMap<ConversationId, u64> = HashMap::new();
        let counts_all = query.count_all || wanted.conversations_max.is_some();
        let mut read_to = 0;
        let mut batch = Vec::new().into_iter();
        let more = loop {
            work::check()?;
            let Some(candidate) = batch.next() else {
                // A few candidates are usually enough to fill a page.
                let next =
                    candidates.hits(read_to, (2 * read_to).clamp(FIRST_BATCH, LARGEST_BATCH));
                let next = next.map_err(|error| self.search_failed(&index, error))?;
                if next.is_empty() {
                    break candidates.more();
                }
                read_to += next.len();
                batch = next.into_iter();
                continue;
            };
            if self.reads.is_damaged(&query.namespace, &candidate) {
                continue;
            }
            if query.copies == DuplicateHandling::Folded {
                if !texts.insert(candidate.text_hash) {
                    if matching.contains(&candidate.text_hash) {
                        *counts.entry(candidate.conversation).or_default() += 1;
                    }
                    continue;
                }
                hold(&mut held, HASH_BYTES)?;
            }
            let is_full = hits.len() >= query.limit;
            let conversation = candidate.conversation;
            let found = match self.reads.read_hit(&candidate, &mut reader).await {
                Ok(found) => found,
                Err(error @ ReadError::Damaged { .. }) => {
                    self.record_damage(&error);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let Some(found) = found else { continue };
            // A match beyond a full page proves that there are more.
            if is_full && !counts_all {
                break true;
            }
            total += 1;
            if wanted.conversations_max.is_some() {
                hold(&mut held, HASH_BYTES + COUNT_BYTES)?;
                matching.insert(candidate.text_hash);
                *counts.entry(conversation).or_default() += 1;
            }
            if total > query.offset && !is_full {
                hits.push(
                    self.reads
                        .named(candidate.clone(), found, &mut names, query)?,
                );
                of_page.push(candidate);
            }
        };
        let copies = index.copies(query, &of_page);
        let copies = copies.map_err(|error| self.search_failed(&index, error))?;
        for (hit, copies) in hits.iter_mut().zip(copies) {
            self.reads.add_copies(hit, copies, &names, query)?;
        }
        let conversations = match wanted.conversations_max {
            Some(max) => {
                let best = best_conversations(counts, &HashMap::new(), max);
                self.reads.hits_by_conversation(best, &mut names, query)?
            }
            None => Vec::new(),
        };
        let mut answer = self.answer(hits, candidates.reached, head);
        answer.total = total as u64;
        answer.more_than_total = more;
        answer.read_as = QuerySyntax::Plain;
        answer.conversations = conversations;
        Ok(answer)
    }
}

impl ReadPath {
    /// Adds the names to conversations with hits.
    pub(super) fn hits_by_conversation(
        &self,
        best: Vec<(ConversationId, u64, f32)>,
        names: &mut Names,
        query: &SearchQuery,
    ) -> Result<Vec<ConversationHits>, SearchError> {
        let mut held = query.memory.holding(ExceededBound::Matching);
        let named = best.into_iter().map(|(conversation, hits, score)| {
            work::check()?;
            let named = self.names(&query.namespace, conversation, names)?;
            let bytes = NAMED_BYTES + 2 * (named.source_id.len() + named.title.len());
            held.more(bytes).map_err(refused)?;
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

/// Returns at most `max` conversations with hits and scores, ordered by best score, then by number
/// of hits.
pub(super) fn best_conversations(
    counts: impl IntoIterator<Item = (ConversationId, u64)>,
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

/// Returns the lowest of the `max` best scores; `None` if fewer conversations have one.
pub(super) fn least_of_best(scores: &HashMap<ConversationId, f32>, max: usize) -> Option<f32> {
    let mut best: Vec<f32> = scores.values().copied().collect();
    best.sort_unstable_by(|score, than| than.total_cmp(score));
    // A conversation without a score counts as 0.
    let least = best.get(max.checked_sub(1)?).copied();
    least.filter(|least| *least > 0.0)
}
