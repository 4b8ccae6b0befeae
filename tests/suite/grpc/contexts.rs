//! The Contexts service over the wire: requests, compactions, active context, sub-contexts.

use std::time::Duration;

use serde_json::Value;
use tonic::{Code, Streaming};
use treering::{domain::*, proto::pb};

use super::harness::*;

fn build(id: &str, provider: pb::Provider) -> pb::BuildRequest {
    pb::BuildRequest {
        conversation_id: id.into(),
        provider: provider.into(),
        model: "gpt-4o".into(),
        ..Default::default()
    }
}

fn body(answer: &pb::BuildResponse) -> Value {
    serde_json::from_slice(&answer.request).unwrap()
}

/// Creates a conversation that has a finished turn with a call, and `turns` plain ones.
async fn talked(server: &TestServer, turns: usize) -> String {
    let mut events = vec![
        created("harbour"),
        message(Role::User, "Read the log book, please."),
        message(Role::Assistant, "I look."),
        call("call_1", "read_file", r#"{"path": "log.txt"}"#, false),
        result("call_1", "wind from the west, twelve boats"),
        message(Role::Assistant, "Twelve boats, wind from the west."),
    ];
    for turn in 0..turns {
        events.push(message(Role::User, &format!("And boat {turn}?")));
        events.push(message(Role::Assistant, &format!("Boat {turn} is at sea.")));
    }
    let response = server.append(batch("", events)).await;
    response.events[0].conversation_id.clone()
}

// One fork, two providers: the client gets the body to send, in the provider's shape, with an
// explanation that names its events.
#[tokio::test(flavor = "multi_thread")]
async fn fork_gives_requests_for_two_providers() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = talked(&server, 1).await;
    let fork = pb::ForkRequest {
        conversation_id: id.clone(),
        at_revision: 6,
        name: "again".into(),
        system_prompt: "You are brief.".into(),
        ..Default::default()
    };
    server.conversations().fork(fork).await.unwrap();
    let question = message(Role::User, "Which boat is the oldest?");
    let mut request = batch(&id, [question]);
    request.branch = "again".into();
    server.append(request).await;
    for (provider, system) in [
        (pb::Provider::OpenaiChat, "/messages/0/content"),
        (pb::Provider::Anthropic, "/system"),
    ] {
        let mut request = build(&id, provider);
        request.branch = "again".into();
        let answer = server.contexts().build(request).await.unwrap().into_inner();
        let body = body(&answer);
        let told = answer.explanation.unwrap();
        let system = body.pointer(system).unwrap().to_string();
        assert!(system.contains("You are brief."), "{body:#}");
        let text = body.to_string();
        assert!(text.contains("twelve boats") && text.contains("oldest"));
        assert!(!text.contains("And boat"), "that was said on main");
        assert_eq!((told.provider(), &*told.branch), (provider, "again"));
        assert_eq!(told.model, "gpt-4o");
        let sum: u64 = told.sections.iter().map(|section| section.tokens).sum();
        assert_eq!(sum, told.tokens);
        let from_events = |item: &pb::ExplainedItem| !item.events.is_empty();
        assert!(told.items.iter().filter(|item| from_events(item)).count() >= 3);
    }
    server.stop().done().await;
}

// Explaining must not change what the next build reports, and a build of the past must not see
// newer events.
#[tokio::test(flavor = "multi_thread")]
async fn explain_does_not_change_the_next_build() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = talked(&server, 1).await;
    let request = || build(&id, pb::Provider::OpenaiChat);
    let mut contexts = server.contexts();
    let first = contexts.explain(request()).await.unwrap().into_inner();
    assert!(first.explanation.unwrap().shared_prefix.is_none());
    let built = contexts.build(request()).await.unwrap().into_inner();
    let built = built.explanation.unwrap();
    assert!(
        built.shared_prefix.is_none(),
        "an explanation is no request"
    );
    server
        .append(batch(&id, [message(Role::User, "Why?")]))
        .await;
    for _ in 0..2 {
        let told = contexts.explain(request()).await.unwrap().into_inner();
        let shared = told.explanation.unwrap().shared_prefix.unwrap();
        assert_eq!(shared.previous_revision, built.revision);
        assert_eq!(shared.bytes, shared.previous_bytes);
    }
    let mut past = request();
    past.as_of_revision = 2;
    let answer = contexts.build(past).await.unwrap().into_inner();
    assert!(!body(&answer).to_string().contains("twelve"));
    server.stop().done().await;
}

