//! Reads and converts files on a separate thread, while the store writes.
//!
//! Content that was imported before is recognised by a hash of all of it, which is the idempotency
//! key of its last append. If the store knows the key, the content is not converted.

use std::{fmt, io, path::Path, sync::Arc, thread};

use bytes::Bytes;
use indicatif::ProgressBar;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::find::Candidate;
use treering_client::conversation_writer::batches;
use treering_domain::Namespace;
use treering_import::{
    ImportedConversation,
    claude_code::{self, SessionFault},
    format::{self, Format},
    openai_chat, opencode,
    session::ToolSession,
    source::{LineFault, LineSource},
};
use treering_proto::pb;

/// Maximum number of conversations that wait for the store.
const WAITING_MAX: usize = 32;
/// Maximum number of KiB that wait or are being appended. A larger conversation is appended alone.
/// Even a small compressed file may contain very large conversations.
const WAITING_KIB_MAX: u32 = 256 << 10;
/// Maximum number of lines in one query to the store.
const ASKED_MAX: usize = 512;
/// Maximum number of bytes of lines in one query.
const ASKED_BYTES_MAX: usize = 4 << 20;
/// Hexadecimal digits of the content hash in the key: 160 bits.
const KEY_HASH_CHARS: usize = 40;

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceLine {
    /// The file, as it was named.
    pub(crate) file: String,
    /// The line, from 1; 0 for the whole file.
    pub(crate) line: u64,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            line => write!(f, "{}:{line}", self.file),
        }
    }
}

/// A conversation, ready to be appended.
#[derive(Debug)]
pub(crate) struct ParsedConversation {
    /// Where it was found.
    pub(crate) origin: SourceLine,
    /// The converted conversation.
    pub(crate) imported: ImportedConversation,
    /// The idempotency key of the whole content; empty for a sub-context.
    pub(crate) key: String,
    /// The appends, in order.
    pub(crate) batches: Vec<Vec<pb::NewEvent>>,
    /// Estimated memory, in bytes.
    pub(crate) bytes: usize,
    /// Its sub-contexts. They refer to it, so they are appended after it.
    pub(crate) children: Vec<ParsedConversation>,
    /// Permit for the memory that this conversation uses. It is released on drop.
    pub(crate) room: Option<OwnedSemaphorePermit>,
}

impl ParsedConversation {
    /// Size in KiB, including sub-contexts.
    fn kib(&self) -> u32 {
        let children = self.children.iter().map(|child| child.bytes);
        let bytes = self.bytes + children.sum::<usize>();
        u32::try_from(bytes / 1024).map_or(WAITING_KIB_MAX, |kib| kib.clamp(1, WAITING_KIB_MAX))
    }
}

/// An item from the reader.
#[derive(Debug)]
pub(crate) enum FeedItem {
    /// The format of a file.
    File(Format),
    /// A file that was found in a folder and does not have a wanted format.
    PassedOver(SourceLine, Format),
    /// A file that was found in a folder and is not read, and the reason.
    LeftOut(SourceLine, &'static str),
    /// An empty file.
    Blank(SourceLine),
    /// A conversation.
    Conversation(Box<ParsedConversation>),
    /// A conversation that was imported before, unchanged.
    Known,
    /// A line that is not a conversation.
    BadLine(SourceLine, String),
    /// A last line that is still being written.
    Unfinished(SourceLine),
    /// A file that cannot be read completely, or has another format.
    BadFile(SourceLine, String),
}

/// Asks the store which idempotency keys it knows.
pub(crate) type KeyLookup = Box<dyn Fn(Vec<String>) -> Vec<bool> + Send>;

/// Conversations in the order in which they are read.
#[derive(Debug)]
pub(crate) struct Feed {
    found: mpsc::Receiver<FeedItem>,
}

impl Feed {
    /// Starts to read the files, in order. `format` is the required format; `None` accepts all
    /// supported formats. With `ask`, content that was imported before is skipped.
    pub(crate) fn start(
        format: Option<Format>,
        files: Vec<Candidate>,
        bar: ProgressBar,
        namespace: Namespace,
        ask: Option<KeyLookup>,
    ) -> Self {
        let (found, receiver) = mpsc::channel(WAITING_MAX);
        let room = Arc::new(Semaphore::new(WAITING_KIB_MAX as usize));
        let to = Sender {
            found,
            namespace,
            room,
            ask,
        };
        // The thread ends after the last file, or when the receiver is gone.
        thread::spawn(move || {
            for file in &files {
                if read_file(format, file, &bar, &to).is_err() {
                    return;
                }
            }
        });
        Self { found: receiver }
    }

