//! `serve --cluster` and `cluster`: nodes over a log in PostgreSQL.

use std::{future::Future, path::Path, sync::Arc};

use clap::{Args, Subcommand};
use serde_json::json;
use tokio::{net::TcpListener, sync::oneshot};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use super::{
    error::{ClientError, Exit},
    output::{Out, Tone},
};
use treering_cluster::{ClusterNode, ClusterView, NodeOptions, StartError};
use treering_domain::with_causes;
use treering_engine::OpenOptions;
use treering_log_postgres::{
    PostgresError, PostgresLog, PostgresLogOptions, SHARDS_MAX, create_role, create_schema,
};
use treering_server::{ServeOptions, serve_shards, tls::TlsFiles};

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
        "pseudonyms", "retention", "quota", "backup", "heads", "metrics", "otlp_endpoint",
        "web_host", "mcp_writable", "summariser_url",
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
}

impl ClusterArgs {
    /// Serves as a node until `stop`. Then it hands its shards over before it stops to answer.
    ///
    /// # Errors
    /// [`ClientError::Outcome`] if the node cannot join its cluster.
    pub(super) async fn serve(
        &self,
        url: &str,
        parts: NodeParts,
        stop: impl Future<Output = ()>,
        out: &mut Out,
    ) -> Result<(), ClientError> {
        let dir = parts.engine.data_dir.clone();
        let name = self.node.clone().unwrap_or_default();
        let address = self.advertise.clone().unwrap_or_default();
        let options = NodeOptions {
            engine: parts.engine.clone(),
            ..NodeOptions::new(&name, address, &dir)
        };
        let log = PostgresLogOptions {
            accept_single_copy: self.accept_single_copy,
            ..PostgresLogOptions::default()
        };
        let owners_tls = match &parts.tls {
            Some(files) => Some(self.client_tls(files)?),
            None => None,
        };
        let address = parts.listener.local_addr()?;
        let node = ClusterNode::start(url, log, options)
            .await
            .map_err(refused)?;
        let (end, ended) = oneshot::channel::<()>();
        let serving = tokio::spawn(serve_shards(
            Arc::new(node.clone()),
            parts.engine.limits,
            owners_tls,
            parts.listener,
            async {
                let _ended = ended.await;
            },
            parts.serve,
        ));
        let url = super::serve::url_of(address, parts.tls.is_some());
        say_ready(&node, &dir, &url, out)?;
        stop.await;
        // The others take the shards while this node still forwards the calls of its clients.
        node.drain(treering_cluster::bounds::DRAIN_MAX).await;
        let _serving = end.send(());
        let served = serving.await;
        node.close().await;
        let served = served.map_err(|error| error.to_string());
        let served = served.and_then(|served| served.map_err(|error| error.to_string()));
        served.map_err(|error| failed(error, "see the log above"))
    }

