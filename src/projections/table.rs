//! Tables as readers and the writer see them: recent rows over those in the file, as of one write.

use std::{
    collections::VecDeque,
    ops::{Bound, RangeBounds},
    sync::Arc,
};

use bytes::Bytes;

use super::{
    block::Row,
    error::ProjectionsError,
    memtable::{Changes, RowChange},
    row_store::RowsAsOf,
};

/// The number of tables.
pub(super) const TABLES: usize = 3;

/// A table of the projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableId {
    Meta,
    Conversations,
    Namespaces,
}

pub(super) const META: TableId = TableId::Meta;
pub(super) const CONVERSATIONS: TableId = TableId::Conversations;
pub(super) const NAMESPACES: TableId = TableId::Namespaces;

/// Number of rows in the first piece of a range; then the growth factor and the maximum number of
/// rows of the next pieces.
const PIECE_ROWS: usize = 8;
const PIECE_GROWTH: usize = 4;
const PIECE_ROWS_MAX: usize = 512;

type Bounds = (Bound<Bytes>, Bound<Bytes>);

/// A table in which a row can be looked up.
pub(super) trait Get {
    /// Returns a row's value, if the row exists.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, ProjectionsError>;
}

/// A table as of one write.
#[derive(Clone)]
pub(super) struct ReadTable {
    snapshot: Arc<RowsAsOf>,
    table: TableId,
}

impl Get for ReadTable {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, ProjectionsError> {
        steps::took(1);
        self.snapshot.get(self.table, key)
    }
}

/// Counts the rows that a thread has fetched, for tests of the cost of a lookup.
#[allow(unreachable_pub)] // Exported with the feature `testkit`.
pub mod steps {
    #[cfg(any(test, feature = "testkit"))]
    thread_local! {
        static TAKEN: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    pub(super) fn took(rows: usize) {
        #[cfg(any(test, feature = "testkit"))]
        TAKEN.set(TAKEN.get() + rows);
        let _ = rows;
    }

    /// Returns the number of rows since this thread last called it.
    #[cfg(any(test, feature = "testkit"))]
    pub fn taken() -> usize {
        TAKEN.replace(0)
    }
}

impl ReadTable {
    pub(super) fn new(snapshot: Arc<RowsAsOf>, table: TableId) -> Self {
        Self { snapshot, table }
    }

    /// Returns the rows between two keys, in order, as an iterator from both ends.
    pub(super) fn range<'k, R: RangeBounds<&'k [u8]>>(&self, bounds: R) -> Range {
        let own = |bound: Bound<&&[u8]>| bound.map(|key| Bytes::copy_from_slice(key));
        Range {
            table: self.clone(),
            bounds: (own(bounds.start_bound()), own(bounds.end_bound())),
            piece: VecDeque::new(),
            backward: false,
            rows: PIECE_ROWS,
            failed: false,
        }
    }

    /// Returns every row, in order.
    pub(super) fn iter(&self) -> Range {
        let all: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Unbounded, Bound::Unbounded);
        self.range(all)
    }

    /// Reads some rows from one end; empty when there are no more.
    fn piece(
        &self,
        bounds: &Bounds,
        backward: bool,
        rows: usize,
    ) -> Result<VecDeque<Row>, ProjectionsError> {
        let bounds = (
            bounds.0.as_ref().map(|key| &key[..]),
            bounds.1.as_ref().map(|key| &key[..]),
        );
        if is_empty(bounds) {
            return Ok(VecDeque::new());
        }
        let before = |a: &Bytes, b: &Bytes| if backward { a > b } else { a < b };
        let snapshot = &self.snapshot;
        let mut end: Option<Bytes> = None;
        let mut until = |last: Option<&Bytes>| {
            if let Some(last) = last
                && end.as_ref().is_none_or(|end| before(last, end))
            {
                end = Some(last.clone());
            }
        };
        let mut sources = Vec::new();
        for recent in snapshot.recents() {
            let changes = recent.changes(self.table, bounds, snapshot.as_of(), backward, rows);
            if changes.len() >= rows {
                until(changes.last().map(|(key, _)| key));
            }
            sources.push(changes);
        }
        let base = snapshot.base();
        let stored = match backward {
            true => base.rows_back(self.table, bounds, rows)?,
            false => base.rows(self.table, bounds, rows)?,
        };
        if stored.len() >= rows {
            until(stored.last().map(|(key, _)| key));
        }
        let stored = stored.into_iter().map(|(key, value)| (key, Some(value)));
        sources.push(stored.collect());
        let all = merged(sources, before, end.as_ref());
        // All of these rows may have been removed, and more may follow them.
        if all.is_empty()
            && let Some(end) = end
        {
            let key = Bound::Excluded(end);
            let own = |bound: Bound<&[u8]>| bound.map(Bytes::copy_from_slice);
            let rest = match backward {
                true => (own(bounds.0), key),
                false => (key, own(bounds.1)),
            };
            return self.piece(&rest, backward, PIECE_ROWS_MAX);
        }
        Ok(all)
    }
}

