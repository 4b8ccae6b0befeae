//! Tokens and costs of model calls, as the providers reported them: by model, day and conversation.

mod sums;

use axum::response::Response;
use futures::{StreamExt, TryStreamExt, stream};
use maud::{Markup, html};

use self::sums::{Amount, UsageSums};
use crate::{
    bounds::{
        ASKED_AT_ONCE, TITLE_CHARS, USAGE_CONVERSATIONS, USAGE_DAYS, USAGE_MESSAGES,
        USAGE_MESSAGES_OF_EACH,
    },
    failure::PageFailure,
    frame::{self, Tab},
    parts::{
        chart::bars,
        escape::headline,
        numbers::{count, things},
        pager::pager,
        period::{self, Period},
        pieces::{figure, nothing},
        place::{self, ConversationPlace},
    },
    request_context::{PathParams, RequestContext},
};
use treering_client::read;
use treering_domain::EventKind;
use treering_present::text::short_id;
use treering_proto::pb;

/// Maximum number of characters of a model's name.
const MODEL_CHARS: usize = 60;

/// Returns the tokens of the namespace.
///
/// # Errors
/// Errors of the store.
pub(crate) async fn of_namespace(request_context: RequestContext) -> Result<Response, PageFailure> {
    let period = Period::of(&request_context.asked)?;
    let beginning = html! {
        div.head { h1 { "Tokens" } }
        (filter_form(&request_context))
    };
    let here = request_context.here.clone();
    let rest = async move { of_newest(&request_context, period).await };
    frame::page_in_parts(&here, "Tokens", Tab::Usage, beginning, rest).await
}

/// Renders the tokens of the most recently active conversations.
async fn of_newest(
    request_context: &RequestContext,
    period: Period,
) -> Result<Markup, PageFailure> {
    let asked = &request_context.asked;
    let request = pb::ListConversationsRequest {
        page_size: USAGE_CONVERSATIONS,
        page_token: asked.text("after").unwrap_or_default().to_owned(),
        order: pb::ListOrder::Happened.into(),
        // Without an event recorded since then, a conversation has no call in the period.
        updated_from: period.from(),
        ..Default::default()
    };
    let listed = request_context.store.conversations().list(request).await?;
    let answer = listed.into_inner();
    let each = stream::iter(answer.conversations.clone()).map(|conversation| async move {
        let sums = read_sums(
            request_context,
            &conversation,
            period,
            USAGE_MESSAGES_OF_EACH,
        )
        .await?;
        Ok::<_, PageFailure>((conversation, sums))
    });
    let each: Vec<_> = each.buffered(ASKED_AT_ONCE).try_collect().await?;
    let mut sums = UsageSums::default();
    for (_, of) in &each {
        sums.add(of);
    }
    let number = things(each.len() as u64, "conversation", "conversations");
    let address = |after: Option<&str>| {
        let query = asked.with("after", after, &[]);
        format!("{}?{query}", request_context.link("/usage"))
    };
    let latest = asked.text("after").map(|_| (address(None), "Latest"));
    let earlier = Some(answer.next_page_token.as_str()).filter(|token| !token.is_empty());
    let earlier = earlier.map(|token| (address(Some(token)), "Earlier conversations"));
    Ok(html! {
        p.lead {
            "Model calls of the " (number) " with the latest activity"
            @if asked.text("after").is_some() { " before that" }
            ", on all branches: at most " (count(USAGE_MESSAGES_OF_EACH)) " messages of each."
        }
        (tables(request_context, &sums))
        @if !sums.is_empty() { (by_conversation(request_context, &each)) }
        @if latest.is_some() || earlier.is_some() { (pager(latest, earlier, "")) }
    })
}

/// Returns the tokens of a conversation.
///
/// # Errors
/// Errors of the store.
pub(crate) async fn of_conversation(
    PathParams(id): PathParams<String>,
    request_context: RequestContext,
) -> Result<Response, PageFailure> {
    let place = ConversationPlace::of(&request_context, &id).await?;
    let period = Period::of(&request_context.asked)?;
    let beginning = html! {
        (place.heading(&request_context, "usage"))
        (filter_form(&request_context))
    };
    let (here, title) = (request_context.here.clone(), place.titled("Tokens"));
    let rest = async move {
        let sums = read_sums(&request_context, &place.summary, period, USAGE_MESSAGES).await?;
        Ok(html! {
            p.lead { "Model calls on all branches, without those of sub-contexts and forks." }
            (tables(&request_context, &sums))
        })
    };
    frame::page_in_parts(&here, &title, Tab::Conversations, beginning, rest).await
}

/// Sums the calls of a conversation that are in a period.
async fn read_sums(
    request_context: &RequestContext,
    conversation: &pb::ConversationSummary,
    period: Period,
    limit: u64,
) -> Result<UsageSums, PageFailure> {
    let request = pb::ReadRequest {
        kinds: vec![i32::from(EventKind::MessageAppended.number())],
        backward: true,
        limit,
        ..read::of_conversation(&conversation.conversation_id)
    };
    let of_conversation = conversation.config.as_ref();
    let model = of_conversation.map_or("", |config| config.model_id.as_str());
    let mut sums = UsageSums::default();
    let mut answers = read::start(&request_context.store, request).await?;
    while let Some(batch) = answers.message().await? {
        for event in &batch.events {
            sums.add_event(event, model, &period);
        }
    }
    Ok(sums)
}

