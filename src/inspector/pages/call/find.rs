//! Finds a call, and its result digest.

use prost::Message;

use crate::{
    bounds::{CALLS_BESIDE, CALLS_OF_BRANCH},
    failure::PageFailure,
    parts::place::ConversationPlace,
    recorded_text::TextPlace,
    request_context::RequestContext,
};
use treering_domain::EventKind;
use treering_present::tool_stats::HappenedAt;
use treering_proto::pb::{self, event::Body};

/// Finds the call in an address: by its start (`at`) and end (`end`) if they are given, else the
/// last call with its id.
///
/// # Errors
/// When there is no such call, or an error of the store.
pub(crate) async fn call(
    request_context: &RequestContext,
    place: &ConversationPlace,
    call_id: &str,
) -> Result<pb::ToolCall, PageFailure> {
    let at = request_context.asked.number("at")?;
    let end = request_context.asked.number("end")?;
    let is_it = |call: &pb::ToolCall| {
        call.call_id == call_id && at.is_none_or(|at| at == call.request_revision)
    };
    if let (Some(_), Some(end)) = (at, end) {
        // Parallel calls may be requested between these two events, so several calls are read.
        let calls = history(request_context, place, end, CALLS_BESIDE)
            .await
            .unwrap_or_default();
        if let Some(call) = calls.into_iter().find(is_it) {
            return Ok(call);
        }
    }
    let request = pb::WaitForDecisionRequest {
        conversation_id: place.id.clone(),
        branch: place.branch.name.clone(),
        call_id: call_id.to_owned(),
        // Only the current state is needed.
        timeout_ms: 1,
    };
    let answer = request_context
        .store
        .tools()
        .wait_for_decision(request)
        .await?;
    if let Some(call) = answer.into_inner().call.filter(is_it) {
        return Ok(call);
    }
    let calls = history(request_context, place, 0, CALLS_OF_BRANCH).await?;
    calls.into_iter().find(is_it).ok_or_else(|| {
        PageFailure::none(
            format!("no call {call_id} at #{}", at.unwrap_or_default()),
            "remove the number from the address, or see the list of calls",
        )
    })
}

/// Returns the call that an event requested, decided, started or ended.
pub(crate) async fn of_event(
    request_context: &RequestContext,
    place: &TextPlace,
) -> Option<pb::ToolCall> {
    let revision = place.revision;
    // Errors here must not break the page of the event.
    let calls = before(
        request_context,
        &place.conversation,
        &place.branch,
        revision,
        CALLS_BESIDE,
    );
    calls.await.ok()?.into_iter().find(|call| {
        let events = [
            call.request_revision,
            call.decision_revision,
            call.started_revision,
            call.end_revision,
        ];
        events.contains(&revision)
    })
}

async fn history(
    request_context: &RequestContext,
    place: &ConversationPlace,
    as_of_revision: u64,
    limit: u32,
) -> Result<Vec<pb::ToolCall>, PageFailure> {
    before(
        request_context,
        &place.id,
        &place.branch.name,
        as_of_revision,
        limit,
    )
    .await
}

async fn before(
    request_context: &RequestContext,
    conversation: &str,
    branch: &str,
    as_of_revision: u64,
    limit: u32,
) -> Result<Vec<pb::ToolCall>, PageFailure> {
    let request = pb::ToolHistoryRequest {
        conversation_id: conversation.to_owned(),
        branch: branch.to_owned(),
        as_of_revision,
        limit,
        ..Default::default()
    };
    Ok(request_context
        .store
        .tools()
        .history(request)
        .await?
        .into_inner()
        .calls)
}

/// Returns when the two events of a call occurred, if their authors stated it.
///
/// # Errors
/// Errors of the store.
pub(crate) async fn happened(
    request_context: &RequestContext,
    place: &ConversationPlace,
    call: &pb::ToolCall,
) -> Result<HappenedAt, PageFailure> {
    let of = |id: &str, revision: u64| pb::EventName {
        by: Some(pb::event_name::By::Place(pb::EventPlace {
            conversation_id: id.to_owned(),
            revision,
        })),
    };
    let mut events = vec![of(&call.conversation_id, call.request_revision)];
    if call.end_revision > 0 {
        events.push(of(&place.id, call.end_revision));
    }
    let request = pb::GetManyRequest {
        events,
        headers_only: true,
    };
    let answer = request_context
        .store
        .events()
        .get_many(request)
        .await?
        .into_inner();
    let events = answer.events.into_iter().filter_map(|got| got.event);
    let times = events.filter_map(|event| {
        let place = (event.conversation_id, event.revision);
        Some((place, event.occurred_at?))
    });
    Ok(times.collect())
}

/// Maximum number of later result digests among which that of a call is looked for.
const RECORDED_LATER: u64 = 100;

/// Returns the result digest that replaces a finished call in requests.
///
/// # Errors
/// Errors of the store.
pub(crate) async fn snapshot(
    request_context: &RequestContext,
    place: &ConversationPlace,
    call: &pb::ToolCall,
) -> Result<Option<pb::ToolSnapshot>, PageFailure> {
    if call.end_revision == 0 {
        return Ok(None);
    }
    let request = pb::SnapshotsRequest {
        conversation_id: place.id.clone(),
        branch: place.branch.name.clone(),
        as_of_revision: call.end_revision,
        limit: CALLS_BESIDE,
    };
    let of_call = |snapshot: &pb::ToolSnapshot| {
        let request = snapshot.request.as_ref();
        request.is_some_and(|event| event.revision == call.request_revision)
    };
    let extracts = async {
        // The digest is only a part of the page: an error must not hide the rest.
        let answer = request_context.store.tools().snapshots(request).await;
        answer.map_or_else(|_| Vec::new(), |answer| answer.into_inner().snapshots)
    };
    let (extracts, recorded) = tokio::join!(extracts, recorded(request_context, place, call));
    let found = extracts.into_iter().find(of_call);
    Ok(found.map(|extract| match recorded {
        Ok(Some(result_summary)) => pb::ToolSnapshot {
            result_summary,
            recorded: true,
            ..extract
        },
        _ => extract,
    }))
}

/// Returns the result digest that was recorded after the call ended.
async fn recorded(
    request_context: &RequestContext,
    place: &ConversationPlace,
    call: &pb::ToolCall,
) -> Result<Option<String>, PageFailure> {
    let request = pb::ReadRequest {
        from_revision: call.end_revision,
        kinds: vec![i32::from(EventKind::ToolSnapshotRecorded.number())],
        limit: RECORDED_LATER,
        ..treering_client::read::of_branch(&place.id, &place.branch.name)
    };
    let mut events = request_context
        .store
        .events()
        .read(request)
        .await?
        .into_inner();
    let mut found = None;
    while let Some(batch) = events.message().await? {
        for event in batch.events {
            let Some(Body::ToolSnapshotRecorded(body)) = event.body else {
                continue;
            };
            let Ok(snapshot) = pb::ToolSnapshotRecorded::decode(body) else {
                continue;
            };
            if snapshot.call_id == call.call_id
                && snapshot.request_revision == call.request_revision
            {
                found = Some(snapshot.summary);
            }
        }
    }
    Ok(found)
}
