//! `conversations`: lists conversations.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{ToolAnswer, bounded, given};
use crate::{
    bounds::{LISTED, LISTED_MAX, LOOKED_AT_MAX, TITLE_CHARS},
    failure::Failure,
    quote::named,
};
use treering_client::{Connection, names};
use treering_domain::PROJECT_LABEL;
use treering_present::{
    text::{Zone, count, happened, is_undated},
    time_arg::TimeRange,
};
use treering_proto::pb;

/// Conversations per page, as on the command line.
const PAGE: u32 = 500;

/// Input of `conversations`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConversationsInput {
    /// Only those with these words in title or id
    title: Option<String>,
    /// Only those of this source, e.g. "claude-code"
    source: Option<String>,
    /// Only those of this project: the name of the folder they worked in
    project: Option<String>,
    /// Only those with events since then: "2 days", "2026-01-31"
    since: Option<String>,
    /// Only those whose last event is not after that time
    until: Option<String>,
    /// Maximum number [15, at most 100]
    limit: Option<u32>,
    /// Number to skip
    offset: Option<u32>,
}

/// Returns the list, newest first.
///
/// # Errors
/// Those of the store.
pub(crate) async fn call(
    input: ConversationsInput,
    store: &Connection,
) -> Result<ToolAnswer, Failure> {
    let limit = bounded(input.limit, LISTED, LISTED_MAX) as usize;
    let offset = input.offset.unwrap_or(0) as usize;
    let filter = Filter::of(&input)?;
    // One extra result shows whether there are more.
    let wanted = offset + limit + 1;
    let (mut found, was_all) = list(store, &filter, wanted).await?;
    let more = found.len() == wanted;
    found.truncate(offset + limit);
    let shown = found.get(offset..).unwrap_or_default();
    if shown.is_empty() {
        return Ok(ToolAnswer::text(
            "No conversations match. Without a filter all are listed; `search` searches their \
             content.",
        ));
    }
    let mut text = String::new();
    for (summary, id) in shown.iter().zip(names::distinct_names(shown)) {
        text.push_str(&row(summary, &id));
    }
    if more {
        text.push_str(&format!("There are more: offset={}\n", offset + limit));
    } else if !was_all {
        text.push_str("Only the newest were scanned: narrow the list with `since`.\n");
    }
    Ok(ToolAnswer::text(text))
}

/// Returns the newest conversations.
///
/// # Errors
/// Those of the store.
pub(crate) async fn newest(store: &Connection, limit: usize) -> Result<String, Failure> {
    let (found, _) = list(store, &Filter::default(), limit).await?;
    let rows = found.iter().zip(names::distinct_names(&found));
    Ok(rows.map(|(summary, id)| row(summary, &id)).collect())
}

#[derive(Debug, Default)]
struct Filter {
    words: Vec<String>,
    source: String,
    project: Option<String>,
    since: Option<prost_types::Timestamp>,
    until: Option<prost_types::Timestamp>,
}

impl Filter {
    fn of(input: &ConversationsInput) -> Result<Self, Failure> {
        let time = |name: &str, text: &Option<String>| {
            let time = given(text.as_deref())
                .map(str::parse::<TimeRange>)
                .transpose();
            time.map_err(|takes| Failure::new(format!("`{name}` is invalid"), takes))
        };
        let (since, until) = (time("since", &input.since)?, time("until", &input.until)?);
        let words = given(input.title.as_deref()).unwrap_or_default();
        Ok(Self {
            words: words.split_whitespace().map(str::to_lowercase).collect(),
            source: given(input.source.as_deref())
                .unwrap_or_default()
                .to_owned(),
            project: given(input.project.as_deref()).map(str::to_owned),
            since: since.map(TimeRange::beginning),
            until: until.map(TimeRange::end),
        })
    }

