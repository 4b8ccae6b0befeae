//! The engine: everything that Treering does, in process.
//!
//! [`Engine`] brings log, views and search together: it appends ([`Engine::append`]),
//! reads and follows ([`Engine::read`], [`Engine::subscribe`]), forks, answers
//! what tools did, searches, verifies and rebuilds. The gRPC services are thin
//! over it, and a program that embeds Treering uses it directly.
//!
//! It does not know gRPC, the command line or any provider's format.

mod append;
mod backups;
mod catch_up;
pub mod context;
mod conversations;
mod damage;
mod delta;
mod dense;
mod derived;
mod erase;
pub mod error;
mod feed;
mod fold;
mod formats;
mod grep;
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
mod measures;
mod memory;
#[cfg(test)]
mod names_tests;
mod news;
mod open;
#[cfg(test)]
mod patch_tests;
mod patches;
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
mod recent;
mod reindex;
mod repair;
#[cfg(test)]
mod repair_tests;
mod rewind;
mod salvage;
mod search;
#[cfg(test)]
mod search_tests;
mod searchable;
mod secret;
mod sequencer;
mod ship;
mod states;
mod subscribe;
#[cfg(test)]
mod test_events;
mod tool_calls;
#[cfg(test)]
pub(crate) mod trouble_tests;
mod usage;
mod verify;
mod witness;
mod work;

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

pub use self::{
    append::Pending,
    context::{
        BranchValues, BuildQuery, Built, CompactCommand, CompactOutcome, CompactionPlan,
        ContextChange, ContextEntry, ContextError, ContextScope, ContextValues, KnowledgeAnswer,
        KnowledgeQuery, LONG_TERM_LABEL, PlanQuery, Prerequisites, Return, SetContext, Spawn,
        Spawned, ToolSnapshot,
    },
    derived::{derived_id, is_derived},
    erase::{
        EraseCommand, EraseError, EraseItem, EraseOutcome, EraseTarget, ErasedEvent, ErasedWhy,
        ErasingAtOpen, KeptBlob, ReceiptError, Retention, SharedBy, receipt_signer,
    },
    error::*,
    formats::{StoreFormats, store_formats},
    health::{DamageMet, Health},
    measures::{CacheUse, Measures},
    pseudonyms::Pseudonyms,
    query::*,
    repair::{Repair, repair},
    salvage::{CutConversation, SALVAGE_NAMESPACE, SalvageError, Salvaged, salvage},
    search::{SearchLate, SearchStage},
    ship::{BackupNote, ShipMark, ShipQuery, Shipped, ShippedBlock, ShippedErasure},
};
pub(crate) use self::{erase::hash_of_stubs, ship::last_batch};
use self::{
    history::History,
    sequencer::EngineSequencer,
    states::{HotSet, SharedViews},
};
use crate::log::Announced;
pub use crate::log::{LockHolder, LogIdentity, LogRepair, OpenMode, holder_of};
/// The text that search counts bytes and lines in, and what of it was only thought.
pub use crate::search::{Reading, Scores, is_reasoning_at, searchable_text};
use crate::{
    disk::DiskSpace,
    domain::{
        BranchName, BranchState, ConversationId, ConversationRow, ConversationState, Limits,
        Namespace, Position, Quotas, TimestampMicros,
    },
    log::{EventLog, GroupWriter, LogReader, RedbLog},
};

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The folder that holds log, views and index.
    pub data_dir: PathBuf,
    /// Bounds.
    pub limits: Limits,
    /// What for, and whether one may be made that is not there.
    pub mode: OpenMode,
    /// When the log is made dense.
    pub dense: Dense,
    /// The views are made from the log, whatever is in the folder: for those that
    /// were found to be damaged ([`ReadError::ViewsDamaged`]).
    pub views_anew: bool,
    /// From now on this store has pseudonyms ([`Pseudonyms`]) in place of actors, correlation
    /// ids and idempotency keys. It has them at every later opening, whatever this says then;
    /// one whose key is lost gets a new one only where this says so.
    pub pseudonyms: bool,
    /// Nothing will be appended: a store with pseudonyms opens without their key.
    pub only_checked: bool,
    /// How much each namespace may hold. What is there already stays, whatever this says.
    pub quotas: Quotas,
}

/// When the events of a log are packed into blocks (`docs/FORMAT.md`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dense {
    /// In the background, once a segment is full or nothing was appended for some
    /// seconds; closing packs what takes little time.
    #[default]
    Usually,
    /// Closing packs all of it, too, however long that takes.
    WhenClosed,
    /// Not at all.
    Never,
}

impl OpenOptions {
    /// The usual bounds, to append, and made if it is not there.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            limits: Limits::default(),
            mode: OpenMode::Create,
            dense: Dense::default(),
            views_anew: false,
            pseudonyms: false,
            only_checked: false,
            quotas: Quotas::default(),
        }
    }

    /// To append to one that is there.
    #[must_use]
    pub fn existing(self) -> Self {
        Self {
            mode: OpenMode::Append,
            ..self
        }
    }

    /// To read only: nothing in the folder changes, it may be on a read-only
    /// medium, and others may read it at the same time.
    #[must_use]
    pub fn read_only(self) -> Self {
        Self {
            mode: OpenMode::Read,
            ..self
        }
    }
}

/// An open store. Cheap to clone; every clone is the same store.
///
/// ```
/// # use treering::{domain::*, engine::*};
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

