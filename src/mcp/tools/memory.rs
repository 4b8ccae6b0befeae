//! `remember` and `recall`: the long-term context of the namespace, which every request in it can
//! include.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, to_value};
use tonic::Code;

use super::{ToolAnswer, given, shown};
use crate::{
    bounds::{KEY_BYTES_MAX, RECALLED_CHARS, RECALLED_MAX, VALUE_BYTES_MAX},
    failure::Failure,
    quote::{fence, quote_within},
};
use treering_client::Connection;
use treering_present::text::printable;
use treering_proto::pb;

/// Input of `remember`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RememberInput {
    /// A short name, e.g. "test-command"
    key: String,
    /// Text or JSON; replaces the key's value
    #[serde(default)]
    value: Option<Value>,
    /// Forget the key
    forget: Option<bool>,
}

/// Output of `remember`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RememberOutput {
    key: String,
    /// False if the key was forgotten
    kept: bool,
    revision: u64,
}

/// Stores or deletes a value.
///
/// # Errors
/// Those of the store, and when the value is too large.
pub(crate) async fn remember(
    input: RememberInput,
    store: &Connection,
    actor: &str,
) -> Result<ToolAnswer, Failure> {
    let key = input.key.trim().to_owned();
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(Failure::new(
            format!("the key has {} bytes", key.len()),
            format!("use a short name of 1 to {KEY_BYTES_MAX} bytes"),
        ));
    }
    let forgets = input.forget.unwrap_or(false);
    let mut request = pb::SetContextRequest {
        actor: actor.to_owned(),
        ..Default::default()
    };
    match (forgets, input.value) {
        (true, None) => request.remove.push(key.clone()),
        (false, Some(value)) => {
            let value = value.to_string();
            if value.len() > VALUE_BYTES_MAX {
                return Err(Failure::new(
                    format!("the value has {} bytes", value.len()),
                    format!(
                        "keep the important part, at most {VALUE_BYTES_MAX} bytes; recorded \
                         content need not be remembered: `search` finds it"
                    ),
                ));
            }
            request.set.push(pb::ContextSet {
                key: key.clone(),
                value: value.into_bytes().into(),
                provider: actor.to_owned(),
            });
        }
        _ => {
            return Err(Failure::new(
                "nothing to remember",
                "set `value`, or `forget: true` without a value",
            ));
        }
    }
    let answer = store.contexts().set(request).await?.into_inner();
    let revision = answer.events.last().map_or(0, |event| event.revision);
    let output = RememberOutput {
        key: key.clone(),
        kept: !forgets,
        revision,
    };
    let did = if forgets { "Forgot" } else { "Remembered" };
    let text = format!("{did} {}.", shown(&key));
    Ok(ToolAnswer::text(text).with(to_value(output).unwrap_or_default()))
}

/// Input of `recall`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecallInput {
    /// Only this key, in full; without it, all keys, shortened
    key: Option<String>,
}

/// Returns what was remembered.
///
/// # Errors
/// Those of the store, and when the key does not exist.
pub(crate) async fn recall(input: RecallInput, store: &Connection) -> Result<ToolAnswer, Failure> {
    let entries = entries(store).await?;
    if entries.is_empty() {
        return Ok(ToolAnswer::text("Nothing is remembered yet."));
    }
    let Some(key) = given(input.key.as_deref()) else {
        return Ok(ToolAnswer::text(all(&entries)));
    };
    match entries.iter().find(|entry| entry.key == key) {
        Some(entry) => Ok(ToolAnswer::text(format!(
            "{}:\n{}",
            shown(&entry.key),
            fence(&String::from_utf8_lossy(&entry.value))
        ))),
        None => Err(Failure::new(
            format!("nothing is remembered under {}", shown(key)),
            "call `recall` without a key to list all keys",
        )),
    }
}

fn all(entries: &[pb::ContextEntry]) -> String {
    let mut text = String::from("Remembered (with a key: the full value):\n");
    for entry in entries.iter().take(RECALLED_MAX) {
        let value = String::from_utf8_lossy(&entry.value);
        text.push_str(&format!("{}:\n", shown(&entry.key)));
        text.push_str(&quote_within(&value, 20, RECALLED_CHARS));
    }
    if entries.len() > RECALLED_MAX {
        let rest = entries[RECALLED_MAX..]
            .iter()
            .map(|entry| printable(&entry.key));
        let rest = rest.collect::<Vec<_>>().join(", ");
        text.push_str(&format!("Further keys: {}\n", shown_keys(&rest)));
    }
    text
}

fn shown_keys(keys: &str) -> String {
    crate::quote::named(keys, RECALLED_CHARS * 4)
}

/// Returns the current keys.
async fn entries(store: &Connection) -> Result<Vec<pb::ContextEntry>, Failure> {
    use pb::watch_context_response::Item;
    let request = pb::WatchContextRequest::default();
    let mut changes = match store.contexts().watch(request).await {
        Ok(changes) => changes.into_inner(),
        // The conversation of the long-term context is created with its first key.
        Err(status) if status.code() == Code::NotFound => return Ok(Vec::new()),
        Err(status) => return Err(status.into()),
    };
    let mut entries: Vec<pb::ContextEntry> = Vec::new();
    while let Some(change) = changes.message().await? {
        match change.item {
            Some(Item::Entry(entry)) => entries.push(entry),
            Some(Item::RemovedKey(key)) => entries.retain(|entry| entry.key != key),
            Some(Item::CaughtUp(_)) => break,
            None => {}
        }
    }
    entries.sort_by(|one, other| one.key.cmp(&other.key));
    Ok(entries)
}
