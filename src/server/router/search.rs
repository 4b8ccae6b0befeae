//! Search in a cluster, in three rounds, so that hits have the order of one store: all shards say how
//! often the terms of the query occur; then which passages they would rerank; then they search, and
//! the hits are merged.

use std::{
    cmp::Ordering,
    collections::{HashMap, hash_map::Entry},
};

use bytes::Bytes;
use tonic::Status;

use super::{ShardRouter, call::CallHead, scatter::decoded_request};
use crate::{
    bounds::SEARCH_HITS_DEFAULT,
    from_proto::InvalidField,
    shards::{counts_from_pb, counts_to_pb, floors_to_pb, pool_from_pb, ranks_from_pb},
    to_proto, wire,
};
use treering_domain::ShardId;
use treering_engine::{CLEARLY_MORE, DuplicateHandling, PoolFloors, SharedStatistics};
use treering_proto::pb::{self, SearchHit};

const COUNT_TERMS: &str = "/treering.v1.Shards/CountTerms";
const SEARCH_PART: &str = "/treering.v1.Shards/SearchPart";
/// Hits of each shard that can be merged: the largest page.
const HITS_MAX: u32 = 1_000;
/// Duplicates of a hit that are named.
const COPIES_AT_MAX: usize = 3;

/// Field number of `SearchRequest.similar_to`.
const SIMILAR_TO: u32 = 30;

/// Returns true if a search names an event to compare with.
pub(super) fn names_similar(message: &[u8]) -> bool {
    wire::contents(message).any(|(number, _)| number == SIMILAR_TO)
}

impl ShardRouter {
    /// Answers a search of all conversations, or of the shard of one.
    ///
    /// # Errors
    /// An invalid request, or the first error of a shard.
    pub(super) async fn search(
        &self,
        call: &CallHead,
        message: &Bytes,
        only: Option<ShardId>,
    ) -> Result<pb::SearchResponse, Status> {
        let mut request: pb::SearchRequest = decoded_request(message)?;
        let shards = match only {
            Some(shard) => vec![shard],
            None => (0..self.inner.directory.shards()).map(ShardId).collect(),
        };
        let except_text = self.take_similar(call, &mut request).await?;
        let limit = match request.limit {
            0 => u32::try_from(SEARCH_HITS_DEFAULT).unwrap_or(HITS_MAX),
            limit => limit.min(HITS_MAX),
        };
        if request.offset.saturating_add(limit) > HITS_MAX {
            let message = format!(
                "plus limit exceeds {HITS_MAX}, the most hits that a cluster can merge: narrow the \
                 query"
            );
            return Err(InvalidField::new("offset", message).into());
        }
        let counts = self.term_counts(call, &shards, &request).await?;
        let mut part = pb::SearchPartRequest {
            search: Some(pb::SearchRequest {
                limit: request.offset + limit,
                offset: 0,
                ..request.clone()
            }),
            counts,
            floors: None,
            recalled_only: false,
            except_text,
        };
        let mut answers = self.search_parts(call, &shards, &mut part).await?;
        let has_hits = |part: &pb::SearchPartResponse| !hits_of(part).is_empty();
        if !answers.iter().any(has_hits) && !request.every_copy {
            // A text that quotes a memory is better than none.
            part.recalled_only = true;
            answers = self.search_parts(call, &shards, &mut part).await?;
        }
        Ok(merge_parts(&request, limit as usize, answers))
    }

    /// Replaces `similar_to` by the text that it names, which the owner of its shard knows. Returns
    /// the hash of that text.
    async fn take_similar(
        &self,
        call: &CallHead,
        request: &mut pb::SearchRequest,
    ) -> Result<Option<u64>, Status> {
        let Some(event) = &request.similar_to else {
            return Ok(None);
        };
        let shard = self.shard_of_name(call, &event.conversation_id).await?;
        let asked = pb::SearchRequest {
            query: request.query.clone(),
            similar_to: Some(event.clone()),
            ..pb::SearchRequest::default()
        };
        let answers = self.ask_each(call, COUNT_TERMS, vec![(shard, asked)]);
        let answers: Vec<(_, pb::TermCounts)> = answers.await?;
        let similar = answers.into_iter().find_map(|(_, counts)| counts.similar);
        let similar = similar.unwrap_or_default();
        request.similar_to = None;
        request.query = similar.text;
        request.by = pb::SearchBy::Meaning.into();
        Ok(Some(similar.text_hash))
    }

    /// Searches shards.
    async fn search_parts(
        &self,
        call: &CallHead,
        shards: &[ShardId],
        part: &mut pb::SearchPartRequest,
    ) -> Result<Vec<pb::SearchPartResponse>, Status> {
        part.floors = None;
        if part.counts.is_some() {
            let asked = self.ask_parts(call, shards, part).await?;
            let pools = asked.into_iter().filter_map(|answer| answer.pool);
            let pools: Vec<_> = pools.map(pool_from_pb).collect();
            part.floors = Some(floors_to_pb(PoolFloors::of(&pools)));
        }
        self.ask_parts(call, shards, part).await
    }

