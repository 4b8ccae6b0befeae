//! Reads sessions of opencode from JSON files: the folder `storage` of older versions, and the
//! output of `opencode export`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use serde_json::{Value, json};

use super::super::{
    format::Format,
    session::ToolSession,
    source::{LineSource, is_inside},
    whole_lines::{SESSION_BYTES_MAX, SessionFault, document, open_found},
};

/// A session under construction: its own fields, and its messages with their parts.
pub(super) struct SessionDocument {
    pub(super) name: String,
    pub(super) session: Value,
    pub(super) messages: Vec<Value>,
}

impl SessionDocument {
    /// Returns the session as lines, without a last answer that is still being written; `file` is
    /// its file.
    pub(super) fn session(mut self, file: &Path) -> ToolSession {
        self.messages.sort_by_cached_key(|message| {
            let info = &message["info"];
            let created = info["time"]["created"].as_u64().unwrap_or_default();
            (created, info["id"].as_str().unwrap_or_default().to_owned())
        });
        let mut unfinished = Vec::new();
        if self.messages.last().is_some_and(is_unfinished) {
            self.messages.pop();
            unfinished.push(file.to_owned());
        }
        self.messages.iter_mut().for_each(sort_fields);
        let first = json!({"session": self.session});
        let lines = std::iter::once(&first).chain(&self.messages);
        ToolSession {
            format: Format::OpenCode,
            name: self.name,
            lines: lines.map(|line| Bytes::from(line.to_string())).collect(),
            unfinished,
        }
    }
}

/// Sorts the fields of a message and of its parts, because their order differs between the forms.
fn sort_fields(message: &mut Value) {
    if let Some(info) = message["info"].as_object_mut() {
        info.sort_keys();
    }
    for part in message["parts"].as_array_mut().into_iter().flatten() {
        if let Some(part) = part.as_object_mut() {
            part.sort_keys();
        }
    }
}

/// Returns true for an answer that has neither ended nor failed.
fn is_unfinished(message: &Value) -> bool {
    let info = &message["info"];
    info["role"] == "assistant" && info["time"]["completed"].is_null() && info["error"].is_null()
}

/// Reads a JSON file: an export, or the file of a session in `storage`, whose messages are in
/// folders next to it.
///
/// # Errors
/// [`SessionFault`] names the file.
pub fn read_file(path: &Path, source: LineSource) -> Result<ToolSession, SessionFault> {
    let mut left = SESSION_BYTES_MAX;
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    let name = stem.unwrap_or_default().to_owned();
    let Some(value) = document(path, source, &mut left)? else {
        return Ok(ToolSession {
            format: Format::OpenCode,
            name,
            lines: Vec::new(),
            unfinished: vec![path.to_owned()],
        });
    };
    let whole = match value["messages"].as_array() {
        Some(messages) => SessionDocument {
            name,
            session: value["info"].clone(),
            messages: messages.clone(),
        },
        None => SessionDocument {
            messages: stored_messages(path, &value, &mut left)?,
            session: value,
            name,
        },
    };
    Ok(whole.session(path))
}

/// Reads the message files of a stored session, with their parts.
fn stored_messages(
    file: &Path,
    session: &Value,
    left: &mut usize,
) -> Result<Vec<Value>, SessionFault> {
    let id = session["id"].as_str().unwrap_or_default();
    let Some(places) = SessionPaths::of(file, id) else {
        return Ok(Vec::new());
    };
    let mut messages = Vec::new();
    for info in places.messages(left)? {
        let message = info["id"].as_str().unwrap_or_default().to_owned();
        let parts = places.parts(&message, left)?;
        messages.push(json!({"info": info, "parts": parts}));
    }
    Ok(messages)
}

/// Locations of a session's messages and their parts.
struct SessionPaths {
    /// The folder that contains everything.
    storage: PathBuf,
    messages: PathBuf,
    parts: PathBuf,
}

