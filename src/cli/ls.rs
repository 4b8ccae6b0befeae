//! `ls`: the conversations of a namespace.

use clap::Args;

use super::{
    connect::Connection,
    error::CliError,
    json,
    output::{Out, Tone},
    pb,
    text::{count, day_clock, first_line, short_id},
};

/// Conversations asked for at once.
const PAGE: u32 = 500;
/// Columns that ids of other sources get; longer ones push the line out.
const ID_COLUMNS: usize = 36;

/// List the conversations, newest first
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering ls --limit 20
  treering ls --source claude-code
  treering ls --json | jq -r 'select(.branches > 1) | .conversation'")]
pub struct LsArgs {
    /// Only those imported from this source
    #[arg(long, value_name = "SOURCE")]
    source: Option<String>,
    /// Show at most so many
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<usize>,
    /// Oldest first
    #[arg(long)]
    oldest_first: bool,
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
            page_size: u32::try_from(left).unwrap_or(PAGE).min(PAGE),
            page_token,
            source: args.source.clone().unwrap_or_default(),
            ascending: args.oldest_first,
        };
        let page = store.conversations().list(request).await?.into_inner();
        for summary in page.conversations.iter().take(left) {
            if out.json {
                out.line(json::summary(summary))?;
            } else {
                let line = row(summary, out);
                out.line(line)?;
            }
            shown += 1;
        }
        left = left.saturating_sub(page.conversations.len());
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    if shown == 0 && !out.json {
        out.line("No conversations here yet. Try `treering demo`, or `treering import --help`.")?;
    }
    Ok(())
}

fn row(summary: &pb::ConversationSummary, out: &Out) -> String {
    let id = short_id(&summary.source_id, &summary.conversation_id);
    let branches = match summary.branch_count {
        0 | 1 => String::new(),
        more => format!("  {more} branches"),
    };
    let sealed = if summary.sealed { "  sealed" } else { "" };
    let damage = match &summary.damage {
        Some(damage) => format!("  damaged at #{}", damage.revision),
        None => String::new(),
    };
    let title = first_line(&summary.title, out.width.saturating_sub(ID_COLUMNS + 22));
    let updated = day_clock(summary.updated_at.as_ref());
    format!(
        "{}  {}  {:>7}{}{}{}  {}",
        out.paint.text(Tone::Name, format!("{id:<ID_COLUMNS$}")),
        out.paint.text(Tone::Dim, updated),
        count(summary.head),
        out.paint.text(Tone::Wait, branches),
        out.paint.text(Tone::Dim, sealed),
        out.paint.text(Tone::Bad, damage),
        title
    )
}
