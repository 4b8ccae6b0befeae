//! `tools --stats`: for each tool of a branch, the number of calls, failures, durations and
//! returned bytes.

use std::time::Duration;

use super::{
    branch_args::FoundBranch,
    connect::Connection,
    error::ClientError,
    json::Object,
    output::{Out, Tone},
    pb, read,
    text::{bytes_human, count, duration, printable},
};
use treering_present::tool_stats::{BranchCalls, ToolNumbers, ToolOrder, by_tool};

/// Prints a line for each tool, most used first.
pub(crate) async fn run(
    place: &FoundBranch,
    tool: Option<&str>,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let kinds = BranchCalls::KINDS.iter();
    let request = pb::ReadRequest {
        to_revision: place.revision,
        kinds: kinds.map(|kind| i32::from(kind.number())).collect(),
        ..read::of_branch(&place.conversation, &place.branch)
    };
    let mut calls = BranchCalls::default();
    let mut events = read::start(store, request).await?;
    while let Some(batch) = events.message().await? {
        for event in &batch.events {
            calls.add(event).map_err(|_| ClientError::Answer {
                call: "Events.Read",
                part: "readable tool calls",
            })?;
        }
    }
    let mut tools = by_tool(calls.timed(), ToolOrder::Calls);
    tools.retain(|of| tool.is_none_or(|tool| tool == of.tool));
    if out.json {
        for of in &tools {
            out.line(json(of))?;
        }
        return Ok(());
    }
    if tools.is_empty() {
        return Ok(out.line("No tool was called.")?);
    }
    table(&tools, out)
}

fn json(of: &ToolNumbers) -> String {
    let mut object = Object::new();
    object
        .string("tool", &of.tool)
        .number("calls", of.calls)
        .number("failed", of.failed)
        .number("stopped", of.stopped)
        .number("open", of.open)
        .number("timed", of.took.len() as u64);
    for (key, percent) in [("p50_ms", 50), ("p95_ms", 95)] {
        if let Some(took) = of.percentile(percent) {
            object.number(key, milliseconds(took));
        }
    }
    object.number("result_bytes", of.bytes);
    object.finish()
}

fn milliseconds(took: Duration) -> u64 {
    u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
}

fn table(tools: &[ToolNumbers], out: &mut Out) -> Result<(), ClientError> {
    let names = tools.iter().map(|of| printable(&of.tool).chars().count());
    let columns = names.max().unwrap_or(0).clamp(4, 24);
    let head = format!(
        "{:<columns$} {:>6} {:>6} {:>7} {:>7} {:>10}",
        "tool", "calls", "failed", "p50", "p95", "bytes"
    );
    let head = out.paint.text(Tone::Dim, head);
    out.row(head)?;
    for of in tools {
        let took = |percent| of.percentile(percent).map_or("-".into(), duration);
        let name = format!("{:<columns$}", printable(&of.tool));
        let failed = format!("{:>6}", count(of.failed));
        let failed = match of.failed {
            0 => failed,
            _ => out.paint.text(Tone::Bad, failed),
        };
        let rest: String = [(of.stopped, "stopped"), (of.open, "open")]
            .iter()
            .filter(|(number, _)| *number > 0)
            .map(|(number, word)| format!("  {number} {word}"))
            .collect();
        out.row(format!(
            "{} {:>6} {failed} {:>7} {:>7} {:>10}{rest}",
            out.paint.text(Tone::Tool, name),
            count(of.calls),
            took(50),
            took(95),
            bytes_human(of.bytes),
        ))?;
    }
    Ok(())
}
