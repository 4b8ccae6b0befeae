use std::{sync::Arc, time::Duration};

use treering_log::{ErasureProgress, EventLog, LogError};
use treering_log_postgres::{
    PostgresError, PostgresLog, PostgresLogOptions, SCHEMA_VERSION, SharedKeys, create_schema,
    grants,
};
use uuid::Uuid;

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
    let (one, two) = tokio::join!(create_schema(&url, 64), create_schema(&url, 64));
    one.and(two).unwrap();
    let identity = open(&url, single_copy()).await.identity();
    create_schema(&url, 64).await.unwrap();
    assert_eq!(open(&url, single_copy()).await.identity(), identity);
    for (column, before) in [("schema_version", SCHEMA_VERSION), ("format_version", 1)] {
        server
            .sql_in("empty", &format!("update treering_log set {column} = 99"))
            .await;
        for refused in [
            create_schema(&url, 64).await.err().unwrap(),
            PostgresLog::open(&url, single_copy()).await.err().unwrap(),
        ] {
            assert!(matches!(
                refused,
                PostgresError::NewerVersion { version: 99, .. }
            ));
        }
        server
            .sql_in(
                "empty",
                &format!("update treering_log set {column} = {before}"),
            )
            .await;
    }
}

// The machine of the first server in the URL hangs: it takes connections and says nothing. The node
// must reach the primary behind it, as after a fail-over at night.
#[tokio::test(flavor = "multi_thread")]
async fn silent_server_does_not_hide_the_primary() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let database = server.new_log().await;
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let url = server.url(&database);
    let url = url.replace('@', &format!("@{address},"));
    let log = open(&url, single_copy()).await;
    assert!(acquire(&log).await.epoch.0 > 0);
}

// The role of a node can append, read and erase. Even an attacker with its password cannot delete
// events, and cannot change where they are.
#[tokio::test(flavor = "multi_thread")]
async fn granted_role_can_append_read_and_erase_and_no_more() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let database = server.new_log().await;
    server
        .sql_in(&database, "create role \"a node\" login")
        .await;
    server.sql_in(&database, &grants("a node", false)).await;
    let url = server.url_of("a%20node", &database);
    let log = open(&url, single_copy()).await;
    let follower = open(&url, single_copy()).await;
    let owned = acquire(&log).await;
    let (records, batch) = batch(0, 3);
    log.append(SHARD, owned.epoch, 0, batch).await.unwrap();
    assert_eq!(follower.tail(SHARD, 0).await.unwrap(), 3);
    assert_eq!(read_all(&follower).await, records);
    assert!(log.stats(SHARD).await.unwrap().bytes > 0);
    assert!(log.join("a", "a:1", LEASE).await.unwrap());
    assert!(
        log.heartbeat("a", false, &[(SHARD, 3)]).await.unwrap() && log.claim(SHARD).await.unwrap()
    );
    log.release(SHARD).await.unwrap();
    log.leave("a").await.unwrap();
    assert!(log.replace_keys(None, &keys("one")).await.unwrap());
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    for refused in [
        "delete from treering_frame",
        "update treering_frame set first_offset = 7",
        "update treering_frame set count = 1",
        "update treering_blob set bytes = ''",
        "delete from treering_shard",
        "update treering_log set schema_version = 0",
        "drop table treering_blob",
        "delete from treering_node",
        "delete from treering_keys",
        "insert into treering_segment values (0, 1, '', 1, 1, 1, 1, true)",
        "create table other (id integer)",
    ] {
        let error = client.batch_execute(refused).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "42501", "{refused}: {error}");
    }
}

// A cluster was created by an earlier version: its tables are upgraded in place, without losing an
// event, and only by the program that is asked to.
#[tokio::test(flavor = "multi_thread")]
async fn tables_of_earlier_versions_are_upgraded_in_place() {
    const BACK_TO_6: &str = "drop table treering_segment; \
                             alter table treering_log drop column objects, drop column hot_bytes; \
                             alter table treering_shard drop column last_segment, \
                                 add column lease_until timestamptz; \
                             update treering_log set schema_version = 6";
    const BACK_TO_5: &str = "drop table treering_keys; \
                             update treering_log set schema_version = 5";
    const BACK_TO_4: &str = "alter table treering_node drop column followed; \
                             update treering_log set schema_version = 4";
    const BACK_TO_3: &str = "drop table treering_moved; \
                             alter table treering_log drop column importing; \
                             alter table treering_node drop column drain_asked; \
                             update treering_log set schema_version = 3";
    const BACK_TO_2: &str = "alter table treering_shard drop column erasing, drop column erased; \
                             update treering_log set schema_version = 2";
    const BACK_TO_1: &str = "drop table treering_node; \
                             alter table treering_log drop column shards; \
                             update treering_log set schema_version = 1";
    const BACK: [&str; 6] = [
        BACK_TO_6, BACK_TO_5, BACK_TO_4, BACK_TO_3, BACK_TO_2, BACK_TO_1,
    ];
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    for (version, back, shards) in [
        (6, &BACK[..1], 64),
        (5, &BACK[..2], 64),
        (4, &BACK[..3], 64),
        (3, &BACK[..4], 64),
        (2, &BACK[..5], 64),
        (1, &BACK[..6], 16),
    ] {
        let database = server.new_log().await;
        let url = server.url(&database);
        let before = open(&url, single_copy()).await;
        let owned = acquire(&before).await;
        let (records, batch) = batch(0, 3);
        before.append(SHARD, owned.epoch, 0, batch).await.unwrap();
        for step in back {
            server.sql_in(&database, step).await;
        }
        let older = PostgresLog::open(&url, single_copy()).await.err().unwrap();
        assert!(
            matches!(older, PostgresError::OlderSchema { version: found, .. } if found == version),
            "{older}"
        );
        create_schema(&url, shards).await.unwrap();
        let after = Arc::new(open(&url, single_copy()).await);
        assert_eq!(after.identity(), before.identity());
        assert_eq!(after.shards(), shards);
        assert_eq!(after.tail(SHARD, 0).await.unwrap(), 3);
        assert_eq!(read_all(&*after).await, records);
        assert!(after.join("a", "a:1", LEASE).await.unwrap());
        assert!(after.heartbeat("a", false, &[(SHARD, 2)]).await.unwrap());
        let view = after.view().await.unwrap();
        assert_eq!(view.nodes[0].followed, [(SHARD, 2)]);
        assert_eq!(view.heads, [(SHARD, 3)]);
        assert!(view.erased.is_empty());
        assert!(after.moved().await.unwrap().is_empty());
        assert_eq!(after.keys(None).await.unwrap(), None);
        let owned = acquire(&*after).await;
        let port = Arc::clone(&after).erasable(SHARD, owned.epoch).unwrap();
        assert_eq!(port.progress().await.unwrap(), ErasureProgress::default());
        port.mark_done(3).await.unwrap();
        assert_eq!(after.view().await.unwrap().erased, [(SHARD, 3)]);
        // The number of shards determines where each conversation is, so it never changes.
        for wrong in [0, shards + 1, 4_097] {
            let refused = create_schema(&url, wrong).await.err().unwrap();
            assert!(matches!(refused, PostgresError::Shards { .. }), "{refused}");
        }
    }
}

