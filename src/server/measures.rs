//! Counts calls by method and logs slow ones.
//!
//! A call is counted as its client sees it, including deadlines and refusals by the guard. Counters
//! and log lines contain no texts, ids or namespaces.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use http::HeaderMap;
use prost::{DecodeError, Message};
use prost_types::FileDescriptorSet;
use tonic::Code;
use tracing::Span;

use super::{ServeOptions, bounds::SLOW_LOG_EVERY, served};
use treering_base::measure::{Distribution, Histogram, Total};
use treering_domain::Namespace;
use treering_otel::CallSpans;

/// The name under which calls of unknown methods are counted.
const UNKNOWN: &str = "unknown";
const STATUS_HEADER: &str = "grpc-status";
const CODES: usize = 17;
/// The services that receive telemetry.
const OTLP: &str = "/opentelemetry.";
/// Methods that wait for people, which are never reported as slow.
const WAITING: [&str; 1] = ["treering.v1.Tools/WaitForDecision"];

/// Counters of a server's calls.
#[derive(Debug)]
pub struct ServerMeasures {
    methods: HashMap<String, Arc<MethodMeasures>>,
    unknown: Arc<MethodMeasures>,
    connections: AtomicU64,
    slow: SlowCallLog,
    spans: Option<Arc<dyn CallSpans>>,
}

/// Counters of one method.
#[derive(Debug)]
struct MethodMeasures {
    name: String,
    /// The request or the answer is a stream.
    streams: bool,
    /// It waits for people and is never reported as slow.
    waits: bool,
    begun: Total,
    ended: [Total; CODES],
    micros: Histogram,
}

/// A snapshot of one method's counters.
#[derive(Clone, Debug)]
pub struct MethodCalls {
    /// Service and method, for example `treering.v1.Events/Append`.
    pub method: String,
    /// Ended calls by status code; codes without calls are left out.
    pub ended: Vec<(&'static str, u64)>,
    /// Running calls.
    pub running: u64,
    /// Durations in microseconds: to the end of the answer, or to the first message of a streamed
    /// answer.
    pub micros: Distribution,
}

impl ServerMeasures {
    /// Returns counters at zero. A call that takes at least `slow` is logged; with `None`, no call
    /// is.
    ///
    /// # Errors
    /// When the descriptors in the binary cannot be read.
    pub fn new(slow: Option<Duration>) -> Result<Self, DecodeError> {
        let mut methods = HashMap::new();
        for descriptors in served(&ServeOptions::default()) {
            for file in FileDescriptorSet::decode(descriptors)?.file {
                for service in &file.service {
                    for method in &service.method {
                        let name =
                            format!("{}.{}/{}", file.package(), service.name(), method.name());
                        let streams = method.client_streaming() || method.server_streaming();
                        let path = format!("/{name}");
                        methods.insert(path, Arc::new(MethodMeasures::new(name, streams)));
                    }
                }
            }
        }
        Ok(Self {
            methods,
            unknown: Arc::new(MethodMeasures::new(UNKNOWN.to_owned(), false)),
            connections: AtomicU64::new(0),
            slow: SlowCallLog::new(slow),
            spans: None,
        })
    }

    /// Adds a span for each call that is traced.
    #[must_use]
    pub fn with_spans(self, spans: Option<Arc<dyn CallSpans>>) -> Self {
        Self { spans, ..self }
    }

    /// Counts a call, which ends when the returned value is dropped.
    pub(super) fn call(self: &Arc<Self>, path: &str, headers: &HeaderMap) -> CallWatch {
        let method = self.methods.get(path).unwrap_or(&self.unknown);
        method.begun.add_one();
        let span = match &self.spans {
            // A server that is its own collector would send itself spans forever.
            Some(spans) if !path.starts_with(OTLP) => spans.begin(&method.name, headers),
            _ => Span::none(),
        };
        CallWatch {
            all: Arc::clone(self),
            method: Arc::clone(method),
            started: Instant::now(),
            first_message: None,
            code: None,
            received_bytes: 0,
            sent_bytes: 0,
            span,
        }
    }

    /// Counts a connection until the returned value is dropped.
    pub(super) fn connection(self: &Arc<Self>) -> ConnectionGuard {
        self.connections.fetch_add(1, Ordering::Relaxed);
        ConnectionGuard(Arc::clone(self))
    }