    fn lets_through(&self, summary: &pb::ConversationSummary) -> bool {
        // The long-term context is not a session; `recall` returns its content.
        if names::is_long_term(summary) {
            return false;
        }
        let is_too_new = match (&self.until, happened(summary)) {
            (Some(until), Some(time)) => (time.seconds, time.nanos) > (until.seconds, until.nanos),
            _ => false,
        };
        if is_too_new {
            return false;
        }
        if self.words.is_empty() {
            return true;
        }
        let text = format!(
            "{} {} {}",
            summary.title, summary.source_id, summary.conversation_id
        );
        let text = text.to_lowercase();
        self.words.iter().all(|word| text.contains(word))
    }

    /// Returns true when a conversation is older than `since`; all that follow it are older, too.
    fn is_too_old(&self, summary: &pb::ConversationSummary) -> bool {
        match (&self.since, happened(summary)) {
            (Some(since), Some(time)) => time.seconds < since.seconds,
            _ => false,
        }
    }
}

/// Returns the first `wanted` conversations that match a filter. Also returns false if the limit of
/// tested conversations was reached before that many were found.
async fn list(
    store: &Connection,
    filter: &Filter,
    wanted: usize,
) -> Result<(Vec<pb::ConversationSummary>, bool), Failure> {
    let (mut found, mut looked_at) = (Vec::new(), 0);
    let mut page_token = String::new();
    loop {
        let request = pb::ListConversationsRequest {
            page_size: PAGE,
            page_token,
            source: filter.source.clone(),
            labels: filter
                .project
                .iter()
                .map(|name| (PROJECT_LABEL.to_owned(), name.clone()))
                .collect(),
            order: pb::ListOrder::Happened.into(),
            ..Default::default()
        };
        let page = store.conversations().list(request).await?.into_inner();
        looked_at += page.conversations.len();
        for summary in page.conversations {
            if filter.is_too_old(&summary) {
                return Ok((found, true));
            }
            if filter.lets_through(&summary) {
                found.push(summary);
            }
            if found.len() == wanted {
                return Ok((found, true));
            }
        }
        page_token = page.next_page_token;
        if page_token.is_empty() || looked_at >= LOOKED_AT_MAX {
            return Ok((found, page_token.is_empty()));
        }
    }
}

fn row(summary: &pb::ConversationSummary, id: &str) -> String {
    let recorded = if is_undated(summary) { "recorded " } else { "" };
    let mut row = format!(
        "{id}  {recorded}{}  {} events",
        Zone::Utc.day_clock(happened(summary)),
        count(summary.head)
    );
    if summary.branch_count > 1 {
        row.push_str(&format!(", {} branches", summary.branch_count));
    }
    if let Some(project) = summary.labels.get(PROJECT_LABEL) {
        row.push_str(&format!(", in {}", named(project, TITLE_CHARS)));
    }
    if !summary.source.is_empty() {
        row.push_str(&format!(", from {}", named(&summary.source, TITLE_CHARS)));
    }
    if summary.damage.is_some() {
        row.push_str(", damaged");
    }
    row.push_str(&format!("  {}\n", named(&summary.title, TITLE_CHARS)));
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    // Sessions could be filtered by `since`, but not by `until`.
    #[test]
    fn newer_conversations_are_left_out() {
        let filter = Filter::of(&ConversationsInput {
            until: Some("2026-01-31".to_owned()),
            ..Default::default()
        });
        let filter = filter.unwrap();
        let summary = |seconds| pb::ConversationSummary {
            happened_to: Some(prost_types::Timestamp { seconds, nanos: 0 }),
            ..Default::default()
        };
        // 2026-01-31 23:59:59 and 2026-02-01 00:00:00.
        assert!(filter.lets_through(&summary(1_769_903_999)));
        assert!(!filter.lets_through(&summary(1_769_904_000)));
    }

    // After every `remember`, the long-term context was listed as the newest session, so "continue
    // the last session" continued it.
    #[test]
    fn long_term_context_is_not_listed() {
        let mut summary = pb::ConversationSummary::default();
        assert!(Filter::default().lets_through(&summary));
        let label = treering_engine::LONG_TERM_LABEL.to_owned();
        summary.labels.insert(label, "true".to_owned());
        assert!(!Filter::default().lets_through(&summary));
    }
}
