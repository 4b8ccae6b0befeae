//! Recognises texts that quote a memory: results of memory tools, and what memory programs put into
//! a session. Such texts repeat events that a search finds by themselves. If they were not
//! recognised, every use of a memory would add a copy that ranks before the original.

use super::arguments::call_target;

/// The first words of every text that this program's MCP server takes from the store. Agents
/// rename tools and servers; the text stays.
pub const RECALL_MARK: &str = "[from treering]";

/// Maximum length of the beginning of a text in which the mark counts, in bytes: agents put a line
/// or a JSON envelope before the mark, and prompts put a sentence before it.
const MARK_WITHIN_BYTES: usize = 1_024;

/// Names of memory servers, in lower case with `_` between words. All of a server's tools read its
/// memory, except those with a word of [`WRITING`].
const SERVERS: [&str; 12] = [
    "treering",
    "mem0",
    "openmemory",
    "basic_memory",
    "claude_mem",
    "graphiti",
    "graphiti_memory",
    "supermemory",
    "hindsight",
    "cognee",
    "letta",
    "zep",
];
/// Tools that read a memory, whatever their server is called. Names that other programs use too
/// are left out, such as `read_memory` of debuggers.
const TOOLS: [&str; 18] = [
    "search_memory",
    "search_memories",
    "memory_search",
    "get_memories",
    "list_memories",
    "retrieve_memory",
    "retrieve_memories",
    "recall_memory",
    "recall_memories",
    "search_memory_nodes",
    "search_memory_facts",
    "archival_memory_search",
    "conversation_search",
    // The reference server `memory` of the Model Context Protocol.
    "search_nodes",
    "open_nodes",
    "read_graph",
    // claude-mem, whatever its plugin is called.
    "mem_search",
    "get_observations",
];
/// Words in the names of tools that write. Their text is an original.
const WRITING: [&str; 16] = [
    "add", "create", "write", "save", "store", "set", "insert", "update", "edit", "delete",
    "remove", "clear", "remember", "retain", "fork", "decide",
];
/// Elements that memory programs put into a session, with nothing before or after them.
const ELEMENTS: [&str; 5] = [
    "claude-mem-context",
    "supermemory-context",
    "hindsight_memories",
    "hindsight-memory",
    "relevant_memories",
];
/// Programs that run another one, which follows with options between.
const RUNNERS: [&str; 16] = [
    "sudo", "env", "time", "timeout", "nohup", "exec", "command", "bash", "sh", "zsh", "python",
    "python3", "npx", "uvx", "do", "then",
];
/// Commands of this program that print recorded text.
const COMMANDS: [&str; 6] = ["search", "log", "show", "context", "result", "export"];

/// Returns whether a tool call reads a memory: a call of a memory server's tool, or a shell command
/// that runs this program.
#[must_use]
pub fn is_recall_call(tool: &str, arguments: &str) -> bool {
    let name = plain(tool);
    if name.split('_').any(|word| WRITING.contains(&word)) {
        return false;
    }
    // Anthropic's memory tool has one name for all its commands.
    if name == "memory" {
        return call_target(arguments).command == "view";
    }
    let is_part = |part: &&str| {
        let mut found = name.match_indices(*part);
        found.any(|(at, _)| {
            let end = at + part.len();
            (at == 0 || name.as_bytes()[at - 1] == b'_')
                && (end == name.len() || name.as_bytes()[end] == b'_')
        })
    };
    let is_tool = TOOLS
        .iter()
        .any(|tool| is_part(tool) && name.ends_with(tool));
    is_tool || SERVERS.iter().any(is_part) || runs_this_program(arguments)
}

/// Returns a tool's name in lower case, with `_` for every character between words.
fn plain(tool: &str) -> String {
    let sign = |c: char| match c.is_ascii_alphanumeric() {
        true => c.to_ascii_lowercase(),
        false => '_',
    };
    tool.chars().map(sign).collect()
}

fn runs_this_program(arguments: &str) -> bool {
    // Most calls do not contain the word, and parsing JSON costs more than this check.
    if !arguments.contains("treering") {
        return false;
    }
    let command = call_target(arguments).command;
    command
        .split([';', '|', '&', '\n', '(', '`'])
        .any(prints_recorded_text)
}

