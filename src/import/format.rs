//! Detects the format of a file from its content.
//!
//! A file read in the wrong format would be imported as nonsense. A new importer adds a [`Format`]
//! and the marks that identify its files.

use std::fmt;

use serde_json::Value;

use super::{claude_code, record::first_object_end};

/// Bytes of a file that are read first; enough for nearly every file.
pub const HEAD_BYTES: usize = 64 << 10;

/// Bytes that are read if the first ones did not suffice: enough for the longest first lines in
/// real files and for most whole documents.
pub const LONG_HEAD_BYTES: usize = 8 << 20;

/// First bytes of an SQLite database.
const DATABASE_MAGIC: &[u8] = b"SQLite format 3\0";

/// Maximum number of lines that are examined.
const LINES_MAX: usize = 1_000;

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
    /// One conversation a line: `{"id", "source", "messages": [...]}`.
    OpenaiChat,
    /// Session files of Claude Code.
    ClaudeCode,
    /// Rollouts of Codex.
    Codex,
    /// Sessions, messages and exports of opencode.
    OpenCode,
    /// Sessions of Gemini CLI.
    GeminiCli,
    /// Sessions of pi.
    Pi,
    /// One document with messages, instead of one conversation a line.
    ChatDocument,
    /// JSON of an unknown kind.
    OtherJson,
    /// Not JSON: Markdown or other text.
    NoJson,
    /// Not text.
    Binary,
    /// Empty, or not yet a complete line.
    Empty,
}

impl Format {
    /// Returns the name, as on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenaiChat => "openai-chat",
            Self::ClaudeCode => "claude-code",
            Self::Codex => "codex",
            Self::OpenCode => "opencode",
            Self::GeminiCli => "gemini-cli",
            Self::Pi => "pi",
            Self::ChatDocument => "chat-document",
            Self::OtherJson => "other-json",
            Self::NoJson => "no-json",
            Self::Binary => "binary",
            Self::Empty => "nothing",
        }
    }

    /// Formats with an importer.
    pub const IMPORTED: [Self; 6] = [
        Self::OpenaiChat,
        Self::ClaudeCode,
        Self::Codex,
        Self::OpenCode,
        Self::GeminiCli,
        Self::Pi,
    ];

    /// Returns true when there is an importer for this format.
    #[must_use]
    pub fn is_imported(self) -> bool {
        Self::IMPORTED.contains(&self)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenaiChat => "OpenAI chat lines (openai-chat)",
            Self::ClaudeCode => "a session of Claude Code (claude-code)",
            Self::Codex => "a rollout of Codex (codex)",
            Self::OpenCode => "a file of opencode (opencode)",
            Self::GeminiCli => "a session of Gemini CLI (gemini-cli)",
            Self::Pi => "a session of pi (pi)",
            Self::ChatDocument => "one JSON document with messages",
            Self::OtherJson => "JSON of an unknown format",
            Self::NoJson => "text that is not JSON, for example Markdown",
            Self::Binary => "a binary file (for example a program, a database or an image)",
            Self::Empty => "nothing",
        })
    }
}

/// Detects the format from the first bytes of a file. `is_all`: these are all bytes of the file.
#[must_use]
pub fn of_head(head: &[u8], is_all: bool) -> Format {
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    if head.iter().all(u8::is_ascii_whitespace) {
        return Format::Empty;
    }
    // Contents of a database could look like lines.
    if head.starts_with(DATABASE_MAGIC) {
        return Format::Binary;
    }
    let mut any_object = false;
    for line in head.split(|byte| *byte == b'\n').take(LINES_MAX) {
        let Some(value) = first_object(line) else {
            continue;
        };
        any_object = true;
        if let Some(format) = of_object(&value) {
            return format;
        }
    }
    of_document(head, is_all).unwrap_or_else(|| {
        let starts_as_json = head
            .iter()
            .find(|byte| !byte.is_ascii_whitespace())
            .is_some_and(|byte| matches!(byte, b'{' | b'['));
        let lines = head.split(|byte| *byte == b'\n').count();
        if starts_as_json && (any_object || lines > 1) {
            Format::OtherJson
        } else if starts_as_json && is_all {
            // The first line is still being written.
            Format::Empty
        } else if starts_as_json {
            Format::OtherJson
        } else if head.contains(&0) {
            Format::Binary
        } else {
            Format::NoJson
        }
    })
}

