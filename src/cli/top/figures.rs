//! What an operator wants to know, from two looks at a server.

use serde_json::{Value, json};

use super::scrape::{Buckets, Scrape};

const METHODS: &str = "treering.v1.";
/// Who leaves is not refused.
const GONE: &str = "CANCELLED";
/// Codes by which a key is turned away.
const DENIED: [&str; 2] = ["UNAUTHENTICATED", "PERMISSION_DENIED"];

/// A server at a moment, and since the moment before. None is what it does not tell, or
/// cannot be known from one look.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Its version.
    pub version: Option<String>,
    /// Its threads move.
    pub live: Option<bool>,
    /// It takes appends.
    pub ready: Option<bool>,
    /// Since when the store is open, in seconds since 1970.
    pub started_at: Option<f64>,
    /// The last event that reads see.
    pub head: Option<f64>,
    /// Appends in a second.
    pub appends: Option<f64>,
    /// Events in a second.
    pub events: Option<f64>,
    /// Bytes in a second.
    pub bytes: Option<f64>,
    /// How long commits took.
    pub commit: Times,
    /// How long syncs took.
    pub fsync: Times,
    /// Appends of a group, in the mean.
    pub group_appends: Option<f64>,
    /// Events of a group, in the mean.
    pub group_events: Option<f64>,
    /// Appends under way.
    pub queue_appends: Share,
    /// Their bytes.
    pub queue_bytes: Share,
    /// Events that reads see and that are not in the views on disk.
    pub views_lag: Option<f64>,
    /// Events that searches do not find yet.
    pub index_lag: Option<f64>,
    /// Events that are not in the backup.
    pub backup_lag: Option<f64>,
    /// Readers that follow.
    pub subscriptions: Option<f64>,
    /// How far the slowest is behind.
    pub subscription_lag: Option<f64>,
    /// Free bytes of the disk, and its size.
    pub disk: Share,
    /// With less free it is not ready.
    pub disk_floor: Option<f64>,
    /// Bytes of each part of the store.
    pub store: Vec<(String, f64)>,
    /// Memory of the process.
    pub resident: Option<f64>,
    /// What each cache holds and may hold, in bytes.
    pub caches: Vec<(String, Share)>,
    /// Open files.
    pub files: Share,
    /// Threads.
    pub threads: Option<f64>,
    /// Processors in use.
    pub processors: Option<f64>,
    /// Connections of clients.
    pub connections: Option<f64>,
    /// Requests by method, the busiest first.
    pub methods: Vec<Method>,
    /// Appends that were refused, by rule: all, and in a second.
    pub refused: Vec<(String, f64, Option<f64>)>,
    /// Requests whose key was turned away.
    pub denied: Option<Growth>,
    /// Requests that were slow.
    pub slow: Option<Growth>,
    /// Syncs that failed.
    pub failed_fsyncs: Option<Growth>,
    /// Groups that failed.
    pub failed_groups: Option<Growth>,
    /// Reads that met damage.
    pub damaged_reads: Option<Growth>,
    /// Conversations that are damaged.
    pub damaged: Option<f64>,
    /// Questions that the summariser's model did not answer.
    pub summariser_failures: Option<Growth>,
    /// Spans that could not be sent.
    pub spans_lost: Option<Growth>,
}

/// How long something took, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// Half of all took at most this.
    pub p50: Option<f64>,
    /// 99 of 100 took at most this.
    pub p99: Option<f64>,
}

/// How much of how much.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share {
    /// What there is.
    pub is: Option<f64>,
    /// What there may be.
    pub of: Option<f64>,
}

/// Something that only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Growth {
    /// Since the server was started.
    pub all: f64,
    /// Since the look before.
    pub new: f64,
}

/// The requests of one method.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Method {
    /// Without the package of ours.
    pub name: String,
    /// That ended, all.
    pub all: f64,
    /// That ended, in a second.
    pub rate: Option<f64>,
    /// Under way.
    pub running: f64,
    /// Ended badly, all.
    pub errors: f64,
    /// Ended badly, in a second.
    pub error_rate: Option<f64>,
    /// How long they took.
    pub times: Times,
}

/// Two looks.
struct Looks<'a> {
    now: &'a Scrape,
    /// None: it is the first one, or the server was started anew meanwhile.
    before: Option<&'a Scrape>,
    seconds: f64,
}

impl Figures {
    /// Of a look, and the one so many seconds before it.
    #[must_use]
    pub fn of(now: &Scrape, before: Option<&Scrape>, seconds: f64) -> Self {
        let started = "treering_start_time_seconds";
        let before = before.filter(|before| before.one(started) == now.one(started));
        let looks = Looks {
            now,
            before: before.filter(|_| seconds > 0.0),
            seconds,
        };
        let flag = |name: &str| now.one(name).map(|value| value > 0.0);
        let build = now.all("treering_build_info").first();
        Self {
            version: build.and_then(|it| it.label("version")).map(str::to_owned),
            live: flag("treering_live"),
            ready: flag("treering_ready"),
            started_at: now.one(started),
            head: now.one("treering_head_position"),
            connections: now.one("treering_connections"),
            methods: looks.methods(),
            refused: looks.refused(),
            ..looks.appends().with(&looks)
        }
    }

