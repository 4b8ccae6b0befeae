//! Where a call that waits stands: in which conversation, and after what question. Who decides
//! wants to know what it is for.

use prost::Message;

use crate::{
    cli::{read, text::parts_text},
    codec::pb::{self, event::Body},
    inspector::visit::Visit,
};

/// Messages before a call that are read for the question; older ones are searched for.
const MESSAGES_BEFORE: u64 = 6;
/// Questions that are searched for, the newest, for the last one before a call.
const QUESTIONS_SEARCHED: u32 = 20;

/// Conversation, branch and event of a call.
pub type CallPlace = (String, String, u64);

/// Where a call is.
#[must_use]
pub fn call_place(call: &pb::ToolCall) -> CallPlace {
    let (id, branch) = (call.conversation_id.clone(), call.branch.clone());
    (id, branch, call.request_revision)
}

/// What stands around a call. It is told beside the call: what cannot be known is left out.
#[derive(Clone, Debug, Default)]
pub struct CallContext {
    /// What its conversation is called; its id when it has no title.
    pub title: String,
    /// What a person said last before it; empty: nothing.
    pub question: String,
}

impl CallContext {
    /// Of the call at a place.
    pub async fn of(visit: &Visit, place: &CallPlace) -> Self {
        let (title, question) = tokio::join!(title(visit, &place.0), question(visit, place));
        Self { title, question }
    }
}

async fn title(visit: &Visit, id: &str) -> String {
    let request = pb::GetConversationRequest {
        conversation_id: id.to_owned(),
        ..Default::default()
    };
    let answer = visit.store.conversations().get(request).await;
    let summary = answer.ok().and_then(|answer| answer.into_inner().summary);
    let summary = summary.unwrap_or_default();
    match summary.title.trim() {
        "" => crate::cli::text::short_id(&summary.source_id, id).to_owned(),
        title => title.to_owned(),
    }
}

async fn question(visit: &Visit, place: &CallPlace) -> String {
    match just_before(visit, place).await {
        Some(question) => question,
        None => searched(visit, place).await.unwrap_or_default(),
    }
}

/// Among the last messages: the index may not know yet what was said just now.
async fn just_before(visit: &Visit, (id, branch, at): &CallPlace) -> Option<String> {
    let request = pb::ReadRequest {
        from_revision: *at,
        kinds: vec![pb::EventKind::MessageAppended.into()],
        backward: true,
        limit: MESSAGES_BEFORE,
        ..read::of_branch(id, branch)
    };
    let mut events = visit.store.events().read(request).await.ok()?.into_inner();
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

async fn searched(visit: &Visit, (id, branch, at): &CallPlace) -> Option<String> {
    let request = pb::SearchRequest {
        conversation_id: id.clone(),
        branch: branch.clone(),
        roles: vec![pb::Role::User.into()],
        kinds: vec![pb::EventKind::MessageAppended.into()],
        limit: QUESTIONS_SEARCHED,
        every_copy: true,
        ..Default::default()
    };
    let answer = visit.store.search().search(request).await.ok()?;
    let mut hits = answer.into_inner().hits.into_iter();
    hits.find(|hit| hit.revision <= *at).map(|hit| hit.snippet)
}