/// Tells other processes what this one does with the folder.
type Announce = Box<dyn Fn(Announced<'_>) + Send + Sync>;

struct Inner {
    options: OpenOptions,
    pseudonyms: Option<Pseudonyms>,
    log: Arc<dyn EventLog>,
    /// Tells other processes where this store is served.
    announce: Announce,
    /// Puts the folder's lock file back if it was deleted.
    keep_lock: Box<dyn Fn() + Send + Sync>,
    views: SharedViews,
    hot: Arc<HotSet>,
    views_path: Option<PathBuf>,
    /// Held while the views change.
    views_gate: Arc<Mutex<()>>,
    reader: Arc<LogReader>,
    writer: GroupWriter<EngineSequencer>,
    /// Offset up to which the views, and so all reads, have come.
    published: Arc<AtomicU64>,
    news: news::News,
    /// What was published and not indexed yet, as far as there is room.
    feed: Arc<feed::Feed>,
    closing: Arc<AtomicBool>,
    damaged: Mutex<Option<DamageMet>>,
    refusals: measures::Refusals,
    followers: measures::Followers,
    /// The disk, as it was a moment ago: asking may hang where the disk does. None: there is
    /// none, or the system does not say.
    disk: Mutex<Option<DiskSpace>>,
    /// The conversations that cannot be served to their end.
    marks: Arc<damage::Marks>,
    /// Held by the one rebuild that may run.
    rebuilding: Arc<tokio::sync::Mutex<()>>,
    erasings: erase::Erasings,
    indexer: Arc<indexer::Indexer>,
    contexts: context::ContextCaches,
    knowledge: context::KnowledgeCache,
    work: work::Work,
    /// None: the log is in memory, or only read.
    density: Option<dense::Density>,
    erasing_at_open: ErasingAtOpen,
    /// None: the log is in memory.
    files: Option<Arc<RedbLog>>,
    /// Held, by many, while something is handed to the writer; by one, who then is alone.
    appending: tokio::sync::RwLock<()>,
    started_at: TimestampMicros,
}

impl Engine {
    /// The bounds that this store was opened with.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.inner.options.limits
    }

    /// Tells other processes that try to open the folder where it is served.
    pub fn announce(&self, address: &str) {
        (self.inner.announce)(Announced::Services(address));
    }

    /// Tells other processes where its metrics are.
    pub fn announce_metrics(&self, address: &str) {
        (self.inner.announce)(Announced::Metrics(address));
    }

    /// The id of the store, from its making on.
    #[must_use]
    pub fn store_id(&self) -> uuid::Uuid {
        self.inner.log.identity().store
    }

    /// The last event that reads see.
    #[must_use]
    pub fn head(&self) -> Position {
        Position::local(self.inner.published.load(Ordering::Acquire))
    }

    /// The conversation with this UUID, or with this id at its source.
    ///
    /// # Errors
    /// [`ReadError::ConversationNotFound`], or [`ReadError::AmbiguousSourceId`]
    /// when conversations of several sources have the id.
    pub async fn resolve(
        &self,
        namespace: &Namespace,
        id: &str,
    ) -> Result<ConversationId, ReadError> {
        let views = self.inner.views.load_full();
        if let Ok(conversation) = id.parse::<ConversationId>()
            && (self.inner.hot.is_of(conversation, namespace)
                || self.inner.find_row(namespace, conversation)?.is_some())
        {
            return Ok(conversation);
        }
        match views.by_source_id(namespace, id)?.as_slice() {
            [] => Err(ReadError::ConversationNotFound { id: id.to_owned() }),
            [conversation] => Ok(*conversation),
            several => Err(ReadError::AmbiguousSourceId {
                id: id.to_owned(),
                count: several.len(),
            }),
        }
    }

    /// The conversation that has this id at this source; none: there is none.
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
        if self.inner.hot.is_of(derived, namespace) {
            return Ok(Some(derived));
        }
        let mut found = Vec::new();
        for id in self.inner.views.load().by_source_id(namespace, source_id)? {
            let row = self.inner.row(namespace, id)?;
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

impl Inner {
    fn history(&self) -> History {
        History {
            views: self.views.load_full(),
            reader: Arc::clone(&self.reader),
        }
    }

    /// A conversation's row, if it is this namespace's.
    fn find_row(
        &self,
        namespace: &Namespace,
        id: ConversationId,
    ) -> Result<Option<ConversationRow>, ReadError> {
        let row = self.views.load().conversation(id)?;
        Ok(row.filter(|row| row.namespace == *namespace))
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
        let state = self.views.load().state(id)?;
        state
            .filter(|state| state.row.namespace == *namespace)
            .ok_or_else(|| ReadError::ConversationNotFound { id: id.to_string() })
    }

    /// A branch by its address.
    fn branch_at(&self, address: &BranchAddress) -> Result<Arc<BranchState>, ReadError> {
        let name = address.branch.as_ref();
        self.branch(&address.namespace, address.conversation, name)
    }

    /// A branch by name; none: the active one.
    fn branch(
        &self,
        namespace: &Namespace,
        id: ConversationId,
        name: Option<&BranchName>,
    ) -> Result<Arc<BranchState>, ReadError> {
        let row = self.row(namespace, id)?;
        let Some(name) = name else {
            return self.history().branch(id, row.active).map(Arc::new);
        };
        // A conversation may have very many of them: no more than this one is read.
        let branch = self.views.load().branch_named(id, name)?;
        branch
            .map(Arc::new)
            .ok_or_else(|| ReadError::BranchNotFound {
                conversation: id,
                branch: name.to_string(),
            })
    }
}
