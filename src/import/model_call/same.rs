//! Detects that a message repeats another one.
//!
//! A client sends an answer back without its reasoning, token counts and ids, with other white
//! space at its ends, and with texts split differently. A harness moves its notices. Therefore,
//! messages are compared by digests of their content.

use std::borrow::Cow;

use serde_json::Value;

use super::{super::openai_chat::headline, CallStep};
use treering_domain::{
    ContentPart, Media, MediaSource, MessageAppended, Role, ToolCallRequested, hex,
};

/// The start of a notice of a harness in a user's message.
const NOTICE: &str = "<system-reminder>";

/// What a harness puts in place of an old result.
const CLEARED: &str = "[Old tool result content cleared";

/// Minimum length, in bytes, of call ids that are assumed to be random and therefore unique.
const RANDOM_ID_BYTES_MIN: usize = 16;

/// A digest of a message's content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StepDigest([u8; 16]);

impl StepDigest {
    /// Returns the digest of a step of a call.
    #[must_use]
    pub fn of(step: &CallStep) -> Self {
        match step {
            CallStep::Said { message, calls } => Self::of_message(message, &mut calls.iter()),
            CallStep::Result(result) => Self::of_result(&result.call_id, &result.parts),
        }
    }

    pub(super) fn of_message(
        message: &MessageAppended,
        calls: &mut dyn Iterator<Item = &ToolCallRequested>,
    ) -> Self {
        if message.role == Role::Tool {
            return Self::of_result(&message.tool_call_id, &message.parts);
        }
        let mut hasher = blake3::Hasher::new();
        add(&mut hasher, message.role.as_str());
        let parts = spoken(message);
        add(&mut hasher, text_of(parts.iter().copied()).trim());
        for part in parts {
            add_other(&mut hasher, message.role, part);
        }
        for call in calls {
            add(&mut hasher, &call.call_id);
            add(&mut hasher, &call.tool);
            if call.call_id.len() < RANDOM_ID_BYTES_MIN {
                add(&mut hasher, &sorted(call.arguments.as_str()));
            }
        }
        Self::from(&hasher)
    }

    fn of_result(call_id: &str, parts: &[ContentPart]) -> Self {
        let mut hasher = blake3::Hasher::new();
        add(&mut hasher, "tool");
        add(&mut hasher, call_id);
        add(&mut hasher, text_of(parts.iter()).trim());
        for part in parts {
            add_other(&mut hasher, Role::Tool, part);
        }
        Self::from(&hasher)
    }

    /// Returns the digest as hexadecimal digits.
    #[must_use]
    pub fn hex(&self) -> String {
        hex(&self.0)
    }

    fn from(hasher: &blake3::Hasher) -> Self {
        let mut digest = Self::default();
        hasher.finalize_xof().fill(&mut digest.0);
        digest
    }
}

/// Returns the user's text in a message; `None` for notices of a harness, and for texts of
/// programs, which begin with a tag.
pub(super) fn prompt(step: &CallStep) -> Option<String> {
    let CallStep::Said { message, .. } = step else {
        return None;
    };
    let text = text_of(spoken(message).into_iter());
    let is_notice = text.trim_start().starts_with("# AGENTS.md");
    headline(&text).filter(|_| !is_notice).map(|_| text)
}

/// Returns true for a message that a client may omit or change when it repeats the history: a
/// notice of the harness, instructions, or an answer with nothing but reasoning.
pub(super) fn is_optional(message: &MessageAppended) -> bool {
    match message.role {
        Role::System | Role::Developer => true,
        Role::User => message.parts.iter().all(is_notice),
        Role::Assistant => message.parts.iter().all(is_thought),
        Role::Tool => false,
    }
}

/// Returns the id of the call if its result was cleared.
pub(super) fn cleared(step: &CallStep) -> Option<&str> {
    let CallStep::Result(result) = step else {
        return None;
    };
    let text = text_of(result.parts.iter());
    text.starts_with(CLEARED).then_some(result.call_id.as_str())
}

/// Returns true for a notice of a harness.
fn is_notice(part: &ContentPart) -> bool {
    matches!(part, ContentPart::Text(text) if text.trim_start().starts_with(NOTICE))
}

fn is_thought(part: &ContentPart) -> bool {
    matches!(part, ContentPart::Reasoning(_))
}

/// Returns the parts of a message without reasoning, and without notices if there is anything else.
fn spoken(message: &MessageAppended) -> Vec<&ContentPart> {
    let is_user = message.role == Role::User;
    let said = message.parts.iter().filter(|part| !is_thought(part));
    match !is_user || said.clone().all(is_notice) {
        true => said.collect(),
        false => said.filter(|part| !is_notice(part)).collect(),
    }
}

fn text_of<'a>(parts: impl Iterator<Item = &'a ContentPart>) -> String {
    let text = |part: &'a ContentPart| match part {
        ContentPart::Text(text) | ContentPart::Refusal(text) => Some(text.as_str()),
        _ => None,
    };
    parts.filter_map(text).collect()
}

fn add_other(hasher: &mut blake3::Hasher, role: Role, part: &ContentPart) {
    match part {
        ContentPart::Image(media) | ContentPart::File(media) | ContentPart::Audio(media) => {
            add_media(hasher, media);
        }
        // Clients send the output of a provider's own tools back shortened.
        ContentPart::Json(text) if role != Role::Assistant => add(hasher, &sorted(text.as_str())),
        _ => {}
    }
}

fn add_media(hasher: &mut blake3::Hasher, media: &Media) {
    match &media.source {
        MediaSource::Uri(uri) => add(hasher, uri),
        MediaSource::Data(data) => {
            hasher.update(data);
        }
        MediaSource::Absent => {}
    }
}

/// Adds a text with its length, so that two texts are never taken for one.
fn add(hasher: &mut blake3::Hasher, text: &str) {
    hasher.update(&(text.len() as u64).to_le_bytes());
    hasher.update(text.as_bytes());
}

/// Returns JSON with sorted keys and without `cache_control`, which clients move; other text as it
/// is.
fn sorted(text: &str) -> Cow<'_, str> {
    fn sort(value: Value) -> Value {
        match value {
            Value::Object(fields) => {
                let mut fields: Vec<_> = fields.into_iter().collect();
                fields.retain(|(name, _)| name != "cache_control");
                fields.sort_by(|one, other| one.0.cmp(&other.0));
                let sorted = fields.into_iter().map(|(name, value)| (name, sort(value)));
                Value::Object(sorted.collect())
            }
            Value::Array(items) => Value::Array(items.into_iter().map(sort).collect()),
            value => value,
        }
    }
    match serde_json::from_str(text) {
        Ok(value) => Cow::Owned(sort(value).to_string()),
        Err(_) => Cow::Borrowed(text),
    }
}
