//! Which tools touch files, and how their calls are read: data, like all rules.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Tools that touch files in one way.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TouchRule {
    /// Names, of which letters and digits count and case does not: `read_file` is
    /// `ReadFile`, too. A server's name before it (`mcp__files__read_file`) is
    /// passed over.
    pub tools: Vec<String>,
    /// How their calls are read.
    pub form: TouchForm,
}

/// How a call is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TouchForm {
    /// It reads the files that its arguments name.
    #[default]
    Read,
    /// It writes them whole.
    Write,
    /// It changes them.
    Edit,
    /// It removes them.
    Delete,
    /// It gives the first one the second one's name.
    Move,
    /// It tells about them.
    Stat,
    /// Its result lists names, below the directory of its arguments.
    List,
    /// Its result lists paths.
    Glob,
    /// Its result has lines found in files.
    Search,
    /// Its argument is a command line.
    Shell,
    /// Its argument is a patch.
    Patch,
    /// An argument says which of `view`, `create`, `str_replace`, `insert` it is.
    Editor,
}

/// The tools that agents have.
pub(in crate::knowledge) fn defaults() -> BTreeMap<String, TouchRule> {
    use TouchForm::{
        Delete, Edit, Editor, Glob, List, Move, Patch, Read, Search, Shell, Stat, Write,
    };
    const RULES: [(&str, TouchForm, &str); 12] = [
        (
            "read",
            Read,
            "read read_file read_text_file read_media_file read_multiple_files \
             read_many_files view view_file open open_file cat cat_file notebook_read \
             get_file get_file_contents get_file_content get_file_by_id load_file view_image \
             read_lines",
        ),
        (
            "write",
            Write,
            "write write_file write_to_file create create_file save_file \
             create_or_update_file new_file create_text_file put_file",
        ),
        (
            "edit",
            Edit,
            "edit edit_file multi_edit notebook_edit str_replace replace replace_in_file \
             insert insert_edit_into_file update_file append_file append_to_file \
             search_replace edit_notebook apply_diff insert_content replace_file_content \
             multi_replace_string_in_file replace_string_in_file",
        ),
        ("delete", Delete, "delete delete_file remove_file rm unlink"),
        ("move", Move, "move_file rename_file mv move"),
        ("stat", Stat, "get_file_info stat file_info share_file"),
        (
            "list",
            List,
            "ls list_directory list_directory_with_sizes list_dir listdir read_folder \
             directory_tree",
        ),
        (
            "glob",
            Glob,
            "glob glob_search file_search find_by_name glob_file_search",
        ),
        (
            "search",
            Search,
            "grep grep_search search_file_content search_content ripgrep rg search_dir \
             search_file codebase_search search_in_files grep_files",
        ),
        (
            "shell",
            Shell,
            "bash shell sh zsh execute_bash run_command run_shell_command run_terminal_cmd \
             run_terminal_command run_in_terminal exec exec_command execute_command \
             local_shell local_shell_call terminal command bash_code_execution container_exec \
             shell_command run_bash execute_shell shell_exec",
        ),
        ("patch", Patch, "apply_patch patch apply_unified_diff"),
        (
            "editor",
            Editor,
            "str_replace_editor str_replace_based_edit_tool text_editor \
             text_editor_code_execution editor memory file_editor",
        ),
    ];
    let rule = |(name, form, tools): (&str, TouchForm, &str)| {
        let tools = tools.split(' ').map(str::to_owned).collect();
        (name.to_owned(), TouchRule { tools, form })
    };
    RULES.map(rule).into()
}

impl TouchRule {
    /// True when a tool is meant.
    #[must_use]
    pub fn matches(&self, tool: &str) -> bool {
        let bare = tool.rsplit("__").next().unwrap_or(tool);
        let last = bare.rsplit(['.', '/', ':']).next().unwrap_or(bare);
        let known = |name: &str| self.tools.iter().any(|known| is_same(known, name));
        known(tool) || known(bare) || known(last)
    }
}

/// The same letters and digits, whatever their case and what stands between.
fn is_same(one: &str, other: &str) -> bool {
    let letters = |text: &str| -> Vec<u8> {
        text.bytes()
            .filter(u8::is_ascii_alphanumeric)
            .map(|byte| byte.to_ascii_lowercase())
            .collect()
    };
    !one.is_empty() && letters(one) == letters(other)
}
