//! Tests of the summariser against a real HTTP server on this machine.

mod server;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::{Notify, watch};

use self::server::{Behaviour, Model};
use super::{
    BackOff, EndpointConfig, Fallback, Secret, Summariser, SummariserConfig, Tasks,
    mark::MarkFile,
    tasks::{ACTOR_EXTRACT, ACTOR_MODEL, Point},
    worker::Follower,
};
use treering_domain::*;
use treering_engine::*;
use treering_proto as codec;

const SNAPSHOTS: Tasks = Tasks {
    snapshots: true,
    dialogue: false,
    compaction: false,
};
const DIALOGUE: Tasks = Tasks {
    snapshots: false,
    dialogue: true,
    compaction: false,
};
const COMPACTION: Tasks = Tasks {
    snapshots: false,
    dialogue: false,
    compaction: true,
};

/// Compacts at any size, and keeps one turn.
const POLICY: &str = r#"{"budget_tokens": 50, "compaction": {"keep_turns": 1}}"#;

fn ns() -> Namespace {
    Namespace::default()
}

fn config(model: &Model, dir: &Path, tasks: Tasks) -> SummariserConfig {
    SummariserConfig {
        tasks,
        snapshot_bytes_min: 1_000,
        dialogue_every_turns: 2,
        back_off: BackOff {
            first: Duration::from_millis(5),
            max: Duration::from_millis(20),
        },
        settle: Duration::from_millis(1),
        mark_every: Duration::from_millis(10),
        ..SummariserConfig::new(EndpointConfig::new(&model.url, "small"), dir.to_owned())
    }
}

fn said(id: ConversationId, role: Role, text: &str) -> NewEvent {
    NewEvent::new(
        id,
        EventBody::MessageAppended(MessageAppended::text(role, text)),
    )
}

/// Returns a turn with a call of `get_page` that has a large result.
fn turn(id: ConversationId, number: usize) -> Vec<NewEvent> {
    let arguments = codec::json::check(b"{}").unwrap();
    let call_id = format!("call-{number}");
    let call = EventBody::ToolCallRequested(ToolCallRequested {
        call_id: call_id.clone(),
        tool: "get_page".into(),
        arguments_hash: ContentHash(blake3::hash(arguments.as_bytes()).into()),
        arguments,
        message_revision: None,
        needs_approval: false,
        ..ToolCallRequested::default()
    });
    let text = format!("row {number}\n").repeat(300);
    let result = EventBody::ToolResultRecorded(ToolResultRecorded::text(call_id, text));
    vec![
        said(id, Role::User, &format!("request {number}")),
        NewEvent::new(id, call),
        NewEvent::new(id, result),
        said(id, Role::Assistant, &format!("answer {number}")),
    ]
}

async fn append(engine: &Engine, events: Vec<NewEvent>) {
    engine
        .append(AppendCommand::new(ns(), events))
        .await
        .unwrap();
}

async fn engine() -> Engine {
    Engine::in_memory(Limits::default()).await.unwrap()
}

async fn conversation(engine: &Engine) -> ConversationId {
    let id = ConversationId::generate();
    let created = ConversationCreated {
        policies: BTreeMap::from([("context".to_owned(), POLICY.to_owned())]),
        ..ConversationCreated::default()
    };
    append(
        engine,
        vec![NewEvent::new(id, EventBody::ConversationCreated(created))],
    )
    .await;
    id
}

async fn turns(engine: &Engine, id: ConversationId, numbers: std::ops::RangeInclusive<usize>) {
    for number in numbers {
        append(engine, turn(id, number)).await;
    }
}

/// Returns what summarisers appended: kind, actor, text.
async fn summaries(engine: &Engine, id: ConversationId) -> Vec<(EventKind, String, String)> {
    let query = ReadQuery {
        kinds: vec![
            EventKind::ToolSnapshotRecorded,
            EventKind::SummaryRecorded,
            EventKind::Compacted,
        ],
        ..ReadQuery::all(ns(), EventSource::Conversation(id))
    };
    let events = engine.read_all(query).await.unwrap();
    events
        .into_iter()
        .map(|event| {
            let kind = event.event.header.kind().unwrap();
            let text = match codec::body::decode(kind, &event.event.body).unwrap() {
                EventBody::ToolSnapshotRecorded(snapshot) => snapshot.summary,
                EventBody::SummaryRecorded(summary) => summary.content,
                EventBody::Compacted(compacted) => compacted.summary,
                other => panic!("{other:?}"),
            };
            (kind, event.event.header.actor, text)
        })
        .collect()
}

