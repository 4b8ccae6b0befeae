//! The past: lineages, and branch states as of any revision.
//!
//! A past state is computed from a snapshot and at most
//! [`SNAPSHOT_EVERY_EVENTS`](treering_domain::SNAPSHOT_EVERY_EVENTS) later events, which may span
//! several forks.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    error::ReadError,
    work::{self, CancelToken},
};
use treering_domain::{
    BranchId, BranchName, BranchState, ConversationKey, Custom, EventBody, EventKind, EventRef,
    ForkPoint, Namespace, PastBranch, Position, Revision, StoredEvent,
};
use treering_log::{LogError, LogReader, Record, RecordBody, reader::record_bytes};
use treering_projections::{Ancestor, EventEntry, Projections};
use treering_proto::{self, tags};

/// Entries per read.
pub(super) const ENTRIES_PAGE: usize = 512;

/// Entries in the first read of a search that usually ends at the first entry.
const ENTRIES_FIRST: usize = 8;

/// Bytes of records, bodies included, per read.
pub(super) const PAGE_BYTES: usize = 1 << 20;

/// A part of a branch's history: own events of one branch, both ends inclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(crate) conversation: ConversationKey,
    pub(crate) branch: BranchId,
    pub(crate) name: BranchName,
    pub(crate) first: Revision,
    pub(crate) last: Revision,
    /// The point where this branch forked from the next segment's branch.
    pub(crate) fork: Option<ForkPoint>,
}

/// A branch's own events that are to be applied.
struct Tail {
    /// The branch, and the last of its events to apply.
    place: ForkPoint,
    first: Revision,
    /// The point where it forked; `None` when the base already is a state of this branch.
    fork: Option<ForkPoint>,
}

/// Reads the past from the projections and the log.
#[derive(Clone)]
pub(super) struct History {
    pub(crate) projections: Arc<Projections>,
    pub(crate) reader: Arc<LogReader>,
}

impl History {
    /// Returns the segments of a branch's history, from the branch up to the root.
    pub(crate) fn lineage(
        &self,
        conversation: ConversationKey,
        branch: &BranchState,
    ) -> Result<Vec<Segment>, ReadError> {
        self.lineage_while(conversation, branch, |_| true)
    }

    /// Like [`Self::lineage`], but stops after the first segment for which `go_on` returns false.
    pub(crate) fn lineage_while(
        &self,
        conversation: ConversationKey,
        branch: &BranchState,
        mut go_on: impl FnMut(&Segment) -> bool,
    ) -> Result<Vec<Segment>, ReadError> {
        let mut up = LineageBuilder {
            segments: Vec::new(),
            last: branch.head,
        };
        let own = Ancestor {
            conversation,
            branch: branch.id,
            name: branch.name.clone(),
            fork: branch.fork,
        };
        let goes_on = up.visit(&own, &mut go_on);
        let Some(point) = branch.fork.filter(|_| goes_on) else {
            return Ok(up.segments);
        };
        let parent = conversation.sibling(point.conversation);
        self.ancestors(parent, point.branch, |ancestor| {
            up.visit(ancestor, &mut go_on)
        })?;
        Ok(up.segments)
    }

    /// Like [`Self::lineage`], up to a revision, without reading the branch's state.
    pub(crate) fn lineage_to(
        &self,
        conversation: ConversationKey,
        branch: BranchId,
        last: Revision,
    ) -> Result<Vec<Segment>, ReadError> {
        let mut up = LineageBuilder {
            segments: Vec::new(),
            last,
        };
        self.ancestors(conversation, branch, |ancestor| {
            up.visit(ancestor, &mut |_| true)
        })?;
        Ok(up.segments)
    }

    /// Returns the tags of a record's event; a headers-only read returns nothing else of the body.
    pub(crate) fn found_by(&self, record: &Record) -> Result<Bytes, ReadError> {
        let header = &record.header;
        match &record.body {
            RecordBody::Inline(bytes) => Ok(tags::alone(header.kind, bytes)),
            RecordBody::Stub(stub) => Ok(tags::alone(header.kind, &stub.bytes)),
            RecordBody::Blob(_) => {
                let found = self
                    .projections
                    .tags_of_large(header.key(), header.revision)?;
                let found = found.map(|(type_name, tags)| tags::found_by(&tags, &type_name));
                Ok(found.unwrap_or_default())
            }
        }
    }

