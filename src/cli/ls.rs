//! `ls`: lists the conversations of a namespace.

use std::collections::BTreeSet;

use clap::{Args, ValueEnum};

use super::{
    args::pair,
    connect::Connection,
    error::ClientError,
    json, names,
    output::{Out, Tone},
    pb,
    text::{count, cut, first_line, happened, is_undated, printable},
};
use treering_domain::PROJECT_LABEL;

/// Number of conversations in one page.
const PAGE: u32 = 500;
/// Maximum number of names that are listed.
const NAMED_MAX: usize = 20;
/// Width of a project's name, in columns.
const PROJECT_COLUMNS: usize = 14;
/// Width of a relative time, in columns.
const WHEN_COLUMNS: usize = 10;
/// Width of a date and time, in columns.
const DAY_CLOCK_COLUMNS: usize = 19;

/// List the conversations, newest first
///
/// Sub-agents are only counted, unless --sub-agents is given. With --json they are always there:
/// they have a `parent` and no `shares_history`.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering ls --limit 20
  treering ls --source claude-code --project website
  treering ls --by recorded -n 5                  # the last imports
  treering ls --label team=blue --title port
  treering ls --json | jq -r 'select(.branches > 1) | .conversation'")]
pub(crate) struct LsArgs {
    /// Only those imported from this source
    #[arg(long, value_name = "SOURCE")]
    source: Option<String>,
    /// Only those with this label (may be given again: with all of them)
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,
    /// Only those of this project: the name of the folder that an imported session worked in
    ///
    /// The same as --label project=NAME, which you can also set yourself.
    #[arg(long, value_name = "NAME")]
    project: Option<String>,
    /// Only those with this text in the title
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    /// Maximum number of conversations
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<usize>,
    /// Sort by when the last event happened according to its source, or by when the conversation
    /// was recorded here
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    by: SortTime,
    /// Oldest first
    #[arg(long)]
    oldest_first: bool,
    /// Also list sub-agents, which other conversations started
    #[arg(long)]
    sub_agents: bool,
}

/// Sort order of the list.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SortTime {
    /// By when the last event happened.
    #[default]
    Happened,
    /// By when the first event was recorded.
    Recorded,
}

impl From<SortTime> for pb::ListOrder {
    fn from(by: SortTime) -> Self {
        match by {
            SortTime::Happened => Self::Happened,
            SortTime::Recorded => Self::Unspecified,
        }
    }
}

/// Prints the list.
pub(crate) async fn run(
    args: &LsArgs,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    if args.limit == Some(0) {
        return Ok(());
    }
    let named = |name: &String| (PROJECT_LABEL.to_owned(), name.clone());
    let project = args.project.as_ref().map(named);
    let mut left = args.limit.unwrap_or(usize::MAX);
    let mut page_token = String::new();
    let mut shown = 0_u64;
    let mut folded = 0_u64;
    let has_sub_agents = out.json || args.sub_agents;
    while left > 0 {
        let request = pb::ListConversationsRequest {
            // Always reads a full page: conversations of the same second are only sorted within a
            // page.
            page_size: PAGE,
            page_token,
            source: args.source.clone().unwrap_or_default(),
            ascending: args.oldest_first,
            order: pb::ListOrder::from(args.by).into(),
            labels: args.labels.iter().cloned().chain(project.clone()).collect(),
            title: args.title.clone().unwrap_or_default(),
            ..Default::default()
        };
        let page = store.conversations().list(request).await?.into_inner();
        let mut listed = page.conversations;
        let all = listed.len();
        listed.retain(|summary| has_sub_agents || !is_sub_agent(summary));
        folded += (all - listed.len()) as u64;
        listed.truncate(left);
        let ids = names::distinct_names(&listed);
        let times = times(&listed, out);
        let columns = ids.iter().map(|id| id.chars().count()).max().unwrap_or(0);
        for ((summary, id), when) in listed.iter().zip(ids).zip(times) {
            if out.json {
                out.line(json::of(summary))?;
            } else {
                let line = row(summary, &format!("{id:<columns$}"), &when, out);
                out.row(line)?;
            }
            shown += 1;
        }
        left -= listed.len();
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    if folded > 0 {
        let folded = match folded {
            1 => "1 sub-agent is".to_owned(),
            some => format!("{} sub-agents are", count(some)),
        };
        out.note(format!("{folded} not listed; --sub-agents lists them"))?;
    } else if shown == 0 && !out.json {
        match &args.source {
            _ if !args.labels.is_empty() || project.is_some() || args.title.is_some() => {
                out.line("No conversation matches. `treering ls` lists all.")?;
            }
            Some(source) => {
                let names = names(store).await?;
                out.row(none_from(source, &names.sources))?;
            }
            None => out.line(
                "No conversations here yet. Try `treering demo`, or `treering import --help`.",
            )?,
        }
    }
    Ok(())
}

/// Returns true if another conversation started this one.
fn is_sub_agent(summary: &pb::ConversationSummary) -> bool {
    summary.parent.is_some() && !summary.shares_history
}

/// Sources and labels in a namespace.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Sources of its conversations.
    pub(crate) sources: BTreeSet<String>,
    /// Labels of its conversations: `NAME=VALUE`, or `NAME` without a value.
    pub(crate) labels: BTreeSet<String>,
}

