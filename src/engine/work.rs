//! Where reads run that take long: on threads of their own, a few at a time, and
//! no longer than someone waits for them.
//!
//! The runtime's own threads serve every call. A read that keeps one of them for
//! a second keeps everybody for a second. So whatever reads or computes much is
//! handed to [`Work::run`], in one of four lanes: [`Lane::Short`] for what ends
//! within milliseconds, [`Lane::Bulk`] for one more page of a read that goes on and
//! on, [`Lane::Long`] for what takes long by itself, and [`Lane::Search`] for searches that
//! may. The lane follows from what is to be read. The threads of the last three step back behind all others. When the caller is gone, or the store is closed, the
//! work is told to stop: it looks at [`check`] between its pages.

use std::{
    cell::RefCell,
    error::Error,
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use futures::future::BoxFuture;
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
};

use super::{Engine, error::ReadError};
use crate::domain::{Limits, NotDone};

/// One that was stopped, or has told its last, ends within this.
const VERIFY_PATIENCE: Duration = Duration::from_secs(1);
/// Searches that may take long and run at once; more wait. Each may hold some hundred bytes for
/// each conversation and each candidate.
pub(super) const LONG_SEARCHES_MAX: usize = 2;
/// How long a second verification is told to wait, in milliseconds.
const VERIFY_AGAIN_MS: u64 = 5_000;

/// How long work is expected to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Milliseconds.
    Short,
    /// Milliseconds, again and again.
    Bulk,
    /// Perhaps seconds.
    Long,
    /// Searches that take perhaps seconds.
    Search,
}

/// Whether work is still wanted. Cheap to clone; all clones are one.
#[derive(Clone, Debug)]
pub(super) struct Stop {
    asked: Arc<AtomicBool>,
    closing: Arc<AtomicBool>,
}

impl Stop {
    /// True once nobody waits for the work any more, or the store is closing.
    pub fn is_set(&self) -> bool {
        self.asked.load(Ordering::Relaxed) || self.closing.load(Ordering::Relaxed)
    }

    /// The same as an error.
    pub fn check(&self) -> Result<(), ReadError> {
        if self.is_set() {
            return Err(ReadError::Stopped);
        }
        Ok(())
    }

    /// Asks for it when the guard is dropped.
    pub fn guard(&self) -> StopGuard {
        StopGuard(Some(self.clone()))
    }
}

/// Stops its work when it is dropped: work that has ended does not mind.
#[derive(Debug)]
pub(super) struct StopGuard(Option<Stop>);

impl StopGuard {
    /// The work has ended by itself.
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for StopGuard {
    fn drop(&mut self) {
        if let Some(stop) = &self.0 {
            stop.asked.store(true, Ordering::Relaxed);
        }
    }
}

thread_local! {
    /// Of the work that this thread does.
    static CURRENT: RefCell<Option<Stop>> = const { RefCell::new(None) };
}

/// An error once the work that this thread does is not wanted any more. Always
/// fine on threads that do no such work.
pub(super) fn check() -> Result<(), ReadError> {
    CURRENT.with_borrow(|stop| stop.as_ref().map_or(Ok(()), Stop::check))
}

/// Whether the work that this thread does is still wanted; none: it does none.
pub(super) fn current() -> Option<Stop> {
    CURRENT.with_borrow(Clone::clone)
}

/// Marks the thread while it works, panics included.
struct Working;

impl Working {
    fn on(stop: Stop) -> Self {
        CURRENT.set(Some(stop));
        Self
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        CURRENT.set(None);
    }
}

/// The lanes.
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
    pub fn new(limits: &Limits, closing: Arc<AtomicBool>) -> Self {
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

    /// Runs work in a lane, once there is room, and waits for it. Within other
    /// work it runs where it is. Dropping the future stops the work.
    ///
    /// # Errors
    /// [`ReadError::Storage`] when the work panicked; [`ReadError::Stopped`] when
    /// the store was closed meanwhile.
    pub async fn run<T, F>(&self, lane: Lane, work: F) -> Result<T, ReadError>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        if let Some(stop) = current() {
            stop.check()?;
            return Ok(work.await);
        }
        let lane_permits = match lane {
            Lane::Short => &self.short,
            Lane::Bulk => &self.bulk,
            Lane::Long => &self.long,
            Lane::Search => &self.search,
        };
        let permit = permit_of(lane_permits).await?;
        let stop = self.stop();
        let guard = stop.guard();
        stop.check()?;
        let done = match lane {
            Lane::Short => {
                let runtime = Handle::current();
                let job = move || done(&runtime, stop, permit, work);
                tokio::task::spawn_blocking(job).await.map_err(panicked)
            }
            Lane::Bulk | Lane::Long | Lane::Search => {
                let runtime = Handle::current();
                let (sender, receiver) = oneshot::channel();
                let job = move || {
                    let made = done(&runtime, stop, permit, work);
                    // Whoever asked may have gone.
                    Box::new(move || drop(sender.send(made))) as Tell
                };
                self.threads.run(Box::new(job))?;
                receiver.await.map_err(|_| panicked("its thread ended"))
            }
        };
        guard.disarm();
        done
    }

