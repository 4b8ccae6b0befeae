//! Changes to the folder of an open log: removed files and moved folders.

use super::*;

/// Returns a record whose body takes about 200 kB in a segment.
fn large(revision: u64) -> Record {
    let header = samples::header(revision);
    let body = samples::noise(200_000);
    let hash = Record::hash_body(&body);
    let salted = crate::Salt::random().hash(hash);
    let place = crate::RecordBody::Inline(body);
    Record::seal(Default::default(), header, place, salted, None).unwrap()
}

fn open_in(path: &Path) -> RedbLog {
    RedbLog::open(path, small(), OpenMode::Create).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn erasing_during_segment_creation_loses_no_event() {
    // Erasing removed every file that the manifest did not name, including one that an append had
    // just created: later appends were acknowledged and written to a file without a name.
    let dir = tempfile::tempdir().unwrap();
    let log = Arc::new(open_in(dir.path()));
    append(&log, &[large(1)]).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let erasing = {
        let (log, stop) = (Arc::clone(&log), Arc::clone(&stop));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Acquire) {
                log.remove_unnamed().unwrap();
            }
        })
    };
    const RECORDS: u64 = 120;
    for revision in 2..=RECORDS {
        append(&log, &[large(revision)]).await.unwrap();
    }
    stop.store(true, Ordering::Release);
    erasing.join().unwrap();
    assert!(log.manifest().segments.len() > 8);
    log.close().await.unwrap();
    drop(log);

    let log = Arc::new(open_in(dir.path()));
    assert_eq!(log.head(), RECORDS);
    assert_eq!(all(log).await.unwrap().len() as u64, RECORDS);
}

#[cfg(unix)]
#[tokio::test]
async fn removed_segment_file_loses_no_acknowledged_event() {
    // Removing the last segment's file leaves an open file without a name: appends to it were
    // acknowledged, and lost with the process.
    let dir = tempfile::tempdir().unwrap();
    let log = Arc::new(open_in(dir.path()));
    append(&log, &samples::records(10, 500)).await.unwrap();
    let file = log.manifest().last().unwrap().file.clone().unwrap();
    std::fs::remove_file(dir.path().join(LOG_FOLDER).join(&file)).unwrap();
    let error = append(&log, &[large(11)]).await.unwrap_err();
    assert!(error.to_string().contains("was deleted"), "{error}");
    append(&log, &[large(11)]).await.unwrap();
    log.close().await.unwrap();
    drop(log);

    let log = Arc::new(open_in(dir.path()));
    assert_eq!(all(log).await.unwrap().len(), 11);
}

#[cfg(unix)]
#[tokio::test]
async fn moved_folder_refuses_appends_and_writes_nothing() {
    // A folder was moved while a server used it, and a new server was started at the old path: the
    // old one created its segments in the new store and lost what it acknowledged.
    let above = tempfile::tempdir().unwrap();
    let (path, moved) = (above.path().join("data"), above.path().join("moved"));
    let old = Arc::new(open_in(&path));
    append(&old, &samples::records(10, 500)).await.unwrap();
    std::fs::rename(&path, &moved).unwrap();
    let new = Arc::new(open_in(&path));
    append(&new, &samples::records(3, 500)).await.unwrap();
    let error = append(&old, &[large(11)]).await.unwrap_err();
    assert!(matches!(error, LogError::FolderMoved { .. }), "{error}");
    // Background work stays in the moved folder.
    old.seal_within(0..=u64::MAX).unwrap();
    while old.rewrite_next(&AtomicBool::new(false)).unwrap().is_some() {}
    old.close().await.unwrap();
    drop(old);
    append(&new, &samples::records(2, 500)).await.unwrap();
    new.close().await.unwrap();
    drop(new);

    let count = async |path: &Path| all(Arc::new(open_in(path))).await.unwrap().len();
    assert_eq!(count(&moved).await, 10);
    assert_eq!(count(&path).await, 5);
}
