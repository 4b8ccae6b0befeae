//! The requirement of each method. A method missing from this table is refused, and a test fails.

use Needs::{AnyKey, Appending, Nothing, Role, Store};

use treering_access::KeyRole::{self, Admin, Reader, Writer};
use treering_domain::EventKind;

/// What a method requires of its caller, on a server with keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Nothing: health checks have no key.
    Nothing,
    /// Any key.
    AnyKey,
    /// A role in the namespace of the call.
    Role(KeyRole),
    /// A role that may append. Each event is checked separately, see [`appends`].
    Appending,
    /// An admin of the whole store: the method affects or reveals all namespaces.
    Store,
}

impl Needs {
    /// Returns true when the call may change a namespace's content.
    pub(crate) fn changes(self) -> bool {
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
    (
        "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
        Role(Writer),
    ),
];

/// Returns a method's requirement, or `None` when it is not served.
pub(super) fn of(path: &str) -> Option<Needs> {
    let rule = RULES.iter().find(|(method, _)| *method == path);
    rule.map(|(_, needs)| *needs)
}

/// Returns the role required to append an event of a kind, by any method.
pub(super) fn appends(kind: EventKind) -> KeyRole {
    use EventKind as Kind;
    match kind {
        Kind::ApprovalDecided => KeyRole::Approver,
        // Written by the engine only; clients are refused.
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
