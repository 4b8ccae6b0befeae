//! Errors of a command: the text for the user and the exit code for scripts. The messages of the
//! engine's own refusals are not here; they come with the gRPC status.

use std::{error::Error, io, net::SocketAddr, path::PathBuf, process::ExitCode};

use tonic::{Code, Status};
use tonic_types::StatusExt;

/// Exit codes, for `--help`.
pub const EXIT_CODES_HELP: &str = "\
Exit codes:
  0  success, including a search without hits
  1  failure
  2  invalid command line, query, id or name
  3  no such conversation, branch, call or revision
  4  refused: a rule, an expected revision or a budget forbids it
  5  the store is not available: another process has it, it is read-only, or the server
     cannot be reached
  6  the store is damaged
  7  a newer version of treering wrote the store
  130  interrupted (Ctrl-C)";

/// The exit code of a command, by meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// General failure.
    Failed = 1,
    /// The command line is not valid.
    Usage = 2,
    /// Something that was named does not exist.
    NotFound = 3,
    /// A rule of the store forbids it.
    Refused = 4,
    /// The store cannot be reached.
    Unavailable = 5,
    /// The store is damaged.
    Damaged = 6,
    /// A newer version wrote the store.
    Newer = 7,
    /// Interrupted by Ctrl-C: 128 + SIGINT, as shells report it.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The reader of our output closed it (`| head`). Not an error to the user.
    #[error("the reader closed the output")]
    OutputClosed,
    /// The output could not be written.
    #[error("cannot write the output: {0}")]
    Output(#[source] io::Error),
    /// The server, or the engine in this process, returned an error status.
    #[error("{}", innermost_message(.0))]
    Status(Box<Status>),
    /// Nothing answers at the server's address.
    #[error("cannot reach the server at {url}: {cause}")]
    Connect {
        /// The address that was tried.
        url: String,
        /// The cause, from the transport.
        cause: String,
    },
    /// Another process has the data folder open.
    #[error("data folder {} is in use by {holder}", .dir.display())]
    Locked {
        /// The folder.
        dir: PathBuf,
        /// The process that holds it.
        holder: String,
        /// The holder's gRPC address, if it is a server.
        server: Option<String>,
    },
    /// The data folder could not be opened.
    #[error("{cause}")]
    Open {
        /// The folder.
        dir: PathBuf,
        /// The cause, from the engine.
        cause: String,
        /// The exit code.
        exit: Exit,
    },
    /// The listen address is in use or not an address of this machine.
    #[error("cannot listen on {addr}: {cause}")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// The cause, from the system.
        cause: io::Error,
    },
    /// A file could not be read.
    #[error("cannot read {}: {cause}", .path.display())]
    ReadFile {
        /// The file.
        path: PathBuf,
        /// The cause, from the system.
        cause: io::Error,
    },
    /// The answer lacks a part that this command needs.
    #[error("the server's answer to {call} has no {part}")]
    Answer {
        /// The call.
        call: &'static str,
        /// The part that is missing or unreadable.
        part: &'static str,
    },
    /// Something that the command line names does not exist.
    #[error("{what}")]
    NotFound {
        /// What is missing.
        what: String,
        /// What to do.
        hint: String,
    },
    /// The command line contains a contradiction or an invalid value.
    #[error("{what}")]
    Usage {
        /// What is wrong.
        what: String,
        /// What to do.
        hint: String,
    },
    /// The command ran, and its outcome is a failure.
    #[error("{what}")]
    Outcome {
        /// The outcome.
        what: String,
        /// What to do.
        hint: String,
        /// The exit code.
        exit: Exit,
    },
}

impl From<Status> for ClientError {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::OutputClosed
        } else {
            Self::Output(error)
        }
    }
}

