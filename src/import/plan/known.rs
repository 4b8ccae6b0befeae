//! The stored events of a conversation, as a tree of the events that importers make.
//!
//! Events that others may have added (annotations, activations, snapshots, compactions that were
//! not imported) are ignored: the conversation still counts as the one that was imported. Erased
//! events are recognized by their stubs: position, kind, ids and time. They stay erased even if the
//! source still has their content.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::is_step;
use crate::{claude_code, codex, gemini_cli, openai_chat, opencode, pi, remainder::is_record};
use treering_domain::{
    BranchId, BranchName, CompactionTrigger, Custom, EventBody, EventKind, JsonText,
    MessageAppended, NewEvent, Revision, StoredEvent, TimestampMicros, ToolCallRequested,
};
use treering_proto::body;

/// A stored branch.
pub(super) struct StoredBranch {
    pub(super) id: BranchId,
    pub(super) name: BranchName,
    pub(super) archived: bool,
    /// The branch's own events of kinds that importers make, in order.
    events: Vec<Revision>,
    /// The last such event that the branch inherits.
    root: Revision,
}

impl StoredBranch {
    pub(super) fn forked(id: BranchId, name: BranchName, root: Revision) -> Self {
        Self {
            id,
            name,
            archived: false,
            events: Vec::new(),
            root,
        }
    }

    /// Returns the last event of its history that an importer makes.
    pub(super) fn tip(&self) -> Revision {
        self.events.last().copied().unwrap_or(self.root)
    }

    pub(super) fn push(&mut self, revision: Revision) {
        self.events.push(revision);
    }

    /// Returns the tip as of a revision.
    fn tip_at(&self, revision: Revision) -> Revision {
        let upto = self.events.partition_point(|own| *own <= revision);
        upto.checked_sub(1)
            .map_or(self.root, |last| self.events[last])
    }
}

pub(super) struct StoredConversation<'a> {
    pub(super) lines: Vec<StoredBranch>,
    line_of_branch: HashMap<BranchId, usize>,
    /// By revision: the event, the index of its branch in `lines`, and the revision of its
    /// predecessor.
    events: BTreeMap<Revision, (&'a StoredEvent, usize, Revision)>,
    /// By revision: its successors, on its branch or on branches that fork after it.
    next: HashMap<Revision, Vec<Revision>>,
    claimed: HashSet<Revision>,
    /// By index in `lines`: the last erased settings event of the branch.
    erased_config: HashMap<usize, Revision>,
    pub(super) active: BranchId,
    pub(super) last: Revision,
    /// Whether some event names the model.
    pub(super) knows_model: bool,
    /// Whether the source has arguments that are not JSON. Earlier versions imported them as a JSON
    /// string, and recorded the difference from the source in the `raw` field of the message.
    pub(super) has_odd_arguments: bool,
}

impl<'a> StoredConversation<'a> {
    /// Reads the stored events: all events of the conversation in revision order.
    pub(super) fn read(stored: &'a [StoredEvent]) -> Self {
        let main = StoredBranch::forked(BranchId::MAIN, BranchName::default(), Revision::NONE);
        let mut known = Self {
            lines: vec![main],
            line_of_branch: HashMap::from([(BranchId::MAIN, 0)]),
            events: BTreeMap::new(),
            next: HashMap::new(),
            claimed: HashSet::new(),
            erased_config: HashMap::new(),
            active: BranchId::MAIN,
            last: Revision::NONE,
            knows_model: false,
            has_odd_arguments: false,
        };
        for event in stored {
            known.add(event);
        }
        known
    }

    fn add(&mut self, event: &'a StoredEvent) {
        let header = &event.header;
        let revision = header.revision;
        self.last = revision;
        if header.kind() == Some(EventKind::BranchForked) {
            self.fork(event);
            return;
        }
        let Some(&line) = self.line_of_branch.get(&header.branch) else {
            return;
        };
        self.knows_model |= names_model(event);
        if event.erased && header.kind() == Some(EventKind::ConfigChanged) {
            self.erased_config.insert(line, revision);
        }
        match header.kind() {
            Some(EventKind::BranchActivated) => self.active = header.branch,
            Some(EventKind::BranchArchived) => self.lines[line].archived = true,
            Some(EventKind::BranchRenamed) => {
                if let Ok(EventBody::BranchRenamed(name)) = decode(event) {
                    self.lines[line].name = name;
                }
            }
            _ if is_of_import(event) => {
                let before = self.lines[line].tip();
                self.next.entry(before).or_default().push(revision);
                self.events.insert(revision, (event, line, before));
                self.lines[line].push(revision);
            }
            _ => {}
        }
    }

