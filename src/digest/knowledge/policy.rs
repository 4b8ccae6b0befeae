//! The rules: which facts the results of each tool give, which arguments name a file, and which
//! tools must succeed before others. The rules are data. They have defaults, and the conversation's
//! `knowledge` policy is merged over these.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::file_effects::{self, FileEffectForm, FileEffectRule};

/// Name of the policy in `ConversationCreated.policies`.
pub const KNOWLEDGE_POLICY: &str = "knowledge";

/// Name of the file for variables when neither arguments nor result name one.
pub const UNKNOWN_FILE: &str = "unknown";

/// How knowledge is read from calls and results, and how it is presented as text. A conversation's
/// policy is merged over the defaults (RFC 7396): a rule with the name of a default rule changes
/// that rule, `null` removes it, and a new name adds a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KnowledgePolicy {
    /// Rules by name. All rules that match a tool are applied, in the order of names.
    pub rules: BTreeMap<String, KnowledgeRule>,
    /// Rules for tools that touch files, by name: how to read their calls. Only the first rule that
    /// matches a tool is applied.
    pub touches: BTreeMap<String, FileEffectRule>,
    /// Maps a tool to the tools that should succeed before it. A name that ends in `*` stands for
    /// every tool with that prefix, on both sides.
    pub prerequisites: BTreeMap<String, Vec<String>>,
    /// Names of arguments that mean a file, the most specific first.
    pub file_arguments: Vec<String>,
    /// Names of arguments that mean a variable, the most specific first.
    pub variable_arguments: Vec<String>,
    /// Names of arguments that mean a working directory.
    pub directory_arguments: Vec<String>,
    /// Texts that say what to do next.
    pub guidance: GuidanceTexts,
    /// Limits of the summary for prompts.
    pub summary: SummaryBounds,
}

/// A rule: which facts to read from the calls of some tools.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KnowledgeRule {
    /// The tools that the rule matches.
    pub tools: ToolPattern,
    /// The kind of facts that their calls give.
    pub gives: RuleOutput,
    /// Whether to read the result or the arguments.
    pub from: From,
    /// For `from: arguments`: names of arguments; the first one present counts.
    pub arguments: Vec<String>,
    /// For `from: result`: JSON pointers (RFC 6901) into the result; empty for all of it.
    pub pointers: Vec<String>,
    /// Members of JSON objects that hold a name, the most specific first.
    pub name_keys: Vec<String>,
    /// Members of JSON objects that hold the list.
    pub list_keys: Vec<String>,
    /// For `gives: entities`: members of JSON objects that hold the id, the most specific first.
    pub id_keys: Vec<String>,
    /// For `gives: entities`: members of JSON objects that hold the kind.
    pub kind_keys: Vec<String>,
    /// For `gives: entities`: the kind of objects that have none of `kind_keys`.
    pub kind: String,
    /// How to read a result that is not JSON.
    pub text: TextForm,
    /// Whether a relative directory is relative to the known working directory.
    pub relative: bool,
}

/// A pattern of tool names. A name with a server in front (`mcp__files__list_all`) also matches by
/// the part after the last `__`.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolPattern {
    /// Exact names.
    pub names: Vec<String>,
    /// Prefixes; `""` matches every tool.
    pub prefixes: Vec<String>,
    /// Suffixes.
    pub suffixes: Vec<String>,
}

/// The kind of facts that a rule gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum RuleOutput {
    #[default]
    Files,
    Variables,
    WorkingDirectory,
    /// Tools, as if a `ToolsDiscovered` event had followed the result.
    Tools,
    /// Entities, as if an `EntitiesNoted` event had followed the result. Only JSON is read.
    Entities,
}

/// Where a rule reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum From {
    #[default]
    Result,
    Arguments,
}

