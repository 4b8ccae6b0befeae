//! Converts events to the items of a transcript: messages, steps with parallel calls side by side,
//! and notes on other events.

use std::collections::HashMap;

use prost::Message;

use crate::recorded_text::Piece;
use treering_present::text::is_beside_talk;
use treering_proto::pb::{self, event::Body};

/// An item of a transcript.
#[derive(Debug)]
pub(crate) enum ThreadItem {
    /// A message.
    Said(Box<pb::Event>, Box<pb::MessageAppended>),
    /// Tool calls that were made together.
    Step(Vec<ThreadCall>),
    /// Any other event.
    Noted(Box<pb::Event>),
    /// Consecutive secondary events.
    Folded(Vec<pb::Event>),
}

/// A tool call, with its outcome as far as the window contains it.
#[derive(Debug, Default)]
pub(crate) struct ThreadCall {
    /// The provider's call id.
    pub(crate) call_id: String,
    /// The request; `None` if it is before the window.
    pub(crate) asked: Option<(pb::Event, pb::ToolCallRequested)>,
    /// The decision about it.
    pub(crate) decided: Option<(pb::Event, pb::ApprovalDecided)>,
    /// The event that started it.
    pub(crate) started: Option<pb::Event>,
    /// How it ended.
    pub(crate) ended: Option<CallEnd>,
    /// Revisions of its result digests, which have no item of their own.
    pub(crate) summarised: Vec<u64>,
}

/// How a call ended.
#[derive(Debug)]
pub(crate) enum CallEnd {
    /// With a result; the body is `None` when it is too large.
    Result(pb::Event, Option<pb::ToolResultRecorded>),
    /// It was cancelled.
    Cancelled(pb::Event, pb::ToolCallCancelled),
}

/// The status of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadCallStatus {
    /// Requested, without a result.
    Open,
    /// Waits for approval.
    Waits,
    /// Denied, or the approval expired.
    Denied,
    /// Successful result.
    Succeeded,
    /// Failed result.
    Failed,
    /// It was cancelled.
    Cancelled,
}

impl ThreadCall {
    /// Returns the status. For a result that is too large, `large` tells whether it succeeded.
    #[must_use]
    pub(crate) fn status(&self, large: Option<&pb::ResultInfo>) -> ThreadCallStatus {
        let decision = self.decided.as_ref().map(|(_, decided)| decided.decision());
        match (&self.ended, decision) {
            (Some(CallEnd::Result(_, Some(result))), _) if !result.success => {
                ThreadCallStatus::Failed
            }
            (Some(CallEnd::Result(_, None)), _) if large.is_some_and(|info| !info.success) => {
                ThreadCallStatus::Failed
            }
            (Some(CallEnd::Result(..)), _) => ThreadCallStatus::Succeeded,
            (Some(CallEnd::Cancelled(_, cancelled)), _) => match cancelled.reason() {
                pb::CancelReason::Denied => ThreadCallStatus::Denied,
                _ => ThreadCallStatus::Cancelled,
            },
            (None, Some(pb::Decision::Denied | pb::Decision::Expired)) => ThreadCallStatus::Denied,
            (None, Some(pb::Decision::Approved)) => ThreadCallStatus::Open,
            (None, _) if self.needs_approval() => ThreadCallStatus::Waits,
            (None, _) => ThreadCallStatus::Open,
        }
    }

    fn needs_approval(&self) -> bool {
        let asked = self.asked.as_ref().map(|(_, asked)| asked.approval());
        asked == Some(pb::ApprovalRequirement::Pending)
    }

    /// Returns the event that represents the call.
    #[must_use]
    pub(crate) fn event(&self) -> Option<&pb::Event> {
        let asked = self.asked.as_ref().map(|(event, _)| event);
        asked.or(match &self.ended {
            Some(CallEnd::Result(event, _) | CallEnd::Cancelled(event, _)) => Some(event),
            None => self.decided.as_ref().map(|(event, _)| event),
        })
    }
}

