//! Requests for models in a cluster. They contain the long-term context of the namespace, which may be
//! in another shard than the conversation.

use bytes::{BufMut, BytesMut};
use prost::Message;
use tonic::Status;

use super::{
    ShardRouter,
    call::{CallHead, RoutedCall, decoded, prefixed},
    scatter::decoded_request,
};
use treering_domain::ShardId;
use treering_proto::pb;

/// Methods that build a request.
pub(super) const BUILDING: [&str; 2] = [
    "/treering.v1.Contexts/Build",
    "/treering.v1.Contexts/Explain",
];

const GET: &str = "/treering.v1.Contexts/Get";

impl ShardRouter {
    /// Adds the long-term context to a call that builds a request in `shard`, if it is in another
    /// one. Not to a request as of an earlier revision: shards do not know what was before what.
    ///
    /// # Errors
    /// The error of the other shard.
    pub(super) async fn add_long_term(
        &self,
        call: &mut RoutedCall,
        shard: ShardId,
    ) -> Result<(), Status> {
        let message = call.message();
        let request: pb::BuildRequest = decoded_request(&message)?;
        let long_term = call.head.namespace.long_term_conversation();
        let other = self.inner.directory.shard_map().of(long_term);
        if other == shard || request.as_of_revision != 0 {
            return Ok(());
        }
        let context = self.long_term(&call.head, other).await?;
        if context.entries.is_empty() {
            return Ok(());
        }
        let added = pb::BuildRequest {
            long_term: Some(context),
            ..pb::BuildRequest::default()
        };
        // The fields of a message are those of its parts.
        let mut whole = BytesMut::from(&message[..]);
        whole.put_slice(&added.encode_to_vec());
        call.replace(whole.freeze());
        Ok(())
    }

    async fn long_term(
        &self,
        call: &CallHead,
        shard: ShardId,
    ) -> Result<pb::GetContextResponse, Status> {
        let request = prefixed(&pb::GetContextRequest::default());
        let mut get = call.beside(GET, request);
        decoded(self.unary(&mut get, shard).await?)
    }
}