fn filter_form(request_context: &RequestContext) -> Markup {
    html! {
        form.filters data-auto aria-label="The period" {
            (period::fields(&request_context.asked))
            button.quiet { "Show" }
        }
    }
}

/// Renders the figures, and the tables by model and by day.
fn tables(request_context: &RequestContext, sums: &UsageSums) -> Markup {
    let prices = &request_context.site.prices;
    if sums.is_empty() {
        return nothing(
            "No model call with reported tokens.",
            &html! { "Tokens are counted where a message was recorded with its usage." },
        );
    }
    let all = sums.total(prices);
    html! {
        dl.figures {
            (figure("model calls", &html! { (count(all.tokens.calls)) }))
            (figure("input tokens", &html! { (count(all.tokens.input)) }))
            (figure("from the cache", &html! { (count(all.tokens.cache_read)) }))
            (figure("into the cache", &html! { (count(all.tokens.cache_write)) }))
            (figure("output tokens", &html! { (count(all.tokens.output)) }))
            @if !prices.is_empty() { (figure("cost", &cost(&all))) }
        }
        @if prices.is_empty() {
            p.hint { "Start the server with " code { "--prices FILE" } " to see what they cost." }
        } @else if all.unpriced > 0 {
            p.hint {
                "Without a price, and not in the costs: " (things(all.unpriced, "call", "calls"))
                " of models that the file of prices does not name."
            }
        }
        section aria-labelledby="by-model" {
            h2 #by-model { "By model" }
            (table(request_context, "by-model", "Model", sums.by_model(prices).into_iter().map(|(model, amount)| {
                let name = if model.is_empty() { html! { span.dim { "unknown" } } } else { headline(&model, MODEL_CHARS) };
                (name, amount)
            })))
        }
        section aria-labelledby="by-day" {
            h2 #by-day { "By day" }
            @let days = sums.by_day(prices);
            @let shown = &days[days.len().saturating_sub(USAGE_DAYS)..];
            @let drawn: Vec<_> = shown.iter().map(|(day, amount)| (day.clone(), amount.tokens.all())).collect();
            @if drawn.len() > 1 { (bars(&drawn, "Tokens by day")) }
            (table(request_context, "by-day", "Day (UTC)", shown.iter().rev().map(|(day, amount)| (html! { (day) }, *amount))))
            @if shown.len() < days.len() { p.hint { "and " (count((days.len() - shown.len()) as u64)) " earlier days" } }
        }
    }
}

fn by_conversation(
    request_context: &RequestContext,
    each: &[(pb::ConversationSummary, UsageSums)],
) -> Markup {
    let prices = &request_context.site.prices;
    let mut rows: Vec<_> = each
        .iter()
        .filter(|(_, sums)| !sums.is_empty())
        .map(|(conversation, sums)| (conversation, sums.total(prices)))
        .collect();
    // What costs most is first; without prices, what has the most tokens.
    rows.sort_by(|(_, one), (_, other)| {
        let costs = other.dollars.total_cmp(&one.dollars);
        costs.then(other.tokens.all().cmp(&one.tokens.all()))
    });
    html! {
        section aria-labelledby="by-conversation" {
            h2 #by-conversation { "By conversation" }
            (table(request_context, "by-conversation", "Conversation", rows.into_iter().map(|(conversation, amount)| {
                let id = &conversation.conversation_id;
                let title = match conversation.title.trim() {
                    "" => short_id(&conversation.source_id, id),
                    title => title,
                };
                let address = place::link(request_context, id, "/usage", &[]);
                (html! { a data-open href=(address) { (headline(title, TITLE_CHARS)) } }, amount)
            })))
        }
    }
}

fn table(
    request_context: &RequestContext,
    labelled_by: &str,
    head: &str,
    rows: impl Iterator<Item = (Markup, Amount)>,
) -> Markup {
    let has_prices = !request_context.site.prices.is_empty();
    html! {
        div.table role="group" aria-labelledby=(labelled_by) tabindex="0" {
            table.tools {
                thead {
                    tr {
                        th scope="col" { (head) }
                        th.number scope="col" { "Calls" }
                        th.number scope="col" { "Input" }
                        th.number scope="col" { "From cache" }
                        th.number scope="col" { "Into cache" }
                        th.number scope="col" { "Output" }
                        @if has_prices { th.number scope="col" { "Cost" } }
                    }
                }
                tbody {
                    @for (name, amount) in rows {
                        tr {
                            th scope="row" { (name) }
                            @let tokens = amount.tokens;
                            @for number in [tokens.calls, tokens.input, tokens.cache_read, tokens.cache_write, tokens.output] {
                                td.number { (count(number)) }
                            }
                            @if has_prices { td.number { (cost(&amount)) } }
                        }
                    }
                }
            }
        }
    }
}

/// Renders a cost, with a mark if some calls have no price.
fn cost(amount: &Amount) -> Markup {
    let is_part = amount.unpriced > 0;
    html! {
        @if amount.unpriced == amount.tokens.calls {
            "—"
        } @else if amount.dollars < 0.01 && amount.dollars > 0.0 {
            "< $0.01" @if is_part { "+" }
        } @else {
            "$" (format!("{:.2}", amount.dollars)) @if is_part { "+" }
        }
    }
}
