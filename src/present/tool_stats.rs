//! Statistics of tool calls: outcomes, durations and sizes by tool.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use prost::{DecodeError, Message};
use prost_types::Timestamp;

use crate::{json::moment, text::parts_text};
use treering_domain::EventKind;
use treering_proto::pb::{self, CallStatus, event::Body};

/// The outcome of a call, for filters and statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// A successful result.
    Succeeded,
    /// A failed result.
    Failed,
    /// Denied, expired or cancelled.
    Stopped,
    /// Not ended.
    Open,
}

impl CallOutcome {
    /// All outcomes, in the order of the filters.
    pub const ALL: [Self; 4] = [Self::Succeeded, Self::Failed, Self::Stopped, Self::Open];

    /// Returns the outcome for a status.
    #[must_use]
    pub fn of(status: CallStatus) -> Self {
        match status {
            CallStatus::Succeeded => Self::Succeeded,
            CallStatus::Failed => Self::Failed,
            CallStatus::Denied | CallStatus::Expired | CallStatus::Cancelled => Self::Stopped,
            CallStatus::Unspecified
            | CallStatus::Requested
            | CallStatus::PendingApproval
            | CallStatus::Approved
            | CallStatus::Started => Self::Open,
        }
    }

    /// Returns its name in URLs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
            Self::Open => "open",
        }
    }
}

/// When each event happened according to its author, by conversation and revision.
pub type HappenedAt = HashMap<(String, u64), Timestamp>;

/// Returns the duration of a call: the recorded one, else the time between its two events. It is
/// unknown if the authors of the events give no times and both events were recorded at the same
/// time.
#[must_use]
pub fn took(call: &pb::ToolCall, conversation: &str, happened: &HappenedAt) -> Option<Duration> {
    if let Some(milliseconds) = call.execution_time_ms {
        return Some(Duration::from_millis(milliseconds));
    }
    let at = |revision: u64| {
        let own = happened.get(&(conversation.to_owned(), revision));
        own.or_else(|| happened.get(&(call.conversation_id.clone(), revision)))
    };
    match (at(call.request_revision), at(call.end_revision)) {
        (Some(from), Some(to)) => between(from, to),
        _ => {
            let (from, to) = (call.requested_at.as_ref()?, call.ended_at.as_ref()?);
            between(from, to).filter(|took| !took.is_zero())
        }
    }
}

/// Returns when a call was requested: the time that the author of the event gives, else the time
/// when the event was recorded.
#[must_use]
pub fn asked_at(call: &pb::ToolCall, conversation: &str, happened: &HappenedAt) -> Timestamp {
    let place = |id: &str| (id.to_owned(), call.request_revision);
    let own = happened.get(&place(conversation));
    let own = own.or_else(|| happened.get(&place(&call.conversation_id)));
    own.copied().or(call.requested_at).unwrap_or_default()
}

fn between(from: &Timestamp, to: &Timestamp) -> Option<Duration> {
    (moment(to)? - moment(from)?).try_into().ok()
}

/// The calls of a branch, built from its events. `Tools.History` would return at most the newest
/// 1,000.
#[derive(Debug, Default)]
pub struct BranchCalls {
    calls: Vec<Made>,
    /// By call id: the index of the call that has not ended.
    open: HashMap<String, usize>,
}

#[derive(Debug)]
struct Made {
    call: pb::ToolCall,
    /// When the call was requested and ended.
    happened: HappenedAt,
}

impl BranchCalls {
    /// The kinds of events to read.
    pub const KINDS: [EventKind; 5] = [
        EventKind::ToolCallRequested,
        EventKind::ApprovalDecided,
        EventKind::ToolCallStarted,
        EventKind::ToolResultRecorded,
        EventKind::ToolCallCancelled,
    ];

