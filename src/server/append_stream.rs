//! AppendStream: requests go to the writer as they come, answers come back in
//! their order. An append that is refused answers its own request only.
//!
//! What waits is bounded in number and bytes; when the writer is full, the
//! stream stops reading, and HTTP/2 flow control slows the client down.

use std::{collections::VecDeque, time::Duration};

use futures::{FutureExt, Stream, StreamExt, future::BoxFuture};
use prost::Message;
use tonic::{Status, Streaming};

use super::{
    append_request,
    audit::{self, Decided},
    bounds::{STREAM_APPENDS_MAX, STREAM_BYTES_MAX},
    call::{Shared, shutting_down},
    guard::Caller,
    shutdown::Phase,
    status::Refusal,
    to_proto,
};
use crate::{
    codec::pb::{self, append_stream_response::Outcome},
    domain::AppendOutcome,
    engine::AppendError,
};

type Answer = Result<AppendOutcome, Refusal>;

/// A request on its way, and what it weighs.
struct Waiting {
    bytes: usize,
    answer: BoxFuture<'static, Answer>,
}

/// The answers to a stream of requests.
pub(super) fn answers(
    shared: Shared,
    caller: Caller,
    requests: Streaming<pb::AppendRequest>,
) -> impl Stream<Item = Result<pb::AppendStreamResponse, Status>> + Send + 'static {
    async_stream::stream! {
        let mut pipeline = Pipeline::new(shared, caller);
        let mut requests = requests;
        let mut end = None;
        loop {
            match pipeline.step(&mut requests, end.is_none()).await {
                Step::Answer(answer) => yield Ok(response(answer)),
                Step::Request(request) => {
                    // A writer that is full takes the request once something
                    // that waits has been answered.
                    let mut request = Some(request);
                    while let Some(again) = request.take() {
                        request = pipeline.submit(again).await;
                        if request.is_some()
                            && let Some(answer) = pipeline.pop().await
                        {
                            yield Ok(response(answer));
                        }
                    }
                }
                Step::End(status) => end = Some(status),
                Step::Done => break,
            }
        }
        if let Some(Some(status)) = end {
            yield Err(status);
        }
    }
}

fn response(answer: Answer) -> pb::AppendStreamResponse {
    let outcome = match answer {
        Ok(outcome) => Outcome::Appended(to_proto::append_response(&outcome)),
        Err(refusal) => Outcome::Error(refusal.into()),
    };
    pb::AppendStreamResponse {
        outcome: Some(outcome),
    }
}

// One at a time, on its way to the next line: a box would cost more than the room.
#[allow(clippy::large_enum_variant)]
enum Step {
    /// The next answer in order.
    Answer(Answer),
    /// The next request.
    Request(pb::AppendRequest),
    /// There will be no more requests: the client has no more (none), or the
    /// stream ends with this status once all is answered.
    End(Option<Status>),
    /// All is answered.
    Done,
}

struct Pipeline {
    shared: Shared,
    caller: Caller,
    waiting: VecDeque<Waiting>,
    bytes: usize,
}

impl Pipeline {
    fn new(shared: Shared, caller: Caller) -> Self {
        Self {
            shared,
            caller,
            waiting: VecDeque::new(),
            bytes: 0,
        }
    }

    /// What happens next. Requests are read only while `open` and there is room.
    async fn step(&mut self, requests: &mut Streaming<pb::AppendRequest>, open: bool) -> Step {
        let room = self.waiting.len() < STREAM_APPENDS_MAX && self.bytes < STREAM_BYTES_MAX;
        let idle = self.waiting.is_empty();
        if idle && !open {
            return Step::Done;
        }
        let stop = self.shared.stop.clone();
        tokio::select! {
            biased;
            // Requests first: the writer decides more of them in one commit.
            () = stop.reached(Phase::Draining), if open => Step::End(Some(shutting_down())),
            next = requests.next(), if open && room => match next {
                Some(Ok(request)) => Step::Request(request),
                Some(Err(status)) => Step::End(Some(status)),
                None => Step::End(None),
            },
            answer = self.pop(), if !idle => match answer {
                Some(answer) => Step::Answer(answer),
                None => Step::Done,
            },
        }
    }

    /// The next answer in order; none when nothing waits. Safe to drop while it
    /// waits.
    async fn pop(&mut self) -> Option<Answer> {
        let first = self.waiting.front_mut()?;
        let answer = (&mut first.answer).await;
        self.bytes -= first.bytes;
        self.waiting.pop_front();
        Some(answer)
    }

    /// Hands a request to the writer. Gives it back when the writer is full.
    async fn submit(&mut self, request: pb::AppendRequest) -> Option<pb::AppendRequest> {
        let bytes = request.encoded_len();
        let engine = self.shared.engine.clone();
        // Cheap: bodies are shared, not copied.
        let kept = request.clone();
        let command = append_request::command(&engine, &self.caller, request).await;
        let answer = match command {
            Err(refusal) => std::future::ready(Err(refusal)).boxed(),
            Ok(command) => {
                let decided = audit::decisions(&command);
                match engine.submit(command).await {
                    Ok(outcome) => self.noted(decided, outcome),
                    Err(AppendError::Busy { retry_after_ms }) => {
                        if self.waiting.is_empty() {
                            tokio::time::sleep(Duration::from_millis(retry_after_ms)).await;
                        }
                        return Some(kept);
                    }
                    Err(error) => std::future::ready(Err(error.into())).boxed(),
                }
            }
        };
        self.bytes += bytes;
        self.waiting.push_back(Waiting { bytes, answer });
        None
    }

    /// The answer, once decisions among it are noted.
    fn noted(
        &self,
        decided: Vec<Decided>,
        outcome: impl Future<Output = Result<AppendOutcome, AppendError>> + Send + 'static,
    ) -> BoxFuture<'static, Answer> {
        let (audit, caller) = (self.shared.audit.clone(), self.caller.clone());
        async move {
            let outcome = outcome.await?;
            audit.decided(&caller, decided, &outcome).await;
            Ok(outcome)
        }
        .boxed()
    }
}
