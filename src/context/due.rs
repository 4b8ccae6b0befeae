//! Finds what is due for a summary in a window: results of finished turns, and turns without a
//! dialogue summary.

use std::collections::HashMap;

use super::{turns::turns, window::WindowInput};
use treering_domain::{
    ContentPart, EventBody, EventRef, Revision, SummaryRecorded, ToolCallRequested,
    ToolResultRecorded,
};

/// Maximum length of a dialogue summary, in characters.
pub const DIALOGUE_SUMMARY_CHARS_MAX: usize = 2_000;

/// A large result of a finished turn without a recorded digest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResultDigestDue<'a> {
    /// The event that requested the call.
    pub request: EventRef,
    /// The call.
    pub call: &'a ToolCallRequested,
    /// Its result.
    pub result: &'a ToolResultRecorded,
}

/// Turns for which a dialogue summary is due.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DialogueDue<'a> {
    /// The last summary, which the new one replaces.
    pub previous: Option<&'a SummaryRecorded>,
    /// Index in the window of the first event to summarise.
    pub first: usize,
    /// Index after the last event to summarise.
    pub end: usize,
    /// First revision that the new summary covers.
    pub from: Revision,
    /// Last revision that it covers: the end of a turn.
    pub to: Revision,
}

/// Returns results of finished turns with at least `bytes_min` bytes of text and no recorded
/// digest, oldest first. Only for calls of the branch itself, because inherited calls belong to its
/// parent.
#[must_use]
pub fn snapshots_due(window: &WindowInput, bytes_min: usize) -> Vec<ResultDigestDue<'_>> {
    let turns = turns(window.conversation, &window.events);
    let end = turns
        .iter()
        .rfind(|turn| turn.finished)
        .map_or(0, |turn| turn.end);
    let own = |at: EventRef| {
        at.conversation == window.conversation
            && window.branch.fork.is_none_or(|fork| {
                fork.conversation != at.conversation || at.revision > fork.revision
            })
    };
    let mut recorded = Vec::new();
    for event in &window.events {
        if let EventBody::ToolSnapshotRecorded(snapshot) = &event.body {
            recorded.push((snapshot.call_id.as_str(), snapshot.request_revision));
        }
    }
    let mut open = HashMap::new();
    let mut due = Vec::new();
    for event in &window.events[..end] {
        match &event.body {
            EventBody::ToolCallRequested(call) => {
                open.insert(call.call_id.as_str(), (event.at, call));
            }
            EventBody::ToolResultRecorded(result) => {
                let Some((request, call)) = open.remove(result.call_id.as_str()) else {
                    continue;
                };
                let known = recorded.contains(&(call.call_id.as_str(), request.revision));
                if own(request) && !known && text_bytes(result) >= bytes_min {
                    due.push(ResultDigestDue {
                        request,
                        call,
                        result,
                    });
                }
            }
            _ => {}
        }
    }
    due
}

/// Returns the turns for which a dialogue summary is due: the largest multiple of `every_turns`
/// finished turns since the last summary. After an outage, a summariser thus writes one summary,
/// not many.
#[must_use]
pub fn dialogue_due(window: &WindowInput, every_turns: u32) -> Option<DialogueDue<'_>> {
    let every = usize::try_from(every_turns)
        .ok()
        .filter(|every| *every > 0)?;
    let last = window
        .branch
        .summary
        .and_then(|at| window.referred.get(&at));
    let (previous, place) = match last.map(|event| (&event.body, event.at)) {
        Some((EventBody::SummaryRecorded(summary), at)) => (Some(summary), Some(at)),
        _ => (None, None),
    };
    let covered = |at: EventRef| {
        place.zip(previous).is_some_and(|(place, summary)| {
            at.conversation == place.conversation && at.revision <= summary.to_revision
        })
    };
    let first = window
        .events
        .iter()
        .rposition(|event| covered(event.at))
        .map_or(0, |at| at + 1);
    let turns = turns(window.conversation, &window.events);
    let fresh: Vec<_> = turns
        .iter()
        .filter(|turn| turn.finished && turn.last_act >= first)
        .collect();
    let count = fresh.len() / every * every;
    let last = fresh[..count].last()?;
    let at = window.events[last.last_act].at;
    if at.conversation != window.conversation {
        return None;
    }
    let own = window.events[first..]
        .iter()
        .find(|event| event.at.conversation == at.conversation);
    let from = match previous.zip(place) {
        Some((previous, place)) if place.conversation == window.conversation => {
            previous.from_revision
        }
        _ => own.map_or(at.revision, |event| event.at.revision),
    };
    Some(DialogueDue {
        previous,
        first,
        end: last.last_act + 1,
        from: from.min(at.revision),
        to: at.revision,
    })
}

fn text_bytes(result: &ToolResultRecorded) -> usize {
    let parts: usize = result
        .parts
        .iter()
        .filter_map(ContentPart::text)
        .map(str::len)
        .sum();
    parts.max(result.structured.as_bytes().len())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::samples::{SampleEvent, window_input};
    use treering_domain::{EventKind, ToolSnapshotRecorded};

    const TURN: [SampleEvent; 4] = [
        SampleEvent::User("look"),
        SampleEvent::Call("a", "read", "{}"),
        SampleEvent::Result("a", "a long text"),
        SampleEvent::Assistant("seen"),
    ];

    /// Digests are due for large results of finished turns, once per call, even if ids are reused.
    #[test]
    fn large_results_of_finished_turns_are_due() {
        let mut spoken = [TURN, TURN].concat();
        spoken.extend(&TURN[..3]);
        let mut window = window_input(&spoken);
        let due = |window: &WindowInput, bytes| -> Vec<u64> {
            snapshots_due(window, bytes)
                .iter()
                .map(|due| due.request.revision.0)
                .collect()
        };
        assert_eq!(due(&window, 5), [2, 6]);
        assert_eq!(due(&window, 50), Vec::<u64>::new());
        let last = window.events.last_mut().unwrap();
        Arc::make_mut(last).body = EventBody::ToolSnapshotRecorded(ToolSnapshotRecorded {
            call_id: "a".into(),
            request_revision: Revision(2),
            summary: "known".into(),
        });
        assert_eq!(due(&window, 5), [6]);
    }

    /// A summary is due every `every_turns` turns since the last one. After a long outage there is
    /// one, not ten.
    #[test]
    fn dialogue_summary_is_due_after_enough_turns() {
        let mut window = window_input(&[TURN; 7].concat());
        assert_eq!(dialogue_due(&window, 8), None);
        assert_eq!(dialogue_due(&window, 0), None);
        let due = dialogue_due(&window, 3).unwrap();
        assert_eq!(
            (due.first, due.end, due.from, due.to),
            (0, 24, Revision(1), Revision(24))
        );
        let mut summary = (*window.events[8]).clone();
        summary.body = EventBody::SummaryRecorded(SummaryRecorded {
            content: "so far".into(),
            from_revision: Revision(1),
            to_revision: Revision(8),
        });
        assert_eq!(summary.body.kind(), EventKind::SummaryRecorded);
        let at = summary.at;
        window.referred.insert(at, Arc::new(summary));
        Arc::make_mut(&mut window.branch).summary = Some(at);
        let due = dialogue_due(&window, 3).unwrap();
        assert_eq!(
            (due.first, due.end, due.from, due.to),
            (8, 20, Revision(1), Revision(20))
        );
        assert_eq!(due.previous.unwrap().content, "so far");
    }
}