    fn fork(&mut self, event: &StoredEvent) {
        let Ok(EventBody::BranchForked(forked)) = decode(event) else {
            return;
        };
        let Some(&parent) = self.line_of_branch.get(&forked.parent) else {
            return;
        };
        let root = self.lines[parent].tip_at(forked.fork_revision);
        let id = event.header.branch;
        self.line_of_branch.insert(id, self.lines.len());
        self.lines.push(StoredBranch::forked(id, forked.name, root));
    }

    /// Returns the event after `after` that equals `new`, with the index of its branch. Each event
    /// is returned only once, because two equal events of a source are two events.
    pub(super) fn take(
        &mut self,
        after: Revision,
        new: &NewEvent,
        bytes: &[u8],
    ) -> Option<(Revision, usize)> {
        let found = self.find(after, &|revision| {
            self.says(revision, new, bytes) && !self.claimed.contains(&revision)
        })?;
        self.claimed.insert(found);
        Some((found, self.events[&found].1))
    }

    fn says(&self, revision: Revision, new: &NewEvent, bytes: &[u8]) -> bool {
        let event = self.events[&revision].0;
        says(event, new, bytes) || !event.erased && self.said_earlier(event, &new.body)
    }

    /// True for an event that an earlier version made from the same source.
    fn said_earlier(&self, event: &StoredEvent, new: &EventBody) -> bool {
        match new {
            EventBody::ToolCallRequested(call) => {
                earlier_calls(call).any(|call| event.body == body::encode(&call))
            }
            EventBody::MessageAppended(new) if self.has_odd_arguments => {
                let without = |said: MessageAppended| MessageAppended { raw: None, ..said };
                match decode(event) {
                    Ok(EventBody::MessageAppended(known)) => without(known) == without(new.clone()),
                    _ => false,
                }
            }
            _ => false,
        }
    }

    /// True when an event after `after` equals `new`.
    pub(super) fn has(&self, after: Revision, new: &NewEvent, bytes: &[u8]) -> bool {
        let is_it = |revision: Revision| self.says(revision, new, bytes);
        self.find(after, &is_it).is_some()
    }

    /// Returns the first matching event that follows `after`, either directly or with only erased
    /// custom events in between, which others may have added.
    fn find(&self, after: Revision, is_it: &dyn Fn(Revision) -> bool) -> Option<Revision> {
        let mut places = vec![after];
        while let Some(place) = places.pop() {
            let next = self.next.get(&place).map_or(&[][..], Vec::as_slice);
            if let Some(found) = next.iter().copied().find(|revision| is_it(*revision)) {
                return Some(found);
            }
            places.extend(
                next.iter()
                    .filter(|revision| self.may_be_beside(**revision)),
            );
        }
        None
    }

    /// True for an erased custom event. Its stub does not tell whether it came from the source or
    /// from somebody else.
    fn may_be_beside(&self, revision: Revision) -> bool {
        // Events that this plan appends are from the source.
        let Some((event, ..)) = self.events.get(&revision) else {
            return false;
        };
        let is_custom = event.header.kind() == Some(EventKind::Custom);
        event.erased && is_custom && !self.claimed.contains(&revision)
    }

    /// True when a branch ends at the given event, apart from erased custom events.
    pub(super) fn ends_behind(&self, line: usize, after: Revision) -> bool {
        let line = &self.lines[line];
        let behind = line.events.partition_point(|own| *own <= after);
        let is_of_it = line.root == after || line.events.binary_search(&after).is_ok();
        let mut rest = line.events[behind..].iter();
        is_of_it && rest.all(|revision| self.may_be_beside(*revision))
    }

