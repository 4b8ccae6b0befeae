//! A node: opens the engines of the shards that it should own, and hands over the others.

mod follow;
mod hand_over;
mod start;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, Semaphore, watch},
    time::{Instant, sleep, timeout},
};
use treering_access::KeyStore;
use treering_domain::{ConversationId, ShardId, with_causes};
use treering_engine::{Engine, OpenOptions, ShardMap, ShardPlace};
use treering_log::EventLog;
use treering_server::{ShardRole, ShardServices};
use uuid::Uuid;

use crate::{
    bounds::{
        DRAIN_MAX, FOLLOWING_MAX, HEARTBEATS_PER_LEASE, LEASE_DEFAULT, MARGIN_PER_LEASE,
        OPENING_MAX, UNFOLLOWED_EVENTS_MAX, VIEWS_PER_LEASE,
    },
    lease::{NodeLease, Term},
    old_folders::OldFolders,
    open_shard::{OpenShard, ShardEngine},
    ownership::{ClusterView, Ownership},
    rendezvous::owner_and_follower,
    trouble::Trouble,
    watched_log::WatchedLog,
};

use follow::Followed;
pub use start::StartError;

/// Options of a [`ClusterNode`].
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// The name, which no other node has. A restarted node keeps its name, and gets its shards back.
    pub name: String,
    /// The address at which other nodes reach this one.
    pub address: String,
    /// Options of the engines. Their folder is the node's: shard N is in `shards/N` in it.
    pub engine: OpenOptions,
    /// Keys of the node's folder, which follow those of the cluster. `None`: they do not.
    pub keys: Option<Arc<KeyStore>>,
    /// How long after its last heartbeat the node answers reads, and the others leave it its shards.
    pub lease: Duration,
}

impl NodeOptions {
    /// Creates options with the default lease.
    pub fn new(
        name: impl Into<String>,
        address: impl Into<String>,
        data_dir: impl Into<PathBuf>,
    ) -> Self {
        Self {
            name: name.into(),
            address: address.into(),
            engine: OpenOptions::new(data_dir),
            keys: None,
            lease: LEASE_DEFAULT,
        }
    }
}

/// The node that owns a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its name.
    pub name: String,
    /// The address at which it is reached.
    pub address: String,
    /// The id of its process. Only nodes know it, so it proves to the owner that a call was
    /// forwarded by one.
    pub process: Uuid,
}

/// Why this node does not serve a shard right now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotServed {
    /// Another node owns it.
    #[error("node {} at {} owns the shard", .0.name, .0.address)]
    Elsewhere(Owner),
    /// It is being opened or handed over, or its owner is gone and another node takes it soon.
    #[error("the shard is changing its owner; retry in a moment")]
    Moving,
    /// This node cannot reach the database, so another node may own its shards.
    #[error("this node has lost its lease, because it cannot reach the database; retry")]
    NoLease,
    /// There is no such shard.
    #[error("the cluster has no such shard")]
    Unknown,
}

/// Permission to use the engine of a shard.
#[derive(Clone)]
pub struct ShardGuard<E = Engine> {
    open: Arc<OpenShard<E>>,
    node: Arc<Inner<E>>,
}

impl<E: ShardEngine> ShardGuard<E> {
    /// Returns the engine. Its append is safe at any time. The result of a read may be passed on
    /// only if [`Self::check`] succeeds after it.
    #[must_use]
    pub fn engine(&self) -> &E {
        &self.open.engine
    }

    /// Returns the place for the gRPC services of the engine. It is dropped with the engine.
    pub(crate) fn services(&self) -> &ShardServices {
        &self.open.services
    }

    /// Checks that no other node can have owned the shard since the guard was created. Call it
    /// after each read and before its answer is sent, and for each item of a stream.
    ///
    /// # Errors
    /// [`NotServed`]: discard the answer.
    pub fn check(&self) -> Result<(), NotServed> {
        match self.open.may_be_served(self.node.lease.term()) {
            true => Ok(()),
            false => Err(self.node.why_not(self.open.shard)),
        }
    }
}

/// What this process does with a shard.
enum Slot<E> {
    Opening,
    Open(Arc<OpenShard<E>>),
    HandingOver,
    /// Its folder is being brought up to date with what another node appended. True ends that.
    Following(watch::Sender<bool>),
    /// Erased content is being removed from its folder.
    Emptying,
    /// Opening failed, and is tried again from this time on.
    Failed(Instant),
}

