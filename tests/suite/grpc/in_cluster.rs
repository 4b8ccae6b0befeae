//! Runs the tests of this folder against three nodes of a cluster. Each call goes to another node. The
//! log is in memory, or in PostgreSQL (`.ci/cluster_suite.sh`).

use std::{
    collections::BTreeSet,
    env,
    process::{Command, Stdio},
};

use super::harness::{IN_CLUSTER, POSTGRES};

/// Tests that fail in a cluster, and why.
const LACKING: [(&str, &[&str]); 8] = [
    (
        "a cluster has no quotas",
        &[
            "quota::erasing_frees_quota",
            "quota::every_appending_method_checks_the_quota",
            "quota::quota_is_exact_under_concurrency",
            "quota::quota_of_conversations_is_enforced",
        ],
    ),
    (
        "it reads what a killed process wrote to a folder, and this cluster's log is in memory",
        &["spans::killed_server_loses_no_acknowledged_span"],
    ),
    (
        "events of different shards have no order, so no offset in the log",
        &["reads::reads_return_the_requested_range"],
    ),
    (
        "each shard records in the audit that it was read",
        &["keys::exports_and_full_reads_are_in_the_audit"],
    ),
    (
        "each node counts the bytes that a key sends",
        &["keys::rate_limits_of_a_key_are_enforced"],
    ),
    (
        "each node counts the conversations that a key reads",
        &["mass_reading::mass_reading_by_any_method_is_in_the_audit"],
    ),
    (
        "each node has its own connections",
        &["limits::calls_per_connection_are_limited"],
    ),
    (
        "clients cannot call the methods of nodes, or make a backup",
        &["read_counting::every_reading_method_is_counted_for_its_key"],
    ),
];

// A client that moves from one server to a cluster must not notice a difference, whichever node takes
// its calls: the same tests pass, except for what docs/CLUSTER.md says that a cluster lacks.
#[test]
fn tests_pass_through_any_node() {
    if env::var_os(IN_CLUSTER).is_some() {
        return;
    }
    let output = Command::new(env::current_exe().unwrap())
        .args(["suite::grpc::", "--skip", "suite::grpc::in_cluster"])
        .env(IN_CLUSTER, "1")
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&output.stdout);
    let ended = |how: &str| -> BTreeSet<&str> {
        let ends = output.lines().filter_map(|line| {
            let (name, end) = line
                .strip_prefix("test suite::grpc::")?
                .split_once(" ... ")?;
            (end == how).then_some(name)
        });
        ends.collect()
    };
    let (passed, failed) = (ended("ok"), ended("FAILED"));
    assert!(passed.len() > 100, "{output}");
    let lacking = LACKING.iter().flat_map(|(_, tests)| tests.iter().copied());
    let lacking: BTreeSet<_> = lacking.collect();
    let broken: Vec<_> = failed.difference(&lacking).collect();
    assert!(broken.is_empty(), "{broken:#?} fail in a cluster: {output}");
    let works: Vec<_> = lacking.difference(&failed).collect();
    // Over PostgreSQL, what a test reads may come before a second shard has recorded the same.
    assert!(
        works.is_empty() || env::var_os(POSTGRES).is_some(),
        "remove what passes from LACKING: {works:#?}"
    );
}
