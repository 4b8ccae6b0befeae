//! Listens for clients, and shuts down gracefully.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::{sleep, timeout},
};
use treering_client::ConnectOptions;

use super::{
    forward::Forwarder,
    queue::{CallCounts, CallQueue},
    recorder::Recorder,
    upstream::Upstreams,
};

/// Longest wait for answers in progress when the proxy stops.
const ANSWERS_WAIT: Duration = Duration::from_secs(5);
/// Longest wait for the store when the proxy stops.
const STORE_WAIT: Duration = Duration::from_secs(10);
/// Pause after a failed accept, for example because of too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why the proxy does not start.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// The HTTP client cannot be set up.
    #[error("cannot set up connections to providers: {0}")]
    Client(#[from] reqwest::Error),
    /// The listener has no address.
    #[error("the listener has no address: {0}")]
    Listener(#[from] io::Error),
}

/// A running proxy.
#[derive(Debug)]
pub struct RunningProxy {
    address: SocketAddr,
    counts: Arc<CallCounts>,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
    recording: JoinHandle<()>,
}

impl RunningProxy {
    /// Starts a proxy on this listener.
    ///
    /// # Errors
    /// [`ProxyError`] when it cannot be set up.
    pub fn start(
        listener: TcpListener,
        upstreams: Upstreams,
        store: ConnectOptions,
    ) -> Result<Self, ProxyError> {
        let address = listener.local_addr()?;
        let counts = Arc::new(CallCounts::default());
        let (queue, queued) = CallQueue::new(Arc::clone(&counts));
        let forwarder = Forwarder::new(upstreams, queue)?;
        let recorder = Recorder::new(store, Arc::clone(&counts));
        let (stop, stopped) = watch::channel(false);
        Ok(Self {
            address,
            counts,
            stop,
            accepting: tokio::spawn(accept(listener, forwarder, stopped)),
            recording: tokio::spawn(recorder.run(queued)),
        })
    }

    /// Returns the address on which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the counts of calls so far.
    #[must_use]
    pub fn counts(&self) -> &CallCounts {
        &self.counts
    }

    /// Waits for answers in progress, records the queued calls, and returns the counts. Each of the
    /// first two steps has a time limit.
    pub async fn stop(mut self) -> Arc<CallCounts> {
        // There is no receiver if the task has failed.
        let _ = self.stop.send(true);
        let _ = (&mut self.accepting).await;
        if timeout(STORE_WAIT, &mut self.recording).await.is_err() {
            self.recording.abort();
            let waiting = self.counts.waiting();
            self.counts.dropped.add(waiting);
            tracing::warn!(waiting, "calls are not recorded: the store is unavailable");
        }
        self.counts
    }
}

/// Accepts connections until it is stopped, and then waits for answers in progress.
async fn accept(listener: TcpListener, forwarder: Forwarder, mut stopped: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.changed() => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let connection = serve(stream, forwarder.clone(), stopped.clone());
                connections.spawn(connection);
            }
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
    drop(forwarder);
    let all = async { while connections.join_next().await.is_some() {} };
    // The remaining answers are cut off, and recorded as interrupted.
    if timeout(ANSWERS_WAIT, all).await.is_err() {
        connections.shutdown().await;
    }
}

async fn serve(stream: TcpStream, forwarder: Forwarder, mut stopped: watch::Receiver<bool>) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let forwarder = forwarder.clone();
        async move { Ok::<_, std::convert::Infallible>(forwarder.answer(request).await) }
    });
    let builder = auto::Builder::new(TokioExecutor::new());
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stopped.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended with an error");
    }
}
