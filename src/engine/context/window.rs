//! Reading windows: the events after the last compaction's cut, and those that
//! the branch's state refers to.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    context::window::{WindowEvent, WindowInput},
    domain::{
        BranchName, BranchState, ConversationId, EventKind, EventRef, Namespace, Position, Revision,
    },
    engine::{
        Inner,
        error::ReadError,
        history::{ENTRIES_PAGE, Segment, stored},
    },
    views::EventEntry,
};

/// Kinds that say nothing to a model.
const SILENT: [EventKind; 6] = [
    EventKind::AnnotationAdded,
    EventKind::Custom,
    EventKind::ContentErased,
    EventKind::BranchActivated,
    EventKind::BranchRenamed,
    EventKind::BranchArchived,
];

impl Inner {
    /// Everything that a request of a branch is made of, now or as of a revision.
    pub(super) async fn window(
        &self,
        namespace: &Namespace,
        id: ConversationId,
        branch: Option<&BranchName>,
        as_of: Option<Revision>,
    ) -> Result<WindowInput, ReadError> {
        let row = self.row(namespace, id)?;
        let now = self.branch(namespace, id, branch)?;
        let branch = match as_of {
            Some(revision) => self.as_of(id, &now, revision).await?,
            None => now,
        };
        let mut events = Vec::new();
        for segment in self.open_segments(id, &branch)? {
            self.read_segment(&segment, &mut events).await?;
        }
        let mut referred = BTreeMap::new();
        for at in references(&branch) {
            referred.insert(at, self.window_event(at).await?);
        }
        let position = match as_of {
            Some(revision) => self.views.load().offset(id, revision)?,
            None => None,
        };
        let long_term = self
            .long_term(namespace, position.map(Position::local))
            .await?;
        Ok(WindowInput {
            conversation: id,
            info: Arc::clone(&row.info),
            revision: branch.head,
            branch,
            events,
            referred,
            long_term,
        })
    }

    /// The parts of a branch's history after its last compaction's cut, oldest
    /// first.
    fn open_segments(
        &self,
        id: ConversationId,
        branch: &BranchState,
    ) -> Result<Vec<Segment>, ReadError> {
        let mut open = Vec::new();
        for mut segment in self.history().lineage(id, branch)? {
            if let Some(compaction) = branch.compaction
                && segment.conversation == compaction.conversation
            {
                if segment.last <= branch.cut {
                    break;
                }
                segment.first = segment.first.max(branch.cut.next());
                let all = segment.first == branch.cut.next();
                open.push(segment);
                if all {
                    break;
                }
                continue;
            }
            open.push(segment);
        }
        open.reverse();
        Ok(open)
    }

    async fn read_segment(
        &self,
        segment: &Segment,
        events: &mut Vec<Arc<WindowEvent>>,
    ) -> Result<(), ReadError> {
        let history = self.history();
        let mut next = segment.first;
        while next <= segment.last {
            let page = history.views.entries(
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
            for (entry, record) in own.iter().zip(history.records(&own).await?) {
                let body = history.decode(entry.offset, &record).await?;
                events.push(Arc::new(WindowEvent {
                    at: EventRef {
                        conversation: segment.conversation,
                        revision: entry.revision,
                    },
                    offset: entry.offset,
                    recorded_at: record.header.recorded_at,
                    body,
                }));
            }
        }
        Ok(())
    }

    /// One event, decoded.
    pub(super) async fn window_event(&self, at: EventRef) -> Result<Arc<WindowEvent>, ReadError> {
        let offset = self
            .views
            .load()
            .offset(at.conversation, at.revision)?
            .ok_or_else(|| ReadError::Storage {
                message: format!(
                    "the views have no revision {} of conversation {}",
                    at.revision, at.conversation
                ),
            })?;
        let record = self.reader.record(offset).await?;
        let body = self.history().decode(offset, &record).await?;
        let event = stored(offset, record, bytes::Bytes::new());
        Ok(Arc::new(WindowEvent {
            at,
            offset,
            recorded_at: event.header.recorded_at,
            body,
        }))
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
