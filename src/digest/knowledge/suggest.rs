//! Fills empty file and variable arguments. Never replaces a value of the caller, but completes a
//! partial path if exactly one known file matches.

use std::{cmp::Reverse, collections::HashSet, fmt};

use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value, value::RawValue};

use super::files::KnownFile;
use super::fold::{FileVariables, Knowledge};
use super::policy::UNKNOWN_FILE;
use treering_context::steps;
use treering_domain::{EventRef, ToolDefinition};

const ALTERNATIVES_MAX: usize = 10;
/// Maximum number of recently used files placed before files that were only listed.
const USED_FIRST_MAX: usize = 6;
/// A shorter partial path would match too many files.
const PARTIAL_CHARS_MIN: usize = 3;

/// Arguments with suggested values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletedArguments {
    /// A JSON object. If nothing was filled in, the caller's text without surrounding white space,
    /// or `{}` if that is empty.
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
    /// Alternative values as JSON text, best first.
    pub alternatives: Vec<String>,
    /// The reason for this value, as text for people and models.
    pub reason: String,
    /// The result that named the value.
    pub event: EventRef,
}

/// Error for arguments that are not a JSON object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the arguments are not a JSON object; send one, for example {{}}")]
pub struct NotAnObject;

/// Meaning of an argument.
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

/// The schema of an argument, if the tool declares one.
#[derive(Clone, Copy, Default)]
struct ArgumentSchema<'a> {
    schema: Option<&'a Map<String, Value>>,
}

impl Knowledge {
    /// Fills arguments of a call of `tool` that are null, empty, or missing although the tool's
    /// schema names them. Files named in the model's last message come first, then the most
    /// recently used or shown. Also fills variables and the working directory. `arguments` is the
    /// JSON text of an object; empty counts as `{}`.
    ///
    /// # Errors
    /// [`NotAnObject`] if `arguments` is not a JSON object.
    pub fn suggest_arguments(
        &self,
        tool: &str,
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
        // Files are filled first, because variables depend on the file.
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
                let Some(suggestion) =
                    self.suggest(tool, (name, meaning), value.get(), declared, &given)
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
        tool: &str,
        (name, meaning): (&str, ArgumentRole),
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
            return Some(
                self.completion(tool, partial)?
                    .suggestion(name, declared, &[]),
            );
        }
        let candidates = match meaning {
            ArgumentRole::File => self.file_candidates(tool),
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

    /// Returns the files named in the model's last message, then the last used files, then the most
    /// recently shown or used. Files of one result keep its order. For a tool that changes files,
    /// only the first file that the message names is placed first.
    fn file_candidates(&self, tool: &str) -> Vec<Candidate<'_>> {
        let planned = match self.policy.changes_files(tool) {
            true => self.planned.get(..1).unwrap_or_default(),
            false => &self.planned,
        };
        let files = self.files();
        let mut used: Vec<u64> = files.iter().map(|file| file.used).collect();
        used.sort_unstable_by_key(|used| Reverse(*used));
        let used_first = used.get(USED_FIRST_MAX).copied().unwrap_or_default();
        let rank = |place: usize, file: &KnownFile| {
            let planned = planned.iter().position(|planned| *planned == place);
            let used = file.used.checked_sub(used_first + 1);
            (
                planned.unwrap_or(usize::MAX),
                Reverse(used),
                Reverse(file.recency),
            )
        };
        let there = files.iter().enumerate().filter(|(_, file)| file.is_there());
        let mut ranked: Vec<_> = there
            .map(|(place, file)| {
                let reason = match planned.contains(&place) {
                    true => "a file that the last message names".to_owned(),
                    false => format!("a file that {} showed", file.tool),
                };
                let value = self.name_of(tool, file);
                (rank(place, file), Candidate::new(value, reason, file.event))
            })
            .collect();
        let analysed = self
            .variables
            .iter()
            .filter(|of_file| &*of_file.file != UNKNOWN_FILE && self.file(&of_file.file).is_none());
        ranked.extend(analysed.map(|of_file| {
            let reason = format!("a file that {} looked into", of_file.tool);
            let candidate = Candidate::new(&of_file.file, reason, of_file.event);
            let rank = (usize::MAX, Reverse(None), Reverse(of_file.recency));
            (rank, candidate)
        }));
        ranked.sort_by_key(|(rank, _)| *rank);
        ranked.into_iter().map(|(_, candidate)| candidate).collect()
    }