/// How text is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextForm {
    /// One name on each line. Bullets and quotes are removed. If a line has several columns, the
    /// name is the column that looks like a path.
    #[default]
    Lines,
    /// The first word of each line.
    FirstWord,
    /// The last word of each line.
    LastWord,
    /// The part before the first colon of each line (`grep`).
    BeforeColon,
    /// The directory of a `cd` at the start of a shell command.
    ShellCd,
    /// Text is not read, only JSON.
    Ignore,
}

/// Texts of [`Knowledge::guidance`](super::Knowledge::guidance). `{files}` and `{tools}` are
/// replaced by names. An empty text gives no guidance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuidanceTexts {
    /// No tool has returned a result yet.
    pub start: String,
    /// Files are known, but none was looked into.
    pub files_known: String,
    /// Files were looked into or changed, but no variables are known.
    pub files_read: String,
    /// Files are known besides those that were looked into.
    pub files_not_read: String,
    /// Files were changed.
    pub files_changed: String,
    /// Variables are known.
    pub variables_known: String,
    /// Tools have worked with known files or variables.
    pub analysed: String,
}

impl Default for GuidanceTexts {
    fn default() -> Self {
        Self {
            start: "Nothing is known yet: list the files first{tools}.".into(),
            files_known: "Known files: {files}. Open one of them to see what it contains{tools}."
                .into(),
            files_read: "Looked into: {files}.".into(),
            files_not_read: "Found, but not looked into: {files}.".into(),
            files_changed: "Changed: {files}. Check the changes, for example by running the \
                            tests, before reporting what was done."
                .into(),
            variables_known: "Variables are known for {files}: they can be read and used in \
                              computations by name."
                .into(),
            analysed: "Analysis results are available: compare and interpret them, or look at \
                       what is still missing."
                .into(),
        }
    }
}

/// Limits of [`Knowledge::summary_text`](super::Knowledge::summary_text).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SummaryBounds {
    /// Maximum number of characters in total.
    pub chars_max: usize,
    /// Maximum number of files that are named.
    pub files_max: usize,
    /// Maximum number of files whose variables are named.
    pub analysed_files_max: usize,
    /// Maximum number of variables of a file that are named.
    pub variables_max: usize,
    /// Maximum number of tools that are named.
    pub tools_max: usize,
}

impl Default for SummaryBounds {
    fn default() -> Self {
        Self {
            chars_max: 2_000,
            files_max: 10,
            analysed_files_max: 3,
            variables_max: 5,
            tools_max: 8,
        }
    }
}

/// An invalid `knowledge` policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the conversation's `{KNOWLEDGE_POLICY}` policy cannot be used: {message}; \
     a new conversation or fork can have another one"
)]
pub struct KnowledgePolicyError {
    /// What is wrong.
    pub message: String,
}

impl Default for KnowledgePolicy {
    fn default() -> Self {
        Self {
            rules: default_rules(),
            touches: file_effects::rule::defaults(),
            prerequisites: BTreeMap::new(),
            file_arguments: strings(&[
                "filename",
                "file_path",
                "filepath",
                "file_name",
                "file",
                "path",
                "source_file",
                "input_file",
                "dataset",
            ]),
            variable_arguments: strings(&[
                "variable_name",
                "variable",
                "var_name",
                "column_name",
                "column",
                "field",
            ]),
            directory_arguments: strings(&WORKING_DIRECTORY),
            guidance: GuidanceTexts::default(),
            summary: SummaryBounds::default(),
        }
    }
}

const WORKING_DIRECTORY: [&str; 5] = [
    "cwd",
    "working_directory",
    "working_dir",
    "workdir",
    "current_directory",
];

impl KnowledgeRule {
    /// How a list of files is read.
    pub(super) fn of_files() -> Self {
        default_rules().remove("files").unwrap_or_default()
    }

    /// Whether the rule gives files and does not name its tools one by one.
    pub(super) fn is_by_prefix(&self) -> bool {
        self.gives == RuleOutput::Files && self.tools.names.is_empty()
    }
}

