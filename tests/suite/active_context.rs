//! Active context: providers write keys, watchers see every change, and the long-term context of a
//! namespace is separate from its conversations.

use std::{collections::BTreeMap, time::Duration};

use futures::{StreamExt, stream::BoxStream};
use treering::{domain::*, engine::*};

fn ns() -> Namespace {
    Namespace::default()
}

fn value(key: &str, json: &str) -> ContextSet {
    ContextSet {
        key: key.into(),
        value: treering::proto::json::check(json.as_bytes()).unwrap(),
        provider: "workspace".into(),
    }
}

fn set(scope: &ContextScope, key: &str, json: &str) -> SetContext {
    SetContext {
        namespace: ns(),
        scope: scope.clone(),
        set: vec![value(key, json)],
        remove: Vec::new(),
        idempotency_key: None,
        actor: "provider".into(),
    }
}

fn remove(scope: &ContextScope, key: &str) -> SetContext {
    SetContext {
        set: Vec::new(),
        remove: vec![key.into()],
        ..set(scope, key, "0")
    }
}

async fn conversation(engine: &Engine) -> (ConversationId, ContextScope) {
    let id = ConversationId::generate();
    let created = EventBody::ConversationCreated(ConversationCreated::default());
    let batch = AppendCommand::new(ns(), vec![NewEvent::new(id, created)]);
    engine.append(batch).await.unwrap();
    (id, of(id, None))
}

fn of(id: ConversationId, branch: Option<&str>) -> ContextScope {
    ContextScope::Conversation {
        id,
        branch: branch.map(|name| BranchName::new(name).unwrap()),
    }
}

async fn values(engine: &Engine, scope: &ContextScope) -> BTreeMap<String, String> {
    let entries = engine.active_context(&ns(), scope).await.unwrap();
    let pair = |entry: ContextEntry| (entry.key, entry.value.as_str().to_owned());
    entries.into_iter().map(pair).collect()
}

/// A change as text: `key=value`, `-key`, or `@revision` when caught up.
async fn next(watch: &mut BoxStream<'static, Result<ContextChange, ReadError>>) -> String {
    let item = tokio::time::timeout(Duration::from_secs(20), watch.next());
    match item.await.expect("nothing came").unwrap().unwrap() {
        ContextChange::Set(entry) => format!("{}={}", entry.key, entry.value.as_str()),
        ContextChange::Removed { key, .. } => format!("-{key}"),
        ContextChange::CaughtUp(revision) => format!("@{revision}"),
    }
}