    /// Visits the branches from `branch` up to the root; each must exist.
    fn ancestors(
        &self,
        conversation: ConversationKey,
        branch: BranchId,
        mut visit: impl FnMut(&Ancestor) -> bool,
    ) -> Result<(), ReadError> {
        let (stop, mut stopped) = (work::current(), false);
        let missing = self
            .projections
            .ancestors(conversation, branch, |ancestor| {
                stopped = stop.as_ref().is_some_and(CancelToken::is_set);
                !stopped && visit(ancestor)
            })?;
        match missing {
            Some((conversation, branch)) => Err(no_branch(conversation, branch)),
            None if stopped => Err(ReadError::Stopped),
            None => Ok(()),
        }
    }

    /// Returns a branch's state just after a revision, and whether a tool call came next; `None` if
    /// the revision is not in its history.
    pub(crate) async fn branch_at(
        &self,
        conversation: ConversationKey,
        branch: BranchId,
        revision: Revision,
    ) -> Result<Option<PastBranch>, ReadError> {
        let Some((owner, leaves_at)) = self.owner_of(conversation, branch, revision)? else {
            return Ok(None);
        };
        let until = leaves_at.unwrap_or(owner.head);
        let state = self.state_of(conversation, owner.id, revision).await?;
        let followed_by_call = state.at_turn_boundary()
            && self
                .next_own(conversation, owner.id, revision, until)?
                .is_some_and(|next| next.kind == EventKind::ToolCallRequested.number());
        Ok(Some(PastBranch {
            state: Arc::new(state),
            followed_by_call,
        }))
    }

    /// Returns the branch's next own event, skipping events of other branches.
    fn next_own(
        &self,
        conversation: ConversationKey,
        branch: BranchId,
        after: Revision,
        until: Revision,
    ) -> Result<Option<EventEntry>, ReadError> {
        let (mut from, mut page) = (after.next(), ENTRIES_FIRST);
        loop {
            work::check()?;
            let entries = self
                .projections
                .entries(conversation, from, until, page, false)?;
            let Some(last) = entries.last() else {
                return Ok(None);
            };
            from = last.revision.next();
            let own = entries.into_iter().find(|entry| entry.branch == branch);
            if own.is_some() {
                return Ok(own);
            }
            page = ENTRIES_PAGE;
        }
    }

    /// Returns the owner of a revision in a branch's history: the branch that the revision was
    /// appended to. The second value is the owner's last revision in that history, or `None` if the
    /// owner is the branch itself. Returns `None` if the revision is not in the history.
    pub(crate) fn owner_of(
        &self,
        conversation: ConversationKey,
        branch: BranchId,
        revision: Revision,
    ) -> Result<Option<(BranchState, Option<Revision>)>, ReadError> {
        let (mut leaves_at, mut owner): (Option<Revision>, _) = (None, None);
        let missing = self
            .projections
            .ancestors(conversation, branch, |ancestor| {
                if revision >= first_own(ancestor.branch) {
                    owner = Some(ancestor.branch);
                    return false;
                }
                match ancestor.fork {
                    Some(point) if point.conversation == conversation.id => {
                        let bound = leaves_at.map_or(point.revision, |at| at.min(point.revision));
                        leaves_at = Some(bound);
                        true
                    }
                    _ => false,
                }
            })?;
        let Some(owner) = owner.filter(|_| missing.is_none()) else {
            return Ok(None);
        };
        let state = self.branch(conversation, owner)?;
        let within = revision <= leaves_at.unwrap_or(state.head);
        let entry = self.projections.entry(conversation, revision)?;
        let own = entry.is_some_and(|entry| entry.branch == owner);
        Ok((within && own).then_some((state, leaves_at)))
    }

