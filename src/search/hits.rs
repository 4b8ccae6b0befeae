//! From the documents that tantivy found to hits: which ones, in what order,
//! and what their columns say.

use std::collections::HashMap;

use tantivy::{DocAddress, Score, TantivyError};

use super::{columns::OpenColumns, error::IndexError, query::Hit, rank::Scores};
use crate::domain::Position;

/// A document and what orders it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ranked {
    pub address: DocAddress,
    pub score: Score,
    pub scores: Scores,
    pub position: Position,
    pub byte_start: u64,
}

/// Orders documents, best first, and keeps the best passages of each event.
/// Merges move documents about, so equal scores go by position.
pub(super) fn ranked(
    columns: &OpenColumns,
    found: &[(Scores, DocAddress)],
    per_event: usize,
) -> Result<Vec<Ranked>, IndexError> {
    let mut ranked = Vec::with_capacity(found.len());
    for &(scores, address) in found {
        let segment = columns.of_segment(address.segment_ord)?;
        let (position, byte_start) = segment.place(address.doc_id)?;
        ranked.push(Ranked {
            address,
            score: scores.total(),
            scores,
            position,
            byte_start,
        });
    }
    ranked.sort_by(|a, b| {
        let places = || (a.position, a.byte_start).cmp(&(b.position, b.byte_start));
        b.score.total_cmp(&a.score).then_with(places)
    });
    let mut seen: HashMap<Position, usize> = HashMap::new();
    ranked.retain(|hit| {
        let count = seen.entry(hit.position).or_default();
        *count += 1;
        *count <= per_event
    });
    Ok(ranked)
}

/// Reads the hits of a page.
pub(super) fn read(columns: &OpenColumns, page: &[Ranked]) -> Result<Vec<Hit>, IndexError> {
    let hit = |ranked: &Ranked| columns.of_segment(ranked.address.segment_ord)?.hit(ranked);
    page.iter().map(hit).collect()
}

pub(super) fn damaged() -> IndexError {
    IndexError::NeedsRebuild {
        reason: "a column of a segment cannot be read".to_owned(),
    }
}

pub(super) fn unreadable(source: TantivyError) -> IndexError {
    match source {
        TantivyError::DataCorruption(_) => damaged(),
        source => IndexError::Engine {
            action: "searched",
            source,
        },
    }
}
