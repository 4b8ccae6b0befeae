//! AppendStream in a cluster. Each message may have another shard, so the router opens one stream
//! to each shard that occurs, a lane, and answers in the order of the requests.
//!
//! Requests of one shard stay in one lane and so in order. A lane that breaks answers its waiting
//! requests with its error; the next request of the shard opens a new one.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use http::Response;
use http_body::Frame;
use http_body_util::StreamBody;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tonic::{Code, Status, body::Body};
use tonic_types::StatusExt;

use super::{
    ShardRouter,
    answers::{AnswerFault, AnswerMessages, streamed},
    call::{CallHead, PREFIX_BYTES, RoutedCall, next_data},
    target::{Target, target},
};
use crate::{
    bounds::{STREAM_APPENDS_MAX, STREAM_BYTES_MAX},
    call::{deadline_exceeded, shutting_down},
    guard::Caller,
    shutdown::Phase,
    status::Refusal,
};
use treering_access::KeyRefusal;
use treering_domain::ShardId;
use treering_proto::pb::{self, append_stream_response::Outcome};

type Answer = Result<pb::AppendStreamResponse, LaneFault>;

/// Why a request has no answer.
enum LaneFault {
    /// It was not executed, or its outcome is unknown.
    Request(Status),
    /// The stream ends with this.
    Stream(Status),
}

impl From<Status> for LaneFault {
    fn from(status: Status) -> Self {
        Self::Request(status)
    }
}

/// A request in a lane, and where its answer goes.
type LaneRequest = (Bytes, oneshot::Sender<Answer>);

/// The answers that a lane owes, in order.
type Owed = Arc<Mutex<VecDeque<oneshot::Sender<Answer>>>>;

