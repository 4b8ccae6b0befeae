//! Whole stores that released versions wrote: log, projections and index. Every later version must
//! open them. Never write these again: add a folder for a new version.
//!
//! They are stored as archives, because redb files are mostly empty. `write_store` made them.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use futures::StreamExt;
use serde_json::Value;
use treering::{domain::*, engine::*};

use super::{child, store};

/// The versions that have a store.
const VERSIONS: [&str; 1] = ["v0.1"];
/// Number of events in each store, and the last text of its conversation.
const EVENTS: u64 = 9;
const LAST: &str = "the answer is in treering.toml";

fn folder(version: &str) -> PathBuf {
    Path::new(crate::ROOT)
        .join("tests/fixtures/stores")
        .join(version)
}

/// Returns the files below a folder by name, in order.
fn files(dir: &Path) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(next) = dirs.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                let name = path.strip_prefix(dir).unwrap().to_str().unwrap();
                found.push((name.to_owned(), path.clone()));
            }
        }
    }
    found.sort();
    found
}

/// Unpacks an archive into a folder. It is compressed with zstd, and has for each file: the length
/// of the name, the name, the length of the bytes, the bytes. Lengths have eight bytes, little
/// endian.
fn unpack(version: &str, dir: &Path) {
    let packed = fs::read(folder(version).join("store.zst")).unwrap();
    let bytes = zstd::decode_all(&packed[..]).unwrap();
    let mut rest = &bytes[..];
    let take = |rest: &mut &[u8]| {
        let (length, behind) = rest.split_at(8);
        let length = u64::from_le_bytes(length.try_into().unwrap());
        let (part, behind) = behind.split_at(usize::try_from(length).unwrap());
        *rest = behind;
        part.to_vec()
    };
    while !rest.is_empty() {
        let name = String::from_utf8(take(&mut rest)).unwrap();
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, take(&mut rest)).unwrap();
    }
}

/// Returns the export of a version's store by its own program.
fn expected(version: &str) -> String {
    let packed = fs::read(folder(version).join("log.jsonl.zst")).unwrap();
    String::from_utf8(zstd::decode_all(&packed[..]).unwrap()).unwrap()
}

/// Returns all events as lines of JSON.
async fn said(dir: &Path) -> String {
    let dir = dir.to_str().unwrap();
    let output = child::run(&["log", "@last", "--json", "--data", dir]).await;
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Checks that the new line has each value of the old line. A newer version may add values.
fn has_all(new: &Value, old: &Value) -> bool {
    match (new, old) {
        (Value::Object(new), Value::Object(old)) => old
            .iter()
            .all(|(name, old)| new.get(name).is_some_and(|new| has_all(new, old))),
        (Value::Array(new), Value::Array(old)) => {
            new.len() == old.len() && new.iter().zip(old).all(|(new, old)| has_all(new, old))
        }
        (new, old) => new == old,
    }
}

// After an upgrade, every store of every release must open, export the same, be sound, accept
// appends, and be searchable.
#[tokio::test(flavor = "multi_thread")]
async fn every_released_store_opens() {
    for version in VERSIONS {
        let dir = tempfile::tempdir().unwrap();
        unpack(version, dir.path());
        let data = dir.path().to_str().unwrap();
        let before = files(dir.path()).len();

        let check = child::run(&["upgrade", "--check", "--json", "--data", data]).await;
        assert!(check.status.success(), "{version}: {check:?}");
        let formats: Value = serde_json::from_slice(&check.stdout).unwrap();
        assert_eq!(
            (&formats["opens"], &formats["events"]),
            (&true.into(), &EVENTS.into())
        );
        assert_eq!(
            files(dir.path()).len(),
            before,
            "{version}: looking makes nothing"
        );

        let lines = said(dir.path()).await;
        let (new, old) = (lines.lines(), expected(version));
        assert_eq!(new.clone().count(), old.lines().count(), "{version}");
        for (new, old) in new.zip(old.lines()) {
            let (new, old) = (
                serde_json::from_str(new).unwrap(),
                serde_json::from_str(old).unwrap(),
            );
            assert!(has_all(&new, &old), "{version}: was {old}, is {new}");
        }

        let upgraded = child::run(&["upgrade", "--data", data]).await;
        assert!(upgraded.status.success(), "{version}: {upgraded:?}");
        let engine = store::open(dir.path()).await;
        assert_eq!(engine.head().offset, EVENTS, "{version}");
        assert_eq!(store::faults(&engine).await, [], "{version}");
        let found = SearchRequest {
            at_least: Some(engine.head()),
            ..SearchRequest::new(store::ns(), LAST, 3)
        };
        assert!(
            !engine.search(found).await.unwrap().hits.is_empty(),
            "{version}"
        );
        let mut all = engine.read(ReadQuery::all(store::ns(), EventSource::Log));
        let first = all.next().await.unwrap().unwrap();
        let id = first[0].event.header.conversation;
        let more = store::append(&engine, vec![store::message(id, "and goes on")]).await;
        assert_eq!(
            more.unwrap().events[0].position.offset,
            EVENTS + 1,
            "{version}"
        );
        engine.close().await;
    }
}

// A store of a newer version must be refused and not changed, and so must other files.
#[tokio::test(flavor = "multi_thread")]
async fn newer_store_is_refused_and_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    unpack(VERSIONS[0], dir.path());
    let manifest = dir.path().join("log/MANIFEST");
    let text = fs::read_to_string(&manifest).unwrap();
    let (json, _) = text.split_once('\n').unwrap();
    let newer = json.replacen("\"format\":2", "\"format\":77", 1);
    assert_ne!(newer, json);
    let sum = blake3::hash(newer.as_bytes()).to_hex();
    fs::write(&manifest, format!("{newer}\n{sum}\n")).unwrap();
    let data = dir.path().to_str().unwrap();
    for line in [&["upgrade", "--check"][..], &["upgrade"], &["ls"]] {
        let output = child::run(&[line, &["--data", data]].concat()).await;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(7), "{said}");
        assert!(said.contains("version 77"), "{said}");
    }
    let empty = tempfile::tempdir().unwrap();
    let data = empty.path().to_str().unwrap();
    let none = child::run(&["upgrade", "--check", "--data", data]).await;
    assert_eq!(none.status.code(), Some(3), "{none:?}");
    assert_eq!(files(empty.path()).len(), 0);
}

