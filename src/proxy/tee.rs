//! The body of an answer on its way to the client, with a copy for the recorder.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use futures::Stream;
use http_body::{Body, Frame, SizeHint};
use treering_domain::TimestampMicros;

use super::{
    exchange::{Exchange, SentRequest},
    queue::CallQueue,
};

/// Largest answer that is recorded, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// The bytes of an answer as they come.
pub(crate) type AnswerBytes = Pin<Box<dyn Stream<Item = reqwest::Result<Bytes>> + Send>>;

/// A copy of an answer.
pub(crate) struct AnswerCopy {
    pub(crate) request: SentRequest,
    pub(crate) encoding: String,
    pub(crate) content_type: String,
    pub(crate) queue: CallQueue,
    bytes: BytesMut,
    is_too_large: bool,
}

impl AnswerCopy {
    /// Starts an empty copy of the answer to a request.
    pub(crate) fn new(
        request: SentRequest,
        encoding: String,
        content_type: String,
        queue: CallQueue,
    ) -> Self {
        Self {
            request,
            encoding,
            content_type,
            queue,
            bytes: BytesMut::new(),
            is_too_large: false,
        }
    }

    fn add(&mut self, piece: &Bytes) {
        if self.is_too_large || self.bytes.len() + piece.len() > ANSWER_BYTES_MAX {
            self.is_too_large = true;
            self.bytes = BytesMut::new();
            return;
        }
        self.bytes.extend_from_slice(piece);
    }

    fn end(self) {
        if self.is_too_large {
            let max = ANSWER_BYTES_MAX;
            return tracing::debug!(max, "a call is not recorded: its answer is too large");
        }
        self.queue.push(Exchange {
            request: self.request,
            answer: self.bytes.freeze(),
            encoding: self.encoding,
            content_type: self.content_type,
            answered_at: TimestampMicros::now(),
        });
    }
}

/// The body of an answer. However it ends, the bytes received until then are recorded: a client may
/// disconnect early.
pub(crate) struct TeeBody {
    from: AnswerBytes,
    copy: Option<Box<AnswerCopy>>,
    /// Bytes that are still to come, if that is known.
    left: Option<u64>,
}

impl TeeBody {
    /// Makes a body of these bytes, which are also added to the copy if there is one.
    pub(crate) fn new(from: AnswerBytes, copy: Option<AnswerCopy>, length: Option<u64>) -> Self {
        Self {
            from,
            copy: copy.map(Box::new),
            left: length,
        }
    }

    fn end(&mut self) {
        if let Some(copy) = self.copy.take() {
            copy.end();
        }
    }
}

impl Body for TeeBody {
    type Data = Bytes;
    type Error = reqwest::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.from.as_mut().poll_next(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(piece))) => {
                if let Some(copy) = &mut self.copy {
                    copy.add(&piece);
                }
                self.left = self
                    .left
                    .map(|left| left.saturating_sub(piece.len() as u64));
                // The body may not be polled again.
                if self.left == Some(0) {
                    self.end();
                }
                Poll::Ready(Some(Ok(Frame::data(piece))))
            }
            Poll::Ready(Some(Err(error))) => {
                self.end();
                Poll::Ready(Some(Err(error)))
            }
            Poll::Ready(None) => {
                self.end();
                Poll::Ready(None)
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.left
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for TeeBody {
    fn drop(&mut self) {
        self.end();
    }
}
