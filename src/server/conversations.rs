//! The Conversations service: state, list, fork, lineage, diff, seal, erase.

use futures::{StreamExt, stream::BoxStream};
use prost::Message;
use tonic::{Request, Response, Status};

use super::status::OrStatus;
use super::{
    append_request::{chosen, new_conversation},
    bounds::{DIFF_BYTES_MAX, LOOKUP_BYTES_MAX, PAGE_DEFAULT},
    call::{Call, ServiceContext},
    from_proto::{self, InvalidField},
    page_token::Scope,
    shutdown::Phase,
    to_proto,
};
use treering_domain::{
    AppendCommand, BranchId, BranchName, ConversationId, EventBody, NewEvent, TimestampMicros,
};
use treering_engine::{
    BranchAddress, ConversationPage, ConversationSummary, EraseCommand, EraseTarget, ForkCommand,
    ForkOptions, ListFilter, ListOrder, ListPlace, ListQuery, Retention, RewindCommand,
};
use treering_proto::pb::{self, conversations_server::Conversations};

/// A thin layer over the engine.
pub(super) struct ConversationsService(pub(crate) ServiceContext);

/// The value of `ForkRequest.into_conversation` that requests a new conversation.
const NEW: &str = "new";

impl ConversationsService {
    async fn resolve(&self, call: &Call, id: &str) -> Result<ConversationId, Status> {
        Ok(self.0.conversation(call, "conversation_id", id).await?)
    }

    async fn list_filter(
        &self,
        call: &Call,
        asked: pb::ListConversationsRequest,
    ) -> Result<ListFilter, Status> {
        let parent = match asked.parent.as_str() {
            "" => None,
            id => Some(self.0.conversation(call, "parent", id).await?),
        };
        let metadata = asked.metadata.into_iter().map(|(name, text)| {
            let value = serde_json::from_str(&text).map_err(|_| {
                let message = "a value is not JSON text: write a string as \"text\", with quotes";
                InvalidField::new("metadata", message)
            })?;
            Ok((name, value))
        });
        from_proto::check_short("title", &asked.title)?;
        Ok(ListFilter {
            labels: asked.labels,
            metadata: metadata.collect::<Result<_, InvalidField>>()?,
            parent,
            title: asked.title,
            sealed: asked.sealed,
            updated_from: from_proto::time("updated_from", asked.updated_from.as_ref())?,
            updated_to: from_proto::time("updated_to", asked.updated_to.as_ref())?,
        })
    }

    /// Parses the target of an erasure.
    async fn erase_target(
        &self,
        call: &Call,
        target: Option<pb::erase_request::Target>,
    ) -> Result<EraseTarget, Status> {
        use pb::erase_request::Target;
        Ok(match target {
            Some(Target::Revisions(of)) => EraseTarget::Revisions {
                conversation: self.resolve(call, &of.conversation_id).await?,
                revisions: of
                    .ranges
                    .iter()
                    .map(|range| range.first..=range.last)
                    .collect(),
            },
            Some(Target::ConversationId(id)) => {
                EraseTarget::Conversation(self.resolve(call, &id).await?)
            }
            Some(Target::WholeNamespace(true)) => EraseTarget::Namespace,
            Some(Target::Literal(literal)) => EraseTarget::Literal(literal.to_vec()),
            Some(Target::Due(retention)) => EraseTarget::Due(Retention {
                keep_days: retention.keep_days,
                keep_sealed_days: retention.keep_sealed_days,
                labels: retention.labels.into_iter().collect(),
            }),
            Some(Target::WholeNamespace(false)) | None => {
                let message = "is not set: choose what to erase";
                return Err(InvalidField::new("target", message).into());
            }
        })
    }
}

/// An event that changes a branch.
struct BranchChange {
    conversation_id: String,
    branch: String,
    idempotency_key: String,
    actor: String,
    body: EventBody,
}

