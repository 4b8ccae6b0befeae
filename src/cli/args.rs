//! The options of every command: store, namespace and output.

use std::{env, ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use directories::ProjectDirs;

use super::{error::ClientError, time_arg::length};
pub(crate) use treering_client::{ConnectOptions, Credentials, KeyArgument, Target};

/// Environment variable for the default of `--data`.
pub(crate) const DATA_ENV: &str = "TREERING_DATA";
/// Environment variable for the default of `--server`.
pub(crate) const SERVER_ENV: &str = "TREERING_SERVER";

/// Options of every command.
#[derive(Args, Clone, Debug)]
pub(crate) struct Common {
    /// Use the store in this folder, in this process
    ///
    /// Default: $TREERING_DATA, else the platform's data folder.
    #[arg(long, global = true, value_name = "DIR", conflicts_with = "server")]
    #[arg(help_heading = "Store")]
    pub(crate) data: Option<PathBuf>,
    /// Use the server at this URL, for example http://127.0.0.1:7171
    ///
    /// Default: $TREERING_SERVER, unless --data is given.
    #[arg(long, global = true, value_name = "URL", help_heading = "Store")]
    pub(crate) server: Option<String>,
    /// How long to wait for another command that has the folder open: 10s, 500ms, 0
    ///
    /// If a server has the folder open, the command goes through that server. With 0 the command
    /// fails at once in both cases, with an error that names the process.
    #[arg(long, global = true, value_name = "TIME", help_heading = "Store")]
    #[arg(value_parser = length, default_value = "10s")]
    pub(crate) wait: Duration,
    /// Namespace (tenant), isolated from all others
    #[arg(long, global = true, value_name = "NAME", help_heading = "Store")]
    #[arg(env = "TREERING_NAMESPACE", default_value = "default")]
    pub(crate) namespace: String,
    /// Credentials for a server.
    #[command(flatten)]
    pub(crate) credentials: CredentialArgs,
    /// Print JSON, one object on each line
    #[arg(long, global = true, help_heading = "Output")]
    pub(crate) json: bool,
    /// Print absolute times, not relative ones
    ///
    /// On a terminal, times are in the time zone of TZ or the machine, with the offset; in pipes
    /// and files they are UTC.
    #[arg(long, global = true, help_heading = "Output")]
    pub(crate) absolute: bool,
    /// Do not page long output on a terminal ($PAGER, else less)
    #[arg(long, global = true, help_heading = "Output")]
    pub(crate) no_pager: bool,
    /// When to use colour
    #[arg(long, global = true, value_name = "WHEN", help_heading = "Output")]
    #[arg(value_enum, default_value_t)]
    pub(crate) color: Color,
}

/// Credentials for a server, and how the server is verified.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct CredentialArgs {
    /// API key for the server, or @FILE with it
    #[arg(long, global = true, value_name = "KEY", help_heading = "Server")]
    #[arg(env = "TREERING_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<KeyArgument>,
    /// Trust only the certificate authorities in this file (PEM), for a server at an https://
    /// address with a private CA
    #[arg(long, global = true, value_name = "FILE", help_heading = "Server")]
    #[arg(env = "TREERING_CA")]
    pub(crate) ca: Option<PathBuf>,
    /// Client certificate (PEM), for a server that requires one
    #[arg(long, global = true, value_name = "FILE", help_heading = "Server")]
    #[arg(env = "TREERING_CLIENT_CERT", requires = "client_key")]
    pub(crate) client_cert: Option<PathBuf>,
    /// Private key of the client certificate (PEM)
    #[arg(long, global = true, value_name = "FILE", help_heading = "Server")]
    #[arg(env = "TREERING_CLIENT_KEY", requires = "client_cert")]
    pub(crate) client_key: Option<PathBuf>,
}

