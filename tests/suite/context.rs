//! Requests built by the real engine.

use treering::{
    context::{Content, Fate, Provider},
    domain::*,
    engine::*,
};

use super::store as shop;

fn query(id: ConversationId) -> BuildQuery {
    BuildQuery::new(shop::ns(), id, Provider::Neutral)
}

// The first thing anyone does: say something, build, send. It must be there.
#[tokio::test]
async fn a_request_is_built() {
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let id = shop::conversation(&engine).await;
    let built = engine.build(query(id)).await.unwrap();
    let body = String::from_utf8(built.request).unwrap();
    assert!(body.contains("hello"), "{body}");
    println!("{body}\n{:#?}", built.explanation);
    engine.close().await;
}
