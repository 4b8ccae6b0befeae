//! The kinds of events: one table, and the types generated from it.

use serde::{Deserialize, Serialize};

use super::{
    event::{
        AnnotationAdded, BranchForked, Compacted, Config, ContextSet, ConversationChanged,
        ConversationCreated, Entity, Guidance, PromptSet, SummaryRecorded,
    },
    id::{BranchName, ContentHash, PublicKey, Revision},
    message::MessageAppended,
    tool::{
        ApprovalDecided, Custom, SubContextReturned, SubContextSpawned, ToolCallCancelled,
        ToolCallRequested, ToolCallStarted, ToolDefinition, ToolResultRecorded,
        ToolSnapshotRecorded,
    },
};

/// Passes the table of kinds to a macro. Each line has four parts: the kind's number, which the log
/// stores; the name of its field in `proto/treering/v1/event.proto`; the name of its protobuf
/// message, which is also the name of its variants here; and the type of its body.
#[macro_export]
macro_rules! event_kinds {
    ($made:ident) => {
        $made! {
            /// The first event of every conversation.
            20 conversation_created ConversationCreated(created: ConversationCreated);
            /// New model settings.
            21 config_changed ConfigChanged(config: Config);
            /// The first event of every branch except the main branch.
            22 branch_forked BranchForked(forked: BranchForked);
            /// The branch becomes the conversation's active one.
            23 branch_activated BranchActivated;
            /// A branch's new name.
            24 branch_renamed BranchRenamed(name: BranchName);
            /// The branch accepts no more events.
            25 branch_archived BranchArchived { reason: String };
            /// A branch's system prompt.
            26 system_prompt_set SystemPromptSet(prompt: PromptSet);
            /// A branch's user prompt.
            27 user_prompt_set UserPromptSet(prompt: PromptSet);
            /// A message.
            28 message_appended MessageAppended(message: MessageAppended);
            /// The model requests a tool call.
            29 tool_call_requested ToolCallRequested(call: ToolCallRequested);
            /// A decision on whether a call may run.
            30 approval_decided ApprovalDecided(decided: ApprovalDecided);
            /// A call has started.
            31 tool_call_started ToolCallStarted(started: ToolCallStarted);
            /// The result of a call.
            32 tool_result_recorded ToolResultRecorded(result: ToolResultRecorded);
            /// A call ended without a result.
            33 tool_call_cancelled ToolCallCancelled(cancelled: ToolCallCancelled);
            /// A result digest of a finished call.
            34 tool_snapshot_recorded ToolSnapshotRecorded(snapshot: ToolSnapshotRecorded);
            /// A value of the active context.
            35 context_set ContextSet(set: ContextSet);
            /// A key was removed from the active context.
            36 context_removed ContextRemoved { key: String };
            /// Tools that the agent discovered.
            37 tools_discovered ToolsDiscovered { names: Vec<String> };
            /// The agent was given instructions for tools.
            38 guidance_given GuidanceGiven { guidance: Vec<Guidance> };
            /// Things that the conversation is about.
            39 entities_noted EntitiesNoted { entities: Vec<Entity> };
            /// A summary of a range of revisions.
            40 summary_recorded SummaryRecorded(summary: SummaryRecorded);
            /// A summary replaces earlier events in requests.
            41 compacted Compacted(compacted: Compacted);
            /// A sub-context began.
            42 sub_context_spawned SubContextSpawned(spawned: SubContextSpawned);
            /// A sub-context ended.
            43 sub_context_returned SubContextReturned(returned: SubContextReturned);
            /// The conversation accepts no more events.
            44 conversation_sealed ConversationSealed { reason: String, summary: String };
            /// The tools that are available from this event on.
            45 tools_defined ToolsDefined { tools: Vec<ToolDefinition> };
            /// A judgement on an event, a turn or a branch.
            46 annotation_added AnnotationAdded(added: AnnotationAdded);
            /// An event that a framework defines.
            47 custom Custom(custom: Custom);
            /// The content of these revisions of its conversation was erased. `stubs` is the hash
            /// of their stubs, `signed_by` the key that signs the receipt.
            48 content_erased ContentErased { revisions: Vec<Revision>, reason: String, stubs: Option<ContentHash>, signed_by: Option<PublicKey> };
            /// A change to the conversation's title, labels or metadata.
            49 conversation_changed ConversationChanged(changed: ConversationChanged);
        }
    };
}

macro_rules! kinds_and_bodies {
    ($(
        $(#[$about:meta])*
        $number:literal $text:ident $name:ident
        $(($said:ident: $payload:ty))? $({ $($field:ident: $of:ty),* })?;
    )*) => {
        /// The kind of an event. The numbers are those of `proto/treering/v1/event.proto`, and the
        /// log stores them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[repr(u16)]
        pub enum EventKind {
            $($(#[$about])* $name = $number,)*
        }

        impl EventKind {
            /// Every kind, ordered by number.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the kind with this number, or `None` if a newer version wrote it.
            #[must_use]
            pub fn from_number(number: u16) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Returns the name in `snake_case`, as in the protobuf field.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($text),)*
                }
            }
        }

        /// The body of an event: what happened.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs)]
        pub enum EventBody {
            $($(#[$about])* $name $(($payload))? $({ $($field: $of),* })?,)*
        }

        impl EventBody {
            /// Returns the kind.
            #[must_use]
            pub fn kind(&self) -> EventKind {
                match self {
                    $(Self::$name { .. } => EventKind::$name,)*
                }
            }
        }
    };
}

event_kinds!(kinds_and_bodies);

impl EventKind {
    /// Returns the number that the log stores.
    #[must_use]
    pub fn number(self) -> u16 {
        self as u16
    }

    /// Returns the kind with this `snake_case` name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == name)
    }
}

impl std::fmt::Display for EventKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
