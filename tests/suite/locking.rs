//! Several processes on one data folder.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path, process::Stdio};

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, Command},
    time::timeout,
};

use super::{
    child::{self, PATIENCE, Server},
    store,
};
use treering::engine::{BranchAddress, Engine, OpenError, OpenOptions};

/// The exit code when another process holds the store.
const UNAVAILABLE: i32 = 5;

// A second process on a server's folder would destroy the store. If it would serve, or may not
// wait, it must be refused with the holder, the way to reach it, and the documented exit code. The
// first process must not notice.
#[tokio::test(flavor = "multi_thread")]
async fn second_process_is_refused_with_the_server_address() {
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

    // Without an option, commands use the server that holds the folder.
    let output = child::run(&["append", "new", "message", "user", "hello", "--data", data]).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("Created a new store"), "{said}");
    let output = child::run(&["ls", "--json", "--data", data]).await;
    assert_eq!(
        output.stdout.iter().filter(|byte| **byte == b'\n').count(),
        1
    );

    // The command that the message suggests works.
    let output = child::run(&["ls", "--server", &first.url]).await;
    assert!(output.status.success());
    first.kill().await;
}

// A script runs six commands at a time on a folder that does not exist yet. Each must get its turn,
// and everything that was accepted must be stored.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_commands_wait_for_the_folder() {
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

// `serve`, `repair` and `salvage` must wait for an import, as other commands do. They do not wait
// for a server, because it does not end by itself.
#[tokio::test(flavor = "multi_thread")]
async fn serve_repair_and_salvage_wait_for_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("store");
    let (data, to) = (folder.to_str().unwrap(), dir.path().join("sound"));
    let engine = store::open(&folder).await;
    store::conversation(&engine).await;
    let salvage = ["salvage", "--data", data, "--to", to.to_str().unwrap()];
    let repair = ["repair", "--data", data];
    let serve = ["serve", "--listen", "127.0.0.1:0", "--data", data];
    for command in [&salvage[..], &repair, &serve] {
        let at_once = [command, &["--wait", "0"]].concat();
        let output = child::run(&at_once).await;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(UNAVAILABLE), "{said}");
        assert!(said.contains("is in use by"), "{said}");
    }
    let (salvage, repair) = (
        [&salvage[..], &["--wait", "50s"]],
        [&repair[..], &["--wait", "50s"]],
    );
    let (salvage, repair) = (salvage.concat(), repair.concat());
    let close = async {
        // They must get the folder, whether they had to wait or not.
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        engine.close().await;
    };
    let (salvaged, repaired, ()) = tokio::join!(child::run(&salvage), child::run(&repair), close);
    for output in [salvaged, repaired] {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    }
    let engine = store::open(&folder).await;
    let (server, ()) = tokio::join!(Server::start(&folder), async {
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        engine.close().await;
    });
    let output = child::run(&["repair", "--data", data]).await;
    assert_eq!(output.status.code(), Some(UNAVAILABLE));
    server.kill().await;
}

// The lock belongs to the process. After SIGKILL the folder must not stay locked, and the content
// of the lock file must not matter.
#[tokio::test(flavor = "multi_thread")]
async fn killed_process_releases_the_lock() {
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

    // A closed engine's remaining handle does not hold the folder either.
    let again = store::open(dir.path()).await;
    assert!(
        again
            .conversation(&BranchAddress::active(store::ns(), id), None)
            .await
            .is_ok()
    );
    assert!(
        engine
            .conversation(&BranchAddress::active(store::ns(), id), None)
            .await
            .is_err()
    );
    again.close().await;
}

/// Starts a server as a program does: it keeps the write end of standard input, and reads the
/// address from the first line.
async fn started_by_a_program(dir: &Path) -> (Child, ChildStdin, Value) {
    let mut process = Command::new(env!("CARGO_BIN_EXE_treering"))
        .args(["serve", "--json", "--until-stdin-closes"])
        .args(["--listen", "127.0.0.1:0", "--data"])
        .arg(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let stdin = process.stdin.take().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let line = timeout(PATIENCE, lines.next_line())
        .await
        .expect("timed out");
    let line = serde_json::from_str(&line.unwrap().expect("a line")).unwrap();
    (process, stdin, line)
}

// A killed program cannot stop the server that it started. The server must end cleanly when the
// pipe closes, and not hold the store. A second program must learn from one line where the store is
// already served.
#[tokio::test(flavor = "multi_thread")]
async fn server_ends_with_its_parent_process() {
    let parent = tempfile::tempdir().unwrap();
    // A folder name that is not valid Unicode must not cause a crash.
    let dir = parent.path().join(OsStr::from_bytes(b"st\xf6re"));
    let (mut first, mut stdin, ready) = started_by_a_program(&dir).await;
    assert_eq!(ready["pid"], first.id().unwrap());
    assert_eq!(ready["version"], env!("CARGO_PKG_VERSION"));
    let url = ready["serving"].as_str().unwrap();
    assert!(child::run(&["ls", "--server", url]).await.status.success());

    let (mut second, _stdin, line) = started_by_a_program(&dir).await;
    assert_eq!(line["server"], url);
    let pid = first.id().unwrap().to_string();
    assert!(line["locked_by"].as_str().unwrap().contains(&pid), "{line}");
    let status = timeout(PATIENCE, second.wait()).await.expect("timed out");
    assert_eq!(status.unwrap().code(), Some(UNAVAILABLE));

    // Input on the pipe does not end the server.
    stdin.write_all(b"still here\n").await.unwrap();
    assert!(child::run(&["ls", "--server", url]).await.status.success());
    drop(stdin);
    let status = timeout(PATIENCE, first.wait()).await.expect("timed out");
    assert!(status.unwrap().success());
    let engine = store::open(&dir).await;
    engine.close().await;
}
