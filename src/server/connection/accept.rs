//! Accepts connections within the limit, and continues after failures.

use std::{
    future::Future,
    io,
    pin::pin,
    sync::{Arc, Weak},
};

use futures::{StreamExt, stream::BoxStream};
use http::Version;
use hyper_util::{rt::TokioExecutor, server::conn::auto};
use tokio::{task::JoinSet, time::Instant};
use tower::Layer;

use super::{
    Activity, Calls, ConnectionLife, ConnectionTimeouts, ServeOptions, bounds,
    handshake::handshake, http_of, serve,
};
use crate::{
    ConnectionIo,
    admission::AdmissionControl,
    deadline::DeadlineLayer,
    guard::Guard,
    measures::ServerMeasures,
    router::Dispatch,
    shutdown::StopSignal,
    tls::{ServerTls, agreed_version, client_certificate},
    web::WebService,
};

/// Returns the maximum number of connections that this process's limit of open files allows.
pub(crate) fn connections_max() -> usize {
    #[cfg(target_os = "linux")]
    {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let files = limit.current.and_then(|files| usize::try_from(files).ok());
        let files = files.unwrap_or(usize::MAX);
        bounds::CONNECTIONS_MAX.min(files / bounds::FILES_PER_CONNECTION_MIN)
    }
    #[cfg(not(target_os = "linux"))]
    bounds::CONNECTIONS_MAX
}

/// Limits log lines: the first one at once, then rarely and with a count.
#[derive(Default)]
struct LogLimiter {
    last: Option<Instant>,
    count: u64,
}

impl LogLimiter {
    /// Counts an occurrence. Returns how many to report now, or `None` to stay silent.
    fn count(&mut self) -> Option<u64> {
        self.count += 1;
        let now = Instant::now();
        let due = |last| now - last >= bounds::CONNECTION_LOG_EVERY;
        if !self.last.is_none_or(due) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}

/// Accepts connections and counts them.
pub(crate) struct Acceptor {
    routes: Dispatch,
    tls: Option<Arc<ServerTls>>,
    guard: Guard,
    intake: AdmissionControl,
    http: auto::Builder<TokioExecutor>,
    web: Option<WebService>,
    patience: ConnectionTimeouts,
    connections_max: usize,
    measures: Option<Arc<ServerMeasures>>,
    stop: StopSignal,
    serving: JoinSet<()>,
    known: Vec<Weak<Activity>>,
    failed: LogLimiter,
    crowded: LogLimiter,
}

impl Acceptor {
    pub(crate) fn new(
        routes: Dispatch,
        intake: AdmissionControl,
        options: &ServeOptions,
        stop: StopSignal,
    ) -> Self {
        let guard = Guard::new(options.keys.clone())
            .beside(options.is_beside)
            .of_node(routes.node_secret());
        Self {
            routes,
            tls: options.tls.clone(),
            guard,
            intake,
            http: http_of(options),
            web: options.web.clone(),
            patience: ConnectionTimeouts {
                idle_max: options.idle_max,
                age_max: options.connection_age_max,
            },
            connections_max: options.connections_max.max(1),
            measures: options.measures.clone(),
            stop,
            serving: JoinSet::new(),
            known: Vec::new(),
            failed: LogLimiter::default(),
            crowded: LogLimiter::default(),
        }
    }

    /// Accepts until `end`. Accepted connections continue. The stream is dropped, so that no client
    /// waits for a port that accepts no more connections.
    pub(crate) async fn accept(
        &mut self,
        mut incoming: BoxStream<'static, io::Result<ConnectionIo>>,
        end: impl Future<Output = ()>,
    ) {
        let mut end = pin!(end);
        let mut open = true;
        loop {
            tokio::select! {
                biased;
                () = &mut end => return,
                Some(_) = self.serving.join_next(), if !self.serving.is_empty() => {}
                next = incoming.next(), if open => match next {
                    Some(Ok(io)) => self.take(io).await,
                    Some(Err(error)) => {
                        let pause = self.pause_after(&error);
                        tokio::select! {
                            biased;
                            () = &mut end => return,
                            () = tokio::time::sleep(pause) => {}
                        }
                    }
                    None => open = false,
                },
            }
        }
    }