// An error of an invalid request must name the field, and a wait for a position that is never
// reached must end.
#[tokio::test(flavor = "multi_thread")]
async fn invalid_build_request_names_the_field() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = talked(&server, 0).await;
    let good = || build(&id, pb::Provider::Gemini);
    let unknown = pb::BuildRequest {
        provider: 99,
        ..good()
    };
    let no_json = pb::BuildRequest {
        policy: "{".into(),
        ..good()
    };
    let no_policy = pb::BuildRequest {
        policy: r#"{"budget": 1}"#.into(),
        ..good()
    };
    for (request, code, field) in [
        (unknown, Code::InvalidArgument, "provider"),
        (no_json, Code::InvalidArgument, "policy"),
        (no_policy, Code::InvalidArgument, "policy"),
        (
            build("", pb::Provider::Gemini),
            Code::InvalidArgument,
            "conversation_id",
        ),
        (build("nobody", pb::Provider::Gemini), Code::NotFound, ""),
    ] {
        let status = server.contexts().build(request).await.unwrap_err();
        assert_eq!((status.code(), &*bad_field(&status)), (code, field));
    }
    let mut request = tonic::Request::new(pb::BuildRequest {
        at_least: Some(pb::Position {
            shard: 0,
            offset: 1 << 40,
        }),
        ..good()
    });
    let metadata = request.metadata_mut();
    metadata.insert("grpc-timeout", "200m".parse().unwrap());
    let late = server.contexts().build(request).await.unwrap_err();
    // The client has a timer, too, and reports its own code if it is first.
    let ended = [Code::DeadlineExceeded, Code::Cancelled];
    assert!(ended.contains(&late.code()), "{late:?}");
    server.stop().done().await;
}

