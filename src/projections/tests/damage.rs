use std::{collections::BTreeMap, fs, path::Path};

use bytes::Bytes;
use redb::{Database, TableDefinition};

use super::model::{Model, Step};
use crate::{
    Projections, ProjectionsError,
    codec::VIEWS_VERSION,
    sorted_table::{DEFINITIONS, merge},
    table::{CONVERSATIONS, Get, META, TableId},
};
use treering_domain::{ContentHash, Revision};

const CACHE_BYTES: usize = 1 << 20;

/// Writes and closes a file of a few hundred events, and returns the digest at every mark that a
/// durable commit may have left in it.
fn written(path: &Path) -> BTreeMap<u64, ContentHash> {
    let projections = Projections::open(path, CACHE_BYTES).unwrap();
    let mut model = Model::default();
    let mut digests = BTreeMap::from([(0, projections.digest().unwrap())]);
    for round in 0..20_u8 {
        let steps: Vec<Step> = (0..32_u8)
            .map(|what| Step {
                conversation: (what ^ round) % 4,
                branch: round.wrapping_mul(what),
                what,
            })
            .collect();
        projections.apply(&model.grow(&steps)).unwrap();
        if round % 4 == 0 {
            projections.make_durable().unwrap();
        }
        digests.insert(model.reached, projections.digest().unwrap());
    }
    digests
}

/// Replaces a row in a closed file, with valid checksums of the block.
fn rewrite(path: &Path, table: TableId, key: &[u8], row: Vec<u8>) {
    let db = Database::open(path).unwrap();
    let txn = db.begin_write().unwrap();
    let change = (Bytes::copy_from_slice(key), Some(row.into()));
    let mut rows = txn.open_table(DEFINITIONS[table as usize]).unwrap();
    merge(&mut rows, vec![change]).unwrap();
    drop(rows);
    txn.commit().unwrap();
}

// Disks corrupt data, and files are truncated or partly copied. For any changed byte: an error that
// reports it, or projections that are right up to their mark; never a panic, never other contents.
#[test]
fn changed_byte_never_gives_wrong_contents() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("views.redb");
    let digests = written(&path);
    let sound = fs::read(&path).unwrap();
    let step = sound.len() / 400;
    let places = (0..400).map(|n| n * step + n % step.max(1));
    let mut refused = 0;
    for place in places.chain(0..128) {
        let mut bytes = sound.clone();
        bytes[place] ^= 1 << (place % 8);
        fs::write(&path, &bytes).unwrap();
        let answer = Projections::open(&path, CACHE_BYTES)
            .and_then(|projections| Ok((projections.reached()?, projections.digest()?)));
        match answer {
            Ok((reached, digest)) => {
                assert_eq!(digests.get(&reached), Some(&digest), "byte {place}");
            }
            Err(error) => {
                assert!(error.needs_rebuild(), "byte {place}: {error:?}");
                refused += 1;
            }
        }
    }
    assert!(
        refused > 0,
        "no change was noticed: the test looks elsewhere"
    );
}

// Large files are opened without checking every page. A change may be noticed late, or be in a page
// that nothing reads; but an answer is right or an error, and nothing hangs or panics.
#[test]
fn changed_byte_in_a_large_file_never_gives_wrong_answers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("views.redb");
    written(&path);
    let sound = fs::read(&path).unwrap();
    let rows = |projections: &Projections| {
        let answer = |n| {
            let id = super::model::id(n);
            Ok::<_, ProjectionsError>((
                projections.state(id)?,
                projections.entries(id, Revision(1), Revision(u64::MAX), usize::MAX, false)?,
            ))
        };
        (0..4).map(answer).collect::<Result<Vec<_>, _>>()
    };
    let right = rows(&Projections::open(&path, CACHE_BYTES).unwrap()).unwrap();
    let (step, mut noticed) = (sound.len() / 300, 0);
    for place in (0..300).map(|n| n * step + n % step) {
        let mut bytes = sound.clone();
        bytes[place] ^= 1 << (place % 8);
        fs::write(&path, &bytes).unwrap();
        match Projections::open_checking(&path, CACHE_BYTES, 0)
            .and_then(|projections| rows(&projections))
        {
            Ok(found) => {
                for (found, right) in found.iter().zip(&right) {
                    let whole = found == right;
                    assert!(whole || found.0.is_none(), "byte {place}: other contents");
                }
            }
            Err(error) => {
                assert!(error.needs_rebuild(), "byte {place}: {error:?}");
                noticed += 1;
            }
        }
    }
    assert!(
        noticed > 0,
        "no change was noticed: the test looks elsewhere"
    );
}

