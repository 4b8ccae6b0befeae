//! The columns of visible segments, opened once for all searches: fields of hits, sort keys, and
//! filters that columns can answer.

use std::sync::{Arc, OnceLock};

use tantivy::{
    DocId, Searcher, SegmentReader,
    columnar::{BytesColumn, Column, StrColumn},
    index::SegmentId,
};

use super::{
    conversation_set::{ChosenConversations, SegmentSet},
    error::IndexError,
    hits::{RankedPassage, damaged, unreadable},
    lineage::SegmentLineage,
    plan::TAGGED_CONVERSATIONS_MAX,
    query::{DuplicateHandling, Hit, RecalledTexts, Scope, SearchFilters, SearchQuery},
    schema::{RECALLED, column, outcome_number, outcome_of},
    verbatim::VerbatimMatch,
};
use treering_domain::{
    BranchId, ConversationId, EventKind, Position, Revision, ShardId, TimestampMicros,
};

/// Maximum number of tool names of a segment that are cached, at about 64 bytes each. With more,
/// names are looked up.
const TOOL_NAMES_MAX: usize = 4_096;

/// The columns of a searcher's segments, in their order.
#[derive(Clone)]
pub(super) struct OpenColumns {
    searcher: Searcher,
    segments: Vec<(SegmentId, Arc<OnceLock<Columns>>)>,
}

impl OpenColumns {
    /// Returns the columns of a searcher's segments. Columns opened for `before` are reused; others
    /// are opened on first use.
    pub(crate) fn of(searcher: &Searcher, before: Option<&Self>) -> Self {
        let readers = searcher.segment_readers().iter();
        let segments = readers.map(|reader| {
            let id = reader.segment_id();
            let mut known = before.iter().flat_map(|before| &before.segments);
            let known = known.find(|(known, _)| *known == id);
            (id, known.map(|(_, open)| open.clone()).unwrap_or_default())
        });
        Self {
            segments: segments.collect(),
            searcher: searcher.clone(),
        }
    }

    /// Returns the columns of one segment, by its ordinal in the searcher.
    ///
    /// # Errors
    /// [`IndexError::NeedsRebuild`] when they are damaged.
    pub(crate) fn of_segment(&self, segment: u32) -> Result<&Columns, IndexError> {
        let (_, open) = self.segments.get(segment as usize).ok_or_else(damaged)?;
        if let Some(columns) = open.get() {
            return Ok(columns);
        }
        let reader = self.searcher.segment_reader(segment);
        let columns = Columns::open(reader).map_err(unreadable)?;
        Ok(open.get_or_init(|| columns))
    }
}

/// The columns of a segment.
pub(super) struct Columns {
    shard: Column<u64>,
    offset: Column<u64>,
    byte_start: Column<u64>,
    text_hash: Column<u64>,
    conversation: Option<BytesColumn>,
    tool: Option<StrColumn>,
    /// Tool names by ordinal; empty when there are too many.
    tools: Vec<String>,
    recorded_at: Column<i64>,
    happened_at: Column<i64>,
    branch: Column<u64>,
    revision: Column<u64>,
    kind: Column<u64>,
    outcome: Column<u64>,
}

impl Columns {
    fn open(segment: &SegmentReader) -> tantivy::Result<Self> {
        let columns = segment.fast_fields();
        let tool = columns.str(column::TOOL)?;
        let mut tools = Vec::new();
        if let Some(tool) = tool
            .as_ref()
            .filter(|tool| tool.num_terms() <= TOOL_NAMES_MAX)
        {
            for ordinal in 0..tool.num_terms() as u64 {
                let mut name = String::new();
                tool.ord_to_str(ordinal, &mut name)?;
                tools.push(name);
            }
        }
        Ok(Self {
            shard: columns.u64(column::SHARD)?,
            offset: columns.u64(column::OFFSET)?,
            byte_start: columns.u64(column::BYTE_START)?,
            text_hash: columns.u64(column::TEXT_HASH)?,
            conversation: columns.bytes(column::CONVERSATION)?,
            tool,
            tools,
            recorded_at: columns.i64(column::RECORDED_AT)?,
            happened_at: columns.i64(column::HAPPENED_AT)?,
            branch: columns.u64(column::BRANCH)?,
            revision: columns.u64(column::REVISION)?,
            kind: columns.u64(column::KIND)?,
            outcome: columns.u64(column::OUTCOME)?,
        })
    }