// The summary is written and awaited before the request is built, so the request never misses it.
#[tokio::test(flavor = "multi_thread")]
async fn build_waits_for_the_requested_position() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = talked(&server, 0).await;
    let last = server.read_all(&id).await.pop().unwrap();
    let next = last.position.map(|last| pb::Position {
        offset: last.offset + 1,
        ..last
    });
    let waiting = tokio::spawn({
        let mut contexts = server.contexts();
        let request = pb::BuildRequest {
            at_least: next,
            ..build(&id, pb::Provider::OpenaiChat)
        };
        async move { contexts.build(request).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let summary = EventBody::SummaryRecorded(SummaryRecorded {
        content: "They talk about twelve boats.".into(),
        from_revision: Revision(2),
        to_revision: Revision(6),
    });
    server.append(batch(&id, [summary])).await;
    let answer = waiting.await.unwrap().unwrap().into_inner();
    assert!(
        body(&answer)
            .to_string()
            .contains("They talk about twelve boats.")
    );
    server.stop().done().await;
}

// tonic's own limit of 4 MiB must not apply to requests.
#[tokio::test(flavor = "multi_thread")]
async fn request_over_4_mib_is_returned_whole() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = talked(&server, 0).await;
    let long = "the sea is wide and ".repeat(300_000);
    let events = [message(Role::User, &long)];
    server.append(batch(&id, events)).await;
    let request = build(&id, pb::Provider::OpenaiResponses);
    let answer = server.contexts().build(request).await.unwrap().into_inner();
    assert!(answer.request.len() > long.len());
    server.stop().done().await;
}

// A compaction is planned, its summary written, applied, and expanded.
#[tokio::test(flavor = "multi_thread")]
async fn conversation_is_compacted_and_expanded() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = talked(&server, 5).await;
    let mut contexts = server.contexts();
    let request = pb::PlanCompactionRequest {
        conversation_id: id.clone(),
        keep_turns: Some(2),
        ..Default::default()
    };
    let plan = contexts
        .plan_compaction(request)
        .await
        .unwrap()
        .into_inner();
    let plan = plan.plan.unwrap();
    assert_eq!((plan.kept_turns, plan.summarised_turns), (2, 4));
    assert!(plan.cut_revision > 6 && plan.tokens_kept < plan.tokens_before);
    assert!(!plan.instruction.is_empty() && plan.material.contains("boat"));
    let all_kept = pb::CompactRequest {
        conversation_id: id.clone(),
        keep_turns: Some(100),
        ..Default::default()
    };
    let status = contexts.compact(all_kept).await.unwrap_err();
    assert_eq!(reason(&status), "NOTHING_TO_COMPACT");
    let request = pb::CompactRequest {
        conversation_id: id.clone(),
        summary: "Twelve boats were counted with read_file.".into(),
        keep_turns: Some(2),
        expected_head: plan.head_revision,
        idempotency_key: "once".into(),
        ..Default::default()
    };
    let first = contexts
        .compact(request.clone())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(first.cut_revision, plan.cut_revision);
    assert!(
        first
            .warnings
            .iter()
            .any(|warning| warning.contains("read_file"))
    );
    let again = contexts
        .compact(request.clone())
        .await
        .unwrap()
        .into_inner();
    assert!(again.repeated_key && again.event == first.event);
    let other = pb::CompactRequest {
        summary: "another summary".into(),
        ..request
    };
    let status = contexts.compact(other).await.unwrap_err();
    assert_eq!(reason(&status), "IDEMPOTENCY_CONFLICT");
    let answer = contexts.build(build(&id, pb::Provider::OpenaiChat)).await;
    let text = body(&answer.unwrap().into_inner()).to_string();
    assert!(text.contains("Twelve boats were counted") && text.contains("Boat 4"));
    assert!(!text.contains("Boat 0"));
    let request = pb::ExpandRequest {
        conversation_id: id.clone(),
        ..Default::default()
    };
    let mut stream = contexts.expand(request).await.unwrap().into_inner();
    let mut revisions = Vec::new();
    while let Some(answer) = stream.message().await.unwrap() {
        revisions.extend(answer.events.iter().map(|event| event.revision));
    }
    assert_eq!(revisions.last(), Some(&plan.cut_revision));
    assert!(revisions.contains(&5), "the result is there: {revisions:?}");
    let stale = pb::CompactRequest {
        conversation_id: id,
        summary: "late".into(),
        expected_head: plan.head_revision,
        ..Default::default()
    };
    let refused = contexts.compact(stale).await.unwrap_err();
    assert!(matches!(
        &*reason(&refused),
        "REVISION_MISMATCH" | "NOTHING_TO_COMPACT"
    ));
    server.stop().done().await;
}

async fn next(watch: &mut Streaming<pb::WatchContextResponse>) -> String {
    use pb::watch_context_response::Item;
    match watch.message().await.unwrap().unwrap().item.unwrap() {
        Item::Entry(entry) => {
            let value = String::from_utf8(entry.value.to_vec()).unwrap();
            format!("{}={value}", entry.key)
        }
        Item::RemovedKey(key) => format!("-{key}"),
        Item::CaughtUp(caught_up) => format!("@{}", caught_up.revision),
    }
}

