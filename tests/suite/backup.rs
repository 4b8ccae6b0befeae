//! Backups with the built program: of real data, of a served folder, and with both processes killed
//! at random moments.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use futures::StreamExt;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Child,
    time::{sleep, timeout},
};
use treering::{
    domain::*,
    engine::{Engine, EventSource, OpenOptions, ReadQuery},
    proto::pb::events_client::EventsClient,
};

use super::{
    child::{self, PATIENCE, Server, write_secret},
    grpc::harness::{batch, created, message},
    random::Random,
    store,
};

/// Kills in a test run; `TREERING_BACKUP_ROUNDS` sets another number.
const ROUNDS: u64 = 2;
/// Exit codes.
const NOT_FOUND: i32 = 3;
const REFUSED: i32 = 4;
const UNAVAILABLE: i32 = 5;
const DAMAGED: i32 = 6;

async fn ok(arguments: &[&str]) -> String {
    let output = child::run(arguments).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

async fn ok_json(arguments: &[&str]) -> Value {
    let said = ok(&[arguments, &["--json"]].concat()).await;
    serde_json::from_str(said.lines().last().unwrap()).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns the whole log of a store: each event with its position, chain hash and body.
async fn log_of(dir: &Path) -> Vec<(EventHeader, ContentHash, Vec<u8>)> {
    let engine = Engine::open(OpenOptions::new(dir).existing())
        .await
        .unwrap();
    let mut events = Vec::new();
    let mut batches = engine.read(ReadQuery::all(store::ns(), EventSource::Log));
    while let Some(batch) = batches.next().await {
        for event in batch.unwrap() {
            let event = event.event;
            let chain = event.chain_hash.get();
            events.push((event.header, chain, event.body.to_vec()));
        }
    }
    drop(batches);
    engine.close().await;
    events
}

fn trajectories() -> Option<PathBuf> {
    let Some(folder) = env::var_os("TREERING_TEST_DATA") else {
        println!("skipped: TREERING_TEST_DATA names no folder");
        return None;
    };
    let folder = Path::new(&folder).join("trajectories");
    let entries = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = entries
        .filter(|path| path.to_string_lossy().ends_with(".jsonl.zst"))
        .collect();
    files.sort_by_key(|path| fs::metadata(path).unwrap().len());
    files.into_iter().next()
}

// Real stores contain stranger data than tests make up. The export of the restored store must equal
// the export of the original byte for byte, and so must every hash.
#[tokio::test(flavor = "multi_thread")]
async fn backup_of_real_trajectories_restores_every_byte() {
    let Some(file) = trajectories() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (data, to, again) = (
        dir.path().join("store"),
        dir.path().join("to"),
        dir.path().join("again"),
    );
    let import = [
        "import",
        "--data",
        text(&data),
        "--format",
        "openai-chat",
        text(&file),
    ];
    ok(&import).await;
    let one = ok_json(&["backup", text(&to), "--data", text(&data)]).await;
    ok(&[
        "append",
        "new",
        "message",
        "user",
        "one more",
        "--data",
        text(&data),
    ])
    .await;
    let two = ok_json(&["backup", text(&to), "--data", text(&data)]).await;
    assert_eq!(
        (&one["generation"], &two["generation"]),
        (&1.into(), &2.into())
    );
    assert!(two["bytes"].as_u64().unwrap() < one["bytes"].as_u64().unwrap());
    let verified = ok_json(&["backup", "verify", text(&to)]).await;
    assert_eq!(verified["sound"], true);
    assert_eq!(verified["events"], two["head"]);
    let restored = ok_json(&["restore", text(&to), "--to", text(&again)]).await;
    assert_eq!(restored["events"], two["head"]);
    let export = |dir: &Path| {
        let dir = text(dir).to_owned();
        async move { ok(&["export", "--format", "openai-chat", "--data", &dir]).await }
    };
    assert!(export(&data).await == export(&again).await);
    assert!(log_of(&data).await == log_of(&again).await);
    ok(&["verify", "--deep", "--data", text(&again)]).await;
}

// A served folder must be backed up without stopping the server: through the server, also to a
// point in time. A server that knows its backup must mention it when something is erased.
#[tokio::test(flavor = "multi_thread")]
async fn served_folder_is_backed_up_through_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let (data, to) = (dir.path().join("store"), dir.path().join("to"));
    let server = Server::start(&data).await;
    let append = [
        "append",
        "new",
        "message",
        "user",
        "hello",
        "--data",
        text(&data),
    ];
    ok(&append).await;
    let key = dir.path().join("key");
    write_secret(&key, "0123456789abcdef".repeat(4));
    let backup = [
        "backup",
        text(&to),
        "--data",
        text(&data),
        "--key-file",
        text(&key),
    ];
    let done = ok_json(&backup).await;
    assert_eq!((&done["generation"], &done["head"]), (&1.into(), &2.into()));
    ok(&append).await;
    let through = [
        "backup",
        text(&to),
        "--server",
        &server.url,
        "--key-file",
        text(&key),
    ];
    let done = ok_json(&through).await;
    assert_eq!(
        (&done["generation"], &done["events"]),
        (&2.into(), &2.into())
    );
    let listed = ok(&["backup", "ls", text(&to), "--key-file", text(&key)]).await;
    assert_eq!(listed.lines().count(), 3, "{listed}");
    let refused = child::run(&["backup", "ls", text(&to)]).await;
    assert_eq!(refused.status.code(), Some(REFUSED));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--key-file"));
    server.kill().await;
    let again = dir.path().join("again");
    let restore = [
        "restore",
        text(&to),
        "--to",
        text(&again),
        "--key-file",
        text(&key),
    ];
    // A store id selects only the backup of that store.
    let other_id = "ab".repeat(16);
    let other = [&restore[..], &["--store-id", &other_id]].concat();
    let refused = child::run(&other).await;
    assert_eq!(refused.status.code(), Some(NOT_FOUND));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("has no backup of store abababab-"), "{said}");
    assert!(!again.exists());
    let at = [&restore[..], &["--position", "3"]].concat();
    assert_eq!(ok_json(&at).await["events"], 2);
    let refused = child::run(&restore).await;
    assert!(String::from_utf8_lossy(&refused.stderr).contains("not empty"));
    let followed = child::run(&["backup", text(&to), "--data", text(&data), "--follow"]).await;
    assert!(String::from_utf8_lossy(&followed.stderr).contains("serve --backup"));
}