impl ClientError {
    /// Returns the exit code that scripts see.
    #[must_use]
    pub fn exit(&self) -> ExitCode {
        match self {
            Self::OutputClosed => ExitCode::SUCCESS,
            Self::Status(status) if reason(status) == NEWER_FORMAT => Exit::Newer.into(),
            Self::Status(status) if is_broken_connection(status) => Exit::Unavailable.into(),
            // Unlike other exhausted resources, a quota does not clear up in a moment.
            Self::Status(status) if is_over_quota(status) => Exit::Refused.into(),
            Self::Status(status) => status_exit(status.code()).into(),
            Self::Connect { .. } | Self::Locked { .. } => Exit::Unavailable.into(),
            Self::Open { exit, .. } | Self::Outcome { exit, .. } => (*exit).into(),
            Self::NotFound { .. } => Exit::NotFound.into(),
            Self::Usage { .. } => Exit::Usage.into(),
            Self::Output(_) | Self::Listen { .. } | Self::ReadFile { .. } | Self::Answer { .. } => {
                Exit::Failed.into()
            }
        }
    }

    /// True when a server gave no answer or an incomplete one, and may answer later.
    #[must_use]
    pub fn is_of_absent_server(&self) -> bool {
        match self {
            Self::Status(status) => {
                status.code() == Code::Unavailable || is_broken_connection(status)
            }
            Self::Connect { .. } | Self::Answer { .. } => true,
            _ => false,
        }
    }

    /// True when damaged projections caused the error; they can be rebuilt.
    #[must_use]
    pub fn is_damaged_projections(&self) -> bool {
        matches!(self, Self::Status(status) if reason(status) == VIEWS_DAMAGED)
    }

    /// Returns one line on what to do about the error.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            Self::OutputClosed | Self::Output(_) => return None,
            Self::Status(status) => return status_hint(status),
            Self::Connect { cause, .. } if cause.contains("certificate") => {
                "give the certificate of the server's CA with --ca FILE, and --client-cert and \
                 --client-key if the server requires a client certificate"
                    .into()
            }
            Self::Connect { .. } => "start a server with `treering serve`, or use --data DIR \
                                     instead of --server (or unset TREERING_SERVER)"
                .into(),
            Self::Locked {
                server: Some(url), ..
            } => format!("use the server that holds it: add `--server {url}`"),
            Self::Locked { holder, .. } => {
                let what = match holder.strip_prefix("process ") {
                    Some(pid) => format!("`ps -p {pid}` shows the process; "),
                    None => String::new(),
                };
                format!("{what}wait longer with --wait 1min, or use another folder with --data")
            }
            Self::Open { exit, dir, .. } => match exit {
                Exit::Damaged => {
                    "keep a copy of the folder, then put an older copy back, or copy the intact \
                     data with `treering salvage --to DIR`"
                        .into()
                }
                Exit::Newer => format!(
                    "use the version of treering that wrote it, or a newer one (this one is {})",
                    env!("CARGO_PKG_VERSION")
                ),
                _ => format!(
                    "check {} and its permissions, or use another folder with --data",
                    dir.display()
                ),
            },
            Self::Listen { .. } => {
                "choose another address with --listen (port 0 takes any free port)".into()
            }
            Self::ReadFile { cause, .. } if cause.kind() == io::ErrorKind::IsADirectory => {
                "this is a folder: name a file".into()
            }
            Self::ReadFile { .. } => "check the path and its permissions".into(),
            Self::Answer { .. } => {
                "client and server may have different versions: compare `treering --version` on \
                 both"
                    .into()
            }
            Self::NotFound { hint, .. } | Self::Usage { hint, .. } | Self::Outcome { hint, .. } => {
                hint.clone()
            }
        };
        Some(text)
    }
}

/// Maps a status code to an exit code. There is no wildcard arm, so that each code needs a
/// decision.
#[must_use]
pub fn status_exit(code: Code) -> Exit {
    match code {
        Code::NotFound => Exit::NotFound,
        Code::InvalidArgument | Code::OutOfRange => Exit::Usage,
        Code::AlreadyExists
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::PermissionDenied
        | Code::Unauthenticated => Exit::Refused,
        Code::Unavailable | Code::ResourceExhausted | Code::DeadlineExceeded => Exit::Unavailable,
        Code::DataLoss => Exit::Damaged,
        Code::Ok | Code::Cancelled | Code::Unknown | Code::Unimplemented | Code::Internal => {
            Exit::Failed
        }
    }
}

/// `ErrorInfo.reason` for a store that a newer version wrote.
const NEWER_FORMAT: &str = "NEWER_FORMAT";
/// `ErrorInfo.reason` for damaged projections.
const VIEWS_DAMAGED: &str = "VIEWS_DAMAGED";

