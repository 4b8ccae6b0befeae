//! Facets: properties that filters select conversations by. Each has rows with its conversations,
//! so that a filter reads those that it selects and not all.

use std::collections::BTreeSet;

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

/// Length of the end of an id that is a facet, in bytes. Of 300,000 UUIDs, 5 have the same.
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
    /// May have metadata with this name and value: all objects, and all arrays, are one value.
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

    /// Returns the prefix of its rows' keys; each ends with the offset of a conversation's first
    /// event.
    pub(super) fn prefix(self, namespace: &Namespace) -> keys::Key {
        match self {
            Self::Source(source) => keys::listing(namespace, Some(source)),
            facet => keys::faceted(namespace, facet.hash()),
        }
    }
}

/// Returns a text that equal values have in common.
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

/// Returns the facets that can change. The source cannot, and has a list of its own.
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

/// How the facets of a conversation change.
pub(super) struct FacetChange<'a> {
    row: &'a ConversationRow,
    added: Vec<FacetHash>,
    removed: Vec<FacetHash>,
}

impl<'a> FacetChange<'a> {
    /// Returns the change to a row from what it was before, if there is one. `described` returns
    /// the former description, or `None` if that has not changed.
    pub(super) fn of(
        row: &'a ConversationRow,
        before: Option<&HeadRow>,
        described: impl FnOnce() -> Result<Option<ConversationInfo>, ProjectionsError>,
    ) -> Result<Option<Self>, ProjectionsError> {
        let now = || facets_of(&row.info, row.sealed, row.branch_count);
        let Some(before) = before else {
            let mut added = now();
            let ids = [tail(&row.id.to_string()), tail(&row.info.source_id)];
            added.extend(ids.into_iter().flatten().map(Facet::hash));
            return Ok(Some(Self {
                row,
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
            added: now.difference(&old).copied().collect(),
            removed: old.difference(&now).copied().collect(),
        }))
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
    /// Calls `each` for the conversations with a facet, in the order of their first events, until
    /// it returns false.
    ///
    /// # Errors
    /// As for every read.
    pub fn each_with(
        &self,
        namespace: &Namespace,
        facet: Facet<'_>,
        mut each: impl FnMut(ConversationId) -> bool,
    ) -> Result<(), ProjectionsError> {
        self.read(|reader| {
            for found in with_facet(reader, namespace, facet) {
                if !each(found?) {
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
