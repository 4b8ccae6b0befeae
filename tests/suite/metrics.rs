//! Metrics of a running server, health by HTTP, the log of slow calls, and the precedence of its
//! options.

use std::{collections::BTreeMap, path::Path, process::Stdio};

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    process::Child,
    time::timeout,
};

use super::child::{self, PATIENCE};

/// A server with a metrics port.
pub(super) struct MetricsServer {
    pub process: Child,
    pub url: String,
    /// HOST:PORT
    pub metrics: String,
}

impl MetricsServer {
    pub async fn start(dir: &Path, more: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = child::treering();
        command
            .args(["serve", "--json", "--data"])
            .arg(dir)
            .args(["--listen", "127.0.0.1:0"])
            .args(more)
            .envs(variables.iter().copied());
        if !more.contains(&"--metrics") {
            command.args(["--metrics", "127.0.0.1:0"]);
        }
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let first = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap();
        let first: Value = serde_json::from_str(&first.expect("it serves")).unwrap();
        let text = |name: &str| first[name].as_str().unwrap().to_owned();
        let metrics = text("metrics");
        let metrics = metrics.strip_prefix("http://").unwrap();
        Self {
            process,
            url: text("serving"),
            metrics: metrics.strip_suffix("/metrics").unwrap().to_owned(),
        }
    }

