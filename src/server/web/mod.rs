//! Requests on the gRPC port that are not gRPC: from browsers and agents, by HTTP/1 or HTTP/2. This
//! module does not know their handler. `place` has the checks that run first.

mod place;

use std::{fmt, sync::Arc};

use futures::{FutureExt, future::BoxFuture};
use http::{
    Extensions, HeaderMap, Request, Response, Version,
    header::{AUTHORIZATION, CONTENT_TYPE},
};
use tonic::body::Body;

use super::guard::bearer;
use treering_access::{CallerProof, ClientCertificate, KeyRefusal};

pub use place::{WebPlace, WebRefusal, web_origin};

type WebHandler = dyn Fn(Request<Body>) -> BoxFuture<'static, Response<Body>> + Send + Sync;

/// The handler of requests that are not gRPC.
#[derive(Clone)]
pub struct WebService(Arc<WebHandler>);

impl fmt::Debug for WebService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebService").finish_non_exhaustive()
    }
}

impl WebService {
    /// Returns a service with this handler.
    pub fn new<F, A>(answer: F) -> Self
    where
        F: Fn(Request<Body>) -> A + Send + Sync + 'static,
        A: Future<Output = Response<Body>> + Send + 'static,
    {
        Self(Arc::new(move |request| answer(request).boxed()))
    }

    /// Answers a request.
    pub fn answer(&self, request: Request<Body>) -> BoxFuture<'static, Response<Body>> {
        (self.0)(request)
    }
}

/// Returns the credentials of a request, if there are any. As for gRPC calls, a key that is sent
/// takes precedence over the connection's certificate.
///
/// # Errors
/// [`KeyRefusal`] for an invalid header, and for a certificate without a subject.
pub fn shown_by(
    headers: &HeaderMap,
    extensions: &Extensions,
) -> Result<Option<CallerProof>, KeyRefusal> {
    if headers.contains_key(AUTHORIZATION) {
        let key = bearer(headers).ok_or(KeyRefusal::Missing)?;
        return Ok(Some(CallerProof::Key(key.to_owned())));
    }
    let certificate = extensions.get::<ClientCertificate>();
    certificate.map(CallerProof::of_certificate).transpose()
}

/// Returns true for a request that is not gRPC. gRPC is HTTP/2 with its own content type.
pub(super) fn is_for_pages<B>(request: &Request<B>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE);
    let is_call = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    !is_call || request.version() < Version::HTTP_2
}

#[cfg(test)]
mod tests {
    use super::*;

    // A call handled as a page would bypass the guard of calls, and a page handled as a call would
    // get trailers.
    #[test]
    fn grpc_calls_and_pages_are_distinguished() {
        let request = |version, kind: Option<&str>| {
            let mut request = Request::builder().version(version);
            if let Some(kind) = kind {
                request = request.header(CONTENT_TYPE, kind);
            }
            request.body(()).unwrap()
        };
        for (version, kind, expected) in [
            (Version::HTTP_2, Some("application/grpc"), false),
            (Version::HTTP_2, Some("application/grpc+proto"), false),
            (Version::HTTP_2, Some("application/grpc-web"), false),
            (Version::HTTP_2, Some("text/html"), true),
            (Version::HTTP_2, None, true),
            (Version::HTTP_11, Some("application/grpc"), true),
            (Version::HTTP_11, None, true),
        ] {
            let request = request(version, kind);
            assert_eq!(is_for_pages(&request), expected, "{version:?} {kind:?}");
        }
    }
}
