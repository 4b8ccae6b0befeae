//! Hierarchical contexts: a task is spawned, runs in its own conversation, and returns one message.
//! Spawn and return are each one batch over two conversations.

use std::time::Duration;

use treering::{domain::*, engine::*};

fn ns() -> Namespace {
    Namespace::default()
}

fn said(id: ConversationId, role: Role, text: &str) -> NewEvent {
    let message = MessageAppended::text(role, text);
    NewEvent::new(id, EventBody::MessageAppended(message))
}

fn call(id: ConversationId, call_id: &str) -> NewEvent {
    let arguments = treering::proto::json::check(b"{\"topic\": \"tides\"}").unwrap();
    let arguments_hash = ContentHash(*blake3::hash(arguments.as_bytes()).as_bytes());
    let request = ToolCallRequested {
        call_id: call_id.into(),
        tool: "research".into(),
        arguments,
        arguments_hash,
        message_revision: None,
        needs_approval: false,
        ..ToolCallRequested::default()
    };
    NewEvent::new(id, EventBody::ToolCallRequested(request))
}

async fn append(engine: &Engine, events: Vec<NewEvent>) {
    let command = AppendCommand::new(ns(), events);
    engine.append(command).await.unwrap();
}

/// Creates a conversation whose assistant has called `research` as `c1`.
async fn parent(engine: &Engine) -> ConversationId {
    let id = ConversationId::generate();
    let created = EventBody::ConversationCreated(ConversationCreated {
        config: Config {
            model_id: "gpt-4o".into(),
            ..Config::default()
        },
        ..ConversationCreated::default()
    });
    let events = vec![
        NewEvent::new(id, created),
        said(id, Role::User, "When can we leave the harbour?"),
        said(id, Role::Assistant, "I let someone look into it."),
        call(id, "c1"),
    ];
    append(engine, events).await;
    id
}

fn research(id: ConversationId) -> SpawnCommand {
    SpawnCommand {
        call_id: "c1".into(),
        purpose: "find the tides".into(),
        title: "tides".into(),
        system_prompt: "You read tide tables.".into(),
        actor: "agent".into(),
        ..SpawnCommand::new(BranchAddress::active(ns(), id))
    }
}

async fn bodies(engine: &Engine, id: ConversationId) -> Vec<EventBody> {
    let query = ReadQuery::all(ns(), EventSource::Conversation(id));
    let events = engine.read_all(query).await.unwrap();
    let decode = |event: NamedEvent| {
        let kind = event.event.header.kind().unwrap();
        treering::proto::body::decode(kind, &event.event.body).unwrap()
    };
    events.into_iter().map(decode).collect()
}

async fn head(engine: &Engine, id: ConversationId) -> (Revision, bool) {
    let view = engine
        .conversation(&BranchAddress::active(ns(), id), None)
        .await
        .unwrap();
    (view.summary.head, view.summary.sealed)
}