    pub async fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.metrics).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let read = stream.read_to_string(&mut answer);
        timeout(PATIENCE, read).await.unwrap().unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_owned())
    }

    pub async fn scrape(&self) -> Scrape {
        let (status, body) = self.get("/metrics").await;
        assert_eq!(status, 200, "{body}");
        assert!(body.ends_with("# EOF\n"), "{body}");
        Scrape::of(&body)
    }

    pub async fn cli(&self, arguments: &[&str]) -> std::process::Output {
        let server = [arguments, &["--server", &self.url]].concat();
        child::run(&server).await
    }

    /// Stops the server. Returns its standard error.
    pub async fn end(self) -> String {
        let pid = i32::try_from(self.process.id().unwrap()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let output = timeout(PATIENCE, self.process.wait_with_output());
        let output = output.await.expect("it ends").unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

/// Samples by name and labels, and the families.
#[derive(Debug)]
pub(super) struct Scrape {
    samples: BTreeMap<String, f64>,
    families: BTreeMap<String, String>,
}

impl Scrape {
    fn of(text: &str) -> Self {
        let mut samples = BTreeMap::new();
        let mut families = BTreeMap::new();
        for line in text.lines() {
            if let Some(family) = line.strip_prefix("# TYPE ") {
                let (name, kind) = family.split_once(' ').unwrap();
                let twice = families.insert(name.to_owned(), kind.to_owned());
                assert_eq!(twice, None, "{name} is listed twice");
            } else if !line.starts_with('#') {
                let (name, value) = line.rsplit_once(' ').unwrap();
                samples.insert(name.to_owned(), value.parse().unwrap());
            }
        }
        Self { samples, families }
    }

    pub fn get(&self, name: &str) -> f64 {
        let value = self.samples.get(name);
        *value.unwrap_or_else(|| panic!("no {name} in {self:#?}"))
    }

    /// Returns the sum of all samples that begin with this.
    fn sum(&self, begin: &str) -> f64 {
        let all = self.samples.iter();
        all.filter(|(name, _)| name.starts_with(begin))
            .map(|(_, value)| value)
            .sum()
    }
}

// Every family, and whether appends, a refusal, searches and reads change it. Those that count
// problems stay at zero without any.
const MOVED: [&str; 22] = [
    "treering_commit_seconds_count",
    "treering_fsync_seconds_count",
    "treering_group_events_sum",
    "treering_group_appends_count",
    "treering_events_appended_total",
    "treering_appended_bytes_total",
    "treering_backup_position",
    "treering_heads_position",
    "treering_appends_refused_total",
    "treering_head_position",
    "treering_subscriptions",
    "treering_store_bytes",
    "treering_cache_bytes",
    "treering_requests_total",
    "treering_requests_running",
    "treering_request_seconds_count",
    "treering_slow_requests_total",
    "treering_connections",
    "process_open_fds",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_mapped_memory_bytes",
];
const THERE: [&str; 32] = [
    "treering_build_info",
    "treering_live",
    "treering_ready",
    "treering_start_time_seconds",
    "treering_failed_fsyncs",
    "treering_failed_groups",
    "treering_queue_appends",
    "treering_queue_appends_max",
    "treering_queue_bytes",
    "treering_queue_bytes_max",
    "treering_views_lag_events",
    "treering_index_lag_events",
    "treering_subscription_lag_events",
    "treering_disk_free_bytes",
    "treering_disk_size_bytes",
    "treering_disk_floor_bytes",
    "treering_log_segments",
    "treering_cache_room_bytes",
    "treering_damaged_conversations",
    "treering_unreadable_positions",
    "treering_unindexed_events",
    "treering_damaged_reads",
    "treering_summariser_answers",
    "treering_summariser_failures",
    "treering_backup_up",
    "treering_backup_lag_events",
    "treering_heads_lag_events",
    "treering_heads_failures",
    "treering_trace_spans_sent",
    "treering_trace_spans_lost",
    "process_max_fds",
    "process_threads",
];

// A metric that never changes gives no alert. After real work, each family must exist, those of
// work must have changed, and those of problems must not.
#[tokio::test(flavor = "multi_thread")]
async fn every_metric_is_exported_and_changes() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = ["--summariser-url", "http://127.0.0.1:9/v1"];
    let model = ["--summariser-model", "none", "--slow", "1ms"];
    let copy = tempfile::tempdir().unwrap();
    let backup = ["--backup", copy.path().to_str().unwrap()];
    let heads = tempfile::tempdir().unwrap();
    let heads = [
        "--heads",
        "1s",
        "--heads-to",
        heads.path().to_str().unwrap(),
    ];
    // No collector listens there.
    let traces = ["--otlp-endpoint", "http://127.0.0.1:9"];
    let more = [&endpoint[..], &model, &backup, &heads, &traces].concat();
    let server = MetricsServer::start(dir.path(), &more, &[]).await;
    let before = server.scrape().await;
    let made = server
        .cli(&["append", "new", "message", "user", "hello", "--json"])
        .await;
    assert!(made.status.success(), "{made:?}");
    let mut watch = child::treering()
        .args(["watch", "@last", "--server", &server.url])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    for text in ["one", "two", "three"] {
        let said = server
            .cli(&["append", "@last", "message", "user", text])
            .await;
        assert!(said.status.success(), "{said:?}");
    }
    let refused = server
        .cli(&[
            "append", "@last", "--expect", "99", "message", "user", "late",
        ])
        .await;
    assert!(!refused.status.success());
    assert!(server.cli(&["search", "three"]).await.status.success());
    let mut after = server.scrape().await;
    // The watcher may not have subscribed yet.
    for _ in 0..200 {
        if after.sum("treering_subscriptions") > 1.0
            && after.sum("treering_requests_running") > 0.0
            && after.get("treering_index_lag_events") == 0.0
            && after.get("treering_backup_lag_events") == 0.0
            && after.get("treering_heads_lag_events") == 0.0
        {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        after = server.scrape().await;
    }
    watch.kill().await.unwrap();

    for name in MOVED {
        let (was, is) = (before.sum(name), after.sum(name));
        assert!(is > 0.0 && is != was, "{name} was {was} and is {is}");
    }
    for family in THERE {
        assert!(after.families.contains_key(family), "no {family}");
    }
    let known = MOVED.len() + THERE.len();
    assert_eq!(after.families.len(), known, "{:#?}", after.families);
    let refusal = r#"treering_appends_refused_total{reason="REVISION_MISMATCH"}"#;
    assert_eq!(after.get(refusal), 1.0);
    assert_eq!(after.get("treering_events_appended_total"), 5.0);
    assert_eq!(after.get("treering_head_position"), 5.0);
    assert_eq!(after.get("treering_backup_position"), 5.0);
    let appends = r#"treering_requests_total{method="treering.v1.Events/Append",code="OK"}"#;
    assert_eq!(after.get(appends), 4.0);
    for quiet in [
        "treering_failed_fsyncs_total",
        "treering_failed_groups_total",
        "treering_damaged_conversations",
        "treering_damaged_reads_total",
        "treering_unreadable_positions",
    ] {
        assert_eq!(after.get(quiet), 0.0, "{quiet}");
    }
    assert_eq!(after.get("treering_live"), 1.0);
    assert_eq!(after.get("treering_ready"), 1.0);
    // No recorded text and no id is among the labels.
    let labels = after.samples.keys().filter(|name| name.contains("hello"));
    assert_eq!(labels.count(), 0);
    let said = server.end().await;
    let slow: Vec<_> = said
        .lines()
        .filter(|line| line.contains("slow request"))
        .collect();
    assert!(!slow.is_empty(), "{said}");
    for line in slow {
        assert!(
            line.contains("method=") && line.contains("duration_ms="),
            "{line}"
        );
        assert!(!line.contains("hello") && !line.contains("three"), "{line}");
    }
}

// A load balancer must get the same health by HTTP as by gRPC: a nearly full disk makes the server
// unready, but not dead.
#[tokio::test(flavor = "multi_thread")]
async fn disk_below_its_floor_is_live_but_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    let server = MetricsServer::start(dir.path(), &["--disk-floor", "900000GiB"], &[]).await;
    assert_eq!(server.get("/live").await, (200, "live\n".to_owned()));
    let (status, why) = server.get("/ready").await;
    assert_eq!(status, 503);
    assert!(why.starts_with("not ready: the disk has "), "{why}");
    let scraped = server.scrape().await;
    assert_eq!(scraped.get("treering_ready"), 0.0);
    assert_eq!(scraped.get("treering_live"), 1.0);
    let said = server
        .cli(&["append", "new", "message", "user", "room"])
        .await;
    assert!(said.status.success(), "appends continue: {said:?}");
    let (status, what) = server.get("/nothing").await;
    assert!(status == 404 && what.contains("/metrics"), "{what}");
    server.end().await;
}

// One file for an installation, and flags for exceptions. A mistyped key must stop the start with
// the file, the line and a suggestion.
#[tokio::test(flavor = "multi_thread")]
async fn config_file_sets_options_without_flags() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("treering.toml");
    let store = dir.path().join("store");
    let text = format!(
        "data = {:?}\nlisten = '127.0.0.1:1'\nslow = '7s'\nmemory = '128MiB'\n",
        store.to_str().unwrap()
    );
    std::fs::write(&file, &text).unwrap();
    let name = file.to_str().unwrap();
    let variables = [("TREERING_CONFIG", name), ("TREERING_MEMORY", "160MiB")];
    let mut command = child::treering();
    let command = command
        .args(["serve", "--json", "--listen", "127.0.0.1:0"])
        .envs(variables)
        .stdout(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let first = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap();
    let first: Value = serde_json::from_str(&first.expect("it serves")).unwrap();
    assert_eq!(first["data"], store.to_str().unwrap());
    assert_ne!(first["serving"], "http://127.0.0.1:1");
    process.kill().await.unwrap();

    let print = ["config", "print", name, "--json", "--", "--slow", "3s"];
    let shown = child::run_with(&print, &[("TREERING_MEMORY", "160MiB")]).await;
    assert!(shown.status.success(), "{shown:?}");
    let lines = String::from_utf8(shown.stdout).unwrap();
    let lines: Vec<Value> = lines
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let of = |option: &str| {
        let line = lines.iter().find(|line| line["option"] == option).unwrap();
        let text = |name: &str| line[name].as_str().unwrap().to_owned();
        (text("value"), text("from"))
    };
    assert_eq!(of("slow"), ("3s".to_owned(), "typed".to_owned()));
    assert_eq!(
        of("memory"),
        ("160MiB".to_owned(), "TREERING_MEMORY".to_owned())
    );
    assert_eq!(
        of("listen"),
        ("127.0.0.1:1".to_owned(), format!("{name}:2"))
    );
    assert_eq!(of("wait"), ("10s".to_owned(), "default".to_owned()));

    let good = child::run(&["config", "check", name]).await;
    assert!(good.status.success(), "{good:?}");
    std::fs::write(&file, text.replace("slow", "slwo")).unwrap();
    for line in [&["config", "check", name][..], &["serve", "--config", name]] {
        let wrong = child::run(line).await;
        let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
        assert_eq!(wrong.status.code(), Some(2), "{said}");
        assert!(
            said.contains(&format!("{name}:3: slwo is not an option")),
            "{said}"
        );
        assert!(said.contains("similar: slow"), "{said}");
    }
}
