//! Tool context with feedback loop. A model that does not see its own calls repeats them; one that
//! keeps all of them fills its window.
//!
//! | feature | test |
//! |---|---|
//! | history of (call, result) pairs in the open turn | [`open_turn_shows_calls_with_their_results`] |
//! | concurrent results collected | [`concurrent_results_are_collected`] |
//! | asynchronous long-term storage of full results | [`large_result_streams_in_without_blocking_the_loop`] |
//! | search over them for retrieval | [`full_results_are_found_by_search`] |
//! | full result by reference | [`full_result_is_read_by_its_reference`] |
//! | snapshots written at turn end | [`snapshots_are_written_at_turn_end_and_history_is_cleared`] |
//! | history cleared | [`snapshots_are_written_at_turn_end_and_history_is_cleared`] |
//! | request built from active context and history | [`request_is_built_from_active_context_and_history`] |
//! | all of it from the command line | [`tool_loop_works_from_the_command_line`] |

use serde_json::json;
use treering::{domain::*, engine::*, proto::pb};

use super::*;

const TEST_LOG: &str = "running 41 tests\n\
     test ledger::case_01 ... ok\n\
     test ledger::case_02 ... ok\n\
     test ledger::case_03 ... ok\n\
     test ledger::case_04 ... ok\n\
     test ledger::case_05 ... ok\n\
     test ledger::case_06 ... ok\n\
     test ledger::case_07 ... ok\n\
     test ledger::case_08 ... ok\n\
     test ledger::case_09 ... ok\n\
     test ledger::case_10 ... ok\n\
     test ledger::case_11 ... ok\n\
     test ledger::case_12 ... ok\n\
     test ledger::case_13 ... ok\n\
     test ledger::case_14 ... ok\n\
     test ledger::case_15 ... ok\n\
     test ledger::case_16 ... ok\n\
     test ledger::case_17 ... ok\n\
     test ledger::case_18 ... ok\n\
     test ledger::case_19 ... ok\n\
     test ledger::case_20 ... ok\n\
     test ledger::case_21 ... ok\n\
     test ledger::case_22 ... ok\n\
     test ledger::case_23 ... ok\n\
     test ledger::case_24 ... ok\n\
     test ledger::case_25 ... ok\n\
     test ledger::case_26 ... ok\n\
     test ledger::case_27 ... ok\n\
     test ledger::case_28 ... ok\n\
     test ledger::case_29 ... ok\n\
     test ledger::case_30 ... ok\n\
    test invoice::rounds_half_up ... FAILED\n\
    ---- invoice::rounds_half_up stdout ----\n\
    assertion `left == right` failed\n  left: 1994\n right: 1995\n\
    test result: FAILED. 40 passed; 1 failed; finished in 0.31s";
