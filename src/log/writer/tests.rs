//! The writer, over a log that can be made to fail and to be slow.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use futures::future::join_all;

use super::*;
use crate::{
    fallible_log::{AppendEnding, FallibleLog},
    port::FrameBatch,
    reader::LogReader,
    testkit::samples,
};

mod trouble;

const SHARD: ShardId = ShardId(0);

/// Requests to the counter below.
#[derive(Clone, Copy)]
enum TestRequest {
    /// Appends this many records.
    Add(usize),
    Reject,
    Panic,
}

#[derive(Debug, PartialEq)]
enum Answer {
    /// The count after the request.
    Counted(u64),
    Rejected {
        at: u64,
    },
    Failed(String),
}

/// Counts records; staged records count at once and are rolled back on abort.
#[derive(Default)]
struct Counter {
    committed: u64,
    staged: u64,
}

impl Sequencer for Counter {
    type Request = TestRequest;
    type Answer = Answer;

    fn stage(&mut self, next_offset: u64, ask: TestRequest) -> PendingAppend<Answer> {
        assert_eq!(next_offset, self.committed + self.staged + 1);
        let (records, answer) = match ask {
            TestRequest::Add(count) => {
                self.staged += count as u64;
                let answer = Answer::Counted(self.committed + self.staged);
                (samples::records(count, 100), answer)
            }
            TestRequest::Reject => {
                let at = self.committed + self.staged;
                (Vec::new(), Answer::Rejected { at })
            }
            TestRequest::Panic => panic!("as asked"),
        };
        PendingAppend {
            records,
            blobs: Vec::new(),
            answer,
        }
    }

    fn committed(&mut self, group: &Arc<CommittedGroup>) {
        assert_eq!(group.first_offset, self.committed + 1);
        assert_eq!(group.records.len() as u64, self.staged);
        self.committed += std::mem::take(&mut self.staged);
    }

    fn aborted(&mut self, _: &GroupError) {
        self.staged = 0;
    }

    fn failed(&self, _: Answer, error: &GroupError) -> Answer {
        Answer::Failed(error.to_string())
    }

    fn refused(&self, _: TestRequest, error: &GroupError) -> Answer {
        Answer::Failed(error.to_string())
    }
}

/// Records the last published offset.
#[derive(Clone, Default)]
struct RecordingPublisher {
    last: Arc<AtomicU64>,
    groups: Arc<AtomicUsize>,
    /// Names of the threads that published.
    threads: Arc<Mutex<Vec<String>>>,
    fail_at: Option<usize>,
    panic_at: Option<usize>,
}

impl Publisher for RecordingPublisher {
    fn publish(&mut self, group: &Arc<CommittedGroup>, _: &Heartbeat) -> Result<(), PublishError> {
        let number = self.groups.fetch_add(1, Ordering::SeqCst);
        assert_ne!(self.panic_at, Some(number), "as asked");
        if self.fail_at == Some(number) {
            let what = "the views are full".to_owned();
            return Err(PublishError { what });
        }
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        lock(&self.threads).push(thread);
        let last = group.first_offset + group.records.len() as u64 - 1;
        let before = self.last.swap(last, Ordering::SeqCst);
        assert_eq!(before + 1, group.first_offset);
        Ok(())
    }
}

async fn start(
    log: &Arc<FallibleLog>,
    shown: &RecordingPublisher,
    limits: WriterLimits,
) -> GroupWriter<Counter> {
    let acquired = log.acquire(SHARD).await.unwrap();
    let owner = ShardOwner {
        shard: SHARD,
        epoch: acquired.epoch,
        head: acquired.head,
    };
    let log = Arc::clone(log) as Arc<dyn EventLog>;
    GroupWriter::start(log, owner, Counter::default(), shown.clone(), limits).unwrap()
}

async fn ask(writer: &GroupWriter<Counter>, ask: TestRequest) -> Answer {
    writer.submit(ask, 100).unwrap().await.unwrap()
}

