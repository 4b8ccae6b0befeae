//! The API keys of a cluster: one text, which this crate does not interpret. A change replaces it,
//! if nobody else has changed it since it was read.

use uuid::Uuid;

use crate::{error::PostgresError, log::PostgresLog, nodes::ask, session::SqlParam};

const READ: &str = "select version, content from treering_keys \
     where version is distinct from $1::uuid";
const CREATE: &str = "insert into treering_keys (version, content) values ($1, $2) \
     on conflict do nothing returning 1";
const REPLACE: &str = "update treering_keys set version = $1, content = $2 \
     where version = $3 returning 1";

/// The keys of a cluster, as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedKeys {
    /// Each change has another one.
    pub version: Uuid,
    /// The keys, in the format of `keys.json`.
    pub content: String,
}

impl PostgresLog {
    /// Returns the keys of the cluster. `None`: there are none, or their version is `known`.
    ///
    /// # Errors
    /// [`PostgresError`].
    pub async fn keys(&self, known: Option<Uuid>) -> Result<Option<SharedKeys>, PostgresError> {
        let inner = self.inner();
        let rows = ask(inner, &inner.control, READ, &[&known]).await?;
        Ok(rows.first().map(|row| SharedKeys {
            version: row.get(0),
            content: row.get(1),
        }))
    }

    /// Replaces the keys, if their version is still `from` (`None`: there are none). Returns false
    /// if it is not.
    ///
    /// # Errors
    /// [`PostgresError`]. The keys may have been replaced nevertheless.
    pub async fn replace_keys(
        &self,
        from: Option<Uuid>,
        keys: &SharedKeys,
    ) -> Result<bool, PostgresError> {
        let inner = self.inner();
        let rows = match &from {
            None => {
                let params: [SqlParam<'_>; 2] = [&keys.version, &keys.content];
                ask(inner, &inner.control, CREATE, &params).await?
            }
            Some(from) => {
                let params: [SqlParam<'_>; 3] = [&keys.version, &keys.content, from];
                ask(inner, &inner.control, REPLACE, &params).await?
            }
        };
        Ok(!rows.is_empty())
    }
}
