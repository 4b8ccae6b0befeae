//! The next request of a branch's agent, for any provider and budget: its content, the steps that
//! built it with their reasons, and its differences from another request.
//!
//! Viewing must have no effect: a request that is built here must never be taken for one that was
//! sent (see `ask`).

mod ask;
mod body;
mod compare;
mod items;

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, header::CONTENT_TYPE};
use maud::{Markup, html};

use ask::{RequestAnswer, RequestParams};

use crate::{
    failure::PageFailure,
    frame::{self, Tab},
    parts::{
        escape::escape_inline,
        numbers::{bytes_human, count, things},
        pieces::{BadgeColor, badge, fold},
        place::{ConversationPlace, moment},
    },
    request_context::{PathParams, RequestContext},
};
use treering_context::Provider;
use treering_present::{
    explanation::{
        self, Advice, BudgetTokens, dropped_tokens, section_text, sections, token_basis,
        token_share,
    },
    json::section_name,
    text::printable_json,
};
use treering_proto::pb;

/// Prefix of the parameters of the second of two requests.
const SECOND: &str = "b_";

/// Returns the page.
///
/// # Errors
/// Errors of the store.
pub(crate) async fn page(
    PathParams(id): PathParams<String>,
    request_context: RequestContext,
) -> Result<Response, PageFailure> {
    let place = ConversationPlace::of(&request_context, &id).await?;
    let first = RequestParams::of(&request_context, "", &place.branch.name)?;
    let is_compared = request_context.asked.text("b_provider").is_some();
    let second = match is_compared {
        true => Some(RequestParams::of(&request_context, SECOND, &first.branch)?),
        false => None,
    };
    let beginning = html! {
        (place.heading(&request_context, "request"))
        (providers(&request_context, &place, &first))
        (form(&place, &first))
    };
    let title = place.titled("Request");
    let checked = first
        .check()
        .and_then(|()| second.as_ref().map_or(Ok(()), RequestParams::check));
    if let Err(failure) = checked {
        // Show the form with its values, because it only needs a correction.
        let body = html! {
            (beginning) (failure.notice())
            @if second.is_some() { (compare_form(&request_context, &place, &first, second.as_ref())) }
        };
        let page = request_context.page(&title, Tab::Conversations, body);
        let mut answer = page.into_response();
        *answer.status_mut() = failure.status();
        return Ok(answer);
    }
    let here = request_context.here.clone();
    let rest = async move { built(&request_context, &place, &first, second.as_ref()).await };
    frame::page_in_parts(&here, &title, Tab::Conversations, beginning, rest).await
}

/// Renders one request, or two side by side.
async fn built(
    request_context: &RequestContext,
    place: &ConversationPlace,
    first: &RequestParams,
    second: Option<&RequestParams>,
) -> Result<Markup, PageFailure> {
    let (one, other) = tokio::try_join!(first.answer(request_context, &place.id), async {
        match second {
            Some(second) => second.answer(request_context, &place.id).await.map(Some),
            None => Ok(None),
        }
    })?;
    let whole = |ask: &RequestParams| ask.body_address(request_context, place);
    Ok(html! {
        (notices(&one.told))
        @match (second, &other) {
            (Some(second), Some(other)) => (compare::section(
                [(first, &one), (second, other)],
                [whole(first), whole(second)],
                |event| link_of(request_context, event, place, first),
            )),
            _ => {
                (budget(&one.told, "bar"))
                (shared(&one.told))
                (steps(&one.told))
                (items::section(request_context, place, first, &one.told))
                (body::section(&one.body, &whole(first)))
            }
        }
        (compare_form(request_context, place, first, second))
    })
}

/// Returns only the body of the request.
///
/// # Errors
/// Errors of the store.
pub(crate) async fn whole(
    PathParams(id): PathParams<String>,
    request_context: RequestContext,
) -> Result<Response, PageFailure> {
    let place = ConversationPlace::of(&request_context, &id).await?;
    let ask = RequestParams::of(&request_context, "", &place.branch.name)?;
    ask.check()?;
    let RequestAnswer { body, .. } = ask.answer(&request_context, &place.id).await?;
    // The same JSON, without characters that control a terminal.
    let body = printable_json(&String::from_utf8_lossy(&body)).into_owned();
    let mut answer = body.into_response();
    let json = HeaderValue::from_static("application/json");
    answer.headers_mut().insert(CONTENT_TYPE, json);
    Ok(answer)
}

/// Returns the link to the event of an item.
fn link_of(
    request_context: &RequestContext,
    event: &pb::EventRef,
    place: &ConversationPlace,
    ask: &RequestParams,
) -> String {
    let branch = match event.conversation_id == place.id {
        true => ask.branch.as_str(),
        false => "",
    };
    moment(
        request_context,
        &event.conversation_id,
        branch,
        event.revision,
    )
}