const SOURCE: &str = "pub fn total_cents(net: f64, vat: f64) -> i64 {\n    (net * (1.0 + vat) * 100.0) as i64\n}\n\
     pub fn rate_1(net: f64) -> f64 {\n    net * 1.01\n}\n\
     pub fn rate_2(net: f64) -> f64 {\n    net * 1.02\n}\n\
     pub fn rate_3(net: f64) -> f64 {\n    net * 1.03\n}\n\
     pub fn rate_4(net: f64) -> f64 {\n    net * 1.04\n}\n\
     pub fn rate_5(net: f64) -> f64 {\n    net * 1.05\n}\n\
     pub fn rate_6(net: f64) -> f64 {\n    net * 1.06\n}\n\
     pub fn rate_7(net: f64) -> f64 {\n    net * 1.07\n}\n\
     pub fn rate_8(net: f64) -> f64 {\n    net * 1.08\n}\n\
     pub fn rate_9(net: f64) -> f64 {\n    net * 1.09\n}\n\
     pub fn rate_10(net: f64) -> f64 {\n    net * 1.10\n}\n\
     pub fn rate_11(net: f64) -> f64 {\n    net * 1.11\n}\n\
     pub fn rate_12(net: f64) -> f64 {\n    net * 1.12\n}\n\
     pub fn rate_13(net: f64) -> f64 {\n    net * 1.13\n}\n\
     pub fn rate_14(net: f64) -> f64 {\n    net * 1.14\n}\n\
     pub fn rate_15(net: f64) -> f64 {\n    net * 1.15\n}\n\
     pub fn rate_16(net: f64) -> f64 {\n    net * 1.16\n}\n\
     pub fn rate_17(net: f64) -> f64 {\n    net * 1.17\n}\n\
     pub fn rate_18(net: f64) -> f64 {\n    net * 1.18\n}\n\
     pub fn rate_19(net: f64) -> f64 {\n    net * 1.19\n}\n\
     pub fn rate_20(net: f64) -> f64 {\n    net * 1.20\n}\n\
     pub fn rate_21(net: f64) -> f64 {\n    net * 1.21\n}\n\
     pub fn rate_22(net: f64) -> f64 {\n    net * 1.22\n}\n\
     pub fn rate_23(net: f64) -> f64 {\n    net * 1.23\n}\n\
     pub fn rate_24(net: f64) -> f64 {\n    net * 1.24\n}\n\
     pub fn rate_25(net: f64) -> f64 {\n    net * 1.25\n}\n\
     pub fn rate_26(net: f64) -> f64 {\n    net * 1.26\n}\n\
     pub fn rate_27(net: f64) -> f64 {\n    net * 1.27\n}\n\
     pub fn rate_28(net: f64) -> f64 {\n    net * 1.28\n}\n\
     pub fn rate_29(net: f64) -> f64 {\n    net * 1.29\n}\n\
     pub fn rate_30(net: f64) -> f64 {\n    net * 1.30\n}\n\
     pub fn rate_31(net: f64) -> f64 {\n    net * 1.31\n}\n\
     pub fn rate_32(net: f64) -> f64 {\n    net * 1.32\n}\n\
     pub fn rate_33(net: f64) -> f64 {\n    net * 1.33\n}\n\
     pub fn rate_34(net: f64) -> f64 {\n    net * 1.34\n}\n\
     pub fn rate_35(net: f64) -> f64 {\n    net * 1.35\n}\n\
     pub fn rate_36(net: f64) -> f64 {\n    net * 1.36\n}\n\
     pub fn rate_37(net: f64) -> f64 {\n    net * 1.37\n}\n\
     pub fn rate_38(net: f64) -> f64 {\n    net * 1.38\n}\n\
     pub fn rate_39(net: f64) -> f64 {\n    net * 1.39\n}\n\
     pub fn rate_40(net: f64) -> f64 {\n    net * 1.40\n}\n\
     pub fn rate_41(net: f64) -> f64 {\n    net * 1.41\n}\n\
     pub fn rate_42(net: f64) -> f64 {\n    net * 1.42\n}\n\
     pub fn rate_43(net: f64) -> f64 {\n    net * 1.43\n}\n\
     pub fn rate_44(net: f64) -> f64 {\n    net * 1.44\n}\n\
     pub fn rate_45(net: f64) -> f64 {\n    net * 1.45\n}\n\
     pub fn rate_46(net: f64) -> f64 {\n    net * 1.46\n}\n\
     pub fn rate_47(net: f64) -> f64 {\n    net * 1.47\n}\n\
     pub fn rate_48(net: f64) -> f64 {\n    net * 1.48\n}\n\
     pub fn rate_49(net: f64) -> f64 {\n    net * 1.49\n}\n\
     pub fn rate_50(net: f64) -> f64 {\n    net * 1.50\n}\n\
     pub fn rate_51(net: f64) -> f64 {\n    net * 1.51\n}\n\
     pub fn rate_52(net: f64) -> f64 {\n    net * 1.52\n}\n\
     pub fn rate_53(net: f64) -> f64 {\n    net * 1.53\n}\n\
     pub fn rate_54(net: f64) -> f64 {\n    net * 1.54\n}\n\
     pub fn rate_55(net: f64) -> f64 {\n    net * 1.55\n}\n\
     pub fn rate_56(net: f64) -> f64 {\n    net * 1.56\n}\n\
     pub fn rate_57(net: f64) -> f64 {\n    net * 1.57\n}\n\
     pub fn rate_58(net: f64) -> f64 {\n    net * 1.58\n}\n\
     pub fn rate_59(net: f64) -> f64 {\n    net * 1.59\n}\n";

