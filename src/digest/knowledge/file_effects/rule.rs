//! Rules for which tools touch files, and how their calls are read. The rules are data.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Tools that have the same kind of effect on files.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FileEffectRule {
    /// Tool names. Only letters and digits are compared, ignoring case: `read_file` also matches
    /// `ReadFile`. A server's name in front (`mcp__files__read_file`) is ignored.
    pub tools: Vec<String>,
    /// How their calls are read.
    pub form: FileEffectForm,
}

/// How a call is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileEffectForm {
    /// Reads the files that its arguments name.
    #[default]
    Read,
    /// Writes them as a whole.
    Write,
    /// Edits them.
    Edit,
    /// Deletes them.
    Delete,
    /// Renames the first one to the second one.
    Move,
    /// Shows their metadata.
    Stat,
    /// The result lists names, relative to the directory in the arguments.
    List,
    /// The result lists paths.
    Glob,
    /// The result has matching lines of files.
    Search,
    /// An argument is a command line.
    Shell,
    /// An argument is a patch.
    Patch,
    /// An argument selects `view`, `create`, `str_replace` or `insert`.
    Editor,
}

impl FileEffectForm {
    /// Whether all calls of this form change files.
    pub(in crate::knowledge) fn changes(self) -> bool {
        matches!(
            self,
            Self::Write | Self::Edit | Self::Delete | Self::Move | Self::Patch
        )
    }
}

/// Rules for common agent tools.
pub(in crate::knowledge) fn defaults() -> BTreeMap<String, FileEffectRule> {
    const RULES: [(&str, FileEffectForm, &[&str]); 12] = [
        (
            "read",
            FileEffectForm::Read,
            &[
                "read",
                "read_file",
                "read_text_file",
                "read_media_file",
                "read_multiple_files",
                "read_many_files",
                "view",
                "view_file",
                "open",
                "open_file",
                "cat",
                "cat_file",
                "notebook_read",
                "get_file",
                "get_file_contents",
                "get_file_content",
                "get_file_by_id",
                "load_file",
                "view_image",
                "read_lines",
            ],
        ),
        (
            "write",
            FileEffectForm::Write,
            &[
                "write",
                "write_file",
                "write_to_file",
                "create",
                "create_file",
                "save_file",
                "create_or_update_file",
                "new_file",
                "create_text_file",
                "put_file",
            ],
        ),
        (
            "edit",
            FileEffectForm::Edit,
            &[
                "edit",
                "edit_file",
                "multi_edit",
                "notebook_edit",
                "str_replace",
                "replace",
                "replace_in_file",
                "insert",
                "insert_edit_into_file",
                "update_file",
                "append_file",
                "append_to_file",
                "search_replace",
                "edit_notebook",
                "apply_diff",
                "insert_content",
                "replace_file_content",
                "multi_replace_string_in_file",
                "replace_string_in_file",
            ],
        ),
        (
            "delete",
            FileEffectForm::Delete,
            &["delete", "delete_file", "remove_file", "rm", "unlink"],
        ),
        (
            "move",
            FileEffectForm::Move,
            &["move_file", "rename_file", "mv", "move"],
        ),
        (
            "stat",
            FileEffectForm::Stat,
            &["get_file_info", "stat", "file_info", "share_file"],
        ),
        (
            "list",
            FileEffectForm::List,
            &[
                "ls",
                "list_directory",
                "list_directory_with_sizes",
                "list_dir",
                "listdir",
                "read_folder",
                "directory_tree",
            ],
        ),
        (
            "glob",
            FileEffectForm::Glob,
            &[
                "glob",
                "glob_search",
                "file_search",
                "find_by_name",
                "glob_file_search",
            ],
        ),
        (
            "search",
            FileEffectForm::Search,
            &[
                "grep",
                "grep_search",
                "search_file_content",
                "search_content",
                "ripgrep",
                "rg",
                "search_dir",
                "search_file",
                "codebase_search",
                "search_in_files",
                "grep_files",
            ],
        ),
        (
            "shell",
            FileEffectForm::Shell,
            &[
                "bash",
                "shell",
                "sh",
                "zsh",
                "execute_bash",
                "run_command",
                "run_shell_command",
                "run_terminal_cmd",
                "run_terminal_command",
                "run_in_terminal",
                "exec",
                "exec_command",
                "execute_command",
                "local_shell",
                "local_shell_call",
                "terminal",
                "command",
                "bash_code_execution",
                "container_exec",
                "shell_command",
                "run_bash",
                "execute_shell",
                "shell_exec",
            ],
        ),
        (
            "patch",
            FileEffectForm::Patch,
            &["apply_patch", "patch", "apply_unified_diff"],
        ),
        (
            "editor",
            FileEffectForm::Editor,
            &[
                "str_replace_editor",
                "str_replace_based_edit_tool",
                "text_editor",
                "text_editor_code_execution",
                "editor",
                "memory",
                "file_editor",
            ],
        ),
    ];
    let rule = |(name, form, tools): (&str, FileEffectForm, &[&str])| {
        let tools = tools.iter().map(|tool| (*tool).to_owned()).collect();
        (name.to_owned(), FileEffectRule { tools, form })
    };
    RULES.map(rule).into()
}

impl FileEffectRule {
    /// Whether the rule matches a tool.
    #[must_use]
    pub fn matches(&self, tool: &str) -> bool {
        let bare = tool.rsplit("__").next().unwrap_or(tool);
        let last = bare.rsplit(['.', '/', ':']).next().unwrap_or(bare);
        let known = |name: &str| self.tools.iter().any(|known| is_same(known, name));
        known(tool) || known(bare) || known(last)
    }
}

/// Compares letters and digits only, ignoring case.
fn is_same(one: &str, other: &str) -> bool {
    let letters = |text: &str| -> Vec<u8> {
        text.bytes()
            .filter(u8::is_ascii_alphanumeric)
            .map(|byte| byte.to_ascii_lowercase())
            .collect()
    };
    !one.is_empty() && letters(one) == letters(other)
}