struct Inner<E> {
    options: NodeOptions,
    log: Arc<dyn EventLog>,
    ownership: Arc<dyn Ownership>,
    lease: NodeLease,
    folders: OldFolders,
    /// Where conversations are, read after this process had joined: nobody moves a store in while a
    /// node lives.
    map: OnceLock<ShardMap>,
    slots: Mutex<BTreeMap<ShardId, Slot<E>>>,
    owners: RwLock<Arc<BTreeMap<ShardId, Owner>>>,
    /// The shards of other nodes that this one follows. Never locked while `slots` is.
    followed: Mutex<BTreeMap<ShardId, Followed>>,
    opening: Semaphore,
    following: Semaphore,
    draining: AtomicBool,
    /// Another process has this node's name.
    replaced: AtomicBool,
    /// Wakes the loop that reads nodes and owners.
    look: Arc<Notify>,
    /// Wakes the loop that sends heartbeats.
    beat: Notify,
    /// Counts changes of `slots`.
    changed: watch::Sender<u64>,
    stop: watch::Sender<bool>,
    trouble: [Trouble; 4],
}

const HEARTBEAT: usize = 0;
const VIEW: usize = 1;
const CLAIM: usize = 2;
const FOLLOW: usize = 3;

/// A node of a cluster. Cheap to clone; every clone is the same node.
#[derive(Clone)]
pub struct ClusterNode<E = Engine> {
    inner: Arc<Inner<E>>,
}

impl<E: ShardEngine> ClusterNode<E> {
    /// Joins a cluster. The node opens an `E` for each of its shards.
    pub(crate) async fn join(
        log: Arc<dyn EventLog>,
        ownership: Arc<dyn Ownership>,
        options: NodeOptions,
    ) -> Result<Self, StartError> {
        start::check(&options)?;
        let lease = options.lease;
        let inner = Arc::new(Inner {
            log,
            map: OnceLock::new(),
            ownership,
            lease: NodeLease::new(lease, lease / MARGIN_PER_LEASE),
            folders: OldFolders::new(options.engine.data_dir.clone()),
            options,
            slots: Mutex::default(),
            owners: RwLock::default(),
            followed: Mutex::default(),
            opening: Semaphore::new(OPENING_MAX),
            following: Semaphore::new(FOLLOWING_MAX),
            draining: AtomicBool::new(false),
            replaced: AtomicBool::new(false),
            look: Arc::default(),
            beat: Notify::new(),
            changed: watch::channel(0).0,
            stop: watch::channel(false).0,
            trouble: [
                Trouble::new("sending a heartbeat"),
                Trouble::new("reading nodes and owners"),
                Trouble::new("claiming or releasing a shard"),
                Trouble::new("following a shard"),
            ],
        });
        inner.join().await?;
        let moved = inner.ownership.moved().await?;
        let map = ShardMap::new(inner.ownership.shards(), moved);
        let _is_first = inner.map.set(map);
        tokio::spawn(send_heartbeats(Arc::clone(&inner)));
        tokio::spawn(follow_owners(Arc::clone(&inner)));
        Ok(Self { inner })
    }

