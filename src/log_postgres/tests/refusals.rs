use std::{
    io::{self, Write},
    sync::{Arc, Mutex},
    time::Duration,
};

use treering_log::EventLog;
use treering_log_postgres::{PostgresLog, PostgresLogOptions};

use crate::server::{SHARD, Server, acquire, batch, open, quick, single_copy};

async fn refusal(url: &str, options: PostgresLogOptions) -> String {
    PostgresLog::open(url, options)
        .await
        .err()
        .unwrap()
        .to_string()
}

// A server whose settings can lose acknowledged events looks healthy until it loses them.
#[tokio::test(flavor = "multi_thread")]
async fn server_that_may_lose_events_is_refused() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let url = server.url(&server.new_log().await);
    let alone = refusal(&url, quick()).await;
    assert!(alone.contains("synchronous_standby_names = ''"), "{alone}");
    drop(open(&url, single_copy()).await);
    for setting in ["fsync", "full_page_writes"] {
        server.set(setting, "off").await;
        let error = refusal(&url, single_copy()).await;
        assert!(error.contains(&format!("{setting} = 'off'")), "{error}");
        assert!(error.contains(&format!("Set {setting} = on")), "{error}");
        server.set(setting, "on").await;
    }
    // The log's own sessions turn it on, whatever the server's default is.
    server.set("synchronous_commit", "off").await;
    drop(open(&url, single_copy()).await);
    let Some(server) = Server::without_checksums().await else {
        return;
    };
    let error = refusal(&server.url(&server.new_log().await), single_copy()).await;
    assert!(error.contains("pg_checksums --enable"), "{error}");
}

/// Collects what is logged.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<Vec<u8>>>);

impl Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// An operator who accepted a single copy for a trial must be warned at each open.
#[tokio::test(flavor = "multi_thread")]
async fn single_copy_is_warned_about() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let url = server.url(&server.new_log().await);
    let logged = Logged::default();
    let to = logged.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || to.clone());
    let _guard = tracing::subscriber::set_default(subscriber.finish());
    drop(open(&url, single_copy()).await);
    let text = String::from_utf8(logged.0.lock().unwrap().clone()).unwrap();
    assert!(
        text.contains("WARN") && text.contains("only copy"),
        "{text}"
    );
}

// When a setting is turned off while a store is open, the next append must be refused, not only the
// next start.
#[tokio::test(flavor = "multi_thread")]
async fn append_is_refused_while_a_setting_is_wrong() {
    let Some((primary, _standby)) = Server::pair().await else {
        return;
    };
    let options = PostgresLogOptions {
        check_every: Duration::from_millis(50),
        ..quick()
    };
    let url = primary.url(&primary.new_log().await);
    // One log notices on its append, the other with its regular check.
    let rare = open(&url, quick()).await;
    let log = open(&url, options).await;
    for (setting, wrong, right) in [
        ("fsync", "off", "on"),
        ("synchronous_standby_names", "", "standby"),
    ] {
        primary.set(setting, wrong).await;
        let taken = rare.acquire(SHARD).await;
        assert!(taken.unwrap_err().to_string().contains(setting));
        primary.set(setting, right).await;
        for log in [&rare, &log] {
            let owned = acquire(log).await;
            primary.set(setting, wrong).await;
            let (_, refused) = batch(owned.head, 1);
            let error = log.append(SHARD, owned.epoch, owned.head, refused).await;
            assert!(error.unwrap_err().to_string().contains(setting));
            primary.set(setting, right).await;
            let (_, taken) = batch(owned.head, 1);
            log.append(SHARD, owned.epoch, owned.head, taken)
                .await
                .unwrap();
        }
    }
}

// A URL that leads only to a standby must be refused: a standby has all the data, but accepts no
// writes.
#[tokio::test(flavor = "multi_thread")]
async fn standby_is_not_used() {
    let Some((primary, standby)) = Server::pair().await else {
        return;
    };
    let database = primary.new_log().await;
    // The standby applies what it has, a moment later.
    let exists = format!("select count(*) from pg_database where datname = '{database}'");
    standby.wait_for(&exists, "1").await;
    let error = refusal(&standby.url(&database), quick()).await;
    assert!(error.contains("Only a primary is used"), "{error}");
}
