//! The conversations of a namespace, by pages; filtered and sorted by the query.

use std::collections::HashMap;

use maud::{Markup, html};

use crate::{
    bounds::{CONVERSATIONS, DIGEST_WAIT, LABELS_SHOWN, PAGES_LOOKED_AT, TITLE_CHARS},
    digest::Digest,
    failure::PageFailure,
    frame::{Page, Tab},
    parts::{
        conversation::labels_of,
        escape::{escape_inline, headline},
        numbers::{cell, count, things},
        pager::pager,
        pieces::{BadgeColor, badge, nothing},
        time,
    },
    request_context::{PageQuery, RequestContext, path_part},
};
use treering_present::{
    text::{happened, is_undated, printable},
    time_arg::TimeRange,
};
use treering_proto::pb;

/// Returns the page.
///
/// # Errors
/// Errors of the store, or if a filter cannot be parsed.
pub(crate) async fn page(request_context: RequestContext) -> Result<Page, PageFailure> {
    let filter = Filter::of(&request_context.asked)?;
    let (found, next) = list(&request_context, &filter).await?;
    let digests = request_context
        .site
        .digests
        .of(&request_context.store, &found, DIGEST_WAIT);
    let digests = digests.await;
    let sources = request_context
        .site
        .sources
        .of(&request_context.here.namespace, &found);
    let is_whole = found
        .iter()
        .all(|summary| digests.contains_key(&summary.conversation_id));
    let all = request_context
        .store
        .admin()
        .stats(pb::StatsRequest {})
        .await;
    let all = all.ok().map(|stats| stats.into_inner().conversations);
    let body = html! {
        div.head {
            h1 { "Conversations" }
            p { span.live { "not live" } }
        }
        (filter_form(&request_context, &sources))
        div #list data-live=(request_context.link("/live")) data-part="#list"
            data-again[!is_whole && !found.is_empty()] {
                p.count.dim role="status" {
                    @if let Some(all) = all { (number(&filter, found.len() as u64, next.is_some(), all)) }
                }
            @if found.is_empty() && next.is_none() {
                (none(&request_context, all))
            } @else {
                (table(&request_context, &found, &digests))
                (pages(&request_context, found.len(), next))
            }
        }
    };
    Ok(request_context.page("Conversations", Tab::Conversations, body))
}

/// Renders the number of matching conversations. With a filter, only those on this page are known;
/// the total is always known.
fn number(filter: &Filter, found: u64, has_more: bool, all: u64) -> Markup {
    let all = things(all, "conversation", "conversations");
    if !filter.leaves_out() {
        return html! { (all) };
    }
    let is_first = filter.page_token.is_empty();
    html! {
        @match (is_first, has_more) {
            (true, false) => (count(found)),
            (true, true) => { "more than " (count(found)) },
            (false, _) => { "another " (count(found)) },
        }
        " of " (all)
    }
}

/// The requested filter.
#[derive(Debug, Default)]
struct Filter {
    title: String,
    source: String,
    labels: HashMap<String, String>,
    sealed: Option<bool>,
    since: Option<prost_types::Timestamp>,
    order: Order,
    page_token: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Order {
    #[default]
    Activity,
    Created,
    Oldest,
}

impl Filter {
    /// True when it excludes anything.
    fn leaves_out(&self) -> bool {
        let texts = [&self.title, &self.source];
        texts.iter().any(|text| !text.is_empty())
            || !self.labels.is_empty()
            || self.sealed.is_some()
            || self.since.is_some()
    }

