//! Common setup of the engine's tests: an in-memory store, and simple events.

use super::Engine;
use treering_domain::*;

pub(super) fn ns() -> Namespace {
    Namespace::default()
}

pub(super) async fn memory() -> Engine {
    Engine::in_memory(Limits::default()).await.unwrap()
}

pub(super) fn created(id: ConversationId) -> NewEvent {
    let created = ConversationCreated::default();
    NewEvent::new(id, EventBody::ConversationCreated(created))
}

pub(super) fn said(id: ConversationId, text: impl Into<String>) -> NewEvent {
    let message = MessageAppended::text(Role::User, text);
    NewEvent::new(id, EventBody::MessageAppended(message))
}

pub(super) fn forked(id: ConversationId, name: &str, parent: BranchId, at: u64) -> NewEvent {
    let fork = BranchForked {
        name: BranchName::new(name).unwrap(),
        parent,
        fork_revision: Revision(at),
        system_prompt: String::new(),
    };
    NewEvent::new(id, EventBody::BranchForked(fork))
}

pub(super) async fn append(engine: &Engine, events: Vec<NewEvent>) -> AppendOutcome {
    let command = AppendCommand::new(ns(), events);
    engine.append(command).await.unwrap()
}
