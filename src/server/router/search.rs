//! Search in a cluster: each shard searches its own index, and the hits are merged.
//!
//! A shard scores by the statistics of its own index, so the order can differ from that of one
//! store with the same texts, most of all while shards have few texts.

use std::cmp::Ordering;

use bytes::Bytes;
use tonic::Status;

use super::{
    ShardRouter,
    call::CallHead,
    scatter::{SEARCH, decoded_request},
};
use crate::{bounds::SEARCH_HITS_DEFAULT, from_proto::InvalidField, status::Refusal};
use treering_domain::ShardId;
use treering_proto::pb::{self, SearchHit};

/// Hits of each shard that can be merged: the largest page.
const HITS_MAX: u32 = 1_000;

impl ShardRouter {
    /// Answers a search of all conversations.
    ///
    /// # Errors
    /// An invalid request, or the first error of a shard.
    pub(super) async fn search(
        &self,
        call: &CallHead,
        message: &Bytes,
    ) -> Result<pb::SearchResponse, Status> {
        let request: pb::SearchRequest = decoded_request(message)?;
        if request.similar_to.is_some() {
            return Err(Refusal::not_in_cluster("a search with similar_to").into());
        }
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
        let shards = (0..self.inner.directory.shards()).map(ShardId);
        let asked = shards.map(|shard| {
            let at_least = request.at_least.as_ref();
            let one = pb::SearchRequest {
                limit: request.offset + limit,
                offset: 0,
                at_least: at_least.filter(|place| place.shard == shard.0).copied(),
                ..request.clone()
            };
            (shard, one)
        });
        let answers = self.ask_each(call, SEARCH, asked.collect()).await?;
        let answers = answers.into_iter().map(|(_, answer)| answer);
        Ok(merge(&request, limit as usize, answers.collect()))
    }
}

fn merge(
    request: &pb::SearchRequest,
    limit: usize,
    answers: Vec<pb::SearchResponse>,
) -> pb::SearchResponse {
    let mut merged = pb::SearchResponse {
        complete: true,
        ..Default::default()
    };
    let has_whole = answers
        .iter()
        .any(|one| !one.parts_only && !one.hits.is_empty());
    for one in answers {
        merged.total += one.total;
        merged.more_than_total |= one.more_than_total;
        merged.events_missing += one.events_missing;
        merged.complete &= one.complete;
        if merged.lagging.is_empty() {
            merged.lagging = one.lagging;
        }
        merged.read_as = one.read_as;
        merged.conversations.extend(one.conversations);
        if let Some(hidden) = one.hidden
            && merged
                .hidden
                .as_ref()
                .is_none_or(|best| hidden.score > best.score)
        {
            merged.hidden = Some(hidden);
        }
        // Parts of a name are found only where the whole name is nowhere.
        if has_whole && one.parts_only {
            merged.total -= one.total;
        } else {
            merged.parts_only |= one.parts_only;
            merged.hits.extend(one.hits);
        }
    }
    // Texts that quote a memory are found only if nothing else is.
    if merged.hits.iter().any(|hit| !hit.recalled) && !request.every_copy {
        let all = merged.hits.len();
        merged.hits.retain(|hit| !hit.recalled);
        merged.total -= (all - merged.hits.len()) as u64;
    }
    let by_time = request.regex || request.query.is_empty();
    merged.hits.sort_by(|one, other| match by_time {
        true => newer(one, other),
        false => other
            .score
            .total_cmp(&one.score)
            .then_with(|| newer(one, other)),
    });
    let best = merged.hits.first();
    let (hidden, best) = (merged.hidden.take(), best.map_or(0.0, |best| best.together));
    merged.hidden = hidden.filter(|hidden| hidden.together > best);
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

    fn hit(id: &str, score: f32) -> SearchHit {
        SearchHit {
            conversation_id: id.into(),
            score,
            ..Default::default()
        }
    }

    fn found(hits: Vec<SearchHit>) -> pb::SearchResponse {
        pb::SearchResponse {
            total: hits.len() as u64,
            hits,
            complete: true,
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
        let first = merge(&page(0), 3, all());
        assert_eq!((ids(&first), first.total), (vec!["a", "b", "c"], 4));
        assert_eq!(ids(&merge(&page(3), 3, all())), ["d"]);
    }

    // An echo of a memory, or a part of a name, must not push out what was meant.
    #[test]
    fn echoes_and_parts_are_hits_only_if_nothing_else_is() {
        let request = pb::SearchRequest {
            query: "parse_config".into(),
            ..Default::default()
        };
        let mut echo = hit("echo", 99.0);
        echo.recalled = true;
        let parts = pb::SearchResponse {
            parts_only: true,
            ..found(vec![hit("part", 50.0)])
        };
        let answers = vec![
            parts.clone(),
            found(vec![hit("whole", 1.0)]),
            found(vec![echo]),
        ];
        let merged = merge(&request, 10, answers);
        assert_eq!((ids(&merged), merged.total), (vec!["whole"], 1));
        assert!(!merged.parts_only);
        let merged = merge(&request, 10, vec![parts]);
        assert_eq!((ids(&merged), merged.parts_only), (vec!["part"], true));
    }
}