// A lone append used to wait for two threads to be woken one after the other, although the writer's
// thread had nothing else to do.
#[tokio::test(flavor = "multi_thread")]
async fn single_append_is_published_by_the_writer_thread() {
    let (log, shown) = (
        Arc::new(FallibleLog::default()),
        RecordingPublisher::default(),
    );
    let writer = start(&log, &shown, WriterLimits::default()).await;
    ask(&writer, TestRequest::Add(1)).await;
    assert_eq!(*lock(&shown.threads), ["treering-writer"]);
    writer.shutdown();
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_appends_are_grouped_and_answered_after_publish() {
    // 2,000 concurrent appends over a slow disk: far fewer commits than appends, every answer after
    // its group was published, no count twice.
    let log = Arc::new(FallibleLog::default());
    log.append_micros.store(2_000, Ordering::SeqCst);
    let shown = RecordingPublisher::default();
    let writer = Arc::new(start(&log, &shown, WriterLimits::default()).await);
    let asked = (0..2_000).map(|_| {
        let (writer, shown) = (Arc::clone(&writer), shown.clone());
        tokio::spawn(async move {
            let Answer::Counted(count) = ask(&writer, TestRequest::Add(1)).await else {
                panic!("refused");
            };
            assert!(shown.last.load(Ordering::SeqCst) >= count);
            count
        })
    });
    let mut counts: Vec<u64> = join_all(asked)
        .await
        .into_iter()
        .map(|count| count.unwrap())
        .collect();
    counts.sort_unstable();
    assert_eq!(counts, (1..=2_000).collect::<Vec<_>>());
    let appends = log.appends.load(Ordering::SeqCst);
    assert!(appends < 500, "{appends} commits");
    assert_eq!(writer.queued(), 0);
    let log = Arc::clone(&log) as Arc<dyn EventLog>;
    let reader = LogReader::new(log, SHARD, 1 << 20);
    let read = reader.records(1, usize::MAX, usize::MAX).await.unwrap();
    assert_eq!(read.len(), 2_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn rejection_is_answered_after_earlier_events_are_published() {
    // A rejection refers to events that were staged before it; its receiver must be able to read
    // them.
    let log = Arc::new(FallibleLog::default());
    log.append_micros.store(20_000, Ordering::SeqCst);
    let shown = RecordingPublisher::default();
    let writer = start(&log, &shown, WriterLimits::default()).await;
    let first = writer.submit(TestRequest::Add(3), 100).unwrap();
    let second = writer.submit(TestRequest::Reject, 100).unwrap();
    let Answer::Rejected { at } = second.await.unwrap() else {
        panic!("not rejected");
    };
    assert!(shown.last.load(Ordering::SeqCst) >= at);
    assert_eq!(first.await.unwrap(), Answer::Counted(3));
    // A rejection alone costs no commit.
    let appends = log.appends.load(Ordering::SeqCst);
    assert_eq!(
        ask(&writer, TestRequest::Reject).await,
        Answer::Rejected { at: 3 }
    );
    assert_eq!(log.appends.load(Ordering::SeqCst), appends);
}

#[tokio::test(flavor = "multi_thread")]
async fn aborted_group_has_no_effect() {
    // A full disk fails the whole group, rejections included; the next group starts from the state
    // before it.
    let log = Arc::new(FallibleLog::default());
    let shown = RecordingPublisher::default();
    let writer = start(&log, &shown, WriterLimits::default()).await;
    assert_eq!(ask(&writer, TestRequest::Add(2)).await, Answer::Counted(2));
    log.next_ends(AppendEnding::NoSpace);
    let failed = ask(&writer, TestRequest::Add(5)).await;
    assert!(matches!(&failed, Answer::Failed(text) if text.contains("no space")));
    assert_eq!(ask(&writer, TestRequest::Add(1)).await, Answer::Counted(3));
    assert_eq!(shown.last.load(Ordering::SeqCst), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn in_doubt_group_is_resolved() {
    // The log's answer got lost: the group is acknowledged if it was appended, failed if it was
    // not, and appends continue.
    let log = Arc::new(FallibleLog::default());
    let shown = RecordingPublisher::default();
    let writer = start(&log, &shown, WriterLimits::default()).await;
    log.next_ends(AppendEnding::LostAnswer);
    assert_eq!(ask(&writer, TestRequest::Add(2)).await, Answer::Counted(2));
    log.next_ends(AppendEnding::NeverArrived);
    assert!(matches!(
        ask(&writer, TestRequest::Add(4)).await,
        Answer::Failed(_)
    ));
    assert_eq!(ask(&writer, TestRequest::Add(1)).await, Answer::Counted(3));
    assert_eq!(shown.last.load(Ordering::SeqCst), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn fenced_writer_refuses_appends() {
    // A fenced writer must refuse everything: another owner decides the order now.
    let log = Arc::new(FallibleLog::default());
    let shown = RecordingPublisher::default();
    let writer = start(&log, &shown, WriterLimits::default()).await;
    log.acquire(SHARD).await.unwrap();
    for _ in 0..2 {
        assert!(matches!(
            ask(&writer, TestRequest::Add(1)).await,
            Answer::Failed(_)
        ));
    }
    assert_eq!(shown.groups.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn full_queue_refuses_with_a_retry_delay() {
    // Callers that are faster than the disk must be told, not buffered.
    let log = Arc::new(FallibleLog::default());
    log.append_micros.store(50_000, Ordering::SeqCst);
    let limits = WriterLimits {
        queue_appends_max: 8,
        queue_bytes_max: 1_000,
        ..WriterLimits::default()
    };
    let writer = start(&log, &RecordingPublisher::default(), limits).await;
    // A lone request may exceed the limit.
    let huge = writer.submit(TestRequest::Add(1), 5_000).unwrap();
    let Err(SubmitError::Full(full)) = writer.submit(TestRequest::Add(1), 1) else {
        panic!("taken");
    };
    assert!((1..=1_000).contains(&full.retry_after_ms));
    huge.await.unwrap();
    let accepted: Vec<_> = (0..8)
        .map(|_| writer.submit(TestRequest::Add(1), 10).unwrap())
        .collect();
    assert!(writer.submit(TestRequest::Add(1), 10).is_err());
    for answer in accepted {
        answer.await.unwrap();
    }
    ask(&writer, TestRequest::Add(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_answers_accepted_requests() {
    // Every accepted request is answered, even during a shutdown; later requests learn that the
    // writer is gone.
    let log = Arc::new(FallibleLog::default());
    log.append_micros.store(5_000, Ordering::SeqCst);
    let writer = Arc::new(
        start(
            &log,
            &RecordingPublisher::default(),
            WriterLimits::default(),
        )
        .await,
    );
    let accepted: Vec<_> = (0..100)
        .map(|_| writer.submit(TestRequest::Add(1), 10).unwrap())
        .collect();
    let stopping = tokio::task::spawn_blocking({
        let writer = Arc::clone(&writer);
        move || writer.shutdown()
    });
    stopping.await.unwrap();
    for (index, answer) in accepted.into_iter().enumerate() {
        assert_eq!(answer.await.unwrap(), Answer::Counted(index as u64 + 1));
    }
    let late = writer.submit(TestRequest::Add(1), 10);
    assert!(matches!(late, Err(SubmitError::Closed)));
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_publish_stops_appends() {
    // The group is durable and is acknowledged; continuing would let readers miss events.
    let log = Arc::new(FallibleLog::default());
    let shown = RecordingPublisher {
        fail_at: Some(1),
        ..RecordingPublisher::default()
    };
    let writer = start(&log, &shown, WriterLimits::default()).await;
    assert_eq!(ask(&writer, TestRequest::Add(1)).await, Answer::Counted(1));
    assert_eq!(ask(&writer, TestRequest::Add(1)).await, Answer::Counted(2));
    let refused = ask(&writer, TestRequest::Add(1)).await;
    assert!(matches!(&refused, Answer::Failed(text) if text.contains("views")));
    assert!(writer.publish_failure().is_some());
}
