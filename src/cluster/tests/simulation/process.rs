//! A simulated process: a node in a runtime of its own, which runs only when the world lets it, and
//! whose clock runs a little faster or slower than that of the database.

use std::{
    collections::BTreeMap,
    mem,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use tokio::{
    runtime::{Builder, Runtime},
    sync::oneshot,
    task::yield_now,
    time::{Instant, advance, sleep},
};
use treering_domain::ShardId;
use uuid::Uuid;

use super::{
    LEASE,
    backend::{Backend, Statement},
    database::{Event, SHARDS, shard_of},
    engine::{Appended, ListEngine},
};
use crate::{ClusterNode, NodeOptions, NotServed, Owner, ShardGuard};

/// How long a node tries to serve a call, and its pauses, as in the router of `treering-server`.
const ROUTE_WAIT_MAX: Duration = Duration::from_secs(3);
const ROUTE_PAUSE_MIN: Duration = Duration::from_millis(20);
const ROUTE_PAUSE_MAX: Duration = Duration::from_millis(500);

/// A call of a client, or one that a node forwards.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Request {
    pub(super) conversation: u32,
    /// The number of the event to append; `None` to read.
    pub(super) append: Option<u64>,
    /// The read is one of a stream, so it uses the permission of the reads before it.
    pub(super) is_of_stream: bool,
    /// How long the owner takes before and after it reads its list.
    pub(super) work: Duration,
}

/// The answer of a node.
#[derive(Debug, Hash)]
pub(super) enum Reply {
    Appended(u64),
    Events(Vec<u64>),
    /// A forwarded call was not executed.
    NotOwner,
    /// Nothing was or will be appended.
    Refused,
    Unknown,
}

/// What a process sends.
pub(super) enum Outgoing {
    Statement {
        name: &'static str,
        statement: Statement,
    },
    Forward {
        owner: Owner,
        request: Request,
        reply: oneshot::Sender<Reply>,
    },
    Reply {
        call: u64,
        reply: Reply,
    },
}

/// What a process has sent and the world has not taken yet.
#[derive(Clone, Default)]
pub(super) struct Outbox(Arc<Mutex<Vec<Outgoing>>>);

