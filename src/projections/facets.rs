//! Facets: properties by which filters select conversations. Each facet has a row for each of its
//! conversations, so that a filter reads only the conversations that it selects.

use std::{
    collections::BTreeSet,
    ops::Bound,
    sync::atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use serde_json::Value;

use treering_domain::{ConversationId, ConversationInfo, ConversationRow, Namespace};

use super::{
    codec::{self, HeadRow},
    error::ProjectionsError,
    keys::{self, FacetHash},
    read::prefix,
    row_store::Reader,
    rows::Rows,
    store::Projections,
    table::{Get, NAMESPACES, RawTable},
};

/// Length of the indexed end of an id, in bytes. Of 300,000 UUIDs, about 5 share each end.
pub(super) const TAIL_BYTES: usize = 4;

/// A property of conversations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Facet<'a> {
    /// Was imported from this source.
    Source(&'a str),
    /// Has a label with this name.
    LabelName(&'a str),
    /// Has a label with this name and value.
    Label(&'a str, &'a str),
    /// May have metadata with this name and value. All objects count as equal, and so do all
    /// arrays.
    Metadata(&'a str, &'a Value),
    /// Is sealed.
    Sealed,
    /// Has more than one branch.
    Forked,
    /// Its UUID or source id ends with these bytes.
    IdTail([u8; TAIL_BYTES]),
}

impl Facet<'_> {
    fn hash(self) -> FacetHash {
        let mut hasher = blake3::Hasher::new();
        let mut part = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        match self {
            Self::Source(source) => {
                part(b"source");
                part(source.as_bytes());
            }
            Self::LabelName(name) => {
                part(b"label name");
                part(name.as_bytes());
            }
            Self::Label(name, value) => {
                part(b"label");
                part(name.as_bytes());
                part(value.as_bytes());
            }
            Self::Metadata(name, value) => {
                part(b"metadata");
                part(name.as_bytes());
                part(value_text(value).as_bytes());
            }
            Self::Sealed => part(b"sealed"),
            Self::Forked => part(b"forked"),
            Self::IdTail(tail) => {
                part(b"tail");
                part(&tail);
            }
        }
        let mut hash = FacetHash::default();
        hasher.finalize_xof().fill(&mut hash);
        hash
    }

    /// Returns whether a conversation has the facet.
    #[must_use]
    pub fn is_of(self, row: &ConversationRow) -> bool {
        match self {
            Self::Source(source) => row.info.source == source,
            Self::IdTail(_) => tails(row).any(|tail| tail == self),
            facet => facets_of(&row.info, row.sealed, row.branch_count).contains(&facet.hash()),
        }
    }

    /// Returns a key that is unique for each facet and namespace.
    #[must_use]
    pub fn key(self, namespace: &Namespace) -> Vec<u8> {
        self.prefix(namespace).as_bytes().to_vec()
    }

    /// Returns the prefix of its rows' keys; each ends with the offset of a conversation's first
    /// event.
    pub(super) fn prefix(self, namespace: &Namespace) -> keys::Key {
        match self {
            Self::Source(source) => keys::listing(namespace, Some(source)),
            facet => keys::faceted(namespace, facet.hash()),
        }
    }
}

/// Returns the same text for equal values.
fn value_text(value: &Value) -> String {
    match value {
        Value::Object(_) => "{}".to_owned(),
        Value::Array(_) => "[]".to_owned(),
        // 0.0 and -0.0 are equal.
        Value::Number(number) if number.as_f64() == Some(0.0) => "0".to_owned(),
        value => value.to_string(),
    }
}

/// Returns the end of an id, if it is long enough.
pub(super) fn tail(id: &str) -> Option<Facet<'static>> {
    id.as_bytes().last_chunk().copied().map(Facet::IdTail)
}

fn tails(row: &ConversationRow) -> impl Iterator<Item = Facet<'static>> {
    [tail(&row.id.to_string()), tail(&row.info.source_id)]
        .into_iter()
        .flatten()
}

/// Returns the facets that can change: all except the source and the ends of ids.
fn facets_of(info: &ConversationInfo, sealed: bool, branches: u64) -> BTreeSet<FacetHash> {
    let mut facets = BTreeSet::new();
    for (name, value) in &info.labels {
        facets.insert(Facet::LabelName(name).hash());
        facets.insert(Facet::Label(name, value).hash());
    }
    for (name, text) in &info.metadata {
        if let Ok(value) = serde_json::from_str(text) {
            facets.insert(Facet::Metadata(name, &value).hash());
        }
    }
    if sealed {
        facets.insert(Facet::Sealed.hash());
    }
    if branches > 1 {
        facets.insert(Facet::Forked.hash());
    }
    facets
}

/// Counts facet changes of existing conversations. While the counter of a facet is unchanged, a
/// list that was read earlier only needs the new conversations.
pub(super) struct FacetVersions {
    store: u64,
    counts: [AtomicU64; VERSIONS],
}

/// Number of counters. Facets share one if the hashes of their keys are equal modulo this.
const VERSIONS: usize = 256;

/// The version of a facet's list of conversations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FacetVersion {
    store: u64,
    count: u64,
}

impl FacetVersions {
    pub(super) fn new() -> Self {
        static STORES: AtomicU64 = AtomicU64::new(0);
        Self {
            store: STORES.fetch_add(1, Ordering::Relaxed),
            counts: [const { AtomicU64::new(0) }; VERSIONS],
        }
    }

