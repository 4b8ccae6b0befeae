//! `show`: prints one conversation: its branches as a tree, and its open calls and turns.

use std::collections::HashMap;

use clap::Args;

use super::{
    branch_args::{AsOfArgs, FoundBranch},
    connect::Connection,
    error::ClientError,
    json::{self, Object, approval_name},
    output::{Out, Paint, Tone},
    pb, read,
    text::{count, cut, first_line, happened, is_undated, printable, things},
};
use treering_domain::EventKind;

/// Show a conversation: its branches as a tree, their heads, and open calls and turns
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering show CONVERSATION
  treering show CONVERSATION --branch retry
  treering show CONVERSATION --as-of 41
  treering show CONVERSATION --json | jq '.branch_list[] | {name, head, fork_revision}'")]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    place: AsOfArgs,
}

/// Counts of one branch, without inherited events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    events: u64,
    messages: u64,
    calls: u64,
    results: u64,
}

/// Prints the conversation.
pub(crate) async fn run(
    args: &ShowArgs,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let place = args.place.find(store).await?;
    let as_of = place.revision;
    let mut state = read::state(store, &place.conversation, &place.branch, as_of).await?;
    if as_of > 0 {
        as_it_was(&mut state, as_of);
    }
    let counts = count_events(&place, store).await?;
    if out.json {
        let text = json::conversation(&state, |branch, object| {
            write_counts(
                counts.get(&branch.branch_id).copied().unwrap_or_default(),
                object,
            );
        });
        return Ok(out.line(text)?);
    }
    for line in about(&state, &counts, out) {
        out.row(line)?;
    }
    out.line("")?;
    for line in tree(&state.branches, &counts, out.paint) {
        out.row(line)?;
    }
    if let Some(of_branch) = &state.branch {
        for line in open_calls(of_branch, out.paint) {
            out.row(line)?;
        }
    }
    Ok(())
}

/// Reduces the state to what it was at a revision: the branches that existed then, with their
/// heads.
fn as_it_was(state: &mut pb::ConversationState, as_of: u64) {
    // The id of a branch is the revision of the event that forked it.
    state.branches.retain(|branch| branch.branch_id <= as_of);
    for branch in &mut state.branches {
        branch.head = branch.head.min(as_of);
    }
    if let Some(summary) = &mut state.summary {
        summary.head = summary.head.min(as_of);
        summary.branch_count = state.branches.len() as u64;
    }
}

async fn count_events(
    place: &FoundBranch,
    store: &Connection,
) -> Result<HashMap<u64, Counts>, ClientError> {
    let request = pb::ReadRequest {
        headers_only: true,
        to_revision: place.revision,
        ..read::of_conversation(&place.conversation)
    };
    let mut counts: HashMap<u64, Counts> = HashMap::new();
    let mut events = read::start(store, request).await?;
    while let Some(batch) = events.message().await? {
        for event in &batch.events {
            let of_branch = counts.entry(event.branch_id).or_default();
            of_branch.events += 1;
            match u16::try_from(event.kind)
                .ok()
                .and_then(EventKind::from_number)
            {
                Some(EventKind::MessageAppended) => of_branch.messages += 1,
                Some(EventKind::ToolCallRequested) => of_branch.calls += 1,
                Some(EventKind::ToolResultRecorded) => of_branch.results += 1,
                _ => {}
            }
        }
    }
    Ok(counts)
}

fn write_counts(counts: Counts, object: &mut Object) {
    object
        .number("events", counts.events)
        .number("messages", counts.messages)
        .number("tool_calls", counts.calls)
        .number("tool_results", counts.results);
}

