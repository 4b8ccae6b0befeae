//! Cuts JSON so that the result is JSON and its items can still be compared.
//!
//! Steps, in this order: members with the same value in all items of a list are stated once; long
//! texts get shorter; the middle of lists is removed; the same members are removed from all items.
//! Short texts and numbers are never cut, because half of a date is useless.

mod shape;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

use self::shape::{RemovableMembers, Shape};
use super::blobs;

/// Longer texts are not parsed as JSON but cut to head and tail.
const TEXT_BYTES_MAX: usize = 512 * 1024;
/// Texts up to this length, in bytes, are whole or absent. So are single words (URLs, paths) up to
/// `WORD_BYTES`.
const SHORT_BYTES: usize = 48;
const WORD_BYTES: usize = 200;
/// JSON inside a text is parsed from this length on.
const NESTED_BYTES: usize = 512;
/// Bytes that a mark takes.
const MARK_BYTES: usize = 24;
/// A text cut below this length keeps only its beginning, and no count of the missing bytes.
const MARKED_BYTES: usize = 160;
/// An object with this many members of the same kind is treated as a list keyed by ids. `MAP_LEAST`
/// is for objects as values, `FLAT_MAP_LEAST` for plain values.
const MAP_LEAST: usize = 4;
const FLAT_MAP_LEAST: usize = 24;
/// Share of the room for values stated once, and the maximum number of removed members that are
/// named.
const BESIDE_SHARE: usize = 4;
const NAMES_MAX: usize = 8;
/// The stages of cutting, which are tried in this order. Each stage has the members to remove
/// first, the length to which texts may be cut, and the least number of items that a list keeps.
const STAGES: [Stage; 6] = [
    (None, 160, usize::MAX),
    (None, 80, 6),
    (Some(RemovableMembers::LongTexts), 80, 6),
    (None, SHORT_BYTES, 3),
    (Some(RemovableMembers::Any), SHORT_BYTES, 3),
    (Some(RemovableMembers::Any), SHORT_BYTES, 1),
];

type Stage = (Option<RemovableMembers>, usize, usize);

/// Shortened JSON.
#[derive(Debug)]
pub(super) struct ShortJson {
    /// The JSON text.
    pub text: String,
    /// Facts stated once for the whole value.
    pub beside: CommonMembers,
}

/// Members that are stated once, or not at all, instead of in each item of a list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CommonMembers {
    /// Members with the same value everywhere, as `path value`.
    same: Vec<String>,
    /// Names of members that were removed everywhere.
    gone: Vec<String>,
}

impl CommonMembers {
    /// The facts as text. In a mark, they follow the number of omitted bytes.
    pub fn told(&self) -> String {
        let mut told = String::new();
        if !self.same.is_empty() {
            told.push_str(&format!("; the same in each: {}", self.same.join(", ")));
        }
        if !self.gone.is_empty() {
            let names = self.gone.iter().take(NAMES_MAX).map(String::as_str);
            let names = names.collect::<Vec<_>>().join(", ");
            told.push_str(&format!("; members left out: {names}"));
            let more = self.gone.len().saturating_sub(NAMES_MAX);
            if more > 0 {
                told.push_str(&format!(" and {more} more"));
            }
        }
        told
    }

    fn add(&mut self, other: Self) {
        for (all, more) in [(&mut self.same, other.same), (&mut self.gone, other.gone)] {
            for told in more {
                if !all.contains(&told) {
                    all.push(told);
                }
            }
        }
    }
}

/// The text as shortened JSON of about `bytes_max` bytes. None if the text is not a JSON object or
/// list, or cannot be cut that far.
pub(super) fn cut(text: &str, bytes_max: usize) -> Option<ShortJson> {
    let text = text.trim();
    if text.len() > TEXT_BYTES_MAX || !text.starts_with(['{', '[']) {
        return None;
    }
    let text = blobs::without(text, 0);
    let mut value: Value = serde_json::from_str(&text).ok()?;
    let mut beside = CommonMembers::default();
    if size(&value) > bytes_max {
        let mut shape = Shape::of(&value);
        let limits = limits(&value, &mut shape, bytes_max, &mut beside)?;
        apply(&mut value, &shape, limits, &mut beside);
    }
    let text = value.to_string();
    // If the names alone exceed the limit, a cut to head and tail is as good.
    (text.len() <= bytes_max + bytes_max / 8).then_some(ShortJson { text, beside })
}