impl ConversationsService {
    async fn change_branch(
        &self,
        call: &Call,
        change: BranchChange,
    ) -> Result<Response<pb::AppendResponse>, Status> {
        from_proto::check_short("actor", &change.actor)?;
        let idempotency_key = from_proto::idempotency_key(change.idempotency_key)?;
        let branch = from_proto::branch("branch", &change.branch)?;
        let id = self.resolve(call, &change.conversation_id).await?;
        let event = NewEvent {
            actor: call.caller.actor(change.actor),
            branch,
            ..NewEvent::new(id, change.body)
        };
        let command = AppendCommand {
            idempotency_key,
            ..AppendCommand::new(call.namespace.clone(), vec![event])
        };
        let outcome = self.0.engine.append(command).await.or_status()?;
        Ok(Response::new(to_proto::append_response(&outcome)))
    }
}

impl ConversationsService {
    /// Reads a page of the list. Returns it with the scope of its tokens.
    async fn page(
        &self,
        call: &Call,
        request: &pb::ListConversationsRequest,
    ) -> Result<(Scope, ConversationPage), Status> {
        let engine = &self.0.engine;
        let max = engine.limits().page_events_max;
        let asked = pb::ListConversationsRequest {
            page_size: 0,
            page_token: String::new(),
            with_values: false,
            ..request.clone()
        };
        let scope = Scope::of(engine, &call.namespace, &asked);
        let filter = self.list_filter(call, asked).await?;
        let max = match request.with_values {
            true => PAGE_DEFAULT.min(max),
            false => max,
        };
        let query = ListQuery {
            namespace: call.namespace.clone(),
            limit: from_proto::page(request.page_size, PAGE_DEFAULT, max),
            after: from_proto::page_token(scope.open(&request.page_token)?)?,
            source: from_proto::optional("source", request.source.clone())?,
            order: from_proto::list_order(request.order)?,
            ascending: request.ascending,
        };
        let page = engine.list_where(query, filter).await.or_status()?;
        Ok((scope, page))
    }

    async fn listed(
        &self,
        call: &Call,
        request: &pb::ListConversationsRequest,
        scope: &Scope,
        page: ConversationPage,
    ) -> Result<pb::ListConversationsResponse, Status> {
        let values = match request.with_values {
            true => self.values_of(call, &page.conversations).await?,
            false => Vec::new(),
        };
        Ok(pb::ListConversationsResponse {
            values,
            conversations: page.conversations.iter().map(to_proto::summary).collect(),
            next_page_token: scope.seal(&to_proto::page_token(page.next)),
        })
    }

    /// Lists the conversations of a shard in the order of their places.
    pub(super) async fn list_part(
        &self,
        call: &Call,
        request: &pb::ListConversationsRequest,
    ) -> Result<pb::ListPartResponse, Status> {
        let (scope, mut page) = self.page(call, request).await?;
        let order = from_proto::list_order(request.order)?;
        let place = |summary: &ConversationSummary| ListPlace {
            happened_to: match order {
                ListOrder::Recorded => TimestampMicros::default(),
                ListOrder::Happened => summary.happened_to,
            },
            first_offset: summary.first_position.offset,
        };
        page.conversations
            .sort_by_key(|summary| place(summary).order());
        if !request.ascending {
            page.conversations.reverse();
        }
        let conversations = page.conversations.iter();
        let tokens = conversations.map(|summary| {
            let before = place(summary).before(request.ascending);
            scope.seal(&to_proto::page_token(Some(before)))
        });
        Ok(pb::ListPartResponse {
            tokens: tokens.collect(),
            listed: Some(self.listed(call, request, &scope, page).await?),
        })
    }

