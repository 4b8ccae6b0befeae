//! Turns the documents that tantivy found into hits: selection, order and columns.

use std::{cmp::Reverse, collections::HashSet};

use tantivy::{DocAddress, Score, TantivyError};

use super::{
    columns::OpenColumns,
    error::IndexError,
    query::{Hit, SearchQuery},
    rank::{NameTier, ScoredPassage, Scores},
};
use treering_domain::Position;
use treering_meaning::TextWindow;

/// A document and its sort keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankedPassage {
    pub(crate) address: DocAddress,
    pub(crate) score: Score,
    pub(crate) scores: Scores,
    pub(crate) phrase_score: f32,
    pub(crate) position: Position,
    pub(crate) byte_start: u64,
    pub(crate) window: Option<TextWindow>,
    pub(crate) tier: NameTier,
    pub(crate) is_reranked: bool,
}

/// Orders documents, best first, and keeps the best passage of each event or text. Passages of the
/// pool come before all others, so that all pages of a search agree on the order. Equal scores are
/// ordered by log position, because merges change document ids.
pub(super) fn ranked(
    columns: &OpenColumns,
    found: &[ScoredPassage],
    reranked: usize,
    query: &SearchQuery,
) -> Result<Vec<RankedPassage>, IndexError> {
    let mut ranked = Vec::with_capacity(found.len());
    for (place, scored) in found.iter().enumerate() {
        let address = scored.address;
        let segment = columns.of_segment(address.segment_ord)?;
        let (position, byte_start) = segment.place(address.doc_id)?;
        let hit = RankedPassage {
            address,
            score: scored.scores.total(),
            scores: scored.scores,
            phrase_score: scored.phrase_score,
            position,
            byte_start,
            window: scored.window,
            tier: scored.tier,
            is_reranked: place < reranked,
        };
        ranked.push(hit);
    }
    ranked.sort_by(|a, b| {
        let places = || (a.position, a.byte_start).cmp(&(b.position, b.byte_start));
        let scores = || b.score.total_cmp(&a.score);
        let key = |hit: &RankedPassage| (!hit.is_reranked, Reverse(hit.tier));
        key(a).cmp(&key(b)).then_with(scores).then_with(places)
    });
    // Hits of several shards are raised once they are merged.
    if query.shared.is_none() {
        raise(
            ranked
                .iter_mut()
                .map(|hit| (&mut hit.score, &mut hit.scores)),
        );
    }
    let mut seen: HashSet<u64> = HashSet::new();
    let mut kept = Vec::with_capacity(ranked.len());
    for hit in ranked {
        let segment = columns.of_segment(hit.address.segment_ord)?;
        if seen.insert(segment.group(hit.address.doc_id, query.copies)?) {
            kept.push(hit);
        }
    }
    Ok(kept)
}

/// Raises the score of each hit to at least the scores of the hits after it. A hit with a whole
/// name may rank before hits with higher scores.
pub(super) fn keep_in_order(hits: &mut [Hit]) {
    raise(hits.iter_mut().map(|hit| (&mut hit.score, &mut hit.scores)));
}

pub(super) fn raise<'a>(ranked: impl DoubleEndedIterator<Item = (&'a mut Score, &'a mut Scores)>) {
    let mut least: Score = 0.0;
    for (score, scores) in ranked.rev() {
        if *score < least {
            scores.names += (least - *score) / scores.kind;
            *score = least;
        }
        least = *score;
    }
}

/// Reads the hits of a page.
pub(super) fn read(columns: &OpenColumns, page: &[RankedPassage]) -> Result<Vec<Hit>, IndexError> {
    let hit = |ranked: &RankedPassage| columns.of_segment(ranked.address.segment_ord)?.hit(ranked);
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
