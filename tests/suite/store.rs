//! A store in a folder, and helpers to fill, read and check it.

use std::path::Path;

use futures::StreamExt;
use treering::{domain::*, engine::*};

pub fn ns() -> Namespace {
    Namespace::default()
}

pub async fn open(dir: &Path) -> Engine {
    Engine::open(OpenOptions::new(dir)).await.unwrap()
}

pub fn message(id: ConversationId, text: &str) -> NewEvent {
    let body = EventBody::MessageAppended(MessageAppended::text(Role::User, text));
    NewEvent::new(id, body)
}

pub fn call(id: ConversationId, call_id: &str, tool: &str) -> NewEvent {
    let arguments = treering::proto::json::check(b"{}").unwrap();
    let body = EventBody::ToolCallRequested(ToolCallRequested {
        call_id: call_id.into(),
        tool: tool.into(),
        arguments_hash: ContentHash(blake3::hash(arguments.as_bytes()).into()),
        arguments,
        message_revision: None,
        needs_approval: false,
        ..ToolCallRequested::default()
    });
    NewEvent::new(id, body)
}

pub fn result(id: ConversationId, call_id: &str, text: &str) -> NewEvent {
    let result = ToolResultRecorded::text(call_id, text);
    NewEvent::new(id, EventBody::ToolResultRecorded(result))
}

pub async fn append(engine: &Engine, events: Vec<NewEvent>) -> Result<AppendOutcome, AppendError> {
    engine.append(AppendCommand::new(ns(), events)).await
}

/// Creates a conversation with one message.
pub async fn conversation(engine: &Engine) -> ConversationId {
    let id = ConversationId::generate();
    let created = EventBody::ConversationCreated(ConversationCreated::default());
    let events = vec![NewEvent::new(id, created), message(id, "hello")];
    append(engine, events).await.unwrap();
    id
}

/// Returns the faults that a deep verification finds.
pub async fn faults(engine: &Engine) -> Vec<Fault> {
    let mut items = engine.verify(&ns(), true);
    let mut faults = Vec::new();
    while let Some(item) = items.next().await {
        match item.unwrap() {
            VerifyItem::Progress(_) => {}
            VerifyItem::Fault(fault) => faults.push(fault),
            VerifyItem::Outcome(outcome) => {
                assert_eq!(outcome.sound, faults.is_empty());
                return faults;
            }
        }
    }
    panic!("a verification ends with an outcome");
}

pub async fn assert_sound(engine: &Engine) {
    assert_eq!(faults(engine).await, []);
}
