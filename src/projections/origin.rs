//! The origin of the projections: one log, in one timeline.

use uuid::Uuid;

use super::{
    error::ProjectionsError,
    meta::{get_meta, put_meta},
    store::Projections,
    table::{Get, META},
};

const ORIGIN_KEY: &[u8] = b"origin";
const ORIGIN_BYTES: usize = 32;

/// The log from which projections were built. Projections of another log prove nothing about this
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The store's id.
    pub store: Uuid,
    /// The log's timeline.
    pub timeline: Uuid,
}

impl Projections {
    /// Returns the origin; `None` when nothing was applied yet.
    ///
    /// # Errors
    /// As for every read.
    pub fn origin(&self) -> Result<Option<Origin>, ProjectionsError> {
        self.read(|reader| {
            let table = reader.table(META);
            if table.get(ORIGIN_KEY)?.is_none() {
                return Ok(None);
            }
            let bytes: [u8; ORIGIN_BYTES] = get_meta(&table, ORIGIN_KEY)?;
            let id = |at: usize| Uuid::from_slice(&bytes[at..at + 16]).unwrap_or_default();
            Ok(Some(Origin {
                store: id(0),
                timeline: id(16),
            }))
        })
    }

    /// Records the origin.
    ///
    /// # Errors
    /// As for every write.
    pub fn set_origin(&self, origin: Origin) -> Result<(), ProjectionsError> {
        let mut bytes = origin.store.into_bytes().to_vec();
        bytes.extend_from_slice(origin.timeline.as_bytes());
        self.write(|writer| {
            put_meta(&mut writer.table(META), ORIGIN_KEY, &bytes);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn projections_store_the_origin_of_their_log() {
        // Projections of another store answered with that store's conversations.
        let projections = Projections::in_memory().unwrap();
        assert_eq!(projections.origin().unwrap(), None);
        let origin = Origin {
            store: Uuid::new_v4(),
            timeline: Uuid::new_v4(),
        };
        projections.set_origin(origin).unwrap();
        assert_eq!(projections.origin().unwrap(), Some(origin));
    }
}
