//! Pages of requests, and the comparison of two.

use serde_json::Value;

use super::visitor::Visitor;
use crate::suite::store::{append, call, conversation, message, open, result};

const PROVIDERS: [&str; 5] = [
    "openai-chat",
    "openai-responses",
    "anthropic",
    "gemini",
    "neutral",
];

async fn session(dir: &std::path::Path) -> String {
    let engine = open(dir).await;
    let id = conversation(&engine).await;
    for number in 0..12 {
        let call_id = format!("c{number}");
        let text = format!("<result {number}> ").repeat(200);
        let events = vec![
            message(id, &format!("question {number}")),
            call(id, &call_id, "read"),
            result(id, &call_id, &text),
        ];
        append(&engine, events).await.unwrap();
    }
    engine.close().await;
    id.to_string()
}

// The page explains why an agent forgot something: for every provider it shows what is in the
// request and what was left out. The linked body is what would be sent.
#[tokio::test(flavor = "multi_thread")]
async fn request_page_shows_every_provider() {
    let dir = tempfile::tempdir().unwrap();
    let id = session(dir.path()).await;
    let visitor = Visitor::of(dir.path()).await;
    for provider in PROVIDERS {
        let page = visitor
            .page(&format!("/c/{id}/request?provider={provider}&budget=1500"))
            .await;
        assert!(page.body.contains("of 1,500"), "{provider}: {}", page.body);
        assert!(page.body.contains(">dropped<") && page.body.contains("id=\"steps\""));
        assert!(!page.body.contains("<result"));
        let whole = page.all("href");
        let whole = whole
            .iter()
            .find(|link| link.contains("/request/body?"))
            .unwrap();
        let body = visitor.get(whole).await;
        let body: Value = serde_json::from_str(&body.body).unwrap();
        let said = visitor
            .done(&[
                "context",
                &id,
                "-p",
                provider,
                "--budget",
                "1500",
                "--allow-over",
            ])
            .await;
        assert_eq!(
            body,
            serde_json::from_str::<Value>(&said).unwrap(),
            "{provider}"
        );
    }
    let wrong = visitor
        .get(&format!("/c/{id}/request?provider=claude"))
        .await;
    assert_eq!(wrong.status, 400);
    let wrong = visitor.get(&format!("/c/{id}/request?policy=%7B")).await;
    assert_eq!(wrong.status, 400);
    assert!(wrong.body.contains("invalid policy"), "{}", wrong.body);
    let typed = visitor.get(&format!("/c/{id}/request?policy=%7Bbad")).await;
    assert_eq!(typed.field_of("name=\"policy\""), "{bad");
    // An error that only the store finds is shown on the page, whose head is already sent.
    let told = visitor
        .page(&format!("/c/{id}/request?policy=%7B%22nope%22%3A1%7D"))
        .await;
    assert!(
        told.body.contains("role=\"alert\"") && told.body.contains("nope"),
        "{}",
        told.body
    );
}

// Viewing a request must not count as sending it: the agent's next request is compared with the
// last one that it got.
#[tokio::test(flavor = "multi_thread")]
async fn request_page_does_not_change_the_next_request() {
    let dir = tempfile::tempdir().unwrap();
    let id = session(dir.path()).await;
    let visitor = Visitor::of(dir.path()).await;
    let path = format!("/c/{id}/request?provider=anthropic");
    for _ in 0..2 {
        let page = visitor.page(&path).await;
        assert!(
            page.body.contains("It is unknown how much of it equals"),
            "{}",
            page.body
        );
    }
    visitor.done(&["context", &id, "-p", "anthropic"]).await;
    let page = visitor.page(&path).await;
    assert!(
        page.body.contains("Compared with the last request"),
        "{}",
        page.body
    );
    assert!(page.body.contains("100%"), "{}", page.body);
}

// With two policies, the page shows the outcome of each item in both, and the lines in which the
// bodies differ.
#[tokio::test(flavor = "multi_thread")]
async fn two_requests_are_compared_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    let id = session(dir.path()).await;
    let visitor = Visitor::of(dir.path()).await;
    let same = format!("/c/{id}/request?provider=neutral&b_provider=neutral");
    let page = visitor.page(&same).await;
    assert!(page.body.contains("The same items") && page.body.contains("bodies are equal"));
    for other in [
        "b_provider=neutral&b_budget=1500",
        "b_provider=gemini",
        "b_provider=neutral&b_as_of=9",
    ] {
        let page = visitor
            .page(&format!("/c/{id}/request?provider=neutral&{other}"))
            .await;
        assert!(page.body.contains("only in A: "), "{other}: {}", page.body);
    }
    let page = visitor.page(&format!("{same}&b_budget=1500")).await;
    assert!(
        page.body.contains("items differ") && page.body.contains(">dropped<"),
        "{}",
        page.body
    );
}
