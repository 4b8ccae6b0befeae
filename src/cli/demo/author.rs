//! Writing a conversation over gRPC: what any agent would do, in any language.

use prost::Message;

use super::super::{
    connect::Connection,
    error::CliError,
    pb::{self, new_event::Body},
    read,
};

/// Writes events to one branch of one conversation.
#[derive(Debug)]
pub struct Author<'a> {
    store: &'a Connection,
    /// The conversation's UUID.
    pub conversation: String,
    /// The branch's name.
    pub branch: String,
}

/// Who wrote: shown beside each event.
pub const AGENT: &str = "demo-agent";
/// Who decided about calls.
pub const PERSON: &str = "demo-person";

impl<'a> Author<'a> {
    /// Starts a conversation.
    ///
    /// # Errors
    /// What the store says.
    pub async fn begin(
        store: &'a Connection,
        created: &pb::ConversationCreated,
    ) -> Result<Self, CliError> {
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

    /// The same conversation on another branch.
    #[must_use]
    pub fn on_branch(&self, branch: &str) -> Self {
        Self {
            store: self.store,
            conversation: self.conversation.clone(),
            branch: branch.to_owned(),
        }
    }

    /// The store that is written to.
    #[must_use]
    pub fn store(&self) -> &'a Connection {
        self.store
    }

    /// Appends a batch: all of it or none. The revision of its last event.
    ///
    /// # Errors
    /// What the store says.
    pub async fn append(&self, actor: &str, bodies: Vec<Body>) -> Result<u64, CliError> {
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

const NO_EVENT: CliError = CliError::Answer {
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

fn encode(message: &impl Message) -> prost::bytes::Bytes {
    message.encode_to_vec().into()
}

/// A message of one text.
#[must_use]
pub fn says(role: pb::Role, text: &str) -> Body {
    Body::MessageAppended(encode(&pb::MessageAppended {
        role: role.into(),
        parts: vec![text_part(text)],
        ..Default::default()
    }))
}

fn text_part(text: &str) -> pb::ContentPart {
    pb::ContentPart {
        part: Some(pb::content_part::Part::Text(text.to_owned())),
    }
}

/// A system prompt.
#[must_use]
pub fn system_prompt(content: &str) -> Body {
    Body::SystemPromptSet(encode(&pb::SystemPromptSet {
        id: "demo".into(),
        content: content.to_owned(),
    }))
}

/// The tools that are offered: name, what it does, and whether its calls must
/// be approved.
#[must_use]
pub fn offers(tools: &[(&str, &str, bool)]) -> Body {
    let tools = tools
        .iter()
        .map(|(name, description, approval)| pb::ToolDefinition {
            name: (*name).to_owned(),
            description: (*description).to_owned(),
            input_schema: br#"{"type":"object"}"#.as_slice().into(),
            source: "demo".into(),
            approval: requirement(*approval).into(),
            ..Default::default()
        })
        .collect();
    Body::ToolsDefined(encode(&pb::ToolsDefined { tools }))
}

fn requirement(approval: bool) -> pb::ApprovalRequirement {
    if approval {
        pb::ApprovalRequirement::Pending
    } else {
        pb::ApprovalRequirement::NotRequired
    }
}

/// A request for a tool.
#[must_use]
pub fn asks(call_id: &str, tool: &str, arguments: &str, approval: bool) -> Body {
    Body::ToolCallRequested(encode(&pb::ToolCallRequested {
        call_id: call_id.to_owned(),
        tool: tool.to_owned(),
        arguments: arguments.to_owned().into(),
        message_revision: 0,
        approval: requirement(approval).into(),
        ..Default::default()
    }))
}

/// A call begins to run.
#[must_use]
pub fn starts(call_id: &str) -> Body {
    Body::ToolCallStarted(encode(&pb::ToolCallStarted {
        call_id: call_id.to_owned(),
        executor: AGENT.into(),
    }))
}

/// What a call returned, and how long it ran.
#[must_use]
pub fn returns(call_id: &str, outcome: &Result<String, String>, milliseconds: u64) -> Body {
    let result = pb::ToolResultRecorded {
        call_id: call_id.to_owned(),
        success: outcome.is_ok(),
        error_message: outcome.as_ref().err().cloned().unwrap_or_default(),
        execution_time_ms: Some(milliseconds),
        parts: outcome.iter().map(|text| text_part(text)).collect(),
        ..Default::default()
    };
    Body::ToolResultRecorded(encode(&result))
}

/// A decision about a call, for exactly these arguments.
#[must_use]
pub fn decides(call_id: &str, arguments: &str, decision: pb::Decision, reason: &str) -> Body {
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

/// A denied call ends without a result.
#[must_use]
pub fn gives_up(call_id: &str) -> Body {
    Body::ToolCallCancelled(encode(&pb::ToolCallCancelled {
        call_id: call_id.to_owned(),
        reason: pb::CancelReason::Denied.into(),
        detail: "denied by a person".into(),
    }))
}

/// A judgement on the branch.
#[must_use]
pub fn judges(score: f64, comment: &str) -> Body {
    Body::AnnotationAdded(encode(&pb::AnnotationAdded {
        score: Some(score),
        label: "demo".into(),
        comment: comment.to_owned(),
        ..Default::default()
    }))
}
