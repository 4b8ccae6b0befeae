//! Reads windows: the events after the last compaction's cut, and those that the branch's state
//! refers to. Windows are cached and extended with later events.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    build::cancellation,
    cache::{CachedLongTerm, CachedWindow, event_bytes},
};
use crate::{
    Inner, ReadPath,
    error::ReadError,
    history::{ENTRIES_PAGE, PAGE_BYTES, Segment, decode_body, first_own},
    query::BranchAddress,
    work,
};
use treering_context::window::{FoldedWindow, LongTermEntry, WindowEvent, WindowInput};
use treering_domain::{BranchState, ConversationKey, EventKind, EventRef, Namespace, Revision};
use treering_projections::EventEntry;

/// Kinds without content for a model.
const SILENT: [EventKind; 7] = [
    EventKind::AnnotationAdded,
    EventKind::Custom,
    EventKind::ContentErased,
    EventKind::ConversationChanged,
    EventKind::BranchActivated,
    EventKind::BranchRenamed,
    EventKind::BranchArchived,
];

/// Events, with their memory size.
#[derive(Default)]
struct SizedEvents {
    events: Vec<Arc<WindowEvent>>,
    bytes: u64,
}

impl Inner {
    /// Returns the complete input for a request of a branch, now or as of a revision.
    pub(super) async fn window(
        &self,
        address: &BranchAddress,
        as_of: Option<Revision>,
    ) -> Result<WindowInput, ReadError> {
        let (namespace, id) = (&address.namespace, address.key());
        let row = self.reads.row(namespace, id.id)?;
        self.reads
            .check_whole(id, as_of.unwrap_or(Revision(u64::MAX)))?;
        let now = self.reads.branch_at(address)?;
        let past = match as_of {
            Some(revision) if revision != now.head => {
                Some(self.reads.as_of(id, &now, revision).await?)
            }
            _ => None,
        };
        let (branch, kept) = match &past {
            Some(past) => (past, Arc::new(self.read_window(namespace, id, past).await?)),
            None => (&now, self.kept_window(namespace, id, &now).await?),
        };
        let long_term = match &past {
            Some(past) => {
                let position = self.reads.projections.load().offset(id, past.head)?;
                self.reads
                    .long_term(
                        namespace,
                        position.map(|offset| self.reads.reader.position(offset)),
                    )
                    .await?
            }
            None => self.long_term_now(namespace).await?,
        };
        let mut window = WindowInput {
            conversation: id.id,
            info: Arc::clone(&row.info),
            revision: branch.head,
            branch: Arc::clone(branch),
            events: kept.events.clone(),
            folded: Some(Arc::clone(&kept.folded)),
            referred: kept.referred.clone(),
            earlier_tools: Arc::clone(&kept.earlier_tools),
            long_term,
            names_in_results: Vec::new(),
            warnings: Vec::new(),
            knowledge: None,
            heuristics: Arc::clone(&self.options.heuristics),
            cancellation: cancellation(),
        };
        window.add_names_in_results();
        Ok(window)
    }

    /// Returns a branch's current window: the cached part, extended with later events.
    async fn kept_window(
        &self,
        namespace: &Namespace,
        id: ConversationKey,
        branch: &BranchState,
    ) -> Result<Arc<CachedWindow>, ReadError> {
        let key = self.context.windows.window_key(id, branch.id);
        let kept = self.context.windows.windows.get(&key);
        let kept =
            kept.filter(|kept| kept.compaction == branch.compaction && kept.head <= branch.head);
        if let Some(kept) = &kept
            && kept.head == branch.head
        {
            return Ok(Arc::clone(kept));
        }
        let window = match kept {
            Some(kept) => self.read_on(namespace, id, branch, &kept).await?,
            None => self.read_window(namespace, id, branch).await?,
        };
        let window = Arc::new(window);
        // Another task may have cached a later window in the meantime.
        let later = self.context.windows.windows.peek(&key);
        if later.is_none_or(|later| later.head <= window.head) {
            self.context
                .windows
                .windows
                .insert(key, Arc::clone(&window));
        }
        Ok(window)
    }