impl SessionPaths {
    /// Finds the locations from the session's file: `session/PROJECT/ID.json`, or in older versions
    /// `session/info/ID.json`.
    fn of(file: &Path, id: &str) -> Option<Self> {
        // The id is used as a folder name, so it must not be a path.
        let is_plain = !id.is_empty() && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_plain {
            return None;
        }
        let folder = file.parent()?;
        let sessions = folder.parent()?;
        Some(match folder.file_name()? == "info" {
            true => Self {
                storage: sessions.to_owned(),
                messages: sessions.join("message").join(id),
                parts: sessions.join("part").join(id),
            },
            false => {
                let storage = sessions.parent()?;
                Self {
                    storage: storage.to_owned(),
                    messages: storage.join("message").join(id),
                    parts: storage.join("part"),
                }
            }
        })
    }

    fn messages(&self, left: &mut usize) -> Result<Vec<Value>, SessionFault> {
        objects(&self.messages, &self.storage, left)
    }

    fn parts(&self, message: &str, left: &mut usize) -> Result<Vec<Value>, SessionFault> {
        match message.contains(['/', '\\', '.']) || message.is_empty() {
            true => Ok(Vec::new()),
            false => objects(&self.parts.join(message), &self.storage, left),
        }
    }
}

/// Returns the JSON files of a folder, sorted by name and so by time, because the tool's ids grow.
/// Skips pipes, and links that lead out of `storage`.
fn objects(folder: &Path, storage: &Path, left: &mut usize) -> Result<Vec<Value>, SessionFault> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) if is_inside(folder, storage) => entries.flatten(),
        _ => return Ok(Vec::new()),
    };
    let is_of_it = |entry: &fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_symlink() => {
            let path = entry.path();
            path.is_file() && is_inside(&path, storage)
        }
        kind => kind.is_ok_and(|kind| kind.is_file()),
    };
    let entries = entries.filter(is_of_it);
    let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
    files.retain(|file| {
        file.extension()
            .is_some_and(|extension| extension == "json")
    });
    files.sort();
    let mut objects = Vec::new();
    for file in files {
        let source = open_found(&file)?;
        // A file that is still being written is read by the next import.
        objects.extend(document(&file, source, left)?);
    }
    Ok(objects)
}

/// Returns true for the file of a message or a part whose session is in the tool's folder: it is
/// read with the session.
#[must_use]
pub fn is_read_with_session(path: &Path) -> bool {
    let name = |path: &Path| {
        path.file_name()
            .and_then(|name| name.to_str())
            .map(str::to_owned)
    };
    let starts =
        name(path).is_some_and(|name| name.starts_with("msg_") || name.starts_with("prt_"));
    starts
        && path.ancestors().skip(1).take(4).any(|folder| {
            matches!(name(folder).as_deref(), Some("message" | "part"))
                && folder.parent().is_some_and(|storage| {
                    storage.join("session").is_dir() || storage.join("info").is_dir()
                })
        })
}

/// Returns the session files to which the file of a message or a part may belong.
#[must_use]
pub fn sessions_of(path: &Path) -> Vec<PathBuf> {
    let entries = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let name = |path: &Path| {
        path.file_name()
            .and_then(|name| name.to_str())
            .map(str::to_owned)
    };
    // The folder of a message has the name of its session; in newer versions, the folder of a part
    // does not.
    let session = path
        .ancestors()
        .filter_map(name)
        .find(|name| name.starts_with("ses_"));
    let mut found = Vec::new();
    for storage in path.ancestors().skip(1).take(5) {
        let folders = entries(&storage.join("session")).into_iter();
        for folder in folders.chain([storage.join("info")]) {
            found.extend(entries(&folder));
        }
    }
    found.retain(|file| {
        let is_it = |id: &String| file.file_stem().is_some_and(|stem| stem == id.as_str());
        let is_file = file
            .extension()
            .is_some_and(|extension| extension == "json");
        is_file && session.as_ref().is_none_or(is_it)
    });
    found
}

/// Returns true for a file that is named like the tool's databases.
#[must_use]
pub fn is_named_as_database(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with("opencode") && name.ends_with(".db"))
}
