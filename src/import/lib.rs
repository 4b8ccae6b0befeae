//! Imports conversations from other tools, and exports them.
//!
//! Importers convert text to events. They never use an engine or a server; the caller appends what
//! they return. [`openai_chat`] reads one conversation per line; [`claude_code`], [`codex`],
//! [`gemini_cli`], [`opencode`] and [`pi`] read the sessions of those tools. [`format`](mod@format)
//! detects what a file holds, [`source`] reads lines, [`session`] reads session files, and `plan`
//! determines what a repeated import still has to append. [`exporter`] writes conversations as
//! OpenAI chat lines; [`model_call`] reads calls between a client and a provider. Some modules also
//! write sessions that an agent can continue. These writers are beside the readers, share `turns`,
//! and name the [`origin`] of what they write.
//!
//! Imports are lossless. A message is stored as typed events. Whatever these cannot express
//! (unknown fields, odd shapes) is stored beside them as a JSON Patch, so that text is stored once.

#![cfg_attr(not(test), warn(unreachable_pub))]

mod canonical;
pub mod content;
mod number;
pub mod origin;
mod raw;
mod record;
mod remainder;
mod steps;
mod transcript;
mod tree;
mod turns;
mod whole_lines;

pub mod claude_code;
pub mod codex;
pub mod exporter;
pub mod format;
pub mod gemini_cli;
pub mod model_call;
pub mod openai_chat;
pub mod opencode;
pub mod pi;
pub mod plan;
pub mod session;
pub mod source;

use std::fmt;

use uuid::Uuid;

use treering_domain::{ConversationId, EventBody, Namespace, NewEvent};

pub use plan::{DivergedBranch, Plan, plan};
pub use remainder::records;

/// Type of the custom event that marks an import as complete; the idempotency key of its append
/// identifies the content.
pub const MARK_TYPE: &str = "treering/imported";

/// A conversation as events for a new stream: the n-th event must get revision n, because revisions
/// in the bodies rely on it.
#[derive(Clone, Debug, PartialEq)]
pub struct ImportedConversation {
    /// Derived from source and source id, so that a repeated import finds it.
    pub conversation: ConversationId,
    /// The source.
    pub source: String,
    /// The id of the conversation in the source.
    pub source_id: String,
    /// The parent of the first line, if the source names a parent that is not in this conversation.
    /// The conversation is then the later part of a longer one.
    pub follows: Option<String>,
    /// Set if the session was exported from a store.
    pub origin: Option<origin::ExportOrigin>,
    /// In order; the first is `ConversationCreated`.
    pub events: Vec<NewEvent>,
    /// Oddities of the source.
    pub notes: Vec<ImportNote>,
}

impl ImportedConversation {
    /// Returns the conversation with ids that are specific to the namespace. Ids are unique in a
    /// store, and those of an import are derived from the source: without this, only one namespace
    /// could import a conversation. The default namespace keeps the ids.
    #[must_use]
    pub fn in_namespace(mut self, namespace: &Namespace) -> Self {
        if *namespace == Namespace::default() {
            return self;
        }
        let own = |id: &mut ConversationId| *id = id_in_namespace(*id, namespace);
        own(&mut self.conversation);
        for event in &mut self.events {
            own(&mut event.conversation);
            match &mut event.body {
                EventBody::ConversationCreated(created) => {
                    created
                        .parent
                        .iter_mut()
                        .for_each(|parent| own(&mut parent.conversation));
                }
                EventBody::SubContextSpawned(spawned) => own(&mut spawned.conversation),
                EventBody::SubContextReturned(returned) => own(&mut returned.conversation),
                _ => {}
            }
        }
        self
    }
}

/// Returns the id of an imported conversation in a namespace.
fn id_in_namespace(id: ConversationId, namespace: &Namespace) -> ConversationId {
    match *namespace == Namespace::default() {
        true => id,
        false => ConversationId(Uuid::new_v5(&id.0, namespace.as_str().as_bytes())),
    }
}

impl ImportedConversation {
    /// Replaces the parent's revision in the import with its revision in the store, which may
    /// differ.
    pub fn parent_in_store(&mut self, parent: &Plan) {
        for event in &mut self.events {
            if let EventBody::ConversationCreated(created) = &mut event.body {
                created.parent = created.parent.take().map(|place| parent.in_store(place));
            }
        }
    }
}

/// Something odd that was imported nevertheless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportNote {
    /// Index of the message (or session line), from 0.
    pub message_index: usize,
    /// The oddity.
    pub what: Oddity,
}

