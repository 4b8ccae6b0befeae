//! Reads the events of two branches after their common history, and aligns the equal ones.

use std::hash::{DefaultHasher, Hash, Hasher};

use similar::{Algorithm, DiffOp, capture_diff_slices};

use crate::{
    bounds::{SIDE_CHARS, SIDE_EVENTS},
    failure::PageFailure,
    request_context::RequestContext,
};
use treering_client::read;
use treering_present::{Tone, text::describe_event};
use treering_proto::pb;

/// Maximum number of requests for bodies. Each answer has at most some megabytes, or a single body.
const BODY_ROUNDS: usize = 4;

/// A description of an event.
#[derive(Clone, Debug)]
pub(crate) struct EventDescription {
    /// Its conversation, because events may be inherited.
    pub(crate) conversation: String,
    /// Its revision in that conversation.
    pub(crate) revision: u64,
    /// The colour: by role or by outcome.
    pub(crate) tone: Tone,
    /// The title, as one line.
    pub(crate) title: String,
    /// Ids, times and sizes.
    pub(crate) note: String,
    /// The content, cut to the limit.
    pub(crate) content: String,
    /// Whether the content was cut.
    pub(crate) is_cut: bool,
    /// Hash that is equal for equal content.
    same: u64,
}

impl EventDescription {
    fn of(event: &pb::Event) -> Self {
        let mut said = describe_event(event);
        if event.body.is_none() {
            "too large to compare".clone_into(&mut said.note);
        }
        let mut hasher = DefaultHasher::new();
        // Call ids and times differ even for equal actions, so they are not hashed.
        (event.kind, &said.title, &said.content).hash(&mut hasher);
        if event.body.is_none() {
            event.id.hash(&mut hasher);
        }
        let end = said
            .content
            .char_indices()
            .nth(SIDE_CHARS)
            .map(|(at, _)| at);
        let content = &said.content[..end.unwrap_or(said.content.len())];
        Self {
            conversation: event.conversation_id.clone(),
            revision: event.revision,
            tone: said.tone,
            title: said.title,
            note: said.note,
            content: content.trim().to_owned(),
            is_cut: end.is_some(),
            same: hasher.finish(),
        }
    }
}

/// A part of the events of one branch.
#[derive(Clone, Debug)]
pub(crate) struct DiffSide {
    /// In order.
    pub(crate) events: Vec<EventDescription>,
    /// Address parameter of the next events; `None` if there are none.
    pub(crate) next: Option<String>,
    /// Address parameter of the last event, or of the place where the events were to begin.
    pub(crate) end: String,
}

impl DiffSide {
    /// Reads the events of a branch after an event.
    ///
    /// # Errors
    /// Errors of the store.
    pub(crate) async fn read(
        request_context: &RequestContext,
        id: &str,
        branch: &str,
        (conversation, revision): (String, u64),
    ) -> Result<Self, PageFailure> {
        let request = pb::ReadRequest {
            from_revision: revision,
            from_conversation: match conversation == id {
                true => String::new(),
                false => conversation.clone(),
            },
            limit: SIDE_EVENTS + 2,
            headers_only: true,
            ..read::of_branch(id, branch)
        };
        let mut answer = request_context
            .store
            .events()
            .read(request)
            .await?
            .into_inner();
        let mut headers = Vec::new();
        while let Some(batch) = answer.message().await? {
            let own = batch.events.into_iter();
            headers.extend(own.filter(|event| {
                event.revision != revision || event.conversation_id != conversation
            }));
        }
        let more = headers.len() as u64 > SIDE_EVENTS;
        headers.truncate(usize::try_from(SIDE_EVENTS).unwrap_or(usize::MAX));
        let end = match headers.last() {
            Some(last) => format!("{}.{}", last.conversation_id, last.revision),
            None => format!("{conversation}.{revision}"),
        };
        headers.retain(|event| !is_of_branches(event));
        let events = with_bodies(request_context, headers).await?;
        Ok(Self {
            next: more.then(|| end.clone()),
            end,
            events: events.iter().map(EventDescription::of).collect(),
        })
    }
}

