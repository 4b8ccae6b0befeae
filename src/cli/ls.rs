//! `ls`: the conversations of a namespace.

use std::collections::{BTreeSet, HashMap};

use clap::{Args, ValueEnum};

use super::{
    connect::Connection,
    error::CliError,
    json,
    output::{Out, Tone},
    pb,
    text::{count, first_line, happened, is_undated, printable, short_id},
};

/// Conversations asked for at once.
const PAGE: u32 = 500;
/// Columns of when it happened.
const WHEN_COLUMNS: usize = 10;
/// Columns of a day and time.
const DAY_CLOCK_COLUMNS: usize = 19;

/// List the conversations, newest first
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering ls --limit 20
  treering ls --source claude-code
  treering ls --by recorded -n 5                  # what was imported last
  treering ls --json | jq -r 'select(.branches > 1) | .conversation'")]
pub struct LsArgs {
    /// Only those imported from this source
    #[arg(long, value_name = "SOURCE")]
    source: Option<String>,
    /// Show at most so many
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<usize>,
    /// What makes one newer than another: when the last of it happened, as its source
    /// says, or when it was recorded here
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    by: By,
    /// Oldest first
    #[arg(long)]
    oldest_first: bool,
}

/// What the list is ordered by.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
enum By {
    /// When its last event happened.
    #[default]
    Happened,
    /// When its first event was recorded.
    Recorded,
}

impl From<By> for pb::ListOrder {
    fn from(by: By) -> Self {
        match by {
            By::Happened => Self::Happened,
            By::Recorded => Self::Unspecified,
        }
    }
}

/// Prints the list.
///
/// # Errors
/// What the store or the output says.
pub async fn run(args: &LsArgs, store: &Connection, out: &mut Out) -> Result<(), CliError> {
    let mut left = args.limit.unwrap_or(usize::MAX);
    let mut page_token = String::new();
    let mut shown = 0_u64;
    while left > 0 {
        let request = pb::ListConversationsRequest {
            // Never fewer: within a second, only those on one page are in order.
            page_size: PAGE,
            page_token,
            source: args.source.clone().unwrap_or_default(),
            ascending: args.oldest_first,
            order: pb::ListOrder::from(args.by).into(),
        };
        let page = store.conversations().list(request).await?.into_inner();
        let listed = &page.conversations[..left.min(page.conversations.len())];
        let ids = ids(listed);
        let times = times(listed, out);
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
    if shown == 0 && !out.json {
        match &args.source {
            Some(source) => nothing_from(source, store, out).await?,
            None => out.line(
                "No conversations here yet. Try `treering demo`, or `treering import --help`.",
            )?,
        }
    }
    Ok(())
}

/// Says which sources there are, when the one that was named is none of them.
async fn nothing_from(source: &str, store: &Connection, out: &mut Out) -> Result<(), CliError> {
    let mut sources = BTreeSet::new();
    let mut page_token = String::new();
    loop {
        let request = pb::ListConversationsRequest {
            page_size: PAGE,
            page_token,
            ..Default::default()
        };
        let page = store.conversations().list(request).await?.into_inner();
        sources.extend(page.conversations.into_iter().map(|one| one.source));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    sources.remove("");
    let sources: Vec<_> = sources.iter().map(|source| printable(source)).collect();
    let there_is = match &sources[..] {
        [] => "nothing here was imported".to_owned(),
        sources => format!("there are {}", sources.join(", ")),
    };
    let source = printable(source);
    Ok(out.line(format!("No conversations from {source}: {there_is}."))?)
}

/// What each is called: short, unless two would be called the same.
fn ids(summaries: &[pb::ConversationSummary]) -> Vec<String> {
    let short = |summary: &pb::ConversationSummary| {
        short_id(&summary.source_id, &summary.conversation_id).to_owned()
    };
    let mut times: HashMap<String, u32> = HashMap::new();
    for summary in summaries {
        *times.entry(short(summary)).or_default() += 1;
    }
    summaries
        .iter()
        .map(|summary| match short(summary) {
            short if times.get(&short) == Some(&1) => printable(&short),
            _ => summary.conversation_id.clone(),
        })
        .collect()
}

/// When each was, all equally wide.
fn times(summaries: &[pb::ConversationSummary], out: &Out) -> Vec<String> {
    let times = summaries.iter().map(|summary| {
        let when = out.when(happened(summary));
        match is_undated(summary) {
            // Its source gave no time.
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
    let beside = id.chars().count() + when.len().max(WHEN_COLUMNS) + 14;
    let title = first_line(&summary.title, out.width.saturating_sub(beside));
    let marks = marks.iter().map(|mark| format!("{mark}  "));
    format!(
        "{}  {}  {:>6}  {}{title}",
        paint.text(Tone::Name, id),
        paint.text(Tone::Dim, when),
        count(summary.head),
        marks.collect::<String>(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    // What `ls` prints is typed again, so it must name one conversation: two whose ids
    // begin alike are called by all of them.
    #[test]
    fn ids_of_a_list_name_one_each() {
        let summary = |id: &str, source_id: &str| pb::ConversationSummary {
            conversation_id: id.into(),
            source_id: source_id.into(),
            ..Default::default()
        };
        let (one, two) = (
            "7ad31c26-9708-4bd2-bbd5-9a3c977380c2",
            "7ad31c26-9708-4bd2-bbd5-000000000000",
        );
        let short = ids(&[summary(one, ""), summary("x", "tau/3")]);
        assert_eq!(short, ["7ad31c26", "tau/3"]);
        assert_eq!(ids(&[summary(one, ""), summary(two, "")]), [one, two]);
    }
}
