//! AppendStream: requests are submitted as they arrive and answered in their order. A refused
//! append affects its own request only.
//!
//! Waiting requests are limited in number and bytes. When the writer is full, the stream stops
//! reading, and HTTP/2 flow control slows down the client.

use std::{collections::VecDeque, time::Duration};

use futures::{FutureExt, Stream, StreamExt, future::BoxFuture};
use prost::Message;
use tonic::{Status, Streaming};

use super::{
    append_request,
    bounds::{STREAM_APPENDS_MAX, STREAM_BYTES_MAX},
    call::{ServiceContext, shutting_down},
    guard::Caller,
    shutdown::Phase,
    status::Refusal,
    to_proto,
};
use treering_domain::AppendOutcome;
use treering_engine::AppendError;
use treering_proto::pb::{self, append_stream_response::Outcome};

type Answer = Result<AppendOutcome, Refusal>;

/// A submitted request and its size.
struct PendingAnswer {
    bytes: usize,
    answer: BoxFuture<'static, Answer>,
}

/// Returns the answers to a stream of requests.
pub(super) fn answers(
    shared: ServiceContext,
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
                    // A full writer accepts the request after a waiting one has been answered.
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

// Only one exists at a time and is consumed at once, so a box would cost more than it saves.
#[allow(clippy::large_enum_variant)]
enum Step {
    /// The next answer in order.
    Answer(Answer),
    /// The next request.
    Request(pb::AppendRequest),
    /// No more requests follow: the client is done (`None`), or the stream ends with this status
    /// after all answers.
    End(Option<Status>),
    /// Everything is answered.
    Done,
}

struct Pipeline {
    shared: ServiceContext,
    caller: Caller,
    waiting: VecDeque<PendingAnswer>,
    bytes: usize,
}

impl Pipeline {
    fn new(shared: ServiceContext, caller: Caller) -> Self {
        Self {
            shared,
            caller,
            waiting: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Returns the next step. Requests are read only while `open` and within the limits.
    async fn step(&mut self, requests: &mut Streaming<pb::AppendRequest>, open: bool) -> Step {
        let room = self.waiting.len() < STREAM_APPENDS_MAX && self.bytes < STREAM_BYTES_MAX;
        let idle = self.waiting.is_empty();
        if idle && !open {
            return Step::Done;
        }
        let stop = self.shared.stop.clone();
        tokio::select! {
            biased;
            // Requests first, so that the writer commits more of them together.
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

    /// Returns the next answer in order, or `None` when nothing waits. Cancel safe.
    async fn pop(&mut self) -> Option<Answer> {
        let first = self.waiting.front_mut()?;
        let answer = (&mut first.answer).await;
        self.bytes -= first.bytes;
        self.waiting.pop_front();
        Some(answer)
    }

    /// Submits a request to the writer. Returns it when the writer is full.
    async fn submit(&mut self, request: pb::AppendRequest) -> Option<pb::AppendRequest> {
        let bytes = request.encoded_len();
        let engine = self.shared.engine.clone();
        // Cheap: bodies are shared, not copied.
        let kept = request.clone();
        let command = append_request::command(&engine, &self.caller, request).await;
        let answer = match command {
            Err(refusal) => std::future::ready(Err(refusal)).boxed(),
            Ok(command) => {
                let notes = self.shared.audit.of_decisions(&self.caller, &command);
                let submitted = match notes.await {
                    Ok(notes) => engine.submit_with(command, notes).await,
                    Err(error) => Err(error),
                };
                match submitted {
                    Ok(outcome) => outcome
                        .map(|outcome| outcome.map_err(Refusal::from))
                        .boxed(),
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
        self.waiting.push_back(PendingAnswer { bytes, answer });
        None
    }
}
