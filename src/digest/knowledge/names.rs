//! Reads the tools and entities that results name. A window then treats them as if the caller had
//! appended `ToolsDiscovered` and `EntitiesNoted` events.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, LazyLock},
};

use serde_json::{Map, Value};

use super::{
    policy::{From, KNOWLEDGE_POLICY, KnowledgePolicy, KnowledgeRule, RuleOutput, TextForm},
    read::{DEPTH_MAX, NAME_BYTES_MAX, ReadableResult, clean},
};
use treering_context::window::{NamesInResult, WindowEvent};
use treering_domain::{Entity, EventBody, ToolResultRecorded};

/// Maximum number of tools, and of entities, read from the results of one window.
const NAMES_MAX: usize = 1_000;
/// Maximum length of a tool's name, in bytes.
const TOOL_BYTES_MAX: usize = 128;

static DEFAULT: LazyLock<KnowledgePolicy> = LazyLock::new(KnowledgePolicy::default);

/// Returns the tools and entities in the results of a window from the event at index `from` on.
///
/// # Errors
/// A message if the conversation's policy is invalid.
pub(crate) fn names_in_results(
    policies: &BTreeMap<String, String>,
    events: &[Arc<WindowEvent>],
    from: usize,
) -> Result<Vec<NamesInResult>, String> {
    let own = policies.get(KNOWLEDGE_POLICY).map(String::as_str);
    let merged = own.map(KnowledgePolicy::merged).transpose();
    let merged = merged.map_err(|error| error.to_string())?;
    let mut names = NameReader::new(merged.as_ref().unwrap_or(&DEFAULT));
    Ok(events
        .iter()
        .enumerate()
        .filter_map(|(place, event)| names.read(place, &event.body, place >= from))
        .collect())
}

/// The rules that give names, and the calls that they match.
struct NameReader<'e> {
    rules: Vec<&'e KnowledgeRule>,
    /// Calls without a result yet, with the rules that match them.
    calls: HashMap<&'e str, Vec<&'e KnowledgeRule>>,
    tools: HashSet<String>,
    entities: HashSet<String>,
}

impl<'e> NameReader<'e> {
    fn new(policy: &'e KnowledgePolicy) -> Self {
        let gives = |rule: &&KnowledgeRule| {
            rule.from == From::Result
                && matches!(rule.gives, RuleOutput::Tools | RuleOutput::Entities)
        };
        Self {
            rules: policy.rules.values().filter(gives).collect(),
            calls: HashMap::new(),
            tools: HashSet::new(),
            entities: HashSet::new(),
        }
    }

    fn read(&mut self, place: usize, body: &'e EventBody, counts: bool) -> Option<NamesInResult> {
        match body {
            EventBody::ToolCallRequested(call) => {
                let rules = self.rules.iter().copied();
                let rules: Vec<_> = rules
                    .filter(|rule| rule.tools.matches(&call.tool))
                    .collect();
                if !rules.is_empty() {
                    self.calls.insert(&call.call_id, rules);
                }
                None
            }
            EventBody::ToolResultRecorded(result) => {
                let rules = self.calls.remove(result.call_id.as_str())?;
                if !counts || !result.success {
                    return None;
                }
                let names = self.names(place, &rules, result);
                let has_names = !names.tools.is_empty() || !names.entities.is_empty();
                has_names.then_some(names)
            }
            _ => None,
        }
    }

    fn names(
        &mut self,
        place: usize,
        rules: &[&KnowledgeRule],
        result: &ToolResultRecorded,
    ) -> NamesInResult {
        let reading = ReadableResult::of(result);
        let mut names = NamesInResult {
            place,
            tools: Vec::new(),
            entities: Vec::new(),
        };
        for rule in rules {
            for value in reading.parts(rule) {
                match rule.gives {
                    RuleOutput::Tools => tools_in(value, rule, 0, &mut names.tools),
                    _ => entities_in(value, rule, 0, &mut names.entities),
                }
            }
            if let (ReadableResult::Text(text), RuleOutput::Tools) = (&reading, rule.gives) {
                names.tools.extend(tools_in_lines(text, rule));
            }
        }
        names.tools.retain(|tool| is_kept(&mut self.tools, tool));
        names
            .entities
            .retain(|entity| is_kept(&mut self.entities, &entity.id));
        names
    }
}

