//! A log that does not say what it did, for a while or for ever, and threads
//! that panic.

use super::*;

/// A guard against hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks until it is answered with a count, and returns that.
async fn ask_until_taken(writer: &GroupWriter<Counter>) -> u64 {
    let asking = async {
        loop {
            match ask(writer, Ask::Add(1)).await {
                Answer::Counted(count) => return count,
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let counted = tokio::time::timeout(PATIENCE, asking).await;
    counted.expect("the writer comes back")
}

fn failed(answer: Answer) -> String {
    match answer {
        Answer::Failed(text) => text,
        other => panic!("{other:?}"),
    }
}

/// Says either that nothing was appended or that it is not known; never both.
fn assert_one_truth(text: &str, known: bool) {
    let nothing = text.contains("nothing was appended") || text.contains("nothing of this");
    let unknown = text.contains("not known");
    assert_eq!((nothing, unknown), (known, !known), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_writer_comes_back_by_itself() {
    // The disk fails for longer than anyone waits, then is well again. Callers
    // were told that it is not known; what is in the log by then counts and is
    // published, what is not never happened, and appends go on either way.
    for (outcome, there) in [(Ending::LostAnswer, 2), (Ending::NeverArrived, 0)] {
        let log = Arc::new(Fallible::default());
        let shown = Shown::default();
        let writer = start(&log, &shown, WriterLimits::default()).await;
        log.next_ends(outcome);
        log.deaf.store(true, Ordering::SeqCst);
        let first = writer.submit(Ask::Add(2), 100).unwrap();
        assert_one_truth(&failed(first.await.unwrap()), false);
        let health = writer.health();
        assert_eq!(health.live, Ok(()));
        assert_one_truth(&health.ready.unwrap_err(), false);
        for _ in 0..2 {
            assert_one_truth(&failed(ask(&writer, Ask::Add(5)).await), true);
        }
        log.deaf.store(false, Ordering::SeqCst);
        assert_eq!(ask_until_taken(&writer).await, there + 1, "{outcome:?}");
        assert_eq!(shown.last.load(Ordering::SeqCst), there + 1);
        assert_eq!(writer.health().ready, Ok(()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_turned_out_to_be_there_is_published_without_another_append() {
    // Nobody appends any more, but readers wait for what is in the log.
    let log = Arc::new(Fallible::default());
    let shown = Shown::default();
    let writer = start(&log, &shown, WriterLimits::default()).await;
    log.next_ends(Ending::LostAnswer);
    log.deaf.store(true, Ordering::SeqCst);
    assert_one_truth(&failed(ask(&writer, Ask::Add(3)).await), false);
    assert_eq!(shown.last.load(Ordering::SeqCst), 0);
    log.deaf.store(false, Ordering::SeqCst);
    let published = async {
        while shown.last.load(Ordering::SeqCst) < 3 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, published).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_is_not_there_is_said_to_be_not_there() {
    // The log was asked and knows: the message must not leave it open.
    let log = Arc::new(Fallible::default());
    let writer = start(&log, &Shown::default(), WriterLimits::default()).await;
    log.next_ends(Ending::NeverArrived);
    assert_one_truth(&failed(ask(&writer, Ask::Add(1)).await), true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_of_the_writer_is_told() {
    // One bad request must not make every later one say that the server is
    // shutting down, for ever and in silence.
    let log = Arc::new(Fallible::default());
    let writer = start(&log, &Shown::default(), WriterLimits::default()).await;
    assert_eq!(ask(&writer, Ask::Add(1)).await, Answer::Counted(1));
    let lost = writer.submit(Ask::Panic, 100).unwrap().await;
    assert_eq!(lost, Err(WriterGone));
    for _ in 0..2 {
        let refused = writer.submit(Ask::Add(1), 100).unwrap().await.unwrap();
        assert!(failed(refused).contains("a panic"));
    }
    assert_eq!(writer.queued(), 0);
    let health = writer.health();
    assert!(health.live.clone().unwrap_err().contains("a panic"));
    assert_eq!(health.ready, health.live);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_of_the_publisher_is_told() {
    // The group is on disk, so its answer stands; what comes later is refused
    // with the reason.
    let log = Arc::new(Fallible::default());
    let shown = Shown {
        panic_at: Some(0),
        ..Shown::default()
    };
    let writer = start(&log, &shown, WriterLimits::default()).await;
    assert_eq!(ask(&writer, Ask::Add(1)).await, Answer::Counted(1));
    let refused = failed(ask(&writer, Ask::Add(1)).await);
    assert!(refused.contains("a panic"), "{refused}");
    assert!(writer.publish_failure().is_some());
    assert!(writer.health().live.unwrap_err().contains("a panic"));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_owner_leaves_an_unknown_group_unknown() {
    // While the outcome was open someone else took the log and wrote: whether the
    // group is below what they wrote cannot be said, and must not be.
    let log = Arc::new(Fallible::default());
    let shown = Shown::default();
    let writer = start(&log, &shown, WriterLimits::default()).await;
    log.next_ends(Ending::LostAnswer);
    log.deaf.store(true, Ordering::SeqCst);
    let first = writer.submit(Ask::Add(2), 100).unwrap();
    assert_one_truth(&failed(first.await.unwrap()), false);
    let other = log.inner.acquire(SHARD).await.unwrap();
    let frames = crate::log::frame::encode_group(other.head + 1, &samples::records(1, 100));
    let batch = FrameBatch {
        frames: frames.unwrap(),
        blobs: Vec::new(),
    };
    let appended = log.inner.append(SHARD, other.epoch, other.head, batch);
    appended.await.unwrap();
    log.deaf.store(false, Ordering::SeqCst);
    let stopped = async {
        while !failed(ask(&writer, Ask::Add(1)).await).contains("head is 3") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, stopped).await.unwrap();
    let health = writer.health();
    assert_eq!(health.live, Ok(()));
    assert!(health.ready.is_err());
    assert_eq!(shown.groups.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_asks_once_more() {
    // What is in the log should be in the views when the store is closed.
    let log = Arc::new(Fallible::default());
    let shown = Shown::default();
    let writer = Arc::new(start(&log, &shown, WriterLimits::default()).await);
    log.next_ends(Ending::LostAnswer);
    log.deaf.store(true, Ordering::SeqCst);
    assert_one_truth(&failed(ask(&writer, Ask::Add(2)).await), false);
    log.deaf.store(false, Ordering::SeqCst);
    let stopping = Arc::clone(&writer);
    tokio::task::spawn_blocking(move || stopping.shutdown())
        .await
        .unwrap();
    assert_eq!(shown.last.load(Ordering::SeqCst), 2);
}