/// Returns the same events with their bodies, up to a limit for all bodies together.
async fn with_bodies(
    request_context: &RequestContext,
    mut events: Vec<pb::Event>,
) -> Result<Vec<pb::Event>, PageFailure> {
    let mut missing: Vec<usize> = (0..events.len()).collect();
    for _ in 0..BODY_ROUNDS {
        if missing.is_empty() {
            break;
        }
        let names = missing.iter().map(|at| pb::EventName {
            by: Some(pb::event_name::By::EventId(events[*at].id.clone())),
        });
        let request = pb::GetManyRequest {
            events: names.collect(),
            headers_only: false,
        };
        let answer = request_context
            .store
            .events()
            .get_many(request)
            .await?
            .into_inner();
        let mut left = Vec::new();
        for (at, got) in missing.into_iter().zip(answer.events) {
            match got.event {
                Some(_) if got.body_left_out => left.push(at),
                Some(event) => events[at].body = event.body,
                None => {}
            }
        }
        missing = left;
    }
    Ok(events)
}

/// True for events about branches. They are left out, because the names are shown above.
fn is_of_branches(event: &pb::Event) -> bool {
    use pb::EventKind as Kind;
    matches!(
        event.kind(),
        Kind::BranchForked | Kind::BranchActivated | Kind::BranchRenamed | Kind::BranchArchived
    )
}

/// Parses a conversation and a revision, as in [`DiffSide::next`].
///
/// # Errors
/// When it is malformed.
pub(crate) fn parsed(text: &str) -> Result<(String, u64), PageFailure> {
    let parts = text.rsplit_once('.');
    let parsed = parts.and_then(|(id, revision)| Some((id.to_owned(), revision.parse().ok()?)));
    parsed
        .ok_or_else(|| PageFailure::asked("the address has no position", "start at the fork point"))
}

/// A row, with the index of the event on each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiffRow {
    /// Both sides have the event.
    Same(usize, usize),
    /// The events differ, or one side has none here.
    Apart(Option<usize>, Option<usize>),
}

/// Aligns two sides in rows.
#[must_use]
pub(crate) fn aligned(left: &[EventDescription], right: &[EventDescription]) -> Vec<DiffRow> {
    let keys = |side: &[EventDescription]| side.iter().map(|event| event.same).collect::<Vec<_>>();
    rows(&keys(left), &keys(right))
}

fn rows(left: &[u64], right: &[u64]) -> Vec<DiffRow> {
    let mut rows = Vec::new();
    for op in capture_diff_slices(Algorithm::Myers, left, right) {
        let (old, new) = (op.old_range(), op.new_range());
        match op {
            DiffOp::Equal { .. } => rows.extend(old.zip(new).map(|(a, b)| DiffRow::Same(a, b))),
            _ => {
                let length = old.len().max(new.len());
                let at = |range: &std::ops::Range<usize>, place: usize| {
                    Some(range.start + place).filter(|at| range.contains(at))
                };
                rows.extend(
                    (0..length).map(|place| DiffRow::Apart(at(&old, place), at(&new, place))),
                );
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    // Two runs of one prompt have many equal events. These must be shown once, and different events
    // side by side. Every event must appear once, in order.
    #[test]
    fn common_events_are_aligned_in_one_row() {
        assert_eq!(
            rows(&[1, 2, 3, 4], &[1, 5, 4, 6]),
            [
                DiffRow::Same(0, 0),
                DiffRow::Apart(Some(1), Some(1)),
                DiffRow::Apart(Some(2), None),
                DiffRow::Same(3, 2),
                DiffRow::Apart(None, Some(3)),
            ]
        );
        assert_eq!(rows(&[], &[7]), [DiffRow::Apart(None, Some(0))]);
        assert!(rows(&[], &[]).is_empty());
    }

    #[test]
    fn branch_reference_in_a_query_is_parsed() {
        assert_eq!(parsed("a.b.7").unwrap(), ("a.b".to_owned(), 7));
        for wrong in ["", "7", "a.", "a.x"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
