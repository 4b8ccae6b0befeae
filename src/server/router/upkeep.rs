//! Verifying and rebuilding all shards of a cluster, one after the other.

use bytes::Bytes;
use futures::Stream;
use http::Response;
use tonic::{Status, body::Body};

use super::{
    ShardRouter,
    answers::{AnswerMessages, streamed},
    call::{CallHead, with_prefix},
};
use treering_domain::ShardId;
use treering_proto::pb::{self, rebuild_response, verify_response};

pub(super) const VERIFY: &str = "/treering.v1.Admin/Verify";
pub(super) const REBUILD: &str = "/treering.v1.Admin/Rebuild";

impl ShardRouter {
    /// Answers `Admin.Verify`: the faults of all shards, and the sum of their outcomes.
    pub(super) fn verify(&self, call: &CallHead, message: &Bytes) -> Response<Body> {
        let shards = self.inner.directory.shards();
        let answers = self.each_shard::<pb::VerifyResponse>(call, VERIFY, message);
        streamed(async_stream::try_stream! {
            use verify_response::Item;
            let mut sum = pb::VerifyOutcome { sound: true, ..Default::default() };
            for await answer in answers {
                let (shard, answer) = answer?;
                let item = match answer.item {
                    Some(Item::Progress(progress)) => Item::Progress(of_shard(progress, shard, shards)),
                    Some(Item::Outcome(outcome)) => {
                        sum.sound &= outcome.sound;
                        sum.events += outcome.events;
                        sum.conversations += outcome.conversations;
                        sum.blobs += outcome.blobs;
                        sum.faults += outcome.faults;
                        continue;
                    }
                    Some(item @ Item::Fault(_)) => item,
                    None => continue,
                };
                yield pb::VerifyResponse { item: Some(item) };
            }
            yield pb::VerifyResponse { item: Some(Item::Outcome(sum)) };
        })
    }

    /// Answers `Admin.Rebuild`.
    pub(super) fn rebuild(&self, call: &CallHead, message: &Bytes) -> Response<Body> {
        let shards = self.inner.directory.shards();
        let answers = self.each_shard::<pb::RebuildResponse>(call, REBUILD, message);
        streamed(async_stream::try_stream! {
            use rebuild_response::Item;
            let mut sum = pb::RebuildOutcome::default();
            for await answer in answers {
                let (shard, answer) = answer?;
                match answer.item {
                    Some(Item::Progress(progress)) => {
                        let item = Some(Item::Progress(of_shard(progress, shard, shards)));
                        yield pb::RebuildResponse { item };
                    }
                    Some(Item::Outcome(outcome)) => {
                        sum.events += outcome.events;
                        sum.documents += outcome.documents;
                        sum.damaged += outcome.damaged;
                        sum.not_indexed += outcome.not_indexed;
                    }
                    None => {}
                }
            }
            yield pb::RebuildResponse { item: Some(Item::Outcome(sum)) };
        })
    }

    /// Asks the shards one after the other, and returns all messages of their answers.
    fn each_shard<M: prost::Message + Default>(
        &self,
        call: &CallHead,
        path: &'static str,
        message: &Bytes,
    ) -> impl Stream<Item = Result<(ShardId, M), Status>> + Send + use<M> {
        let (router, head) = (self.clone(), call.read_here());
        let message = with_prefix(message);
        async_stream::try_stream! {
            for shard in (0..router.inner.directory.shards()).map(ShardId) {
                let mut call = head.beside(path, message.clone());
                let mut messages = AnswerMessages::of(router.serve(&mut call, shard).await?);
                while let Some(answer) = messages.next().await? {
                    yield (shard, answer);
                }
            }
        }
    }
}

fn of_shard(progress: pb::Progress, shard: ShardId, shards: u32) -> pb::Progress {
    pb::Progress {
        what: format!("shard {} of {shards}: {}", shard.0 + 1, progress.what),
        ..progress
    }
}
