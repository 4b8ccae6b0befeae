//! Tool observations of any branch as of any revision: the fold of `treering_digest::knowledge`
//! over the branch's history.
//!
//! Folds are cached by branch and extended when the branch has grown. The cache is not needed for
//! correctness; a fork folds the shared history again.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use futures::StreamExt;
use quick_cache::{Weighter, sync::Cache};
use tokio::sync::Mutex;

use crate::{
    Engine, ReadPath,
    error::ReadError,
    history::decode_body,
    memory,
    query::{BranchAddress, CallStatus, EventSource, ReadQuery, ToolCall, ToolHistoryQuery},
    work::{PriorityClass, priority_for},
};
use treering_digest::knowledge::{
    CompletedArguments, KNOWLEDGE_POLICY, Knowledge, KnowledgePolicy,
};
use treering_domain::{
    BranchId, BranchState, ConversationId, ConversationKey, EventBody, EventRef, Namespace,
    Revision, ToolDefinition,
};

/// Size of an entry without its knowledge, in bytes.
const ENTRY_BYTES: u64 = 512;
/// Typical size of a branch's knowledge in bytes, to size the cache's table.
const USUAL_BYTES: u64 = 16 << 10;

/// A query for a branch's knowledge.
#[derive(Clone, Debug)]
pub struct KnowledgeQuery {
    /// The branch.
    pub address: BranchAddress,
    /// As of this revision; `None` for now.
    pub as_of: Option<Revision>,
    /// Number of recent results to return, newest first.
    pub recent: usize,
    /// Only recent results of this tool.
    pub tool: Option<String>,
}

impl KnowledgeQuery {
    /// Creates a query for the branch's current knowledge, without recent results.
    #[must_use]
    pub fn new(address: BranchAddress) -> Self {
        Self {
            address,
            as_of: None,
            recent: 0,
            tool: None,
        }
    }
}

/// A branch's knowledge.
#[derive(Clone, Debug)]
pub struct KnowledgeAnswer {
    /// The revision that it reflects.
    pub revision: Revision,
    /// Files, variables, working directory and outcomes.
    pub knowledge: Arc<Knowledge>,
    /// Calls that have returned, newest first.
    pub recent: Vec<ToolCall>,
}

/// The prerequisites of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prerequisites {
    /// Prerequisites that have not succeeded.
    pub missing: Vec<String>,
    /// All configured prerequisites.
    pub configured: Vec<String>,
}

/// Knowledge by branch.
pub(crate) struct KnowledgeCache {
    cache: Cache<Key, CacheEntry, EntryWeigher>,
    /// Number of erasures, each of which clears the cache.
    erasures: AtomicU64,
}

/// A branch and the number of erasures, so that older entries are no longer found.
type Key = (ConversationKey, BranchId, u64);

/// `None` if nothing was folded yet, or the fold was interrupted.
type Entry = Mutex<Option<FoldedKnowledge>>;

/// An entry with its weight at insertion: the cache requires weights that do not change.
#[derive(Clone, Default)]
struct CacheEntry {
    entry: Arc<Entry>,
    bytes: u64,
}

struct FoldedKnowledge {
    head: Revision,
    knowledge: Arc<Knowledge>,
}

#[derive(Clone)]
struct EntryWeigher;

impl Weighter<Key, CacheEntry> for EntryWeigher {
    fn weight(&self, _: &Key, cached: &CacheEntry) -> u64 {
        ENTRY_BYTES + cached.bytes
    }
}

impl KnowledgeCache {
    pub(crate) fn new(bytes_max: u64) -> Self {
        let entries = (bytes_max / USUAL_BYTES).max(16);
        let entries = usize::try_from(entries).unwrap_or(usize::MAX);
        Self {
            cache: Cache::with_weighter(entries, bytes_max, EntryWeigher),
            erasures: AtomicU64::new(0),
        }
    }

    /// Clears the cache after an erasure. Results of folds in progress are not cached either.
    pub(crate) fn forget(&self) {
        self.erasures.fetch_add(1, Ordering::AcqRel);
        self.cache.clear();
    }

    fn key(&self, conversation: ConversationKey, branch: BranchId) -> Key {
        (conversation, branch, self.erasures.load(Ordering::Acquire))
    }

    pub(crate) fn cache(&self) -> &impl memory::Cache {
        &self.cache
    }

    fn entry(&self, key: Key) -> Arc<Entry> {
        let new = || Ok::<_, std::convert::Infallible>(CacheEntry::default());
        match self.cache.get_or_insert_with(&key, new) {
            Ok(cached) => cached.entry,
            Err(never) => match never {},
        }
    }

