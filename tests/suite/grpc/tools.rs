//! The life cycle of tool calls over the wire.

use std::time::Duration;

use tonic::{Code, Request};
use treering::{domain::*, proto::pb};

use super::harness::*;

const ARGUMENTS: &str = r#"{"city": "Lisbon", "days": 2}"#;

fn wait(id: &str, timeout_ms: u64) -> pb::WaitForDecisionRequest {
    pb::WaitForDecisionRequest {
        conversation_id: id.into(),
        call_id: "call_1".into(),
        timeout_ms,
        ..Default::default()
    }
}

async fn pending(server: &TestServer, id: &str) -> Vec<String> {
    let request = pb::PendingRequest {
        conversation_id: id.into(),
        ..Default::default()
    };
    let calls = server
        .tools()
        .pending(request)
        .await
        .unwrap()
        .into_inner()
        .calls;
    calls.into_iter().map(|call| call.call_id).collect()
}

// A client that runs a tool waits for a person's decision. The wait must end with the decision, and
// the decision must survive a restart of the server.
#[tokio::test(flavor = "multi_thread")]
async fn decision_ends_the_wait_and_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    assert_eq!(pending(&server, "").await, ["call_1"]);
    let early = server
        .tools()
        .wait_for_decision(wait(&id, 50))
        .await
        .unwrap();
    assert!(!early.into_inner().decided);
    server.stop().done().await;

    let server = TestServer::start(dir.path()).await;
    assert_eq!(pending(&server, &id).await, ["call_1"]);
    let mut tools = server.tools();
    let waiting = tokio::spawn({
        let request = wait(&id, 20_000);
        async move { tools.wait_for_decision(request).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let approve = decision("call_1", ARGUMENTS, Decision::Approved);
    server.append(batch(&id, [approve])).await;
    let waited = waiting.await.unwrap().unwrap().into_inner();
    assert!(waited.decided);
    let call = waited.call.unwrap();
    assert_eq!(call.status, i32::from(pb::CallStatus::Approved));
    assert!(pending(&server, &id).await.is_empty());
    let request = pb::ToolHistoryRequest {
        conversation_id: id,
        tool: "weather".into(),
        ..Default::default()
    };
    let calls = server.tools().history(request).await.unwrap();
    let call = &calls.into_inner().calls[0];
    assert_eq!((&*call.decided_by, call.decision_revision), ("ada", 6));
    server.stop().done().await;
}

// An approval applies to exactly these arguments and is given once, and a call that was not
// approved cannot succeed.
#[tokio::test(flavor = "multi_thread")]
async fn tool_calls_follow_their_life_cycle() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let approve = || decision("call_1", ARGUMENTS, Decision::Approved);
    let deny = decision("call_1", ARGUMENTS, Decision::Denied);
    let other = decision("call_1", "{}", Decision::Approved);
    let done = result("call_1", "sunny");
    for (body, refused) in [
        (done.clone(), Some("CALL_NOT_APPROVED")),
        (other, Some("ARGUMENTS_CHANGED")),
        (
            decision("call_2", "{}", Decision::Approved),
            Some("APPROVAL_NOT_REQUIRED"),
        ),
        (
            call("call_1", "weather", "{}", false),
            Some("CALL_ALREADY_OPEN"),
        ),
        (approve(), None),
        (deny, Some("CALL_ALREADY_DECIDED")),
        (done.clone(), None),
        (done, Some("CALL_NOT_OPEN")),
    ] {
        let kind = body.kind();
        let answer = server.events().append(batch(&id, [body])).await;
        match refused {
            None => drop(answer.unwrap()),
            Some(rule) => {
                let status = answer.unwrap_err();
                assert_eq!(reason(&status), rule, "{kind}");
                assert_eq!(status.code(), Code::FailedPrecondition);
            }
        }
    }
    let request = pb::ToolHistoryRequest {
        conversation_id: id,
        tool: "weather".into(),
        ..Default::default()
    };
    let calls = server
        .tools()
        .history(request)
        .await
        .unwrap()
        .into_inner()
        .calls;
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].status, i32::from(pb::CallStatus::Succeeded));
    assert_eq!(
        (&*calls[0].result_head, calls[0].result_bytes),
        ("sunny", 5)
    );
    assert_eq!(calls[0].arguments, ARGUMENTS.as_bytes());
    server.stop().done().await;
}

async fn get(server: &TestServer, request: pb::GetResultRequest) -> (pb::ResultInfo, Vec<u8>) {
    let mut stream = server
        .tools()
        .get_result(request)
        .await
        .unwrap()
        .into_inner();
    let mut info = None;
    let mut text = Vec::new();
    while let Some(message) = stream.message().await.unwrap() {
        assert!(message.chunk.len() <= 256 << 10);
        assert_eq!(message.info.is_some(), info.is_none());
        info = info.or(message.info);
        text.extend_from_slice(&message.chunk);
    }
    (info.unwrap(), text)
}

