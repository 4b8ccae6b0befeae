//! Runs reads on separate threads: a few at a time, and only while a caller waits for them.
//!
//! The runtime's threads serve every call. A read that occupies one of them for a second delays
//! everyone for a second. Reads that load or compute much are therefore handed to [`Work::run`] in
//! one of four priority classes: [`PriorityClass::Short`] for those that end within milliseconds,
//! [`PriorityClass::Bulk`] for a further page of a continuing read, [`PriorityClass::Long`] for
//! long ones, and [`PriorityClass::Search`] for searches that may take long. The amount to be read
//! determines the class. The threads of the last three run at lower priority. When the caller is
//! gone or the store closes, the work is cancelled: it calls [`check`] between its pages.

use std::{
    error::Error,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool, mpsc},
    time::Duration,
};

use futures::future::BoxFuture;
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
};

use super::{Engine, error::ReadError};
use treering_base::cancel::{self, Cancelled, WorkScope};
pub(super) use treering_base::cancel::{CancelGuard, CancelToken, current};
use treering_domain::{Limits, OperationError};

/// Maximum wait for a cancelled or finished verification to end.
const VERIFY_PATIENCE: Duration = Duration::from_secs(1);
/// Maximum number of concurrent long searches; further ones wait. Each may use up to
/// [`SEARCH_BYTES_MAX`](crate::search::SEARCH_BYTES_MAX).
pub(super) const LONG_SEARCHES_MAX: usize = 2;
/// Retry hint for a second verification, in milliseconds.
const VERIFY_AGAIN_MS: u64 = 5_000;

/// The priority class of work, by its expected duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PriorityClass {
    /// Milliseconds.
    Short,
    /// Milliseconds, repeatedly.
    Bulk,
    /// Possibly seconds.
    Long,
    /// Searches that possibly take seconds.
    Search,
}

impl From<Cancelled> for ReadError {
    fn from(_: Cancelled) -> Self {
        Self::Stopped
    }
}

/// Fails once the work of this thread is cancelled. Always succeeds on threads without such work.
pub(super) fn check() -> Result<(), ReadError> {
    match cancel::is_wanted() {
        true => Ok(()),
        false => Err(ReadError::Stopped),
    }
}

/// The priority classes and their threads.
#[derive(Debug)]
pub(super) struct Work {
    short: Arc<Semaphore>,
    bulk: Arc<Semaphore>,
    long: Arc<Semaphore>,
    search: Arc<Semaphore>,
    verify: Arc<Semaphore>,
    threads: Threads,
    closing: Arc<AtomicBool>,
}

impl Work {
    pub(crate) fn new(limits: &Limits, closing: Arc<AtomicBool>) -> Self {
        let lane = |permits: usize| Arc::new(Semaphore::new(permits.max(1)));
        Self {
            threads: Threads::default(),
            short: lane(limits.short_reads_max),
            bulk: lane(limits.bulk_reads_max),
            long: lane(limits.long_reads_max),
            search: lane(LONG_SEARCHES_MAX),
            verify: lane(1),
            closing,
        }
    }

    /// Runs work in a priority class, once a slot is free, and waits for it. Nested work runs in
    /// place. Dropping the future cancels the work.
    ///
    /// # Errors
    /// [`ReadError::Storage`] when the work panicked; [`ReadError::Stopped`] when the store was
    /// closed meanwhile.
    pub(crate) async fn run<T, F>(&self, lane: PriorityClass, work: F) -> Result<T, ReadError>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        if let Some(stop) = current() {
            stop.check()?;
            return Ok(work.await);
        }
        let lane_permits = match lane {
            PriorityClass::Short => &self.short,
            PriorityClass::Bulk => &self.bulk,
            PriorityClass::Long => &self.long,
            PriorityClass::Search => &self.search,
        };
        let permit = permit_of(lane_permits).await?;
        let stop = self.stop();
        let guard = stop.guard();
        stop.check()?;
        let done = match lane {
            PriorityClass::Short => {
                let runtime = Handle::current();
                let job = move || done(&runtime, stop, permit, work);
                tokio::task::spawn_blocking(job).await.map_err(panicked)
            }
            PriorityClass::Bulk | PriorityClass::Long | PriorityClass::Search => {
                let runtime = Handle::current();
                let (sender, receiver) = oneshot::channel();
                let job = move || {
                    let made = done(&runtime, stop, permit, work);
                    // The caller may be gone.
                    Box::new(move || drop(sender.send(made))) as ReportResult
                };
                self.threads.run(Box::new(job))?;
                receiver
                    .await
                    .map_err(|_| panicked("the read's thread stopped"))
            }
        };
        guard.disarm();
        done
    }

    /// Starts a verification on its own thread. Dropping the guard cancels it.
    ///
    /// # Errors
    /// [`ReadError::Busy`] when another one is running and does not end within a second.
    pub(crate) async fn verify<F>(
        &self,
        work: impl FnOnce(CancelToken) -> F,
    ) -> Result<CancelGuard, ReadError>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let permit = tokio::time::timeout(VERIFY_PATIENCE, permit_of(&self.verify));
        let permit = permit.await.unwrap_or_else(|_| {
            Err(ReadError::Busy {
                what: "a verification is already running; only one runs at a time",
                retry_after_ms: VERIFY_AGAIN_MS,
            })
        })?;
        let stop = self.stop();
        let guard = stop.guard();
        let runtime = Handle::current();
        let work = work(stop.clone());
        self.threads.run(Box::new(move || {
            done(&runtime, stop, permit, work);
            Box::new(|| {})
        }))?;
        Ok(guard)
    }

    fn stop(&self) -> CancelToken {
        CancelToken::new(&self.closing)
    }
}