    /// Returns a passage's event and the offset of its first byte in the event's text.
    pub(crate) fn place(&self, doc: DocId) -> Result<(Position, u64), IndexError> {
        let shard = u32::try_from(number(&self.shard, doc)?).map_err(|_| damaged())?;
        let position = Position {
            shard: ShardId(shard),
            offset: number(&self.offset, doc)?,
        };
        Ok((position, number(&self.byte_start, doc)?))
    }

    /// Returns when the newest event of the segment happened. Deleted ones count too.
    pub(crate) fn newest(&self) -> TimestampMicros {
        TimestampMicros(self.happened_at.max_value())
    }

    /// Returns when a passage's event happened.
    pub(crate) fn happened_at(&self, doc: DocId) -> Result<TimestampMicros, IndexError> {
        let time = self.happened_at.first(doc).ok_or_else(damaged)?;
        Ok(TimestampMicros(time))
    }

    /// Returns the kind of a passage's event.
    pub(crate) fn kind(&self, doc: DocId) -> Option<EventKind> {
        let number = self.kind.first(doc)?;
        EventKind::from_number(u16::try_from(number).ok()?)
    }

    /// Returns a passage as a hit.
    pub(crate) fn hit(&self, ranked: &RankedPassage) -> Result<Hit, IndexError> {
        let doc = ranked.address.doc_id;
        Ok(Hit {
            conversation: self.conversation(doc)?,
            branch: BranchId(number(&self.branch, doc)?),
            revision: Revision(number(&self.revision, doc)?),
            position: ranked.position,
            kind: self.kind(doc).ok_or_else(damaged)?,
            tool: self.tool(doc)?,
            success: outcome_of(number(&self.outcome, doc)?),
            recalled: number(&self.outcome, doc)? >= RECALLED,
            recorded_at: TimestampMicros(self.recorded_at.first(doc).ok_or_else(damaged)?),
            happened_at: self.happened_at(doc)?,
            score: ranked.score,
            scores: ranked.scores,
            phrase_score: ranked.phrase_score,
            byte_start: ranked.byte_start,
            text_hash: self.text_hash(doc)?,
            window: ranked.window,
            tier: ranked.tier,
            is_reranked: ranked.is_reranked,
            as_typed: VerbatimMatch::default(),
        })
    }

    /// Returns the hash of the text that a passage belongs to.
    pub(crate) fn text_hash(&self, doc: DocId) -> Result<u64, IndexError> {
        number(&self.text_hash, doc)
    }

    /// Returns the key shared by passages that form one hit.
    pub(crate) fn group(&self, doc: DocId, copies: DuplicateHandling) -> Result<u64, IndexError> {
        match copies {
            DuplicateHandling::Folded => number(&self.text_hash, doc),
            DuplicateHandling::Each => number(&self.offset, doc),
        }
    }

    /// Returns the conversation and revision of a passage's event.
    pub(crate) fn address(&self, doc: DocId) -> Result<(ConversationId, Revision), IndexError> {
        Ok((
            self.conversation(doc)?,
            Revision(number(&self.revision, doc)?),
        ))
    }

    /// Returns the conversation of a passage.
    pub(crate) fn conversation(&self, doc: DocId) -> Result<ConversationId, IndexError> {
        let column = self.conversation.as_ref().ok_or_else(damaged)?;
        let ordinal = self.conversation_ordinal(doc)?;
        let mut bytes = Vec::with_capacity(16);
        column
            .ord_to_bytes(ordinal, &mut bytes)
            .map_err(|_| damaged())?;
        let id = uuid::Uuid::from_slice(&bytes).map_err(|_| damaged())?;
        Ok(ConversationId(id))
    }