    fn of(&self, prefix: &keys::Key) -> FacetVersion {
        let count = &self.counts[Self::place(prefix)];
        FacetVersion {
            store: self.store,
            count: count.load(Ordering::Acquire),
        }
    }

    /// Counts a change that readers already see.
    pub(super) fn note(&self, place: usize) {
        self.counts[place].fetch_add(1, Ordering::AcqRel);
    }

    fn place(prefix: &keys::Key) -> usize {
        crc32c::crc32c(prefix.as_bytes()) as usize % VERSIONS
    }
}

/// How the facets of a conversation change.
pub(super) struct FacetChange<'a> {
    row: &'a ConversationRow,
    is_new: bool,
    added: Vec<FacetHash>,
    removed: Vec<FacetHash>,
}

impl<'a> FacetChange<'a> {
    /// Returns how the facets of a row differ from those before; `None` if they do not. `described`
    /// returns the former description, or `None` if it has not changed.
    pub(super) fn of(
        row: &'a ConversationRow,
        before: Option<&HeadRow>,
        described: impl FnOnce() -> Result<Option<ConversationInfo>, ProjectionsError>,
    ) -> Result<Option<Self>, ProjectionsError> {
        let now = || facets_of(&row.info, row.sealed, row.branch_count);
        let Some(before) = before else {
            let mut added = now();
            added.extend(tails(row).map(Facet::hash));
            return Ok(Some(Self {
                row,
                is_new: true,
                added: added.into_iter().collect(),
                removed: Vec::new(),
            }));
        };
        let was = (before.is_sealed(), before.branch_count() > 1);
        let described = described()?;
        if described.is_none() && was == (row.sealed, row.branch_count > 1) {
            return Ok(None);
        }
        let old = described.as_ref().unwrap_or(&row.info);
        let old = facets_of(old, before.is_sealed(), before.branch_count());
        let now = now();
        Ok(Some(Self {
            row,
            is_new: false,
            added: now.difference(&old).copied().collect(),
            removed: old.difference(&now).copied().collect(),
        }))
    }

    /// Returns the indexes of the counters to increment.
    pub(super) fn versions(&self) -> Vec<usize> {
        let changed = self.added.iter().chain(&self.removed);
        let changed = changed.filter(|_| !self.is_new);
        let prefix = |facet: &FacetHash| keys::faceted(&self.row.namespace, *facet);
        changed
            .map(|facet| FacetVersions::place(&prefix(facet)))
            .collect()
    }

    pub(super) fn apply(&self, table: &mut RawTable<'_>) -> Result<(), ProjectionsError> {
        let row = self.row;
        let offset = row.first_position.offset;
        let key = |facet| keys::faceted(&row.namespace, facet).number(offset);
        for facet in &self.removed {
            table.remove(Bytes::copy_from_slice(key(*facet).as_bytes()));
        }
        let mut rows = Rows::default();
        for facet in &self.added {
            rows.put_bytes(&key(*facet), row.id.0.as_bytes())?;
        }
        rows.write(table);
        Ok(())
    }
}

impl Projections {
    /// Returns the current version of a facet's list.
    #[must_use]
    pub fn facet_version(&self, namespace: &Namespace, facet: Facet<'_>) -> FacetVersion {
        self.facet_versions().of(&facet.prefix(namespace))
    }

    /// Calls `each` for the conversations with a facet whose first event is after an offset, until
    /// it returns false. `each` gets the offsets of these first events, in order.
    ///
    /// # Errors
    /// As for every read.
    pub fn each_with(
        &self,
        namespace: &Namespace,
        facet: Facet<'_>,
        after: u64,
        mut each: impl FnMut(u64, ConversationId) -> bool,
    ) -> Result<(), ProjectionsError> {
        let under = facet.prefix(namespace);
        let (from, end) = (under.clone().number(after + 1), under.after_prefix());
        let bounds = (
            Bound::Included(from.as_bytes()),
            Bound::Excluded(end.as_bytes()),
        );
        self.read(|reader| {
            for row in reader.table(NAMESPACES).range(bounds) {
                let (key, value) = row?;
                let offset = key.last_chunk().copied().map(u64::from_be_bytes);
                let id = listed_conversation(&key, &value)?;
                if !each(offset.unwrap_or_default(), id) {
                    break;
                }
            }
            Ok(())
        })
    }
}

/// Returns the conversations with a facet, in the order of their first events.
pub(super) fn with_facet(
    reader: &Reader,
    namespace: &Namespace,
    facet: Facet<'_>,
) -> impl Iterator<Item = Result<ConversationId, ProjectionsError>> + use<> {
    let rows = prefix(&reader.table(NAMESPACES), &facet.prefix(namespace));
    rows.map(|row| {
        let (key, value) = row?;
        listed_conversation(&key, &value)
    })
}

/// Returns the conversation of a row whose value is its id.
pub(super) fn listed_conversation(
    key: &[u8],
    value: &[u8],
) -> Result<ConversationId, ProjectionsError> {
    let id = keys::last_conversation(codec::checked(key, value)?);
    id.ok_or_else(|| ProjectionsError::damaged("a listed conversation has no id"))
}

/// Returns whether the conversation with this first event has a facet.
pub(super) fn has_facet(
    reader: &Reader,
    namespace: &Namespace,
    facet: Facet<'_>,
    first_offset: u64,
) -> Result<bool, ProjectionsError> {
    let key = facet.prefix(namespace).number(first_offset);
    Ok(reader.table(NAMESPACES).get(key.as_bytes())?.is_some())
}
