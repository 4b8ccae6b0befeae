//! The conversations that a filter selects. They may be the whole store.
//!
//! Each segment numbers its conversations. The selected ones are looked up once in each segment and
//! kept as a bit set, for all queries of a search and for all searches that share the set.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use tantivy::{
    BitSet, DocId, SegmentReader, TantivyError,
    columnar::BytesColumn,
    index::SegmentId,
    query::{
        Query,
        doc_predicate_query::{DocPredicateQuery, FunctionPredicate},
    },
};

use super::{memory::HeldMemory, schema::column};
use treering_base::cancel;
use treering_domain::ConversationId;

/// One look-up in a segment takes as long as skipping this many of its conversations.
const PASSED_FOR_ONE: usize = 64;
/// Look-ups between two checks for cancellation.
const LOOKED_UP_AT_ONCE: usize = 1_024;

/// A set of conversations, or the complement of one. Clones share it.
#[derive(Clone, Default)]
pub struct ChosenConversations {
    set: Arc<ConversationSet>,
    /// The set is all conversations except these.
    is_inverted: bool,
    /// The memory that a search reserved for the ids, if any.
    _held: Option<Arc<HeldMemory>>,
}

#[derive(Default)]
struct ConversationSet {
    ids: Vec<ConversationId>,
    /// The ids in the order in which `extended` added them.
    added: Vec<ConversationId>,
    in_segments: Arc<Mutex<HashMap<SegmentId, FoundInSegment>>>,
}

/// Maximum number of segments for which a set caches ordinals. An index has up to about 30.
const SEGMENTS_MAX: usize = 64;

/// The cached ordinals of a set in a segment.
struct FoundInSegment {
    /// How many of the conversations were looked up.
    looked_up: usize,
    ordinals: Arc<BitSet>,
}

impl ChosenConversations {
    /// Returns the set, which keeps this memory reservation until the set is dropped.
    #[must_use]
    pub fn holding(self, held: HeldMemory) -> Self {
        Self {
            _held: Some(Arc::new(held)),
            ..self
        }
    }

    fn of(set: ConversationSet) -> Self {
        Self {
            set: Arc::new(set),
            ..Self::default()
        }
    }

    /// Returns the complement.
    #[must_use]
    pub fn others(&self) -> Self {
        Self {
            is_inverted: !self.is_inverted,
            ..self.clone()
        }
    }

    /// Returns the set with more conversations, which must not be in it yet. Both sets share the
    /// cached ordinals, so a set must not be extended in two different ways.
    #[must_use]
    pub fn extended(&self, more: &[ConversationId]) -> Self {
        let set = &self.set;
        let mut ids = [set.ids.as_slice(), more].concat();
        ids.sort();
        Self::of(ConversationSet {
            ids,
            added: [set.added.as_slice(), more].concat(),
            in_segments: Arc::clone(&set.in_segments),
        })
    }

    /// Returns the ids, in order; `None` when the set is a complement.
    #[must_use]
    pub fn ids(&self) -> Option<&[ConversationId]> {
        (!self.is_inverted).then_some(&self.set.ids)
    }

    /// Returns whether the set has a conversation.
    #[must_use]
    pub fn has(&self, id: ConversationId) -> bool {
        self.set.ids.binary_search(&id).is_ok() != self.is_inverted
    }

    /// Returns the memory of the ids and the cached ordinals, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let found = self.set.in_segments.lock();
        let found = found.unwrap_or_else(PoisonError::into_inner);
        let of_segment = |found: &FoundInSegment| found.ordinals.max_value() as usize / 8;
        (self.set.ids.len() + self.set.added.len()) * size_of::<ConversationId>()
            + found.values().map(of_segment).sum::<usize>()
    }

    /// Returns a query that matches the passages of these conversations.
    pub(super) fn query(&self) -> Box<dyn Query> {
        let chosen = self.clone();
        let predicate = FunctionPredicate::from(move |reader: &SegmentReader| {
            let column = reader.fast_fields().bytes(column::CONVERSATION)?;
            let column = column.map(|column| {
                let within = chosen.in_segment(reader.segment_id(), &column)?;
                Ok::<_, TantivyError>((column, within))
            });
            let column = column.transpose()?;
            Ok(move |doc: DocId| {
                let column = column.as_ref();
                column.is_some_and(|(column, within)| within.has(column.ords().first(doc)))
            })
        });
        Box::new(DocPredicateQuery::from(predicate))
    }

    /// Returns the set in a segment.
    pub(super) fn in_segment(
        &self,
        id: SegmentId,
        column: &BytesColumn,
    ) -> tantivy::Result<SegmentSet> {
        Ok(SegmentSet {
            ordinals: self.set.ordinals(id, column)?,
            is_inverted: self.is_inverted,
        })
    }
}