/// Renders links to the same request for each provider.
fn providers(
    request_context: &RequestContext,
    place: &ConversationPlace,
    ask: &RequestParams,
) -> Markup {
    html! {
        nav.providers aria-label="Provider" {
            @for provider in Provider::ALL {
                @let query = request_context.asked.with("provider", Some(provider.as_str()), &["from"]);
                a.chip href={ (place.link(request_context, "/request", &[])) "?" (query) }
                    aria-current=[(provider == ask.provider).then_some("true")]
                    title=(provider.title()) { (provider.as_str()) }
            }
        }
    }
}

fn form(place: &ConversationPlace, ask: &RequestParams) -> Markup {
    html! {
        form.filters aria-label="The request" {
            (fields(place, ask, ""))
            button { "Build" }
        }
    }
}

/// Renders the form fields of a request.
fn fields(place: &ConversationPlace, ask: &RequestParams, prefix: &str) -> Markup {
    let name = |name: &str| format!("{prefix}{name}");
    html! {
        @if prefix.is_empty() {
            input type="hidden" name="provider" value=(ask.provider.as_str());
        } @else {
            label {
                "Provider"
                select name=(name("provider")) {
                    @for provider in Provider::ALL {
                        option value=(provider.as_str()) selected[provider == ask.provider] {
                            (provider.as_str())
                        }
                    }
                }
            }
        }
        label { "Branch" (place.branch_field(&name("branch"), &ask.branch)) }
        label {
            "Budget, in tokens"
            input.short type="number" name=(name("budget")) min="1" inputmode="numeric"
                value=[ask.budget] placeholder="policy’s";
        }
        label {
            "State at"
            input.short type="number" name=(name("as_of")) min="1" inputmode="numeric"
                value=[ask.as_of] placeholder="now";
        }
        label {
            "Model"
            input name=(name("model")) value=(ask.model) autocomplete="off" spellcheck="false"
                placeholder="the conversation’s";
        }
        label {
            "Tool results"
            select name=(name("results")) {
                @for (value, word) in ask::RESULTS {
                    option value=(value) selected[value == ask.results] { (word) }
                }
            }
        }
        label.grow {
            "Policy (JSON), overrides the conversation’s"
            input.mono name=(name("policy")) value=(ask.policy) autocomplete="off"
                spellcheck="false" placeholder="{}";
        }
    }
}

fn compare_form(
    request_context: &RequestContext,
    place: &ConversationPlace,
    first: &RequestParams,
    second: Option<&RequestParams>,
) -> Markup {
    let shown = second.unwrap_or(first);
    let kept = [
        ("branch", first.branch.clone()),
        ("provider", first.provider.as_str().to_owned()),
        (
            "budget",
            first.budget.map(|n| n.to_string()).unwrap_or_default(),
        ),
        (
            "as_of",
            first.as_of.map(|n| n.to_string()).unwrap_or_default(),
        ),
        ("model", first.model.clone()),
        ("results", first.results.clone()),
        ("policy", first.policy.clone()),
    ];
    html! {
        section #compare aria-labelledby="compare-title" {
            h2 #compare-title { "Compare with another request" }
            p.hint { "Another branch, provider, policy or time." }
            form.filters aria-label="The other request" {
                @for (name, value) in kept {
                    @if !value.is_empty() { input type="hidden" name=(name) value=(value); }
                }
                (fields(place, shown, SECOND))
                button { "Compare" }
                @if second.is_some() {
                    a.button.quiet href=(first.address(request_context, place)) { "Only the first" }
                }
            }
        }
    }
}

fn notices(told: &pb::Explanation) -> Markup {
    html! {
        @for notice in explanation::notices(told, WARNINGS) {
            p class={ "notice " (BadgeColor::of(notice.tone).class()) } {
                (escape_inline(&notice.text))
                @match &notice.advice {
                    Some(Advice::Text(text)) => { " " (text) }
                    Some(Advice::Command(command)) => { " " code { (escape_inline(command)) } }
                    None => {}
                }
            }
        }
    }
}

/// Maximum number of warnings that are shown.
const WARNINGS: usize = 20;
/// Maximum number of steps that are shown.
const STEPS: usize = 60;