    /// Returns the active-context values of conversations, as far as they fit into an answer.
    async fn values_of(
        &self,
        call: &Call,
        summaries: &[ConversationSummary],
    ) -> Result<Vec<pb::BranchValues>, Status> {
        let engine = &self.0.engine;
        call.caller
            .reads(summaries.iter().map(|summary| summary.id));
        let mut room = LOOKUP_BYTES_MAX;
        let mut all = Vec::with_capacity(summaries.len());
        for summary in summaries {
            if summary.damage.is_some() {
                all.push(pb::BranchValues::default());
                continue;
            }
            let address = BranchAddress::active(call.namespace.clone(), summary.id);
            let view = engine.conversation(&address, None).await.or_status()?;
            let values = engine.branch_values(&call.namespace, &view.branch, room);
            let values = to_proto::branch_values(values.await.or_status()?);
            room = room.saturating_sub(values.encoded_len());
            all.push(values);
        }
        Ok(all)
    }
}

/// Checks that fields of a new conversation are unset when a branch is forked.
fn check_of_new_conversation(is_new: bool, fields: [(&str, bool); 5]) -> Result<(), InvalidField> {
    let set = fields.iter().find(|(_, is_unset)| !is_unset);
    match set {
        Some((field, _)) if !is_new => {
            let message = "applies only to a new conversation: set into_conversation, too";
            Err(InvalidField::new(*field, message))
        }
        _ => Ok(()),
    }
}

#[tonic::async_trait]
impl Conversations for ConversationsService {
    type EraseStream = BoxStream<'static, Result<pb::EraseResponse, Status>>;

