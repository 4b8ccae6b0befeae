//! Fills empty file and variable arguments. Values of the caller are never replaced. A partial path
//! is completed if exactly one known file matches.

use std::{collections::HashSet, fmt};

use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value, value::RawValue};

use super::fold::{FileVariables, Knowledge};
use super::policy::UNKNOWN_FILE;
use treering_context::steps;
use treering_domain::{EventRef, ToolDefinition};

/// Most alternatives in a suggestion.
const ALTERNATIVES_MAX: usize = 10;
/// A shorter text is not a partial path: too many files would match.
const PARTIAL_CHARS_MIN: usize = 3;

/// Arguments with suggested values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletedArguments {
    /// A JSON object. Byte for byte the caller's if nothing was filled in.
    pub arguments: String,
    /// The suggestions, in the order of the arguments.
    pub suggestions: Vec<Suggestion>,
}

/// An argument that was filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suggestion {
    /// Name of the argument.
    pub argument: String,
    /// JSON text of the value.
    pub value: String,
    /// Alternatives as JSON text, best first.
    pub alternatives: Vec<String>,
    /// Why this value, as text for people and models.
    pub reason: String,
    /// The result that named it.
    pub event: EventRef,
}

/// The arguments are not a JSON object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the arguments are no JSON object; send one, for example {{}}")]
pub struct NotAnObject;

/// What an argument means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArgumentRole {
    File,
    Variable,
    Directory,
}

/// A possible value of an argument.
struct Candidate<'a> {
    value: &'a str,
    reason: String,
    event: EventRef,
}

/// An argument and its schema.
#[derive(Clone, Copy, Default)]
struct ArgumentSchema<'a> {
    schema: Option<&'a Map<String, Value>>,
}

impl Knowledge {
    /// Fills arguments that are null, empty, or missing although the tool's schema names them:
    /// files, variables and the working directory, the most recently shown or used first.
    /// `arguments` is JSON text of an object; empty counts as `{}`.
    ///
    /// # Errors
    /// [`NotAnObject`] if `arguments` is not a JSON object.
    pub fn suggest_arguments(
        &self,
        arguments: &str,
        definition: Option<&ToolDefinition>,
    ) -> Result<CompletedArguments, NotAnObject> {
        let text = match arguments.trim() {
            "" => "{}",
            text => text,
        };
        let mut given: Members = serde_json::from_str(text).map_err(|_| NotAnObject)?;
        let schema: Value = definition
            .and_then(|tool| serde_json::from_str(tool.input_schema.as_str()).ok())
            .unwrap_or_default();
        let properties = schema.get("properties").and_then(Value::as_object);
        let missing = properties.into_iter().flat_map(Map::keys);
        let known: HashSet<String> = given.0.iter().map(|(name, _)| name.clone()).collect();
        let missing: HashSet<&str> = missing
            .inspect(|_| steps::note(1))
            .filter(|name| !known.contains(name.as_str()))
            .map(String::as_str)
            .collect();
        let mut suggestions = Vec::new();
        // Files first, because the variables depend on the file.
        for meaning in [
            ArgumentRole::File,
            ArgumentRole::Directory,
            ArgumentRole::Variable,
        ] {
            for name in self.names(meaning) {
                let place = given.0.iter().rposition(|(known, _)| known == name);
                let absent = place.is_none() && missing.contains(name.as_str());
                let value = match place {
                    Some(place) => given.0[place].1.clone(),
                    None if absent => RawValue::NULL.to_owned(),
                    None => continue,
                };
                let declared = ArgumentSchema {
                    schema: properties.and_then(|all| all.get(name)?.as_object()),
                };
                let Some(suggestion) = self.suggest(name, meaning, value.get(), declared, &given)
                else {
                    continue;
                };
                let Ok(value) = RawValue::from_string(suggestion.value.clone()) else {
                    continue;
                };
                match place {
                    Some(place) => given.0[place].1 = value,
                    None => given.0.push((name.clone(), value)),
                }
                suggestions.push(suggestion);
            }
        }
        let arguments = match suggestions.is_empty() {
            true => text.to_owned(),
            false => given.text(),
        };
        Ok(CompletedArguments {
            arguments,
            suggestions,
        })
    }

