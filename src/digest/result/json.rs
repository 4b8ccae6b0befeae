//! JSON in a few lines: short members first, then the leaves of nested ones while there is room.

use serde_json::Value;

use crate::summary::level;
use treering_context::text::{clip, counted, one_line};

/// For longer JSON, only the type and size are given.
const BYTES_MAX: usize = 256 << 10;
/// Characters up to which a text is short. A longer one shares the room with nested values.
const SHORT_CHARS: usize = 60;
/// Least room for an item of a list, in characters. If there are more items, only the first are
/// shown.
const ITEM_CHARS: usize = 80;

/// The contents of a JSON object or list, in lines of about `room` characters in total. None for
/// any other text, for empty values and for very long ones.
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

/// A member with a nested value; for a list with its length.
fn nested(key: &str, value: &Value, room: usize) -> String {
    let told = compact(value, room);
    match value {
        Value::Array(items) => format!("{key} ({}): {told}", items.len()),
        _ => format!("{key}: {told}"),
    }
}

/// A value without quotation marks, of about `chars_max` characters.
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
