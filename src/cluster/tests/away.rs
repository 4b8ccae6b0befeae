//! The database is away: what clients of a node see, and a node that starts meanwhile.

use std::{sync::Arc, time::Duration};

use tokio::net::TcpListener;
use tonic::{Code, transport::Endpoint};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use treering_cluster::{ClusterNode, NodeOptions, StartError, StartingNode};
use treering_domain::{AppendCommand, Limits, ShardId};
use treering_engine::{AppendError, ReadError};
use treering_log_postgres::{PostgresLogOptions, create_schema};
use treering_proto::pb::{self, events_client::EventsClient};
use treering_server::{NodeShards, ServeOptions, ShardDirectory, serve_shards};

use crate::{
    server::{Server, single_copy},
    stand::{LEASE, created, events_of, id_in, ns, said, settled, start, until},
};

fn options(name: &str, dir: &std::path::Path) -> NodeOptions {
    NodeOptions {
        lease: LEASE,
        ..NodeOptions::new(name, format!("{name}:5417"), dir.join(name))
    }
}

/// Serves a node that may still be starting, and returns its URL.
async fn serve(node: &StartingNode) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve_shards(
        NodeShards::new(Arc::new(node.clone()), Limits::default(), None),
        listener,
        std::future::pending(),
        ServeOptions::default(),
    ));
    format!("http://{address}")
}

async fn health(address: &str) -> ServingStatus {
    let channel = Endpoint::from_shared(address.to_owned()).unwrap();
    let mut client = HealthClient::new(channel.connect_lazy());
    let answer = client.check(HealthCheckRequest::default()).await.unwrap();
    answer.into_inner().status()
}

// Clients retry `NOT_READY`, and not `STORAGE`. While no primary answers, nothing is written, so the
// retry is safe.
#[tokio::test(flavor = "multi_thread")]
async fn appends_without_a_database_can_be_retried() {
    let Some(mut server) = Server::single(&[]).await else {
        return;
    };
    server.sql("create database cluster").await;
    let url = server.url("cluster");
    create_schema(&url, 1).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let one = start(&url, single_copy(), "one", dir.path()).await;
    settled(&[&one]).await;
    let id = id_in(ShardId(0), 1);
    let engine = one.node.shard(ShardId(0)).unwrap().engine().clone();
    let first = AppendCommand::new(ns(), vec![created(id)]);
    engine.append(first).await.unwrap();
    server.stop();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let append = || engine.append(AppendCommand::new(ns(), vec![said(id, "later")]));
    let refused = append().await.unwrap_err();
    assert!(
        matches!(
            refused,
            AppendError::Unready { .. } | AppendError::Read(ReadError::Unready { .. })
        ),
        "{refused:?}"
    );
    let text = refused.to_string();
    assert!(
        text.contains("Check that its PostgreSQL primary") && text.contains("retry in"),
        "{text}"
    );
    server.start().await;
    until("the node serves again", || {
        one.node.shard(ShardId(0)).is_ok()
    })
    .await;
    append().await.unwrap();
    assert_eq!(events_of(&engine).await.len(), 2);
    one.node.close().await;
}

// After an outage of the whole site, nodes may start before the database.
#[tokio::test(flavor = "multi_thread")]
async fn node_waits_for_the_database_at_start() {
    let Some(mut server) = Server::single(&[]).await else {
        return;
    };
    server.sql("create database cluster").await;
    let url = server.url("cluster");
    create_schema(&url, 1).await.unwrap();
    server.stop();
    let dir = tempfile::tempdir().unwrap();
    let starting = StartingNode::new("one:5417");
    let log = PostgresLogOptions {
        process: Some(starting.process()),
        ..single_copy()
    };
    let options = options("one", dir.path());
    let mut waiting = tokio::spawn(async move { ClusterNode::start(&url, log, options).await });
    let address = serve(&starting).await;
    let early = tokio::time::timeout(Duration::from_secs(3), &mut waiting).await;
    assert!(early.is_err(), "it did not wait: {:?}", early.map(|_| ()));
    assert!(!starting.is_ready() && starting.served().is_empty());
    assert_eq!(health(&address).await, ServingStatus::NotServing);
    let mut events = EventsClient::connect(address.clone()).await.unwrap();
    let refused = events.append(pb::AppendRequest::default()).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(
        refused.message().contains("has not joined its cluster"),
        "{refused}"
    );
    server.start().await;
    let node = waiting.await.unwrap().unwrap();
    starting.joined(node.clone());
    assert!(starting.is_ready());
    assert_eq!(health(&address).await, ServingStatus::Serving);
    until("it serves", || starting.shard(ShardId(0)).is_ok()).await;
    node.close().await;
}

// No retry helps here, so an operator must see it at once.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_url_ends_a_start_at_once() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    server.sql("create database empty").await;
    let role = "create role locked login password 'right'";
    server.sql(role).await;
    server.write(
        "pg_hba.conf",
        "local all locked scram-sha-256\nlocal all all trust\n",
    );
    server.sql("select pg_reload_conf()").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let dir = tempfile::tempdir().unwrap();
    let url_of = |user| server.url_of(user, "empty");
    let cases = [
        (server.url("missing"), "does not exist"),
        (url_of("treering"), "has no Treering log"),
        (url_of("locked:wrong"), "password authentication failed"),
        (url_of("nobody_known"), "does not exist"),
        (
            "postgres://x@no-such-host.invalid/x?sslmode=disable".into(),
            "lookup",
        ),
        (
            "postgres://x@localhost/x?sslmode=wrong".into(),
            "sslmode must be",
        ),
    ];
    for (url, wanted) in cases {
        let started = ClusterNode::start(&url, single_copy(), options("one", dir.path()));
        let started = tokio::time::timeout(Duration::from_secs(30), started).await;
        let refused = started.expect(wanted).err().unwrap();
        assert!(matches!(refused, StartError::Ownership(_)), "{refused:?}");
        assert!(refused.to_string().contains(wanted), "{refused}");
    }
}
