//! Options for connecting to a store: where it is, and the caller's credentials.

use std::{io, path::PathBuf, time::Duration};

use treering_access::KeyToken;
use treering_base::disk;

use crate::ClientError;

/// Where the store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A folder, opened in this process.
    Data(PathBuf),
    /// A server, by its URL.
    Server(String),
}

/// A store and the credentials for it.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Where the store is.
    pub target: Target,
    /// How long to wait for another process that holds the folder.
    pub wait: Duration,
    /// The namespace of every request.
    pub namespace: String,
    /// Credentials for a server.
    pub credentials: Credentials,
}

/// The caller's credentials, and how the server is verified.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// The API key.
    pub token: Option<KeyArgument>,
    /// CA certificates (PEM) that verify the server's certificate; `None` for the built-in webpki
    /// roots.
    pub ca: Option<PathBuf>,
    /// Client certificate (PEM).
    pub client_cert: Option<PathBuf>,
    /// Private key of the client certificate (PEM).
    pub client_key: Option<PathBuf>,
}

impl Credentials {
    /// Returns the key, if one was given.
    ///
    /// # Errors
    /// [`ClientError::ReadFile`] if the key is in a file that cannot be read;
    /// [`ClientError::Usage`] if the key is invalid.
    pub fn key(&self) -> Result<Option<String>, ClientError> {
        let key = self.token.as_ref().map(KeyArgument::read);
        Ok(key.transpose()?.flatten())
    }
}

/// A key as given on the command line: the key itself, or `@FILE`.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyArgument(String);

impl From<String> for KeyArgument {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl std::fmt::Debug for KeyArgument {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyArgument(…)")
    }
}

impl KeyArgument {
    /// Returns the key; `None` if it is empty, as an environment variable may be.
    ///
    /// # Errors
    /// [`ClientError::ReadFile`] if the file cannot be read; [`ClientError::Usage`] if the key is
    /// invalid: a typo is reported before calling the server.
    pub fn read(&self) -> Result<Option<String>, ClientError> {
        let text = match self.0.strip_prefix('@') {
            Some(path) => {
                let path = PathBuf::from(path);
                let read = disk::read_secret(&path).and_then(|text| {
                    String::from_utf8(text)
                        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
                });
                read.map_err(|cause| ClientError::ReadFile { path, cause })?
            }
            None => self.0.clone(),
        };
        let text = text.trim();
        if text.is_empty() {
            return Ok(None);
        }
        KeyToken::parse(text).map_err(|error| ClientError::Usage {
            what: format!("--token or TREERING_TOKEN: {error}"),
            hint: "use the key exactly as `treering keys create` showed it, or unset it".into(),
        })?;
        Ok(Some(text.to_owned()))
    }
}
