//! Errors: why PostgreSQL cannot store the log, or did not run a statement.

use std::{error::Error, fmt::Write, io, path::PathBuf, sync::Arc};

use tokio_postgres::error::SqlState;
use treering_domain::with_causes as with_causes_of;
use treering_log::LogError;
use treering_objects::ObjectError;

/// Classes of SQLSTATEs that end by themselves: connections, rollbacks of transactions, resources
/// and the operator's interventions. A full disk has its own error.
const TRANSIENT_CLASSES: [&str; 4] = ["08", "40", "53", "57"];
/// SQLSTATEs of other classes that end by themselves: the server is not the primary any more, a
/// lock was not available.
const TRANSIENT_STATES: [&str; 2] = ["25006", "55P03"];
/// SQLSTATEs of a connection that no retry helps: the class of authentication, and a database that
/// does not exist.
const REJECTED_CLASS: &str = "28";
const REJECTED_STATE: &str = "3D000";

/// Why an operation on PostgreSQL failed. No text contains a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostgresError {
    /// The connection URL cannot be used.
    #[error(
        "the PostgreSQL URL cannot be used: {what}. Its form is \
             postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=verify-full"
    )]
    Url {
        /// What is wrong with it.
        what: &'static str,
    },
    /// The CA certificates cannot be read.
    #[error("cannot read CA certificates from {path}: {what}", path = path.display())]
    Certificates {
        /// The file, or the system's store.
        path: PathBuf,
        /// What happened.
        what: String,
    },
    /// No server that accepts writes could be reached.
    #[error("cannot connect to PostgreSQL at {target}: {what}. Only a primary is used")]
    Connect {
        /// Hosts and database.
        target: String,
        /// What happened.
        what: String,
    },
    /// A server was reached and does not let this program in.
    #[error(
        "PostgreSQL at {target} refuses the connection: {what}. Check the user, the password and \
         the database in the URL"
    )]
    Rejected {
        /// Hosts and database.
        target: String,
        /// What the server said, or which host name is unknown.
        what: String,
    },
    /// The database holds no log.
    #[error("the database at {target} has no Treering log; create its schema first")]
    NoLog {
        /// Hosts and database.
        target: String,
    },
    /// A newer version of Treering created or upgraded the log.
    #[error(
        "the {what} of the log in PostgreSQL has version {version}, and this program supports up \
         to {supported}; use the version of Treering that the other nodes run"
    )]
    NewerVersion {
        /// The schema, or the format of frames.
        what: &'static str,
        /// The version found.
        version: i32,
        /// The newest version that this program knows.
        supported: i32,
    },
    /// The tables are those of an earlier version of Treering.
    #[error(
        "the schema of the log in PostgreSQL has version {version}, and this program needs \
         {supported}: create its schema again as its owner, which upgrades the tables in place"
    )]
    OlderSchema {
        /// The version found.
        version: i32,
        /// The version that this program needs.
        supported: i32,
    },
    /// A store is being moved in.
    #[error(
        "a store is being moved into this cluster: run `treering cluster import` again until it \
         ends. Nodes start afterwards"
    )]
    Importing,
    /// A store cannot be moved in.
    #[error("nothing was changed: {what}")]
    Occupied {
        /// What is in the way, and what to do.
        what: String,
    },
    /// The number of shards is out of range, or not that of the log.
    #[error("{what}. The number of shards is fixed when the log is created")]
    Shards {
        /// What is wrong.
        what: String,
    },
    /// The database holds a different log from the one that was opened.
    #[error(
        "the database at {target} holds a different log than before; check where its host name \
         points, and restart to open that log"
    )]
    OtherLog {
        /// Hosts and database.
        target: String,
    },
    /// A setting of the server could cause the loss of acknowledged events.
    #[error("PostgreSQL has {setting} = '{value}': {why}. {cure}")]
    Setting {
        /// Its name.
        setting: &'static str,
        /// Its value.
        value: String,
        /// What goes wrong with it.
        why: &'static str,
        /// What to do.
        cure: &'static str,
    },
    /// The role may not erase or seal.
    #[error(
        "the role of this node may not change and delete frames, large bodies and segments, which \
         erasing and sealing need. Run `treering cluster init URL --role ROLE` as the owner of the \
         tables"
    )]
    NotGranted,
    /// The object storage of sealed segments cannot be used now.
    #[error("the object storage of sealed segments cannot be used: {what}")]
    Objects {
        /// What happened.
        what: String,
    },
    /// The server refused a statement, which therefore did nothing.
    #[error("PostgreSQL refused a statement: {message} (SQLSTATE {code})")]
    Refused {
        /// The SQLSTATE.
        code: String,
        /// The server's message.
        message: String,
    },
    /// The connection was lost before a statement was sent.
    #[error("the connection to PostgreSQL was lost: {what}; try again")]
    Lost {
        /// What happened.
        what: String,
    },
    /// It is not known whether a commit reached the synchronous standby, or happened at all.
    #[error(
        "PostgreSQL did not confirm a commit: {what}. Check that the primary and its synchronous \
         standby run and are connected"
    )]
    Unconfirmed {
        /// What happened instead.
        what: String,
    },
    /// Nothing was sent, because the server does not answer what was sent before.
    #[error("PostgreSQL is busy: {what}")]
    Busy {
        /// What was waited for.
        what: String,
    },
}

