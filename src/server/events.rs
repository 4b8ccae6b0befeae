//! The Events service: append, read, subscribe.

use futures::{StreamExt, stream::BoxStream};
use tonic::{Request, Response, Status, Streaming};

use super::status::OrStatus;
use super::{
    append_request, append_stream,
    bounds::LOOKUP_BYTES_MAX,
    call::{Call, ServiceContext},
    from_proto, lookup, read,
    shutdown::Phase,
    status::Refusal,
    subscription, to_proto,
};
use treering_domain::BranchName;
use treering_engine::{EventName, EventSource, GetQuery, ReadQuery, SubscribeQuery};
use treering_proto::pb::{self, events_server::Events};

/// A thin layer over the engine.
pub(super) struct EventsService(pub(crate) ServiceContext);

impl EventsService {
    async fn branch_source(
        &self,
        call: &Call,
        source: &pb::BranchSource,
    ) -> Result<EventSource, Refusal> {
        let id = &source.conversation_id;
        let branch: Option<BranchName> =
            from_proto::branch("source.branch.branch", &source.branch)?;
        let field = "source.branch.conversation_id";
        let conversation = self.0.conversation(call, field, id).await?;
        Ok(EventSource::Branch {
            conversation,
            branch,
        })
    }

    async fn conversation_source(
        &self,
        call: &Call,
        source: &pb::ConversationSource,
    ) -> Result<EventSource, Refusal> {
        let field = "source.conversation.conversation_id";
        let id = &source.conversation_id;
        Ok(EventSource::Conversation(
            self.0.conversation(call, field, id).await?,
        ))
    }

    async fn read_source(
        &self,
        call: &Call,
        request: &pb::ReadRequest,
    ) -> Result<EventSource, Refusal> {
        use pb::read_request::Source as Asked;
        match &request.source {
            Some(Asked::Branch(source)) => self.branch_source(call, source).await,
            Some(Asked::Conversation(source)) => self.conversation_source(call, source).await,
            Some(Asked::Log(pb::LogSource {})) => Ok(EventSource::Log),
            None => Err(from_proto::no_source().into()),
        }
    }

    async fn note_read(
        &self,
        call: &Call,
        source: &EventSource,
        request: &pb::ReadRequest,
    ) -> Result<(), Refusal> {
        let audit = &self.0.audit;
        match source {
            EventSource::Log => audit.reads_all(&call.caller).await?,
            EventSource::Conversation(id)
            | EventSource::Branch {
                conversation: id, ..
            } if request.exports => audit.exports(&call.caller, *id).await?,
            EventSource::Conversation(_) | EventSource::Branch { .. } => {}
        }
        Ok(())
    }

    async fn followed_source(
        &self,
        call: &Call,
        request: &pb::SubscribeRequest,
    ) -> Result<EventSource, Refusal> {
        use pb::subscribe_request::Source as Asked;
        match &request.source {
            Some(Asked::Branch(source)) => self.branch_source(call, source).await,
            Some(Asked::Conversation(source)) => self.conversation_source(call, source).await,
            Some(Asked::Log(pb::LogSource {})) => Ok(EventSource::Log),
            None => Err(from_proto::no_source().into()),
        }
    }
}

#[tonic::async_trait]
impl Events for EventsService {
    type AppendStreamStream = BoxStream<'static, Result<pb::AppendStreamResponse, Status>>;
    type ReadStream = BoxStream<'static, Result<pb::ReadResponse, Status>>;
    type SubscribeStream = BoxStream<'static, Result<pb::SubscribeResponse, Status>>;

    async fn append(
        &self,
        request: Request<pb::AppendRequest>,
    ) -> Result<Response<pb::AppendResponse>, Status> {
        let call = Call::of(&request)?;
        let engine = &self.0.engine;
        let request = request.into_inner();
        let command = append_request::command(engine, &call.caller, request).await?;
        let notes = self
            .0
            .audit
            .of_decisions(&call.caller, &command)
            .await
            .or_status()?;
        let outcome = engine
            .submit_with(command, notes)
            .await
            .or_status()?
            .await
            .or_status()?;
        Ok(Response::new(to_proto::append_response(&outcome)))
    }

