//! From the documents that tantivy found to hits: which ones, in what order,
//! and what their columns say.

use std::collections::{HashMap, hash_map::Entry};

use tantivy::{
    DocAddress, Score, Searcher, SegmentReader, TantivyError,
    columnar::{BytesColumn, Column, StrColumn},
};

use super::{
    error::IndexError,
    query::Hit,
    schema::{column, outcome_of},
};
use crate::domain::{
    BranchId, ConversationId, EventKind, Position, Revision, ShardId, TimestampMicros,
};

/// A document and what orders it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ranked {
    address: DocAddress,
    score: Score,
    position: Position,
    byte_start: u64,
}

/// Orders documents, best first, and keeps the best passages of each event.
/// Merges move documents about, so equal scores go by position.
pub(super) fn ranked(
    searcher: &Searcher,
    found: &[(Score, DocAddress)],
    per_event: usize,
) -> Result<Vec<Ranked>, IndexError> {
    let mut places: HashMap<u32, Places> = HashMap::new();
    let mut ranked = Vec::with_capacity(found.len());
    for &(score, address) in found {
        let segment = opened(&mut places, searcher, address, Places::open)?;
        let (position, byte_start) = segment.at(address.doc_id)?;
        ranked.push(Ranked {
            address,
            score,
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
pub(super) fn read(searcher: &Searcher, page: &[Ranked]) -> Result<Vec<Hit>, IndexError> {
    let mut columns: HashMap<u32, Columns> = HashMap::new();
    let mut hits = Vec::with_capacity(page.len());
    for hit in page {
        let segment = opened(&mut columns, searcher, hit.address, Columns::open)?;
        hits.push(segment.hit(hit)?);
    }
    Ok(hits)
}

/// The columns of a document's segment, opened once.
fn opened<'a, C>(
    columns: &'a mut HashMap<u32, C>,
    searcher: &Searcher,
    address: DocAddress,
    open: impl Fn(&SegmentReader) -> tantivy::Result<C>,
) -> Result<&'a mut C, IndexError> {
    match columns.entry(address.segment_ord) {
        Entry::Occupied(known) => Ok(known.into_mut()),
        Entry::Vacant(place) => {
            let reader = searcher.segment_reader(address.segment_ord);
            Ok(place.insert(open(reader).map_err(unreadable)?))
        }
    }
}

/// The columns that order hits.
struct Places {
    shard: Column<u64>,
    offset: Column<u64>,
    byte_start: Column<u64>,
}

impl Places {
    fn open(segment: &SegmentReader) -> tantivy::Result<Self> {
        let columns = segment.fast_fields();
        Ok(Self {
            shard: columns.u64(column::SHARD)?,
            offset: columns.u64(column::OFFSET)?,
            byte_start: columns.u64(column::BYTE_START)?,
        })
    }

    fn at(&self, doc: u32) -> Result<(Position, u64), IndexError> {
        let number = |column: &Column<u64>| column.first(doc).ok_or_else(damaged);
        let shard = u32::try_from(number(&self.shard)?).map_err(|_| damaged())?;
        let position = Position {
            shard: ShardId(shard),
            offset: number(&self.offset)?,
        };
        Ok((position, number(&self.byte_start)?))
    }
}

/// The columns that a hit is made of.
struct Columns {
    conversation: Option<BytesColumn>,
    tool: Option<StrColumn>,
    call_id: Option<StrColumn>,
    recorded_at: Column<i64>,
    branch: Column<u64>,
    revision: Column<u64>,
    kind: Column<u64>,
    outcome: Column<u64>,
    byte_end: Column<u64>,
    line: Column<u64>,
    text_bytes: Column<u64>,
}

impl Columns {
    fn open(segment: &SegmentReader) -> tantivy::Result<Self> {
        let columns = segment.fast_fields();
        Ok(Self {
            conversation: columns.bytes(column::CONVERSATION)?,
            tool: columns.str(column::TOOL)?,
            call_id: columns.str(column::CALL_ID)?,
            recorded_at: columns.i64(column::RECORDED_AT)?,
            branch: columns.u64(column::BRANCH)?,
            revision: columns.u64(column::REVISION)?,
            kind: columns.u64(column::KIND)?,
            outcome: columns.u64(column::OUTCOME)?,
            byte_end: columns.u64(column::BYTE_END)?,
            line: columns.u64(column::LINE)?,
            text_bytes: columns.u64(column::TEXT_BYTES)?,
        })
    }

    fn hit(&self, ranked: &Ranked) -> Result<Hit, IndexError> {
        let doc = ranked.address.doc_id;
        let number = |column: &Column<u64>| column.first(doc).ok_or_else(damaged);
        let kind = u16::try_from(number(&self.kind)?)
            .ok()
            .and_then(EventKind::from_number);
        Ok(Hit {
            conversation: self.conversation(doc)?,
            branch: BranchId(number(&self.branch)?),
            revision: Revision(number(&self.revision)?),
            position: ranked.position,
            kind: kind.ok_or_else(damaged)?,
            tool: label(self.tool.as_ref(), doc)?,
            call_id: label(self.call_id.as_ref(), doc)?,
            success: outcome_of(number(&self.outcome)?),
            recorded_at: TimestampMicros(self.recorded_at.first(doc).ok_or_else(damaged)?),
            score: ranked.score,
            byte_start: ranked.byte_start,
            byte_end: number(&self.byte_end)?,
            line: number(&self.line)?,
            text_bytes: number(&self.text_bytes)?,
        })
    }

    fn conversation(&self, doc: u32) -> Result<ConversationId, IndexError> {
        let column = self.conversation.as_ref().ok_or_else(damaged)?;
        let ordinal = column.ords().first(doc).ok_or_else(damaged)?;
        let mut bytes = Vec::with_capacity(16);
        column
            .ord_to_bytes(ordinal, &mut bytes)
            .map_err(|_| damaged())?;
        let id = uuid::Uuid::from_slice(&bytes).map_err(|_| damaged())?;
        Ok(ConversationId(id))
    }
}

fn label(column: Option<&StrColumn>, doc: u32) -> Result<String, IndexError> {
    let mut text = String::new();
    if let Some(column) = column
        && let Some(ordinal) = column.ords().first(doc)
    {
        column
            .ord_to_str(ordinal, &mut text)
            .map_err(|_| damaged())?;
    }
    Ok(text)
}

fn damaged() -> IndexError {
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