fn first_object(line: &[u8]) -> Option<Value> {
    let start = line.iter().position(|byte| !byte.is_ascii_whitespace())?;
    let line = &line[start..];
    if line[0] != b'{' {
        return None;
    }
    let end = first_object_end(line)?;
    serde_json::from_slice(&line[..end]).ok()
}

/// Detects the format of a line or document by its fields.
fn of_object(value: &Value) -> Option<Format> {
    let text = |field: &str| value[field].as_str().unwrap_or_default();
    let has = |field: &str| value.get(field).is_some();
    let is_open_code = |value: &Value| {
        [("id", "ses_"), ("sessionID", "ses_"), ("messageID", "msg_")]
            .iter()
            .any(|(field, start)| {
                let id = value[*field].as_str();
                id.is_some_and(|id| id.starts_with(start))
            })
    };
    let codex_types = [
        "session_meta",
        "response_item",
        "event_msg",
        "turn_context",
        "compacted",
    ];
    if codex_types.contains(&text("type")) && value["payload"].is_object()
        || has("record_type")
        || (has("instructions") && has("timestamp") && has("id") && !has("messages"))
    {
        Some(Format::Codex)
    } else if has("projectHash") || has("$set") || has("$rewindTo") {
        Some(Format::GeminiCli)
    } else if is_open_code(value) || is_open_code(&value["info"]) {
        Some(Format::OpenCode)
    } else if is_pi(value) {
        Some(Format::Pi)
    } else if claude_code::is_session_line(value) {
        Some(Format::ClaudeCode)
    } else {
        of_messages(value)
    }
}

fn is_pi(value: &Value) -> bool {
    const TYPES: [&str; 8] = [
        "message",
        "model_change",
        "thinking_level_change",
        "compaction",
        "branch_summary",
        "custom",
        "custom_message",
        "label",
    ];
    let kind = value["type"].as_str().unwrap_or_default();
    let is_session = kind == "session" && value["id"].is_string() && value["cwd"].is_string();
    let is_entry = TYPES.contains(&kind)
        && value["timestamp"].is_string()
        && (value.get("parentId").is_some() || value["message"]["role"].is_string());
    is_session || (is_entry && value.get("sessionId").is_none())
}

fn of_messages(value: &Value) -> Option<Format> {
    let messages = value["messages"].as_array()?;
    let is_gemini = |message: &Value| {
        message["type"] == "gemini" || (message["type"] == "user" && message.get("role").is_none())
    };
    Some(if messages.iter().any(is_gemini) {
        Format::GeminiCli
    } else {
        Format::OpenaiChat
    })
}

/// Detects the format of a file that is one JSON value.
fn of_whole(value: &Value) -> Option<Format> {
    let first = value.as_array().and_then(|items| items.first());
    match of_object(first.unwrap_or(value)) {
        Some(Format::OpenaiChat) => Some(Format::ChatDocument),
        None if first.is_some_and(|first| first["role"].is_string()) => Some(Format::ChatDocument),
        // Gemini CLI also keeps a list of the user's inputs, which is not a session.
        _ if first.is_some_and(|first| first.get("messageId").is_some()) => Some(Format::OtherJson),
        found => found,
    }
}

