//! The place where an exported session is written for its agent, and the command that continues it.

use std::{env, path::PathBuf};

use time::{OffsetDateTime, macros::format_description};

use super::super::{error::ClientError, init::options::quoted};
use treering_import::{claude_code, codex, exporter::ResumeTarget, format::Format, opencode, pi};

/// A file for an agent.
pub(super) struct SessionPlace {
    pub(super) folder: PathBuf,
    name: String,
    /// The environment variable that overrides the folder.
    pub(super) variable: &'static str,
    /// The command that continues the session.
    pub(super) command: String,
}

impl SessionPlace {
    pub(super) fn file(&self) -> PathBuf {
        self.folder.join(&self.name)
    }
}

/// Returns the place of a session.
///
/// # Errors
/// [`ClientError::NotFound`] if the account has no home folder.
pub(super) fn place(
    agent: Format,
    resumed: &ResumeTarget<'_>,
) -> Result<SessionPlace, ClientError> {
    let session = resumed.session;
    let in_folder = |folder: Option<PathBuf>, name: String, variable, command: String| {
        let folder = folder.ok_or_else(|| ClientError::NotFound {
            what: "this account has no home folder".into(),
            hint: format!("set {variable}, or omit --resume and write to a file"),
        })?;
        Ok(SessionPlace {
            folder,
            name,
            variable,
            command,
        })
    };
    match agent {
        Format::ClaudeCode => in_folder(
            claude_code::config_folder()
                .map(|folder| claude_code::project_folder(&folder, resumed.cwd)),
            format!("{session}.jsonl"),
            "CLAUDE_CONFIG_DIR",
            format!("claude --resume {session}"),
        ),
        Format::Codex => {
            let now = OffsetDateTime::now_utc();
            let format = format_description!("[year]-[month]-[day]T[hour]-[minute]-[second]");
            let now = now.format(format).unwrap_or_default();
            let day = now.split('T').next().unwrap_or_default();
            let current = codex::sessions_folders().into_iter().next();
            in_folder(
                current.map(|folder| folder.join(day.replace('-', "/"))),
                format!("rollout-{now}-{session}.jsonl"),
                "CODEX_HOME",
                format!("codex resume {session}"),
            )
        }
        Format::Pi => in_folder(
            pi::project_folder(resumed.cwd),
            format!("{session}.jsonl"),
            "PI_CODING_AGENT_DIR",
            format!("pi --session {session}"),
        ),
        // These agents import a file from any folder into their own store.
        Format::OpenCode => {
            let name = format!("treering-{session}.json");
            let file = env::temp_dir().join(&name);
            let id = opencode::session_id(resumed);
            let command = format!(
                "opencode import {} && opencode --session {id}",
                quoted(&file.display().to_string())
            );
            in_folder(Some(env::temp_dir()), name, "TMPDIR", command)
        }
        _ => {
            let name = format!("treering-{session}.jsonl");
            let file = env::temp_dir().join(&name);
            let command = format!(
                "gemini --session-file {}",
                quoted(&file.display().to_string())
            );
            in_folder(Some(env::temp_dir()), name, "TMPDIR", command)
        }
    }
}
