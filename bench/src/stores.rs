//! Stores to measure, and ways to fill them.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use futures::StreamExt;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::{failed, payload::Payloads};
use treering::{
    domain::{AppendCommand, AppendOutcome, ConversationId, Namespace, NewEvent},
    engine::{AppendFuture, Engine, OpenOptions, PackingMode, SearchRequest},
    import::{openai_chat, plan, source::LineSource},
    proto::{
        envelope::new_event_to_pb,
        pb::{self, append_stream_response::Outcome},
    },
};
use treering_client::{connect::Connection, error::ClientError};

/// Appends in flight while a store is filled.
const UNDER_WAY: usize = 64;
/// Limits of one append of the importer: events and bytes.
const BATCH_EVENTS_MAX: usize = 4_000;
const BATCH_BYTES_MAX: usize = 8 << 20;

/// Opens a store in this process.
///
/// # Errors
/// When it cannot be opened.
pub async fn open(dir: &Path) -> Result<Engine, ClientError> {
    Engine::open(OpenOptions::new(dir))
        .await
        .map_err(|error| failed("opening a store", error))
}

/// Opens a store that is packed when it is closed, as in `treering import`.
///
/// # Errors
/// When it cannot be opened.
pub async fn open_dense(dir: &Path) -> Result<Engine, ClientError> {
    let options = OpenOptions {
        packing: PackingMode::WhenClosed,
        ..OpenOptions::new(dir)
    };
    Engine::open(options)
        .await
        .map_err(|error| failed("opening a store", error))
}

/// Rebuilds the projections or the index. Returns the processed events per second.
///
/// # Errors
/// When the rebuild fails.
pub async fn rebuilt(engine: &Engine, views: bool, index: bool) -> Result<f64, ClientError> {
    let started = Instant::now();
    let mut items = engine.rebuild(views, index);
    while let Some(item) = items.next().await {
        item.map_err(|error| failed("rebuilding", error))?;
    }
    Ok(engine.head().offset as f64 / started.elapsed().as_secs_f64())
}

/// Appends one batch and waits for it.
///
/// # Errors
/// When it is refused.
pub async fn append(engine: &Engine, events: Vec<NewEvent>) -> Result<AppendOutcome, ClientError> {
    engine
        .append(command(events))
        .await
        .map_err(|error| failed("appending", error))
}

fn command(events: Vec<NewEvent>) -> AppendCommand {
    AppendCommand::new(Namespace::default(), events)
}

/// Appends batches, many of them concurrently.
pub struct Filler<'a> {
    engine: &'a Engine,
    waiting: Vec<AppendFuture>,
}

impl<'a> Filler<'a> {
    /// Returns a filler of this store.
    pub fn new(engine: &'a Engine) -> Self {
        Self {
            engine,
            waiting: Vec::new(),
        }
    }

    /// Submits a batch.
    ///
    /// # Errors
    /// When a batch is refused.
    pub async fn append(&mut self, events: Vec<NewEvent>) -> Result<(), ClientError> {
        let outcome = self.engine.submit(command(events)).await;
        self.waiting
            .push(outcome.map_err(|error| failed("appending", error))?);
        if self.waiting.len() >= UNDER_WAY {
            self.settle().await?;
        }
        Ok(())
    }

    /// Waits for all submitted batches.
    ///
    /// # Errors
    /// When a batch was refused.
    pub async fn settle(&mut self) -> Result<(), ClientError> {
        for outcome in self.waiting.drain(..) {
            outcome.await.map_err(|error| failed("appending", error))?;
        }
        Ok(())
    }
}

/// Creates `number` conversations of one event each.
///
/// # Errors
/// When an append is refused.
pub async fn conversations(
    engine: &Engine,
    number: usize,
) -> Result<Vec<ConversationId>, ClientError> {
    let ids: Vec<_> = (0..number).map(|_| ConversationId::generate()).collect();
    let mut filler = Filler::new(engine);
    for id in &ids {
        filler.append(vec![super::payload::created(*id)]).await?;
    }
    filler.settle().await?;
    Ok(ids)
}

/// Waits until searches see all stored events.
///
/// # Errors
/// When the index fails.
pub async fn indexed(engine: &Engine) -> Result<(), ClientError> {
    let mut request = SearchRequest::new(Namespace::default(), "anything", 1);
    request.at_least = Some(engine.head());
    engine
        .search(request)
        .await
        .map_err(|error| failed("waiting for the index", error))?;
    Ok(())
}

