//! The router of a cluster: takes any call at any node, and has it served by the owner of its shard.
//!
//! It stands where a server of one store has its services: after access control, admission and
//! deadlines. It finds the shard of a call (`target`), and either calls the services of that shard
//! in this process, or forwards the call to the owner in one hop (`owners`). While a shard changes
//! its owner, a call that was not executed waits and tries again.
//!
//! What is never done twice: a change whose outcome is unknown, and a stream of requests that was
//! passed on.

mod answers;
mod build;
mod call;
mod checked;
mod directory;
mod erase;
mod lanes;
mod list;
mod log;
mod lookups;
mod owners;
mod scatter;
mod search;
mod spans;
mod target;
mod upkeep;

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, Either},
    stream,
};
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Limited};
use tokio::time::Instant;
use tonic::{Code, Status, body::Body, service::Routes};
use tonic_types::StatusExt;
use tower::Service;

use self::{
    build::BUILDING,
    call::{CallHead, NOWHERE, RoutedCall, decoded, prefixed},
    checked::CheckedBody,
    owners::{ForwardFault, OWNER_KEY, OwnerChannels},
    scatter::SEARCH,
    search::names_similar,
    spans::EXPORT,
    target::{NamedCreation, Target, named, target},
};
use crate::{
    NodeShards, ServeOptions,
    audit::Audit,
    bounds,
    call::deadline_exceeded,
    shutdown::StopSignal,
    spans::{CONVERSATION_KEY, Conversations},
    status::{CONVERSATION_NOT_FOUND, Refusal},
};
use treering_domain::ShardId;
use treering_engine::ReadError;
use treering_proto::{
    pb::{self, RouteTo},
    route,
};

pub use directory::{LocalShard, OwnerNode, ShardAway, ShardDirectory, ShardRole, ShardServices};
pub(crate) use owners::ForwardedShard;

/// The method that tells whether a shard has a conversation.
const GET: &str = "/treering.v1.Conversations/Get";

/// Methods of other packages that every node answers for itself.
const OF_NODE: [&str; 2] = ["/grpc.health.v1.", "/grpc.reflection."];

/// What answers the calls of a server.
#[derive(Clone)]
pub(super) enum Dispatch {
    /// The services of one store.
    Store(Routes),
    /// The shards of a cluster.
    Shards(ShardRouter),
}

impl Dispatch {
    /// Returns the secret of a node; `None` for a server of one store.
    pub(crate) fn node_secret(&self) -> Option<String> {
        match self {
            Self::Store(_) => None,
            Self::Shards(router) => Some(router.inner.directory.secret()),
        }
    }
}

impl Service<Request<Body>> for Dispatch {
    type Response = Response<Body>;
    type Error = Infallible;
    /// The future of a single store is not boxed: that would be one allocation for each call.
    type Future = Either<
        <Routes as Service<Request<Body>>>::Future,
        BoxFuture<'static, Result<Response<Body>, Infallible>>,
    >;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // Both are always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        match self {
            Self::Store(routes) => Either::Left(routes.call(request)),
            Self::Shards(router) => {
                let router = router.clone();
                Either::Right(async move { Ok(router.answer(request).await) }.boxed())
            }
        }
    }
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub(super) struct ShardRouter {
    inner: Arc<Inner>,
}

struct Inner {
    directory: Arc<dyn ShardDirectory>,
    /// The address of this node, as answers name it.
    address: Option<HeaderValue>,
    /// Health and reflection.
    node: Routes,
    owners: OwnerChannels,
    stop: StopSignal,
    options: ServeOptions,
    next_any: AtomicUsize,
    /// Of the namespaces whose spans have their home here.
    spans: Conversations,
}

/// The outcome of one attempt to serve a call.
enum Attempt {
    Answered(Response<Body>),
    /// The call was not executed, or changes nothing.
    Again(Refusal),
    Failed(Refusal),
}