fn default_rules() -> BTreeMap<String, KnowledgeRule> {
    let files = KnowledgeRule {
        tools: ToolPattern::prefixes(&["list_", "discover_", "find_"]),
        gives: RuleOutput::Files,
        name_keys: strings(&[
            "path",
            "file_path",
            "filepath",
            "filename",
            "file_name",
            "file",
            "name",
        ]),
        list_keys: strings(&[
            "files",
            "paths",
            "filenames",
            "entries",
            "items",
            "results",
            "matches",
        ]),
        ..KnowledgeRule::default()
    };
    let variables = KnowledgeRule {
        tools: ToolPattern::prefixes(&["inspect_", "analyze_"]),
        gives: RuleOutput::Variables,
        name_keys: strings(&["name", "variable", "variable_name", "column"]),
        list_keys: strings(&["variables", "columns", "fields", "data_vars"]),
        ..KnowledgeRule::default()
    };
    let cwd_argument = KnowledgeRule {
        tools: ToolPattern::prefixes(&[""]),
        gives: RuleOutput::WorkingDirectory,
        from: From::Arguments,
        arguments: strings(&WORKING_DIRECTORY),
        ..KnowledgeRule::default()
    };
    let change_directory = KnowledgeRule {
        tools: ToolPattern::names(&[
            "cd",
            "chdir",
            "change_directory",
            "change_dir",
            "set_working_directory",
            "set_cwd",
        ]),
        gives: RuleOutput::WorkingDirectory,
        from: From::Arguments,
        arguments: strings(&["directory", "path", "dir", "folder"]),
        relative: true,
        ..KnowledgeRule::default()
    };
    let tell_directory = KnowledgeRule {
        tools: ToolPattern::names(&["pwd", "get_cwd", "getcwd", "get_working_directory"]),
        gives: RuleOutput::WorkingDirectory,
        name_keys: strings(&WORKING_DIRECTORY),
        ..KnowledgeRule::default()
    };
    let discovered_tools = KnowledgeRule {
        tools: ToolPattern::names(&[
            "search_tools",
            "searchTools",
            "find_tools",
            "findTools",
            "discover_tools",
            "discoverTools",
            "list_tools",
            "listTools",
            "tool_search",
            "toolSearch",
            "ToolSearch",
        ]),
        gives: RuleOutput::Tools,
        name_keys: strings(&["tool_name", "toolName", "name"]),
        list_keys: strings(&["tools", "tool_references", "results", "matches", "items"]),
        ..KnowledgeRule::default()
    };
    [
        ("files", files),
        ("variables", variables),
        ("cwd_argument", cwd_argument),
        ("change_directory", change_directory),
        ("tell_directory", tell_directory),
        ("discovered_tools", discovered_tools),
    ]
    .map(|(name, rule)| (name.to_owned(), rule))
    .into()
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

impl KnowledgePolicy {
    /// The defaults with a conversation's policy merged over them. Empty text counts as `{}`.
    ///
    /// # Errors
    /// [`KnowledgePolicyError`] if it is not a JSON object, or has an unknown field or value.
    pub fn merged(conversation: &str) -> Result<Self, KnowledgePolicyError> {
        let refused = |error: serde_json::Error| KnowledgePolicyError {
            message: error.to_string(),
        };
        if conversation.trim().is_empty() {
            return Ok(Self::default());
        }
        let patch: serde_json::Value = serde_json::from_str(conversation).map_err(refused)?;
        if !patch.is_object() {
            let message = "it is not a JSON object".to_owned();
            return Err(KnowledgePolicyError { message });
        }
        let mut merged = serde_json::to_value(Self::default()).map_err(refused)?;
        json_patch::merge(&mut merged, &patch);
        serde_json::from_value(merged).map_err(refused)
    }

    /// The rules for a tool.
    pub fn rules_of<'a>(&'a self, tool: &'a str) -> impl Iterator<Item = &'a KnowledgeRule> {
        self.rules.values().filter(|rule| rule.tools.matches(tool))
    }

    /// Whether a tool's calls are known to change files.
    pub(super) fn changes_files(&self, tool: &str) -> bool {
        let mut touches = self.touches.values();
        let form = touches
            .find(|rule| rule.matches(tool))
            .map(|rule| rule.form);
        form.is_some_and(FileEffectForm::changes)
    }

    /// The tools that are configured to come before a tool, in order, without duplicates.
    #[must_use]
    pub(crate) fn prerequisites_of(&self, tool: &str) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for (pattern, before) in &self.prerequisites {
            if stands_for(pattern, tool) {
                for name in before {
                    if !all.contains(name) {
                        all.push(name.clone());
                    }
                }
            }
        }
        all
    }
}