/// Returns true when no key can be between the bounds.
fn is_empty(bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> bool {
    match bounds {
        (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
        (
            Bound::Included(lower) | Bound::Excluded(lower),
            Bound::Included(upper) | Bound::Excluded(upper),
        ) => lower >= upper,
        _ => false,
    }
}

/// Merges changes from several sources, newest source first, up to `end`, the key after which some
/// source is incomplete.
fn merged(
    sources: Vec<Vec<(Bytes, RowChange)>>,
    before: impl Fn(&Bytes, &Bytes) -> bool,
    end: Option<&Bytes>,
) -> VecDeque<Row> {
    let mut sources: Vec<_> = sources
        .into_iter()
        .map(|source| source.into_iter().peekable())
        .collect();
    let mut all = VecDeque::new();
    loop {
        let mut first: Option<Bytes> = None;
        for source in &mut sources {
            if let Some((key, _)) = source.peek()
                && first.as_ref().is_none_or(|first| before(key, first))
            {
                first = Some(key.clone());
            }
        }
        let Some(first) = first else { break };
        if end.is_some_and(|end| before(end, &first)) {
            break;
        }
        let mut newest = None;
        for source in &mut sources {
            if let Some((_, change)) = source.next_if(|(key, _)| *key == first)
                && newest.is_none()
            {
                newest = Some(change);
            }
        }
        all.extend(newest.flatten().map(|value| (first, value)));
    }
    all
}

/// An iterator over the rows between two keys, which reads ahead in pieces.
pub(super) struct Range {
    table: ReadTable,
    /// The bounds of the rows that have not been returned yet.
    bounds: Bounds,
    piece: VecDeque<Row>,
    backward: bool,
    rows: usize,
    failed: bool,
}

impl Range {
    fn step(&mut self, backward: bool) -> Option<Result<Row, ProjectionsError>> {
        if self.failed {
            return None;
        }
        if self.backward != backward {
            self.piece.clear();
            self.backward = backward;
        }
        if self.piece.is_empty() {
            match self.table.piece(&self.bounds, backward, self.rows) {
                Ok(piece) => {
                    steps::took(piece.len());
                    self.piece = piece;
                }
                Err(error) => {
                    self.failed = true;
                    return Some(Err(error));
                }
            }
            self.rows = (self.rows * PIECE_GROWTH).min(PIECE_ROWS_MAX);
        }
        let row = self.piece.pop_front()?;
        let key = Bound::Excluded(row.0.clone());
        match backward {
            true => self.bounds.1 = key,
            false => self.bounds.0 = key,
        }
        Some(Ok(row))
    }
}

impl Iterator for Range {
    type Item = Result<Row, ProjectionsError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(false)
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(true)
    }
}

/// A table being written: its changes over the state before them.
pub(super) struct RawTable<'a> {
    pub(super) before: &'a RowsAsOf,
    pub(super) table: TableId,
    pub(super) changes: &'a mut Changes,
}

impl Get for RawTable<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, ProjectionsError> {
        match self.changes.get(key) {
            Some(change) => Ok(change.clone()),
            None => self.before.get(self.table, key),
        }
    }
}

