//! Where the log is: the connection URL, and TLS.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use percent_encoding::percent_decode_str;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use tokio_postgres::{
    Config,
    config::{Host, SslMode, TargetSessionAttrs},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::PostgresError;

/// A connection that is idle for this long is probed, to detect a server that has vanished.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// A parsed connection URL.
#[derive(Clone)]
pub(crate) struct ServerTarget {
    /// One for each server, because the driver has no time limit for one of several.
    servers: Arc<[Config]>,
    /// The server that was a primary last, which is asked first.
    last_primary: Arc<AtomicUsize>,
    pub(crate) tls: Option<MakeRustlsConnect>,
    /// Hosts and database, for messages.
    pub(crate) name: String,
}

impl ServerTarget {
    pub(crate) fn parse(url: &str, connect_timeout: Duration) -> Result<Self, PostgresError> {
        let parts = UrlParts::split(url)?;
        // The driver's own errors may quote parts of the URL.
        let mut config: Config = parts.rest.parse().map_err(|_| PostgresError::Url {
            what: "a part of it is unknown or malformed",
        })?;
        let encrypted = match parts.ssl_mode.as_deref() {
            // Both verify the certificate: encryption alone does not authenticate the server.
            Some("require" | "verify-full") => true,
            Some("disable") => false,
            None if is_local(&config) => false,
            None => {
                return Err(PostgresError::Url {
                    what: "it has no sslmode, and the server is on another machine: add \
                           sslmode=verify-full, or sslmode=disable to send everything unencrypted",
                });
            }
            Some(_) => {
                return Err(PostgresError::Url {
                    what: "sslmode must be disable, require or verify-full",
                });
            }
        };
        config
            .ssl_mode(if encrypted {
                SslMode::Require
            } else {
                SslMode::Disable
            })
            .target_session_attrs(TargetSessionAttrs::ReadWrite)
            .connect_timeout(connect_timeout)
            .keepalives_idle(KEEPALIVE)
            .keepalives_interval(KEEPALIVE)
            .keepalives_retries(2)
            .tcp_user_timeout(KEEPALIVE * 3);
        if config.get_application_name().is_none() {
            config.application_name("treering");
        }
        let count = config.get_hosts().len();
        if !config.get_hostaddrs().is_empty() || ![0, 1, count].contains(&config.get_ports().len())
        {
            return Err(PostgresError::Url {
                what: "it needs one port or one for each host, and no hostaddr",
            });
        }
        Ok(Self {
            name: name_of(&config),
            tls: encrypted
                .then(|| connector(parts.root_cert.as_deref()))
                .transpose()?,
            servers: (0..count).map(|index| one_server(&config, index)).collect(),
            last_primary: Arc::default(),
        })
    }

    /// Returns the servers in the order in which to ask them, with their indexes.
    pub(crate) fn servers(&self) -> impl ExactSizeIterator<Item = (usize, &Config)> {
        let count = self.servers.len();
        let first = self.last_primary.load(Ordering::Relaxed);
        (0..count).map(move |step| {
            let index = (first + step) % count;
            (index, &self.servers[index])
        })
    }

    /// Notes which server is a primary.
    pub(crate) fn note_primary(&self, index: usize) {
        self.last_primary.store(index, Ordering::Relaxed);
    }
}

/// A URL, split into the part for the driver and the parameters that the driver does not support.
struct UrlParts {
    rest: String,
    ssl_mode: Option<String>,
    root_cert: Option<PathBuf>,
}

impl UrlParts {
    fn split(url: &str) -> Result<Self, PostgresError> {
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(PostgresError::Url {
                what: "it must begin with postgres:// or postgresql://",
            });
        }
        let mut parts = Self {
            rest: url.to_owned(),
            ssl_mode: None,
            root_cert: None,
        };
        let Some((before, query)) = url.split_once('?') else {
            return Ok(parts);
        };
        let mut kept = Vec::new();
        for pair in query.split('&') {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = || percent_decode_str(value).decode_utf8_lossy().into_owned();
            match key {
                "sslmode" => parts.ssl_mode = Some(value()),
                "sslrootcert" => parts.root_cert = Some(value().into()),
                _ => kept.push(pair),
            }
        }
        parts.rest = format!("{before}?{}", kept.join("&"));
        Ok(parts)
    }
}

