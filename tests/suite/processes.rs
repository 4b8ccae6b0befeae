//! Two processes, one data folder.

use super::{
    child::{self, Server},
    store,
};
use treering::engine::{Engine, OpenError, OpenOptions};

/// What scripts are told when a store is held by another process.
const UNAVAILABLE: i32 = 5;

// A second process on the folder of a server would destroy it. One that serves, or that
// may not wait, must be turned away, told who holds the folder and how to reach it, and
// exit with the documented code; the first must not notice.
#[tokio::test(flavor = "multi_thread")]
async fn the_second_process_is_told_where_the_first_serves() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    let first = Server::start(dir.path()).await;
    let commands: [&[&str]; 5] = [
        &["serve", "--listen", "127.0.0.1:0"],
        &["ls", "--wait", "0"],
        &["stats", "--json", "--wait", "0"],
        &["rebuild", "--wait", "0"],
        &["export", "--format", "openai-chat", "--wait", "0"],
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

    // Without being told, commands go through the server that has the folder.
    let output = child::run(&["append", "new", "message", "user", "hello", "--data", data]).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("Made a new store"), "{said}");
    let output = child::run(&["ls", "--json", "--data", data]).await;
    assert_eq!(
        output.stdout.iter().filter(|byte| **byte == b'\n').count(),
        1
    );

    // What the message says works.
    let output = child::run(&["ls", "--server", &first.url]).await;
    assert!(output.status.success());
    first.kill().await;
}

// A script's commands, six at a time on one folder that is not there yet: five failed.
// Each has its turn, and all that was taken is there.
#[tokio::test(flavor = "multi_thread")]
async fn commands_wait_for_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("store");
    let data = data.to_str().unwrap();
    let append = ["append", "new", "message", "user", "x", "--data", data];
    let append = [&append[..], &["--wait", "50s"]].concat();
    let all = futures::future::join_all((0..6).map(|_| child::run(&append))).await;
    for output in all {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    }
    let output = child::run(&["ls", "--json", "--data", data]).await;
    assert_eq!(
        output.stdout.iter().filter(|byte| **byte == b'\n').count(),
        6
    );
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
    let data = dir.path().to_str().unwrap();
    let output = child::run(&["ls", "--wait", "300ms", "--data", data]).await;
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
