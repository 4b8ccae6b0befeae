//! Compares two projections byte for byte.

use treering_domain::ContentHash;

use super::{
    codec,
    error::ProjectionsError,
    row_store::Reader,
    store::Projections,
    table::{CONVERSATIONS, META, NAMESPACES, TableId},
};

const TABLES: [(&str, TableId); 3] = [
    ("meta", META),
    ("conversations", CONVERSATIONS),
    ("namespaces", NAMESPACES),
];

impl Projections {
    /// Returns one BLAKE3 hash over all rows of all tables, in order. Projections of the same log
    /// up to the same offset have the same digest, however they were built.
    ///
    /// # Errors
    /// As for every read.
    pub fn digest(&self) -> Result<ContentHash, ProjectionsError> {
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

    /// Returns the first row, by table and key, in which two projections differ; `None` when they
    /// are equal.
    ///
    /// # Errors
    /// As for every read.
    #[cfg(test)]
    pub(crate) fn differs_from(&self, other: &Self) -> Result<Option<String>, ProjectionsError> {
        self.read(|mine| other.read(|theirs| first_difference(mine, theirs, || true)))
    }

    /// Compares one state of these projections, which may keep changing, with `other`. `bring` gets
    /// the log offset of that state and must advance `other` to it. Returns the first row, by table
    /// and key, that differs; `None` when they are equal, or once `go_on` returns false.
    ///
    /// # Errors
    /// As for every read, and the errors of `bring`.
    pub fn differs_at_once_from<E: From<ProjectionsError>>(
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
) -> Result<Option<String>, ProjectionsError> {
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
                (Some((key, a)), Some((_, b))) if a != b => (&key[..], "differs"),
                _ if go_on() => continue,
                _ => return Ok(None),
            };
            return Ok(Some(format!("{name} {}: {how}", readable(key))));
        }
    }
    Ok(None)
}

/// Formats a key for people: printable characters as they are, other bytes in hexadecimal.
fn readable(key: &[u8]) -> String {
    let one = |byte: &u8| match byte {
        b'!'..=b'~' => char::from(*byte).to_string(),
        other => format!("\\{other:02x}"),
    };
    key.iter().map(one).collect()
}
