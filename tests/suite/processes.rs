//! Two processes, one data folder.

use super::{
    child::{self, Server},
    store,
};
use treering::engine::{Engine, OpenError, OpenOptions};

/// What scripts are told when a store is held by another process.
const UNAVAILABLE: i32 = 5;

// A second process on the folder of a server would destroy it. It must be turned
// away, told who holds the folder and how to reach it, and exit with the
// documented code; the first must not notice.
#[tokio::test(flavor = "multi_thread")]
async fn the_second_process_is_told_where_the_first_serves() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    let first = Server::start(dir.path()).await;
    let commands: [&[&str]; 5] = [
        &["serve", "--listen", "127.0.0.1:0"],
        &["ls"],
        &["stats", "--json"],
        &["rebuild"],
        &["export", "--format", "openai-chat"],
    ];
    for command in commands {
        let arguments = [command, &["--data", data]].concat();
        let output = child::run(&arguments).await;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            output.status.code(),
            Some(UNAVAILABLE),
            "{command:?}: {said}"
        );
        assert!(
            said.contains(&first.pid().to_string()),
            "{command:?}: {said}"
        );
        assert!(said.contains(&first.url), "{command:?}: {said}");
        assert!(said.contains("--server"), "{command:?}: {said}");
    }
    let error = Engine::open(OpenOptions::new(dir.path()))
        .await
        .err()
        .unwrap();
    let OpenError::Locked {
        holder, address, ..
    } = &error
    else {
        panic!("{error:?}");
    };
    assert!(holder.contains(&first.pid().to_string()), "{error}");
    assert_eq!(address.as_deref(), Some(first.url.as_str()));

    // What the message says works.
    let output = child::run(&["ls", "--server", &first.url]).await;
    assert!(output.status.success());
    first.kill().await;
}

// The lock is the process's: SIGKILL must not leave a folder locked, and what the
// lock file says of the dead one must not stand in the way.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_holder_lets_go() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        Server::start(dir.path()).await.kill().await;
    }
    let engine = store::open(dir.path()).await;
    let id = store::conversation(&engine).await;
    let output = child::run(&["ls", "--data", dir.path().to_str().unwrap()]).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(UNAVAILABLE), "{said}");
    assert!(said.contains(&std::process::id().to_string()), "{said}");
    engine.close().await;

    // A handle that is left over does not hold the folder either.
    let again = store::open(dir.path()).await;
    assert!(
        again
            .conversation(&store::ns(), id, None, None)
            .await
            .is_ok()
    );
    assert!(
        engine
            .conversation(&store::ns(), id, None, None)
            .await
            .is_err()
    );
    again.close().await;
}
