//! What each method requires, by the options in `proto/`. A method without a requirement is refused.

use MethodRequirement::{AnyKey, Appending, Nothing, Role, Store};

use treering_access::KeyRole::{self, Admin, Approver, Reader, Writer};
use treering_domain::EventKind;
use treering_proto::{access, pb::Access};

/// What a method requires of its caller, on a server with keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MethodRequirement {
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

impl MethodRequirement {
    /// Returns true when the call may change a namespace's content.
    pub(crate) fn changes(self) -> bool {
        match self {
            Nothing | AnyKey | Role(Reader) | Store => false,
            Role(_) | Appending => true,
        }
    }
}

/// Methods of other packages. Those of `treering.v1` have the option `access` in `proto/`.
pub(super) const FOREIGN: &[(&str, MethodRequirement)] = &[
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
pub(super) fn of(path: &str) -> Option<MethodRequirement> {
    let ours = access::METHODS.iter().find(|(method, _)| *method == path);
    let foreign = || FOREIGN.iter().find(|(method, _)| *method == path);
    ours.map(|(_, access)| needs(*access))
        .or_else(|| foreign().map(|(_, needs)| *needs))
}

/// Returns the role required to append an event of a kind, by any method.
pub(super) fn appends(kind: EventKind) -> KeyRole {
    match needs(access::appended_with(kind)) {
        Role(role) => role,
        Nothing | AnyKey | Appending | Store => Admin,
    }
}

fn needs(access: Access) -> MethodRequirement {
    match access {
        Access::Reader => Role(Reader),
        Access::Writer => Role(Writer),
        Access::Approver => Role(Approver),
        Access::Admin => Role(Admin),
        Access::Appending => Appending,
        Access::Store | Access::Unspecified => Store,
    }
}