/// Writes the store of this version, once for each release: `cargo test --test main write_store --
/// --ignored`, with the version's name in TREERING_WRITE_STORE.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "writes a fixture"]
async fn write_store() {
    let version = std::env::var("TREERING_WRITE_STORE").unwrap();
    let to = folder(&version);
    assert!(
        !to.exists(),
        "{version} has one, which is never written again"
    );
    let dir = tempfile::tempdir().unwrap();
    let engine = store::open(dir.path()).await;
    let id = store::conversation(&engine).await;
    let forked = EventBody::BranchForked(BranchForked {
        name: BranchName::new("another-way").unwrap(),
        parent: BranchId::default(),
        fork_revision: Revision(2),
        system_prompt: String::new(),
    });
    let large = "a line of a large result\n".repeat(8_000);
    let batches = [
        vec![store::call(id, "call_1", "read_file")],
        vec![store::result(id, "call_1", "listen = \"127.0.0.1:7171\"")],
        vec![store::call(id, "call_2", "read_file")],
        vec![store::result(id, "call_2", &large)],
        vec![NewEvent::new(id, forked)],
        vec![store::message(id, "Where is the answer?")],
        vec![store::message(id, LAST)],
    ];
    for batch in batches {
        store::append(&engine, batch).await.unwrap();
    }
    assert_eq!(engine.head().offset, EVENTS);
    engine.wait_indexed(engine.head()).await.unwrap();
    engine.close().await;
    let lines = said(dir.path()).await;
    let mut all = Vec::new();
    for (name, path) in files(dir.path()) {
        if name.ends_with("LOCK") || name.contains(".lock") {
            continue;
        }
        for part in [name.into_bytes(), fs::read(path).unwrap()] {
            all.write_all(&(part.len() as u64).to_le_bytes()).unwrap();
            all.extend(part);
        }
    }
    fs::create_dir_all(&to).unwrap();
    fs::write(
        to.join("store.zst"),
        zstd::encode_all(&all[..], 19).unwrap(),
    )
    .unwrap();
    let lines = zstd::encode_all(lines.as_bytes(), 19).unwrap();
    fs::write(to.join("log.jsonl.zst"), lines).unwrap();
}