// The disk of the backups is full, or the bucket has lost an object. The error must name it, and
// the previous generation must be unchanged.
#[tokio::test(flavor = "multi_thread")]
async fn backup_failures_are_reported_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let (data, to) = (dir.path().join("store"), dir.path().join("to"));
    let append = [
        "append",
        "new",
        "message",
        "user",
        "hello",
        "--data",
        text(&data),
    ];
    ok(&append).await;
    ok(&["backup", text(&to), "--data", text(&data)]).await;
    // A file system with a limit on the size of a file.
    let noise = Random(7).text(3 << 20);
    let file = dir.path().join("large");
    fs::write(&file, noise).unwrap();
    let content = format!("@{}", text(&file));
    ok(&[
        "append",
        "new",
        "message",
        "user",
        &content,
        "--data",
        text(&data),
    ])
    .await;
    let script = format!(
        "trap '' XFSZ; ulimit -f 1024; exec '{}' backup '{}' --data '{}'",
        env!("CARGO_BIN_EXE_treering"),
        text(&to),
        text(&data)
    );
    let full = std::process::Command::new("bash")
        .args(["-c", &script])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&full.stderr);
    assert_eq!(full.status.code(), Some(UNAVAILABLE), "{said}");
    assert!(
        said.contains("/records/") && said.contains("previous generation"),
        "{said}"
    );
    assert_eq!(
        ok_json(&["backup", "verify", text(&to)]).await["generations"],
        1
    );
    let done = ok_json(&["backup", text(&to), "--data", text(&data)]).await;
    assert_eq!(done["generation"], 2);
    let mut folders = fs::read_dir(&to)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let records = folders.next().unwrap().join("records");
    let mut records = fs::read_dir(records)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let lost = records.find(|path| path.to_string_lossy().contains("-0000000000000002-"));
    let lost = lost.unwrap();
    let name = lost.file_name().unwrap().to_str().unwrap();
    fs::remove_file(&lost).unwrap();
    let again = dir.path().join("again");
    for command in [
        vec!["backup", "verify", text(&to)],
        vec!["restore", text(&to), "--to", text(&again)],
    ] {
        let output = child::run(&command).await;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert_eq!(output.status.code(), Some(DAMAGED), "{said}");
        assert!(said.contains(name), "{said}");
    }
    assert!(!again.join("log").exists());
}

/// Starts a server, and waits until it serves.
async fn serve(data: &Path, backup: Option<&Path>) -> (Child, String) {
    let mut command = child::treering();
    command.args([
        "serve",
        "--json",
        "--listen",
        "127.0.0.1:0",
        "--data",
        text(data),
    ]);
    if let Some(to) = backup {
        command.args(["--backup", text(to)]);
    }
    let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let line = timeout(PATIENCE, lines.next_line())
        .await
        .expect("timed out");
    let line: Value = serde_json::from_str(&line.unwrap().unwrap()).unwrap();
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (process, line["serving"].as_str().unwrap().to_owned())
}

/// Appends until the server is gone. Returns the position and id of the last event of each
/// acknowledged batch.
async fn append_until_gone(url: String, seed: u64) -> Vec<(u64, String)> {
    let mut acknowledged = Vec::new();
    let mut random = Random(seed);
    let channel = tonic::transport::Endpoint::from_shared(url).unwrap();
    let channel = channel.connect().await.unwrap();
    let mut events = EventsClient::new(channel);
    loop {
        let id = ConversationId::generate().to_string();
        let mut bodies = vec![created("a batch")];
        for _ in 0..random.below(5) {
            let bytes = match random.one_in(20) {
                true => 100_000,
                false => 10 + random.below(2_000) as usize,
            };
            bodies.push(message(Role::User, &random.text(bytes)));
        }
        let Ok(answer) = events.append(batch(&id, bodies)).await else {
            return acknowledged;
        };
        let appended = answer.into_inner().events;
        let last = appended.last().unwrap();
        acknowledged.push((last.position.unwrap().offset, last.event_id.clone()));
    }
}

