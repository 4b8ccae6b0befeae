//! Serves a node, and runs `cluster`.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    path::Path,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::json;
use tokio::{sync::oneshot, task::JoinHandle};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};
use uuid::Uuid;

use super::{ClusterArgs, ClusterCommand, ClusterCommandArgs, KeyCheck, NodeParts, moving};
use crate::{
    args::Common,
    error::{ClientError, Exit},
    observe::ObservationGuard,
    output::{Out, Tone},
    serve::url_of,
    web::Web,
};
use treering_cluster::{ClusterNode, ClusterView, LiveNode, NodeOptions, StartError, StartingNode};
use treering_domain::{ShardId, with_causes};
use treering_log_postgres::{
    LogTiers, PostgresError, PostgresLog, PostgresLogOptions, create_role, create_schema,
    set_objects,
};
use treering_mcp::MCP_PATH;
use treering_present::text::{bytes_human, things};
use treering_server::{NodeShards, ServeError, serve_shards, tls::TlsFiles};

/// SQLSTATE of a statement that the role may not run.
const NOT_PERMITTED: &str = "42501";
/// How often the drain of a node is looked at.
const DRAIN_LOOK_EVERY: Duration = Duration::from_millis(100);

impl ClusterArgs {
    /// Serves as a node until `stop`. Then it hands its shards over before it stops to answer.
    ///
    /// # Errors
    /// [`ClientError::Outcome`] if the node cannot join its cluster.
    pub(crate) async fn serve(
        &self,
        url: &str,
        mut parts: NodeParts,
        stop: impl Future<Output = ()>,
        out: &mut Out,
    ) -> Result<(), ClientError> {
        let dir = parts.engine.data_dir.clone();
        let name = self.node.clone().unwrap_or_default();
        let address = self.advertise.clone().unwrap_or_default();
        let starting = StartingNode::new(&address);
        let options = NodeOptions {
            engine: parts.engine.clone(),
            keys: Some(Arc::clone(&parts.keys)),
            ..NodeOptions::new(&name, &address, &dir)
        };
        let log = PostgresLogOptions {
            accept_single_copy: self.accept_single_copy,
            process: Some(starting.process()),
            ..PostgresLogOptions::default()
        };
        let owners_tls = match &parts.tls {
            Some(files) => Some(self.client_tls(files)?),
            None => None,
        };
        // Browsers and agents may name the node as other nodes do.
        parts.web.hosts.push(address);
        let running = RunningNode::start(&starting, owners_tls, parts).await?;
        let mut stop = pin!(stop);
        let node = match join(url, log, options, &running.check, &mut stop).await {
            Ok(Some(node)) => node,
            not_started => {
                let _served = running.stop().await;
                return not_started.map(drop);
            }
        };
        starting.joined(node.clone());
        running.say_ready(&node, &dir, out)?;
        stop.await;
        // The others take the shards while this node still forwards the calls of its clients.
        node.drain(treering_cluster::bounds::DRAIN_MAX).await;
        let served = running.stop().await;
        node.close().await;
        served
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

/// Joins a cluster, and checks its keys. Returns `None` if `stop` comes first.
async fn join(
    url: &str,
    log: PostgresLogOptions,
    options: NodeOptions,
    check: &KeyCheck,
    stop: impl Future<Output = ()>,
) -> Result<Option<ClusterNode>, ClientError> {
    let keys = options.keys.clone();
    let node = tokio::select! {
        started = ClusterNode::start(url, log, options) => started.map_err(refused)?,
        () = stop => return Ok(None),
    };
    if let Some(Err(refused)) = keys.map(|keys| check(&keys)) {
        node.close().await;
        return Err(refused);
    }
    Ok(Some(node))
}

fn read(path: &Path) -> Result<Vec<u8>, ClientError> {
    std::fs::read(path).map_err(|cause| ClientError::ReadFile {
        path: path.to_owned(),
        cause,
    })
}

/// A node that accepts connections.
struct RunningNode {
    url: String,
    metrics: Option<String>,
    web: Web,
    check: KeyCheck,
    end: oneshot::Sender<()>,
    serving: JoinHandle<Result<(), ServeError>>,
    _observed: ObservationGuard,
}

impl RunningNode {
    /// Starts to accept connections. Calls are refused until the node has joined its cluster.
    async fn start(
        starting: &StartingNode,
        owners_tls: Option<ClientTlsConfig>,
        parts: NodeParts,
    ) -> Result<Self, ClientError> {
        let address = parts.listener.local_addr()?;
        let is_tls = parts.tls.is_some();
        let directory = Arc::new(starting.clone());
        let shards = NodeShards::new(directory.clone(), parts.engine.limits, owners_tls);
        let mut serve = parts.serve;
        let keys = Arc::clone(&parts.keys);
        let web = Web::open(shards.clone().into(), keys, address, is_tls, parts.web).await?;
        serve.keys = Some(parts.keys);
        serve.web = web.service();
        let (end, ended) = oneshot::channel::<()>();
        let ended = async {
            let _ended = ended.await;
        };
        Ok(Self {
            url: url_of(address, is_tls),
            metrics: parts.observer.url(),
            web,
            check: parts.check,
            end,
            serving: tokio::spawn(serve_shards(shards, parts.listener, ended, serve)),
            _observed: parts.observer.start_node(directory),
        })
    }

    fn say_ready(&self, node: &ClusterNode, dir: &Path, out: &mut Out) -> Result<(), ClientError> {
        let pages = self.web.has_pages().then(|| format!("{}/", self.url));
        let agents = self.web.has_agents();
        let agents = agents.then(|| format!("{}{MCP_PATH}", self.url));
        if out.json {
            out.line(json!({
                "serving": self.url,
                "node": node.name(),
                "shards": node.shards(),
                "data": dir.to_string_lossy(),
                "pid": std::process::id(),
                "version": env!("CARGO_PKG_VERSION"),
                "metrics": self.metrics,
                "mcp": agents,
                "inspector": pages,
            }))?;
            return Ok(out.flush()?);
        }
        let url = out.paint.text(Tone::Name, &self.url);
        out.line(format!(
            "Node {} serves a cluster of {} shards at {url}",
            node.name(),
            node.shards()
        ))?;
        if let Some(pages) = pages {
            out.line(format!("To inspect it, open {pages} in a browser"))?;
        }
        if let Some(metrics) = &self.metrics {
            out.line(format!("Metrics are at {metrics}"))?;
        }
        if let Some(agents) = agents {
            out.line(format!("Agents connect to {agents} (MCP)"))?;
        }
        out.line("Ctrl-C hands its shards over and ends it.")?;
        Ok(out.flush()?)
    }

    /// Finishes accepted requests.
    async fn stop(self) -> Result<(), ClientError> {
        self.web.end_streams();
        let _serving = self.end.send(());
        let served = self.serving.await.map_err(|error| error.to_string());
        self.web.close().await;
        let served = served.and_then(|served| served.map_err(|error| error.to_string()));
        served.map_err(|error| failed(error, "see the log above"))
    }
}

pub(super) fn failed(what: String, hint: &str) -> ClientError {
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

pub(super) fn of_database(error: PostgresError) -> ClientError {
    let hint = match &error {
        PostgresError::NoLog { .. } | PostgresError::OlderSchema { .. } => {
            "run `treering cluster init URL` as the owner of the tables"
        }
        PostgresError::Refused { code, .. } if code == NOT_PERMITTED => {
            "use the role that owns the tables, or run `treering cluster init URL --role ROLE` again"
        }
        PostgresError::Setting { .. } => {
            "--accept-single-copy allows one server without a standby, for tests"
        }
        _ => "see docs/CLUSTER.md",
    };
    failed(with_causes(&error).to_string(), hint)
}

/// Runs `cluster`.
///
/// # Errors
/// [`ClientError::Outcome`] if the database cannot be used.
pub(crate) async fn run(
    args: &ClusterCommandArgs,
    common: &Common,
    out: &mut Out,
) -> Result<(), ClientError> {
    match &args.command {
        ClusterCommand::Init {
            database,
            shards,
            role,
            objects,
            hot,
        } => {
            let shards = create_schema(&database.url, *shards).await;
            let shards = shards.map_err(of_database)?;
            let objects = match objects {
                Some(address) => {
                    let set = set_objects(&database.url, address, *hot).await;
                    Some(set.map_err(of_database)?)
                }
                None => None,
            };
            if let Some(role) = role {
                create_role(&database.url, role)
                    .await
                    .map_err(of_database)?;
            }
            if out.json {
                let (objects, hot_bytes) = objects.unzip();
                return Ok(out.line(json!({
                    "shards": shards,
                    "role": role,
                    "objects": objects,
                    "hot_bytes": hot_bytes,
                }))?);
            }
            out.line(format!("The log has its tables, with {shards} shards."))?;
            if let Some(role) = role {
                out.line(format!("Nodes connect as {role}."))?;
            }
            if let Some((address, hot_bytes)) = objects {
                let hot = bytes_human(hot_bytes);
                out.line(format!(
                    "Older events move to {address}; {hot} of each shard stay in the database."
                ))?;
            }
            Ok(())
        }
        ClusterCommand::Status { database } => {
            let log = to_look(&database.url).await?;
            let view = log.view().await.map_err(of_database)?;
            let tiers = log.tiers().await.map_err(of_database)?;
            show(&view, &tiers, log.shards(), out)
        }
        ClusterCommand::Drain { node, database } => drain(node, &database.url, out).await,
        ClusterCommand::Verify { database } => moving::verify(&database.url, out).await,
        ClusterCommand::Import(args) => moving::import(&args.cluster, common, out).await,
        ClusterCommand::Export(args) => moving::export(&args.cluster, common, out).await,
    }
}

/// Opens the log to read who owns what.
pub(super) async fn to_look(url: &str) -> Result<PostgresLog, ClientError> {
    let options = PostgresLogOptions {
        // Nothing is appended.
        accept_single_copy: true,
        claimed_only: true,
        ..PostgresLogOptions::default()
    };
    PostgresLog::open(url, options).await.map_err(of_database)
}

/// Asks a node to hand its shards over, and waits until others own them.
async fn drain(node: &str, url: &str, out: &mut Out) -> Result<(), ClientError> {
    let log = to_look(url).await?;
    let view = log.view().await.map_err(of_database)?;
    let Some(live) = view.nodes.iter().find(|live| live.name == node) else {
        let hint = "`treering cluster status` shows the nodes";
        return Err(failed(format!("no node {node} is alive"), hint));
    };
    let mut others = view.nodes.iter().filter(|live| live.name != node);
    if !others.any(|live| !live.draining) {
        let what = format!("no other node could take the shards of {node}");
        return Err(failed(what, "start another one first, or stop the node"));
    }
    let own = owned_by(&view, live.process);
    log.ask_to_drain(node).await.map_err(of_database)?;
    let give_up = Instant::now() + treering_cluster::bounds::DRAIN_MAX;
    loop {
        let now = log.view().await.map_err(of_database)?;
        let elsewhere = now.owners.iter().filter(|(_, by)| *by != live.process);
        let elsewhere: BTreeSet<ShardId> = elsewhere.map(|(shard, _)| *shard).collect();
        let left = own.difference(&elsewhere).count();
        if left == 0 && owned_by(&now, live.process).is_empty() {
            break;
        }
        if Instant::now() > give_up {
            let what = format!("{left} shards of node {node} have no other owner yet");
            return Err(failed(what, "it continues to hand them over; see its log"));
        }
        tokio::time::sleep(DRAIN_LOOK_EVERY).await;
    }
    if out.json {
        return Ok(out.line(json!({"drained": node}))?);
    }
    Ok(out.line(format!("Node {node} has no shards any more."))?)
}

fn owned_by(view: &ClusterView, process: Uuid) -> BTreeSet<ShardId> {
    let owned = view.owners.iter().filter(|(_, by)| *by == process);
    owned.map(|(shard, _)| *shard).collect()
}

fn show(
    view: &ClusterView,
    tiers: &LogTiers,
    shards: u32,
    out: &mut Out,
) -> Result<(), ClientError> {
    let owned_by = |process| owned_by(view, process).len();
    let heads: BTreeMap<ShardId, u64> = view.heads.iter().copied().collect();
    // A node that follows a shard says so with its heartbeats, so the lag is some seconds old.
    let lag = |node: &LiveNode| {
        let lags = node.followed.iter().map(|(shard, reached)| {
            let head = heads.get(shard).copied().unwrap_or_default();
            head.saturating_sub(*reached)
        });
        lags.sum::<u64>()
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
                "followed": node.followed.len(),
                "follower_lag": lag(node),
            })
        });
        let nodes: Vec<_> = nodes.collect();
        return Ok(out.line(json!({
            "nodes": nodes,
            "shards": shards,
            "unowned": unowned,
            "database_bytes": tiers.database_bytes,
            "objects": tiers.objects,
            "segments": tiers.segments,
            "segment_bytes": tiers.segment_bytes,
        }))?);
    }
    for node in &view.nodes {
        let draining = if node.draining { ", draining" } else { "" };
        out.line(format!(
            "{} at {}: {} of {shards} shards{draining}; follows {}, {} events behind",
            node.name,
            node.address,
            owned_by(node.process),
            node.followed.len(),
            lag(node)
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
    let database = bytes_human(tiers.database_bytes);
    Ok(out.line(match &tiers.objects {
        Some(address) => format!(
            "{database} in the database, {} in {} at {address}",
            bytes_human(tiers.segment_bytes),
            things(tiers.segments, "segment", "segments"),
        ),
        None => format!("{database} in the database"),
    })?)
}