    /// Starts a verification on a thread of its own. Who drops the guard stops it.
    ///
    /// # Errors
    /// [`ReadError::Busy`] when one is under way that does not end in a moment.
    pub async fn verify<F>(&self, work: impl FnOnce(Stop) -> F) -> Result<StopGuard, ReadError>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let permit = tokio::time::timeout(VERIFY_PATIENCE, permit_of(&self.verify));
        let permit = permit.await.unwrap_or_else(|_| {
            Err(ReadError::Busy {
                what: "a verification is under way, and one runs at a time",
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

    fn stop(&self) -> Stop {
        Stop {
            asked: Arc::default(),
            closing: Arc::clone(&self.closing),
        }
    }
}

impl Engine {
    /// Runs a read of this engine in a lane.
    pub(super) async fn on<T, E, F>(&self, lane: Lane, read: impl FnOnce(Self) -> F) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<ReadError> + Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        // In a box: what a read holds need not be part of every future above it.
        let read: BoxFuture<'static, Result<T, E>> = Box::pin(read(self.clone()));
        self.inner.work.run(lane, read).await?
    }
}

/// The lane for work on so many events.
pub(super) fn lane_for(events: u64) -> Lane {
    /// So many are read and counted within some ten milliseconds.
    const SHORT_EVENTS_MAX: u64 = 4_096;
    if events > SHORT_EVENTS_MAX {
        Lane::Long
    } else {
        Lane::Short
    }
}

async fn permit_of(lane: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, ReadError> {
    let permit = Arc::clone(lane).acquire_owned().await;
    // Lanes are never closed.
    permit.map_err(|_| ReadError::Stopped)
}

fn done<F: Future>(
    runtime: &Handle,
    stop: Stop,
    permit: OwnedSemaphorePermit,
    work: F,
) -> F::Output {
    // Given back when the work has ended, not when nobody waits for it.
    let _permit = permit;
    let _working = Working::on(stop);
    runtime.block_on(work)
}

/// Work, and then telling what came of it.
type Job = Box<dyn FnOnce() -> Tell + Send>;
type Tell = Box<dyn FnOnce()>;

/// Threads that step back behind all others. A read that goes on hands over a page
/// every millisecond: they are kept for a while when they have done one.
#[derive(Debug, Default)]
struct Threads(Arc<Mutex<Vec<mpsc::Sender<Job>>>>);

impl Threads {
    /// How long one waits for more work before it ends.
    const KEPT: Duration = Duration::from_secs(5);

    fn run(&self, mut job: Job) -> Result<(), ReadError> {
        let mut waiting = lock(&self.0);
        while let Some(thread) = waiting.pop() {
            match thread.send(job) {
                Ok(()) => return Ok(()),
                // It has waited long enough, and ended.
                Err(mpsc::SendError(back)) => job = back,
            }
        }
        drop(waiting);
        let waiting = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("treering-read".to_owned());
        let started = thread.spawn(move || {
            step_back();
            let mut next = Some(job);
            while let Some(job) = next {
                let tell = job();
                next = next_job(&waiting, tell);
            }
        });
        started.map(drop).map_err(|error| {
            let what = "no thread could be started for a long read (try again)";
            ReadError::storage(NotDone::new(what, error))
        })
    }
}

/// Whoever is told asks for the next page at once, long before a thread that has stepped
/// back comes to anything: it waits for that before it tells.
fn next_job(waiting: &Mutex<Vec<mpsc::Sender<Job>>>, tell: Tell) -> Option<Job> {
    let (sender, receiver) = mpsc::channel();
    lock(waiting).push(sender);
    tell();
    match receiver.recv_timeout(Threads::KEPT) {
        Ok(job) => Some(job),
        Err(_) => {
            // Jobs are sent under this lock: none is lost between a look and the end.
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

/// Puts this thread behind those that serve calls. Where that is not possible it
/// is one of them, which is slower for all and wrong for none.
fn step_back() {
    #[cfg(all(feature = "redb", target_os = "linux"))]
    {
        /// Of 0 to 19: about a ninth of the share of a thread that has not stepped back.
        const NICENESS: i32 = 10;
        let thread = rustix::thread::gettid();
        // On Linux niceness is a thread's own.
        let _ = rustix::process::setpriority_process(Some(thread), NICENESS);
    }
}

fn panicked(error: impl Into<Box<dyn Error + Send + Sync>>) -> ReadError {
    ReadError::storage(NotDone::new("a read was broken off", error))
}

#[cfg(test)]
mod tests {
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

    /// Works until it is told to stop, and says so.
    async fn until_stopped(ended: oneshot::Sender<()>) {
        while check().is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = ended.send(());
    }

    // A request was built for ten minutes after its client's deadline, with a core
    // and its memory. Work ends with the wait for it, in both lanes.
    #[tokio::test]
    async fn work_that_nobody_waits_for_stops() {
        let work = work();
        for lane in [Lane::Short, Lane::Bulk, Lane::Long, Lane::Search] {
            let (sender, ended) = oneshot::channel();
            let waiting = work.run(lane, until_stopped(sender));
            let waited = tokio::time::timeout(Duration::from_millis(20), waiting).await;
            assert!(waited.is_err(), "{lane:?}: it ended by itself");
            let stopped = tokio::time::timeout(Duration::from_secs(60), ended).await;
            assert!(matches!(stopped, Ok(Ok(()))), "{lane:?}: it goes on");
        }
    }

    // A process did not end, because a read did not.
    #[tokio::test]
    async fn work_stops_when_the_store_closes() {
        let closing = Arc::new(AtomicBool::new(false));
        let work = Work::new(&Limits::default(), Arc::clone(&closing));
        let (sender, _ended) = oneshot::channel();
        let running = work.run(Lane::Long, until_stopped(sender));
        let close = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            closing.store(true, Ordering::Relaxed);
        };
        let both = async { tokio::join!(running, close) };
        let done = tokio::time::timeout(Duration::from_secs(60), both).await;
        assert!(done.is_ok_and(|(done, ())| done.is_ok()));
        let after = work.run(Lane::Short, async {}).await;
        assert!(matches!(after, Err(ReadError::Stopped)), "{after:?}");
    }

    // Cancelled work still uses memory until it has seen it: its place is given
    // away only then, or a client that cancels has as many at once as it likes.
    #[tokio::test]
    async fn a_place_is_given_back_when_the_work_has_ended() {
        let work = work();
        let (go_on, waits) = std::sync::mpsc::channel::<()>();
        let stubborn = async move {
            let _ = waits.recv();
        };
        let waiting = work.run(Lane::Long, stubborn);
        let waited = tokio::time::timeout(Duration::from_millis(20), waiting).await;
        assert!(waited.is_err());
        assert_eq!(work.long.available_permits(), 0);
        drop(go_on);
        let next = tokio::time::timeout(Duration::from_secs(60), work.run(Lane::Long, async { 7 }));
        assert!(matches!(next.await, Ok(Ok(7))));
    }

    // Work that asks for more work must not wait for a place that it has itself.
    #[tokio::test]
    async fn work_within_work_needs_no_place() {
        let work = Arc::new(work());
        let inner = Arc::clone(&work);
        let nested = async move { inner.run(Lane::Long, async { 1 }).await };
        let done = tokio::time::timeout(Duration::from_secs(60), work.run(Lane::Long, nested));
        assert!(matches!(done.await, Ok(Ok(Ok(1)))));
    }

    #[tokio::test]
    async fn one_verification_at_a_time() {
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

    // A panic is an answer like another, and leaves no place taken.
    #[tokio::test]
    async fn a_panic_is_told_and_the_place_is_free() {
        let work = work();
        for lane in [Lane::Short, Lane::Bulk, Lane::Long, Lane::Search] {
            let done = work.run(lane, async { panic!("on purpose") }).await;
            assert!(matches!(done, Err(ReadError::Storage { .. })), "{lane:?}");
        }
        assert_eq!(work.short.available_permits(), 2);
        let next = tokio::time::timeout(Duration::from_secs(60), work.run(Lane::Long, async {}));
        assert!(matches!(next.await, Ok(Ok(()))));
    }

    // A replay started a thread for each of its pages, every millisecond.
    #[tokio::test]
    async fn pages_that_follow_each_other_share_threads() {
        let work = work();
        let mut threads = std::collections::HashSet::new();
        for _ in 0..200 {
            let thread = work.run(Lane::Bulk, async { std::thread::current().id() });
            threads.insert(thread.await.unwrap());
        }
        assert_eq!(threads.len(), 1);
    }
}
