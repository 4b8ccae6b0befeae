//! Ends late calls with DEADLINE_EXCEEDED and drops their work. Streams end themselves, see
//! `Call::bound`.

use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{Request, Response};
use tonic::body::Body;
use tower::{Layer, Service};

use super::call::{deadline_exceeded, timeout_of};

/// Ends calls at their deadlines.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeadlineLayer;

impl<S> Layer<S> for DeadlineLayer {
    type Service = Deadline<S>;

    fn layer(&self, inner: S) -> Deadline<S> {
        Deadline { inner }
    }
}

/// The service of [`DeadlineLayer`].
#[derive(Clone, Debug)]
pub(super) struct Deadline<S> {
    inner: S,
}

impl<S> Service<Request<Body>> for Deadline<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let timeout = timeout_of(request.headers());
        let answer = self.inner.call(request);
        let Some(timeout) = timeout else {
            return Box::pin(answer);
        };
        let deadline = tokio::time::sleep(timeout);
        Box::pin(async move {
            tokio::select! {
                biased;
                answer = answer => answer,
                () = deadline => Ok(deadline_exceeded().into_http()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, time::Duration};

    use tonic::Status;

    use super::*;

    async fn code_of(timeout: Option<&str>, work: Duration) -> Option<tonic::Code> {
        let handler = tower::service_fn(move |_: Request<Body>| async move {
            tokio::time::sleep(work).await;
            Ok::<_, Infallible>(Response::new(Body::empty()))
        });
        let mut request = Request::new(Body::empty());
        if let Some(timeout) = timeout {
            let value = timeout.parse().unwrap();
            request.headers_mut().insert("grpc-timeout", value);
        }
        let answer = DeadlineLayer.layer(handler).call(request).await.unwrap();
        Status::from_header_map(answer.headers()).map(|status| status.code())
    }

    // A late call must end with the expected code; a call in time, or without a deadline, must
    // pass.
    #[tokio::test]
    async fn late_calls_end_with_deadline_exceeded() {
        let late = code_of(Some("20m"), Duration::from_secs(60)).await;
        assert_eq!(late, Some(tonic::Code::DeadlineExceeded));
        assert_eq!(code_of(Some("60S"), Duration::ZERO).await, None);
        let soon = Duration::from_millis(5);
        assert_eq!(code_of(None, soon).await, None);
        assert_eq!(code_of(Some("nonsense"), soon).await, None);
    }
}
