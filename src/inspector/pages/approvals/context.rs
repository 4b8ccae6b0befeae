//! The context of a pending call, for the person who decides: its conversation, and the question
//! before it.

use prost::Message;

use crate::request_context::RequestContext;
use treering_client::read;
use treering_present::text::parts_text;
use treering_proto::pb::{self, event::Body};

/// Messages before a call that are read to find the question; older ones are found in the index.
const MESSAGES_BEFORE: u64 = 6;
/// Newest questions in the index among which the last one before a call is looked for.
const QUESTIONS_SEARCHED: u32 = 20;

/// Conversation, branch and revision of a call.
pub(crate) type CallPlace = (String, String, u64);

/// Returns the place of a call.
#[must_use]
pub(crate) fn call_place(call: &pb::ToolCall) -> CallPlace {
    let (id, branch) = (call.conversation_id.clone(), call.branch.clone());
    (id, branch, call.request_revision)
}

/// The context of a call. It is shown beside the call; unknown fields are empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallContext {
    /// The title of its conversation, or its id.
    pub(crate) title: String,
    /// The last message of a person before it; may be empty.
    pub(crate) question: String,
}

impl CallContext {
    /// Returns the context of the call at a place.
    pub(crate) async fn of(request_context: &RequestContext, place: &CallPlace) -> Self {
        let (title, question) = tokio::join!(
            title(request_context, &place.0),
            question(request_context, place)
        );
        Self { title, question }
    }
}

async fn title(request_context: &RequestContext, id: &str) -> String {
    let request = pb::GetConversationRequest {
        conversation_id: id.to_owned(),
        ..Default::default()
    };
    let answer = request_context.store.conversations().get(request).await;
    let summary = answer.ok().and_then(|answer| answer.into_inner().summary);
    let summary = summary.unwrap_or_default();
    match summary.title.trim() {
        "" => treering_present::text::short_id(&summary.source_id, id).to_owned(),
        title => title.to_owned(),
    }
}

async fn question(request_context: &RequestContext, place: &CallPlace) -> String {
    match just_before(request_context, place).await {
        Some(question) => question,
        None => searched(request_context, place).await.unwrap_or_default(),
    }
}

/// Looks in the last messages, because the index may not have the latest ones yet.
async fn just_before(
    request_context: &RequestContext,
    (id, branch, at): &CallPlace,
) -> Option<String> {
    let request = pb::ReadRequest {
        from_revision: *at,
        kinds: vec![pb::EventKind::MessageAppended.into()],
        backward: true,
        limit: MESSAGES_BEFORE,
        ..read::of_branch(id, branch)
    };
    let mut events = request_context
        .store
        .events()
        .read(request)
        .await
        .ok()?
        .into_inner();
    while let Ok(Some(batch)) = events.message().await {
        for event in batch.events {
            if let Some(Body::MessageAppended(bytes)) = event.body
                && let Ok(message) = pb::MessageAppended::decode(bytes)
                && message.role() == pb::Role::User
            {
                return Some(parts_text(&message.parts));
            }
        }
    }
    None
}

async fn searched(
    request_context: &RequestContext,
    (id, branch, at): &CallPlace,
) -> Option<String> {
    let request = pb::SearchRequest {
        conversation_id: id.clone(),
        branch: branch.clone(),
        roles: vec![pb::Role::User.into()],
        kinds: vec![pb::EventKind::MessageAppended.into()],
        limit: QUESTIONS_SEARCHED,
        every_copy: true,
        ..Default::default()
    };
    let answer = request_context.store.search().search(request).await.ok()?;
    let mut hits = answer.into_inner().hits.into_iter();
    hits.find(|hit| hit.revision <= *at).map(|hit| hit.snippet)
}
