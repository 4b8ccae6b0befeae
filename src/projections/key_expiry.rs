//! Expiry of idempotency keys. A key is removed by the first event of its namespace that was
//! recorded after it had expired, so that the result depends on the log alone and not on when a
//! clock was read.

use std::{collections::BTreeMap, ops::Bound};

use bytes::Bytes;

use treering_domain::Namespace;

use super::{
    apply::CountsRow,
    codec::{self, KeyRow},
    delta::{KeyEntry, ProjectionDelta},
    error::ProjectionsError,
    keys,
    rows::Rows,
    store::Projections,
    table::{Get, NAMESPACES, RawTable},
};

/// Adds the rows of a key.
pub(super) fn put(rows: &mut Rows, entry: &KeyEntry) -> Result<(), ProjectionsError> {
    let value: KeyRow = (
        entry.content_hash,
        entry.salt,
        entry.first_offset,
        entry.events,
        entry.ends_at,
    );
    let key = keys::idempotency(&entry.namespace, &entry.key);
    rows.put(&key, |bytes| codec::encode(&value, bytes))?;
    if let Some(ends_at) = entry.ends_at {
        let end = keys::key_end(&entry.namespace, ends_at, entry.first_offset);
        rows.put_bytes(&end, entry.key.as_bytes())?;
    }
    Ok(())
}

/// Returns how many keys with an expiry a delta adds to a namespace.
pub(super) fn added(delta: &ProjectionDelta, namespace: &Namespace) -> u64 {
    let ending = |entry: &&KeyEntry| entry.ends_at.is_some() && entry.namespace == *namespace;
    delta.keys.iter().filter(ending).count() as u64
}

/// Removes the keys that had expired when a delta's events were recorded, and returns their number
/// for each namespace. Must run before the delta's own keys are added, because these may reuse
/// expired keys.
pub(super) fn forget<'a>(
    projections: &Projections,
    table: &mut RawTable<'_>,
    delta: &'a ProjectionDelta,
) -> Result<BTreeMap<&'a Namespace, u64>, ProjectionsError> {
    let mut forgotten = BTreeMap::new();
    for (namespace, recorded_to) in &delta.recorded_to {
        let key = keys::counts(namespace);
        let counts: CountsRow = match table.get(key.as_bytes())? {
            Some(row) => codec::decode(key.as_bytes(), &row)?,
            None => continue,
        };
        if counts.4 == 0 {
            continue;
        }
        let from = keys::key_ends(namespace);
        let to = keys::after_key_ends(namespace, *recorded_to);
        let ended = (
            Bound::Included(from.as_bytes()),
            Bound::Excluded(to.as_bytes()),
        );
        // This write has not added any expiring key yet, so reading the state before it is enough.
        projections.read(|reader| {
            let mut number = 0;
            for row in reader.table(NAMESPACES).range(ended) {
                let (end, row) = row?;
                let text = std::str::from_utf8(codec::checked(&end, &row)?)
                    .map_err(|_| ProjectionsError::Incomplete)?;
                let key = keys::idempotency(namespace, text);
                table.remove(Bytes::copy_from_slice(key.as_bytes()));
                table.remove(end);
                number += 1;
            }
            forgotten.insert(namespace, number);
            Ok(())
        })?;
    }
    Ok(forgotten)
}