    /// Returns the node's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.options.name
    }

    /// Returns the address at which other nodes reach this one.
    pub(crate) fn address(&self) -> &str {
        &self.inner.options.address
    }

    /// Returns the id of this process, which only nodes may know.
    pub(crate) fn process(&self) -> Uuid {
        self.inner.ownership.process()
    }

    /// Returns the number of shards.
    #[must_use]
    pub fn shards(&self) -> u32 {
        self.inner.ownership.shards()
    }

    /// Returns the shard of a conversation.
    #[must_use]
    pub fn shard_of(&self, id: ConversationId) -> ShardId {
        self.shard_map().of(id)
    }

    /// Returns where conversations are.
    pub(crate) fn shard_map(&self) -> ShardMap {
        self.inner.map.get().cloned().unwrap_or_default()
    }

    /// Returns the engine of a shard, if this node may serve it right now.
    ///
    /// # Errors
    /// [`NotServed`]: who serves it, or why nobody does.
    pub fn shard(&self, shard: ShardId) -> Result<ShardGuard<E>, NotServed> {
        if shard.0 >= self.shards() {
            return Err(NotServed::Unknown);
        }
        let open = match self.inner.slots().get(&shard) {
            Some(Slot::Open(open)) => Some(Arc::clone(open)),
            _ => None,
        };
        let Some(open) = open else {
            return Err(self.inner.why_not(shard));
        };
        let guard = ShardGuard {
            open,
            node: Arc::clone(&self.inner),
        };
        guard.check()?;
        Ok(guard)
    }

    /// Returns the live node that owns a shard, as last read from the database; `None` while it has
    /// no live owner.
    #[must_use]
    pub fn owner(&self, shard: ShardId) -> Option<Owner> {
        self.inner.owners().get(&shard).cloned()
    }

    /// Returns the shards that this node may serve right now.
    #[must_use]
    pub fn served(&self) -> Vec<ShardId> {
        let current = self.inner.lease.term();
        let slots = self.inner.slots();
        let open = slots.values().filter_map(|slot| match slot {
            Slot::Open(open) => Some(open),
            _ => None,
        });
        open.filter(|open| open.may_be_served(current))
            .map(|open| open.shard)
            .collect()
    }

    /// Returns what this node does with the shards that it has something to do with.
    pub(crate) fn roles(&self) -> Vec<ShardRole> {
        let mut roles = BTreeMap::new();
        let mut note = |shard: ShardId, role, epoch, follower_lag| {
            let role = ShardRole {
                shard,
                role,
                epoch,
                follower_lag,
            };
            roles.insert(shard, role);
        };
        for (shard, own) in &*self.inner.followed() {
            note(*shard, "follower", 0, Some(own.lag()));
        }
        for (shard, slot) in &*self.inner.slots() {
            let (role, epoch) = match slot {
                Slot::Open(open) => ("owner", open.log.epoch.load(Ordering::Acquire)),
                Slot::Opening => ("opening", 0),
                Slot::HandingOver => ("handing_over", 0),
                Slot::Emptying => ("emptying", 0),
                Slot::Failed(_) => ("failed", 0),
                Slot::Following(_) => continue,
            };
            note(*shard, role, epoch, None);
        }
        roles.into_values().collect()
    }

    /// Hands all shards over to other nodes, takes no new ones, and waits until this node has none.
    /// Without another node, the shards then have no owner. Returns false if some are left after
    /// `wait`; the node continues to hand them over.
    pub async fn drain(&self, wait: Duration) -> bool {
        self.inner.draining.store(true, Ordering::Release);
        self.inner.stop_following();
        self.inner.beat.notify_one();
        self.inner.look.notify_one();
        let mut changed = self.inner.changed.subscribe();
        let empty = async {
            while !self
                .inner
                .slots()
                .values()
                .all(|slot| matches!(slot, Slot::Failed(_)))
            {
                if changed.changed().await.is_err() {
                    return;
                }
            }
        };
        timeout(wait, empty).await.is_ok()
    }

    /// Drains the node, leaves the cluster and closes the log.
    pub async fn close(&self) {
        self.drain(DRAIN_MAX).await;
        self.inner.stop.send_replace(true);
        self.inner.lease.end();
        let left: Vec<_> = self.inner.slots().keys().copied().collect();
        for shard in left {
            self.inner.hand_over(shard).await;
        }
        let inner = &self.inner;
        if let Err(error) = inner.ownership.leave(&inner.options.name).await {
            inner.trouble[CLAIM].note(&error.what);
        }
        if let Err(error) = inner.log.close().await {
            tracing::warn!(error = %with_causes(&error), "the log was not closed cleanly");
        }
    }
}

/// Sends heartbeats until the node stops.
async fn send_heartbeats<E: ShardEngine>(inner: Arc<Inner<E>>) {
    let mut stop = inner.stop.subscribe();
    let every = inner.options.lease / HEARTBEATS_PER_LEASE;
    loop {
        tokio::select! {
            // In this order, so that a run of the simulation can be repeated.
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            () = sleep(every) => {}
            () = inner.beat.notified() => {}
        }
        let sent = Instant::now();
        let draining = inner.draining.load(Ordering::Acquire);
        let followed = inner.current();
        let beat = inner
            .ownership
            .heartbeat(&inner.options.name, draining, &followed);
        let trouble = &inner.trouble[HEARTBEAT];
        match timeout(inner.options.lease, beat).await {
            Ok(Ok(true)) => {
                inner.lease.renew(sent);
                trouble.end();
            }
            Ok(Ok(false)) => return inner.replaced(),
            Ok(Err(error)) => trouble.note(&error.what),
            Err(_) => trouble.note("no answer within a lease"),
        }
    }
}

/// Follows nodes and owners, and opens and hands over shards, until the node stops.
async fn follow_owners<E: ShardEngine>(inner: Arc<Inner<E>>) {
    let mut stop = inner.stop.subscribe();
    let every = inner.options.lease / VIEWS_PER_LEASE;
    loop {
        // What is learned below was true after this moment.
        let term = inner.lease.term();
        let open = inner.open_shards();
        let trouble = &inner.trouble[VIEW];
        match timeout(inner.options.lease, inner.ownership.view()).await {
            Ok(Ok(view)) => {
                trouble.end();
                inner.learn(&view, term, &open);
            }
            Ok(Err(error)) => trouble.note(&error.what),
            Err(_) => trouble.note("no answer within a lease"),
        }
        tokio::select! {
            // In this order, so that a run of the simulation can be repeated.
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            () = sleep(every) => {}
            () = inner.look.notified() => {}
        }
    }
}

