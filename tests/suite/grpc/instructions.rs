//! Counts the instructions of calls, in client and server, with Valgrind, and compares them with
//! recorded counts. Unlike times, they hardly depend on the machine and its load.
//!
//! `TREERING_COUNT_INSTRUCTIONS=1 cargo test --test main instructions` counts, if Valgrind is
//! installed. The counts are of the test build, so they measure our code more than optimised
//! libraries.

use std::{
    collections::BTreeMap,
    env,
    ffi::{OsStr, OsString},
    fs,
    process::Command,
    thread,
};

use treering::{domain::*, proto::pb};

use super::harness::*;

/// Recorded counts: one row per line, with the instructions of one call.
const RECORDED: &str = "tests/fixtures/instructions.txt";
/// Maximum relative difference from the recorded count.
const TOLERANCE: f64 = 0.10;
/// Calls of the shorter of two runs. The difference of the runs contains no start or end of a
/// server.
const CALLS_FEW: u64 = 10;
/// Rows, with the calls of the longer run.
const ROWS: [(&str, u64); 3] = [("append", 310), ("search", 60), ("build", 60)];
/// Functions that run periodically beside the calls, and so differ from run to run.
const PERIODIC: [&str; 2] = [
    ":treering_projections::store::Projections::make_durable",
    ":treering_search::index::SearchIndex::commit_durably",
];
/// The variable with the number of calls of a run.
const CALLS: &str = "TREERING_CALLS";

fn calls() -> u64 {
    env::var(CALLS).map_or(CALLS_FEW, |calls| calls.parse().unwrap())
}

/// Returns the instructions of this program while it runs one of the tests below, without
/// [`PERIODIC`].
fn counted(row: &str, calls: u64) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("profile");
    let mut out = OsString::from("--callgrind-out-file=");
    out.push(&profile);
    let this = env::current_exe().unwrap();
    let test = format!("suite::grpc::instructions::{row}");
    said(
        Command::new("valgrind")
            .args([OsStr::new("--tool=callgrind"), &out, this.as_os_str()])
            .args(["--ignored", "--exact", &test])
            .env(CALLS, calls.to_string()),
    );
    let functions = said(
        Command::new("callgrind_annotate")
            .args(["--inclusive=yes", "--threshold=100"])
            .arg(&profile),
    );
    // Each line has the count with commas, its share, the file, the function and the program.
    let of = |name: &str| -> u64 {
        let mut found = functions.lines().filter(|line| {
            let line = line.split_once(" [").map_or(*line, |(line, _)| line);
            line.ends_with(name)
        });
        let count = found.next().and_then(|line| line.split_whitespace().next());
        count.map_or(0, |count| count.replace(',', "").parse().unwrap())
    };
    of("PROGRAM TOTALS") - PERIODIC.into_iter().map(of).sum::<u64>()
}

fn said(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}: Valgrind has it"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

// Features added to the path of an append cost little each, but together they once took a third of
// its rate.
#[test]
fn calls_execute_as_many_instructions_as_recorded() {
    if env::var_os("TREERING_COUNT_INSTRUCTIONS").is_none() {
        println!("skipped: TREERING_COUNT_INSTRUCTIONS is not set");
        return;
    }
    let recorded = fs::read_to_string(format!("{}/{RECORDED}", crate::ROOT)).unwrap();
    let recorded: BTreeMap<&str, f64> = recorded
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(row, count)| (row, count.trim().parse().unwrap()))
        .collect();
    let mut other = Vec::new();
    for (row, calls) in ROWS {
        let few = thread::spawn(move || counted(row, CALLS_FEW));
        let more = counted(row, calls) - few.join().unwrap();
        let count = more / (calls - CALLS_FEW);
        println!("{row} {count}");
        let was = recorded.get(row).copied().unwrap_or(0.0);
        if (count as f64 / was - 1.0).abs() > TOLERANCE {
            other.push(format!("{row} {count}, recorded {was}"));
        }
    }
    assert!(
        other.is_empty(),
        "instructions of a call differ by more than a tenth: {other:?}. If that is meant, change \
         {RECORDED}"
    );
}

/// One plain event per append, by one client.
#[tokio::test]
#[ignore = "counted by the test above"]
async fn append() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let event = EventBody::Custom(Custom {
        type_name: "step".into(),
        data: vec![7; 1_000].into(),
        content_type: String::new(),
        text: String::new(),
        delta_of: String::new(),
    });
    for _ in 0..calls() {
        server.append(batch(&id, [event.clone()])).await;
    }
    server.stop().done().await;
}

/// Appends the same fixed text as the results of 40 calls.
async fn read_text(server: &TestServer) -> (String, Option<pb::Position>) {
    let text = fs::read_to_string(format!("{}/LICENSE-APACHE", crate::ROOT)).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    let mut events = vec![created("licence"), message(Role::User, "Read it.")];
    for (at, passage) in lines.chunks(lines.len() / 40).take(40).enumerate() {
        let id = format!("call_{at}");
        events.push(call(&id, "read_file", r#"{"path": "licence.txt"}"#, false));
        events.push(result(&id, &passage.join("\n")));
    }
    assert_eq!(events.len(), 82);
    let answer = server.append(batch("", events)).await;
    let last = answer.events.last().unwrap();
    (last.conversation_id.clone(), last.position)
}

/// Searches for words that many results contain.
#[tokio::test]
#[ignore = "counted by the test above"]
async fn search() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let (_, position) = read_text(&server).await;
    for word in ["work", "license", "copyright", "terms", "any"]
        .iter()
        .cycle()
        .take(calls() as usize)
    {
        let request = pb::SearchRequest {
            query: (*word).into(),
            at_least: position,
            ..Default::default()
        };
        let answer = server.search().search(request).await.unwrap();
        assert!(!answer.into_inner().hits.is_empty(), "{word}");
    }
    server.stop().done().await;
}

/// Builds a request of a conversation with 40 results.
#[tokio::test]
#[ignore = "counted by the test above"]
async fn build() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let (id, _) = read_text(&server).await;
    let request = || pb::BuildRequest {
        conversation_id: id.clone(),
        provider: pb::Provider::OpenaiChat.into(),
        model: "gpt-4o".into(),
        ..Default::default()
    };
    // Under Valgrind, loading the tokenizer's tables takes longer than a call's time limit.
    for _ in 0..10 {
        if server.contexts().build(request()).await.is_ok() {
            break;
        }
    }
    for _ in 0..calls() {
        let answer = server.contexts().build(request()).await.unwrap();
        assert!(!answer.into_inner().request.is_empty());
    }
    server.stop().done().await;
}
