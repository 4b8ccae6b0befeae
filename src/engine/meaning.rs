//! Vectors of recorded texts for search by meaning, made in the background by an embedder.
//!
//! One task follows the index. It reads passages without vectors from the log, has them embedded,
//! and adds the vectors; appends and searches by words never wait for it. Vectors are derived: lost
//! ones are made again. While the embedder fails, the task waits and retries.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};

use super::{
    Engine, Inner, OpenOptions, ReadPath,
    error::{OpenError, ReadError, SearchError},
    indexer::{IndexPlace, blocking},
    search_query::SearchRequest,
    sequencer::lock,
};
use treering_domain::{EventRef, Namespace, Position, with_causes};
use treering_meaning::{
    ColumnError, EmbedError, Embedder, PassageKey, PassageVectors, QueryVector, StoredVector,
    TextRole, TextWindow, VectorError, windows,
};
use treering_search::{
    MissingPassage, SearchIndex, VectorIndex, passage_at, searchable_text, text_hash,
};

/// Name of the vectors' folder in the data folder.
pub(super) const VECTORS_FOLDER: &str = "vectors";
/// Number of passages that are embedded before their vectors are written, if writing takes no time.
const PASSAGES_MIN: usize = 512;
/// Maximum number of passages that are embedded before their vectors are written.
const PASSAGES_MAX: usize = 1 << 14;
/// Time of embedding for one of writing: a write rewrites the whole column of every segment that it
/// adds to.
const EMBEDDING_PER_WRITING: u32 = 10;
/// Number of windows that are embedded at once: about a second of work for a small model. Closing
/// waits for them.
const WINDOWS_MAX: usize = 16;
/// Pause between two checks for passages without vectors.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pause after a failure of the embedder, doubled for each further one.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause after a failure.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(60);
/// Longest time that a query waits for its vector.
const QUERY_WAIT_MAX: Duration = Duration::from_secs(20);
/// Maximum number of queries that are embedded at once. Each has a thread, even after its caller is
/// gone.
const QUERIES_MAX: usize = 8;
/// Maximum size of a query's text, in bytes.
const QUERY_BYTES_MAX: usize = 16 << 10;

/// What a search compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SearchBy {
    /// The words of the query.
    #[default]
    Words,
    /// The meaning of the query's text.
    Meaning,
    /// Both: the passages that either finds, in one ranking.
    Both,
}

/// A model, and the vectors that it made.
pub(super) struct ModelVectors {
    embedder: Arc<dyn Embedder>,
    pub(crate) vectors: VectorIndex,
}

impl ModelVectors {
    /// Opens a model's vectors beside an index.
    ///
    /// # Errors
    /// [`OpenError::Failed`] when the folder cannot be read.
    fn open(embedder: Arc<dyn Embedder>, place: &IndexPlace) -> Result<Arc<Self>, OpenError> {
        let beside = |dir: &PathBuf| dir.with_file_name(VECTORS_FOLDER);
        let vectors = match place {
            IndexPlace::Memory => VectorIndex::in_memory(),
            IndexPlace::Unchanged(dir) => {
                VectorIndex::open_unchanged(&beside(dir), embedder.model())
            }
            IndexPlace::Folder(dir) => VectorIndex::open(&beside(dir), embedder.model())
                .map_err(|error| super::open::failed(dir, error))?,
        };
        Ok(Arc::new(Self { embedder, vectors }))
    }
}

/// The vector that a search by meaning compares with.
#[derive(Clone)]
pub(super) struct MeaningVector {
    /// The model that made it.
    pub(crate) model: Arc<ModelVectors>,
    pub(crate) vector: QueryVector,
    /// The hash of a text to exclude from the results.
    pub(crate) except: Option<u64>,
}

/// The vectors of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VectorStats {
    /// The name of the model.
    pub model: String,
    /// The name of the previous model, if searches still compare its vectors; else empty.
    pub previous_model: String,
    /// Passages of the index, of all namespaces.
    pub passages: u64,
    /// Passages that were embedded.
    pub embedded: u64,
    /// Stored vectors: a long passage has several.
    pub vectors: u64,
    /// Size of the stored vectors, in bytes.
    pub bytes: u64,
    /// Why no vectors are being made; empty if nothing is wrong.
    pub failure: String,
}

