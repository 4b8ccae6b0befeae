//! The kinds of events.

use serde::{Deserialize, Serialize};

macro_rules! kinds {
    ($($name:ident = $number:literal $text:literal,)*) => {
        /// What an event is about. The numbers are those of
        /// `proto/treering/v1/event.proto`, and they are what the log stores.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[repr(u16)]
        pub enum EventKind {
            $(#[doc = concat!("`", $text, "`")] $name = $number,)*
        }

        impl EventKind {
            /// Every kind, by number.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The kind with this number; none when a newer version wrote it.
            #[must_use]
            pub fn from_number(number: u16) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// The name in `snake_case`, as in the protobuf field.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

kinds! {
    ConversationCreated = 20 "conversation_created",
    ConfigChanged = 21 "config_changed",
    BranchForked = 22 "branch_forked",
    BranchActivated = 23 "branch_activated",
    BranchRenamed = 24 "branch_renamed",
    BranchArchived = 25 "branch_archived",
    SystemPromptSet = 26 "system_prompt_set",
    UserPromptSet = 27 "user_prompt_set",
    MessageAppended = 28 "message_appended",
    ToolCallRequested = 29 "tool_call_requested",
    ApprovalDecided = 30 "approval_decided",
    ToolCallStarted = 31 "tool_call_started",
    ToolResultRecorded = 32 "tool_result_recorded",
    ToolCallCancelled = 33 "tool_call_cancelled",
    ToolSnapshotRecorded = 34 "tool_snapshot_recorded",
    ContextSet = 35 "context_set",
    ContextRemoved = 36 "context_removed",
    ToolsDiscovered = 37 "tools_discovered",
    GuidanceGiven = 38 "guidance_given",
    EntitiesNoted = 39 "entities_noted",
    SummaryRecorded = 40 "summary_recorded",
    Compacted = 41 "compacted",
    SubContextSpawned = 42 "sub_context_spawned",
    SubContextReturned = 43 "sub_context_returned",
    ConversationSealed = 44 "conversation_sealed",
    ToolsDefined = 45 "tools_defined",
    AnnotationAdded = 46 "annotation_added",
    Custom = 47 "custom",
    ContentErased = 48 "content_erased",
}

impl EventKind {
    /// The number that the log stores.
    #[must_use]
    pub fn number(self) -> u16 {
        self as u16
    }

    /// The kind with this `snake_case` name.
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
