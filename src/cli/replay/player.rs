//! Decides which recorded result answers which call. It knows the calls of the followed branch, but
//! not the store: it takes events and returns questions.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use prost::Message;
use serde_json::Value;

use super::super::pb::{self, event::Body};

/// A call without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// Id of the call on the followed branch.
    pub(crate) call_id: String,
    /// Name of the tool.
    pub(crate) tool: String,
    /// Arguments as JSON text.
    pub(crate) arguments: Bytes,
    /// Number of the call, from 1, among the calls of this tool with these arguments. Cancelled
    /// calls are not counted.
    pub(crate) occurrence: u32,
    /// It waits for an approval first.
    pub(crate) pending: bool,
}

/// The calls of a branch, from its events.
#[derive(Debug, Default)]
pub(crate) struct Player {
    open: BTreeMap<String, Question>,
    denied: BTreeSet<String>,
    counts: HashMap<(String, String), u32>,
}

impl Player {
    /// Reads an event of the branch. Returns a call that can be answered now.
    ///
    /// # Errors
    /// If the event's body cannot be decoded.
    pub(crate) fn take(
        &mut self,
        event: &pb::Event,
    ) -> Result<Option<Question>, prost::DecodeError> {
        Ok(match &event.body {
            Some(Body::ToolCallRequested(body)) => {
                let call = pb::ToolCallRequested::decode(body.clone())?;
                Some(self.requested(call))
            }
            Some(Body::ApprovalDecided(body)) => {
                let decided = pb::ApprovalDecided::decode(body.clone())?;
                self.decided(&decided)
            }
            Some(Body::ToolResultRecorded(body)) => {
                let result = pb::ToolResultRecorded::decode(body.clone())?;
                self.open.remove(&result.call_id);
                None
            }
            Some(Body::ToolCallCancelled(body)) => {
                let cancelled = pb::ToolCallCancelled::decode(body.clone())?;
                self.dropped(&cancelled.call_id);
                None
            }
            _ => None,
        })
    }

    /// Returns open calls that were not denied, sorted by id.
    pub(crate) fn open(&self) -> impl Iterator<Item = &Question> {
        let open = self.open.values();
        open.filter(|question| !self.denied.contains(&question.call_id))
    }

    fn requested(&mut self, call: pb::ToolCallRequested) -> Question {
        let pending = call.approval() == pb::ApprovalRequirement::Pending;
        let key = key(&call.tool, &call.arguments);
        let count = self.counts.entry(key).or_default();
        *count += 1;
        let question = Question {
            occurrence: *count,
            tool: call.tool,
            arguments: call.arguments,
            pending,
            call_id: call.call_id.clone(),
        };
        self.denied.remove(&call.call_id);
        self.open.insert(call.call_id, question.clone());
        question
    }

    fn decided(&mut self, decided: &pb::ApprovalDecided) -> Option<Question> {
        if decided.decision() != pb::Decision::Approved {
            self.denied.insert(decided.call_id.clone());
            return None;
        }
        let question = self.open.get_mut(&decided.call_id)?;
        question.pending = false;
        Some(question.clone())
    }

    /// Handles a call that ended without a result: it used none of the recorded ones.
    fn dropped(&mut self, call_id: &str) {
        let Some(question) = self.open.remove(call_id) else {
            return;
        };
        let key = key(&question.tool, &question.arguments);
        if let Some(count) = self.counts.get_mut(&key) {
            *count = count.saturating_sub(1);
        }
    }
}

/// Returns a key of tool and arguments. Keys are equal if the arguments are equal as JSON.
fn key(tool: &str, arguments: &[u8]) -> (String, String) {
    let canonical = match serde_json::from_slice::<Value>(arguments) {
        Ok(mut value) => {
            value.sort_all_objects();
            value.to_string()
        }
        Err(_) => String::from_utf8_lossy(arguments).into_owned(),
    };
    (tool.to_owned(), canonical)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(body: Body) -> pb::Event {
        pb::Event {
            body: Some(body),
            ..Default::default()
        }
    }

    fn ask(call_id: &str, arguments: &str, approval: pb::ApprovalRequirement) -> pb::Event {
        let call = pb::ToolCallRequested {
            call_id: call_id.into(),
            tool: "read".into(),
            arguments: arguments.to_owned().into(),
            message_revision: 0,
            approval: approval.into(),
            ..Default::default()
        };
        event(Body::ToolCallRequested(call.encode_to_vec().into()))
    }

    // The same call made three times must get the first, second and third recorded result, whatever
    // the spelling of its arguments. A cancelled call uses none.
    #[test]
    fn repeated_call_gets_the_nth_recorded_result() {
        let no = pb::ApprovalRequirement::NotRequired;
        let mut player = Player::default();
        let mut asked = |event| {
            let question = player.take(&event).unwrap();
            question.map(|q| q.occurrence)
        };
        assert_eq!(
            asked(ask("a", r#"{"x": 1, "y": {"b": 1, "a": 2}}"#, no)),
            Some(1)
        );
        assert_eq!(asked(ask("b", r#"{"y":{"a":2,"b":1},"x":1}"#, no)), Some(2));
        let cancelled = pb::ToolCallCancelled {
            call_id: "b".into(),
            ..Default::default()
        };
        let cancelled = Body::ToolCallCancelled(cancelled.encode_to_vec().into());
        assert_eq!(asked(event(cancelled)), None);
        assert_eq!(asked(ask("c", r#"{"x":1,"y":{"b":1,"a":2}}"#, no)), Some(2));
        assert_eq!(asked(ask("d", r#"{"x":2}"#, no)), Some(1));
    }

    // A call that needs approval must not be answered before it is approved, and never if it is
    // denied.
    #[test]
    fn player_waits_for_the_approval_of_a_call() {
        let mut player = Player::default();
        let decide = |call_id: &str, decision: pb::Decision| {
            let decided = pb::ApprovalDecided {
                call_id: call_id.into(),
                decision: decision.into(),
                ..Default::default()
            };
            event(Body::ApprovalDecided(decided.encode_to_vec().into()))
        };
        for call_id in ["a", "b"] {
            let question = player.take(&ask(call_id, "{}", pb::ApprovalRequirement::Pending));
            assert!(question.unwrap().unwrap().pending);
        }
        let denied = player.take(&decide("a", pb::Decision::Denied));
        assert_eq!(denied.unwrap(), None);
        let approved = player.take(&decide("b", pb::Decision::Approved));
        assert!(!approved.unwrap().unwrap().pending);
        let open: Vec<_> = player.open().map(|q| q.call_id.as_str()).collect();
        assert_eq!(open, ["b"]);
    }
}