/// A user message, and an answer with two concurrent calls.
fn asked() -> Vec<EventBody> {
    vec![
        EventBody::ConversationCreated(created("invoice totals are a cent off")),
        system_prompt("You repair a billing service written in Rust."),
        user("The invoice test fails since yesterday. Find out why, and fix it."),
        assistant("I run the test and read the code."),
        call("call_t1", "run_tests", &json!({"filter": "invoice"})),
        call("call_r1", "read_file", &json!({"path": "src/invoice.rs"})),
    ]
}

/// Creates a conversation in which both calls have results, and a third call is open.
async fn working(world: &World) -> String {
    let id = world.begin(asked()).await;
    let back = vec![failure("call_t1", TEST_LOG), result("call_r1", SOURCE)];
    world.then(&id, back).await;
    let edit = json!({"path": "src/invoice.rs", "old": "as i64", "new": ".round() as i64"});
    let next = vec![
        assistant("The total is cut off, not rounded."),
        call("call_e1", "edit_file", &edit),
    ];
    world.then(&id, next).await;
    id
}

/// Creates a conversation whose turn has ended.
async fn finished(world: &World) -> String {
    let id = working(world).await;
    let rest = vec![
        result("call_e1", "edited src/invoice.rs: 1 replacement"),
        assistant("Totals are rounded half up now; the invoice test passes."),
    ];
    world.then(&id, rest).await;
    id
}

async fn history(world: &World, id: &str) -> Vec<pb::ToolCall> {
    let request = pb::ToolHistoryRequest {
        conversation_id: id.into(),
        ..Default::default()
    };
    let calls = world.server.tools().history(request).await.unwrap();
    let calls = calls.into_inner().calls;
    let own = ToolHistoryQuery {
        address: BranchAddress::active(ns(), conversation(id)),
        as_of: None,
        tool: None,
        limit: 100,
    };
    let own = world.engine().tool_history(own).await.unwrap();
    let pair = |call: &ToolCall| (call.call_id.clone(), call.result_head.clone());
    let pairs: Vec<_> = calls
        .iter()
        .map(|call| (call.call_id.clone(), call.result_head.clone()))
        .collect();
    assert_eq!(pairs, own.iter().map(pair).collect::<Vec<_>>());
    calls
}

async fn snapshots(world: &World, id: &str) -> Vec<pb::ToolSnapshot> {
    let request = pb::SnapshotsRequest {
        conversation_id: id.into(),
        ..Default::default()
    };
    let answer = world.server.tools().snapshots(request).await.unwrap();
    let answer = answer.into_inner().snapshots;
    let own = world
        .engine()
        .snapshots(&BranchAddress::active(ns(), conversation(id)), None, 100)
        .await
        .unwrap();
    let told: Vec<_> = answer
        .iter()
        .map(|s| (s.result_summary.clone(), s.full_result_ref.clone()))
        .collect();
    let own: Vec<_> = own
        .into_iter()
        .map(|s| (s.result_summary.clone(), s.full_result_ref()))
        .collect();
    assert_eq!(told, own);
    answer
}