    fn names(&self, meaning: ArgumentRole) -> &[String] {
        match meaning {
            ArgumentRole::File => &self.policy.file_arguments,
            ArgumentRole::Variable => &self.policy.variable_arguments,
            ArgumentRole::Directory => &self.policy.directory_arguments,
        }
    }

    fn suggest(
        &self,
        name: &str,
        meaning: ArgumentRole,
        value: &str,
        declared: ArgumentSchema<'_>,
        given: &Members,
    ) -> Option<Suggestion> {
        let value: Value = serde_json::from_str(value).ok()?;
        let empty = match &value {
            Value::Null => true,
            Value::String(text) if text.trim().is_empty() => true,
            Value::Array(items) => items.is_empty() && declared.is_list(),
            _ => false,
        };
        if !empty {
            let partial = value.as_str().filter(|_| meaning == ArgumentRole::File)?;
            return Some(self.completion(partial)?.suggestion(name, declared, &[]));
        }
        let candidates = match meaning {
            ArgumentRole::File => self.file_candidates(),
            ArgumentRole::Variable => self.variable_candidates(given),
            ArgumentRole::Directory => self.directory_candidates(),
        };
        let mut fitting = candidates
            .into_iter()
            .filter(|candidate| declared.allows(candidate.value));
        let best = fitting.next()?;
        let others: Vec<Candidate<'_>> = fitting.take(ALTERNATIVES_MAX).collect();
        Some(best.suggestion(name, declared, &others))
    }

    /// Files, the most recently shown or used first. Files of one result keep its order.
    fn file_candidates(&self) -> Vec<Candidate<'_>> {
        let mut files: Vec<(u64, Candidate<'_>)> = self
            .files
            .iter()
            .filter(|file| file.is_there())
            .map(|file| {
                let reason = format!("a file that {} showed", file.tool);
                let candidate = Candidate::new(&file.path, reason, file.event);
                (file.recency, candidate)
            })
            .collect();
        let analysed = self
            .variables
            .iter()
            .filter(|of_file| &*of_file.file != UNKNOWN_FILE && self.file(&of_file.file).is_none());
        files.extend(analysed.map(|of_file| {
            let reason = format!("a file that {} looked into", of_file.tool);
            let candidate = Candidate::new(&of_file.file, reason, of_file.event);
            (of_file.recency, candidate)
        }));
        files.sort_by_key(|(recency, _)| std::cmp::Reverse(*recency));
        files.into_iter().map(|(_, candidate)| candidate).collect()
    }

    /// Variables of the file that the arguments name. Without one, of all files, the most recently
    /// analysed or used first.
    fn variable_candidates(&self, given: &Members) -> Vec<Candidate<'_>> {
        let named = self.policy.file_arguments.iter().find_map(|name| {
            let file = given.string(name)?;
            self.variables_of(&file)
        });
        let mut files: Vec<&FileVariables> = match named {
            Some(of_file) => vec![of_file],
            None => self.variables.iter().collect(),
        };
        files.sort_by_key(|of_file| std::cmp::Reverse(of_file.recency));
        let of_file = |of_file: &FileVariables| match &*of_file.file {
            UNKNOWN_FILE => format!("a variable that {} showed", of_file.tool),
            file => format!("a variable of {file}, as {} showed", of_file.tool),
        };
        files
            .into_iter()
            .flat_map(|file| file.variables.iter().map(move |variable| (file, variable)))
            .take(ALTERNATIVES_MAX * ALTERNATIVES_MAX)
            .map(|(file, variable)| Candidate::new(&variable.name, of_file(file), file.event))
            .collect()
    }

    fn directory_candidates(&self) -> Vec<Candidate<'_>> {
        let directory = self.working_directory().into_iter();
        directory
            .map(|known| {
                let reason = "the working directory".to_owned();
                Candidate::new(&known.path, reason, known.event)
            })
            .collect()
    }

    /// The only known file that ends or begins with a partial path.
    fn completion(&self, partial: &str) -> Option<Candidate<'_>> {
        let wanted = partial.trim().trim_start_matches("./");
        if wanted.chars().count() < PARTIAL_CHARS_MIN || self.file(partial.trim()).is_some() {
            return None;
        }
        let ends = |path: &str| {
            let before = path.strip_suffix(wanted);
            before.is_some_and(|before| before.ends_with(['/', '\\']))
        };
        let starts = |path: &str| path.starts_with(wanted) && path.len() > wanted.len();
        let only = |fits: &dyn Fn(&str) -> bool| {
            let mut fitting = self.files.iter().filter(|file| fits(&file.path));
            let first = fitting.next();
            first.filter(|_| fitting.next().is_none())
        };
        let (file, how) = match only(&ends) {
            Some(file) => (file, "ends"),
            None if self.files.iter().any(|file| ends(&file.path)) => return None,
            None => (only(&starts)?, "begins"),
        };
        let reason = format!("the only known file that {how} with what was given");
        Some(Candidate::new(&file.path, reason, file.event))
    }
}

