//! The rules: which tools' results give what, which arguments mean a file, what
//! must have succeeded before what. Data, with defaults, merged over by the
//! conversation's `knowledge` policy.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::touch::{self, TouchRule};

/// Name of the policy in `ConversationCreated.policies`.
pub const KNOWLEDGE_POLICY: &str = "knowledge";

/// The file that variables belong to when neither arguments nor result name one.
pub const UNKNOWN_FILE: &str = "unknown";

/// How knowledge is read from calls and results, and what is told about it. A
/// conversation's policy is merged over the defaults (RFC 7396): a rule with a
/// default's name changes that one, `null` removes it, another name adds one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KnowledgePolicy {
    /// By name. All rules that match a tool are applied, in the order of names.
    pub rules: BTreeMap<String, KnowledgeRule>,
    /// Which tools touch files, by name, and how their calls are read; the first
    /// that matches counts.
    pub touches: BTreeMap<String, TouchRule>,
    /// Tool to the tools that should have succeeded before it. A name that ends
    /// in `*` stands for every tool that starts so, on both sides.
    pub prerequisites: BTreeMap<String, Vec<String>>,
    /// Names of arguments that mean a file, the clearest first.
    pub file_arguments: Vec<String>,
    /// Names of arguments that mean a variable, the clearest first.
    pub variable_arguments: Vec<String>,
    /// Names of arguments that mean a directory to work in.
    pub directory_arguments: Vec<String>,
    /// What to do next, in words.
    pub guidance: GuidanceTexts,
    /// Bounds of the summary for prompts.
    pub summary: SummaryBounds,
}

/// What the calls of some tools give.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KnowledgeRule {
    /// Which tools.
    pub tools: ToolPattern,
    /// What they give.
    pub gives: Gives,
    /// Where it is.
    pub from: From,
    /// `from: arguments`: which ones; the first that is there counts.
    pub arguments: Vec<String>,
    /// `from: result`: JSON pointers (RFC 6901) into it; empty: the whole.
    pub pointers: Vec<String>,
    /// Members of JSON objects that hold a name, the clearest first.
    pub name_keys: Vec<String>,
    /// Members of JSON objects that hold the list.
    pub list_keys: Vec<String>,
    /// How to read a result that is no JSON.
    pub text: TextForm,
    /// Relative directories start at the one that is known.
    pub relative: bool,
}

/// Tools by name. A name with a server before it (`mcp__files__list_all`) also
/// matches by what follows the last `__`.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolPattern {
    /// Exactly these.
    pub names: Vec<String>,
    /// Those that start so; `""`: every tool.
    pub prefixes: Vec<String>,
    /// Those that end so.
    pub suffixes: Vec<String>,
}

/// What a rule gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Gives {
    #[default]
    Files,
    Variables,
    WorkingDirectory,
}

/// Where a rule looks.
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
    /// A name a line; bullets and quotes around it go, of several columns the one
    /// that looks like a path counts.
    #[default]
    Lines,
    /// The first word of each line.
    FirstWord,
    /// The last word of each line.
    LastWord,
    /// What stands before the first colon of each line (`grep`).
    BeforeColon,
    /// The directory of a `cd` that a shell command starts with.
    ShellCd,
    /// Not at all: JSON only.
    Ignore,
}

/// Texts of [`Knowledge::guidance`](super::Knowledge::guidance). `{files}` and
/// `{tools}` stand for names; an empty text says nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuidanceTexts {
    /// No tool has returned anything yet.
    pub start: String,
    /// Files are known, variables are not.
    pub files_known: String,
    /// Variables are known.
    pub variables_known: String,
    /// Tools have worked with known files or variables since.
    pub analysed: String,
}

impl Default for GuidanceTexts {
    fn default() -> Self {
        Self {
            start: "No tool has shown anything yet: list the files first{tools}.".into(),
            files_known:
                "Known files: {files}. Look into one of them to learn what it holds{tools}.".into(),
            variables_known:
                "Variables are known for {files}: they can be read and computed with by name."
                    .into(),
            analysed: "Results of an analysis are there: compare and interpret them, or look at \
                       what is still missing."
                .into(),
        }
    }
}

/// Bounds of [`Knowledge::summary_text`](super::Knowledge::summary_text).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SummaryBounds {
    /// Most characters of the whole.
    pub chars_max: usize,
    /// Most files that are named.
    pub files_max: usize,
    /// Most files whose variables are named.
    pub analysed_files_max: usize,
    /// Most variables of a file that are named.
    pub variables_max: usize,
    /// Most tools that are named.
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