/// Bytes of a serialized value.
fn size(value: &Value) -> usize {
    match value {
        Value::Null => 4,
        Value::Bool(_) => 5,
        Value::Number(number) => number.to_string().len(),
        Value::String(text) => text_size(text),
        Value::Array(items) => 2 + items.iter().map(|item| size(item) + 1).sum::<usize>(),
        Value::Object(members) => {
            let members = members.iter();
            2 + members
                .map(|(key, value)| beside(key) + size(value))
                .sum::<usize>()
        }
    }
}

fn text_size(text: &str) -> usize {
    let escaped = text.bytes().map(|byte| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' => 2,
        0..0x20 => 6,
        _ => 1,
    });
    2 + escaped.sum::<usize>()
}

/// Bytes of a member without its value.
fn beside(key: &str) -> usize {
    text_size(key) + 2
}

/// Whether a text is never cut.
fn is_word(text: &str) -> bool {
    text.len() <= SHORT_BYTES || text.len() <= WORD_BYTES && !text.contains(char::is_whitespace)
}

/// Whether the keys are ids, so that the object is like a list.
fn is_map(members: &Map<String, Value>) -> bool {
    let mut values = members.values();
    match values.next() {
        Some(Value::Object(first)) if members.len() >= MAP_LEAST => values.all(|value| {
            let Value::Object(other) = value else {
                return false;
            };
            let shared = other.keys().filter(|key| first.contains_key(*key));
            shared.count() * 2 >= other.len().max(first.len())
        }),
        Some(first) if members.len() >= FLAT_MAP_LEAST => {
            let kind = std::mem::discriminant(first);
            let is_flat = !first.is_object() && !first.is_array();
            is_flat && values.all(|value| std::mem::discriminant(value) == kind)
        }
        _ => false,
    }
}

/// Limits for lists and texts.
#[derive(Clone, Copy, Debug)]
struct Limits {
    items_max: usize,
    text_bytes_max: usize,
}

/// The largest limits that fit in `bytes_max`. Marks members to remove in `shape`.
fn limits(
    value: &Value,
    shape: &mut Shape,
    bytes_max: usize,
    beside: &mut CommonMembers,
) -> Option<Limits> {
    let longest = shape.longest();
    let (_, texts, items) = STAGES[0];
    if let Some(limits) = within(value, shape, bytes_max, texts, items.min(longest)) {
        return Some(limits);
    }
    shape.say_once(bytes_max / BESIDE_SHARE, beside);
    let bytes_max = bytes_max.saturating_sub(beside.same.iter().map(String::len).sum());
    for (goes, texts, items) in STAGES {
        let items = items.min(longest);
        for place in goes.map_or_else(Vec::new, |goes| shape.worst_first(goes)) {
            if least(value, shape, texts, items) <= bytes_max {
                break;
            }
            shape.let_go(&place);
            beside.gone.push(place.join("."));
        }
        if let Some(limits) = within(value, shape, bytes_max, texts, items) {
            return Some(limits);
        }
    }
    None
}

/// The longest lists that fit, and then the longest texts. None if lists of `items_least` items
/// with texts of `text_bytes` bytes do not fit.
fn within(
    value: &Value,
    shape: &Shape,
    bytes_max: usize,
    text_bytes: usize,
    items_least: usize,
) -> Option<Limits> {
    let fits = |items_max| least(value, shape, text_bytes, items_max) <= bytes_max;
    let (mut low, mut high) = (items_least, shape.longest());
    if !fits(low) {
        return None;
    }
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        match fits(middle) {
            true => low = middle,
            false => high = middle - 1,
        }
    }
    let mut sizes = Vec::new();
    let fixed = measure(value, shape, low, &mut sizes);
    Some(Limits {
        items_max: low,
        text_bytes_max: shared(sizes, bytes_max.saturating_sub(fixed)),
    })
}