    /// Returns the ordinal of a passage's conversation in this segment.
    pub(crate) fn conversation_ordinal(&self, doc: DocId) -> Result<u64, IndexError> {
        let column = self.conversation.as_ref().ok_or_else(damaged)?;
        column.ords().first(doc).ok_or_else(damaged)
    }

    /// Calls `each` with the conversations of these ordinals and their counts.
    pub(crate) fn each_conversation(
        &self,
        counts: impl IntoIterator<Item = (u64, u64)>,
        mut each: impl FnMut(ConversationId, u64),
    ) -> Result<(), IndexError> {
        let column = self.conversation.as_ref().ok_or_else(damaged)?;
        let mut counts: Vec<(u64, u64)> = counts.into_iter().collect();
        counts.sort_unstable();
        let ordinals: Vec<u64> = counts.iter().map(|(ordinal, _)| *ordinal).collect();
        let (mut counts, mut are_valid) = (counts.iter(), true);
        let found = column
            .dictionary()
            .sorted_ords_to_term_cb(&ordinals, |bytes| {
                match (uuid::Uuid::from_slice(bytes), counts.next()) {
                    (Ok(id), Some((_, count))) => each(ConversationId(id), *count),
                    _ => are_valid = false,
                }
            });
        match found {
            Ok(true) if are_valid => Ok(()),
            _ => Err(damaged()),
        }
    }

    fn tool(&self, doc: DocId) -> Result<String, IndexError> {
        let Some(column) = &self.tool else {
            return Ok(String::new());
        };
        let Some(ordinal) = column.ords().first(doc) else {
            return Ok(String::new());
        };
        if let Some(name) = self.tools.get(ordinal as usize) {
            return Ok(name.clone());
        }
        let mut name = String::new();
        column
            .ord_to_str(ordinal, &mut name)
            .map_err(|_| damaged())?;
        Ok(name)
    }
}

fn number(column: &Column<u64>, doc: DocId) -> Result<u64, IndexError> {
    column.first(doc).ok_or_else(damaged)
}

/// Returns a time span, or `None` when neither end is bounded.
pub(super) fn span(
    from: Option<TimestampMicros>,
    to: Option<TimestampMicros>,
) -> Option<(i64, i64)> {
    let is_bounded = from.is_some() || to.is_some();
    let span = (
        from.map_or(i64::MIN, |time| time.0),
        to.map_or(i64::MAX, |time| time.0),
    );
    is_bounded.then_some(span)
}

fn is_within(times: &Column<i64>, doc: DocId, span: Option<(i64, i64)>) -> bool {
    span.is_none_or(|(from, to)| {
        let time = times.first(doc);
        time.is_some_and(|time| (from..=to).contains(&time))
    })
}

/// Filters that columns can answer, in one segment.
pub(super) struct ColumnFilter<'a> {
    columns: &'a Columns,
    kinds: Vec<u64>,
    outcome: Option<u64>,
    /// Whether passages must or must not quote a memory; `None` if that does not matter.
    recalled: Option<bool>,
    /// The tools' ordinals in this segment.
    tools: Option<Vec<u64>>,
    recorded: Option<(i64, i64)>,
    happened: Option<(i64, i64)>,
    chosen: Option<SegmentSet>,
    shown: Option<SegmentLineage>,
}

impl<'a> ColumnFilter<'a> {
    /// Returns whether columns can answer all of these filters.
    pub(crate) fn answers(query: &SearchQuery) -> bool {
        // `new` handles the filters that are ignored here.
        let SearchFilters {
            tools: _,
            success: _,
            recorded_from: _,
            recorded_to: _,
            happened_from: _,
            happened_to: _,
            kinds: _,
            recalled: _,
            roles,
            paths,
        } = &query.filters;
        let is_answered = match &query.scope {
            None => true,
            Some(Scope::Lineage(_)) => false,
            // A small set is looked up by tags instead.
            Some(Scope::Conversations(chosen)) => {
                let few = |ids: &[ConversationId]| ids.len() <= TAGGED_CONVERSATIONS_MAX;
                !chosen.ids().is_some_and(few)
            }
        };
        is_answered && roles.is_empty() && paths.is_empty()
    }

