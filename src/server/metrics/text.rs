//! The names and descriptions of all metrics. `docs/OPERATIONS.md` explains them; `ops/` has alerts
//! and a dashboard with these names, which `.ci/ops.sh` checks against a real scrape.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{
        DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, MetricEncoder, NoLabelSet,
        text::encode,
    },
    metrics::{MetricType, exemplar::Exemplar},
    registry::Registry,
};

use super::{
    NamedMetric, NamedValue,
    node::{self, ShardScrape},
    process::Process,
};
use crate::MethodCalls;
use treering_base::measure::Distribution;
use treering_engine::Measures;

const MICROS_PER_SECOND: f64 = 1e6;
const EACH: f64 = 1.0;

/// The values of one scrape.
#[derive(Debug)]
pub(super) struct Scrape {
    pub(crate) live: bool,
    pub(crate) ready: bool,
    pub(crate) measured: Measured,
    pub(crate) calls: Vec<MethodCalls>,
    pub(crate) connections: u64,
    pub(crate) slow_calls: u64,
    pub(crate) process: Process,
    pub(crate) more: Vec<NamedMetric>,
}

/// What was measured of the store, or of the shards of a node.
#[derive(Debug)]
pub(super) enum Measured {
    Store(Box<Measures>),
    Shards(Vec<ShardScrape>),
}

