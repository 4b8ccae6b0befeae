//! Follows shards of other nodes, so that a take-over does not have to rebuild projections and index.
//!
//! A follower looks at its shard now and then. If the log has grown, it brings its folder up to date,
//! and closes it again. Opening the shard as its owner then continues from there.

use std::{
    collections::BTreeMap,
    sync::{Arc, MutexGuard, PoisonError},
};

use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use treering_domain::{ShardId, with_causes};
use treering_engine::ShardPlace;

use super::{FOLLOW, Inner, Slot};
use crate::{bounds::FOLLOW_PAUSE, open_shard::ShardEngine};

/// How far this node has followed a shard.
pub(super) struct Followed {
    /// The offset that projections and index in its folder have reached.
    reached: u64,
    /// They had reached the end of the log when this node looked last.
    is_current: bool,
    /// The head of the shard, as last read from the database.
    head: u64,
    /// The next look is not before this time.
    again: Instant,
}

impl Followed {
    /// Returns the number of events that it lacks.
    pub(super) fn lag(&self) -> u64 {
        self.head.saturating_sub(self.reached)
    }
}

/// What a look at a shard has found.
struct Look {
    confirmed: u64,
    reached: u64,
}

impl<E: ShardEngine> Inner<E> {
    pub(super) fn followed(&self) -> MutexGuard<'_, BTreeMap<ShardId, Followed>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the shards that this node could take at once, with the offset that it has reached.
    pub(super) fn current(&self) -> Vec<(ShardId, u64)> {
        let followed = self.followed();
        let current = followed.iter().filter(|(_, own)| own.is_current);
        current.map(|(shard, own)| (*shard, own.reached)).collect()
    }

    /// Follows these shards, whose heads are given, and no others.
    pub(super) fn follow(self: &Arc<Self>, wanted: &BTreeMap<ShardId, u64>) {
        let now = Instant::now();
        let mut due = Vec::new();
        let mut followed = self.followed();
        followed.retain(|shard, _| wanted.contains_key(shard));
        for (shard, head) in wanted {
            let own = followed.entry(*shard).or_insert(Followed {
                reached: 0,
                is_current: false,
                head: 0,
                again: now,
            });
            own.head = *head;
            if own.lag() > 0 && own.again <= now {
                due.push((*shard, own.reached));
            }
        }
        drop(followed);
        for (shard, reached) in due {
            self.start_look(shard, reached);
        }
    }

    fn start_look(self: &Arc<Self>, shard: ShardId, reached: u64) {
        let (stop, stopped) = watch::channel(false);
        {
            let mut slots = self.slots();
            if !matches!(slots.get(&shard), None | Some(Slot::Failed(_))) {
                return;
            }
            slots.insert(shard, Slot::Following(stop));
        }
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            let look = inner.look_at(shard, reached, stopped.clone()).await;
            inner.note_look(shard, look);
            inner.set(shard, None);
            // Somebody waits for the folder.
            if *stopped.borrow() {
                inner.look.notify_one();
            }
        });
    }

    /// Brings the folder of a shard up to date, as far as its events are confirmed.
    async fn look_at(
        &self,
        shard: ShardId,
        reached: u64,
        mut stopped: watch::Receiver<bool>,
    ) -> Option<Look> {
        let mut stop = stopped.clone();
        let looking = async {
            let tail = self.log.tail(shard, reached);
            // What is not confirmed within a lease is looked at again later.
            let tail = timeout(self.options.lease, tail).await.ok()?;
            let permit = self.following.acquire().await.ok()?;
            Some((tail, permit))
        };
        let (tail, _permit) = tokio::select! {
            // In this order, so that a run of the simulation can be repeated.
            biased;
            _ = stop.wait_for(|stop| *stop) => return None,
            looked = looking => looked?,
        };
        let trouble = &self.trouble[FOLLOW];
        let confirmed = match tail {
            Ok(confirmed) => confirmed,
            Err(error) => {
                trouble.note(&with_causes(&error).to_string());
                return None;
            }
        };
        trouble.end();
        let place = ShardPlace {
            shard,
            shards: self.ownership.shards(),
        };
        let mut options = self.options.engine.clone();
        options.data_dir = self.folders.of(shard);
        let stop = async move {
            let _stopped = stopped.wait_for(|stop| *stop).await;
        };
        match E::follow(Arc::clone(&self.log), place, options, confirmed, stop).await {
            Ok(reached) => Some(Look { confirmed, reached }),
            Err(error) => {
                tracing::warn!(
                    shard = shard.0,
                    error = %with_causes(&error),
                    "a shard of another node could not be followed; this is tried again"
                );
                None
            }
        }
    }

    fn note_look(&self, shard: ShardId, look: Option<Look>) {
        let mut followed = self.followed();
        let Some(own) = followed.get_mut(&shard) else {
            return;
        };
        let now = Instant::now();
        let Some(look) = look else {
            own.again = now + self.options.lease;
            return;
        };
        own.reached = look.reached;
        let was_current = own.is_current;
        own.is_current = look.reached >= look.confirmed;
        own.again = match own.is_current {
            true => now + FOLLOW_PAUSE,
            false => now,
        };
        if own.is_current && !was_current {
            // The owner may wait for this.
            self.beat.notify_one();
        }
    }

    /// Ends all looks soon.
    pub(super) fn stop_following(&self) {
        for slot in self.slots().values() {
            if let Slot::Following(stop) = slot {
                stop.send_replace(true);
            }
        }
    }
}
