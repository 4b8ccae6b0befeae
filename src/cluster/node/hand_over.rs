//! Gives up a shard.

use std::sync::Arc;

use treering_domain::ShardId;

use super::{CLAIM, Inner, Slot};
use crate::open_shard::{OpenShard, ShardEngine};

impl<E: ShardEngine> Inner<E> {
    pub(super) fn start_hand_over(self: &Arc<Self>, shard: ShardId) {
        let inner = Arc::clone(self);
        let Some(ending) = self.begin_hand_over(shard) else {
            return;
        };
        tokio::spawn(async move { inner.finish_hand_over(shard, ending).await });
    }

    pub(super) async fn hand_over(self: &Arc<Self>, shard: ShardId) {
        if let Some(ending) = self.begin_hand_over(shard) {
            self.finish_hand_over(shard, ending).await;
        }
    }

    /// Stops serving a shard. Returns `None` if it is being opened or handed over.
    fn begin_hand_over(&self, shard: ShardId) -> Option<Option<Arc<OpenShard<E>>>> {
        let mut slots = self.slots();
        let open = match slots.get(&shard) {
            Some(Slot::Opening | Slot::HandingOver | Slot::Emptying | Slot::Following(_)) => {
                return None;
            }
            Some(Slot::Open(open)) => Some(Arc::clone(open)),
            Some(Slot::Failed(_)) | None => None,
        };
        if let Some(open) = &open {
            open.end();
        }
        slots.insert(shard, Slot::HandingOver);
        Some(open)
    }

    /// Finishes appends, closes the engine and releases the shard, if this process still owns it.
    async fn finish_hand_over(&self, shard: ShardId, open: Option<Arc<OpenShard<E>>>) {
        let owns = match open {
            Some(open) => {
                open.engine.close().await;
                Ok(true)
            }
            // Nothing is open, so an answer may have been lost that told the shard's epoch. A
            // release without it has no effect. A claim tells it.
            None => self.ownership.claim(shard).await,
        };
        // If this fails, the next view shows that the shard is still owned.
        let released = match owns {
            Ok(true) => self.ownership.release(shard).await,
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        match released {
            Ok(()) => self.trouble[CLAIM].end(),
            Err(error) => self.trouble[CLAIM].note(&error.what),
        }
        self.set(shard, None);
    }
}