impl RawTable<'_> {
    pub(super) fn put(&mut self, key: Bytes, value: Bytes) {
        self.changes.insert(key, Some(value));
    }

    pub(super) fn remove(&mut self, key: Bytes) {
        self.changes.insert(key, None);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        Projections,
        row_store::Reader,
        table::{CONVERSATIONS, NAMESPACES},
    };

    #[derive(Clone, Debug)]
    enum Step {
        Put(u16, u16),
        Remove(u16),
        /// Writes everything that was put and removed since the last write.
        Write,
        Flush,
        /// Takes a snapshot, which is checked again at the end.
        Look,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0..700_u16, 0..900_u16).prop_map(|(key, len)| Step::Put(key, len)),
            2 => (0..700_u16).prop_map(Step::Remove),
            3 => Just(Step::Write),
            1 => Just(Step::Flush),
            1 => Just(Step::Look),
        ]
    }

    type Model = BTreeMap<Vec<u8>, Vec<u8>>;

    fn key(number: u16) -> Vec<u8> {
        [b"conversation", &number.to_be_bytes()[..]].concat()
    }

    fn value(number: u16, len: u16) -> Vec<u8> {
        (0..len)
            .map(|n| (n.wrapping_mul(number) >> 3) as u8)
            .collect()
    }

    fn reader(projections: &Projections) -> Reader {
        let mut kept = None;
        projections
            .read(|reader| {
                kept = Some(reader.clone());
                Ok(())
            })
            .unwrap();
        kept.unwrap()
    }

    fn looks_like(reader: &Reader, model: &Model) {
        let table = reader.table(CONVERSATIONS);
        let row = |row: Result<Row, ProjectionsError>| {
            let (key, value) = row.unwrap();
            (key.to_vec(), value.to_vec())
        };
        let forward: Vec<_> = table.iter().map(row).collect();
        let expected: Vec<_> = model.clone().into_iter().collect();
        assert_eq!(forward, expected);
        let mut backward: Vec<_> = table.iter().rev().map(row).collect();
        backward.reverse();
        assert_eq!(backward, expected);
        for number in (0..700).step_by(97) {
            let (low, high) = (key(number), key(number + 60));
            assert_eq!(
                table.get(&low).unwrap().as_deref(),
                model.get(&low).map(|v| &v[..])
            );
            let found: Vec<_> = table.range(&low[..]..&high[..]).map(row).collect();
            let expected: Vec<_> = model
                .range(low.clone()..high.clone())
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect();
            assert_eq!(found, expected);
            let last = table.range(&low[..]..=&high[..]).next_back().map(row);
            let expected = model.range(low..=high).next_back();
            assert_eq!(last, expected.map(|(k, v)| (k.clone(), v.clone())));
        }
        let mut ends = table.iter();
        let (mut low, mut high) = (model.iter(), model.iter().rev());
        for _ in 0..model.len() / 2 {
            assert_eq!(row(ends.next().unwrap()).0, *low.next().unwrap().0);
            assert_eq!(row(ends.next_back().unwrap()).0, *high.next().unwrap().0);
        }
        assert!(reader.table(NAMESPACES).iter().next().is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        // Rows are in three layers and move between them during reads. A reader must see exactly
        // what was written when it began. So must a process that opens the file after the last
        // flush.
        #[test]
        fn table_equals_a_map_as_of_a_write(steps in prop::collection::vec(step(), 1..250)) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("views.redb");
            let projections = Projections::open(&path, 1 << 20).unwrap();
            let (mut model, mut staged) = (Model::new(), Vec::new());
            let (mut looks, mut durable) = (Vec::new(), Model::new());
            for step in steps {
                match step {
                    Step::Put(number, len) => staged.push((number, Some(len))),
                    Step::Remove(number) => staged.push((number, None)),
                    Step::Write => {
                        let written = projections.write(|writer| {
                            let mut table = writer.table(CONVERSATIONS);
                            for (number, len) in &staged {
                                match len {
                                    Some(len) => {
                                        table.put(key(*number).into(), value(*number, *len).into());
                                    }
                                    None => table.remove(key(*number).into()),
                                }
                            }
                            Ok(())
                        });
                        written.unwrap();
                        for (number, len) in staged.drain(..) {
                            match len {
                                Some(len) => model.insert(key(number), value(number, len)),
                                None => model.remove(&key(number)),
                            };
                        }
                    }
                    Step::Flush => {
                        projections.make_durable().unwrap();
                        durable = model.clone();
                    }
                    Step::Look => looks.push((reader(&projections), model.clone())),
                }
            }
            looks.push((reader(&projections), model));
            for (reader, model) in &looks {
                looks_like(reader, model);
            }
            drop((looks, projections));
            let projections = Projections::open(&path, 1 << 20).unwrap();
            looks_like(&reader(&projections), &durable);
        }
    }
}