// A result of many MiB is sent and returned in pieces, cut anywhere. It is returned whole, or as
// exactly the requested part.
#[tokio::test(flavor = "multi_thread")]
async fn large_results_are_streamed_both_ways() {
    use pb::{get_result_request::Which, record_result_request::Item};
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let text: String = (0..300_000)
        .map(|n| format!("line {n} – größer\n"))
        .collect();
    let start = pb::RecordResultStart {
        conversation_id: id.clone(),
        expected: exactly(5),
        idempotency_key: "big".into(),
        actor: "runner".into(),
        result: Some(pb::ToolResultRecorded {
            call_id: "call_2".into(),
            success: true,
            execution_time_ms: Some(12),
            ..Default::default()
        }),
        ..Default::default()
    };
    let items = |text: &str| {
        let chunks = text.as_bytes().chunks(65_537);
        let chunks: Vec<_> = chunks.map(|c| Item::Chunk(c.to_vec().into())).collect();
        let start = [Item::Start(start.clone())];
        let items = start.into_iter().chain(chunks);
        let requests: Vec<_> = items
            .map(|item| pb::RecordResultRequest { item: Some(item) })
            .collect();
        futures::stream::iter(requests)
    };
    let mut tools = server.tools();
    let recorded = tools
        .record_result(items(&text))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(recorded.events[0].revision, 6);
    let again = tools
        .record_result(items(&text))
        .await
        .unwrap()
        .into_inner();
    assert!(again.repeated_key);

    let ask = |which| pb::GetResultRequest {
        conversation_id: id.clone(),
        which: Some(which),
        ..Default::default()
    };
    let (info, whole) = get(&server, ask(Which::CallId("call_2".into()))).await;
    assert!(whole == text.as_bytes());
    assert_eq!((info.total_bytes, info.revision), (text.len() as u64, 6));
    assert_eq!((&*info.tool, info.success), ("clock", true));
    let lines = pb::GetResultRequest {
        line_first: 1_000,
        line_last: 1_001,
        ..ask(Which::Revision(6))
    };
    let (info, part) = get(&server, lines).await;
    assert_eq!(part, "line 999 – größer\nline 1000 – größer\n".as_bytes());
    let at = usize::try_from(info.byte_start).unwrap();
    assert_eq!(&text.as_bytes()[at..at + part.len()], part);
    let bytes = pb::GetResultRequest {
        byte_start: 5,
        byte_length: 3,
        ..ask(Which::Revision(6))
    };
    assert_eq!(get(&server, bytes).await.1, b"0 \xe2");
    // As a model requests it, by the arguments of its call.
    let asked = |arguments: &str| pb::GetResultRequest {
        conversation_id: id.clone(),
        arguments: arguments.to_owned().into(),
        ..Default::default()
    };
    let by_model = r##"{"reference": "#6", "line_first": "1000", "line_last": 1001}"##;
    assert_eq!(get(&server, asked(by_model)).await.1, part);
    let foreign = r#"{"reference": "treering:00000000-0000-0000-0000-000000000007/6"}"#;
    for wrong in ["{}", foreign] {
        let status = server.tools().get_result(asked(wrong)).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{wrong}");
    }
    let past = pb::GetResultRequest {
        byte_start: u64::MAX,
        ..ask(Which::Revision(6))
    };
    let status = server.tools().get_result(past).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange);
    assert_eq!(reason(&status), "RANGE_AFTER_END");
    server.stop().done().await;
}

// A replay finds the result by tool and arguments, whatever their spacing and key order, and never
// gets the result of another call.
#[tokio::test(flavor = "multi_thread")]
async fn recorded_results_are_found_by_arguments() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    server.append(batch(&id, [result("call_2", "noon")])).await;
    let cancel = EventBody::ToolCallCancelled(ToolCallCancelled {
        call_id: "call_1".into(),
        reason: CancelReason::Superseded,
        detail: String::new(),
    });
    let again = call("call_3", "weather", ARGUMENTS, false);
    server
        .append(batch(&id, [cancel, again, result("call_3", "rain")]))
        .await;
    let find = async |tool: &str, arguments: &'static str| {
        let request = pb::RecordedRequest {
            conversation_id: id.clone(),
            tool: tool.into(),
            arguments: arguments.into(),
            ..Default::default()
        };
        let found = server.tools().recorded(request).await.unwrap().into_inner();
        assert_eq!(found.found, found.result.is_some());
        let part = found.result.and_then(|result| result.parts[0].part.clone());
        part.map(|part| match part {
            pb::content_part::Part::Text(text) => text,
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(find("clock", " { } ").await.as_deref(), Some("noon"));
    let reordered = r#"{"days":2,"city":"Lisbon"}"#;
    assert_eq!(find("weather", reordered).await.as_deref(), Some("rain"));
    assert_eq!(find("weather", r#"{"city":"Porto"}"#).await, None);
    server.stop().done().await;
}

// A caller's deadline ends its wait.
#[tokio::test(flavor = "multi_thread")]
async fn deadline_ends_the_wait_for_a_decision() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    for timeout_ms in [0, 60_000] {
        let mut request = Request::new(wait(&id, timeout_ms));
        let metadata = request.metadata_mut();
        metadata.insert("grpc-timeout", "200m".parse().unwrap());
        let started = std::time::Instant::now();
        let status = server.tools().wait_for_decision(request).await.unwrap_err();
        // tonic's client ends the call, too, with CANCELLED. The server's own code is tested with
        // its deadlines.
        let ended = [Code::DeadlineExceeded, Code::Cancelled];
        assert!(ended.contains(&status.code()), "{status:?}");
        assert!(started.elapsed() < Duration::from_secs(5));
    }
    server.stop().done().await;
}