    fn of(asked: &PageQuery) -> Result<Self, PageFailure> {
        let text = |name| asked.text(name).unwrap_or_default().to_owned();
        let since = asked.text("since").map(str::parse::<TimeRange>).transpose();
        let since = since.map_err(|takes| PageFailure::asked("`since` is invalid", takes))?;
        let labels = asked.texts("label").map(|label| {
            let pair = label.split_once('=');
            let (name, value) = pair.ok_or_else(|| {
                PageFailure::asked(
                    "`label` is invalid",
                    "use name=value, for example label=team=red",
                )
            })?;
            Ok((name.to_owned(), value.to_owned()))
        });
        Ok(Self {
            title: text("title"),
            source: text("source"),
            labels: labels.collect::<Result<_, PageFailure>>()?,
            sealed: match asked.one_of("sealed", &["yes", "no"])? {
                Some("yes") => Some(true),
                Some("no") => Some(false),
                _ => None,
            },
            since: since.map(TimeRange::beginning),
            order: match asked.one_of("sort", &["created", "oldest"])? {
                Some("created") => Order::Created,
                Some("oldest") => Order::Oldest,
                _ => Order::Activity,
            },
            page_token: text("page"),
        })
    }

    fn request(&self, page_token: String) -> pb::ListConversationsRequest {
        pb::ListConversationsRequest {
            page_size: CONVERSATIONS,
            page_token,
            source: self.source.clone(),
            ascending: self.order == Order::Oldest,
            order: match self.order {
                Order::Activity => pb::ListOrder::Happened.into(),
                Order::Created | Order::Oldest => pb::ListOrder::Unspecified.into(),
            },
            labels: self.labels.clone().into_iter().collect(),
            title: self.title.clone(),
            sealed: self.sealed,
            updated_from: self.since,
            ..Default::default()
        }
    }
}

/// Returns a page and the token of the next. The store tests a limited number of conversations per
/// call, so several calls are made when few match.
async fn list(
    request_context: &RequestContext,
    filter: &Filter,
) -> Result<(Vec<pb::ConversationSummary>, Option<String>), PageFailure> {
    let (mut found, mut token) = (Vec::new(), filter.page_token.clone());
    for _ in 0..PAGES_LOOKED_AT {
        let request = filter.request(token);
        let answer = request_context.store.conversations().list(request).await?;
        let page = answer.into_inner();
        found.extend(page.conversations);
        token = page.next_page_token;
        // A page is never cut, because its token continues after all of it.
        if token.is_empty() || !found.is_empty() {
            break;
        }
    }
    Ok((found, Some(token).filter(|token| !token.is_empty())))
}

fn filter_form(request_context: &RequestContext, sources: &[String]) -> Markup {
    let value = |name| request_context.asked.text(name).unwrap_or_default();
    html! {
        form.filters method="get" action=(request_context.link("/")) data-instant="#list" {
            label.grow { "Title has"
                input type="search" name="title" value=(value("title")) autocomplete="off";
            }
            label { "Source"
                input name="source" value=(value("source")) size="14" autocomplete="off" placeholder="any" list="sources";
                datalist #sources { @for source in sources { option value=(source) {} } }
            }
            label { "Label"
                input name="label" value=(value("label")) size="14" autocomplete="off" placeholder="name=value";
            }
            label { "Active since"
                input name="since" value=(value("since")) size="11" autocomplete="off" placeholder="2 days";
            }
            (select("sealed", "State", value("sealed"), &[("", "any"), ("no", "open"), ("yes", "sealed")]))
            (select("sort", "Sort by", value("sort"), &[
                ("", "last activity"), ("created", "newest"), ("oldest", "oldest"),
            ]))
            button.quiet { "Show" }
            span.searching data-searching role="status" aria-live="polite" {}
        }
    }
}

fn select(name: &str, word: &str, value: &str, options: &[(&str, &str)]) -> Markup {
    html! {
        label { (word)
            select name=(name) {
                @for (own, word) in options {
                    option value=(own) selected[value == *own] { (word) }
                }
            }
        }
    }
}

fn table(
    request_context: &RequestContext,
    found: &[pb::ConversationSummary],
    digests: &HashMap<String, Digest>,
) -> Markup {
    html! {
        div.table {
            table.conversations {
                caption.hidden { "Conversations" }
                thead { tr {
                    th scope="col" { "Conversation" }
                    th.number scope="col" { "Turns" }
                    th.number scope="col" { "Calls" }
                    th.number scope="col" { "Failed" }
                    th.number scope="col" { "Branches" }
                    th.number scope="col" { "Last activity" }
                } }
                tbody {
                    @for summary in found {
                        (row(request_context, summary, digests.get(&summary.conversation_id)))
                    }
                }
            }
        }
    }
}

fn row(
    request_context: &RequestContext,
    summary: &pb::ConversationSummary,
    digest: Option<&Digest>,
) -> Markup {
    let id = &summary.conversation_id;
    let address = request_context.link(&format!("/c/{}", path_part(id)));
    html! {
        tr #{ "c-" (id) } data-item {
            td.what {
                a.title href=(address) data-open { (title(summary, digest)) }
                div.meta { (meta(request_context, summary)) }
            }
            @match digest {
                Some(digest) => {
                    (cell(digest.turns, "turns")) (cell(digest.calls, "calls"))
                    td.number.bad[digest.failures > 0] data-word="failed" {
                        @if digest.failures > 0 { (count(digest.failures)) }
                    }
                }
                None => { td.number.dim { "·" } td.number.dim { "·" } td.number.dim { "·" } }
            }
            (cell(if summary.branch_count > 1 { summary.branch_count } else { 0 }, "branches"))
            td.number.when {
                @if is_undated(summary) { span.dim title="its source has no times" { "recorded " } }
                (time::ago(happened(summary)))
            }
        }
    }
}

