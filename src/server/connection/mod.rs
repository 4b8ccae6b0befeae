//! Connections: how many, how long, and how they end.
//!
//! A connection may be slow, silent, or not HTTP/2 at all. None stays longer than its limit. When
//! there are too many, the one that has been idle longest is closed to make room. This module does
//! not know what is sent on a connection.

mod accept;
mod activity;
mod handshake;
mod turn;

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use futures::{
    FutureExt,
    future::{self, BoxFuture},
};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::Instant,
};
use tonic::{Status, body::Body};
use tower::Service;
use tracing::{Instrument, Span};

use super::{
    NAMESPACE_KEY, ServeOptions,
    admission::ConnectionAdmission,
    bounds,
    deadline::Deadline,
    guard::{Caller, Guard},
    measures::{CallWatch, ServerMeasures},
    router::Dispatch,
    shutdown::{Phase, StopSignal},
    web::{WebService, is_for_pages},
};
use activity::{Activity, Answer};
use treering_access::ClientCertificate;
use turn::{ReadTurn, TurnIo};

pub(super) use accept::{Acceptor, connections_max};

/// The calls of one connection.
pub(super) struct Calls {
    routes: Deadline<Dispatch>,
    guard: Guard,
    intake: ConnectionAdmission,
    activity: Arc<Activity>,
    measures: Option<Arc<ServerMeasures>>,
    /// The client's certificate, or `None` when none was requested.
    certificate: Option<ClientCertificate>,
    /// Handler of requests that are not gRPC; `None`: they are refused.
    web: Option<WebService>,
}

impl hyper::service::Service<Request<Incoming>> for Calls {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Answer>, Infallible>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let running = self.activity.call();
        if let Some(web) = &self.web
            && is_for_pages(&request)
        {
            let mut request = request.map(Body::new);
            if let Some(certificate) = &self.certificate {
                request.extensions_mut().insert(certificate.clone());
            }
            let answer = web.answer(request);
            return async move { Ok(answer.await.map(|body| Answer::new(body, running, None))) }
                .boxed();
        }
        let span = {
            let namespace = request.headers().get(NAMESPACE_KEY);
            let namespace = namespace.and_then(|name| name.to_str().ok());
            tracing::debug_span!("call", path = request.uri().path(), namespace)
        };
        let measures = self.measures.as_ref();
        let mut watch =
            measures.map(|measures| measures.call(request.uri().path(), request.headers()));
        let mut request = request.map(Body::new);
        if let Err(refusal) =
            span.in_scope(|| self.guard.admit(&mut request, self.certificate.as_ref()))
        {
            let answer = Status::from(refusal).into_http();
            if let Some(watch) = &mut watch {
                watch.answered(answer.headers(), 0);
            }
            let answer = answer.map(|body| Answer::new(body, running, watch));
            return future::ready(Ok(answer)).boxed();
        }
        let caller = request.extensions().get::<Caller>();
        if let (Some(watch), Some(caller)) = (&watch, caller) {
            watch.admitted(&caller.namespace);
        }
        let counted = caller.and_then(Caller::counted);
        let (request, held) = self.intake.admit(request, counted.clone());
        // Routes are always ready, and cheap to clone.
        let traced = watch.as_ref().map_or_else(Span::none, CallWatch::span);
        let answer = span.in_scope(|| traced.in_scope(|| self.routes.clone().call(request)));
        async move {
            let answer = answer.await?;
            if let Some(watch) = &mut watch {
                watch.answered(answer.headers(), held.received());
            }
            drop(held);
            Ok(answer.map(|body| Answer::new(body, running, watch).to(counted)))
        }
        .instrument(traced)
        .instrument(span)
        .boxed()
    }
}

/// Returns the protocol limits of every connection. HTTP/1 is enabled only if there is a handler
/// for browsers and agents.
fn http_of(options: &ServeOptions) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    if options.web.is_none() {
        builder = builder.http2_only();
    }
    builder
        .http1()
        .auto_date_header(false)
        .timer(TokioTimer::new())
        .header_read_timeout(bounds::HTTP1_HEAD_WAIT)
        .max_headers(bounds::HTTP1_HEADERS_MAX)
        .max_buf_size(bounds::HTTP1_BUFFER_BYTES);
    builder
        .http2()
        // The date header panics under a clock before 1970 or far ahead, and no client needs it.
        .auto_date_header(false)
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(options.keepalive_interval))
        .keep_alive_timeout(options.keepalive_timeout)
        .max_concurrent_streams(options.calls_per_connection_max)
        .initial_stream_window_size(bounds::STREAM_WINDOW_BYTES)
        .initial_connection_window_size(bounds::CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(bounds::SEND_BUFFER_BYTES)
        .max_header_list_size(bounds::HEADER_LIST_BYTES_MAX)
        .max_pending_accept_reset_streams(bounds::CANCELLED_UNSTARTED_MAX);
    builder
}

/// How long connections last.
#[derive(Clone, Copy, Debug)]
struct ConnectionTimeouts {
    idle_max: Option<Duration>,
    age_max: Option<Duration>,
}

