//! Takes calls from the queue and appends them to the store, one at a time.
//!
//! The store is opened for a call, and closed when no call has come for a moment, so that other
//! commands can use the data folder. While the store is unavailable, the call is tried again.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use treering_client::{
    ClientError, ConnectOptions, Connection, ConversationWriter, FolderOptions, WriteRefusal,
};
use treering_domain::{Namespace, StoredEvent};
use treering_engine::{OpenMode, PackingMode};
use treering_import::{
    model_call::{self, CallSource, Continues, ModelCall, StepDigest, StoredHistory, import_call},
    plan,
};

use super::{
    exchange::RecordedCall,
    queue::{CallCounts, QueuedExchange},
};

/// Time without calls after which the store is closed.
const IDLE: Duration = Duration::from_millis(500);
/// Pauses between attempts while the store is unavailable: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Attempts to append to a conversation to which other writers append.
const TRIES: u32 = 5;
/// Attempts to record a call that the store refuses.
const REFUSALS_MAX: u32 = 3;
/// Maximum number of conversations that are examined for a call: those of its session, or those
/// with its beginning.
const CANDIDATES_MAX: usize = 16;
/// Maximum number of answers and conversations that are remembered.
const REMEMBERED_MAX: usize = 65_536;

/// How the recorder opens a data folder.
pub const FOLDER: FolderOptions = FolderOptions {
    mode: OpenMode::Create,
    packing: PackingMode::Usually,
    fresh_projections: false,
    with_meaning: false,
};

/// Records calls.
pub(crate) struct Recorder {
    options: ConnectOptions,
    store: Option<Connection>,
    /// By the provider's id of an answer: the source id of its conversation.
    answers: HashMap<String, String>,
    /// By source id: the digest of its first prompt.
    beginnings: HashMap<String, StepDigest>,
    counts: Arc<CallCounts>,
}

/// Why a call is not in the store.
enum RecordFault {
    /// The store is unavailable.
    Away(ClientError),
    /// The store refuses it.
    Refused(String),
}

impl From<WriteRefusal> for RecordFault {
    fn from(refusal: WriteRefusal) -> Self {
        match refusal {
            WriteRefusal::All(error) => Self::Away(error),
            WriteRefusal::One(why) => Self::Refused(why),
            WriteRefusal::Moved => Self::Refused("other writers keep appending to it".into()),
        }
    }
}

/// The conversation of a call.
struct FoundConversation {
    source_id: String,
    stored: Vec<StoredEvent>,
}

impl Recorder {
    pub(crate) fn new(options: ConnectOptions, counts: Arc<CallCounts>) -> Self {
        Self {
            options,
            store: None,
            answers: HashMap::new(),
            beginnings: HashMap::new(),
            counts,
        }
    }

    /// Records calls until the queue is closed and empty.
    pub(crate) async fn run(mut self, mut queue: mpsc::Receiver<QueuedExchange>) {
        loop {
            let next = match self.store.is_some() {
                true => match timeout(IDLE, queue.recv()).await {
                    Ok(next) => next,
                    Err(_) => {
                        self.close().await;
                        continue;
                    }
                },
                false => queue.recv().await,
            };
            let Some(QueuedExchange { exchange, .. }) = next else {
                break;
            };
            let read = tokio::task::spawn_blocking(move || exchange.read()).await;
            match read {
                Ok(Some(call)) => self.record(&call).await,
                Ok(None) | Err(_) => {
                    self.counts.refused.add_one();
                    tracing::debug!("a call is not recorded: it cannot be read");
                }
            }
            self.counts.done.add_one();
        }
        self.close().await;
    }

    async fn close(&mut self) {
        if let Some(store) = self.store.take()
            && let Err(error) = store.close().await
        {
            tracing::warn!(%error, "the store was closed with an error");
        }
    }