    /// Returns the next item, or `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<FeedItem> {
        self.found.recv().await
    }
}

/// The receiver is gone.
struct ReceiverClosed;

/// Where conversations are sent, and their namespace.
struct Sender {
    found: mpsc::Sender<FeedItem>,
    namespace: Namespace,
    room: Arc<Semaphore>,
    ask: Option<KeyLookup>,
}

impl Sender {
    fn ready(
        &self,
        origin: SourceLine,
        imported: ImportedConversation,
        key: String,
    ) -> ParsedConversation {
        ready(origin, imported.in_namespace(&self.namespace), key)
    }

    /// Returns, for each key, whether its content was imported before.
    fn known(&self, keys: &[String]) -> Vec<bool> {
        let known = self.ask.as_ref().map(|ask| ask(keys.to_vec()));
        let known = known.filter(|known| known.len() == keys.len());
        known.unwrap_or_else(|| vec![false; keys.len()])
    }

    fn send(&self, mut found: FeedItem) -> Result<(), ReceiverClosed> {
        if let FeedItem::Conversation(ready) = &mut found {
            let room = Arc::clone(&self.room).acquire_many_owned(ready.kib());
            ready.room = Some(futures::executor::block_on(room).map_err(|_| ReceiverClosed)?);
        }
        self.found.blocking_send(found).map_err(|_| ReceiverClosed)
    }
}

fn name(file: &Path) -> String {
    if file.as_os_str() == "-" {
        "(standard input)".into()
    } else {
        file.display().to_string()
    }
}

fn read_file(
    asked: Option<Format>,
    file: &Candidate,
    bar: &ProgressBar,
    to: &Sender,
) -> Result<(), ReceiverClosed> {
    let origin = SourceLine {
        file: name(&file.path),
        line: 0,
    };
    if let Some(why) = file.why_left_out() {
        return to.send(FeedItem::LeftOut(origin, why));
    }
    let counted = bar.clone();
    let opened = file.open(move |bytes| counted.inc(bytes));
    let told = opened.and_then(|mut source| {
        let (format, is_blank) = format_of(&mut source)?;
        Ok((format, is_blank, source))
    });
    let (format, is_blank, source) = match told {
        Ok(told) => told,
        Err(error) => return to.send(FeedItem::BadFile(origin, error.to_string())),
    };
    if is_blank {
        return to.send(FeedItem::Blank(origin));
    }
    if format == Format::Empty {
        // The file is still being written.
        return to.send(FeedItem::Unfinished(origin));
    }
    // The format of a database depends on its tables.
    let format = match format {
        Format::Binary if opencode::is_its_database(&file.path) => Format::OpenCode,
        format => format,
    };
    let is_wanted = format.is_imported() && asked.is_none_or(|asked| asked == format);
    if !is_wanted && file.is_named {
        return to.send(FeedItem::BadFile(origin, refusal(asked, format)));
    }
    if !is_wanted {
        return to.send(FeedItem::PassedOver(origin, format));
    }
    to.send(FeedItem::File(format))?;
    match format {
        Format::OpenaiChat => openai_chat_file(&origin, source, to),
        Format::ClaudeCode => claude_code_file(&file.path, origin, source, to),
        Format::OpenCode => open_code_file(&file.path, &origin, source, to),
        format => {
            let session = ToolSession::read(format, &file.path, source);
            session_of_file(&origin, session, to)
        }
    }
}