    /// Returns the number of open connections.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Returns the number of slow calls.
    #[must_use]
    pub(crate) fn slow_calls(&self) -> u64 {
        self.slow.count.get()
    }

    /// Returns the calls of every method that had any, by name.
    #[must_use]
    pub fn calls(&self) -> Vec<MethodCalls> {
        let all = self.methods.values().chain([&self.unknown]);
        let mut calls: Vec<_> = all
            .filter(|method| method.begun.get() > 0)
            .map(|method| method.read())
            .collect();
        calls.sort_by(|a, b| a.method.cmp(&b.method));
        calls
    }
}

impl MethodMeasures {
    fn new(name: String, streams: bool) -> Self {
        Self {
            waits: WAITING.contains(&name.as_str()),
            name,
            streams,
            begun: Total::default(),
            ended: Default::default(),
            micros: Histogram::of_durations(),
        }
    }

    fn read(&self) -> MethodCalls {
        let counts = self.ended.iter().map(Total::get);
        let ended: Vec<_> = (0..)
            .map(code_name)
            .zip(counts)
            .filter(|(_, count)| *count > 0)
            .collect();
        let through: u64 = ended.iter().map(|(_, count)| count).sum();
        MethodCalls {
            method: self.name.clone(),
            running: self.begun.get().saturating_sub(through),
            ended,
            micros: self.micros.read(),
        }
    }
}

/// Returns true for errors of the server, as the OpenTelemetry conventions define them.
fn is_of_server(code: Code) -> bool {
    matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    )
}