/// Removes the index in the batch from a message, since users do not see a command's batch.
fn without_index(message: &str) -> &str {
    let rest = message.strip_prefix("event ").and_then(|rest| {
        let (index, rest) = rest.split_once(" of the batch: ")?;
        index
            .bytes()
            .all(|byte| byte.is_ascii_digit())
            .then_some(rest)
    });
    rest.unwrap_or(message)
}

/// Returns the message of a status; for a broken connection, the innermost cause.
fn innermost_message(status: &Status) -> String {
    if !is_broken_connection(status) {
        return without_index(status.message()).to_owned();
    }
    let mut cause: &dyn Error = status;
    while let Some(source) = cause.source() {
        cause = source;
    }
    format!("the connection to the server failed: {cause}")
}

/// Returns true if the status comes from the transport. A status from a server has no source here.
fn is_broken_connection(status: &Status) -> bool {
    status.source().is_some() && reason(status).is_empty()
}

/// Returns `ErrorInfo.reason`; empty when there is none.
#[must_use]
pub fn reason(status: &Status) -> String {
    let details = status.get_error_details();
    details
        .error_info()
        .map_or_else(String::new, |info| info.reason.clone())
}

/// True when the quota of the namespace is used up.
#[must_use]
pub fn is_over_quota(status: &Status) -> bool {
    reason(status) == "QUOTA_EXCEEDED"
}

/// Returns what to do about a status: the hint in its details, else one for its reason or code.
fn status_hint(status: &Status) -> Option<String> {
    if reason(status) == VIEWS_DAMAGED {
        let hint =
            "a server rebuilds them by itself: retry in a moment; otherwise run `treering rebuild`";
        return Some(hint.into());
    }
    if let Some(hint) = hint_in_details(status) {
        return Some(hint);
    }
    // Reasons for which the hint of the code alone would not help.
    let by_reason = match reason(status).as_str() {
        "NO_SPACE" => Some("free some space on the disk of the data folder, then retry"),
        "QUOTA_EXCEEDED" => Some(
            "`treering stats` shows the usage; `serve --quota` raises the quota, and `treering \
             erase` frees bytes",
        ),
        "READ_ONLY" => {
            Some("check the data folder's owner and mode, and the mount options of its file system")
        }
        "APPENDS_STOPPED" => Some("restart the server that holds the store; reads still work"),
        NEWER_FORMAT => Some("use the version of treering that wrote it, or a newer one"),
        "NOT_IN_CLUSTER" => Some("docs/CLUSTER.md lists what a cluster lacks"),
        "NO_EMBEDDER" => Some(
            "docs/MEANING.md says where to get a model; for a folder that no server holds, name it \
             in TREERING_EMBEDDER",
        ),
        "KEY_MISSING" => Some(
            "set TREERING_TOKEN or --token; `treering keys create` makes a key on the server's \
             data folder",
        ),
        "CERTIFICATE_UNKNOWN" => Some(
            "set TREERING_TOKEN or --token, or use a client certificate that has a key; `treering \
             keys ls` on the server's data folder lists their subjects",
        ),
        "KEY_MALFORMED" | "KEY_UNKNOWN" | "KEY_REVOKED" | "KEY_EXPIRED" => Some(
            "set TREERING_TOKEN or --token to a valid key; `treering keys ls` on the server's data \
             folder lists them",
        ),
        _ => None,
    };
    if let Some(hint) = by_reason {
        return Some(hint.into());
    }
    if is_broken_connection(status) {
        let hint = "a server with TLS has an https:// address and may require --client-cert and \
                    --client-key";
        return Some(hint.into());
    }
    let text = match status.code() {
        Code::NotFound => {
            "`treering ls` lists the conversations, `treering show` their branches and heads"
        }
        Code::AlreadyExists => "use another name or id, or append to the existing one",
        Code::FailedPrecondition | Code::Aborted => {
            "check the branch's current state with `treering log`, then retry"
        }
        Code::InvalidArgument | Code::OutOfRange => {
            "run the command with `--help` to see its options and examples"
        }
        Code::ResourceExhausted => "the store is busy: retry in a moment",
        Code::Unavailable => {
            "check that the server is running and that the address is right (https:// with TLS)"
        }
        Code::DeadlineExceeded => "retry, or check the server's load",
        Code::DataLoss => {
            "`treering verify` lists all damage; `treering salvage --to DIR` copies the intact data"
        }
        Code::Unimplemented => "the server is older than this command: update the server",
        _ => return None,
    };
    Some(text.into())
}

