//! Finds the other events with a hit's text, such as a file that was read again or a session that
//! was imported again as another conversation.

use std::collections::{HashMap, HashSet};

use tantivy::DocAddress;

use super::{
    error::IndexSearchError,
    hits::unreadable,
    index::SearchIndex,
    plan::any_of,
    query::{DuplicateHandling, Hit, SearchQuery, catch_search_panics},
    schema::text_tag,
    sweep::each_match,
};
use treering_domain::{ConversationId, Position, Revision};

/// Maximum number of copies of a hit that are returned: the nearest ones.
const COPIES_NAMED_MAX: usize = 3;

/// An event with the text of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DuplicatePlace {
    /// Its conversation.
    pub conversation: ConversationId,
    /// Its revision.
    pub revision: Revision,
    /// Its log position.
    pub position: Position,
}

/// The other events that a hit stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HitDuplicates {
    /// The number of other events.
    pub count: u64,
    /// The other events nearest to it in the log.
    pub nearest: Vec<DuplicatePlace>,
}

impl SearchIndex {
    /// Returns the other events that each of these hits stands for: those of its kind with its text
    /// that pass the query's filters.
    ///
    /// # Errors
    /// As [`Self::search`].
    pub fn copies(
        &self,
        query: &SearchQuery,
        hits: &[Hit],
    ) -> Result<Vec<HitDuplicates>, IndexSearchError> {
        if query.copies == DuplicateHandling::Each {
            return Ok(vec![HitDuplicates::default(); hits.len()]);
        }
        let published = self.published();
        let find = || {
            let mut tags = Vec::new();
            let texts: HashSet<u64> = hits.iter().map(|hit| hit.text_hash).collect();
            for text in texts {
                let tag = self.fields.tag(&text_tag(&query.namespace, text));
                if published.searcher.doc_freq(&tag).map_err(unreadable)? > 1 {
                    tags.push(tag);
                }
            }
            let mut found: HashMap<u64, Vec<NearestDuplicates>> = HashMap::new();
            for hit in hits {
                let near = NearestDuplicates::to(hit.position);
                found.entry(hit.text_hash).or_default().push(near);
            }
            if !tags.is_empty() {
                let planner = self.planner(query);
                let having = planner.filtered(any_of(tags), query);
                each_match(&published, having.as_ref(), |columns, address| {
                    let doc = address.doc_id;
                    if let Some(near) =
                        found.get_mut(&columns.group(doc, DuplicateHandling::Folded)?)
                    {
                        let place = (columns.place(doc)?.0, address);
                        near.iter_mut().for_each(|near| near.add(place));
                    }
                    Ok(())
                })?;
            }
            // Conversations are read for the nearest ones only.
            let named = |(position, address): (Position, DocAddress)| {
                let columns = published.columns.of_segment(address.segment_ord)?;
                let (conversation, revision) = columns.address(address.doc_id)?;
                Ok(DuplicatePlace {
                    conversation,
                    revision,
                    position,
                })
            };
            let copies = |hit: &Hit| {
                let near = found.get(&hit.text_hash);
                let near = near.and_then(|near| near.iter().find(|near| near.to == hit.position));
                let near = near
                    .cloned()
                    .unwrap_or_else(|| NearestDuplicates::to(hit.position));
                let nearest = near.nearest.into_iter().map(named);
                Ok(HitDuplicates {
                    count: near.count,
                    nearest: nearest.collect::<Result<_, IndexSearchError>>()?,
                })
            };
            hits.iter().map(copies).collect()
        };
        catch_search_panics(find)
    }
}

/// The copies of a hit. There may be 100,000, so only the nearest are kept.
#[derive(Clone, Debug)]
struct NearestDuplicates {
    to: Position,
    count: u64,
    nearest: Vec<(Position, DocAddress)>,
}

impl NearestDuplicates {
    fn to(position: Position) -> Self {
        Self {
            to: position,
            count: 0,
            nearest: Vec::new(),
        }
    }

    fn add(&mut self, place: (Position, DocAddress)) {
        if place.0 == self.to {
            return;
        }
        self.count += 1;
        let distance = |(position, _): &(Position, DocAddress)| {
            (position.offset.abs_diff(self.to.offset), position.offset)
        };
        let own = distance(&place);
        let at = self.nearest.partition_point(|near| distance(near) <= own);
        self.nearest.insert(at, place);
        self.nearest.truncate(COPIES_NAMED_MAX);
    }
}
