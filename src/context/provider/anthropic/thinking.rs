//! The `thinking` parameter and the parameters that it excludes.
//!
//! With `thinking` enabled, Anthropic requires that the last assistant message of an open tool loop
//! begins with thinking. `temperature`, `top_k` and a forced tool choice are not allowed, and
//! `max_tokens` must exceed the thinking budget. Histories of other providers have no thinking; for
//! them the parameter is removed.

use serde::Deserialize;

use super::{Content, Message, Role};
use crate::provider::{json::Fields, reader::Warnings};

#[derive(Deserialize)]
struct Thinking {
    r#type: String,
    budget_tokens: Option<u64>,
}

fn read(fields: &Fields<'_>) -> Option<Thinking> {
    serde_json::from_str(fields.get("thinking")?.get()).ok()
}

/// The thinking budget in tokens, if one is set.
pub(super) fn budget(fields: &Fields<'_>) -> Option<u64> {
    read(fields)?.budget_tokens
}

/// Removes parameters that exclude each other, with a warning.
pub(super) fn settle(fields: &mut Fields<'_>, messages: &[Message<'_>], warnings: &mut Warnings) {
    if fields.get("thinking").is_none() {
        return;
    }
    let thinking = read(fields);
    let most = fields
        .get("max_tokens")
        .and_then(|most| most.get().parse::<u64>().ok());
    let why = match thinking
        .as_ref()
        .map(|thinking| (thinking.r#type.as_str(), thinking))
    {
        Some(("disabled", _)) => return,
        Some(("enabled", thinking))
            if thinking.budget_tokens.is_none_or(|budget| budget < 1024) =>
        {
            Some("its budget_tokens is missing or below 1024")
        }
        Some(("enabled", thinking)) if thinking.budget_tokens >= most => {
            Some("its budget_tokens is not below max_tokens")
        }
        Some(("enabled" | "adaptive", _)) if !begins_with_thinking(messages) => {
            Some("the tool calls of the open turn were made without thinking")
        }
        Some(("enabled" | "adaptive", _)) => None,
        _ => Some("its type is not supported"),
    };
    if let Some(why) = why {
        fields.0.retain(|(name, _)| name != "thinking");
        warnings.add(format!("the parameter thinking was left out: {why}"));
        return;
    }
    for ruled_out in ["temperature", "top_k"] {
        if fields.get(ruled_out).is_some() {
            fields.0.retain(|(name, _)| name != ruled_out);
            warnings.add(format!(
                "the parameter {ruled_out} was left out: it cannot be used with thinking"
            ));
        }
    }
}

/// Returns false if the last assistant message must begin with thinking but does not. It must if it
/// calls tools or if the model is to continue it.
fn begins_with_thinking(messages: &[Message<'_>]) -> bool {
    let last = messages
        .iter()
        .rposition(|message| message.role == Role::Assistant);
    let Some(last) = last else {
        return true;
    };
    let blocks = &messages[last].content;
    let calls = blocks
        .iter()
        .any(|block| matches!(block.content, Content::ToolUse { .. }));
    let must = calls || last + 1 == messages.len();
    let begins = blocks.first().is_some_and(|block| {
        matches!(
            block.content,
            Content::Thinking { .. } | Content::RedactedThinking { .. }
        )
    });
    begins || !must
}
