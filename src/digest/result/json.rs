//! Shows JSON in a few lines: short members first, then the leaves of nested members while there is
//! room.

use serde_json::Value;

use crate::summary::level;
use treering_context::text::{clip, counted, one_line};

/// Longer JSON is only described by type and size.
const BYTES_MAX: usize = 256 << 10;
/// Maximum length of a short text, in characters. Longer texts share the room with nested values.
const SHORT_CHARS: usize = 60;
/// Minimum room for an item of a list, in characters. If not all items fit, only the first are
/// shown.
const ITEM_CHARS: usize = 80;

/// Returns the contents of a JSON object or list, in lines of about `room` characters in total.
/// None for other texts, and for empty or very long values.
pub(super) fn told(text: &str, room: usize) -> Option<Vec<String>> {
    if text.len() > BYTES_MAX || !text.trim_start().starts_with(['{', '[']) {
        return None;
    }
    let value: Value = serde_json::from_str(text).ok()?;
    let (first, nested, left) = match &value {
        Value::Object(members) if !members.is_empty() => {
            let (short, long): (Vec<_>, Vec<_>) =
                members.iter().partition(|(_, value)| is_short(value));
            let short = short
                .into_iter()
                .map(|(key, value)| format!("{key}: {}", leaf(value)));
            let long = long
                .into_iter()
                .map(|(key, value)| nested(key, value, room));
            (
                short.collect::<Vec<_>>().join(", "),
                long.collect::<Vec<_>>(),
                0,
            )
        }
        Value::Array(items) if !items.is_empty() => {
            let told = items.len().min((room / ITEM_CHARS).max(1));
            let lines = items[..told].iter().map(|item| compact(item, room));
            let left = items.len() - told;
            (counted(items.len(), "item"), lines.collect(), left)
        }
        _ => return None,
    };
    let taken = first.chars().count() + nested.len() + ITEM_CHARS.min(left);
    let lengths: Vec<usize> = nested.iter().map(|line| line.chars().count()).collect();
    let most = level(&lengths, room.saturating_sub(taken));
    let mut lines = vec![first];
    lines.extend(nested.iter().map(|line| clip(line, most)));
    if left > 0 {
        lines.push(format!("… {left} more"));
    }
    lines.retain(|line| !line.is_empty());
    Some(lines)
}

fn is_short(value: &Value) -> bool {
    match value {
        Value::String(text) => text.chars().nth(SHORT_CHARS).is_none(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => true,
    }
}

/// Returns a member with a nested value, and its length if the value is a list.
fn nested(key: &str, value: &Value, room: usize) -> String {
    let told = compact(value, room);
    match value {
        Value::Array(items) => format!("{key} ({}): {told}", items.len()),
        _ => format!("{key}: {told}"),
    }
}

/// Returns a value without quotation marks, in about `chars_max` characters.
fn compact(value: &Value, chars_max: usize) -> String {
    let mut told = String::new();
    write(value, chars_max, &mut told);
    told
}

fn write(value: &Value, chars_max: usize, told: &mut String) {
    let is_full = |told: &str| told.len() > chars_max * 4;
    match value {
        Value::Array(items) => {
            told.push('[');
            for (at, item) in items.iter().enumerate() {
                if is_full(told) {
                    break;
                }
                told.push_str(if at > 0 { ", " } else { "" });
                write(item, chars_max, told);
            }
            told.push(']');
        }
        Value::Object(members) => {
            told.push('{');
            for (at, (key, value)) in members.iter().enumerate() {
                if is_full(told) {
                    break;
                }
                told.push_str(if at > 0 { ", " } else { "" });
                told.push_str(key);
                told.push_str(": ");
                write(value, chars_max, told);
            }
            told.push('}');
        }
        value => told.push_str(&clip(&leaf(value), chars_max.max(SHORT_CHARS))),
    }
}

fn leaf(value: &Value) -> String {
    match value {
        Value::String(text) => one_line(text),
        value => value.to_string(),
    }
}
