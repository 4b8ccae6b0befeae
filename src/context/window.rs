//! The window: what the branch's events since its last compaction offer for the
//! next request.

use std::{collections::BTreeMap, sync::Arc};

use crate::domain::{
    BranchState, ConversationId, ConversationInfo, EventBody, EventRef, JsonText, Revision,
    TimestampMicros,
};

/// An event of a window.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowEvent {
    /// Its place.
    pub at: EventRef,
    /// Its offset in the log.
    pub offset: u64,
    /// When it was recorded.
    pub recorded_at: TimestampMicros,
    /// What it says.
    pub body: EventBody,
}

/// Everything that a request is made of.
#[derive(Clone, Debug)]
pub struct WindowInput {
    /// The conversation.
    pub conversation: ConversationId,
    /// What it was created with; its policies.
    pub info: Arc<ConversationInfo>,
    /// The branch as of the revision that is asked for.
    pub branch: Arc<BranchState>,
    /// That revision.
    pub revision: Revision,
    /// The branch's history after the last compaction's cut, oldest first.
    pub events: Vec<Arc<WindowEvent>>,
    /// Events that the branch's state refers to, wherever they are: prompts, the
    /// preamble, active context, tools, summary, compaction.
    pub referred: BTreeMap<EventRef, Arc<WindowEvent>>,
    /// The namespace's long-term context as of then, by key.
    pub long_term: Vec<LongTermEntry>,
}

/// A key of the namespace's long-term context.
#[derive(Clone, Debug, PartialEq)]
pub struct LongTermEntry {
    /// Key.
    pub key: String,
    /// Value.
    pub value: JsonText,
    /// The event that set it.
    pub at: EventRef,
}