/// Returns the format of a file, and whether the file is empty.
fn format_of(source: &mut LineSource) -> io::Result<(Format, bool)> {
    let mut format = Format::Empty;
    let mut is_blank = true;
    for bytes_max in [format::HEAD_BYTES, format::LONG_HEAD_BYTES] {
        let head = source.head(bytes_max)?;
        let is_all = head.len() < bytes_max;
        is_blank = is_all && head.iter().all(u8::is_ascii_whitespace);
        format = format::of_head(&head, is_all);
        if is_all || format.is_imported() {
            break;
        }
    }
    Ok((format, is_blank))
}

/// Returns why a file is not imported, and what to do.
pub(crate) fn refusal(asked: Option<Format>, format: Format) -> String {
    match asked {
        _ if format == Format::ChatDocument => format!(
            "it holds {format}: openai-chat has one conversation per line, {{\"id\", \"messages\": \
             [...]}}"
        ),
        Some(asked) if format.is_imported() => format!(
            "it holds {format}, not {}: omit --format, or use --format {}",
            asked.name(),
            format.name()
        ),
        _ => {
            let formats = Format::IMPORTED.map(Format::name).join(", ");
            format!("it holds {format}; supported formats are {formats}")
        }
    }
}

/// Returns the idempotency key of a conversation's content, from its hash.
fn key_of(format: Format, hash: &blake3::Hash) -> String {
    let hash = hash.to_hex();
    format!("import/{}/{}", format.name(), &hash[..KEY_HASH_CHARS])
}

/// Number, text and key of a line.
type NumberedLine = (u64, Bytes, String);

fn openai_chat_file(
    origin: &SourceLine,
    mut source: LineSource,
    to: &Sender,
) -> Result<(), ReceiverClosed> {
    let mut waiting: Vec<NumberedLine> = Vec::new();
    let mut bytes = 0;
    let at = |line| SourceLine {
        line,
        ..origin.clone()
    };
    while let Some((number, line)) = source.next() {
        match line {
            Ok(line) if !source.last_line_ended() && !is_whole(&line) => {
                to.send(FeedItem::Unfinished(at(number)))?;
            }
            Ok(line) => {
                bytes += line.len();
                let key = key_of(Format::OpenaiChat, &blake3::hash(&line));
                waiting.push((number, line, key));
                if waiting.len() >= ASKED_MAX || bytes >= ASKED_BYTES_MAX {
                    bytes = 0;
                    openai_chat_lines(origin, std::mem::take(&mut waiting), to)?;
                }
            }
            Err(fault) => {
                openai_chat_lines(origin, std::mem::take(&mut waiting), to)?;
                let what = fault.to_string();
                to.send(match fault {
                    LineFault::TooLong { .. } => FeedItem::BadLine(at(number), what),
                    LineFault::Read(_) => FeedItem::BadFile(at(number), what),
                })?;
            }
        }
    }
    openai_chat_lines(origin, waiting, to)
}

/// Returns false if the line is an incomplete JSON text.
fn is_whole(line: &[u8]) -> bool {
    match serde_json::from_slice::<serde::de::IgnoredAny>(line) {
        Ok(_) => true,
        Err(error) => !error.is_eof(),
    }
}

fn openai_chat_lines(
    origin: &SourceLine,
    lines: Vec<NumberedLine>,
    to: &Sender,
) -> Result<(), ReceiverClosed> {
    if lines.is_empty() {
        return Ok(());
    }
    let keys: Vec<String> = lines.iter().map(|(_, _, key)| key.clone()).collect();
    let known = to.known(&keys);
    for ((line, text, key), known) in lines.into_iter().zip(known) {
        let origin = SourceLine {
            line,
            ..origin.clone()
        };
        if known {
            to.send(FeedItem::Known)?;
            continue;
        }
        let found = match openai_chat::import_line(&text) {
            Ok(imported) => FeedItem::Conversation(Box::new(to.ready(origin, imported, key))),
            Err(fault) => FeedItem::BadLine(origin, fault.to_string()),
        };
        to.send(found)?;
    }
    Ok(())
}