    async fn get(
        &self,
        request: Request<pb::GetConversationRequest>,
    ) -> Result<Response<pb::ConversationState>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        let as_of = from_proto::revision(request.as_of_revision);
        let address = self
            .0
            .address(&call, &request.conversation_id, &request.branch)
            .await?;
        let engine = &self.0.engine;
        let view = engine.conversation(&address, as_of).await.or_status()?;
        let meta = engine
            .source_meta(&call.namespace, address.conversation)
            .await
            .or_status()?;
        let mut state = to_proto::conversation(&view, meta.as_bytes().clone());
        if request.with_values {
            let values = engine.branch_values(&call.namespace, &view.branch, LOOKUP_BYTES_MAX);
            state.values = Some(to_proto::branch_values(values.await.or_status()?));
        }
        Ok(Response::new(state))
    }

    async fn list(
        &self,
        request: Request<pb::ListConversationsRequest>,
    ) -> Result<Response<pb::ListConversationsResponse>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        let (scope, page) = self.page(&call, &request).await?;
        let listed = self.listed(&call, &request, &scope, page).await?;
        Ok(Response::new(listed))
    }

    async fn list_branches(
        &self,
        request: Request<pb::ListBranchesRequest>,
    ) -> Result<Response<pb::ListBranchesResponse>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        let engine = &self.0.engine;
        let id = self.resolve(&call, &request.conversation_id).await?;
        let asked = pb::ListBranchesRequest {
            conversation_id: id.to_string(),
            ..Default::default()
        };
        let scope = Scope::of(engine, &call.namespace, &asked);
        let after = match scope.open(&request.page_token)? {
            "" => None,
            place => u64::from_str_radix(place, 16).ok().map(BranchId),
        };
        let max = engine.limits().page_events_max;
        let limit = from_proto::page(request.page_size, PAGE_DEFAULT, max);
        let page = engine
            .branches(&call.namespace, id, after, limit)
            .await
            .or_status()?;
        let last = page.branches.last().filter(|_| page.more);
        let next = last.map(|branch| format!("{:x}", branch.id.0));
        let branches = page.branches.iter();
        Ok(Response::new(pb::ListBranchesResponse {
            branches: branches
                .map(|branch| to_proto::branch(branch, page.active))
                .collect(),
            next_page_token: scope.seal(&next.unwrap_or_default()),
        }))
    }

    async fn find(
        &self,
        request: Request<pb::FindConversationsRequest>,
    ) -> Result<Response<pb::FindConversationsResponse>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        from_proto::required("id_part", &request.id_part)?;
        let engine = &self.0.engine;
        let max = engine.limits().page_events_max;
        let limit = from_proto::page(request.limit, PAGE_DEFAULT, max);
        let found = engine
            .find_by_part(&call.namespace, &request.id_part, limit)
            .await
            .or_status()?;
        Ok(Response::new(pb::FindConversationsResponse {
            conversations: found.conversations.iter().map(to_proto::summary).collect(),
            more: found.more,
        }))
    }

    async fn fork(
        &self,
        request: Request<pb::ForkRequest>,
    ) -> Result<Response<pb::ForkResponse>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        let idempotency_key = from_proto::idempotency_key(request.idempotency_key)?;
        let into = match request.into_conversation.as_str() {
            "" => None,
            NEW => {
                let key = idempotency_key.as_deref();
                Some(new_conversation(&self.0.engine, &call.namespace, key).await?)
            }
            id => {
                let field = "into_conversation";
                let id = id.parse().map_err(|_| {
                    let message =
                        "must be a UUID, \"new\", or empty for a branch of this conversation";
                    InvalidField::new(field, message)
                })?;
                Some(chosen(field, id)?)
            }
        };
        if into.is_none() {
            BranchName::new(&request.name).map_err(|e| from_proto::bad_name("name", &e))?;
        }
        from_proto::check_short("actor", &request.actor)?;
        check_of_new_conversation(
            into.is_some(),
            [
                ("keep_labels", !request.keep_labels),
                ("keep_source", !request.keep_source),
                ("labels", request.labels.is_empty()),
                ("source", request.source.is_empty()),
                ("source_id", request.source_id.is_empty()),
            ],
        )?;
        let address = self
            .0
            .address(&call, &request.conversation_id, &request.branch)
            .await?;
        let options = ForkOptions {
            expected_head: from_proto::revision(request.expected_head),
            keep_labels: request.keep_labels,
            keep_source: request.keep_source,
            labels: request.labels.into_iter().collect(),
            source: request.source,
            source_id: request.source_id,
        };
        let command = ForkCommand {
            address,
            at: from_proto::revision(request.at_revision),
            name: request.name,
            system_prompt: request.system_prompt,
            into,
            activate: request.activate,
            idempotency_key,
            actor: call.caller.actor(request.actor),
        };
        let forked = self
            .0
            .engine
            .fork_with(command, options)
            .await
            .or_status()?;
        let is_active = request.activate || into.is_some();
        let active = if is_active {
            forked.branch.id
        } else {
            // The new branch is not active, so this passes the id of another branch.
            BranchId::MAIN
        };
        Ok(Response::new(to_proto::fork_response(&forked, active)))
    }

    async fn rewind(
        &self,
        request: Request<pb::RewindRequest>,
    ) -> Result<Response<pb::RewindResponse>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        from_proto::check_short("actor", &request.actor)?;
        let engine = &self.0.engine;
        let max = engine.limits().page_events_max;
        let command = RewindCommand {
            address: self
                .0
                .address(&call, &request.conversation_id, &request.branch)
                .await?,
            to: from_proto::revision(request.to_revision),
            expected_head: from_proto::revision(request.expected_head),
            keep_as: from_proto::branch("keep_as", &request.keep_as)?,
            idempotency_key: from_proto::idempotency_key(request.idempotency_key)?,
            actor: call.caller.actor(request.actor),
            limit: from_proto::page(request.limit, max, max),
            headers_only: request.headers_only,
        };
        // The answer contains the removed events.
        call.caller.reads([command.address.conversation]);
        let rewound = engine.rewind(command).await.or_status()?;
        let answer = to_proto::rewound(&rewound, request.headers_only, DIFF_BYTES_MAX);
        Ok(Response::new(answer))
    }

    async fn rename_branch(
        &self,
        request: Request<pb::RenameBranchRequest>,
    ) -> Result<Response<pb::AppendResponse>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        let name = BranchName::new(&request.name).map_err(|e| from_proto::bad_name("name", &e))?;
        let change = BranchChange {
            conversation_id: request.conversation_id,
            branch: request.branch,
            idempotency_key: request.idempotency_key,
            actor: request.actor,
            body: EventBody::BranchRenamed(name),
        };
        self.change_branch(&call, change).await
    }

    async fn archive_branch(
        &self,
        request: Request<pb::ArchiveBranchRequest>,
    ) -> Result<Response<pb::AppendResponse>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        let change = BranchChange {
            conversation_id: request.conversation_id,
            branch: request.branch,
            idempotency_key: request.idempotency_key,
            actor: request.actor,
            body: EventBody::BranchArchived {
                reason: request.reason,
            },
        };
        self.change_branch(&call, change).await
    }

    async fn activate_branch(
        &self,
        request: Request<pb::ActivateBranchRequest>,
    ) -> Result<Response<pb::AppendResponse>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        let change = BranchChange {
            conversation_id: request.conversation_id,
            branch: request.branch,
            idempotency_key: request.idempotency_key,
            actor: request.actor,
            body: EventBody::BranchActivated,
        };
        self.change_branch(&call, change).await
    }

    async fn lineage(
        &self,
        request: Request<pb::LineageRequest>,
    ) -> Result<Response<pb::LineageResponse>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        let address = self
            .0
            .address(&call, &request.conversation_id, &request.branch)
            .await?;
        let engine = &self.0.engine;
        let lineage = engine.lineage(&address).await.or_status()?;
        Ok(Response::new(to_proto::lineage(&lineage)))
    }

    async fn diff(
        &self,
        request: Request<pb::DiffRequest>,
    ) -> Result<Response<pb::DiffResponse>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        let left = from_proto::branch("left_branch", &request.left_branch)?;
        let right = from_proto::branch("right_branch", &request.right_branch)?;
        let id = self.resolve(&call, &request.conversation_id).await?;
        let engine = &self.0.engine;
        let max = engine.limits().page_events_max;
        let limit = from_proto::page(request.limit, max, max);
        let headers = request.headers_only;
        let diff = engine
            .diff(
                &call.namespace,
                id,
                left.as_ref(),
                right.as_ref(),
                limit,
                headers,
            )
            .await
            .or_status()?;
        let answer = to_proto::diff(&diff, headers, DIFF_BYTES_MAX);
        Ok(Response::new(answer))
    }

    async fn seal(
        &self,
        request: Request<pb::SealRequest>,
    ) -> Result<Response<pb::AppendResponse>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        from_proto::check_short("actor", &request.actor)?;
        let idempotency_key = from_proto::idempotency_key(request.idempotency_key)?;
        let id = self.resolve(&call, &request.conversation_id).await?;
        let body = EventBody::ConversationSealed {
            reason: request.reason,
            summary: request.summary,
        };
        let event = NewEvent {
            actor: call.caller.actor(request.actor),
            ..NewEvent::new(id, body)
        };
        let command = AppendCommand {
            idempotency_key,
            ..AppendCommand::new(call.namespace, vec![event])
        };
        let outcome = self.0.engine.append(command).await.or_status()?;
        Ok(Response::new(to_proto::append_response(&outcome)))
    }

    async fn erase(
        &self,
        request: Request<pb::EraseRequest>,
    ) -> Result<Response<Self::EraseStream>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        from_proto::check_short("actor", &request.actor)?;
        from_proto::check_short("reason", &request.reason)?;
        let command = EraseCommand {
            namespace: call.namespace.clone(),
            target: self.erase_target(&call, request.target).await?,
            keep_derived: request.keep_derived,
            dry_run: request.dry_run,
            reason: request.reason,
            actor: call.caller.actor(request.actor),
        };
        if !command.dry_run {
            self.0
                .audit
                .erases(&call.caller, &command.target)
                .await
                .or_status()?;
        }
        let items = self.0.engine.erase(command);
        let items = items.map(|item| Ok(to_proto::erase_response(item.or_status()?)));
        let bound = call.bound(items, self.0.stop.clone(), Phase::Cut);
        Ok(Response::new(bound))
    }
}