    /// Updates the weight of an entry.
    fn weigh(&self, key: Key, entry: &Arc<Entry>, bytes: usize) {
        let cached = CacheEntry {
            entry: Arc::clone(entry),
            bytes: bytes as u64,
        };
        self.cache.insert(key, cached);
    }
}

/// A resolved query for a branch.
#[derive(Clone)]
struct KnowledgeRequest {
    namespace: Namespace,
    conversation: ConversationId,
    branch: Arc<BranchState>,
    policy: Arc<KnowledgePolicy>,
}

impl KnowledgeRequest {
    fn key(&self) -> ConversationKey {
        self.namespace.key(self.conversation)
    }
}

impl Engine {
    /// Returns a branch's knowledge, and its last results.
    ///
    /// # Errors
    /// [`ReadError`] when the branch or the revision does not exist;
    /// [`ReadError::KnowledgePolicy`] when the conversation's `knowledge` policy is invalid.
    pub async fn knowledge(&self, query: KnowledgeQuery) -> Result<KnowledgeAnswer, ReadError> {
        let asked = self.inner.reads.asked(&query.address)?;
        let (revision, knowledge) = self.known(&asked, query.as_of).await?;
        let recent = if query.recent == 0 {
            Vec::new()
        } else {
            let history = ToolHistoryQuery {
                address: query.address.on(asked.branch.name.clone()),
                as_of: query.as_of,
                tool: query.tool,
                limit: query.recent,
            };
            let returned =
                |call: &ToolCall| matches!(call.status, CallStatus::Succeeded | CallStatus::Failed);
            let recent = move |engine: Self, history| async move {
                engine.calls_where(history, returned).await
            };
            self.on_history(history, recent).await?
        };
        Ok(KnowledgeAnswer {
            revision,
            knowledge,
            recent,
        })
    }

    /// Suggests a call's arguments: fills in files, variables and the working directory. It fills
    /// arguments that are null or empty, and missing ones that the tool's definition on the branch
    /// names.
    ///
    /// # Errors
    /// As [`Engine::knowledge`]; [`ReadError::Invalid`] when the arguments are not a JSON object.
    pub async fn suggest_arguments(
        &self,
        address: &BranchAddress,
        tool: &str,
        arguments: &str,
    ) -> Result<CompletedArguments, ReadError> {
        let asked = self.inner.reads.asked(address)?;
        let (_, knowledge) = self.known(&asked, None).await?;
        let tools = self.inner.reads.definitions(&asked).await?;
        let definition = tools.iter().find(|definition| definition.name == tool);
        knowledge
            .suggest_arguments(tool, arguments, definition)
            .map_err(|error| ReadError::Invalid {
                message: error.to_string(),
            })
    }

    /// Returns the prerequisites of a tool that have not succeeded on the branch, and all that are
    /// configured.
    ///
    /// # Errors
    /// As [`Engine::knowledge`].
    pub async fn missing_prerequisites(
        &self,
        address: &BranchAddress,
        tool: &str,
    ) -> Result<Prerequisites, ReadError> {
        let asked = self.inner.reads.asked(address)?;
        let (_, knowledge) = self.known(&asked, None).await?;
        Ok(Prerequisites {
            missing: knowledge.missing_prerequisites(tool),
            configured: knowledge.configured_prerequisites(tool),
        })
    }

    /// Returns one or two sentences of advice on the next step, for a prompt; or an empty text.
    ///
    /// # Errors
    /// As [`Engine::knowledge`].
    pub async fn tool_guidance(&self, address: &BranchAddress) -> Result<String, ReadError> {
        let asked = self.inner.reads.asked(address)?;
        let (_, knowledge) = self.known(&asked, None).await?;
        let tools = self.inner.reads.definitions(&asked).await?;
        let discovered = &asked.branch.memory.discovered_tools;
        let offered: Vec<String> = tools
            .into_iter()
            .filter(|tool| !tool.discoverable || discovered.contains(&tool.name))
            .map(|tool| tool.name)
            .collect();
        Ok(knowledge.guidance(&offered))
    }

    /// Returns a branch's knowledge as text for a prompt, bounded by the conversation's policy.
    /// Empty when nothing is known.
    ///
    /// # Errors
    /// As [`Engine::knowledge`].
    pub async fn knowledge_summary(
        &self,
        address: &BranchAddress,
        as_of: Option<Revision>,
    ) -> Result<String, ReadError> {
        let asked = self.inner.reads.asked(address)?;
        let (_, knowledge) = self.known(&asked, as_of).await?;
        Ok(knowledge.summary_text())
    }