/// Whether a name, or the prefix before `*`, matches this tool.
pub(super) fn stands_for(pattern: &str, tool: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => tool.starts_with(start),
        None => tool == pattern,
    }
}

impl ToolPattern {
    fn prefixes(prefixes: &[&str]) -> Self {
        Self {
            prefixes: strings(prefixes),
            ..Self::default()
        }
    }

    fn names(names: &[&str]) -> Self {
        Self {
            names: strings(names),
            ..Self::default()
        }
    }

    /// Whether the pattern matches a tool.
    #[must_use]
    pub fn matches(&self, tool: &str) -> bool {
        let bare = tool.rsplit("__").next().unwrap_or(tool);
        [tool, bare].iter().any(|name| {
            self.names.iter().any(|known| known == name)
                || self.prefixes.iter().any(|start| name.starts_with(start))
                || self.suffixes.iter().any(|end| name.ends_with(end))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Most conversations use the defaults. They must match the documented names, also after the
    // name of a server.
    #[test]
    fn default_rules_match_common_tool_names() {
        let policy = KnowledgePolicy::default();
        for (tool, expected) in [
            ("list_files", Some(RuleOutput::Files)),
            ("discover_data", Some(RuleOutput::Files)),
            ("find_file", Some(RuleOutput::Files)),
            ("mcp__fs__list_directory", Some(RuleOutput::Files)),
            ("inspect_variables", Some(RuleOutput::Variables)),
            ("analyze_file", Some(RuleOutput::Variables)),
            ("relist_files", None),
            ("read_file", None),
        ] {
            let gives = policy
                .rules_of(tool)
                .find(|rule| rule.from == From::Result)
                .map(|rule| rule.gives);
            assert_eq!(gives, expected, "{tool}");
        }
    }

    // A policy changes one rule, removes another and adds a third; the others stay. A misspelt
    // field is an error.
    #[test]
    fn conversation_policy_is_merged_over_the_defaults() {
        let text = r#"{"rules": {"files": {"tools": {"prefixes": ["Glob"]}}, "variables": null,
            "edited": {"tools": {"names": ["Edit"]}, "from": "arguments", "arguments": ["file_path"]}},
            "prerequisites": {"read_*": ["list_files"], "read_csv": ["inspect_*", "list_files"]}}"#;
        let policy = KnowledgePolicy::merged(text).unwrap();
        let default = KnowledgePolicy::default();
        assert_eq!(policy.rules["files"].tools.prefixes, ["Glob"]);
        assert_eq!(
            policy.rules["files"].name_keys,
            default.rules["files"].name_keys
        );
        assert!(!policy.rules.contains_key("variables"));
        assert_eq!(policy.rules["edited"].gives, RuleOutput::Files);
        assert_eq!(policy.file_arguments, default.file_arguments);
        assert_eq!(
            policy.prerequisites_of("read_csv"),
            ["list_files", "inspect_*"]
        );
        assert_eq!(KnowledgePolicy::merged(" ").unwrap(), default);
        for bad in [
            "[]",
            "{",
            r#"{"rule": {}}"#,
            r#"{"rules": {"a": {"gives": "x"}}}"#,
        ] {
            let error = KnowledgePolicy::merged(bad).unwrap_err();
            assert!(error.to_string().contains("knowledge"), "{bad}");
        }
    }
}
