//! The engine: everything that Treering does, in process.
//!
//! [`Engine`] combines the log, the projections and search. It appends ([`Engine::append`]), reads
//! and follows events ([`Engine::read`], [`Engine::subscribe`]), forks, answers queries about tool
//! calls, searches, verifies and rebuilds. The gRPC services are a thin layer over it, and a
//! program that embeds Treering uses it directly.
//!
//! The engine does not know gRPC, the command line or any provider's format.

#![cfg_attr(not(test), warn(unreachable_pub))]

mod append;
mod append_watch;
mod backups;
mod catch_up;
mod consistency_check;
pub mod context;
mod conversations;
mod damage;
mod delta;
mod derived;
mod erase;
pub mod error;
mod facet_sets;
mod fold;
mod formats;
mod grep;
mod group_queue;
mod health;
mod history;
mod hit;
mod indexer;
pub mod items;
#[cfg(test)]
mod key_life_tests;
mod lookup;
#[cfg(test)]
mod lookup_tests;
mod meaning;
mod measures;
mod memory;
#[cfg(all(test, unix))]
mod moved_folder_tests;
#[cfg(test)]
mod names_tests;
mod open;
mod open_shard;
mod packing;
#[cfg(test)]
mod patch_tests;
mod patches;
mod placement;
#[cfg(test)]
mod power_loss_tests;
mod prepare;
mod pseudonyms;
mod publisher;
pub mod query;
mod read;
#[cfg(test)]
mod read_tests;
mod rebuild;
mod reindex;
mod repair;
#[cfg(test)]
mod repair_tests;
mod rewind;
mod salvage;
mod search;
mod search_query;
mod search_scope;
#[cfg(test)]
mod search_tests;
mod searchable;
mod secret;
mod sequencer;
mod shard_log;
mod ship;
mod signature;
mod states;
mod subscribe;
#[cfg(test)]
mod test_events;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
mod tool_calls;
#[cfg(test)]
mod unconfirmed_log_tests;
mod unpublished_names;
mod usage;
mod verify;
mod work;

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

#[cfg(feature = "digest")]
pub use self::context::{KnowledgeAnswer, KnowledgeQuery, Prerequisites};
pub use self::{
    append::AppendFuture,
    context::{
        BranchValues, BuildQuery, BuiltRequest, CallDigest, CompactCommand, CompactOutcome,
        CompactionPlan, ContextChange, ContextEntry, ContextError, ContextScope, ContextValues,
        LONG_TERM_LABEL, PlanQuery, ReturnCommand, SetContext, SpawnCommand, SpawnOutcome,
    },
    derived::{derived_id, is_derived},
    erase::{
        EraseCommand, EraseError, EraseItem, EraseOutcome, EraseReason, EraseTarget, ErasedEvent,
        ErasureAtOpen, KeptBlob, Retention, SharedBy, forget_erased,
    },
    error::*,
    formats::{StoreFormats, store_formats},
    health::{DamageMet, Health},
    meaning::{SearchBy, SimilarText, VectorStats},
    measures::{CacheUse, Measures, StoreReach},
    placement::{ShardMap, ShardPlace, shard_of},
    pseudonyms::has_pseudonym_key,
    query::*,
    repair::{Repair, repair},
    salvage::{CutConversation, SalvageError, SalvageOutcome, salvage},
    search::{CLEARLY_MORE, SearchStage, SearchTimeout},
    search_query::*,
    sequencer::Companion,
    ship::{BackupNote, ShipMark, ShipQuery, ShipmentItem, ShippedBlock, ShippedErasure},
    signature::{SignatureError, Signer, receipt_signer, signed_object},
};
pub use self::{erase::hash_of_stubs, ship::last_batch};
use self::{
    history::History,
    pseudonyms::Pseudonyms,
    sequencer::EngineSequencer,
    states::{CachedConversations, SharedProjections},
};
use treering_base::disk::DiskSpace;
use treering_context::heuristics::Heuristics;
#[cfg(not(feature = "digest"))]
use treering_context::heuristics::PlainHeuristics as OwnHeuristics;
#[cfg(feature = "digest")]
use treering_digest::TextHeuristics as OwnHeuristics;
use treering_domain::{
    BranchName, BranchState, ConversationId, ConversationRow, ConversationState, Limits, Namespace,
    Position, Quotas, ShardId, TimestampMicros,
};
use treering_log::holder::PROOF_BYTES;
use treering_log::{ErasableLog, EventLog, GroupWriter, LogReader, RedbLog};
pub use treering_log::{
    HolderSecret, LockHolder, LogIdentity, LogRepair, OpenMode, holder, holder_of,
};
pub use treering_meaning::Embedder;
/// Types of searches; `searchable_text`, the text in which search counts bytes and lines; and
/// `part_at`, which returns the part of an event at a byte of that text.
pub use treering_search::{
    DuplicateHandling, Hit, HitRank, NameCompleteness, NameTier, PoolFloors, QUERY_BYTES_MAX,
    QuerySyntax, RecalledTexts, RerankPool, Scores, SearchFilters, SharedRanking, SharedStatistics,
    VerbatimMatch, merge, part_at, searchable_text,
};

