//! What goes, found by a pass through the log: what was asked for, what was made from it,
//! and what would give it away.
//!
//! One pass is enough as long as whatever comes from an event stands behind it. A title that an
//! import gave and what an imported sub-context returned stand before: once such is found, a
//! further pass takes it, too.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    ops::RangeInclusive,
    sync::atomic::Ordering,
};

use bytes::Bytes;

use super::{
    EraseError, EraseItem, EraseOutcome, ErasedEvent, ErasedWhy, KeptBlob, SharedBy,
    echo::{ALL_BYTES_MAX, Echo},
    literal::Literal,
};
use crate::{
    codec,
    domain::{
        BranchId, ConversationChanged, ConversationCreated, ConversationId, EventBody, EventKind,
        ForkPoint, Namespace, Position, Revision,
    },
    engine::{
        Inner,
        damage::{Lost, Stretch, stretch},
        error::ReadError,
        history::decode_body,
    },
    log::{Erasure, LogReader, Record, RecordBody, RedbLog},
};

/// Records read at once, and their bytes.
const RECORDS_MAX: usize = 2_048;
const RECORDS_BYTES_MAX: usize = 4 << 20;
/// So many events are erased at once: their stubs are in memory until they are on the disk.
const EVENTS_MAX: usize = 1 << 20;

/// What is looked for.
#[derive(Debug)]
pub(super) enum Wanted {
    Everything,
    /// These conversations, and what they spawned.
    Tree(HashSet<ConversationId>),
    /// These, and nothing else.
    These(HashSet<ConversationId>),
    Revisions(ConversationId, Vec<RangeInclusive<u64>>),
    Literal(Literal),
    /// What was recorded as erased.
    Recorded(HashMap<ConversationId, BTreeSet<Revision>>),
}

/// An event that goes.
#[derive(Debug)]
pub(super) struct Gone {
    pub event: ErasedEvent,
    pub stub: Bytes,
}

/// What is known of a conversation.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) gone: BTreeMap<Revision, BranchId>,
    /// Where its branches left others.
    branches: HashMap<BranchId, ForkPoint>,
    /// Calls of which the request or the result goes.
    calls: HashSet<String>,
    /// A history that is also its own.
    inherits: Option<ForkPoint>,
    /// The first that it says itself, where it inherits.
    first_said: Option<Revision>,
    /// Calls that sub-contexts answer.
    pub(super) answered_by: HashMap<String, ConversationId>,
    /// What it says again of what goes.
    pub(super) echo: Echo,
}

/// Who names a large body.
#[derive(Debug, Default)]
struct BlobUse {
    bytes: u64,
    goes: bool,
    stays: Option<u64>,
}

/// What goes.
#[derive(Debug)]
pub(super) struct Plan {
    /// None: of whatever tenant.
    pub(super) namespace: Option<Namespace>,
    wanted: Wanted,
    keep_derived: bool,
    /// How far the log was read.
    reached: u64,
    /// By offset.
    pub gone: BTreeMap<u64, Gone>,
    pub(super) known: HashMap<ConversationId, Known>,
    blobs: BTreeMap<u64, BlobUse>,
    /// The batch with an idempotency key that is being read: its ends.
    batch: Option<(u64, u64)>,
    key_salts: BTreeSet<u64>,
    shared: Vec<SharedBy>,
    stay: u64,
    /// Offsets of what stands before what it was made from: the next pass takes it.
    pub(super) also: BTreeSet<u64>,
    /// By sub-context: where its parent says what it is to do, and what it returned.
    pub(super) spawned: HashMap<ConversationId, u64>,
    pub(super) answers: HashMap<ConversationId, Vec<u64>>,
    /// Labels and metadata of conversations whose first event goes for its title only.
    pub(super) described: BTreeMap<ConversationId, ConversationChanged>,
    /// Left for texts that are held against titles, in bytes.
    pub(super) echo_room: usize,
}

