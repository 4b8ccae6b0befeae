//! Connections: how many, how long, and how they end.
//!
//! A connection may be slow, silent, or no HTTP/2 at all: none of them stays
//! longer than its bound, and when there are too many, the one that has been
//! idle longest goes for the next. What is said on a connection is not known
//! here.

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
    time::{Instant, timeout},
};
use tonic::{Status, body::Body, service::Routes};
use tower::Service;
use tracing::{Instrument, Span};

use super::{
    NAMESPACE_KEY, ServeOptions, bounds,
    deadline::Deadline,
    guard::{Caller, Guard},
    intake::ConnectionIntake,
    measures::{CallWatch, ServerMeasures},
    shutdown::{Phase, StopSignal},
    web::{WebService, is_for_pages},
};
use crate::access::ClientCertificate;
use activity::{Activity, Answer};
use turn::{Turn, TurnIo};

pub(super) use accept::{Acceptor, connections_max};

/// The calls of one connection.
pub(super) struct Calls {
    routes: Deadline<Routes>,
    guard: Guard,
    intake: ConnectionIntake,
    activity: Arc<Activity>,
    measures: Option<Arc<ServerMeasures>>,
    /// What the client has shown; none: nothing was asked for.
    certificate: Option<ClientCertificate>,
    /// What answers requests that are no calls; none: they are refused.
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
        let (request, held) = self.intake.admit(request, counted);
        // Routes are always ready, and cheap to clone.
        let traced = watch.as_ref().map_or_else(Span::none, CallWatch::span);
        let answer = span.in_scope(|| traced.in_scope(|| self.routes.clone().call(request)));
        async move {
            let answer = answer.await?;
            if let Some(watch) = &mut watch {
                watch.answered(answer.headers(), held.received());
            }
            drop(held);
            Ok(answer.map(|body| Answer::new(body, running, watch)))
        }
        .instrument(traced)
        .instrument(span)
        .boxed()
    }
}

/// The bounds of every connection. HTTP/1 is spoken by browsers and agents only: without what
/// answers them it is not known.
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
        // It panics under a clock before 1970 or far ahead, and no client asks for it.
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
struct Patience {
    idle_max: Option<Duration>,
    age_max: Option<Duration>,
}

/// Serves a connection to its end.
async fn serve<IO>(io: IO, calls: Calls, mut http: auto::Builder<TokioExecutor>, life: Life)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let turn = Arc::new(Turn::default());
    let mut io = TurnIo::new(io, Arc::clone(&turn));
    // By HTTP/2 both sides begin at once, and a client may wait for the server's settings before
    // it says anything. Browsers, whose protocol is to be seen first, are not those who wait.
    let open = http.is_http1_available() && http.is_http2_available();
    if open && timeout(bounds::FIRST_BYTE_WAIT, io.begins()).await.is_err() {
        http = http.http2_only();
    }
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
                        tracing::debug!(%error, "a connection broke");
                    }
                    return;
                }
                () = life.told_to_end(), if !ending => Look::End,
                () = sleep_until(look) => life.look(&turn),
            }
        };
        match event {
            Look::Stay => {}
            Look::End if ending => {}
            Look::End => {
                ending = true;
                life.ends();
                connection.as_mut().graceful_shutdown();
            }
            Look::Drop => return,
        }
    }
}

async fn sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// What comes of looking at a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Stay,
    /// It takes no new calls, and ends when those it has are answered.
    End,
    /// It goes now.
    Drop,
}

/// When a connection ends.
struct Life {
    activity: Arc<Activity>,
    patience: Patience,
    stop: StopSignal,
    end_since: std::sync::OnceLock<Instant>,
}

impl Life {
    fn new(activity: Arc<Activity>, patience: Patience, stop: StopSignal) -> Self {
        Self {
            activity,
            patience,
            stop,
            end_since: std::sync::OnceLock::new(),
        }
    }

    /// Waits until the server ends, or this connection is asked to.
    async fn told_to_end(&self) {
        tokio::select! {
            () = self.stop.reached(Phase::Draining) => {}
            () = self.activity.asked_to_end.notified() => {}
        }
    }

    fn ends(&self) {
        self.end_since.get_or_init(Instant::now);
        self.activity.end();
    }

    /// When something may have to be done.
    fn next_look(&self, turn: &Turn, ending: bool) -> Option<Instant> {
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
        let silent = turn.bytes_read() < bounds::HANDSHAKE_BYTES;
        let handshake = silent.then(|| accepted + bounds::HANDSHAKE_WAIT);
        let idle_max = self.patience.idle_max;
        let idle_since = self.activity.idle().map_or(now, |idle| idle.since);
        let idle = idle_max.map(|max| idle_since + max);
        let age = self.patience.age_max.map(|max| accepted + max);
        [handshake, idle, age].into_iter().flatten().min()
    }

