//! Calls that wait for a decision.

use treering::domain::*;

use super::visitor::Visitor;
use crate::suite::{
    child::run,
    store::{append, conversation, open},
};

fn waiting(id: ConversationId, call_id: &str, arguments: &str) -> NewEvent {
    let arguments = treering::proto::json::check(arguments.as_bytes()).unwrap();
    let body = EventBody::ToolCallRequested(ToolCallRequested {
        call_id: call_id.into(),
        tool: "bash".into(),
        arguments_hash: ContentHash(blake3::hash(arguments.as_bytes()).into()),
        arguments,
        message_revision: None,
        needs_approval: true,
        ..ToolCallRequested::default()
    });
    NewEvent::new(id, body)
}

const FIELDS: [&str; 6] = ["token", "conversation", "branch", "call", "at", "hash"];

// A person decides on the page while an agent waits, for exactly the arguments that were shown. A
// form with other arguments, or from another site, changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn call_is_decided_on_the_page() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let id = conversation(&engine).await;
    let calls = vec![
        waiting(id, "one", r#"{"command": "rm -rf <build>"}"#),
        waiting(id, "two", r#"{"command": "shutdown", "command": "ls"}"#),
    ];
    append(&engine, calls).await.unwrap();
    engine.close().await;
    let visitor = Visitor::of(dir.path()).await;
    let page = visitor.page("/approvals").await;
    assert!(
        page.body.contains("2 calls are waiting for a decision"),
        "{}",
        page.body
    );
    assert!(page.body.contains("rm -rf &lt;build&gt;"), "{}", page.body);
    assert!(
        page.body.contains("shutdown") && page.body.contains("ls"),
        "what stands twice is shown twice: {}",
        page.body
    );
    let fields: Vec<_> = FIELDS.map(|name| (name, page.field(name))).into();
    let mut sent: Vec<(&str, &str)> = fields
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    sent.extend([
        ("decision", "approved"),
        ("reason", "it is \"only\" a build"),
    ]);
    let with = |name: &str, value: &'static str| {
        let pairs = sent.iter().map(|pair| {
            if pair.0 == name {
                (pair.0, value)
            } else {
                *pair
            }
        });
        pairs.collect::<Vec<_>>()
    };
    let other_hash = "ab".repeat(32).leak();
    for (form, status) in [
        (with("token", "x"), 403),
        (with("hash", other_hash), 409),
        (with("hash", "zz"), 400),
        (with("decision", "perhaps"), 400),
    ] {
        let refused = visitor.send("/approvals", &form).await;
        assert_eq!(refused.status, status, "{}", refused.body);
    }
    let text = id.to_string();
    assert_eq!(
        visitor
            .done(&["pending", &text])
            .await
            .matches("bash")
            .count(),
        2
    );
    // The oldest call is first.
    let call = page.field("call");
    assert_eq!(call, "one");
    let decided = visitor.send("/approvals", &sent).await;
    assert_eq!(decided.status, 303, "{}", decided.body);
    let there = decided.header("location").unwrap().to_owned();
    let after = visitor.page(&there).await;
    assert!(after.body.contains("Approved: ") && after.body.contains("1 call is waiting"));
    // It stays in its place before the other call, and can no longer be decided.
    let (gone, waits) = after.body.split_once("shutdown").unwrap();
    assert!(
        gone.contains("data-decided") && gone.contains("only"),
        "{gone}"
    );
    assert_eq!(gone.matches(" disabled").count(), 3, "{gone}");
    assert!(!waits.contains(" disabled"), "{waits}");
    // A forged address must not show a decision that was not made.
    let waiting = there.replace("call=one", "call=two");
    for forged in ["/approvals?decided=approved&tool=PWNED+call+us", &waiting] {
        let page = visitor.page(forged).await;
        let told = page.body.contains("Approved") || page.body.contains("data-decided");
        assert!(!told && !page.body.contains("PWNED"), "{}", page.body);
    }
    let log = visitor.done(&["log", &text]).await;
    assert!(log.contains("approved") && log.contains("only"), "{log}");
    // A call is decided only once.
    let again = visitor.send("/approvals", &sent).await;
    assert_eq!(again.status, 409, "{}", again.body);
}

// The page must show new calls, and calls that were decided elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn approvals_page_updates_live() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let id = conversation(&engine).await;
    append(&engine, vec![waiting(id, "one", "{}")])
        .await
        .unwrap();
    engine.close().await;
    let visitor = Visitor::of(dir.path()).await;
    let page = visitor.page("/approvals").await;
    let live = page.all("data-live");
    let mut live = visitor.wait_for_live(&live[0], "event: open").await;
    visitor.done(&["approve", &id.to_string(), "one"]).await;
    live.until("event: changed").await;
    assert!(
        visitor
            .page("/approvals")
            .await
            .body
            .contains("no call is waiting")
    );
}

// A reader sees the waiting calls and cannot decide. An approver can, and the decision has its
// name. Calls of other namespaces are not visible.
#[tokio::test(flavor = "multi_thread")]
async fn decision_requires_the_approver_role() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().display().to_string();
    let engine = open(dir.path()).await;
    let id = conversation(&engine).await;
    append(&engine, vec![waiting(id, "one", r#"{"command": "ls"}"#)])
        .await
        .unwrap();
    engine.close().await;
    let mut keys = Vec::new();
    for (name, role) in [
        ("eyes", "reader:default"),
        ("boss", "approver:default"),
        ("far", "admin:far"),
    ] {
        let made = run(&[
            "keys", "create", name, "--role", role, "--data", &data, "--json",
        ])
        .await;
        assert!(made.status.success(), "{made:?}");
        let made: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap();
        keys.push(made["key"].as_str().unwrap().to_owned());
    }
    let visitor = Visitor::of(dir.path()).await;
    let stranger = visitor.get("/approvals").await;
    assert_eq!(stranger.status, 303, "a stranger is asked to log in");
    let visitor = visitor.with_key(&keys[2]);
    assert_eq!(visitor.get("/approvals").await.status, 403);
    let visitor = visitor.with_key(&keys[1]);
    let page = visitor.page("/approvals").await;
    let fields: Vec<_> = FIELDS.map(|name| (name, page.field(name))).into();
    // A key that cannot decide must not get the buttons.
    let visitor = visitor.with_key(&keys[0]);
    for path in ["/approvals".to_owned(), format!("/c/{id}/call/one")] {
        let page = visitor.page(&path).await;
        assert!(
            page.body.contains("bash") && page.body.contains("annot decide"),
            "{path}"
        );
        assert!(
            page.body.contains("have the role approver"),
            "{path}: {}",
            page.body
        );
        assert!(
            !page.body.contains("name=\"decision\""),
            "{path}: {}",
            page.body
        );
    }
    let tree = visitor.page(&format!("/c/{id}/branches")).await;
    assert!(tree.body.contains("have the role writer"), "{}", tree.body);
    assert!(!tree.body.contains("/fork#"), "{}", tree.body);
    let mut sent: Vec<(&str, &str)> = fields
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    sent.push(("decision", "denied"));
    let refused = visitor.send("/approvals", &sent).await;
    assert_eq!(refused.status, 403, "{}", refused.body);
    let visitor = visitor.with_key(&keys[1]);
    let page = visitor.page("/approvals").await;
    let token = page.field("token");
    sent[0] = ("token", &token);
    let decided = visitor.send("/approvals", &sent).await;
    assert_eq!(decided.status, 303, "{}", decided.body);
    let call = visitor.page(&format!("/c/{id}/call/one")).await;
    assert!(
        call.body.contains("denied") && call.body.contains("boss"),
        "{}",
        call.body
    );
}