impl ConversationSet {
    /// Returns the ordinals of the ids in a segment.
    fn ordinals(&self, id: SegmentId, column: &BytesColumn) -> tantivy::Result<Arc<BitSet>> {
        let mut known = self
            .in_segments
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let found = known.get(&id);
        if let Some(found) = found.filter(|found| found.looked_up >= self.ids.len()) {
            return Ok(Arc::clone(&found.ordinals));
        }
        let ordinals = match found {
            Some(found) => {
                let mut ordinals = BitSet::clone(&found.ordinals);
                let mut more = self.added[found.looked_up..].to_vec();
                more.sort_unstable();
                add_ordinals(column, &more, &mut ordinals)?;
                ordinals
            }
            None => {
                let in_segment = u32::try_from(column.num_terms()).map_err(too_large)?;
                let mut ordinals = BitSet::with_max_value(in_segment);
                add_ordinals(column, &self.ids, &mut ordinals)?;
                ordinals
            }
        };
        if known.len() >= SEGMENTS_MAX {
            // Most of these segments are no longer in the index.
            known.clear();
        }
        let ordinals = Arc::new(ordinals);
        let found = FoundInSegment {
            looked_up: self.ids.len(),
            ordinals: Arc::clone(&ordinals),
        };
        known.insert(id, found);
        Ok(ordinals)
    }
}

fn add_ordinals(
    column: &BytesColumn,
    ids: &[ConversationId],
    ordinals: &mut BitSet,
) -> tantivy::Result<()> {
    each_number(column, ids, |_, ordinal| {
        ordinals.insert(u32::try_from(ordinal).map_err(too_large)?);
        Ok(())
    })
}

/// Calls `each` with each of these conversations that the segment has, and its ordinal. The ids
/// must be sorted, without duplicates.
pub(super) fn each_number(
    column: &BytesColumn,
    ids: &[ConversationId],
    mut each: impl FnMut(ConversationId, u64) -> tantivy::Result<()>,
) -> tantivy::Result<()> {
    let dictionary = column.dictionary();
    if ids.len() < dictionary.num_terms() / PASSED_FOR_ONE {
        for ids in ids.chunks(LOOKED_UP_AT_ONCE) {
            check()?;
            for id in ids {
                if let Some(ordinal) = dictionary.term_ord(id.0.as_bytes())? {
                    each(*id, ordinal)?;
                }
            }
        }
        return Ok(());
    }
    // Both are in byte order.
    let (mut stream, mut wanted) = (dictionary.stream()?, ids.iter().peekable());
    while stream.advance() {
        if stream.term_ord().is_multiple_of(LOOKED_UP_AT_ONCE as u64) {
            check()?;
        }
        let here = stream.key();
        while wanted.next_if(|id| &id.0.as_bytes()[..] < here).is_some() {}
        match wanted.peek() {
            None => break,
            Some(id) if &id.0.as_bytes()[..] == here => each(**id, stream.term_ord())?,
            Some(_) => {}
        }
    }
    Ok(())
}

/// Chosen conversations in one segment.
pub(super) struct SegmentSet {
    ordinals: Arc<BitSet>,
    is_inverted: bool,
}

impl SegmentSet {
    /// Returns whether the set has the conversation with this ordinal.
    pub(super) fn has(&self, ordinal: Option<u64>) -> bool {
        let ordinal = ordinal.and_then(|ordinal| u32::try_from(ordinal).ok());
        ordinal.is_some_and(|ordinal| {
            let ids = &self.ordinals;
            (ordinal < ids.max_value() && ids.contains(ordinal)) != self.is_inverted
        })
    }

    /// Returns the share of the segment's conversations that are in the set, 0 to 1.
    pub(super) fn share(&self) -> f64 {
        let share = self.ordinals.len() as f64 / f64::from(self.ordinals.max_value().max(1));
        match self.is_inverted {
            true => 1.0 - share,
            false => share,
        }
    }
}

/// Errors if the search was cancelled. `catch_search_panics` then returns `Stopped`.
fn check() -> tantivy::Result<()> {
    match cancel::is_wanted() {
        true => Ok(()),
        false => Err(TantivyError::InternalError("stopped".to_owned())),
    }
}

fn too_large(_: std::num::TryFromIntError) -> TantivyError {
    TantivyError::InternalError("a segment has more than 4,294,967,295 conversations".to_owned())
}

impl FromIterator<ConversationId> for ChosenConversations {
    fn from_iter<I: IntoIterator<Item = ConversationId>>(ids: I) -> Self {
        Self::from(ids.into_iter().collect::<Vec<_>>())
    }
}

impl From<Vec<ConversationId>> for ChosenConversations {
    fn from(mut ids: Vec<ConversationId>) -> Self {
        ids.sort_unstable();
        ids.dedup();
        Self::of(ConversationSet {
            ids,
            ..ConversationSet::default()
        })
    }
}

impl PartialEq for ChosenConversations {
    fn eq(&self, other: &Self) -> bool {
        self.is_inverted == other.is_inverted && self.set.ids == other.set.ids
    }
}

impl fmt::Debug for ChosenConversations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChosenConversations")
            .field("ids", &self.set.ids)
            .field("is_inverted", &self.is_inverted)
            .finish_non_exhaustive()
    }
}
