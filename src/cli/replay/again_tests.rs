//! Tests of an agent that runs again on a fork, with a served store.

use std::time::Duration;

use clap::Parser;
use prost::Message;
use serde_json::Value;

use super::super::{
    Cli, ClientError, Connection,
    output::Out,
    pb::{self, new_event::Body},
    read, run,
    serve::{RunningServer, listen_any},
    web::WebOptions,
};
use treering_engine::OpenOptions;

fn bytes(message: &impl Message) -> bytes::Bytes {
    message.encode_to_vec().into()
}

fn says(role: pb::Role, text: &str) -> Body {
    let part = pb::ContentPart {
        part: Some(pb::content_part::Part::Text(text.into())),
    };
    Body::MessageAppended(bytes(&pb::MessageAppended {
        role: role.into(),
        parts: vec![part],
        ..Default::default()
    }))
}

fn asks(call_id: &str, arguments: &str, approval: pb::ApprovalRequirement) -> Body {
    Body::ToolCallRequested(bytes(&pb::ToolCallRequested {
        call_id: call_id.into(),
        tool: "read".into(),
        arguments: arguments.to_owned().into(),
        message_revision: 0,
        approval: approval.into(),
        ..Default::default()
    }))
}

fn decides(call_id: &str, arguments: &str, decision: pb::Decision) -> Body {
    Body::ApprovalDecided(bytes(&pb::ApprovalDecided {
        call_id: call_id.into(),
        decision: decision.into(),
        arguments_hash: blake3::hash(arguments.as_bytes())
            .as_bytes()
            .to_vec()
            .into(),
        decided_by: "ada".into(),
        reason: String::new(),
    }))
}

fn returns(call_id: &str, text: &str) -> Body {
    let part = pb::ContentPart {
        part: Some(pb::content_part::Part::Text(text.into())),
    };
    Body::ToolResultRecorded(bytes(&pb::ToolResultRecorded {
        call_id: call_id.into(),
        success: true,
        parts: vec![part],
        ..Default::default()
    }))
}

fn gives_up(call_id: &str) -> Body {
    Body::ToolCallCancelled(bytes(&pb::ToolCallCancelled {
        call_id: call_id.into(),
        reason: pb::CancelReason::Denied.into(),
        detail: String::new(),
    }))
}

async fn append(store: &Connection, id: &str, branch: &str, bodies: Vec<Body>) -> String {
    let event = |body| pb::NewEvent {
        body: Some(body),
        ..Default::default()
    };
    let request = pb::AppendRequest {
        conversation_id: id.into(),
        branch: branch.into(),
        events: bodies.into_iter().map(event).collect(),
        ..Default::default()
    };
    let answer = read::append(store, request).await.unwrap();
    answer.events[0].conversation_id.clone()
}

const NO: pb::ApprovalRequirement = pb::ApprovalRequirement::NotRequired;
const YES: pb::ApprovalRequirement = pb::ApprovalRequirement::Pending;