async fn kinds(engine: &Engine, id: ConversationId) -> Vec<EventKind> {
    summaries(engine, id)
        .await
        .into_iter()
        .map(|(kind, ..)| kind)
        .collect()
}

/// Waits for a condition that will hold soon.
async fn soon<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until the summariser has nothing to do: its mark is at the last message.
async fn idle(engine: &Engine, dir: &Path) {
    let last = ReadQuery {
        backward: true,
        limit: 1,
        kinds: vec![EventKind::MessageAppended],
        ..ReadQuery::all(ns(), EventSource::Log)
    };
    let last = engine.read_all(last).await.unwrap()[0]
        .event
        .position
        .offset;
    let mark = &MarkFile::of(dir, &ns()).unwrap();
    soon(
        "everything is done",
        || async move { mark.read() >= Some(last) },
    )
    .await;
}

/// Runs a worker that crashes at a point.
async fn crash(engine: &Engine, config: &SummariserConfig, point: Point) {
    let mut follower = Follower::new(engine, config, &ns()).unwrap();
    follower.worker.dies_at = Some(point);
    let (_stop, stopped) = watch::channel(false);
    let died = tokio::time::timeout(Duration::from_secs(20), follower.run(stopped)).await;
    died.expect("it gets to the point where it crashes");
}

/// Due tasks must be done in the order in which they build on each other, with the model as actor,
/// and not be done again after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_run_in_order_and_once() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine().await;
    let model = Model::start(vec![], Behaviour::Says("All went well.")).await;
    let mut config = config(&model, dir.path(), Tasks::default());
    config.endpoint.key = Secret::new("sk-test");
    let id = conversation(&engine).await;
    let summariser = Summariser::start(&engine, &config).unwrap();
    let both: Vec<NewEvent> = [turn(id, 1), turn(id, 2)].concat();
    append(&engine, both).await;
    idle(&engine, dir.path()).await;
    summariser.stop().await;
    let made = summaries(&engine, id).await;
    let kinds: Vec<_> = made.iter().map(|(kind, ..)| *kind).collect();
    let snapshot = EventKind::ToolSnapshotRecorded;
    assert_eq!(
        kinds,
        [
            snapshot,
            snapshot,
            EventKind::SummaryRecorded,
            EventKind::Compacted
        ]
    );
    assert!(
        made.iter()
            .all(|(_, actor, text)| actor == ACTOR_MODEL && text == "All went well.")
    );
    let requests = model.requests();
    assert_eq!(requests.len(), 4);
    for (body, authorization) in &requests {
        assert_eq!(authorization, "Bearer sk-test");
        assert_eq!(
            (body["model"].as_str(), body["max_tokens"].as_u64()),
            (Some("small"), Some(2_000))
        );
        assert_eq!(body["messages"][0]["role"], "system");
    }
    let compaction = requests[3].0["messages"][1]["content"].as_str().unwrap();
    assert!(compaction.contains("request 1") && !compaction.contains("request 2"));
    assert!(!compaction.contains("get_page"));

    let summariser = Summariser::start(&engine, &config).unwrap();
    idle(&engine, dir.path()).await;
    assert_eq!(summaries(&engine, id).await, made);
    // The next turns continue from there.
    turns(&engine, id, 3..=3).await;
    soon("the next turn's result is summarised", || async {
        let made = super::tests::kinds(&engine, id).await;
        made[4..] == [snapshot, EventKind::Compacted]
    })
    .await;
    summariser.stop().await;
    assert_eq!(model.count(), 6);
}

/// If enabled for an old store, a summariser must not touch a conversation until it continues.
#[tokio::test(flavor = "multi_thread")]
async fn existing_conversations_are_not_summarised() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine().await;
    let model = Model::start(vec![], Behaviour::Says("Fine.")).await;
    let (old, new) = (conversation(&engine).await, conversation(&engine).await);
    turns(&engine, old, 1..=4).await;
    let config = config(&model, dir.path(), COMPACTION);
    let summariser = Summariser::start(&engine, &config).unwrap();
    turns(&engine, new, 1..=2).await;
    idle(&engine, dir.path()).await;
    assert_eq!(kinds(&engine, old).await, []);
    assert_eq!(kinds(&engine, new).await.len(), 1);
    turns(&engine, old, 5..=5).await;
    idle(&engine, dir.path()).await;
    assert_eq!(kinds(&engine, old).await, [EventKind::Compacted]);
    summariser.stop().await;
}

