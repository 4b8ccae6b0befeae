//! The input of a Claude Code hook: JSON on standard input that names the session's transcript.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use directories::BaseDirs;
use serde::Deserialize;

use super::super::error::{ClientError, Exit};

/// Maximum size of a hook's input, in bytes.
const GIVEN_BYTES_MAX: u64 = 16 << 20;

#[derive(Deserialize)]
struct HookInput {
    transcript_path: PathBuf,
}

/// Returns the session's files: its transcript and those of its agents.
///
/// # Errors
/// If the input names no transcript.
pub(crate) fn files(given: impl Read) -> Result<Vec<PathBuf>, ClientError> {
    let mut text = Vec::new();
    given
        .take(GIVEN_BYTES_MAX)
        .read_to_end(&mut text)
        .map_err(|error| none(&error))?;
    let given: HookInput = serde_json::from_slice(&text).map_err(|error| none(&error))?;
    let transcript = from_home(given.transcript_path);
    let mut files = Vec::new();
    match fs::metadata(&transcript) {
        Ok(file) if file.is_file() => files.push(transcript.clone()),
        Ok(_) => return Err(wrong(&transcript, "is not a file")),
        // A session that ended before its first message has no transcript.
        Err(_) if transcript.parent().is_some_and(Path::is_dir) => {}
        Err(_) => return Err(wrong(&transcript, "is in a folder that does not exist")),
    }
    let of_session = transcript.with_extension("");
    if of_session != transcript && of_session.is_dir() {
        files.push(of_session);
    }
    Ok(files)
}

/// Expands `~`, because no shell has done so.
fn from_home(path: PathBuf) -> PathBuf {
    let rest = path.strip_prefix("~").ok();
    let home = BaseDirs::new();
    match (rest, home) {
        (Some(rest), Some(home)) => home.home_dir().join(rest),
        _ => path,
    }
}

fn wrong(transcript: &Path, why: &str) -> ClientError {
    ClientError::Outcome {
        what: format!("the transcript {} {why}", transcript.display()),
        hint: "nothing was imported: check the `transcript_path` that the hook gets".into(),
        exit: Exit::Failed,
    }
}

fn none(error: &impl std::fmt::Display) -> ClientError {
    ClientError::Outcome {
        what: format!("the hook's standard input names no transcript: {error}"),
        hint: "--hook is for hooks of Claude Code, which pass JSON with `transcript_path`; \
               otherwise name files"
            .into(),
        exit: Exit::Failed,
    }
}

/// Changes the exit code for a hook. With exit code 2, Claude Code would not stop and would take
/// the error as an instruction.
pub(crate) fn mild(error: ClientError) -> ClientError {
    if error.exit() != Exit::Usage.into() {
        return error;
    }
    ClientError::Outcome {
        what: error.to_string(),
        hint: error.hint().unwrap_or_default(),
        exit: Exit::Failed,
    }
}

/// Returns the files that standard input names.
pub(crate) fn files_of_stdin() -> Result<Vec<PathBuf>, ClientError> {
    files(io::stdin().lock())
}

#[cfg(test)]
mod tests {
    use super::*;

    // A hook that exits with 2 keeps the agent from stopping, and passes it the error as an
    // instruction.
    #[test]
    fn hook_failure_is_not_a_usage_error() {
        let dir = tempfile::tempdir().unwrap();
        let transcript = dir.path().join("5d0c.jsonl");
        let given = format!(
            r#"{{"session_id": "5d0c", "transcript_path": {:?}, "hook_event_name": "Stop"}}"#,
            transcript.display().to_string()
        );
        assert_eq!(files(given.as_bytes()).unwrap(), Vec::<PathBuf>::new());
        std::fs::write(&transcript, "").unwrap();
        assert_eq!(
            files(given.as_bytes()).unwrap(),
            std::slice::from_ref(&transcript)
        );
        let agents = dir.path().join("5d0c");
        std::fs::create_dir(&agents).unwrap();
        assert_eq!(files(given.as_bytes()).unwrap(), [transcript, agents]);
        // A path that is not a file must be an error.
        let given = |path: &Path| format!(r#"{{"transcript_path": {path:?}}}"#);
        for wrong in [dir.path(), &dir.path().join("none/5d0c.jsonl")] {
            let error = mild(files(given(wrong).as_bytes()).unwrap_err());
            assert!(error.exit() == Exit::Failed.into(), "{error}");
        }
        let home = BaseDirs::new().unwrap().home_dir().to_owned();
        assert_eq!(from_home("~/a/b.jsonl".into()), home.join("a/b.jsonl"));
        assert_eq!(from_home("/a/~/b".into()), PathBuf::from("/a/~/b"));
        for wrong in ["", "{}", "[1]", "{\"transcript_path\": 3}"] {
            let error = mild(files(wrong.as_bytes()).unwrap_err());
            assert!(error.exit() == Exit::Failed.into(), "{wrong}");
        }
        let usage = ClientError::Usage {
            what: "x".into(),
            hint: "y".into(),
        };
        assert!(mild(usage).exit() == Exit::Failed.into());
    }
}
