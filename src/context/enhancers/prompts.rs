//! Adds the prompts.

use crate::{
    draft::{Content, Draft, Item, Message, Section, Speaker},
    enhancer::Enhancer,
    explain::EnhancerReport,
    policy::ContextPolicy,
    window::{WindowEvent, WindowInput},
};
use treering_domain::{ContentPart, EventBody};

pub(super) const SYSTEM: &str = "system_prompt";
pub(super) const USER: &str = "user_prompt";

/// Adds the branch's system prompt and the system messages that opened its history.
#[derive(Debug)]
pub(super) struct SystemPrompt;

impl Enhancer for SystemPrompt {
    fn name(&self) -> &str {
        SYSTEM
    }

    fn enhance(
        &self,
        window: &WindowInput,
        _: &ContextPolicy,
        draft: &mut Draft,
    ) -> EnhancerReport {
        let before = draft.items.len();
        if let Some(event) = window.referred(window.branch.system_prompt) {
            let text = match &event.body {
                EventBody::SystemPromptSet(prompt) => &prompt.content,
                EventBody::BranchForked(forked) => &forked.system_prompt,
                _ => "",
            };
            push(draft, event, text.to_owned(), "the system prompt in force");
        }
        for at in &window.branch.preamble {
            let Some(event) = window.referred(Some(*at)) else {
                continue;
            };
            if let EventBody::MessageAppended(message) = &event.body {
                let text = texts(&message.parts, draft);
                push(draft, event, text, "opened the history");
            }
        }
        match draft.items.len() - before {
            0 => EnhancerReport::ran(SYSTEM, "there is no system prompt", 0),
            count => EnhancerReport::ran(SYSTEM, format!("{count} instructions"), count),
        }
    }
}

fn push(draft: &mut Draft, event: &WindowEvent, text: String, reason: &'static str) {
    if text.is_empty() {
        return;
    }
    let mut item = Item::new(Section::System, SYSTEM, Content::Instruction(text));
    item.events = vec![event.at];
    item.reason = reason.into();
    draft.items.push(item);
}

fn texts(parts: &[ContentPart], draft: &mut Draft) -> String {
    let texts: Vec<_> = parts.iter().filter_map(ContentPart::text).collect();
    if texts.len() < parts.len() {
        let warning = "an opening system message holds more than text: only its text is sent";
        draft.warnings.push(warning.to_owned());
    }
    texts.join("\n\n")
}

/// Adds the branch's user prompt.
#[derive(Debug)]
pub(super) struct UserPrompt;

impl Enhancer for UserPrompt {
    fn name(&self) -> &str {
        USER
    }

    fn enhance(
        &self,
        window: &WindowInput,
        _: &ContextPolicy,
        draft: &mut Draft,
    ) -> EnhancerReport {
        let event = window.referred(window.branch.user_prompt);
        let Some((event, text)) = event.and_then(|event| match &event.body {
            EventBody::UserPromptSet(prompt) => Some((event, prompt.content.clone())),
            _ => None,
        }) else {
            return EnhancerReport::ran(USER, "there is no user prompt", 0);
        };
        if text.is_empty() {
            return EnhancerReport::ran(USER, "the user prompt is empty", 0);
        }
        let message = Message::text(Speaker::User, text);
        let mut item = Item::new(Section::System, USER, Content::Message(message));
        item.events = vec![event.at];
        item.reason = "the user prompt in force".into();
        draft.items.push(item);
        EnhancerReport::ran(USER, "the user prompt comes first", 1)
    }
}
