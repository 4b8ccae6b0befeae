//! Requests built by the real engine.

mod histories;
mod real;
mod requests;
mod speed;

use treering::{
    context::{Content, Draft, Explanation, Item, Provider},
    domain::*,
    engine::*,
};

use super::store::ns;

fn query(id: ConversationId) -> BuildQuery {
    BuildQuery::new(BranchAddress::active(ns(), id), Provider::Neutral)
}

fn say(id: ConversationId, role: Role, text: &str) -> NewEvent {
    let body = EventBody::MessageAppended(MessageAppended::text(role, text));
    NewEvent::new(id, body)
}

fn set(id: ConversationId, key: &str, value: &str) -> NewEvent {
    let value = treering::proto::json::check(value.as_bytes()).unwrap();
    let set = ContextSet {
        key: key.to_owned(),
        value,
        provider: "test".to_owned(),
    };
    NewEvent::new(id, EventBody::ContextSet(set))
}

/// Returns the text of a text item.
fn text(item: &Item) -> String {
    match &*item.content {
        Content::Instruction(text) => text.clone(),
        Content::Message(message) => {
            let texts = message.parts.iter().filter_map(ContentPart::text);
            texts.collect::<Vec<_>>().join(" ")
        }
        Content::Step(step) => {
            let tools: Vec<_> = step.calls().map(|call| call.tool.as_str()).collect();
            format!("step {}", tools.join(" "))
        }
    }
}

fn texts(draft: &Draft) -> Vec<String> {
    draft.items.iter().map(text).collect()
}

/// Checks that the lines of the budget add up to the request.
fn adds_up(explanation: &Explanation) {
    let items: u64 = explanation.items.iter().map(|item| item.tokens).sum();
    let sections: u64 = explanation.sections.iter().map(|line| line.tokens).sum();
    assert_eq!(sections, explanation.tokens);
    let tools = explanation.tokens - items;
    let of_tools = explanation
        .sections
        .iter()
        .find(|line| line.section == treering::context::Section::Tools);
    assert_eq!(tools, of_tools.map_or(0, |line| line.tokens));
}
