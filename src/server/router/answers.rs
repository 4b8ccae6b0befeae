//! Streams of messages, from a shard and to a client.

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt};
use http::{HeaderMap, HeaderValue, Response, header::CONTENT_TYPE};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use prost::Message;
use tonic::{Code, Status, body::Body};

use super::call::{PREFIX_BYTES, decoded, prefixed};

/// The messages of an answer.
pub(super) struct AnswerMessages {
    refused: Option<Status>,
    body: Body,
    gathered: BytesMut,
}

/// Why there are no more messages.
pub(super) enum AnswerFault {
    /// The shard said so.
    Refused(Status),
    /// The stream broke.
    Broken(String),
}

impl From<AnswerFault> for Status {
    fn from(fault: AnswerFault) -> Self {
        match fault {
            AnswerFault::Refused(status) => status,
            AnswerFault::Broken(why) => Self::unavailable(format!("the stream broke: {why}")),
        }
    }
}

impl AnswerMessages {
    pub(super) fn of(answer: Response<Body>) -> Self {
        let refused = Status::from_header_map(answer.headers());
        Self {
            refused: refused.filter(|status| status.code() != Code::Ok),
            body: answer.into_body(),
            gathered: BytesMut::new(),
        }
    }

    /// Returns the next message; `None` at the end of a stream that succeeded. Not cancel safe: a
    /// future that is dropped may have read a part of a frame.
    ///
    /// # Errors
    /// [`AnswerFault`].
    pub(super) async fn next<M: Message + Default>(&mut self) -> Result<Option<M>, AnswerFault> {
        if let Some(status) = self.refused.take() {
            return Err(AnswerFault::Refused(status));
        }
        loop {
            if let Some(message) = next_message(&mut self.gathered) {
                let message = decoded(message).map_err(AnswerFault::Refused)?;
                return Ok(Some(message));
            }
            let Some(frame) = self.body.frame().await else {
                return Err(AnswerFault::Broken("it has no end".to_owned()));
            };
            match frame.map(Frame::into_data) {
                Ok(Ok(data)) => self.gathered.extend_from_slice(&data),
                Ok(Err(trailers)) => {
                    let status = trailers.trailers_ref().and_then(Status::from_header_map);
                    return match status.filter(|status| status.code() != Code::Ok) {
                        Some(status) => Err(AnswerFault::Refused(status)),
                        None => Ok(None),
                    };
                }
                Err(status) => return Err(AnswerFault::Broken(status.message().to_owned())),
            }
        }
    }
}

/// Takes the next complete message with its prefix.
fn next_message(gathered: &mut BytesMut) -> Option<Bytes> {
    let length: [u8; 4] = gathered.get(1..PREFIX_BYTES)?.try_into().ok()?;
    let whole = PREFIX_BYTES + usize::try_from(u32::from_be_bytes(length)).ok()?;
    (gathered.len() >= whole).then(|| gathered.split_to(whole).freeze())
}

/// Returns the answer of a call with these messages. The first error ends it.
pub(super) fn streamed<M: Message>(
    messages: impl Stream<Item = Result<M, Status>> + Send + 'static,
) -> Response<Body> {
    let frames = async_stream::stream! {
        let mut messages = std::pin::pin!(messages);
        let mut end = Status::ok("");
        while let Some(message) = messages.next().await {
            match message {
                Ok(message) => yield Ok::<_, Status>(Frame::data(prefixed(&message))),
                Err(status) => {
                    end = status;
                    break;
                }
            }
        }
        let mut trailers = HeaderMap::new();
        // The status has only headers that this crate wrote.
        let _written = end.add_header(&mut trailers);
        yield Ok(Frame::trailers(trailers));
    };
    let mut answer = Response::new(Body::new(StreamBody::new(frames.boxed())));
    let grpc = HeaderValue::from_static("application/grpc");
    answer.headers_mut().insert(CONTENT_TYPE, grpc);
    answer
}