    /// Computes the state of a branch just after one of its own revisions.
    async fn state_of(
        &self,
        conversation: ConversationKey,
        branch: BranchId,
        revision: Revision,
    ) -> Result<BranchState, ReadError> {
        let mut tails = Vec::new();
        let mut at = ForkPoint {
            conversation: conversation.id,
            branch,
            revision,
        };
        let mut base = loop {
            work::check()?;
            let owner = conversation.sibling(at.conversation);
            let snapshot = self
                .projections
                .snapshot_at_or_before(owner, at.branch, at.revision)?;
            if let Some(snapshot) = snapshot {
                tails.push(Tail {
                    place: at,
                    first: snapshot.head.next(),
                    fork: None,
                });
                break snapshot;
            }
            let state = self.branch(owner, at.branch)?;
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
            base = self.fold_own(conversation, base, tail).await?;
        }
        Ok(base)
    }

    /// Applies a branch's own events; the branch is in the conversation `heir` or in an ancestor of
    /// it.
    async fn fold_own(
        &self,
        heir: ConversationKey,
        mut base: BranchState,
        tail: Tail,
    ) -> Result<BranchState, ReadError> {
        let Tail {
            place,
            first,
            mut fork,
        } = tail;
        let conversation = heir.sibling(place.conversation);
        let namespace = self.namespace_of(conversation)?;
        let mut next = first;
        while next <= place.revision {
            let entries = self.projections.entries(
                conversation,
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
            let mut rest = own.as_slice();
            while !rest.is_empty() {
                let records = self.records(&namespace, rest, PAGE_BYTES).await?;
                let (read, later) = rest.split_at(records.len());
                rest = later;
                for (entry, record) in read.iter().zip(records) {
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
        }
        Ok(base)
    }

    /// Returns the records of the first entries, in order: about `bytes_max` bytes including
    /// bodies, and at least one record. Each is checked to be the event that the projections name.
    pub(crate) async fn records(
        &self,
        namespace: &Namespace,
        entries: &[EventEntry],
        bytes_max: usize,
    ) -> Result<Vec<Record>, ReadError> {
        let (mut records, mut bytes) = (Vec::new(), 0_usize);
        while let Some(first) = entries.get(records.len())
            && (bytes < bytes_max || records.is_empty())
        {
            work::check()?;
            let rest = &entries[records.len()..];
            let run = consecutive(rest);
            let found = if run == 1 {
                vec![(first.offset, self.reader.record(first.offset).await?)]
            } else {
                let room = (bytes_max - bytes.min(bytes_max)).max(1);
                self.reader.records(first.offset, run, room).await?
            };
            if found.is_empty() {
                return Err(LogError::NotFound {
                    offset: first.offset,
                }
                .into());
            }
            for (entry, (_, record)) in rest.iter().zip(found) {
                same_event(entry, namespace, &record)?;
                bytes = bytes.saturating_add(record_bytes(&record));
                records.push(record);
            }
        }
        Ok(records)
    }

    /// Returns the record of one event; `None` if the projections lack it.
    pub(crate) async fn event(
        &self,
        namespace: &Namespace,
        at: EventRef,
    ) -> Result<Option<(u64, Record)>, ReadError> {
        let conversation = namespace.key(at.conversation);
        let Some(entry) = self.projections.entry(conversation, at.revision)? else {
            return Ok(None);
        };
        let record = self.reader.record(entry.offset).await?;
        same_event(&entry, namespace, &record)?;
        Ok(Some((entry.offset, record)))
    }

    fn namespace_of(&self, conversation: ConversationKey) -> Result<Namespace, ReadError> {
        let row = self.projections.conversation(conversation)?;
        row.map(|row| row.namespace)
            .ok_or_else(|| no_branch(conversation, BranchId::MAIN))
    }

    /// Decodes a record's body. An unknown kind decodes as an empty custom event.
    pub(crate) async fn decode(
        &self,
        offset: u64,
        record: &Record,
    ) -> Result<EventBody, ReadError> {
        let bytes = self.reader.body(record).await?;
        decode_body(offset, record.header.kind, &bytes)
    }

    /// Returns the branch's row.
    pub(crate) fn branch(
        &self,
        conversation: ConversationKey,
        branch: BranchId,
    ) -> Result<BranchState, ReadError> {
        self.projections
            .branch(conversation, branch)?
            .ok_or_else(|| no_branch(conversation, branch))
    }

    /// Returns the branch's current name, without reading the rest of its state.
    ///
    /// # Errors
    /// [`ReadError`] when the branch does not exist.
    pub(crate) fn branch_name(
        &self,
        conversation: ConversationKey,
        branch: BranchId,
    ) -> Result<BranchName, ReadError> {
        let mut name = None;
        self.projections.ancestors(conversation, branch, |branch| {
            name = Some(branch.name.clone());
            false
        })?;
        name.ok_or_else(|| no_branch(conversation, branch))
    }
}

/// A lineage under construction, from the branch upwards.
struct LineageBuilder {
    segments: Vec<Segment>,
    /// The last revision of the branch visited next.
    last: Revision,
}

impl LineageBuilder {
    /// Adds a branch's segment; returns false when `go_on` says to stop.
    fn visit(&mut self, ancestor: &Ancestor, go_on: &mut impl FnMut(&Segment) -> bool) -> bool {
        let first = first_own(ancestor.branch);
        if first <= self.last {
            let segment = Segment {
                conversation: ancestor.conversation,
                branch: ancestor.branch,
                name: ancestor.name.clone(),
                first,
                last: self.last,
                fork: ancestor.fork,
            };
            let more = go_on(&segment);
            self.segments.push(segment);
            if !more {
                return false;
            }
        }
        if let Some(point) = ancestor.fork {
            self.last = bound(first, self.last, point);
        }
        true
    }
}

fn no_branch(conversation: ConversationKey, branch: BranchId) -> ReadError {
    let what = format!(
        "the projections have no branch {branch} of conversation {}",
        conversation.id
    );
    ReadError::storage(what)
}

/// Checks that the log has the event that the projections or the index name. Otherwise one of them
/// belongs to another store.
pub(super) fn same_event(
    named: &EventEntry,
    namespace: &Namespace,
    record: &Record,
) -> Result<(), ReadError> {
    let header = &record.header;
    let same = header.key() == named.conversation
        && header.revision == named.revision
        && header.branch == named.branch
        && header.kind == named.kind
        && header.namespace == *namespace;
    if same {
        return Ok(());
    }
    let found = if header.namespace == *namespace {
        format!(
            "revision {} of conversation {} (branch {}, kind {})",
            header.revision, header.conversation, header.branch, header.kind
        )
    } else {
        "an event of another namespace".to_owned()
    };
    Err(ReadError::Damaged {
        position: Position::local(named.offset),
        message: format!(
            "expected revision {} of conversation {} (branch {}, kind {}), found {found}",
            named.revision, named.conversation.id, named.branch, named.kind
        ),
    })
}

/// Decodes a stored body.
pub(super) fn decode_body(offset: u64, kind: u16, bytes: &Bytes) -> Result<EventBody, ReadError> {
    let Some(kind) = EventKind::from_number(kind) else {
        return Ok(EventBody::Custom(Custom {
            type_name: String::new(),
            content_type: String::new(),
            data: Bytes::new(),
            text: String::new(),
            delta_of: String::new(),
        }));
    };
    treering_proto::body::decode(kind, bytes).map_err(|fault| ReadError::Damaged {
        position: Position::local(offset),
        message: fault.to_string(),
    })
}

/// Converts a record to the event that readers get.
pub(super) fn stored(position: Position, record: Record, body: Bytes) -> StoredEvent {
    let erased = record.is_erased();
    let (header, chain_hash) = record.into_header();
    StoredEvent {
        chain_hash,
        header,
        position,
        body,
        erased,
    }
}

/// Returns the first revision that can be a branch's own.
pub(super) fn first_own(branch: BranchId) -> Revision {
    Revision(branch.0.max(1))
}

/// Returns the last revision shared with the parent branch. A fork at an inherited revision skips
/// the branch that inherited it.
fn bound(first: Revision, last: Revision, point: ForkPoint) -> Revision {
    if first <= last {
        point.revision
    } else {
        point.revision.min(last)
    }
}

/// Returns how many of the first entries are adjacent in the log.
fn consecutive(entries: &[EventEntry]) -> usize {
    let mut run = 1;
    while run < entries.len() && entries[run].offset == entries[run - 1].offset + 1 {
        run += 1;
    }
    run
}