impl<'a> Candidate<'a> {
    fn new(value: &'a str, reason: String, event: EventRef) -> Self {
        Self {
            value,
            reason,
            event,
        }
    }

    fn suggestion(self, name: &str, declared: ArgumentSchema<'_>, others: &[Self]) -> Suggestion {
        let mut alternatives: Vec<String> = Vec::new();
        for other in others {
            let text = declared.json(other.value);
            if other.value != self.value && !alternatives.contains(&text) {
                alternatives.push(text);
            }
        }
        Suggestion {
            argument: name.to_owned(),
            value: declared.json(self.value),
            alternatives,
            reason: self.reason,
            event: self.event,
        }
    }
}

impl ArgumentSchema<'_> {
    fn is_list(self) -> bool {
        self.schema
            .and_then(|schema| schema.get("type")?.as_str())
            .is_some_and(|kind| kind == "array")
    }

    fn allows(self, value: &str) -> bool {
        let choices = self
            .schema
            .and_then(|schema| schema.get("enum")?.as_array());
        choices.is_none_or(|choices| choices.iter().any(|choice| choice == value))
    }

    fn json(self, value: &str) -> String {
        let value = Value::from(value);
        match self.is_list() {
            true => Value::Array(vec![value]).to_string(),
            false => value.to_string(),
        }
    }
}

/// The members of a JSON object in their original text. Keeps numbers that no float can hold and
/// duplicate names.
struct Members(Vec<(String, Box<RawValue>)>);

impl Members {
    fn string(&self, name: &str) -> Option<String> {
        let (_, value) = self.0.iter().rfind(|(known, _)| known == name)?;
        serde_json::from_str(value.get()).ok()
    }