    /// Returns the file's name in the form that earlier calls of the tool used.
    fn name_of<'a>(&self, tool: &str, file: &'a KnownFile) -> &'a str {
        let is_absolute = self.absolute_tools.contains(tool);
        let absolute = file.absolute.as_deref().filter(|_| is_absolute);
        absolute.unwrap_or(&file.path)
    }

    /// Returns the variables of the file that the arguments name. If they name no file with known
    /// variables, returns the variables of all files. The most recently analysed or used file comes
    /// first.
    fn variable_candidates(&self, given: &Members) -> Vec<Candidate<'_>> {
        let named = self.policy.file_arguments.iter().find_map(|name| {
            let file = given.string(name)?;
            self.variables_of(&file)
        });
        let mut files: Vec<&FileVariables> = match named {
            Some(of_file) => vec![of_file],
            None => self.variables.iter().collect(),
        };
        files.sort_by_key(|of_file| Reverse(of_file.recency));
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

    /// Returns the only known file that ends or begins with a partial path.
    fn completion(&self, tool: &str, partial: &str) -> Option<Candidate<'_>> {
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
            let mut fitting = self.files().iter().filter(|file| fits(&file.path));
            let first = fitting.next();
            first.filter(|_| fitting.next().is_none())
        };
        let (file, how) = match only(&ends) {
            Some(file) => (file, "ends"),
            None if self.files().iter().any(|file| ends(&file.path)) => return None,
            None => (only(&starts)?, "begins"),
        };
        let reason = format!("the only known file that {how} with the given text");
        Some(Candidate::new(self.name_of(tool, file), reason, file.event))
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

/// The members of a JSON object in their original text. Preserves numbers that no float can hold,
/// and duplicate names.
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
    use super::{
        super::tests::{request, told},
        *,
    };
    use treering_domain::{EventBody, JsonText, MessageAppended, Role};

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

    // An empty file or variable argument, in any form, is filled with the most recently used one.
    // Nothing else changes.
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
            let suggested = known()
                .suggest_arguments("t", arguments, definition)
                .unwrap();
            assert_eq!(suggested.arguments, expected, "{arguments}");
        }
        for bad in ["[]", "1", "{", "{\"a\": }"] {
            assert_eq!(known().suggest_arguments("t", bad, None), Err(NotAnObject));
        }
    }

    // A suggestion gives its source and has alternatives, best first.
    #[test]
    fn suggestion_has_reason_and_alternatives() {
        let suggested = known()
            .suggest_arguments("t", r#"{"file": null, "column": null}"#, None)
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

    // The model's stated plan is the best hint, until the model carries it out. A tool that changes
    // files takes only the first file of a list.
    #[test]
    fn files_that_the_last_message_names_come_first() {
        let values = |knowledge: &Knowledge, tool: &str| {
            let answer = knowledge
                .suggest_arguments(tool, r#"{"path": ""}"#, None)
                .unwrap();
            let file = answer.suggestions.into_iter().next().unwrap();
            let named = file.alternatives.into_iter();
            std::iter::once(file.value).chain(named).collect::<Vec<_>>()
        };
        let mut knowledge = known();
        let at = knowledge.files()[0].event;
        let says = "I compare `data/b.nc`, then a.nc.";
        let says = MessageAppended::text(Role::Assistant, says);
        knowledge.apply(at, &EventBody::MessageAppended(says));
        let [a, b, notes] = [r#""data/a.nc""#, r#""data/b.nc""#, r#""notes.txt""#];
        assert_eq!(values(&knowledge, "read_file"), [b, a, notes]);
        assert_eq!(values(&knowledge, "write_file"), [b, notes, a]);
        knowledge.apply(at, &request("c", "read_file", r#"{"path": "data/b.nc"}"#));
        assert_eq!(values(&knowledge, "read_file"), [a, b, notes]);
    }

    // A partial path is completed only if one file matches. A complete path does not change.
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
            let suggested = known().suggest_arguments("t", &arguments, None).unwrap();
            let value = completed.map(|path| format!("\"{path}\""));
            let got = suggested.suggestions.first().map(|s| s.value.clone());
            assert_eq!(got, value, "{given}");
        }
    }

    // A list argument gets a list, and an enum argument only its values.
    #[test]
    fn suggestions_follow_the_tool_schema() {
        let schema = tool(
            r#"{"properties": {"file": {"type": "array"}, "variable": {"enum": ["temp", "x"]}}}"#,
        );
        let suggested = known()
            .suggest_arguments("t", r#"{"file": []}"#, Some(&schema))
            .unwrap();
        assert_eq!(
            suggested.arguments,
            r#"{"file":["notes.txt"],"variable":"temp"}"#
        );
    }
}
