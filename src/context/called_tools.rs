//! Derives tool definitions from calls: names and shapes of arguments.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use serde_json::{Map, Value, json};

use treering_domain::{JsonText, ToolCallRequested, ToolDefinition};

/// [`ToolDefinition::source`] of a derived definition.
const SOURCE: &str = "calls of the conversation";
/// Maximum number of derived tools. OpenAI accepts 128 in all.
const TOOLS_MAX: usize = 128;
/// Maximum number of keys of one object in a schema.
const KEYS_MAX: usize = 48;
/// Maximum length of a key in a schema, in characters: Anthropic's limit.
const KEY_CHARS_MAX: usize = 64;
/// Maximum nesting of objects in a schema.
const DEPTH_MAX: usize = 4;
/// Maximum number of array items that are read.
const ITEMS_MAX: usize = 32;
/// Maximum size of arguments that are read, in bytes. Shorter calls show the same keys.
const ARGUMENTS_BYTES_MAX: usize = 1 << 20;
/// Estimated bytes in memory per byte of the schema.
const MEMORY_FACTOR: u64 = 8;

/// The called tools, with the arguments of each.
#[derive(Clone, Debug, Default)]
pub struct CalledTools {
    /// Names, in the order of their first call.
    order: Vec<String>,
    tools: HashMap<String, CalledTool>,
    calls: usize,
}

#[derive(Clone, Debug, Default)]
struct CalledTool {
    arguments: ArgumentShape,
    /// Number of the last call of this tool.
    last: usize,
}

impl CalledTools {
    /// Returns the tools of these calls, oldest call first.
    #[must_use]
    pub fn of<'a>(calls: impl IntoIterator<Item = &'a ToolCallRequested>) -> Self {
        let mut tools = Self::default();
        calls.into_iter().for_each(|call| tools.note(call));
        tools
    }

    /// Whether the tool was called.
    #[must_use]
    pub fn has(&self, tool: &str) -> bool {
        self.tools.contains_key(tool)
    }

    /// Adds a call. Ignores calls without a name, and new tools beyond the maximum.
    pub fn note(&mut self, call: &ToolCallRequested) {
        let name = call.tool.as_str();
        if name.trim().is_empty() || (self.order.len() == TOOLS_MAX && !self.has(name)) {
            return;
        }
        self.calls += 1;
        if !self.has(name) {
            self.order.push(name.to_owned());
        }
        let called = self.tools.entry(name.to_owned()).or_default();
        called.last = self.calls;
        let arguments = call.arguments.as_str();
        if arguments.len() <= ARGUMENTS_BYTES_MAX
            && let Ok(value @ Value::Object(_)) = serde_json::from_str(arguments)
        {
            called.arguments.note(&value, 0);
        }
    }

    /// Returns the definitions, in the order of first calls. If they exceed `bytes_max` bytes, the
    /// most recently called tools stay.
    pub(crate) fn definitions(&self, bytes_max: usize) -> Vec<ToolDefinition> {
        let named = self.order.iter().filter_map(|name| {
            let called = self.tools.get(name)?;
            Some((called.last, definition(name, &called.arguments.object())))
        });
        let mut all: Vec<_> = named.collect();
        let mut bytes: usize = all.iter().map(|(_, tool)| size(tool)).sum();
        while bytes > bytes_max && all.len() > 1 {
            let Some(oldest) = (0..all.len()).min_by_key(|at| all[*at].0) else {
                break;
            };
            bytes -= size(&all.remove(oldest).1);
        }
        all.into_iter().map(|(_, tool)| tool).collect()
    }

    /// Estimated memory use, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let told = self.definitions(usize::MAX);
        told.iter().map(|tool| size(tool) as u64).sum::<u64>() * MEMORY_FACTOR
    }
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
        strict: None,
    }
}

/// The values seen at one place.
#[derive(Clone, Debug, Default)]
struct ArgumentShape {
    types: BTreeSet<&'static str>,
    /// Whether a value was null.
    is_null: bool,
    /// Members of objects, in the order in which they were first seen.
    keys: Vec<String>,
    members: HashMap<String, ArgumentShape>,
    items: Option<Box<ArgumentShape>>,
}

impl ArgumentShape {
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

    /// Returns a schema that every provider accepts: one type, or several as `anyOf`.
    fn schema(&self) -> Value {
        // An integer is also a number.
        let whole = self.types.contains("number");
        let types = self
            .types
            .iter()
            .filter(|kind| !(whole && **kind == "integer"));
        let mut all: Vec<Value> = types.map(|kind| self.of_type(kind)).collect();
        if all.is_empty() {
            // Only null or nothing was seen. Most arguments are strings.
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

/// Whether Anthropic accepts the key as a property name. The other providers accept more.
fn is_legal(key: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    !key.is_empty() && key.len() <= KEY_CHARS_MAX && key.chars().all(plain)
}