    /// Returns the knowledge of a branch, and the revision that it reflects.
    async fn known(
        &self,
        asked: &KnowledgeRequest,
        as_of: Option<Revision>,
    ) -> Result<(Revision, Arc<Knowledge>), ReadError> {
        let cache = &self.inner.context.knowledge;
        let key = cache.key(asked.key(), asked.branch.id);
        let is_cached = as_of.is_none() && cache.cache.peek(&key).is_some();
        let lane = match is_cached {
            true => PriorityClass::Short,
            false => priority_for(asked.branch.history_events),
        };
        let asked = asked.clone();
        let read = |engine: Self| async move { engine.known_here(&asked, as_of).await };
        self.on(lane, read).await
    }

    async fn known_here(
        &self,
        asked: &KnowledgeRequest,
        as_of: Option<Revision>,
    ) -> Result<(Revision, Arc<Knowledge>), ReadError> {
        let head = asked.branch.head;
        if let Some(revision) = as_of.filter(|revision| *revision != head) {
            let branch = &asked.branch;
            // Fails if the revision is not in the branch's history.
            self.inner
                .reads
                .as_of(asked.key(), branch, revision)
                .await?;
            let empty = self.nothing_known(asked);
            let knowledge = self.fold(asked, empty, Revision::NONE, revision).await?;
            return Ok((revision, Arc::new(knowledge)));
        }
        let cache = &self.inner.context.knowledge;
        let key = cache.key(asked.key(), asked.branch.id);
        let entry = cache.entry(key);
        let mut folded = entry.lock().await;
        if let Some(known) = folded.as_ref().filter(|known| known.head >= head) {
            return Ok((known.head, Arc::clone(&known.knowledge)));
        }
        // The knowledge is taken out of the entry, so that an interrupted fold leaves nothing
        // behind.
        let (known, after) = match folded.take() {
            Some(known) => (Arc::unwrap_or_clone(known.knowledge), known.head),
            None => (self.nothing_known(asked), Revision::NONE),
        };
        let knowledge = Arc::new(self.fold(asked, known, after, head).await?);
        let bytes = knowledge.estimated_bytes();
        *folded = Some(FoldedKnowledge {
            head,
            knowledge: Arc::clone(&knowledge),
        });
        drop(folded);
        cache.weigh(key, &entry, bytes);
        Ok((head, knowledge))
    }

    fn nothing_known(&self, asked: &KnowledgeRequest) -> Knowledge {
        let items_max = self.limits().knowledge_items_max;
        Knowledge::new(Arc::clone(&asked.policy), items_max)
    }

    /// Folds the branch's events after one revision, up to another.
    async fn fold(
        &self,
        asked: &KnowledgeRequest,
        mut knowledge: Knowledge,
        after: Revision,
        to: Revision,
    ) -> Result<Knowledge, ReadError> {
        let source = EventSource::Branch {
            conversation: asked.conversation,
            branch: Some(asked.branch.name.clone()),
        };
        let mut batches = self.read(ReadQuery {
            // 0 also reads the history that a fork inherits from another conversation.
            from: match after {
                Revision::NONE => 0,
                after => after.next().0,
            },
            to: to.0,
            kinds: Knowledge::KINDS.to_vec(),
            ..ReadQuery::all(asked.namespace.clone(), source)
        });
        while let Some(batch) = batches.next().await {
            for named in batch? {
                let (header, position) = (&named.event.header, named.event.position);
                let body = decode_body(position.offset, header.kind, &named.event.body)?;
                let at = EventRef {
                    conversation: header.conversation,
                    revision: header.revision,
                };
                knowledge.apply(at, &body);
            }
        }
        Ok(knowledge)
    }
}

impl ReadPath {
    fn asked(&self, address: &BranchAddress) -> Result<KnowledgeRequest, ReadError> {
        let info = self.row(&address.namespace, address.conversation)?.info;
        let text = info.policies.get(KNOWLEDGE_POLICY);
        let policy = KnowledgePolicy::merged(text.map_or("", String::as_str));
        Ok(KnowledgeRequest {
            namespace: address.namespace.clone(),
            conversation: address.conversation,
            branch: self.branch_at(address)?,
            policy: Arc::new(policy?),
        })
    }

    /// Returns the tools last defined on a branch.
    async fn definitions(
        &self,
        asked: &KnowledgeRequest,
    ) -> Result<Vec<ToolDefinition>, ReadError> {
        let Some(at) = asked.branch.tools_defined else {
            return Ok(Vec::new());
        };
        Ok(match &self.window_event(&asked.namespace, at).await?.body {
            EventBody::ToolsDefined { tools } => tools.clone(),
            _ => Vec::new(),
        })
    }
}
