//! Definitions of tools that nobody defined, made from the calls of the window: a
//! model can call again what it has called, and some endpoints refuse a body that
//! has calls and no tools.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::{
    context::{steps, window::WindowInput},
    domain::{EventBody, JsonText, Role, ToolDefinition},
};

/// [`ToolDefinition::source`] of a definition that was made so.
pub(super) const SOURCE: &str = "calls of the conversation";
/// Tools that are made: OpenAI takes 128 in all.
const TOOLS_MAX: usize = 128;
/// Keys of one object that are told.
const KEYS_MAX: usize = 48;
/// Longest key: Anthropic's bound.
const KEY_CHARS_MAX: usize = 64;
/// Objects inside of objects are told so deep.
const DEPTH_MAX: usize = 4;
/// Items of one array that are looked at.
const ITEMS_MAX: usize = 32;
/// Longer arguments are not looked at: a tool's keys are seen in shorter ones.
const ARGUMENTS_BYTES_MAX: usize = 1 << 20;

/// The tools that the window's calls name, in the order of their first call; of
/// more than `bytes_max` bytes, those that were called last.
///
/// Tools stand before everything else, so each change of them is a front that no cache
/// serves. What calls show is looked at again when the user says something, and before that
/// when there are twice as many; until then only a tool that is new is told, by its first call.
pub(super) fn from_calls(window: &WindowInput, bytes_max: usize) -> Vec<ToolDefinition> {
    let settled = settled(window);
    let mut calls = 0;
    let mut order: Vec<&str> = Vec::new();
    let mut seen: HashMap<&str, Seen> = HashMap::new();
    let mut last_called: HashMap<&str, usize> = HashMap::new();
    for (at, event) in window.events.iter().enumerate() {
        let EventBody::ToolCallRequested(call) = &event.body else {
            continue;
        };
        steps::note(1);
        let name = call.tool.as_str();
        if name.trim().is_empty() || (order.len() == TOOLS_MAX && !seen.contains_key(name)) {
            continue;
        }
        calls += 1;
        if calls > settled && seen.contains_key(name) {
            continue;
        }
        let shape = seen.entry(name).or_insert_with(|| {
            order.push(name);
            Seen::default()
        });
        last_called.insert(name, at);
        let arguments = call.arguments.as_str();
        if arguments.len() <= ARGUMENTS_BYTES_MAX
            && let Ok(value @ Value::Object(_)) = serde_json::from_str(arguments)
        {
            shape.note(&value, 0);
        }
    }
    let made = |name: &str| {
        let schema = seen
            .get(name)
            .map_or_else(|| Seen::default().object(), Seen::object);
        definition(name, &schema)
    };
    let mut all: Vec<ToolDefinition> = order.into_iter().map(made).collect();
    let mut bytes: usize = all.iter().map(size).sum();
    while bytes > bytes_max && all.len() > 1 {
        let called = |tool: &ToolDefinition| last_called.get(tool.name.as_str());
        let places = 0..all.len();
        let Some(oldest) = places.min_by_key(|at| called(&all[*at])) else {
            break;
        };
        bytes -= size(&all.remove(oldest));
    }
    all
}

/// How many of the window's calls say what tools take: those before the user last said
/// something, or the last power of two.
fn settled(window: &WindowInput) -> usize {
    let (mut calls, mut before_user) = (0_usize, 0);
    for event in &window.events {
        match &event.body {
            EventBody::ToolCallRequested(call) if !call.tool.trim().is_empty() => calls += 1,
            EventBody::MessageAppended(message) if message.role == Role::User => {
                before_user = calls;
            }
            _ => {}
        }
    }
    let power = calls.checked_ilog2().map_or(0, |power| 1 << power);
    power.max(before_user)
}

fn size(tool: &ToolDefinition) -> usize {
    tool.name.len() + tool.description.len() + tool.input_schema.as_str().len()
}

fn definition(name: &str, schema: &Value) -> ToolDefinition {
    ToolDefinition {
        name: name.to_owned(),
        description: format!("{name}, as it was called before in this conversation."),
        input_schema: JsonText::from_checked(Bytes::from(schema.to_string())),
        source: SOURCE.to_owned(),
        needs_approval: false,
        guidance: String::new(),
        discoverable: false,
    }
}

/// What values at one place have been.
#[derive(Debug, Default)]
struct Seen {
    types: BTreeSet<&'static str>,
    /// One was null.
    is_null: bool,
    /// Members of objects, in the order in which they were first seen.
    keys: Vec<String>,
    members: HashMap<String, Seen>,
    items: Option<Box<Seen>>,
}

impl Seen {
    fn note(&mut self, value: &Value, depth: usize) {
        let kind = match value {
            Value::Null => {
                self.is_null = true;
                return;
            }
            Value::Bool(_) => "boolean",
            Value::Number(number) if number.is_f64() => "number",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        self.types.insert(kind);
        if depth >= DEPTH_MAX {
            return;
        }
        match value {
            Value::Array(items) => {
                let seen = self.items.get_or_insert_default();
                for item in items.iter().take(ITEMS_MAX) {
                    seen.note(item, depth + 1);
                }
            }
            Value::Object(members) => {
                for (key, value) in members {
                    self.member(key, value, depth);
                }
            }
            _ => {}
        }
    }

    fn member(&mut self, key: &str, value: &Value, depth: usize) {
        if let Some(seen) = self.members.get_mut(key) {
            seen.note(value, depth + 1);
        } else if self.keys.len() < KEYS_MAX && is_legal(key) {
            let mut seen = Self::default();
            seen.note(value, depth + 1);
            self.keys.push(key.to_owned());
            self.members.insert(key.to_owned(), seen);
        }
    }

    /// The schema of an object with these members.
    fn object(&self) -> Value {
        let members = self.keys.iter().filter_map(|key| {
            let seen = self.members.get(key)?;
            Some((key.clone(), seen.schema()))
        });
        json!({"type": "object", "properties": Map::from_iter(members)})
    }

    /// A schema that every provider takes: one type, or several as `anyOf`.
    fn schema(&self) -> Value {
        // A whole number is a number.
        let whole = self.types.contains("number");
        let types = self
            .types
            .iter()
            .filter(|kind| !(whole && **kind == "integer"));
        let mut all: Vec<Value> = types.map(|kind| self.of_type(kind)).collect();
        if all.is_empty() {
            // Only null was seen, or nothing: most arguments are texts.
            all.push(json!({"type": "string"}));
        }
        if self.is_null {
            all.push(json!({"type": "null"}));
        }
        match all.len() {
            1 => all.remove(0),
            _ => json!({"anyOf": all}),
        }
    }

    fn of_type(&self, kind: &str) -> Value {
        match kind {
            "object" => self.object(),
            "array" => {
                let items = self.items.as_ref().map(|seen| seen.schema());
                json!({"type": "array", "items": items.unwrap_or_else(|| json!({"type": "string"}))})
            }
            kind => json!({"type": kind}),
        }
    }
}

/// What Anthropic takes as the name of a property; the others take more.
fn is_legal(key: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    !key.is_empty() && key.len() <= KEY_CHARS_MAX && key.chars().all(plain)
}
