//! Sessions of Claude Code, as that tool keeps them: JSON lines that name their
//! parent by `parentUuid`.
//!
//! The tree becomes branches, compact boundaries become compactions, and side
//! chains (sub-agents, in the same file or in `<session>/subagents/`) become
//! conversations of their own whose parent is the session. Lines that say
//! nothing that an event could are kept as custom events. [`session_lines`]
//! gives every line back.
//!
//! A session that has grown is imported as the same events and more: nothing
//! that a later line says changes what an earlier one became. That is why the
//! lines of one assistant message stay messages of their own, with the same
//! `message_id`.

mod blocks;
mod convert;
mod line;
mod place;
mod render;

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
};

use bytes::Bytes;

use super::{
    ImportedConversation, Oddity,
    openai_chat::conversation_id,
    source::{LineFault, LineSource},
};
use crate::domain::{NameError, Revision};
use convert::{Child, convert};
use line::SessionLine;
pub use render::session_lines;

/// The source of imported sessions.
pub const SOURCE: &str = "claude-code";

/// How deep below a session's folder its sub-agents are looked for: the tool
/// keeps those of a workflow two levels down.
const AGENT_FOLDERS_MAX: usize = 4;

/// A session and its sub-agents together, in bytes: all of it is held at once.
/// The largest real ones have some tens of megabytes.
pub const SESSION_BYTES_MAX: usize = 512 << 20;

/// Why a session was not imported.
#[derive(Debug, thiserror::Error)]
pub enum SessionFault {
    /// A file cannot be read.
    #[error("{} cannot be read: {error}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A line of a file cannot be read.
    #[error("{}:{line}: {fault}", path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: u64,
        /// Why.
        fault: LineFault,
    },
    /// The session is too large to be held.
    #[error("{} and the files before it have more than {max} bytes, the most that a session may have", path.display())]
    TooLarge {
        /// The file that passes the bound.
        path: PathBuf,
        /// The bound.
        max: usize,
    },
    /// The file's name is no session id.
    #[error("{} is not named after a session", path.display())]
    Unnamed {
        /// Which file.
        path: PathBuf,
    },
    /// A branch could not be named.
    #[error(transparent)]
    Branch(#[from] NameError),
}

/// A session as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// The tool's own id of it: the file's name.
    pub id: String,
    /// Lines of the session's file.
    pub lines: Vec<Bytes>,
    /// Lines of sub-agents that have files of their own: agent id and lines.
    pub agents: Vec<(String, Vec<Bytes>)>,
}

/// The sessions in the tool's own folder (`$CLAUDE_CONFIG_DIR`, else
/// `~/.claude`), by path. Empty when there is none.
#[must_use]
pub fn find_sessions() -> Vec<PathBuf> {
    let folder = match std::env::var_os("CLAUDE_CONFIG_DIR") {
        Some(folder) if !folder.is_empty() => Some(PathBuf::from(folder)),
        _ => std::env::home_dir().map(|home| home.join(".claude")),
    };
    folder.map_or_else(Vec::new, |folder| find_sessions_in(&folder))
}

/// The sessions below a configuration folder, by path.
#[must_use]
pub fn find_sessions_in(folder: &Path) -> Vec<PathBuf> {
    let mut sessions: Vec<_> = entries(&folder.join("projects"))
        .iter()
        .flat_map(|project| entries(project))
        .filter(|file| is_lines(file) && !is_agent(file) && file.is_file())
        .collect();
    sessions.sort();
    sessions
}

/// What a folder holds; nothing when it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    entries.flatten().map(|entry| entry.path()).collect()
}

/// All files of a folder and, so many levels down, of its folders.
fn files_below(folder: &Path, levels: usize) -> Vec<PathBuf> {
    let (folders, mut files): (Vec<_>, Vec<_>) =
        entries(folder).into_iter().partition(|path| path.is_dir());
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

/// Reads a session's file and those of its sub-agents.
///
/// # Errors
/// [`SessionFault`] names the file, and the line if one was at fault.
pub fn read_session(path: &Path) -> Result<Session, SessionFault> {
    let unnamed = || SessionFault::Unnamed {
        path: path.to_owned(),
    };
    let id = stem(path).ok_or_else(unnamed)?.to_owned();
    let mut left = SESSION_BYTES_MAX;
    let mut session = Session {
        lines: read_lines(path, &mut left)?,
        id,
        agents: Vec::new(),
    };
    let own_folder = path.with_extension("").join("subagents");
    let mut files = files_below(&own_folder, AGENT_FOLDERS_MAX);
    // Older versions kept them beside the sessions.
    let beside = path.parent().map(entries).unwrap_or_default();
    files.extend(beside.into_iter().filter(|file| is_agent(file)));
    files.retain(|file| is_lines(file) && is_agent(file));
    files.sort();
    for file in files {
        // A file beside it may be another session's.
        let mut left_after = left;
        let lines = read_lines(&file, &mut left_after)?;
        let inside = file.starts_with(&own_folder);
        let ours = || {
            let first = lines.first().map(SessionLine::read);
            first.is_some_and(|line| line.text_of("sessionId") == session.id)
        };
        if inside || ours() {
            let agent = stem(&file).unwrap_or_default();
            let agent = agent.trim_start_matches("agent-").to_owned();
            session.agents.push((agent, lines));
            left = left_after;
        }
    }
    Ok(session)
}

/// The lines of a file. `left` is how many bytes the session may still have.
fn read_lines(path: &Path, left: &mut usize) -> Result<Vec<Bytes>, SessionFault> {
    let source = LineSource::open(path, |_| {}).map_err(|error| SessionFault::Read {
        path: path.to_owned(),
        error,
    })?;
    let mut lines = Vec::new();
    for (line, text) in source {
        let text = text.map_err(|fault| SessionFault::Line {
            path: path.to_owned(),
            line,
            fault,
        })?;
        // A line takes a little beside its text.
        let bytes = text.len() + size_of::<Bytes>();
        *left = left
            .checked_sub(bytes)
            .ok_or_else(|| SessionFault::TooLarge {
                path: path.to_owned(),
                max: SESSION_BYTES_MAX,
            })?;
        lines.push(text);
    }
    Ok(lines)
}

/// Converts a session: first itself, then its sub-contexts, which name it as
/// their parent and so must be appended after it. Odd lines are no error: they
/// are kept, and come back as notes.
///
/// # Errors
/// [`SessionFault::Branch`] when a branch could not be named.
pub fn import_session(session: &Session) -> Result<Vec<ImportedConversation>, SessionFault> {
    let read = |lines: &[Bytes]| lines.iter().map(SessionLine::read).collect();
    let lines: Vec<SessionLine> = read(&session.lines);
    let (own, mut chains) = line::split_chains(lines);
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

/// A name that no other side chain of the session has.
fn distinct(names: &mut HashMap<String, usize>, agent: &str) -> String {
    let mut name = agent.to_owned();
    while let Some(count) = names.get_mut(&name) {
        *count += 1;
        name = format!("{agent}-{count}");
    }
    names.insert(name.clone(), 1);
    name
}

/// Ids are file names, so they are nearly always short.
fn shorter_id(id: &str) -> String {
    if id.len() <= crate::domain::limits::SHORT_TEXT_BYTES_MAX {
        return id.to_owned();
    }
    blake3::hash(id.as_bytes()).to_string()
}

#[cfg(test)]
mod tests;
