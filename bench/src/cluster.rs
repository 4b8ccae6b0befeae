//! Measures a cluster beside the embedded store and beside PostgreSQL's own commits.
//!
//! The client, the nodes, PostgreSQL's primary and its synchronous standby share the cores of this
//! machine. So the rates of several nodes say little; the processor time of an append says more.

use std::{
    ffi::OsStr,
    net::TcpListener,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::future::{join_all, try_join_all};
use tokio_postgres::{Client, NoTls};

use super::{
    Setup,
    child::Child,
    failed,
    folder::TempFolder,
    grpc::{self, Peer},
    postgres::Server,
    rounds::{closed_loop, median, ratio, timed},
    row::{Row, Target, Unit},
    stores,
};
use treering::{
    domain::{ConversationId, EventBody, MessageAppended, NewEvent, Role},
    proto::pb,
};
use treering_client::error::ClientError;
use treering_log_postgres::{PostgresLog, PostgresLogOptions, create_schema};

/// Concurrent appends; each has its own conversation.
const IN_FLIGHT: usize = 256;
/// Shards of the cluster to which events are appended.
const SHARDS: u32 = 12;
const NODES_MAX: usize = 3;
/// Conversations that are followed while a node is killed.
const FOLLOWED: usize = 48;
/// Longest wait for the shards of a killed node.
const TAKE_OVER_MAX: Duration = Duration::from_secs(60);
/// The lease of a node, in seconds: its shards are taken when it ends.
const LEASE_SECONDS: f64 = 10.0;
/// Pause between two attempts to append.
const PAUSE: Duration = Duration::from_millis(5);

/// Measures the rows of this group; none if PostgreSQL is not installed.
///
/// # Errors
/// When a server does not start or a call fails.
pub(super) async fn measure(setup: &Setup) -> Result<Vec<Row>, ClientError> {
    setup.doing("cluster: starting PostgreSQL");
    // If it is not installed, this says so.
    let Some((primary, _standby)) = Server::pair().await else {
        return Ok(Vec::new());
    };
    let mut cluster = Cluster::create(setup, &primary, "appends", SHARDS).await?;
    let folder = setup.folder()?;
    let store = Peer::to(Child::serve(&folder.path().join("store")).await?).await?;
    let mut rows = Vec::new();
    for _ in 0..NODES_MAX {
        cluster.add().await?;
        rows.extend(appends(setup, &store, &cluster, &primary).await?);
    }
    rows.push(take_over(setup, &mut cluster).await?);
    drop(cluster);
    rows.extend(reads(setup, &primary).await?);
    Ok(rows)
}

/// Nodes over a database of their own.
struct Cluster<'s> {
    setup: &'s Setup,
    /// Before the folder, so that they end before it is removed.
    nodes: Vec<(String, Peer)>,
    folder: TempFolder,
    database: String,
    url: String,
    shards: u32,
}

impl<'s> Cluster<'s> {
    async fn create(
        setup: &'s Setup,
        server: &Server,
        database: &str,
        shards: u32,
    ) -> Result<Self, ClientError> {
        server.sql(&format!("create database {database}")).await;
        let url = server.url(database);
        let created = create_schema(&url, Some(shards)).await;
        created.map_err(|error| failed("creating the tables of a cluster", error))?;
        Ok(Self {
            setup,
            folder: setup.folder()?,
            database: database.to_owned(),
            url,
            shards,
            nodes: Vec::new(),
        })
    }

    /// Starts one more node, and waits until it owns its part of the shards.
    async fn add(&mut self) -> Result<(), ClientError> {
        self.setup.doing("cluster: starting a node");
        let name = format!("node{}", self.nodes.len());
        let address = free_address()?;
        let flags: [&OsStr; 9] = [
            "--cluster".as_ref(),
            self.url.as_ref(),
            "--node".as_ref(),
            name.as_ref(),
            "--advertise".as_ref(),
            address.as_ref(),
            "--memory".as_ref(),
            "96MiB".as_ref(),
            "--accept-single-copy".as_ref(),
        ];
        let child = Child::serve_at(&address, &self.folder.path().join(&name), &flags).await?;
        self.nodes.push((address, Peer::to(child).await?));
        self.settled().await
    }