/// Returns the code's name as in the gRPC documentation.
fn code_name(code: i32) -> &'static str {
    match Code::from_i32(code) {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// An open connection.
pub(super) struct ConnectionGuard(Arc<ServerMeasures>);

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A running call.
pub(super) struct CallWatch {
    all: Arc<ServerMeasures>,
    method: Arc<MethodMeasures>,
    started: Instant,
    first_message: Option<Duration>,
    code: Option<Code>,
    received_bytes: u64,
    sent_bytes: u64,
    span: Span,
}

impl CallWatch {
    /// Returns the span for work within this call.
    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    /// Records the namespace of an admitted call.
    pub(crate) fn admitted(&self, namespace: &Namespace) {
        let tells = |spans: &Arc<dyn CallSpans>| spans.tells_namespaces();
        if !self.span.is_none() && self.all.spans.as_ref().is_some_and(tells) {
            self.span.record("treering.namespace", namespace.as_str());
        }
    }

    /// Records that the answer begins, after `received_bytes` of the request.
    pub(crate) fn answered(&mut self, headers: &HeaderMap, received_bytes: u64) {
        self.received_bytes = received_bytes;
        self.trailers(headers);
    }

    /// Counts sent bytes of the answer.
    pub(crate) fn sends(&mut self, bytes: usize) {
        self.sent_bytes += bytes as u64;
        if self.method.streams && self.first_message.is_none() {
            self.first_message = Some(self.started.elapsed());
        }
    }

    /// Records the status, if the trailers have one.
    pub(crate) fn trailers(&mut self, trailers: &HeaderMap) {
        if let Some(code) = trailers.get(STATUS_HEADER) {
            self.code = Some(Code::from_bytes(code.as_bytes()));
        }
    }
}

impl Drop for CallWatch {
    fn drop(&mut self) {
        let took = self.first_message.unwrap_or_else(|| self.started.elapsed());
        // A call that ended without a status was cancelled by its client.
        let code = self.code.unwrap_or(Code::Cancelled) as i32;
        self.method.micros.note_duration(took);
        if !self.span.is_none() {
            self.span.record("rpc.grpc.status_code", code);
            if is_of_server(Code::from_i32(code)) {
                self.span.record("otel.status_code", "ERROR");
            }
        }
        let ended = usize::try_from(code).unwrap_or_default();
        self.method.ended[ended % CODES].add_one();
        if self.method.waits || !self.all.slow.is(took) {
            return;
        }
        if let Some(untold) = self.all.slow.tells() {
            tracing::warn!(
                method = self.method.name,
                duration_ms = took.as_millis(),
                code = code_name(code),
                request_bytes = self.received_bytes,
                answer_bytes = self.sent_bytes,
                untold,
                "slow request"
            );
        }
    }
}

/// Detects slow calls and limits how many are logged.
#[derive(Debug)]
struct SlowCallLog {
    from: Option<Duration>,
    count: Total,
    started: Instant,
    /// Milliseconds after `started` from which the next one may be logged.
    tell_from: AtomicU64,
    untold: AtomicU64,
}

impl SlowCallLog {
    fn new(from: Option<Duration>) -> Self {
        Self {
            from,
            count: Total::default(),
            started: Instant::now(),
            tell_from: AtomicU64::new(0),
            untold: AtomicU64::new(0),
        }
    }

    /// Returns whether a call of this duration is slow, and counts it.
    fn is(&self, took: Duration) -> bool {
        let slow = self.from.is_some_and(|from| took >= from);
        if slow {
            self.count.add_one();
        }
        slow
    }

    /// Returns how many slow calls were not logged before this one, or `None` when this one should
    /// not be logged either: the log must not slow down a busy server further.
    fn tells(&self) -> Option<u64> {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let from = self.tell_from.load(Ordering::Relaxed);
        let next = now.saturating_add(SLOW_LOG_EVERY.as_millis() as u64);
        let first = now >= from
            && self
                .tell_from
                .compare_exchange(from, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if first {
            return Some(self.untold.swap(0, Ordering::Relaxed));
        }
        self.untold.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const APPEND: &str = "/treering.v1.Events/Append";
    const SUBSCRIBE: &str = "/treering.v1.Events/Subscribe";

    fn trailers(code: Code) -> HeaderMap {
        let code = (code as i32).to_string();
        [(STATUS_HEADER.parse().unwrap(), code.parse().unwrap())]
            .into_iter()
            .collect()
    }

    // A call that is not counted, or counted as another one, misleads whoever looks for a problem.
    // An invented path must not become a method name.
    #[test]
    fn each_call_is_counted_by_its_outcome() {
        let measures = Arc::new(ServerMeasures::new(None).unwrap());
        for code in [Code::Ok, Code::Ok, Code::ResourceExhausted] {
            let mut call = measures.call(APPEND, &HeaderMap::new());
            call.answered(&HeaderMap::new(), 10);
            call.sends(20);
            call.trailers(&trailers(code));
        }
        drop(measures.call("/made/up", &HeaderMap::new()));
        let under_way = measures.call(SUBSCRIBE, &HeaderMap::new());
        let calls = measures.calls();
        let of = |name: &str| calls.iter().find(|calls| calls.method == name).unwrap();
        let appends = of("treering.v1.Events/Append");
        assert_eq!(appends.ended, [("OK", 2), ("RESOURCE_EXHAUSTED", 1)]);
        assert_eq!((appends.running, appends.micros.count()), (0, 3));
        assert_eq!(of(UNKNOWN).ended, [("CANCELLED", 1)]);
        assert_eq!(of("treering.v1.Events/Subscribe").running, 1);
        drop(under_way);
        assert_eq!(calls.len(), 3, "a method without calls has no line");
    }

    // A subscription lasts for days, and a person may decide tomorrow: neither is slow. Under load,
    // the log must not get a line for each slow call.
    #[test]
    fn waiting_calls_are_not_slow_and_slow_logs_are_limited() {
        let measures = Arc::new(ServerMeasures::new(Some(Duration::ZERO)).unwrap());
        drop(measures.call("/treering.v1.Tools/WaitForDecision", &HeaderMap::new()));
        assert_eq!(measures.slow_calls(), 0);
        for _ in 0..10 {
            drop(measures.call(APPEND, &HeaderMap::new()));
        }
        assert_eq!(measures.slow_calls(), 10);
        assert_eq!(measures.slow.untold.load(Ordering::Relaxed), 9);

        let patient = Arc::new(ServerMeasures::new(Some(Duration::from_secs(1))).unwrap());
        let mut follows = patient.call(SUBSCRIBE, &HeaderMap::new());
        follows.sends(1);
        follows.started = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
        drop(follows);
        assert_eq!(patient.slow_calls(), 0);
    }

    // A mistyped name in `WAITING` would report waits for people as slow forever.
    #[test]
    fn waiting_methods_exist() {
        let measures = ServerMeasures::new(None).unwrap();
        for name in WAITING {
            assert!(measures.methods[&format!("/{name}")].waits);
        }
    }
}