fn about(state: &pb::ConversationState, counts: &HashMap<u64, Counts>, out: &Out) -> Vec<String> {
    let (paint, width) = (out.paint, out.width);
    let summary = state.summary.clone().unwrap_or_default();
    let title = match first_line(&summary.title, width) {
        title if title.is_empty() => "(no title)".to_owned(),
        // The title must fit on one line, however wide its characters are.
        title => cut(&title, width),
    };
    let mut lines = vec![
        paint.text(Tone::Strong, title),
        paint.text(Tone::Name, &summary.conversation_id),
    ];
    if !summary.source_id.is_empty() || !summary.source.is_empty() {
        let id = paint.text(Tone::Name, &summary.source_id);
        lines.push(format!("from {} as {id}", printable(&summary.source)));
    }
    lines.push(times(&summary, out));
    if let Some(damage) = &summary.damage {
        let mark = format!("damaged from #{} on: {}", damage.revision, damage.what);
        lines.push(paint.text(Tone::Bad, mark));
    }
    if let Some(config) = summary.config.filter(|config| !config.model_id.is_empty()) {
        lines.push(format!("model {}", printable(&config.model_id)));
    }
    if let Some(parent) = &summary.parent {
        let how = if summary.shares_history {
            "shares the history of"
        } else {
            "sub-context of"
        };
        let id = paint.text(Tone::Name, &parent.conversation_id);
        lines.push(format!("{how} {id} up to #{}", parent.revision));
    }
    let all = counts.values().fold(Counts::default(), |sum, one| Counts {
        events: sum.events + one.events,
        messages: sum.messages + one.messages,
        calls: sum.calls + one.calls,
        results: sum.results + one.results,
    });
    let sealed = if summary.sealed { ", sealed" } else { "" };
    lines.push(format!(
        "{}: {}, {}, {}, on {}{sealed}",
        things(all.events, "event", "events"),
        things(all.messages, "message", "messages"),
        things(all.calls, "tool call", "tool calls"),
        things(all.results, "result", "results"),
        things(state.branches.len() as u64, "branch", "branches"),
    ));
    lines
}

/// Returns when it happened, and for imported conversations when it was recorded.
fn times(summary: &pb::ConversationSummary, out: &Out) -> String {
    let created = out.when(summary.created_at.as_ref());
    let last = out.when(happened(summary));
    match &summary.happened_from {
        _ if is_undated(summary) => {
            format!("its source has no times; recorded {created}, last event {last}")
        }
        Some(first) if !summary.source.is_empty() => {
            let first = out.when(Some(first));
            format!("from {first} to {last}, recorded {created}")
        }
        _ => format!("created {created}, last event {last}"),
    }
}

fn open_calls(branch: &pb::BranchState, paint: Paint) -> Vec<String> {
    if branch.open_calls.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![
        String::new(),
        paint.text(Tone::Strong, format!("Open calls on {}", branch.name)),
    ];
    lines.extend(branch.open_calls.iter().map(|call| {
        let status = match call.approval() {
            pb::ApprovalStatus::Pending => paint.text(Tone::Wait, "waits for approval"),
            pb::ApprovalStatus::Denied => paint.text(Tone::Bad, "denied"),
            _ if call.started => paint.text(Tone::Tool, "started"),
            other => approval_name(other).replace('_', " "),
        };
        let revision = call.request.as_ref().map_or(0, |event| event.revision);
        format!(
            "  {} {} {}  {status}",
            paint.text(Tone::Name, format!("#{revision}")),
            printable(&call.tool),
            paint.text(Tone::Name, &call.call_id),
        )
    }));
    lines
}

/// Returns the branches as a tree: each below its parent, in the order of their fork points.
fn tree(branches: &[pb::Branch], counts: &HashMap<u64, Counts>, paint: Paint) -> Vec<String> {
    let mut children: HashMap<u64, Vec<&pb::Branch>> = HashMap::new();
    let mut roots = Vec::new();
    for branch in branches {
        let has_parent = branch.branch_id != branch.parent_branch_id
            && branches
                .iter()
                .any(|other| other.branch_id == branch.parent_branch_id)
            && branch.branch_id != 0;
        if has_parent {
            children
                .entry(branch.parent_branch_id)
                .or_default()
                .push(branch);
        } else {
            roots.push(branch);
        }
    }
    for of_parent in children.values_mut() {
        of_parent.sort_by_key(|branch| (branch.fork_revision, branch.branch_id));
    }
    let mut lines = Vec::new();
    // Forks can be nested a thousand levels deep, so there is no recursion.
    let mut stack: Vec<Row> = roots.iter().rev().map(|branch| Row::root(branch)).collect();
    while let Some(row) = stack.pop() {
        lines.push(row.draw(counts, paint));
        let below = children
            .get(&row.branch.branch_id)
            .map_or(&[][..], Vec::as_slice);
        for (place, child) in below.iter().enumerate().rev() {
            stack.push(row.child(child, place + 1 == below.len()));
        }
    }
    lines
}