impl Engine {
    /// Runs a read of this engine in a priority class.
    pub(super) async fn on<T, E, F>(
        &self,
        lane: PriorityClass,
        read: impl FnOnce(Self) -> F,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<ReadError> + Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        // Boxed, so that the read's state does not become part of every enclosing future.
        let read: BoxFuture<'static, Result<T, E>> = Box::pin(read(self.clone()));
        self.inner.work.run(lane, read).await?
    }
}

/// Returns the priority class for work on this many events.
pub(super) fn priority_for(events: u64) -> PriorityClass {
    /// This many are read and counted within about ten milliseconds.
    const SHORT_EVENTS_MAX: u64 = 4_096;
    if events > SHORT_EVENTS_MAX {
        PriorityClass::Long
    } else {
        PriorityClass::Short
    }
}

/// Returns the priority class for a page or look-up of this many individually read items.
pub(super) fn priority_for_page(things: usize) -> PriorityClass {
    /// This many are read within some milliseconds.
    const SHORT_PAGE_MAX: usize = 100;
    match things > SHORT_PAGE_MAX {
        true => PriorityClass::Bulk,
        false => PriorityClass::Short,
    }
}

async fn permit_of(lane: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, ReadError> {
    let permit = Arc::clone(lane).acquire_owned().await;
    // The semaphores are never closed.
    permit.map_err(|_| ReadError::Stopped)
}

fn done<F: Future>(
    runtime: &Handle,
    stop: CancelToken,
    permit: OwnedSemaphorePermit,
    work: F,
) -> F::Output {
    // Release the slot when the work ends, not when its caller stops waiting.
    let _permit = permit;
    let _working = WorkScope::on(stop);
    runtime.block_on(work)
}

/// Work that returns a function to report its result.
type Job = Box<dyn FnOnce() -> ReportResult + Send>;
type ReportResult = Box<dyn FnOnce()>;

/// Threads with low priority. A continuing read submits a page every millisecond, so threads are
/// kept for a while after a job.
#[derive(Debug, Default)]
struct Threads(Arc<Mutex<Vec<mpsc::Sender<Job>>>>);

impl Threads {
    /// How long an idle thread waits for more work.
    const KEPT: Duration = Duration::from_secs(5);

    fn run(&self, mut job: Job) -> Result<(), ReadError> {
        let mut waiting = lock(&self.0);
        while let Some(thread) = waiting.pop() {
            match thread.send(job) {
                Ok(()) => return Ok(()),
                // The thread has timed out and ended.
                Err(mpsc::SendError(back)) => job = back,
            }
        }
        drop(waiting);
        let waiting = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("treering-read".to_owned());
        let started = thread.spawn(move || {
            lower_priority();
            let mut next = Some(job);
            while let Some(job) = next {
                let tell = job();
                next = next_job(&waiting, tell);
            }
        });
        started.map(drop).map_err(|error| {
            let what = "the thread for a long read could not be started (retry)";
            ReadError::storage(OperationError::new(what, error))
        })
    }
}

/// A caller submits its next page as soon as it has the result, long before a low-priority thread
/// gets the processor. The thread therefore registers as idle before it reports the result.
fn next_job(waiting: &Mutex<Vec<mpsc::Sender<Job>>>, tell: ReportResult) -> Option<Job> {
    let (sender, receiver) = mpsc::channel();
    lock(waiting).push(sender);
    tell();
    match receiver.recv_timeout(Threads::KEPT) {
        Ok(job) => Some(job),
        Err(_) => {
            // Jobs are sent under this lock, so none is lost between the last check and the end.
            let _waiting = lock(waiting);
            let last = receiver.try_recv().ok();
            drop(receiver);
            last
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lowers this thread's priority below those that serve calls. Where that is impossible, the thread
/// keeps the normal priority: the results are the same, but calls may be slower.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    {
        /// On a scale of 0 to 19: about a ninth of the processor share of a normal thread.
        const NICENESS: i32 = 10;
        let thread = rustix::thread::gettid();
        // On Linux, niceness is per thread.
        let _ = rustix::process::setpriority_process(Some(thread), NICENESS);
    }
}

fn panicked(error: impl Into<Box<dyn Error + Send + Sync>>) -> ReadError {
    ReadError::storage(OperationError::new("a read was aborted", error))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    fn work() -> Work {
        let limits = Limits {
            short_reads_max: 2,
            bulk_reads_max: 1,
            long_reads_max: 1,
            ..Limits::default()
        };
        Work::new(&limits, Arc::default())
    }

    /// Works until it is cancelled, and reports that.
    async fn until_stopped(ended: oneshot::Sender<()>) {
        while check().is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = ended.send(());
    }

    // A request was still being built ten minutes after its client's deadline, using a core and
    // memory. Work must end when nobody waits for it, in every class.
    #[tokio::test]
    async fn work_stops_when_its_caller_is_gone() {
        let work = work();
        for lane in [
            PriorityClass::Short,
            PriorityClass::Bulk,
            PriorityClass::Long,
            PriorityClass::Search,
        ] {
            let (sender, ended) = oneshot::channel();
            let waiting = work.run(lane, until_stopped(sender));
            let waited = tokio::time::timeout(Duration::from_millis(20), waiting).await;
            assert!(waited.is_err(), "{lane:?}: it ended by itself");
            let stopped = tokio::time::timeout(Duration::from_secs(60), ended).await;
            assert!(matches!(stopped, Ok(Ok(()))), "{lane:?}: it goes on");
        }
    }

    // A read that does not end would keep the process from exiting.
    #[tokio::test]
    async fn work_stops_when_the_store_closes() {
        let closing = Arc::new(AtomicBool::new(false));
        let work = Work::new(&Limits::default(), Arc::clone(&closing));
        let (sender, _ended) = oneshot::channel();
        let running = work.run(PriorityClass::Long, until_stopped(sender));
        let close = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            closing.store(true, Ordering::Relaxed);
        };
        let both = async { tokio::join!(running, close) };
        let done = tokio::time::timeout(Duration::from_secs(60), both).await;
        assert!(done.is_ok_and(|(done, ())| done.is_ok()));
        let after = work.run(PriorityClass::Short, async {}).await;
        assert!(matches!(after, Err(ReadError::Stopped)), "{after:?}");
    }

    // Cancelled work uses memory until it notices. Its slot must be released only then, or a client
    // that cancels could run any number at once.
    #[tokio::test]
    async fn slot_is_released_when_the_work_ends() {
        let work = work();
        let (go_on, waits) = std::sync::mpsc::channel::<()>();
        let stubborn = async move {
            let _ = waits.recv();
        };
        let waiting = work.run(PriorityClass::Long, stubborn);
        let waited = tokio::time::timeout(Duration::from_millis(20), waiting).await;
        assert!(waited.is_err());
        assert_eq!(work.long.available_permits(), 0);
        drop(go_on);
        let next = tokio::time::timeout(
            Duration::from_secs(60),
            work.run(PriorityClass::Long, async { 7 }),
        );
        assert!(matches!(next.await, Ok(Ok(7))));
    }

    // Nested work must not wait for a slot that its own caller holds.
    #[tokio::test]
    async fn nested_work_needs_no_slot() {
        let work = Arc::new(work());
        let inner = Arc::clone(&work);
        let nested = async move { inner.run(PriorityClass::Long, async { 1 }).await };
        let done = tokio::time::timeout(
            Duration::from_secs(60),
            work.run(PriorityClass::Long, nested),
        );
        assert!(matches!(done.await, Ok(Ok(Ok(1)))));
    }

    #[tokio::test]
    async fn second_verification_is_refused_while_one_runs() {
        let work = work();
        let (sender, ended) = oneshot::channel();
        let first = work.verify(|_| until_stopped(sender)).await.unwrap();
        let second = work.verify(|_| async {}).await;
        assert!(matches!(second, Err(ReadError::Busy { .. })));
        drop(first);
        let stopped = tokio::time::timeout(Duration::from_secs(60), ended).await;
        assert!(matches!(stopped, Ok(Ok(()))));
        let third = work.verify(|_| async {}).await;
        assert!(third.is_ok(), "the place of the first is free again");
    }

    // A panic must be reported as an error and release its slot.
    #[tokio::test]
    async fn panic_is_reported_and_releases_its_slot() {
        let work = work();
        for lane in [
            PriorityClass::Short,
            PriorityClass::Bulk,
            PriorityClass::Long,
            PriorityClass::Search,
        ] {
            let done = work.run(lane, async { panic!("on purpose") }).await;
            assert!(matches!(done, Err(ReadError::Storage { .. })), "{lane:?}");
        }
        assert_eq!(work.short.available_permits(), 2);
        let next = tokio::time::timeout(
            Duration::from_secs(60),
            work.run(PriorityClass::Long, async {}),
        );
        assert!(matches!(next.await, Ok(Ok(()))));
    }

    // A replay must not start a new thread for each of its pages, which come every millisecond.
    #[tokio::test]
    async fn successive_reads_reuse_one_thread() {
        let work = work();
        let mut threads = std::collections::HashSet::new();
        for _ in 0..200 {
            let thread = work.run(PriorityClass::Bulk, async { std::thread::current().id() });
            threads.insert(thread.await.unwrap());
        }
        assert_eq!(threads.len(), 1);
    }
}