// A provider that dies between two keys must not leave half a workspace. Keys are set and removed
// together, and keep the exact bytes that were written.
#[tokio::test(flavor = "multi_thread")]
async fn context_keys_are_set_and_removed_atomically() {
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let (_, scope) = conversation(&engine).await;
    let mut both = set(&scope, "open_file", r#"{ "path": "a.rs", "line": 1.50 }"#);
    both.set.push(value("branch", "\"main\""));
    let outcome = engine.set_context(both).await.unwrap();
    assert_eq!(outcome.events.len(), 2);
    let mut swap = set(&scope, "tests", "[1, 2]");
    swap.remove.push("branch".into());
    engine.set_context(swap).await.unwrap();
    let entries = engine.active_context(&ns(), &scope).await.unwrap();
    let texts: Vec<_> = entries.iter().map(|e| e.value.as_str()).collect();
    assert_eq!(texts, [r#"{ "path": "a.rs", "line": 1.50 }"#, "[1, 2]"]);
    assert_eq!(entries[0].provider, "workspace");
    assert_eq!(entries[0].at.revision, Revision(2));

    let mut twice = set(&scope, "tests", "3");
    twice.remove.push("tests".into());
    let nothing = SetContext {
        set: Vec::new(),
        ..set(&scope, "", "0")
    };
    for senseless in [twice, nothing] {
        let refused = engine.set_context(senseless).await;
        assert!(matches!(refused, Err(ContextError::Invalid { .. })));
    }
    assert_eq!(values(&engine, &scope).await["tests"], "[1, 2]");
}

// A program that shows the context must see every change in order and once, and no change of
// another branch.
#[tokio::test(flavor = "multi_thread")]
async fn watch_sees_every_change_of_its_branch() {
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let (id, main) = conversation(&engine).await;
    engine.set_context(set(&main, "file", "1")).await.unwrap();
    engine.set_context(set(&main, "other", "1")).await.unwrap();
    let fork = ForkCommand {
        address: BranchAddress::active(ns(), id),
        at: None,
        name: "try".into(),
        system_prompt: String::new(),
        into: None,
        activate: false,
        idempotency_key: None,
        actor: String::new(),
    };
    engine.fork(fork).await.unwrap();
    let tried = of(id, Some("try"));
    let mut all = engine.watch_context(ns(), main.clone(), Vec::new());
    let mut file = engine.watch_context(ns(), tried.clone(), vec!["file".into()]);
    assert_eq!(next(&mut all).await, "file=1");
    assert_eq!(next(&mut all).await, "other=1");
    assert_eq!(next(&mut all).await, "@3");
    assert_eq!(next(&mut file).await, "file=1");
    assert_eq!(next(&mut file).await, "@4");
    for (scope, key, json) in [
        (&main, "file", "2"),
        (&tried, "file", "3"),
        (&tried, "other", "4"),
        (&main, "file", "5"),
    ] {
        engine.set_context(set(scope, key, json)).await.unwrap();
    }
    engine.set_context(remove(&main, "file")).await.unwrap();
    engine.set_context(remove(&tried, "file")).await.unwrap();
    for change in ["file=2", "file=5", "-file"] {
        assert_eq!(next(&mut all).await, change);
    }
    for change in ["file=3", "-file"] {
        assert_eq!(next(&mut file).await, change);
    }
    assert_eq!(
        values(&engine, &main).await,
        [("other".into(), "1".into())].into()
    );
    let nowhere = engine.watch_context(ns(), of(id, Some("gone")), Vec::new());
    let first = nowhere.into_future().await.0.unwrap();
    assert!(matches!(first, Err(ReadError::BranchNotFound { .. })));
}

// Changes made while the keys are read, or while the reader is slow, must each arrive once. A lost
// update is a wrong prompt.
#[tokio::test(flavor = "multi_thread")]
async fn slow_watch_misses_no_change() {
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let (_, scope) = conversation(&engine).await;
    const CHANGES: u64 = 400;
    let writer = tokio::spawn({
        let (engine, scope) = (engine.clone(), scope.clone());
        async move {
            for n in 1..=CHANGES {
                let command = set(&scope, "n", &n.to_string());
                engine.set_context(command).await.unwrap();
            }
        }
    });
    tokio::time::sleep(Duration::from_millis(3)).await;
    let mut watch = engine.watch_context(ns(), scope, Vec::new());
    let mut seen = Vec::new();
    while seen.last().copied().unwrap_or(0) < CHANGES {
        let change = next(&mut watch).await;
        if let Some(n) = change.strip_prefix("n=") {
            seen.push(n.parse::<u64>().unwrap());
        }
        if seen.len() % 100 == 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    writer.await.unwrap();
    let first = seen[0];
    assert_eq!(seen, (first..=CHANGES).collect::<Vec<_>>());
}

// Two processes write the first long-term keys at the same time. One of them creates the
// conversation, both keep their key, and no other conversation changes.
#[tokio::test(flavor = "multi_thread")]
async fn long_term_context_is_created_once() {
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let (_, scope) = conversation(&engine).await;
    assert!(values(&engine, &ContextScope::LongTerm).await.is_empty());
    let mut watch = engine.watch_context(ns(), ContextScope::LongTerm, Vec::new());
    assert_eq!(next(&mut watch).await, "@0");
    let writers = (0..20).map(|n| {
        let engine = engine.clone();
        let command = set(&ContextScope::LongTerm, &format!("k{n}"), "true");
        tokio::spawn(async move { engine.set_context(command).await.unwrap() })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    assert_eq!(values(&engine, &ContextScope::LongTerm).await.len(), 20);
    assert!(values(&engine, &scope).await.is_empty());
    for _ in 0..20 {
        assert!(next(&mut watch).await.ends_with("=true"));
    }
    let id = ns().long_term_conversation();
    let view = engine
        .conversation(&BranchAddress::active(ns(), id), None)
        .await
        .unwrap();
    assert_eq!(view.summary.head, Revision(21));
    assert_eq!(view.summary.info.labels["treering.long_term"], "true");
    let other = Namespace::new("other").unwrap();
    let theirs = engine.active_context(&other, &ContextScope::LongTerm).await;
    assert!(theirs.unwrap().is_empty());
}

// A provider retries if it is not sure of the outcome. The first long-term key also creates the
// conversation, and its retry must still count as the same request.
#[tokio::test(flavor = "multi_thread")]
async fn repeated_idempotency_key_sets_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(OpenOptions::new(dir.path())).await.unwrap();
    let keyed = |key: &str, json: &str| SetContext {
        idempotency_key: Some(key.into()),
        ..set(&ContextScope::LongTerm, "home", json)
    };
    let first = engine.set_context(keyed("a", "1")).await.unwrap();
    engine.set_context(keyed("b", "2")).await.unwrap();
    engine.close().await;
    let engine = Engine::open(OpenOptions::new(dir.path())).await.unwrap();
    let again = engine.set_context(keyed("a", "1")).await.unwrap();
    assert!(again.repeated_key);
    assert_eq!(again.events, first.events);
    let conflict = engine.set_context(keyed("a", "3")).await.unwrap_err();
    assert!(conflict.to_string().contains("already used"), "{conflict}");
    assert_eq!(values(&engine, &ContextScope::LongTerm).await["home"], "2");
    engine.close().await;
}
