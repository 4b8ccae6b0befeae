//! The engine as an embedding program uses it, on a real folder.

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
    let arguments = treering::proto::json::check(arguments.as_bytes()).unwrap();
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
            ..ToolCallRequested::default()
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

/// A store must be the same after it is closed and opened again: events, forks, search and
/// projections.
#[tokio::test(flavor = "multi_thread")]
async fn store_survives_reopening() {
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
            address: BranchAddress::active(ns(), id),
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
    let branch = |name: &str| EventSource::Branch {
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
    assert_eq!(answer.hits[0].found.revision, Revision(6));
    let text = engine
        .result(
            &BranchAddress::active(ns(), id),
            WhichResult::CallId("c1".into()),
        )
        .await
        .unwrap()
        .text;
    assert_eq!(text, big);
    let history = engine
        .tool_history(ToolHistoryQuery {
            address: BranchAddress::active(ns(), id),
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

fn text_of(event: &NamedEvent) -> String {
    let kind = event.event.header.kind().unwrap();
    match treering::proto::body::decode(kind, &event.event.body).unwrap() {
        EventBody::MessageAppended(message) => message
            .parts
            .iter()
            .filter_map(|part| part.text())
            .collect(),
        body => format!("({})", body.kind()),
    }
}

fn fork_at(id: ConversationId, branch: &str, at: u64, name: &str) -> ForkCommand {
    ForkCommand {
        address: BranchAddress::active(ns(), id).on(BranchName::new(branch).unwrap()),
        at: Some(Revision(at)),
        name: name.into(),
        system_prompt: String::new(),
        into: None,
        activate: false,
        idempotency_key: None,
        actor: String::new(),
    }
}

/// Deep trees must not need copies, or a walk through all ancestors at every step. A fork of a
/// fork, a thousand deep, must read correctly, also as of a revision in the middle, and after a
/// rebuild.
#[tokio::test(flavor = "multi_thread")]
async fn forks_1000_levels_deep_are_read() {
    const DEPTH: u64 = 1_000;
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let id = ConversationId::generate();
    append(&engine, vec![created(id), message(id, Role::User, "root")]).await;
    let mut head = 2;
    let mut parent = "main".to_owned();
    for depth in 1..=DEPTH {
        let name = format!("fork-{depth}");
        let forked = engine
            .fork(fork_at(id, &parent, head, &name))
            .await
            .unwrap();
        let text = format!("at depth {depth}");
        let branch = BranchName::new(&name).unwrap();
        let outcome = append(
            &engine,
            vec![message(id, Role::Assistant, &text).on_branch(branch)],
        )
        .await;
        assert_eq!(forked.branch.depth as u64, depth);
        head = outcome.events[0].revision.0;
        parent = name;
    }
    let deepest = EventSource::Branch {
        conversation: id,
        branch: Some(BranchName::new(&parent).unwrap()),
    };
    let events = engine
        .read_all(ReadQuery::all(ns(), deepest.clone()))
        .await
        .unwrap();
    assert_eq!(events.len() as u64, 2 + 2 * DEPTH);
    let mut backward = engine
        .read_all(ReadQuery {
            backward: true,
            ..ReadQuery::all(ns(), deepest)
        })
        .await
        .unwrap();
    backward.reverse();
    assert_eq!(backward, events);
    assert_eq!(text_of(&events[2 * 500 + 1]), "at depth 500");
    let middle = events[2 * 500 + 1].event.header.revision;
    let branch = BranchName::new(&parent).unwrap();
    let view = engine
        .conversation(
            &BranchAddress::active(ns(), id).on(branch.clone()),
            Some(middle),
        )
        .await
        .unwrap();
    assert_eq!(view.branch.depth, 500);
    assert_eq!(view.branch.history_events, 2 + 2 * 500);
    let lineage = engine
        .lineage(&BranchAddress::active(ns(), id).on(branch.clone()))
        .await
        .unwrap();
    assert_eq!(lineage.steps.len() as u64, DEPTH + 1);
    let (outcome, faults) = verify(&engine).await;
    assert_eq!(faults, []);
    assert!(outcome.sound);
}

/// A fork into a new conversation must share the history by reference. It must not touch the
/// parent, even if that is sealed.
#[tokio::test(flavor = "multi_thread")]
async fn fork_into_a_new_conversation_shares_history() {
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let (id, other) = (ConversationId::generate(), ConversationId::generate());
    append(
        &engine,
        vec![
            created(id),
            message(id, Role::User, "one"),
            message(id, Role::Assistant, "two"),
            message(id, Role::User, "three"),
        ],
    )
    .await;
    let sealed = EventBody::ConversationSealed {
        reason: "done".into(),
        summary: String::new(),
    };
    append(&engine, vec![NewEvent::new(id, sealed)]).await;
    let command = ForkCommand {
        into: Some(other),
        ..fork_at(id, "main", 3, "a fork")
    };
    let before = engine.stats(&ns()).await.unwrap().events;
    engine.fork(command).await.unwrap();
    assert_eq!(engine.stats(&ns()).await.unwrap().events, before + 1);
    append(&engine, vec![message(other, Role::User, "another three")]).await;
    let source = EventSource::Branch {
        conversation: other,
        branch: None,
    };
    let events = engine.read_all(ReadQuery::all(ns(), source)).await.unwrap();
    let texts: Vec<_> = events.iter().map(text_of).collect();
    let expected = [
        "(conversation_created)",
        "one",
        "two",
        "(conversation_created)",
        "another three",
    ];
    assert_eq!(texts, expected);
    let lineage = engine
        .lineage(&BranchAddress::active(ns(), id))
        .await
        .unwrap();
    assert_eq!(lineage.children, [other]);
    let refused = engine
        .append(AppendCommand::new(
            ns(),
            vec![message(id, Role::User, "more")],
        ))
        .await
        .unwrap_err();
    assert!(matches!(
        refused,
        AppendError::Rejected(Rejection {
            rule: Rule::Sealed { .. },
            ..
        })
    ));
    let (outcome, faults) = verify(&engine).await;
    assert_eq!(faults, []);
    assert!(outcome.sound);
}

/// Approvals in memory are lost at a restart, and an approval for other arguments is a security
/// hole. The waiting call and the decision must survive a restart, bound to exactly these
/// arguments.
#[tokio::test(flavor = "multi_thread")]
async fn approvals_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let id = ConversationId::generate();
    let mut asked = call(id, "c1", "delete", r#"{"path": "/etc"}"#);
    let EventBody::ToolCallRequested(request) = &mut asked.body else {
        unreachable!()
    };
    request.needs_approval = true;
    let hash = request.arguments_hash;
    let engine = Engine::open(OpenOptions::new(dir.path())).await.unwrap();
    append(
        &engine,
        vec![created(id), message(id, Role::Assistant, "may I?"), asked],
    )
    .await;
    engine.close().await;
    drop(engine);

    let engine = Engine::open(OpenOptions::new(dir.path())).await.unwrap();
    let pending = engine.pending(&ns(), None, None, 10).await.unwrap();
    assert_eq!(pending.len(), 1);
    assert_eq!(pending[0].arguments_hash, hash);
    let decided = |hash| {
        let body = ApprovalDecided {
            call_id: "c1".into(),
            decision: Decision::Approved,
            arguments_hash: hash,
            decided_by: "a person".into(),
            reason: String::new(),
        };
        AppendCommand::new(
            ns(),
            vec![NewEvent::new(id, EventBody::ApprovalDecided(body))],
        )
    };
    let early = engine
        .append(AppendCommand::new(ns(), vec![result(id, "c1", "gone")]))
        .await
        .unwrap_err();
    assert!(matches!(
        early,
        AppendError::Rejected(Rejection {
            rule: Rule::CallNotApproved { .. },
            ..
        })
    ));
    let other = engine
        .append(decided(ContentHash([7; 32])))
        .await
        .unwrap_err();
    assert!(matches!(
        other,
        AppendError::Rejected(Rejection {
            rule: Rule::ArgumentsChanged { .. },
            ..
        })
    ));
    let waiting = {
        let engine = engine.clone();
        let patience = std::time::Duration::from_secs(20);
        tokio::spawn(async move {
            engine
                .wait_for_decision(&BranchAddress::active(ns(), id), "c1", patience)
                .await
        })
    };
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    engine.append(decided(hash)).await.unwrap();
    let (call, decided) = waiting.await.unwrap().unwrap();
    assert!(decided);
    assert_eq!(call.status, CallStatus::Approved);
    assert_eq!(call.decided_by, "a person");
    assert!(
        engine
            .pending(&ns(), None, None, 10)
            .await
            .unwrap()
            .is_empty()
    );
    engine.close().await;
    drop(engine);

    let engine = Engine::open(OpenOptions::new(dir.path())).await.unwrap();
    append(&engine, vec![result(id, "c1", "gone")]).await;
    engine.close().await;
}

/// A client that does not know whether its append arrived sends it again. The key must always
/// answer with the first result, and must never hide other content.
#[tokio::test(flavor = "multi_thread")]
async fn idempotency_key_without_expiry_is_permanent() {
    let dir = tempfile::tempdir().unwrap();
    let id = ConversationId::generate();
    let keyed = |text: &str| AppendCommand {
        idempotency_key: Some("the key".into()),
        ..AppendCommand::new(ns(), vec![created(id), message(id, Role::User, text)])
    };
    let engine = Engine::open(OpenOptions::new(dir.path())).await.unwrap();
    let first = engine.append(keyed("hello")).await.unwrap();
    assert!(!first.repeated_key);
    let (a, b) = tokio::join!(engine.append(keyed("hello")), engine.append(keyed("hello")));
    for again in [a.unwrap(), b.unwrap()] {
        assert!(again.repeated_key);
        assert_eq!(again.events, first.events);
    }
    engine.close().await;
    drop(engine);

    let engine = Engine::open(OpenOptions::new(dir.path())).await.unwrap();
    let again = engine.append(keyed("hello")).await.unwrap();
    assert!(again.repeated_key);
    assert_eq!(again.events, first.events);
    let conflict = engine.append(keyed("other")).await.unwrap_err();
    assert!(matches!(
        conflict,
        AppendError::Rejected(Rejection {
            rule: Rule::IdempotencyConflict,
            ..
        })
    ));
    let elsewhere = AppendCommand {
        create_if_missing: None,
        expected_keys: Vec::new(),
        skip_known: false,
        namespace: Namespace::new("elsewhere").unwrap(),
        expectations: Vec::new(),
        idempotency_key: Some("the key".into()),
        key_life_seconds: None,
        events: vec![created(ConversationId::generate())],
    };
    assert!(!engine.append(elsewhere).await.unwrap().repeated_key);
    assert_eq!(engine.head(), Position::local(3));
    engine.close().await;
}

/// A reader that is slower than the writers must lose nothing, must be told when it has caught up,
/// and must see later events.
#[tokio::test(flavor = "multi_thread")]
async fn slow_subscriber_loses_no_event() {
    const EVENTS: u64 = 300;
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let id = ConversationId::generate();
    append(&engine, vec![created(id)]).await;
    let mut follow = engine.subscribe(SubscribeQuery {
        namespace: ns(),
        source: EventSource::Conversation(id),
        start: StartAfter::Place(0),
        kinds: Vec::new(),
    });
    let writer = {
        let engine = engine.clone();
        tokio::spawn(async move {
            for number in 0..EVENTS {
                append(&engine, vec![message(id, Role::User, &number.to_string())]).await;
            }
        })
    };
    let mut seen = Vec::new();
    let mut caught_up = 0;
    while seen.len() as u64 <= EVENTS {
        let next = tokio::time::timeout(std::time::Duration::from_secs(30), follow.next());
        match next.await.unwrap().unwrap().unwrap() {
            SubscriptionItem::Event(event) => seen.push(event.event.header.revision.0),
            SubscriptionItem::CaughtUp(_) => caught_up += 1,
            SubscriptionItem::FellBehind(_) => {}
        }
        if seen.len() % 50 == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
    writer.await.unwrap();
    assert_eq!(seen, (1..=EVENTS + 1).collect::<Vec<_>>());
    // Reported once: here, unless it was reported before.
    while caught_up == 0 {
        let last = tokio::time::timeout(std::time::Duration::from_secs(30), follow.next());
        if let SubscriptionItem::CaughtUp(position) = last.await.unwrap().unwrap().unwrap() {
            caught_up += 1;
            assert_eq!(position, engine.head());
        }
    }
    assert_eq!(caught_up, 1);
}

// A rewind with a limit of zero must return no event.
#[tokio::test]
async fn a_rewind_returns_no_more_than_its_limit() {
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let id = ConversationId::generate();
    let texts = ["one", "two", "three"].map(|text| message(id, Role::User, text));
    append(&engine, [vec![created(id)], texts.to_vec()].concat()).await;
    let rewind = |to: u64, limit| RewindCommand {
        limit,
        ..RewindCommand::new(BranchAddress::active(ns(), id), Revision(to))
    };
    let one = engine.rewind(rewind(3, 0)).await.unwrap();
    assert!(one.went.is_empty() && one.truncated && one.kept.is_some());
    let two = engine.rewind(rewind(1, 1)).await.unwrap();
    assert_eq!((two.went.len(), two.truncated), (1, true));
    let none = engine.rewind(rewind(1, 0)).await.unwrap();
    assert!(none.went.is_empty() && !none.truncated && none.kept.is_none());
    engine.close().await;
}

/// Nothing of one namespace can be seen, counted or found from another.
#[tokio::test(flavor = "multi_thread")]
async fn namespaces_are_isolated() {
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let id = ConversationId::generate();
    append(
        &engine,
        vec![created(id), message(id, Role::User, "a secret word")],
    )
    .await;
    let other = Namespace::new("other").unwrap();
    assert_eq!(engine.stats(&other).await.unwrap().events, 0);
    let log = engine
        .read_all(ReadQuery::all(other.clone(), EventSource::Log))
        .await
        .unwrap();
    assert!(log.is_empty());
    let refused = engine
        .conversation(&BranchAddress::active(other.clone(), id), None)
        .await
        .unwrap_err();
    assert!(matches!(refused, ReadError::ConversationNotFound { .. }));
    assert!(engine.resolve(&other, &id.to_string()).await.is_err());
    let append = AppendCommand::new(other.clone(), vec![message(id, Role::User, "mine")]);
    let refused = engine.append(append).await.unwrap_err();
    assert!(matches!(
        refused,
        AppendError::Rejected(Rejection {
            rule: Rule::ConversationNotFound { .. },
            ..
        })
    ));
    let search = SearchRequest {
        at_least: Some(engine.head()),
        ..SearchRequest::new(other, "secret", 10)
    };
    assert!(engine.search(search).await.unwrap().hits.is_empty());
}
