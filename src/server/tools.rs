//! The Tools service: calls, decisions, runs and results.

use std::time::Duration;

use futures::stream::BoxStream;
use prost::Message;
use tonic::{Request, Response, Status, Streaming};

use super::status::OrStatus;
use super::{
    bounds::DECISION_WAIT_MAX,
    call::{Call, ServiceContext, shutting_down},
    from_proto::{self, InvalidField},
    knowledge, result_text,
    shutdown::Phase,
    to_proto,
};
use treering_domain::{ConversationId, Revision};
use treering_engine::{
    BranchAddress, KnowledgeQuery, LineageStep, ReadError, ToolHistoryQuery, WhichResult,
};
use treering_proto::pb::{self, tools_server::Tools};

/// A result in pieces.
type Results = BoxStream<'static, Result<pb::GetResultResponse, Status>>;

/// A thin layer over the engine.
pub(super) struct ToolsService(pub(crate) ServiceContext);

impl ToolsService {
    async fn find(&self, call: &Call, id: &str) -> Result<ConversationId, Status> {
        Ok(self.0.conversation(call, "conversation_id", id).await?)
    }

    fn page(&self, asked: u32) -> usize {
        let max = self.0.engine.limits().page_events_max;
        from_proto::page(asked, max, max)
    }
}

impl ToolsService {
    /// Returns a result that a model requests by the arguments of its call.
    async fn read_shortened(
        &self,
        call: Call,
        request: &pb::GetResultRequest,
    ) -> Result<Response<Results>, Status> {
        let asked = result_text::asked(request)?;
        let address = self
            .0
            .address(&call, &request.conversation_id, &request.branch)
            .await?;
        let engine = &self.0.engine;
        let of = asked.conversation.unwrap_or(address.conversation);
        if of != address.conversation {
            // A model may read only results in its own history.
            let lineage = engine.lineage(&address).await.or_status()?;
            let held = |step: &LineageStep| step.conversation == of && asked.revision <= step.up_to;
            if !lineage.steps.iter().any(held) {
                let message = "names a result outside the history of this conversation";
                return Err(InvalidField::new("arguments", message).into());
            }
        }
        call.caller.reads([of]);
        let which = WhichResult::Revision(asked.revision);
        let result = engine
            .result(&BranchAddress::active(address.namespace, of), which)
            .await
            .or_status()?;
        let range = result_text::Range::Lines {
            first: asked.line_first,
            last: asked.line_last,
        };
        let messages = futures::stream::iter(result_text::messages(result, range)?);
        Ok(Response::new(call.bound(
            messages,
            self.0.stop.clone(),
            Phase::Cut,
        )))
    }
}

#[tonic::async_trait]
impl Tools for ToolsService {
    type GetResultStream = Results;

