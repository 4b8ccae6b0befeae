//! The conversations that a filter selects, as many as the whole store.
//!
//! Each segment numbers its conversations. The selected ones are looked up in it once for all
//! queries of a search, and are then a bit each.

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

/// Conversations in order, each once. Clones share them.
#[derive(Clone, Default)]
pub struct ChosenConversations(Arc<ConversationSet>);

#[derive(Default)]
struct ConversationSet {
    ids: Vec<ConversationId>,
    /// The set is all conversations except these.
    is_inverted: bool,
    in_segments: Mutex<HashMap<SegmentId, Arc<BitSet>>>,
    /// The memory of `ids`.
    _held: Option<HeldMemory>,
}

impl ChosenConversations {
    /// Returns these conversations, with the memory that they take.
    pub fn holding(ids: Vec<ConversationId>, held: Option<HeldMemory>) -> Self {
        Self::new(ids, false, held)
    }

    /// Returns all conversations except these.
    pub fn all_but(ids: Vec<ConversationId>, held: Option<HeldMemory>) -> Self {
        Self::new(ids, true, held)
    }

    fn new(mut ids: Vec<ConversationId>, is_inverted: bool, held: Option<HeldMemory>) -> Self {
        ids.sort_unstable();
        ids.dedup();
        Self(Arc::new(ConversationSet {
            ids,
            is_inverted,
            in_segments: Mutex::default(),
            _held: held,
        }))
    }

    /// Returns the ids, in order; `None` when the set is all conversations but some.
    #[must_use]
    pub fn ids(&self) -> Option<&[ConversationId]> {
        (!self.0.is_inverted).then_some(&self.0.ids)
    }

    /// Matches passages of these conversations.
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
            ordinals: self.ordinals(id, column)?,
            is_inverted: self.0.is_inverted,
        })
    }

    /// Returns the ordinals of the ids in a segment.
    fn ordinals(&self, id: SegmentId, column: &BytesColumn) -> tantivy::Result<Arc<BitSet>> {
        let known = &self.0.in_segments;
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(&id) {
            return Ok(Arc::clone(known));
        }
        let made = Arc::new(self.look_up(column)?);
        known.insert(id, Arc::clone(&made));
        Ok(made)
    }

    fn look_up(&self, column: &BytesColumn) -> tantivy::Result<BitSet> {
        let in_segment = u32::try_from(column.num_terms()).map_err(too_large)?;
        let mut ordinals = BitSet::with_max_value(in_segment);
        each_number(column, &self.0.ids, |_, ordinal| {
            ordinals.insert(u32::try_from(ordinal).map_err(too_large)?);
            Ok(())
        })?;
        Ok(ordinals)
    }
}

/// Calls `each` with those of the conversations that a segment has, and their ordinals. The ids
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

/// Fails when the search was cancelled; the caller knows why.
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
        Self::holding(ids.into_iter().collect(), None)
    }
}

impl From<Vec<ConversationId>> for ChosenConversations {
    fn from(ids: Vec<ConversationId>) -> Self {
        Self::holding(ids, None)
    }
}

impl PartialEq for ChosenConversations {
    fn eq(&self, other: &Self) -> bool {
        self.0.is_inverted == other.0.is_inverted && self.0.ids == other.0.ids
    }
}

impl fmt::Debug for ChosenConversations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = &self.0;
        f.debug_struct("ChosenConversations")
            .field("ids", &set.ids)
            .field("is_inverted", &set.is_inverted)
            .finish_non_exhaustive()
    }
}
