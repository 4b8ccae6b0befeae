//! Determines which events a repeated import still has to append.
//!
//! Both sides are trees: the stored events and the imported ones. Common events are matched from
//! the root; new events are appended where the source has them. A conversation that grew is thus
//! continued. Where the source changed, a branch forks from the stored history.

mod batches;
mod exported;
mod known;

use std::{
    cmp::Ordering,
    collections::{BTreeMap, HashMap},
};

use super::{ImportedConversation, openai_chat::shortened};
pub use batches::batches;
use known::{StoredBranch, StoredConversation, decode};
use treering_domain::{
    BranchForked, BranchId, BranchName, ConversationChanged, ConversationId, EventBody, EventKind,
    GIT_BRANCH_LABEL, NewEvent, PROJECT_LABEL, ParentRef, Revision, StoredEvent, TIMES_LABEL,
    TimestampMicros,
};
use treering_proto::body;

/// What to append to a conversation that may be stored already.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The new events, to be appended after the last stored revision. Empty: everything is stored.
    pub events: Vec<NewEvent>,
    /// Branches that had to be opened because the stored history continues differently.
    pub parted: Vec<DivergedBranch>,
    /// By imported revision, from 1: the branch and revision in the store.
    places: Vec<(BranchId, Revision)>,
}

/// A branch for a part of the source that differs from the stored history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DivergedBranch {
    /// The name of the branch.
    pub branch: BranchName,
    /// The last common revision.
    pub after: Revision,
}

impl Plan {
    /// Returns the revision in the store for one in the imported conversation. Sub-contexts name it
    /// as their parent.
    #[must_use]
    pub(crate) fn in_store(&self, parent: ParentRef) -> ParentRef {
        let index = parent.revision.0.checked_sub(1);
        let place = index.and_then(|index| self.places.get(usize::try_from(index).ok()?));
        match place {
            Some(&(branch, revision)) => ParentRef {
                branch,
                revision,
                ..parent
            },
            None => parent,
        }
    }
}

/// Compares the stored events (in revision order, all branches) with the imported ones. Events that
/// others added are ignored.
#[must_use]
pub fn plan(stored: &[StoredEvent], imported: &ImportedConversation) -> Plan {
    if stored.is_empty() {
        return Plan {
            events: imported.events.clone(),
            ..Plan::default()
        };
    }
    let mut merge = Merge {
        conversation: imported.conversation,
        known: StoredConversation::read(stored),
        plan: Plan::default(),
        cursors: HashMap::new(),
        configs: HashMap::new(),
        first_config: None,
        last_step: None,
        latest: None,
        is_part: false,
        known_steps: 0,
        new_steps: 0,
    };
    let exported = exported::places(&merge.known, stored, imported.origin.as_ref());
    // A source that continues an export is never a stub: see `is_stub`.
    merge.is_part = !exported.is_empty();
    merge.known.has_odd_arguments = imported.events.iter().any(
        |event| matches!(&event.body, EventBody::ToolCallRequested(call) if call.arguments_not_json),
    );
    merge.note_model(&imported.events);
    for (index, event) in imported.events.iter().enumerate() {
        if let Some(place) = exported.get(index) {
            merge.exported(event, place);
            continue;
        }
        if index == 1 {
            merge.find_part(imported.follows.as_deref(), event);
        }
        merge.event(event);
    }
    merge.activate();
    if exported.is_empty() {
        merge.name_late(stored, imported);
    }
    merge.plan
}

/// Position of a branch of the source in the store.
#[derive(Clone)]
struct Cursor {
    line: usize,
    after: Revision,
    /// Whether the source opens a branch here.
    opens: bool,
}