/// Returns the configuration for one of the hosts.
fn one_server(all: &Config, index: usize) -> Config {
    let mut one = Config::new();
    match &all.get_hosts()[index] {
        Host::Tcp(name) => one.host(name),
        #[cfg(unix)]
        Host::Unix(folder) => one.host_path(folder),
    };
    let ports = all.get_ports();
    if let Some(port) = ports.get(index).or(ports.first()) {
        one.port(*port);
    }
    if let Some(user) = all.get_user() {
        one.user(user);
    }
    if let Some(password) = all.get_password() {
        one.password(password);
    }
    if let Some(name) = all.get_dbname() {
        one.dbname(name);
    }
    if let Some(options) = all.get_options() {
        one.options(options);
    }
    if let Some(name) = all.get_application_name() {
        one.application_name(name);
    }
    if let Some(limit) = all.get_connect_timeout() {
        one.connect_timeout(*limit);
    }
    if let Some(limit) = all.get_tcp_user_timeout() {
        one.tcp_user_timeout(*limit);
    }
    if let Some(interval) = all.get_keepalives_interval() {
        one.keepalives_interval(interval);
    }
    if let Some(retries) = all.get_keepalives_retries() {
        one.keepalives_retries(retries);
    }
    one.keepalives(all.get_keepalives())
        .keepalives_idle(all.get_keepalives_idle())
        .ssl_mode(all.get_ssl_mode())
        .ssl_negotiation(all.get_ssl_negotiation())
        .channel_binding(all.get_channel_binding())
        .target_session_attrs(all.get_target_session_attrs());
    one
}

fn is_local(config: &Config) -> bool {
    config.get_hosts().iter().all(|host| match host {
        Host::Tcp(name) => matches!(name.as_str(), "localhost" | "127.0.0.1" | "::1"),
        #[cfg(unix)]
        Host::Unix(_) => true,
    })
}

fn name_of(config: &Config) -> String {
    let hosts: Vec<_> = config
        .get_hosts()
        .iter()
        .enumerate()
        .map(|(index, host)| {
            let ports = config.get_ports();
            let port = ports.get(index).or(ports.first()).copied();
            match host {
                Host::Tcp(name) => format!("{name}:{}", port.unwrap_or(5432)),
                #[cfg(unix)]
                Host::Unix(folder) => folder.display().to_string(),
            }
        })
        .collect();
    let database = config.get_dbname().or(config.get_user());
    format!("{}/{}", hosts.join(","), database.unwrap_or_default())
}

fn connector(root_cert: Option<&Path>) -> Result<MakeRustlsConnect, PostgresError> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = root_cert {
        let failed = |what: String| PostgresError::Certificates {
            path: path.to_owned(),
            what,
        };
        let read = CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| failed(error.to_string()))?;
        for certificate in read {
            roots
                .add(certificate)
                .map_err(|error| failed(error.to_string()))?;
        }
    } else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    if roots.is_empty() {
        return Err(PostgresError::Certificates {
            path: root_cert.map_or_else(|| "the system's certificate store".into(), Path::to_owned),
            what: "none found; name a file with sslrootcert=FILE".to_owned(),
        });
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| PostgresError::Certificates {
            path: "TLS".into(),
            what: error.to_string(),
        })?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<ServerTarget, PostgresError> {
        ServerTarget::parse(url, Duration::from_secs(1))
    }

    // A password must not reach a log file by way of an error, whatever is wrong with the URL.
    #[test]
    fn errors_and_names_have_no_password() {
        let urls = [
            "postgres://me:hunter2@db.example/log",
            "postgres://me:hunter2@db.example/log?sslmode=hunter2",
            "postgres://me:hunter2@db.example/log?hunter2=1&sslmode=disable",
            "postgres://me:hunter2@db.example:hunter2/log?sslmode=disable",
            "host=db.example password=hunter2",
        ];
        for url in urls {
            let error = parse(url).err().unwrap();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
        let target =
            parse("postgres://me:hunter2@one.example,two.example:5433/log?sslmode=disable");
        let name = target.ok().unwrap().name;
        assert_eq!(name, "one.example:5432,two.example:5433/log");
    }

    // Events must not cross a network in clear because somebody forgot a parameter.
    #[test]
    fn other_machines_need_a_word_about_tls() {
        for (url, encrypted) in [
            ("postgres://me@db.example/log?sslmode=disable", Some(false)),
            ("postgres://me@db.example/log?sslmode=require", Some(true)),
            (
                "postgres://me@db.example/log?sslmode=verify-full",
                Some(true),
            ),
            ("postgres://me@db.example/log", None),
            ("postgres://me@db.example/log?sslmode=prefer", None),
            ("postgres://me@localhost,db.example/log", None),
            ("postgres://me@localhost/log", Some(false)),
            ("postgres://me@%2Frun%2Fpostgresql/log", Some(false)),
        ] {
            let found = parse(url).map(|target| target.tls.is_some());
            // A machine may have no CA certificates at all.
            let no_roots = matches!(found, Err(PostgresError::Certificates { .. }));
            assert!(
                no_roots && encrypted == Some(true) || found.ok() == encrypted,
                "{url}"
            );
        }
    }
}