impl<E: ShardEngine> Inner<E> {
    fn slots(&self) -> MutexGuard<'_, BTreeMap<ShardId, Slot<E>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn owners(&self) -> Arc<BTreeMap<ShardId, Owner>> {
        let owners = self.owners.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&owners)
    }

    fn open_shards(&self) -> Vec<Arc<OpenShard<E>>> {
        let slots = self.slots();
        let open = slots.values().filter_map(|slot| match slot {
            Slot::Open(open) => Some(Arc::clone(open)),
            _ => None,
        });
        open.collect()
    }

    fn set(&self, shard: ShardId, slot: Option<Slot<E>>) {
        match slot {
            Some(slot) => self.slots().insert(shard, slot),
            None => self.slots().remove(&shard),
        };
        self.changed.send_modify(|count| *count += 1);
    }

    /// Takes the node's name. A process that died with it keeps the name for the length of its
    /// lease.
    async fn join(&self) -> Result<(), StartError> {
        let options = &self.options;
        let wait_until = Instant::now() + options.lease * 2;
        loop {
            let sent = Instant::now();
            let (name, address) = (&options.name, &options.address);
            if self.ownership.join(name, address, options.lease).await? {
                self.lease.renew(sent);
                return Ok(());
            }
            if Instant::now() > wait_until {
                return Err(StartError::NameInUse { name: name.clone() });
            }
            sleep(options.lease / VIEWS_PER_LEASE).await;
        }
    }

    /// Ends this node: another process has its name.
    fn replaced(&self) {
        self.lease.end();
        self.replaced.store(true, Ordering::Release);
        tracing::error!(
            node = self.options.name,
            "another process joined the cluster with this node's name while this one could not \
             reach the database: this one serves nothing any more. Stop one of them"
        );
        self.look.notify_one();
    }

    fn why_not(&self, shard: ShardId) -> NotServed {
        if self.lease.term().is_none() {
            return NotServed::NoLease;
        }
        match self.owners().get(&shard) {
            Some(owner) if owner.name != self.options.name => NotServed::Elsewhere(owner.clone()),
            _ => NotServed::Moving,
        }
    }

    /// Acts on a view that was asked for in `term`, when `open` were open.
    fn learn(self: &Arc<Self>, view: &ClusterView, term: Option<Term>, open: &[Arc<OpenShard<E>>]) {
        let process = self.ownership.process();
        self.note_owners(view);
        let owned: BTreeSet<ShardId> = view
            .owners
            .iter()
            .filter(|(_, owner)| *owner == process)
            .map(|(shard, _)| *shard)
            .collect();
        for open in open {
            match owned.contains(&open.shard) && !open.is_lost() {
                true => term.into_iter().for_each(|term| open.confirm(term)),
                false => self.start_hand_over(open.shard),
            }
        }
        let is_live = view.nodes.iter().any(|node| node.process == process);
        if self.replaced.load(Ordering::Acquire) {
            open.iter()
                .for_each(|open| self.start_hand_over(open.shard));
        } else if is_live && !*self.stop.borrow() {
            self.take_and_hand_over(view, &owned);
        } else {
            self.follow(&BTreeMap::new());
        }
        self.empty_old_folders(view);
    }

    /// Removes from the folders of shards that are not open here what was erased since.
    fn empty_old_folders(self: &Arc<Self>, view: &ClusterView) {
        let mut old = Vec::new();
        let mut slots = self.slots();
        for (shard, erased) in &view.erased {
            if !slots.contains_key(shard) && self.folders.may_lack(*shard, *erased) {
                slots.insert(*shard, Slot::Emptying);
                old.push((*shard, *erased));
            }
        }
        drop(slots);
        if old.is_empty() {
            return;
        }
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            for (shard, erased) in old {
                inner.folders.forget(shard, erased).await;
                // If it is followed, it begins again.
                inner.followed().remove(&shard);
                inner.set(shard, None);
            }
        });
    }

    fn note_owners(&self, view: &ClusterView) {
        let node_of = |process: Uuid| view.nodes.iter().find(|node| node.process == process);
        let owners = view.owners.iter().filter_map(|(shard, process)| {
            let node = node_of(*process)?;
            let owner = Owner {
                name: node.name.clone(),
                address: node.address.clone(),
                process: node.process,
            };
            Some((*shard, owner))
        });
        let owners = Arc::new(owners.collect());
        *self.owners.write().unwrap_or_else(PoisonError::into_inner) = owners;
    }

    /// Opens what this node should own and may claim, hands over what another should own, and follows
    /// what this node should own next.
    fn take_and_hand_over(self: &Arc<Self>, view: &ClusterView, owned: &BTreeSet<ShardId>) {
        let draining = self.draining.load(Ordering::Acquire);
        let own = &*self.options.name;
        let is_candidate = |name: &&str| !(draining && *name == own);
        let candidates: Vec<&str> = view
            .nodes
            .iter()
            .filter(|node| !node.draining)
            .map(|node| &*node.name)
            .filter(is_candidate)
            .collect();
        let live: BTreeSet<Uuid> = view.nodes.iter().map(|node| node.process).collect();
        let owners: BTreeMap<ShardId, Uuid> = view.owners.iter().copied().collect();
        let heads: BTreeMap<ShardId, u64> = view.heads.iter().copied().collect();
        let mut wanted = BTreeMap::new();
        for shard in (0..self.ownership.shards()).map(ShardId) {
            let (desired, follower) = owner_and_follower(shard, &candidates);
            let should = desired == Some(own);
            let is_ours = owned.contains(&shard);
            let head = heads.get(&shard).copied().unwrap_or_default();
            match (should, owners.get(&shard)) {
                (false, _) if is_ours => {
                    let must = !candidates.contains(&own) || head <= UNFOLLOWED_EVENTS_MAX;
                    if must || is_followed_by(view, desired, shard) {
                        self.start_hand_over(shard);
                    }
                }
                (false, _) if follower == Some(own) => drop(wanted.insert(shard, head)),
                (false, _) => {}
                (true, Some(owner)) if !is_ours && live.contains(owner) => {
                    wanted.insert(shard, head);
                }
                // After a failure of the database, others may live that have not said so yet.
                (true, Some(_)) if !is_ours && self.lease.has_just_resumed() => {}
                (true, _) => self.start_open(shard),
            }
        }
        self.follow(&wanted);
    }

    fn start_open(self: &Arc<Self>, shard: ShardId) {
        let is_free = match self.slots().get(&shard) {
            None => true,
            Some(Slot::Failed(until)) => *until <= Instant::now(),
            Some(Slot::Following(stop)) => {
                stop.send_replace(true);
                false
            }
            Some(_) => false,
        };
        if !is_free {
            return;
        }
        self.set(shard, Some(Slot::Opening));
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            let slot = inner.open(shard).await;
            inner.set(shard, slot);
        });
    }

    /// Claims and opens a shard.
    async fn open(self: &Arc<Self>, shard: ShardId) -> Option<Slot<E>> {
        let _permit = self.opening.acquire().await.ok()?;
        if *self.stop.borrow() {
            return None;
        }
        let failed = || Some(Slot::Failed(Instant::now() + self.options.lease));
        // If the lease lapses from here on, the next view must confirm the ownership.
        let term = self.lease.term()?;
        match self.ownership.claim(shard).await {
            Ok(true) => self.trouble[CLAIM].end(),
            Ok(false) => return None,
            Err(error) => {
                self.trouble[CLAIM].note(&error.what);
                return None;
            }
        }
        let log = Arc::new(WatchedLog {
            log: Arc::clone(&self.log),
            lost: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            wake: Arc::clone(&self.look),
        });
        let place = ShardPlace {
            shard,
            shards: self.ownership.shards(),
        };
        let mut options = self.options.engine.clone();
        options.data_dir = self.folders.of(shard);
        match E::open(Arc::clone(&log) as _, place, options).await {
            Ok(engine) => {
                let open = OpenShard::new(shard, engine, log, term);
                Some(Slot::Open(Arc::new(open)))
            }
            Err(error) => {
                tracing::error!(
                    shard = shard.0,
                    error = %with_causes(&error),
                    "a shard could not be opened, so nobody serves it; this is tried again"
                );
                failed()
            }
        }
    }
}

/// Returns true if a node has followed a shard to the end of its log.
fn is_followed_by(view: &ClusterView, node: Option<&str>, shard: ShardId) -> bool {
    let mut nodes = view.nodes.iter();
    let node = nodes.find(|live| Some(&*live.name) == node);
    node.is_some_and(|live| live.followed.iter().any(|(followed, _)| *followed == shard))
}
