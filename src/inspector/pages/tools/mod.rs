//! Tool calls of the most recently active conversations, or of one branch: counted by tool, and
//! listed.

mod chart;

use std::time::Duration;

use axum::response::Response;
use futures::{StreamExt, TryStreamExt, stream};
use maud::{Markup, html};
use prost_types::Timestamp;

use crate::{
    bounds::{
        ASKED_AT_ONCE, CALLS, CALLS_CONVERSATIONS, CALLS_OF_BRANCH, CALLS_OF_EACH, TITLE_CHARS,
        TOOLS,
    },
    failure::PageFailure,
    frame::{self, Tab},
    pages::call,
    parts::{
        escape::headline,
        numbers::{bytes_human, count, things},
        pager::pager,
        period::{self, Period},
        pieces::{chip, nothing},
        place::ConversationPlace,
        time,
    },
    request_context::{PathParams, RequestContext},
    transcript::step::{BETWEEN, deed_of, fault_of},
};
use treering_client::read;
use treering_domain::EventKind;
use treering_present::{
    text::duration,
    tool_stats::{self, CallOutcome, HappenedAt, ToolNumbers, ToolOrder},
};
use treering_proto::pb;

/// Maximum number of characters of a tool's name.
const TOOL_CHARS: usize = 60;
/// Maximum number of characters of arguments and results in a list.
const HEAD_CHARS: usize = 140;

/// A call with the values for its statistics.
struct CountedCall {
    /// The call, from the store.
    call: pb::ToolCall,
    /// The conversation that was queried; the events of the call may be inherited.
    conversation: String,
    /// When it was requested.
    at: Timestamp,
    /// Its duration, if known.
    took: Option<Duration>,
}

/// Titles of conversations by id.
type Titles = std::collections::HashMap<String, String>;

/// Returns the calls of the namespace.
///
/// # Errors
/// Errors of the store.
pub(crate) async fn of_namespace(request_context: RequestContext) -> Result<Response, PageFailure> {
    Choice::of(&request_context)?;
    let beginning = html! {
        div.head { h1 { "Tool calls" } }
        (filter_form(&request_context, None))
    };
    let here = request_context.here.clone();
    let rest = async move { of_newest(&request_context).await };
    frame::page_in_parts(&here, "Tool calls", Tab::Tools, beginning, rest).await
}

/// Renders the calls of the most recently active conversations.
async fn of_newest(request_context: &RequestContext) -> Result<Markup, PageFailure> {
    let request = pb::ListConversationsRequest {
        page_size: CALLS_CONVERSATIONS,
        // Without an event recorded since then, a conversation has no call in the period.
        updated_from: Choice::of(request_context)?.period.from(),
        page_token: request_context
            .asked
            .text("after")
            .unwrap_or_default()
            .to_owned(),
        order: pb::ListOrder::Happened.into(),
        ..Default::default()
    };
    let answer = request_context
        .store
        .conversations()
        .list(request)
        .await?
        .into_inner();
    let conversations = answer.conversations;
    let ids: Vec<String> = conversations
        .iter()
        .map(|one| one.conversation_id.clone())
        .collect();
    let asked = stream::iter(ids)
        .map(|id| async move { calls_of(request_context, &id, "", 0, CALLS_OF_EACH).await })
        .buffered(ASKED_AT_ONCE);
    let mut calls: Vec<CountedCall> = asked.try_concat().await?;
    calls.sort_by_key(|call| std::cmp::Reverse((call.at.seconds, call.at.nanos)));
    let named = |one: &pb::ConversationSummary| {
        let id = treering_present::text::short_id(&one.source_id, &one.conversation_id);
        let title = if one.title.trim().is_empty() {
            id
        } else {
            &one.title
        };
        (one.conversation_id.clone(), title.to_owned())
    };
    let titles: Titles = conversations.iter().map(named).collect();
    let number = things(conversations.len() as u64, "conversation", "conversations");
    let after = Some(answer.next_page_token).filter(|token| !token.is_empty());
    let later = request_context.asked.text("after").map(|_| {
        let query = request_context.asked.with("after", None, &["page"]);
        (
            format!("{}?{query}", request_context.link("/tools")),
            "Latest",
        )
    });
    let earlier = after.map(|token| {
        let query = request_context.asked.with("after", Some(&token), &["page"]);
        (
            format!("{}?{query}", request_context.link("/tools")),
            "Earlier conversations",
        )
    });
    Ok(html! {
        p.lead {
            "Of the " (number) " with the latest activity"
            @if request_context.asked.text("after").is_some() { " before that" }
            ", at most " (CALLS_OF_EACH) " of each."
        }
        (counted(request_context, calls, Some(&titles))?)
        @if later.is_some() || earlier.is_some() { (pager(later, earlier, "")) }
    })
}

