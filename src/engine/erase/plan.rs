//! Finds the events to erase in a pass through the log: those requested, those derived from them,
//! and those that would reveal their content.
//!
//! One pass suffices if everything derived from an event follows it in the log. An import's title
//! and the result of an imported sub-context precede their sources: when such an event is found,
//! another pass includes it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    ops::RangeInclusive,
    sync::atomic::Ordering,
};

use bytes::Bytes;

use super::{
    EraseError, EraseItem, EraseOutcome, EraseReason, ErasedEvent, KeptBlob, SharedBy,
    erased_texts::{ALL_BYTES_MAX, ErasedTexts},
    literal::Literal,
};
use crate::{
    Inner,
    damage::{LogStretch, UnreadableRange, stretch},
    error::ReadError,
    history::decode_body,
};
use treering_domain::{
    BranchId, ConversationChanged, ConversationCreated, ConversationId, ConversationKey, EventBody,
    EventKind, ForkPoint, Namespace, Position, Revision,
};
use treering_log::{ErasableLog, Erasure, LogReader, Record, RecordBody};
use treering_proto as codec;

/// Maximum number of records per read, and their maximum size in bytes.
const RECORDS_MAX: usize = 2_048;
const RECORDS_BYTES_MAX: usize = 4 << 20;
/// Maximum number of events per erasure: their stubs are in memory until they are on the disk.
const EVENTS_MAX: usize = 1 << 20;

/// The selection of events to erase.
#[derive(Debug)]
pub(super) enum EraseSelection {
    Everything,
    /// These conversations, and those that they spawned.
    Tree(HashSet<ConversationId>),
    /// These conversations only.
    These(HashSet<ConversationId>),
    Revisions(ConversationId, Vec<RangeInclusive<u64>>),
    Literal(Literal),
    /// Events that were recorded as erased.
    Recorded(HashMap<ConversationKey, BTreeSet<Revision>>),
}

/// An event to be erased.
#[derive(Debug)]
pub(super) struct PlannedErasure {
    pub(crate) event: ErasedEvent,
    pub(crate) stub: Bytes,
}

/// Facts about a conversation.
#[derive(Debug, Default)]
pub(super) struct ConversationFacts {
    pub(super) gone: BTreeMap<Revision, BranchId>,
    /// The fork points of its branches.
    branches: HashMap<BranchId, ForkPoint>,
    /// Calls whose request or result is erased.
    calls: HashSet<String>,
    /// The fork point of its shared history, if it has one.
    inherits: Option<ForkPoint>,
    /// The first revision with content of its own, if it inherits.
    first_said: Option<Revision>,
    /// Calls that sub-contexts answer.
    pub(super) answered_by: HashMap<String, ConversationId>,
    /// Texts of erased content, to find repetitions.
    pub(super) echo: ErasedTexts,
}

/// The events that refer to a large body.
#[derive(Debug, Default)]
struct BlobUse {
    bytes: u64,
    goes: bool,
    stays: Option<u64>,
}

/// The plan of an erasure.
#[derive(Debug)]
pub(super) struct ErasePlan {
    /// `None` for all tenants, when the erased events are already known and nothing is derived from
    /// them.
    pub(super) namespace: Option<Namespace>,
    wanted: EraseSelection,
    keep_derived: bool,
    /// The offset up to which the log was read.
    reached: u64,
    /// The events to be erased, by offset.
    pub(crate) gone: BTreeMap<u64, PlannedErasure>,
    pub(super) known: HashMap<ConversationId, ConversationFacts>,
    blobs: BTreeMap<u64, BlobUse>,
    /// First and last offset of the batch with an idempotency key that is being read.
    batch: Option<(u64, u64)>,
    key_salts: BTreeSet<u64>,
    shared: Vec<SharedBy>,
    stay: u64,
    /// Offsets of derived events that precede their source: the next pass includes them.
    pub(super) also: BTreeSet<u64>,
    /// By sub-context: offset of the event with its purpose, and offsets of its results.
    pub(super) spawned: HashMap<ConversationId, u64>,
    pub(super) answers: HashMap<ConversationId, Vec<u64>>,
    /// Labels and metadata of events that are erased only because of the conversation's title.
    pub(super) described: BTreeMap<ConversationId, ConversationChanged>,
    /// Remaining room for texts that are compared with titles, in bytes.
    pub(super) echo_room: usize,
}

