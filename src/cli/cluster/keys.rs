//! The keys of a cluster, for `keys`.

use super::node::{failed, to_look};
use crate::{
    error::{ClientError, Exit},
    keys::refused as refused_keys,
};
use treering_access::{KeyFile, KeyFileError};
use treering_cluster::SharedKeysError;
use treering_domain::with_causes;

/// Changes the keys of a cluster.
///
/// # Errors
/// [`ClientError::Outcome`], and the errors of keys.
pub(crate) async fn change_keys<T>(
    url: &str,
    change: impl FnMut(&mut KeyFile) -> Result<T, KeyFileError>,
) -> Result<T, ClientError> {
    let log = to_look(url).await?;
    let changed = treering_cluster::change_keys(&log, change).await;
    changed.map_err(refused)
}

/// Returns the keys of a cluster.
///
/// # Errors
/// [`ClientError::Outcome`].
pub(crate) async fn read_keys(url: &str) -> Result<KeyFile, ClientError> {
    let log = to_look(url).await?;
    treering_cluster::read_keys(&log).await.map_err(refused)
}

fn refused(error: SharedKeysError) -> ClientError {
    match error {
        SharedKeysError::Keys(KeyFileError::Damaged { path, why }) => ClientError::Outcome {
            what: format!("{} is invalid: {why}", path.display()),
            hint: "restore the table from a backup of the database".into(),
            exit: Exit::Damaged,
        },
        SharedKeysError::Keys(error) => refused_keys(error),
        error => failed(
            with_causes(&error).to_string(),
            "`treering keys ls` shows whether the keys have changed; if not, run the command again",
        ),
    }
}
