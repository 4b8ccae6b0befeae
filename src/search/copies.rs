//! Where else the text of a hit is: a file that was read again, a session that came back
//! as another conversation.

use std::collections::{HashMap, HashSet};

use tantivy::DocAddress;

use super::{
    error::{IndexError, IndexSearchError},
    hits::unreadable,
    index::SearchIndex,
    plan::any_of,
    query::{Copies, Hit, SearchQuery, guarded},
    schema::text_tag,
    sweep::each_match,
};
use crate::domain::{ConversationId, Position, Revision};

/// Copies of a hit that are named, the nearest ones.
const COPIES_NAMED_MAX: usize = 3;

/// An event with the text of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyPlace {
    /// Its conversation.
    pub conversation: ConversationId,
    /// Its place there.
    pub revision: Revision,
    /// Its place in the log.
    pub position: Position,
}

/// The other events that a hit stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HitCopies {
    /// How many.
    pub count: u64,
    /// Those that are nearest to it in the log.
    pub nearest: Vec<CopyPlace>,
}

impl SearchIndex {
    /// The other events that each of these hits stands for: of its kind, with its text,
    /// and let through by the query's filters.
    ///
    /// # Errors
    /// As [`Self::search`].
    pub fn copies(
        &self,
        query: &SearchQuery,
        hits: &[Hit],
    ) -> Result<Vec<HitCopies>, IndexSearchError> {
        if query.copies == Copies::Each {
            return Ok(vec![HitCopies::default(); hits.len()]);
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
            let mut found: HashMap<u64, Vec<(Position, DocAddress)>> = HashMap::new();
            if !tags.is_empty() {
                let planner = self.planner(query);
                let having = planner.filtered(any_of(tags), &query.filters);
                each_match(&published, having.as_ref(), |columns, address| {
                    let doc = address.doc_id;
                    let text = columns.group(doc, Copies::Folded)?;
                    let place = (columns.place(doc)?.0, address);
                    found.entry(text).or_default().push(place);
                    Ok(())
                })?;
            }
            // There may be thousands: which conversation each is in is asked of the nearest.
            let named = |(position, address): (Position, DocAddress)| {
                let columns = published.columns.of_segment(address.segment_ord)?;
                let (conversation, revision) = columns.address(address.doc_id)?;
                Ok(CopyPlace {
                    conversation,
                    revision,
                    position,
                })
            };
            let copies = |hit: &Hit| {
                let mut others = found.get(&hit.text_hash).cloned().unwrap_or_default();
                others.retain(|(position, _)| *position != hit.position);
                others.sort_by_key(|(position, _)| {
                    (
                        position.offset.abs_diff(hit.position.offset),
                        position.offset,
                    )
                });
                let nearest = others.iter().take(COPIES_NAMED_MAX).copied().map(named);
                Ok(HitCopies {
                    count: others.len() as u64,
                    nearest: nearest.collect::<Result<_, IndexError>>()?,
                })
            };
            hits.iter().map(copies).collect()
        };
        Ok(guarded(find)?)
    }
}
