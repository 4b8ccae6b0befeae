//! The Search service.

use std::time::Duration;

use prost_types::Timestamp;
use tonic::{Request, Response, Status};
use tracing::Instrument;

use super::status::OrStatus;
use super::{
    bounds::{SEARCH_HITS_DEFAULT, SEARCH_WAIT_MAX},
    call::{Call, ServiceContext},
    from_proto::{self, InvalidField},
    guard::Caller,
    to_proto,
};
use treering_domain::{EventRef, Revision, Role, limits::SHORT_TEXT_BYTES_MAX};
use treering_engine::{
    ConversationFilters, DuplicateHandling, QUERY_BYTES_MAX, QuerySyntax, RecalledTexts,
    SearchAnswer, SearchBy, SearchFilters, SearchRequest,
};
use treering_proto::{
    body, envelope,
    pb::{self, search_server::Search},
};

/// Maximum number of tools in a filter.
const TOOLS_MAX: usize = 256;
/// Maximum number of lines around a match, each way.
const CONTEXT_LINES_MAX: u32 = 200;
/// Largest offset of a hit, since ranking keeps all hits before it in memory.
const OFFSET_MAX: u32 = 10_000;

/// A thin layer over the engine.
pub(super) struct SearchService(pub(crate) ServiceContext);

impl SearchService {
    pub(super) async fn request(
        &self,
        call: Call,
        request: pb::SearchRequest,
    ) -> Result<SearchRequest, Status> {
        check(&request)?;
        let limits = self.0.engine.limits();
        let pb::SearchRequest {
            query,
            limit,
            offset,
            conversation_id,
            branch,
            include_sub_contexts,
            tools,
            success,
            recorded_from,
            recorded_to,
            kinds,
            at_least,
            count_all,
            mode,
            paths,
            sources,
            labels,
            roles,
            context_lines,
            wait_max,
            happened_from,
            happened_to,
            regex,
            by_conversation,
            conversations_max,
            every_copy,
            active_branches_only,
            not_sealed,
            by,
            similar_to,
        } = request;
        let branch = from_proto::branch("branch", &branch)?;
        let conversation = match conversation_id.as_str() {
            "" => None,
            id => Some(self.0.conversation(&call, "conversation_id", id).await?),
        };
        let similar_to = match &similar_to {
            None => None,
            Some(event) => {
                let id = &event.conversation_id;
                let field = "similar_to.conversation_id";
                Some(EventRef {
                    conversation: self.0.conversation(&call, field, id).await?,
                    revision: Revision(event.revision),
                })
            }
        };
        let time = |field, time: Option<Timestamp>| from_proto::time(field, time.as_ref());
        Ok(SearchRequest {
            namespace: call.namespace,
            text: query,
            reading: reading(mode)?,
            regex,
            by: match similar_to {
                Some(_) => SearchBy::Meaning,
                None => search_by("by", by)?,
            },
            similar_to,
            limit: from_proto::page(limit, SEARCH_HITS_DEFAULT, limits.page_events_max),
            offset: usize::try_from(offset).unwrap_or(usize::MAX),
            within: ConversationFilters {
                conversation,
                branch,
                include_sub_contexts,
                sources,
                labels,
                active_branches_only,
                not_sealed,
            },
            filters: SearchFilters {
                tools,
                success,
                recorded_from: time("recorded_from", recorded_from)?,
                recorded_to: time("recorded_to", recorded_to)?,
                happened_from: time("happened_from", happened_from)?,
                happened_to: time("happened_to", happened_to)?,
                kinds: from_proto::kinds(&kinds)?,
                roles: read_roles(&roles)?,
                paths,
                recalled: match every_copy {
                    true => RecalledTexts::Included,
                    false => RecalledTexts::LeftOut,
                },
            },
            copies: match every_copy {
                true => DuplicateHandling::Each,
                false => DuplicateHandling::Folded,
            },
            conversations_max: by_conversation.then_some(match conversations_max {
                0 => usize::MAX,
                max => max as usize,
            }),
            count_all,
            context_lines: context_lines.min(CONTEXT_LINES_MAX),
            at_least: at_least.as_ref().map(envelope::position_from_pb),
            wait_max: longest_wait(wait_max)?,
            shared: None,
        })
    }
}