fn rounds() -> u64 {
    let set = env::var("TREERING_BACKUP_ROUNDS").ok();
    set.and_then(|set| set.parse().ok()).unwrap_or(ROUNDS)
}

// The process that follows a store is killed: the server itself, or a program beside it. The newest
// generation must contain everything that it lists, in whole batches, as it was acknowledged. After
// a restart, following must continue from there.
#[tokio::test(flavor = "multi_thread")]
async fn killed_backup_leaves_the_newest_generation_complete() {
    let dir = tempfile::tempdir().unwrap();
    let (data, to) = (dir.path().join("store"), dir.path().join("to"));
    let mut random = Random(0x5eed);
    let mut acknowledged: Vec<(u64, String)> = Vec::new();
    let mut behind_most = 0;
    for round in 0..rounds() {
        let by_server = round % 2 == 0;
        let (mut server, url) = serve(&data, by_server.then_some(&to)).await;
        let mut follower = match by_server {
            true => None,
            false => {
                let mut command = child::treering();
                command.args(["backup", text(&to), "--follow", "--server", &url]);
                Some(command.stdout(Stdio::null()).spawn().unwrap())
            }
        };
        let appending = tokio::spawn(append_until_gone(url, random.next()));
        sleep(Duration::from_millis(300 + random.below(3_500))).await;
        // Either may be killed first.
        if let Some(follower) = &mut follower
            && random.one_in(2)
        {
            follower.kill().await.unwrap();
        }
        server.kill().await.unwrap();
        if let Some(follower) = &mut follower {
            follower.kill().await.unwrap();
        }
        acknowledged.extend(appending.await.unwrap());
        if !to.exists() || fs::read_dir(&to).unwrap().next().is_none() {
            continue;
        }
        let listed = ok(&["backup", "ls", text(&to), "--json"]).await;
        let newest: Value = serde_json::from_str(listed.lines().last().unwrap()).unwrap();
        let head = newest["head"].as_u64().unwrap();
        let again = dir.path().join(format!("again {round}"));
        let restored = ok_json(&["restore", text(&to), "--to", text(&again)]).await;
        assert_eq!(restored["events"], head, "round {round}");
        let (was, is) = (log_of(&data).await, log_of(&again).await);
        assert_eq!(is.len() as u64, head, "round {round}");
        assert!(
            was[..is.len()] == is[..],
            "round {round}: it is not what it was"
        );
        for (position, id) in acknowledged
            .iter()
            .filter(|(position, _)| *position <= head)
        {
            assert_eq!(
                is[*position as usize - 1].0.id.to_string(),
                *id,
                "round {round}"
            );
        }
        let is_cut = |at: usize| {
            was.get(at)
                .is_some_and(|next| next.0.revision != Revision(1))
        };
        assert!(!is_cut(is.len()), "round {round}: a batch is cut at {head}");
        behind_most = behind_most.max(was.len() as u64 - head);
        fs::remove_dir_all(&again).unwrap();
    }
    let verified = ok_json(&["backup", "verify", text(&to)]).await;
    assert_eq!(verified["sound"], true);
    println!(
        "{} rounds, {} batches acknowledged; most events that a backup lacked: {behind_most}",
        rounds(),
        acknowledged.len()
    );
}

/// Appends for this long, with several writers, to a new server. Returns the number of acknowledged
/// batches.
async fn batches_in(length: Duration, backup: Option<&Path>) -> usize {
    const WRITERS: u64 = 8;
    let dir = tempfile::tempdir().unwrap();
    let (mut server, url) = serve(dir.path(), backup).await;
    let writers = (0..WRITERS).map(|seed| tokio::spawn(append_until_gone(url.clone(), seed)));
    let writers: Vec<_> = writers.collect();
    sleep(length).await;
    server.kill().await.unwrap();
    let mut batches = 0;
    for writer in writers {
        batches += writer.await.unwrap().len();
    }
    batches
}

// A measurement, not a check: how much following slows appends down. The runs alternate, so that
// both see the same load.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn measure_cost_of_following() {
    let dir = tempfile::tempdir().unwrap();
    let length = Duration::from_secs(6);
    let (mut without, mut with) = (0, 0);
    for turn in 0..3 {
        without += batches_in(length, None).await;
        let to = dir.path().join(format!("to {turn}"));
        with += batches_in(length, Some(&to)).await;
    }
    println!(
        "batches acknowledged: {without} without following, {with} with it: {:.2}",
        with as f64 / without as f64
    );
}