/// Reads a session as one conversation, plus one for each of its sub-agents.
fn claude_code_file(
    file: &Path,
    origin: SourceLine,
    source: LineSource,
    to: &Sender,
) -> Result<(), ReceiverClosed> {
    let session = match claude_code::read_session_from(file, source) {
        Ok(session) => session,
        Err(fault) => return to.send(FeedItem::BadFile(origin, fault.to_string())),
    };
    for unfinished in &session.unfinished {
        let file = name(unfinished);
        to.send(FeedItem::Unfinished(SourceLine { file, line: 0 }))?;
    }
    // Only the first import sets the title and the times, so a session without any of them is left
    // for a later import.
    if !session.has_begun() {
        let is_told = !session.unfinished.is_empty();
        return match is_told {
            true => Ok(()),
            false => to.send(FeedItem::Unfinished(origin)),
        };
    }
    let key = key_of(Format::ClaudeCode, &session.content_hash());
    if to.known(std::slice::from_ref(&key)) == [true] {
        return to.send(FeedItem::Known);
    }
    let mut conversations = match claude_code::import_session(&session) {
        Ok(conversations) => conversations.into_iter(),
        Err(fault) => return to.send(FeedItem::BadFile(origin, fault.to_string())),
    };
    let Some(session) = conversations.next() else {
        return Ok(());
    };
    let mut session = to.ready(origin.clone(), session, key);
    session.children = conversations
        .map(|child| to.ready(origin.clone(), child, String::new()))
        .collect();
    to.send(FeedItem::Conversation(Box::new(session)))
}

/// Reads the file of one session, or a database of many.
fn open_code_file(
    file: &Path,
    origin: &SourceLine,
    source: LineSource,
    to: &Sender,
) -> Result<(), ReceiverClosed> {
    if !opencode::is_its_database(file) {
        return session_of_file(origin, opencode::read_file(file, source), to);
    }
    let mut sent = Ok(());
    let read = opencode::read_database(file, |session| {
        sent = session_of_file(origin, session, to);
        sent.is_ok()
    });
    sent?;
    match read {
        Ok(()) => Ok(()),
        Err(fault) => to.send(FeedItem::BadFile(origin.clone(), fault.to_string())),
    }
}

fn session_of_file(
    origin: &SourceLine,
    session: Result<ToolSession, SessionFault>,
    to: &Sender,
) -> Result<(), ReceiverClosed> {
    let failed = |fault: SessionFault| FeedItem::BadFile(origin.clone(), fault.to_string());
    let session = match session {
        Ok(session) => session,
        Err(fault) => return to.send(failed(fault)),
    };
    for unfinished in &session.unfinished {
        let file = name(unfinished);
        to.send(FeedItem::Unfinished(SourceLine { file, line: 0 }))?;
    }
    if session.lines.is_empty() {
        return Ok(());
    }
    let key = key_of(session.format, &session.content_hash());
    if to.known(std::slice::from_ref(&key)) == [true] {
        return to.send(FeedItem::Known);
    }
    to.send(match session.import() {
        Ok(imported) => {
            let ready = to.ready(origin.clone(), imported, key);
            FeedItem::Conversation(Box::new(ready))
        }
        Err(fault) => failed(fault),
    })
}

fn ready(origin: SourceLine, imported: ImportedConversation, key: String) -> ParsedConversation {
    let batches = batches(imported.events.clone());
    let bytes = batches.iter().flatten().map(size).sum();
    ParsedConversation {
        origin,
        imported,
        key,
        batches,
        bytes,
        children: Vec::new(),
        room: None,
    }
}

fn size(event: &pb::NewEvent) -> usize {
    prost::Message::encoded_len(event)
}