/// What is odd about a message. Nothing of the message is lost.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Oddity {
    /// A tool result whose call is not open at that point: kept as a plain message.
    OrphanResult {
        /// The call id in the result.
        call_id: String,
    },
    /// A call id that was requested again while the first call was open: the first is recorded as
    /// cancelled.
    SupersededCall {
        /// The id.
        call_id: String,
    },
    /// A call without a result: it stays open.
    UnansweredCall {
        /// Its id.
        call_id: String,
    },
    /// Too many calls were open, so the oldest was recorded as cancelled.
    CallGivenUp {
        /// Its id.
        call_id: String,
    },
    /// Arguments that are not JSON: kept unchanged.
    ArgumentsNotJson {
        /// The call's id.
        call_id: String,
    },
    /// A tool call without a usable id or name: kept only as part of its message.
    CallNotTyped,
    /// An unknown role: kept as a custom event.
    UnknownRole,
    /// A parent that is not an earlier message: the message is imported as the successor of the
    /// previous one.
    ParentNotFound,
    /// A message that claims to be the first but is not: imported as the successor of the previous
    /// one.
    RootInside,
    /// A number that 64 bits cannot hold: the text of the message is kept too.
    NumberTooPrecise,
    /// Work of a sub-agent that cannot be linked to a call of its session: kept as a separate
    /// conversation.
    SubContextNotLinked,
    /// A line that is not a JSON object: kept as a custom event.
    UnreadableLine,
}

impl Oddity {
    /// Returns a short name, for counting.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::OrphanResult { .. } => "orphan result",
            Self::SupersededCall { .. } => "superseded call",
            Self::UnansweredCall { .. } => "unanswered call",
            Self::CallGivenUp { .. } => "call given up",
            Self::ArgumentsNotJson { .. } => "arguments not JSON",
            Self::CallNotTyped => "call without id or name",
            Self::UnknownRole => "unknown role",
            Self::ParentNotFound => "parent not found",
            Self::RootInside => "no parent in the middle",
            Self::NumberTooPrecise => "number too precise",
            Self::SubContextNotLinked => "sub-context not linked",
            Self::UnreadableLine => "unreadable line",
        }
    }

    /// Returns a sentence for people: what is odd, and what the import did.
    #[must_use]
    pub fn describe(&self) -> &'static str {
        match self {
            Self::OrphanResult { .. } => "results without a call (kept as plain messages)",
            Self::SupersededCall { .. } => {
                "call ids reused before their call had ended (the first call is cancelled)"
            }
            Self::UnansweredCall { .. } => "calls without a result (they stay open)",
            Self::CallGivenUp { .. } => "calls cancelled because too many were open",
            Self::ArgumentsNotJson { .. } => {
                "calls whose arguments are not JSON (kept as they are)"
            }
            Self::CallNotTyped => "calls without an id or name (only the message is kept)",
            Self::UnknownRole => "messages of an unknown role (kept as custom events)",
            Self::ParentNotFound => {
                "messages whose parent is missing (placed after the previous one)"
            }
            Self::RootInside => "later messages without a parent (placed after the previous one)",
            Self::NumberTooPrecise => "numbers that do not fit in 64 bits (also kept as text)",
            Self::SubContextNotLinked => {
                "sub-agents whose call is unknown (kept as separate conversations)"
            }
            Self::UnreadableLine => "lines that are not JSON objects (kept as custom events)",
        }
    }

    /// Returns true for an oddity that `--strict` refuses: the source contradicts itself.
    #[must_use]
    pub fn is_fault(&self) -> bool {
        matches!(
            self,
            Self::OrphanResult { .. }
                | Self::SupersededCall { .. }
                | Self::CallGivenUp { .. }
                | Self::CallNotTyped
                | Self::UnknownRole
                | Self::ParentNotFound
                | Self::UnreadableLine
        )
    }
}

impl fmt::Display for Oddity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OrphanResult { call_id } => write!(
                f,
                "the result for call {call_id:?} has no open call; kept as a plain tool message"
            ),
            Self::SupersededCall { call_id } => write!(
                f,
                "call id {call_id:?} is reused while its call is open; the first call is cancelled"
            ),
            Self::UnansweredCall { call_id } => {
                write!(f, "call {call_id:?} has no result; it stays open")
            }
            Self::CallGivenUp { call_id } => write!(
                f,
                "too many open calls; the oldest, {call_id:?}, is cancelled"
            ),
            Self::ArgumentsNotJson { call_id } => write!(
                f,
                "the arguments of call {call_id:?} are not JSON; kept as they are"
            ),
            Self::CallNotTyped => {
                f.write_str("a tool call has no usable id or name; only its message is kept")
            }
            Self::UnknownRole => f.write_str("an unknown role; kept as a custom event"),
            Self::ParentNotFound => f.write_str(
                "its parent is not an earlier message; placed after the previous message",
            ),
            Self::RootInside => {
                f.write_str("it names no parent; placed after the previous message")
            }
            Self::NumberTooPrecise => {
                f.write_str("a number does not fit in 64 bits; the message is also kept as text")
            }
            Self::SubContextNotLinked => {
                f.write_str("the sub-agent's call is unknown; kept as a separate conversation")
            }
            Self::UnreadableLine => {
                f.write_str("a line is not a JSON object; kept as a custom event")
            }
        }
    }
}

#[cfg(test)]
mod session_properties;
#[cfg(test)]
mod stored;
