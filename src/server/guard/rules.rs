//! What each method needs: the one table. A method that is not in it is refused, and a test
//! fails.

use Needs::{AnyKey, Appending, Nothing, Role, Store};

use crate::{
    access::KeyRole::{self, Admin, Reader, Writer},
    domain::EventKind,
};

/// What a method asks of its caller, on a server with keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Needs {
    /// Nothing: whoever watches over servers has no key.
    Nothing,
    /// A key, whatever it may do.
    AnyKey,
    /// A role in the namespace of the call.
    Role(KeyRole),
    /// A role that appends something. Each event is looked at by itself, see [`appends`].
    Appending,
    /// An admin of the whole store: it costs all namespaces, or tells of all.
    Store,
}

impl Needs {
    /// True when a namespace may have other content after the call.
    pub fn changes(self) -> bool {
        match self {
            Nothing | AnyKey | Role(Reader) | Store => false,
            Role(_) | Appending => true,
        }
    }
}

/// Every method that is served.
pub(super) const RULES: &[(&str, Needs)] = &[
    ("/treering.v1.Events/Append", Appending),
    ("/treering.v1.Events/AppendStream", Appending),
    ("/treering.v1.Events/Read", Role(Reader)),
    ("/treering.v1.Events/Latest", Role(Reader)),
    ("/treering.v1.Events/GetMany", Role(Reader)),
    ("/treering.v1.Events/KnownKeys", Role(Reader)),
    ("/treering.v1.Events/Subscribe", Role(Reader)),
    ("/treering.v1.Conversations/Get", Role(Reader)),
    ("/treering.v1.Conversations/List", Role(Reader)),
    ("/treering.v1.Conversations/Find", Role(Reader)),
    ("/treering.v1.Conversations/ListBranches", Role(Reader)),
    ("/treering.v1.Conversations/Lineage", Role(Reader)),
    ("/treering.v1.Conversations/Diff", Role(Reader)),
    ("/treering.v1.Conversations/Fork", Role(Writer)),
    ("/treering.v1.Conversations/Rewind", Role(Writer)),
    ("/treering.v1.Conversations/RenameBranch", Role(Writer)),
    ("/treering.v1.Conversations/ArchiveBranch", Role(Writer)),
    ("/treering.v1.Conversations/ActivateBranch", Role(Writer)),
    ("/treering.v1.Conversations/Seal", Role(Writer)),
    ("/treering.v1.Conversations/Erase", Role(Admin)),
    ("/treering.v1.Contexts/Build", Role(Reader)),
    ("/treering.v1.Contexts/Explain", Role(Reader)),
    ("/treering.v1.Contexts/PlanCompaction", Role(Reader)),
    ("/treering.v1.Contexts/Expand", Role(Reader)),
    ("/treering.v1.Contexts/Get", Role(Reader)),
    ("/treering.v1.Contexts/Watch", Role(Reader)),
    ("/treering.v1.Contexts/Compact", Role(Writer)),
    ("/treering.v1.Contexts/Set", Role(Writer)),
    ("/treering.v1.Contexts/Spawn", Role(Writer)),
    ("/treering.v1.Contexts/Return", Role(Writer)),
    ("/treering.v1.Items/Batch", Role(Writer)),
    ("/treering.v1.Items/Read", Role(Reader)),
    ("/treering.v1.Tools/History", Role(Reader)),
    ("/treering.v1.Tools/Pending", Role(Reader)),
    ("/treering.v1.Tools/WaitForDecision", Role(Reader)),
    ("/treering.v1.Tools/GetResult", Role(Reader)),
    ("/treering.v1.Tools/Recorded", Role(Reader)),
    ("/treering.v1.Tools/Knowledge", Role(Reader)),
    ("/treering.v1.Tools/SuggestArguments", Role(Reader)),
    ("/treering.v1.Tools/MissingPrerequisites", Role(Reader)),
    ("/treering.v1.Tools/Guidance", Role(Reader)),
    ("/treering.v1.Tools/Snapshots", Role(Reader)),
    ("/treering.v1.Tools/RecordResult", Role(Writer)),
    ("/treering.v1.Search/Search", Role(Reader)),
    ("/treering.v1.Admin/Stats", Role(Reader)),
    ("/treering.v1.Admin/Verify", Store),
    ("/treering.v1.Admin/Rebuild", Store),
    ("/treering.v1.Backups/ShipLog", Store),
    ("/treering.v1.Backups/NoteBackup", Store),
    ("/grpc.health.v1.Health/Check", Nothing),
    ("/grpc.health.v1.Health/Watch", Nothing),
    (
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        AnyKey,
    ),
    (
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        AnyKey,
    ),
    #[cfg(feature = "otlp-receiver")]
    (
        "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
        Role(Writer),
    ),
];

/// What a method needs; none: it is not served.
pub(super) fn of(path: &str) -> Option<Needs> {
    let rule = RULES.iter().find(|(method, _)| *method == path);
    rule.map(|(_, needs)| *needs)
}

/// What appending an event of a kind needs, however it comes.
pub(super) fn appends(kind: EventKind) -> KeyRole {
    use EventKind as Kind;
    match kind {
        Kind::ApprovalDecided => KeyRole::Approver,
        // The engine's own; clients are refused.
        Kind::ContentErased => Admin,
        Kind::ConversationCreated
        | Kind::ConfigChanged
        | Kind::BranchForked
        | Kind::BranchActivated
        | Kind::BranchRenamed
        | Kind::BranchArchived
        | Kind::SystemPromptSet
        | Kind::UserPromptSet
        | Kind::MessageAppended
        | Kind::ToolCallRequested
        | Kind::ToolCallStarted
        | Kind::ToolResultRecorded
        | Kind::ToolCallCancelled
        | Kind::ToolSnapshotRecorded
        | Kind::ContextSet
        | Kind::ContextRemoved
        | Kind::ToolsDiscovered
        | Kind::GuidanceGiven
        | Kind::EntitiesNoted
        | Kind::SummaryRecorded
        | Kind::Compacted
        | Kind::SubContextSpawned
        | Kind::SubContextReturned
        | Kind::ConversationSealed
        | Kind::ToolsDefined
        | Kind::AnnotationAdded
        | Kind::ConversationChanged
        | Kind::Custom => Writer,
    }
}
