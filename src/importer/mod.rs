//! Conversations from elsewhere, and back.
//!
//! Importers convert: text in, events out. They never talk to an engine or a
//! server; whoever calls them appends what they return. [`openai_chat`] reads
//! one conversation a line, [`claude_code`], [`codex`], [`gemini_cli`], [`opencode`] and
//! [`pi`] read the sessions of those tools, [`format`](mod@format) tells what a file holds,
//! [`source`] reads lines, [`session`] what the tools keep, [`exporter`] writes conversations
//! as OpenAI chat lines, `plan` says what a repeated import still has to append.
//!
//! What came in comes back: a message is stored as typed events, and what they
//! do not say (unknown fields, odd shapes) as a JSON Patch beside them, so that
//! text is stored once.

mod canonical;
mod content;
mod kept;
mod number;
mod raw;
mod record;
mod steps;
mod transcript;
mod tree;
mod whole_lines;

pub mod claude_code;
pub mod codex;
pub mod exporter;
pub mod format;
pub mod gemini_cli;
pub mod openai_chat;
pub mod opencode;
pub mod otel;
pub mod pi;
pub mod plan;
pub mod session;
pub mod source;

use std::fmt;

use uuid::Uuid;

use crate::domain::{ConversationId, EventBody, Namespace, NewEvent};

pub use kept::records;
pub use plan::{Parted, Plan, plan};

/// Custom events of this type say that an import is complete; the content is told by the
/// idempotency key that they were appended with.
pub const MARK_TYPE: &str = "treering/imported";

/// The label that a conversation gets whose source says of no message when it was: what is
/// known is only when it was recorded here. Its value is [`NO_TIMES`].
pub const TIMES_LABEL: &str = "treering/times";

/// See [`TIMES_LABEL`].
pub const NO_TIMES: &str = "none";

/// A conversation as events for a fresh stream: the n-th event is to get
/// revision n, and revisions in the bodies rely on that.
#[derive(Clone, Debug, PartialEq)]
pub struct ImportedConversation {
    /// Derived from source and source id, so that importing again finds it.
    pub conversation: ConversationId,
    /// Where it comes from.
    pub source: String,
    /// Its id there.
    pub source_id: String,
    /// What the source says that its first line follows, when that line is not in it: it
    /// is the later part of something longer.
    pub follows: Option<String>,
    /// In order; the first is `ConversationCreated`.
    pub events: Vec<NewEvent>,
    /// What was odd.
    pub notes: Vec<ImportNote>,
}

impl ImportedConversation {
    /// The same with ids of its own in a namespace. Ids are unique in a store,
    /// and those of an import follow from the source: without this, only one
    /// namespace could import a conversation. The default one keeps its ids.
    #[must_use]
    pub fn in_namespace(mut self, namespace: &Namespace) -> Self {
        if *namespace == Namespace::default() {
            return self;
        }
        let own = |id: &mut ConversationId| {
            *id = ConversationId(Uuid::new_v5(&id.0, namespace.as_str().as_bytes()));
        };
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

impl ImportedConversation {
    /// Names the parent by its place in the store, which may be another one than in
    /// the source.
    pub fn parent_in_store(&mut self, parent: &Plan) {
        for event in &mut self.events {
            if let EventBody::ConversationCreated(created) = &mut event.body {
                created.parent = created.parent.take().map(|place| parent.in_store(place));
            }
        }
    }
}

/// Something odd that was imported all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportNote {
    /// Which message (or line of a session), from 0.
    pub message_index: usize,
    /// What is odd about it.
    pub what: Oddity,
}

/// What is odd about a message. Nothing of it is lost.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Oddity {
    /// A tool result whose call is not open there: kept as a plain message.
    OrphanResult {
        /// The call that it names.
        call_id: String,
    },
    /// A call id that was asked again while the first call was open: the first
    /// is recorded as cancelled.
    SupersededCall {
        /// The id.
        call_id: String,
    },
    /// A call that nobody answered: it stays open.
    UnansweredCall {
        /// Its id.
        call_id: String,
    },
    /// So many calls were open that the oldest was recorded as cancelled.
    CallGivenUp {
        /// Its id.
        call_id: String,
    },
    /// Arguments that are not JSON: kept as a JSON string.
    ArgumentsNotJson {
        /// The call's id.
        call_id: String,
    },
    /// A tool call without a usable id or name: kept with its message only.
    CallNotTyped,
    /// A role that Treering has no word for: kept as a custom event.
    UnknownRole,
    /// A parent that is not an earlier message: taken as following the one
    /// before it.
    ParentNotFound,
    /// A message that says that nothing comes before it, though something does:
    /// taken as following the one before it.
    RootInside,
    /// A number that 64 bits cannot hold: the message is kept as text too.
    NumberTooPrecise,
    /// Work of a sub-agent that no call of its session is known to have asked
    /// for: kept as a conversation of its own.
    SubContextNotLinked,
    /// A line that is not JSON, or no object: kept as a custom event.
    UnreadableLine,
}