// A model that sees results without its calls repeats them. Inside a turn it must see every call
// with its whole result, and which one is still running.
#[tokio::test(flavor = "multi_thread")]
async fn open_turn_shows_calls_with_their_results() {
    let world = World::start().await;
    let id = working(&world).await;
    let request = world.request(next(&id)).await;
    let said = lines(&request.body);
    assert_eq!(
        said[2..],
        [
            "assistant: I run the test and read the code.".to_owned(),
            format!(r#"run_tests({{"filter":"invoice"}}) ! {TEST_LOG}"#),
            format!(r#"read_file({{"path":"src/invoice.rs"}}) = {SOURCE}"#),
            "assistant: The total is cut off, not rounded.".to_owned(),
            r#"edit_file({"path":"src/invoice.rs","old":"as i64","new":".round() as i64"}) ? no result yet: the call has not ended"#.to_owned(),
        ]
    );
    let of_turn = request.told.items.iter().filter(|item| item.turn == 1);
    let of_turn: Vec<_> = of_turn.map(|item| item.section()).collect();
    assert_eq!(of_turn, [pb::Section::OpenTurn; 3]);
    assert!(world.state(&id).await.turn_open);
    let calls = history(&world, &id).await;
    let ids: Vec<_> = calls.iter().map(|call| &*call.call_id).collect();
    assert_eq!(ids, ["call_e1", "call_r1", "call_t1"]);
    assert_eq!(calls[2].status(), pb::CallStatus::Failed);
    assert_eq!(calls[0].status(), pb::CallStatus::Requested);

    let chat = world.request(next_for(&id, pb::Provider::OpenaiChat)).await;
    let roles: Vec<_> = list(&chat.body["messages"])
        .iter()
        .map(|message| text(&message["role"]))
        .collect();
    assert_eq!(
        roles,
        [
            "system",
            "user",
            "assistant",
            "tool",
            "tool",
            "assistant",
            "tool"
        ]
    );
    world.end().await;
}

// Tools run concurrently and end in any order, on separate connections. No result may be lost or
// given to another call, and a request in between must be valid for the provider.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_results_are_collected() {
    let world = World::start().await;
    let files: Vec<String> = (0..8)
        .map(|n| format!("crates/part_{n}/Cargo.toml"))
        .collect();
    let mut opening = vec![
        EventBody::ConversationCreated(created("versions")),
        user("Which versions do our crates have?"),
        assistant("I read all manifests."),
    ];
    let of = |n: usize| format!("call_{n}");
    for (n, path) in files.iter().enumerate() {
        opening.push(call(&of(n), "read_file", &json!({"path": path})));
    }
    let id = world.begin(opening).await;
    let runs = (0..files.len()).rev().map(|n| {
        let (mut events, id) = (world.server.events(), id.clone());
        let back = match n {
            5 => failure(&of(n), "permission denied"),
            _ => result(&of(n), &format!("version = \"1.{n}.0\"")),
        };
        tokio::spawn(async move { events.append(batch(&id, [back])).await.unwrap() })
    });
    let runs: Vec<_> = runs.collect();
    // Whenever the next request is built, each call has one result in it.
    loop {
        let query = next_for(&id, pb::Provider::Anthropic);
        let between = world.contexts().build(query).await.unwrap().into_inner();
        let between: Value = serde_json::from_slice(&between.request).unwrap();
        let last = list(&between["messages"]).last().unwrap();
        assert_eq!(list(&last["content"]).len(), files.len());
        if runs.iter().all(|run| run.is_finished()) {
            break;
        }
    }
    for run in runs {
        run.await.unwrap();
    }
    let said = world.lines(&id).await;
    for (n, path) in files.iter().enumerate() {
        let came = match n {
            5 => "! permission denied".to_owned(),
            _ => format!("= version = \"1.{n}.0\""),
        };
        assert_eq!(
            said[2 + n],
            format!(r#"read_file({{"path":"{path}"}}) {came}"#)
        );
    }
    let anthropic = world.request(next_for(&id, pb::Provider::Anthropic)).await;
    let messages = list(&anthropic.body["messages"]);
    let back = list(&messages.last().unwrap()["content"]);
    let ids: Vec<_> = back
        .iter()
        .map(|b| text(&b["tool_use_id"]).to_owned())
        .collect();
    assert_eq!(ids, (0..files.len()).map(of).collect::<Vec<_>>());
    assert_eq!(back[5]["is_error"], true);
    world.end().await;
}

// A build log of a megabyte arrives slowly. Neither the other calls of the turn nor the next
// request may wait for it. Afterwards, and after a restart, it must be complete.
#[tokio::test(flavor = "multi_thread")]
async fn large_result_streams_in_without_blocking_the_loop() {
    use pb::record_result_request::Item;
    let world = World::start().await;
    let id = world.begin(asked()).await;
    let log: String = (0..16_000)
        .map(|n| format!("   Compiling part_{n} v1.{n}.0 (/srv/billing/crates/part_{n})\n"))
        .collect();
    let (send, receive) = tokio::sync::mpsc::channel(4);
    let mut tools = world.server.tools();
    let recording = tokio::spawn(async move {
        let stream = tokio_stream::wrappers::ReceiverStream::new(receive);
        tools.record_result(stream).await.unwrap().into_inner()
    });
    let piece = |item| pb::RecordResultRequest { item: Some(item) };
    let start = pb::RecordResultStart {
        conversation_id: id.clone(),
        result: Some(pb::ToolResultRecorded {
            call_id: "call_t1".into(),
            success: true,
            ..Default::default()
        }),
        ..Default::default()
    };
    send.send(piece(Item::Start(start))).await.unwrap();
    let (half, rest) = log.as_bytes().split_at(log.len() / 2);
    for chunk in half.chunks(100_000) {
        send.send(piece(Item::Chunk(chunk.to_vec().into())))
            .await
            .unwrap();
    }
    world.then(&id, vec![result("call_r1", SOURCE)]).await;
    let said = world.lines(&id).await;
    assert!(said[3].ends_with("? no result yet: the call has not ended"));
    assert!(said[4].ends_with(SOURCE));
    for chunk in rest.chunks(100_000) {
        send.send(piece(Item::Chunk(chunk.to_vec().into())))
            .await
            .unwrap();
    }
    drop(send);
    let recorded = recording.await.unwrap();

    let world = world.restart().await;
    let request = pb::GetResultRequest {
        conversation_id: id.clone(),
        which: Some(pb::get_result_request::Which::CallId("call_t1".into())),
        ..Default::default()
    };
    let mut stream = world
        .server
        .tools()
        .get_result(request)
        .await
        .unwrap()
        .into_inner();
    let mut whole = Vec::new();
    while let Some(part) = stream.message().await.unwrap() {
        whole.extend_from_slice(&part.chunk);
    }
    assert!(
        whole == log.as_bytes(),
        "{} of {} bytes",
        whole.len(),
        log.len()
    );
    let which = WhichResult::Revision(Revision(recorded.events[0].revision));
    let own = world
        .engine()
        .result(&BranchAddress::active(ns(), conversation(&id)), which)
        .await
        .unwrap();
    assert!(own.text == log);
    world.end().await;
}

// Weeks later someone needs the text of a failed assertion. The snapshot does not have it, but the
// search must find the line in the whole result, also by tool and outcome.
#[tokio::test(flavor = "multi_thread")]
async fn full_results_are_found_by_search() {
    let world = World::start().await;
    let id = working(&world).await;
    let padding: String = (0..3_000)
        .map(|n| format!("debug: row {n} is fine\n"))
        .collect();
    let long = format!("{padding}ledger drift of 3 cents in booking 88213\n{padding}");
    let position = world.then(&id, vec![result("call_e1", &long)]).await;
    let request = |query: &str| pb::SearchRequest {
        query: query.into(),
        conversation_id: id.clone(),
        at_least: Some(position),
        ..Default::default()
    };
    let found = world
        .server
        .search()
        .search(request("\"ledger drift\""))
        .await;
    let found = found.unwrap().into_inner().hits;
    let hit = &found[0];
    assert_eq!((&*hit.call_id, &*hit.tool), ("call_e1", "edit_file"));
    assert!(hit.snippet.contains("booking 88213"), "{}", hit.snippet);
    let near = 3_001_u64.abs_diff(hit.line);
    assert!(near < 200, "the passage begins at line {}", hit.line);
    let own = SearchRequest {
        within: ConversationFilters::only(conversation(&id)),
        at_least: Some(world.engine().head()),
        ..SearchRequest::new(ns(), "\"ledger drift\"", 10)
    };
    let own = world.engine().search(own).await.unwrap().hits;
    assert_eq!(own[0].found.revision.0, hit.revision);
    assert_eq!(own[0].details.line, hit.line);

    let failed = pb::SearchRequest {
        success: Some(false),
        tools: vec!["run_tests".into()],
        ..request("rounds_half_up")
    };
    let failed = world.server.search().search(failed).await.unwrap();
    let failed = failed.into_inner().hits;
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].call_id, "call_t1");
    let wrong = pb::SearchRequest {
        success: Some(true),
        ..request("rounds_half_up")
    };
    let wrong = world.server.search().search(wrong).await.unwrap();
    let kinds: Vec<_> = wrong.into_inner().hits;
    assert!(kinds.iter().all(|hit| hit.call_id != "call_t1"));
    world.end().await;
}

