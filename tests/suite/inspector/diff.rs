//! Two branches side by side.

use treering::{domain::*, engine::*};

use super::visitor::Visitor;
use crate::suite::store::{append, conversation, message, ns, open};

// Two branches from one point: shared events are shown once, others on their side, and the pages
// together show every event once.
#[tokio::test(flavor = "multi_thread")]
async fn two_branches_are_compared_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let id = conversation(&engine).await;
    append(&engine, vec![message(id, "Back to the fork point")])
        .await
        .unwrap();
    let other = BranchName::new("other").unwrap();
    let fork = ForkCommand {
        address: BranchAddress::active(ns(), id),
        at: Some(Revision(3)),
        name: other.to_string(),
        system_prompt: String::new(),
        into: None,
        activate: false,
        idempotency_key: None,
        actor: String::new(),
    };
    let single = conversation(&engine).await;
    engine.fork(fork).await.unwrap();
    for number in 0..70 {
        let same = format!("same {number}");
        let one = format!("<one {number}>");
        let events = vec![
            message(id, &same),
            message(id, &one),
            message(id, &same).on_branch(other.clone()),
        ];
        append(&engine, events).await.unwrap();
    }
    engine.close().await;
    let visitor = Visitor::of(dir.path()).await;
    let page = visitor.page(&format!("/c/{single}/diff")).await;
    assert!(page.body.contains("has only one branch"));
    // Defaults: the active branch, and the newest of the others.
    let page = visitor.page(&format!("/c/{id}/diff")).await;
    assert!(page.body.contains("Both branches share everything up to") && page.body.contains("#3"));
    assert!(
        !page.body.contains("Back to the fork point"),
        "what both have is not there"
    );
    assert!(
        page.body.contains("pair same") && page.body.contains("&lt;one 1&gt;"),
        "{}",
        page.body
    );
    let mut texts = Vec::new();
    let mut page = visitor.page(&format!("/c/{id}/diff?a=main&b=other")).await;
    loop {
        for number in 0..70 {
            if page.body.contains(&format!("&lt;one {number}&gt;")) {
                texts.push(number);
            }
        }
        let links = page.all("href");
        let Some(next) = links
            .iter()
            .find(|link| link.contains("after_a=") && link.contains("after_b="))
        else {
            break;
        };
        page = visitor.page(next).await;
    }
    assert_eq!(texts, (0..70).collect::<Vec<_>>());
    let wrong = visitor.get(&format!("/c/{id}/diff?a=main&b=nowhere")).await;
    assert_eq!(wrong.status, 404, "{}", wrong.body);
}
