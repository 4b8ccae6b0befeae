//! A log that cannot report an outcome, for a while or for ever, and threads that panic.

use super::*;

/// A limit against hanging.
const PATIENCE: Duration = Duration::from_secs(180);

/// Appends until an answer is a count, and returns the count.
async fn ask_until_taken(writer: &GroupWriter<Counter>) -> u64 {
    let asking = async {
        loop {
            match ask(writer, TestRequest::Add(1)).await {
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

/// Checks that a text says either that nothing was appended or that the outcome is unknown, never
/// both.
fn assert_one_truth(text: &str, known: bool) {
    let nothing = text.contains("nothing was appended");
    let unknown = text.contains("unknown whether");
    assert_eq!((nothing, unknown), (known, !known), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn writer_recovers_without_restart() {
    // The disk fails for longer than callers wait, then recovers. Callers were told that the
    // outcome is unknown; a group that is in the log by then counts and is published, one that is
    // not is rolled back, and appends continue either way.
    for (outcome, there) in [
        (AppendEnding::LostAnswer, 2),
        (AppendEnding::NeverArrived, 0),
    ] {
        let log = Arc::new(FallibleLog::default());
        let shown = RecordingPublisher::default();
        let writer = start(&log, &shown, WriterLimits::default()).await;
        log.next_ends(outcome);
        log.deaf.store(true, Ordering::SeqCst);
        let first = writer.submit(TestRequest::Add(2), 100).unwrap();
        assert_one_truth(&failed(first.await.unwrap()), false);
        let health = writer.health();
        assert_eq!(health.live, Ok(()));
        assert_one_truth(&health.ready.unwrap_err(), false);
        for _ in 0..2 {
            assert_one_truth(&failed(ask(&writer, TestRequest::Add(5)).await), true);
        }
        log.deaf.store(false, Ordering::SeqCst);
        assert_eq!(ask_until_taken(&writer).await, there + 1, "{outcome:?}");
        assert_eq!(shown.last.load(Ordering::SeqCst), there + 1);
        assert_eq!(writer.health().ready, Ok(()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn resolved_group_is_published_without_another_append() {
    // Nobody appends any more, but readers wait for what is in the log.
    let log = Arc::new(FallibleLog::default());
    let shown = RecordingPublisher::default();
    let writer = start(&log, &shown, WriterLimits::default()).await;
    log.next_ends(AppendEnding::LostAnswer);
    log.deaf.store(true, Ordering::SeqCst);
    assert_one_truth(&failed(ask(&writer, TestRequest::Add(3)).await), false);
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
async fn missing_group_is_reported_as_not_written() {
    // The log was asked and knows the outcome: the message must state it.
    let log = Arc::new(FallibleLog::default());
    let writer = start(
        &log,
        &RecordingPublisher::default(),
        WriterLimits::default(),
    )
    .await;
    log.next_ends(AppendEnding::NeverArrived);
    assert_one_truth(&failed(ask(&writer, TestRequest::Add(1)).await), true);
}

#[tokio::test(flavor = "multi_thread")]
async fn panic_of_the_writer_is_reported() {
    // One bad request must not make every later one report, for ever and without a log line, that
    // the server is shutting down.
    let log = Arc::new(FallibleLog::default());
    let writer = start(
        &log,
        &RecordingPublisher::default(),
        WriterLimits::default(),
    )
    .await;
    assert_eq!(ask(&writer, TestRequest::Add(1)).await, Answer::Counted(1));
    let lost = writer.submit(TestRequest::Panic, 100).unwrap().await;
    assert_eq!(lost, Err(WriterGone));
    for _ in 0..2 {
        let refused = writer
            .submit(TestRequest::Add(1), 100)
            .unwrap()
            .await
            .unwrap();
        assert!(failed(refused).contains("panicked"));
    }
    assert_eq!(writer.queued(), 0);
    let health = writer.health();
    assert!(health.live.clone().unwrap_err().contains("panicked"));
    assert_eq!(health.ready, health.live);
}

#[tokio::test(flavor = "multi_thread")]
async fn panic_of_the_publisher_is_reported() {
    // The group is on disk, so its answer stands; later requests are refused with the reason.
    let log = Arc::new(FallibleLog::default());
    let shown = RecordingPublisher {
        panic_at: Some(0),
        ..RecordingPublisher::default()
    };
    let writer = start(&log, &shown, WriterLimits::default()).await;
    assert_eq!(ask(&writer, TestRequest::Add(1)).await, Answer::Counted(1));
    let refused = failed(ask(&writer, TestRequest::Add(1)).await);
    assert!(refused.contains("panicked"), "{refused}");
    assert!(writer.publish_failure().is_some());
    assert!(writer.health().live.unwrap_err().contains("panicked"));
}

#[tokio::test(flavor = "multi_thread")]
async fn fenced_writer_leaves_the_group_in_doubt() {
    // While the outcome was unknown, another owner took the log and wrote. Whether the group is
    // among the earlier records cannot be known, so no message may claim it.
    let log = Arc::new(FallibleLog::default());
    let shown = RecordingPublisher::default();
    let writer = start(&log, &shown, WriterLimits::default()).await;
    log.next_ends(AppendEnding::LostAnswer);
    log.deaf.store(true, Ordering::SeqCst);
    let first = writer.submit(TestRequest::Add(2), 100).unwrap();
    assert_one_truth(&failed(first.await.unwrap()), false);
    let other = log.inner.acquire(SHARD).await.unwrap();
    let frames = crate::frame::encode_group(other.head + 1, &samples::records(1, 100));
    let batch = FrameBatch {
        frames: frames.unwrap(),
        blobs: Vec::new(),
    };
    let appended = log.inner.append(SHARD, other.epoch, other.head, batch);
    appended.await.unwrap();
    log.deaf.store(false, Ordering::SeqCst);
    let stopped = async {
        while !failed(ask(&writer, TestRequest::Add(1)).await).contains("head is 3") {
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
async fn shutdown_resolves_an_in_doubt_group() {
    // What is in the log should be in the projections when the store is closed.
    let log = Arc::new(FallibleLog::default());
    let shown = RecordingPublisher::default();
    let writer = Arc::new(start(&log, &shown, WriterLimits::default()).await);
    log.next_ends(AppendEnding::LostAnswer);
    log.deaf.store(true, Ordering::SeqCst);
    assert_one_truth(&failed(ask(&writer, TestRequest::Add(2)).await), false);
    log.deaf.store(false, Ordering::SeqCst);
    let stopping = Arc::clone(&writer);
    tokio::task::spawn_blocking(move || stopping.shutdown())
        .await
        .unwrap();
    assert_eq!(shown.last.load(Ordering::SeqCst), 2);
}