/// Converts events to items, in order. `heads` has the beginnings of results that are too large.
#[must_use]
pub(crate) fn thread(
    events: Vec<pb::Event>,
    heads: &HashMap<(String, u64), Piece>,
) -> Vec<ThreadItem> {
    let mut thread = Thread::default();
    for event in events {
        let is_result = event.kind() == pb::EventKind::ToolResultRecorded;
        let head = heads.get(&(event.conversation_id.clone(), event.revision));
        match head {
            Some(head) if is_result && event.body.is_none() => {
                thread.open(&head.info.call_id).ended = Some(CallEnd::Result(event, None));
            }
            _ if is_beside_talk(&event) => thread.fold(event),
            _ => thread.take(event),
        }
    }
    thread.0
}

#[derive(Default)]
struct Thread(Vec<ThreadItem>);

impl Thread {
    fn take(&mut self, event: pb::Event) {
        match event.body.clone() {
            Some(Body::MessageAppended(bytes)) => match decoded::<pb::MessageAppended>(&bytes) {
                Some(message) => self
                    .0
                    .push(ThreadItem::Said(Box::new(event), Box::new(message))),
                None => self.note(event),
            },
            Some(Body::ToolCallRequested(bytes)) => match decoded(&bytes) {
                Some(asked) => self.ask(event, asked),
                None => self.note(event),
            },
            Some(Body::ApprovalDecided(bytes)) => match decoded::<pb::ApprovalDecided>(&bytes) {
                Some(decided) => {
                    let id = decided.call_id.clone();
                    self.open(&id).decided = Some((event, decided));
                }
                None => self.note(event),
            },
            Some(Body::ToolCallStarted(bytes)) => match decoded::<pb::ToolCallStarted>(&bytes) {
                Some(started) => self.open(&started.call_id).started = Some(event),
                None => self.note(event),
            },
            Some(Body::ToolResultRecorded(bytes)) => {
                match decoded::<pb::ToolResultRecorded>(&bytes) {
                    Some(result) => {
                        let id = result.call_id.clone();
                        self.open(&id).ended = Some(CallEnd::Result(event, Some(result)));
                    }
                    None => self.note(event),
                }
            }
            Some(Body::ToolCallCancelled(bytes)) => {
                match decoded::<pb::ToolCallCancelled>(&bytes) {
                    Some(cancelled) => {
                        let id = cancelled.call_id.clone();
                        self.open(&id).ended = Some(CallEnd::Cancelled(event, cancelled));
                    }
                    None => self.note(event),
                }
            }
            // A result digest is for the next request, not for readers of the result.
            Some(Body::ToolSnapshotRecorded(bytes)) => {
                if let Some(snapshot) = decoded::<pb::ToolSnapshotRecorded>(&bytes) {
                    self.summarise(event.revision, &snapshot);
                }
            }
            _ => self.note(event),
        }
    }

    fn fold(&mut self, event: pb::Event) {
        match self.0.last_mut() {
            Some(ThreadItem::Folded(events)) => events.push(event),
            _ => self.0.push(ThreadItem::Folded(vec![event])),
        }
    }

    fn note(&mut self, event: pb::Event) {
        self.0.push(ThreadItem::Noted(Box::new(event)));
    }

    fn ask(&mut self, event: pb::Event, asked: pb::ToolCallRequested) {
        let call = ThreadCall {
            call_id: asked.call_id.clone(),
            asked: Some((event, asked)),
            ..ThreadCall::default()
        };
        match self.0.last_mut() {
            Some(ThreadItem::Step(calls)) if belongs(calls, &call) => calls.push(call),
            _ => self.0.push(ThreadItem::Step(vec![call])),
        }
    }

    /// Records a result digest, so that links to it lead to its call, if that is in the window.
    fn summarise(&mut self, revision: u64, snapshot: &pb::ToolSnapshotRecorded) {
        let is_it = |call: &&mut ThreadCall| {
            let asked = call.asked.as_ref().map(|(event, _)| event.revision);
            call.call_id == snapshot.call_id && asked == Some(snapshot.request_revision)
        };
        let steps = self.0.iter_mut().rev().filter_map(|item| match item {
            ThreadItem::Step(calls) => Some(calls),
            _ => None,
        });
        if let Some(call) = steps.flatten().find(is_it) {
            call.summarised.push(revision);
        }
    }

