//! `serve --cluster` and `cluster`: nodes over a log in PostgreSQL.

// Without the feature, the options are parsed, so that the error says what to do.
#![cfg_attr(not(feature = "cluster"), allow(dead_code))]

use std::sync::Arc;

use clap::{Args, Subcommand};
use tokio::net::TcpListener;

use crate::{error::ClientError, observe::Observer, serve::size, web::WebOptions};
use treering_access::KeyStore;
use treering_engine::OpenOptions;
use treering_server::{ServeOptions, tls::TlsFiles};

#[cfg(feature = "cluster")]
mod keys;
#[cfg(feature = "cluster")]
mod moving;
#[cfg(feature = "cluster")]
mod node;
#[cfg(not(feature = "cluster"))]
#[path = "not_built.rs"]
mod node;

#[cfg(feature = "cluster")]
pub(crate) use keys::{change_keys, read_keys};
pub(crate) use node::run;
#[cfg(not(feature = "cluster"))]
pub(crate) use node::{change_keys, read_keys};

const HEADING: &str = "Cluster";

/// Options of `serve` for a node of a cluster.
#[derive(Args, Debug, Clone)]
pub(crate) struct ClusterArgs {
    /// Serve as a node of a cluster, whose log is in this PostgreSQL database
    /// (`postgres://USER:PASSWORD@HOST/DATABASE?sslmode=verify-full`; or $TREERING_CLUSTER, which
    /// other users of the machine cannot see). --data is then the folder of this node's projections
    /// and index. See docs/CLUSTER.md
    #[arg(long, value_name = "URL", help_heading = HEADING, requires_all = ["node", "advertise"])]
    #[arg(conflicts_with_all = [
        "pseudonyms", "retention", "quota", "backup", "heads", "otlp_endpoint", "summariser_url",
    ])]
    pub(super) cluster: Option<String>,
    /// Name of this node, which no other node has. A restarted node with its earlier name gets its
    /// shards back
    #[arg(long, value_name = "NAME", help_heading = HEADING, requires = "cluster")]
    node: Option<String>,
    /// HOST:PORT at which the other nodes reach this one
    #[arg(long, value_name = "ADDR", help_heading = HEADING, requires = "cluster")]
    advertise: Option<String>,
    /// PEM file with the CAs of the other nodes' certificates. By default they need one that is
    /// publicly trusted
    #[arg(long, value_name = "FILE", help_heading = HEADING, requires_all = ["cluster", "tls_cert"])]
    node_ca: Option<std::path::PathBuf>,
    /// Acknowledge events that are on one PostgreSQL server only, if it has no synchronous standby.
    /// Losing that server loses events
    #[arg(long, help_heading = HEADING, requires = "cluster")]
    accept_single_copy: bool,
}

/// What a node of a cluster serves with.
pub(crate) struct NodeParts {
    pub(crate) engine: OpenOptions,
    pub(crate) listener: TcpListener,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) serve: ServeOptions,
    pub(crate) keys: Arc<KeyStore>,
    pub(crate) web: WebOptions,
    pub(crate) observer: Observer,
    /// Checks the keys of the cluster, which the node has only when it has joined.
    pub(crate) check: KeyCheck,
}

/// Says why the node must not serve with these keys.
pub(crate) type KeyCheck = Box<dyn Fn(&KeyStore) -> Result<(), ClientError> + Send + Sync>;

/// Create the tables of a cluster, show its nodes, and move stores
///
/// A cluster is several `treering serve --cluster URL` over one log in PostgreSQL. Clients call any
/// of them. See docs/CLUSTER.md.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering cluster init postgres://owner@db/treering --role treering_node
  treering serve --cluster postgres://treering_node@db/treering --node a --advertise 10.0.0.1:7171 --data ./a
  treering cluster init postgres://owner@db/treering --objects s3://bucket/treering --hot 256MiB
  treering cluster status postgres://treering_node@db/treering
  treering cluster drain a postgres://treering_node@db/treering
  treering cluster import --data ./store --cluster postgres://owner@db/treering
  treering cluster export --cluster postgres://owner@db/treering --data ./store
  treering cluster verify postgres://treering_node@db/treering")]
pub(crate) struct ClusterCommandArgs {
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Subcommand, Debug, Clone)]
enum ClusterCommand {
    /// Create the tables, or upgrade those of an earlier version in place
    Init {
        #[command(flatten)]
        database: DatabaseArg,
        /// Number of shards of a new log, 1 to 4,096; 64 unless given. It can never be changed: a
        /// shard is what one node owns, so have several for each node that the cluster may ever
        /// have
        #[arg(long, value_name = "COUNT")]
        shards: Option<u32>,
        /// Let this role append, read, erase and seal, and nothing else. It is created without a
        /// password if it does not exist
        #[arg(long, value_name = "NAME")]
        role: Option<String>,
        /// Move older events to this folder, which all nodes must share, or to this bucket:
        /// `s3://BUCKET/PATH`, `gs://BUCKET/PATH` or `az://CONTAINER/PATH`. Nodes take its keys from
        /// the usual environment variables. Nothing moves back
        #[arg(long, value_name = "FOLDER|BUCKET")]
        objects: Option<String>,
        /// How much of each shard stays in the database; 64MiB at first
        #[arg(long, value_name = "SIZE", requires = "objects", value_parser = size)]
        hot: Option<u64>,
    },
    /// Show the live nodes, how many shards each owns and follows, and how many events it is behind in
    /// those that it follows; and how much is in object storage
    Status {
        #[command(flatten)]
        database: DatabaseArg,
    },
    /// Hand the shards of a node over to the others, and wait until they own them
    ///
    /// The node runs on and forwards calls. It takes shards again when it is started again.
    Drain {
        /// Name of the node
        node: String,
        #[command(flatten)]
        database: DatabaseArg,
    },
    /// Check the hashes of all events and bodies in the database, without a node
    ///
    /// Nodes may run. Exits with 1 if something is damaged.
    Verify {
        #[command(flatten)]
        database: DatabaseArg,
    },
    /// Move the store in --data into a new cluster
    ///
    /// Ids, revisions, times, bodies, keys and chain hashes stay the same; log positions change. Then
    /// every event is read again and compared. The store is not changed. Stop all nodes before; they
    /// do not start until the import has ended. If it is interrupted, run it again. The role needs
    /// the rights of the owner of the tables.
    Import(MoveArgs),
    /// Move a cluster into a new store in --data
    ///
    /// Stop all nodes before. The cluster is not changed. If it is interrupted, run it again: it
    /// begins from the start.
    Export(MoveArgs),
}

/// The cluster of an import or export.
#[derive(Args, Debug, Clone)]
struct MoveArgs {
    /// URL of the PostgreSQL database, also as $TREERING_CLUSTER
    #[arg(
        long,
        value_name = "URL",
        env = "TREERING_CLUSTER",
        hide_env_values = true
    )]
    cluster: String,
}

#[derive(Args, Debug, Clone)]
struct DatabaseArg {
    /// URL of the PostgreSQL database, also as $TREERING_CLUSTER
    #[arg(value_name = "URL", env = "TREERING_CLUSTER", hide_env_values = true)]
    url: String,
}
