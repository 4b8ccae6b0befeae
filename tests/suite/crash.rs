//! A server that is killed at random moments, again and again.
//!
//! This file has the rounds. The clients and what they know are in [`client`]; [`ledger`] compares
//! it with the contents of the store.

mod client;
mod ledger;

use std::{path::Path, sync::Arc, time::Duration};

use tokio::{task::JoinSet, time::timeout};
use tonic::transport::Channel;
use treering::{
    domain::Namespace,
    engine::{Engine, OpenOptions, RebuildItem, VerifyItem},
    proto::pb::{self, admin_client::AdminClient, verify_response::Item},
};

use self::{client::Client, ledger::Ledger};
use super::{
    child::{PATIENCE, Server, start_server},
    grpc::harness::{batch, created},
    random::Random,
};

/// Number of kills in a test run, unless `TREERING_CRASH_ROUNDS` sets another.
const ROUNDS: u64 = 12;
/// Number of concurrent clients; the last one pipelines on a stream.
const CLIENTS: usize = 6;
/// Number of rounds after which everything is read again and compared with a rebuild.
const DEEP_EVERY: u64 = 10;

fn from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|value| value.parse().ok())
        .unwrap_or(otherwise)
}

async fn connect(server: &Server) -> Channel {
    let endpoint = tonic::transport::Endpoint::from_shared(server.url.clone()).unwrap();
    endpoint.connect().await.unwrap()
}

// The process is killed while clients append, while it starts and while it repairs. Acknowledged
// batches must be stored once, in order, with their content. Other batches must be stored whole or
// not at all. Revisions have no gaps, and projections and index equal those of a rebuild.
#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_events_survive_kill() {
    let dir = tempfile::tempdir().unwrap();
    let seed = from_environment("TREERING_CRASH_SEED", std::process::id().into());
    println!("TREERING_CRASH_SEED={seed}");
    let mut random = Random(seed);
    let mut ledger = Ledger::default();
    let shared = shared_conversation(dir.path(), &mut ledger).await;
    let mut clients: Vec<_> = (0..CLIENTS)
        .map(|index| Client::new(index, shared.clone(), random.next()))
        .collect();
    let rounds = from_environment("TREERING_CRASH_ROUNDS", ROUNDS);
    for round in 1..=rounds {
        if random.one_in(4) {
            killed_while_it_starts(dir.path(), &mut random).await;
        }
        let server = Server::start(dir.path()).await;
        let channel = connect(&server).await;
        let unsettled = ledger.check(&channel, round % DEEP_EVERY == 0).await;
        for client in &mut clients {
            client.learn(&unsettled, &ledger);
        }
        if round % DEEP_EVERY == 0 {
            verify(&channel).await;
        }
        clients = work_until_killed(clients, server, channel, &mut random).await;
        for client in &mut clients {
            ledger.expect(client.take_sent());
        }
    }
    let server = Server::start(dir.path()).await;
    let channel = connect(&server).await;
    ledger.check(&channel, true).await;
    verify(&channel).await;
    server.kill().await;
    rebuilt_is_the_same(dir.path()).await;
    println!("{rounds} rounds: {ledger}");
    assert!(ledger.acknowledged() > rounds, "too little was appended");
}

/// Creates a conversation that all clients append to.
async fn shared_conversation(dir: &Path, ledger: &mut Ledger) -> String {
    let server = Server::start(dir).await;
    let mut client = Client::new(CLIENTS, String::new(), 0);
    let mut request = batch("", [created("shared")]);
    request.events[0].actor = client.next_tag();
    let channel = connect(&server).await;
    client.send_one(&channel, request).await;
    let sent = client.take_sent();
    let id = sent[0].acknowledged().unwrap()[0].conversation_id.clone();
    ledger.expect(sent);
    server.kill().await;
    id
}

async fn killed_while_it_starts(dir: &Path, random: &mut Random) {
    let mut process = start_server(dir);
    tokio::time::sleep(Duration::from_millis(random.below(150))).await;
    process.kill().await.unwrap();
}

async fn work_until_killed(
    clients: Vec<Client>,
    server: Server,
    channel: Channel,
    random: &mut Random,
) -> Vec<Client> {
    let mut working = JoinSet::new();
    for mut client in clients {
        let channel = channel.clone();
        working.spawn(async move {
            client.work(channel).await;
            client
        });
    }
    // Sometimes long enough for projections and index to become durable.
    let longest = if random.one_in(10) { 2_000 } else { 200 };
    tokio::time::sleep(Duration::from_millis(random.below(longest))).await;
    server.kill().await;
    let mut clients = timeout(PATIENCE, working.join_all())
        .await
        .expect("a client hangs");
    clients.sort_by_key(|client| client.index);
    clients
}

/// Verifies the store, and compares projections and index with those of a rebuild.
async fn verify(channel: &Channel) {
    let request = pb::VerifyRequest { deep: true };
    let mut items = AdminClient::new(channel.clone())
        .verify(request)
        .await
        .unwrap()
        .into_inner();
    loop {
        let item = timeout(PATIENCE, items.message()).await.expect("timed out");
        match item.unwrap().unwrap().item.unwrap() {
            Item::Progress(_) => {}
            Item::Fault(fault) => panic!("{fault:?}"),
            Item::Outcome(outcome) => return assert!(outcome.sound),
        }
    }
}

async fn rebuilt_is_the_same(dir: &Path) {
    use futures::StreamExt;
    let engine = Engine::open(OpenOptions::new(dir)).await.unwrap();
    let engine = Arc::new(engine);
    let mut items = engine.rebuild(true, true);
    let mut rebuilt = None;
    while let Some(item) = items.next().await {
        if let RebuildItem::Outcome(outcome) = item.unwrap() {
            rebuilt = Some(outcome);
        }
    }
    assert_eq!(rebuilt.unwrap().events, engine.head().offset);
    let mut items = engine.verify(&Namespace::default(), true);
    while let Some(item) = items.next().await {
        match item.unwrap() {
            VerifyItem::Progress(_) => {}
            VerifyItem::Fault(fault) => panic!("{fault:?}"),
            VerifyItem::Outcome(outcome) => assert!(outcome.sound),
        }
    }
    engine.close().await;
}
