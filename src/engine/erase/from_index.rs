//! Removes erased content from the search index.

use std::{
    collections::{BTreeSet, HashSet},
    sync::{Arc, atomic::Ordering},
};

use super::plan::ErasePlan;
use crate::{
    Inner,
    indexer::{Failure, IndexPlace, blocking, held, rebuild_index},
    reindex,
    searchable::searchable,
};
use treering_base::disk;
use treering_domain::{ConversationId, EventKind, Namespace};
use treering_search::{IndexError, SearchIndex, SearchableEvent};

/// Number of records that are read at once. Neighbours are needed to determine a record's time.
const RECORDS_MAX: u64 = 64;
/// Size of the texts that are added at once, in bytes.
const TEXTS_BYTES_MAX: usize = 16 << 20;
/// Kinds of events that are indexed with the tool and the paths of their call.
const NAMED_BY_CALLS: [EventKind; 2] = [
    EventKind::ToolResultRecorded,
    EventKind::ToolSnapshotRecorded,
];

/// The erased events that the index has.
pub(super) struct IndexedErasure {
    namespace: Namespace,
    offsets: BTreeSet<u64>,
    /// Conversations with erased call requests, and, if there are any, conversations that share a
    /// history with erased events. The tools and paths of their results are read again.
    called_in: HashSet<ConversationId>,
}

impl IndexedErasure {
    /// Returns `None` for a plan over all namespaces, which is made of recorded erasures: some
    /// events may already be gone from the log, but not from the index.
    pub(super) fn of(plan: &ErasePlan) -> Option<Self> {
        let gone = plan.gone.values().map(|gone| gone.event);
        let requests = gone.filter(|event| event.kind == EventKind::ToolCallRequested.number());
        let mut called_in: HashSet<_> = requests.map(|event| event.conversation).collect();
        if !called_in.is_empty() {
            called_in.extend(plan.sharing());
        }
        Some(Self {
            namespace: plan.namespace.clone()?,
            offsets: plan.gone.keys().copied().collect(),
            called_in,
        })
    }
}

/// Removes erased events from the index: in place, or by a rebuild if that fails or `erased` is
/// unknown. The log and the projections must no longer have them.
pub(super) async fn erase_from_index(
    inner: &Arc<Inner>,
    erased: Option<IndexedErasure>,
    report: impl FnMut(u64),
) -> Result<(), Failure> {
    if let Some(erased) = erased {
        match erase_in_place(inner, erased).await {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, "erasing from the search index failed; it is rebuilt");
            }
        }
    }
    rebuild_index(inner, report).await.map(|_| ())
}

/// Returns false if the store's own index is not in use.
async fn erase_in_place(inner: &Arc<Inner>, erased: IndexedErasure) -> Result<bool, Failure> {
    let indexer = &inner.search.indexer;
    let _not_remade = indexer.remaking.lock().await;
    held(inner)?;
    let IndexPlace::Folder(dir) = &indexer.place else {
        return Ok(false);
    };
    if !indexer.is_following() {
        return Ok(false);
    }
    let left_over = reindex::new_index_path(dir);
    blocking(move || SearchIndex::wipe(&left_over)).await?;
    let index = indexer.index();
    {
        // From here on, the index has everything that was read before the content was hidden.
        let _gate = indexer.gate.lock().await;
        let looked = Arc::clone(&index);
        let (namespace, called_in) = (erased.namespace, erased.called_in);
        let found = tokio::task::spawn_blocking(move || {
            looked.commit()?;
            let of_calls = looked.offsets_of(&namespace, &called_in, &NAMED_BY_CALLS)?;
            Ok::<_, Failure>(of_calls)
        });
        let mut offsets = found.await??;
        offsets.extend(erased.offsets);
        replace(inner, &index, offsets).await?;
        indexer.publish_commit(&index, index.reached().offset);
    }
    let dir = dir.clone();
    let purge = move || {
        index.purge()?;
        disk::sync_folder(&dir).map_err(|source| IndexError::Io {
            action: "synced",
            dir,
            source,
        })
    };
    blocking(purge).await?;
    Ok(true)
}

/// Reindexes events from their current content in the log.
async fn replace(
    inner: &Arc<Inner>,
    index: &Arc<SearchIndex>,
    mut offsets: BTreeSet<u64>,
) -> Result<(), Failure> {
    let head = inner.reads.published.load(Ordering::Acquire);
    while let Some(&first) = offsets.first() {
        let (mut next, mut bytes) = (first, 0);
        let mut left: Vec<SearchableEvent> = Vec::new();
        while let Some(&from) = offsets.range(next..).next()
            && bytes < TEXTS_BYTES_MAX
        {
            let to = head.min(from + RECORDS_MAX - 1);
            let content = searchable(inner, from, to).await?;
            next = content.reached + 1;
            let wanted = |event: &SearchableEvent| offsets.contains(&event.position.offset);
            for event in content.events.into_iter().filter(wanted) {
                bytes += event.text.len();
                left.push(event);
            }
        }
        let later = offsets.split_off(&next);
        let (erasing, some) = (Arc::clone(index), std::mem::replace(&mut offsets, later));
        blocking(move || erasing.erase(&some, &left)).await?;
    }
    Ok(())
}