// The window holds one line of a result. The reference in the line must lead to exactly that
// result, whole or in part.
#[tokio::test(flavor = "multi_thread")]
async fn full_result_is_read_by_its_reference() {
    let world = World::start().await;
    let id = finished(&world).await;
    let short = next_by(&id, &json!({"tool_results": "turn_end"}));
    let body = world.request(short).await.body;
    let step = list(&body["items"])
        .iter()
        .find(|item| item["type"] == "step")
        .unwrap();
    let outcome = &list(&step["blocks"])[2]["outcome"];
    let reference = text(&outcome["full_result_ref"]);
    let (place, revision) = reference.rsplit_once('/').unwrap();
    assert_eq!(place, format!("treering:{id}"));
    let revision: u64 = revision.parse().unwrap();
    for (first, last, expected) in [
        (0, 0, SOURCE),
        (2, 2, "    (net * (1.0 + vat) * 100.0) as i64\n"),
    ] {
        let request = pb::GetResultRequest {
            conversation_id: id.clone(),
            which: Some(pb::get_result_request::Which::Revision(revision)),
            line_first: first,
            line_last: last,
            ..Default::default()
        };
        let mut stream = world
            .server
            .tools()
            .get_result(request)
            .await
            .unwrap()
            .into_inner();
        let part = stream.message().await.unwrap().unwrap();
        assert_eq!(part.info.unwrap().tool, "read_file");
        let read = String::from_utf8(part.chunk.to_vec()).unwrap();
        assert_eq!(read.trim_end(), expected.trim_end());
    }
    let which = WhichResult::Revision(Revision(revision));
    let own = world
        .engine()
        .result(&BranchAddress::active(ns(), conversation(&id)), which)
        .await
        .unwrap();
    assert_eq!((&*own.tool, &*own.text), ("read_file", SOURCE));
    world.end().await;
}

