//! `tools --stats`: for each tool of a branch, the number of calls, failures, durations and
//! returned bytes.

use std::collections::{BTreeMap, HashMap};

use prost::Message;

use super::{
    branch_args::FoundBranch,
    connect::Connection,
    error::CliError,
    json::{Object, moment},
    output::{Out, Tone},
    pb::{self, event::Body},
    read,
    text::{bytes_human, count, parts_text, printable},
};
use treering_domain::EventKind;

/// Counts of one tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OfTool {
    calls: u64,
    failed: u64,
    /// Calls without a result or cancellation.
    open: u64,
    /// Known durations of calls, in milliseconds.
    took_ms: Vec<u64>,
    bytes: u64,
}

/// An open call.
struct Open {
    tool: String,
    since: Option<prost_types::Timestamp>,
}

/// Counts calls from their events.
#[derive(Default)]
struct Counting {
    tools: BTreeMap<String, OfTool>,
    open: HashMap<String, Open>,
}

impl Counting {
    fn event(&mut self, event: &pb::Event) -> Result<(), prost::DecodeError> {
        let at = event.occurred_at.or(event.recorded_at);
        match &event.body {
            Some(Body::ToolCallRequested(body)) => {
                let call = pb::ToolCallRequested::decode(body.clone())?;
                let of_tool = self.tools.entry(call.tool.clone()).or_default();
                of_tool.calls += 1;
                of_tool.open += 1;
                let open = Open {
                    tool: call.tool,
                    since: at,
                };
                self.open.insert(call.call_id, open);
            }
            Some(Body::ToolResultRecorded(body)) => {
                let result = pb::ToolResultRecorded::decode(body.clone())?;
                if let Some(ended) = self.end(&result.call_id, !result.success) {
                    // Imported without times: one commit recorded both.
                    let in_one_go = event.occurred_at.is_none() && ended.since == at;
                    let took = || milliseconds(ended.since.as_ref()?, at.as_ref()?);
                    let took = result.execution_time_ms.or_else(|| match in_one_go {
                        true => None,
                        false => took(),
                    });
                    let of_tool = self.tools.entry(ended.tool).or_default();
                    of_tool.took_ms.extend(took);
                    of_tool.bytes += parts_text(&result.parts).len() as u64;
                }
            }
            Some(Body::ToolCallCancelled(body)) => {
                let cancelled = pb::ToolCallCancelled::decode(body.clone())?;
                self.end(&cancelled.call_id, true);
            }
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, call_id: &str, failed: bool) -> Option<Open> {
        let ended = self.open.remove(call_id)?;
        let of_tool = self.tools.entry(ended.tool.clone()).or_default();
        of_tool.open -= 1;
        of_tool.failed += u64::from(failed);
        Some(ended)
    }
}

/// Milliseconds between two times. None if the second is earlier.
fn milliseconds(from: &prost_types::Timestamp, to: &prost_types::Timestamp) -> Option<u64> {
    let passed = moment(to)? - moment(from)?;
    u64::try_from(passed.whole_milliseconds()).ok()
}

/// The percentile of sorted values. None if there are no values.
fn percentile(sorted: &[u64], percent: usize) -> Option<u64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

/// Prints a line for each tool, most used first.
pub async fn run(
    place: &FoundBranch,
    tool: Option<&str>,
    store: &Connection,
    out: &mut Out,
) -> Result<(), CliError> {
    let kinds = [
        EventKind::ToolCallRequested,
        EventKind::ToolResultRecorded,
        EventKind::ToolCallCancelled,
    ];
    let request = pb::ReadRequest {
        to_revision: place.revision,
        kinds: kinds.iter().map(|kind| i32::from(kind.number())).collect(),
        ..read::of_branch(&place.conversation, &place.branch)
    };
    let mut counting = Counting::default();
    let mut events = read::start(store, request).await?;
    while let Some(batch) = events.message().await? {
        for event in &batch.events {
            counting.event(event).map_err(|_| CliError::Answer {
                call: "Events.Read",
                part: "calls of tools",
            })?;
        }
    }
    let mut tools: Vec<_> = counting
        .tools
        .into_iter()
        .filter(|(name, _)| tool.is_none_or(|tool| tool == name))
        .collect();
    tools.sort_by(|(one, a), (other, b)| b.calls.cmp(&a.calls).then(one.cmp(other)));
    if out.json {
        for (name, of_tool) in &mut tools {
            out.line(json(name, of_tool))?;
        }
        return Ok(());
    }
    if tools.is_empty() {
        return Ok(out.line("No tool was called.")?);
    }
    table(&mut tools, out)
}

fn json(name: &str, of_tool: &mut OfTool) -> String {
    of_tool.took_ms.sort_unstable();
    let mut object = Object::new();
    object
        .string("tool", name)
        .number("calls", of_tool.calls)
        .number("failed", of_tool.failed)
        .number("open", of_tool.open)
        .number("timed", of_tool.took_ms.len() as u64);
    for (key, percent) in [("p50_ms", 50), ("p95_ms", 95)] {
        if let Some(took) = percentile(&of_tool.took_ms, percent) {
            object.number(key, took);
        }
    }
    object.number("result_bytes", of_tool.bytes);
    object.finish()
}

fn table(tools: &mut [(String, OfTool)], out: &mut Out) -> Result<(), CliError> {
    let names = tools
        .iter()
        .map(|(name, _)| printable(name).chars().count());
    let columns = names.max().unwrap_or(0).clamp(4, 24);
    let head = format!(
        "{:<columns$} {:>6} {:>6} {:>7} {:>7} {:>10}",
        "tool", "calls", "failed", "p50", "p95", "bytes"
    );
    let head = out.paint.text(Tone::Dim, head);
    out.row(head)?;
    for (name, of_tool) in tools {
        of_tool.took_ms.sort_unstable();
        let took = |percent| percentile(&of_tool.took_ms, percent).map_or("-".into(), length);
        let name = format!("{:<columns$}", printable(name));
        let failed = format!("{:>6}", count(of_tool.failed));
        let failed = match of_tool.failed {
            0 => failed,
            _ => out.paint.text(Tone::Bad, failed),
        };
        let open = match of_tool.open {
            0 => String::new(),
            open => format!("  {open} open"),
        };
        out.row(format!(
            "{} {:>6} {failed} {:>7} {:>7} {:>10}{open}",
            out.paint.text(Tone::Tool, name),
            count(of_tool.calls),
            took(50),
            took(95),
            bytes_human(of_tool.bytes),
        ))?;
    }
    Ok(())
}

/// A duration in a suitable unit.
#[allow(clippy::cast_precision_loss)] // Only three digits are shown.
fn length(milliseconds: u64) -> String {
    match milliseconds {
        0..1_000 => format!("{milliseconds} ms"),
        1_000..100_000 => format!("{:.1} s", milliseconds as f64 / 1_000.0),
        100_000..594_000 => format!("{:.1} min", milliseconds as f64 / 60_000.0),
        594_000..6_000_000 => format!("{:.0} min", milliseconds as f64 / 60_000.0),
        _ => format!("{:.1} h", milliseconds as f64 / 3_600_000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Option<prost_types::Timestamp> {
        Some(prost_types::Timestamp { seconds, nanos: 0 })
    }

    fn event(seconds: i64, body: Body) -> pb::Event {
        pb::Event {
            occurred_at: at(seconds),
            body: Some(body),
            ..Default::default()
        }
    }

    fn call(seconds: i64, call_id: &str, tool: &str) -> pb::Event {
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

    // A session without times was imported at once, and all of its calls "took 0 ms".
    #[test]
    fn what_was_recorded_in_one_go_tells_no_duration() {
        let mut counting = Counting::default();
        for mut event in [call(5, "a", "ls"), result(5, "a", true, None)] {
            event.recorded_at = event.occurred_at.take();
            counting.event(&event).unwrap();
        }
        assert_eq!(counting.tools["ls"].took_ms, [] as [u64; 0]);
    }

    // Real conversations reuse call ids. Each result must count for the call that was open then,
    // and a recorded duration takes precedence over the clock.
    #[test]
    fn calls_are_counted_with_their_results() {
        let mut counting = Counting::default();
        for event in [
            call(0, "c", "grep"),
            result(2, "c", true, None),
            call(3, "c", "bash"),
            result(9, "c", false, Some(40)),
            call(10, "d", "bash"),
            result(11, "gone", true, None),
        ] {
            counting.event(&event).unwrap();
        }
        let grep = &counting.tools["grep"];
        assert_eq!((grep.calls, grep.failed, grep.open), (1, 0, 0));
        assert_eq!((&grep.took_ms[..], grep.bytes), (&[2_000][..], 12));
        let bash = &counting.tools["bash"];
        assert_eq!((bash.calls, bash.failed, bash.open), (2, 1, 1));
        assert_eq!(bash.took_ms, [40]);
    }

    // A call that waited for a person overnight took "45,654 s", which was wider than its column
    // and hard to read.
    #[test]
    fn durations_fit_their_column() {
        for (milliseconds, told) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_500, "1.5 s"),
            (160_000, "2.7 min"),
            (599_000, "10 min"),
            (45_654_000, "12.7 h"),
        ] {
            assert_eq!(length(milliseconds), told);
            assert!(told.len() <= 7);
        }
    }

    #[test]
    fn percentiles_are_values_that_were_there() {
        assert_eq!(percentile(&[], 50), None);
        assert_eq!(percentile(&[7], 95), Some(7));
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!(percentile(&hundred, 50), Some(50));
        assert_eq!(percentile(&hundred, 95), Some(95));
    }
}