// A row that was changed and rewritten with valid pages is still detected when it is read.
#[test]
fn changed_row_is_damage_when_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("views.redb");
    written(&path);
    let key = super::super::keys::tip(super::model::id(0));
    let projections = Projections::open(&path, CACHE_BYTES).unwrap();
    let mut row = Vec::new();
    let read = projections.read(|reader| {
        let found = reader.table(CONVERSATIONS).get(key.as_bytes())?;
        row = found.unwrap().to_vec();
        Ok(())
    });
    read.unwrap();
    drop(projections);
    row[3] ^= 1;
    rewrite(&path, CONVERSATIONS, key.as_bytes(), row);
    let projections = Projections::open(&path, CACHE_BYTES).unwrap();
    let answer = projections.state(super::model::id(0));
    assert!(matches!(answer, Err(ProjectionsError::Damaged { .. })));
    assert!(
        projections.state(super::model::id(1)).is_ok(),
        "others are read"
    );
}

// Files of another type, or truncated ones.
#[test]
fn foreign_or_truncated_file_is_damage() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("views.redb");
    written(&path);
    let sound = fs::read(&path).unwrap();
    let text = b"this is no database".repeat(1000);
    let cut = [1, 100, 4096, 8192, sound.len() / 2, sound.len() - 1];
    for bytes in cut.map(|n| &sound[..n]).iter().chain([&text.as_slice()]) {
        fs::write(&path, bytes).unwrap();
        let answer = Projections::open(&path, CACHE_BYTES).map(|_| ());
        let error = answer.expect_err("no such file is a store of views");
        assert!(error.needs_rebuild(), "{} bytes: {error:?}", bytes.len());
    }
    Projections::wipe(&path).unwrap();
    Projections::wipe(&path).unwrap();
    assert_eq!(
        Projections::open(&path, CACHE_BYTES)
            .unwrap()
            .reached()
            .unwrap(),
        0
    );
}

// After an upgrade, rows may have a different meaning: the version must be checked before one is
// read. A database with other tables is not ours either.
#[test]
fn another_version_requires_a_rebuild() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("views.redb");
    drop(Projections::open(&path, CACHE_BYTES).unwrap());
    let mut row = b"version".to_vec();
    row.extend_from_slice(&(VIEWS_VERSION + 1).to_le_bytes());
    super::super::codec::seal(&mut row, 0);
    rewrite(&path, META, b"version", row.split_off(7));
    let error = Projections::open(&path, CACHE_BYTES)
        .map(|_| ())
        .unwrap_err();
    assert!(matches!(
        error,
        ProjectionsError::OtherVersion { found, expected: VIEWS_VERSION } if found == VIEWS_VERSION + 1
    ));

    let other = folder.path().join("other.redb");
    let db = Database::create(&other).unwrap();
    let txn = db.begin_write().unwrap();
    txn.open_table(TableDefinition::<u64, u64>::new("meta"))
        .unwrap();
    txn.commit().unwrap();
    drop(db);
    let error = Projections::open(&other, CACHE_BYTES)
        .map(|_| ())
        .unwrap_err();
    assert!(
        matches!(error, ProjectionsError::Damaged { .. }),
        "{error:?}"
    );
}

// Two processes on one file would overwrite each other's rows.
#[test]
fn second_handle_is_refused_as_locked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("views.redb");
    let projections = Projections::open(&path, CACHE_BYTES).unwrap();
    let second = Projections::open(&path, CACHE_BYTES).map(|_| ());
    assert!(
        matches!(second, Err(ProjectionsError::Locked)),
        "{second:?}"
    );
    assert!(projections.file_bytes() > 0);
    drop(projections);
    assert!(Projections::open(&path, CACHE_BYTES).is_ok());
}
