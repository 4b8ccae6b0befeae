//! Imports sessions of Claude Code, as that tool keeps them: JSON lines that name their parent in
//! `parentUuid`.
//!
//! The tree becomes branches, compact boundaries become compactions, and side chains (sub-agents,
//! in the same file or in `<session>/subagents/`) become separate conversations with the session as
//! parent. Lines without a typed form are kept as custom events. `session_lines` restores every
//! line.
//!
//! A session that has grown is imported as the same events followed by new ones: a later line never
//! changes the events of an earlier one. The lines of one assistant message therefore stay separate
//! messages with the same `message_id`. The lines identify the session, not the file name. An
//! incomplete last line is left for the next import.

pub(super) mod blocks;
mod boundary;
mod branches;
mod convert;
mod line;
mod render;
pub(super) mod resume;
mod visible_lines;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use serde_json::Value;

pub(crate) use super::whole_lines::SESSION_BYTES_MAX;
pub use super::whole_lines::SessionFault;
use super::{
    ImportedConversation, Oddity,
    openai_chat::conversation_id,
    source::{LineSource, is_inside},
    steps::shorter_id,
    whole_lines::{open, open_found, read_lines},
};
use convert::{Child, convert};
use line::SessionLine;
pub use render::session_lines;
use treering_domain::{Custom, Revision};

/// The source name of imported sessions.
pub const SOURCE: &str = "claude-code";

/// How many levels of folders below a session's folder are searched for sub-agents. The tool keeps
/// those of a workflow two levels down.
const AGENT_FOLDERS_MAX: usize = 4;

/// A session as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// The session's id, from its lines.
    pub id: String,
    /// Lines of the session's file.
    pub lines: Vec<Bytes>,
    /// Agent id and lines of sub-agents that have files of their own.
    pub agents: Vec<(String, Vec<Bytes>)>,
    /// Files whose last line is incomplete and therefore not among the lines.
    pub unfinished: Vec<PathBuf>,
}

impl Session {
    /// Returns false while no line has a time, a message or a title: the first line is still being
    /// written, or it is a note of the tool that precedes everything else.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        #[derive(serde::Deserialize)]
        struct SessionLineFields {
            timestamp: Option<serde::de::IgnoredAny>,
            message: Option<serde::de::IgnoredAny>,
            #[serde(rename = "type", default)]
            kind: String,
        }
        let says = |line: &Bytes| match serde_json::from_slice::<SessionLineFields>(line) {
            Ok(said) => {
                let is_title =
                    ["summary", "ai-title", "custom-title"].contains(&said.kind.as_str());
                said.timestamp.is_some() || said.message.is_some() || is_title
            }
            // An unreadable line is kept, so it counts.
            Err(_) => true,
        };
        self.lines.iter().any(says)
    }

    /// Returns a hash of everything that was read: equal hashes mean equal sessions.
    #[must_use]
    pub fn content_hash(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        let mut add = |name: &str, lines: &[Bytes]| {
            hasher.update(&(name.len() as u64).to_le_bytes());
            hasher.update(name.as_bytes());
            hasher.update(&(lines.len() as u64).to_le_bytes());
            for line in lines {
                hasher.update(&(line.len() as u64).to_le_bytes());
                hasher.update(line);
            }
        };
        add(&self.id, &self.lines);
        for (agent, lines) in &self.agents {
            add(agent, lines);
        }
        hasher.finalize()
    }
}

/// Returns the sessions in the tool's own folder (`$CLAUDE_CONFIG_DIR`, else `~/.claude`), sorted
/// by path. Empty when there is none.
#[must_use]
pub fn find_sessions() -> Vec<PathBuf> {
    config_folder().map_or_else(Vec::new, |folder| find_sessions_in(&folder))
}

/// Returns the tool's own folder (`$CLAUDE_CONFIG_DIR`, else `~/.claude`).
#[must_use]
pub fn config_folder() -> Option<PathBuf> {
    match std::env::var_os("CLAUDE_CONFIG_DIR") {
        Some(folder) if !folder.is_empty() => Some(PathBuf::from(folder)),
        _ => std::env::home_dir().map(|home| home.join(".claude")),
    }
}

/// Returns the folder for the sessions of a working directory, below the tool's own folder.
#[must_use]
pub fn project_folder(config: &Path, cwd: &str) -> PathBuf {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name: String = cwd.chars().map(plain).collect();
    config.join("projects").join(name)
}

/// Returns the sessions below a configuration folder, sorted by path.
#[must_use]
pub(crate) fn find_sessions_in(folder: &Path) -> Vec<PathBuf> {
    let mut sessions: Vec<_> = entries(&folder.join("projects"))
        .iter()
        .flat_map(|project| entries(project))
        .filter(|file| is_lines(file) && !is_agent(file) && file.is_file())
        .collect();
    sessions.sort();
    sessions
}

