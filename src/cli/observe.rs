//! `serve`'s options for monitoring: metrics, slow requests, free disk space, traces, and systemd
//! notifications.

use std::{
    env, io,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use clap::Args;
use tokio::{net::TcpListener, task::JoinHandle};

use super::{error::ClientError, serve::size, time_arg::length};
use treering_backup::BackupStep;
use treering_engine::Engine;
use treering_heads::HeadMeasures;
use treering_otel::{
    CallSpans,
    export::{TraceMeasures, TraceOptions, Traces},
};
use treering_server::{
    ServerMeasures, ShardDirectory,
    metrics::{self, Exporter, NamedMetric, NamedValue},
    tls::ServerTls,
};
use treering_summariser::SummariserMeasures;

/// Monitoring of a server.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Monitoring")]
pub(crate) struct ObserveArgs {
    /// Serve Prometheus metrics (/metrics), /live and /ready over HTTP at this address. They show
    /// the load, but no stored content
    #[arg(long, value_name = "ADDR")]
    metrics: Option<SocketAddr>,
    /// Log requests that take longer than this, with method, duration, code and sizes, but without
    /// content. 0 for none
    #[arg(long, value_name = "TIME", value_parser = length, default_value = "1s")]
    slow: Duration,
    /// Report "not ready" if the store's disk has less free space than this. Default: 256MiB, or a
    /// fiftieth of a smaller disk
    #[arg(long, value_name = "SIZE", value_parser = size)]
    disk_floor: Option<u64>,
    /// Send traces of calls to this collector, by OTLP over gRPC: a span for each call with its
    /// waiting times, but no content. Default: $OTEL_EXPORTER_OTLP_ENDPOINT, else no traces
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<String>,
    /// Fraction of calls to trace if the caller does not decide (traceparent): 0 to 1. Default:
    /// $OTEL_TRACES_SAMPLER and $OTEL_TRACES_SAMPLER_ARG, else all
    #[arg(long, value_name = "PART", value_parser = part)]
    otlp_ratio: Option<f64>,
    /// Add the namespace of its call to each span
    #[arg(long)]
    otlp_namespaces: bool,
}

fn part(text: &str) -> Result<f64, String> {
    let part = text.trim().parse().ok();
    let part = part.filter(|part| (0.0..=1.0).contains(part));
    part.ok_or_else(|| "use a number from 0 (none) to 1 (all), for example 0.05".into())
}

/// Monitoring before the store is open.
#[derive(Debug)]
pub(crate) struct Observer {
    listener: Option<TcpListener>,
    server: Arc<ServerMeasures>,
}

impl ObserveArgs {
    /// Binds the address of the metrics.
    ///
    /// # Errors
    /// [`ClientError::Listen`].
    pub(crate) async fn observer(
        &self,
        traces: Option<Arc<Traces>>,
    ) -> Result<Observer, ClientError> {
        let listener = match self.metrics {
            Some(addr) => Some(
                TcpListener::bind(addr)
                    .await
                    .map_err(|cause| ClientError::Listen { addr, cause })?,
            ),
            None => None,
        };
        let slow = Some(self.slow).filter(|slow| !slow.is_zero());
        let server = ServerMeasures::new(slow).map_err(|error| io::Error::other(error.to_string()));
        let spans = traces.map(|traces| traces as Arc<dyn CallSpans>);
        Ok(Observer {
            listener,
            server: Arc::new(server?.with_spans(spans)),
        })
    }

    /// Starts to send traces, if a collector is configured. Must be called before anything is
    /// logged, because logs and traces share one subscriber.
    ///
    /// # Errors
    /// [`ClientError::Usage`] for an invalid address.
    pub(crate) fn traces(&self) -> Result<Option<Arc<Traces>>, ClientError> {
        let env = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let Some(options) = self.trace_options(&env)? else {
            return Ok(None);
        };
        let traces = Traces::start(&options).map_err(|error| ClientError::Usage {
            what: error.to_string(),
            hint: "--otlp-endpoint needs the collector's address for OTLP over gRPC, for example \
                   http://127.0.0.1:4317"
                .into(),
        });
        traces.map(Arc::new).map(Some)
    }

    fn trace_options(
        &self,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Option<TraceOptions>, ClientError> {
        let is = |name: &str, value: &str| env(name).is_some_and(|it| it == value);
        let is_off = is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none");
        let of_env = [
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            "OTEL_EXPORTER_OTLP_ENDPOINT",
        ];
        let of_env = of_env.into_iter().filter(|_| !is_off).find_map(env);
        let Some(endpoint) = self.otlp_endpoint.clone().or(of_env) else {
            return Ok(None);
        };
        let ca = "OTEL_EXPORTER_OTLP_CERTIFICATE";
        let ratio = match self.otlp_ratio {
            Some(ratio) => ratio,
            None => ratio_of(env)?,
        };
        Ok(Some(TraceOptions {
            endpoint,
            ca: env(ca).map(PathBuf::from),
            ratio,
            namespaces: self.otlp_namespaces,
        }))
    }

    /// See [`treering_domain::Limits::disk_floor_bytes`].
    pub(crate) fn disk_floor(&self) -> Option<u64> {
        self.disk_floor
    }
}

/// Returns the trace ratio from the environment, for calls whose callers do not decide.
fn ratio_of(env: &dyn Fn(&str) -> Option<String>) -> Result<f64, ClientError> {
    const NAME: &str = "OTEL_TRACES_SAMPLER_ARG";
    let sampler = env("OTEL_TRACES_SAMPLER").unwrap_or_default();
    match sampler.as_str() {
        "always_off" | "parentbased_always_off" => Ok(0.0),
        "traceidratio" | "parentbased_traceidratio" => {
            let told = env(NAME).map_or(Ok(1.0), |text| part(&text));
            told.map_err(|what| ClientError::Usage {
                what: format!("{NAME}: {what}"),
                hint: "or set --otlp-ratio".into(),
            })
        }
        _ => Ok(1.0),
    }
}

fn counter(
    name: &'static str,
    help: &'static str,
    read: impl Fn() -> u64 + Send + Sync + 'static,
) -> NamedMetric {
    NamedMetric {
        name,
        help,
        value: NamedValue::Counter(Arc::new(read)),
    }
}

/// Returns a gauge. `read` receives the log's head.
fn gauge(
    name: &'static str,
    help: &'static str,
    read: impl Fn(u64) -> Option<u64> + Send + Sync + 'static,
) -> NamedMetric {
    NamedMetric {
        name,
        help,
        value: NamedValue::Gauge(Arc::new(read)),
    }
}

/// Returns metrics of the spans that were sent.
pub(crate) fn of_traces(measures: Arc<TraceMeasures>) -> Vec<NamedMetric> {
    let lost = Arc::clone(&measures);
    vec![
        counter(
            "treering_trace_spans_sent",
            "Spans that the collector accepted.",
            move || measures.sent.get(),
        ),
        counter(
            "treering_trace_spans_lost",
            "Spans that could not be sent to the collector.",
            move || lost.lost.get(),
        ),
    ]
}

impl Observer {
    /// Returns the server's counters.
    pub(crate) fn measures(&self) -> Arc<ServerMeasures> {
        Arc::clone(&self.server)
    }

    /// Returns the URL of the metrics, if they are served.
    pub(crate) fn url(&self) -> Option<String> {
        let addr = self.listener.as_ref()?.local_addr().ok()?;
        let host = match addr.ip() {
            ip if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            ip => ip,
        };
        let addr = SocketAddr::new(host, addr.port());
        Some(format!("http://{addr}/metrics"))
    }

    /// Starts the monitoring of a served store, and notifies systemd.
    pub(crate) fn start(self, engine: &Engine, more: Vec<NamedMetric>) -> ObservationGuard {
        let mut tasks = Vec::new();
        if let Some(listener) = self.listener {
            let exporter = Exporter::new(engine.clone(), self.server, more);
            tasks.push(tokio::spawn(metrics::serve(listener, exporter)));
        }
        tasks.extend(systemd::ready(engine));
        ObservationGuard { tasks }
    }
}

impl Observer {
    /// Starts the monitoring of a node of a cluster.
    #[cfg_attr(not(feature = "cluster"), allow(dead_code))]
    pub(crate) fn start_node(self, directory: Arc<dyn ShardDirectory>) -> ObservationGuard {
        let exporter = Exporter::of_node(directory, self.server);
        let tasks = self.listener.map(|listener| {
            let serving = metrics::serve(listener, exporter);
            tokio::spawn(serving)
        });
        ObservationGuard {
            tasks: tasks.into_iter().collect(),
        }
    }
}

/// Returns metrics of a summariser.
pub(crate) fn of_summariser(measures: Arc<SummariserMeasures>) -> Vec<NamedMetric> {
    let failures = Arc::clone(&measures);
    vec![
        counter(
            "treering_summariser_answers",
            "Summaries that the summariser's model wrote.",
            move || measures.answers.get(),
        ),
        counter(
            "treering_summariser_failures",
            "Failed calls of the summariser's endpoint.",
            move || failures.failures.get(),
        ),
    ]
}

/// Returns a metric with the expiry time of the server's certificate.
pub(crate) fn of_certificate(tls: Arc<ServerTls>) -> NamedMetric {
    gauge(
        "treering_tls_certificate_end_time_seconds",
        "End of validity of the TLS certificate in use, in seconds since 1970.",
        move |_| Some(tls.ends_at_seconds()),
    )
}

/// Returns metrics of a backup that is kept up to date.
pub(crate) fn of_backup(reached: Arc<BackupProgress>) -> Vec<NamedMetric> {
    let (up, lag) = (Arc::clone(&reached), Arc::clone(&reached));
    vec![
        gauge(
            "treering_backup_up",
            "1 while the backup of `--backup` is running; 0 once it has stopped.",
            move |_| Some(u64::from(!up.has_ended())),
        ),
        gauge(
            "treering_backup_position",
            "Log position of the last event in the backup of `--backup`.",
            move |_| reached.get(),
        ),
        gauge(
            "treering_backup_lag_events",
            "Visible events that are not yet in the backup of `--backup`.",
            move |head| Some(head.saturating_sub(lag.get()?)),
        ),
    ]
}

/// Returns metrics of a server's signed heads.
pub(crate) fn of_heads(measures: Arc<HeadMeasures>) -> Vec<NamedMetric> {
    let (failures, lag) = (Arc::clone(&measures), Arc::clone(&measures));
    vec![
        gauge(
            "treering_heads_position",
            "Log position of the last signed head that was stored since the start.",
            move |_| Some(measures.position()),
        ),
        gauge(
            "treering_heads_lag_events",
            "Visible events that no stored signed head covers.",
            move |head| Some(head.saturating_sub(lag.position())),
        ),
        counter(
            "treering_heads_failures",
            "Signed heads that could not be made or stored.",
            move || failures.failures.get(),
        ),
    ]
}

/// Progress of a backup.
#[derive(Debug, Default)]
pub(crate) struct BackupProgress {
    /// The last offset plus one; 0 if unknown.
    next: AtomicU64,
    has_ended: AtomicBool,
}

impl BackupProgress {
    /// Records that the backup has stopped.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// Returns true if the backup has stopped.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Records a step.
    pub(crate) fn note(&self, step: BackupStep) {
        if let BackupStep::Found { head } | BackupStep::Generation { head, .. } = step {
            self.next.store(head.saturating_add(1), Ordering::Relaxed);
        }
    }

    /// Returns the last offset in the backup, or `None` if it is unknown.
    pub(crate) fn get(&self) -> Option<u64> {
        self.next.load(Ordering::Relaxed).checked_sub(1)
    }
}

/// The monitoring of a store. Ends on drop.
#[derive(Debug)]
pub(crate) struct ObservationGuard {
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for ObservationGuard {
    fn drop(&mut self) {
        systemd::stopping();
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// systemd notifications. Nothing is sent unless systemd started this process and asks for it.
#[cfg(target_os = "linux")]
mod systemd {
    use sd_notify::NotifyState;

    use super::{Engine, JoinHandle};

    /// Notifies that the service is ready, and then sends watchdog messages at the requested
    /// interval. If the process hangs, the messages stop and systemd restarts it.
    pub(crate) fn ready(engine: &Engine) -> Option<JoinHandle<()>> {
        tell(&[NotifyState::Ready]);
        let every = sd_notify::watchdog_enabled()? / 3;
        let engine = engine.clone();
        Some(tokio::spawn(async move {
            loop {
                match engine.health().live {
                    Ok(()) => tell(&[NotifyState::Watchdog]),
                    Err(why) => {
                        tracing::error!(why, "not live: the systemd watchdog is not notified")
                    }
                }
                tokio::time::sleep(every).await;
            }
        }))
    }

    pub(crate) fn stopping() {
        tell(&[NotifyState::Stopping]);
    }

    fn tell(state: &[NotifyState<'_>]) {
        if let Err(error) = sd_notify::notify(state) {
            tracing::warn!(%error, "systemd could not be notified");
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod systemd {
    pub(crate) fn ready(_: &super::Engine) -> Option<super::JoinHandle<()>> {
        None
    }

    pub(crate) fn stopping() {}
}