    /// Extends a cached window. All later events are the branch's own, because nothing is inherited
    /// after a fork.
    async fn read_on(
        &self,
        namespace: &Namespace,
        id: ConversationKey,
        branch: &BranchState,
        kept: &CachedWindow,
    ) -> Result<CachedWindow, ReadError> {
        let mut read = SizedEvents {
            events: kept.events.clone(),
            bytes: kept.bytes,
        };
        let segment = Segment {
            conversation: id,
            branch: branch.id,
            name: branch.name.clone(),
            first: kept.head.next().max(first_own(branch.id)),
            last: branch.head,
            fork: branch.fork,
        };
        self.reads
            .read_segment(namespace, &segment, &mut read)
            .await?;
        self.complete(namespace, id, branch, read, Some(kept)).await
    }

    async fn read_window(
        &self,
        namespace: &Namespace,
        id: ConversationKey,
        branch: &BranchState,
    ) -> Result<CachedWindow, ReadError> {
        let mut read = SizedEvents::default();
        for segment in self.reads.open_segments(id, branch)? {
            self.reads
                .read_segment(namespace, &segment, &mut read)
                .await?;
        }
        self.complete(namespace, id, branch, read, None).await
    }

    /// Adds the events that the branch's state refers to.
    async fn complete(
        &self,
        namespace: &Namespace,
        id: ConversationKey,
        branch: &BranchState,
        read: SizedEvents,
        kept: Option<&CachedWindow>,
    ) -> Result<CachedWindow, ReadError> {
        let mut wanted = references(branch);
        let mut referred = BTreeMap::new();
        for event in &read.events {
            if wanted.remove(&event.at) {
                referred.insert(event.at, Arc::clone(event));
            }
        }
        let mut bytes = read.bytes;
        for at in wanted {
            let event = match kept.and_then(|kept| kept.referred.get(&at)) {
                Some(event) => Arc::clone(event),
                None => {
                    let (event, size) = self.reads.sized_event(namespace, at).await?;
                    bytes += size;
                    event
                }
            };
            referred.insert(at, event);
        }
        let cancellation = cancellation();
        let folded = match kept {
            Some(kept) => kept.folded.grown(branch, &read.events, &cancellation),
            None => {
                let heuristics = &self.options.heuristics;
                FoldedWindow::of(branch, &read.events, heuristics, &cancellation)
            }
        };
        work::check()?;
        let is_wanted = branch.tools_defined.is_none() && branch.compaction.is_some();
        let earlier_tools = match kept {
            Some(kept) => Arc::clone(&kept.earlier_tools),
            None if is_wanted => {
                let tools = self.reads.earlier_tools(namespace, id, branch).await?;
                bytes += tools.memory_bytes();
                Arc::new(tools)
            }
            None => Arc::default(),
        };
        Ok(CachedWindow {
            head: branch.head,
            compaction: branch.compaction,
            items_bytes: folded.memory_bytes(),
            folded: Arc::new(folded),
            events: read.events,
            referred,
            earlier_tools,
            bytes,
        })
    }

    /// Returns the namespace's current long-term context; read again only when its conversation has
    /// grown.
    async fn long_term_now(&self, namespace: &Namespace) -> Result<Vec<LongTermEntry>, ReadError> {
        let row = self
            .reads
            .find_row(namespace, namespace.long_term_conversation())?;
        let Some(head) = row.map(|row| row.head) else {
            return Ok(Vec::new());
        };
        let key = (namespace.clone(), self.context.windows.erasures());
        if let Some(kept) = self.context.windows.long_term.get(&key)
            && kept.head == head
        {
            return Ok(kept.entries.clone());
        }
        let entries = self.reads.long_term(namespace, None).await?;
        let kept = CachedLongTerm {
            head,
            entries: entries.clone(),
        };
        self.context.windows.long_term.insert(key, Arc::new(kept));
        Ok(entries)
    }
}

