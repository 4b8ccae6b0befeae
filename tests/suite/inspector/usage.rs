//! Tokens and costs of model calls.

use treering::{domain::*, engine::*};

use super::Browser;
use crate::suite::store::{append, conversation, message, ns, open};

const PRICES: &str = r#"{"claude-sonnet-4": {"input_cost_per_token": 3e-6,
    "output_cost_per_token": 15e-6, "cache_read_input_token_cost": 0.3e-6}}"#;

fn answer(id: ConversationId, model: &str, at: TimestampMicros) -> NewEvent {
    let mut said = MessageAppended::text(Role::Assistant, "done");
    said.usage = Some(Usage {
        input_tokens: 100_000,
        output_tokens: 20_000,
        cache_read_input_tokens: 1_000_000,
        model: model.to_owned(),
        ..Usage::default()
    });
    let mut event = NewEvent::new(id, EventBody::MessageAppended(said));
    event.occurred_at = Some(at);
    event
}

// Somebody wants to know what last week's agents cost. Every call counts once, although branches
// share history; a model without a price is named, and not counted as free.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_counted_and_priced() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let id = conversation(&engine).await;
    let day = |day: i64| TimestampMicros(1_767_268_800_000_000 + day * 86_400_000_000); // noon of 2026-01-01
    let events = vec![
        message(id, "go"),
        answer(id, "claude-sonnet-4-20250514", day(0)),
        answer(id, "claude-sonnet-4-20250514", day(1)),
    ];
    append(&engine, events).await.unwrap();
    let fork = ForkCommand {
        address: BranchAddress::active(ns(), id),
        at: None,
        name: "another".to_owned(),
        system_prompt: String::new(),
        into: None,
        activate: true,
        idempotency_key: None,
        actor: String::new(),
    };
    engine.fork(fork).await.unwrap();
    append(&engine, vec![answer(id, "house-model", day(2))])
        .await
        .unwrap();
    engine.close().await;
    let prices = dir.path().join("prices.json");
    std::fs::write(&prices, PRICES).unwrap();
    let browser = Browser::start(dir.path(), &["--prices", prices.to_str().unwrap()]).await;
    for path in ["/usage".to_owned(), format!("/c/{id}/usage")] {
        let page = browser.page(&path).await.body;
        // 0.30 for input, 0.30 for cached input and 0.30 for output, twice.
        for shown in [
            "3,000,000",
            "60,000",
            "$1.80+",
            "house-model",
            "1 call of models",
            "2026-01-03",
        ] {
            assert!(page.contains(shown), "{path}: no {shown} in {page}");
        }
        let one_day = browser
            .page(&format!("{path}?since=2026-01-02&until=2026-01-02"))
            .await
            .body;
        assert!(
            one_day.contains("$0.90<") && !one_day.contains("house-model"),
            "{path}: {one_day}"
        );
        let none = browser.page(&format!("{path}?until=2025-01-01")).await;
        assert!(none.body.contains("No model call"), "{}", none.body);
        let refused = browser.get(&format!("{path}?since=whenever")).await;
        assert_eq!(refused.status, 400);
    }
}
