//! Tool calls: request, approval, start, result.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    id::{ContentHash, ConversationId, Revision},
    message::{ContentPart, JsonText, RawMessage},
};

/// A model's request to call a tool.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct ToolCallRequested {
    /// The provider's id, unique among the branch's open calls.
    pub call_id: String,
    /// Name of the tool.
    pub tool: String,
    /// The arguments as the model wrote them: JSON, or [not](Self::arguments_not_json).
    pub arguments: JsonText,
    /// BLAKE3 of `arguments`. Computed when the body is decoded; not encoded.
    pub arguments_hash: ContentHash,
    /// The assistant message that contained it; `None` if it is the last one before this event.
    pub message_revision: Option<Revision>,
    /// The call must be approved before it may start or succeed.
    pub needs_approval: bool,
    /// The arguments are not JSON: truncated, empty, or prose. Computed when the body is decoded.
    pub arguments_not_json: bool,
    /// The provider's id of the output item, if it differs from `call_id`; or empty.
    pub item_id: String,
    /// What the source sent, if this event does not represent all of it.
    pub raw: Option<RawMessage>,
}

/// A decision about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Decision {
    Approved,
    Denied,
    Expired,
}

/// A decision about a pending call, valid for exactly these arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct ApprovalDecided {
    /// The id of an open call.
    pub call_id: String,
    /// The decision.
    pub decision: Decision,
    /// BLAKE3 of the arguments that the decider saw.
    pub arguments_hash: ContentHash,
    /// Who decided.
    pub decided_by: String,
    /// The reason.
    pub reason: String,
}

/// The start of a call's execution.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCallStarted {
    /// The id of an open call.
    pub call_id: String,
    /// Who executes it.
    pub executor: String,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolResultRecorded {
    /// The id of an open call.
    pub call_id: String,
    /// Whether the call succeeded.
    pub success: bool,
    /// The error, if it failed.
    pub error_message: String,
    /// Execution time in milliseconds; `None` when unknown.
    pub execution_time_ms: Option<u64>,
    /// The returned content.
    pub parts: Vec<ContentPart>,
    /// The result in structured form, or absent.
    pub structured: JsonText,
    /// What the source sent, if this event does not represent all of it.
    pub raw: Option<RawMessage>,
}

impl ToolResultRecorded {
    /// Creates a successful result with one text.
    #[must_use]
    pub fn text(call_id: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            call_id: call_id.into(),
            success: true,
            error_message: String::new(),
            execution_time_ms: None,
            parts: vec![ContentPart::Text(text.into())],
            structured: JsonText::default(),
            raw: None,
        }
    }

    /// Creates a failure with this error message.
    #[must_use]
    pub fn failure(call_id: impl Into<String>, error_message: impl Into<String>) -> Self {
        Self {
            success: false,
            error_message: error_message.into(),
            parts: Vec::new(),
            ..Self::text(call_id, "")
        }
    }
}

/// Why a call ended without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum CancelReason {
    Denied,
    Interrupted,
    TimedOut,
    Superseded,
}

/// The end of a call without a result.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCallCancelled {
    /// The id of an open call.
    pub call_id: String,
    /// The reason.
    pub reason: CancelReason,
    /// Details of the reason.
    pub detail: String,
}

/// A result digest: a better summary of a finished call than the engine's own extract.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSnapshotRecorded {
    /// The call's id.
    pub call_id: String,
    /// Revision of the event that requested the call.
    pub request_revision: Revision,
    /// The text that replaces the call's result in the window.
    pub summary: String,
}

/// A tool that is available from this event on.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolDefinition {
    /// The tool's name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// JSON Schema of its arguments, or absent.
    pub input_schema: JsonText,
    /// Its origin (a server, a module).
    pub source: String,
    /// Whether its calls need approval.
    pub needs_approval: bool,
    /// How to use it, given once when it is discovered; or empty.
    pub guidance: String,
    /// Offered only after it has been discovered.
    pub discoverable: bool,
    /// Whether the model must follow the schema exactly, if the provider supports that; `None` for
    /// the provider's default.
    pub strict: Option<bool>,
}

/// The start of a child conversation that works for this one.
#[derive(Clone, Debug, PartialEq)]
pub struct SubContextSpawned {
    /// The child conversation.
    pub conversation: ConversationId,
    /// The call that requested it, or empty.
    pub call_id: String,
    /// Its task.
    pub purpose: String,
}

/// The end of a child conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct SubContextReturned {
    /// The child conversation.
    pub conversation: ConversationId,
    /// A summary of its result.
    pub summary: String,
    /// The call that requested it, or empty.
    pub call_id: String,
}

/// An event that a framework defines.
#[derive(Clone, Debug, PartialEq)]
pub struct Custom {
    /// The framework's name for the event type.
    pub type_name: String,
    /// Media type of `data`.
    pub content_type: String,
    /// The payload, opaque to Treering.
    pub data: Bytes,
    /// Searchable text, or empty.
    pub text: String,
    /// Event key of a similar event, or empty. It only affects how the body is stored.
    pub delta_of: String,
}
