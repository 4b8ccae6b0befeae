//! The engine as an embedder uses it, on a real folder.

use futures::StreamExt;
use treering::{domain::*, engine::*};

fn ns() -> Namespace {
    Namespace::default()
}

fn message(id: ConversationId, role: Role, text: &str) -> NewEvent {
    NewEvent::new(
        id,
        EventBody::MessageAppended(MessageAppended::text(role, text)),
    )
}

fn created(id: ConversationId) -> NewEvent {
    NewEvent::new(
        id,
        EventBody::ConversationCreated(ConversationCreated::default()),
    )
}

fn call(id: ConversationId, call_id: &str, tool: &str, arguments: &str) -> NewEvent {
    let arguments = treering::codec::json::check(arguments.as_bytes()).unwrap();
    let arguments_hash = ContentHash(*blake3::hash(arguments.as_bytes()).as_bytes());
    NewEvent::new(
        id,
        EventBody::ToolCallRequested(ToolCallRequested {
            call_id: call_id.into(),
            tool: tool.into(),
            arguments,
            arguments_hash,
            message_revision: None,
            needs_approval: false,
        }),
    )
}

fn result(id: ConversationId, call_id: &str, text: &str) -> NewEvent {
    NewEvent::new(
        id,
        EventBody::ToolResultRecorded(ToolResultRecorded::text(call_id, text)),
    )
}

async fn append(engine: &Engine, events: Vec<NewEvent>) -> AppendOutcome {
    engine
        .append(AppendCommand::new(ns(), events))
        .await
        .unwrap()
}

async fn verify(engine: &Engine) -> (VerifyOutcome, Vec<Fault>) {
    let mut items = engine.verify(&ns(), true);
    let mut faults = Vec::new();
    while let Some(item) = items.next().await {
        match item.unwrap() {
            VerifyItem::Outcome(outcome) => return (outcome, faults),
            VerifyItem::Fault(fault) => faults.push(fault),
            VerifyItem::Progress(_) => {}
        }
    }
    panic!("a verification ends with an outcome");
}

/// A store must be the same store after it was closed and opened again: events,
/// forks, search and views.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_survives_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(OpenOptions::new(dir.path())).await.unwrap();
    let id = ConversationId::generate();
    let big = "needle in a large result\n".repeat(8_000);
    append(
        &engine,
        vec![
            created(id),
            message(id, Role::User, "look for it"),
            message(id, Role::Assistant, "searching"),
            call(id, "c1", "grep", r#"{"q": "needle"}"#),
            result(id, "c1", &big),
            message(id, Role::Assistant, "found the haystack"),
        ],
    )
    .await;
    let forked = engine
        .fork(ForkCommand {
            namespace: ns(),
            conversation: id,
            branch: None,
            at: Some(Revision(3)),
            name: "other".into(),
            system_prompt: String::new(),
            into: None,
            activate: false,
            idempotency_key: None,
            actor: String::new(),
        })
        .await
        .unwrap();
    assert_eq!(forked.branch.id, BranchId(7));
    let other = BranchName::new("other").unwrap();
    append(
        &engine,
        vec![message(id, Role::Assistant, "another way").on_branch(other.clone())],
    )
    .await;
    engine.close().await;
    drop(engine);

    let engine = Engine::open(OpenOptions::new(dir.path())).await.unwrap();
    let branch = |name: &str| Source::Branch {
        conversation: id,
        branch: Some(BranchName::new(name).unwrap()),
    };
    let main = engine
        .read_all(ReadQuery::all(ns(), branch("main")))
        .await
        .unwrap();
    assert_eq!(main.len(), 6);
    let side = engine
        .read_all(ReadQuery::all(ns(), branch("other")))
        .await
        .unwrap();
    let revisions: Vec<_> = side.iter().map(|e| e.event.header.revision.0).collect();
    assert_eq!(revisions, [1, 2, 3, 7, 8]);

    let answer = engine
        .search(SearchRequest {
            at_least: Some(engine.head()),
            ..SearchRequest::new(ns(), "haystack", 10)
        })
        .await
        .unwrap();
    assert_eq!(answer.hits.len(), 1);
    assert_eq!(answer.hits[0].revision, Revision(6));
    let text = engine
        .result(&ns(), id, None, WhichResult::CallId("c1".into()))
        .await
        .unwrap()
        .text;
    assert_eq!(text, big);
    let history = engine
        .tool_history(ToolHistoryQuery {
            namespace: ns(),
            conversation: id,
            branch: None,
            as_of: None,
            tool: None,
            limit: 10,
        })
        .await
        .unwrap();
    assert_eq!(history[0].status, CallStatus::Succeeded);
    assert_eq!(history[0].tool, "grep");
    let (outcome, faults) = verify(&engine).await;
    assert_eq!(faults, []);
    assert!(outcome.sound);
    assert_eq!(outcome.events, 8);
    let mut items = engine.rebuild(true, true);
    let mut last = None;
    while let Some(item) = items.next().await {
        last = Some(item.unwrap());
    }
    assert!(matches!(
        last,
        Some(RebuildItem::Outcome(RebuildOutcome { events: 8, .. }))
    ));
    let (outcome, faults) = verify(&engine).await;
    assert_eq!(faults, []);
    assert!(outcome.sound);
    engine.close().await;
}

/// Whoever waits for a decision acts on who decided and why: an answer that only
/// says "approved" would send every waiter to read the history.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_tells_who_decided() {
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let id = ConversationId::generate();
    let mut ask = call(id, "c1", "rm", r#"{"path": "x"}"#);
    let EventBody::ToolCallRequested(request) = &mut ask.body else {
        panic!("a request");
    };
    request.needs_approval = true;
    let arguments_hash = request.arguments_hash;
    append(&engine, vec![created(id), ask]).await;
    let decided = EventBody::ApprovalDecided(ApprovalDecided {
        call_id: "c1".into(),
        decision: Decision::Approved,
        arguments_hash,
        decided_by: "ada".into(),
        reason: "an old file".into(),
    });
    append(&engine, vec![NewEvent::new(id, decided)]).await;
    let wait = std::time::Duration::from_secs(20);
    let (call, decided) = engine
        .wait_for_decision(&ns(), id, None, "c1", wait)
        .await
        .unwrap();
    assert!(decided);
    assert_eq!(call.status, CallStatus::Approved);
    assert_eq!(
        (&*call.decided_by, &*call.decision_reason),
        ("ada", "an old file")
    );
    assert_eq!(call.decision_revision, Some(Revision(3)));
    engine.close().await;
}