/// Bytes of the value with texts cut to `text_bytes` and lists to `items_max`.
fn least(value: &Value, shape: &Shape, text_bytes: usize, items_max: usize) -> usize {
    let mut sizes = Vec::new();
    let fixed = measure(value, shape, items_max, &mut sizes);
    let texts = sizes.into_iter().map(|size| size.min(text_bytes + 2));
    fixed + texts.sum::<usize>()
}

/// Limit in bytes for each text so that all texts together fit in `bytes_max`. Room that short
/// texts do not use goes to the long ones.
fn shared(mut sizes: Vec<usize>, bytes_max: usize) -> usize {
    sizes.sort_unstable();
    let (mut left, mut count) = (bytes_max, sizes.len());
    for size in sizes {
        if size > left / count {
            return left / count;
        }
        left -= size;
        count -= 1;
    }
    usize::MAX
}

/// Bytes of everything that is not cut when lists have `items_max` items. Adds the sizes of texts
/// that may be cut to `texts`.
fn measure(value: &Value, shape: &Shape, items_max: usize, texts: &mut Vec<usize>) -> usize {
    let mut bytes = 2;
    match value {
        Value::String(text) if !is_word(text) => {
            texts.push(text_size(text));
            return 0;
        }
        Value::Array(items) => {
            let (head, tail) = ends(items.len(), items_max);
            for item in items[..head].iter().chain(&items[tail..]) {
                bytes += 1 + measure(item, shape.item(), items_max, texts);
            }
            bytes += if head < tail { MARK_BYTES } else { 0 };
        }
        Value::Object(members) if is_map(members) => {
            let (head, tail) = ends(members.len(), items_max);
            let stay = members.iter().take(head).chain(members.iter().skip(tail));
            for (key, value) in stay {
                bytes += beside(key) + measure(value, shape.item(), items_max, texts);
            }
            bytes += if head < tail { MARK_BYTES } else { 0 };
        }
        Value::Object(members) => {
            for (key, value) in members {
                let shape = shape.member(key);
                if !shape.is_gone() {
                    bytes += beside(key) + measure(value, shape, items_max, texts);
                }
            }
        }
        value => return size(value),
    }
    bytes
}

/// Start and end of the removed middle of a list. Two items stay at the front for each one at the
/// end.
fn ends(len: usize, items_max: usize) -> (usize, usize) {
    let tail = items_max / 3;
    match len > items_max + 1 {
        true => (items_max - tail, len - tail),
        false => (len, len),
    }
}

fn apply(value: &mut Value, shape: &Shape, limits: Limits, beside: &mut CommonMembers) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
        Value::String(text) => {
            if !is_word(text) && text_size(text) > limits.text_bytes_max {
                *text = shorter(text, limits.text_bytes_max, beside);
            }
        }
        Value::Array(items) => {
            let (head, tail) = ends(items.len(), limits.items_max);
            for item in &mut items[..head] {
                apply(item, shape.item(), limits, beside);
            }
            for item in &mut items[tail..] {
                apply(item, shape.item(), limits, beside);
            }
            if head < tail {
                let mark = Value::String(format!("[… {} more …]", tail - head));
                items.splice(head..tail, [mark]);
            }
        }
        Value::Object(members) if is_map(members) => {
            let (head, tail) = ends(members.len(), limits.items_max);
            let mut stays = Map::new();
            for (at, (key, mut value)) in std::mem::take(members).into_iter().enumerate() {
                if at < head || at >= tail {
                    apply(&mut value, shape.item(), limits, beside);
                    stays.insert(key, value);
                } else if at == head {
                    let mark = Value::String(format!("{} more", tail - head));
                    stays.insert("…".to_owned(), mark);
                }
            }
            *members = stays;
        }
        Value::Object(members) => {
            members.retain(|key, value| {
                let shape = shape.member(key);
                let was_empty = is_empty(value);
                if !shape.is_gone() {
                    apply(value, shape, limits, beside);
                }
                // Remove an object that has lost all its members.
                !shape.is_gone() && (was_empty || !is_empty(value))
            });
        }
    }
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty)
}