/// Options for opening a store.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The folder that holds the log, the projections and the index.
    pub data_dir: PathBuf,
    /// The limits.
    pub limits: Limits,
    /// Whether to append or only read, and whether to create a missing store.
    pub mode: OpenMode,
    /// When the log is packed into blocks.
    pub packing: PackingMode,
    /// Rebuild the projections from the log, even if the folder has some: for projections that are
    /// damaged ([`ReadError::ViewsDamaged`]).
    pub fresh_projections: bool,
    /// From now on, store `Pseudonyms` in place of actors, correlation ids and idempotency keys.
    /// The store then does so at every later opening, regardless of this field. If the key was
    /// lost, a new one is created only if this is set.
    pub pseudonyms: bool,
    /// The store is opened only for checks; nothing will be appended. A store with pseudonyms then
    /// opens without their key.
    pub only_checked: bool,
    /// The quotas of the namespaces. Existing content is kept, even above its quota.
    pub quotas: Quotas,
    /// Heuristics about recorded text, for requests and summaries.
    pub heuristics: Arc<dyn Heuristics>,
    /// The model for search by meaning; `None` disables it.
    pub embedder: Option<Arc<dyn Embedder>>,
    /// The model that `embedder` replaces: searches compare its vectors until all texts have a vector
    /// of the new model.
    pub previous_embedder: Option<Arc<dyn Embedder>>,
}

/// When the events of a log are packed into compressed blocks (`docs/FORMAT.md`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PackingMode {
    /// In the background, once a segment is full or nothing was appended for some seconds. Closing
    /// packs only a small remainder.
    #[default]
    Usually,
    /// As `Usually`, but closing packs everything that is left, however long that takes.
    WhenClosed,
    /// Never.
    Never,
}

impl OpenOptions {
    /// Creates options to append with the default limits; a missing store is created.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            limits: Limits::default(),
            mode: OpenMode::Create,
            packing: PackingMode::default(),
            fresh_projections: false,
            pseudonyms: false,
            only_checked: false,
            quotas: Quotas::default(),
            heuristics: Arc::new(OwnHeuristics),
            embedder: None,
            previous_embedder: None,
        }
    }

    /// Changes the mode to append to an existing store.
    #[must_use]
    pub fn existing(self) -> Self {
        Self {
            mode: OpenMode::Append,
            ..self
        }
    }

    /// Changes the mode to read-only: nothing in the folder changes, the folder may be on a
    /// read-only medium, and several processes may read it at the same time.
    #[must_use]
    pub fn read_only(self) -> Self {
        Self {
            mode: OpenMode::Read,
            ..self
        }
    }
}

/// An open store. Cheap to clone; every clone refers to the same store.
///
/// ```
/// # use treering_domain::*;
/// use treering_engine::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = Engine::in_memory(Limits::default()).await?;
/// let namespace = Namespace::default();
/// let id = ConversationId::generate();
/// let created = EventBody::ConversationCreated(ConversationCreated::default());
/// let hello = EventBody::MessageAppended(MessageAppended::text(Role::User, "Hello"));
/// let outcome = engine
///     .append(AppendCommand::new(
///         namespace,
///         vec![NewEvent::new(id, created), NewEvent::new(id, hello)],
///     ))
///     .await?;
/// assert_eq!(outcome.events[1].revision, Revision(2));
/// engine.close().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

/// Announces to other processes the address at which this one serves the folder, and the secret
/// that authenticates it.
type Announce = Box<dyn Fn(&str, &HolderSecret) + Send + Sync>;