impl ReadPath {
    /// Returns the segments of a branch's history after its last compaction's cut, oldest first.
    /// Does not search further back than the cut.
    fn open_segments(
        &self,
        id: ConversationKey,
        branch: &BranchState,
    ) -> Result<Vec<Segment>, ReadError> {
        // A cut is a revision of the compacted conversation; segments inherited from another
        // conversation are older.
        let cut_in = |segment: &Segment| {
            branch
                .compaction
                .is_some_and(|compaction| compaction.conversation == segment.conversation.id)
        };
        let starts_after_cut = |segment: &Segment| segment.first > branch.cut;
        let mut segments = self.history().lineage_while(id, branch, |segment| {
            !cut_in(segment) || starts_after_cut(segment)
        })?;
        segments.retain_mut(|segment| {
            if !cut_in(segment) {
                return true;
            }
            segment.first = segment.first.max(branch.cut.next());
            segment.first <= segment.last
        });
        segments.reverse();
        Ok(segments)
    }

    async fn read_segment(
        &self,
        namespace: &Namespace,
        segment: &Segment,
        read: &mut SizedEvents,
    ) -> Result<(), ReadError> {
        let history = self.history();
        let mut next = segment.first;
        while next <= segment.last {
            let page = history.projections.entries(
                segment.conversation,
                next,
                segment.last,
                ENTRIES_PAGE,
                false,
            )?;
            let Some(last) = page.last() else { break };
            next = last.revision.next();
            let own: Vec<EventEntry> = page
                .into_iter()
                .filter(|entry| entry.branch == segment.branch && speaks(entry.kind))
                .collect();
            let mut rest = own.as_slice();
            while !rest.is_empty() {
                let records = history.records(namespace, rest, PAGE_BYTES).await?;
                let (found, later) = rest.split_at(records.len());
                rest = later;
                for (entry, record) in found.iter().zip(records) {
                    let body = history.reader.body_to_keep(&record).await?;
                    read.bytes += event_bytes(body.len() as u64);
                    read.events.push(Arc::new(WindowEvent {
                        at: EventRef {
                            conversation: segment.conversation.id,
                            revision: entry.revision,
                        },
                        offset: entry.offset,
                        recorded_at: record.header.recorded_at,
                        body: decode_body(entry.offset, record.header.kind, &body)?,
                    }));
                }
            }
        }
        Ok(())
    }

    /// Returns one event, decoded.
    pub(super) async fn window_event(
        &self,
        namespace: &Namespace,
        at: EventRef,
    ) -> Result<Arc<WindowEvent>, ReadError> {
        Ok(self.sized_event(namespace, at).await?.0)
    }

    /// Returns one event and its memory size.
    async fn sized_event(
        &self,
        namespace: &Namespace,
        at: EventRef,
    ) -> Result<(Arc<WindowEvent>, u64), ReadError> {
        work::check()?;
        let found = self.history().event(namespace, at).await?;
        let (offset, record) = found.ok_or_else(|| {
            let EventRef {
                conversation,
                revision,
            } = at;
            ReadError::storage(format!(
                "the projections have no revision {revision} of conversation {conversation}"
            ))
        })?;
        let body = self.reader.body_to_keep(&record).await?;
        let event = WindowEvent {
            at,
            offset,
            recorded_at: record.header.recorded_at,
            body: decode_body(offset, record.header.kind, &body)?,
        };
        Ok((Arc::new(event), event_bytes(body.len() as u64)))
    }
}

fn speaks(kind: u16) -> bool {
    !SILENT.iter().any(|silent| silent.number() == kind)
}

fn references(branch: &BranchState) -> BTreeSet<EventRef> {
    let single = [
        branch.system_prompt,
        branch.user_prompt,
        branch.tools_defined,
        branch.summary,
        branch.compaction,
    ];
    single
        .into_iter()
        .flatten()
        .chain(branch.preamble.iter().copied())
        .chain(branch.active_context.values().copied())
        .collect()
}
