//! Events with the same correlation id, in any conversation.

use futures::StreamExt;
use maud::html;

use crate::{
    bounds::EVENTS,
    failure::PageFailure,
    frame::{Page, Tab},
    parts::{escape::escape_inline, numbers::things, pieces::nothing, time},
    request_context::{RequestContext, path_part},
};
use treering_present::json::kind_name;
use treering_proto::pb;

/// Returns the page.
///
/// # Errors
/// Errors of the store.
pub(crate) async fn page(request_context: RequestContext) -> Result<Page, PageFailure> {
    let Some(id) = request_context.asked.text("id") else {
        return Err(PageFailure::asked(
            "the correlation id is missing",
            "follow the link of an event",
        ));
    };
    let request = pb::ReadRequest {
        source: Some(pb::read_request::Source::Log(pb::LogSource {})),
        filter: Some(pb::EventFilter {
            correlation_id: id.to_owned(),
            ..Default::default()
        }),
        backward: true,
        limit: EVENTS,
        headers_only: true,
        ..Default::default()
    };
    let mut answers = request_context
        .store
        .events()
        .read(request)
        .await?
        .into_inner();
    let (mut events, mut is_whole) = (Vec::new(), true);
    while let Some(answer) = answers.next().await {
        let answer = answer?;
        is_whole &= answer.stopped_at.is_none();
        events.extend(answer.events);
    }
    is_whole &= (events.len() as u64) < EVENTS;
    let body = html! {
        h1 { "Correlation " span.mono { (escape_inline(id)) } }
        p.dim {
            (things(events.len() as u64, "event", "events")) ", newest first"
            @if !is_whole { "; older events were not searched" }
        }
        @if events.is_empty() {
            (nothing("No event has this correlation id.", &html! { "The newest events were searched." }))
        } @else {
            div.table role="group" aria-label="Events" tabindex="0" { table {
                thead { tr { th { "Event" } th { "Kind" } th { "Actor" } th { "Recorded" } } }
                tbody {
                    @for event in &events {
                        tr data-item {
                            td.mono {
                                a href=(request_context.link(&format!("/c/{}/e/{}", path_part(&event.conversation_id), event.revision))) data-open {
                                    (escape_inline(&event.conversation_id)) "#" (event.revision)
                                }
                            }
                            td { (kind_name(event.kind)) }
                            td { (escape_inline(&event.actor)) }
                            td.number { (time::moment(event.recorded_at.as_ref())) }
                        }
                    }
                }
            } }
        }
    };
    Ok(request_context.page("Correlation", Tab::None, body))
}