    /// Adds the next event of the branch.
    ///
    /// # Errors
    /// When its body cannot be decoded.
    pub fn add(&mut self, event: &pb::Event) -> Result<(), DecodeError> {
        match &event.body {
            Some(Body::ToolCallRequested(body)) => {
                self.request(event, pb::ToolCallRequested::decode(body.clone())?);
            }
            Some(Body::ApprovalDecided(body)) => {
                let decided = pb::ApprovalDecided::decode(body.clone())?;
                let status = match decided.decision() {
                    pb::Decision::Denied => CallStatus::Denied,
                    pb::Decision::Expired => CallStatus::Expired,
                    pb::Decision::Approved | pb::Decision::Unspecified => CallStatus::Approved,
                };
                self.set(&decided.call_id, status);
            }
            Some(Body::ToolCallStarted(body)) => {
                let started = pb::ToolCallStarted::decode(body.clone())?;
                self.set(&started.call_id, CallStatus::Started);
            }
            Some(Body::ToolResultRecorded(body)) => {
                let result = pb::ToolResultRecorded::decode(body.clone())?;
                let status = match result.success {
                    true => CallStatus::Succeeded,
                    false => CallStatus::Failed,
                };
                if let Some(call) = self.end(event, &result.call_id, status) {
                    call.execution_time_ms = result.execution_time_ms;
                    call.result_bytes = parts_text(&result.parts).len() as u64;
                }
            }
            Some(Body::ToolCallCancelled(body)) => {
                let cancelled = pb::ToolCallCancelled::decode(body.clone())?;
                self.end(event, &cancelled.call_id, CallStatus::Cancelled);
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the calls with their durations, in the order of their requests.
    pub fn timed(&self) -> impl Iterator<Item = (&pb::ToolCall, Option<Duration>)> {
        self.calls.iter().map(|Made { call, happened }| {
            let took = took(call, &call.conversation_id, happened);
            (call, took)
        })
    }

    fn request(&mut self, event: &pb::Event, asked: pb::ToolCallRequested) {
        let call = pb::ToolCall {
            conversation_id: event.conversation_id.clone(),
            tool: asked.tool,
            status: CallStatus::Requested.into(),
            request_revision: event.revision,
            requested_at: event.recorded_at,
            ..Default::default()
        };
        self.open.insert(asked.call_id, self.calls.len());
        let mut made = Made {
            call,
            happened: HappenedAt::new(),
        };
        made.happens(event);
        self.calls.push(made);
    }

    fn set(&mut self, call_id: &str, status: CallStatus) {
        let index = self.open.get(call_id);
        if let Some(made) = index.and_then(|index| self.calls.get_mut(*index)) {
            made.call.set_status(status);
        }
    }

    fn end(
        &mut self,
        event: &pb::Event,
        call_id: &str,
        status: CallStatus,
    ) -> Option<&mut pb::ToolCall> {
        let made = self.calls.get_mut(self.open.remove(call_id)?)?;
        made.happens(event);
        made.call.set_status(status);
        made.call.end_revision = event.revision;
        made.call.ended_at = event.recorded_at;
        Some(&mut made.call)
    }
}

impl Made {
    fn happens(&mut self, event: &pb::Event) {
        let place = (self.call.conversation_id.clone(), event.revision);
        self.happened
            .extend(event.occurred_at.map(|at| (place, at)));
    }
}

/// Statistics of one tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolNumbers {
    /// Its name.
    pub tool: String,
    /// Calls.
    pub calls: u64,
    /// Failed calls.
    pub failed: u64,
    /// Denied, expired or cancelled calls.
    pub stopped: u64,
    /// Open calls.
    pub open: u64,
    /// Known durations, the shortest first.
    pub took: Vec<Duration>,
    /// Size of the results in bytes of text.
    pub bytes: u64,
}

impl ToolNumbers {
    /// Returns a percentile of the durations.
    #[must_use]
    pub fn percentile(&self, percent: usize) -> Option<Duration> {
        let rank = (self.took.len() * percent).div_ceil(100).max(1);
        self.took.get(rank - 1).copied()
    }
}

/// Sort orders of tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolOrder {
    /// Most calls first.
    #[default]
    Calls,
    /// By name.
    Tool,
    /// Most failures first.
    Failed,
    /// Largest median duration first.
    P50,
    /// Largest 95th percentile first.
    P95,
    /// Largest results first.
    Bytes,
}

impl ToolOrder {
    /// All sort orders, in the order of the columns.
    pub const ALL: [Self; 6] = [
        Self::Tool,
        Self::Calls,
        Self::Failed,
        Self::P50,
        Self::P95,
        Self::Bytes,
    ];

