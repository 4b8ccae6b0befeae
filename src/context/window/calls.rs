//! Open calls of a step, and the text that the request has for calls without a result.

use treering_domain::{
    ApprovalDecided, CancelReason, Decision, EventRef, ToolCallCancelled, ToolCallRequested,
};

/// A call of the last step that has neither a result nor a cancellation.
#[derive(Clone, Debug)]
pub(super) struct UnansweredCall {
    pub tool: String,
    /// Index of its block in the step.
    pub block: usize,
    stage: Stage,
}

#[derive(Clone, Debug)]
enum Stage {
    Requested,
    WaitsForApproval,
    Approved,
    /// Denied or expired: the text, and its event.
    Refused(String, EventRef),
    Started(String),
}

impl UnansweredCall {
    pub fn new(call: &ToolCallRequested, block: usize) -> Self {
        let stage = if call.needs_approval {
            Stage::WaitsForApproval
        } else {
            Stage::Requested
        };
        Self {
            tool: call.tool.clone(),
            block,
            stage,
        }
    }

    pub fn decided(&mut self, at: EventRef, decided: &ApprovalDecided) {
        self.stage = match decided.decision {
            Decision::Approved => Stage::Approved,
            Decision::Denied => Stage::Refused(refusal("denied", decided), at),
            Decision::Expired => Stage::Refused(refusal("the approval expired", decided), at),
        };
    }

    pub fn started(&mut self, executor: &str) {
        self.stage = Stage::Started(executor.to_owned());
    }

    /// Returns the text for a call that may still end, and the event of its refusal, if it was
    /// refused.
    pub fn open(&self) -> (String, Option<EventRef>) {
        let text = match &self.stage {
            Stage::Requested => "no result yet: the call has not ended".to_owned(),
            Stage::WaitsForApproval => "no result yet: the call waits for approval".to_owned(),
            Stage::Approved => "no result yet: the call is approved and has not begun".to_owned(),
            Stage::Started(by) if by.is_empty() => "no result yet: the call is running".to_owned(),
            Stage::Started(by) => format!("no result yet: {by} is running the call"),
            Stage::Refused(why, at) => return (why.clone(), Some(*at)),
        };
        (text, None)
    }

    /// As [`Self::open`], after the model continued without a result.
    pub(crate) fn frozen(&self) -> (String, Option<EventRef>) {
        let text = match &self.stage {
            Stage::WaitsForApproval => {
                "no result: the call had not been approved when the conversation went on"
            }
            Stage::Requested | Stage::Approved => {
                "no result: the call had not ended when the conversation went on"
            }
            Stage::Started(_) => {
                "no result: the call was interrupted, or still ran, when the conversation went on"
            }
            Stage::Refused(why, at) => return (why.clone(), Some(*at)),
        };
        (text.to_owned(), None)
    }

    /// Returns the text for a cancelled call, and the event of its denial or cancellation. A denial
    /// takes precedence over the cancellation after it.
    pub fn cancelled(&self, at: EventRef, cancelled: &ToolCallCancelled) -> (String, EventRef) {
        if let (Stage::Refused(why, by), CancelReason::Denied) = (&self.stage, cancelled.reason) {
            return (why.clone(), *by);
        }
        let what = match cancelled.reason {
            CancelReason::Denied => "denied",
            CancelReason::Interrupted => "interrupted before it ended",
            CancelReason::TimedOut => "timed out",
            CancelReason::Superseded => "superseded by another call",
        };
        (with(what, &cancelled.detail), at)
    }
}

fn refusal(what: &str, decided: &ApprovalDecided) -> String {
    let what = if decided.decided_by.is_empty() {
        what.to_owned()
    } else if decided.decision == Decision::Denied {
        format!("{what} by {}", decided.decided_by)
    } else {
        what.to_owned()
    };
    with(&what, &decided.reason)
}

fn with(what: &str, detail: &str) -> String {
    if detail.is_empty() {
        what.to_owned()
    } else {
        format!("{what}: {detail}")
    }
}