impl ShardRouter {
    /// Answers a stream of appends. The first message and the others are in `call`.
    pub(super) fn append_stream(&self, call: RoutedCall) -> Response<Body> {
        let router = self.clone();
        streamed(async_stream::stream! {
            let mut lanes = Lanes::new(router.clone(), &call.head);
            let deadline = call.head.deadline;
            let caller = call.head.caller();
            let mut requests = call.into_stream();
            let mut waiting: VecDeque<(usize, BoxFuture<'static, Answer>)> = VecDeque::new();
            let mut bytes = 0;
            let mut end = None;
            while end.is_none() || !waiting.is_empty() {
                let room = waiting.len() < STREAM_APPENDS_MAX && bytes < STREAM_BYTES_MAX;
                tokio::select! {
                    biased;
                    () = router.inner.stop.reached(Phase::Draining), if end.is_none() => {
                        end = Some(Some(shutting_down()));
                    }
                    () = passed(deadline), if end.is_none() => {
                        end = Some(Some(deadline_exceeded()));
                    }
                    refusal = invalid(caller.as_ref()), if end.is_none() => {
                        end = Some(Some(Refusal::from(refusal).into()));
                    }
                    next = next_data(&mut requests), if end.is_none() && room => match next {
                        Ok(Some(request)) => {
                            bytes += request.len();
                            waiting.push_back((request.len(), lanes.submit(request).await));
                        }
                        Ok(None) => end = Some(None),
                        Err(status) => end = Some(Some(status)),
                    },
                    answer = first(&mut waiting), if !waiting.is_empty() => {
                        let (size, answer) = answer;
                        bytes -= size;
                        match answer {
                            Ok(answer) => yield Ok(answer),
                            Err(status) => {
                                end = Some(Some(status));
                                break;
                            }
                        }
                    }
                }
            }
            if let Some(status) = end.flatten() {
                yield Err(status);
            }
        })
    }
}

async fn passed(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Waits until the caller's key is no longer valid.
async fn invalid(caller: Option<&Caller>) -> KeyRefusal {
    match caller {
        Some(caller) => caller.wait_until_invalid().await,
        None => std::future::pending().await,
    }
}

/// Waits for the answer of the first request, or the end of the stream. Cancel safe.
async fn first(
    waiting: &mut VecDeque<(usize, BoxFuture<'static, Answer>)>,
) -> (usize, Result<pb::AppendStreamResponse, Status>) {
    let Some((size, answer)) = waiting.front_mut() else {
        return std::future::pending().await;
    };
    let (size, answer) = (*size, answer.await);
    waiting.pop_front();
    let answer = match answer {
        Ok(answer) => Ok(answer),
        Err(LaneFault::Request(status)) => Ok(refused(&status)),
        Err(LaneFault::Stream(status)) => Err(status),
    };
    (size, answer)
}

/// The open lanes of a stream.
struct Lanes {
    router: ShardRouter,
    /// The head of the client's call.
    pattern: CallHead,
    open: HashMap<ShardId, mpsc::Sender<LaneRequest>>,
}

impl Lanes {
    fn new(router: ShardRouter, call: &CallHead) -> Self {
        Self {
            router,
            pattern: call.read_here(),
            open: HashMap::new(),
        }
    }

    /// Passes a request to the lane of its shard.
    async fn submit(&mut self, request: Bytes) -> BoxFuture<'static, Answer> {
        let shard = match self.shard_of(&request).await {
            Ok(shard) => shard,
            Err(status) => return std::future::ready(Err(status.into())).boxed(),
        };
        let (sender, receiver) = oneshot::channel();
        let mut item = (request, sender);
        if let Some(lane) = self.open.get(&shard) {
            match lane.try_send(item) {
                Ok(()) => return answered(receiver),
                // The lane has ended. It cannot be full: it has as much room as may wait.
                Err(
                    mpsc::error::TrySendError::Closed(back) | mpsc::error::TrySendError::Full(back),
                ) => item = back,
            }
        }
        let (lane, requests) = mpsc::channel(STREAM_APPENDS_MAX);
        // An empty channel has room.
        let _sent = lane.try_send(item);
        self.open.insert(shard, lane);
        let router = self.router.clone();
        tokio::spawn(run(router, self.pattern.read_here(), shard, requests));
        answered(receiver)
    }

    async fn shard_of(&self, request: &Bytes) -> Result<ShardId, Status> {
        let message = request.slice(PREFIX_BYTES.min(request.len())..);
        let call = &self.pattern;
        let map = self.router.inner.directory.shard_map();
        Ok(match target(call.route, &call.namespace, &map, &message)? {
            Target::Shard(shard) => shard,
            Target::Named { name, creates } => {
                let creates = creates.as_ref();
                self.router.shard_of_named(call, &name, creates).await?
            }
            _ => self.router.any(),
        })
    }
}

/// Returns the answer of a lane. A lane that is gone has not sent the request.
fn answered(receiver: oneshot::Receiver<Answer>) -> BoxFuture<'static, Answer> {
    async move {
        let lost = |_| {
            let status = Status::from(Refusal::shard_away(&super::ShardAway::Moving));
            Err(status.into())
        };
        receiver.await.unwrap_or_else(lost)
    }
    .boxed()
}

/// Runs a lane to its end.
async fn run(
    router: ShardRouter,
    head: CallHead,
    shard: ShardId,
    requests: mpsc::Receiver<LaneRequest>,
) {
    let owed = Owed::default();
    let sent = {
        let owed = Arc::clone(&owed);
        stream::unfold((requests, owed), |(mut requests, owed)| async move {
            let (request, sender) = requests.recv().await?;
            lock(&owed).push_back(sender);
            Some((Ok::<_, Status>(Frame::data(request)), (requests, owed)))
        })
    };
    let mut call = head.with_stream(Body::new(StreamBody::new(sent.boxed())));
    let ended = match router.serve(&mut call, shard).await {
        Ok(answer) => Ok(pass_on(answer, &owed).await),
        Err(status) => Err(status),
    };
    for sender in std::mem::take(&mut *lock(&owed)) {
        // The client may be gone.
        let _gone = sender.send(Err(fault(&ended)));
    }
}

/// Returns what a request gets that was in a lane when it ended: the answer of the shard had a fault,
/// or there was none.
fn fault(ended: &Result<AnswerFault, Status>) -> LaneFault {
    match ended {
        // The shard is moving, or its owner stops: this concerns the requests of one shard.
        Ok(AnswerFault::Refused(status)) if status.code() == Code::Unavailable => {
            LaneFault::Request(status.clone())
        }
        Ok(AnswerFault::Refused(status)) => LaneFault::Stream(status.clone()),
        Ok(AnswerFault::Broken(why)) => {
            let lost = Refusal::owner_lost("the owner of the shard", why);
            LaneFault::Request(lost.into())
        }
        Err(status) => LaneFault::Request(status.clone()),
    }
}

/// Passes the answers of a lane on. Returns what the requests without an answer get.
async fn pass_on(answer: Response<Body>, owed: &Owed) -> AnswerFault {
    let mut answers = AnswerMessages::of(answer);
    loop {
        let answer = match answers.next().await {
            Ok(Some(answer)) => answer,
            Ok(None) => return AnswerFault::Broken("it ended".to_owned()),
            Err(fault) => return fault,
        };
        let Some(sender) = lock(owed).pop_front() else {
            return AnswerFault::Broken("it answered twice".to_owned());
        };
        // The client may be gone.
        let _gone = sender.send(Ok(answer));
    }
}

fn lock(owed: &Owed) -> std::sync::MutexGuard<'_, VecDeque<oneshot::Sender<Answer>>> {
    owed.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the answer to a request that was refused with a status.
fn refused(status: &Status) -> pb::AppendStreamResponse {
    let info = status.get_details_error_info();
    let (reason, facts) = info
        .map(|info| (info.reason, info.metadata))
        .unwrap_or_default();
    let error = pb::AppendError {
        code: status.code().into(),
        message: status.message().to_owned(),
        reason,
        metadata: facts.into_iter().collect::<BTreeMap<_, _>>(),
    };
    pb::AppendStreamResponse {
        outcome: Some(Outcome::Error(error)),
    }
}