/// Serves a connection to its end.
async fn serve<IO>(
    io: IO,
    calls: Calls,
    http: auto::Builder<TokioExecutor>,
    mut life: ConnectionLife,
) where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let turn = Arc::new(ReadTurn::default());
    let io = TurnIo::new(io, Arc::clone(&turn));
    // If both protocols are enabled, send nothing before the client's first byte: an HTTP/2 frame
    // would break the HTTP/1 request that a browser later sends on a spare connection.
    life.is_sniffed = http.is_http1_available() && http.is_http2_available();
    let mut connection = pin!(http.serve_connection(TokioIo::new(io), calls));
    let mut ending = false;
    loop {
        let look = life.next_look(&turn, ending);
        let event = {
            let mut turns = connection.as_mut();
            let served = turn.by_turns(&mut turns);
            tokio::select! {
                biased;
                served = served => {
                    if let Err(error) = served {
                        tracing::debug!(%error, "a connection failed");
                    }
                    return;
                }
                () = life.wait_until_asked_to_end(), if !ending => LifeCheck::End,
                () = sleep_until(look) => life.look(&turn),
            }
        };
        match event {
            LifeCheck::Stay => {}
            LifeCheck::End if ending => {}
            LifeCheck::End => {
                ending = true;
                life.ends();
                connection.as_mut().graceful_shutdown();
            }
            LifeCheck::Drop => return,
        }
    }
}

async fn sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// What to do with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LifeCheck {
    Stay,
    /// Take no new calls, and end when the running ones are answered.
    End,
    /// Close it now.
    Drop,
}

/// Decides when a connection ends.
struct ConnectionLife {
    activity: Arc<Activity>,
    patience: ConnectionTimeouts,
    stop: StopSignal,
    end_since: std::sync::OnceLock<Instant>,
    /// The protocol is detected from the client's first byte.
    is_sniffed: bool,
}

impl ConnectionLife {
    fn new(activity: Arc<Activity>, patience: ConnectionTimeouts, stop: StopSignal) -> Self {
        Self {
            activity,
            patience,
            stop,
            end_since: std::sync::OnceLock::new(),
            is_sniffed: false,
        }
    }

    /// Waits until the server stops or this connection is asked to end.
    async fn wait_until_asked_to_end(&self) {
        tokio::select! {
            () = self.stop.reached(Phase::Draining) => {}
            () = self.activity.asked_to_end.notified() => {}
        }
    }

    fn ends(&self) {
        self.end_since.get_or_init(Instant::now);
        self.activity.end();
    }

    /// Returns when the client's preface or head is due, or `None` once it was received.
    fn handshake_end(&self, turn: &ReadTurn) -> Option<Instant> {
        if turn.bytes_read() >= bounds::HANDSHAKE_BYTES {
            return None;
        }
        let accepted = self.activity.accepted;
        Some(match turn.begun() {
            Some(begun) => begun + bounds::HANDSHAKE_WAIT,
            None if self.is_sniffed => accepted + bounds::FIRST_BYTE_WAIT,
            None => accepted + bounds::HANDSHAKE_WAIT,
        })
    }

    /// Returns when to check the connection next.
    fn next_look(&self, turn: &ReadTurn, ending: bool) -> Option<Instant> {
        let now = Instant::now();
        if ending {
            let idle = self.activity.idle().is_some();
            let wait = if idle {
                bounds::GOODBYE_LOOK
            } else {
                bounds::GOODBYE_WAIT
            };
            return Some(now + wait);
        }
        let accepted = self.activity.accepted;
        // Check again soon enough to see a first byte that arrives meanwhile.
        let handshake = self.handshake_end(turn);
        let handshake = handshake.map(|end| end.min(now + bounds::HANDSHAKE_WAIT));
        let idle_max = self.patience.idle_max;
        let idle_since = self.activity.idle().map_or(now, |idle| idle.since);
        let idle = idle_max.map(|max| idle_since + max);
        let age = self.patience.age_max.map(|max| accepted + max);
        [handshake, idle, age].into_iter().flatten().min()
    }

