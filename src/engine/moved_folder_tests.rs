//! A data folder that is moved while its engine is open.

use std::{collections::BTreeMap, path::Path, time::Duration};

use futures::StreamExt;

use super::{test_events::*, *};
use treering_domain::*;

/// A guard against hanging.
const PATIENCE: Duration = Duration::from_secs(180);

/// Returns the names and bytes of all files below a folder.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path.display().to_string(), std::fs::read(&path).unwrap());
        }
    }
    found
}

async fn store(path: &Path, text: &str) -> (Engine, Position) {
    let engine = Engine::open(OpenOptions::new(path)).await.unwrap();
    let id = ConversationId::generate();
    let appended = append(&engine, vec![created(id), said(id, text)]).await;
    (engine, appended.events.last().unwrap().position)
}

async fn finds(engine: &Engine, text: &str, at_least: Position) -> usize {
    let request = SearchRequest {
        at_least: Some(at_least),
        ..SearchRequest::new(ns(), text, 10)
    };
    engine.search(request).await.unwrap().hits.len()
}

// A store was moved while it was served, and another one was created at the old path. The first
// server then committed its index, and rebuilt it and the projections, in the folder of the other
// store.
#[tokio::test(flavor = "multi_thread")]
async fn moved_store_writes_nothing_to_its_old_path() {
    let above = tempfile::tempdir().unwrap();
    let (path, moved) = (above.path().join("data"), above.path().join("moved"));
    let (old, last) = store(&path, "walnut").await;
    std::fs::rename(&path, &moved).unwrap();
    let (new, end) = store(&path, "hazel").await;
    assert_eq!(finds(&new, "hazel", end).await, 1);
    new.close().await;
    let before = files(&path);

    let waited = tokio::time::timeout(PATIENCE, old.wait_indexed(last)).await;
    waited.unwrap().unwrap_err();
    for (projections, index) in [(true, false), (false, true)] {
        let items: Vec<_> = old.rebuild(projections, index).collect().await;
        assert!(items.last().unwrap().is_err(), "views {projections}");
    }
    old.close().await;
    assert!(files(&path) == before, "it was written to");

    for (path, word) in [(&moved, "walnut"), (&path, "hazel")] {
        let engine = Engine::open(OpenOptions::new(path)).await.unwrap();
        assert_eq!(finds(&engine, word, last).await, 1, "{word}");
        engine.close().await;
    }
}