struct Inner {
    options: OpenOptions,
    log: Arc<dyn EventLog>,
    shard: ShardId,
    /// `None` for an embedded store.
    place: Option<ShardPlace>,
    closing: Arc<AtomicBool>,
    work: work::Work,
    reads: ReadPath,
    appends: AppendPath,
    search: SearchPath,
    context: ContextPath,
    upkeep: Upkeep,
}

/// The state that all reads use.
struct ReadPath {
    projections: SharedProjections,
    reader: Arc<LogReader>,
    /// Log offset up to which the projections are current: the head that all reads see.
    published: Arc<AtomicU64>,
    /// The conversations that cannot be read to their end, because of damage.
    quarantine: Arc<damage::QuarantineList>,
}

/// The path of an append, from the validated batch to the announcement of its events.
struct AppendPath {
    writer: GroupWriter<EngineSequencer>,
    /// Held shared while a request is handed to the writer, and exclusively to block all appends.
    gate: tokio::sync::RwLock<()>,
    pseudonyms: Option<Pseudonyms>,
    cached_set: Arc<CachedConversations>,
    refusals: measures::Refusals,
    news: append_watch::AppendReceiver,
    /// Published events that are not indexed yet, up to the queue's limit.
    feed: Arc<group_queue::GroupQueue>,
    followers: measures::Followers,
}

/// The index, and the caches of searches.
struct SearchPath {
    indexer: Arc<indexer::Indexer>,
    meaning: Option<Arc<meaning::Meaning>>,
    facet_sets: facet_sets::FacetSets,
}

/// Caches for requests and tool observations.
struct ContextPath {
    windows: context::ContextCaches,
    knowledge: context::KnowledgeCache,
}

/// The folder and its files, and the background work.
struct Upkeep {
    started_at: TimestampMicros,
    /// Announces to other processes the address of this store.
    announce: Announce,
    /// The address that the store is served at, and the secret that identifies the server there.
    served: Mutex<Option<(String, HolderSecret)>>,
    /// Restores the folder's lock file if it was deleted. Returns false if another folder is at the
    /// path, or if another process holds the lock.
    keep_lock: Box<dyn Fn() -> bool + Send + Sync>,
    projections_path: Option<PathBuf>,
    /// Held while the projections change.
    projections_gate: Arc<Mutex<()>>,
    /// Held by the running rebuild; at most one runs at a time.
    rebuilding: Arc<tokio::sync::Mutex<()>>,
    erasings: erase::ErasureCounter,
    erasing_at_open: ErasureAtOpen,
    /// `None` if the log is in memory or read-only.
    packer: Option<packing::LogPacker>,
    /// `None` if content cannot be erased.
    erasable: Option<Arc<dyn ErasableLog>>,
    /// `None` if the log is not in files of this folder.
    files: Option<Arc<RedbLog>>,
    damaged: Mutex<Option<DamageMet>>,
    /// Disk space at the last check; a fresh query may hang when the disk does. `None`: there is no
    /// disk, or the system does not report it.
    disk: Mutex<Option<DiskSpace>>,
}

