//! Combines the answers of all shards to a call that concerns a whole namespace.
//!
//! Here are the methods for which each shard gets the client's request as it is and gives one answer;
//! `erase`, `list`, `log`, `lookups`, `search` and `upkeep` have others. `docs/CLUSTER.md` says which
//! methods a cluster lacks.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, header::CONTENT_TYPE};
use http_body::Frame;
use http_body_util::StreamBody;
use prost::Message;
use tonic::{Status, body::Body};

use super::{
    ShardRouter,
    call::{CallHead, decoded, prefixed, with_prefix},
    erase::ERASE,
    log::{READ, SUBSCRIBE},
    upkeep::{REBUILD, VERIFY},
};
use crate::{bounds::PAGE_DEFAULT, status::Refusal};
use treering_domain::ShardId;
use treering_proto::pb;

pub(super) const LIST: &str = "/treering.v1.Conversations/List";
pub(super) const SEARCH: &str = "/treering.v1.Search/Search";
pub(super) const LATEST: &str = "/treering.v1.Events/Latest";
pub(super) const GET_MANY: &str = "/treering.v1.Events/GetMany";

impl ShardRouter {
    /// Answers a call that several shards answer together.
    ///
    /// # Errors
    /// The first error of a shard, or that clusters do not offer the method.
    pub(super) async fn combined(
        &self,
        call: &CallHead,
        path: &str,
        message: &Bytes,
    ) -> Result<Response<Body>, Status> {
        match path {
            "/treering.v1.Events/KnownKeys" => {
                let all: Vec<pb::KnownKeysResponse> =
                    self.answers_of_all(call, path, message).await?;
                Ok(answer(&known_keys(&all)))
            }
            "/treering.v1.Conversations/Find" => {
                let limit = decoded_request::<pb::FindConversationsRequest>(message)?.limit;
                Ok(answer(&found(
                    self.answers_of_all(call, path, message).await?,
                    limit,
                )))
            }
            "/treering.v1.Tools/Pending" => {
                let limit = decoded_request::<pb::PendingRequest>(message)?.limit;
                let all: Vec<pb::PendingResponse> =
                    self.answers_of_all(call, path, message).await?;
                let calls = all.into_iter().flat_map(|one| one.calls);
                let calls = calls.take(page(limit)).collect();
                Ok(answer(&pb::PendingResponse { calls }))
            }
            ERASE => Ok(self.erase(call, message)),
            SEARCH => Ok(answer(&self.search(call, message, None).await?)),
            LIST => Ok(answer(&self.list(call, message).await?)),
            LATEST => Ok(answer(&self.latest(call, message).await?)),
            GET_MANY => Ok(answer(&self.get_many(call, message).await?)),
            READ => self.read_log(call, message),
            SUBSCRIBE => self.subscribe_to_log(call, message),
            VERIFY => Ok(self.verify(call, message)),
            REBUILD => Ok(self.rebuild(call, message)),
            "/treering.v1.Admin/Stats" => {
                let all: Vec<pb::StatsResponse> = self.answers_of_all(call, path, message).await?;
                Ok(answer(&stats(all)))
            }
            _ => Err(Refusal::not_in_cluster(path).into()),
        }
    }

    /// Sends a request to each of some shards.
    ///
    /// # Errors
    /// The first error of a shard.
    pub(super) async fn ask_each<M: Message + Default>(
        &self,
        call: &CallHead,
        path: &str,
        requests: Vec<(ShardId, impl Message)>,
    ) -> Result<Vec<(ShardId, M)>, Status> {
        let messages = requests
            .iter()
            .map(|(shard, request)| (*shard, prefixed(request)));
        let answers = self.ask(call, path, messages.collect()).await.into_iter();
        answers
            .map(|(shard, answer)| Ok((shard, decoded(answer?)?)))
            .collect()
    }

    /// Returns the answers of all shards, in the order of the shards.
    async fn answers_of_all<M: Message + Default>(
        &self,
        call: &CallHead,
        path: &str,
        message: &Bytes,
    ) -> Result<Vec<M>, Status> {
        let message = with_prefix(message);
        let answers = self.ask_all(call, path, &message).await.into_iter();
        answers.map(|(_, answer)| decoded(answer?)).collect()
    }
}

pub(super) fn decoded_request<M: Message + Default>(message: &Bytes) -> Result<M, Status> {
    let broken = |_| Status::internal("the request cannot be decoded");
    M::decode(message.clone()).map_err(broken)
}

/// Returns the answer of a call with one message.
pub(super) fn answer(message: &impl Message) -> Response<Body> {
    let mut trailers = HeaderMap::new();
    trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
    let frames = [Frame::data(prefixed(message)), Frame::trailers(trailers)];
    let frames = futures::stream::iter(frames.map(Ok::<_, Status>));
    let mut answer = Response::new(Body::new(StreamBody::new(frames)));
    let grpc = HeaderValue::from_static("application/grpc");
    answer.headers_mut().insert(CONTENT_TYPE, grpc);
    answer
}

fn page(limit: u32) -> usize {
    match limit {
        0 => PAGE_DEFAULT,
        limit => limit as usize,
    }
}

