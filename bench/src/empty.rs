//! RPCs without work, on the transport that the services use: the base cost of a call. One is
//! empty, the other echoes its request.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::{
    FutureExt,
    future::{BoxFuture, select},
};
use http::uri::PathAndQuery;
use tonic::{
    Request, Response, Status,
    body::Body,
    client::Grpc as Client,
    server::{Grpc, NamedService, UnaryService},
    transport::{Server, server::TcpIncoming},
};
use tonic_prost::ProstCodec;

use super::failed;
use treering_cli::{listen_any, output::Out, stdin_end, stop_signal};
use treering_client::{connect::Transport, error::ClientError};

const PATH: &str = "/treering.bench.Empty/Call";
const ECHO_PATH: &str = "/treering.bench.Empty/Echo";

/// The service.
#[derive(Clone, Copy, Debug)]
struct Empty;

impl NamedService for Empty {
    const NAME: &'static str = "treering.bench.Empty";
}

impl UnaryService<()> for Empty {
    type Response = ();
    type Future = Ready<Result<Response<()>, Status>>;

    fn call(&mut self, _request: Request<()>) -> Self::Future {
        ready(Ok(Response::new(())))
    }
}

impl UnaryService<Bytes> for Empty {
    type Response = Bytes;
    type Future = Ready<Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        ready(Ok(Response::new(request.into_inner())))
    }
}

impl tower::Service<http::Request<Body>> for Empty {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() == ECHO_PATH {
            return Box::pin(async move {
                let mut grpc = Grpc::new(ProstCodec::<Bytes, Bytes>::default());
                Ok(grpc.unary(Empty, request).await)
            });
        }
        Box::pin(async move {
            let mut grpc = Grpc::new(ProstCodec::<(), ()>::default());
            Ok(grpc.unary(Empty, request).await)
        })
    }
}

/// Serves both RPCs until a stop signal arrives or standard input closes. Prints the address, as
/// `serve` does.
///
/// # Errors
/// When it cannot listen.
pub async fn serve(out: &mut Out) -> Result<(), ClientError> {
    let listener = listen_any().await?;
    out.line(format!("Serving at http://{}", listener.local_addr()?))?;
    out.flush()?;
    Server::builder()
        .tcp_nodelay(true)
        .add_service(Empty)
        .serve_with_incoming_shutdown(
            TcpIncoming::from(listener).with_nodelay(Some(true)),
            select(Box::pin(stop_signal()), stdin_end(true)).map(|_| ()),
        )
        .await
        .map_err(|error| failed("serving the empty call", error))
}

/// Makes an empty call.
///
/// # Errors
/// Errors of the server or the transport.
pub async fn call(transport: Transport) -> Result<(), ClientError> {
    unary::<()>(transport, (), PATH).await
}

/// Sends bytes, and waits for their echo.
///
/// # Errors
/// Errors of the server or the transport.
pub async fn echo(transport: Transport, bytes: Bytes) -> Result<(), ClientError> {
    unary(transport, bytes, ECHO_PATH).await
}

async fn unary<M>(transport: Transport, message: M, path: &'static str) -> Result<(), ClientError>
where
    M: prost::Message + Default + 'static,
{
    let mut client = Client::new(transport);
    client
        .ready()
        .await
        .map_err(|error| failed("calling the empty server", error))?;
    let codec = ProstCodec::<M, M>::default();
    client
        .unary(
            Request::new(message),
            PathAndQuery::from_static(path),
            codec,
        )
        .await?;
    Ok(())
}