/// Deepest indentation of forks, in steps.
const STEPS_MAX: usize = 20;

/// One line of the tree.
struct Row<'a> {
    branch: &'a pb::Branch,
    /// Text before the branch's own joint.
    margin: String,
    joint: &'static str,
    depth: usize,
}

impl<'a> Row<'a> {
    fn root(branch: &'a pb::Branch) -> Self {
        Self {
            branch,
            margin: String::new(),
            joint: "",
            depth: 0,
        }
    }

    fn child(&self, branch: &'a pb::Branch, last: bool) -> Self {
        let margin = match self.joint {
            _ if self.depth >= STEPS_MAX => self.margin.clone(),
            "" => self.margin.clone(),
            "└─ " => format!("{}   ", self.margin),
            _ => format!("{}│  ", self.margin),
        };
        Self {
            branch,
            margin,
            joint: if last { "└─ " } else { "├─ " },
            depth: self.depth + 1,
        }
    }

    fn draw(&self, counts: &HashMap<u64, Counts>, paint: Paint) -> String {
        let branch = self.branch;
        let own = counts.get(&branch.branch_id).copied().unwrap_or_default();
        let fork = if self.joint.is_empty() {
            String::new()
        } else if self.depth > STEPS_MAX {
            format!("(depth {}) after #{} ", self.depth, branch.fork_revision)
        } else {
            format!("after #{} ", branch.fork_revision)
        };
        let name = if branch.active {
            format!(
                "{} {}",
                paint.text(Tone::Name, &branch.name),
                paint.text(Tone::Good, "(active)")
            )
        } else {
            paint.text(Tone::Name, &branch.name)
        };
        let archived = if branch.archived { ", archived" } else { "" };
        let numbers = format!(
            "head #{}; own events {}, messages {}, calls {}{archived}",
            branch.head,
            count(own.events),
            count(own.messages),
            count(own.calls)
        );
        format!(
            "{}{}{}{name}  {}",
            paint.text(Tone::Dim, &self.margin),
            paint.text(Tone::Dim, self.joint),
            paint.text(Tone::Dim, fork),
            paint.text(Tone::Dim, numbers)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn branch(id: u64, name: &str, parent: u64, fork: u64) -> pb::Branch {
        pb::Branch {
            branch_id: id,
            name: name.into(),
            parent_branch_id: parent,
            fork_revision: fork,
            head: id + 5,
            archived: false,
            active: id == 0,
        }
    }

    /// Nested forks, listed in any order, must be below their parent, and the lines must connect.
    #[test]
    fn branch_tree_lists_forks_below_their_parent() {
        let branches = [
            branch(30, "late", 0, 20),
            branch(0, "main", 0, 0),
            branch(15, "again", 10, 12),
            branch(10, "retry", 0, 7),
        ];
        let lines: Vec<_> = tree(&branches, &HashMap::new(), Paint(false))
            .into_iter()
            .map(|line| line.split("  head").next().unwrap_or("").to_owned())
            .collect();
        assert_eq!(
            lines,
            [
                "main (active)",
                "├─ after #7 retry",
                "│  └─ after #12 again",
                "└─ after #20 late",
            ]
        );
    }

    /// A thousand nested forks must neither overflow the stack nor exceed the width of the screen.
    #[test]
    fn branch_tree_draws_a_chain_of_2000_forks() {
        let branches: Vec<_> = (0..2_000)
            .map(|id: u64| branch(id, "b", id.saturating_sub(1), id))
            .collect();
        let lines = tree(&branches, &HashMap::new(), Paint(false));
        assert_eq!(lines.len(), 2_000);
        assert!(lines.iter().all(|line| line.chars().count() < 200));
    }
}