fn title(summary: &pb::ConversationSummary, digest: Option<&Digest>) -> Markup {
    let question = digest.map(|digest| digest.question.as_str());
    match (summary.title.trim(), question.unwrap_or_default()) {
        ("", "") => html! { span.dim { "untitled" } },
        ("", question) => headline(question, TITLE_CHARS),
        (title, _) => headline(title, TITLE_CHARS),
    }
}

fn meta(request_context: &RequestContext, summary: &pb::ConversationSummary) -> Markup {
    let model = summary
        .config
        .as_ref()
        .map(|config| config.model_id.as_str());
    let labels = labels_of(summary);
    html! {
        @if !summary.source.is_empty() { span.label { (escape_inline(&summary.source)) } " " }
        @if let Some(model) = model.filter(|model| !model.is_empty()) {
            span.mono.model { (escape_inline(model)) } " "
        }
        @if summary.parent.is_some() {
            (badge(BadgeColor::Plain, if summary.shares_history { "fork" } else { "sub-agent" })) " "
        }
        @if summary.sealed { (badge(BadgeColor::Plain, "sealed")) " " }
        @if summary.damage.is_some() { (badge(BadgeColor::Bad, "damaged")) " " }
        @for (name, value) in labels.iter().take(LABELS_SHOWN) {
            @let pair = format!("{name}={value}");
            a.label href={ (request_context.link("/")) "?" (request_context.asked.with("label", Some(&pair), &["page"])) }
                title=(printable(&pair)) { (escape_inline(&pair)) } " "
        }
        @if labels.len() > LABELS_SHOWN { span.dim { "+" (labels.len() - LABELS_SHOWN) } }
    }
}

fn pages(request_context: &RequestContext, shown: usize, next: Option<String>) -> Markup {
    let to = |page: Option<&str>| {
        let query = request_context.asked.with("page", page, &[]);
        format!("{}?{query}", request_context.link("/"))
    };
    let is_first = request_context.asked.text("page").is_none();
    let first = (!is_first).then(|| (to(None), "first page"));
    let next = next.as_deref().map(|next| (to(Some(next)), "next page"));
    if first.is_none() && next.is_none() {
        return html! {};
    }
    pager(
        first,
        next,
        &things(shown as u64, "conversation", "conversations"),
    )
}

fn none(request_context: &RequestContext, all: Option<u64>) -> Markup {
    match all {
        Some(0) => nothing(
            "This namespace has no conversations yet.",
            &html! {
                "New events appear here at once. To import existing sessions: "
                code { "treering import --help" } "."
            },
        ),
        _ => nothing(
            "No conversation matches.",
            &html! {
                @if request_context.asked.text("source").is_some() { "A source must match completely: " code { "swe-agent" } ", not " code { "swe" } ". " }
                a href=(request_context.link("/")) { "Show all conversations" }
            },
        ),
    }
}