    /// Returns the filters for a segment with these columns.
    ///
    /// # Errors
    /// [`IndexError::NeedsRebuild`] when tool names are damaged.
    pub(crate) fn new(
        columns: &'a Columns,
        reader: &SegmentReader,
        query: &SearchQuery,
    ) -> Result<Self, IndexError> {
        let filters = &query.filters;
        let chosen = match &query.scope {
            Some(Scope::Conversations(chosen)) => Some(columns.chosen(reader, chosen)?),
            _ => None,
        };
        let shown = (!query.shown.is_empty()).then(|| query.shown.in_segment(reader));
        Ok(Self {
            chosen,
            shown: shown.transpose().map_err(unreadable)?,
            kinds: filters
                .kinds
                .iter()
                .map(|kind| u64::from(kind.number()))
                .collect(),
            outcome: filters
                .success
                .map(|success| outcome_number(Some(success), false)),
            recalled: match filters.recalled {
                RecalledTexts::LeftOut if columns.outcome.max_value() >= RECALLED => Some(false),
                RecalledTexts::LeftOut | RecalledTexts::Included => None,
                RecalledTexts::Only => Some(true),
            },
            tools: match filters.tools.as_slice() {
                [] => None,
                tools => Some(columns.ordinals(tools)?),
            },
            recorded: span(filters.recorded_from, filters.recorded_to),
            happened: span(filters.happened_from, filters.happened_to),
            columns,
        })
    }

    fn has_outcome(&self, doc: DocId) -> bool {
        if self.outcome.is_none() && self.recalled.is_none() {
            return true;
        }
        self.columns.outcome.first(doc).is_some_and(|number| {
            let (own, is_recalled) = (number & !RECALLED, number >= RECALLED);
            self.outcome.is_none_or(|outcome| outcome == own)
                && self.recalled.is_none_or(|recalled| recalled == is_recalled)
        })
    }

    /// Returns whether a passage passes the filters.
    pub(crate) fn passes(&self, doc: DocId) -> bool {
        let columns = self.columns;
        let is_of_kind = |kind| self.kinds.contains(&kind);
        (self.kinds.is_empty() || columns.kind.first(doc).is_some_and(is_of_kind))
            && self.has_outcome(doc)
            && self.tools.as_ref().is_none_or(|wanted| {
                let tool = columns.tool.as_ref();
                tool.and_then(|tool| tool.ords().first(doc))
                    .is_some_and(|ordinal| wanted.contains(&ordinal))
            })
            && is_within(&columns.recorded_at, doc, self.recorded)
            && is_within(&columns.happened_at, doc, self.happened)
            && self.chosen.as_ref().is_none_or(|chosen| {
                let column = columns.conversation.as_ref();
                chosen.has(column.and_then(|column| column.ords().first(doc)))
            })
            && self.shown.as_ref().is_none_or(|shown| shown.has(doc))
    }
}

impl Columns {
    /// Returns the chosen conversations in this segment.
    pub(crate) fn chosen(
        &self,
        reader: &SegmentReader,
        chosen: &ChosenConversations,
    ) -> Result<SegmentSet, IndexError> {
        let column = self.conversation.as_ref().ok_or_else(damaged)?;
        let chosen = chosen.in_segment(reader.segment_id(), column);
        chosen.map_err(unreadable)
    }

    fn ordinals(&self, tools: &[String]) -> Result<Vec<u64>, IndexError> {
        let Some(column) = &self.tool else {
            return Ok(Vec::new());
        };
        let ordinal = |tool: &String| column.dictionary().term_ord(tool);
        let found: std::io::Result<Vec<Option<u64>>> = tools.iter().map(ordinal).collect();
        Ok(found
            .map_err(|_| damaged())?
            .into_iter()
            .flatten()
            .collect())
    }
}