impl Plan {
    pub fn new(namespace: Option<Namespace>, wanted: Wanted, keep_derived: bool) -> Self {
        // What is kept in other conversations is theirs to keep.
        let keep_derived = keep_derived || matches!(wanted, Wanted::These(_));
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

    pub fn is_empty(&self) -> bool {
        self.gone.is_empty()
    }

    /// Reads on up to what is published.
    ///
    /// # Errors
    /// When not all can be read: what cannot be read may hold it.
    pub async fn scan(
        &mut self,
        inner: &Inner,
        files: &RedbLog,
        report: impl FnMut(u64, u64),
    ) -> Result<(), EraseError> {
        let head = inner.published.load(Ordering::Acquire);
        let mut report = report;
        let around = (!self.keep_derived).then_some(inner);
        loop {
            let known = self.also.len();
            self.read_to(around, &inner.reader, files, head, &mut report)
                .await?;
            if self.also.len() == known {
                return Ok(());
            }
            self.begin_again();
        }
    }

    /// What goes also stands behind something that was read: with it, all is read again.
    fn begin_again(&mut self) {
        let wanted = std::mem::replace(&mut self.wanted, Wanted::Everything);
        *self = Self {
            also: std::mem::take(&mut self.also),
            ..Self::new(self.namespace.clone(), wanted, self.keep_derived)
        };
    }

    /// Reads on up to an offset, and looks `around` for what says again what goes.
    ///
    /// # Errors
    /// As [`scan`](Self::scan).
    pub async fn read_to(
        &mut self,
        around: Option<&Inner>,
        reader: &LogReader,
        files: &RedbLog,
        head: u64,
        mut report: impl FnMut(u64, u64),
    ) -> Result<(), EraseError> {
        let lost = files.accepted_losses();
        while self.reached < head {
            let next = self.reached + 1;
            let read = stretch(reader, next, head, RECORDS_MAX, RECORDS_BYTES_MAX).await;
            match read.map_err(ReadError::from)? {
                Stretch::Records(records) => {
                    for (offset, record) in records {
                        self.record(around, reader, offset, &record).await?;
                        self.reached = offset;
                    }
                }
                Stretch::Lost(stretch) if is_accepted(&stretch, &lost) => {
                    self.reached = stretch.last;
                }
                Stretch::Lost(stretch) => return Err(unread(&stretch)),
            }
            report(self.reached, head);
        }
        Ok(())
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
                    self.look_around(inner, header.conversation, &body).await?;
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

    /// The body, if it is to be looked at.
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
            _ => matches!(self.wanted, Wanted::Literal(_)) && !record.is_erased(),
        };
        match is_looked_at {
            true => Ok(Some(reader.body(record).await.map_err(ReadError::from)?)),
            false => Ok(None),
        }
    }