    /// Waits until the nodes share the shards, and serve them.
    async fn settled(&self) -> Result<(), ClientError> {
        const WAITING: &str = "waiting for the nodes";
        let options = PostgresLogOptions {
            claimed_only: true,
            ..PostgresLogOptions::default()
        };
        let log = PostgresLog::open(&self.url, options).await;
        let log = log.map_err(|error| failed(WAITING, error))?;
        let give_up = Instant::now() + TAKE_OVER_MAX;
        loop {
            let view = log.view().await.map_err(|error| failed(WAITING, error))?;
            let owned = |node: &treering_log_postgres::LiveNode| {
                let of_node = view.owners.iter().filter(|(_, by)| *by == node.process);
                of_node.count()
            };
            let owned: Vec<_> = view.nodes.iter().map(owned).collect();
            let is_shared = owned.iter().sum::<usize>() == self.shards as usize
                && owned.iter().filter(|owned| **owned > 0).count() == self.nodes.len();
            if is_shared {
                break;
            }
            if Instant::now() > give_up {
                return Err(failed(WAITING, "they do not share the shards"));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        // A list asks every shard, and waits until it is open.
        for (_, peer) in &self.nodes {
            list(peer).await?;
        }
        Ok(())
    }

    /// Returns the processor time that the nodes have used, in microseconds.
    fn cpu_micros(&self) -> f64 {
        let nodes = self.nodes.iter();
        nodes.filter_map(|(_, peer)| peer.child.cpu_micros()).sum()
    }
}

/// Returns an address at which nothing listens.
fn free_address() -> Result<String, ClientError> {
    const FINDING: &str = "finding a free port";
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| failed(FINDING, error))?;
    let address = listener.local_addr();
    Ok(address.map_err(|error| failed(FINDING, error))?.to_string())
}

/// Rates and processor times of all rounds.
#[derive(Default)]
struct Rounds {
    per_second: Vec<f64>,
    cpu_micros: Vec<f64>,
}

/// Appends to the embedded store and to the nodes in turn.
async fn appends(
    setup: &Setup,
    store: &Peer,
    cluster: &Cluster<'_>,
    server: &Server,
) -> Result<Vec<Row>, ClientError> {
    let count = cluster.nodes.len();
    let embedded_ids = grpc::conversations(store, IN_FLIGHT).await?;
    let each = IN_FLIGHT / count;
    let mut ids = Vec::new();
    for (_, peer) in &cluster.nodes {
        ids.push(grpc::conversations(peer, each).await?);
    }
    let (mut embedded, mut ours) = (Rounds::default(), Rounds::default());
    let (mut frames, mut inserts, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=setup.rounds() {
        setup.doing("cluster: appends");
        let before = store.child.cpu_micros().unwrap_or_default();
        let own = grpc::call_append(setup, store, Arc::clone(&embedded_ids), IN_FLIGHT).await?;
        let own_cpu = store.child.cpu_micros().unwrap_or_default() - before;

        let earlier = stored(server, &cluster.database).await?;
        let before = cluster.cpu_micros();
        let calls = cluster
            .nodes
            .iter()
            .zip(&ids)
            .map(|((_, peer), ids)| grpc::call_append(setup, peer, Arc::clone(ids), each));
        let started = Instant::now();
        let done = try_join_all(calls).await?;
        let seconds = started.elapsed().as_secs_f64();
        let cpu = cluster.cpu_micros() - before;
        let written = earlier.until(server, &cluster.database).await?;
        let calls: u64 = done.iter().map(|done| done.calls).sum();

        let frame_bytes = written.bytes / written.frames;
        let plain = match count {
            1 => plain_inserts(setup, server, &cluster.database, frame_bytes).await?,
            _ => 0.0,
        };
        if round > 0 {
            embedded.per_second.push(own.per_second);
            embedded.cpu_micros.push(own_cpu / own.calls as f64);
            ours.per_second.push(calls as f64 / seconds);
            ours.cpu_micros.push(cpu / calls as f64);
            frames.push(written.frames / seconds);
            inserts.push(plain);
            bytes.push(frame_bytes);
        }
    }
    let (rate, cpu) = match count {
        1 => ("cluster.append1", "cluster.cpu1"),
        2 => ("cluster.append2", "cluster.cpu2"),
        _ => ("cluster.append3", "cluster.cpu3"),
    };
    let of = match count {
        1 => "one node".to_owned(),
        _ => format!("{count} nodes"),
    };
    let mut rows = vec![
        beside_embedded(
            rate,
            format!("durable append, {of}"),
            Unit::PerSecond,
            [&ours.per_second, &embedded.per_second],
        )
        .note(
            "1 KiB events, gRPC unary, 256 in flight, 12 shards, a primary and a synchronous \
             standby; the calls are spread over the nodes, and each node forwards those of the \
             others' shards",
        ),
        beside_embedded(
            cpu,
            format!("CPU an append, {of}"),
            Unit::Microseconds,
            [&ours.cpu_micros, &embedded.cpu_micros],
        )
        .aim(Target::RatioAtMost(1.5))
        .note("user and system time of all nodes, without PostgreSQL"),
    ];
    if count == 1 {
        let what = "frames of one node";
        rows.push(
            Row::new("cluster.commits", what, median(&frames), Unit::PerSecond)
                .beside("plain inserts", median(&inserts), ratio(&frames, &inserts))
                .aim(Target::RatioAtLeast(0.6))
                .note(format!(
                    "frames of {:.1} kB on average, during the row above; the inserts: random bytes \
                     of this size, 12 connections, one statement each",
                    median(&bytes) / 1e3
                )),
        );
    }
    Ok(rows)
}

fn beside_embedded(id: &'static str, what: String, unit: Unit, [ours, theirs]: [&[f64]; 2]) -> Row {
    Row::new(id, what, median(ours), unit).beside("embedded", median(theirs), ratio(ours, theirs))
}

/// What the table of frames has.
struct StoredFrames {
    frames: f64,
    bytes: f64,
}

impl StoredFrames {
    /// Returns what was stored since.
    async fn until(&self, server: &Server, database: &str) -> Result<Self, ClientError> {
        let now = stored(server, database).await?;
        Ok(Self {
            frames: (now.frames - self.frames).max(1.0),
            bytes: now.bytes - self.bytes,
        })
    }
}

async fn stored(server: &Server, database: &str) -> Result<StoredFrames, ClientError> {
    let counted = "select count(*) || ' ' || coalesce(sum(length(bytes)), 0) from treering_frame";
    let counted = server.sql_in(database, counted).await;
    let numbers: Vec<f64> = counted
        .split(' ')
        .filter_map(|number| number.parse().ok())
        .collect();
    match numbers[..] {
        [frames, bytes] => Ok(StoredFrames { frames, bytes }),
        _ => Err(failed("counting frames", counted)),
    }
}

/// Inserts rows of this size by as many connections as there are shards, one statement each. Returns
/// the inserts per second.
async fn plain_inserts(
    setup: &Setup,
    server: &Server,
    database: &str,
    bytes: f64,
) -> Result<f64, ClientError> {
    const INSERTING: &str = "inserting rows";
    let table = "create table if not exists plain (id bigserial primary key, bytes bytea not null); \
                 alter table plain alter column bytes set storage external";
    server.sql_in(database, table).await;
    let mut clients = Vec::new();
    for _ in 0..SHARDS {
        let connected = tokio_postgres::connect(&server.url(database), NoTls).await;
        let (client, connection) = connected.map_err(|error| failed(INSERTING, error))?;
        tokio::spawn(connection);
        let insert = client
            .prepare("insert into plain (bytes) values ($1)")
            .await;
        clients.push((client, insert.map_err(|error| failed(INSERTING, error))?));
    }
    let clients: Arc<[(Client, tokio_postgres::Statement)]> = clients.into();
    let body: Vec<u8> = std::iter::repeat_with(|| setup.payloads.bytes())
        .flatten()
        // A frame has a few kilobytes.
        .take(bytes as usize)
        .collect();
    let body = Bytes::from(body);
    let done = closed_loop(clients.len(), setup.round_time(), move |caller| {
        let (clients, body) = (Arc::clone(&clients), body.clone());
        async move {
            let (client, insert) = &clients[caller];
            let inserted = client.execute(insert, &[&&*body]).await;
            inserted.map(drop).map_err(|error| failed(INSERTING, error))
        }
    });
    Ok(done.await?.per_second)
}

/// Kills a node while another one takes appends, and measures how long those to its conversations
/// wait.
async fn take_over(setup: &Setup, cluster: &mut Cluster<'_>) -> Result<Row, ClientError> {
    let ids = grpc::conversations(&cluster.nodes[0].1, FOLLOWED).await?;
    let (mut worst, mut all) = (Vec::new(), Vec::new());
    for _ in 0..setup.or_quick(5, 1) {
        setup.doing("cluster: killing a node");
        let Some((address, killed)) = cluster.nodes.pop() else {
            break;
        };
        let live = &cluster.nodes[0].1;
        let mut moved = Vec::new();
        for id in ids.iter() {
            let request = stores::request(&[setup.payloads.event(*id)]);
            let answer = live.connection.events().append(request).await?;
            let owner = answer.metadata().get("treering-owner");
            moved.extend(owner.filter(|owner| **owner == *address).map(|_| *id));
        }
        let since = Instant::now();
        killed.child.kill().await?;
        let waits = moved
            .iter()
            .map(|id| appended_again(setup, live, *id, since));
        let waits: Vec<f64> = try_join_all(waits).await?;
        worst.push(waits.iter().copied().fold(0.0, f64::max));
        all.extend(waits);
        cluster.add().await?;
    }
    let worst_of_all = worst.iter().copied().fold(0.0, f64::max);
    let what = "take-over after kill -9, slowest conversation";
    Ok(
        Row::new("cluster.take_over", what, worst_of_all, Unit::Seconds)
            .aim(Target::AtMost(LEASE_SECONDS + 2.0))
            .note(format!(
                "{} kills of one of {NODES_MAX} nodes; from the kill to the first acknowledged \
                 append through another node; the lease is {LEASE_SECONDS} s; median {:.1} s",
                worst.len(),
                median(&all)
            )),
    )
}

/// Returns the seconds from `since` until an append succeeds.
async fn appended_again(
    setup: &Setup,
    live: &Peer,
    id: ConversationId,
    since: Instant,
) -> Result<f64, ClientError> {
    let mut client = live.connection.events();
    loop {
        let request = stores::request(&[setup.payloads.event(id)]);
        match client.append(request).await {
            Ok(_) => return Ok(since.elapsed().as_secs_f64()),
            Err(status) if since.elapsed() > TAKE_OVER_MAX => return Err(status.into()),
            // The outcome of a call that the node was executing is unknown.
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Searches and lists in one node that has all shards, beside the embedded store.
async fn reads(setup: &Setup, server: &Server) -> Result<Vec<Row>, ClientError> {
    const CASES: [(u32, &str, &str); 3] = [
        (1, "cluster.search1", "cluster.list1"),
        (12, "cluster.search12", "cluster.list12"),
        (64, "cluster.search64", "cluster.list64"),
    ];
    let folder = setup.folder()?;
    let store = Peer::to(Child::serve(&folder.path().join("store")).await?).await?;
    let said = conversations_of_words(setup.or_quick(5_000, 500));
    setup.doing("cluster: filling");
    fill(&store, &said).await?;
    let mut rows = Vec::new();
    for (shards, search_id, list_id) in CASES {
        let mut cluster = Cluster::create(setup, server, &format!("reads{shards}"), shards).await?;
        cluster.add().await?;
        let node = &cluster.nodes[0].1;
        setup.doing("cluster: filling");
        fill(node, &said).await?;
        setup.doing("cluster: searches and lists");
        let mut times: [Vec<f64>; 4] = Default::default();
        for round in 0..setup.or_quick(200, 30) {
            let word = word(round % 40);
            for (at, peer) in [&store, node].into_iter().enumerate() {
                let (found, micros) = timed(search(peer, &word)).await;
                found?;
                times[at].push(micros / 1e3);
                let (listed, micros) = timed(list(peer)).await;
                listed?;
                times[2 + at].push(micros / 1e3);
            }
        }
        let [search_store, search_node, list_store, list_node] = &times;
        for (id, what, ours, theirs) in [
            (search_id, "search", search_node, search_store),
            (list_id, "list", list_node, list_store),
        ] {
            let what = format!("{what}, p50, one node, {shards} shards");
            let figures = [ours.as_slice(), theirs.as_slice()];
            rows.push(beside_embedded(id, what, Unit::Milliseconds, figures).note(format!(
                "{} conversations of six short messages; one common word, ten hits; a page of 50",
                said.len()
            )));
        }
    }
    Ok(rows)
}

/// The word of this number. A low number is a common word.
fn word(number: usize) -> String {
    format!("word{number:04}")
}

/// Returns conversations of short messages, whose words are as unevenly frequent as those of a
/// language.
fn conversations_of_words(count: usize) -> Vec<Vec<NewEvent>> {
    let mut random = fastrand::Rng::with_seed(7);
    let mut said = |id: ConversationId| {
        let words = (0..40).map(|_| word((2_000_f64.powf(random.f64()) - 1.0) as usize));
        let text = words.collect::<Vec<_>>().join(" ");
        let message = MessageAppended::text(Role::User, &text);
        NewEvent::new(id, EventBody::MessageAppended(message))
    };
    let one = |_| {
        let id = ConversationId::generate();
        let first = super::payload::created(id);
        std::iter::once(first)
            .chain((0..6).map(|_| said(id)))
            .collect()
    };
    (0..count).map(one).collect()
}

/// Appends these conversations, and waits until searches find all of them.
async fn fill(peer: &Peer, conversations: &[Vec<NewEvent>]) -> Result<(), ClientError> {
    for some in conversations.chunks(64) {
        let appends = some.iter().map(|events| {
            let mut client = peer.connection.events();
            async move { client.append(stores::request(events)).await }
        });
        for appended in join_all(appends).await {
            appended?;
        }
    }
    while search(peer, &word(0)).await?.events_missing > 0 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

async fn search(peer: &Peer, query: &str) -> Result<pb::SearchResponse, ClientError> {
    let request = pb::SearchRequest {
        query: query.to_owned(),
        limit: 10,
        ..Default::default()
    };
    Ok(peer.connection.search().search(request).await?.into_inner())
}

async fn list(peer: &Peer) -> Result<(), ClientError> {
    let request = pb::ListConversationsRequest {
        page_size: 50,
        ..Default::default()
    };
    peer.connection.conversations().list(request).await?;
    Ok(())
}