    fn look(&self, turn: &Turn) -> Look {
        let now = Instant::now();
        let silent = turn.bytes_read() < bounds::HANDSHAKE_BYTES;
        let idle = self.activity.idle();
        if let Some(since) = self.end_since.get() {
            // Who has no call gets a moment to see that it ends; who never had one
            // has nothing to lose.
            let gone = idle.is_some_and(|idle| {
                !idle.ever_called || now - idle.since.max(*since) >= bounds::GOODBYE_WAIT
            });
            let aged =
                self.patience.age_max.is_some() && now - *since >= bounds::CONNECTION_AGE_GRACE;
            return if gone || silent || aged {
                Look::Drop
            } else {
                Look::Stay
            };
        }
        let accepted = self.activity.accepted;
        if silent && now - accepted >= bounds::HANDSHAKE_WAIT {
            return Look::Drop;
        }
        let over =
            |since: Instant, max: Option<Duration>| max.is_some_and(|max| now - since >= max);
        let too_idle = idle.is_some_and(|idle| over(idle.since, self.patience.idle_max));
        if too_idle || over(accepted, self.patience.age_max) {
            return Look::End;
        }
        Look::Stay
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::shutdown::Stopper;

    const IDLE: Duration = Duration::from_secs(60);
    const AGE: Duration = Duration::from_secs(3_600);
    const MOMENT: Duration = Duration::from_millis(1);

    fn life() -> (Life, Stopper) {
        let (stopper, stop) = Stopper::new();
        let patience = Patience {
            idle_max: Some(IDLE),
            age_max: Some(AGE),
        };
        (Life::new(Activity::new(), patience, stop), stopper)
    }

    /// Waits for the next look and looks; how long that was, and what came of it.
    async fn next(life: &Life, turn: &Turn, ending: bool) -> (Duration, Look) {
        let start = Instant::now();
        sleep_until(life.next_look(turn, ending)).await;
        (start.elapsed().min(AGE), life.look(turn))
    }

    // Who says nothing, or too little to be a client, must not keep a place.
    #[tokio::test(start_paused = true)]
    async fn silence_ends_with_the_handshake() {
        let (life, _stopper) = life();
        let turn = Turn::having_read(bounds::HANDSHAKE_BYTES - 1);
        let (waited, look) = next(&life, &turn, false).await;
        assert!(waited < bounds::HANDSHAKE_WAIT + 2 * MOMENT, "{waited:?}");
        assert_eq!(look, Look::Drop);
    }

    // An idle client must be asked to go, and one whose call takes hours must not:
    // a person's decision may be waited for all day.
    #[tokio::test(start_paused = true)]
    async fn only_the_idle_are_asked_to_go() {
        let (life, _stopper) = life();
        let turn = Turn::having_read(1_000);
        let call = life.activity.call();
        for _ in 0..3 {
            assert_eq!(next(&life, &turn, false).await.1, Look::Stay);
        }
        drop(call);
        assert_eq!(life.look(&turn), Look::Stay, "it has just had a call");
        let (waited, look) = next(&life, &turn, false).await;
        assert!(waited >= IDLE);
        assert_eq!(look, Look::End);
    }

    // After it was told, a connection without calls goes soon, and one with calls
    // when they have ended, or at the end of its age's grace.
    #[tokio::test(start_paused = true)]
    async fn those_that_end_do_end() {
        let (life, _stopper) = life();
        let turn = Turn::having_read(1_000);
        let call = life.activity.call();
        while next(&life, &turn, false).await.1 == Look::Stay {}
        assert!(life.activity.accepted.elapsed() >= AGE);
        life.ends();
        assert_eq!(next(&life, &turn, true).await.1, Look::Stay);
        drop(call);
        assert_eq!(next(&life, &turn, true).await.1, Look::Stay, "a moment");
        tokio::time::advance(bounds::GOODBYE_WAIT).await;
        assert_eq!(life.look(&turn), Look::Drop);

        let _call = life.activity.call();
        assert_eq!(life.look(&turn), Look::Stay);
        tokio::time::advance(bounds::CONNECTION_AGE_GRACE).await;
        assert_eq!(life.look(&turn), Look::Drop);
    }

    // The end of the server, and being asked to make room, both reach a
    // connection that does nothing.
    #[tokio::test]
    async fn a_connection_is_told_to_end() {
        let (life, stopper) = life();
        life.activity.end();
        life.told_to_end().await;
        stopper.advance(Phase::Draining);
        life.told_to_end().await;
        life.ends();
        let turn = Turn::having_read(1_000);
        assert_eq!(life.look(&turn), Look::Drop, "it never made a call");
    }
}
