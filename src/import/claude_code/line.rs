//! One line of a session.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use serde_json::Value;

use super::super::{content::short, record::Record};

/// A line, with its value if it is a valid JSON object.
pub(super) struct SessionLine {
    pub(super) text: Bytes,
    /// Null when it cannot be parsed.
    pub(super) value: Value,
    pub(super) form: LineForm,
}

/// The form of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LineForm {
    /// An ordinary line.
    Plain,
    /// A progress line that contains a line of a sub-agent.
    Progress,
    /// A placeholder in the session for a progress line that moved to the sub-agent's lines.
    Moved {
        /// The sub-agent.
        agent: String,
        /// The call that started it.
        call_id: String,
    },
}

impl SessionLine {
    /// Returns the objects of a line: one, unless the writer left out a line end.
    pub(super) fn read(text: &Bytes) -> Vec<Self> {
        let records = Record::read(text).into_iter();
        records.map(Self::plain).collect()
    }

    fn plain(record: Record) -> Self {
        Self {
            text: record.text,
            value: record.value,
            form: LineForm::Plain,
        }
    }

    /// Returns the content without the wrapper of a progress line.
    pub(super) fn said(&self) -> &Value {
        match self.form {
            LineForm::Progress => &self.value["data"]["message"],
            _ => &self.value,
        }
    }

    /// Returns the sub-agent of a progress line, and the call that started it.
    fn progress(&self) -> Option<(&str, &str)> {
        let data = &self.value["data"];
        let agent = data["agentId"].as_str().filter(|agent| !agent.is_empty())?;
        let is_progress = self.text_of("type") == "progress"
            && data["type"] == "agent_progress"
            && data["message"].is_object();
        is_progress.then(|| (agent, self.text_of("parentToolUseID")))
    }

    /// Returns a placeholder that keeps this line's place in the session when its content moves
    /// elsewhere.
    fn moved(&self, agent: &str, call_id: &str) -> Self {
        let fields = ["uuid", "parentUuid", "timestamp"];
        let fields = fields.iter().filter_map(|field| {
            let value = self.value.get(*field)?;
            Some(((*field).to_owned(), value.clone()))
        });
        Self {
            text: Bytes::new(),
            value: Value::Object(fields.collect()),
            form: LineForm::Moved {
                agent: agent.to_owned(),
                call_id: call_id.to_owned(),
            },
        }
    }

    pub(super) fn is_readable(&self) -> bool {
        self.value.is_object()
    }

    pub(super) fn text_of(&self, field: &str) -> &str {
        self.said()[field].as_str().unwrap_or_default()
    }

    pub(super) fn flag(&self, field: &str) -> bool {
        self.said()[field] == Value::Bool(true)
    }

    /// Returns the original text, or an empty one if it is not UTF-8. A line that could be parsed
    /// is UTF-8.
    pub(super) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.text).unwrap_or_default()
    }

    pub(super) fn is_user(&self) -> bool {
        self.says("user")
    }

    pub(super) fn is_assistant(&self) -> bool {
        self.says("assistant")
    }

    /// Returns true for a line of this type whose message has a typed form.
    fn says(&self, role: &str) -> bool {
        let content = &self.said()["message"]["content"];
        self.text_of("type") == role
            && self.said()["message"]["role"] == role
            && (content.is_string() || content.is_array())
    }

    pub(super) fn is_boundary(&self) -> bool {
        self.text_of("type") == "system" && self.text_of("subtype") == "compact_boundary"
    }

    /// Returns true for lines that form the conversation.
    pub(super) fn is_step(&self) -> bool {
        self.is_user() || self.is_assistant() || self.is_boundary()
    }

    /// Returns true for a message for people that the model does not see.
    pub(super) fn is_shown_only(&self) -> bool {
        let transcript = self.flag("isVisibleInTranscriptOnly") && !self.flag("isCompactSummary");
        transcript || self.flag("isApiErrorMessage")
    }

    /// Returns true when the line has a parent field, even a null one.
    pub(super) fn names_parent(&self) -> bool {
        self.said().get("parentUuid").is_some()
    }

    /// Returns the text of a message that is a single text.
    pub(super) fn whole_text(&self) -> Option<&str> {
        let content = &self.said()["message"]["content"];
        match content.as_array().map(Vec::as_slice) {
            Some([block]) if block["type"] == "text" => block["text"].as_str(),
            Some(_) => None,
            None => content.as_str(),
        }
    }

    pub(super) fn blocks(&self) -> &[Value] {
        let content = self.said()["message"]["content"].as_array();
        content.map_or(&[][..], Vec::as_slice)
    }

    /// Returns true when every block of the message is a tool result.
    pub(super) fn is_results(&self) -> bool {
        let blocks = self.blocks();
        self.is_user() && !blocks.is_empty() && blocks.iter().all(|b| b["type"] == "tool_result")
    }

    pub(super) fn message_id(&self) -> String {
        short(&self.said()["message"]["id"]).unwrap_or_default()
    }

    /// Returns the first text of the message.
    pub(super) fn prompt(&self) -> Option<&str> {
        let content = &self.said()["message"]["content"];
        let block = || {
            self.blocks()
                .iter()
                .find_map(|block| block["text"].as_str())
        };
        content.as_str().or_else(block)
    }
}

/// Returns the first prompt of a side chain.
pub(super) fn first_prompt(lines: &[SessionLine]) -> Option<String> {
    let line = lines.iter().find(|line| line.is_user())?;
    line.prompt().map(str::to_owned)
}

type Chain = (String, Vec<SessionLine>);

/// Returns the session's own lines, and the lines of each side chain in it. A side chain is named
/// by its agent id or, without one, by the id of its first line. The progress of a sub-agent is a
/// side chain too, unless the sub-agent has its own file with the same lines.
pub(super) fn split_chains(
    lines: Vec<SessionLine>,
    with_files: &HashSet<&str>,
) -> (Vec<SessionLine>, Vec<Chain>) {
    let mut own = Vec::new();
    let mut chains = Chains::default();
    for mut line in lines {
        if line.flag("isSidechain") {
            let agent = line.text_of("agentId").to_owned();
            chains.of(&line, &agent).push(line);
            continue;
        }
        let progress = line
            .progress()
            .filter(|(agent, _)| !with_files.contains(agent));
        let Some((agent, call_id)) = progress else {
            own.push(line);
            continue;
        };
        own.push(line.moved(agent, call_id));
        let agent = agent.to_owned();
        line.form = LineForm::Progress;
        chains.of(&line, &agent).push(line);
    }
    (own, chains.all)
}

#[derive(Default)]
struct Chains {
    all: Vec<Chain>,
    by_name: HashMap<String, usize>,
    by_line: HashMap<String, usize>,
}

impl Chains {
    /// Returns the chain of a line.
    fn of(&mut self, line: &SessionLine, agent: &str) -> &mut Vec<SessionLine> {
        let uuid = line.text_of("uuid").to_owned();
        let known = self.by_name.get(agent).filter(|_| !agent.is_empty());
        let known = known.or_else(|| self.by_line.get(line.text_of("parentUuid")));
        let chain = known.copied().unwrap_or_else(|| {
            let name = if agent.is_empty() { &uuid } else { agent };
            self.all.push((name.to_owned(), Vec::new()));
            self.all.len() - 1
        });
        if !agent.is_empty() {
            self.by_name.insert(agent.to_owned(), chain);
        }
        if !uuid.is_empty() {
            self.by_line.insert(uuid, chain);
        }
        &mut self.all[chain].1
    }
}