/// A `knowledge` policy that cannot be used.
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
            touches: touch::rule::defaults(),
            prerequisites: BTreeMap::new(),
            file_arguments: strings(
                "filename file_path filepath file_name file path source_file input_file dataset",
            ),
            variable_arguments: strings("variable_name variable var_name column_name column field"),
            directory_arguments: strings(WORKING_DIRECTORY),
            guidance: GuidanceTexts::default(),
            summary: SummaryBounds::default(),
        }
    }
}

const WORKING_DIRECTORY: &str = "cwd working_directory working_dir workdir current_directory";

impl KnowledgeRule {
    /// How a list of files is read.
    pub(super) fn of_files() -> Self {
        default_rules().remove("files").unwrap_or_default()
    }

    /// It means every tool with a usual beginning, not one by its name.
    pub(super) fn is_by_prefix(&self) -> bool {
        self.gives == Gives::Files && self.tools.names.is_empty()
    }
}

fn default_rules() -> BTreeMap<String, KnowledgeRule> {
    let files = KnowledgeRule {
        tools: ToolPattern::prefixes("list_ discover_ find_"),
        gives: Gives::Files,
        name_keys: strings("path file_path filepath filename file_name file name"),
        list_keys: strings("files paths filenames entries items results matches"),
        ..KnowledgeRule::default()
    };
    let variables = KnowledgeRule {
        tools: ToolPattern::prefixes("inspect_ analyze_"),
        gives: Gives::Variables,
        name_keys: strings("name variable variable_name column"),
        list_keys: strings("variables columns fields data_vars"),
        ..KnowledgeRule::default()
    };
    let cwd_argument = KnowledgeRule {
        tools: ToolPattern::prefixes(""),
        gives: Gives::WorkingDirectory,
        from: From::Arguments,
        arguments: strings(WORKING_DIRECTORY),
        ..KnowledgeRule::default()
    };
    let change_directory = KnowledgeRule {
        tools: ToolPattern::names(
            "cd chdir change_directory change_dir set_working_directory set_cwd",
        ),
        gives: Gives::WorkingDirectory,
        from: From::Arguments,
        arguments: strings("directory path dir folder"),
        relative: true,
        ..KnowledgeRule::default()
    };
    let tell_directory = KnowledgeRule {
        tools: ToolPattern::names("pwd get_cwd getcwd get_working_directory"),
        gives: Gives::WorkingDirectory,
        name_keys: strings(WORKING_DIRECTORY),
        ..KnowledgeRule::default()
    };
    [
        ("files", files),
        ("variables", variables),
        ("cwd_argument", cwd_argument),
        ("change_directory", change_directory),
        ("tell_directory", tell_directory),
    ]
    .map(|(name, rule)| (name.to_owned(), rule))
    .into()
}

fn strings(texts: &str) -> Vec<String> {
    texts.split(' ').map(str::to_owned).collect()
}

impl KnowledgePolicy {
    /// The defaults with a conversation's policy merged over them; empty text
    /// counts as `{}`.
    ///
    /// # Errors
    /// [`KnowledgePolicyError`] when it is no JSON object, or has a field or a
    /// value that is not known.
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

    /// What is configured to come before a tool, in order, without repetition.
    #[must_use]
    pub fn prerequisites_of(&self, tool: &str) -> Vec<String> {
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

/// True when a name, or the start of one before `*`, is this tool's.
pub(super) fn stands_for(pattern: &str, tool: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => tool.starts_with(start),
        None => tool == pattern,
    }
}

impl ToolPattern {
    fn prefixes(prefixes: &str) -> Self {
        Self {
            prefixes: strings(prefixes),
            ..Self::default()
        }
    }

    fn names(names: &str) -> Self {
        Self {
            names: strings(names),
            ..Self::default()
        }
    }

    /// True when a tool is meant.
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

    // The defaults are what most conversations have: they must be what was
    // promised, and a server's name before a tool's must not hide it.
    #[test]
    fn defaults_match_the_usual_names() {
        let policy = KnowledgePolicy::default();
        for (tool, expected) in [
            ("list_files", Some(Gives::Files)),
            ("discover_data", Some(Gives::Files)),
            ("find_file", Some(Gives::Files)),
            ("mcp__fs__list_directory", Some(Gives::Files)),
            ("inspect_variables", Some(Gives::Variables)),
            ("analyze_file", Some(Gives::Variables)),
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

    // A conversation changes one rule, removes another and adds a third: all else
    // stays as it was; and a misspelt field must not pass as if it had worked.
    #[test]
    fn a_conversations_policy_is_merged_over_the_defaults() {
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
        assert_eq!(policy.rules["edited"].gives, Gives::Files);
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
