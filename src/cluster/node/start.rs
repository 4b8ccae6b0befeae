//! Starts a node, and tries again while the database cannot be reached.

use std::sync::Arc;

use tokio::time::sleep;
use treering_access::KeyFileError;
use treering_log::EventLog;
use treering_log_postgres::{PostgresLog, PostgresLogOptions};

use super::{ClusterNode, NodeOptions};
use crate::{
    bounds::{LEASE_MIN, NAME_BYTES_MAX, START_PAUSE},
    keys::{KeyCopy, SharedKeysError},
    ownership::{Ownership, OwnershipError},
    trouble::Trouble,
};

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An option is out of range.
    #[error("the node's {option} {what}")]
    Option {
        /// The option.
        option: &'static str,
        /// What is wrong with it.
        what: String,
    },
    /// Another live process has the name.
    #[error(
        "another process is node {name}: stop it, wait until its lease ends, or choose another name"
    )]
    NameInUse {
        /// The name.
        name: String,
    },
    /// The log or the table of nodes cannot be used.
    #[error("the node cannot join its cluster: {0}")]
    Ownership(#[from] OwnershipError),
    /// The keys of the cluster cannot be used.
    #[error("the node cannot use the keys of its cluster: {0}")]
    Keys(KeyFileError),
}

impl From<SharedKeysError> for StartError {
    fn from(error: SharedKeysError) -> Self {
        match error {
            SharedKeysError::Keys(error) => Self::Keys(error),
            SharedKeysError::Database(error) => Self::Ownership(error),
            contended @ SharedKeysError::Contended => Self::Ownership(OwnershipError {
                what: contended.to_string(),
                is_transient: true,
            }),
        }
    }
}

impl ClusterNode {
    /// Opens the log in the database of a URL, and joins its cluster. While no primary can be
    /// reached, it logs that once and keeps trying.
    ///
    /// # Errors
    /// [`StartError`], if trying again does not help.
    pub async fn start(
        url: &str,
        log: PostgresLogOptions,
        options: NodeOptions,
    ) -> Result<Self, StartError> {
        check(&options)?;
        let log_options = PostgresLogOptions {
            claimed_only: true,
            ..log
        };
        let trouble = Trouble::new("joining the cluster");
        loop {
            let started = Self::start_once(url, log_options.clone(), options.clone()).await;
            match started {
                Err(StartError::Ownership(error)) if error.is_transient => {
                    trouble.note(&error.what);
                    sleep(START_PAUSE).await;
                }
                started => {
                    trouble.end();
                    return started;
                }
            }
        }
    }

    async fn start_once(
        url: &str,
        log: PostgresLogOptions,
        options: NodeOptions,
    ) -> Result<Self, StartError> {
        let log = PostgresLog::open(url, log).await;
        let log = Arc::new(log.map_err(OwnershipError::from)?);
        Self::start_over(Arc::clone(&log) as _, log, options).await
    }

    /// Joins a cluster over this log and table of owners. The log must refuse to acquire what was
    /// not claimed.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start_over(
        log: Arc<dyn EventLog>,
        ownership: Arc<dyn Ownership>,
        options: NodeOptions,
    ) -> Result<Self, StartError> {
        check(&options)?;
        let lease = options.lease;
        let keys = match options.keys.clone() {
            Some(keys) => Some(KeyCopy::load(Arc::clone(&ownership), keys).await?),
            None => None,
        };
        let node = Self::join(log, ownership, options).await?;
        if let Some(keys) = keys {
            tokio::spawn(keys.follow(lease, node.inner.stop.subscribe()));
        }
        Ok(node)
    }
}

pub(super) fn check(options: &NodeOptions) -> Result<(), StartError> {
    for (option, text) in [("name", &options.name), ("address", &options.address)] {
        if text.is_empty() || text.len() > NAME_BYTES_MAX {
            return Err(StartError::Option {
                option,
                what: format!("must have 1 to {NAME_BYTES_MAX} bytes"),
            });
        }
    }
    if options.lease < LEASE_MIN {
        return Err(StartError::Option {
            option: "lease",
            what: format!("must be at least {} ms", LEASE_MIN.as_millis()),
        });
    }
    Ok(())
}
