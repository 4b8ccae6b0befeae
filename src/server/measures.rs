//! What the calls come to: counted for each method, and told when one was slow.
//!
//! What is counted here is the call as its client sees it, deadlines and refusals at the door
//! included. Texts, ids and namespaces are neither counted by nor told.

use std::{
    collections::HashMap,
    fmt,
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

use super::{bounds::SLOW_LOG_EVERY, served};
use crate::{
    domain::Namespace,
    measure::{Distribution, Histogram, Total},
};

/// The name of all methods that are not served.
const UNKNOWN: &str = "unknown";
const STATUS_HEADER: &str = "grpc-status";
const CODES: usize = 17;
/// The services that take telemetry.
const OTLP: &str = "/opentelemetry.";
/// These wait for people, however long that takes: they are never slow.
const WAITING: [&str; 1] = ["treering.v1.Tools/WaitForDecision"];

/// What a server's calls have come to.
#[derive(Debug)]
pub struct ServerMeasures {
    methods: HashMap<String, Arc<MethodMeasures>>,
    unknown: Arc<MethodMeasures>,
    connections: AtomicU64,
    slow: Slow,
    spans: Option<Arc<dyn CallSpans>>,
}

/// Who wants calls as spans.
pub trait CallSpans: fmt::Debug + Send + Sync {
    /// The span of a call of this method; none: it is not traced. Its fields
    /// `rpc.grpc.status_code`, `otel.status_code` and `treering.namespace` are filled in, if
    /// it has them.
    fn begin(&self, method: &str, headers: &HeaderMap) -> Span;

    /// Whether spans may say which namespace a call is for.
    fn tells_namespaces(&self) -> bool;
}

/// The calls of one method.
#[derive(Debug)]
struct MethodMeasures {
    name: String,
    /// It answers, or is asked, by more than one message.
    streams: bool,
    /// It is never told to be slow.
    waits: bool,
    begun: Total,
    ended: [Total; CODES],
    micros: Histogram,
}

/// The calls of one method, at a moment.
#[derive(Clone, Debug)]
pub struct MethodCalls {
    /// Its service and name, for example `treering.v1.Events/Append`.
    pub method: String,
    /// Those that ended, by how; only codes that came.
    pub ended: Vec<(&'static str, u64)>,
    /// Those under way.
    pub running: u64,
    /// How long they took, in microseconds: to the answer's end, and for those that are
    /// answered by a stream to its first message.
    pub micros: Distribution,
}

impl ServerMeasures {
    /// Of a server that has had no call. A call that takes longer than `slow` is told in the
    /// log; none: no call is.
    ///
    /// # Errors
    /// When the descriptors in the binary cannot be read.
    pub fn new(slow: Option<Duration>) -> Result<Self, DecodeError> {
        let mut methods = HashMap::new();
        for descriptors in served() {
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
            slow: Slow::new(slow),
            spans: None,
        })
    }

    /// With a span for each call that is wanted.
    #[must_use]
    pub fn with_spans(self, spans: Option<Arc<dyn CallSpans>>) -> Self {
        Self { spans, ..self }
    }

    /// A call begins; it ends when what is returned is dropped.
    pub(super) fn call(self: &Arc<Self>, path: &str, headers: &HeaderMap) -> CallWatch {
        let method = self.methods.get(path).unwrap_or(&self.unknown);
        method.begun.add_one();
        let span = match &self.spans {
            // A server that is its own collector would send itself spans for ever.
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

    /// A connection is there until what is returned is dropped.
    pub(super) fn connection(self: &Arc<Self>) -> ConnectionCounted {
        self.connections.fetch_add(1, Ordering::Relaxed);
        ConnectionCounted(Arc::clone(self))
    }

    /// Connections that are open.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Calls that took longer than they should.
    #[must_use]
    pub fn slow_calls(&self) -> u64 {
        self.slow.count.get()
    }

    /// The calls of every method that had any, by name.
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

/// True for what a server is to blame for, as the conventions for spans have it.
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

/// As gRPC's documents write it.
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

/// A connection that is open.
pub(super) struct ConnectionCounted(Arc<ServerMeasures>);

impl Drop for ConnectionCounted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A call under way.
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
    /// What is done within it is of this call.
    pub fn span(&self) -> Span {
        self.span.clone()
    }

    /// Its caller is let in.
    pub fn admitted(&self, namespace: &Namespace) {
        let tells = |spans: &Arc<dyn CallSpans>| spans.tells_namespaces();
        if !self.span.is_none() && self.all.spans.as_ref().is_some_and(tells) {
            self.span.record("treering.namespace", namespace.as_str());
        }
    }

    /// Its answer begins. `received_bytes` of its request have come.
    pub fn answered(&mut self, headers: &HeaderMap, received_bytes: u64) {
        self.received_bytes = received_bytes;
        self.trailers(headers);
    }

    /// Bytes of the answer go out.
    pub fn sends(&mut self, bytes: usize) {
        self.sent_bytes += bytes as u64;
        if self.method.streams && self.first_message.is_none() {
            self.first_message = Some(self.started.elapsed());
        }
    }

    /// Its answer ends, if these say how.
    pub fn trailers(&mut self, trailers: &HeaderMap) {
        if let Some(code) = trailers.get(STATUS_HEADER) {
            self.code = Some(Code::from_bytes(code.as_bytes()));
        }
    }
}

impl Drop for CallWatch {
    fn drop(&mut self) {
        let took = self.first_message.unwrap_or_else(|| self.started.elapsed());
        // Who hears no end has gone away.
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
                "a slow request"
            );
        }
    }
}

/// Which calls are slow, and how many of them are told.
#[derive(Debug)]
struct Slow {
    from: Option<Duration>,
    count: Total,
    started: Instant,
    /// Milliseconds after `started` from which on one may be told.
    tell_from: AtomicU64,
    untold: AtomicU64,
}

impl Slow {
    fn new(from: Option<Duration>) -> Self {
        Self {
            from,
            count: Total::default(),
            started: Instant::now(),
            tell_from: AtomicU64::new(0),
            untold: AtomicU64::new(0),
        }
    }

    /// Whether a call was slow that took so long; counts it then.
    fn is(&self, took: Duration) -> bool {
        let slow = self.from.is_some_and(|from| took >= from);
        if slow {
            self.count.add_one();
        }
        slow
    }

    /// Whether it is time to tell of one: how many were not told before it. When all calls
    /// are slow, the log is not to be what makes them slower.
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

    // A call that nobody counts, or that is counted as another one, sends whoever looks for the
    // trouble to the wrong place; a path that someone made up must not become a name of ours.
    #[test]
    fn each_call_is_counted_as_it_ended() {
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

    // A subscription lasts for days, and a person decides tomorrow: neither is slow, and
    // under load the log must not get a line for each call that is.
    #[test]
    fn what_lasts_is_not_slow_and_not_every_slow_call_is_told() {
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

    // A name of our own that is mistyped would tell of people's waits as slow for ever.
    #[test]
    fn those_that_wait_are_served() {
        let measures = ServerMeasures::new(None).unwrap();
        for name in WAITING {
            assert!(measures.methods[&format!("/{name}")].waits);
        }
    }
}
