//! The past: lineages, and branches as they were at any revision.
//!
//! A state of the past is a snapshot and a tail of at most
//! [`SNAPSHOT_EVERY_EVENTS`](crate::domain::SNAPSHOT_EVERY_EVENTS) events, which
//! may run through several forks.

use std::sync::Arc;

use bytes::Bytes;

use super::error::ReadError;
use crate::{
    codec,
    domain::{
        BranchId, BranchName, BranchState, ConversationId, Custom, EventBody, EventKind, EventRef,
        ForkPoint, PastBranch, Position, Revision, StoredEvent,
    },
    log::{LogError, LogReader, Record},
    views::{EventEntry, Views},
};

/// Entries read at once.
pub(super) const ENTRIES_PAGE: usize = 512;

/// A part of a branch's history: the own events of one branch, both ends
/// inclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub conversation: ConversationId,
    pub branch: BranchId,
    pub name: BranchName,
    pub first: Revision,
    pub last: Revision,
    /// Where it left the next segment's branch.
    pub fork: Option<ForkPoint>,
}

/// Own events of a branch that are to be folded in.
struct Tail {
    /// The branch, and the last of the events.
    place: ForkPoint,
    first: Revision,
    /// Where it left another branch; none when the base is a state of its own.
    fork: Option<ForkPoint>,
}

/// Reads the past from views and log.
#[derive(Clone)]
pub(super) struct History {
    pub views: Arc<Views>,
    pub reader: Arc<LogReader>,
}

impl History {
    /// The history of a branch, from itself up to the root.
    pub fn lineage(
        &self,
        conversation: ConversationId,
        branch: &BranchState,
    ) -> Result<Vec<Segment>, ReadError> {
        self.lineage_while(conversation, branch, |_| true)
    }

    /// The same, up to the first segment after which nothing more is wanted.
    pub fn lineage_while(
        &self,
        conversation: ConversationId,
        branch: &BranchState,
        mut go_on: impl FnMut(&Segment) -> bool,
    ) -> Result<Vec<Segment>, ReadError> {
        let mut segments = Vec::new();
        let mut conversation = conversation;
        let mut branch = branch.clone();
        let mut last = branch.head;
        loop {
            let first = first_own(branch.id);
            if first <= last {
                let segment = segment(conversation, &branch, last);
                let more = go_on(&segment);
                segments.push(segment);
                if !more {
                    return Ok(segments);
                }
            }
            let Some(point) = branch.fork else {
                return Ok(segments);
            };
            last = bound(first, last, point);
            conversation = point.conversation;
            branch = self.branch(point.conversation, point.branch)?;
        }
    }

    /// A branch just after a revision of its history, and whether a tool call
    /// came next. None: the revision is not in its history.
    pub async fn branch_at(
        &self,
        conversation: ConversationId,
        branch: BranchId,
        revision: Revision,
    ) -> Result<Option<PastBranch>, ReadError> {
        let Some((owner, leaves_at)) = self.owner_of(conversation, branch, revision)? else {
            return Ok(None);
        };
        let until = leaves_at.unwrap_or(owner.head);
        let next = self
            .views
            .entries(conversation, revision.next(), until, ENTRIES_PAGE, false)?
            .into_iter()
            .find(|entry| entry.branch == owner.id);
        let followed_by_call =
            next.is_some_and(|entry| entry.kind == EventKind::ToolCallRequested.number());
        let state = self.state_of(conversation, owner.id, revision).await?;
        Ok(Some(PastBranch {
            state: Arc::new(state),
            followed_by_call,
        }))
    }

    /// The branch that a revision of another branch's history was appended to,
    /// and where that history leaves it.
    fn owner_of(
        &self,
        conversation: ConversationId,
        branch: BranchId,
        revision: Revision,
    ) -> Result<Option<(BranchState, Option<Revision>)>, ReadError> {
        let mut leaves_at: Option<Revision> = None;
        let mut id = branch;
        loop {
            let Some(state) = self.views.branch(conversation, id)? else {
                return Ok(None);
            };
            if revision >= first_own(state.id) {
                let within = revision <= leaves_at.unwrap_or(state.head);
                let entry = self
                    .views
                    .entries(conversation, revision, revision, 1, false)?;
                let own = entry.first().is_some_and(|entry| entry.branch == state.id);
                return Ok((within && own).then_some((state, leaves_at)));
            }
            match state.fork {
                Some(point) if point.conversation == conversation => {
                    let bound = leaves_at.map_or(point.revision, |at| at.min(point.revision));
                    leaves_at = Some(bound);
                    id = point.branch;
                }
                _ => return Ok(None),
            }
        }
    }