    /// Returns its name in URLs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::Calls => "calls",
            Self::Failed => "failed",
            Self::P50 => "p50",
            Self::P95 => "p95",
            Self::Bytes => "bytes",
        }
    }

    /// Parses its name in a URL; an unknown name gives the default order.
    #[must_use]
    pub fn named(name: &str) -> Self {
        let named = Self::ALL.into_iter().find(|order| order.as_str() == name);
        named.unwrap_or_default()
    }
}

/// Counts calls by tool. Each call comes with its duration.
#[must_use]
pub fn by_tool<'a>(
    calls: impl IntoIterator<Item = (&'a pb::ToolCall, Option<Duration>)>,
    order: ToolOrder,
) -> Vec<ToolNumbers> {
    let mut tools: BTreeMap<&str, ToolNumbers> = BTreeMap::new();
    for (call, took) in calls {
        let of = tools.entry(&call.tool).or_default();
        of.calls += 1;
        match CallOutcome::of(call.status()) {
            CallOutcome::Succeeded => {}
            CallOutcome::Failed => of.failed += 1,
            CallOutcome::Stopped => of.stopped += 1,
            CallOutcome::Open => of.open += 1,
        }
        of.took.extend(took);
        of.bytes += call.result_bytes;
    }
    let named = tools.into_iter().map(|(tool, mut of)| {
        tool.clone_into(&mut of.tool);
        of.took.sort_unstable();
        of
    });
    let mut tools: Vec<ToolNumbers> = named.collect();
    match order {
        ToolOrder::Tool => {}
        ToolOrder::Calls => tools.sort_by_key(|of| Reverse(of.calls)),
        ToolOrder::Failed => tools.sort_by_key(|of| Reverse(of.failed)),
        ToolOrder::P50 => tools.sort_by_key(|of| Reverse(of.percentile(50))),
        ToolOrder::P95 => tools.sort_by_key(|of| Reverse(of.percentile(95))),
        ToolOrder::Bytes => tools.sort_by_key(|of| Reverse(of.bytes)),
    }
    tools
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(tool: &str, status: CallStatus, milliseconds: Option<u64>) -> pb::ToolCall {
        pb::ToolCall {
            tool: tool.into(),
            status: status.into(),
            execution_time_ms: milliseconds,
            result_bytes: 10,
            ..Default::default()
        }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanos: 0 }
    }

    fn event(seconds: i64, body: Body) -> pb::Event {
        pb::Event {
            revision: seconds.unsigned_abs() + 1,
            occurred_at: Some(at(seconds)),
            body: Some(body),
            ..Default::default()
        }
    }

    fn requested(seconds: i64, call_id: &str, tool: &str) -> pb::Event {
        let call = pb::ToolCallRequested {
            call_id: call_id.into(),
            tool: tool.into(),
            ..Default::default()
        };
        event(
            seconds,
            Body::ToolCallRequested(call.encode_to_vec().into()),
        )
    }

    fn result(seconds: i64, call_id: &str, success: bool, ms: Option<u64>) -> pb::Event {
        let part = pb::content_part::Part::Text("twelve bytes".into());
        let result = pb::ToolResultRecorded {
            call_id: call_id.into(),
            success,
            execution_time_ms: ms,
            parts: vec![pb::ContentPart { part: Some(part) }],
            ..Default::default()
        };
        event(
            seconds,
            Body::ToolResultRecorded(result.encode_to_vec().into()),
        )
    }

    fn denied(seconds: i64, call_id: &str) -> pb::Event {
        let decided = pb::ApprovalDecided {
            call_id: call_id.into(),
            decision: pb::Decision::Denied.into(),
            ..Default::default()
        };
        event(
            seconds,
            Body::ApprovalDecided(decided.encode_to_vec().into()),
        )
    }

    fn counted(events: impl IntoIterator<Item = pb::Event>) -> Vec<ToolNumbers> {
        let mut calls = BranchCalls::default();
        for event in events {
            calls.add(&event).unwrap();
        }
        by_tool(calls.timed(), ToolOrder::Tool)
    }

    // These numbers show what is slow or fails: each outcome must count once, and calls without a
    // duration must not count in the percentiles.
    #[test]
    fn calls_are_counted_by_tool() {
        let calls = [
            call("bash", CallStatus::Succeeded, Some(10)),
            call("bash", CallStatus::Failed, Some(30)),
            call("bash", CallStatus::Denied, None),
            call("bash", CallStatus::PendingApproval, None),
            call("read", CallStatus::Succeeded, Some(5)),
        ];
        let happened = HappenedAt::new();
        let timed = || calls.iter().map(|call| (call, took(call, "c", &happened)));
        let tools = by_tool(timed(), ToolOrder::Calls);
        let bash = &tools[0];
        assert_eq!(
            (bash.calls, bash.failed, bash.stopped, bash.open),
            (4, 1, 1, 1)
        );
        assert_eq!(bash.percentile(50), Some(Duration::from_millis(10)));
        assert_eq!(bash.percentile(95), Some(Duration::from_millis(30)));
        assert_eq!(bash.bytes, 40);
        assert_eq!(by_tool(timed(), ToolOrder::named("tool"))[0].tool, "bash");
        assert_eq!(ToolNumbers::default().percentile(50), None);
    }

    // Call ids repeat in real conversations: each result must count for the call that was open
    // then, and a recorded duration must take precedence over the event times. `tools --stats`
    // counted a denied call as open, and a cancelled one as failed.
    #[test]
    fn events_of_calls_are_counted() {
        let tools = counted([
            requested(0, "c", "grep"),
            result(2, "c", true, None),
            requested(3, "c", "bash"),
            result(9, "c", false, Some(40)),
            requested(10, "d", "bash"),
            result(11, "gone", true, None),
            requested(12, "e", "bash"),
            denied(13, "e"),
            requested(14, "f", "bash"),
        ]);
        let [bash, grep] = &tools[..] else {
            panic!("{tools:?}")
        };
        assert_eq!((grep.calls, grep.failed, grep.open), (1, 0, 0));
        assert_eq!(grep.took, [Duration::from_secs(2)]);
        assert_eq!(grep.bytes, 12);
        assert_eq!(
            (bash.calls, bash.failed, bash.stopped, bash.open),
            (4, 1, 1, 2)
        );
        assert_eq!(bash.took, [Duration::from_millis(40)]);
    }

    // A session without times was imported in one commit, and all of its calls seemed to take 0 ms.
    #[test]
    fn one_commit_gives_no_duration() {
        let events = [requested(5, "a", "ls"), result(6, "a", true, None)];
        let tools = counted(events.map(|mut event| {
            event.occurred_at = None;
            event.recorded_at = Some(at(5));
            event
        }));
        assert_eq!((tools[0].calls, tools[0].took.len()), (1, 0));
    }

    // An import records a session all at once, so the time between two commits says nothing about
    // the duration of a call. The times in the source do.
    #[test]
    fn a_time_is_what_the_source_says() {
        let mut call = pb::ToolCall {
            conversation_id: "c".into(),
            request_revision: 4,
            end_revision: 5,
            requested_at: Some(at(1)),
            ended_at: Some(at(1)),
            ..Default::default()
        };
        let mut happened = HappenedAt::new();
        assert_eq!(took(&call, "c", &happened), None);
        happened.insert(("c".into(), 4), at(10));
        happened.insert(("c".into(), 5), at(17));
        assert_eq!(took(&call, "c", &happened), Some(Duration::from_secs(7)));
        call.execution_time_ms = Some(3);
        assert_eq!(took(&call, "c", &happened), Some(Duration::from_millis(3)));
        call.execution_time_ms = None;
        happened.insert(("c".into(), 5), at(3));
        assert_eq!(took(&call, "c", &happened), None);
    }

    #[test]
    fn every_order_has_a_name() {
        for order in ToolOrder::ALL {
            assert_eq!(ToolOrder::named(order.as_str()), order);
        }
        assert_eq!(ToolOrder::named("?"), ToolOrder::Calls);
    }
}