impl ShardRouter {
    /// Routes calls to shards. `node` has the services that need no shard.
    pub(crate) fn new(shards: NodeShards, node: Routes, options: ServeOptions) -> Self {
        let inner = Inner {
            address: shards.directory.address().parse().ok(),
            directory: shards.directory,
            node: node.prepare(),
            owners: OwnerChannels::new(shards.owners_tls),
            stop: shards.stop,
            options,
            next_any: AtomicUsize::new(0),
            spans: Conversations::default(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let path = request.uri().path();
        if OF_NODE.iter().any(|service| path.starts_with(service)) {
            let mut node = self.inner.node.clone();
            return node
                .call(request)
                .await
                .unwrap_or_else(|never| match never {});
        }
        if !self.inner.directory.is_ready() {
            let refusal = Refusal::not_joined();
            return Status::from(refusal).into_http();
        }
        let answer = self.routed(request).await;
        answer.unwrap_or_else(|status| status.into_http())
    }

    async fn routed(&self, request: Request<Body>) -> Result<Response<Body>, Status> {
        let path = request.uri().path().to_owned();
        let route = route::of(&path).unwrap_or(&NOWHERE);
        let forwarded = request.extensions().get::<ForwardedShard>().copied();
        let has_lanes = route.client_streams && route.to == RouteTo::Append;
        let reads_first = forwarded.is_none() && !has_lanes;
        let mut call = RoutedCall::read(request, route, reads_first).await?;
        if let Some(ForwardedShard(shard)) = forwarded {
            return self.forwarded(&mut call, shard).await;
        }
        if has_lanes {
            return Ok(self.append_stream(call));
        }
        let map = self.inner.directory.shard_map();
        let message = call.message();
        let target = target(route, &call.head.namespace, &map, &message)?;
        if path == EXPORT && self.inner.options.takes_spans {
            call.head.remove(&CONVERSATION_KEY);
            let home = self.home_of_spans(&call.head.namespace);
            return self.serve(&mut call, home).await;
        }
        let is_by_id = matches!(target, Target::Shard(_));
        let shard = match target {
            Target::Shard(shard) => shard,
            Target::Any => self.any(),
            Target::Named { name, creates } => {
                self.shard_of_named(&call.head, &name, creates.as_ref())
                    .await?
            }
            Target::All => return self.combined(&call.head, &path, &message).await,
            Target::Nowhere => return Err(Refusal::not_in_cluster(&path).into()),
        };
        if path == SEARCH && names_similar(&message) {
            // The other event may be in another shard.
            let found = self.search(&call.head, &message, Some(shard)).await?;
            return Ok(scatter::answer(&found));
        }
        if BUILDING.contains(&path.as_str()) {
            self.add_long_term(&mut call, shard).await?;
        }
        let answer = self.serve(&mut call, shard).await?;
        // A UUID can also be the id of a conversation at its source, which is in any shard.
        if is_by_id
            && is_missing(&answer)
            && call.can_be_sent()
            && let Some(name) = named(route, &message)
            && let Some(other) = self.find_named(&call.head, name, None).await?
            && other != shard
        {
            return self.serve(&mut call, other).await;
        }
        Ok(answer)
    }

    /// Answers a call that another node forwarded. It is not forwarded again: two nodes with
    /// different views would send it to and fro.
    async fn forwarded(
        &self,
        call: &mut RoutedCall,
        shard: ShardId,
    ) -> Result<Response<Body>, Status> {
        let not_owner = |away: &ShardAway| Status::from(Refusal::not_owner(shard, away));
        let local = self.inner.directory.shard(shard);
        let local = local.map_err(|away| not_owner(&away))?;
        match self.locally(call, local).await {
            Attempt::Answered(answer) => Ok(answer),
            Attempt::Again(_) => Err(not_owner(&ShardAway::Moving)),
            Attempt::Failed(refusal) => Err(refusal.into()),
        }
    }

    /// Has a call served by the owner of its shard. Waits while the shard changes its owner.
    async fn serve(&self, call: &mut RoutedCall, shard: ShardId) -> Result<Response<Body>, Status> {
        let end = Instant::now() + bounds::ROUTE_WAIT_MAX;
        let end = call.head.deadline.map_or(end, |deadline| deadline.min(end));
        let mut pause = bounds::ROUTE_PAUSE_MIN;
        loop {
            let refusal = match self.attempt(call, shard).await {
                Attempt::Answered(answer) => return Ok(answer),
                Attempt::Failed(refusal) | Attempt::Again(refusal) if call.is_late() => {
                    tracing::debug!(refusal.message, "a call had no answer within its deadline");
                    return Err(deadline_exceeded());
                }
                Attempt::Failed(refusal) => return Err(refusal.into()),
                Attempt::Again(refusal) => refusal,
            };
            if !call.can_be_sent() || Instant::now() + pause > end {
                return Err(refusal.into());
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(bounds::ROUTE_PAUSE_MAX);
        }
    }

    async fn attempt(&self, call: &mut RoutedCall, shard: ShardId) -> Attempt {
        match self.inner.directory.shard(shard) {
            Ok(local) => self.locally(call, local).await,
            Err(ShardAway::Elsewhere(owner)) => self.remotely(call, shard, &owner).await,
            Err(away @ (ShardAway::Moving | ShardAway::NoLease)) => {
                Attempt::Again(Refusal::shard_away(&away))
            }
            Err(away @ ShardAway::Unknown) => Attempt::Failed(Refusal::shard_away(&away)),
        }
    }

    async fn remotely(&self, call: &mut RoutedCall, shard: ShardId, owner: &OwnerNode) -> Attempt {
        let Some(request) = call.request() else {
            return Attempt::Failed(Refusal::shard_away(&ShardAway::Moving));
        };
        let address = &owner.address;
        match self.inner.owners.forward(owner, shard, request).await {
            Ok(answer) => Attempt::Answered(answer),
            Err(ForwardFault::NotExecuted(why)) => {
                Attempt::Again(Refusal::owner_unreachable(address, &why))
            }
            Err(ForwardFault::Unknown(why)) if call.head.may_repeat => {
                Attempt::Again(Refusal::owner_unreachable(address, &why))
            }
            Err(ForwardFault::Unknown(why)) => Attempt::Failed(Refusal::owner_lost(address, &why)),
        }
    }

    async fn locally(&self, call: &mut RoutedCall, local: Arc<dyn LocalShard>) -> Attempt {
        let mut services = match self.services(&*local) {
            Ok(services) => services,
            Err(refusal) => return Attempt::Failed(refusal),
        };
        let Some(request) = call.request() else {
            return Attempt::Failed(Refusal::shard_away(&ShardAway::Moving));
        };
        let mut answer = match self.export(call).await {
            Some(answer) => answer.unwrap_or_else(Status::into_http),
            None => {
                let answer = services.call(request).await;
                answer.unwrap_or_else(|never| match never {})
            }
        };
        if let Err(away) = local.check()
            && !is_outcome(call, &answer)
        {
            return Attempt::Again(Refusal::shard_away(&away));
        }
        if let Some(address) = &self.inner.address {
            answer.headers_mut().insert(OWNER_KEY, address.clone());
        }
        Attempt::Answered(match call.head.route.server_streams {
            true => answer.map(|body| Body::new(CheckedBody::new(body, local))),
            false => answer,
        })
    }

    /// Returns the services of a shard of this node.
    fn services(&self, shard: &dyn LocalShard) -> Result<Routes, Refusal> {
        let place = &shard.services().0;
        if let Some(services) = place.get() {
            return Ok(services.clone());
        }
        let engine = shard.engine().clone();
        let audit = Audit::new(engine.clone());
        let inner = &self.inner;
        let services = crate::routes(engine, inner.stop.clone(), audit, &inner.options);
        let services = services.map_err(Refusal::no_services)?;
        Ok(place.get_or_init(|| services.prepare()).clone())
    }

    /// Returns a shard for a call that may go to any: one of this node, which saves the hop.
    fn any(&self) -> ShardId {
        let next = self.inner.next_any.fetch_add(1, Ordering::Relaxed);
        let served = self.inner.directory.served();
        match served.is_empty() {
            false => served[next % served.len()],
            true => {
                let shards = self.inner.directory.shards().max(1) as usize;
                ShardId(u32::try_from(next % shards).unwrap_or_default())
            }
        }
    }

    /// Returns the shard of the conversation with this id at its source, or of that which the append
    /// creates; any if there is none.
    async fn shard_of_named(
        &self,
        call: &CallHead,
        name: &str,
        creates: Option<&NamedCreation>,
    ) -> Result<ShardId, Status> {
        let found = self.find_named(call, name, creates).await?;
        let created = creates.map(|creates| creates.shard);
        Ok(found.or(created).unwrap_or_else(|| self.any()))
    }

    /// Asks every shard for the conversation with this id at its source, or at that of a creation.
    async fn find_named(
        &self,
        call: &CallHead,
        name: &str,
        creates: Option<&NamedCreation>,
    ) -> Result<Option<ShardId>, Status> {
        let request = pb::GetConversationRequest {
            conversation_id: name.to_owned(),
            ..pb::GetConversationRequest::default()
        };
        let message = prefixed(&request);
        let found = self.ask_all(call, GET, &message).await;
        let found = found
            .into_iter()
            .filter_map(|(shard, answer)| match answer {
                Ok(answer) => match is_of_source(answer, creates) {
                    Ok(is_wanted) => is_wanted.then_some(Ok(shard)),
                    Err(status) => Some(Err(status)),
                },
                Err(status) if status.code() == Code::NotFound => None,
                // It has conversations of several sources. The shard of the creation tells which.
                Err(status)
                    if status.code() == Code::FailedPrecondition
                        && creates.is_some_and(|creates| creates.shard == shard) =>
                {
                    Some(Ok(shard))
                }
                Err(status) => Some(Err(status)),
            });
        match found.collect::<Result<Vec<_>, _>>()?.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(*one)),
            several => {
                let error = ReadError::AmbiguousSourceId {
                    id: name.to_owned(),
                    count: several.len(),
                };
                Err(Refusal::from(error).into())
            }
        }
    }

    /// Sends a call of a method with one answer to every shard. Returns the answers in the order of
    /// the shards.
    async fn ask_all(
        &self,
        call: &CallHead,
        path: &str,
        message: &Bytes,
    ) -> Vec<(ShardId, Result<Bytes, Status>)> {
        let shards = (0..self.inner.directory.shards()).map(ShardId);
        let messages = shards.map(|shard| (shard, message.clone()));
        self.ask(call, path, messages.collect()).await
    }

    /// Sends messages of a method with one answer to shards. Returns the answers in this order.
    async fn ask(
        &self,
        call: &CallHead,
        path: &str,
        messages: Vec<(ShardId, Bytes)>,
    ) -> Vec<(ShardId, Result<Bytes, Status>)> {
        let asked = messages.into_iter().map(|(shard, message)| {
            let mut one = call.beside(path, message);
            async move { (shard, self.unary(&mut one, shard).await) }
        });
        let asked: Vec<_> = asked.collect();
        stream::iter(asked)
            .buffered(bounds::SHARDS_ASKED_MAX)
            .collect()
            .await
    }

    /// Returns the only message of an answer, with its prefix.
    async fn unary(&self, call: &mut RoutedCall, shard: ShardId) -> Result<Bytes, Status> {
        let answer = self.serve(call, shard).await?;
        if let Some(status) = Status::from_header_map(answer.headers())
            && status.code() != Code::Ok
        {
            return Err(status);
        }
        let body = Limited::new(answer.into_body(), bounds::MESSAGE_BYTES_MAX);
        let collected = body.collect().await;
        let collected = collected.map_err(Status::from_error)?;
        if let Some(status) = collected.trailers().and_then(Status::from_header_map)
            && status.code() != Code::Ok
        {
            return Err(status);
        }
        Ok(collected.to_bytes())
    }
}

/// Returns true if a conversation has the source of a creation.
fn is_of_source(answer: Bytes, creates: Option<&NamedCreation>) -> Result<bool, Status> {
    let Some(creates) = creates else {
        return Ok(true);
    };
    let state: pb::ConversationState = decoded(answer)?;
    Ok(state.summary.is_some_and(|of| of.source == creates.source))
}

/// Returns true for the error that there is no such conversation.
fn is_missing(answer: &Response<Body>) -> bool {
    let status = Status::from_header_map(answer.headers());
    status.is_some_and(|status| {
        let info = status.get_details_error_info();
        info.is_some_and(|info| info.reason == CONVERSATION_NOT_FOUND)
    })
}

/// Returns true if an answer may be sent although the shard may have another owner now: it tells
/// the outcome of a change. Errors of a change were decided by an old state, and nothing was
/// appended.
fn is_outcome(call: &RoutedCall, answer: &Response<Body>) -> bool {
    let status = Status::from_header_map(answer.headers());
    let code = status.map_or(Code::Ok, |status| status.code());
    !call.head.may_repeat && matches!(code, Code::Ok | Code::Unknown)
}