/// After a crash between the answer and the append, or after the append, each task's event must be
/// there exactly once, and a recorded task must not query the model again.
#[tokio::test(flavor = "multi_thread")]
async fn crash_leaves_each_task_done_once() {
    for tasks in [SNAPSHOTS, DIALOGUE, COMPACTION] {
        for (point, requests) in [(Point::Answered, 2), (Point::Appended, 1)] {
            let dir = tempfile::tempdir().unwrap();
            let engine = engine().await;
            let model = Model::start(vec![], Behaviour::Says("Fine.")).await;
            let config = config(&model, dir.path(), tasks);
            let id = conversation(&engine).await;
            // Writes the mark at which the worker starts.
            drop(Follower::new(&engine, &config, &ns()).unwrap());
            append(&engine, turn(id, 1)).await;
            if !tasks.snapshots {
                append(&engine, turn(id, 2)).await;
            }
            crash(&engine, &config, point).await;
            let appended = usize::from(point == Point::Appended);
            assert_eq!(kinds(&engine, id).await.len(), appended);
            let mark = MarkFile::of(dir.path(), &ns()).unwrap();
            assert!(
                mark.read() < Some(engine.head().offset),
                "the mark was not moved"
            );

            let summariser = Summariser::start(&engine, &config).unwrap();
            idle(&engine, dir.path()).await;
            summariser.stop().await;
            assert_eq!(kinds(&engine, id).await.len(), 1, "{tasks:?} {point:?}");
            assert_eq!(model.count(), requests, "{tasks:?} {point:?}");
        }
    }
}

/// If the endpoint is overloaded, breaks off or returns nonsense, a task must wait and then be done
/// by the model.
#[tokio::test(flavor = "multi_thread")]
async fn failed_requests_are_retried() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine().await;
    let script = vec![
        Behaviour::Status(500, "oops"),
        Behaviour::Status(429, "slow down"),
        Behaviour::BreaksOff,
        Behaviour::Status(200, "<html>"),
        Behaviour::Says("  "),
        Behaviour::Status(400, "unknown: use max_completion_tokens"),
    ];
    let model = Model::start(script, Behaviour::Says("Fine.")).await;
    let mut config = config(&model, dir.path(), COMPACTION);
    config.tries_max = 2;
    let summariser = Summariser::start(&engine, &config).unwrap();
    let id = conversation(&engine).await;
    turns(&engine, id, 1..=2).await;
    idle(&engine, dir.path()).await;
    summariser.stop().await;
    let made = summaries(&engine, id).await;
    assert_eq!(
        made,
        [(
            EventKind::Compacted,
            ACTOR_MODEL.to_owned(),
            "Fine.".to_owned()
        )]
    );
    assert_eq!(model.count(), 7);
    let last = &model.requests()[6].0;
    assert_eq!(last["max_completion_tokens"], 2_000);
}

/// If the endpoint stays down, the extract must not be used unless allowed. If allowed, it must be
/// used after the configured number of tries, with its own actor.
#[tokio::test(flavor = "multi_thread")]
async fn extract_is_used_only_as_the_configured_fallback() {
    for fallback in [Fallback::Retry, Fallback::Extract] {
        let dir = tempfile::tempdir().unwrap();
        let engine = engine().await;
        let model = Model::start(vec![], Behaviour::Status(503, "")).await;
        let config = SummariserConfig {
            fallback,
            tries_max: 3,
            ..config(&model, dir.path(), DIALOGUE)
        };
        let summariser = Summariser::start(&engine, &config).unwrap();
        let id = conversation(&engine).await;
        let both = [turn(id, 1), turn(id, 2)].concat();
        append(&engine, both).await;
        if fallback == Fallback::Retry {
            let model = &model;
            soon("it is tried again", || async { model.count() > 6 }).await;
            assert_eq!(kinds(&engine, id).await, []);
            model.always(Behaviour::Says("At last."));
        }
        idle(&engine, dir.path()).await;
        summariser.stop().await;
        let [(_, actor, text)] = &summaries(&engine, id).await[..] else {
            panic!("one summary");
        };
        if fallback == Fallback::Retry {
            assert_eq!((actor.as_str(), text.as_str()), (ACTOR_MODEL, "At last."));
        } else {
            assert_eq!((actor.as_str(), model.count()), (ACTOR_EXTRACT, 3));
            assert!(text.contains("Asked: request 2"), "{text}");
        }
    }
}