/// The vectors of a store.
pub(super) struct Meaning {
    current: Arc<ModelVectors>,
    /// The previous model. Searches compare its vectors until the current one has embedded all
    /// texts.
    previous: Mutex<Option<Arc<ModelVectors>>>,
    failure: Mutex<String>,
    /// Tells the task that the engine is closing.
    stop: Notify,
    /// How long the last vectors took to write.
    last_write: Mutex<Duration>,
    /// Held while vectors are added, and while those of erased passages are removed.
    adding: tokio::sync::Mutex<()>,
    queries: Arc<Semaphore>,
}

impl Meaning {
    /// Opens the vectors beside an index; returns `None` if the options name no model.
    ///
    /// # Errors
    /// [`OpenError::Failed`] when the folder cannot be read.
    pub(super) fn open(
        options: &OpenOptions,
        place: &IndexPlace,
    ) -> Result<Option<Self>, OpenError> {
        let Some(embedder) = options.embedder.clone() else {
            return Ok(None);
        };
        let previous = options.previous_embedder.clone();
        let previous = previous.filter(|previous| previous.model() != embedder.model());
        let previous = previous.map(|previous| ModelVectors::open(previous, place));
        let previous = previous.transpose()?;
        Ok(Some(Self {
            current: ModelVectors::open(embedder, place)?,
            previous: Mutex::new(previous.filter(|model| model.vectors.dimensions().is_some())),
            queries: Arc::new(Semaphore::new(QUERIES_MAX)),
            failure: Mutex::default(),
            stop: Notify::new(),
            last_write: Mutex::default(),
            adding: tokio::sync::Mutex::default(),
        }))
    }

    fn previous(&self) -> Option<Arc<ModelVectors>> {
        lock(&self.previous).clone()
    }

    /// Returns why a search by meaning did not compare some passages. `passages` is the number of
    /// passages without vectors; returns `None` if it is 0.
    pub(super) fn lagging(&self, passages: u64) -> Option<String> {
        if passages == 0 {
            return None;
        }
        let failure = lock(&self.failure).clone();
        Some(match failure.is_empty() {
            true => format!("{passages} passages have no vectors yet"),
            false => format!("{passages} passages have no vectors: {failure}"),
        })
    }

    pub(super) fn stats(&self, index: &SearchIndex) -> VectorStats {
        let coverage = self.current.vectors.coverage(index);
        let previous = self.previous();
        let name = |model: &ModelVectors| model.embedder.model().to_owned();
        VectorStats {
            model: name(&self.current),
            previous_model: previous.as_deref().map(name).unwrap_or_default(),
            passages: coverage.passages,
            embedded: coverage.embedded,
            vectors: coverage.vectors,
            bytes: coverage.bytes,
            failure: lock(&self.failure).clone(),
        }
    }