impl Engine {
    /// Returns the limits that this store was opened with.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.inner.options.limits
    }

    /// Returns the heuristics that this store was opened with.
    #[must_use]
    pub fn heuristics(&self) -> &Arc<dyn Heuristics> {
        &self.inner.options.heuristics
    }

    /// Announces the address to other processes that try to open the folder.
    pub fn announce(&self, address: &str) {
        let secret = match HolderSecret::generate() {
            Ok(secret) => secret,
            Err(error) => {
                tracing::warn!(%error, "the server's secret could not be created: commands that \
                                        use the folder will not find this server");
                return;
            }
        };
        *self.served() = Some((address.to_owned(), secret.clone()));
        (self.inner.upkeep.announce)(address, &secret);
    }

    /// Answers a challenge that only the server of this folder can answer; `None` if the store is
    /// not served.
    #[must_use]
    pub fn proves_folder(&self, question: &[u8; PROOF_BYTES]) -> Option<[u8; PROOF_BYTES]> {
        let served = self.served();
        let (address, secret) = served.as_ref()?;
        Some(*secret.answer(question, address).as_bytes())
    }

    fn served(&self) -> MutexGuard<'_, Option<(String, HolderSecret)>> {
        let served = self.inner.upkeep.served.lock();
        served.unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the store's id, which never changes. Each shard of a log is a store.
    #[must_use]
    pub fn store_id(&self) -> uuid::Uuid {
        self.inner.log.identity().store
    }

    /// Returns the log position of the last event that reads see.
    #[must_use]
    pub fn head(&self) -> Position {
        let reads = &self.inner.reads;
        reads
            .reader
            .position(reads.published.load(Ordering::Acquire))
    }

    /// Returns the conversation with this UUID, or else with this id at its source.
    ///
    /// # Errors
    /// [`ReadError::ConversationNotFound`], or [`ReadError::AmbiguousSourceId`]
    /// when conversations of several sources have the id.
    pub async fn resolve(
        &self,
        namespace: &Namespace,
        id: &str,
    ) -> Result<ConversationId, ReadError> {
        let projections = self.inner.reads.projections.load_full();
        if let Ok(conversation) = id.parse::<ConversationId>()
            && (self
                .inner
                .appends
                .cached_set
                .contains(namespace.key(conversation))
                || self
                    .inner
                    .reads
                    .find_row(namespace, conversation)?
                    .is_some())
        {
            return Ok(conversation);
        }
        match projections.by_source_id(namespace, id)?.as_slice() {
            [] => Err(ReadError::ConversationNotFound { id: id.to_owned() }),
            [conversation] => Ok(*conversation),
            several => Err(ReadError::AmbiguousSourceId {
                id: id.to_owned(),
                count: several.len(),
            }),
        }
    }

    /// Returns the conversation that has this id at this source, if any.
    ///
    /// # Errors
    /// [`ReadError::AmbiguousSourceId`] when several have it.
    pub async fn of_source(
        &self,
        namespace: &Namespace,
        source: &str,
        source_id: &str,
    ) -> Result<Option<ConversationId>, ReadError> {
        let derived = derived_id(namespace, "source", &[source, source_id]);
        if self
            .inner
            .appends
            .cached_set
            .contains(namespace.key(derived))
        {
            return Ok(Some(derived));
        }
        let mut found = Vec::new();
        for id in self
            .inner
            .reads
            .projections
            .load()
            .by_source_id(namespace, source_id)?
        {
            let row = self.inner.reads.row(namespace, id)?;
            if row.info.source == source {
                found.push(id);
            }
        }
        match found.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(*one)),
            _ if found.contains(&derived) => Ok(Some(derived)),
            several => Err(ReadError::AmbiguousSourceId {
                id: source_id.to_owned(),
                count: several.len(),
            }),
        }
    }
}

impl ReadPath {
    fn history(&self) -> History {
        History {
            projections: self.projections.load_full(),
            reader: Arc::clone(&self.reader),
        }
    }

    /// Returns a conversation's row, if the conversation exists.
    fn find_row(
        &self,
        namespace: &Namespace,
        id: ConversationId,
    ) -> Result<Option<ConversationRow>, ReadError> {
        Ok(self.projections.load().conversation(namespace.key(id))?)
    }

    fn row(&self, namespace: &Namespace, id: ConversationId) -> Result<ConversationRow, ReadError> {
        self.find_row(namespace, id)?
            .ok_or_else(|| ReadError::ConversationNotFound { id: id.to_string() })
    }

    fn state(
        &self,
        namespace: &Namespace,
        id: ConversationId,
    ) -> Result<ConversationState, ReadError> {
        let state = self.projections.load().state(namespace.key(id))?;
        state.ok_or_else(|| ReadError::ConversationNotFound { id: id.to_string() })
    }

    /// Returns a branch by its address.
    fn branch_at(&self, address: &BranchAddress) -> Result<Arc<BranchState>, ReadError> {
        let name = address.branch.as_ref();
        self.branch(&address.namespace, address.conversation, name)
    }

    /// Returns a branch by name; `None` means the active one.
    fn branch(
        &self,
        namespace: &Namespace,
        id: ConversationId,
        name: Option<&BranchName>,
    ) -> Result<Arc<BranchState>, ReadError> {
        let row = self.row(namespace, id)?;
        let key = row.key();
        let Some(name) = name else {
            return self.history().branch(key, row.active).map(Arc::new);
        };
        // A conversation may have very many branches: read only this one.
        let branch = self.projections.load().branch_named(key, name)?;
        branch
            .map(Arc::new)
            .ok_or_else(|| ReadError::BranchNotFound {
                conversation: id,
                branch: name.to_string(),
            })
    }
}
