//! The marks of the projections: their version, and the log offset that they have reached.

use bytes::Bytes;
use redb::Database;

use super::{
    codec::{self, VIEWS_VERSION},
    error::ProjectionsError,
    memtable::Changes,
    row_store::durable_commit,
    sorted_table::{self, DEFINITIONS},
    table::{Get, META, RawTable},
};

const VERSION_KEY: &[u8] = b"version";
pub(super) const REACHED_KEY: &[u8] = b"reached";

/// Creates the tables of a new file, and marks them as empty.
pub(super) fn initialise(db: &Database) -> Result<(), ProjectionsError> {
    let mut txn = db.begin_write()?;
    durable_commit(&mut txn)?;
    for definition in DEFINITIONS {
        txn.open_table(definition)?;
    }
    let mut rows = Changes::new();
    for (key, value) in [
        (VERSION_KEY, &VIEWS_VERSION.to_le_bytes()[..]),
        (REACHED_KEY, &0_u64.to_le_bytes()),
    ] {
        rows.insert(Bytes::from_static(key), Some(meta_row(key, value)));
    }
    sorted_table::merge(
        &mut txn.open_table(DEFINITIONS[META as usize])?,
        rows.into_iter().collect(),
    )?;
    Ok(txn.commit()?)
}

fn meta_row(key: &[u8], value: &[u8]) -> Bytes {
    let mut sealed = key.to_vec();
    sealed.extend_from_slice(value);
    codec::seal(&mut sealed, 0);
    Bytes::from(sealed).slice(key.len()..)
}

pub(super) fn put_meta(meta: &mut RawTable<'_>, key: &[u8], value: &[u8]) {
    meta.put(Bytes::copy_from_slice(key), meta_row(key, value));
}

pub(super) fn set_reached(meta: &mut RawTable<'_>, reached: u64) {
    put_meta(meta, REACHED_KEY, &reached.to_le_bytes());
}

pub(super) fn reached_in(meta: &impl Get) -> Result<u64, ProjectionsError> {
    get_meta(meta, REACHED_KEY).map(u64::from_le_bytes)
}

pub(super) fn get_meta<const N: usize>(
    meta: &impl Get,
    key: &[u8],
) -> Result<[u8; N], ProjectionsError> {
    let row = meta
        .get(key)?
        .ok_or_else(|| ProjectionsError::damaged("a mark is missing"))?;
    codec::checked(key, &row)?
        .try_into()
        .map_err(|_| ProjectionsError::damaged("a mark has the wrong length"))
}

pub(super) fn version_in(meta: &impl Get) -> Result<u32, ProjectionsError> {
    get_meta(meta, VERSION_KEY).map(u32::from_le_bytes)
}