// A child with its own prompt and model works alone. Its parent gets one summary, and the call gets
// its result, even if the parent has continued.
#[tokio::test(flavor = "multi_thread")]
async fn sub_context_returns_its_summary_to_the_call() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(OpenOptions::new(dir.path())).await.unwrap();
    let id = parent(&engine).await;
    let config = Config {
        model_id: "claude-haiku-4-5".into(),
        ..Config::default()
    };
    let spawn = SpawnCommand {
        config: Some(config.clone()),
        ..research(id)
    };
    let child = engine.spawn(spawn).await.unwrap().child;
    let view = engine
        .conversation(&BranchAddress::active(ns(), child), None)
        .await
        .unwrap();
    assert_eq!(view.branch.config, config);
    assert!(view.branch.system_prompt.is_some());
    assert!(!view.summary.info.shares_history);
    assert_eq!(view.summary.info.sub_context_depth, 1);
    let asked = view.summary.info.parent.clone().unwrap();
    assert_eq!((asked.conversation, &*asked.call_id), (id, "c1"));
    let lineage = engine
        .lineage(&BranchAddress::active(ns(), id))
        .await
        .unwrap();
    assert_eq!(lineage.children, [child]);

    append(&engine, vec![said(child, Role::User, "Tides of Lisbon?")]).await;
    append(
        &engine,
        vec![said(child, Role::Assistant, "High at quarter past six.")],
    )
    .await;
    append(&engine, vec![said(id, Role::User, "Hurry up")]).await;
    let outcome = engine
        .return_sub_context(ReturnCommand::new(ns(), child))
        .await
        .unwrap();
    assert_eq!(outcome.events.len(), 3);
    assert_eq!(outcome.warnings, Vec::<String>::new());
    let events = bodies(&engine, id).await;
    let [
        ..,
        EventBody::SubContextReturned(returned),
        EventBody::ToolResultRecorded(result),
    ] = &events[..]
    else {
        panic!("{events:?}");
    };
    assert_eq!(returned.summary, "High at quarter past six.");
    assert_eq!((returned.conversation, &*returned.call_id), (child, "c1"));
    assert!(result.success && result.call_id == "c1");
    assert_eq!(result.parts[0].text(), Some("High at quarter past six."));
    assert!(head(&engine, child).await.1, "the child is sealed");
    let now = engine
        .conversation(&BranchAddress::active(ns(), id), None)
        .await
        .unwrap();
    assert!(now.branch.sub_contexts.is_empty() && now.branch.open_calls.is_empty());

    let search = SearchRequest {
        within: ConversationFilters {
            include_sub_contexts: true,
            ..ConversationFilters::only(id)
        },
        at_least: Some(engine.head()),
        ..SearchRequest::new(ns(), "tides Lisbon", 5)
    };
    let hits = engine.search(search).await.unwrap().hits;
    assert!(hits.iter().any(|hit| hit.found.conversation == child));
    engine.close().await;
}

// A sub-context must not return twice, nor to another call. A retry with the same key gets the same
// answer, also after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn sub_context_returns_once() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(OpenOptions::new(dir.path())).await.unwrap();
    let id = parent(&engine).await;
    let keyed = SpawnCommand {
        idempotency_key: Some("spawn".into()),
        ..research(id)
    };
    let spawned = engine.spawn(keyed.clone()).await.unwrap();
    let child = spawned.child;
    append(&engine, vec![said(id, Role::User, "Meanwhile")]).await;
    let again = engine.spawn(keyed.clone()).await.unwrap();
    assert_eq!((again.child, again.outcome.repeated_key), (child, true));
    assert_eq!(again.outcome.events, spawned.outcome.events);
    let other = SpawnCommand {
        purpose: "something else".into(),
        ..keyed
    };
    let conflict = engine.spawn(other).await.unwrap_err();
    assert!(conflict.to_string().contains("already used"), "{conflict}");
    let second = engine.spawn(research(id)).await.unwrap_err();
    assert!(
        second
            .to_string()
            .contains("is already running on this branch"),
        "{second}"
    );

    let silent = engine
        .return_sub_context(ReturnCommand::new(ns(), child))
        .await;
    assert!(matches!(silent, Err(ContextError::Invalid { .. })));
    let end = ReturnCommand {
        summary: "nothing known".into(),
        success: false,
        idempotency_key: Some("return".into()),
        ..ReturnCommand::new(ns(), child)
    };
    let first = engine.return_sub_context(end.clone()).await.unwrap();
    engine.close().await;
    let engine = Engine::open(OpenOptions::new(dir.path())).await.unwrap();
    let repeated = engine.return_sub_context(end.clone()).await.unwrap();
    assert!(repeated.repeated_key);
    assert_eq!(repeated.events, first.events);
    let changed = ReturnCommand {
        success: true,
        ..end.clone()
    };
    assert!(engine.return_sub_context(changed).await.is_err());
    let unkeyed = ReturnCommand {
        idempotency_key: None,
        ..end
    };
    let twice = engine.return_sub_context(unkeyed).await.unwrap_err();
    assert!(twice.to_string().contains("has returned"), "{twice}");
    let stranger = engine
        .return_sub_context(ReturnCommand::new(ns(), id))
        .await;
    assert!(matches!(stranger, Err(ContextError::Invalid { .. })));
    let events = bodies(&engine, id).await;
    let Some(EventBody::ToolResultRecorded(result)) = events.last() else {
        panic!("{events:?}");
    };
    assert!(!result.success && !result.error_message.is_empty());
    engine.close().await;
}

