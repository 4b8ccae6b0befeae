//! `search`: where something is.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{ToolAnswer, bounded, given, shown};
use crate::{
    cli::{
        Connection,
        search::{about, answer, what},
        text::{address, day_clock, first_line},
        time_arg::Moment,
    },
    codec::pb,
    mcp::{
        bounds::{HITS, HITS_MAX, INDEX_WAIT, SNIPPET_CHARS, SNIPPET_LINES, TITLE_CHARS},
        failure::Failure,
        place,
        quote::{named, quoted},
    },
};

/// What is looked for.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchInput {
    /// Words, a pasted line, "an exact phrase", pre*; AND, OR, NOT. May be empty with a filter
    query: String,
    /// Most hits [8, at most 30]
    limit: Option<u32>,
    /// Hits to skip, to see further ones
    offset: Option<u32>,
    /// Only calls and results of this tool, e.g. "Bash"
    tool: Option<String>,
    /// Only results of calls that failed
    failed: Option<bool>,
    /// Only calls and results about such a path, e.g. "src/**/*.rs"
    path: Option<String>,
    /// Only what happened since: "2 days", "last week", "2026-01-31"
    since: Option<String>,
    /// Only what happened until then
    until: Option<String>,
    /// Only this conversation: id, its beginning, "@last", or words of its title
    conversation: Option<String>,
    /// The query is a regular expression
    regex: Option<bool>,
}

/// Hits, best first.
///
/// # Errors
/// What the store says.
pub async fn call(input: SearchInput, store: &Connection) -> Result<ToolAnswer, Failure> {
    let mut request = request(&input, store).await?;
    let found = answer(&mut request, store).await?;
    if found.hits.is_empty() {
        return Ok(ToolAnswer::text(nothing(&input, &found)));
    }
    let shown_hits = found.hits.len() as u64;
    let total = found.total.max(shown_hits);
    let more = if found.more_than_total {
        "more than "
    } else {
        ""
    };
    let mut text = format!(
        "{shown_hits} of {more}{total} hits. `read` an address for its text, `around` for what \
         came before and after.\n"
    );
    text.push_str(&hits_text(&found.hits, request.offset));
    let next = u64::from(request.offset) + shown_hits;
    if next < total || found.more_than_total {
        text.push_str(&format!(
            "\nFurther ones: offset={next}, or narrow it down.\n"
        ));
    }
    text.push_str(&lag(&found));
    Ok(ToolAnswer::text(text))
}

async fn request(input: &SearchInput, store: &Connection) -> Result<pb::SearchRequest, Failure> {
    let moment = |text: Option<&str>| {
        let read = text.map(str::parse::<Moment>).transpose();
        read.map_err(|takes| Failure::new("a time cannot be read", takes))
    };
    let conversation_id = match given(input.conversation.as_deref()) {
        Some(name) => place::conversation(store, name).await?.id,
        None => String::new(),
    };
    let list = |text: &Option<String>| {
        given(text.as_deref())
            .map(str::to_owned)
            .into_iter()
            .collect()
    };
    let stats = store.admin().stats(pb::StatsRequest {}).await?.into_inner();
    Ok(pb::SearchRequest {
        query: input.query.clone(),
        limit: bounded(input.limit, HITS, HITS_MAX),
        offset: input.offset.unwrap_or(0),
        conversation_id,
        include_sub_contexts: given(input.conversation.as_deref()).is_some(),
        tools: list(&input.tool),
        paths: list(&input.path),
        success: input.failed.filter(|failed| *failed).map(|_| false),
        happened_from: moment(given(input.since.as_deref()))?.map(Moment::beginning),
        happened_to: moment(given(input.until.as_deref()))?.map(Moment::end),
        regex: input.regex.unwrap_or(false),
        at_least: stats.head,
        wait_max: INDEX_WAIT.try_into().ok(),
        ..Default::default()
    })
}

/// Hits as a list, numbered from one after the first.
#[must_use]
pub fn hits_text(hits: &[pb::SearchHit], before: u32) -> String {
    let mut text = String::new();
    for (number, hit) in (before + 1..).zip(hits) {
        let place = address(&hit.source_id, &hit.conversation_id, hit.revision);
        let failed = if hit.success == Some(false) {
            ", failed"
        } else {
            ""
        };
        text.push_str(&format!(
            "\n{number}. {place}  {}{failed}  {}  line {}\n",
            first_line(&what(hit), TITLE_CHARS),
            day_clock(hit.happened_at.as_ref()),
            hit.line,
        ));
        for line in about(hit, TITLE_CHARS) {
            text.push_str(&format!("   {}\n", named(&line, TITLE_CHARS + 10)));
        }
        text.push_str(&quoted(&hit.snippet, SNIPPET_LINES, SNIPPET_CHARS));
        if hit.copies > 0 {
            text.push_str(&format!("   (the same text {} times more)\n", hit.copies));
        }
    }
    text
}

fn nothing(input: &SearchInput, found: &pb::SearchResponse) -> String {
    let mut text = format!("Nothing found for {}.", shown(&input.query));
    if found.more_than_total {
        text.push_str(" Only the newest texts were read: a longer word, or a filter, finds more.");
    }
    let narrowed = [
        &input.tool,
        &input.path,
        &input.since,
        &input.until,
        &input.conversation,
    ];
    match narrowed.iter().any(|text| given(text.as_deref()).is_some()) || input.failed == Some(true)
    {
        true => text.push_str(" Try it without a filter, or with fewer or other words."),
        false => text.push_str(" Try fewer or other words, or a beginning: pre*."),
    }
    text.push_str(&lag(found));
    text
}

/// What the answer lacks.
fn lag(found: &pb::SearchResponse) -> String {
    if !found.lagging.is_empty() {
        return "\nThe index lags behind: the newest events may be missing.\n".to_owned();
    }
    match found.events_missing {
        0 => String::new(),
        missing => format!(
            "\n{missing} events are not indexed yet and were not searched; try again in a moment.\n"
        ),
    }
}
