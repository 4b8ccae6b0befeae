//! Search requests and their answers, as plain values.

use std::sync::Arc;

use super::meaning::SearchBy;
use treering_domain::{BranchName, ConversationId, EventRef, Namespace, Position, Revision, Role};
use treering_search::{
    DuplicateHandling, Hit, QuerySyntax, RecalledTexts, RerankPool, SearchFilters, SharedRanking,
};

/// A search request.
#[derive(Clone, Debug)]
pub struct SearchRequest {
    /// The tenant.
    pub namespace: Namespace,
    /// The text to search for; empty for everything that the filters match, newest first.
    pub text: String,
    /// How `text` is parsed: as words, or as a query with "phrases", pre*, AND, OR, NOT, +must,
    /// -mustnot and (groups).
    pub reading: QuerySyntax,
    /// `text` is a regular expression, matched against the stored text; hits come newest first.
    pub regex: bool,
    /// Whether to search by words or by meaning.
    pub by: SearchBy,
    /// With [`SearchBy::Meaning`] and an empty `text`: search for texts like the beginning of this
    /// event's text, and exclude that text.
    pub similar_to: Option<EventRef>,
    /// Maximum number of hits.
    pub limit: usize,
    /// Number of hits to skip.
    pub offset: usize,
    /// Filters on conversations and branches.
    pub within: ConversationFilters,
    /// Filters on events.
    pub filters: SearchFilters,
    /// Whether events of one kind with equal text are collapsed into one hit.
    pub copies: DuplicateHandling,
    /// Also count the hits of this many conversations at most, best first. Each costs a look-up of
    /// its title. `None` for no counts.
    pub conversations_max: Option<usize>,
    /// Count all hits, not only the first thousand; this examines every match.
    pub count_all: bool,
    /// Number of context lines before and after the match in each hit.
    pub context_lines: u32,
    /// Wait until the index has reached this log position.
    pub at_least: Option<Position>,
    /// Maximum wait for `at_least`; then the answer comes from the index as it is. `None`: no limit.
    pub wait_max: Option<std::time::Duration>,
    /// What ranks hits among those of other shards, if the engine has one of several. Without
    /// [`floors`](SharedRanking::floors) the answer has only [`SearchAnswer::pool`].
    pub shared: Option<Arc<SharedRanking>>,
}

/// The conversations and branches that a search is restricted to. An empty list or `None` sets no
/// condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConversationFilters {
    /// Only this conversation.
    pub conversation: Option<ConversationId>,
    /// Only this branch's history; requires `conversation`.
    pub branch: Option<BranchName>,
    /// Also the conversation's sub-contexts; requires `conversation`.
    pub include_sub_contexts: bool,
    /// Only conversations from one of these sources.
    pub sources: Vec<String>,
    /// Only conversations that have all of these labels, as `name` or `name=value`.
    pub labels: Vec<String>,
    /// Only events in the history of each conversation's active branch.
    pub active_branches_only: bool,
    /// Only conversations that are not sealed.
    pub not_sealed: bool,
}

impl ConversationFilters {
    /// Returns filters for one conversation.
    #[must_use]
    pub fn only(conversation: ConversationId) -> Self {
        Self {
            conversation: Some(conversation),
            ..Self::default()
        }
    }
}

impl SearchRequest {
    /// Matches every text with a visible character, from its first non-blank line.
    const ANYTHING: &str = r"\S.*";

    /// Returns true when a filter besides the text narrows the search.
    #[must_use]
    pub fn is_narrowed(&self) -> bool {
        // Filters on branches, sealed conversations and sub-contexts alone do not make a listing.
        let ConversationFilters {
            conversation,
            branch: _,
            include_sub_contexts: _,
            sources,
            labels,
            active_branches_only: _,
            not_sealed: _,
        } = &self.within;
        let SearchFilters {
            tools,
            success,
            recorded_from,
            recorded_to,
            happened_from,
            happened_to,
            kinds,
            roles,
            paths,
            recalled: _,
        } = &self.filters;
        let lists = [tools, paths, sources, labels];
        let times = [recorded_from, recorded_to, happened_from, happened_to];
        conversation.is_some()
            || success.is_some()
            || !kinds.is_empty()
            || !roles.is_empty()
            || lists.iter().any(|list| !list.is_empty())
            || times.iter().any(|time| time.is_some())
    }

    /// Turns a search with filters but no text into a listing of what the filters match.
    pub(super) fn or_listing(mut self) -> Self {
        let by_words = self.by == SearchBy::Words;
        if by_words && !self.regex && self.text.trim().is_empty() && self.is_narrowed() {
            self.text = Self::ANYTHING.to_owned();
            self.regex = true;
            self.filters.recalled = RecalledTexts::Included;
        }
        self
    }