    fn look(&self, turn: &ReadTurn) -> LifeCheck {
        let now = Instant::now();
        let silent = turn.bytes_read() < bounds::HANDSHAKE_BYTES;
        let idle = self.activity.idle();
        if let Some(since) = self.end_since.get() {
            // An idle client gets a moment to see that the connection ends; one that never called
            // loses nothing.
            let gone = idle.is_some_and(|idle| {
                !idle.ever_called || now - idle.since.max(*since) >= bounds::GOODBYE_WAIT
            });
            let aged =
                self.patience.age_max.is_some() && now - *since >= bounds::CONNECTION_AGE_GRACE;
            return if gone || silent || aged {
                LifeCheck::Drop
            } else {
                LifeCheck::Stay
            };
        }
        let accepted = self.activity.accepted;
        if self.handshake_end(turn).is_some_and(|end| now >= end) {
            return LifeCheck::Drop;
        }
        let over =
            |since: Instant, max: Option<Duration>| max.is_some_and(|max| now - since >= max);
        let too_idle = idle.is_some_and(|idle| over(idle.since, self.patience.idle_max));
        if too_idle || over(accepted, self.patience.age_max) {
            return LifeCheck::End;
        }
        LifeCheck::Stay
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shutdown::Stopper;

    const IDLE: Duration = Duration::from_secs(60);
    const AGE: Duration = Duration::from_secs(3_600);
    const MOMENT: Duration = Duration::from_millis(1);

    fn life() -> (ConnectionLife, Stopper) {
        let (stopper, stop) = Stopper::new();
        let patience = ConnectionTimeouts {
            idle_max: Some(IDLE),
            age_max: Some(AGE),
        };
        (
            ConnectionLife::new(Activity::new(), patience, stop),
            stopper,
        )
    }

    /// Waits for the next check; returns how long that took, and its outcome.
    async fn next(life: &ConnectionLife, turn: &ReadTurn, ending: bool) -> (Duration, LifeCheck) {
        let start = Instant::now();
        sleep_until(life.next_look(turn, ending)).await;
        (start.elapsed().min(AGE), life.look(turn))
    }

    // A client that sends nothing, or too little, must not keep a slot.
    #[tokio::test(start_paused = true)]
    async fn silent_connection_is_dropped_after_the_handshake_wait() {
        let (life, _stopper) = life();
        let turn = ReadTurn::having_read(bounds::HANDSHAKE_BYTES - 1);
        let (waited, look) = next(&life, &turn, false).await;
        assert!(waited < bounds::HANDSHAKE_WAIT + 2 * MOMENT, "{waited:?}");
        assert_eq!(look, LifeCheck::Drop);
    }

    // Browsers open connections in advance. A silent one is kept for a while, not forever; after
    // the first byte it gets the same time as any other.
    #[tokio::test(start_paused = true)]
    async fn unused_connection_is_kept_for_a_while() {
        let (mut life, _stopper) = life();
        life.is_sniffed = true;
        let started = Instant::now();
        let turn = ReadTurn::default();
        while next(&life, &turn, false).await.1 == LifeCheck::Stay {}
        let waited = started.elapsed();
        assert!(waited >= bounds::FIRST_BYTE_WAIT, "{waited:?}");
        assert!(waited < bounds::FIRST_BYTE_WAIT + 20 * MOMENT, "{waited:?}");

        life.patience.idle_max = None;
        let begun = ReadTurn::having_read(1);
        assert_eq!(life.look(&begun), LifeCheck::Stay, "it has just begun");
        let started = Instant::now();
        while next(&life, &begun, false).await.1 == LifeCheck::Stay {}
        assert!(started.elapsed() < bounds::HANDSHAKE_WAIT + 2 * MOMENT);
    }

    // An idle client must be asked to leave, and one whose call takes hours must not: a person's
    // decision may take all day.
    #[tokio::test(start_paused = true)]
    async fn only_idle_connections_are_ended() {
        let (life, _stopper) = life();
        let turn = ReadTurn::having_read(1_000);
        let call = life.activity.call();
        for _ in 0..3 {
            assert_eq!(next(&life, &turn, false).await.1, LifeCheck::Stay);
        }
        drop(call);
        assert_eq!(life.look(&turn), LifeCheck::Stay, "it has just had a call");
        let (waited, look) = next(&life, &turn, false).await;
        assert!(waited >= IDLE);
        assert_eq!(look, LifeCheck::End);
    }

    // After a connection was asked to end, it is closed soon if idle. Otherwise it is closed when
    // its calls end, or when the grace period after its maximum age ends.
    #[tokio::test(start_paused = true)]
    async fn ending_connection_closes_in_time() {
        let (life, _stopper) = life();
        let turn = ReadTurn::having_read(1_000);
        let call = life.activity.call();
        while next(&life, &turn, false).await.1 == LifeCheck::Stay {}
        assert!(life.activity.accepted.elapsed() >= AGE);
        life.ends();
        assert_eq!(next(&life, &turn, true).await.1, LifeCheck::Stay);
        drop(call);
        assert_eq!(
            next(&life, &turn, true).await.1,
            LifeCheck::Stay,
            "a moment"
        );
        tokio::time::advance(bounds::GOODBYE_WAIT).await;
        assert_eq!(life.look(&turn), LifeCheck::Drop);

        let _call = life.activity.call();
        assert_eq!(life.look(&turn), LifeCheck::Stay);
        tokio::time::advance(bounds::CONNECTION_AGE_GRACE).await;
        assert_eq!(life.look(&turn), LifeCheck::Drop);
    }

    // A shutdown, and a request to make room, both reach an idle connection.
    #[tokio::test]
    async fn idle_connection_is_told_to_end() {
        let (life, stopper) = life();
        life.activity.end();
        life.wait_until_asked_to_end().await;
        stopper.advance(Phase::Draining);
        life.wait_until_asked_to_end().await;
        life.ends();
        let turn = ReadTurn::having_read(1_000);
        assert_eq!(life.look(&turn), LifeCheck::Drop, "it never made a call");
    }
}