/// Renders the budget as a bar, and its sections as a table.
fn budget(told: &pb::Explanation, id: &str) -> Markup {
    let BudgetTokens { whole, free } = BudgetTokens::of(told);
    let title = format!("{id}-title");
    html! {
        section aria-labelledby=(title) {
            h2 #(title) {
                (count(told.tokens))
                @if told.budget_tokens > 0 { " of " (count(told.budget_tokens)) }
                " tokens"
                @if told.budget_tokens == 0 { span.dim { ", no budget" } }
                @if told.over_budget { " " (badge(BadgeColor::Bad, "over budget")) }
            }
            p.hint {
                "at #" (count(told.revision)) " of " (escape_inline(&told.branch))
                @if !told.model.is_empty() { ", for " (escape_inline(&told.model)) }
                ", " (told.basis.as_ref().map(token_basis).unwrap_or_default())
                @if dropped_tokens(told) > 0 {
                    "; " (count(told.tokens_before_budget)) " before the budget"
                }
            }
            (bar(told, whole))
            div.table role="group" aria-label="Sections" tabindex="0" {
                table.sections {
                    thead {
                        tr {
                            th scope="col" { "Section" }
                            th.number scope="col" { "Tokens" }
                            th.number scope="col" { "Share" }
                            th.number scope="col" { "Items" }
                            th.number scope="col" { "Left out" }
                        }
                    }
                    tbody {
                        @for one in sections(told) {
                            tr {
                                th scope="row" {
                                    svg.swatch width="10" height="10" aria-hidden="true" {
                                        rect class=(class(one.section())) width="10" height="10" rx="2" {}
                                    }
                                    " " (section_text(one.section()))
                                }
                                td.number { (count(one.tokens)) }
                                td.number { (token_share(one.tokens, whole)) }
                                td.number { (count(u64::from(one.items))) }
                                td.number {
                                    @if one.dropped_tokens > 0 { (count(one.dropped_tokens)) }
                                }
                            }
                        }
                        @if free > 0 {
                            tr.free {
                                th scope="row" { "free" }
                                td.number { (count(free)) }
                                td.number { (token_share(free, whole)) }
                                td {} td {}
                            }
                        }
                    }
                }
            }
        }
    }
}

fn class(section: pb::Section) -> String {
    format!("s-{}", section_name(section).replace('_', "-"))
}

/// Length of a bar, in units of its drawing.
const BAR: f64 = 1_000.0;

fn bar(told: &pb::Explanation, whole: u64) -> Markup {
    let mut x = 0.0;
    html! {
        svg.budget viewBox="0 0 1000 26" preserveAspectRatio="none" aria-hidden="true" {
            rect.free x="0" y="0" width="1000" height="26" {}
            @for one in &told.sections {
                @if one.tokens > 0 {
                    @let width = part(one.tokens, whole) * BAR;
                    rect class=(class(one.section())) x=(px(x)) y="0" width=(px(width)) height="26" {
                        title { (section_text(one.section())) ": " (count(one.tokens)) }
                    }
                    @let () = x += width;
                }
            }
        }
    }
}

#[allow(clippy::cast_precision_loss)] // Only for drawing.
fn part(some: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        some as f64 / whole as f64
    }
}

fn px(length: f64) -> String {
    format!("{length:.1}")
}

/// Renders how much of the request equals the last request that was built for the agent.
fn shared(told: &pb::Explanation) -> Markup {
    let Some(shared) = &told.shared_prefix else {
        return html! {
            p.hint.section-hint {
                "It is unknown how much of it equals the last request: "
                "no request was built for this branch, provider and model since the store was \
                 opened, or this one is for a past state or has another policy."
            }
        };
    };
    html! {
        section aria-labelledby="shared" {
            h2 #shared { "Compared with the last request" }
            p {
                "The first " strong { (count(shared.tokens)) } " tokens ("
                (bytes_human(shared.bytes)) ") equal the last request, of "
                (count(shared.previous_tokens)) " (at #" (count(shared.previous_revision)) "): "
                strong { (token_share(shared.tokens, shared.previous_tokens)) }
                " of them can be read from a prompt cache."
            }
            svg.budget.thin viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true" {
                rect.free x="0" y="0" width="1000" height="10" {}
                rect.same x="0" y="0" height="10"
                    width=(px(part(shared.tokens, shared.previous_tokens).min(1.0) * BAR)) {}
            }
        }
    }
}

fn steps(told: &pb::Explanation) -> Markup {
    let did = |step: &&pb::EnhancerReport| step.enabled && step.items > 0;
    let number = told.enhancers.iter().filter(did).count() as u64;
    let head = html! { strong { "Steps" } span.dim { (things(number, "applied", "applied")) } };
    let body = html! {
        div.table role="group" aria-label="Steps" tabindex="0" {
            table {
                thead {
                    tr {
                        th scope="col" { "Step" }
                        th.number scope="col" { "Items" }
                        th scope="col" { "Effect" }
                    }
                }
                tbody {
                    @for step in told.enhancers.iter().take(STEPS) {
                        tr.idle[!step.enabled || step.items == 0] {
                            th scope="row" { code { (escape_inline(&step.name)) } }
                            td.number {
                                @if step.enabled { (count(u64::from(step.items))) } @else { "off" }
                            }
                            td { (escape_inline(&step.did)) }
                        }
                    }
                }
            }
        }
    };
    fold("steps", true, &head, &body)
}
