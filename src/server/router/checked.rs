//! The body of an answer from a shard of this node. It ends as soon as another node may own the
//! shard.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::FutureExt;
use http::HeaderMap;
use http_body::Frame;
use tokio::time::{Instant, Sleep};
use tonic::{Status, body::Body};

use super::directory::LocalShard;
use crate::{bounds::SHARD_LOOK_EVERY, status::Refusal};

/// See the module.
pub(super) struct CheckedBody {
    inner: Body,
    shard: Arc<dyn LocalShard>,
    /// A stream without messages must end too.
    look: Pin<Box<Sleep>>,
    ended: bool,
}

impl CheckedBody {
    pub(super) fn new(inner: Body, shard: Arc<dyn LocalShard>) -> Self {
        Self {
            inner,
            shard,
            look: Box::pin(tokio::time::sleep(SHARD_LOOK_EVERY)),
            ended: false,
        }
    }

    /// Returns the trailers that end the stream, if the shard may not be served any more.
    fn end(&mut self) -> Option<Frame<Bytes>> {
        let away = self.shard.check().err()?;
        self.ended = true;
        let status = Status::from(Refusal::shard_away(&away));
        let mut trailers = HeaderMap::new();
        // The status has only headers that this crate wrote.
        let _written = status.add_header(&mut trailers);
        Some(Frame::trailers(trailers))
    }
}

impl http_body::Body for CheckedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        match Pin::new(&mut self.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let end = self.end();
                Poll::Ready(Some(Ok(end.unwrap_or(frame))))
            }
            Poll::Ready(other) => {
                self.ended = true;
                Poll::Ready(other)
            }
            Poll::Pending => {
                while self.look.poll_unpin(cx).is_ready() {
                    if let Some(end) = self.end() {
                        return Poll::Ready(Some(Ok(end)));
                    }
                    let next = Instant::now() + SHARD_LOOK_EVERY;
                    self.look.as_mut().reset(next);
                }
                Poll::Pending
            }
        }
    }
}
