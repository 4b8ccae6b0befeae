//! Tool calls: asked, decided, run, answered.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    id::{ContentHash, ConversationId, Revision},
    message::{ContentPart, JsonText, RawMessage},
};

/// A model asks for a tool.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct ToolCallRequested {
    /// The provider's id; unique among the branch's open calls.
    pub call_id: String,
    /// Name of the tool.
    pub tool: String,
    /// Arguments, as the model wrote them: JSON, or [not](Self::arguments_not_json).
    pub arguments: JsonText,
    /// BLAKE3 of `arguments`. Derived when the body is decoded; not encoded.
    pub arguments_hash: ContentHash,
    /// The assistant message it came in; none: the last one before it.
    pub message_revision: Option<Revision>,
    /// True: it must be approved before it may start or succeed.
    pub needs_approval: bool,
    /// The arguments are a text that is no JSON: broken off, empty, or prose. Derived when the
    /// body is decoded.
    pub arguments_not_json: bool,
    /// The provider's id of the item that it is, where that is not `call_id`; or empty.
    pub item_id: String,
    /// What the source sent, when it says more.
    pub raw: Option<RawMessage>,
}

/// What was decided about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Decision {
    Approved,
    Denied,
    Expired,
}

/// Someone decides about a pending call, for exactly these arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct ApprovalDecided {
    /// An open call.
    pub call_id: String,
    /// What was decided.
    pub decision: Decision,
    /// BLAKE3 of the arguments that the decider saw.
    pub arguments_hash: ContentHash,
    /// Who decided.
    pub decided_by: String,
    /// Why.
    pub reason: String,
}

/// Someone begins to run a call.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCallStarted {
    /// An open call.
    pub call_id: String,
    /// Who runs it.
    pub executor: String,
}

/// What a call returned.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolResultRecorded {
    /// An open call.
    pub call_id: String,
    /// Whether it worked.
    pub success: bool,
    /// What went wrong.
    pub error_message: String,
    /// How long it ran, in milliseconds; none when unknown.
    pub execution_time_ms: Option<u64>,
    /// What it returned.
    pub parts: Vec<ContentPart>,
    /// The result in structured form, or absent.
    pub structured: JsonText,
    /// What the source sent, when it says more.
    pub raw: Option<RawMessage>,
}

impl ToolResultRecorded {
    /// A success with this text.
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

    /// A failure with this message.
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

/// A call ends without a result.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCallCancelled {
    /// An open call.
    pub call_id: String,
    /// Why.
    pub reason: CancelReason,
    /// More on why.
    pub detail: String,
}

/// A better summary of a finished call than the engine's own extract.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSnapshotRecorded {
    /// The call's id.
    pub call_id: String,
    /// Revision of the call's request.
    pub request_revision: Revision,
    /// What stands for the call in the window.
    pub summary: String,
}

/// A tool that is offered from now on.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolDefinition {
    /// Name of the tool.
    pub name: String,
    /// What it does.
    pub description: String,
    /// JSON Schema of its arguments, or absent.
    pub input_schema: JsonText,
    /// Where it comes from (a server, a module).
    pub source: String,
    /// Whether its calls must be approved.
    pub needs_approval: bool,
    /// How to use it, told once when it is discovered; or empty.
    pub guidance: String,
    /// Offered only after it was discovered.
    pub discoverable: bool,
    /// The model keeps to the schema exactly, where a provider has that; none: its default.
    pub strict: Option<bool>,
}

/// A child conversation works on something for this one.
#[derive(Clone, Debug, PartialEq)]
pub struct SubContextSpawned {
    /// The child.
    pub conversation: ConversationId,
    /// The call that asked for it, or empty.
    pub call_id: String,
    /// What it is to do.
    pub purpose: String,
}

/// A child conversation has finished.
#[derive(Clone, Debug, PartialEq)]
pub struct SubContextReturned {
    /// The child.
    pub conversation: ConversationId,
    /// What it found.
    pub summary: String,
    /// The call that asked for it, or empty.
    pub call_id: String,
}

/// A framework's own event.
#[derive(Clone, Debug, PartialEq)]
pub struct Custom {
    /// The framework's name for it.
    pub type_name: String,
    /// Media type of `data`.
    pub content_type: String,
    /// Opaque.
    pub data: Bytes,
    /// What a search finds it by, or empty.
    pub text: String,
    /// Key of an event that this one is much like, or empty. It says nothing but how the body
    /// may be kept.
    pub delta_of: String,
}
