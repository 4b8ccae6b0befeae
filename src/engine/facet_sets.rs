//! A cache of the conversations with a facet. A search reads only those created since the last
//! search.

use std::sync::{Mutex, PoisonError};

use super::{
    Inner,
    error::{ReadError, SearchError},
    search::refused,
    work,
};
use treering_domain::{
    ConversationId, Namespace,
    limits::{FACET_SETS_BYTES_MAX, FACET_SETS_MAX},
};
use treering_projections::{Facet, FacetVersion};
use treering_search::{ChosenConversations, HeldMemory};

/// Memory per conversation that is read, in bytes.
const READ_BYTES: usize = size_of::<ConversationId>();

/// Sets of recent searches, the most recently used last.
#[derive(Default)]
pub(super) struct FacetSets(Mutex<Vec<FacetSet>>);

struct FacetSet {
    key: Vec<u8>,
    version: FacetVersion,
    /// The offset of the first event of its last conversation.
    reached: u64,
    conversations: ChosenConversations,
}

impl FacetSets {
    /// Returns a set and the offset that it reached, if its conversations have not changed.
    fn get(&self, key: &[u8], version: FacetVersion) -> Option<(u64, ChosenConversations)> {
        let sets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = sets.iter().find(|set| set.key == key)?;
        let is_current = known.version == version;
        is_current.then(|| (known.reached, known.conversations.clone()))
    }

    /// Stores a set, and drops the oldest ones beyond the limits on number and size.
    fn put(&self, set: FacetSet) {
        let mut sets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sets.retain(|known| known.key != set.key);
        sets.push(set);
        let mut bytes = 0;
        let newest = sets.iter().rev().take(FACET_SETS_MAX);
        let of_newest = newest.take_while(|set| {
            bytes += set.key.len() + set.conversations.bytes();
            bytes <= FACET_SETS_BYTES_MAX
        });
        let kept = of_newest.count();
        let forgotten = sets.len() - kept;
        sets.drain(..forgotten);
    }
}

impl Inner {
    /// Returns the conversations with a facet.
    pub(super) fn with_facet(
        &self,
        namespace: &Namespace,
        facet: Facet<'_>,
        held: &mut HeldMemory,
    ) -> Result<ChosenConversations, SearchError> {
        let projections = self.reads.projections.load_full();
        let key = facet.key(namespace);
        // Take the version before reading, so that a later change invalidates the set.
        let version = projections.facet_version(namespace, facet);
        let known = self.search.facet_sets.get(&key, version);
        let (mut reached, known) = known.unwrap_or_default();
        // Whether a search is refused must not depend on earlier searches.
        let known_bytes = known.ids().map_or(0, size_of_val);
        held.more(known_bytes).map_err(refused)?;
        let (mut more, mut looked) = (Vec::new(), Ok(()));
        let walked = projections.each_with(namespace, facet, reached, |offset, id| {
            looked = work::check().map_err(SearchError::from);
            if looked.is_ok() {
                looked = held.more(READ_BYTES).map_err(refused);
            }
            reached = offset;
            more.push(id);
            looked.is_ok()
        });
        walked.map_err(ReadError::from)?;
        looked?;
        let conversations = match more.is_empty() {
            true => known,
            false => known.extended(&more),
        };
        self.search.facet_sets.put(FacetSet {
            key,
            version,
            reached,
            conversations: conversations.clone(),
        });
        Ok(conversations)
    }
}