/// Returns the scrape as OpenMetrics text.
pub(super) fn of(scrape: Scrape) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(scrape));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder) -> fmt::Result {
        let mut lines = Lines(encoder);
        self.state(&mut lines)?;
        let head = match &self.measured {
            Measured::Store(store) => {
                of_store(store, &mut lines)?;
                store.head
            }
            Measured::Shards(shards) => {
                node::encode(&mut lines, shards)?;
                0
            }
        };
        self.server(&mut lines)?;
        self.of_process(&mut lines)?;
        for metric in &self.more {
            match (&metric.value, metric.name, metric.help) {
                (NamedValue::Counter(value), name, help) => lines.counter(name, help, value())?,
                (NamedValue::Gauge(value), name, help) => {
                    if let Some(value) = value(head) {
                        lines.gauge(name, help, value)?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Scrape {
    fn state(&self, lines: &mut Lines) -> fmt::Result {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        let mut build = lines.family(
            "treering_build_info",
            "Version of the program. Always 1.",
            MetricType::Gauge,
        )?;
        build.encode_family(&version)?.encode_gauge(&1_u64)?;
        lines.gauge(
            "treering_live",
            "1 if the writer and publisher threads make progress; at 0 only a restart helps.",
            u64::from(self.live),
        )?;
        lines.gauge(
            "treering_ready",
            "1 if appends are accepted and the disk is above its floor.",
            u64::from(self.ready),
        )
    }

    fn server(&self, lines: &mut Lines) -> fmt::Result {
        let mut requests = lines.family(
            "treering_requests",
            "Requests that ended, by status code.",
            MetricType::Counter,
        )?;
        for calls in &self.calls {
            for (code, count) in &calls.ended {
                let labels = [("method", calls.method.as_str()), ("code", code)];
                requests
                    .encode_family(&labels)?
                    .encode_counter(count, NONE)?;
            }
        }
        let mut running = lines.family(
            "treering_requests_running",
            "Running requests, including streams.",
            MetricType::Gauge,
        )?;
        for calls in &self.calls {
            let labels = [("method", calls.method.as_str())];
            running
                .encode_family(&labels)?
                .encode_gauge(&calls.running)?;
        }
        let mut seconds = lines.family(
            "treering_request_seconds",
            "Duration of requests; of streams, the time to the first message.",
            MetricType::Histogram,
        )?;
        for calls in &self.calls {
            let labels = [("method", calls.method.as_str())];
            let mut seconds = seconds.encode_family(&labels)?;
            distribution(&mut seconds, &calls.micros, MICROS_PER_SECOND)?;
        }
        lines.counter(
            "treering_slow_requests",
            "Requests that took longer than --slow.",
            self.slow_calls,
        )?;
        lines.gauge(
            "treering_connections",
            "Open client connections.",
            self.connections,
        )
    }

    /// Uses the names of the standard Prometheus clients, which have none for mapped memory.
    fn of_process(&self, lines: &mut Lines) -> fmt::Result {
        let process = &self.process;
        if let Some(open) = process.open_files {
            lines.gauge("process_open_fds", "Open files.", open)?;
        }
        if let Some(most) = process.open_files_max {
            lines.gauge("process_max_fds", "Maximum number of open files.", most)?;
        }
        if let Some(bytes) = process.resident_bytes {
            lines.gauge("process_resident_memory_bytes", "Memory in use.", bytes)?;
        }
        if let Some(bytes) = process.mapped_bytes {
            let help = "Part of the memory in use that files back, mostly the search index.";
            lines.gauge("process_mapped_memory_bytes", help, bytes)?;
        }
        if let Some(seconds) = process.cpu_seconds {
            lines.counter("process_cpu_seconds", "Processor time used.", seconds)?;
        }
        match process.threads {
            Some(threads) => lines.gauge("process_threads", "Threads.", threads),
            None => Ok(()),
        }
    }
}

fn of_store(store: &Measures, lines: &mut Lines) -> fmt::Result {
    lines.gauge(
        "treering_start_time_seconds",
        "Time when the store was opened, in seconds since 1970.",
        store.started_at.0 as f64 / MICROS_PER_SECOND,
    )?;
    StoreLines(store).appends(lines)?;
    StoreLines(store).reach(lines)?;
    StoreLines(store).room(lines)?;
    StoreLines(store).damage(lines)
}

/// The metrics of a store.
struct StoreLines<'a>(&'a Measures);

impl StoreLines<'_> {
    fn appends(&self, lines: &mut Lines) -> fmt::Result {
        let store = self.0;
        lines.histogram(
            "treering_commit_seconds",
            "Time from handing a group of appends to the log until it was durable.",
            &store.commit_micros,
            MICROS_PER_SECOND,
        )?;
        if let Some(syncs) = &store.sync_micros {
            lines.histogram(
                "treering_fsync_seconds",
                "Durations of syncs of the log's files.",
                syncs,
                MICROS_PER_SECOND,
            )?;
        }
        lines.counter(
            "treering_failed_fsyncs",
            "Failed syncs of the log's files.",
            store.failed_syncs,
        )?;
        lines.histogram(
            "treering_group_events",
            "Events per durable commit.",
            &store.group_events,
            EACH,
        )?;
        lines.histogram(
            "treering_group_appends",
            "Appends per durable commit.",
            &store.group_appends,
            EACH,
        )?;
        lines.counter(
            "treering_events_appended",
            "Events appended.",
            store.group_events.sum,
        )?;
        lines.counter(
            "treering_appended_bytes",
            "Bytes appended.",
            store.appended_bytes,
        )?;
        lines.counter(
            "treering_failed_groups",
            "Groups of appends that failed or whose outcome is unknown.",
            store.failed_groups,
        )?;
        lines.counters(
            "treering_appends_refused",
            "Refused appends, by the reason that clients get.",
            "reason",
            store
                .refused_appends
                .iter()
                .map(|(why, count)| (*why, *count)),
        )?;
        let (waiting, most) = store.queue_appends;
        lines.gauge(
            "treering_queue_appends",
            "Appends that are waiting for the writer or being written.",
            waiting,
        )?;
        lines.gauge(
            "treering_queue_appends_max",
            "Maximum number of waiting appends; more are refused.",
            most,
        )?;
        let (waiting, most) = store.queue_bytes;
        lines.gauge(
            "treering_queue_bytes",
            "Bytes of the waiting appends.",
            waiting,
        )?;
        lines.gauge(
            "treering_queue_bytes_max",
            "Maximum bytes of the waiting appends.",
            most,
        )
    }

    fn reach(&self, lines: &mut Lines) -> fmt::Result {
        let store = self.0;
        let behind = |place: u64| store.head.saturating_sub(place);
        lines.gauge(
            "treering_head_position",
            "Log position of the last event visible to reads.",
            store.head,
        )?;
        lines.gauge(
            "treering_views_lag_events",
            "Visible events that the projections do not yet have on disk; the next start reads \
             them again.",
            behind(store.views_durable),
        )?;
        lines.gauge(
            "treering_index_lag_events",
            "Visible events that are not yet indexed.",
            behind(store.index_reached),
        )?;
        lines.gauge(
            "treering_subscriptions",
            "Open subscriptions.",
            store.subscriptions,
        )?;
        lines.gauge(
            "treering_subscription_lag_events",
            "Events that the slowest subscription is behind.",
            store.subscription_lag,
        )
    }

    fn room(&self, lines: &mut Lines) -> fmt::Result {
        let store = self.0;
        if let Some(disk) = store.disk {
            lines.gauge(
                "treering_disk_free_bytes",
                "Free bytes on the store's disk.",
                disk.free_bytes,
            )?;
            lines.gauge(
                "treering_disk_size_bytes",
                "Size of the store's disk.",
                disk.size_bytes,
            )?;
            lines.gauge(
                "treering_disk_floor_bytes",
                "Free bytes below which the store is not ready.",
                store.disk_floor_bytes,
            )?;
        }
        let parts = [
            ("log", Some(store.log_bytes)),
            ("views", Some(store.views_bytes)),
            ("index", store.index_bytes),
        ];
        let parts = parts
            .into_iter()
            .filter_map(|(name, size)| Some((name, size?)));
        lines.gauges(
            "treering_store_bytes",
            "Bytes on disk, by part of the store.",
            "part",
            parts,
        )?;
        lines.gauge(
            "treering_log_segments",
            "Segments of the log.",
            store.log_segments,
        )?;
        let caches = store.caches.iter();
        lines.gauges(
            "treering_cache_bytes",
            "Bytes in each cache.",
            "cache",
            caches.clone().map(|cache| (cache.name, cache.bytes)),
        )?;
        lines.gauges(
            "treering_cache_room_bytes",
            "Maximum bytes of each cache.",
            "cache",
            caches.map(|cache| (cache.name, cache.room_bytes)),
        )
    }

    fn damage(&self, lines: &mut Lines) -> fmt::Result {
        let store = self.0;
        lines.gauge(
            "treering_damaged_conversations",
            "Conversations that cannot be read to their end.",
            store.damaged_conversations,
        )?;
        lines.gauge(
            "treering_unreadable_positions",
            "Log positions known to be unreadable.",
            store.unreadable_positions,
        )?;
        lines.gauge(
            "treering_unindexed_events",
            "Unreadable events, which are not indexed.",
            store.not_indexed,
        )?;
        if let Some(passages) = store.not_embedded {
            lines.gauge(
                "treering_unembedded_passages",
                "Indexed passages without vectors: search by meaning does not find them yet.",
                passages,
            )?;
        }
        lines.counter(
            "treering_damaged_reads",
            "Reads that met damaged data.",
            store.damaged_reads,
        )
    }
}

pub(super) const NONE: Option<&Exemplar<NoLabelSet, f64>> = None;

pub(super) struct Lines<'a>(DescriptorEncoder<'a>);

impl Lines<'_> {
    pub(super) fn family<'s>(
        &'s mut self,
        name: &'s str,
        help: &str,
        kind: MetricType,
    ) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.0.encode_descriptor(name, help, None, kind)
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl EncodeGaugeValue) -> fmt::Result {
        let mut line = self.family(name, help, MetricType::Gauge)?;
        line.encode_gauge(&value)
    }

    fn counter(&mut self, name: &str, help: &str, value: impl EncodeCounterValue) -> fmt::Result {
        let mut line = self.family(name, help, MetricType::Counter)?;
        line.encode_counter(&value, NONE)
    }

    fn gauges<'v>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl Iterator<Item = (&'v str, u64)>,
    ) -> fmt::Result {
        let mut family = self.family(name, help, MetricType::Gauge)?;
        for (which, value) in values {
            family
                .encode_family(&[(label, which)])?
                .encode_gauge(&value)?;
        }
        Ok(())
    }

    fn counters<'v>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl Iterator<Item = (&'v str, u64)>,
    ) -> fmt::Result {
        let mut family = self.family(name, help, MetricType::Counter)?;
        for (which, value) in values {
            family
                .encode_family(&[(label, which)])?
                .encode_counter(&value, NONE)?;
        }
        Ok(())
    }

    fn histogram(
        &mut self,
        name: &str,
        help: &str,
        values: &Distribution,
        unit: f64,
    ) -> fmt::Result {
        let mut line = self.family(name, help, MetricType::Histogram)?;
        distribution(&mut line, values, unit)
    }
}

/// Writes a histogram; its values are divided by `unit`.
fn distribution(line: &mut MetricEncoder, values: &Distribution, unit: f64) -> fmt::Result {
    let bounds = values.bounds.iter().map(|bound| *bound as f64 / unit);
    let bounds = bounds.chain([f64::INFINITY]);
    let buckets: Vec<_> = bounds.zip(values.counts.iter().copied()).collect();
    let sum = values.sum as f64 / unit;
    line.encode_histogram::<NoLabelSet>(sum, values.count(), &buckets, None)
}