impl Outbox {
    pub(super) fn put(&self, outgoing: Outgoing) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(outgoing);
    }

    fn take(&self) -> Vec<Outgoing> {
        mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns a node's name, which is its address too.
pub(super) fn name_of(node_number: usize) -> String {
    format!("node-{node_number}")
}

type Node = ClusterNode<ListEngine>;
type Guard = ShardGuard<ListEngine>;

/// What the tasks of a process share.
struct Desk {
    process: Uuid,
    node: OnceLock<Node>,
    outbox: Outbox,
    /// The permissions of streams of reads.
    streams: Mutex<BTreeMap<ShardId, Guard>>,
    /// The process has ended: it was closed, or its node did not start.
    ended: AtomicBool,
}

/// See the module.
pub(super) struct Process {
    /// The number and the name of its node.
    pub(super) node_number: usize,
    pub(super) name: String,
    pub(super) id: Uuid,
    desk: Arc<Desk>,
    runtime: Runtime,
    began: Duration,
    /// Thousandths of a second of its clock in a second of the world.
    clock_rate: u32,
    /// What its clock shows.
    clock: Duration,
    /// It does nothing before this time.
    pub(super) paused_until: Duration,
    /// It does not reach the database before this time.
    pub(super) cut_until: Duration,
    is_closing: bool,
    /// Permissions that are checked whenever the process runs.
    watched: Vec<(ShardId, Guard)>,
}

impl Process {
    pub(super) fn start(node_number: usize, id: Uuid, now: Duration, clock_rate: u32) -> Self {
        let name = name_of(node_number);
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let desk = Arc::new(Desk {
            process: id,
            node: OnceLock::new(),
            outbox: Outbox::default(),
            streams: Mutex::default(),
            ended: AtomicBool::new(false),
        });
        let backend = Arc::new(Backend::new(id, desk.outbox.clone()));
        let options = NodeOptions {
            lease: LEASE,
            ..NodeOptions::new(&name, &name, &name)
        };
        let starting = Arc::clone(&desk);
        runtime.spawn(async move {
            match Node::join(Arc::clone(&backend) as _, backend, options).await {
                Ok(node) => drop(starting.node.set(node)),
                Err(_) => starting.ended.store(true, Ordering::Release),
            }
        });
        Self {
            node_number,
            name,
            id,
            is_closing: false,
            desk,
            runtime,
            began: now,
            clock_rate,
            clock: Duration::ZERO,
            paused_until: now,
            cut_until: now,
            watched: Vec::new(),
        }
    }

    /// Sets its clock without running any of its tasks.
    fn set_clock(&mut self, now: Duration) {
        let clock = (now - self.began) * self.clock_rate / 1_000;
        let _context = self.runtime.enter();
        let _waiting = advance(clock - self.clock).now_or_never();
        self.clock = clock;
    }

    /// Runs its tasks until they wait. Returns what it sends.
    pub(super) fn run(&mut self, now: Duration) -> Vec<Outgoing> {
        self.set_clock(now);
        self.runtime.block_on(async {
            // The first runs what was woken from outside, the second what timers woke.
            for _ in 0..3 {
                yield_now().await;
            }
        });
        self.desk.outbox.take()
    }

    pub(super) fn is_ended(&self) -> bool {
        self.desk.ended.load(Ordering::Acquire)
    }

    pub(super) fn node(&self) -> Option<&Node> {
        self.desk.node.get()
    }

    /// Returns the shards that it may serve now, to those who asked before too.
    pub(super) fn served(&mut self, now: Duration) -> Vec<ShardId> {
        self.set_clock(now);
        let _context = self.runtime.enter();
        self.watched.retain(|(_, guard)| guard.check().is_ok());
        let mut served: Vec<_> = self.watched.iter().map(|(shard, _)| *shard).collect();
        let node = self.desk.node.get();
        for shard in (0..SHARDS).map(ShardId) {
            if !served.contains(&shard)
                && let Some(Ok(guard)) = node.map(|node| node.shard(shard))
            {
                self.watched.push((shard, guard));
                served.push(shard);
            }
        }
        served
    }

    /// Closes the node in the background.
    pub(super) fn close(&mut self) {
        if mem::replace(&mut self.is_closing, true) {
            return;
        }
        let desk = Arc::clone(&self.desk);
        self.runtime.spawn(async move {
            if let Some(node) = desk.node.get() {
                node.close().await;
            }
            desk.ended.store(true, Ordering::Release);
        });
    }

    /// Takes a call. A forwarded one is for the process `receiver`.
    pub(super) fn take(&self, call: u64, request: Request, receiver: Option<Uuid>) {
        let desk = Arc::clone(&self.desk);
        self.runtime.spawn(async move {
            let reply = match receiver {
                None => desk.serve(request).await,
                Some(receiver) => desk.serve_forwarded(request, receiver).await,
            };
            desk.outbox.put(Outgoing::Reply { call, reply });
        });
    }
}

/// The outcome of one attempt to serve a call, as in the router.
enum Attempt {
    Answered(Reply),
    /// The call was not executed, or changes nothing.
    Again,
}

impl Desk {
    /// Has a call served by the owner of its shard. Waits while the shard changes its owner.
    async fn serve(&self, request: Request) -> Reply {
        let end = Instant::now() + ROUTE_WAIT_MAX;
        let mut pause = ROUTE_PAUSE_MIN;
        loop {
            if let Attempt::Answered(reply) = self.attempt(request).await {
                return reply;
            }
            if Instant::now() + pause > end {
                return Reply::Refused;
            }
            sleep(pause).await;
            pause = (pause * 2).min(ROUTE_PAUSE_MAX);
        }
    }

    async fn serve_forwarded(&self, request: Request, receiver: Uuid) -> Reply {
        match self.guard(request) {
            Ok(guard) if receiver == self.process => match self.locally(request, &guard).await {
                Attempt::Answered(reply) => reply,
                Attempt::Again => Reply::NotOwner,
            },
            _ => Reply::NotOwner,
        }
    }

    async fn attempt(&self, request: Request) -> Attempt {
        match self.guard(request) {
            Ok(guard) => self.locally(request, &guard).await,
            Err(NotServed::Elsewhere(owner)) => self.remotely(request, owner).await,
            Err(_) => Attempt::Again,
        }
    }

    fn streams(&self) -> MutexGuard<'_, BTreeMap<ShardId, Guard>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn guard(&self, request: Request) -> Result<Guard, NotServed> {
        let shard = shard_of(request.conversation);
        let of_stream = self.streams().get(&shard).cloned();
        match (of_stream, self.node.get()) {
            (Some(guard), _) if request.is_of_stream => Ok(guard),
            (_, Some(node)) => node.shard(shard),
            (_, None) => Err(NotServed::NoLease),
        }
    }

    async fn remotely(&self, request: Request, owner: Owner) -> Attempt {
        let (reply, answer) = oneshot::channel();
        self.outbox.put(Outgoing::Forward {
            owner,
            request,
            reply,
        });
        match answer.await {
            Ok(Reply::NotOwner) => Attempt::Again,
            Ok(reply) => Attempt::Answered(reply),
            Err(_) if request.append.is_none() => Attempt::Again,
            Err(_) => Attempt::Answered(Reply::Unknown),
        }
    }

    /// Serves a call from the list of this process. The outcome of an append is told even if the
    /// shard may have another owner by then; what was read is not.
    async fn locally(&self, request: Request, guard: &Guard) -> Attempt {
        let conversation = request.conversation;
        let Some(number) = request.append else {
            sleep(request.work).await;
            let events = guard.engine().events(conversation);
            sleep(request.work).await;
            let shard = shard_of(conversation);
            if guard.check().is_err() {
                self.streams().remove(&shard);
                return Attempt::Again;
            }
            if request.is_of_stream {
                self.streams().insert(shard, guard.clone());
            }
            return Attempt::Answered(Reply::Events(events));
        };
        let event = Event {
            conversation,
            number,
        };
        Attempt::Answered(match guard.engine().append(event).await {
            Appended::At(offset) => Reply::Appended(offset),
            Appended::Unknown => Reply::Unknown,
            Appended::Refused if guard.check().is_err() => return Attempt::Again,
            Appended::Refused => Reply::Refused,
        })
    }
}
