//! Statistics for each place of a JSON value. The items of a list share one place for each member,
//! so a member is removed from all items at once.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{CommonMembers, beside, is_map, size};

/// Maximum size, in bytes, of a common value that is stated once. A longer one would take the room
/// that it saves.
const SAME_BYTES_MAX: usize = 64;
/// Minimum number of items with the same value for it to be stated once.
const SAME_LEAST: usize = 3;
/// Average length, in bytes, from which the texts at a place count as long.
const LONG_BYTES: usize = 80;
/// Maximum number of places that are removed one after another.
const DROPPED_MAX: usize = 256;
/// Members that matter most, besides any name that contains "error".
const TELLING: [&str; 19] = [
    "error",
    "message",
    "title",
    "name",
    "url",
    "uri",
    "href",
    "link",
    "id",
    "path",
    "file",
    "status",
    "code",
    "state",
    "text",
    "summary",
    "snippet",
    "result",
    "description",
];

/// Which members may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RemovableMembers {
    /// Long texts of list items, except in members that matter most.
    LongTexts,
    /// Any member; the most important ones last.
    Any,
}

/// Statistics of the values at one place.
#[derive(Debug, Default)]
pub(super) struct Shape {
    values: usize,
    objects: usize,
    /// Number of empty values.
    nothing: usize,
    /// Bytes of all values.
    bytes: usize,
    text_bytes: usize,
    /// The first value, if it is short. `differs` is set once another value is not equal to it.
    first: Option<Value>,
    differs: bool,
    /// Length of the longest list at or below this place.
    longest: usize,
    /// Members of all objects at this place, by name.
    members: BTreeMap<String, Shape>,
    item: Option<Box<Shape>>,
    is_gone: bool,
}

/// Shape of a place without values.
static NOTHING: Shape = Shape {
    values: 0,
    objects: 0,
    nothing: 0,
    bytes: 0,
    text_bytes: 0,
    first: None,
    differs: false,
    longest: 0,
    members: BTreeMap::new(),
    item: None,
    is_gone: false,
};

impl Shape {
    pub fn of(value: &Value) -> Self {
        let mut shape = Self::default();
        shape.note(value);
        shape
    }

    /// Adds a value. Returns its size in bytes.
    fn note(&mut self, value: &Value) -> usize {
        let bytes = match value {
            Value::Array(items) => {
                self.longest = self.longest.max(items.len());
                let shape = self.item.get_or_insert_default();
                let items = items.iter().map(|item| shape.note(item) + 1);
                let bytes = 2 + items.sum::<usize>();
                self.longest = self.longest.max(shape.longest);
                bytes
            }
            Value::Object(members) if is_map(members) => {
                self.longest = self.longest.max(members.len());
                let shape = self.item.get_or_insert_default();
                let members = members.iter();
                let members = members.map(|(key, value)| beside(key) + shape.note(value));
                let bytes = 2 + members.sum::<usize>();
                self.longest = self.longest.max(shape.longest);
                bytes
            }
            Value::Object(members) => {
                self.objects += 1;
                let members = members.iter();
                2 + members
                    .map(|(key, value)| beside(key) + self.note_member(key, value))
                    .sum::<usize>()
            }
            value => size(value),
        };
        self.values += 1;
        self.bytes += bytes;
        self.nothing += usize::from(is_nothing(value));
        self.text_bytes += if value.is_string() { bytes } else { 0 };
        if self.values == 1 && bytes <= SAME_BYTES_MAX {
            self.first = Some(value.clone());
        } else if !self.differs {
            self.differs = self.first.as_ref() != Some(value);
        }
        bytes
    }

    fn note_member(&mut self, key: &str, value: &Value) -> usize {
        if !self.members.contains_key(key) {
            self.members.insert(key.to_owned(), Self::default());
        }
        let Some(shape) = self.members.get_mut(key) else {
            return 0;
        };
        let bytes = shape.note(value);
        self.longest = self.longest.max(shape.longest);
        bytes
    }

    /// Length of the longest list at or below this place.
    pub fn longest(&self) -> usize {
        self.longest
    }