/// Returns whether a simple command runs this program to print recorded text.
fn prints_recorded_text(command: &str) -> bool {
    let quotes = ['\'', '"'];
    let mut words = command
        .split_whitespace()
        .map(|word| word.trim_matches(quotes));
    let name_of = |word: &str| {
        word.rsplit(['/', '\\'])
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let is_before = |word: &str| {
        let is_option = word.starts_with(|c: char| c == '-' || c.is_ascii_digit());
        is_option || word.contains('=') || RUNNERS.contains(&name_of(word).as_str())
    };
    let program = words.find(|word| !is_before(word));
    program.is_some_and(|program| name_of(program) == "treering")
        && words.any(|word| COMMANDS.contains(&word))
}

/// Returns whether a text has [`RECALL_MARK`] near its beginning, or is one element of a memory
/// program.
#[must_use]
pub fn is_recalled_text(text: &str) -> bool {
    let text = text.trim();
    let first = &text[..text.floor_char_boundary(MARK_WITHIN_BYTES)];
    first.contains(RECALL_MARK)
        || ELEMENTS.iter().any(|element| {
            let inner = text.strip_prefix('<').and_then(|t| t.strip_prefix(element));
            let inner = inner.and_then(|t| t.strip_suffix('>')?.strip_suffix(element));
            inner.is_some_and(|inner| inner.ends_with("</"))
        })
}

/// Returns the address of the event that a recalled text quotes at this byte, as written in the
/// text. It is the last address before the byte, or else the first one after it.
#[must_use]
pub fn quoted_address(text: &str, byte: usize) -> Option<&str> {
    let at = text.floor_char_boundary(byte);
    let addresses = |text| addresses_in(text);
    addresses(&text[..at])
        .last()
        .or_else(|| addresses(&text[at..]).next())
}

/// Returns the words of a text that are addresses of events: `5d0c3c0e#19`.
fn addresses_in(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || "#-_.:".contains(c)));
    words.filter(|word| {
        word.split_once('#').is_some_and(|(id, revision)| {
            id.len() >= 4
                && id.bytes().any(|b| b.is_ascii_digit())
                && !revision.is_empty()
                && revision.bytes().all(|b| b.is_ascii_digit())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // Each agent spells the tools of a server in its own way. A missed spelling ranks quotations
    // before originals; a false match hides an original.
    #[test]
    fn memory_tools_are_known_in_every_spelling() {
        for tool in [
            "mcp__treering__search",
            "treering__around",
            "treering_read",
            "treering.search",
            "mcp_treering_request",
            "mcp__plugin_claude-mem_mcp-search__timeline",
            "mcp__memory__search_nodes",
            "memory_read_graph",
            "mcp__openmemory__search_memory",
            "mcp__basic-memory__read_note",
            "mcp__graphiti-memory__get_episodes",
            "mcp__big-brain__search_memory_facts",
            "archival_memory_search",
        ] {
            assert!(is_recall_call(tool, "{}"), "{tool}");
        }
        for tool in [
            "mcp__treering__remember",
            "mcp__basic-memory__write_note",
            "mcp__memory__create_entities",
            "mcp__memory__add_observations",
            "mcp__gdb__read_memory",
            "get_memory_usage",
            "mcp__github__search_code",
            "treerings",
            "Bash",
            "memory",
            "",
        ] {
            assert!(!is_recall_call(tool, "{}"), "{tool}");
        }
        assert!(is_recall_call(
            "memory",
            r#"{"command":"view","path":"/memories"}"#
        ));
        assert!(!is_recall_call(
            "memory",
            r#"{"command":"create","path":"/memories/a"}"#
        ));
    }

    // An agent without the MCP server uses the program in its shell.
    #[test]
    fn shell_commands_that_print_recorded_text_are_known() {
        let bash = |command: &str| {
            let arguments = serde_json::json!({ "command": command }).to_string();
            is_recall_call("Bash", &arguments)
        };
        assert!(bash("treering search \"disk full\" --limit 3"));
        assert!(bash("/usr/bin/treering --data x log 5d0c3c0e"));
        for command in [
            "cd /work && treering search \"disk full\"",
            "TREERING_DATA=./store treering search disk",
            "timeout 20 treering log 5d0c3c0e | head -50",
            "python -m treering search disk",
            "npx treering show 5d0c3c0e",
            "for id in a b; do treering show $id; done",
            "echo $(treering search disk)",
            "bash -c 'cd x; treering search disk'",
        ] {
            assert!(bash(command), "{command}");
        }
        for list in [
            serde_json::json!({"command": ["bash", "-lc", "treering search disk"]}),
            serde_json::json!({"command": ["treering", "search", "disk"]}),
        ] {
            assert!(is_recall_call("shell", &list.to_string()), "{list}");
        }
        assert!(!bash("grep -r treering log"));
        assert!(!bash("git commit -m 'treering: search better'"));
        assert!(!bash("treering init"));
        assert!(!bash("cargo test -p treering-search"));
        assert!(!bash("cat docs/treering search.md"));
    }

    // A person's question behind an injected block must stay findable.
    #[test]
    fn only_whole_texts_are_recalled() {
        let found = format!("{RECALL_MARK}\n1 of 1 hits");
        assert!(is_recalled_text(&found));
        let wrapped =
            format!("Wall time: 0.1 s\nOutput:\n[{{\"type\":\"text\",\"text\":\"{found}\"}}]");
        assert!(is_recalled_text(&wrapped));
        let block = "<supermemory-context project=\"a\">\nlikes Rust\n</supermemory-context>\n";
        assert!(is_recalled_text(block));
        assert!(!is_recalled_text(&format!(
            "{block}\nWhy does the build fail?"
        )));
        assert!(!is_recalled_text("<supermemory-context>"));
        let late = format!("{}{RECALL_MARK}", "a line of source code\n".repeat(60));
        assert!(!is_recalled_text(&late));
    }

    #[test]
    fn a_quote_belongs_to_the_address_above_it() {
        let text =
            "2 of 2 hits\n\n1. 5d0c3c0e#19  Bash\n> disk full\n\n2. ses_4aF#7  Read\n> é full";
        let of = |what: &str| quoted_address(text, text.rfind(what).unwrap());
        assert_eq!(of("disk"), Some("5d0c3c0e#19"));
        assert_eq!(of("é full"), Some("ses_4aF#7"));
        assert_eq!(of("2 of 2"), Some("5d0c3c0e#19"));
        assert_eq!(quoted_address("issue #19, C#7, a#b", 3), None);
    }
}