/// A summary that names a tool makes the model look for something that it no longer has: the
/// summary must be requested again, once.
#[tokio::test(flavor = "multi_thread")]
async fn summary_with_a_tool_name_is_requested_again() {
    for (second, expected) in [
        ("It was read.", "It was read."),
        ("get_page again", "get_page again"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let engine = engine().await;
        let script = vec![Behaviour::Says("I used get_page."), Behaviour::Says(second)];
        let model = Model::start(script, Behaviour::Says("third")).await;
        let config = config(&model, dir.path(), COMPACTION);
        let summariser = Summariser::start(&engine, &config).unwrap();
        let id = conversation(&engine).await;
        turns(&engine, id, 1..=2).await;
        idle(&engine, dir.path()).await;
        summariser.stop().await;
        assert_eq!(summaries(&engine, id).await[0].2, expected);
        assert_eq!(model.count(), 2);
        let correction = model.requests()[1].0["messages"][1]["content"].to_string();
        assert!(correction.contains("named get_page"), "{correction}");
    }
}

/// A model that never answers must delay neither appends nor the shutdown.
#[tokio::test(flavor = "multi_thread")]
async fn appends_do_not_wait_for_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine().await;
    let model = Model::start(vec![], Behaviour::Hangs).await;
    let config = config(&model, dir.path(), Tasks::default());
    let summariser = Summariser::start(&engine, &config).unwrap();
    let id = conversation(&engine).await;
    turns(&engine, id, 1..=2).await;
    let hanging = &model;
    soon("the model is asked", || async { hanging.count() == 1 }).await;
    let start = Instant::now();
    turns(&engine, id, 3..=50).await;
    assert!(
        start.elapsed() < Duration::from_secs(30),
        "{:?}",
        start.elapsed()
    );
    assert_eq!((model.count(), kinds(&engine, id).await.len()), (1, 0));
    let start = Instant::now();
    summariser.stop().await;
    assert!(
        start.elapsed() < Duration::from_secs(30),
        "{:?}",
        start.elapsed()
    );
}

/// The user continues while the model writes. The compaction must be planned again at the new head,
/// with the summary that the model wrote and the entities noted meanwhile. It must not cut more
/// events.
#[tokio::test(flavor = "multi_thread")]
async fn compaction_is_replanned_after_new_events() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine().await;
    let told = Arc::new(Notify::new());
    let script = vec![Behaviour::SaysLater("In short.", Arc::clone(&told))];
    let model = Model::start(script, Behaviour::Says("Another.")).await;
    let config = config(&model, dir.path(), COMPACTION);
    let summariser = Summariser::start(&engine, &config).unwrap();
    let id = conversation(&engine).await;
    turns(&engine, id, 1..=2).await;
    let waiting = &model;
    soon("the model is asked", || async { waiting.count() == 1 }).await;
    let noted = EventBody::EntitiesNoted {
        entities: vec![Entity {
            id: "page-1".into(),
            kind: "page".into(),
            name: String::new(),
        }],
    };
    append(&engine, vec![NewEvent::new(id, noted)]).await;
    let news = engine.head();
    told.notify_one();
    idle(&engine, dir.path()).await;
    summariser.stop().await;
    let made = summaries(&engine, id).await;
    assert_eq!(
        made,
        [(
            EventKind::Compacted,
            ACTOR_MODEL.to_owned(),
            "In short.\n\nEntities: page-1 (page)".to_owned()
        )]
    );
    assert_eq!(model.count(), 1);
    let state = engine
        .conversation(&BranchAddress::active(ns(), id), None)
        .await
        .unwrap()
        .branch;
    assert_eq!(state.cut, Revision(5));
    assert!(engine.head() > news);
}