    /// Records a call, and tries again as long as the store is unavailable.
    async fn record(&mut self, call: &RecordedCall) {
        let mut pause = PAUSE_MIN;
        let mut tries = 0;
        loop {
            tries += 1;
            match self.record_once(call, tries).await {
                Ok(()) => {
                    self.counts.recorded.add_one();
                    return;
                }
                // A connection that broke off looks like a refusal.
                Err(RecordFault::Refused(why)) if tries < REFUSALS_MAX => {
                    tracing::debug!(why, "recording a call is retried");
                    self.close().await;
                    sleep(pause).await;
                }
                Err(RecordFault::Refused(why)) => {
                    self.counts.refused.add_one();
                    return tracing::warn!(why, "a call is not recorded");
                }
                Err(RecordFault::Away(error)) => {
                    let waiting = self.counts.waiting();
                    if tries == 1 {
                        tracing::warn!(%error, waiting, "store unavailable; calls are queued");
                    } else {
                        tracing::debug!(%error, waiting, "the store is still unavailable");
                    }
                    self.close().await;
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    async fn record_once(
        &mut self,
        recorded: &RecordedCall,
        tries: u32,
    ) -> Result<(), RecordFault> {
        if self.store.is_none() {
            let opened = Connection::open(&self.options, FOLDER).await;
            self.store = Some(opened.map_err(RecordFault::Away)?);
        }
        let Some(store) = self.store.take() else {
            return Ok(());
        };
        let done = self.append(&store, recorded, tries > 1).await;
        self.store = Some(store);
        done
    }

    async fn append(
        &mut self,
        store: &Connection,
        recorded: &RecordedCall,
        is_retry: bool,
    ) -> Result<(), RecordFault> {
        let writer = ConversationWriter::new(store);
        let call = &recorded.call;
        let mut tries = 1;
        loop {
            let found = self.find(store, recorded).await?;
            let history = StoredHistory::read(&found.stored);
            let place = history.place(call);
            self.remember(call, &found, &history);
            // The last attempt may have succeeded, although its answer was lost.
            if is_retry && history.has_call(call, &place) {
                return Ok(());
            }
            let context = CallSource {
                source_id: found.source_id.clone(),
                session: recorded.session.clone().unwrap_or_default(),
                meta: recorded.meta.clone(),
                sent_at: recorded.sent_at,
                answered_at: recorded.answered_at,
                is_interrupted: recorded.is_interrupted,
            };
            let imported = import_call(call, &context, &history, &place)
                .map_err(|fault| RecordFault::Refused(fault.to_string()))?;
            let imported = imported.in_namespace(store.namespace());
            let plan = plan(&found.stored, &imported);
            let id = imported.conversation.to_string();
            let next = found.stored.len() as u64 + 1;
            let events = plan.events.len();
            match writer.append_in_steps(&id, next, plan.events, None).await {
                Ok(()) => {
                    let branches = plan.parted.len();
                    tracing::debug!(conversation = id, events, branches, "a call is recorded");
                    return Ok(());
                }
                Err(WriteRefusal::Moved) if tries < TRIES => tries += 1,
                Err(refusal) => return Err(refusal.into()),
            }
        }
    }

    /// Finds the conversation of a call: the one that its client names, or the one with the same
    /// beginning. A call that belongs to neither starts a new one.
    async fn find(
        &mut self,
        store: &Connection,
        recorded: &RecordedCall,
    ) -> Result<FoundConversation, RecordFault> {
        let call = &recorded.call;
        let beginning = call.beginning();
        let session = recorded.session.as_deref();
        let names = match &call.continues {
            Continues::Answer(id) => self.candidates_of_answer(session, id),
            Continues::Nothing | Continues::Latest => candidates(session, beginning),
        };
        let last = names.len() - 1;
        for (index, source_id) in names.into_iter().enumerate() {
            let known = self.beginnings.get(&source_id);
            let repeats = call.continues == Continues::Nothing;
            if repeats && known.is_some_and(|known| *known != beginning) && index < last {
                continue;
            }
            let stored = stored(store, &source_id).await?;
            let history = StoredHistory::read(&stored);
            if let Some(beginning) = history.beginning() {
                self.beginnings.insert(source_id.clone(), beginning);
            }
            let belongs = match &call.continues {
                Continues::Answer(id) => history.has_answer(id),
                Continues::Latest => true,
                Continues::Nothing => history.is_empty() || history.place(call).belongs(),
            };
            if belongs || index == last {
                return Ok(FoundConversation { source_id, stored });
            }
        }
        Err(RecordFault::Refused("it has no conversation".into()))
    }

    /// Returns the source ids of conversations that may have an answer. The last one is for a new
    /// conversation that begins after the answer, in case the answer was not recorded.
    fn candidates_of_answer(&self, session: Option<&str>, id: &str) -> Vec<String> {
        let known = self.answers.get(id).cloned();
        let session = session.map(str::to_owned);
        let other = match &session {
            Some(session) => format!("{session}/{id}"),
            None => id.to_owned(),
        };
        known.into_iter().chain(session).chain([other]).collect()
    }

    /// Remembers where the answer is, for requests that continue it.
    fn remember(
        &mut self,
        call: &ModelCall,
        found: &FoundConversation,
        history: &StoredHistory<'_>,
    ) {
        if self.answers.len() >= REMEMBERED_MAX {
            self.answers.clear();
        }
        if self.beginnings.len() >= REMEMBERED_MAX {
            self.beginnings.clear();
        }
        if !call.answer_id.is_empty() {
            let source_id = found.source_id.clone();
            self.answers.insert(call.answer_id.clone(), source_id);
        }
        if history.is_empty() {
            let beginning = call.beginning();
            self.beginnings.insert(found.source_id.clone(), beginning);
        }
    }
}

async fn stored(store: &Connection, source_id: &str) -> Result<Vec<StoredEvent>, RecordFault> {
    let namespace: &Namespace = store.namespace();
    let id = model_call::conversation(source_id, namespace).to_string();
    let writer = ConversationWriter::new(store);
    writer.stored(&id).await.map_err(RecordFault::from)
}

/// Returns the source ids of conversations to which a call may belong. The first conversation of a
/// session has the session's id. The id of any other one, such as that of a sub-agent, also
/// contains a digest of its beginning.
fn candidates(session: Option<&str>, beginning: StepDigest) -> Vec<String> {
    let beginning = beginning.hex();
    let (first, other) = match session {
        Some(session) => (Some(session.to_owned()), format!("{session}/{beginning}")),
        None => (None, beginning),
    };
    let numbered = (2..CANDIDATES_MAX).map(|number| format!("{other}-{number}"));
    let others = std::iter::once(other.clone()).chain(numbered);
    first.into_iter().chain(others).collect()
}
