//! Turns attributes whose names are paths, such as `gen_ai.prompt.0.tool_calls.1.name`, back into
//! JSON.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

#[derive(Default)]
struct Branch {
    value: Option<Value>,
    below: BTreeMap<Step, Branch>,
}

/// Ordered: numbers before names.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Place(u32),
    Name(String),
}

/// Returns the values below `prefix`, which ends in a dot; `None` if there are none.
pub(super) fn below(attributes: &Map<String, Value>, prefix: &str) -> Option<Value> {
    let mut root = Branch::default();
    for (name, value) in attributes {
        if let Some(path) = name.strip_prefix(prefix) {
            root.put(path, value);
        }
    }
    (!root.below.is_empty()).then(|| root.into_value())
}

impl Branch {
    fn put(&mut self, path: &str, value: &Value) {
        /// Maximum depth of a path, deeper than in any convention.
        const DEPTH_MAX: usize = 16;
        let mut at = self;
        for step in path.splitn(DEPTH_MAX, '.') {
            let step = match step.parse() {
                Ok(place) => Step::Place(place),
                Err(_) => Step::Name(step.to_owned()),
            };
            at = at.below.entry(step).or_default();
        }
        at.value = Some(value.clone());
    }

    fn into_value(self) -> Value {
        if self.below.is_empty() {
            return self.value.unwrap_or_default();
        }
        if self.below.keys().all(|step| matches!(step, Step::Place(_))) {
            return self.below.into_values().map(Self::into_value).collect();
        }
        let fields = self.below.into_iter().map(|(step, branch)| {
            let name = match step {
                Step::Place(place) => place.to_string(),
                Step::Name(name) => name,
            };
            (name, branch.into_value())
        });
        Value::Object(fields.collect())
    }
}
