//! The Search service.

use std::time::Duration;

use tonic::{Request, Response, Status};
use tracing::Instrument;

use super::status::OrStatus;
use super::{
    bounds::{SEARCH_HITS_DEFAULT, SEARCH_WAIT_MAX},
    call::{Call, Shared},
    from_proto::{self, Malformed},
    to_proto,
};
use treering_domain::{Role, limits::SHORT_TEXT_BYTES_MAX};
use treering_engine::{Reading, SearchRequest};
use treering_proto::{
    body, envelope,
    pb::{self, search_server::Search},
};

/// Longest query, in bytes: longer ones are pasted texts, not queries.
const QUERY_BYTES_MAX: usize = 16 << 10;
/// Most tools in a filter.
const TOOLS_MAX: usize = 256;
/// Most lines around a match, each way.
const CONTEXT_LINES_MAX: u32 = 200;
/// Largest offset of a hit, since ranking keeps all hits before it in memory.
const OFFSET_MAX: u32 = 10_000;

/// A thin layer over the engine.
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
            reading: mode(request.mode)?,
            regex: request.regex,
            by_conversation: request.by_conversation,
            conversations_max: match request.conversations_max {
                0 => usize::MAX,
                max => max as usize,
            },
            limit: from_proto::page(request.limit, SEARCH_HITS_DEFAULT, limits.page_events_max),
            offset: usize::try_from(request.offset).unwrap_or(usize::MAX),
            conversation,
            branch,
            include_sub_contexts: request.include_sub_contexts,
            tools: request.tools,
            success: request.success,
            recorded_from: from_proto::time("recorded_from", request.recorded_from.as_ref())?,
            recorded_to: from_proto::time("recorded_to", request.recorded_to.as_ref())?,
            happened_from: from_proto::time("happened_from", request.happened_from.as_ref())?,
            happened_to: from_proto::time("happened_to", request.happened_to.as_ref())?,
            kinds: from_proto::kinds(&request.kinds)?,
            roles: roles(&request.roles)?,
            paths: request.paths,
            sources: request.sources,
            labels: request.labels,
            context_lines: request.context_lines.min(CONTEXT_LINES_MAX),
            wait_max: wait_max(request.wait_max)?,
            at_least: request.at_least.as_ref().map(envelope::position_from_pb),
            count_all: request.count_all,
            every_copy: request.every_copy,
            active_branches_only: request.active_branches_only,
            not_sealed: request.not_sealed,
        })
    }
}

fn mode(mode: i32) -> Result<Reading, Malformed> {
    match pb::QueryMode::try_from(mode) {
        Ok(pb::QueryMode::Unspecified) => Ok(Reading::Guess),
        Ok(pb::QueryMode::Plain) => Ok(Reading::Plain),
        Ok(pb::QueryMode::Query) => Ok(Reading::Query),
        Err(_) => Err(Malformed::new("mode", "is not a known mode")),
    }
}

fn roles(roles: &[i32]) -> Result<Vec<Role>, Malformed> {
    let known = |&role: &i32| body::role_from_pb(role);
    let read: Option<Vec<Role>> = roles.iter().map(known).collect();
    read.ok_or_else(|| Malformed::new("roles", "has an unknown role"))
}

fn wait_max(max: Option<prost_types::Duration>) -> Result<Option<Duration>, Malformed> {
    let read = max.map(Duration::try_from).transpose();
    read.map_err(|_| Malformed::new("wait_max", "is not a valid duration"))
}

fn check(request: &pb::SearchRequest) -> Result<(), Malformed> {
    let bytes = request.query.len();
    if bytes > QUERY_BYTES_MAX {
        let message = format!("has {bytes} bytes; the maximum is {QUERY_BYTES_MAX}");
        return Err(Malformed::new("query", message));
    }
    if request.offset > OFFSET_MAX {
        let message = format!("exceeds {OFFSET_MAX}: narrow the query");
        return Err(Malformed::new("offset", message));
    }
    let long = |tool: &String| tool.len() > SHORT_TEXT_BYTES_MAX;
    if request.tools.len() > TOOLS_MAX || request.tools.iter().any(long) {
        let message = format!(
            "may have at most {TOOLS_MAX} names of at most {SHORT_TEXT_BYTES_MAX} bytes each"
        );
        return Err(Malformed::new("tools", message));
    }
    for (field, names) in [
        ("paths", &request.paths),
        ("sources", &request.sources),
        ("labels", &request.labels),
    ] {
        let is_long = |name: &String| name.len() > SHORT_TEXT_BYTES_MAX;
        if names.len() > TOOLS_MAX || names.iter().any(is_long) {
            let message = format!(
                "may have at most {TOOLS_MAX} entries of at most {SHORT_TEXT_BYTES_MAX} bytes each"
            );
            return Err(Malformed::new(field, message));
        }
    }
    let everywhere = request.conversation_id.is_empty();
    if everywhere && (!request.branch.is_empty() || request.include_sub_contexts) {
        let message = "is empty, but branch and include_sub_contexts require it";
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
        let call = Call::of(&request)?;
        let caller = call.caller.clone();
        let request = self.request(call, request.into_inner()).await?;
        let searched = self
            .0
            .engine
            .search_within(request, SEARCH_WAIT_MAX)
            .instrument(treering_base::traced!("search.query"));
        let answer = searched
            .await
            .map_err(|late| Status::deadline_exceeded(late.to_string()))?
            .or_status()?;
        let hits = answer.hits.iter().chain(answer.hidden.as_deref());
        caller.reads(hits.map(|hit| hit.conversation));
        Ok(Response::new(to_proto::search_response(answer)))
    }
}