/// The amounts that an import added.
#[derive(Clone, Copy, Debug, Default)]
pub struct ImportSummary {
    /// Bytes of the lines, with line ends.
    pub bytes: u64,
    /// Conversations.
    pub conversations: u64,
    /// Events.
    pub events: u64,
}

/// Returns the events of each conversation in a file. Skips lines that are not conversations.
///
/// # Errors
/// When the file cannot be opened.
pub fn conversations_of(
    file: &Path,
) -> Result<impl Iterator<Item = Vec<NewEvent>> + use<>, ClientError> {
    let source = LineSource::open(file, |_| {}).map_err(|cause| ClientError::ReadFile {
        path: file.to_owned(),
        cause,
    })?;
    let lines = source.filter_map(|(_, line)| line.ok());
    Ok(lines.filter_map(|line| Some(openai_chat::import_line(&line).ok()?.events)))
}

/// Imports files of conversations, as `treering import` does. Skips lines that are not
/// conversations.
///
/// # Errors
/// When a file cannot be read or an append is refused.
pub async fn import(engine: &Engine, files: &[PathBuf]) -> Result<ImportSummary, ClientError> {
    let (to, mut lines) = mpsc::channel(32);
    let files = files.to_owned();
    let reading = tokio::task::spawn_blocking(move || {
        for file in &files {
            let source = LineSource::open(file, |_| {}).map_err(|cause| ClientError::ReadFile {
                path: file.clone(),
                cause,
            })?;
            for (_, line) in source {
                let line = line.map_err(|error| failed("reading a trajectory", error))?;
                let bytes = line.len() as u64 + 1;
                let found = openai_chat::import_line(&line).ok();
                if to.blocking_send((bytes, found)).is_err() {
                    return Ok(());
                }
            }
        }
        Ok::<_, ClientError>(())
    });
    let mut sum = ImportSummary::default();
    let mut filler = Filler::new(engine);
    while let Some((bytes, found)) = lines.recv().await {
        let Some(found) = found else { continue };
        sum.bytes += bytes;
        sum.conversations += 1;
        sum.events += found.events.len() as u64;
        let batches = plan::batches(found.events, BATCH_EVENTS_MAX, BATCH_BYTES_MAX);
        // A later batch may refer to revisions of an earlier one.
        let refers_back = batches.len() > 1;
        for batch in batches {
            filler.append(batch).await?;
            if refers_back {
                filler.settle().await?;
            }
        }
    }
    filler.settle().await?;
    reading
        .await
        .map_err(|error| failed("reading trajectories", error))??;
    Ok(sum)
}

/// Streams new conversations of `each` events to a server, at least `events` in all, and waits for
/// all answers.
///
/// # Errors
/// When an append is refused or the server goes away.
pub async fn stream_to(
    server: &Connection,
    payloads: &Payloads,
    events: u64,
    each: usize,
) -> Result<(), ClientError> {
    let appends = events.div_ceil(each as u64);
    let (to, requests) = mpsc::channel(UNDER_WAY);
    let payloads = payloads.clone();
    let sending = tokio::spawn(async move {
        for _ in 0..appends {
            let request = request(&payloads.conversation(each - 1));
            if to.send(request).await.is_err() {
                return;
            }
        }
    });
    let mut answers = server
        .events()
        .append_stream(ReceiverStream::new(requests))
        .await?
        .into_inner();
    while let Some(answer) = answers.next().await {
        if let Some(Outcome::Error(error)) = answer?.outcome {
            return Err(failed("appending", error.message));
        }
    }
    sending
        .await
        .map_err(|error| failed("sending appends", error))
}

/// Returns a request to append events of one conversation.
#[must_use]
pub fn request(events: &[NewEvent]) -> pb::AppendRequest {
    pb::AppendRequest {
        conversation_id: events
            .first()
            .map(|event| event.conversation.to_string())
            .unwrap_or_default(),
        events: events.iter().map(new_event_to_pb).collect(),
        ..Default::default()
    }
}

/// Waits until the server's index is complete, and then for `rest`, so that background work ends.
///
/// # Errors
/// When the server does not answer.
pub async fn idle(server: &Connection, rest: Duration) -> Result<(), ClientError> {
    let offset = |position: Option<pb::Position>| position.map_or(0, |position| position.offset);
    loop {
        let stats = server
            .admin()
            .stats(pb::StatsRequest::default())
            .await?
            .into_inner();
        if offset(stats.index_reached) >= offset(stats.head) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    tokio::time::sleep(rest).await;
    Ok(())
}