// The user cancels the call while its sub-context works. There is no call to answer, but the
// summary is not lost.
#[tokio::test(flavor = "multi_thread")]
async fn return_for_a_cancelled_call_is_recorded_with_a_warning() {
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let id = parent(&engine).await;
    let child = engine.spawn(research(id)).await.unwrap().child;
    let cancelled = EventBody::ToolCallCancelled(ToolCallCancelled {
        call_id: "c1".into(),
        reason: CancelReason::Interrupted,
        detail: String::new(),
    });
    append(&engine, vec![NewEvent::new(id, cancelled)]).await;
    let end = ReturnCommand {
        summary: "too late".into(),
        ..ReturnCommand::new(ns(), child)
    };
    let outcome = engine.return_sub_context(end).await.unwrap();
    assert_eq!(outcome.events.len(), 2);
    assert!(outcome.warnings[0].contains("c1"), "{:?}", outcome.warnings);
    let last = bodies(&engine, id).await.pop();
    assert!(matches!(last, Some(EventBody::SubContextReturned(_))));
}

// A missing call, or an agent that spawns itself without end, is refused, with nothing appended on
// either side.
#[tokio::test(flavor = "multi_thread")]
async fn refused_spawn_leaves_no_trace() {
    let limits = Limits {
        sub_context_depth_max: 2,
        ..Limits::default()
    };
    let engine = Engine::in_memory(limits).await.unwrap();
    let id = parent(&engine).await;
    let ghost = SpawnCommand {
        call_id: "c9".into(),
        ..research(id)
    };
    let refused = engine.spawn(ghost).await.unwrap_err();
    assert!(refused.to_string().contains("c9"), "{refused}");
    let mut deepest = id;
    for _ in 0..2 {
        let spawn = SpawnCommand::new(BranchAddress::active(ns(), deepest));
        deepest = engine.spawn(spawn).await.unwrap().child;
    }
    let deep = engine
        .spawn(SpawnCommand::new(BranchAddress::active(ns(), deepest)))
        .await
        .unwrap_err();
    assert!(deep.to_string().contains("sub_context_depth_max"), "{deep}");
    assert_eq!(head(&engine, deepest).await, (Revision(1), false));
    assert_eq!(head(&engine, id).await.0, Revision(5));
    let stats = engine.stats(&ns()).await.unwrap();
    assert_eq!(stats.conversations, 3);
}

// Many workers spawn and return under one parent while people append there. Each return is
// accepted, once.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_sub_contexts_all_return_once() {
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let id = parent(&engine).await;
    let talk = tokio::spawn({
        let engine = engine.clone();
        async move {
            for _ in 0..100 {
                append(&engine, vec![said(id, Role::User, "and?")]).await;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    let workers: Vec<_> = (0..16)
        .map(|n| {
            let engine = engine.clone();
            tokio::spawn(async move {
                let child = engine
                    .spawn(SpawnCommand::new(BranchAddress::active(ns(), id)))
                    .await
                    .unwrap()
                    .child;
                let text = format!("answer {n}");
                append(&engine, vec![said(child, Role::Assistant, &text)]).await;
                let ends = [
                    ReturnCommand::new(ns(), child),
                    ReturnCommand::new(ns(), child),
                ];
                let [one, two] = ends.map(|end| engine.return_sub_context(end));
                let (one, two) = tokio::join!(one, two);
                assert!(one.is_ok() != two.is_ok(), "{one:?} {two:?}");
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    talk.await.unwrap();
    let events = bodies(&engine, id).await;
    let returned = |body: &&EventBody| matches!(body, EventBody::SubContextReturned(_));
    assert_eq!(events.iter().filter(returned).count(), 16);
}
