//! Roles of a key, and the namespaces where they apply.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use treering_domain::Namespace;

/// What the holder of a key may do in a namespace.
///
/// Writers and approvers may also read. A writer may not decide approvals, so that an agent cannot
/// approve its own calls; an approver appends decisions and nothing else. An admin may do
/// everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyRole {
    /// Reads, subscribes, searches, builds requests.
    Reader,
    /// Appends events.
    Writer,
    /// Decides whether tool calls may run.
    Approver,
    /// Erases, and does all of the above.
    Admin,
}

impl KeyRole {
    /// All roles.
    pub const ALL: [Self; 4] = [Self::Reader, Self::Writer, Self::Approver, Self::Admin];

    /// Returns the role as text.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Writer => "writer",
            Self::Approver => "approver",
            Self::Admin => "admin",
        }
    }

    /// Returns true when this role may do what `other` may.
    #[must_use]
    pub fn includes(self, other: Self) -> bool {
        self == other || self == Self::Admin || other == Self::Reader
    }
}

impl fmt::Display for KeyRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for KeyRole {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Self, GrantError> {
        let known = Self::ALL.into_iter().find(|role| role.as_str() == text);
        known.ok_or(GrantError::Role)
    }
}

/// The namespaces in which a role applies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum GrantScope {
    /// One namespace.
    One(Namespace),
    /// Every namespace, `*`. Reserved ones only for admins.
    Every,
}

/// Stands for every namespace.
const EVERY: &str = "*";

impl TryFrom<String> for GrantScope {
    type Error = GrantError;

    fn try_from(text: String) -> Result<Self, GrantError> {
        if text == EVERY {
            return Ok(Self::Every);
        }
        let namespace = Namespace::new(&text);
        namespace
            .map(Self::One)
            .map_err(|error| GrantError::Namespace(error.to_string()))
    }
}

impl From<GrantScope> for String {
    fn from(reach: GrantScope) -> Self {
        reach.to_string()
    }
}

impl fmt::Display for GrantScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(namespace) => namespace.fmt(f),
            Self::Every => f.write_str(EVERY),
        }
    }
}

/// A role and where it applies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// The role.
    pub role: KeyRole,
    /// The namespaces.
    pub namespace: GrantScope,
}

/// Why a text is not a grant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// There is no such role.
    #[error("a role is one of reader, writer, approver, admin")]
    Role,
    /// The namespace name is invalid.
    #[error("{0}")]
    Namespace(String),
}

impl Grant {
    /// Returns true when the grant includes `role` in a namespace.
    #[must_use]
    pub fn covers(&self, role: KeyRole, namespace: &Namespace) -> bool {
        let there = match &self.namespace {
            GrantScope::One(one) => one == namespace,
            GrantScope::Every => !namespace.is_reserved() || self.role == KeyRole::Admin,
        };
        there && self.role.includes(role)
    }

    /// Returns true for an admin of the whole store.
    #[must_use]
    pub(crate) fn is_of_store(&self) -> bool {
        self.role == KeyRole::Admin && self.namespace == GrantScope::Every
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.role, self.namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(role: KeyRole, namespace: &str) -> Grant {
        Grant {
            role,
            namespace: namespace.to_owned().try_into().unwrap(),
        }
    }

    // A role that allows more than it says is a security hole. The expected permissions are written
    // by hand.
    #[test]
    fn each_role_includes_exactly_the_listed_roles() {
        use KeyRole::{Admin, Approver, Reader, Writer};
        let may = |has: KeyRole| {
            let may: Vec<_> = KeyRole::ALL
                .into_iter()
                .filter(|r| has.includes(*r))
                .collect();
            may
        };
        assert_eq!(may(Reader), [Reader]);
        assert_eq!(may(Writer), [Reader, Writer]);
        assert_eq!(may(Approver), [Reader, Approver]);
        assert_eq!(may(Admin), KeyRole::ALL);
    }

    // A key of one tenant must not read another's data. A key for all namespaces must not read the
    // reserved ones unless it is an admin's.
    #[test]
    fn grant_covers_only_its_namespaces() {
        let namespace = |name| Namespace::new(name).unwrap();
        let (a, b, system) = (namespace("a"), namespace("b"), namespace("_system"));
        let one = grant(KeyRole::Admin, "a");
        assert!(one.covers(KeyRole::Writer, &a));
        assert!(!one.covers(KeyRole::Reader, &b) && !one.covers(KeyRole::Reader, &system));
        let every = grant(KeyRole::Writer, "*");
        assert!(every.covers(KeyRole::Writer, &a) && every.covers(KeyRole::Reader, &b));
        assert!(!every.covers(KeyRole::Reader, &system));
        assert!(grant(KeyRole::Admin, "*").covers(KeyRole::Reader, &system));
        assert!(grant(KeyRole::Reader, "_system").covers(KeyRole::Reader, &system));
        assert!(grant(KeyRole::Admin, "*").is_of_store() && !one.is_of_store());
    }
}
