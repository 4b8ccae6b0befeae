//! Quotas: how much a namespace may store.

use std::{collections::BTreeMap, fmt, ops::AddAssign};

use super::{Namespace, limits::QUOTA_EVENT_BYTES};

/// The quota of a namespace. `None` means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Maximum bytes of events; see [`NamespaceUse::bytes`].
    pub bytes: Option<u64>,
    /// Maximum number of conversations.
    pub conversations: Option<u64>,
}

impl Quota {
    /// Returns true when nothing is limited.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the part of the quota that adding `adds` to `used` would exceed. A part that does
    /// not grow is never exceeded, so existing conversations can continue in a namespace that has
    /// too many.
    #[must_use]
    pub fn exceeded_part(&self, used: NamespaceUse, adds: NamespaceUse) -> Option<QuotaExceeded> {
        let of = |part, quota: Option<u64>, used: u64, adds: u64| {
            let quota = quota?;
            let passed = adds > 0 && used.saturating_add(adds) > quota;
            passed.then_some(QuotaExceeded {
                part,
                used,
                adds,
                quota,
            })
        };
        let bytes = || of(QuotaPart::Bytes, self.bytes, used.bytes, adds.bytes);
        of(
            QuotaPart::Conversations,
            self.conversations,
            used.conversations,
            adds.conversations,
        )
        .or_else(bytes)
    }
}

/// The resource that a quota limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaPart {
    /// Bytes of events.
    Bytes,
    /// Conversations.
    Conversations,
}

impl QuotaPart {
    /// Returns the resource as text.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Conversations => "conversations",
        }
    }
}

impl fmt::Display for QuotaPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A quota that an append would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaExceeded {
    /// The limited resource.
    pub part: QuotaPart,
    /// The amount used now.
    pub used: u64,
    /// The amount that the append would add.
    pub adds: u64,
    /// The limit.
    pub quota: u64,
}

impl QuotaExceeded {
    /// Returns advice on how to stay within the quota.
    #[must_use]
    pub fn advice(&self) -> &'static str {
        match self.part {
            QuotaPart::Bytes => "Erase data",
            // Erasing does not help: an erased conversation still counts.
            QuotaPart::Conversations => "Append to existing conversations",
        }
    }
}

/// The quotas of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quotas {
    /// The quota of each namespace not in `named`.
    pub others: Quota,
    /// Quotas of individual namespaces.
    pub named: BTreeMap<Namespace, Quota>,
}

impl Quotas {
    /// Returns the quota of a namespace. Reserved namespaces have none, so that the server's own
    /// records are never refused.
    #[must_use]
    pub fn of(&self, namespace: &Namespace) -> Quota {
        if namespace.is_reserved() {
            return Quota::default();
        }
        self.named.get(namespace).copied().unwrap_or(self.others)
    }
}

/// The usage that counts against a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceUse {
    /// For each event the length of its body, as sent and before compression, plus
    /// `QUOTA_EVENT_BYTES`. A large body counts each time it is appended, although it is stored
    /// once. An erased event counts with its stub.
    pub bytes: u64,
    /// Conversations, including sealed and erased ones.
    pub conversations: u64,
}

impl NamespaceUse {
    /// Returns the bytes that an event with a body of this length counts.
    #[must_use]
    pub fn event_bytes(body_bytes: u64) -> u64 {
        body_bytes.saturating_add(QUOTA_EVENT_BYTES)
    }
}

impl AddAssign for NamespaceUse {
    fn add_assign(&mut self, more: Self) {
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.conversations = self.conversations.saturating_add(more.conversations);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(bytes: u64, conversations: u64) -> NamespaceUse {
        NamespaceUse {
            bytes,
            conversations,
        }
    }

    // An off-by-one limit admits too much or refuses what is allowed, and a lowered limit must not
    // stop existing conversations.
    #[test]
    fn quota_is_exceeded_only_above_its_limit() {
        let quota = Quota {
            bytes: Some(100),
            conversations: Some(2),
        };
        assert_eq!(quota.exceeded_part(held(90, 2), held(10, 0)), None);
        let passed = quota.exceeded_part(held(90, 2), held(11, 0)).unwrap();
        assert_eq!((passed.part, passed.quota), (QuotaPart::Bytes, 100));
        let passed = quota.exceeded_part(held(0, 2), held(1, 1)).unwrap();
        assert_eq!((passed.part, passed.used), (QuotaPart::Conversations, 2));
        assert_eq!(quota.exceeded_part(held(0, 9), held(1, 0)), None);
        assert!(
            quota
                .exceeded_part(held(u64::MAX, 0), held(u64::MAX, 0))
                .is_some()
        );
        assert_eq!(
            Quota::default().exceeded_part(held(u64::MAX, 9), held(1, 1)),
            None
        );
    }

    // The default quota must not apply to the server's own records: if a full quota could block the
    // audit, a caller could act unseen.
    #[test]
    fn default_quota_does_not_apply_to_the_system_namespace() {
        let namespace = |name| Namespace::new(name).unwrap();
        let small = Quota {
            bytes: Some(1),
            conversations: None,
        };
        let mut quotas = Quotas {
            others: small,
            named: BTreeMap::new(),
        };
        quotas.named.insert(namespace("a"), Quota::default());
        assert!(quotas.of(&namespace("a")).is_none());
        assert_eq!(quotas.of(&namespace("b")), small);
        assert!(quotas.of(&namespace("_system")).is_none());
    }
}
