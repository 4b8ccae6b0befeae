//! Assigns each line of a rollout to a branch. Each line follows the one before it. After a
//! rollback, the next line forks a new branch before the turns that were taken back.

use super::{
    super::{
        record::Record,
        tree::{Parent, Tree},
    },
    kind, said,
};
use serde_json::Value;

/// Prefixes of texts that the tool itself writes in the role of the user.
const HARNESS: [&str; 8] = [
    "<environment_context>",
    "<user_instructions>",
    "<user_shell_command>",
    "<turn_aborted>",
    "<subagent_notification>",
    "<skill>",
    "<permissions instructions>",
    "# AGENTS.md instructions",
];

pub(super) fn places(records: &[Record]) -> Tree {
    let mut tree = Tree::default();
    // Starts of the turns that were not taken back.
    let mut turns: Vec<usize> = Vec::new();
    let mut back_to = None;
    for (index, record) in records.iter().enumerate() {
        match back_to.take() {
            Some(after) => tree.forks(after),
            None => tree.continues(tree.current(), Parent::Fits),
        }
        if let Some(number) = rolled_back(record) {
            let first = turns.len().saturating_sub(number);
            back_to = turns.get(first).map(|turn| turn.checked_sub(1));
            turns.truncate(first);
        } else if prompt(record).is_some() {
            turns.push(index);
        }
    }
    tree
}

/// Returns how many turns are taken back.
fn rolled_back(record: &Record) -> Option<usize> {
    let payload = said(record);
    let is_it = kind(record) == "event_msg" && payload["type"] == "thread_rolled_back";
    let number = is_it.then(|| payload["num_turns"].as_u64()).flatten()?;
    Some(usize::try_from(number).unwrap_or(usize::MAX))
}

/// Returns what a person wrote: the start of a turn.
pub(super) fn prompt(record: &Record) -> Option<&str> {
    let item = said(record);
    let is_user =
        kind(record) == "response_item" && item["type"] == "message" && item["role"] == "user";
    let text = is_user.then(|| text_of(item)).flatten()?;
    let by_harness = HARNESS
        .iter()
        .any(|mark| text.trim_start().starts_with(mark));
    (!by_harness).then_some(text)
}

/// Returns the first text of a message.
pub(super) fn text_of(item: &Value) -> Option<&str> {
    let content = &item["content"];
    content.as_str().or_else(|| {
        let mut parts = content.as_array()?.iter();
        parts.find_map(|part| part["text"].as_str())
    })
}