    async fn ask_parts(
        &self,
        call: &CallHead,
        shards: &[ShardId],
        part: &pb::SearchPartRequest,
    ) -> Result<Vec<pb::SearchPartResponse>, Status> {
        let asked = shards.iter().map(|&shard| (shard, part.clone()));
        let answers = self.ask_each(call, SEARCH_PART, asked.collect()).await?;
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    }

    /// Returns how often the terms of a query occur in all shards; `None` if the search ranks
    /// nothing by words.
    async fn term_counts(
        &self,
        call: &CallHead,
        shards: &[ShardId],
        request: &pb::SearchRequest,
    ) -> Result<Option<pb::TermCounts>, Status> {
        let by_meaning = request.by == i32::from(pb::SearchBy::Meaning);
        if by_meaning || request.regex || request.query.trim().is_empty() {
            return Ok(None);
        }
        let asked = shards.iter().map(|&shard| (shard, request.clone()));
        let asked = asked.collect();
        let counted: Vec<(_, pb::TermCounts)> = self.ask_each(call, COUNT_TERMS, asked).await?;
        let mut sum = SharedStatistics::default();
        for (_, counts) in counted {
            sum.add(counts_from_pb(counts));
        }
        Ok(Some(counts_to_pb(sum)))
    }
}

fn merge_parts(
    request: &pb::SearchRequest,
    limit: usize,
    mut parts: Vec<pb::SearchPartResponse>,
) -> pb::SearchResponse {
    let mut merged = pb::SearchResponse {
        complete: true,
        parts_only: true,
        ..Default::default()
    };
    for found in parts.iter_mut().filter_map(|part| part.found.as_mut()) {
        merged.total += found.total;
        merged.more_than_total |= found.more_than_total;
        merged.events_missing += found.events_missing;
        merged.complete &= found.complete;
        merged.parts_only &= found.parts_only || found.total == 0;
        if merged.lagging.is_empty() {
            merged.lagging = std::mem::take(&mut found.lagging);
        }
        merged.read_as = found.read_as;
        merged.conversations.append(&mut found.conversations);
        if let Some(hidden) = found.hidden.take()
            && merged
                .hidden
                .as_ref()
                .is_none_or(|best| hidden.score > best.score)
        {
            merged.hidden = Some(hidden);
        }
    }
    merged.parts_only &= merged.total > 0;
    let fetched: usize = parts.iter().map(|part| hits_of(part).len()).sum();
    merged.hits = match request.regex || request.query.trim().is_empty() {
        true => newest_first(request, parts),
        false => best_first(request, parts),
    };
    let folded = (fetched - merged.hits.len()) as u64;
    merged.total = merged.total.saturating_sub(folded);
    let best = merged.hits.first().map_or(0.0, |best| best.together);
    merged.hidden = merged
        .hidden
        .filter(|hidden| request.offset == 0 && hidden.together - best >= CLEARLY_MORE);
    merged
        .hits
        .drain(..merged.hits.len().min(request.offset as usize));
    merged.hits.truncate(limit);
    let conversations = &mut merged.conversations;
    conversations.sort_by(|one, other| {
        let by_score = other.score.total_cmp(&one.score);
        by_score.then(other.hits.cmp(&one.hits))
    });
    if request.conversations_max > 0 {
        conversations.truncate(request.conversations_max as usize);
    }
    merged
}

fn hits_of(part: &pb::SearchPartResponse) -> &[SearchHit] {
    part.found.as_ref().map_or(&[], |found| &found.hits)
}

fn best_first(request: &pb::SearchRequest, parts: Vec<pb::SearchPartResponse>) -> Vec<SearchHit> {
    let copies = match request.every_copy {
        true => DuplicateHandling::Each,
        false => DuplicateHandling::Folded,
    };
    let ranks: Vec<_> = parts.iter().map(ranks_from_pb).collect();
    let checked = parts.iter().map(|part| part.checked as usize).max();
    let order = treering_engine::merge(&ranks, checked.unwrap_or_default(), copies);
    let mut found: Vec<Vec<Option<SearchHit>>> = Vec::with_capacity(parts.len());
    for part in parts {
        let hits = part.found.unwrap_or_default().hits;
        found.push(hits.into_iter().map(Some).collect());
    }
    let mut hits = Vec::with_capacity(order.len());
    let mut first_with = HashMap::new();
    for merged in order {
        let Some(hit) = found[merged.shard][merged.hit].take() else {
            continue;
        };
        first_with.insert(ranks[merged.shard][merged.hit].text_hash, hits.len());
        hits.push(SearchHit {
            score: merged.score,
            scores: Some(to_proto::scores_to_pb(merged.scores)),
            ..hit
        });
    }
    // Those that are left have the text of another hit.
    for (ranks, left) in ranks.iter().zip(found) {
        for (rank, hit) in ranks.iter().zip(left) {
            if let (Some(&first), Some(hit)) = (first_with.get(&rank.text_hash), hit) {
                fold(&mut hits[first], hit);
            }
        }
    }
    hits
}