    /// Returns the last open call with this id. If its request is before the window, a call is
    /// created at the current place.
    fn open(&mut self, id: &str) -> &mut ThreadCall {
        let place = self.0.iter().enumerate().rev().find_map(|(index, item)| {
            let ThreadItem::Step(calls) = item else {
                return None;
            };
            let call = calls
                .iter()
                .rposition(|call| call.call_id == id && call.ended.is_none())?;
            Some((index, call))
        });
        let (index, call) = place.unwrap_or_else(|| {
            self.0.push(ThreadItem::Step(vec![ThreadCall {
                call_id: id.to_owned(),
                ..ThreadCall::default()
            }]));
            (self.0.len() - 1, 0)
        });
        match &mut self.0[index] {
            ThreadItem::Step(calls) => &mut calls[call],
            _ => unreachable!("it is a step"),
        }
    }
}

/// Returns true when a call belongs to the same answer as the previous calls.
fn belongs(calls: &[ThreadCall], call: &ThreadCall) -> bool {
    let of = |call: &ThreadCall| {
        call.asked
            .as_ref()
            .map_or(0, |(_, asked)| asked.message_revision)
    };
    let last = calls.last().map_or(0, of);
    match (last, of(call)) {
        (0, _) | (_, 0) => calls.iter().all(|call| call.ended.is_none()),
        (last, own) => last == own,
    }
}

fn decoded<M: Message + Default>(bytes: &[u8]) -> Option<M> {
    M::decode(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(revision: u64, body: Body) -> pb::Event {
        pb::Event {
            revision,
            body: Some(body),
            ..Default::default()
        }
    }

    fn call(revision: u64, id: &str, message: u64) -> pb::Event {
        let call = pb::ToolCallRequested {
            call_id: id.into(),
            tool: "Bash".into(),
            message_revision: message,
            ..Default::default()
        };
        event(
            revision,
            Body::ToolCallRequested(call.encode_to_vec().into()),
        )
    }

    fn result(revision: u64, id: &str, success: bool) -> pb::Event {
        let result = pb::ToolResultRecorded {
            call_id: id.into(),
            success,
            ..Default::default()
        };
        event(
            revision,
            Body::ToolResultRecorded(result.encode_to_vec().into()),
        )
    }

    fn shape(events: Vec<pb::Event>) -> Vec<Vec<(String, ThreadCallStatus)>> {
        let calls = |item: ThreadItem| match item {
            ThreadItem::Step(calls) => calls
                .iter()
                .map(|call| (call.call_id.clone(), call.status(None)))
                .collect(),
            _ => Vec::new(),
        };
        thread(events, &HashMap::new())
            .into_iter()
            .map(calls)
            .collect()
    }

    // Calls of one answer must be in one step, and calls of the next answer in the next step,
    // whatever the order of their results. A repeated id is a new call.
    #[test]
    fn calls_of_one_answer_are_grouped() {
        let told = shape(vec![
            call(1, "a", 0),
            call(2, "b", 0),
            result(3, "b", false),
            result(4, "a", true),
            call(5, "a", 0),
        ]);
        let is = |id: &str, stands| (id.to_owned(), stands);
        assert_eq!(
            told,
            [
                vec![
                    is("a", ThreadCallStatus::Succeeded),
                    is("b", ThreadCallStatus::Failed)
                ],
                vec![is("a", ThreadCallStatus::Open)]
            ]
        );
        let told = shape(vec![call(2, "a", 1), result(3, "a", true), call(4, "b", 1)]);
        assert_eq!(told.len(), 1);
    }

    // A result whose call is before the window must be shown, and not as an open call.
    #[test]
    fn result_without_its_call_is_shown() {
        let told = shape(vec![result(9, "x", true)]);
        assert_eq!(told, [vec![("x".to_owned(), ThreadCallStatus::Succeeded)]]);
    }

    #[test]
    fn denied_and_pending_calls_have_different_states() {
        let asked = pb::ToolCallRequested {
            call_id: "a".into(),
            approval: pb::ApprovalRequirement::Pending.into(),
            ..Default::default()
        };
        let asked = event(1, Body::ToolCallRequested(asked.encode_to_vec().into()));
        let decided = pb::ApprovalDecided {
            call_id: "a".into(),
            decision: pb::Decision::Denied.into(),
            ..Default::default()
        };
        let decided = event(2, Body::ApprovalDecided(decided.encode_to_vec().into()));
        assert_eq!(shape(vec![asked.clone()])[0][0].1, ThreadCallStatus::Waits);
        assert_eq!(
            shape(vec![asked, decided])[0][0].1,
            ThreadCallStatus::Denied
        );
    }
}