/// A key is known if any shard knows it.
fn known_keys(all: &[pb::KnownKeysResponse]) -> pb::KnownKeysResponse {
    let count = all.iter().map(|one| one.known.len()).max();
    let is_known = |index| all.iter().any(|one| one.known.get(index) == Some(&true));
    let known = (0..count.unwrap_or_default()).map(is_known).collect();
    pb::KnownKeysResponse { known }
}

/// Joins the conversations that the shards have found, newest first.
fn found(all: Vec<pb::FindConversationsResponse>, limit: u32) -> pb::FindConversationsResponse {
    let mut more = all.iter().any(|one| one.more);
    let mut conversations: Vec<_> = all.into_iter().flat_map(|one| one.conversations).collect();
    let created = |of: &pb::ConversationSummary| {
        let at = of.created_at.unwrap_or_default();
        (at.seconds, at.nanos)
    };
    conversations.sort_by_key(|of| std::cmp::Reverse(created(of)));
    more |= conversations.len() > page(limit);
    conversations.truncate(page(limit));
    pb::FindConversationsResponse {
        conversations,
        more,
    }
}

/// Adds the numbers. Positions and the folder belong to one shard, so they are left out.
fn stats(all: Vec<pb::StatsResponse>) -> pb::StatsResponse {
    let first = |sum: pb::StatsResponse, one: &pb::StatsResponse| pb::StatsResponse {
        version: one.version.clone(),
        started_at: sum.started_at.or(one.started_at),
        first_damage: match sum.first_damage.is_empty() {
            true => one.first_damage.clone(),
            false => sum.first_damage.clone(),
        },
        // Each shard has the whole quota: see docs/CLUSTER.md.
        quota_bytes: sum.quota_bytes.or(one.quota_bytes),
        quota_conversations: sum.quota_conversations.or(one.quota_conversations),
        ..sum
    };
    all.into_iter()
        .fold(pb::StatsResponse::default(), |sum, one| {
            let mut sum = first(sum, &one);
            for (sum, one) in [
                (&mut sum.conversations, one.conversations),
                (&mut sum.branches, one.branches),
                (&mut sum.events, one.events),
                (&mut sum.pending_approvals, one.pending_approvals),
                (&mut sum.views_bytes, one.views_bytes),
                (&mut sum.index_bytes, one.index_bytes),
                (&mut sum.log_segments, one.log_segments),
                (&mut sum.indexed_documents, one.indexed_documents),
                (&mut sum.damaged_reads, one.damaged_reads),
                (&mut sum.damaged_conversations, one.damaged_conversations),
                (&mut sum.unreadable_positions, one.unreadable_positions),
                (&mut sum.event_bytes, one.event_bytes),
            ] {
                *sum = sum.saturating_add(one);
            }
            // Each shard tells the size of the whole database.
            sum.log_bytes = sum.log_bytes.max(one.log_bytes);
            if one.resident_bytes > sum.resident_bytes {
                (sum.resident_bytes, sum.mapped_bytes) = (one.resident_bytes, one.mapped_bytes);
            }
            for (kind, count) in one.events_by_kind {
                *sum.events_by_kind.entry(kind).or_default() += count;
            }
            sum
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    // An importer appends again what no shard seems to know.
    #[test]
    fn keys_of_any_shard_are_known() {
        let of = |known: &[bool]| pb::KnownKeysResponse {
            known: known.to_vec(),
        };
        let all = [of(&[true, false, false]), of(&[false, false, true])];
        assert_eq!(known_keys(&all), of(&[true, false, true]));
    }

    // An operator compares the size of the log with the disk of the database.
    #[test]
    fn stats_count_the_database_once() {
        let of = |events| pb::StatsResponse {
            events,
            log_bytes: 500,
            ..Default::default()
        };
        let sum = stats(vec![of(3), of(4)]);
        assert_eq!((sum.events, sum.log_bytes), (7, 500));
    }

    // Shards of one node tell the memory of the same process.
    #[test]
    fn stats_have_the_memory_of_the_largest_node() {
        let of = |resident, mapped| pb::StatsResponse {
            resident_bytes: Some(resident),
            mapped_bytes: Some(mapped),
            ..Default::default()
        };
        let sum = stats(vec![of(300, 90), of(500, 20), of(300, 90)]);
        assert_eq!(
            (sum.resident_bytes, sum.mapped_bytes),
            (Some(500), Some(20))
        );
    }

    // The newest conversations of all shards come first, and a cut is told.
    #[test]
    fn found_conversations_are_merged_by_age() {
        let of = |seconds: &[i64]| pb::FindConversationsResponse {
            conversations: seconds
                .iter()
                .map(|seconds| pb::ConversationSummary {
                    created_at: Some(prost_types::Timestamp {
                        seconds: *seconds,
                        nanos: 0,
                    }),
                    ..pb::ConversationSummary::default()
                })
                .collect(),
            more: false,
        };
        let merged = found(vec![of(&[5, 1]), of(&[4, 2])], 3);
        assert_eq!(merged.conversations, of(&[5, 4, 2]).conversations);
        assert!(merged.more);
    }
}