impl SearchService {
    /// Searches, and records which conversations the caller has read.
    pub(super) async fn search_for(
        &self,
        caller: &Caller,
        request: SearchRequest,
    ) -> Result<SearchAnswer, Status> {
        let searched = self
            .0
            .engine
            .search_within(request, SEARCH_WAIT_MAX)
            .instrument(treering_base::traced!("search.query"));
        let answer = searched.await.or_status()?.or_status()?;
        let hits = answer.hits.iter().chain(answer.hidden.as_deref());
        caller.reads(hits.map(|hit| hit.found.conversation));
        Ok(answer)
    }
}

fn reading(mode: i32) -> Result<QuerySyntax, InvalidField> {
    match pb::QueryMode::try_from(mode) {
        Ok(pb::QueryMode::Unspecified) => Ok(QuerySyntax::Guess),
        Ok(pb::QueryMode::Plain) => Ok(QuerySyntax::Plain),
        Ok(pb::QueryMode::Query) => Ok(QuerySyntax::Query),
        Err(_) => Err(InvalidField::new("mode", "is not a known mode")),
    }
}

/// Reads what a search compares.
pub(super) fn search_by(field: &str, by: i32) -> Result<SearchBy, InvalidField> {
    match pb::SearchBy::try_from(by) {
        Ok(pb::SearchBy::Unspecified | pb::SearchBy::Words) => Ok(SearchBy::Words),
        Ok(pb::SearchBy::Meaning) => Ok(SearchBy::Meaning),
        Ok(pb::SearchBy::Both) => Ok(SearchBy::Both),
        Err(_) => Err(InvalidField::new(field, "is not known")),
    }
}

fn read_roles(roles: &[i32]) -> Result<Vec<Role>, InvalidField> {
    let known = |&role: &i32| body::role_from_pb(role);
    let read: Option<Vec<Role>> = roles.iter().map(known).collect();
    read.ok_or_else(|| InvalidField::new("roles", "has an unknown role"))
}

fn longest_wait(max: Option<prost_types::Duration>) -> Result<Option<Duration>, InvalidField> {
    let read = max.map(Duration::try_from).transpose();
    read.map_err(|_| InvalidField::new("wait_max", "is not a valid duration"))
}

fn check(request: &pb::SearchRequest) -> Result<(), InvalidField> {
    let bytes = request.query.len();
    if bytes > QUERY_BYTES_MAX {
        let message = format!("has {bytes} bytes; the maximum is {QUERY_BYTES_MAX}");
        return Err(InvalidField::new("query", message));
    }
    if request.offset > OFFSET_MAX {
        let message = format!("exceeds {OFFSET_MAX}: narrow the query");
        return Err(InvalidField::new("offset", message));
    }
    let long = |tool: &String| tool.len() > SHORT_TEXT_BYTES_MAX;
    if request.tools.len() > TOOLS_MAX || request.tools.iter().any(long) {
        let message = format!(
            "may have at most {TOOLS_MAX} names of at most {SHORT_TEXT_BYTES_MAX} bytes each"
        );
        return Err(InvalidField::new("tools", message));
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
            return Err(InvalidField::new(field, message));
        }
    }
    if request.similar_to.is_some() && !request.query.is_empty() {
        return Err(InvalidField::new("query", "must be empty with similar_to"));
    }
    let everywhere = request.conversation_id.is_empty();
    if everywhere && (!request.branch.is_empty() || request.include_sub_contexts) {
        let message = "is empty, but branch and include_sub_contexts require it";
        return Err(InvalidField::new("conversation_id", message));
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
        let answer = self.search_for(&caller, request).await?;
        Ok(Response::new(to_proto::search_response(answer)))
    }
}