// Two processes both believe that they should own a shard. While the owner lives, and when it was
// only slow, claims and acquisitions of the other must change nothing.
#[tokio::test(flavor = "multi_thread")]
async fn only_a_dead_or_released_owner_loses_its_claim() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let database = server.new_log().await;
    let url = server.url(&database);
    let options = || PostgresLogOptions {
        claimed_only: true,
        ..single_copy()
    };
    let (one, two) = (open(&url, options()).await, open(&url, options()).await);
    assert!(!one.claim(SHARD).await.unwrap(), "it is not a node yet");
    assert!(one.join("one", "one:1", LEASE).await.unwrap());
    assert!(two.join("two", "two:1", LEASE).await.unwrap());
    assert!(!two.join("one", "two:1", LEASE).await.unwrap());
    assert!(one.claim(SHARD).await.unwrap());
    let owned = one.acquire(SHARD).await.unwrap();
    assert!(!two.claim(SHARD).await.unwrap());
    assert!(matches!(
        two.acquire(SHARD).await,
        Err(LogError::NotOwner { .. })
    ));
    two.release(SHARD).await.unwrap();
    assert_eq!(two.view().await.unwrap().owners, [(SHARD, one.process())]);
    let (_, first) = batch(0, 1);
    one.append(SHARD, owned.epoch, 0, first).await.unwrap();

    one.release(SHARD).await.unwrap();
    assert!(two.view().await.unwrap().owners.is_empty());
    assert!(matches!(
        one.acquire(SHARD).await,
        Err(LogError::NotOwner { .. })
    ));
    assert!(two.claim(SHARD).await.unwrap());
    let (_, late) = batch(1, 1);
    let late = one.append(SHARD, owned.epoch, 1, late).await;
    assert!(matches!(late, Err(LogError::NotOwner { .. })), "{late:?}");

    // The second one is not seen for its lease.
    let stop_clock = "update treering_node set seen_at = now() - interval '1 hour' \
                      where node = 'two'";
    server.sql_in(&database, stop_clock).await;
    assert_eq!(one.view().await.unwrap().nodes.len(), 1);
    assert!(one.claim(SHARD).await.unwrap());
    assert!(
        !two.claim(SHARD).await.unwrap(),
        "a dead process claims nothing"
    );
    assert!(two.heartbeat("two", false, &[]).await.unwrap());
    assert!(!two.claim(SHARD).await.unwrap());
    one.leave("one").await.unwrap();
    assert!(two.claim(SHARD).await.unwrap());
}

const LEASE: Duration = Duration::from_secs(30);

fn keys(content: &str) -> SharedKeys {
    SharedKeys {
        version: Uuid::new_v4(),
        content: content.to_owned(),
    }
}

// Two operators change keys at once: one creates a key, the other revokes one. Neither change may be
// lost, so the second one is refused, and made again.
#[tokio::test(flavor = "multi_thread")]
async fn keys_are_replaced_only_if_unchanged() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let database = server.new_log().await;
    let log = open(&server.url(&database), single_copy()).await;
    assert_eq!(log.keys(None).await.unwrap(), None);
    let (first, second) = (keys("first"), keys("second"));
    let unknown = Some(Uuid::new_v4());
    assert!(!log.replace_keys(unknown, &first).await.unwrap());
    assert!(log.replace_keys(None, &first).await.unwrap());
    assert!(!log.replace_keys(None, &second).await.unwrap());
    assert_eq!(log.keys(unknown).await.unwrap(), Some(first.clone()));
    assert_eq!(log.keys(Some(first.version)).await.unwrap(), None);
    let from = Some(first.version);
    assert!(log.replace_keys(from, &second).await.unwrap());
    assert!(!log.replace_keys(from, &keys("third")).await.unwrap());
    assert_eq!(log.keys(from).await.unwrap(), Some(second));
}