/// Returns the calls of a branch.
///
/// # Errors
/// Errors of the store.
pub(crate) async fn of_conversation(
    PathParams(id): PathParams<String>,
    request_context: RequestContext,
) -> Result<Response, PageFailure> {
    let place = ConversationPlace::of(&request_context, &id).await?;
    let as_of = request_context.asked.number("as_of")?.unwrap_or(0);
    Choice::of(&request_context)?;
    let beginning = html! {
        (place.heading(&request_context, "tools"))
        (filter_form(&request_context, Some(&place)))
        @if as_of > 0 {
            p.notice { "State at #" (count(as_of)) ": calls that ended later are open here." }
        }
    };
    let (here, title) = (request_context.here.clone(), place.titled("Tool calls"));
    let rest = async move { of_branch(&request_context, &place, as_of).await };
    frame::page_in_parts(&here, &title, Tab::Tools, beginning, rest).await
}

fn filter_form(request_context: &RequestContext, place: Option<&ConversationPlace>) -> Markup {
    let has_branches = |place: &&ConversationPlace| place.branches.len() > 1;
    html! {
        form.filters data-auto aria-label="Branch and period" {
            @if let Some(place) = place.filter(has_branches) {
                label { "Branch" (place.branch_field("branch", &place.branch.name)) }
            }
            (period::fields(&request_context.asked))
            button.quiet { "Show" }
        }
    }
}

/// Renders the calls of a branch, as of a revision.
async fn of_branch(
    request_context: &RequestContext,
    place: &ConversationPlace,
    as_of: u64,
) -> Result<Markup, PageFailure> {
    let branch = &place.branch.name;
    let calls = calls_of(request_context, &place.id, branch, as_of, CALLS_OF_BRANCH).await?;
    let oldest = calls.last().map_or(0, |call| call.call.request_revision);
    let number = calls.len() as u64;
    let more = number >= u64::from(CALLS_OF_BRANCH) && oldest > 1;
    Ok(html! {
        (counted(request_context, calls, None)?)
        @if more {
            @let query = request_context.asked.with("as_of", Some(&(oldest - 1).to_string()), &["page"]);
            p.hint {
                "These are " (count(number)) " calls, back to #" (count(oldest)) ". "
                a href={ (request_context.link(&request_context.here.path)) "?" (query) } { "Earlier calls" }
            }
        }
    })
}

/// Returns the newest calls of a branch with their durations.
async fn calls_of(
    request_context: &RequestContext,
    id: &str,
    branch: &str,
    as_of: u64,
    limit: u32,
) -> Result<Vec<CountedCall>, PageFailure> {
    let request = pb::ToolHistoryRequest {
        conversation_id: id.to_owned(),
        branch: branch.to_owned(),
        as_of_revision: as_of,
        limit,
        ..Default::default()
    };
    let history = async {
        Ok(request_context
            .store
            .tools()
            .history(request)
            .await?
            .into_inner()
            .calls)
    };
    let (calls, happened) =
        tokio::try_join!(history, happened(request_context, id, branch, as_of, limit))?;
    let calls = calls.into_iter().map(|call| CountedCall {
        at: tool_stats::asked_at(&call, id, &happened),
        took: tool_stats::took(&call, id, &happened),
        conversation: id.to_owned(),
        call,
    });
    Ok(calls.collect())
}

/// Returns when the events of calls occurred, where that is known. Imported events have these
/// times; their recording times do not give durations.
async fn happened(
    request_context: &RequestContext,
    id: &str,
    branch: &str,
    as_of: u64,
    calls: u32,
) -> Result<HappenedAt, PageFailure> {
    let kinds = [
        EventKind::ToolCallRequested,
        EventKind::ToolResultRecorded,
        EventKind::ToolCallCancelled,
    ];
    let request = pb::ReadRequest {
        from_revision: as_of,
        kinds: kinds.iter().map(|kind| i32::from(kind.number())).collect(),
        backward: true,
        limit: 2 * u64::from(calls),
        headers_only: true,
        ..read::of_branch(id, branch)
    };
    let mut events = request_context
        .store
        .events()
        .read(request)
        .await?
        .into_inner();
    let mut happened = HappenedAt::new();
    while let Some(batch) = events.message().await? {
        for event in batch.events {
            if let Some(at) = event.occurred_at {
                happened.insert((event.conversation_id, event.revision), at);
            }
        }
    }
    Ok(happened)
}

/// The requested filter and order.
struct Choice<'a> {
    tool: Option<&'a str>,
    outcome: Option<CallOutcome>,
    order: ToolOrder,
    period: Period,
}

