//! Look-ups of events in a cluster: each part of a request goes to the shard that can answer it, and
//! the answers are put back in the order of the request.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;
use tonic::Status;

use super::{
    ShardRouter,
    call::{CallHead, decoded, prefixed},
    scatter::{GET_MANY, LATEST, decoded_request},
    target::{Target, of_name},
};
use crate::{
    bounds::{LATEST_CONVERSATIONS_MAX, LOOKUP_BYTES_MAX, LOOKUPS_MAX},
    from_proto, lookup,
};
use treering_domain::ShardId;
use treering_proto::pb::{self, event_name::By};

/// Indices of entries of a request, by the shard that answers them.
type Parts = BTreeMap<ShardId, Vec<usize>>;

impl ShardRouter {
    /// Answers `Events.Latest`.
    ///
    /// # Errors
    /// The first error of a shard.
    pub(super) async fn latest(
        &self,
        call: &CallHead,
        message: &Bytes,
    ) -> Result<pb::LatestResponse, Status> {
        let request: pb::LatestRequest = decoded_request(message)?;
        let names = request.conversations.len();
        let wanted = request.keys.len() + request.types.len() + request.kinds.len();
        let is_valid = (1..=LATEST_CONVERSATIONS_MAX).contains(&names)
            && names.saturating_mul(wanted) <= LOOKUPS_MAX
            && (names == 1 || request.as_of_revision == 0);
        if !is_valid {
            // A shard knows best what is wrong with it.
            return self.ask_any(call, LATEST, &request).await;
        }
        let mut parts = Parts::new();
        for (index, name) in request.conversations.iter().enumerate() {
            // Shards do not know the indices in this request.
            let field = format!("conversations[{index}]");
            from_proto::required(&field, name)?;
            from_proto::check_short(&field, name)?;
            let shard = self.shard_of_name(call, name).await?;
            parts.entry(shard).or_default().push(index);
        }
        let asked = parts.iter().map(|(shard, indices)| {
            let names = indices
                .iter()
                .map(|index| request.conversations[*index].clone());
            let part = pb::LatestRequest {
                conversations: names.collect(),
                ..request.clone()
            };
            (*shard, part)
        });
        let answers = self.ask_each(call, LATEST, asked.collect()).await?;
        let mut found: Vec<Vec<pb::LatestEvent>> = vec![Vec::new(); names];
        for (shard, answer) in answers {
            let answer: pb::LatestResponse = answer;
            let mut events = answer.found.into_iter();
            for index in &parts[&shard] {
                found[*index] = events.by_ref().take(wanted).collect();
            }
        }
        let mut room = AnswerRoom::new();
        let mut found: Vec<_> = found.into_iter().flatten().collect();
        for one in &mut found {
            one.body_left_out |= room.leave_out(&mut one.event);
        }
        Ok(pb::LatestResponse { found })
    }

    /// Answers `Events.GetMany`.
    ///
    /// # Errors
    /// The first error of a shard.
    pub(super) async fn get_many(
        &self,
        call: &CallHead,
        message: &Bytes,
    ) -> Result<pb::GetManyResponse, Status> {
        let request: pb::GetManyRequest = decoded_request(message)?;
        if request.events.len() > LOOKUPS_MAX {
            return self.ask_any(call, GET_MANY, &request).await;
        }
        // Shards do not know the indices in this request.
        for (index, name) in request.events.iter().enumerate() {
            lookup::check_name(index, name)?;
        }
        let mut parts = Parts::new();
        for (index, name) in request.events.iter().enumerate() {
            match &name.by {
                Some(By::Place(place)) => {
                    let shard = self.shard_of_name(call, &place.conversation_id).await?;
                    parts.entry(shard).or_default().push(index);
                }
                // An event's id does not tell its shard.
                Some(By::EventId(_)) | None => {
                    for shard in (0..self.inner.directory.shards()).map(ShardId) {
                        parts.entry(shard).or_default().push(index);
                    }
                }
            }
        }
        let asked = parts.iter().map(|(shard, indices)| {
            let names = indices.iter().map(|index| request.events[*index].clone());
            let part = pb::GetManyRequest {
                events: names.collect(),
                ..request.clone()
            };
            (*shard, part)
        });
        let answers = self.ask_each(call, GET_MANY, asked.collect()).await?;
        let mut events = vec![pb::GotEvent::default(); request.events.len()];
        for (shard, answer) in answers {
            let answer: pb::GetManyResponse = answer;
            for (index, got) in parts[&shard].iter().zip(answer.events) {
                if got.event.is_some() {
                    events[*index] = got;
                }
            }
        }
        let mut room = AnswerRoom::new();
        for got in &mut events {
            got.body_left_out |= room.leave_out(&mut got.event);
        }
        Ok(pb::GetManyResponse { events })
    }

    /// Returns the shard of a conversation, or any if there is no such conversation.
    pub(super) async fn shard_of_name(
        &self,
        call: &CallHead,
        name: &str,
    ) -> Result<ShardId, Status> {
        Ok(match of_name(name, &self.inner.directory.shard_map()) {
            Target::Shard(shard) => shard,
            _ => self
                .find_named(call, name, None)
                .await?
                .unwrap_or_else(|| self.any()),
        })
    }

    async fn ask_any<M: Message + Default>(
        &self,
        call: &CallHead,
        path: &str,
        request: &impl Message,
    ) -> Result<M, Status> {
        let mut call = call.beside(path, prefixed(request));
        decoded(self.unary(&mut call, self.any()).await?)
    }
}

/// How much room an answer has for events with bodies. As in one store, the first body is sent
/// however large it is: nobody could read it otherwise.
struct AnswerRoom {
    left: usize,
    has_body: bool,
}

impl AnswerRoom {
    fn new() -> Self {
        Self {
            left: LOOKUP_BYTES_MAX,
            has_body: false,
        }
    }

    /// Removes the body of an event that does not fit. Returns true if it did.
    fn leave_out(&mut self, event: &mut Option<pb::Event>) -> bool {
        let Some(event) = event else {
            return false;
        };
        let is_left_out = event.body.is_some() && self.has_body && event.encoded_len() > self.left;
        if is_left_out {
            event.body = None;
        }
        self.has_body |= event.body.is_some();
        self.left = self.left.saturating_sub(event.encoded_len());
        is_left_out
    }
}