    /// True when the branch has an erased settings event after the given event. Its settings are
    /// assumed to be the source's, so that they are not appended again.
    pub(super) fn has_erased_config(&self, line: usize, after: Revision) -> bool {
        let last = self.erased_config.get(&line);
        last.is_some_and(|last| *last > after)
    }

    /// Returns the stored event after which a later part of the source begins, with the index of
    /// its branch. `first` is the first event of the part, and `id` the source's line that the part
    /// follows. Tries three places: the predecessor of `first`, if `first` is already stored; the
    /// last event of the line `id`; and the tip of the active branch, unless `first` is earlier.
    pub(super) fn place_of_part(
        &self,
        id: &str,
        first: &NewEvent,
        bytes: &[u8],
    ) -> Option<(Revision, usize)> {
        let is_it = |event: &StoredEvent| {
            // Without a time, erased messages cannot be told apart.
            let is_told = !event.erased || first.occurred_at.is_some();
            is_told && says(event, first, bytes)
        };
        let there = self.events.values().find(|known| is_it(known.0));
        if let Some(&(_, line, before)) = there {
            let line = self.events.get(&before).map_or(line, |before| before.1);
            return Some((before, line));
        }
        self.behind_line(id).or_else(|| {
            let active = self.lines.iter().position(|line| line.id == self.active)?;
            let tip = self.lines[active].tip();
            let last = self.events.get(&tip)?.0.header.occurred_at;
            let is_earlier = last
                .zip(first.occurred_at)
                .is_some_and(|(last, own)| own < last);
            (!is_earlier).then_some((tip, active))
        })
    }

    /// Returns the last event made from the source's line with this id. Events that follow it and
    /// do not begin another line are included.
    fn behind_line(&self, id: &str) -> Option<(Revision, usize)> {
        let marks = [
            format!("\"path\":\"/uuid\",\"value\":\"{id}\""),
            format!("\"uuid\":\"{id}\""),
            format!("\"uuid\": \"{id}\""),
        ];
        let is_it = |event: &StoredEvent| {
            let body = String::from_utf8_lossy(&event.body);
            marks.iter().any(|mark| body.contains(mark))
        };
        let (&found, &(_, line, _)) = self.events.iter().find(|(_, known)| is_it(known.0))?;
        let own = &self.lines[line].events;
        let rest = own[own.partition_point(|revision| *revision <= found)..].iter();
        let last = rest
            .take_while(|revision| !begins_line(self.events[revision].0))
            .last();
        Some((last.copied().unwrap_or(found), line))
    }

    /// Returns the events of a branch's history in order, with the indexes of their branches. The
    /// last inherited one counts as the branch's own, because a branch without events continues
    /// after it.
    pub(super) fn path(&self, branch: BranchId) -> Vec<(Revision, usize)> {
        let own = self.line_of_branch.get(&branch).copied();
        let own = own.unwrap_or_default();
        let (mut at, mut path) = (self.lines[own].tip(), Vec::new());
        while let Some(&(_, line, before)) = self.events.get(&at) {
            let is_root = at == self.lines[own].root;
            path.push((at, if is_root { own } else { line }));
            at = before;
        }
        path.reverse();
        path
    }

    /// Returns the number of imported steps on the active branch, inherited ones included, and the
    /// time of the last one.
    pub(super) fn steps_of_active(&self) -> Option<(usize, Option<TimestampMicros>)> {
        let line = self.lines.iter().find(|line| line.id == self.active)?;
        let (mut at, mut steps, mut last) = (line.tip(), 0, None);
        while let Some((event, _, before)) = self.events.get(&at) {
            if event.header.kind().is_some_and(is_step) {
                steps += 1;
                last = last.max(event.header.occurred_at);
            }
            at = *before;
        }
        Some((steps, last))
    }

    /// Returns a branch name that is not taken: `name`, or `name` with a number.
    pub(super) fn free_name(&self, name: &BranchName) -> BranchName {
        let taken = |name: &BranchName| self.lines.iter().any(|line| line.name == *name);
        let numbered =
            (2..).filter_map(|n| BranchName::new(&format!("{}-{n}", name.as_str())).ok());
        std::iter::once(name.clone())
            .chain(numbered)
            .find(|name| !taken(name))
            .unwrap_or_default()
    }
}

