//! The Contexts service: requests, compactions, active context, sub-contexts.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use tokio::time::{Instant, timeout_at};
use tonic::{Request, Response, Status};
use tracing::Instrument;

use super::status::OrStatus;
use super::{
    bounds::{BUILD_WAIT_MAX, CONTEXT_KEYS_MAX, LOOKUP_BYTES_MAX},
    call::{Call, ServiceContext, shutting_down},
    context_proto as proto,
    from_proto::{self, InvalidField},
    read,
    shutdown::Phase,
    status::Refusal,
    to_proto,
};
use treering_domain::{ContextSet, ConversationId, Position};
use treering_engine::{
    BranchAddress, BuildQuery, CompactCommand, ContextError, ContextScope, PlanQuery,
    ReturnCommand, SetContext, SpawnCommand,
};
use treering_proto::{
    envelope,
    pb::{self, contexts_server::Contexts},
};

/// A thin layer over the engine.
pub(super) struct ContextsService(pub(crate) ServiceContext);

impl ContextsService {
    async fn find(&self, call: &Call, id: &str) -> Result<ConversationId, Refusal> {
        self.0.conversation(call, "conversation_id", id).await
    }

    async fn scope(&self, call: &Call, id: &str, branch: &str) -> Result<ContextScope, Refusal> {
        if !id.is_empty() {
            let address = self.0.address(call, id, branch).await?;
            return Ok(ContextScope::Conversation {
                id: address.conversation,
                branch: address.branch,
            });
        }
        if !branch.is_empty() {
            let message = "is set, but conversation_id is empty";
            return Err(InvalidField::new("branch", message).into());
        }
        Ok(ContextScope::LongTerm)
    }

    async fn query(&self, request: Request<pb::BuildRequest>) -> Result<BuildQuery, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        let address = self
            .0
            .address(&call, &request.conversation_id, &request.branch)
            .await?;
        let provider = proto::provider(request.provider)?;
        Ok(BuildQuery {
            as_of: from_proto::revision(request.as_of_revision),
            model: from_proto::optional("model", request.model)?,
            policy: proto::policy(request.policy)?,
            at_least: request.at_least.as_ref().map(envelope::position_from_pb),
            long_term: request.long_term.map(proto::long_term).transpose()?,
            ..BuildQuery::new(address, provider)
        })
    }

    /// Limits the time of an answer. Without a limit, a call would wait forever for a position that
    /// is never written.
    async fn in_time<T>(
        &self,
        at_least: Option<Position>,
        answer: impl Future<Output = Result<T, ContextError>>,
    ) -> Result<T, Status> {
        let engine = &self.0.engine;
        let reached = async {
            match at_least {
                Some(position) => engine.wait_read(position).await,
                None => Ok(()),
            }
        };
        tokio::select! {
            answer = built_within(BUILD_WAIT_MAX, reached, answer) => {
                Ok(answer.or_status()?.or_status()?)
            }
            () = self.0.stop.reached(Phase::Draining) => Err(shutting_down()),
        }
    }
}

/// Why a request was not built in time.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BuildTimeout {
    #[error(
        "the log did not reach the position within {} s: retry without at_least to read what is \
         there",
        BUILD_WAIT_MAX.as_secs()
    )]
    Position,
    #[error(
        "the request was not built within {} s, including the wait for other reads: retry later, \
         or compact the conversation first",
        BUILD_WAIT_MAX.as_secs()
    )]
    Build,
}

/// Builds an answer after a position is reached, both within a time limit.
async fn built_within<T, E>(
    max: Duration,
    reached: impl Future<Output = Result<(), E>>,
    answer: impl Future<Output = Result<T, E>>,
) -> Result<Result<T, E>, BuildTimeout> {
    let end = Instant::now() + max;
    let reached = timeout_at(end, reached).await;
    if let Err(error) = reached.map_err(|_| BuildTimeout::Position)? {
        return Ok(Err(error));
    }
    timeout_at(end, answer)
        .await
        .map_err(|_| BuildTimeout::Build)
}

#[tonic::async_trait]
impl Contexts for ContextsService {
    type ExpandStream = BoxStream<'static, Result<pb::ExpandResponse, Status>>;
    type WatchStream = BoxStream<'static, Result<pb::WatchContextResponse, Status>>;