impl ErasePlan {
    pub(crate) fn new(
        namespace: Option<Namespace>,
        wanted: EraseSelection,
        keep_derived: bool,
    ) -> Self {
        // Content kept in other conversations has its own retention.
        let keep_derived = keep_derived || matches!(wanted, EraseSelection::These(_));
        Self {
            namespace,
            wanted,
            keep_derived,
            reached: 0,
            gone: BTreeMap::new(),
            known: HashMap::new(),
            blobs: BTreeMap::new(),
            batch: None,
            key_salts: BTreeSet::new(),
            shared: Vec::new(),
            stay: 0,
            also: BTreeSet::new(),
            spawned: HashMap::new(),
            answers: HashMap::new(),
            described: BTreeMap::new(),
            echo_room: ALL_BYTES_MAX,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.gone.is_empty()
    }

    /// Reads the log up to the published head.
    ///
    /// # Errors
    /// When a part cannot be read: it may contain content to be erased.
    pub(crate) async fn scan(
        &mut self,
        inner: &Inner,
        log: &dyn ErasableLog,
        report: impl FnMut(u64, u64),
    ) -> Result<(), EraseError> {
        let head = inner.reads.published.load(Ordering::Acquire);
        let mut report = report;
        let around = (!self.keep_derived).then_some(inner);
        loop {
            let known = self.also.len();
            let reader = &inner.reads.reader;
            let lost = self.read_to(around, reader, log, head, &mut report).await?;
            if let Some(lost) = lost {
                return Err(unread(&lost));
            }
            if self.also.len() == known {
                return Ok(());
            }
            self.begin_again();
        }
    }

    /// Restarts the pass with the derived events that precede their source.
    fn begin_again(&mut self) {
        let wanted = std::mem::replace(&mut self.wanted, EraseSelection::Everything);
        *self = Self {
            also: std::mem::take(&mut self.also),
            ..Self::new(self.namespace.clone(), wanted, self.keep_derived)
        };
    }

    /// Reads the log up to an offset, and finds repetitions of erased content, if `around` is set.
    /// Skips what cannot be read, and returns the first such range whose loss was not accepted.
    ///
    /// # Errors
    /// When a readable record cannot be decoded, or the log cannot be read at all.
    pub(crate) async fn read_to(
        &mut self,
        around: Option<&Inner>,
        reader: &LogReader,
        log: &dyn ErasableLog,
        head: u64,
        mut report: impl FnMut(u64, u64),
    ) -> Result<Option<UnreadableRange>, EraseError> {
        let accepted = log.accepted_losses();
        let mut lost = None;
        while self.reached < head {
            let next = self.reached + 1;
            let read = stretch(reader, next, head, RECORDS_MAX, RECORDS_BYTES_MAX).await;
            match read.map_err(ReadError::from)? {
                LogStretch::Records(records) => {
                    for (offset, record) in records {
                        self.record(around, reader, offset, &record).await?;
                        self.reached = offset;
                    }
                }
                LogStretch::Lost(stretch) => {
                    self.reached = stretch.last;
                    if !is_accepted(&stretch, &accepted) {
                        lost.get_or_insert(stretch);
                    }
                }
            }
            report(self.reached, head);
        }
        Ok(lost)
    }

    async fn record(
        &mut self,
        around: Option<&Inner>,
        reader: &LogReader,
        offset: u64,
        record: &Record,
    ) -> Result<(), EraseError> {
        if let Some(key) = &record.append_key {
            let last = offset.saturating_add(u64::from(key.events).saturating_sub(1));
            self.batch = Some((offset, last));
        }
        let header = &record.header;
        let is_ours = self
            .namespace
            .as_ref()
            .is_none_or(|ours| *ours == header.namespace);
        let mut goes = false;
        if is_ours {
            let bytes = self.bytes_of(reader, record).await?;
            let body = match &bytes {
                Some(bytes) => Some(decode_body(offset, header.kind, bytes)?),
                None => None,
            };
            if let Some(body) = &body {
                self.note(offset, record, body);
            }
            self.note_said(record);
            let why = match record.is_erased() {
                true => None,
                false => self.why(offset, record, bytes.as_ref(), body.as_ref()),
            };
            if let Some(why) = why {
                let body = self.take(reader, offset, record, why).await?;
                if let Some(inner) = around {
                    self.find_repetitions(inner, header.conversation, &body)
                        .await?;
                }
                goes = true;
            } else if let Some(body) = body.filter(|_| !record.is_erased()) {
                self.note_answer(offset, record, &body);
            }
            self.note_header(record, goes);
        }
        if let RecordBody::Blob(blob) = &record.body {
            let known = self.blobs.entry(blob.home_offset).or_default();
            known.bytes = blob.bytes_len;
            known.goes |= goes;
            if !goes {
                known.stays.get_or_insert(offset);
            }
        }
        Ok(())
    }

    /// Reads the body if it must be examined.
    async fn bytes_of(
        &self,
        reader: &LogReader,
        record: &Record,
    ) -> Result<Option<Bytes>, EraseError> {
        let is_looked_at = match record.header.kind() {
            Some(
                EventKind::ConversationCreated
                | EventKind::BranchForked
                | EventKind::SubContextSpawned,
            ) => true,
            Some(EventKind::ToolCallRequested | EventKind::ToolResultRecorded)
                if self.waits(record.header.conversation) =>
            {
                !record.is_erased()
            }
            Some(EventKind::ContentErased) => !record.is_erased(),
            Some(kind) if follows_others(kind) => !record.is_erased(),
            _ => matches!(self.wanted, EraseSelection::Literal(_)) && !record.is_erased(),
        };
        match is_looked_at {
            true => Ok(Some(reader.body(record).await.map_err(ReadError::from)?)),
            false => Ok(None),
        }
    }

    /// Records the relations from which derived events are found.
    fn note(&mut self, offset: u64, record: &Record, body: &EventBody) {
        let header = &record.header;
        match body {
            EventBody::BranchForked(forked) => {
                let point = ForkPoint {
                    conversation: header.conversation,
                    branch: forked.parent,
                    revision: forked.fork_revision,
                };
                let known = self.known.entry(header.conversation).or_default();
                known.branches.insert(header.branch, point);
            }
            EventBody::ConversationCreated(created) => self.note_parent(record, created),
            EventBody::SubContextSpawned(spawned) => {
                self.spawned.insert(spawned.conversation, offset);
                let known = self.known.entry(header.conversation).or_default();
                let call_id = spawned.call_id.clone();
                known.answered_by.insert(call_id, spawned.conversation);
            }
            EventBody::ToolCallRequested(call) => {
                if let Some(known) = self.known.get_mut(&header.conversation) {
                    // The call id is reused for another call.
                    known.answered_by.remove(&call.call_id);
                }
            }
            _ => {}
        }
    }

    /// Returns true when sub-contexts answer calls of a conversation.
    fn waits(&self, id: ConversationId) -> bool {
        let known = self.known.get(&id);
        known.is_some_and(|known| !known.answered_by.is_empty())
    }

    /// Records the first revision of an inheriting conversation that has its own content.
    fn note_said(&mut self, record: &Record) {
        let header = &record.header;
        let says = matches!(
            header.kind(),
            Some(
                EventKind::MessageAppended
                    | EventKind::ToolCallRequested
                    | EventKind::ToolResultRecorded
            )
        );
        if let Some(known) = self.known.get_mut(&header.conversation)
            && known.inherits.is_some()
            && says
        {
            known.first_said.get_or_insert(header.revision);
        }
    }

    /// Returns the sub-context whose result a body repeats.
    fn answer_of(&self, id: ConversationId, body: &EventBody) -> Option<ConversationId> {
        match body {
            EventBody::SubContextReturned(returned) => Some(returned.conversation),
            EventBody::ToolResultRecorded(result) => {
                let known = self.known.get(&id)?;
                known.answered_by.get(&result.call_id).copied()
            }
            _ => None,
        }
    }

    /// Records a result; in an import it precedes the sub-context that it comes from.
    fn note_answer(&mut self, offset: u64, record: &Record, body: &EventBody) {
        if let Some(child) = self.answer_of(record.header.conversation, body) {
            self.answers.entry(child).or_default().push(offset);
        }
    }

    fn note_parent(&mut self, record: &Record, created: &ConversationCreated) {
        let id = record.header.conversation;
        let Some(parent) = &created.parent else {
            return;
        };
        if !created.shares_history {
            if let EraseSelection::Tree(tree) = &mut self.wanted
                && tree.contains(&parent.conversation)
            {
                tree.insert(id);
            }
            return;
        }
        let point = ForkPoint {
            conversation: parent.conversation,
            branch: parent.branch,
            revision: parent.revision,
        };
        self.known.entry(id).or_default().inherits = Some(point);
        if self.is_touched(point) {
            self.shared.push(SharedBy {
                conversation: id,
                parent: point.conversation,
                revision: point.revision,
            });
        }
    }

    /// Returns true when an erased event is in the history of a branch up to a revision.
    fn is_touched(&self, mut at: ForkPoint) -> bool {
        while let Some(known) = self.known.get(&at.conversation) {
            let mut gone = known.gone.range(..=at.revision);
            if gone.any(|(_, branch)| *branch == at.branch) {
                return true;
            }
            at = match (known.branches.get(&at.branch), known.inherits) {
                (Some(point), _) => ForkPoint {
                    revision: point.revision.min(at.revision),
                    ..*point
                },
                (None, Some(point)) => point,
                (None, None) => return false,
            };
        }
        false
    }

    /// Returns why an event is erased, if it is.
    fn why(
        &self,
        offset: u64,
        record: &Record,
        bytes: Option<&Bytes>,
        body: Option<&EventBody>,
    ) -> Option<EraseReason> {
        let header = &record.header;
        // Without a reason, the event records an earlier erasure and has no other content.
        if let Some(EventBody::ContentErased { reason, .. }) = body
            && reason.is_empty()
        {
            return None;
        }
        let asked = match &self.wanted {
            EraseSelection::Everything => true,
            EraseSelection::Tree(tree) => tree.contains(&header.conversation),
            EraseSelection::These(these) => these.contains(&header.conversation),
            EraseSelection::Revisions(id, ranges) => {
                *id == header.conversation
                    && ranges
                        .iter()
                        .any(|range| range.contains(&header.revision.0))
            }
            EraseSelection::Literal(literal) => bytes.is_some_and(|bytes| literal.is_in(bytes)),
            EraseSelection::Recorded(listed) => listed
                .get(&header.key())
                .is_some_and(|revisions| revisions.contains(&header.revision)),
        };
        if asked {
            return Some(EraseReason::Asked);
        }
        if matches!(self.wanted, EraseSelection::Recorded(_)) {
            return None;
        }
        if self.also.contains(&offset) {
            return Some(EraseReason::Derived);
        }
        match body? {
            EventBody::ApprovalDecided(decided) => {
                let of = |known: &ConversationFacts| known.calls.contains(&decided.call_id);
                self.any_known(header.conversation, of)
                    .then_some(EraseReason::Bound)
            }
            body if !self.keep_derived && self.is_derived(record, body) => {
                Some(EraseReason::Derived)
            }
            _ => None,
        }
    }

    /// Returns true when an event repeats erased content in other words.
    fn is_derived(&self, record: &Record, body: &EventBody) -> bool {
        let header = &record.header;
        let up_to = |revision| ForkPoint {
            conversation: header.conversation,
            branch: header.branch,
            revision,
        };
        match body {
            EventBody::Compacted(compacted) => {
                self.is_touched(up_to(compacted.stands_until(header.revision)))
            }
            EventBody::SummaryRecorded(summary) => {
                let Some(known) = self.known.get(&header.conversation) else {
                    return false;
                };
                let range = summary.from_revision..=summary.to_revision;
                let own = !range.is_empty() && known.gone.range(range).next().is_some();
                // A summary from the beginning on also covers the inherited history.
                let from = summary.from_revision;
                let inherited = known
                    .inherits
                    .filter(|_| known.first_said.is_none_or(|first| from <= first));
                own || inherited.is_some_and(|point| self.is_touched(point))
            }
            EventBody::ToolSnapshotRecorded(snapshot) => {
                let of = |known: &ConversationFacts| known.calls.contains(&snapshot.call_id);
                self.any_known(header.conversation, of)
            }
            EventBody::SubContextReturned(_) | EventBody::ToolResultRecorded(_) => {
                let child = self.answer_of(header.conversation, body);
                let child = child.and_then(|child| self.known.get(&child));
                child.is_some_and(|child| !child.gone.is_empty())
            }
            EventBody::ConversationCreated(created) => {
                let echoes = |known: &ConversationFacts| known.echo.is_in_title(&created.title);
                self.any_known(header.conversation, echoes)
            }
            EventBody::ConversationChanged(changed) => {
                let title = changed.title.as_deref().unwrap_or_default();
                let echoes = |known: &ConversationFacts| known.echo.is_in_title(title);
                self.any_known(header.conversation, echoes)
            }
            EventBody::ConversationSealed { summary, .. } => {
                !summary.is_empty() && self.is_touched(up_to(header.revision))
            }
            _ => false,
        }
    }

    /// Checks a conversation and those whose history it shares.
    fn any_known(&self, id: ConversationId, found: impl Fn(&ConversationFacts) -> bool) -> bool {
        let mut next = self.known.get(&id);
        while let Some(known) = next {
            if found(known) {
                return true;
            }
            next = known
                .inherits
                .and_then(|point| self.known.get(&point.conversation));
        }
        false
    }

    async fn take(
        &mut self,
        reader: &LogReader,
        offset: u64,
        record: &Record,
        why: EraseReason,
    ) -> Result<EventBody, EraseError> {
        let header = &record.header;
        if header.kind().is_none() {
            return Err(EraseError::invalid(format!(
                "event {offset} was written by a newer version of treering: erase it with that \
                 version"
            )));
        }
        if self.gone.len() >= EVENTS_MAX {
            return Err(EraseError::invalid(format!(
                "more than {EVENTS_MAX} events would be erased: erase one conversation at a time"
            )));
        }
        let bytes = reader.body(record).await.map_err(ReadError::from)?;
        let body = decode_body(offset, header.kind, &bytes)?;
        let known = self.known.entry(header.conversation).or_default();
        known.gone.insert(header.revision, header.branch);
        match &body {
            EventBody::ToolCallRequested(call) => known.calls.insert(call.call_id.clone()),
            EventBody::ToolResultRecorded(result) => known.calls.insert(result.call_id.clone()),
            _ => false,
        };
        if why == EraseReason::Derived {
            self.note_described(header.conversation, &body);
        }
        let stub = codec::body::stub(&body, header.branch);
        let event = ErasedEvent {
            conversation: header.conversation,
            revision: header.revision,
            kind: header.kind,
            why,
        };
        self.gone.insert(offset, PlannedErasure { event, stub });
        let batch = self
            .batch
            .filter(|(first, last)| (*first..=*last).contains(&offset));
        self.key_salts.extend(batch.map(|(first, _)| first));
        Ok(body)
    }

    /// Records labels and metadata of an event that is erased only because of its title, so that
    /// they can be kept.
    fn note_described(&mut self, id: ConversationId, body: &EventBody) {
        let (labels, metadata) = match body {
            EventBody::ConversationCreated(created) => (&created.labels, &created.metadata),
            EventBody::ConversationChanged(changed) => (&changed.set_labels, &changed.set_metadata),
            _ => return,
        };
        let described = self.described.entry(id).or_default();
        described.set_labels.extend(labels.clone());
        described.set_metadata.extend(metadata.clone());
    }

    /// Counts events with the literal in parts that are never erased.
    fn note_header(&mut self, record: &Record, goes: bool) {
        let EraseSelection::Literal(literal) = &self.wanted else {
            return;
        };
        let header = &record.header;
        let key = record
            .append_key
            .as_ref()
            .map_or("", |key| key.key.as_str());
        let texts = [header.actor.as_str(), header.correlation_id.as_str(), key];
        let in_header = texts.iter().any(|text| literal.is_in(text.as_bytes()));
        let in_stub = match (goes, &record.body) {
            (true, _) => self.gone.last_key_value().map(|(_, gone)| &gone.stub),
            (false, RecordBody::Stub(stub)) => Some(&stub.bytes),
            (false, _) => None,
        };
        if in_header || in_stub.is_some_and(|stub| literal.is_in(stub)) {
            self.stay += 1;
        }
    }

    /// Returns the erasure for the log.
    pub(crate) fn erasure(&self) -> Erasure {
        let stubs = self
            .gone
            .iter()
            .map(|(offset, gone)| (*offset, gone.stub.clone()));
        let blobs = self.blobs.iter();
        let blobs = blobs.filter(|(_, of)| of.goes && of.stays.is_none());
        Erasure {
            stubs: stubs.collect(),
            key_salts: self.key_salts.clone(),
            blobs: blobs.map(|(home, _)| *home).collect(),
        }
    }

    /// Returns large bodies that are kept although one of their events is erased.
    pub(crate) fn kept(&self) -> impl Iterator<Item = KeptBlob> {
        let kept = self.blobs.iter().filter(|(_, of)| of.goes);
        kept.filter_map(|(home, of)| {
            Some(KeptBlob {
                home: Position::local(*home),
                bytes: of.bytes,
                used_by: Position::local(of.stays?),
            })
        })
    }

    /// Returns the conversations that share a history with erased events.
    pub(super) fn sharing(&self) -> impl Iterator<Item = ConversationId> {
        self.shared.iter().map(|shared| shared.conversation)
    }

    /// Returns what to report before erasing.
    pub(crate) fn items(&self) -> impl Iterator<Item = EraseItem> {
        let events = self.gone.values().map(|gone| EraseItem::Event(gone.event));
        let shared = self.shared.iter().copied().map(EraseItem::Shared);
        events.chain(shared).chain(self.kept().map(EraseItem::Kept))
    }

    pub(crate) fn outcome(&self) -> EraseOutcome {
        let derived = self.gone.values();
        let derived = derived.filter(|gone| gone.event.why != EraseReason::Asked);
        EraseOutcome {
            events: self.gone.len() as u64,
            derived: derived.count() as u64,
            stay: self.stay,
            receipt: None,
        }
    }
}

/// Returns true for kinds of events that may be erased because others are.
fn follows_others(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::ApprovalDecided
            | EventKind::Compacted
            | EventKind::SummaryRecorded
            | EventKind::ToolSnapshotRecorded
            | EventKind::SubContextReturned
            | EventKind::ConversationChanged
            | EventKind::ConversationSealed
    )
}

/// Returns true if the loss of this stretch was accepted: no file of it exists.
pub(super) fn is_accepted(lost: &UnreadableRange, accepted: &[(u64, u64)]) -> bool {
    (lost.first..=lost.last).all(|offset| {
        accepted
            .iter()
            .any(|(first, last)| (*first..=*last).contains(&offset))
    })
}

/// Returns the error for an unreadable stretch, which may contain content to be erased.
pub(super) fn unread(lost: &UnreadableRange) -> EraseError {
    EraseError::Read(ReadError::Damaged {
        position: Position::local(lost.first),
        message: format!(
            "events {} to {} cannot be read ({}) and may have content to erase: copy the intact \
             data with `treering salvage`, and erase in the copy",
            lost.first, lost.last, lost.what
        ),
    })
}
