//! Finds ids that recur in texts and arguments of calls.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use crate::summary::{
    extract::repeated,
    facts::{Facts, is_id},
    text::{clip, one_line},
};

const IDS_MAX: usize = 24;

/// Adds the strings in arguments with their keys, up to a limit.
fn leaves<'a>(key: &'a str, value: &'a Value, found: &mut Vec<(&'a str, &'a str)>) {
    const LEAVES_MAX: usize = 64;
    if found.len() >= LEAVES_MAX {
        return;
    }
    match value {
        Value::String(text) => found.push((key, text)),
        Value::Array(values) => values.iter().for_each(|value| leaves(key, value, found)),
        Value::Object(object) => object
            .iter()
            .for_each(|(key, value)| leaves(key, value, found)),
        _ => {}
    }
}

/// Whether an argument is an id, judged by its key or its form.
fn is_argument_id(key: &str, value: &str) -> bool {
    const CHARS: std::ops::RangeInclusive<usize> = 3..=64;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if !CHARS.contains(&value.len()) || !value.chars().all(plain) {
        return false;
    }
    let has_digit = value.contains(|c: char| c.is_ascii_digit());
    let is_named = ["id", "Id", "ID", "_ids", "number", "iban"]
        .iter()
        .any(|end| key.ends_with(end));
    is_named && has_digit || is_id(value)
}

/// Ids with the number of their occurrences.
#[derive(Default)]
pub(super) struct Ids {
    counts: HashMap<String, u32>,
    order: Vec<String>,
    named: Vec<String>,
}

impl Ids {
    pub fn note(&mut self, text: &str) {
        let mut facts = Facts::new(64);
        facts.note(text);
        let mut seen = HashSet::new();
        for id in facts.ids {
            if !seen.insert(id.clone()) {
                continue;
            }
            let count = self.counts.entry(id.clone()).or_default();
            *count += 1;
            if *count == 1 {
                self.order.push(id);
            }
        }
    }

    /// Counts ids in arguments, because an id in several calls will be needed again. Only whole
    /// values count, not ids within longer text that was written or searched for.
    pub(crate) fn of_arguments(&mut self, arguments: &str) {
        let Ok(arguments) = serde_json::from_str::<Value>(arguments) else {
            return;
        };
        let mut values = Vec::new();
        leaves("", &arguments, &mut values);
        let mut seen = HashSet::new();
        for (key, value) in values {
            if !is_argument_id(key, value) || !seen.insert(value) {
                continue;
            }
            let count = self.counts.entry(value.to_owned()).or_default();
            *count += 1;
            if *count == 1 {
                self.order.push(value.to_owned());
            }
        }
    }

    pub fn noted(&mut self, id: &str, name: &str) {
        let told = match one_line(name) {
            name if name.is_empty() => one_line(id),
            name => format!("{} ({name})", one_line(id)),
        };
        self.named.push(clip(&told, 80));
    }

    /// Returns the ids that occurred in more than one text or call, in the order of their first
    /// occurrence, followed by the noted ids. At most `IDS_MAX`: the last ones.
    pub fn again(self) -> Vec<String> {
        let mut all = repeated(&self.counts, &self.order);
        all.extend(self.named);
        let over = all.len().saturating_sub(IDS_MAX);
        all.drain(..over);
        all
    }
}
