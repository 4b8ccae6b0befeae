//! Baselines that commit in groups as Treering's writer does: one thread takes the records that
//! arrived during the last commit, writes them, syncs once, and answers all callers.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    path::Path,
    sync::mpsc::{Receiver, Sender, channel},
    thread,
};

use bytes::Bytes;
use rusqlite::{Connection, params};
use tokio::sync::oneshot;
use uuid::Uuid;

use super::failed;
use treering_client::error::ClientError;

/// Maximum number of records in a group; more than ever wait at once.
const GROUP_MAX: usize = 16_384;

/// A record as a baseline stores it.
#[derive(Clone, Debug)]
pub struct Job {
    /// The conversation.
    pub conversation: Uuid,
    /// The revision in the conversation.
    pub revision: u64,
    /// The encoded body.
    pub body: Bytes,
}

type Answer = oneshot::Sender<Result<(), String>>;

/// The writer thread of a baseline. Cheap to clone. The thread ends when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Group(Sender<(Job, Answer)>);

impl Group {
    fn start(commit: impl FnMut(&[Job]) -> Result<(), String> + Send + 'static) -> Self {
        let (to, jobs) = channel();
        thread::spawn(move || commit_all(&jobs, commit));
        Self(to)
    }

    /// Starts a baseline that appends the bodies to a plain file and calls `fdatasync`.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn raw_file(path: &Path) -> Result<Self, ClientError> {
        let mut file = raw(path)?;
        let mut buffer = Vec::new();
        Ok(Self::start(move |jobs| {
            buffer.clear();
            for job in jobs {
                buffer.extend_from_slice(&job.body);
            }
            append_raw(&mut file, &buffer).map_err(|error| error.to_string())
        }))
    }

    /// Starts a baseline on SQLite: one indexed row per event, one transaction per group.
    ///
    /// # Errors
    /// When the database cannot be created.
    pub fn sqlite(path: &Path) -> Result<Self, ClientError> {
        let mut connection = events_database(path)?;
        Ok(Self::start(move |jobs| {
            insert(&mut connection, jobs).map_err(|error| error.to_string())
        }))
    }

    /// Stores a record and returns once it is durable.
    ///
    /// # Errors
    /// When the baseline fails.
    pub async fn append(&self, job: Job) -> Result<(), ClientError> {
        let (sender, answer) = oneshot::channel();
        let gone = |_| failed("the baseline's writer", "it has stopped");
        self.0
            .send((job, sender))
            .map_err(|_| failed("the baseline's writer", "it has stopped"))?;
        let done = answer.await.map_err(gone)?;
        done.map_err(|error| failed("the baseline's writer", error))
    }
}

fn commit_all(
    jobs: &Receiver<(Job, Answer)>,
    mut commit: impl FnMut(&[Job]) -> Result<(), String>,
) {
    while let Ok((first, answer)) = jobs.recv() {
        let mut group = vec![first];
        let mut answers = vec![answer];
        while group.len() < GROUP_MAX
            && let Ok((job, answer)) = jobs.try_recv()
        {
            group.push(job);
            answers.push(answer);
        }
        let done = commit(&group);
        for answer in answers {
            // The caller may have stopped waiting; this is not a failure.
            let _ = answer.send(done.clone());
        }
    }
}

/// Opens a file for appending.
///
/// # Errors
/// When it cannot be opened.
pub fn raw(path: &Path) -> Result<File, ClientError> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map_err(|error| failed("making the raw file", error))
}

/// Appends bytes, and returns once they are durable.
///
/// # Errors
/// Errors of the operating system.
pub fn append_raw(file: &mut File, bytes: &[u8]) -> std::io::Result<()> {
    file.write_all(bytes)?;
    file.sync_data()
}

/// Creates a database for events: WAL, synchronous=FULL, indexed by conversation and revision.
///
/// # Errors
/// Errors of SQLite.
pub fn events_database(path: &Path) -> Result<Connection, ClientError> {
    let open = || {
        let connection = Connection::open(path)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.execute_batch(
            "CREATE TABLE IF NOT EXISTS event (
                 position INTEGER PRIMARY KEY,
                 id BLOB NOT NULL,
                 conversation BLOB NOT NULL,
                 branch INTEGER NOT NULL,
                 revision INTEGER NOT NULL,
                 kind INTEGER NOT NULL,
                 recorded_at INTEGER NOT NULL,
                 body BLOB NOT NULL);
             CREATE INDEX IF NOT EXISTS by_revision ON event (conversation, revision);",
        )?;
        Ok::<_, rusqlite::Error>(connection)
    };
    open().map_err(|error| failed("opening SQLite", error))
}

/// Stores records in one transaction.
///
/// # Errors
/// Errors of SQLite.
pub fn insert(connection: &mut Connection, jobs: &[Job]) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    {
        let mut insert = transaction.prepare_cached(
            "INSERT INTO event (id, conversation, branch, revision, kind, recorded_at, body)
             VALUES (?1, ?2, 1, ?3, 26, ?4, ?5)",
        )?;
        for job in jobs {
            let id = treering::domain::EventId::generate().0;
            let recorded_at = id.get_timestamp().map_or(0, |time| time.to_unix().0);
            insert.execute(params![
                id.as_bytes(),
                job.conversation.as_bytes(),
                job.revision.cast_signed(),
                recorded_at.cast_signed(),
                &job.body[..],
            ])?;
        }
    }
    transaction.commit()
}