/// The text cut to head and tail, or as shortened JSON if it is JSON itself.
fn shorter(text: &str, bytes_max: usize, beside: &mut CommonMembers) -> String {
    let room = bytes_max.saturating_sub(2);
    // Serializing adds a backslash before each quote.
    if text.len() >= NESTED_BYTES
        && let Some(json) = cut(text, room * 3 / 4)
        && text_size(&json.text) <= bytes_max
    {
        beside.add(json.beside);
        return json.text;
    }
    let share = text.len() as u128 * room as u128 / text_size(text) as u128;
    let room = usize::try_from(share).unwrap_or(room);
    if room < MARKED_BYTES {
        let head = text.floor_char_boundary(room.saturating_sub("…".len()));
        return format!("{}…", &text[..head]);
    }
    let room = room - MARK_BYTES;
    let head = text.floor_char_boundary(room * 2 / 3);
    let tail = text.ceil_char_boundary(text.len() - room / 3);
    if tail <= head {
        return text.to_owned();
    }
    let gone = tail - head;
    format!("{}[… {gone} bytes …]{}", &text[..head], &text[tail..])
}

/// The arguments of a call with long texts cut so that the object has about `bytes_max` bytes. The
/// keys do not change. None if the arguments are not an object, or if nothing is cut.
pub(super) fn cut_texts(arguments: &str, bytes_max: usize, whole: &str) -> Option<String> {
    let mut value: Value = serde_json::from_str(arguments).ok()?;
    if !value.is_object() {
        return None;
    }
    let mut sizes = Vec::new();
    texts(&mut value, &mut |text| sizes.push(text.len()));
    sizes.sort_unstable();
    let (all, mut count) = (sizes.iter().sum::<usize>(), sizes.len());
    let mut left = bytes_max.saturating_sub(arguments.len().saturating_sub(all));
    let mut each_max = left;
    for size in sizes {
        each_max = left / count;
        if size > each_max {
            break;
        }
        left -= size;
        count -= 1;
    }
    let each_max = each_max.max(MARK_BYTES * 4);
    let mut changed = false;
    texts(&mut value, &mut |text| {
        if text.len() > each_max + each_max / 4 {
            let room = each_max - MARK_BYTES;
            let head = line_end(text, text.floor_char_boundary(room * 2 / 3));
            let tail = line_start(text, text.ceil_char_boundary(text.len() - room / 3));
            let gone = tail - head;
            changed = true;
            *text = format!(
                "{}[… {gone} bytes are left out{whole} …]{}",
                &text[..head],
                &text[tail..]
            );
        }
    });
    changed.then(|| value.to_string())
}

/// The end of the previous line if it is near, else `at`.
fn line_end(text: &str, at: usize) -> usize {
    match text[..at].rfind('\n') {
        Some(line) if at - line <= at / 4 => line + 1,
        _ => at,
    }
}

/// The start of the next line if it is near, else `at`.
fn line_start(text: &str, at: usize) -> usize {
    let rest = text.len() - at;
    match text[at..].find('\n') {
        Some(line) if line < rest / 4 => at + line + 1,
        _ => at,
    }
}

/// Calls `apply` on each text in the value.
fn texts(value: &mut Value, apply: &mut dyn FnMut(&mut String)) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
        Value::String(text) => apply(text),
        Value::Array(items) => items.iter_mut().for_each(|item| texts(item, apply)),
        Value::Object(members) => members.values_mut().for_each(|value| texts(value, apply)),
    }
}
