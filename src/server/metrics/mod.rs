//! Metrics for Prometheus, and health by HTTP, on a listener of their own.
//!
//! | path | answer |
//! |---|---|
//! | `/metrics` | all metrics, as OpenMetrics text |
//! | `/live` | 200, or 503 and why: restart the process |
//! | `/ready` | 200, or 503 and why: appends are refused, or soon will be |
//!
//! Values are counted elsewhere (`measure`, `engine::Measures`, [`ServerMeasures`]) and get their
//! names here. There is no global recorder: an exporter belongs to one store.

mod node;
pub(super) mod process;
mod text;

use std::{convert::Infallible, fmt, sync::Arc};

use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::TcpListener,
    runtime::Handle,
    sync::Semaphore,
    task::{JoinSet, spawn_blocking},
};

use super::{
    ServerMeasures, ShardDirectory,
    bounds::{
        ACCEPT_PAUSE, METRICS_CONNECTION_MAX, METRICS_CONNECTIONS_MAX, METRICS_HEAD_BYTES_MAX,
    },
};
use treering_domain::with_causes;
use treering_engine::{Engine, ReadError};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// What is measured.
#[derive(Clone)]
enum MeasuredPart {
    Store(Engine),
    /// The shards of a node.
    Shards(Arc<dyn ShardDirectory>),
}

impl MeasuredPart {
    fn live(&self) -> Result<(), String> {
        match self {
            Self::Store(engine) => engine.health().live,
            Self::Shards(directory) => node::live(&**directory),
        }
    }

    fn ready(&self) -> Result<(), String> {
        match self {
            Self::Store(engine) => engine.health().ready,
            Self::Shards(directory) => node::ready(&**directory),
        }
    }
}

/// Exports the metrics of a store, or of the shards of a node, and of the server.
#[derive(Clone)]
pub struct Exporter {
    part: MeasuredPart,
    server: Arc<ServerMeasures>,
    more: Vec<NamedMetric>,
}

/// A metric of another part of the program.
#[derive(Clone)]
pub struct NamedMetric {
    /// The name, without `_total`.
    pub name: &'static str,
    /// A sentence of description.
    pub help: &'static str,
    /// Its current value.
    pub value: NamedValue,
}

/// The kind of a metric, with a function that returns its value.
#[derive(Clone)]
pub enum NamedValue {
    /// A value that only grows.
    Counter(Arc<dyn Fn() -> u64 + Send + Sync>),
    /// A value that may fall. The function takes the offset of the last visible event, and returns
    /// `None` when the value is unknown.
    Gauge(Arc<dyn Fn(u64) -> Option<u64> + Send + Sync>),
}

impl fmt::Debug for NamedMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamedMetric")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Exporter {
    /// Returns an exporter of an engine and the server of its services.
    #[must_use]
    pub fn new(engine: Engine, server: Arc<ServerMeasures>, more: Vec<NamedMetric>) -> Self {
        Self {
            part: MeasuredPart::Store(engine),
            server,
            more,
        }
    }

    /// Returns an exporter of the shards of a node and the server of their services.
    #[must_use]
    pub fn of_node(directory: Arc<dyn ShardDirectory>, server: Arc<ServerMeasures>) -> Self {
        Self {
            part: MeasuredPart::Shards(directory),
            server,
            more: Vec::new(),
        }
    }

    /// Returns all current metrics as OpenMetrics text.
    ///
    /// # Errors
    /// [`ReadError`] when the store cannot be read.
    pub async fn text(&self) -> Result<String, ReadError> {
        let measured = match &self.part {
            MeasuredPart::Store(engine) => {
                // Measuring reads file sizes, which may block.
                let (engine, runtime) = (engine.clone(), Handle::current());
                let measured = spawn_blocking(move || runtime.block_on(engine.measures())).await;
                text::Measured::Store(Box::new(measured.map_err(ReadError::storage)??))
            }
            MeasuredPart::Shards(directory) => text::Measured::Shards(node::read(&**directory)),
        };
        let text = text::of(text::Scrape {
            live: self.part.live().is_ok(),
            ready: self.part.ready().is_ok(),
            measured,
            calls: self.server.calls(),
            connections: self.server.connections(),
            slow_calls: self.server.slow_calls(),
            process: process::read(),
            more: self.more.clone(),
        });
        // Writing to a string does not fail.
        Ok(text.unwrap_or_default())
    }

    async fn answer(&self, request: &Request<Incoming>) -> (StatusCode, &'static str, String) {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let what = "only GET and HEAD are allowed\n".to_owned();
            return (StatusCode::METHOD_NOT_ALLOWED, PLAIN, what);
        }
        match request.uri().path() {
            "/metrics" => match self.text().await {
                Ok(text) => (StatusCode::OK, OPEN_METRICS, text),
                Err(error) => {
                    let what = format!(
                        "the store's statistics cannot be read: {}\n",
                        with_causes(&error)
                    );
                    (StatusCode::INTERNAL_SERVER_ERROR, PLAIN, what)
                }
            },
            "/live" => told("live", self.part.live()),
            "/ready" => told("ready", self.part.ready()),
            _ => {
                let what = "unknown path; use /metrics, /live or /ready\n".to_owned();
                (StatusCode::NOT_FOUND, PLAIN, what)
            }
        }
    }
}

fn told(name: &str, health: Result<(), String>) -> (StatusCode, &'static str, String) {
    match health {
        Ok(()) => (StatusCode::OK, PLAIN, format!("{name}\n")),
        Err(why) => {
            let what = format!("not {name}: {why}\n");
            (StatusCode::SERVICE_UNAVAILABLE, PLAIN, what)
        }
    }
}

/// Serves until dropped. No key is required, because nothing here is secret: it shows amounts,
/// never content.
pub async fn serve(listener: TcpListener, exporter: Exporter) {
    let room = Arc::new(Semaphore::new(METRICS_CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the metrics listener cannot accept connections; retrying");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let exporter = exporter.clone();
        connections.spawn(async move {
            let served = one_connection(TokioIo::new(stream), exporter);
            // A scrape does not take longer.
            let _ended = tokio::time::timeout(METRICS_CONNECTION_MAX, served).await;
            drop(permit);
        });
    }
}

async fn one_connection(io: TokioIo<tokio::net::TcpStream>, exporter: Exporter) {
    let service = service_fn(|request: Request<Incoming>| {
        let exporter = &exporter;
        async move {
            let (status, content_type, body) = exporter.answer(&request).await;
            let mut response = Response::new(Full::new(Bytes::from(body)));
            *response.status_mut() = status;
            let content_type = header::HeaderValue::from_static(content_type);
            response
                .headers_mut()
                .insert(header::CONTENT_TYPE, content_type);
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // The date header panics under a clock before 1970 or far ahead.
        .auto_date_header(false)
        .max_buf_size(METRICS_HEAD_BYTES_MAX)
        .serve_connection(io, service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection to the metrics listener failed");
    }
}