impl PostgresError {
    pub(crate) fn from_server(error: &tokio_postgres::error::DbError) -> Self {
        // Leave out the detail, which may quote rows.
        Self::Refused {
            code: error.code().code().to_owned(),
            message: error.message().to_owned(),
        }
    }

    /// Returns true if the same operation can succeed later without a change of URL, role, settings
    /// or tables: no primary can be reached, or it is busy, starting or stopping.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Connect { .. }
            | Self::Lost { .. }
            | Self::Unconfirmed { .. }
            | Self::Objects { .. }
            | Self::Busy { .. } => true,
            Self::Refused { code, .. } => {
                TRANSIENT_STATES.contains(&code.as_str())
                    || TRANSIENT_CLASSES
                        .iter()
                        .any(|class| code.starts_with(class))
            }
            _ => false,
        }
    }

    pub(crate) fn of_objects(error: &ObjectError) -> Self {
        Self::Objects {
            what: with_causes_of(error).to_string(),
        }
    }

    /// Converts the error of an operation that had no effect to an error of the log.
    pub(crate) fn while_doing(self, doing: &'static str) -> LogError {
        let full = SqlState::DISK_FULL.code();
        match &self {
            Self::Refused { code, .. } if code == full => LogError::NoSpace { doing },
            error if error.is_transient() => LogError::Unavailable {
                doing,
                what: error.to_string(),
            },
            _ => LogError::Io {
                doing,
                source: Arc::new(io::Error::other(self)),
            },
        }
    }
}

/// Returns true if a server rejected a connection in a way that no retry helps.
pub(crate) fn is_rejection(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|refused| {
        let code = refused.code().code();
        code.starts_with(REJECTED_CLASS) || code == REJECTED_STATE
    })
}

/// Returns true if the error of a connection is that its host name has no address.
pub(crate) fn is_unknown_host(what: &str) -> bool {
    what.contains(UNKNOWN_HOST)
}

/// How the standard library reports a host name without an address.
const UNKNOWN_HOST: &str = "failed to lookup address information";

/// Formats an error of the driver with its causes, which its own `Display` leaves out.
pub(crate) fn with_causes(error: &tokio_postgres::Error) -> String {
    if let Some(refused) = error.as_db_error() {
        return format!("{} (SQLSTATE {})", refused.message(), refused.code().code());
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let _ = write!(text, ": {next}");
        cause = next.source();
    }
    text
}