    /// The state of a branch just after one of its own revisions.
    async fn state_of(
        &self,
        conversation: ConversationId,
        branch: BranchId,
        revision: Revision,
    ) -> Result<BranchState, ReadError> {
        let mut tails = Vec::new();
        let mut at = ForkPoint {
            conversation,
            branch,
            revision,
        };
        let mut base = loop {
            let snapshot =
                self.views
                    .snapshot_at_or_before(at.conversation, at.branch, at.revision)?;
            if let Some(snapshot) = snapshot {
                tails.push(Tail {
                    place: at,
                    first: snapshot.head.next(),
                    fork: None,
                });
                break snapshot;
            }
            let state = self.branch(at.conversation, at.branch)?;
            let first = first_own(at.branch);
            if first <= at.revision {
                tails.push(Tail {
                    place: at,
                    first,
                    fork: state.fork,
                });
            }
            match state.fork {
                Some(point) => {
                    at = ForkPoint {
                        revision: bound(first, at.revision, point),
                        ..point
                    };
                }
                None => break BranchState::root(),
            }
        };
        for tail in tails.into_iter().rev() {
            base = self.fold_own(base, tail).await?;
        }
        Ok(base)
    }

    /// Folds own events of a branch in.
    async fn fold_own(&self, mut base: BranchState, tail: Tail) -> Result<BranchState, ReadError> {
        let Tail {
            place,
            first,
            mut fork,
        } = tail;
        let mut next = first;
        while next <= place.revision {
            let entries = self.views.entries(
                place.conversation,
                next,
                place.revision,
                ENTRIES_PAGE,
                false,
            )?;
            let Some(last) = entries.last() else { break };
            next = last.revision.next();
            let own: Vec<_> = entries
                .into_iter()
                .filter(|entry| entry.branch == place.branch)
                .collect();
            for (entry, record) in own.iter().zip(self.records(&own).await?) {
                let body = self.decode(entry.offset, &record).await?;
                if let Some(point) = fork.take() {
                    let name = match &body {
                        EventBody::BranchForked(forked) => forked.name.clone(),
                        _ => BranchName::default(),
                    };
                    base = base.forked(place.branch, name, point);
                }
                let at = EventRef {
                    conversation: place.conversation,
                    revision: entry.revision,
                };
                base.apply(at, &body);
            }
        }
        Ok(base)
    }

    /// The records of entries, in their order.
    pub async fn records(&self, entries: &[EventEntry]) -> Result<Vec<Record>, ReadError> {
        let mut records = Vec::with_capacity(entries.len());
        let mut rest = entries;
        while let Some(first) = rest.first() {
            let run = consecutive(rest);
            if run == 1 {
                records.push(self.reader.record(first.offset).await?);
            } else {
                let found = self.reader.records(first.offset, run, usize::MAX).await?;
                if found.len() < run {
                    return Err(LogError::NotFound {
                        offset: first.offset,
                    }
                    .into());
                }
                records.extend(found.into_iter().map(|(_, record)| record));
            }
            rest = &rest[run..];
        }
        Ok(records)
    }

    /// A record's body, decoded. One of a kind that this version does not know
    /// reads as an empty custom event.
    pub async fn decode(&self, offset: u64, record: &Record) -> Result<EventBody, ReadError> {
        let bytes = self.reader.body(record).await?;
        decode_body(offset, record.header.kind, &bytes)
    }

    /// The branch's row.
    pub fn branch(
        &self,
        conversation: ConversationId,
        branch: BranchId,
    ) -> Result<BranchState, ReadError> {
        self.views
            .branch(conversation, branch)?
            .ok_or_else(|| ReadError::Storage {
                message: format!(
                    "the views have no branch {branch} of conversation {conversation}"
                ),
            })
    }
}

/// Decodes a stored body.
pub(super) fn decode_body(offset: u64, kind: u16, bytes: &Bytes) -> Result<EventBody, ReadError> {
    let Some(kind) = EventKind::from_number(kind) else {
        return Ok(EventBody::Custom(Custom {
            type_name: String::new(),
            content_type: String::new(),
            data: Bytes::new(),
        }));
    };
    codec::body::decode(kind, bytes).map_err(|fault| ReadError::Damaged {
        position: Position::local(offset),
        message: fault.to_string(),
    })
}

/// A record as readers see it.
pub(super) fn stored(offset: u64, record: Record, body: Bytes) -> StoredEvent {
    StoredEvent {
        header: record.header,
        position: Position::local(offset),
        chain_hash: record.chain_hash,
        body,
    }
}

/// The first revision that can be a branch's own.
pub(super) fn first_own(branch: BranchId) -> Revision {
    Revision(branch.0.max(1))
}

/// The last revision that is shared with the branch that was left. A fork at an
/// inherited revision skips the branch that inherited it.
fn bound(first: Revision, last: Revision, point: ForkPoint) -> Revision {
    if first <= last {
        point.revision
    } else {
        point.revision.min(last)
    }
}

fn segment(conversation: ConversationId, branch: &BranchState, last: Revision) -> Segment {
    Segment {
        conversation,
        branch: branch.id,
        name: branch.name.clone(),
        first: first_own(branch.id),
        last,
        fork: branch.fork,
    }
}

/// How many entries from the first on follow each other in the log.
fn consecutive(entries: &[EventEntry]) -> usize {
    let mut run = 1;
    while run < entries.len() && entries[run].offset == entries[run - 1].offset + 1 {
        run += 1;
    }
    run
}