pub(super) fn decode(event: &StoredEvent) -> Result<EventBody, ()> {
    let kind = event.header.kind().ok_or(())?;
    body::decode(kind, &event.body).map_err(|_| ())
}

fn names_model(event: &StoredEvent) -> bool {
    let is_config = matches!(
        event.header.kind(),
        Some(EventKind::ConversationCreated | EventKind::ConfigChanged)
    );
    let names = || match decode(event) {
        Ok(EventBody::ConversationCreated(created)) => !created.config.model_id.is_empty(),
        Ok(EventBody::ConfigChanged(config)) => !config.model_id.is_empty(),
        _ => false,
    };
    // Erased settings are not appended again.
    is_config && (event.erased || names())
}

fn says(event: &StoredEvent, new: &NewEvent, bytes: &[u8]) -> bool {
    let header = &event.header;
    let kind = new.body.kind();
    if header.kind() != Some(kind) {
        return false;
    }
    match event.erased {
        // The first event matches whatever the title was.
        _ if kind == EventKind::ConversationCreated => true,
        false => event.body == bytes,
        true => {
            let stub = body::stub(&new.body, header.branch);
            header.occurred_at == new.occurred_at && event.body == stub
        }
    }
}

/// Returns a call in the forms that earlier versions made of it. They dropped the item's id. They
/// made a JSON string from arguments that are not JSON, and an empty object or string from missing
/// ones.
fn earlier_calls(call: &ToolCallRequested) -> impl Iterator<Item = EventBody> {
    let texts = match (call.arguments_not_json, call.arguments.as_str()) {
        (false, _) if call.item_id.is_empty() => Vec::new(),
        (false, text) => vec![text.to_owned()],
        (true, "") => vec!["{}".to_owned(), "\"\"".to_owned()],
        (true, text) => vec![serde_json::Value::from(text).to_string()],
    };
    let call = move |text: String| {
        EventBody::ToolCallRequested(ToolCallRequested {
            arguments: JsonText::from_checked(text.into()),
            arguments_not_json: false,
            item_id: String::new(),
            ..call.clone()
        })
    };
    texts.into_iter().map(call)
}

/// True for the first event of a line of the source. False for further events of the same line, and
/// for custom events.
fn begins_line(event: &StoredEvent) -> bool {
    match decode(event) {
        Ok(EventBody::MessageAppended(message)) => message.raw.is_some(),
        Ok(EventBody::ToolResultRecorded(result)) => result.raw.is_some(),
        Ok(EventBody::Compacted(_)) | Err(()) => true,
        Ok(_) => false,
    }
}

/// True for events that hold an unchanged record of a session.
fn is_of_session(custom: &Custom) -> bool {
    let sources = [
        codex::SOURCE,
        gemini_cli::SOURCE,
        opencode::SOURCE,
        pi::SOURCE,
    ];
    let mut sources = sources.iter();
    sources.any(|source| is_record(&custom.type_name, source))
}

fn is_of_import(event: &StoredEvent) -> bool {
    let Some(kind) = event.header.kind() else {
        return false;
    };
    match kind {
        EventKind::ConversationCreated
        | EventKind::MessageAppended
        | EventKind::ToolCallRequested
        | EventKind::ToolResultRecorded
        | EventKind::ToolCallCancelled
        | EventKind::SubContextSpawned
        | EventKind::SubContextReturned => true,
        EventKind::Custom if event.erased => true,
        EventKind::Custom => decode(event).is_ok_and(|body| match body {
            EventBody::Custom(custom) => {
                claude_code::is_line(&custom)
                    || openai_chat::is_message(&custom)
                    || is_of_session(&custom)
            }
            _ => false,
        }),
        EventKind::Compacted => decode(event).is_ok_and(|body| match body {
            EventBody::Compacted(compacted) => compacted.trigger == CompactionTrigger::Imported,
            _ => false,
        }),
        _ => false,
    }
}