/// Detects the format of a file that is one JSON value over many lines, or has a very long first
/// line.
fn of_document(head: &[u8], is_all: bool) -> Option<Format> {
    match is_all.then(|| serde_json::from_slice(head)) {
        Some(Ok(value)) => return of_whole(&value),
        Some(Err(error)) if !error.is_eof() => return None,
        // An incomplete document is identified by its marks below.
        _ => {}
    }
    let text = String::from_utf8_lossy(head);
    let text = text.trim_start();
    let has = |mark: &str| text.contains(mark);
    if !text.starts_with(['{', '[']) {
        return None;
    }
    let one_line = !head.contains(&b'\n');
    if has("\"projectHash\"") || has("\"type\": \"gemini\"") {
        Some(Format::GeminiCli)
    } else if has("\"sessionID\"") || has("\"id\": \"ses_") {
        Some(Format::OpenCode)
    } else if one_line && has("\"parentUuid\"") {
        Some(Format::ClaudeCode)
    } else if one_line && has("\"messages\"") {
        Some(Format::OpenaiChat)
    } else if has("\"messages\"") {
        Some(Format::ChatDocument)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Format {
        of_head(text.as_bytes(), true)
    }

    // A README.md or a Gemini session read as lines of another format would be imported as
    // unreadable lines, with exit code 0. The format must be detected, and errors must name it.
    #[test]
    fn formats_are_detected_from_content() {
        let gemini = r#"{"sessionId": "s", "projectHash": "p", "startTime": "t",
            "messages": [{"id": "1", "type": "user", "content": "hi"},
                         {"id": "2", "type": "gemini", "content": "ho"}]}"#;
        let pretty = gemini.replace(',', ",\n");
        for (text, format) in [
            (
                r#"{"id":"a","messages":[{"role":"user","content":"hi"}]}"#,
                Format::OpenaiChat,
            ),
            (r#"{"id":"a","messages":[]}"#, Format::OpenaiChat),
            (
                r#"{"type":"user","message":{"role":"user","content":"x"},"uuid":"u","sessionId":"s"}"#,
                Format::ClaudeCode,
            ),
            (
                r#"{"type":"summary","summary":"x","leafUuid":"u"}"#,
                Format::ClaudeCode,
            ),
            (
                r#"{"type":"file-history-snapshot","messageId":"m","snapshot":{}}"#,
                Format::ClaudeCode,
            ),
            (
                r#"cut off in the middle"}
{"type":"user","message":{"role":"user","content":"x"},"uuid":"u","sessionId":"s"}"#,
                Format::ClaudeCode,
            ),
            (
                r#"{"timestamp":"t","type":"session_meta","payload":{"id":"x"}}"#,
                Format::Codex,
            ),
            (
                r#"{"timestamp":"t","type":"response_item","payload":{"type":"message"}}"#,
                Format::Codex,
            ),
            (
                r#"{"type":"session","version":3,"id":"x","timestamp":"t","cwd":"/"}"#,
                Format::Pi,
            ),
            (
                r#"{"type":"message","id":"1","parentId":null,"timestamp":"t","message":{"role":"user"}}"#,
                Format::Pi,
            ),
            (r#"{"info":{"id":"ses_1"},"messages":[]}"#, Format::OpenCode),
            (
                r#"{"id":"msg_1","sessionID":"ses_1","role":"user"}"#,
                Format::OpenCode,
            ),
            (gemini, Format::GeminiCli),
            (&pretty, Format::GeminiCli),
            (
                "{\n \"messages\": [\n {\"role\": \"user\"}]\n}",
                Format::ChatDocument,
            ),
            ("[{\"role\": \"user\"}]", Format::ChatDocument),
            ("# Treering\n\n- a list\n{not json}\n", Format::NoJson),
            ("SQLite format 3\0\u{10}\0\u{1}", Format::Binary),
            (
                "SQLite format 3\0\n{\"id\":\"msg_1\",\"sessionID\":\"ses_1\"}\n",
                Format::Binary,
            ),
            (r#"{"$set":{"summary":"x"}}"#, Format::GeminiCli),
            (
                r#"[{"sessionId":"s","messageId":0,"message":"x"}]"#,
                Format::OtherJson,
            ),
            ("{\"a\": 1}\n{\"b\": 2}\n", Format::OtherJson),
            ("", Format::Empty),
            ("\n \n", Format::Empty),
            (r#"{"type":"user","mess"#, Format::Empty),
        ] {
            assert_eq!(of(text), format, "{text}");
        }
        // A document that is still being written is detected too.
        assert_eq!(of(&pretty[..pretty.len() / 2]), Format::GeminiCli);
        // Only the beginning of a long file is examined.
        assert_eq!(of_head(&pretty.as_bytes()[..60], false), Format::GeminiCli);
        let long = br#"{"id":"a","messages":[{"role":"user","content":"xxxxxxxx"#;
        assert_eq!(of_head(long, false), Format::OpenaiChat);
    }
}
