//! One line of a session.

use std::collections::HashMap;

use bytes::Bytes;
use serde_json::Value;

use super::super::{content::short, source::LINE_VALUES_MAX};
use crate::codec::json;

/// A line, with its value if it is a JSON object that can be read.
pub(super) struct SessionLine {
    pub(super) text: Bytes,
    /// Null when it cannot be read.
    pub(super) value: Value,
}

impl SessionLine {
    pub(super) fn read(text: &Bytes) -> Self {
        let value = json::check_values(text, LINE_VALUES_MAX)
            .and_then(|()| json::check_text(text))
            .ok()
            .and_then(|()| serde_json::from_slice(text).ok())
            .filter(Value::is_object)
            .unwrap_or_default();
        let text = text.clone();
        Self { text, value }
    }

    pub(super) fn is_readable(&self) -> bool {
        self.value.is_object()
    }

    pub(super) fn text_of(&self, field: &str) -> &str {
        self.value[field].as_str().unwrap_or_default()
    }

    pub(super) fn flag(&self, field: &str) -> bool {
        self.value[field] == Value::Bool(true)
    }

    /// The line's own text; it is UTF-8 whenever it is readable.
    pub(super) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.text).unwrap_or_default()
    }

    pub(super) fn is_user(&self) -> bool {
        self.says("user")
    }

    pub(super) fn is_assistant(&self) -> bool {
        self.says("assistant")
    }

    /// A line of this type whose message can be typed.
    fn says(&self, role: &str) -> bool {
        let content = &self.value["message"]["content"];
        self.text_of("type") == role
            && self.value["message"]["role"] == role
            && (content.is_string() || content.is_array())
    }

    pub(super) fn is_boundary(&self) -> bool {
        self.text_of("type") == "system" && self.text_of("subtype") == "compact_boundary"
    }

    /// Lines that make the conversation; all others are kept beside them.
    pub(super) fn is_step(&self) -> bool {
        self.is_user() || self.is_assistant() || self.is_boundary()
    }

    pub(super) fn blocks(&self) -> &[Value] {
        let content = self.value["message"]["content"].as_array();
        content.map_or(&[][..], Vec::as_slice)
    }

    /// Every block of the message answers a call.
    pub(super) fn is_results(&self) -> bool {
        let blocks = self.blocks();
        self.is_user() && !blocks.is_empty() && blocks.iter().all(|b| b["type"] == "tool_result")
    }

    pub(super) fn message_id(&self) -> String {
        short(&self.value["message"]["id"]).unwrap_or_default()
    }

    /// The first text of the message.
    pub(super) fn prompt(&self) -> Option<&str> {
        let content = &self.value["message"]["content"];
        let block = || {
            self.blocks()
                .iter()
                .find_map(|block| block["text"].as_str())
        };
        content.as_str().or_else(block)
    }
}

/// What a side chain was asked to do.
pub(super) fn first_prompt(lines: &[SessionLine]) -> Option<String> {
    let line = lines.iter().find(|line| line.is_user())?;
    line.prompt().map(str::to_owned)
}

type Chain = (String, Vec<SessionLine>);

/// The session's own lines, and those of each side chain in it by agent id, or
/// by the id of its first line.
pub(super) fn split_chains(lines: Vec<SessionLine>) -> (Vec<SessionLine>, Vec<Chain>) {
    let mut own = Vec::new();
    let mut chains: Vec<Chain> = Vec::new();
    let mut by_name: HashMap<String, usize> = HashMap::new();
    let mut by_line: HashMap<String, usize> = HashMap::new();
    for line in lines {
        if !line.flag("isSidechain") {
            own.push(line);
            continue;
        }
        let uuid = line.text_of("uuid").to_owned();
        let agent = line.text_of("agentId").to_owned();
        let known = by_name.get(&agent).filter(|_| !agent.is_empty());
        let known = known.or_else(|| by_line.get(line.text_of("parentUuid")));
        let chain = known.copied().unwrap_or_else(|| {
            let name = if agent.is_empty() {
                uuid.clone()
            } else {
                agent.clone()
            };
            chains.push((name, Vec::new()));
            chains.len() - 1
        });
        if !agent.is_empty() {
            by_name.insert(agent, chain);
        }
        if !uuid.is_empty() {
            by_line.insert(uuid, chain);
        }
        chains[chain].1.push(line);
    }
    (own, chains)
}