/// Returns the entries of a folder; none when it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    entries.flatten().map(|entry| entry.path()).collect()
}

/// Returns all files of a folder and of its subfolders, down to `levels`. Links to folders are not
/// followed.
fn files_below(folder: &Path, levels: usize) -> Vec<PathBuf> {
    let (folders, mut files): (Vec<_>, Vec<_>) = entries(folder).into_iter().partition(|path| {
        let meta = path.symlink_metadata();
        meta.is_ok_and(|meta| meta.is_dir())
    });
    if levels > 0 {
        files.extend(
            folders
                .iter()
                .flat_map(|folder| files_below(folder, levels - 1)),
        );
    }
    files
}

fn is_lines(file: &Path) -> bool {
    file.extension()
        .is_some_and(|extension| extension == "jsonl")
}

fn stem(file: &Path) -> Option<&str> {
    file.file_stem()?.to_str()
}

fn is_agent(file: &Path) -> bool {
    stem(file).is_some_and(|stem| stem.starts_with("agent-"))
}

/// Returns true for the file of a sub-agent in the folder of its session: it is read with the
/// session.
#[must_use]
pub fn is_read_with_session(path: &Path) -> bool {
    if !is_agent(path) || !is_lines(path) {
        return false;
    }
    let Some(id) = first_session_id(path) else {
        return false;
    };
    let file = format!("{id}.jsonl");
    let folders = path.ancestors().skip(1).take(AGENT_FOLDERS_MAX + 3);
    let mut folders = folders.map(|folder| folder.join(&file));
    folders.any(|session| session.is_file())
}

/// Returns when a session, or this part of it, began: the first time in its lines, as written.
/// `None` if this is not a session.
#[must_use]
pub fn began(head: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct TimedLine {
        #[serde(rename = "sessionId")]
        _session: String,
        timestamp: String,
    }
    let mut lines = head.split(|byte| *byte == b'\n');
    lines.find_map(|line| Some(serde_json::from_slice::<TimedLine>(line).ok()?.timestamp))
}

/// Returns true for custom events that hold an unchanged line.
pub(super) fn is_line(custom: &Custom) -> bool {
    custom.type_name.starts_with(render::TYPE_PREFIX)
}

/// Returns true for a line of a session, by its type and fields.
#[must_use]
pub(crate) fn is_session_line(value: &Value) -> bool {
    const TYPES: [&str; 12] = [
        "user",
        "assistant",
        "system",
        "progress",
        "attachment",
        "summary",
        "ai-title",
        "custom-title",
        "file-history-snapshot",
        "queue-operation",
        "pr-link",
        "agent-name",
    ];
    let Some(kind) = value["type"].as_str() else {
        return false;
    };
    let marks = [
        "sessionId",
        "parentUuid",
        "leafUuid",
        "isSidechain",
        "messageId",
    ];
    let has_mark = marks.iter().any(|mark| value.get(*mark).is_some());
    let said = &value["message"];
    let is_message = said["role"] == value["type"] && value.get("uuid").is_some();
    (TYPES.contains(&kind) && (has_mark || is_message))
        || (value["sessionId"].is_string() && value["uuid"].is_string())
}

/// Reads a session's file (`-`: standard input) and those of its sub-agents.
///
/// # Errors
/// [`SessionFault`] names the file, and the line if one is at fault.
pub fn read_session(path: &Path) -> Result<Session, SessionFault> {
    read_session_from(path, open(path)?)
}

/// Like `read_session`, with the session's own file already open.
///
/// # Errors
/// [`SessionFault`] names the file, and the line if one is at fault.
pub fn read_session_from(path: &Path, source: LineSource) -> Result<Session, SessionFault> {
    let mut left = SESSION_BYTES_MAX;
    let own = read_lines(path, source, &mut left)?;
    let mut session = Session {
        id: session_id(&own.lines, path),
        lines: own.lines,
        ..Session::default()
    };
    session.unfinished.extend(own.unfinished);
    if path.as_os_str() == "-" {
        return Ok(session);
    }
    let own_folder = path.with_extension("").join("subagents");
    let mut files = files_below(&own_folder, AGENT_FOLDERS_MAX);
    // Older versions kept sub-agents beside the sessions.
    let beside = path.parent().map(entries).unwrap_or_default();
    files.extend(beside.into_iter().filter(|file| is_agent(file)));
    // Links that lead elsewhere do not belong to the session, and pipes are not files.
    let project = path.parent().unwrap_or(path);
    files.retain(|file| {
        let is_other = is_lines(file) && is_agent(file) && file != path;
        is_other && file.is_file() && is_inside(file, project)
    });
    files.sort();
    for file in files {
        // A file beside the session's own file may belong to another session.
        let inside = file.starts_with(&own_folder);
        if !inside && first_session_id(&file).as_deref() != Some(session.id.as_str()) {
            continue;
        }
        let read = read_lines(&file, open_found(&file)?, &mut left)?;
        session.unfinished.extend(read.unfinished);
        // Its first line is still being written.
        if read.lines.is_empty() {
            continue;
        }
        let agent = stem(&file).unwrap_or_default();
        let agent = agent.trim_start_matches("agent-").to_owned();
        session.agents.push((agent, read.lines));
    }
    Ok(session)
}

