//! Live updates: a stream that notifies pages of appends, so that they request their part again. It
//! carries no content.
//!
//! `/live` is for the namespace, `/live?c=ID` for one conversation.

use std::{convert::Infallible, time::Duration};

use axum::response::{IntoResponse, Response, Sse, sse::Event};
use futures::{Stream, StreamExt};
use tonic::Streaming;

use super::{
    bounds::{HEARTBEAT, STREAM_MAX, TELL_EVERY},
    failure::PageFailure,
    request_context::RequestContext,
};
use treering_proto::pb;

/// Returns the stream.
///
/// # Errors
/// When there are too many streams, or an error of the store.
pub(crate) async fn stream(request_context: RequestContext) -> Result<Response, PageFailure> {
    use pb::subscribe_request::Source;
    let Ok(permit) = request_context.site.streams.clone().try_acquire_owned() else {
        return Err(PageFailure::new(
            http::StatusCode::SERVICE_UNAVAILABLE,
            "too many live pages",
            "close some of them",
        ));
    };
    let source = match request_context.asked.text("c") {
        Some(id) => Source::Conversation(pb::ConversationSource {
            conversation_id: id.to_owned(),
        }),
        None => Source::Log(pb::LogSource {}),
    };
    let request = pb::SubscribeRequest {
        source: Some(source),
        from_now: true,
        heartbeat_seconds: u32::try_from(HEARTBEAT.as_secs()).unwrap_or(15),
        ..Default::default()
    };
    let events = request_context
        .store
        .events()
        .subscribe(request)
        .await?
        .into_inner();
    let mut ending = request_context.site.ending.subscribe();
    let end = async move {
        let ended = ending.wait_for(|is_ending| *is_ending);
        // The stream ends when the server stops or after the limit.
        let _over = tokio::time::timeout(STREAM_MAX, ended).await;
    };
    let told = throttle(events).take_until(Box::pin(end));
    let told = told.map(move |event| {
        let _held = &permit;
        Ok::<_, Infallible>(event)
    });
    Ok(Sse::new(told).into_response())
}

/// Sends at most one notification per interval.
fn throttle(mut events: Streaming<pb::SubscribeResponse>) -> impl Stream<Item = Event> {
    use pb::subscribe_response::Item;
    async_stream::stream! {
        yield Event::default().event("open").data("").retry(Duration::from_secs(2));
        while let Some(Ok(response)) = events.next().await {
            match response.item {
                Some(Item::Event(event)) => {
                    let mut newest = event.revision;
                    let pause = tokio::time::sleep(TELL_EVERY);
                    tokio::pin!(pause);
                    loop {
                        tokio::select! {
                            () = &mut pause => break,
                            more = events.next() => match more {
                                Some(Ok(more)) => if let Some(Item::Event(event)) = more.item {
                                    newest = event.revision;
                                },
                                _ => break,
                            },
                        }
                    }
                    yield Event::default().event("changed").data(newest.to_string());
                }
                Some(Item::FellBehind(_)) => yield Event::default().event("changed").data(""),
                Some(Item::Heartbeat(_) | Item::CaughtUp(_)) => {
                    yield Event::default().comment("");
                }
                None => {}
            }
        }
    }
}