    fn text(&self) -> String {
        let members: Vec<String> = self
            .0
            .iter()
            .map(|(name, value)| format!("{}:{}", Value::from(name.as_str()), value.get()))
            .collect();
        format!("{{{}}}", members.join(","))
    }
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::told, *};
    use treering_domain::JsonText;

    fn tool(schema: &'static str) -> ToolDefinition {
        ToolDefinition {
            name: "read_variable".into(),
            description: String::new(),
            input_schema: JsonText::from_checked(bytes::Bytes::from_static(schema.as_bytes())),
            source: String::new(),
            needs_approval: false,
            guidance: String::new(),
            discoverable: false,
            strict: None,
        }
    }

    fn known() -> Knowledge {
        told(&[
            (
                "list_files",
                "{}",
                r#"["data/a.nc", "data/b.nc", "notes.txt"]"#,
            ),
            (
                "inspect_file",
                r#"{"filename": "data/a.nc"}"#,
                r#"{"wind": "m/s", "temp": "K"}"#,
            ),
            (
                "inspect_file",
                r#"{"filename": "data/b.nc"}"#,
                r#"{"salt": 1}"#,
            ),
            (
                "read_file",
                r#"{"path": "notes.txt", "cwd": "/work"}"#,
                "hello",
            ),
        ])
    }

    // For each way to leave a file or a variable open: it is filled with the most recently used
    // one, and nothing else changes.
    #[test]
    fn empty_arguments_are_filled_from_knowledge() {
        let schema =
            tool(r#"{"properties": {"filename": {"type": "string"}, "variable": {}, "top": {}}}"#);
        for (arguments, definition, expected) in [
            (r#"{"filename": null}"#, None, r#"{"filename":"notes.txt"}"#),
            (
                r#"{"path":" ", "n": 1e999}"#,
                None,
                r#"{"path":"notes.txt","n":1e999}"#,
            ),
            ("", None, "{}"),
            ("{}", None, "{}"),
            (
                "{}",
                Some(&schema),
                r#"{"filename":"notes.txt","variable":"salt"}"#,
            ),
            (
                r#"{"filename": "data/a.nc", "variable": ""}"#,
                None,
                r#"{"filename":"data/a.nc","variable":"wind"}"#,
            ),
            (
                r#"{"filename": "other", "variable": "x"}"#,
                Some(&schema),
                r#"{"filename": "other", "variable": "x"}"#,
            ),
            (r#"{"cwd": ""}"#, None, r#"{"cwd":"/work"}"#),
            (r#"{"title": ""}"#, None, r#"{"title": ""}"#),
        ] {
            let suggested = known().suggest_arguments(arguments, definition).unwrap();
            assert_eq!(suggested.arguments, expected, "{arguments}");
        }
        for bad in ["[]", "1", "{", "{\"a\": }"] {
            assert_eq!(known().suggest_arguments(bad, None), Err(NotAnObject));
        }
    }

    // A suggestion says where it comes from and has alternatives, best first.
    #[test]
    fn suggestion_has_reason_and_alternatives() {
        let suggested = known()
            .suggest_arguments(r#"{"file": null, "column": null}"#, None)
            .unwrap();
        let [file, column] = suggested.suggestions.as_slice() else {
            panic!("{suggested:?}");
        };
        assert_eq!(file.alternatives, ["\"data/b.nc\"", "\"data/a.nc\""]);
        assert_eq!(file.reason, "a file that list_files showed");
        assert_eq!(file.event.revision.0, 2);
        assert_eq!(column.value, "\"salt\"");
        assert_eq!(column.alternatives, ["\"wind\"", "\"temp\""]);
        assert!(column.reason.contains("data/b.nc"), "{}", column.reason);
    }

    // A partial path is completed only if one file matches; a whole one does not change.
    #[test]
    fn partial_path_is_completed_only_if_unambiguous() {
        for (given, completed) in [
            ("a.nc", Some("data/a.nc")),
            ("./a.nc", Some("data/a.nc")),
            ("notes", Some("notes.txt")),
            ("data", None),
            (".nc", None),
            ("notes.txt", None),
            ("data/a.nc", None),
            ("new.txt", None),
        ] {
            let arguments = serde_json::json!({ "path": given }).to_string();
            let suggested = known().suggest_arguments(&arguments, None).unwrap();
            let value = completed.map(|path| format!("\"{path}\""));
            let got = suggested.suggestions.first().map(|s| s.value.clone());
            assert_eq!(got, value, "{given}");
        }
    }

    // The schema is kept: a list gets a list, and a choice only offered values.
    #[test]
    fn suggestions_follow_the_tool_schema() {
        let schema = tool(
            r#"{"properties": {"file": {"type": "array"}, "variable": {"enum": ["temp", "x"]}}}"#,
        );
        let suggested = known()
            .suggest_arguments(r#"{"file": []}"#, Some(&schema))
            .unwrap();
        assert_eq!(
            suggested.arguments,
            r#"{"file":["notes.txt"],"variable":"temp"}"#
        );
    }
}
