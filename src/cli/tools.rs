//! `tools`: the calls of a branch with their outcomes, their digests, and the tools on offer.

use std::collections::BTreeMap;

use clap::Args;
use prost::Message;

use super::{
    branch_args::{AsOfArgs, FoundBranch},
    connect::Connection,
    error::ClientError,
    json::{self, cancel_name},
    output::{Out, Tone},
    pb, read,
    text::{bytes_human, count, first_line, indent, printable, status_text, things},
    tool_stats,
};

/// Maximum number of lines of a digest that are shown.
const SUMMARY_LINES: usize = 6;

/// Show the tool calls of a branch, newest first
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering tools CONVERSATION
  treering tools CONVERSATION --tool bash -n 20 --as-of 41
  treering tools CONVERSATION --snapshots
  treering tools CONVERSATION --offered
  treering tools CONVERSATION --stats
  treering tools CONVERSATION --json | jq -r 'select(.status == \"failed\").error_message'")]
pub(crate) struct ToolsArgs {
    #[command(flatten)]
    place: AsOfArgs,
    /// Only this tool
    #[arg(long, short, value_name = "NAME")]
    tool: Option<String>,
    /// Maximum number of calls
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<u32>,
    /// Show digests of finished calls, as requests include them, and where the whole result is
    #[arg(long)]
    snapshots: bool,
    /// Show the tools that are defined or were discovered, and how often each was used since the
    /// last compaction
    #[arg(long, conflicts_with = "snapshots")]
    offered: bool,
    /// For each tool: calls, failures, the median and 95th percentile of the duration, and returned
    /// bytes
    #[arg(long, conflicts_with_all = ["snapshots", "offered", "limit"])]
    stats: bool,
}

/// Prints calls, digests or tools.
pub(crate) async fn run(
    args: &ToolsArgs,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let place = args.place.find(store).await?;
    if args.stats {
        return tool_stats::run(&place, args.tool.as_deref(), store, out).await;
    }
    if args.offered {
        return offered(args, &place, store, out).await;
    }
    if args.snapshots {
        return snapshots(args, place, store, out).await;
    }
    let request = pb::ToolHistoryRequest {
        conversation_id: place.conversation.clone(),
        branch: place.branch.clone(),
        as_of_revision: place.revision,
        tool: args.tool.clone().unwrap_or_default(),
        limit: args.limit.unwrap_or_default(),
    };
    let calls = store.tools().history(request).await?.into_inner().calls;
    for call in &calls {
        if out.json {
            out.line(json::of(call))?;
        } else {
            print_call(call, out)?;
        }
    }
    if calls.is_empty() && !out.json {
        match &args.tool {
            Some(tool) => nothing_of(tool, &place, store, out).await?,
            None => out.line("No tool was called.")?,
        }
    }
    Ok(())
}

/// Lists the existing tools if the named one does not exist.
async fn nothing_of(
    tool: &str,
    place: &FoundBranch,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let state = read::state(store, &place.conversation, &place.branch, place.revision).await?;
    let uses = state.branch.unwrap_or_default().tool_uses;
    let mut used: Vec<_> = uses.keys().map(|tool| printable(tool)).collect();
    used.sort();
    let used = match &used[..] {
        [] => "no tools were called".to_owned(),
        used => format!("the tools are {}", used.join(", ")),
    };
    Ok(out.line(format!("No calls of {}: {used}.", printable(tool)))?)
}

/// Prints a call in two lines: the request with its outcome, and the result.
pub(crate) fn print_call(call: &pb::ToolCall, out: &mut Out) -> Result<(), ClientError> {
    let paint = out.paint;
    let (tone, status) = status_text(call.status());
    let mut facts = Vec::new();
    if let Some(milliseconds) = call.execution_time_ms {
        facts.push(format!("{} ms", count(milliseconds)));
    }
    if call.result_bytes > 0 {
        facts.push(bytes_human(call.result_bytes));
    }
    if call.end_revision > 0 {
        facts.push(format!("ended #{}", call.end_revision));
    }
    if !call.decided_by.is_empty() {
        facts.push(format!("decided by {}", call.decided_by));
    }
    out.row(format!(
        "{}  {} {}  {}  {}",
        paint.text(
            Tone::Name,
            format!("{:>6}", format!("#{}", call.request_revision))
        ),
        paint.text(Tone::Tool, printable(&call.tool)),
        paint.text(Tone::Name, printable(&call.call_id)),
        paint.text(tone, status),
        paint.text(Tone::Dim, printable(&facts.join(", ")))
    ))?;
    let width = out.width.saturating_sub(12);
    let arguments = String::from_utf8_lossy(&call.arguments);
    let arguments = first_line(&arguments, width);
    out.row(format!("        {}", paint.text(Tone::Dim, arguments)))?;
    let cancelled = cancel_name(call.cancel_reason());
    for (text, tone) in [
        (call.result_head.as_str(), Tone::Assistant),
        (call.error_message.as_str(), Tone::Bad),
        (cancelled.as_str(), Tone::Bad),
    ] {
        if !text.is_empty() {
            let arrow = paint.text(tone, "→");
            out.row(format!("        {arrow} {}", first_line(text, width)))?;
        }
    }
    Ok(())
}