/// Returns the session id. It is the file name if a line has that id; a resumed session begins with
/// lines of the earlier session, which have another id. Otherwise it is the id in the first
/// message, or else the id in the first line that has one: lines other than messages may name the
/// session of a surrounding process. If no line has an id, returns the file name, or for standard
/// input a hash of the first line.
fn session_id(lines: &[Bytes], path: &Path) -> String {
    let name = stem(path).filter(|_| path.as_os_str() != "-");
    let (mut first, mut of_message) = (None, None);
    for line in lines.iter().filter_map(|line| LineIdentity::read(line)) {
        if Some(line.session_id.as_str()) == name {
            return line.session_id;
        }
        let is_message = matches!(line.kind.as_str(), "user" | "assistant");
        let said = if is_message {
            &mut of_message
        } else {
            &mut first
        };
        said.get_or_insert(line.session_id);
    }
    of_message
        .or(first)
        .or_else(|| name.map(str::to_owned))
        .unwrap_or_else(|| blake3::hash(lines.first().map_or(&[], Bytes::as_ref)).to_string())
}

/// Fields that identify the session of a line.
#[derive(serde::Deserialize)]
struct LineIdentity {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(rename = "sessionId")]
    session_id: String,
}

impl LineIdentity {
    /// Returns `None` when the line names no session.
    fn read(line: &[u8]) -> Option<Self> {
        let marks: Self = serde_json::from_slice(line).ok()?;
        (!marks.session_id.is_empty()).then_some(marks)
    }
}

/// Returns the session of a file's first line.
fn first_session_id(path: &Path) -> Option<String> {
    let mut source = LineSource::open_found(path, |_| {}).ok()?;
    let (_, line) = source.next()?;
    LineIdentity::read(&line.ok()?).map(|marks| marks.session_id)
}

/// Converts a session: first the session itself, then its sub-contexts, which name it as their
/// parent and so must be appended after it. Odd lines are not errors: they are kept and reported as
/// notes.
///
/// # Errors
/// [`SessionFault::Branch`] when a branch could not be named.
pub fn import_session(session: &Session) -> Result<Vec<ImportedConversation>, SessionFault> {
    let read = |lines: &[Bytes]| lines.iter().flat_map(SessionLine::read).collect();
    let lines: Vec<SessionLine> = read(&session.lines);
    let with_files = session.agents.iter().map(|(agent, _)| agent.as_str());
    let (own, mut chains) = line::split_chains(lines, &with_files.collect());
    for (agent, lines) in &session.agents {
        chains.push((agent.clone(), read(lines)));
    }
    let mut children = Vec::with_capacity(chains.len());
    let mut names: HashMap<String, usize> = HashMap::new();
    for (agent, lines) in chains {
        let source_id = shorter_id(&format!("{}/{}", session.id, distinct(&mut names, &agent)));
        let child = Child {
            conversation: conversation_id(SOURCE, &source_id),
            prompt: line::first_prompt(&lines).unwrap_or_default(),
            agent,
            asked_by: None,
        };
        children.push((source_id, lines, child));
    }
    let known: Vec<Child> = children.iter().map(|(_, _, child)| child.clone()).collect();
    let source_id = shorter_id(&session.id);
    let (main, linked) = convert(&source_id, &own, known, None)?;
    let parent = main.conversation;
    let mut imported = vec![main];
    for ((source_id, lines, _), child) in children.into_iter().zip(linked) {
        let asked_by = child.asked_by.unwrap_or_default();
        let (mut conversation, _) = convert(
            &source_id,
            &lines,
            Vec::new(),
            Some(asked_by.parent_ref(parent)),
        )?;
        if asked_by.revision <= Revision(1) {
            conversation.notes.insert(
                0,
                super::ImportNote {
                    message_index: 0,
                    what: Oddity::SubContextNotLinked,
                },
            );
        }
        imported.push(conversation);
    }
    Ok(imported)
}

/// Returns a name that no other side chain of the session has.
fn distinct(names: &mut HashMap<String, usize>, agent: &str) -> String {
    let mut name = agent.to_owned();
    while let Some(count) = names.get_mut(&name) {
        *count += 1;
        name = format!("{agent}-{count}");
    }
    names.insert(name.clone(), 1);
    name
}

#[cfg(test)]
mod tests;