    /// Waits until all connections have ended.
    pub(crate) async fn ended(&mut self) {
        while self.serving.join_next().await.is_some() {}
    }

    async fn take(&mut self, io: ConnectionIo) {
        if self.serving.len() >= self.connections_max && !self.close_longest_idle().await {
            return;
        }
        if self.tls.is_some() {
            self.bound_handshakes();
        }
        let activity = Activity::new();
        if self.known.len() >= self.serving.len().max(16) * 2 {
            self.known.retain(|known| known.strong_count() > 0);
        }
        self.known.push(Arc::downgrade(&activity));
        let mut calls = Calls {
            routes: DeadlineLayer.layer(self.routes.clone()),
            guard: self.guard.clone(),
            intake: self.intake.connection(),
            activity: Arc::clone(&activity),
            measures: self.measures.clone(),
            certificate: None,
            web: self.web.clone(),
        };
        activity.shake_hands(self.tls.is_some());
        let counted = self.measures.as_ref().map(ServerMeasures::connection);
        let life = ConnectionLife::new(activity, self.patience, self.stop.clone());
        let http = self.http.clone();
        let tls = self.tls.as_ref().map(|tls| tls.acceptor());
        self.serving.spawn(async move {
            match tls {
                None => serve(io, calls, http, life).await,
                Some(tls) => {
                    if let Some(io) = handshake(&tls, io, &life).await {
                        calls.certificate = client_certificate(&io);
                        let http = match agreed_version(&io) {
                            _ if !http.is_http1_available() => http,
                            Some(Version::HTTP_2) => http.http2_only(),
                            Some(_) => http.http1_only(),
                            None => http,
                        };
                        serve(io, calls, http, life).await;
                    }
                }
            }
            drop(counted);
        });
    }

    /// Ends the oldest handshake if there are too many. Normal clients finish theirs in
    /// milliseconds.
    fn bound_handshakes(&self) {
        let known = self.known.iter().filter_map(Weak::upgrade);
        let shaking: Vec<_> = known
            .filter(|one| one.is_shaking_hands() && !one.is_ending())
            .collect();
        if shaking.len() >= bounds::HANDSHAKES_MAX
            && let Some(oldest) = shaking.iter().min_by_key(|one| one.accepted)
        {
            oldest.end();
        }
    }

    /// Asks the connection that has been idle longest to end, unless all idle ones are already
    /// ending. If too many are ending, waits for one of them. Returns false if all connections are
    /// busy, or if none of them ends in time.
    async fn close_longest_idle(&mut self) -> bool {
        if let Some(count) = self.crowded.count() {
            tracing::warn!(
                connections = self.serving.len(),
                max = self.connections_max,
                times = count,
                "too many connections: the ones that were idle longest are closed"
            );
        }
        let known = self.known.iter().filter_map(Weak::upgrade);
        let idle: Vec<_> = known
            .filter_map(|activity| Some((activity.idle()?, activity)))
            .collect();
        let staying = idle.iter().filter(|(_, one)| !one.is_ending());
        let asked = match staying.min_by_key(|(idle, _)| *idle) {
            Some((_, one)) => one.end(),
            // One that is ending also frees its slot.
            None => !idle.is_empty(),
        };
        let most = self.connections_max + self.connections_max / 8 + 1;
        if self.serving.len() < most {
            return asked;
        }
        let wait = bounds::GOODBYE_WAIT * 2;
        let ended = tokio::time::timeout(wait, self.serving.join_next()).await;
        matches!(ended, Ok(Some(_)))
    }

    /// Returns how long to wait after a failed accept.
    fn pause_after(&mut self, error: &io::Error) -> std::time::Duration {
        use io::ErrorKind as Kind;
        // The client left before its connection was accepted: no reason to wait.
        let gone = [
            Kind::ConnectionAborted,
            Kind::ConnectionReset,
            Kind::ConnectionRefused,
            Kind::Interrupted,
        ];
        if gone.contains(&error.kind()) {
            return std::time::Duration::ZERO;
        }
        if let Some(count) = self.failed.count() {
            tracing::error!(
                %error,
                times = count,
                connections = self.serving.len(),
                "connections cannot be accepted; retrying"
            );
        }
        bounds::ACCEPT_PAUSE
    }
}