    /// Notes what others come from.
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
                    // The id is used again, for another call.
                    known.answered_by.remove(&call.call_id);
                }
            }
            _ => {}
        }
    }

    /// True when sub-contexts answer calls of a conversation.
    fn waits(&self, id: ConversationId) -> bool {
        let known = self.known.get(&id);
        known.is_some_and(|known| !known.answered_by.is_empty())
    }

    /// Notes where a conversation that inherits begins to say something itself.
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

    /// The sub-context whose answer a body repeats.
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

    /// An import has the answer before the sub-context that it is of.
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
            if let Wanted::Tree(tree) = &mut self.wanted
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

    /// True when something that goes is in the history of a branch up to a revision.
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

    /// Why an event goes, if it does.
    fn why(
        &self,
        offset: u64,
        record: &Record,
        bytes: Option<&Bytes>,
        body: Option<&EventBody>,
    ) -> Option<ErasedWhy> {
        let header = &record.header;
        // It says what was erased before, and nothing else.
        if let Some(EventBody::ContentErased { reason, .. }) = body
            && reason.is_empty()
        {
            return None;
        }
        let asked = match &self.wanted {
            Wanted::Everything => true,
            Wanted::Tree(tree) => tree.contains(&header.conversation),
            Wanted::These(these) => these.contains(&header.conversation),
            Wanted::Revisions(id, ranges) => {
                *id == header.conversation
                    && ranges
                        .iter()
                        .any(|range| range.contains(&header.revision.0))
            }
            Wanted::Literal(literal) => bytes.is_some_and(|bytes| literal.is_in(bytes)),
            Wanted::Recorded(listed) => listed
                .get(&header.conversation)
                .is_some_and(|revisions| revisions.contains(&header.revision)),
        };
        if asked {
            return Some(ErasedWhy::Asked);
        }
        if matches!(self.wanted, Wanted::Recorded(_)) {
            return None;
        }
        if self.also.contains(&offset) {
            return Some(ErasedWhy::Derived);
        }
        match body? {
            EventBody::ApprovalDecided(decided) => {
                let of = |known: &Known| known.calls.contains(&decided.call_id);
                self.any_known(header.conversation, of)
                    .then_some(ErasedWhy::Bound)
            }
            body if !self.keep_derived && self.is_derived(record, body) => Some(ErasedWhy::Derived),
            _ => None,
        }
    }

    /// True when an event tells in other words what goes.
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
                // One from the beginning on is also of what is inherited.
                let from = summary.from_revision;
                let inherited = known
                    .inherits
                    .filter(|_| known.first_said.is_none_or(|first| from <= first));
                own || inherited.is_some_and(|point| self.is_touched(point))
            }
            EventBody::ToolSnapshotRecorded(snapshot) => {
                let of = |known: &Known| known.calls.contains(&snapshot.call_id);
                self.any_known(header.conversation, of)
            }
            EventBody::SubContextReturned(_) | EventBody::ToolResultRecorded(_) => {
                let child = self.answer_of(header.conversation, body);
                let child = child.and_then(|child| self.known.get(&child));
                child.is_some_and(|child| !child.gone.is_empty())
            }
            EventBody::ConversationCreated(created) => {
                let echoes = |known: &Known| known.echo.is_in_title(&created.title);
                self.any_known(header.conversation, echoes)
            }
            EventBody::ConversationChanged(changed) => {
                let title = changed.title.as_deref().unwrap_or_default();
                let echoes = |known: &Known| known.echo.is_in_title(title);
                self.any_known(header.conversation, echoes)
            }
            EventBody::ConversationSealed { summary, .. } => {
                !summary.is_empty() && self.is_touched(up_to(header.revision))
            }
            _ => false,
        }
    }

    /// Looks at a conversation, and at those whose history it shares.
    fn any_known(&self, id: ConversationId, found: impl Fn(&Known) -> bool) -> bool {
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
        why: ErasedWhy,
    ) -> Result<EventBody, EraseError> {
        let header = &record.header;
        if header.kind().is_none() {
            return Err(EraseError::invalid(format!(
                "a newer version of treering wrote event {offset}: erase it with that one"
            )));
        }
        if self.gone.len() >= EVENTS_MAX {
            return Err(EraseError::invalid(format!(
                "more than {EVENTS_MAX} events would go: erase one conversation after the other"
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
        if why == ErasedWhy::Derived {
            self.note_described(header.conversation, &body);
        }
        let stub = codec::body::encode(&body.stub(header.branch));
        let event = ErasedEvent {
            conversation: header.conversation,
            revision: header.revision,
            kind: header.kind,
            why,
        };
        self.gone.insert(offset, Gone { event, stub });
        let batch = self
            .batch
            .filter(|(first, last)| (*first..=*last).contains(&offset));
        self.key_salts.extend(batch.map(|(first, _)| first));
        Ok(body)
    }

    /// An event that goes for its title has labels and metadata that stay.
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

    /// Counts what stays of what is looked for.
    fn note_header(&mut self, record: &Record, goes: bool) {
        let Wanted::Literal(literal) = &self.wanted else {
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

    /// For the log, what goes.
    pub fn erasure(&self) -> Erasure {
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

    /// Large bodies that stay although an event of theirs goes.
    pub fn kept(&self) -> impl Iterator<Item = KeptBlob> {
        let kept = self.blobs.iter().filter(|(_, of)| of.goes);
        kept.filter_map(|(home, of)| {
            Some(KeptBlob {
                home: Position::local(*home),
                bytes: of.bytes,
                used_by: Position::local(of.stays?),
            })
        })
    }

    /// What there is to be told, before it goes.
    pub fn items(&self) -> impl Iterator<Item = EraseItem> {
        let events = self.gone.values().map(|gone| EraseItem::Event(gone.event));
        let shared = self.shared.iter().copied().map(EraseItem::Shared);
        events.chain(shared).chain(self.kept().map(EraseItem::Kept))
    }

    pub fn outcome(&self) -> EraseOutcome {
        let derived = self.gone.values();
        let derived = derived.filter(|gone| gone.event.why != ErasedWhy::Asked);
        EraseOutcome {
            events: self.gone.len() as u64,
            derived: derived.count() as u64,
            stay: self.stay,
            receipt: None,
        }
    }
}

/// Kinds of events that may go because others do.
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

/// True where it was accepted that something is lost: there is no file of it.
pub(super) fn is_accepted(lost: &Lost, accepted: &[(u64, u64)]) -> bool {
    (lost.first..=lost.last).all(|offset| {
        accepted
            .iter()
            .any(|(first, last)| (*first..=*last).contains(&offset))
    })
}

/// What cannot be read may hold what is to be erased.
pub(super) fn unread(lost: &Lost) -> EraseError {
    EraseError::Read(ReadError::Damaged {
        position: Position::local(lost.first),
        message: format!(
            "events {} to {} cannot be read ({}), and may hold what is to be erased: take what \
             is sound with `treering salvage`, and erase there",
            lost.first, lost.last, lost.what
        ),
    })
}
