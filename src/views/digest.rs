//! Are two views the same, byte for byte?

use crate::domain::ContentHash;

use super::{
    codec,
    error::ViewsError,
    layers::Reader,
    store::Views,
    table::{CONVERSATIONS, META, NAMESPACES, TableId},
};

const TABLES: [(&str, TableId); 3] = [
    ("meta", META),
    ("conversations", CONVERSATIONS),
    ("namespaces", NAMESPACES),
];

impl Views {
    /// BLAKE3 over every row of every table, in order. Views of the same log up
    /// to the same offset have the same digest, however they came about.
    ///
    /// # Errors
    /// As every read.
    pub fn digest(&self) -> Result<ContentHash, ViewsError> {
        self.read(|reader| {
            let mut hasher = blake3::Hasher::new();
            let mut part = |bytes: &[u8]| {
                hasher.update(&(bytes.len() as u64).to_le_bytes());
                hasher.update(bytes);
            };
            for (name, table) in TABLES {
                part(name.as_bytes());
                for row in reader.table(table).iter() {
                    let (key, value) = row?;
                    codec::checked(&key, &value)?;
                    part(&key);
                    part(&value);
                }
            }
            Ok(ContentHash(hasher.finalize().into()))
        })
    }

    /// The first row, by table and key, that these views have and the others do
    /// not, or the other way round; none: they are the same.
    ///
    /// # Errors
    /// As every read.
    pub fn differs_from(&self, other: &Self) -> Result<Option<String>, ViewsError> {
        self.read(|mine| other.read(|theirs| first_difference(mine, theirs, || true)))
    }

    /// The same for these views as they are at one moment, while they go on: `bring`
    /// is given the log offset that they have reached then, and brings the others as
    /// far. None as well once `go_on` says no.
    ///
    /// # Errors
    /// As every read, and as `bring`.
    pub fn differs_at_once_from<E: From<ViewsError>>(
        &self,
        other: &Self,
        bring: impl FnOnce(u64) -> Result<(), E>,
        go_on: impl FnMut() -> bool,
    ) -> Result<Option<String>, E> {
        let compared = self.read(|mine| {
            let reached = mine.reached()?;
            Ok(bring(reached)
                .and_then(|()| Ok(other.read(|theirs| first_difference(mine, theirs, go_on))?)))
        });
        compared?
    }
}

fn first_difference(
    mine: &Reader,
    theirs: &Reader,
    mut go_on: impl FnMut() -> bool,
) -> Result<Option<String>, ViewsError> {
    for (name, table) in TABLES {
        let (mine, theirs) = (mine.table(table), theirs.table(table));
        let (mut mine, mut theirs) = (mine.iter(), theirs.iter());
        loop {
            let (a, b) = (mine.next().transpose()?, theirs.next().transpose()?);
            let (key, how) = match (&a, &b) {
                (None, None) => break,
                (Some((key, _)), None) => (&key[..], "only in the first"),
                (None, Some((key, _))) => (&key[..], "only in the second"),
                (Some((a, _)), Some((b, _))) if a < b => (&a[..], "only in the first"),
                (Some((a, _)), Some((b, _))) if a > b => (&b[..], "only in the second"),
                (Some((key, a)), Some((_, b))) if a != b => (&key[..], "not the same"),
                _ if go_on() => continue,
                _ => return Ok(None),
            };
            return Ok(Some(format!("{name} {}: {how}", readable(key))));
        }
    }
    Ok(None)
}

/// A key for people: text as it is, other bytes in hexadecimal.
fn readable(key: &[u8]) -> String {
    let one = |byte: &u8| match byte {
        b'!'..=b'~' => char::from(*byte).to_string(),
        other => format!("\\{other:02x}"),
    };
    key.iter().map(one).collect()
}
