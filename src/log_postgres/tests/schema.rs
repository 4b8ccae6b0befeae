use treering_log::EventLog;
use treering_log_postgres::{PostgresError, PostgresLog, create_schema, grants};

use crate::server::{SHARD, Server, acquire, batch, open, read_all, single_copy};

// Every node of a cluster runs `create_schema` at its start: a log must be created once, and a
// newer one must stay unchanged.
#[tokio::test(flavor = "multi_thread")]
async fn schema_is_created_once_and_a_newer_one_is_refused() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    server.sql("create database empty").await;
    let url = server.url("empty");
    let none = PostgresLog::open(&url, single_copy()).await.err().unwrap();
    assert!(matches!(none, PostgresError::NoLog { .. }), "{none}");
    let (one, two) = tokio::join!(create_schema(&url), create_schema(&url));
    one.and(two).unwrap();
    let identity = open(&url, single_copy()).await.identity();
    create_schema(&url).await.unwrap();
    assert_eq!(open(&url, single_copy()).await.identity(), identity);
    for column in ["schema_version", "format_version"] {
        server
            .sql_in("empty", &format!("update treering_log set {column} = 99"))
            .await;
        for refused in [
            create_schema(&url).await.err().unwrap(),
            PostgresLog::open(&url, single_copy()).await.err().unwrap(),
        ] {
            assert!(matches!(
                refused,
                PostgresError::NewerVersion { version: 99, .. }
            ));
        }
        server
            .sql_in("empty", &format!("update treering_log set {column} = 1"))
            .await;
    }
}

// The role of a node can append and read. Even an attacker with its password cannot delete or
// change what is stored.
#[tokio::test(flavor = "multi_thread")]
async fn granted_role_can_append_and_read_and_no_more() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let database = server.new_log().await;
    server
        .sql_in(&database, "create role \"a node\" login")
        .await;
    server.sql_in(&database, &grants("a node")).await;
    let url = server.url_of("a%20node", &database);
    let log = open(&url, single_copy()).await;
    let follower = open(&url, single_copy()).await;
    let owned = acquire(&log).await;
    let (records, batch) = batch(0, 3);
    log.append(SHARD, owned.epoch, 0, batch).await.unwrap();
    assert_eq!(follower.tail(SHARD, 0).await.unwrap(), 3);
    assert_eq!(read_all(&follower).await, records);
    assert!(log.stats(SHARD).await.unwrap().bytes > 0);
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    for refused in [
        "delete from treering_frame",
        "update treering_frame set bytes = ''",
        "delete from treering_shard",
        "update treering_log set schema_version = 0",
        "drop table treering_blob",
        "create table other (id integer)",
    ] {
        let error = client.batch_execute(refused).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "42501", "{refused}: {error}");
    }
}
