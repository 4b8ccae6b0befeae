//! Errors of a cluster: the shard of a call is elsewhere, or changes its owner.

use std::fmt::Display;

use tonic::Code;

use super::Refusal;
use crate::{bounds::ROUTE_PAUSE_MAX, router::ShardAway};
use treering_domain::{ConversationId, ShardId};

/// The reason of a node that got a forwarded call of a shard that it does not own. It has not
/// executed the call.
pub(crate) const NOT_OWNER: &str = "NOT_OWNER";

impl Refusal {
    /// Returns the answer to a forwarded call of a shard that this node does not serve.
    pub(crate) fn not_owner(shard: ShardId, away: &ShardAway) -> Self {
        let message = format!("this node does not serve shard {}: {away}", shard.0);
        Self::new(Code::Unavailable, NOT_OWNER, message)
            .fact("shard", shard.0)
            .soon()
    }

    /// Returns an error for a shard that could not be served within the time of the call.
    pub(crate) fn shard_away(away: &ShardAway) -> Self {
        Self::new(Code::Unavailable, "SHARD_MOVING", format!("{away}; retry")).soon()
    }

    /// Returns an error for a node that has not joined its cluster yet.
    pub(crate) fn not_joined() -> Self {
        let message = "this node has not joined its cluster yet, because the database cannot be \
                       reached: nothing was done. Retry, or ask another node";
        Self::unable(message).soon()
    }

    /// Returns an error for an owner that did not execute a call.
    pub(crate) fn owner_unreachable(address: &str, why: &str) -> Self {
        let message = format!("the node at {address} owns the shard and cannot be asked: {why}");
        Self::new(Code::Unavailable, "SHARD_MOVING", message)
            .fact("owner", address)
            .soon()
    }

    /// Returns an error for a change that the owner may have made, although its answer is lost.
    pub(crate) fn owner_lost(address: &str, why: &str) -> Self {
        let message = format!(
            "the connection to the node at {address} broke during the call, so its outcome is \
             unknown: {why}"
        );
        Self::new(Code::Unknown, "UNKNOWN_OUTCOME", message).fact("owner", address)
    }

    /// Returns an error for an append to conversations of two shards.
    pub(crate) fn different_shards(
        (one, of_one): (ConversationId, ShardId),
        (other, of_other): (ConversationId, ShardId),
    ) -> Self {
        let message = format!(
            "conversation {one} is in shard {} and {other} is in shard {}, but one append goes to \
             one shard. Leave the id of a new conversation out: the server then chooses one of the \
             right shard",
            of_one.0, of_other.0
        );
        Self::new(Code::InvalidArgument, "DIFFERENT_SHARDS", message)
            .fact("conversation", one)
            .fact("other", other)
            .field("events")
    }

    /// Returns an error for a method that clusters do not offer.
    pub(crate) fn not_in_cluster(path: &str) -> Self {
        let message = format!("{path} is not available in a cluster");
        Self::new(Code::Unimplemented, "NOT_IN_CLUSTER", message).fact("method", path)
    }

    /// Returns an error for services that cannot be created.
    pub(crate) fn no_services(error: impl Display) -> Self {
        let message = format!("the services of the shard cannot be created: {error}");
        Self::new(Code::Internal, "STORAGE", message)
    }

    fn soon(mut self) -> Self {
        self.retry = Some(ROUTE_PAUSE_MAX);
        self
    }
}