impl Names {
    /// Returns true if a conversation has a label; its value may be omitted.
    pub(crate) fn has_label(&self, label: &str) -> bool {
        let begun = format!("{label}=");
        let mut from = self.labels.range(begun.clone()..);
        self.labels.contains(label) || from.next().is_some_and(|next| next.starts_with(&begun))
    }
}

/// Returns the sources and labels of all conversations.
pub(crate) async fn names(store: &Connection) -> Result<Names, ClientError> {
    let mut names = Names::default();
    let mut page_token = String::new();
    loop {
        let request = pb::ListConversationsRequest {
            page_size: PAGE,
            page_token,
            ..Default::default()
        };
        let page = store.conversations().list(request).await?.into_inner();
        for summary in page.conversations {
            names.sources.insert(summary.source);
            let labels = summary
                .labels
                .into_iter()
                .map(|(name, value)| match &value[..] {
                    "" => name,
                    value => format!("{name}={value}"),
                });
            names.labels.extend(labels);
        }
        page_token = page.next_page_token;
        if page_token.is_empty() {
            names.sources.remove("");
            return Ok(names);
        }
    }
}

/// Returns the message that there are no conversations from a source, with the known sources.
pub(crate) fn none_from(source: &str, sources: &BTreeSet<String>) -> String {
    let there_is = match some_of(sources) {
        some if some.is_empty() => "nothing was imported".to_owned(),
        some => format!("the sources are {some}"),
    };
    format!("No conversations from {}: {there_is}.", printable(source))
}

/// Returns the names as text, at most [`NAMED_MAX`] of them.
pub(crate) fn some_of(names: &BTreeSet<String>) -> String {
    let first = names.iter().take(NAMED_MAX).map(|name| printable(name));
    let mut some = first.collect::<Vec<_>>().join(", ");
    if names.len() > NAMED_MAX {
        some.push_str(" …");
    }
    some
}

/// Returns the times of the conversations, padded to equal width.
fn times(summaries: &[pb::ConversationSummary], out: &Out) -> Vec<String> {
    let times = summaries.iter().map(|summary| {
        let when = out.when(happened(summary));
        match is_undated(summary) {
            // Its source has no time.
            true => format!("recorded {when}"),
            false => when,
        }
    });
    let mut times: Vec<String> = times.collect();
    let least = match out.absolute {
        true => DAY_CLOCK_COLUMNS,
        false => WHEN_COLUMNS,
    };
    let columns = times.iter().map(String::len).max().unwrap_or(0).max(least);
    for when in &mut times {
        *when = format!("{when:<columns$}");
    }
    times
}

fn row(summary: &pb::ConversationSummary, id: &str, when: &str, out: &Out) -> String {
    let paint = out.paint;
    let mut marks = Vec::new();
    if summary.branch_count > 1 {
        let branches = format!("{} branches", summary.branch_count);
        marks.push(paint.text(Tone::Wait, branches));
    }
    if summary.sealed {
        marks.push(paint.text(Tone::Dim, "sealed"));
    }
    if let Some(damage) = &summary.damage {
        let damage = format!("damaged at #{}", damage.revision);
        marks.push(paint.text(Tone::Bad, damage));
    }
    let project = summary.labels.get(PROJECT_LABEL);
    let project = project.map_or_else(String::new, |name| {
        format!("{:<PROJECT_COLUMNS$}  ", cut(name, PROJECT_COLUMNS))
    });
    let beside = id.chars().count() + when.len().max(WHEN_COLUMNS) + project.chars().count() + 14;
    let title = match summary.title.is_empty() {
        // No title was set, or it was erased.
        true => paint.text(Tone::Dim, "no title"),
        false => first_line(&summary.title, out.width.saturating_sub(beside)),
    };
    let marks = marks.iter().map(|mark| format!("{mark}  "));
    format!(
        "{}  {}  {:>6}  {}{}{title}",
        paint.text(Tone::Name, id),
        paint.text(Tone::Dim, when),
        count(summary.head),
        paint.text(Tone::Dim, project),
        marks.collect::<String>(),
    )
}
