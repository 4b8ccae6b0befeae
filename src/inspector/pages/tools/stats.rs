//! Statistics of calls by tool.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use prost_types::Timestamp;

use treering_present::json::moment;
use treering_proto::pb::{self, CallStatus};

/// A call with the values for its statistics.
#[derive(Clone, Debug)]
pub struct CountedCall {
    /// The call, from the store.
    pub call: pb::ToolCall,
    /// The conversation that was queried; the events of the call may be inherited.
    pub conversation: String,
    /// When it was requested.
    pub at: Timestamp,
    /// Its duration, if known.
    pub took: Option<Duration>,
}

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
    /// In the order of the filters.
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

    /// Returns its name in addresses.
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

/// By conversation and revision: when the event occurred according to its author.
pub type HappenedAt = HashMap<(String, u64), Timestamp>;

/// Returns the duration of a call: as recorded, else the time between its two events. Unknown if
/// their authors give no times and both were recorded at once.
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

/// Returns when a call was requested according to its author, else when that was recorded.
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
    /// In the order of the columns.
    pub const ALL: [Self; 6] = [
        Self::Tool,
        Self::Calls,
        Self::Failed,
        Self::P50,
        Self::P95,
        Self::Bytes,
    ];

    /// Returns its name in addresses.
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

    /// Parses its name in an address; unknown names give the first one.
    #[must_use]
    pub fn named(name: &str) -> Self {
        let named = Self::ALL.into_iter().find(|order| order.as_str() == name);
        named.unwrap_or_default()
    }
}

/// Counts calls by tool.
#[must_use]
pub fn by_tool(calls: &[CountedCall], order: ToolOrder) -> Vec<ToolNumbers> {
    let mut tools: BTreeMap<&str, ToolNumbers> = BTreeMap::new();
    for CountedCall { call, took, .. } in calls {
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
        ToolOrder::Calls => tools.sort_by_key(|of| std::cmp::Reverse(of.calls)),
        ToolOrder::Failed => tools.sort_by_key(|of| std::cmp::Reverse(of.failed)),
        ToolOrder::P50 => tools.sort_by_key(|of| std::cmp::Reverse(of.percentile(50))),
        ToolOrder::P95 => tools.sort_by_key(|of| std::cmp::Reverse(of.percentile(95))),
        ToolOrder::Bytes => tools.sort_by_key(|of| std::cmp::Reverse(of.bytes)),
    }
    tools
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(tool: &str, status: CallStatus, milliseconds: Option<u64>) -> CountedCall {
        let call = pb::ToolCall {
            tool: tool.into(),
            status: status.into(),
            execution_time_ms: milliseconds,
            result_bytes: 10,
            ..Default::default()
        };
        CountedCall {
            at: Timestamp::default(),
            took: took(&call, "c", &HappenedAt::new()),
            conversation: "c".into(),
            call,
        }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanos: 0 }
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
        let tools = by_tool(&calls, ToolOrder::Calls);
        let bash = &tools[0];
        assert_eq!(
            (bash.calls, bash.failed, bash.stopped, bash.open),
            (4, 1, 1, 1)
        );
        assert_eq!(bash.percentile(50), Some(Duration::from_millis(10)));
        assert_eq!(bash.percentile(95), Some(Duration::from_millis(30)));
        assert_eq!(bash.bytes, 40);
        assert_eq!(by_tool(&calls, ToolOrder::named("tool"))[0].tool, "bash");
        assert_eq!(ToolNumbers::default().percentile(50), None);
    }

    // An import records a session at once, so the time between two commits says nothing about the
    // duration of a call. The times in the source do.
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