    fn with(mut self, looks: &Looks<'_>) -> Self {
        let now = looks.now;
        self.views_lag = now.one("treering_views_lag_events");
        self.index_lag = now.one("treering_index_lag_events");
        self.backup_lag = now.one("treering_backup_lag_events");
        self.subscriptions = now.one("treering_subscriptions");
        self.subscription_lag = now.one("treering_subscription_lag_events");
        self.disk = looks.share("treering_disk_free_bytes", "treering_disk_size_bytes");
        self.disk_floor = now.one("treering_disk_floor_bytes");
        self.store = looks.by("treering_store_bytes", "part");
        self.resident = now.one("process_resident_memory_bytes");
        self.caches = looks.caches();
        self.files = looks.share("process_open_fds", "process_max_fds");
        self.threads = now.one("process_threads");
        self.processors = looks.rate("process_cpu_seconds_total");
        self.denied = looks.denied();
        self.slow = looks.growth("treering_slow_requests_total");
        self.failed_fsyncs = looks.growth("treering_failed_fsyncs_total");
        self.failed_groups = looks.growth("treering_failed_groups_total");
        self.damaged_reads = looks.growth("treering_damaged_reads_total");
        self.damaged = now.one("treering_damaged_conversations");
        self.summariser_failures = looks.growth("treering_summariser_failures_total");
        self.spans_lost = looks.growth("treering_trace_spans_lost_total");
        self
    }

    /// For programs.
    #[must_use]
    pub fn json(&self) -> Value {
        let growth = |it: Option<Growth>| it.map(|it| json!({"all": it.all, "new": it.new}));
        let times = |it: Times| json!({"p50": it.p50, "p99": it.p99});
        let share = |it: Share| json!({"is": it.is, "of": it.of});
        let methods = self.methods.iter().map(|it| {
            json!({
                "method": it.name, "all": it.all, "per_second": it.rate, "running": it.running,
                "errors": it.errors, "errors_per_second": it.error_rate, "seconds": times(it.times),
            })
        });
        let refused = self.refused.iter();
        let refused =
            refused.map(|(why, all, rate)| json!({"reason": why, "all": all, "per_second": rate}));
        let store = self.store.iter();
        let store = store.map(|(part, bytes)| (part.clone(), json!(bytes)));
        let caches = self.caches.iter();
        let caches = caches.map(|(name, held)| (name.clone(), share(*held)));
        json!({
            "version": self.version,
            "live": self.live,
            "ready": self.ready,
            "started_at": self.started_at,
            "head": self.head,
            "appends_per_second": self.appends,
            "events_per_second": self.events,
            "bytes_per_second": self.bytes,
            "commit_seconds": times(self.commit),
            "fsync_seconds": times(self.fsync),
            "group_appends": self.group_appends,
            "group_events": self.group_events,
            "queue_appends": share(self.queue_appends),
            "queue_bytes": share(self.queue_bytes),
            "views_lag_events": self.views_lag,
            "index_lag_events": self.index_lag,
            "backup_lag_events": self.backup_lag,
            "subscriptions": self.subscriptions,
            "subscription_lag_events": self.subscription_lag,
            "disk_free_bytes": self.disk.is,
            "disk_size_bytes": self.disk.of,
            "disk_floor_bytes": self.disk_floor,
            "store_bytes": Value::Object(store.collect()),
            "resident_bytes": self.resident,
            "cache_bytes": Value::Object(caches.collect()),
            "open_files": share(self.files),
            "threads": self.threads,
            "processors": self.processors,
            "connections": self.connections,
            "methods": methods.collect::<Vec<_>>(),
            "refused": refused.collect::<Vec<_>>(),
            "denied_keys": growth(self.denied),
            "slow_requests": growth(self.slow),
            "failed_fsyncs": growth(self.failed_fsyncs),
            "failed_groups": growth(self.failed_groups),
            "damaged_reads": growth(self.damaged_reads),
            "damaged_conversations": self.damaged,
            "summariser_failures": growth(self.summariser_failures),
            "spans_lost": growth(self.spans_lost),
        })
    }
}