impl Oddity {
    /// A short name, for counting.
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

    /// What such messages are, and what became of them, for people.
    #[must_use]
    pub fn told(&self) -> &'static str {
        match self {
            Self::OrphanResult { .. } => "results without a call (kept as plain messages)",
            Self::SupersededCall { .. } => {
                "call ids used again before their call had ended (the first is cancelled)"
            }
            Self::UnansweredCall { .. } => "calls without a result (they stay open)",
            Self::CallGivenUp { .. } => "calls cancelled, as too many were open",
            Self::ArgumentsNotJson { .. } => {
                "calls whose arguments are not JSON (kept as they are)"
            }
            Self::CallNotTyped => "calls without an id or a name (kept with their message only)",
            Self::UnknownRole => "messages of an unknown role (kept as custom events)",
            Self::ParentNotFound => {
                "messages whose parent is not there (taken as following the last one)"
            }
            Self::RootInside => {
                "messages that name no parent, though others come before them (taken as following \
                 the last one)"
            }
            Self::NumberTooPrecise => "numbers that 64 bits cannot hold (kept as text too)",
            Self::SubContextNotLinked => {
                "sub-agents whose call is not known (kept as conversations of their own)"
            }
            Self::UnreadableLine => "lines that are no JSON objects (kept as custom events)",
        }
    }

    /// True for what `--strict` refuses: the source contradicts itself.
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
                "a result for the call {call_id:?}, which is not open; kept as a plain tool message"
            ),
            Self::SupersededCall { call_id } => write!(
                f,
                "the call id {call_id:?} is used again while its call is open; the first call is cancelled"
            ),
            Self::UnansweredCall { call_id } => {
                write!(f, "the call {call_id:?} has no result; it stays open")
            }
            Self::CallGivenUp { call_id } => write!(
                f,
                "too many open calls; the oldest, {call_id:?}, is cancelled"
            ),
            Self::ArgumentsNotJson { call_id } => write!(
                f,
                "the arguments of the call {call_id:?} are not JSON; kept as they are"
            ),
            Self::CallNotTyped => {
                f.write_str("a tool call without a usable id or name; kept with its message only")
            }
            Self::UnknownRole => f.write_str("an unknown role; kept as a custom event"),
            Self::ParentNotFound => {
                f.write_str("its parent is not an earlier message; taken as following the last one")
            }
            Self::RootInside => {
                f.write_str("it names no parent; taken as following the message before it")
            }
            Self::NumberTooPrecise => {
                f.write_str("a number that 64 bits cannot hold; the message is kept as text too")
            }
            Self::SubContextNotLinked => {
                f.write_str("work of a sub-agent whose call is not known; kept as a conversation")
            }
            Self::UnreadableLine => {
                f.write_str("a line that is no JSON object; kept as a custom event")
            }
        }
    }
}

#[cfg(test)]
mod growing;
#[cfg(test)]
mod stored;
