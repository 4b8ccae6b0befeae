//! Read commands of the built program, and folders whose files are missing or changed.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use super::{
    child::{self, Server},
    random::Random,
    store,
};
use treering::engine::*;

#[path = "../../src/base/disk/copying.rs"]
pub(super) mod copying;
use copying::copy_folder;

/// Every command that reads a whole store.
pub const READING: [&[&str]; 8] = [
    &["ls"],
    &["stats"],
    &["search", "hello"],
    &["verify"],
    &["verify", "--deep"],
    &["pending"],
    &["export", "--format", "openai-chat"],
    &["repair"],
];

/// Documented exit codes.
const NOT_FOUND: i32 = 3;
const UNAVAILABLE: i32 = 5;
const DAMAGED: i32 = 6;

/// Returns every file below a folder, with its bytes.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(contents(&path));
        } else {
            files.insert(path.clone(), std::fs::read(&path).unwrap());
        }
    }
    files
}

async fn run_on(dir: &Path, command: &[&str]) -> (i32, String, String) {
    let data = dir.to_str().unwrap();
    let output = child::run(&[command, &["--data", data]].concat()).await;
    (
        output.status.code().unwrap(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

/// Creates a closed store with some conversations. Returns the number of its events.
async fn filled(dir: &Path) -> u64 {
    let engine = store::open(dir).await;
    let mut random = Random(4);
    for _ in 0..5 {
        let id = store::conversation(&engine).await;
        for _ in 0..5 {
            let events = vec![store::message(id, &random.text(400))];
            store::append(&engine, events).await.unwrap();
        }
    }
    let head = engine.head().offset;
    engine.close().await;
    head
}

// A read command on a mistyped folder must not create a store there, nor call it sound.
#[tokio::test(flavor = "multi_thread")]
async fn read_commands_create_no_store() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("notes.txt"), "mine").unwrap();
    let missing = dir.path().join("typo");
    for command in READING {
        for place in [dir.path(), &missing] {
            let (code, _, said) = run_on(place, command).await;
            assert_eq!(code, NOT_FOUND, "{command:?}: {said}");
            assert!(said.contains("no store in"), "{said}");
            assert!(said.contains("treering import"), "{said}");
        }
    }
    for command in [&["rebuild"][..], &["fork", "x", "--at", "1", "--name", "y"]] {
        let (code, _, said) = run_on(&missing, command).await;
        assert_eq!(code, NOT_FOUND, "{command:?}: {said}");
    }
    let names: Vec<_> = contents(dir.path()).into_keys().collect();
    assert_eq!(names, [dir.path().join("notes.txt")]);
}

// Read commands must change no byte, neither repair what a crash left. Two must be able to run at
// once, whether the store was closed or its process was killed.
#[tokio::test(flavor = "multi_thread")]
async fn read_commands_change_no_byte_and_run_concurrently() {
    let dir = tempfile::tempdir().unwrap();
    let closed = dir.path().join("closed");
    filled(&closed).await;
    let killed = dir.path().join("killed");
    let server = Server::start(&killed).await;
    let appended = child::run(&[
        "append",
        "--server",
        &server.url,
        "new",
        "message",
        "user",
        "hello from before",
    ])
    .await;
    let said = String::from_utf8_lossy(&appended.stderr).into_owned();
    if !appended.status.success() {
        println!("append new: {said}");
    }
    server.kill().await;
    for folder in [&closed, &killed] {
        let before = contents(folder);
        for command in READING {
            let (one, two) = tokio::join!(run_on(folder, command), run_on(folder, command));
            assert_eq!(one.0, 0, "{command:?}: {}", one.2);
            assert_eq!(two.0, 0, "{command:?}: {}", two.2);
        }
        assert!(
            contents(folder) == before,
            "{} has changed",
            folder.display()
        );
    }
}

// Transcripts contain source code, mails and secrets: other users must not be able to read the
// files.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn store_files_are_private_to_the_owner() {
    use std::os::unix::fs::PermissionsExt;
    fn check(path: &Path, found: &mut u32) {
        let mode = path.metadata().unwrap().permissions().mode() & 0o777;
        let wanted = if path.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode, wanted, "{}: {mode:o}", path.display());
        *found += 1;
        if path.is_dir() {
            for entry in std::fs::read_dir(path).unwrap() {
                check(&entry.unwrap().path(), found);
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("a/store");
    let server = Server::start(&data).await;
    let found = &mut 0;
    check(&dir.path().join("a"), found);
    assert!(*found > 8, "only {found} files and folders");
    server.kill().await;
}

// If LOCK is deleted under a running server, a second process must still be refused. It would
// repair the live segment and damage acknowledged events.
#[tokio::test(flavor = "multi_thread")]
async fn store_in_use_stays_locked_without_its_lock_file() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    std::fs::remove_file(dir.path().join("LOCK")).unwrap();
    let commands: [&[&str]; 5] = [
        &["ls"],
        &["verify"],
        &["rebuild"],
        &["export", "--format", "openai-chat"],
        &["serve", "--listen", "127.0.0.1:0"],
    ];
    for command in commands {
        // With a wait, the command would use the server, once that has restored the file.
        let command = [command, &["--wait", "0"]].concat();
        let (code, _, said) = run_on(dir.path(), &command).await;
        assert_eq!(code, UNAVAILABLE, "{command:?}: {said}");
    }
    let output = child::run(&["verify", "--deep", "--server", &server.url]).await;
    assert!(output.status.success());
    // The server restores the file, and others learn again who holds the folder.
    let told = async {
        let ls = ["ls", "--wait", "0"];
        while !run_on(dir.path(), &ls).await.2.contains(&server.url) {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(child::PATIENCE, told)
        .await
        .expect("the server is not announced in the folder");
    server.kill().await;
}

// If events are missing from the log, the store must not open, since their positions and keys would
// be used again. The error must say what is missing, and the projections, which prove the loss,
// must stay. The store continues only if the loss is accepted.
#[tokio::test(flavor = "multi_thread")]
async fn regressed_store_is_refused_until_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("store");
    filled(&data).await;
    let older = dir.path().join("older");
    copy_folder(&data.join("log"), &older);
    let engine = store::open(&data).await;
    let id = store::conversation(&engine).await;
    let lost = engine.head().offset;
    engine.close().await;
    let whole = dir.path().join("whole");
    copy_folder(&data, &whole);
    type Harm = (&'static str, fn(&Path, &Path));
    let harms: [Harm; 4] = [
        ("log/ is an older copy", |data, older| {
            std::fs::remove_dir_all(data.join("log")).unwrap();
            copy_folder(older, &data.join("log"));
        }),
        ("log/ is empty", |data, _| {
            std::fs::remove_dir_all(data.join("log")).unwrap();
            std::fs::create_dir(data.join("log")).unwrap();
        }),
        ("log/ is missing", |data, _| {
            std::fs::remove_dir_all(data.join("log")).unwrap();
        }),
        ("log/ is older and the views are missing", |data, older| {
            std::fs::remove_dir_all(data.join("log")).unwrap();
            copy_folder(older, &data.join("log"));
            std::fs::remove_file(data.join("views.redb")).unwrap();
        }),
    ];
    for (what, harm) in harms {
        std::fs::remove_dir_all(&data).unwrap();
        copy_folder(&whole, &data);
        harm(&data, &older);
        let before = contents(&data);
        for command in READING {
            let (code, _, said) = run_on(&data, command).await;
            assert_eq!(code, DAMAGED, "{what}, {command:?}: {said}");
        }
        let (code, _, said) = run_on(&data, &["ls"]).await;
        assert!(
            code == DAMAGED && said.contains("treering repair"),
            "{said}"
        );
        assert!(contents(&data) == before, "{what}: something changed");
        // A command that would write is refused, too. Opening the log may have recorded that it was
        // open.
        let (code, _, said) = run_on(&data, &["rebuild"]).await;
        assert_eq!(code, DAMAGED, "{what}: {said}");
        let (code, told, said) = run_on(&data, &["repair", "--accept-loss"]).await;
        assert_eq!(code, 0, "{what}: {said}");
        assert!(told.contains("lost: events"), "{what}: {told}");
        let (code, _, said) = run_on(&data, &["verify", "--deep"]).await;
        assert_eq!(code, 0, "{what}: {said}");
        let engine = store::open(&data).await;
        assert!(engine.head().offset < lost, "{what}");
        assert!(
            engine
                .conversation(&BranchAddress::active(store::ns(), id), None)
                .await
                .is_err()
        );
        store::conversation(&engine).await;
        store::assert_sound(&engine).await;
        engine.close().await;
        let (code, told, _) = run_on(&data, &["repair"]).await;
        assert_eq!(code, 0, "{what}: {told}");
    }
}

// Projections and index of another store must not answer. They are rebuilt, because the log has
// everything.
#[tokio::test(flavor = "multi_thread")]
async fn projections_and_index_of_another_store_are_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    filled(&ours).await;
    {
        let engine = store::open(&theirs).await;
        // More than ours has: that is not a loss of ours.
        for _ in 0..30 {
            store::conversation(&engine).await;
        }
        engine.close().await;
    }
    let listed = |engine: Engine| async move {
        let query = ListQuery {
            namespace: store::ns(),
            limit: 100,
            after: None,
            source: None,
            order: Default::default(),
            ascending: true,
        };
        let page = engine.list(query).await.unwrap();
        page.conversations
            .iter()
            .map(|row| row.id)
            .collect::<Vec<_>>()
    };
    let expected = {
        let engine = store::open(&ours).await;
        let expected = listed(engine.clone()).await;
        engine.close().await;
        expected
    };
    for part in ["views.redb", "index"] {
        let (from, to) = (theirs.join(part), ours.join(part));
        if to.is_dir() {
            std::fs::remove_dir_all(&to).unwrap();
            copy_folder(&from, &to);
        } else {
            std::fs::copy(&from, &to).unwrap();
        }
        for command in [&["repair"][..], &["verify", "--deep"]] {
            let (code, _, said) = run_on(&ours, command).await;
            assert_eq!(code, 0, "{part}, {command:?}: {said}");
        }
        let engine = store::open(&ours).await;
        assert_eq!(listed(engine.clone()).await, expected, "{part}");
        let request = SearchRequest {
            at_least: Some(engine.head()),
            copies: DuplicateHandling::Each,
            ..SearchRequest::new(store::ns(), "hello", 100)
        };
        let hits = engine.search(request).await.unwrap().hits;
        assert!(
            hits.iter()
                .all(|hit| expected.contains(&hit.found.conversation))
        );
        assert_eq!(hits.len(), expected.len());
        store::assert_sound(&engine).await;
        engine.close().await;
    }
}