    async fn append_stream(
        &self,
        request: Request<Streaming<pb::AppendRequest>>,
    ) -> Result<Response<Self::AppendStreamStream>, Status> {
        let call = Call::of(&request)?;
        let answers =
            append_stream::answers(self.0.clone(), call.caller.clone(), request.into_inner());
        let bound = call.bound(answers, self.0.stop.clone(), Phase::Cut);
        Ok(Response::new(bound))
    }

    async fn read(
        &self,
        request: Request<pb::ReadRequest>,
    ) -> Result<Response<Self::ReadStream>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        let source = self.read_source(&call, &request).await?;
        self.note_read(&call, &source, &request).await?;
        let all = ReadQuery::all(call.namespace.clone(), source);
        let query = from_proto::read_query(&request, all)?;
        let headers_only = request.headers_only;
        let caller = call.caller.clone();
        let convert = move |batch| read::converted(&caller, batch, headers_only);
        let reading = treering_base::traced!("events.read");
        let messages = read::messages(self.0.engine.read_as(query, convert))
            // The span lasts as long as the stream.
            .inspect(move |_| drop(reading.enter()));
        let bound = call.bound(messages, self.0.stop.clone(), Phase::Cut);
        Ok(Response::new(bound))
    }

    async fn latest(
        &self,
        request: Request<pb::LatestRequest>,
    ) -> Result<Response<pb::LatestResponse>, Status> {
        let call = Call::of(&request)?;
        let query = lookup::latest(&self.0, &call, request.into_inner()).await?;
        let headers_only = query.headers_only;
        let found = self.0.engine.latest(query).await.or_status()?;
        let found = found.into_iter();
        Ok(Response::new(pb::LatestResponse {
            found: found
                .map(|found| lookup::latest_event(found, headers_only))
                .collect(),
        }))
    }

    async fn get_many(
        &self,
        request: Request<pb::GetManyRequest>,
    ) -> Result<Response<pb::GetManyResponse>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        let headers_only = request.headers_only;
        let names = lookup::names(&self.0, &call, request.events).await?;
        // Events of missing conversations are reported as missing.
        let query = GetQuery {
            namespace: call.namespace,
            names: names.iter().copied().flatten().collect(),
            headers_only,
            bytes_max: LOOKUP_BYTES_MAX,
        };
        let got = self.0.engine.get_events(query).await.or_status()?;
        let events = got.iter().filter_map(|got| got.event.as_ref());
        call.caller
            .reads(events.map(|named| named.event.header.conversation));
        let mut got = got.into_iter();
        let got = |name: Option<EventName>| {
            let got = name.and_then(|_| got.next());
            got.map_or_else(pb::GotEvent::default, |got| {
                lookup::got_event(got, headers_only)
            })
        };
        Ok(Response::new(pb::GetManyResponse {
            events: names.into_iter().map(got).collect(),
        }))
    }

    async fn known_keys(
        &self,
        request: Request<pb::KnownKeysRequest>,
    ) -> Result<Response<pb::KnownKeysResponse>, Status> {
        let call = Call::of(&request)?;
        let keys = request.into_inner().idempotency_keys;
        from_proto::at_most_keys("idempotency_keys", keys.len())?;
        let known = self
            .0
            .engine
            .known_keys(&call.namespace, keys)
            .await
            .or_status()?;
        Ok(Response::new(pb::KnownKeysResponse { known }))
    }

    async fn subscribe(
        &self,
        request: Request<pb::SubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let call = Call::of(&request)?;
        let request = request.into_inner();
        let heartbeat = subscription::heartbeat(request.heartbeat_seconds);
        let source = self.followed_source(&call, &request).await?;
        let is_log = matches!(source, EventSource::Log);
        if is_log {
            let noted = self.0.audit.reads_all(&call.caller).await;
            noted.map_err(Refusal::from)?;
        }
        let query = SubscribeQuery {
            namespace: call.namespace.clone(),
            source,
            start: from_proto::start(&request)?,
            kinds: from_proto::kinds(&request.kinds)?,
        };
        let items = subscription::items(
            self.0.engine.subscribe(query),
            heartbeat,
            call.caller.clone(),
            is_log,
        );
        let bound = call.bound(items.boxed(), self.0.stop.clone(), Phase::Draining);
        Ok(Response::new(bound))
    }
}