impl Looks<'_> {
    fn appends(&self) -> Figures {
        let seconds = |name: &str| Times::of(self.since(name, None));
        let of_group = |name: &str| self.since(name, None).and_then(|it| it.mean());
        Figures {
            appends: self.rate("treering_group_appends_sum"),
            events: self.rate("treering_events_appended_total"),
            bytes: self.rate("treering_appended_bytes_total"),
            commit: seconds("treering_commit_seconds"),
            fsync: seconds("treering_fsync_seconds"),
            group_appends: of_group("treering_group_appends"),
            group_events: of_group("treering_group_events"),
            queue_appends: self.share("treering_queue_appends", "treering_queue_appends_max"),
            queue_bytes: self.share("treering_queue_bytes", "treering_queue_bytes_max"),
            ..Figures::default()
        }
    }

    fn since(&self, name: &str, of: Option<(&str, &str)>) -> Option<Buckets> {
        let now = self.now.buckets(name, of)?;
        match self.before?.buckets(name, of) {
            Some(before) => now.since(&before),
            // A method that had no call yet has no histogram.
            None => Some(now),
        }
    }

    fn rate(&self, name: &str) -> Option<f64> {
        let grown = self.now.one(name)? - self.before?.one(name)?;
        self.per_second(grown)
    }

    fn per_second(&self, grown: f64) -> Option<f64> {
        let known = self.before.is_some() && grown >= 0.0;
        known.then(|| grown / self.seconds)
    }

    fn growth(&self, name: &str) -> Option<Growth> {
        let all = self.now.one(name)?;
        let before = self.before.and_then(|before| before.one(name));
        let new = before.map_or(0.0, |before| (all - before).max(0.0));
        Some(Growth { all, new })
    }

    fn share(&self, is: &str, of: &str) -> Share {
        Share {
            is: self.now.one(is),
            of: self.now.one(of),
        }
    }

    fn by(&self, name: &str, label: &str) -> Vec<(String, f64)> {
        let samples = self.now.all(name).iter();
        let named = samples.filter_map(|it| Some((it.label(label)?.to_owned(), it.value)));
        named.collect()
    }

    fn caches(&self) -> Vec<(String, Share)> {
        let room = self.by("treering_cache_room_bytes", "cache");
        let held = self.by("treering_cache_bytes", "cache").into_iter();
        let caches = held.map(|(name, bytes)| {
            let room = room.iter().find(|(of, _)| *of == name);
            let held = Share {
                is: Some(bytes),
                of: room.map(|(_, room)| *room),
            };
            (name, held)
        });
        caches.collect()
    }

    fn refused(&self) -> Vec<(String, f64, Option<f64>)> {
        const NAME: &str = "treering_appends_refused_total";
        let before = self
            .before
            .map_or(&[][..], |before| before.all(NAME))
            .iter();
        let refused = self
            .by(NAME, "reason")
            .into_iter()
            .filter(|(_, all)| *all > 0.0);
        let refused = refused.map(|(why, all)| {
            let mut before = before.clone();
            let before = before.find(|it| it.label("reason") == Some(&why));
            let rate = self.per_second(all - before.map_or(0.0, |it| it.value));
            (why, all, rate)
        });
        let mut refused: Vec<_> = refused.collect();
        refused.sort_by(|a, b| {
            b.2.unwrap_or(0.0)
                .total_cmp(&a.2.unwrap_or(0.0))
                .then(b.1.total_cmp(&a.1))
        });
        refused
    }

    fn denied(&self) -> Option<Growth> {
        let of = |scrape: &Scrape| -> f64 {
            let requests = scrape.all("treering_requests_total").iter();
            requests
                .filter(|it| it.label("code").is_some_and(|code| DENIED.contains(&code)))
                .map(|it| it.value)
                .fold(0.0, |all, one| all + one)
        };
        // Where no request is counted, nobody counts.
        self.now.one("treering_connections")?;
        let all = of(self.now);
        let new = self
            .before
            .map_or(0.0, |before| (all - of(before)).max(0.0));
        Some(Growth { all, new })
    }

    fn methods(&self) -> Vec<Method> {
        let names = self.by("treering_requests_running", "method").into_iter();
        let mut methods: Vec<_> = names
            .map(|(name, running)| self.method(&name, running))
            .collect();
        let busy = |it: &Method| (it.rate.unwrap_or(0.0), it.all);
        methods.sort_by(|a, b| {
            let ((rate_a, all_a), (rate_b, all_b)) = (busy(a), busy(b));
            rate_b
                .total_cmp(&rate_a)
                .then(all_b.total_cmp(&all_a))
                .then_with(|| a.name.cmp(&b.name))
        });
        methods
    }

    fn method(&self, name: &str, running: f64) -> Method {
        let ended = |scrape: &Scrape, errors: bool| -> f64 {
            let requests = scrape.all("treering_requests_total").iter();
            requests
                .filter(|it| it.label("method") == Some(name))
                .filter(|it| !errors || !matches!(it.label("code"), Some("OK" | GONE)))
                .map(|it| it.value)
                .fold(0.0, |all, one| all + one)
        };
        let (all, errors) = (ended(self.now, false), ended(self.now, true));
        let rate = |now: f64, errors: bool| {
            let before = self.before.map_or(0.0, |before| ended(before, errors));
            self.per_second(now - before)
        };
        Method {
            name: name.strip_prefix(METHODS).unwrap_or(name).to_owned(),
            all,
            rate: rate(all, false),
            running,
            errors,
            error_rate: rate(errors, true),
            times: Times::of(self.since("treering_request_seconds", Some(("method", name)))),
        }
    }
}

impl Times {
    fn of(buckets: Option<Buckets>) -> Self {
        let quantile = |part| buckets.as_ref().and_then(|it| it.quantile(part));
        Self {
            p50: quantile(0.5),
            p99: quantile(0.99),
        }
    }
}
