use std::sync::Arc;

use bytes::Bytes;
use treering_log::{
    Erasure, ErasureProgress, EventLog, LogError, Record, RecordBody, SaltSource, testkit::samples,
};
use treering_log_postgres::{PostgresLog, grants};

use crate::server::{SHARD, Server, acquire, batch, open, read_all, single_copy};

fn erasure_of(offset: u64) -> Arc<Erasure> {
    let stubs = [(offset, Bytes::from_static(b"a stub"))].into();
    Arc::new(Erasure {
        stubs,
        ..Erasure::default()
    })
}

/// Appends a few records and returns the epoch.
async fn filled(log: &PostgresLog) -> treering_log::Epoch {
    let owned = acquire(log).await;
    let (_, batch) = batch(owned.head, 5);
    log.append(SHARD, owned.epoch, owned.head, batch)
        .await
        .unwrap();
    owned.epoch
}

// The role of a node was granted its rights by an earlier version. Its erasure must fail before it
// is recorded; otherwise it could never end. With today's rights it works, and the receipt says who
// has to remove the old rows.
#[tokio::test(flavor = "multi_thread")]
async fn role_without_the_right_to_erase_begins_nothing() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let database = server.new_log().await;
    let earlier = "create role node login; grant select on treering_log to node;
        grant select, insert, update on treering_shard, treering_node to node;
        grant select, insert on treering_frame, treering_blob to node";
    server.sql_in(&database, earlier).await;
    let log = Arc::new(open(&server.url_of("node", &database), single_copy()).await);
    let epoch = filled(&log).await;
    let port = Arc::clone(&log).erasable(SHARD, epoch).unwrap();
    let refused = Arc::clone(&port).mark_begun().await.unwrap_err();
    assert!(
        refused.to_string().contains("treering cluster init"),
        "{refused}"
    );
    assert_eq!(port.progress().await.unwrap(), ErasureProgress::default());
    server.sql_in(&database, &grants("node", false)).await;
    Arc::clone(&port).mark_begun().await.unwrap();
    let removed = Arc::clone(&port).remove(erasure_of(2), Box::new(|_, _| {}));
    let removed = removed.await.unwrap();
    assert_eq!(removed.segments, 1);
    let told = removed.may_remain.join("\n");
    let version = server.sql("show server_version_num").await;
    let may_vacuum = version.parse::<u32>().unwrap() >= 170_000;
    assert_eq!(told.contains("until the owner"), !may_vacuum, "{told}");
    Arc::clone(&port).mark_done(5).await.unwrap();
    assert!(read_all(&*log).await[1].is_erased());
}

// The old version of a replaced row still has the content. The owner of the tables may vacuum, and
// then it is gone.
#[tokio::test(flavor = "multi_thread")]
async fn no_old_version_of_a_row_stays() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let database = server.new_log().await;
    let log = Arc::new(open(&server.url(&database), single_copy()).await);
    let epoch = filled(&log).await;
    let port = Arc::clone(&log).erasable(SHARD, epoch).unwrap();
    Arc::clone(&port).mark_begun().await.unwrap();
    let removed = Arc::clone(&port).remove(erasure_of(2), Box::new(|_, _| {}));
    let removed = removed.await.unwrap();
    assert_eq!(removed.may_remain.len(), 2, "{:?}", removed.may_remain);
    server
        .sql_in(&database, "create extension pageinspect")
        .await;
    // An item with storage is a version of a row, live or dead.
    let versions = "select count(*) from heap_page_items(get_raw_page('treering_frame', 0)) \
                    where lp_len > 0";
    assert_eq!(server.sql_in(&database, versions).await, "1");
}

// The power failed when only some frames were replaced. Whoever goes on knows only the events that
// still have content: if the content of an event went first, its salt would stay in other frames
// for ever.
#[tokio::test(flavor = "multi_thread")]
async fn salts_go_before_content() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let database = server.new_log().await;
    let log = Arc::new(open(&server.url(&database), single_copy()).await);
    let mut owned = acquire(&*log).await;
    let mut salts = SaltSource::default();
    for _ in 0..5 {
        let offset = owned.head + 1;
        let body = samples::prose(900);
        let salted = salts.at(offset).hash(Record::hash_body(&body));
        let body = RecordBody::Inline(body);
        let record = Record::seal(Default::default(), samples::header(1), body, salted, None);
        let batch = samples::batch(offset, &[record.unwrap()]);
        owned.head = log
            .append(SHARD, owned.epoch, owned.head, batch)
            .await
            .unwrap();
    }
    let erasure = erasure_of(2);
    let changes = async || {
        let frames = log.read(SHARD, 1, 1 << 20).await.unwrap();
        let new = frames.iter().map(|stored| erasure.replacement(stored));
        new.map(|new| new.unwrap().map(|new| new.had_content))
            .collect::<Vec<_>>()
    };
    let [had, reveals] = [Some(true), Some(false)];
    assert_eq!(changes().await, [reveals, had, reveals, reveals, reveals]);
    let refuse = "create function refuse() returns trigger language plpgsql as
                      $$ begin raise exception 'not now'; end $$;
                  create trigger refuse before update on treering_frame for each row
                      when (old.first_offset = 2) execute function refuse()";
    server.sql_in(&database, refuse).await;
    let port = Arc::clone(&log).erasable(SHARD, owned.epoch).unwrap();
    let remove = || Arc::clone(&port).remove(Arc::clone(&erasure), Box::new(|_, _| {}));
    remove().await.unwrap_err();
    assert_eq!(changes().await, [None, had, None, None, None]);
    server
        .sql_in(&database, "drop trigger refuse on treering_frame")
        .await;
    assert_eq!(remove().await.unwrap().segments, 1);
    assert_eq!(changes().await, [None; 5]);
}

// A server that drops the standby during an erasure would forget it at the next fail-over. The marks
// need the same settings as an append.
#[tokio::test(flavor = "multi_thread")]
async fn erasure_needs_safe_settings() {
    let Some(server) = Server::single(&[("fsync", "on")]).await else {
        return;
    };
    let database = server.new_log().await;
    let log = Arc::new(open(&server.url(&database), single_copy()).await);
    let epoch = filled(&log).await;
    let port = Arc::clone(&log).erasable(SHARD, epoch).unwrap();
    server.sql("alter system set fsync = off").await;
    server.sql("select pg_reload_conf()").await;
    server.wait_for("show fsync", "off").await;
    let removed = Arc::clone(&port).remove(erasure_of(2), Box::new(|_, _| {}));
    for refused in [
        Arc::clone(&port).mark_begun().await.err(),
        removed.await.err(),
        Arc::clone(&port).mark_done(5).await.err(),
    ] {
        assert!(matches!(refused, Some(LogError::Io { .. })), "{refused:?}");
        assert!(refused.unwrap().to_string().contains("fsync"));
    }
    assert!(!read_all(&*log).await[1].is_erased());
}