async fn snapshots(
    args: &ToolsArgs,
    place: FoundBranch,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let request = pb::SnapshotsRequest {
        conversation_id: place.conversation,
        branch: place.branch,
        as_of_revision: place.revision,
        // The tool is filtered here, so the limit is applied here too.
        limit: args
            .limit
            .filter(|_| args.tool.is_none())
            .unwrap_or_default(),
    };
    let answer = store.tools().snapshots(request).await?.into_inner();
    let named = |snapshot: &&pb::ToolSnapshot| {
        let tool = args.tool.as_ref();
        tool.is_none_or(|tool| *tool == snapshot.tool_name)
    };
    let limit = args.limit.filter(|limit| *limit > 0);
    let limit = limit
        .map_or(Ok(usize::MAX), usize::try_from)
        .unwrap_or(usize::MAX);
    let mut shown = 0;
    for snapshot in answer.snapshots.iter().filter(named).take(limit) {
        shown += 1;
        if out.json {
            out.line(json::of(snapshot))?;
        } else {
            print_snapshot(snapshot, out)?;
        }
    }
    if shown == 0 && !out.json {
        out.line("No call has finished.")?;
    }
    Ok(())
}

fn print_snapshot(snapshot: &pb::ToolSnapshot, out: &mut Out) -> Result<(), ClientError> {
    let paint = out.paint;
    let (tone, word) = match snapshot.success {
        true => (Tone::Good, "succeeded"),
        false => (Tone::Bad, "failed"),
    };
    let revision = snapshot.request.as_ref().map_or(0, |event| event.revision);
    out.row(format!(
        "{}  {} {}  {}  {}",
        paint.text(Tone::Name, format!("{:>6}", format!("#{revision}"))),
        paint.text(Tone::Tool, printable(&snapshot.tool_name)),
        paint.text(Tone::Name, printable(&snapshot.call_id)),
        paint.text(tone, word),
        paint.text(
            Tone::Dim,
            if snapshot.recorded {
                "summary was recorded"
            } else {
                "extract"
            }
        ),
    ))?;
    let width = out.width.saturating_sub(12);
    let arguments = String::from_utf8_lossy(&snapshot.arguments);
    let arguments = first_line(&arguments, width);
    out.row(format!("        {}", paint.text(Tone::Dim, arguments)))?;
    for line in indent(&snapshot.result_summary, 8, SUMMARY_LINES, width) {
        out.row(line)?;
    }
    let reference = paint.text(Tone::Dim, &snapshot.full_result_ref);
    Ok(out.row(format!("        {reference}"))?)
}

async fn offered(
    args: &ToolsArgs,
    place: &FoundBranch,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let state = read::state(store, &place.conversation, &place.branch, place.revision).await?;
    let state = state.branch.unwrap_or_default();
    let definitions = match &state.tools_defined {
        Some(event) => definitions(store, event).await?,
        None => Vec::new(),
    };
    // Defined tools in their order, then those that were only discovered or used.
    let mut names: Vec<&str> = definitions.iter().map(|tool| tool.name.as_str()).collect();
    let uses: BTreeMap<_, _> = state.tool_uses.iter().collect();
    let others = state.discovered_tools.iter().chain(uses.keys().copied());
    for name in others {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names.retain(|name| args.tool.as_ref().is_none_or(|tool| tool == name));
    for name in &names {
        let definition = definitions.iter().find(|tool| tool.name == *name);
        let discovered = state.discovered_tools.iter().any(|tool| tool == name);
        let uses = state.tool_uses.get(*name).copied().unwrap_or_default();
        if out.json {
            out.line(json::offered_tool(name, definition, discovered, uses))?;
        } else {
            print_offered(name, definition, discovered, uses, out)?;
        }
    }
    if names.is_empty() && !out.json {
        out.line("No tools are defined, discovered or used.")?;
    }
    Ok(())
}

fn print_offered(
    name: &str,
    definition: Option<&pb::ToolDefinition>,
    discovered: bool,
    uses: u64,
    out: &mut Out,
) -> Result<(), ClientError> {
    let paint = out.paint;
    let (tone, state) = match definition {
        Some(tool) if !tool.discoverable => (Tone::Good, "offered"),
        Some(_) if discovered => (Tone::Good, "offered, discovered"),
        Some(_) => (Tone::Dim, "waits for discovery"),
        None if discovered => (Tone::Wait, "discovered, not defined"),
        None => (Tone::Dim, "not defined"),
    };
    let mut facts = vec![things(uses, "use", "uses")];
    let approval = definition.is_some_and(|t| t.approval() == pb::ApprovalRequirement::Pending);
    if approval {
        facts.push("needs approval".into());
    }
    if let Some(tool) = definition.filter(|tool| !tool.source.is_empty()) {
        facts.push(format!("from {}", printable(&tool.source)));
    }
    out.row(format!(
        "{}  {}  {}",
        paint.text(Tone::Tool, printable(name)),
        paint.text(tone, state),
        paint.text(Tone::Dim, facts.join(", "))
    ))?;
    let description = definition.map_or("", |tool| tool.description.as_str());
    if !description.is_empty() {
        let width = out.width.saturating_sub(8);
        out.row(format!("    {}", first_line(description, width)))?;
    }
    Ok(())
}

async fn definitions(
    store: &Connection,
    event: &pb::EventRef,
) -> Result<Vec<pb::ToolDefinition>, ClientError> {
    let request = pb::ReadRequest {
        from_revision: event.revision,
        to_revision: event.revision,
        ..read::of_conversation(&event.conversation_id)
    };
    let defined = read::all(store, request).await?.into_iter();
    let mut defined = defined.filter_map(|event| match event.body? {
        pb::event::Body::ToolsDefined(body) => pb::ToolsDefined::decode(body).ok(),
        _ => None,
    });
    let defined = defined.next().ok_or(ClientError::Answer {
        call: "Events.Read",
        part: "definition of the tools",
    })?;
    Ok(defined.tools)
}