// Providers write keys, others watch, and the next request contains them. The long-term context of
// a namespace is available without a conversation.
#[tokio::test(flavor = "multi_thread")]
async fn active_context_is_set_and_watched() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = talked(&server, 0).await;
    let mut contexts = server.contexts();
    let set = |id: &str, key: &str, json: &'static str| pb::SetContextRequest {
        conversation_id: id.into(),
        set: vec![pb::ContextSet {
            key: key.into(),
            value: json.into(),
            provider: "workspace".into(),
        }],
        ..Default::default()
    };
    let watch = |id: &str| pb::WatchContextRequest {
        conversation_id: id.into(),
        ..Default::default()
    };
    let mut short = contexts.watch(watch(&id)).await.unwrap().into_inner();
    let mut long = contexts.watch(watch("")).await.unwrap().into_inner();
    assert_eq!(next(&mut short).await, "@6");
    assert_eq!(next(&mut long).await, "@0");
    contexts
        .set(set(&id, "open_file", r#""quay.rs""#))
        .await
        .unwrap();
    contexts
        .set(set("", "home_port", r#""Lisbon""#))
        .await
        .unwrap();
    assert_eq!(next(&mut short).await, r#"open_file="quay.rs""#);
    assert_eq!(next(&mut long).await, r#"home_port="Lisbon""#);
    let answer = contexts.build(build(&id, pb::Provider::OpenaiChat)).await;
    let text = body(&answer.unwrap().into_inner()).to_string();
    assert!(text.contains("SYSTEM_CONTEXT"), "{text}");
    assert!(text.contains("quay.rs") && text.contains("Lisbon"));
    let remove = pb::SetContextRequest {
        conversation_id: id.clone(),
        remove: vec!["open_file".into()],
        ..Default::default()
    };
    contexts.set(remove).await.unwrap();
    assert_eq!(next(&mut short).await, "-open_file");

    let no_json = contexts.set(set(&id, "k", "{")).await.unwrap_err();
    assert_eq!(bad_field(&no_json), "set[0].value");
    let mut branch = watch("");
    branch.branch = "main".into();
    let no_branch = contexts.watch(branch).await.unwrap_err();
    assert_eq!(bad_field(&no_branch), "branch");
    let nothing = contexts.set(pb::SetContextRequest::default()).await;
    assert_eq!(nothing.unwrap_err().code(), Code::InvalidArgument);
    drop((short, long));
    server.stop().done().await;
}

// Both ends of a sub-context over the wire, and the errors that clients act on.
#[tokio::test(flavor = "multi_thread")]
async fn sub_context_is_spawned_and_returns() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let id = server.conversation().await;
    let mut contexts = server.contexts();
    let spawn = pb::SpawnRequest {
        conversation_id: id.clone(),
        call_id: "call_2".into(),
        purpose: "find the time".into(),
        system_prompt: "You read clocks.".into(),
        config: Some(pb::Config {
            model_id: "small".into(),
            ..Default::default()
        }),
        idempotency_key: "clock".into(),
        ..Default::default()
    };
    let spawned = contexts.spawn(spawn.clone()).await.unwrap().into_inner();
    assert_eq!(spawned.events.len(), 3);
    let again = contexts.spawn(spawn.clone()).await.unwrap().into_inner();
    assert!(again.repeated_key && again.child_id == spawned.child_id);
    let pending = pb::SpawnRequest {
        call_id: "call_1".into(),
        idempotency_key: String::new(),
        ..spawn.clone()
    };
    let bad_config = pb::SpawnRequest {
        config: Some(pb::Config {
            parameters: [("t".to_owned(), "{".to_owned())].into(),
            ..Default::default()
        }),
        ..spawn
    };
    let refused = contexts.spawn(pending).await.unwrap_err();
    assert_eq!(reason(&refused), "CALL_NOT_APPROVED");
    let malformed = contexts.spawn(bad_config).await.unwrap_err();
    assert_eq!(bad_field(&malformed), "config.parameters[t]");

    let child = spawned.child_id;
    let words = message(Role::Assistant, "It is noon.");
    server.append(batch(&child, [words])).await;
    let end = pb::ReturnRequest {
        conversation_id: child.clone(),
        ..Default::default()
    };
    let returned = contexts.r#return(end.clone()).await.unwrap().into_inner();
    assert_eq!(returned.events.len(), 3);
    let twice = contexts.r#return(end).await.unwrap_err();
    assert_eq!(twice.code(), Code::FailedPrecondition);
    assert_eq!(reason(&twice), "SUB_CONTEXT_NOT_RUNNING");
    let lineage = pb::LineageRequest {
        conversation_id: id.clone(),
        ..Default::default()
    };
    let lineage = server.conversations().lineage(lineage).await.unwrap();
    assert_eq!(lineage.into_inner().children, [child]);
    let answer = contexts.build(build(&id, pb::Provider::Anthropic)).await;
    let text = body(&answer.unwrap().into_inner()).to_string();
    assert!(text.contains("It is noon."), "{text}");
    server.stop().done().await;
}