// After the assistant's answer, a line replaces each call with its result, a recorded snapshot if
// there is one, and the next turn begins with an empty history.
#[tokio::test(flavor = "multi_thread")]
async fn snapshots_are_written_at_turn_end_and_history_is_cleared() {
    let world = World::start().await;
    let policy = json!({"tool_results": "turn_end"});
    let mut opening = asked();
    opening[0] = created_with("invoice totals", "context", &policy);
    let id = world.begin(opening).await;
    let long_source = format!("{SOURCE}{}", "// more code\n".repeat(200));
    let back = vec![
        failure("call_t1", TEST_LOG),
        result("call_r1", &long_source),
    ];
    world.then(&id, back).await;
    let open = world.lines(&id).await;
    assert_eq!(
        open[3],
        format!(r#"run_tests({{"filter":"invoice"}}) ! {TEST_LOG}"#)
    );
    assert!(
        open[4].ends_with(&long_source),
        "in full while the turn is open"
    );

    world
        .then(&id, vec![assistant("The total is cut off, not rounded.")])
        .await;
    let snapshot = EventBody::ToolSnapshotRecorded(ToolSnapshotRecorded {
        call_id: "call_r1".into(),
        request_revision: Revision(6),
        summary: "total_cents casts to i64 without rounding".into(),
    });
    world.then(&id, vec![snapshot, user("Fix it then.")]).await;
    let request = world.request(next(&id)).await;
    let said = lines(&request.body);
    assert!(
        said[4].starts_with(r#"run_tests({"filter":"invoice"}) ~ failed"#),
        "{}",
        said[4]
    );
    assert!(said[4].contains("rounds_half_up") && said[4].len() < 800);
    assert_eq!(
        said[5],
        r#"read_file({"path":"src/invoice.rs"}) ~ total_cents casts to i64 without rounding"#
    );
    assert_eq!(said[7], "user: Fix it then.");
    let step = &list(&request.body["items"])[1];
    let outcome = &list(&step["blocks"])[2]["outcome"];
    assert_eq!(outcome["tool_name"], "read_file");
    assert_eq!(outcome["arguments"], json!({"path": "src/invoice.rs"}));
    assert_eq!(outcome["recorded"], true);
    let in_turn = request
        .told
        .items
        .iter()
        .filter(|item| item.section() == pb::Section::OpenTurn);
    let heads: Vec<_> = in_turn.map(|item| &*item.head).collect();
    assert_eq!(
        heads,
        ["Fix it then."],
        "no call of the last turn is in the open one"
    );

    let early = world
        .engine()
        .snapshots(
            &BranchAddress::active(ns(), conversation(&id)),
            Some(Revision(7)),
            100,
        )
        .await
        .unwrap();
    let early: Vec<_> = early.iter().map(|s| &*s.call_id).collect();
    assert_eq!(early, ["call_t1"], "as of its result");
    let told = snapshots(&world, &id).await;
    let ids: Vec<_> = told
        .iter()
        .map(|s| (&*s.call_id, s.recorded, s.success))
        .collect();
    assert_eq!(ids, [("call_r1", true, true), ("call_t1", false, false)]);
    assert_eq!(told[0].full_result_ref, text(&outcome["full_result_ref"]));
    world.end().await;
}

// A request must contain the current active context and the tool results so far: the history
// unchanged, and the context behind it.
#[tokio::test(flavor = "multi_thread")]
async fn request_is_built_from_active_context_and_history() {
    let world = World::start().await;
    let id = working(&world).await;
    let before = world.lines(&id).await;
    let open = key(
        "open_file",
        &json!({"path": "src/invoice.rs", "line": 2}),
        "workspace",
    );
    let failing = key(
        "failing_tests",
        &json!(["invoice::rounds_half_up"]),
        "tests",
    );
    world
        .contexts()
        .set(set(&id, vec![open, failing]))
        .await
        .unwrap();
    let request = world.request(next(&id)).await;
    let explained = world.contexts().explain(next(&id)).await.unwrap();
    let explained = explained.into_inner().explanation.unwrap();
    assert_eq!(explained.items, request.told.items);
    let said = lines(&request.body);
    assert_eq!(said[..before.len()], before);
    let context = tagged_json(&said, "SYSTEM_CONTEXT").unwrap();
    assert_eq!(
        context,
        json!({"failing_tests": ["invoice::rounds_half_up"],
               "open_file": {"path": "src/invoice.rs", "line": 2}})
    );
    assert!(said.last().unwrap().contains("<SYSTEM_CONTEXT>"));
    let sections: Vec<_> = request.told.sections.iter().map(|s| s.section()).collect();
    assert!(sections.contains(&pb::Section::OpenTurn), "{sections:?}");
    assert!(
        sections.contains(&pb::Section::ActiveContext),
        "{sections:?}"
    );

    world
        .then(&id, vec![result("call_e1", "edited src/invoice.rs")])
        .await;
    let moved = key(
        "open_file",
        &json!({"path": "src/vat.rs", "line": 1}),
        "workspace",
    );
    world.contexts().set(set(&id, vec![moved])).await.unwrap();
    let said = world.lines(&id).await;
    assert!(
        said.iter()
            .any(|line| line.ends_with("= edited src/invoice.rs"))
    );
    let context = tagged_json(&said, "SYSTEM_CONTEXT").unwrap();
    assert_eq!(context["open_file"]["path"], "src/vat.rs");
    world.end().await;
}

// A person at a terminal watches an agent: its next request, its tools' results, short and whole,
// and where a word occurred.
#[tokio::test(flavor = "multi_thread")]
async fn tool_loop_works_from_the_command_line() {
    let world = World::start().await;
    let id = working(&world).await;
    let open = world.cli(&["tools", &id]).await;
    assert!(
        open.contains("edit_file") && open.contains("requested"),
        "{open}"
    );
    world
        .cli(&["set", &id, "open_file", "\"src/invoice.rs\""])
        .await;
    let rest = vec![
        result("call_e1", "edited src/invoice.rs: 1 replacement"),
        assistant("Totals are rounded half up now."),
    ];
    let position = world.then(&id, rest).await;

    let built = world.cli(&["context", &id]).await;
    let said = lines(&serde_json::from_str(&built).unwrap());
    assert!(said[4].ends_with(SOURCE), "{said:?}");
    assert_eq!(
        tagged_json(&said, "SYSTEM_CONTEXT").unwrap(),
        json!({"open_file": "src/invoice.rs"})
    );
    let short = world
        .cli_json(&["context", &id, "--tool-results", "turn-end"])
        .await;
    let said = lines(&short[0]["request"]);
    assert!(
        said[4].starts_with(r#"run_tests({"filter":"invoice"}) ~ failed"#),
        "{said:?}"
    );
    let explained = world.cli(&["context", &id, "--explain"]).await;
    assert!(
        explained.contains("active context") || explained.contains("active_context"),
        "{explained}"
    );

    let told = world.cli_json(&["tools", &id, "--snapshots"]).await;
    let names: Vec<_> = told.iter().map(|s| text(&s["tool_name"])).collect();
    assert_eq!(names, ["edit_file", "read_file", "run_tests"]);
    let reference = text(&told[1]["full_result_ref"]);
    world
        .cli(&[
            "fork",
            &id,
            "--at",
            "3",
            "--name",
            "elsewhere",
            "--activate",
        ])
        .await;
    let whole = world.cli(&["result", reference]).await;
    assert_eq!(
        whole, SOURCE,
        "a reference names an event, whatever branch is active"
    );
    let line = world.cli(&["result", reference, "--lines", "2-2"]).await;
    assert_eq!(line.trim(), "(net * (1.0 + vat) * 100.0) as i64");

    let indexed = SearchRequest {
        at_least: Some(Position::local(position.offset)),
        ..SearchRequest::new(ns(), "x", 1)
    };
    world.engine().search(indexed).await.unwrap();
    let hits = world
        .cli_json(&["search", "-c", &id, "--failed", "rounds_half_up"])
        .await;
    assert_eq!(hits[0]["call_id"], "call_t1", "{hits:?}");
    world.end().await;
}