    /// Returns how this node connects to others, to which it shows its own certificate.
    fn client_tls(&self, files: &TlsFiles) -> Result<ClientTlsConfig, ClientError> {
        let identity = Identity::from_pem(read(&files.cert)?, read(&files.key)?);
        let tls = ClientTlsConfig::new().identity(identity);
        Ok(match &self.node_ca {
            Some(ca) => tls.ca_certificate(Certificate::from_pem(read(ca)?)),
            None => tls.with_enabled_roots(),
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, ClientError> {
    std::fs::read(path).map_err(|cause| ClientError::ReadFile {
        path: path.to_owned(),
        cause,
    })
}

fn say_ready(node: &ClusterNode, dir: &Path, url: &str, out: &mut Out) -> Result<(), ClientError> {
    if out.json {
        out.line(json!({
            "serving": url,
            "node": node.name(),
            "shards": node.shards(),
            "data": dir.to_string_lossy(),
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
        }))?;
    } else {
        let url = out.paint.text(Tone::Name, url);
        out.line(format!(
            "Node {} serves a cluster of {} shards at {url}",
            node.name(),
            node.shards()
        ))?;
        out.line("Ctrl-C hands its shards over and ends it.")?;
    }
    Ok(out.flush()?)
}

fn failed(what: String, hint: &str) -> ClientError {
    ClientError::Outcome {
        what,
        hint: hint.to_owned(),
        exit: Exit::Failed,
    }
}

fn refused(error: StartError) -> ClientError {
    let hint = "see docs/CLUSTER.md; `treering cluster status` shows the nodes";
    failed(with_causes(&error).to_string(), hint)
}

fn of_database(error: PostgresError) -> ClientError {
    let hint = match &error {
        PostgresError::NoLog { .. } | PostgresError::OlderSchema { .. } => {
            "run `treering cluster init URL` as the owner of the tables"
        }
        PostgresError::Setting { .. } => {
            "--accept-single-copy allows one server without a standby, for tests"
        }
        _ => "see docs/CLUSTER.md",
    };
    failed(with_causes(&error).to_string(), hint)
}

/// Create the tables of a cluster, and show its nodes
///
/// A cluster is several `treering serve --cluster URL` over one log in PostgreSQL. Clients call any
/// of them. See docs/CLUSTER.md.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering cluster init postgres://owner@db/treering --role treering_node
  treering serve --cluster postgres://treering_node@db/treering --node a --advertise 10.0.0.1:7171 --data ./a
  treering cluster status postgres://treering_node@db/treering")]
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
        #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(SHARDS_MAX)))]
        shards: Option<u32>,
        /// Let this role append, read and erase, and nothing else. It is created without a password
        /// if it does not exist
        #[arg(long, value_name = "NAME")]
        role: Option<String>,
    },
    /// Show the live nodes and the shards that each owns
    Status {
        #[command(flatten)]
        database: DatabaseArg,
    },
}

#[derive(Args, Debug, Clone)]
struct DatabaseArg {
    /// URL of the PostgreSQL database, also as $TREERING_CLUSTER
    #[arg(value_name = "URL", env = "TREERING_CLUSTER", hide_env_values = true)]
    url: String,
}

/// Runs `cluster`.
///
/// # Errors
/// [`ClientError::Outcome`] if the database cannot be used.
pub(crate) async fn run(args: &ClusterCommandArgs, out: &mut Out) -> Result<(), ClientError> {
    match &args.command {
        ClusterCommand::Init {
            database,
            shards,
            role,
        } => {
            let shards = create_schema(&database.url, *shards).await;
            let shards = shards.map_err(of_database)?;
            if let Some(role) = role {
                create_role(&database.url, role)
                    .await
                    .map_err(of_database)?;
            }
            if out.json {
                return Ok(out.line(json!({"shards": shards, "role": role}))?);
            }
            out.line(format!("The log has its tables, with {shards} shards."))?;
            if let Some(role) = role {
                out.line(format!("Nodes connect as {role}."))?;
            }
            Ok(())
        }
        ClusterCommand::Status { database } => {
            let options = PostgresLogOptions {
                // Nothing is appended.
                accept_single_copy: true,
                claimed_only: true,
                ..PostgresLogOptions::default()
            };
            let log = PostgresLog::open(&database.url, options).await;
            let log = log.map_err(of_database)?;
            let view = log.view().await.map_err(of_database)?;
            show(&view, log.shards(), out)
        }
    }
}

fn show(view: &ClusterView, shards: u32, out: &mut Out) -> Result<(), ClientError> {
    let owned_by = |process| {
        view.owners
            .iter()
            .filter(|(_, owner)| *owner == process)
            .count()
    };
    let owned: usize = view.nodes.iter().map(|node| owned_by(node.process)).sum();
    let unowned = (shards as usize).saturating_sub(owned);
    if out.json {
        let nodes = view.nodes.iter().map(|node| {
            json!({
                "node": node.name,
                "address": node.address,
                "draining": node.draining,
                "shards": owned_by(node.process),
            })
        });
        let nodes: Vec<_> = nodes.collect();
        return Ok(out.line(json!({"nodes": nodes, "shards": shards, "unowned": unowned}))?);
    }
    for node in &view.nodes {
        let draining = if node.draining { ", draining" } else { "" };
        out.line(format!(
            "{} at {}: {} of {shards} shards{draining}",
            node.name,
            node.address,
            owned_by(node.process)
        ))?;
    }
    if view.nodes.is_empty() {
        out.line("No node is alive.")?;
    }
    if unowned > 0 {
        out.line(format!(
            "{unowned} of {shards} shards have no live owner: calls to them wait"
        ))?;
    }
    Ok(())
}