    pub fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// The shape of the list items at this place.
    pub fn item(&self) -> &Self {
        self.item.as_deref().unwrap_or(&NOTHING)
    }

    pub fn member(&self, key: &str) -> &Self {
        self.members.get(key).unwrap_or(&NOTHING)
    }

    /// Removes members that have the same value in all objects and states them once, in at most
    /// `bytes_max` bytes. Also removes members that are always empty.
    pub(crate) fn say_once(&mut self, bytes_max: usize, beside: &mut CommonMembers) {
        self.say_members_once("", &mut { bytes_max }, beside);
    }

    fn say_members_once(&mut self, path: &str, left: &mut usize, beside: &mut CommonMembers) {
        let objects = self.objects;
        for (key, shape) in &mut self.members {
            let path = match path {
                "" => key.clone(),
                path => format!("{path}.{key}"),
            };
            // Equal marks only mean that the encoded data has equal lengths.
            let is_mark = shape.first.as_ref().is_some_and(is_mark);
            let is_same = !shape.differs && shape.values == objects && objects >= SAME_LEAST;
            let is_same = is_same && !is_mark;
            if let Some(value) = shape.first.as_ref().filter(|_| is_same) {
                let told = format!("{path} {value}");
                if told.len() <= *left {
                    *left -= told.len();
                    shape.is_gone = true;
                    beside.same.push(told);
                    continue;
                }
            }
            if shape.nothing == shape.values {
                shape.is_gone = true;
                beside.gone.push(path);
                continue;
            }
            shape.say_members_once(&path, left, beside);
        }
        if let Some(item) = &mut self.item {
            item.say_members_once(path, left, beside);
        }
    }

    /// Returns the paths of the removable members, least important first.
    pub(crate) fn worst_first(&self, goes: RemovableMembers) -> Vec<Vec<String>> {
        let mut found = Vec::new();
        self.droppable(goes, &mut Vec::new(), &mut found);
        found.sort();
        let places = found.into_iter().map(|(_, _, place)| place);
        places.take(DROPPED_MAX).collect()
    }

    fn droppable(
        &self,
        goes: RemovableMembers,
        path: &mut Vec<String>,
        found: &mut Vec<(MemberWorth, std::cmp::Reverse<usize>, Vec<String>)>,
    ) {
        for (key, shape) in self.members.iter().filter(|(_, shape)| !shape.is_gone) {
            path.push(key.clone());
            let worth = shape.worth(key);
            if !shape.is_flat() {
                shape.droppable(goes, path, found);
            } else if goes == RemovableMembers::Any || worth == MemberWorth::LongText {
                let each = shape.bytes / shape.values.max(1);
                found.push((worth, std::cmp::Reverse(each), path.clone()));
            }
            path.pop();
        }
        if let Some(item) = &self.item {
            item.droppable(goes, path, found);
        }
    }

    /// Whether the place and its items have no objects.
    fn is_flat(&self) -> bool {
        self.objects == 0 && self.item.as_ref().is_none_or(|item| item.is_flat())
    }

    fn worth(&self, key: &str) -> MemberWorth {
        let key = key.to_ascii_lowercase();
        let is_long = self.text_bytes >= LONG_BYTES * self.values;
        match () {
            () if TELLING.contains(&key.as_str()) || key.contains("error") => MemberWorth::Telling,
            () if is_long && self.values >= SAME_LEAST => MemberWorth::LongText,
            () if self.text_bytes > 0 || self.item.is_some() => MemberWorth::Text,
            () => MemberWorth::Number,
        }
    }

    /// Marks the member at this path as removed.
    pub(crate) fn let_go(&mut self, path: &[String]) {
        if let Some(item) = &mut self.item {
            item.let_go(path);
        }
        let Some((key, rest)) = path.split_first() else {
            return;
        };
        if let Some(shape) = self.members.get_mut(key) {
            match rest {
                [] => shape.is_gone = true,
                rest => shape.let_go(rest),
            }
        }
    }
}

/// How much a member matters. Lower values are removed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum MemberWorth {
    LongText,
    Text,
    Number,
    Telling,
}

/// Whether a value is a mark left by an earlier cut.
fn is_mark(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.starts_with("[… "))
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty() || is_mark(value),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}