struct Merge<'a> {
    conversation: ConversationId,
    known: StoredConversation<'a>,
    plan: Plan,
    /// By the branch's name in the source.
    cursors: HashMap<BranchName, Cursor>,
    /// The last settings of the source, by its branch name. They are appended before the next event
    /// if that is new. Before a stored event they are dropped, because an earlier import appended
    /// them and somebody may have changed them since.
    configs: HashMap<BranchName, NewEvent>,
    /// The model, if the stored events do not name it: appended before the first new event.
    first_config: Option<NewEvent>,
    /// The line of the source's last step.
    last_step: Option<usize>,
    /// The latest time in the source so far.
    latest: Option<TimestampMicros>,
    /// Whether the source is a later part of a longer conversation, and its position in that
    /// conversation was found.
    is_part: bool,
    /// Steps of the source that are stored already.
    known_steps: usize,
    new_steps: usize,
}

impl Merge<'_> {
    fn event(&mut self, event: &NewEvent) {
        self.latest = self.latest.max(event.occurred_at);
        let name = event.branch.clone().unwrap_or_default();
        match &event.body {
            EventBody::BranchForked(forked) => return self.fork(name, forked),
            // The active branch is decided at the end. Tools are only recorded once, because
            // somebody may have changed them since.
            EventBody::BranchActivated | EventBody::ToolsDefined { .. } => {
                return self.note_place(self.cursor(&name));
            }
            EventBody::ConfigChanged(_) => {
                self.configs.insert(name.clone(), event.clone());
                return self.note_place(self.cursor(&name));
            }
            _ => {}
        }
        let cursor = self.cursor(&name);
        let config = self.configs.remove(&name);
        let event = self.translated(event);
        let kind = event.body.kind();
        let bytes = body::encode(&event.body);
        let found = self.known.take(cursor.after, &event, &bytes);
        if is_step(kind) {
            match found {
                Some(_) => self.known_steps += 1,
                None => self.new_steps += 1,
            }
        }
        let (after, line) = found.unwrap_or_else(|| self.append(&cursor, config, event.clone()));
        let now = Cursor {
            line,
            after,
            opens: false,
        };
        if kind != EventKind::Custom {
            self.last_step = Some(line);
        }
        self.note_place(now.clone());
        self.cursors.insert(name, now);
    }

    /// Handles an event that was exported from this conversation.
    fn exported(&mut self, event: &NewEvent, place: &Cursor) {
        self.latest = self.latest.max(event.occurred_at);
        let name = event.branch.clone().unwrap_or_default();
        self.note_place(place.clone());
        self.cursors.insert(name, place.clone());
    }

    /// If the source is a later part of a longer stored conversation, moves the start to where that
    /// part begins.
    fn find_part(&mut self, follows: Option<&str>, first: &NewEvent) {
        let Some(id) = follows else { return };
        let root = self.cursor(&BranchName::default());
        let event = self.translated(first);
        let bytes = body::encode(&event.body);
        if self.known.has(root.after, &event, &bytes) {
            return;
        }
        if let Some((after, line)) = self.known.place_of_part(id, &event, &bytes) {
            self.is_part = true;
            let cursor = Cursor {
                line,
                after,
                opens: false,
            };
            self.cursors.insert(BranchName::default(), cursor);
        }
    }

    fn cursor(&self, name: &BranchName) -> Cursor {
        self.cursors.get(name).cloned().unwrap_or(Cursor {
            line: 0,
            after: Revision::NONE,
            opens: false,
        })
    }

    fn note_place(&mut self, cursor: Cursor) {
        let branch = self.known.lines[cursor.line].id;
        self.plan.places.push((branch, cursor.after));
    }

    /// Handles a fork in the source. The first event after the fork decides whether the store needs
    /// a branch.
    fn fork(&mut self, name: BranchName, forked: &BranchForked) {
        let (branch, after) = self.place_of(forked.fork_revision);
        let line = self.known.lines.iter().position(|line| line.id == branch);
        let cursor = Cursor {
            line: line.unwrap_or_default(),
            after,
            opens: true,
        };
        self.note_place(cursor.clone());
        self.cursors.insert(name, cursor);
    }

    fn place_of(&self, imported: Revision) -> (BranchId, Revision) {
        let index = imported.0.checked_sub(1);
        let index = index.and_then(|index| usize::try_from(index).ok());
        index
            .and_then(|index| self.plan.places.get(index).copied())
            .unwrap_or((BranchId::MAIN, Revision::NONE))
    }

    /// Returns the event with its revisions in the import replaced by those in the store.
    fn translated(&self, event: &NewEvent) -> NewEvent {
        let mut event = event.clone();
        match &mut event.body {
            EventBody::ToolCallRequested(call) => {
                let message = call.message_revision;
                call.message_revision = message.map(|message| self.place_of(message).1);
            }
            EventBody::Compacted(compacted) => {
                compacted.cut_revision = self.place_of(compacted.cut_revision).1;
            }
            _ => {}
        }
        event
    }

    /// Records the model if it is missing: a session that was imported before the model answered
    /// does not name it.
    fn note_model(&mut self, events: &[NewEvent]) {
        let first = events.first().map(|event| (event, &event.body));
        let Some((event, EventBody::ConversationCreated(created))) = first else {
            return;
        };
        if self.known.knows_model || created.config.model_id.is_empty() {
            return;
        }
        let body = EventBody::ConfigChanged(created.config.clone());
        let mut config = NewEvent::new(self.conversation, body);
        config.occurred_at = event.occurred_at;
        self.first_config = Some(config);
    }

    /// Appends a new event at `cursor`, after any pending settings. Returns its revision and its
    /// line.
    fn append(
        &mut self,
        cursor: &Cursor,
        config: Option<NewEvent>,
        mut event: NewEvent,
    ) -> (Revision, usize) {
        let line = &self.known.lines[cursor.line];
        let is_end = self.known.ends_behind(cursor.line, cursor.after);
        let goes_on = is_end && !line.archived && !cursor.opens;
        let config = config.filter(|_| !self.known.has_erased_config(cursor.line, cursor.after));
        let line = if goes_on {
            cursor.line
        } else {
            self.open(cursor, event.occurred_at.or(self.latest))
        };
        for mut config in self.first_config.take().into_iter().chain(config) {
            self.next_revision();
            config.branch = Some(self.known.lines[line].name.clone());
            self.plan.events.push(config);
        }
        let revision = self.next_revision();
        self.known.lines[line].push(revision);
        event.branch = Some(self.known.lines[line].name.clone());
        self.plan.events.push(event);
        (revision, line)
    }

    fn next_revision(&mut self) -> Revision {
        self.known.last = Revision(self.known.last.0 + 1);
        self.known.last
    }

    /// Opens a branch that forks from the stored history at the cursor.
    fn open(&mut self, cursor: &Cursor, occurred_at: Option<TimestampMicros>) -> usize {
        // The fork point has different revisions in the store and in the source, so a new name is
        // made.
        let wanted = match cursor.opens {
            true => format!("at-{}", cursor.after),
            false => format!("changed-after-{}", cursor.after),
        };
        let wanted = BranchName::new(&wanted).unwrap_or_default();
        let name = self.known.free_name(&wanted);
        if !cursor.opens {
            self.plan.parted.push(DivergedBranch {
                branch: name.clone(),
                after: cursor.after,
            });
        }
        let forked = BranchForked {
            name: name.clone(),
            parent: self.known.lines[cursor.line].id,
            fork_revision: cursor.after,
            system_prompt: String::new(),
        };
        let revision = self.next_revision();
        let id = BranchId(revision.0);
        self.push_structure(EventBody::BranchForked(forked), &name, occurred_at);
        let line = StoredBranch::forked(id, name, cursor.after);
        self.known.lines.push(line);
        self.known.lines.len() - 1
    }

    fn push_structure(
        &mut self,
        body: EventBody,
        branch: &BranchName,
        occurred_at: Option<TimestampMicros>,
    ) {
        let mut event = NewEvent::new(self.conversation, body).on_branch(branch.clone());
        event.occurred_at = occurred_at;
        self.plan.events.push(event);
    }

    /// Sets the title, times and project of a session that was imported before it had them. Keeps
    /// what somebody has changed since.
    fn name_late(&mut self, stored: &[StoredEvent], imported: &ImportedConversation) {
        let now = imported.events.first().map(|event| &event.body);
        let then = stored.first().and_then(|event| decode(event).ok());
        let (Some(EventBody::ConversationCreated(now)), Some(EventBody::ConversationCreated(then))) =
            (now, then)
        else {
            return;
        };
        let (mut is_named, mut is_timed) = (false, false);
        let mut set_labels = BTreeMap::new();
        for name in [PROJECT_LABEL, GIT_BRANCH_LABEL] {
            if let Some(value) = now
                .labels
                .get(name)
                .filter(|_| !then.labels.contains_key(name))
            {
                set_labels.insert(name.to_owned(), value.clone());
            }
        }
        for event in stored {
            if let Ok(EventBody::ConversationChanged(changed)) = decode(event) {
                set_labels.retain(|name, _| {
                    !changed.set_labels.contains_key(name) && !changed.remove_labels.contains(name)
                });
                is_named |= changed.title.is_some();
                is_timed |= changed
                    .remove_labels
                    .iter()
                    .any(|label| label == TIMES_LABEL);
            }
        }
        // If the first event was erased, its source id is empty too.
        let was_nameless = !then.source_id.is_empty() && then.title == shortened(&then.source_id);
        let is_name = now.title != then.title && now.title != shortened(&now.source_id);
        let is_new_name = was_nameless && !is_named && is_name;
        let has_no_times = |labels: &BTreeMap<String, String>| labels.contains_key(TIMES_LABEL);
        let is_new_time = has_no_times(&then.labels) && !has_no_times(&now.labels) && !is_timed;
        let active = self.known.active;
        let line = self.known.lines.iter().find(|line| line.id == active);
        // An erased first event does not say which labels it had.
        set_labels.retain(|_, _| !then.source_id.is_empty());
        let is_new = is_new_name || is_new_time || !set_labels.is_empty();
        let Some(line) = line.filter(|line| !line.archived && is_new) else {
            return;
        };
        let changed = ConversationChanged {
            title: is_new_name.then(|| now.title.clone()),
            set_labels,
            remove_labels: is_new_time
                .then(|| TIMES_LABEL.to_owned())
                .into_iter()
                .collect(),
            ..ConversationChanged::default()
        };
        let name = line.name.clone();
        self.push_structure(EventBody::ConversationChanged(changed), &name, self.latest);
    }

    /// Activates the branch that was continued last, if anything was appended.
    fn activate(&mut self) {
        let Some(line) = self.last_step else {
            return;
        };
        let line = &self.known.lines[line];
        if self.plan.events.is_empty() || line.id == self.known.active || line.archived {
            return;
        }
        if self.is_stub() {
            return;
        }
        let name = line.name.clone();
        self.push_structure(EventBody::BranchActivated, &name, self.latest);
    }

    /// Returns true when no stored step matches the source, and the source has fewer steps than the
    /// active branch, or as many but older ones. A tool that resumes a session may leave another,
    /// nearly empty file of it.
    fn is_stub(&self) -> bool {
        let parted = !self.plan.parted.is_empty() && !self.is_part && self.known_steps == 0;
        let known = || self.known.steps_of_active();
        parted
            && known().is_some_and(|(steps, last)| match self.new_steps.cmp(&steps) {
                Ordering::Less => true,
                Ordering::Equal => self.latest < last,
                Ordering::Greater => false,
            })
    }
}

/// Returns true for messages, calls and other steps of a conversation.
fn is_step(kind: EventKind) -> bool {
    !matches!(kind, EventKind::ConversationCreated | EventKind::Custom)
}

#[cfg(test)]
mod tests;
