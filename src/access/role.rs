//! What a key may do, and in which namespaces.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::domain::Namespace;

/// What the holder of a key may do in a namespace.
///
/// A writer reads, too, and so does an approver. A writer decides nothing, so that an agent
/// does not approve its own calls; an approver appends decisions and nothing else. An admin
/// may do all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyRole {
    /// Reads, follows, searches, builds requests.
    Reader,
    /// Appends.
    Writer,
    /// Decides whether calls may run.
    Approver,
    /// Erases, and all of the above.
    Admin,
}

impl KeyRole {
    /// Every role.
    pub const ALL: [Self; 4] = [Self::Reader, Self::Writer, Self::Approver, Self::Admin];

    /// The role as text.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Writer => "writer",
            Self::Approver => "approver",
            Self::Admin => "admin",
        }
    }

    /// True when who has this role may do what the other one may.
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

/// Where a role holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum GrantReach {
    /// In one namespace.
    One(Namespace),
    /// In every namespace, `*`. In reserved ones only for admins.
    Every,
}

/// Stands for every namespace.
const EVERY: &str = "*";

impl TryFrom<String> for GrantReach {
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

impl From<GrantReach> for String {
    fn from(reach: GrantReach) -> Self {
        reach.to_string()
    }
}

impl fmt::Display for GrantReach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(namespace) => namespace.fmt(f),
            Self::Every => f.write_str(EVERY),
        }
    }
}

/// A role, and where it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// What may be done.
    pub role: KeyRole,
    /// Where.
    pub namespace: GrantReach,
}

/// Why a text is no grant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// There is no such role.
    #[error("a role is reader, writer, approver or admin")]
    Role,
    /// The namespace cannot be one.
    #[error("{0}")]
    Namespace(String),
}

impl Grant {
    /// True when it lets its holder do what `role` may in a namespace.
    #[must_use]
    pub fn covers(&self, role: KeyRole, namespace: &Namespace) -> bool {
        let there = match &self.namespace {
            GrantReach::One(one) => one == namespace,
            GrantReach::Every => !namespace.is_reserved() || self.role == KeyRole::Admin,
        };
        there && self.role.includes(role)
    }

    /// True when it is an admin's, of the whole store.
    #[must_use]
    pub fn is_of_store(&self) -> bool {
        self.role == KeyRole::Admin && self.namespace == GrantReach::Every
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

    // A role that reaches further than its table says is a hole: who may do what, by hand.
    #[test]
    fn roles_reach_as_far_as_they_say() {
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

    // A key of one tenant reads another's, or one of all reads what admins keep.
    #[test]
    fn grants_hold_where_they_say() {
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
