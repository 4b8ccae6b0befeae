//! The Shards service: what a node of a cluster asks about one shard.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::{
    call::{Call, ServiceContext},
    conversations::ConversationsService,
    from_proto::InvalidField,
    search::SearchService,
    status::OrStatus,
    to_proto,
};
use treering_engine::{
    Hit, HitRank, NameCompleteness, NameTier, PoolFloors, RecalledTexts, RerankPool, Scores,
    SearchRequest, SharedRanking, SharedStatistics, VerbatimMatch,
};
use treering_proto::{
    envelope,
    pb::{self, shards_server::Shards},
};

/// A thin layer over the engine.
pub(super) struct ShardsService(pub(crate) ServiceContext);

impl ShardsService {
    /// Changes the position that a search waits for, if it is one of another shard: to the head of
    /// this one, so that what was appended here before is found.
    fn in_shard(&self, mut request: SearchRequest) -> SearchRequest {
        let head = self.0.engine.head();
        let elsewhere = request.at_least.as_mut();
        if let Some(position) = elsewhere.filter(|position| position.shard != head.shard) {
            *position = head;
        }
        request
    }
}

#[tonic::async_trait]
impl Shards for ShardsService {
    async fn count_terms(
        &self,
        request: Request<pb::SearchRequest>,
    ) -> Result<Response<pb::TermCounts>, Status> {
        let call = Call::of(&request)?;
        let search = SearchService(self.0.clone());
        let request = search.request(call, request.into_inner()).await?;
        if let Some(at) = request.similar_to {
            let similar = self.0.engine.similar_text(&request.namespace, at).await;
            let similar = similar.or_status()?;
            return Ok(Response::new(pb::TermCounts {
                similar: Some(pb::SimilarText {
                    text: similar.text,
                    text_hash: similar.text_hash,
                }),
                ..pb::TermCounts::default()
            }));
        }
        let request = self.in_shard(request);
        let counts = self.0.engine.count_terms(request).await.or_status()?;
        Ok(Response::new(counts_to_pb(counts)))
    }

    async fn search_part(
        &self,
        request: Request<pb::SearchPartRequest>,
    ) -> Result<Response<pb::SearchPartResponse>, Status> {
        let call = Call::of(&request)?;
        let caller = call.caller.clone();
        let pb::SearchPartRequest {
            search,
            counts,
            floors,
            recalled_only,
            except_text,
        } = request.into_inner();
        let missing = || InvalidField::new("search", "is not set");
        let service = SearchService(self.0.clone());
        let request = service.request(call, search.ok_or_else(missing)?).await?;
        let mut request = self.in_shard(request);
        let mut ranking = match counts {
            Some(counts) => SharedRanking {
                statistics: counts_from_pb(counts),
                floors: floors.map(floors_from_pb),
                except_text: None,
            },
            // Nothing is ranked by words, and there is no pool to ask for.
            None => SharedRanking {
                floors: Some(PoolFloors::of(&[])),
                ..SharedRanking::default()
            },
        };
        ranking.except_text = except_text;
        request.shared = Some(Arc::new(ranking));
        if recalled_only {
            request.filters.recalled = RecalledTexts::Only;
        }
        let mut answer = service.search_for(&caller, request).await?;
        let order = answer.hits.iter().map(|hit| order_to_pb(&hit.found));
        Ok(Response::new(pb::SearchPartResponse {
            order: order.collect(),
            checked: u32::try_from(answer.checked).unwrap_or(u32::MAX),
            pool: answer.pool.take().map(pool_to_pb),
            found: Some(to_proto::search_response(answer)),
        }))
    }

    async fn list_part(
        &self,
        request: Request<pb::ListConversationsRequest>,
    ) -> Result<Response<pb::ListPartResponse>, Status> {
        let call = Call::of(&request)?;
        let service = ConversationsService(self.0.clone());
        let part = service.list_part(&call, &request.into_inner()).await?;
        Ok(Response::new(part))
    }
}

fn pool_to_pb(pool: RerankPool) -> pb::RerankPool {
    pb::RerankPool {
        names: names_to_pb(pool.found).into(),
        named: pool.named,
        others: pool.others,
    }
}