    /// Creates a search of everything in a namespace.
    #[must_use]
    pub fn new(namespace: Namespace, text: impl Into<String>, limit: usize) -> Self {
        Self {
            namespace,
            text: text.into(),
            reading: QuerySyntax::Guess,
            regex: false,
            by: SearchBy::Words,
            similar_to: None,
            limit,
            offset: 0,
            within: ConversationFilters::default(),
            filters: SearchFilters::default(),
            copies: DuplicateHandling::Folded,
            conversations_max: None,
            count_all: false,
            context_lines: 0,
            at_least: None,
            wait_max: None,
            shared: None,
        }
    }
}

/// A search hit: an event and the passage that matched.
#[derive(Clone, Debug)]
pub struct SearchHit {
    /// The event and its score, from the index.
    pub found: Hit,
    /// The place of the match, from the event itself.
    pub details: HitDetails,
    /// The id of the conversation at its source, or empty.
    pub source_id: String,
    /// The conversation's title, or empty.
    pub title: String,
    /// The branch's name.
    pub branch_name: BranchName,
    /// Number of collapsed duplicates: other events of the same kind with equal text.
    pub copies: u64,
    /// The nearest of the collapsed duplicates.
    pub copies_at: Vec<HitDuplicate>,
}

/// The place of a match, and details of the event.
#[derive(Clone, Debug, Default)]
pub struct HitDetails {
    /// Text around the best match.
    pub snippet: String,
    /// Byte ranges of the matches in `snippet`.
    pub highlights: Vec<std::ops::Range<usize>>,
    /// The line of the event's text with the best match, from 1; the first one if several are
    /// equally good. If the query is a pasted line, the line that shares most with it. 0: the text
    /// can no longer be read.
    pub line: u64,
    /// First byte of the match in the event's text.
    pub byte_start: u64,
    /// End of the match in the event's text, exclusive.
    pub byte_end: u64,
    /// The matching passage in the event's text.
    pub passage: HitPassage,
    /// The author's role, for messages.
    pub role: Option<Role>,
    /// The match is in the model's reasoning.
    pub in_reasoning: bool,
    /// The call id, for a call or a tool result.
    pub call_id: String,
    /// The first file or folder that the call names, the attached file with the match, or empty.
    pub path: String,
    /// What the call does: its command, query or pattern; or empty.
    pub command: String,
    /// For a text that quotes a memory, the address of the quoted event as the quote states it; or
    /// empty.
    pub quotes: String,
    /// The lines around the match, if requested.
    pub context: String,
    /// The line of the event's text at which `context` begins, from 1.
    pub context_line: u64,
}

/// A collapsed duplicate of a hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HitDuplicate {
    /// The conversation.
    pub conversation: ConversationId,
    /// Its id at its source, or empty.
    pub source_id: String,
    /// The event's revision.
    pub revision: Revision,
}

/// The place of a passage in its event's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HitPassage {
    /// The line in which it begins, from 1.
    pub line: u64,
    /// Its first byte.
    pub byte_start: u64,
    /// The end, exclusive.
    pub byte_end: u64,
}

/// The hits of a search in one conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct ConversationHits {
    /// The conversation.
    pub conversation: ConversationId,
    /// Its id at its source, or empty.
    pub source_id: String,
    /// Its title, or empty.
    pub title: String,
    /// Number of matching events.
    pub hits: u64,
    /// The score of the best hit; 0 if none is among the first thousand.
    pub score: f32,
}

/// The answer to a search.
#[derive(Clone, Debug)]
pub struct SearchAnswer {
    /// The hits, best first.
    pub hits: Vec<SearchHit>,
    /// Number of hits on all pages together.
    pub total: u64,
    /// There are more hits than `total`: only the first thousand were counted.
    pub more_than_total: bool,
    /// The log position that the index had reached.
    pub reached: Position,
    /// The index covered the whole log as of the start of the search.
    pub complete: bool,
    /// Number of log events that were not indexed yet.
    pub events_missing: u64,
    /// How the text was parsed.
    pub read_as: QuerySyntax,
    /// The text is one name made of several parts, and no event contains the whole name.
    pub parts_only: bool,
    /// A result that the `success` filter hides and that matches the query clearly better than the
    /// best hit.
    pub hidden: Option<Box<SearchHit>>,
    /// Conversations with hits, best first, if requested.
    pub conversations: Vec<ConversationHits>,
    /// Why the index lags behind the log; `None` if it is complete or at most a moment behind.
    pub lagging: Option<String>,
    /// Number of first hits whose texts decide their order among those of other shards.
    pub checked: usize,
    /// The passages that this shard would rerank, if they were asked for.
    pub pool: Option<RerankPool>,
}
