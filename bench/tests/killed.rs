//! Tests the built bench program.

#![cfg(target_os = "linux")]

use std::{
    fs,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

/// Longest wait for a condition.
const PATIENCE: Duration = Duration::from_secs(60);

fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(since.elapsed() < PATIENCE, "{what}");
        sleep(Duration::from_millis(20));
    }
}

fn children(process: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{process}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let lists =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let lists: Vec<String> = lists.collect();
    let ids = lists.iter().flat_map(|list| list.split_whitespace());
    ids.filter_map(|id| id.parse().ok()).collect()
}

fn is_running(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // `Z` is a zombie: it has ended, but nobody has waited for it.
    let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
    !state.is_empty() && !state.starts_with('Z')
}

// A killed bench once left its servers running, which kept ports and memory occupied.
#[test]
fn servers_end_with_a_killed_bench() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = Command::new(env!("CARGO_BIN_EXE_treering-bench"))
        .args(["--quick", "--only", "grpc", "--dir"])
        .arg(dir.path())
        .env_remove("TREERING_TEST_DATA")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The server of the store, and the server of the empty call.
    let servers = until("it started no servers", || {
        let servers = children(bench.id());
        (servers.len() >= 2).then_some(servers)
    });
    bench.kill().unwrap();
    bench.wait().unwrap();
    for server in servers {
        until("a server is left", || (!is_running(server)).then_some(()));
    }
}