/// Whether a name is already known or is among the first [`NAMES_MAX`] names.
fn is_kept(known: &mut HashSet<String>, name: &str) -> bool {
    known.contains(name) || known.len() < NAMES_MAX && known.insert(name.to_owned())
}

/// Adds the tool names in a value: strings, and objects with a name.
fn tools_in(value: &Value, rule: &KnowledgeRule, depth: usize, found: &mut Vec<String>) {
    if depth > DEPTH_MAX || found.len() >= NAMES_MAX {
        return;
    }
    match value {
        Value::String(name) => found.extend(tool_name(name)),
        Value::Array(items) => {
            for item in items {
                tools_in(item, rule, depth + 1, found);
            }
        }
        Value::Object(map) => match member(map, &rule.name_keys, &["name"]) {
            Some(name) => found.extend(tool_name(&name)),
            None => lists(map, rule).for_each(|list| tools_in(list, rule, depth + 1, found)),
        },
        _ => {}
    }
}

/// Returns the tool names in a text with one on each line, possibly with a description after a
/// colon.
fn tools_in_lines(text: &str, rule: &KnowledgeRule) -> Vec<String> {
    let lines = || text.lines().filter(|line| !line.trim().is_empty());
    let names: Vec<String> = lines()
        .filter_map(|line| match rule.text {
            TextForm::Ignore | TextForm::ShellCd => None,
            TextForm::FirstWord => line.split_whitespace().next(),
            TextForm::LastWord => line.split_whitespace().next_back(),
            TextForm::Lines | TextForm::BeforeColon => {
                let line = line.trim().trim_start_matches(['-', '*', '•']);
                Some(line.split_once(':').map_or(line, |(before, _)| before))
            }
        })
        .filter_map(|name| tool_name(name.trim_matches(['`', '"', '\'', ' '])))
        .collect();
    // If there are other lines, the words are not names.
    match names.len() == lines().count() {
        true => names,
        false => Vec::new(),
    }
}

/// Returns the text, if providers accept it as a tool name.
fn tool_name(text: &str) -> Option<String> {
    let is_fit = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/');
    let text = clean(text, TOOL_BYTES_MAX)?;
    text.chars().all(is_fit).then(|| text.to_owned())
}

/// Adds the entities in a value: objects with an id, including nested ones.
fn entities_in(value: &Value, rule: &KnowledgeRule, depth: usize, found: &mut Vec<Entity>) {
    if depth > DEPTH_MAX || found.len() >= NAMES_MAX {
        return;
    }
    match value {
        Value::Array(items) => {
            for item in items {
                entities_in(item, rule, depth + 1, found);
            }
        }
        Value::Object(map) => {
            if let Some(id) = member(map, &rule.id_keys, &["id"]) {
                let kind = member(map, &rule.kind_keys, &["kind", "type"]);
                found.push(Entity {
                    id,
                    kind: kind.unwrap_or_else(|| rule.kind.clone()),
                    name: member(map, &rule.name_keys, &["name", "title"]).unwrap_or_default(),
                });
            }
            lists(map, rule).for_each(|list| entities_in(list, rule, depth + 1, found));
        }
        _ => {}
    }
}

/// Returns the members that a rule names as lists; all members if it names none.
fn lists<'v>(map: &'v Map<String, Value>, rule: &KnowledgeRule) -> impl Iterator<Item = &'v Value> {
    let is_list = |key: &String| rule.list_keys.is_empty() || rule.list_keys.contains(key);
    map.iter()
        .filter(move |(key, _)| is_list(key))
        .map(|(_, value)| value)
}

/// Returns the first of these members that is a name or a number.
fn member(map: &Map<String, Value>, keys: &[String], default: &[&str]) -> Option<String> {
    let text = |key: &str| match map.get(key)? {
        Value::String(text) => clean(text, NAME_BYTES_MAX).map(str::to_owned),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    match keys {
        [] => default.iter().find_map(|key| text(key)),
        keys => keys.iter().find_map(|key| text(key)),
    }
}