impl<'a> Choice<'a> {
    /// Reads the parameters of an address.
    fn of(request_context: &'a RequestContext) -> Result<Self, PageFailure> {
        let asked = &request_context.asked;
        let outcome = asked.one_of("outcome", &CallOutcome::ALL.map(CallOutcome::as_str))?;
        let order = asked.one_of("sort", &ToolOrder::ALL.map(ToolOrder::as_str))?;
        Ok(Self {
            tool: asked.text("tool"),
            outcome: CallOutcome::ALL
                .into_iter()
                .find(|one| Some(one.as_str()) == outcome),
            order: ToolOrder::named(order.unwrap_or_default()),
            period: Period::of(asked)?,
        })
    }

    fn has(&self, call: &CountedCall) -> bool {
        self.tool.is_none_or(|tool| tool == call.call.tool)
            && self
                .outcome
                .is_none_or(|outcome| outcome == CallOutcome::of(call.call.status()))
    }
}

/// Renders statistics, filters, and the matching calls.
fn counted(
    request_context: &RequestContext,
    mut calls: Vec<CountedCall>,
    titles: Option<&Titles>,
) -> Result<Markup, PageFailure> {
    let choice = Choice::of(request_context)?;
    calls.retain(|call| choice.period.has(&call.at));
    if calls.is_empty() && choice.period.is_bounded() {
        let hint = html! { "Choose a longer one." };
        return Ok(nothing("No tool was called in this period.", &hint));
    }
    if calls.is_empty() {
        let hint = html! { "Tool calls and their results appear here." };
        return Ok(nothing("No tool was called.", &hint));
    }
    let timed = calls.iter().map(|one| (&one.call, one.took));
    let tools = tool_stats::by_tool(timed, choice.order);
    let chosen: Vec<&CountedCall> = calls.iter().filter(|call| choice.has(call)).collect();
    Ok(html! {
        section aria-labelledby="by-tool" {
            h2 #by-tool { "By tool" }
            (table(request_context, &choice, &tools))
        }
        section #calls aria-labelledby="calls-title" {
            h2 #calls-title { "Calls" }
            (chips(request_context, &choice, &calls))
            @if chosen.is_empty() {
                (nothing("No call matches.", &html! { "Remove a filter." }))
            } @else {
                (list(request_context, &chosen, titles))
            }
        }
    })
}

/// Returns the address of this page with one parameter changed.
fn with(request_context: &RequestContext, name: &str, value: Option<&str>) -> String {
    let query = request_context.asked.with(name, value, &["page"]);
    let mark = if query.is_empty() { "" } else { "?" };
    format!(
        "{}{mark}{query}",
        request_context.link(&request_context.here.path)
    )
}

fn table(request_context: &RequestContext, choice: &Choice, tools: &[ToolNumbers]) -> Markup {
    let most = tools.iter().map(|of| of.calls).max().unwrap_or(1);
    let slowest = tools
        .iter()
        .filter_map(|of| of.percentile(95))
        .max()
        .unwrap_or_default();
    let heads = ["Tool", "Calls", "Failed", "p50", "p95", "Returned"];
    html! {
        div.table role="group" aria-labelledby="by-tool" tabindex="0" {
            table.tools {
                thead {
                    tr {
                        @for (order, head) in ToolOrder::ALL.into_iter().zip(heads) {
                            @let is_on = order == choice.order;
                            @let sorted = if order == ToolOrder::Tool { "ascending" } else { "descending" };
                            th.number[order != ToolOrder::Tool] scope="col" aria-sort=[is_on.then_some(sorted)] {
                                a href=(with(request_context, "sort", Some(order.as_str()))) { (head) }
                            }
                            @if order == ToolOrder::Calls { th.wide-only scope="col" { span.hidden { "Share" } } }
                            @if order == ToolOrder::P95 { th.wide-only scope="col" { span.hidden { "Times" } } }
                        }
                    }
                }
                tbody {
                    @for of in tools.iter().take(TOOLS) {
                        (tool_row(request_context, choice, of, most, slowest))
                    }
                }
            }
        }
        @if tools.len() > TOOLS {
            p.hint { "and " (count((tools.len() - TOOLS) as u64)) " more tools" }
        }
    }
}