fn newest_first(request: &pb::SearchRequest, parts: Vec<pb::SearchPartResponse>) -> Vec<SearchHit> {
    let mut all = Vec::new();
    for part in parts {
        let hits = part.found.unwrap_or_default().hits;
        let hashes = part.order.into_iter().map(|order| order.text_hash);
        all.extend(hashes.zip(hits));
    }
    all.sort_by(|(_, one), (_, other)| newer(one, other));
    let mut hits: Vec<SearchHit> = Vec::with_capacity(all.len());
    let mut first_with = HashMap::new();
    for (text_hash, hit) in all {
        match first_with.entry(text_hash) {
            Entry::Occupied(first) if !request.every_copy => fold(&mut hits[*first.get()], hit),
            entry => {
                entry.or_insert(hits.len());
                hits.push(hit);
            }
        }
    }
    hits
}

/// Adds a hit to those with the same text as another.
fn fold(into: &mut SearchHit, hit: SearchHit) {
    into.copies += hit.copies + 1;
    let itself = pb::HitCopy {
        conversation_id: hit.conversation_id,
        source_id: hit.source_id,
        revision: hit.revision,
    };
    into.copies_at.push(itself);
    into.copies_at.extend(hit.copies_at);
    into.copies_at.truncate(COPIES_AT_MAX);
}

/// Orders hits by the time of their recording, newest first.
fn newer(one: &SearchHit, other: &SearchHit) -> Ordering {
    let time = |hit: &SearchHit| {
        let time = hit.recorded_at.unwrap_or_default();
        (time.seconds, time.nanos)
    };
    time(other).cmp(&time(one))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a hit with a text of its own, whose score is of its words alone.
    fn hit(id: &str, score: f32) -> (SearchHit, pb::HitOrder) {
        let hit = SearchHit {
            conversation_id: id.into(),
            scores: Some(pb::SearchScores {
                words: score,
                kind: 1.0,
                ..Default::default()
            }),
            ..Default::default()
        };
        let order = pb::HitOrder {
            reranked: true,
            text_hash: id.bytes().map(u64::from).sum(),
            ..Default::default()
        };
        (hit, order)
    }

    fn found(hits: Vec<(SearchHit, pb::HitOrder)>) -> pb::SearchPartResponse {
        let (hits, order): (Vec<_>, _) = hits.into_iter().unzip();
        pb::SearchPartResponse {
            found: Some(pb::SearchResponse {
                total: hits.len() as u64,
                hits,
                complete: true,
                ..Default::default()
            }),
            order,
            ..Default::default()
        }
    }

    fn ids(answer: &pb::SearchResponse) -> Vec<&str> {
        answer
            .hits
            .iter()
            .map(|hit| &*hit.conversation_id)
            .collect()
    }

    // The second page begins where the first one ended, whichever shards its hits are from.
    #[test]
    fn pages_of_merged_hits_follow_each_other() {
        let all = || {
            vec![
                found(vec![hit("a", 9.0), hit("d", 2.0)]),
                found(vec![hit("b", 7.0), hit("c", 3.0)]),
            ]
        };
        let page = |offset| pb::SearchRequest {
            query: "q".into(),
            offset,
            ..Default::default()
        };
        let first = merge_parts(&page(0), 3, all());
        assert_eq!((ids(&first), first.total), (vec!["a", "b", "c"], 4));
        assert_eq!(ids(&merge_parts(&page(3), 3, all())), ["d"]);
    }

    // The same file was read in conversations of two shards: it is one hit, as in one store.
    #[test]
    fn equal_texts_of_shards_are_one_hit() {
        let all = || {
            let mut other = found(vec![hit("b", 7.0)]);
            other.order[0].text_hash = hit("a", 9.0).1.text_hash;
            vec![found(vec![hit("a", 9.0)]), other]
        };
        let mut request = pb::SearchRequest {
            query: "q".into(),
            ..Default::default()
        };
        let merged = merge_parts(&request, 10, all());
        assert_eq!((ids(&merged), merged.total), (vec!["a"], 1));
        assert_eq!(merged.hits[0].copies, 1);
        assert_eq!(merged.hits[0].copies_at[0].conversation_id, "b");
        request.every_copy = true;
        assert_eq!(ids(&merge_parts(&request, 10, all())), ["a", "b"]);
    }
}