/// When to use colour.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Color {
    /// On a terminal.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Common {
    /// Returns the store of this command.
    ///
    /// # Errors
    /// [`ClientError::Usage`] if no folder was given and the platform has no default.
    pub(crate) fn target(&self) -> Result<Target, ClientError> {
        let set = |name| env::var_os(name).filter(|value| !value.is_empty());
        self.target_from(set(SERVER_ENV), set(DATA_ENV))
    }

    /// Returns the store of this command, with the credentials.
    pub(crate) fn connect_options(&self) -> Result<ConnectOptions, ClientError> {
        Ok(ConnectOptions {
            target: self.target()?,
            wait: self.wait,
            namespace: self.namespace.clone(),
            credentials: self.credentials(),
        })
    }

    /// Returns the credentials for a server.
    pub(crate) fn credentials(&self) -> Credentials {
        let given = self.credentials.clone();
        Credentials {
            token: given.token,
            ca: given.ca,
            client_cert: given.client_cert,
            client_key: given.client_key,
        }
    }

    /// Returns the folder of the store, or `None` if the command uses a server.
    pub(crate) fn folder(&self) -> Result<Option<PathBuf>, ClientError> {
        Ok(match self.target()? {
            Target::Data(dir) => Some(dir),
            Target::Server(_) => None,
        })
    }

    /// Returns true if the command uses a server instead of a folder.
    pub(crate) fn is_for_a_server(&self) -> Result<bool, ClientError> {
        Ok(self.folder()?.is_none())
    }

    /// Returns the folder of `--data` or its default, even if `--server` is given.
    ///
    /// # Errors
    /// [`ClientError::Usage`] if no folder was given and the platform has no default.
    pub(crate) fn data_dir(&self) -> Result<PathBuf, ClientError> {
        let from_env = env::var_os(DATA_ENV).filter(|value| !value.is_empty());
        self.data
            .clone()
            .or(from_env.map(PathBuf::from))
            .map_or_else(platform_data_dir, Ok)
    }

    /// Returns the folder, for commands that only work on a folder. `done` and `hint` are parts of
    /// the error that is returned if a server is named.
    ///
    /// # Errors
    /// [`ClientError::Usage`] for a server; as [`Common::data_dir`].
    pub(crate) fn folder_here(&self, done: &str, hint: &str) -> Result<PathBuf, ClientError> {
        match &self.server {
            None => self.data_dir(),
            Some(_) => Err(ClientError::Usage {
                what: format!("{done} on the folder itself, not through a server"),
                hint: hint.into(),
            }),
        }
    }

    /// Returns the default options.
    #[cfg(test)]
    pub(crate) fn for_tests() -> Self {
        Self {
            data: None,
            server: None,
            wait: Duration::ZERO,
            namespace: "default".into(),
            credentials: CredentialArgs::default(),
            json: false,
            absolute: false,
            no_pager: false,
            color: Color::Auto,
        }
    }

    fn target_from(
        &self,
        server_env: Option<OsString>,
        data_env: Option<OsString>,
    ) -> Result<Target, ClientError> {
        if let Some(dir) = &self.data {
            return Ok(Target::Data(dir.clone()));
        }
        if let Some(url) = &self.server {
            return Ok(Target::Server(with_scheme(url)));
        }
        if let Some(url) = server_env {
            return Ok(Target::Server(with_scheme(&url.to_string_lossy())));
        }
        match data_env {
            Some(dir) => Ok(Target::Data(dir.into())),
            None => platform_data_dir().map(Target::Data),
        }
    }
}

/// Parses a number of tokens: `16000`, `16_000`, `16k`, `1M`.
pub(crate) fn tokens(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (number, unit) = match text.chars().last() {
        Some('k' | 'K') => (&text[..text.len() - 1], 1_000),
        Some('m' | 'M') => (&text[..text.len() - 1], 1_000_000),
        _ => (text, 1),
    };
    let digits: String = number.chars().filter(|c| !matches!(c, '_' | ',')).collect();
    let number = digits.parse::<u64>().ok();
    number
        .and_then(|number| number.checked_mul(unit))
        .ok_or_else(|| "give a number of tokens, for example 16000 or 16k".into())
}

/// Parses `NAME=VALUE`.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("give NAME=VALUE".into()),
    }
}

fn with_scheme(url: &str) -> String {
    if url.contains("://") {
        url.to_owned()
    } else {
        format!("http://{url}")
    }
}

fn platform_data_dir() -> Result<PathBuf, ClientError> {
    ProjectDirs::from("", "", "treering")
        .map(|dirs| dirs.data_dir().to_owned())
        .ok_or_else(|| ClientError::Usage {
            what: "this account has no home folder to keep a store in".into(),
            hint: "name a folder with --data DIR or TREERING_DATA".into(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    // Budgets are usually given in thousands, so "16k" must be accepted. An error must show an
    // example.
    #[test]
    fn token_counts_parse_with_suffix_and_separator() {
        for (text, expected) in [
            ("16000", 16_000),
            ("16k", 16_000),
            ("16K", 16_000),
            ("16_000", 16_000),
            ("16,000", 16_000),
            ("1M", 1_000_000),
            ("0", 0),
        ] {
            assert_eq!(tokens(text), Ok(expected), "{text}");
        }
        for wrong in [
            "",
            "k",
            "1.5k",
            "-1",
            "16kk",
            "99999999999999999999",
            "lots",
        ] {
            let told = tokens(wrong).unwrap_err();
            assert!(told.contains("16k"), "{wrong:?}: {told}");
        }
    }

    fn common(data: Option<&str>, server: Option<&str>) -> Common {
        Common {
            data: data.map(PathBuf::from),
            server: server.map(str::to_owned),
            ..Common::for_tests()
        }
    }

    /// If TREERING_SERVER is set in the environment and the user types `--data x`, the option takes
    /// precedence.
    #[test]
    fn flags_override_the_environment() {
        let server = || Some(OsString::from("far:1"));
        let data = || Some(OsString::from("/env"));
        let target = |c: Common, s, d| c.target_from(s, d).ok();
        assert_eq!(
            target(common(Some("/x"), None), server(), data()),
            Some(Target::Data("/x".into()))
        );
        assert_eq!(
            target(common(None, Some("http://near:1")), server(), data()),
            Some(Target::Server("http://near:1".into()))
        );
        assert_eq!(
            target(common(None, None), server(), data()),
            Some(Target::Server("http://far:1".into()))
        );
        assert_eq!(
            target(common(None, None), None, data()),
            Some(Target::Data("/env".into()))
        );
    }
}