fn hint_in_details(status: &Status) -> Option<String> {
    let details = status.get_error_details();
    let bad_request = details.bad_request().and_then(|bad| {
        let violation = bad.field_violations.first()?;
        (!violation.description.is_empty())
            .then(|| format!("{}: {}", violation.field, violation.description))
    });
    let precondition = details.precondition_failure().and_then(|failure| {
        let violation = failure.violations.first()?;
        (!violation.description.is_empty()).then(|| violation.description.clone())
    });
    let retry = details.retry_info().and_then(|retry| {
        let delay = retry.retry_delay?;
        Some(format!("retry in {:.1} s", delay.as_secs_f32()))
    });
    // Skip a detail that only repeats the message.
    bad_request
        .or(precondition)
        .or(retry)
        .filter(|hint| !hint.contains(status.message()) && !status.message().contains(hint))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tonic_types::ErrorDetails;

    use super::*;

    /// Scripts tell "not found" from "refused" by the exit code alone, so each status must keep its
    /// own.
    #[test]
    fn each_grpc_status_has_its_exit_code() {
        for (code, exit) in [
            (Code::NotFound, Exit::NotFound),
            (Code::InvalidArgument, Exit::Usage),
            (Code::FailedPrecondition, Exit::Refused),
            (Code::Aborted, Exit::Refused),
            (Code::Unavailable, Exit::Unavailable),
            (Code::DataLoss, Exit::Damaged),
            (Code::Internal, Exit::Failed),
        ] {
            assert_eq!(status_exit(code), exit, "{code:?}");
        }
    }

    /// `treering log | head` must not print an error when head closes the pipe.
    #[test]
    fn closed_output_pipe_is_not_an_error() {
        let error = ClientError::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(matches!(error, ClientError::OutputClosed));
        assert_eq!(error.hint(), None);
    }

    /// The hint to retry in a moment does not help with a full disk, and the hint to look at the
    /// branch does not help with a stopped writer. Each error must have a hint that helps. It must
    /// not suggest a backup that may not exist.
    #[test]
    fn hints_fit_the_reason_of_the_error() {
        for (code, reason, word) in [
            (Code::ResourceExhausted, "NO_SPACE", "free some space"),
            (Code::FailedPrecondition, "READ_ONLY", "owner and mode"),
            (
                Code::FailedPrecondition,
                "APPENDS_STOPPED",
                "start the server",
            ),
            (Code::DataLoss, "DAMAGED", "treering salvage"),
        ] {
            let details =
                ErrorDetails::with_error_info(reason, "treering", HashMap::<String, String>::new());
            let status = Status::with_error_details(code, "it broke", details);
            let hint = ClientError::from(status).hint().unwrap();
            assert!(hint.contains(word), "{hint}");
        }
        for (exit, word) in [
            (Exit::Damaged, "treering salvage"),
            (Exit::Newer, env!("CARGO_PKG_VERSION")),
            (Exit::Failed, "permissions"),
        ] {
            let error = ClientError::Open {
                dir: "store".into(),
                cause: "it broke".into(),
                exit,
            };
            let hint = error.hint().unwrap();
            assert!(hint.contains(word), "{hint}");
            assert!(!hint.contains("backup"), "{hint}");
        }
    }

    /// A hint in the server's details replaces the default hint, unless it only repeats the
    /// message.
    #[test]
    fn server_hint_overrides_the_default_hint() {
        let mut details = ErrorDetails::new();
        details.add_bad_request_violation("query", "close the quotation mark");
        let status = Status::with_error_details(Code::InvalidArgument, "bad query", details);
        assert_eq!(
            ClientError::from(status).hint().as_deref(),
            Some("query: close the quotation mark")
        );
        let bare = Status::not_found("no conversation abc");
        assert!(
            ClientError::from(bare)
                .hint()
                .is_some_and(|h| h.contains("ls"))
        );
    }
}