    async fn history(
        &self,
        request: Request<pb::ToolHistoryRequest>,
    ) -> Result<Response<pb::ToolHistoryResponse>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        let tool = from_proto::optional("tool", request.tool)?;
        let query = ToolHistoryQuery {
            address: self
                .0
                .address(&call, &request.conversation_id, &request.branch)
                .await?,
            as_of: from_proto::revision(request.as_of_revision),
            tool,
            limit: self.page(request.limit),
        };
        let calls = self.0.engine.tool_history(query).await.or_status()?;
        Ok(Response::new(pb::ToolHistoryResponse {
            calls: calls.into_iter().map(to_proto::tool_call).collect(),
        }))
    }

    async fn pending(
        &self,
        request: Request<pb::PendingRequest>,
    ) -> Result<Response<pb::PendingResponse>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        let branch = from_proto::branch("branch", &request.branch)?;
        let conversation = if request.conversation_id.is_empty() {
            if branch.is_some() {
                let message = "is set, but conversation_id is empty";
                return Err(InvalidField::new("branch", message).into());
            }
            None
        } else {
            Some(self.find(&call, &request.conversation_id).await?)
        };
        let limit = self.page(request.limit);
        let engine = &self.0.engine;
        let calls = engine
            .pending(&call.namespace, conversation, branch.as_ref(), limit)
            .await
            .or_status()?;
        call.caller.reads(calls.iter().map(|of| of.conversation));
        Ok(Response::new(pb::PendingResponse {
            calls: calls.into_iter().map(to_proto::tool_call).collect(),
        }))
    }

    async fn wait_for_decision(
        &self,
        request: Request<pb::WaitForDecisionRequest>,
    ) -> Result<Response<pb::WaitForDecisionResponse>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        from_proto::required("call_id", &request.call_id)?;
        from_proto::check_short("call_id", &request.call_id)?;
        let address = self
            .0
            .address(&call, &request.conversation_id, &request.branch)
            .await?;
        let timeout = match request.timeout_ms {
            0 => DECISION_WAIT_MAX,
            asked => Duration::from_millis(asked).min(DECISION_WAIT_MAX),
        };
        let engine = &self.0.engine;
        let waited = engine.wait_for_decision(&address, &request.call_id, timeout);
        let (tool_call, decided) = tokio::select! {
            waited = waited => waited.or_status()?,
            refusal = call.caller.wait_until_invalid() => return Err(refusal).or_status(),
            () = self.0.stop.reached(Phase::Draining) => return Err(shutting_down()),
        };
        Ok(Response::new(pb::WaitForDecisionResponse {
            call: Some(to_proto::tool_call(tool_call)),
            decided,
        }))
    }

    async fn get_result(
        &self,
        request: Request<pb::GetResultRequest>,
    ) -> Result<Response<Self::GetResultStream>, Status> {
        use pb::get_result_request::Which;
        let call = Call::of(&request)?;
        let request = request.into_inner();
        if !request.arguments.is_empty() {
            return self.read_shortened(call, &request).await;
        }
        let range = result_text::Range::of(&request)?;
        let which = match request.which {
            Some(Which::Revision(revision)) => WhichResult::Revision(Revision(revision)),
            Some(Which::CallId(call_id)) => {
                from_proto::required("call_id", &call_id)?;
                from_proto::check_short("call_id", &call_id)?;
                WhichResult::CallId(call_id)
            }
            None => {
                let message = "is not set: set revision or call_id";
                return Err(InvalidField::new("which", message).into());
            }
        };
        let address = self
            .0
            .address(&call, &request.conversation_id, &request.branch)
            .await?;
        let engine = &self.0.engine;
        let result = engine.result(&address, which).await.or_status()?;
        let messages = futures::stream::iter(result_text::messages(result, range)?);
        let bound = call.bound(messages, self.0.stop.clone(), Phase::Cut);
        Ok(Response::new(bound))
    }

    async fn record_result(
        &self,
        request: Request<Streaming<pb::RecordResultRequest>>,
    ) -> Result<Response<pb::AppendResponse>, Status> {
        let call = Call::of(&request)?;
        let bytes_max = self.0.engine.limits().body_bytes_max;
        let (start, result) = result_text::assemble(request.into_inner(), bytes_max).await?;
        call.caller.check_again().or_status()?;
        let conversation = self.find(&call, &start.conversation_id).await?;
        let mut command = result_text::command(call.namespace, conversation, start, result)?;
        for event in &mut command.events {
            call.caller.sign(event)?;
        }
        let outcome = self.0.engine.append(command).await.or_status()?;
        Ok(Response::new(to_proto::append_response(&outcome)))
    }

    async fn recorded(
        &self,
        request: Request<pb::RecordedRequest>,
    ) -> Result<Response<pb::RecordedResponse>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        from_proto::required("tool", &request.tool)?;
        from_proto::check_short("tool", &request.tool)?;
        let arguments = from_proto::arguments("arguments", request.arguments)?;
        let address = self
            .0
            .address(&call, &request.conversation_id, &request.branch)
            .await?;
        let engine = &self.0.engine;
        let recorded = engine
            .recorded(&address, &request.tool, &arguments, request.occurrence)
            .await
            .or_status()?;
        let Some((tool_call, recorded)) = recorded else {
            return Ok(Response::new(pb::RecordedResponse::default()));
        };
        let position = recorded.event.position;
        let result = pb::ToolResultRecorded::decode(recorded.event.body)
            .map_err(|_| ReadError::Damaged {
                position,
                message: "the body of the tool result cannot be read".to_owned(),
            })
            .or_status()?;
        Ok(Response::new(pb::RecordedResponse {
            found: true,
            call: Some(to_proto::tool_call(tool_call)),
            result: Some(result),
        }))
    }

    async fn knowledge(
        &self,
        request: Request<pb::KnowledgeRequest>,
    ) -> Result<Response<pb::KnowledgeResponse>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        let tool = from_proto::optional("tool", request.tool)?;
        let max = self.0.engine.limits().page_events_max;
        let query = KnowledgeQuery {
            address: self
                .0
                .address(&call, &request.conversation_id, &request.branch)
                .await?,
            as_of: from_proto::revision(request.as_of_revision),
            recent: from_proto::page(request.recent, knowledge::RECENT_DEFAULT, max),
            tool,
        };
        let answer = self.0.engine.knowledge(query).await.or_status()?;
        Ok(Response::new(knowledge::response(answer)))
    }

    async fn suggest_arguments(
        &self,
        request: Request<pb::SuggestArgumentsRequest>,
    ) -> Result<Response<pb::SuggestArgumentsResponse>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        let tool = knowledge::tool(&request.tool)?;
        let arguments = knowledge::arguments(&request.arguments)?;
        let address = self
            .0
            .address(&call, &request.conversation_id, &request.branch)
            .await?;
        let engine = &self.0.engine;
        let suggested = engine
            .suggest_arguments(&address, tool, arguments)
            .await
            .or_status()?;
        Ok(Response::new(knowledge::suggestions(suggested)))
    }

    async fn missing_prerequisites(
        &self,
        request: Request<pb::MissingPrerequisitesRequest>,
    ) -> Result<Response<pb::MissingPrerequisitesResponse>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        let tool = knowledge::tool(&request.tool)?;
        let address = self
            .0
            .address(&call, &request.conversation_id, &request.branch)
            .await?;
        let engine = &self.0.engine;
        let prerequisites = engine
            .missing_prerequisites(&address, tool)
            .await
            .or_status()?;
        Ok(Response::new(pb::MissingPrerequisitesResponse {
            missing: prerequisites.missing,
            configured: prerequisites.configured,
        }))
    }

    async fn guidance(
        &self,
        request: Request<pb::GuidanceRequest>,
    ) -> Result<Response<pb::GuidanceResponse>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        let address = self
            .0
            .address(&call, &request.conversation_id, &request.branch)
            .await?;
        let engine = &self.0.engine;
        let guidance = engine.tool_guidance(&address).await.or_status()?;
        Ok(Response::new(pb::GuidanceResponse { guidance }))
    }

    async fn snapshots(
        &self,
        request: Request<pb::SnapshotsRequest>,
    ) -> Result<Response<pb::SnapshotsResponse>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        let as_of = from_proto::revision(request.as_of_revision);
        let limit = self.page(request.limit);
        let address = self
            .0
            .address(&call, &request.conversation_id, &request.branch)
            .await?;
        let engine = &self.0.engine;
        let snapshots = engine.snapshots(&address, as_of, limit).await.or_status()?;
        Ok(Response::new(pb::SnapshotsResponse {
            snapshots: snapshots.into_iter().map(knowledge::snapshot).collect(),
        }))
    }
}
