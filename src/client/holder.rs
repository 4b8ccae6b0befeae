//! Connects to the server that holds a data folder. The folder's lock file names its address.
//!
//! The address comes from a file, not from the user. Therefore only a random question is sent
//! there, and not the key, until the server has proved that it holds the folder. The lock file is
//! trusted only if it is private to the user and names a loopback address.

use std::{path::Path, time::Duration};

use tokio::time::timeout;
use tonic::Request;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use super::{
    connect::{Connection, is_of_this_machine},
    error::{ClientError, Exit},
    options::Credentials,
};
use treering_domain::{hex, unhex};
use treering_engine::{LockHolder, holder, holder_of};
use treering_server::{FOLDER_PROOF, FOLDER_QUESTION};

/// Longest wait for the server's proof.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// Connects to the server at `url`, which the folder's lock file names, and adds the key. Returns
/// `None` when the server does not answer or does not prove that it holds this folder: the lock
/// file may be left from a process that has ended.
///
/// # Errors
/// [`ClientError::Outcome`] for a server that must not be contacted because of its address or its
/// lock file.
pub async fn connect(
    url: &str,
    dir: &Path,
    namespace: &str,
    credentials: &Credentials,
) -> Result<Option<Connection>, ClientError> {
    let named = holder_of(dir);
    check(url, dir, &named)?;
    let without_key = Credentials {
        token: None,
        ..credentials.clone()
    };
    let store = Connection::to_server_as(url, namespace, &without_key).await;
    let Ok(store) = store else { return Ok(None) };
    let proved = timeout(ANSWER_WAIT, has_proved(&store, &named)).await;
    // A timeout counts as no proof.
    match proved.unwrap_or(Ok(false))? {
        true => store.with_key(credentials).map(Some),
        false => Ok(None),
    }
}

/// Refuses servers that must not be contacted, although the lock file names them.
fn check(url: &str, dir: &Path, named: &LockHolder) -> Result<(), ClientError> {
    let why = if !is_of_this_machine(url) {
        "the address is not a loopback address"
    } else if !named.is_private {
        "its LOCK file is accessible to other users, who could have written the address"
    } else {
        return Ok(());
    };
    Err(ClientError::Outcome {
        what: format!(
            "data folder {} is served at {url}, but nothing was sent there: {why}",
            dir.display()
        ),
        hint: format!("if you trust that server, name it with `--server {url}`"),
        exit: Exit::Unavailable,
    })
}

/// Returns true if the server knows the secret in the lock file.
async fn has_proved(store: &Connection, named: &LockHolder) -> Result<bool, ClientError> {
    let (Some(secret), Some(address)) = (&named.secret, &named.address) else {
        return Ok(false);
    };
    let question = holder::question().map_err(|cause| ClientError::Outcome {
        what: format!("the system's random number generator failed: {cause}"),
        hint: "name the server with --server".into(),
        exit: Exit::Failed,
    })?;
    let mut request = Request::new(HealthCheckRequest::default());
    if let Ok(question) = hex(&question).parse() {
        request.metadata_mut().insert(FOLDER_QUESTION, question);
    }
    let answer = HealthClient::new(store.transport()).check(request).await;
    let Ok(answer) = answer else { return Ok(false) };
    let proof = answer.metadata().get(FOLDER_PROOF);
    let proof = proof.and_then(|proof| unhex(proof.as_bytes()));
    let proof = proof.map(blake3::Hash::from_bytes);
    // `blake3::Hash` compares in constant time.
    Ok(proof == Some(secret.answer(&question, address)))
}
