//! The Search service.

use tonic::{Request, Response, Status};

use super::{
    bounds::{INDEX_WAIT_MAX, SEARCH_HITS_DEFAULT},
    call::{Call, Shared},
    from_proto::{self, Malformed},
    to_proto,
};
use crate::{
    codec::{
        envelope,
        pb::{self, search_server::Search},
    },
    domain::limits::SHORT_TEXT_BYTES_MAX,
    engine::SearchRequest,
};

/// Longest query, in bytes: longer ones are pasted texts, not queries.
const QUERY_BYTES_MAX: usize = 16 << 10;
/// Most tools to filter by.
const TOOLS_MAX: usize = 256;
/// Furthest hit that can be asked for: ranking keeps all before it in memory.
const OFFSET_MAX: u32 = 10_000;

/// Thin over the engine.
pub(super) struct SearchService(pub Shared);

impl SearchService {
    async fn request(
        &self,
        call: Call,
        request: pb::SearchRequest,
    ) -> Result<SearchRequest, Status> {
        check(&request)?;
        let limits = self.0.engine.limits();
        let branch = from_proto::branch("branch", &request.branch)?;
        let conversation = if request.conversation_id.is_empty() {
            None
        } else {
            let id = &request.conversation_id;
            Some(self.0.conversation(&call, "conversation_id", id).await?)
        };
        Ok(SearchRequest {
            namespace: call.namespace,
            text: request.query,
            limit: from_proto::page(request.limit, SEARCH_HITS_DEFAULT, limits.page_events_max),
            offset: usize::try_from(request.offset).unwrap_or(usize::MAX),
            conversation,
            branch,
            include_sub_contexts: request.include_sub_contexts,
            tools: request.tools,
            success: request.success,
            recorded_from: from_proto::time("recorded_from", request.recorded_from.as_ref())?,
            recorded_to: from_proto::time("recorded_to", request.recorded_to.as_ref())?,
            kinds: from_proto::kinds(&request.kinds)?,
            at_least: request.at_least.as_ref().map(envelope::position_from_pb),
            count_all: request.count_all,
        })
    }
}

fn check(request: &pb::SearchRequest) -> Result<(), Malformed> {
    let bytes = request.query.len();
    if bytes > QUERY_BYTES_MAX {
        let message = format!("has {bytes} bytes; at most {QUERY_BYTES_MAX} are allowed");
        return Err(Malformed::new("query", message));
    }
    if request.offset > OFFSET_MAX {
        let message = format!("is over {OFFSET_MAX}: narrow the query instead");
        return Err(Malformed::new("offset", message));
    }
    let long = |tool: &String| tool.len() > SHORT_TEXT_BYTES_MAX;
    if request.tools.len() > TOOLS_MAX || request.tools.iter().any(long) {
        let message =
            format!("takes at most {TOOLS_MAX} names of at most {SHORT_TEXT_BYTES_MAX} bytes each");
        return Err(Malformed::new("tools", message));
    }
    let everywhere = request.conversation_id.is_empty();
    if everywhere && (!request.branch.is_empty() || request.include_sub_contexts) {
        let message = "is empty, but branch or include_sub_contexts needs a conversation";
        return Err(Malformed::new("conversation_id", message));
    }
    Ok(())
}

#[tonic::async_trait]
impl Search for SearchService {
    async fn search(
        &self,
        request: Request<pb::SearchRequest>,
    ) -> Result<Response<pb::SearchResponse>, Status> {
        let call = Call::of(request.metadata())?;
        let request = self.request(call, request.into_inner()).await?;
        let searched = self.0.engine.search(request);
        // A position that was never written would be waited for without end.
        let answer = tokio::time::timeout(INDEX_WAIT_MAX, searched)
            .await
            .map_err(|_| {
                Status::deadline_exceeded("the index did not reach the position in time")
            })??;
        Ok(Response::new(to_proto::search_response(answer)))
    }
}
