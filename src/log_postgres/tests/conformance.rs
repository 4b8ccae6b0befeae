use tokio::{runtime::Handle, task::block_in_place};
use treering_log::testkit::conformance;
use treering_log_postgres::{PostgresLog, PostgresLogOptions};

use crate::server::{Server, open, quick, single_copy};

fn new_log(server: &Server, options: PostgresLogOptions) -> PostgresLog {
    block_in_place(|| {
        Handle::current().block_on(async {
            let database = server.new_log().await;
            open(&server.url(&database), options).await
        })
    })
}

// The suite defines the port; a log on one server must pass it.
#[tokio::test(flavor = "multi_thread")]
async fn one_server_passes_the_conformance_suite() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    conformance::run_all(|| new_log(&server, single_copy())).await;
    conformance::run_erasing(|| new_log(&server, single_copy())).await;
    conformance::an_earlier_owner_cannot_erase(new_log(&server, single_copy())).await;
}

// Every commit waits for another server, and nothing else may change.
#[tokio::test(flavor = "multi_thread")]
async fn primary_and_standby_pass_the_conformance_suite() {
    let Some((primary, standby)) = Server::pair().await else {
        return;
    };
    conformance::run_all(|| new_log(&primary, quick())).await;
    conformance::run_erasing(|| new_log(&primary, quick())).await;
    let databases = "select count(*) from pg_database where datname like 'log%'";
    assert_eq!(standby.sql(databases).await, primary.sql(databases).await);
}
