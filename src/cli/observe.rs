//! `serve`'s options for those who watch it: metrics, slow requests, the floor of the disk, and
//! what systemd is told.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use clap::Args;
use tokio::{net::TcpListener, task::JoinHandle};

use super::{error::CliError, serve::size, time_arg::length};
use crate::{
    engine::Engine,
    server::{
        ServerMeasures,
        metrics::{self, Exporter, NamedCounter},
    },
    summariser::SummariserMeasures,
};

/// How a server is watched.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Watching it")]
pub struct ObserveArgs {
    /// Serve metrics for Prometheus (/metrics), and /live and /ready, by HTTP there. Whoever
    /// reaches it sees how much is done, and nothing of what is stored
    #[arg(long, value_name = "ADDR")]
    metrics: Option<SocketAddr>,
    /// Log requests that take longer than this: method, duration, code and sizes, and nothing
    /// of what they hold. 0: none
    #[arg(long, value_name = "TIME", value_parser = length, default_value = "1s")]
    slow: Duration,
    /// Say "not ready" when less than this is free on the store's disk. Default: 256MiB, or a
    /// fiftieth of a smaller disk
    #[arg(long, value_name = "SIZE", value_parser = size)]
    disk_floor: Option<u64>,
}

/// Who watches, before there is something to see.
#[derive(Debug)]
pub struct Observer {
    listener: Option<TcpListener>,
    server: Arc<ServerMeasures>,
}

impl ObserveArgs {
    /// Takes the address of the metrics.
    ///
    /// # Errors
    /// [`CliError::Listen`].
    pub async fn observer(&self) -> Result<Observer, CliError> {
        let listener = match self.metrics {
            Some(addr) => Some(
                TcpListener::bind(addr)
                    .await
                    .map_err(|cause| CliError::Listen { addr, cause })?,
            ),
            None => None,
        };
        let slow = Some(self.slow).filter(|slow| !slow.is_zero());
        let server = ServerMeasures::new(slow).map_err(|error| io::Error::other(error.to_string()));
        Ok(Observer {
            listener,
            server: Arc::new(server?),
        })
    }

    /// See [`crate::domain::Limits::disk_floor_bytes`].
    #[must_use]
    pub fn disk_floor(&self) -> Option<u64> {
        self.disk_floor
    }
}

impl Observer {
    /// Where the server counts.
    #[must_use]
    pub fn measures(&self) -> Arc<ServerMeasures> {
        Arc::clone(&self.server)
    }

    /// Where the metrics are.
    #[must_use]
    pub fn url(&self) -> Option<String> {
        let addr = self.listener.as_ref()?.local_addr().ok()?;
        Some(format!("http://{addr}/metrics"))
    }

    /// Begins to show a store that is served, and tells systemd that it is.
    #[must_use]
    pub fn start(self, engine: &Engine, summariser: Option<Arc<SummariserMeasures>>) -> Observed {
        let mut tasks = Vec::new();
        if let Some(listener) = self.listener {
            let more = summariser.map(of_summariser).unwrap_or_default();
            let exporter = Exporter::new(engine.clone(), self.server, more);
            tasks.push(tokio::spawn(metrics::serve(listener, exporter)));
        }
        tasks.extend(systemd::ready(engine));
        Observed { tasks }
    }
}

fn of_summariser(measures: Arc<SummariserMeasures>) -> Vec<NamedCounter> {
    let failures = Arc::clone(&measures);
    vec![
        NamedCounter {
            name: "treering_summariser_answers",
            help: "Texts that the summariser's model wrote.",
            value: Arc::new(move || measures.answers.get()),
        },
        NamedCounter {
            name: "treering_summariser_failures",
            help: "Questions that the summariser's endpoint did not answer.",
            value: Arc::new(move || failures.failures.get()),
        },
    ]
}

/// A store that is shown; no more once this is dropped.
#[derive(Debug)]
pub struct Observed {
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Observed {
    fn drop(&mut self) {
        systemd::stopping();
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// What systemd is told: nothing, unless it started this process and asks for it.
#[cfg(target_os = "linux")]
mod systemd {
    use sd_notify::NotifyState;

    use super::{Engine, JoinHandle};

    /// That it serves; and from then on, as often as it wants to hear it, that it lives. A
    /// process whose threads hang says nothing, and is started anew.
    pub fn ready(engine: &Engine) -> Option<JoinHandle<()>> {
        tell(&[NotifyState::Ready]);
        let every = sd_notify::watchdog_enabled()? / 3;
        let engine = engine.clone();
        Some(tokio::spawn(async move {
            loop {
                match engine.health().live {
                    Ok(()) => tell(&[NotifyState::Watchdog]),
                    Err(why) => tracing::error!(why, "not live: systemd is not told otherwise"),
                }
                tokio::time::sleep(every).await;
            }
        }))
    }

    pub fn stopping() {
        tell(&[NotifyState::Stopping]);
    }

    fn tell(state: &[NotifyState<'_>]) {
        if let Err(error) = sd_notify::notify(state) {
            tracing::warn!(%error, "systemd could not be told");
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod systemd {
    pub fn ready(_: &super::Engine) -> Option<super::JoinHandle<()>> {
        None
    }

    pub fn stopping() {}
}