fn tool_row(
    request_context: &RequestContext,
    choice: &Choice,
    of: &ToolNumbers,
    most: u64,
    slowest: Duration,
) -> Markup {
    let is_on = choice.tool == Some(of.tool.as_str());
    let to = with(
        request_context,
        "tool",
        Some(&of.tool).filter(|_| !is_on).map(String::as_str),
    );
    let took = |percent| of.percentile(percent).map(duration);
    html! {
        tr.at[is_on] {
            th scope="row" {
                a href={ (to) "#calls" } aria-current=[is_on.then_some("true")] {
                    (headline(&of.tool, TOOL_CHARS))
                }
            }
            td.number { (count(of.calls)) }
            td.wide-only { (chart::outcomes(of, most)) }
            td.number.bad[of.failed > 0] {
                @if of.failed > 0 { (count(of.failed)) } @else { span.dim { "0" } }
            }
            td.number { (took(50).unwrap_or_else(|| "—".into())) }
            td.number { (took(95).unwrap_or_else(|| "—".into())) }
            td.wide-only { (chart::times(of, slowest)) }
            td.number { (bytes_human(of.bytes)) }
        }
    }
}

fn chips(request_context: &RequestContext, choice: &Choice, calls: &[CountedCall]) -> Markup {
    let of_tool = |call: &&CountedCall| choice.tool.is_none_or(|tool| tool == call.call.tool);
    let number = |outcome: CallOutcome| {
        let all = calls.iter().filter(of_tool);
        all.filter(|call| CallOutcome::of(call.call.status()) == outcome)
            .count() as u64
    };
    html! {
        p.chips {
            @if let Some(tool) = choice.tool {
                (chip(&with(request_context, "tool", None), &headline(tool, TOOL_CHARS), true))
            }
            @for outcome in CallOutcome::ALL {
                @let is_on = choice.outcome == Some(outcome);
                @let to = with(request_context, "outcome", (!is_on).then_some(outcome.as_str()));
                @let words = html! { (outcome.as_str()) " " span.number { (count(number(outcome))) } };
                (chip(&format!("{to}#calls"), &words, is_on))
            }
        }
    }
}

fn list(
    request_context: &RequestContext,
    calls: &[&CountedCall],
    titles: Option<&Titles>,
) -> Markup {
    let asked = request_context
        .asked
        .number("page")
        .ok()
        .flatten()
        .unwrap_or(0);
    let pages = calls.len().div_ceil(CALLS);
    let page = usize::try_from(asked).unwrap_or(usize::MAX).min(pages - 1);
    let first = page * CALLS;
    let shown = &calls[first..calls.len().min(first + CALLS)];
    let to = |page: usize, word| {
        let address = with(request_context, "page", Some(&page.to_string()));
        (format!("{address}#calls"), word)
    };
    let newer = page.checked_sub(1).map(|page| to(page, "Newer"));
    let older = (page + 1 < pages).then(|| to(page + 1, "Older"));
    let place = format!(
        "{}–{} of {}",
        count(first as u64 + 1),
        count((first + shown.len()) as u64),
        count(calls.len() as u64)
    );
    html! {
        div.table role="group" aria-labelledby="calls-title" tabindex="0" {
            table.calls {
                thead {
                    tr {
                        th scope="col" { "Call" }
                        th scope="col" { "Outcome" }
                        th.number scope="col" { "Took" }
                        th.number scope="col" { "Returned" }
                        th scope="col" { "When" }
                    }
                }
                tbody { @for call in shown { (call_row(request_context, call, titles)) } }
            }
        }
        (pager(newer, older, &place))
    }
}

/// Renders a duration, with a mark if it was not measured.
fn took(one: &CountedCall) -> Markup {
    let is_measured = one.call.execution_time_ms.is_some();
    html! {
        @match one.took {
            Some(took) if is_measured => (duration(took)),
            Some(took) => span title=(BETWEEN) { "within " (duration(took)) },
            None => "—",
        }
    }
}

fn call_row(
    request_context: &RequestContext,
    one: &CountedCall,
    titles: Option<&Titles>,
) -> Markup {
    let call = &one.call;
    let deed = deed_of(&call.tool, &String::from_utf8_lossy(&call.arguments));
    let said = match (call.error_message.as_str(), CallOutcome::of(call.status())) {
        ("", CallOutcome::Failed) => fault_of(&call.result_head),
        ("", _) => call.result_head.as_str(),
        (message, _) => fault_of(message),
    };
    let title = titles.and_then(|titles| titles.get(&one.conversation));
    html! {
        tr data-item {
            td.what {
                a data-open href=(call::address(request_context, &one.conversation, call)) {
                    strong { (headline(&call.tool, TOOL_CHARS)) }
                    " " code.arguments { (headline(&deed, HEAD_CHARS)) }
                }
                @if !said.is_empty() { p.quote { (headline(said, HEAD_CHARS)) } }
                @if let Some(title) = title { p.dim { (headline(title, TITLE_CHARS)) } }
            }
            td { (call::outcome(call)) }
            td.number { (took(one)) }
            td.number { @if call.result_bytes > 0 { (bytes_human(call.result_bytes)) } }
            td { (time::ago(Some(&one.at))) }
        }
    }
}
