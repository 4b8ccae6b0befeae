//! Spans of agents in a cluster. One shard is the home of a namespace's spans: its owner knows which
//! conversation a trace belongs to, splits each request, and has the parts recorded by the owners of
//! the conversations.

use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use http::Response;
use prost::Message;
use tonic::{Status, body::Body};

use super::{
    ShardRouter,
    call::{CallHead, RoutedCall, decoded, prefixed},
    scatter::answer,
    target::NamedCreation,
};
use crate::{
    bounds,
    spans::{
        CONVERSATION_KEY, ExportTraceServiceRequest, ExportTraceServiceResponse, SplitSpans,
        conversation_word,
    },
};
use treering_domain::{Namespace, ShardId};
use treering_engine::{derived_id, items::items_conversation};
use treering_otel::SOURCE;

pub(super) const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

impl ShardRouter {
    /// Returns the home of a namespace's spans.
    pub(super) fn home_of_spans(&self, namespace: &Namespace) -> ShardId {
        let map = self.inner.directory.shard_map();
        map.of(items_conversation(namespace))
    }

    /// Records the spans of a request that was not split yet, in the owner of their home. Returns
    /// `None` for all other calls.
    pub(super) async fn export(
        &self,
        call: &mut RoutedCall,
    ) -> Option<Result<Response<Body>, Status>> {
        if call.head.path() != EXPORT || call.head.has(&CONVERSATION_KEY) {
            return None;
        }
        // The services of the shard refuse invalid bytes.
        let request = ExportTraceServiceRequest::decode(call.message()).ok()?;
        Some(self.export_split(&call.head, request).await)
    }

    async fn export_split(
        &self,
        call: &CallHead,
        request: ExportTraceServiceRequest,
    ) -> Result<Response<Body>, Status> {
        let (router, namespace) = (self.clone(), call.namespace.clone());
        let split = tokio::task::spawn_blocking(move || {
            SplitSpans::of(&router.inner.spans, &namespace, request)
        });
        let split = split
            .await
            .map_err(|_| Status::unavailable("reading the spans failed: send them again"))?;
        let recorded = split
            .parts
            .iter()
            .map(|(name, part)| self.export_part(call, name, part));
        let recorded: Vec<_> = recorded.collect();
        let recorded: Vec<_> = stream::iter(recorded)
            .buffered(bounds::SHARDS_ASKED_MAX)
            .collect()
            .await;
        let recorded = recorded.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(answer(&split.answer(recorded)))
    }

    /// Has the spans of one conversation recorded by the owner of its shard. Boxed, because routing a
    /// call leads here.
    fn export_part<'a>(
        &'a self,
        call: &'a CallHead,
        name: &'a str,
        part: &'a ExportTraceServiceRequest,
    ) -> BoxFuture<'a, Result<ExportTraceServiceResponse, Status>> {
        async move {
            let shard = self.shard_of_source(call, name).await?;
            let mut call = call.beside(EXPORT, prefixed(part));
            call.head.insert(CONVERSATION_KEY, conversation_word(name));
            decoded(self.unary(&mut call, shard).await?)
        }
        .boxed()
    }

    /// Returns the shard of the conversation with this id at the source of spans, or that in which it
    /// will be created.
    async fn shard_of_source(&self, call: &CallHead, name: &str) -> Result<ShardId, Status> {
        let known = &self.inner.spans;
        if let Some(shard) = known.shard_of(&call.namespace, name) {
            return Ok(shard);
        }
        let map = self.inner.directory.shard_map();
        let creates = NamedCreation {
            source: SOURCE.to_owned(),
            shard: map.of(derived_id(&call.namespace, "source", &[SOURCE, name])),
        };
        let found = self.find_named(call, name, Some(&creates)).await?;
        let shard = found.unwrap_or(creates.shard);
        known.note_shard(&call.namespace, name, shard);
        Ok(shard)
    }
}