/// Reads the passages that a shard would rerank.
pub(super) fn pool_from_pb(pool: pb::RerankPool) -> RerankPool {
    RerankPool {
        found: names_from_pb(pool.names()),
        named: pool.named,
        others: pool.others,
    }
}

/// Writes which passages are reranked.
pub(super) fn floors_to_pb(floors: PoolFloors) -> pb::PoolFloors {
    pb::PoolFloors {
        names: names_to_pb(floors.found).into(),
        named: floors.named,
        others: floors.others,
    }
}

fn floors_from_pb(floors: pb::PoolFloors) -> PoolFloors {
    PoolFloors {
        found: names_from_pb(floors.names()),
        named: floors.named,
        others: floors.others,
    }
}

fn names_to_pb(found: NameCompleteness) -> pb::NamesFound {
    match found {
        NameCompleteness::Parts => pb::NamesFound::Unspecified,
        NameCompleteness::InARow => pb::NamesFound::InARow,
        NameCompleteness::Whole => pb::NamesFound::Whole,
    }
}

fn names_from_pb(found: pb::NamesFound) -> NameCompleteness {
    match found {
        pb::NamesFound::Unspecified => NameCompleteness::Parts,
        pb::NamesFound::InARow => NameCompleteness::InARow,
        pb::NamesFound::Whole => NameCompleteness::Whole,
    }
}

/// Writes how often terms occur.
pub(super) fn counts_to_pb(counts: SharedStatistics) -> pb::TermCounts {
    let term = |(term, passages): (Vec<u8>, u64)| pb::TermCount {
        term: term.into(),
        passages,
    };
    pb::TermCounts {
        passages: counts.passages,
        documents: counts.documents,
        tokens: counts.tokens.into_iter().collect(),
        terms: counts.terms.into_iter().map(term).collect(),
        similar: None,
    }
}

/// Reads how often terms occur.
pub(super) fn counts_from_pb(counts: pb::TermCounts) -> SharedStatistics {
    let terms = counts.terms.into_iter();
    SharedStatistics {
        passages: counts.passages,
        documents: counts.documents,
        tokens: counts.tokens.into_iter().collect(),
        terms: terms
            .map(|count| (count.term.into(), count.passages))
            .collect(),
    }
}

fn order_to_pb(hit: &Hit) -> pb::HitOrder {
    pb::HitOrder {
        reranked: hit.is_reranked,
        names: match hit.tier {
            NameTier::Parts => 0,
            NameTier::SomeWhole => 1,
            NameTier::AllWhole => 2,
        },
        typed_names: u32::try_from(hit.as_typed.names).unwrap_or(u32::MAX),
        typed_line: hit.as_typed.line,
        text_hash: hit.text_hash,
    }
}

/// Reads what orders the hits of a shard.
pub(super) fn ranks_from_pb(part: &pb::SearchPartResponse) -> Vec<HitRank> {
    let hits = part.found.iter().flat_map(|found| &found.hits);
    let ranks = hits.zip(&part.order).map(|(hit, order)| {
        let recorded_at = hit.recorded_at.as_ref();
        HitRank {
            scores: scores_from_pb(hit.scores.as_ref()),
            is_reranked: order.reranked,
            tier: match order.names {
                0 => NameTier::Parts,
                1 => NameTier::SomeWhole,
                _ => NameTier::AllWhole,
            },
            as_typed: VerbatimMatch {
                names: order.typed_names as usize,
                line: order.typed_line,
            },
            text_hash: order.text_hash,
            recorded_at: recorded_at
                .and_then(envelope::timestamp_from_pb)
                .unwrap_or_default(),
            position: hit
                .position
                .as_ref()
                .map(envelope::position_from_pb)
                .unwrap_or_default(),
        }
    });
    ranks.collect()
}

fn scores_from_pb(scores: Option<&pb::SearchScores>) -> Scores {
    let scores = scores.copied().unwrap_or_default();
    Scores {
        words: scores.words,
        order: scores.order,
        nearness: scores.nearness,
        names: scores.names,
        shortness: scores.shortness,
        kind: scores.kind,
        meaning: scores.meaning,
    }
}
