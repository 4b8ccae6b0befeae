//! Reads files and converts what they hold, on a thread of its own: reading,
//! decompressing and converting go on while the store writes.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use indicatif::ProgressBar;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::Format;
use crate::{
    codec::{envelope::new_event_to_pb, pb},
    domain::Namespace,
    importer::{self, ImportedConversation, claude_code, openai_chat, source::LineSource},
};

/// Conversations that wait for the store.
const WAITING_MAX: usize = 32;
/// The same in KiB, with those that are being appended: one above it still goes,
/// alone. A small compressed file may hold very large ones.
const WAITING_KIB_MAX: u32 = 256 << 10;
/// Events of one append: a large conversation takes several.
const BATCH_EVENTS_MAX: usize = 4_000;
/// Bytes of one append.
const BATCH_BYTES_MAX: usize = 8 << 20;

/// Where something was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The file, as it was named.
    pub file: String,
    /// The line, from 1; 0: the file as a whole.
    pub line: u64,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            line => write!(f, "{}:{line}", self.file),
        }
    }
}

/// A conversation, ready to be appended.
#[derive(Debug)]
pub struct Ready {
    /// Where it was found.
    pub origin: Origin,
    /// What it holds.
    pub imported: ImportedConversation,
    /// The same as appends, to be made one after the other.
    pub batches: Vec<Vec<pb::NewEvent>>,
    /// About how much memory it takes, in bytes.
    pub bytes: usize,
    /// Its sub-contexts: they name it, so they are appended after it.
    pub children: Vec<Ready>,
    /// Its part of what may wait, given back with it.
    pub room: Option<OwnedSemaphorePermit>,
}

impl Ready {
    /// With its sub-contexts.
    fn kib(&self) -> u32 {
        let children = self.children.iter().map(|child| child.bytes);
        let bytes = self.bytes + children.sum::<usize>();
        u32::try_from(bytes / 1024).map_or(WAITING_KIB_MAX, |kib| kib.clamp(1, WAITING_KIB_MAX))
    }
}

/// What reading brings.
#[derive(Debug)]
pub enum Found {
    /// A conversation.
    Conversation(Box<Ready>),
    /// A line that is none.
    BadLine(Origin, String),
    /// A file that cannot be read, or not to its end.
    BadFile(Origin, String),
}

/// Conversations as they are read.
#[derive(Debug)]
pub struct Feed {
    found: mpsc::Receiver<Found>,
}

impl Feed {
    /// Starts to read the files, one after the other.
    #[must_use]
    pub fn start(
        format: Format,
        files: Vec<PathBuf>,
        bar: ProgressBar,
        namespace: Namespace,
    ) -> Self {
        let (found, receiver) = mpsc::channel(WAITING_MAX);
        let room = Arc::new(Semaphore::new(WAITING_KIB_MAX as usize));
        let to = Sender {
            found,
            namespace,
            room,
        };
        // It ends with the files, or when nobody listens any more.
        thread::spawn(move || {
            for file in &files {
                let read = match format {
                    Format::OpenaiChat => openai_chat_file(file, &bar, &to),
                    Format::ClaudeCode => claude_code_file(file, &bar, &to),
                };
                if read.is_err() {
                    return;
                }
            }
        });
        Self { found: receiver }
    }

    /// What comes next; none at the end.
    pub async fn next(&mut self) -> Option<Found> {
        self.found.recv().await
    }
}

/// Nobody listens any more.
struct Gone;

/// Where conversations go, and into which namespace.
struct Sender {
    found: mpsc::Sender<Found>,
    namespace: Namespace,
    room: Arc<Semaphore>,
}

impl Sender {
    fn ready(&self, origin: Origin, imported: ImportedConversation) -> Ready {
        ready(origin, imported.in_namespace(&self.namespace))
    }
}

fn send(to: &Sender, mut found: Found) -> Result<(), Gone> {
    if let Found::Conversation(ready) = &mut found {
        let room = Arc::clone(&to.room).acquire_many_owned(ready.kib());
        ready.room = Some(futures::executor::block_on(room).map_err(|_| Gone)?);
    }
    to.found.blocking_send(found).map_err(|_| Gone)
}

fn name(file: &Path) -> String {
    if file.as_os_str() == "-" {
        "(standard input)".into()
    } else {
        file.display().to_string()
    }
}

fn openai_chat_file(file: &Path, bar: &ProgressBar, to: &Sender) -> Result<(), Gone> {
    let file_name = name(file);
    let origin = |line| Origin {
        file: file_name.clone(),
        line,
    };
    let counted = bar.clone();
    let lines = match LineSource::open(file, move |bytes| counted.inc(bytes)) {
        Ok(lines) => lines,
        Err(error) => return send(to, Found::BadFile(origin(0), error.to_string())),
    };
    for (number, line) in lines {
        let origin = origin(number);
        let found = match line {
            Ok(line) => match openai_chat::import_line(&line) {
                Ok(imported) => Found::Conversation(Box::new(to.ready(origin, imported))),
                Err(fault) => Found::BadLine(origin, fault.to_string()),
            },
            Err(fault @ importer::source::LineFault::TooLong { .. }) => {
                Found::BadLine(origin, fault.to_string())
            }
            Err(fault @ importer::source::LineFault::Read(_)) => {
                Found::BadFile(origin, fault.to_string())
            }
        };
        send(to, found)?;
    }
    Ok(())
}

/// A session is one conversation, and one for each of its sub-agents.
fn claude_code_file(file: &Path, bar: &ProgressBar, to: &Sender) -> Result<(), Gone> {
    let origin = Origin {
        file: name(file),
        line: 0,
    };
    let converted =
        claude_code::read_session(file).and_then(|session| claude_code::import_session(&session));
    bar.inc(fs::metadata(file).map_or(0, |meta| meta.len()));
    let mut conversations = match converted {
        Ok(conversations) => conversations.into_iter(),
        Err(fault) => return send(to, Found::BadFile(origin, fault.to_string())),
    };
    let Some(session) = conversations.next() else {
        return Ok(());
    };
    let mut session = to.ready(origin.clone(), session);
    session.children = conversations
        .map(|child| to.ready(origin.clone(), child))
        .collect();
    send(to, Found::Conversation(Box::new(session)))
}

fn ready(origin: Origin, imported: ImportedConversation) -> Ready {
    let batches = batches(imported.events.clone());
    let bytes = batches.iter().flatten().map(size).sum();
    Ready {
        origin,
        imported,
        batches,
        bytes,
        children: Vec::new(),
        room: None,
    }
}

fn size(event: &pb::NewEvent) -> usize {
    prost::Message::encoded_len(event)
}

/// Events as appends, to be made one after the other.
#[must_use]
pub fn batches(events: Vec<crate::domain::NewEvent>) -> Vec<Vec<pb::NewEvent>> {
    importer::plan::batches(events, BATCH_EVENTS_MAX, BATCH_BYTES_MAX)
        .into_iter()
        .map(|batch| batch.iter().map(new_event_to_pb).collect())
        .collect()
}
