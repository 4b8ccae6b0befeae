//! Records a conversation over gRPC, as an agent in any language would.

use super::super::{
    append::bodies::{self, encode},
    connect::Connection,
    error::ClientError,
    pb::{self, new_event::Body},
    read,
};

/// Appends events to one branch of one conversation.
#[derive(Debug)]
pub(crate) struct Author<'a> {
    store: &'a Connection,
    /// The conversation's UUID.
    pub(crate) conversation: String,
    /// The branch's name.
    pub(crate) branch: String,
}

/// Actor of the agent's events.
pub(crate) const AGENT: &str = "demo-agent";
/// Actor of the decisions on calls.
pub(crate) const PERSON: &str = "demo-person";

impl<'a> Author<'a> {
    /// Starts a conversation.
    pub(crate) async fn begin(
        store: &'a Connection,
        created: &pb::ConversationCreated,
    ) -> Result<Self, ClientError> {
        let request = pb::AppendRequest {
            events: vec![event(AGENT, Body::ConversationCreated(encode(created)))],
            ..Default::default()
        };
        let answer = read::append(store, request).await?;
        let first = answer.events.first().ok_or(NO_EVENT)?;
        Ok(Self {
            store,
            conversation: first.conversation_id.clone(),
            branch: "main".into(),
        })
    }

    /// Returns the same author on another branch of the conversation.
    pub(crate) fn on_branch(&self, branch: &str) -> Self {
        Self {
            store: self.store,
            conversation: self.conversation.clone(),
            branch: branch.to_owned(),
        }
    }

    /// The store.
    pub(crate) fn store(&self) -> &'a Connection {
        self.store
    }

    /// Appends a batch. Returns the revision of its last event.
    pub(crate) async fn append(&self, actor: &str, bodies: Vec<Body>) -> Result<u64, ClientError> {
        let request = pb::AppendRequest {
            conversation_id: self.conversation.clone(),
            branch: self.branch.clone(),
            events: bodies.into_iter().map(|body| event(actor, body)).collect(),
            ..Default::default()
        };
        let answer = read::append(self.store, request).await?;
        Ok(answer.events.last().ok_or(NO_EVENT)?.revision)
    }
}

const NO_EVENT: ClientError = ClientError::Answer {
    call: "Append",
    part: "event",
};

fn event(actor: &str, body: Body) -> pb::NewEvent {
    pb::NewEvent {
        actor: actor.to_owned(),
        body: Some(body),
        ..Default::default()
    }
}

/// A message with one text.
pub(crate) fn says(role: pb::Role, text: &str) -> Body {
    bodies::message(role, text.to_owned())
}

/// A system prompt.
pub(crate) fn system_prompt(content: &str) -> Body {
    Body::SystemPromptSet(encode(&pb::SystemPromptSet {
        id: "demo".into(),
        content: content.to_owned(),
    }))
}

/// The tools on offer: name, description, and whether calls require approval.
pub(crate) fn offers(tools: &[(&str, &str, bool)]) -> Body {
    let tools = tools
        .iter()
        .map(|(name, description, approval)| pb::ToolDefinition {
            name: (*name).to_owned(),
            description: (*description).to_owned(),
            input_schema: br#"{"type":"object"}"#.as_slice().into(),
            source: "demo".into(),
            approval: bodies::requirement(*approval),
            ..Default::default()
        })
        .collect();
    Body::ToolsDefined(encode(&pb::ToolsDefined { tools }))
}

/// A tool call.
pub(crate) fn asks(call_id: &str, tool: &str, arguments: &str, approval: bool) -> Body {
    bodies::call(call_id, tool, arguments.to_owned(), approval)
}

/// The start of a call.
pub(crate) fn starts(call_id: &str) -> Body {
    Body::ToolCallStarted(encode(&pb::ToolCallStarted {
        call_id: call_id.to_owned(),
        executor: AGENT.into(),
    }))
}

/// The result of a call, with its duration.
pub(crate) fn returns(call_id: &str, outcome: &Result<String, String>, milliseconds: u64) -> Body {
    let (text, error) = (outcome.as_ref().ok(), outcome.as_ref().err());
    bodies::result(call_id, text.cloned(), error.cloned(), Some(milliseconds))
}

/// A decision about a call with exactly these arguments.
pub(crate) fn decides(
    call_id: &str,
    arguments: &str,
    decision: pb::Decision,
    reason: &str,
) -> Body {
    Body::ApprovalDecided(encode(&pb::ApprovalDecided {
        call_id: call_id.to_owned(),
        decision: decision.into(),
        arguments_hash: blake3::hash(arguments.as_bytes())
            .as_bytes()
            .to_vec()
            .into(),
        decided_by: PERSON.into(),
        reason: reason.to_owned(),
    }))
}

/// The end of a denied call.
pub(crate) fn gives_up(call_id: &str) -> Body {
    Body::ToolCallCancelled(encode(&pb::ToolCallCancelled {
        call_id: call_id.to_owned(),
        reason: pb::CancelReason::Denied.into(),
        detail: "denied by a person".into(),
    }))
}

/// A judgement on the branch.
pub(crate) fn judges(score: f64, comment: &str) -> Body {
    Body::AnnotationAdded(encode(&pb::AnnotationAdded {
        score: Some(score),
        label: "demo".into(),
        comment: comment.to_owned(),
        ..Default::default()
    }))
}
