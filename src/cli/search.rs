//! `search`: full text over everything that tools returned and that was said.

use clap::Args;

use super::{
    connect::Connection,
    error::CliError,
    json,
    output::{Out, Paint, Tone},
    pb,
    read::Kind,
    text::{count, printable, short_id},
};

/// Search in tool results, messages and summaries
///
/// Words are ranked by BM25. A query knows "exact phrases", beginnings of words
/// (pre*), AND, OR, NOT, +must, -mustnot and (groups).
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering search connection refused
  treering search -k 3 --tool bash --failed '\"permission denied\"'
  treering search --conversation ID --branch retry 'parse* AND config'
  treering search --json -k 20 timeout | jq -r '[.conversation, .revision, .line] | @tsv'")]
pub struct SearchArgs {
    /// What to look for; several words are one query
    #[arg(required = true, value_name = "QUERY")]
    query: Vec<String>,
    /// At most so many hits
    #[arg(short = 'k', long = "limit", value_name = "N", default_value_t = 10)]
    limit: u32,
    /// Skip so many hits
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    offset: u32,
    /// Only results of this tool (may be given again)
    #[arg(long, short, value_name = "NAME")]
    tool: Vec<String>,
    /// Only this conversation: its UUID, or its id at its source
    #[arg(long, short, value_name = "ID")]
    conversation: Option<String>,
    /// Only what this branch has in its history
    #[arg(long, short, value_name = "NAME", requires = "conversation")]
    branch: Option<String>,
    /// In the conversation's sub-contexts too
    #[arg(long, requires = "conversation")]
    sub_contexts: bool,
    /// Only these kinds: tool_result_recorded, message_appended, summary_recorded …
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "KIND",
        hide_possible_values = true
    )]
    kind: Vec<Kind>,
    /// Count all hits, not only the first 1,000
    #[arg(long)]
    count_all: bool,
    /// Only results of calls that worked
    #[arg(long, conflicts_with = "failed")]
    success: bool,
    /// Only results of calls that failed
    #[arg(long)]
    failed: bool,
}

/// Prints the hits, best first.
///
/// # Errors
/// What the store or the output says.
pub async fn run(args: SearchArgs, store: &Connection, out: &mut Out) -> Result<(), CliError> {
    // Whatever is in the store now shall be found: the index may lag behind.
    let head = store.admin().stats(pb::StatsRequest {}).await?.into_inner();
    let request = pb::SearchRequest {
        query: args.query.join(" "),
        limit: args.limit,
        offset: args.offset,
        conversation_id: args.conversation.unwrap_or_default(),
        branch: args.branch.unwrap_or_default(),
        include_sub_contexts: args.sub_contexts,
        tools: args.tool,
        success: match (args.success, args.failed) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        },
        kinds: args.kind.iter().map(|kind| kind.number()).collect(),
        at_least: head.head,
        count_all: args.count_all,
        ..Default::default()
    };
    let answer = store.search().search(request).await?.into_inner();
    if out.json {
        for hit in &answer.hits {
            out.line(json::hit(hit))?;
        }
        return Ok(());
    }
    for hit in &answer.hits {
        print(hit, out)?;
    }
    let note = match answer.total.max(answer.hits.len() as u64) {
        0 => "Nothing found.".to_owned(),
        total => {
            let more = if answer.more_than_total {
                "more than "
            } else {
                ""
            };
            format!("{} of {more}{} hits", answer.hits.len(), count(total))
        }
    };
    let note = out.paint.text(Tone::Dim, note);
    out.line(note)?;
    if !answer.lagging.is_empty() {
        let lagging = format!("The search index lags behind: {}", answer.lagging);
        out.line(out.paint.text(Tone::Wait, lagging))?;
    }
    Ok(())
}

fn print(hit: &pb::SearchHit, out: &mut Out) -> Result<(), CliError> {
    let paint = out.paint;
    let kind = if hit.tool.is_empty() {
        json::kind_name(hit.kind).replace('_', " ")
    } else {
        hit.tool.clone()
    };
    let tone = match hit.success {
        Some(false) => Tone::Bad,
        _ => Tone::Tool,
    };
    out.line(format!(
        "{}  {} {}  {}",
        paint.text(tone, kind),
        paint.text(Tone::Name, short_id(&hit.source_id, &hit.conversation_id)),
        paint.text(Tone::Name, format!("#{}", hit.revision)),
        paint.text(
            Tone::Dim,
            format!(
                "on {}, line {}, score {:.2}",
                hit.branch, hit.line, hit.score
            )
        ),
    ))?;
    for line in highlighted(hit, paint).lines() {
        out.line(format!("    {line}"))?;
    }
    Ok(out.line("")?)
}

/// The snippet with its matches in colour.
fn highlighted(hit: &pb::SearchHit, paint: Paint) -> String {
    let snippet = &hit.snippet;
    let mut text = String::new();
    let mut done = 0;
    for range in &hit.highlights {
        let (start, end) = (range.start as usize, range.end as usize);
        // Ranges come from elsewhere: one that does not fit is not drawn.
        let (Some(before), Some(matched)) = (snippet.get(done..start), snippet.get(start..end))
        else {
            continue;
        };
        text.push_str(&printable(before));
        text.push_str(&paint.text(Tone::Wait, printable(matched)));
        done = end;
    }
    text.push_str(&printable(snippet.get(done..).unwrap_or("")));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A range that is wrong (beyond the end, inside a character) must not
    /// break the output; the text is still shown once.
    #[test]
    fn ranges_that_do_not_fit_are_ignored() {
        let range = |start, end| pb::Highlight { start, end };
        let hit = pb::SearchHit {
            snippet: "äb cd".into(),
            highlights: vec![range(1, 2), range(2, 3), range(4, 99)],
            ..Default::default()
        };
        assert_eq!(highlighted(&hit, Paint(false)), "äb cd");
        assert!(highlighted(&hit, Paint(true)).contains("\u{1b}["));
    }
}