    /// Embeds texts on a separate thread: an endpoint may take minutes, and process exit waits for
    /// the runtime's own threads.
    ///
    /// `permit` is released when the thread ends.
    async fn embed(
        embedder: &Arc<dyn Embedder>,
        texts: Vec<String>,
        role: TextRole,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<Vec<Vec<f32>>, EmbedError> {
        let embedder = Arc::clone(embedder);
        let (tell, told) = oneshot::channel();
        let failed = |message: String| EmbedError::Unavailable {
            message,
            retry_after: None,
        };
        let thread = std::thread::Builder::new().name("embedder".to_owned());
        let spawned = thread.spawn(move || {
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            // Fails if the caller no longer waits.
            drop(tell.send(embedder.embed(&texts, role)));
            drop(permit);
        });
        spawned.map_err(|error| failed(error.to_string()))?;
        let stopped = || Err(failed("it stopped".to_owned()));
        told.await.unwrap_or_else(|_| stopped())
    }

    /// Returns the vector of a query, by the model whose vectors are compared.
    ///
    /// # Errors
    /// [`SearchError::Embedder`]; [`SearchError::EmptyQuery`] for a blank text.
    async fn query_vector(
        &self,
        text: &str,
    ) -> Result<(Arc<ModelVectors>, QueryVector), SearchError> {
        if text.trim().is_empty() {
            return Err(SearchError::EmptyQuery);
        }
        let failed = |message: String| SearchError::Embedder { message };
        let text = text[..text.floor_char_boundary(QUERY_BYTES_MAX)].to_owned();
        let model = self.previous().unwrap_or_else(|| Arc::clone(&self.current));
        let embedding = async {
            // The semaphore is never closed.
            let permit = Arc::clone(&self.queries).acquire_owned().await.ok();
            Self::embed(&model.embedder, vec![text], TextRole::Query, permit).await
        };
        let embedded = tokio::time::timeout(QUERY_WAIT_MAX, embedding).await;
        let late = |_| failed("the embedder did not answer in time".to_owned());
        let vectors = embedded
            .map_err(late)?
            .map_err(|error| failed(error.to_string()))?;
        let vector = vectors.first().map(Vec::as_slice).unwrap_or_default();
        let (found, stored) = (vector.len(), model.vectors.dimensions());
        if let Some(expected) = stored.filter(|expected| *expected != found) {
            return Err(failed(
                ColumnError::Dimensions { expected, found }.to_string(),
            ));
        }
        let vector = QueryVector::new(vector).map_err(|error| failed(error.to_string()))?;
        Ok((model, vector))
    }

    /// Removes vectors of passages that the index no longer has, so that nothing remains of erased
    /// passages. Also removes those of other models; without an embedder, removes all.
    pub(super) async fn forget_erased(inner: &Arc<Inner>) -> Result<(), super::indexer::Failure> {
        let Some(this) = inner.search.meaning.clone() else {
            let dir = inner.options.data_dir.join(VECTORS_FOLDER);
            return blocking(move || VectorIndex::wipe(&dir)).await;
        };
        let _adding = this.adding.lock().await;
        let (meaning, index) = (Arc::clone(&this), inner.search.indexer.index());
        let follow = move || {
            meaning.current.vectors.missing(&index, 0)?;
            let previous = meaning.previous();
            let previous = previous.as_deref().map(|model| &model.vectors);
            if let Some(previous) = previous {
                previous.missing(&index, 0)?;
            }
            meaning.current.vectors.remove_other_models(previous)
        };
        blocking(follow).await
    }

    pub(super) fn stop(&self) {
        self.stop.notify_one();
    }
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error(transparent)]
    Index(#[from] super::indexer::Failure),
    #[error(transparent)]
    Log(#[from] ReadError),
    #[error(transparent)]
    Embedder(#[from] EmbedError),
    #[error("the embedder's answer is unusable: {0}")]
    Vector(#[from] VectorError),
}

/// Embeds new passages until the engine closes or is dropped.
pub(super) async fn run(weak: Weak<Inner>) {
    let Some(this) = weak
        .upgrade()
        .and_then(|inner| inner.search.meaning.clone())
    else {
        return;
    };
    let mut failures = 0_u32;
    let mut is_first = true;
    while let Some(inner) = weak.upgrade() {
        if inner.closing.load(Ordering::Acquire) {
            return;
        }
        let pause = match step(&inner, &this).await {
            Ok(done) => {
                failures = 0;
                lock(&this.failure).clear();
                match done {
                    StepOutcome::Embedded => continue,
                    StepOutcome::Complete if std::mem::take(&mut is_first) => {
                        *lock(&this.previous) = None;
                        remove_other_models(&this);
                    }
                    StepOutcome::Complete | StepOutcome::NoIndex => {}
                }
                LOOK_EVERY
            }
            Err(error) => {
                let message = with_causes(&error).to_string();
                tracing::warn!(error = message, "texts are not embedded; retrying");
                *lock(&this.failure) = message;
                let longer = (RETRY_PAUSE * (1 << failures.min(6))).min(RETRY_PAUSE_MAX);
                failures += 1;
                match error {
                    StepError::Embedder(EmbedError::Unavailable {
                        retry_after: Some(asked),
                        ..
                    }) => asked,
                    _ => longer,
                }
            }
        };
        // A waiting task must not keep a dropped engine alive.
        drop(inner);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = this.stop.notified() => {}
        }
    }
}

fn remove_other_models(this: &Meaning) {
    if let Err(error) = this.current.vectors.remove_other_models(None) {
        tracing::warn!(error = %with_causes(&error), "the vectors of another model were not removed");
    }
}

/// The result of a step.
enum StepOutcome {
    /// Passages without vectors were found.
    Embedded,
    /// All passages have vectors.
    Complete,
    /// The index is being rebuilt. Existing vectors stay usable: they are keyed by the hash of
    /// their text.
    NoIndex,
}

/// Embeds some passages, if there are any without vectors.
async fn step(inner: &Arc<Inner>, this: &Arc<Meaning>) -> Result<StepOutcome, StepError> {
    let adding = this.adding.lock().await;
    if !inner.search.indexer.is_following() {
        return Ok(StepOutcome::NoIndex);
    }
    let index = inner.search.indexer.index();
    let (meaning, looked) = (Arc::clone(this), Arc::clone(&index));
    let look = move || {
        if let Some(previous) = meaning.previous() {
            previous.vectors.missing(&looked, 0)?;
        }
        meaning.current.vectors.missing(&looked, PASSAGES_MAX)
    };
    let missing = blocking(look).await?;
    drop(adding);
    if missing.is_empty() {
        return Ok(StepOutcome::Complete);
    }
    let (vectors, failure) = embed(inner, this, missing).await;
    let meaning = Arc::clone(this);
    let _adding = this.adding.lock().await;
    // An erasure replaces the index: passages read before it must not be added after it.
    if !Arc::ptr_eq(&index, &inner.search.indexer.index()) {
        return Ok(StepOutcome::Embedded);
    }
    let write = move || {
        let started = Instant::now();
        let added = meaning.current.vectors.add(&index, &vectors);
        *lock(&meaning.last_write) = started.elapsed();
        added
    };
    blocking(write).await?;
    failure.map_or(Ok(StepOutcome::Embedded), Err)
}

/// Embeds passages and returns their vectors: all, or as many as are worth a write. After a failure,
/// or when the engine closes, returns the vectors made so far.
async fn embed(
    inner: &Inner,
    this: &Meaning,
    missing: Vec<MissingPassage>,
) -> (HashMap<PassageKey, PassageVectors>, Option<StepError>) {
    let mut done = HashMap::new();
    let mut missing = missing.into_iter();
    let (started, last_write) = (Instant::now(), *lock(&this.last_write));
    let is_enough = |passages: usize| {
        passages >= PASSAGES_MIN && started.elapsed() >= last_write * EMBEDDING_PER_WRITING
    };
    while !is_enough(done.len()) && !inner.closing.load(Ordering::Acquire) {
        let (mut texts, mut passages) = (Vec::new(), Vec::new());
        while texts.len() < WINDOWS_MAX
            && let Some(passage) = missing.next()
        {
            match windows_of(inner, passage).await {
                Ok(found) => {
                    let (cut, text): (Vec<TextWindow>, Vec<String>) = found.into_iter().unzip();
                    passages.push((passage.key, cut));
                    texts.extend(text);
                }
                Err(error) => return (done, Some(error.into())),
            }
        }
        if passages.is_empty() {
            break;
        }
        let embedded = match texts.is_empty() {
            true => Ok(Vec::new()),
            false => embed_texts(&this.current.embedder, texts).await,
        };
        let mut vectors = match embedded {
            Ok(vectors) => vectors.into_iter(),
            Err(error) => return (done, Some(error)),
        };
        for (key, cut) in passages {
            let rows = cut.into_iter().zip(vectors.by_ref());
            let rows = rows.filter_map(|(window, vector)| Some((window, vector?)));
            done.insert(key, PassageVectors(rows.collect()));
        }
    }
    (done, None)
}

/// Returns the vectors of texts. Returns `None` for a text that the embedder refuses, because it would
/// refuse it again, and texts behind it would never be embedded.
async fn embed_texts(
    embedder: &Arc<dyn Embedder>,
    texts: Vec<String>,
) -> Result<Vec<Option<StoredVector>>, StepError> {
    let embed = |texts| Meaning::embed(embedder, texts, TextRole::Passage, None);
    match embed(texts.clone()).await {
        Err(EmbedError::Refused { .. }) => {}
        embedded => return rounded(embedded?),
    }
    // Fails if the embedder refuses every text, for example because of a wrong option.
    embed(vec!["a text".to_owned()]).await?;
    let mut vectors = Vec::with_capacity(texts.len());
    for text in texts {
        match embed(vec![text]).await {
            Err(EmbedError::Refused { message }) => {
                tracing::warn!(error = message, "a text has no vector");
                vectors.push(None);
            }
            embedded => vectors.extend(rounded(embedded?)?),
        }
    }
    Ok(vectors)
}

/// Rounds vectors. Returns `None` for a vector without direction, such as that of a text with only
/// unknown characters.
fn rounded(vectors: Vec<Vec<f32>>) -> Result<Vec<Option<StoredVector>>, StepError> {
    let rounded = vectors
        .iter()
        .map(|vector| match StoredVector::new(vector) {
            Err(VectorError::NoDirection) => Ok(None),
            vector => Ok(Some(vector?)),
        });
    rounded.collect()
}

/// Returns the windows of a passage; none if its text cannot be read any more.
async fn windows_of(
    inner: &Inner,
    passage: MissingPassage,
) -> Result<Vec<(TextWindow, String)>, ReadError> {
    let Position { offset, .. } = passage.position;
    let read = async {
        let record = inner.reads.reader.record(offset).await?;
        inner.reads.history().decode(offset, &record).await
    };
    let body = match read.await {
        Ok(body) => body,
        Err(ReadError::Damaged { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let text = searchable_text(&body).unwrap_or_default();
    let Some(passage) = passage_at(&text, passage.key.byte_start as usize) else {
        return Ok(Vec::new());
    };
    let cut = windows(passage.text).into_iter();
    Ok(cut
        .map(|window| (window, window.text(passage.text).to_owned()))
        .collect())
}

impl Engine {
    /// Returns how much of the index has vectors; `None`: there is no embedder.
    pub(super) fn vector_stats(&self) -> Option<VectorStats> {
        let index = self.inner.search.indexer.index();
        let meaning = self.inner.search.meaning.as_ref();
        meaning.map(|meaning| meaning.stats(&index))
    }
}

impl Inner {
    /// Returns the vector that a search compares with; `None` for a search by words. With
    /// `similar_to`, the beginning of that event's text becomes the request's text.
    ///
    /// # Errors
    /// When there is no embedder, no such event, or no vector.
    pub(super) async fn meaning_vector(
        &self,
        request: &mut SearchRequest,
    ) -> Result<Option<MeaningVector>, SearchError> {
        if request.by == SearchBy::Words {
            return Ok(None);
        }
        let meaning = self
            .search
            .meaning
            .as_ref()
            .ok_or(SearchError::NoEmbedder)?;
        let except = match request.similar_to.take() {
            Some(at) => {
                let similar = self.reads.similar_text(&request.namespace, at).await?;
                request.text = similar.text;
                Some(similar.text_hash)
            }
            None => request.shared.as_ref().and_then(|all| all.except_text),
        };
        let (model, vector) = meaning.query_vector(&request.text).await?;
        Ok(Some(MeaningVector {
            model,
            vector,
            except,
        }))
    }
}

/// What a search with [`SearchRequest::similar_to`] compares with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimilarText {
    /// The beginning of the event's text.
    pub text: String,
    /// Hash of the event's kind and whole text, which is left out of the hits.
    pub text_hash: u64,
}

impl Engine {
    /// Returns what a search for texts that are similar to an event's compares with.
    ///
    /// # Errors
    /// When there is no such event, or it has no text.
    pub async fn similar_text(
        &self,
        namespace: &Namespace,
        at: EventRef,
    ) -> Result<SimilarText, SearchError> {
        self.inner.reads.similar_text(namespace, at).await
    }
}

impl ReadPath {
    /// Returns the beginning of an event's text.
    async fn similar_text(
        &self,
        namespace: &Namespace,
        at: EventRef,
    ) -> Result<SimilarText, SearchError> {
        let history = self.history();
        let Some((offset, record)) = history.event(namespace, at).await? else {
            return Err(SearchError::Query {
                message: format!(
                    "conversation {} has no event {}",
                    at.conversation, at.revision
                ),
            });
        };
        let body = history.decode(offset, &record).await?;
        let Some(text) = searchable_text(&body) else {
            return Err(SearchError::Query {
                message: format!("event {} has no text to compare with", at.revision),
            });
        };
        let beginning = passage_at(&text, 0).and_then(|first| {
            let first = first.text;
            windows(first)
                .first()
                .map(|window| window.text(first).to_owned())
        });
        Ok(SimilarText {
            text: beginning.unwrap_or_default(),
            text_hash: text_hash(body.kind(), &text),
        })
    }
}