/// The recorded conversation. Its first three events are shared by the forks.
async fn recorded(store: &Connection) -> String {
    let created = Body::ConversationCreated(bytes(&pb::ConversationCreated::default()));
    let bodies = vec![
        created,
        says(pb::Role::User, "Look into a and b."),
        says(pb::Role::Assistant, "I read."),
        asks("c1", r#"{"path": "a", "line": 1}"#, NO),
        returns("c1", "first"),
        asks("c2", r#"{"path": "a", "line": 1}"#, NO),
        returns("c2", "second"),
        asks("c3", r#"{"path": "b"}"#, YES),
        decides("c3", r#"{"path": "b"}"#, pb::Decision::Approved),
        returns("c3", "third"),
        asks("c4", r#"{"path": "/etc"}"#, YES),
        decides("c4", r#"{"path": "/etc"}"#, pb::Decision::Denied),
        gives_up("c4"),
        says(pb::Role::Assistant, "Done."),
    ];
    append(store, "", "", bodies).await
}

/// Appends a call of the agent, and returns it once it is answered or decided.
async fn call(store: &Connection, id: &str, branch: &str, ask: Body) -> pb::ToolCall {
    append(store, id, branch, vec![ask]).await;
    for _ in 0..400 {
        let request = pb::ToolHistoryRequest {
            conversation_id: id.into(),
            branch: branch.into(),
            limit: 1,
            ..Default::default()
        };
        let history = store.tools().history(request).await.unwrap().into_inner();
        let call = history.calls.into_iter().next().unwrap();
        let open = [
            pb::CallStatus::Requested,
            pb::CallStatus::PendingApproval,
            pb::CallStatus::Approved,
        ];
        if !open.contains(&call.status()) {
            return call;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the call was not answered");
}

async fn treering(line: Vec<String>) -> (String, Result<(), ClientError>) {
    let cli = Cli::try_parse_from(line).unwrap();
    let (mut out, captured) = Out::captured(cli.common.json);
    let done = run(cli, &mut out).await;
    drop(out);
    (captured.text(), done)
}

fn line(url: &str, id: &str, rest: &str) -> Vec<String> {
    let text = format!("treering --json --server {url} replay {id} --serve-tools {rest}");
    text.split(' ').map(str::to_owned).collect()
}

/// Runs the agent. Its branch exists once the fork is made.
async fn agent(store: &Connection, id: &str) -> Vec<String> {
    while read::state(store, id, "again", 0).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut seen = Vec::new();
    for (call_id, arguments, approval) in [
        ("x1", r#"{"line":1,"path":"a"}"#, NO),
        ("x2", r#"{ "path": "a", "line": 1 }"#, NO),
        ("x3", r#"{"path":"b"}"#, YES),
        ("x4", r#"{"path":"/etc"}"#, YES),
        ("x5", r#"{"path":"a","line":1}"#, NO),
    ] {
        let call = call(store, id, "again", asks(call_id, arguments, approval)).await;
        seen.push(format!("{:?} {}", call.status(), call.result_head));
    }
    let end = vec![gives_up("x4"), says(pb::Role::Assistant, "Done again.")];
    append(store, id, "again", end).await;
    seen
}

/// An agent that runs again must see the same results, call by call: without its tools, with other
/// call ids, with other spellings of the arguments. A call that was denied must be denied again.
/// New calls are reported, not answered.
#[tokio::test(flavor = "multi_thread")]
async fn replay_serves_recorded_results_to_an_agent() {
    let dir = tempfile::tempdir().unwrap();
    let served = RunningServer::start(
        OpenOptions::new(dir.path()),
        listen_any().await.unwrap(),
        WebOptions::default(),
    )
    .await
    .unwrap();
    let url = served.url();
    let store = Connection::to_server(&url, "default").await.unwrap();
    let id = recorded(&store).await;
    let fork = "--fork-at 3 --name again --approve recorded --on-miss fail --until-idle 2";
    let agent = agent(&store, &id);
    let ((text, done), seen) = tokio::join!(treering(line(&url, &id, fork)), agent);
    done.unwrap();
    assert_eq!(
        seen[..4],
        [
            "Succeeded first",
            "Succeeded second",
            "Succeeded third",
            "Denied "
        ]
    );
    assert!(
        seen[4].starts_with("Failed no result is recorded for call number 3 of"),
        "{}",
        seen[4]
    );
    let lines: Vec<Value> = text
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let last = lines.last().unwrap();
    assert_eq!(last["branches"], serde_json::json!(["main", "again"]));
    let counts = ["served", "missed", "approved", "denied", "waiting"];
    assert_eq!(
        counts.map(|name| last[name].as_u64().unwrap()),
        [3, 1, 1, 1, 0]
    );
    let of_side = |side: &str| lines.iter().filter(|l| l["side"] == side).count();
    assert_eq!((of_side("left"), of_side("right")), (11, 14));
    store.close().await.unwrap();
    served.stop().await.unwrap();
}

/// The replay starts late, on a fork in a new conversation with an open call, and without anyone to
/// approve. The open call is answered, a call that needs approval waits, a call without a recorded
/// result stays open, and the comparison works across conversations.
#[tokio::test(flavor = "multi_thread")]
async fn replay_answers_calls_open_at_the_fork() {
    let dir = tempfile::tempdir().unwrap();
    let served = RunningServer::start(
        OpenOptions::new(dir.path()),
        listen_any().await.unwrap(),
        WebOptions::default(),
    )
    .await
    .unwrap();
    let url = served.url();
    let store = Connection::to_server(&url, "default").await.unwrap();
    let id = recorded(&store).await;
    let request = pb::ForkRequest {
        conversation_id: id.clone(),
        // The fork is between the second call and its result.
        at_revision: 6,
        name: "elsewhere".into(),
        into_conversation: "new".into(),
        ..Default::default()
    };
    let forked = store
        .conversations()
        .fork(request)
        .await
        .unwrap()
        .into_inner();
    let fork = forked.conversation_id;
    append(
        &store,
        &fork,
        "",
        vec![
            asks("y1", r#"{"path":"b"}"#, YES),
            asks("y2", r#"{"path":"new"}"#, NO),
        ],
    )
    .await;
    let (text, done) = treering(line(&url, &fork, "--until-idle 1")).await;
    done.unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let outcome = |call_id: &str| {
        let line = lines.iter().find(|l| l["call_id"] == call_id);
        line.map(|l| l["outcome"].as_str().unwrap().to_owned())
    };
    assert_eq!(outcome("c2").as_deref(), Some("served from #7"));
    assert_eq!(outcome("y1").as_deref(), Some("waits for approval"));
    assert_eq!(
        outcome("y2").as_deref(),
        Some("missed: nothing is recorded")
    );
    assert_eq!(lines[0]["from_conversation"], id.as_str());
    let last = lines.last().unwrap();
    assert_eq!((&last["served"], &last["waiting"]), (&1.into(), &1.into()));
    let state = read::state(&store, &fork, "", 0).await.unwrap();
    assert_eq!(state.branch.unwrap().open_calls.len(), 2);
    let none = treering(line(&url, &id, "--until-idle 1")).await.1;
    assert!(matches!(none, Err(ClientError::Usage { .. })), "{none:?}");
    store.close().await.unwrap();
    served.stop().await.unwrap();
}
