//! The tree of branches.

use treering::{domain::*, engine::*};

use super::visitor::Visitor;
use crate::suite::store::{conversation, message, ns, open};

async fn fork(engine: &Engine, id: ConversationId, branch: &str, at: u64, name: &str) {
    let address = BranchAddress {
        branch: Some(BranchName::new(branch).unwrap()),
        ..BranchAddress::active(ns(), id)
    };
    let command = ForkCommand {
        address,
        at: Some(Revision(at)),
        name: name.into(),
        system_prompt: String::new(),
        into: None,
        activate: false,
        idempotency_key: None,
        actor: String::new(),
    };
    engine.fork(command).await.unwrap();
}

// A form on the page forks a conversation: it names the branch and the event, and the new branch is
// marked and shares the history. Without the page's token nothing happens.
#[tokio::test(flavor = "multi_thread")]
async fn branch_is_forked_from_the_page() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let id = conversation(&engine).await;
    let more = vec![message(id, "second"), message(id, "third")];
    engine.append(AppendCommand::new(ns(), more)).await.unwrap();
    engine.close().await;
    let visitor = Visitor::of(dir.path()).await;
    let page = visitor.page(&format!("/c/{id}/branches?fork=3")).await;
    assert!(
        page.body.contains("<svg") && page.body.contains("value=\"3\""),
        "{}",
        page.body
    );
    let token = page.field("token");
    let path = format!("/c/{id}/fork");
    let fields = [("branch", "main"), ("at", "3"), ("name", "a <b> & c")];
    let refused = visitor.send(&path, &fields).await;
    assert_eq!(refused.status, 403);
    let listed = visitor.page(&format!("/c/{id}/branches")).await;
    assert!(!listed.body.contains("a &lt;b&gt;"));
    let sent = [&fields[..], &[("token", &token)]].concat();
    let forked = visitor.send(&path, &sent).await;
    assert_eq!(forked.status, 303, "{}", forked.body);
    let page = visitor.page(forked.header("location").unwrap()).await;
    assert!(page.body.contains("a &lt;b&gt; &amp; c") && page.body.contains(">new<"));
    let branches = visitor.done(&["branch", "ls", &id.to_string()]).await;
    assert!(branches.contains("from main after #3"), "{branches}");
    // A repeated fork is refused with a reason.
    let again = visitor.send(&path, &sent).await;
    assert_eq!(again.status, 409, "{}", again.body);
    assert!(again.body.contains("a &lt;b&gt; &amp; c"), "{}", again.body);
    // The form still has the typed name.
    assert_eq!(again.field_of("name=\"name\" required"), "a <b> & c");
    assert!(!again.body.contains("Something went wrong"));
}

// An agent may make a thousand branches at one point. The page stays small, every branch is on one
// of the pages, and a branch is found by name.
#[tokio::test(flavor = "multi_thread")]
async fn tree_of_1000_branches_is_paged() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let id = conversation(&engine).await;
    for number in 0..1_000 {
        let parent = if number % 10 == 9 {
            format!("try-{}", number - 1)
        } else {
            "main".into()
        };
        fork(&engine, id, &parent, 2, &format!("try-{number}")).await;
    }
    engine.close().await;
    let visitor = Visitor::of(dir.path()).await;
    let mut seen = std::collections::BTreeSet::new();
    let mut address = format!("/c/{id}/branches");
    loop {
        let page = visitor.page(&address).await;
        let rows = page
            .all("value")
            .into_iter()
            .filter(|value| value.starts_with("try-"));
        seen.extend(rows);
        let next = page.body.split("rel=\"next\"").next().unwrap();
        if next.len() == page.body.len() {
            break;
        }
        address = page
            .all("href")
            .into_iter()
            .rfind(|link| link.contains("page=") && page.body.contains("rel=\"next\""))
            .unwrap();
    }
    assert_eq!(seen.len(), 1_000);
    let one = visitor
        .page(&format!("/c/{id}/branches?name=try-777"))
        .await;
    assert!(one.body.contains("try-777") && !one.body.contains("try-778"));
}

// Compactions and sub-contexts are shown on their branch, with links.
#[tokio::test(flavor = "multi_thread")]
async fn compactions_and_sub_contexts_are_marked_on_the_tree() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let id = conversation(&engine).await;
    engine.close().await;
    let visitor = Visitor::of(dir.path()).await;
    let text = id.to_string();
    let spawned = visitor
        .done(&["sub", "spawn", &text, "--purpose", "look"])
        .await;
    let child = spawned.split_whitespace().find(|word| word.len() == 36);
    let page = visitor.page(&format!("/c/{id}/branches")).await;
    assert!(page.body.contains("sub-context #"), "{}", page.body);
    assert!(
        page.body
            .contains("Conversations forked or spawned from it"),
        "{}",
        page.body
    );
    if let Some(child) = child {
        assert!(page.body.contains(&child.replace('-', "%2D")), "{child}");
    }
}