    async fn build(
        &self,
        request: Request<pb::BuildRequest>,
    ) -> Result<Response<pb::BuildResponse>, Status> {
        let query = self.query(request).await?;
        let built = self
            .in_time(
                query.at_least,
                self.0
                    .engine
                    .build(query)
                    .instrument(treering_base::traced!("context.build")),
            )
            .await?;
        Ok(Response::new(pb::BuildResponse {
            request: built.request.into(),
            explanation: Some(proto::explanation(built.explanation)),
        }))
    }

    async fn explain(
        &self,
        request: Request<pb::BuildRequest>,
    ) -> Result<Response<pb::ExplainResponse>, Status> {
        let query = self.query(request).await?;
        let told = self
            .in_time(query.at_least, self.0.engine.explain(query))
            .await?;
        Ok(Response::new(pb::ExplainResponse {
            explanation: Some(proto::explanation(told)),
        }))
    }

    async fn plan_compaction(
        &self,
        request: Request<pb::PlanCompactionRequest>,
    ) -> Result<Response<pb::PlanCompactionResponse>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        let address = self
            .0
            .address(&call, &request.conversation_id, &request.branch)
            .await?;
        let query = PlanQuery {
            keep_turns: request.keep_turns,
            model: from_proto::optional("model", request.model)?,
            policy: proto::policy(request.policy)?,
            ..PlanQuery::new(address)
        };
        let plan = self.0.engine.plan_compaction(query).await.or_status()?;
        Ok(Response::new(pb::PlanCompactionResponse {
            plan: Some(proto::compaction_plan(plan)),
        }))
    }

    async fn compact(
        &self,
        request: Request<pb::CompactRequest>,
    ) -> Result<Response<pb::CompactResponse>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        from_proto::check_short("actor", &request.actor)?;
        let address = self
            .0
            .address(&call, &request.conversation_id, &request.branch)
            .await?;
        let command = CompactCommand {
            cut: from_proto::revision(request.cut_revision),
            keep_turns: request.keep_turns,
            expected_head: from_proto::revision(request.expected_head),
            idempotency_key: from_proto::idempotency_key(request.idempotency_key)?,
            trigger: proto::trigger(request.trigger)?,
            summary: request.summary,
            actor: call.caller.actor(request.actor),
            ..CompactCommand::new(address)
        };
        let outcome = self.0.engine.compact(command).await.or_status()?;
        Ok(Response::new(proto::compacted(outcome)))
    }

    async fn expand(
        &self,
        request: Request<pb::ExpandRequest>,
    ) -> Result<Response<Self::ExpandStream>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        let address = self
            .0
            .address(&call, &request.conversation_id, &request.branch)
            .await?;
        let compaction = from_proto::revision(request.compaction_revision);
        let engine = &self.0.engine;
        let events = engine.expand(&address, compaction).await.or_status()?;
        let caller = call.caller.clone();
        let events = events.map_ok(move |batch| read::converted(&caller, batch, false));
        let messages = read::messages(events).map(|message| {
            let events = message?.events;
            Ok(pb::ExpandResponse { events })
        });
        let bound = call.bound(messages, self.0.stop.clone(), Phase::Cut);
        Ok(Response::new(bound))
    }

    async fn get(
        &self,
        request: Request<pb::GetContextRequest>,
    ) -> Result<Response<pb::GetContextResponse>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        let scope = self
            .scope(&call, &request.conversation_id, &request.branch)
            .await?;
        from_proto::at_most_entries("keys", request.keys.len(), CONTEXT_KEYS_MAX)?;
        for (index, key) in request.keys.iter().enumerate() {
            proto::check_key(&format!("keys[{index}]"), key)?;
        }
        let engine = &self.0.engine;
        let values = engine
            .context_values(&call.namespace, &scope, request.keys, LOOKUP_BYTES_MAX)
            .await
            .or_status()?;
        Ok(Response::new(proto::context_values(values)))
    }

    async fn watch(
        &self,
        request: Request<pb::WatchContextRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        let scope = self
            .scope(&call, &request.conversation_id, &request.branch)
            .await?;
        for (index, key) in request.keys.iter().enumerate() {
            proto::check_key(&format!("keys[{index}]"), key)?;
        }
        let engine = &self.0.engine;
        if let ContextScope::Conversation { id, branch } = &scope {
            // A missing branch fails the call itself, not the stream.
            let address = BranchAddress {
                namespace: call.namespace.clone(),
                conversation: *id,
                branch: branch.clone(),
            };
            engine.check_branch(&address).await.or_status()?;
        }
        let changes = engine.watch_context(call.namespace.clone(), scope, request.keys);
        let items = changes.map(|change| Ok(proto::context_change(change.or_status()?)));
        let bound = call.bound(items, self.0.stop.clone(), Phase::Draining);
        Ok(Response::new(bound))
    }

    async fn set(
        &self,
        request: Request<pb::SetContextRequest>,
    ) -> Result<Response<pb::AppendResponse>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        from_proto::check_short("actor", &request.actor)?;
        let set: Result<Vec<ContextSet>, InvalidField> = request
            .set
            .into_iter()
            .enumerate()
            .map(|(index, set)| proto::context_set(index, set))
            .collect();
        for (index, key) in request.remove.iter().enumerate() {
            proto::check_key(&format!("remove[{index}]"), key)?;
        }
        let command = SetContext {
            scope: self
                .scope(&call, &request.conversation_id, &request.branch)
                .await?,
            namespace: call.namespace,
            set: set?,
            remove: request.remove,
            idempotency_key: from_proto::idempotency_key(request.idempotency_key)?,
            actor: call.caller.actor(request.actor),
        };
        let outcome = self.0.engine.set_context(command).await.or_status()?;
        Ok(Response::new(to_proto::append_response(&outcome)))
    }

    async fn spawn(
        &self,
        request: Request<pb::SpawnRequest>,
    ) -> Result<Response<pb::SpawnResponse>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        from_proto::check_short("actor", &request.actor)?;
        from_proto::check_short("call_id", &request.call_id)?;
        let address = self
            .0
            .address(&call, &request.conversation_id, &request.branch)
            .await?;
        let spawn = SpawnCommand {
            call_id: request.call_id,
            purpose: request.purpose,
            title: request.title,
            config: request.config.map(proto::config).transpose()?,
            system_prompt: request.system_prompt,
            policies: proto::policies(request.policies)?,
            labels: request.labels.into_iter().collect(),
            child: proto::child_id(&request.child_id)?,
            idempotency_key: from_proto::idempotency_key(request.idempotency_key)?,
            actor: call.caller.actor(request.actor),
            ..SpawnCommand::new(address)
        };
        let spawned = self.0.engine.spawn(spawn).await.or_status()?;
        Ok(Response::new(pb::SpawnResponse {
            child_id: spawned.child.to_string(),
            events: spawned
                .outcome
                .events
                .iter()
                .map(to_proto::appended)
                .collect(),
            repeated_key: spawned.outcome.repeated_key,
        }))
    }

    async fn r#return(
        &self,
        request: Request<pb::ReturnRequest>,
    ) -> Result<Response<pb::AppendResponse>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        from_proto::check_short("actor", &request.actor)?;
        let child = self.find(&call, &request.conversation_id).await?;
        let end = ReturnCommand {
            summary: request.summary,
            success: request.success.unwrap_or(true),
            idempotency_key: from_proto::idempotency_key(request.idempotency_key)?,
            actor: call.caller.actor(request.actor),
            ..ReturnCommand::new(call.namespace, child)
        };
        let outcome = self.0.engine.return_sub_context(end).await.or_status()?;
        Ok(Response::new(to_proto::append_response(&outcome)))
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    // A build that is slow, or waits for its turn, must not be reported as waiting for a position.
    #[tokio::test]
    async fn late_build_reports_its_cause() {
        let moment = Duration::from_millis(1);
        let (reached, never) = (ready(Ok::<_, ContextError>(())), pending());
        let late = built_within(moment, reached, never).await;
        let late: BuildTimeout = late.map(|_: Result<(), _>| ()).unwrap_err();
        assert_eq!(late, BuildTimeout::Build);
        assert!(late.to_string().contains("not built within 30 s"), "{late}");
        let built = ready(Ok::<_, ContextError>(()));
        let late = built_within(moment, pending(), built).await;
        assert_eq!(late.map(drop).unwrap_err(), BuildTimeout::Position);
    }
}
