//! How much a namespace may hold.

use std::{collections::BTreeMap, fmt, ops::AddAssign};

use super::{Namespace, limits::QUOTA_EVENT_BYTES};

/// What a namespace may hold. None: as much as there is room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Bytes of its events, see [`NamespaceUse::bytes`].
    pub bytes: Option<u64>,
    /// Its conversations.
    pub conversations: Option<u64>,
}

impl Quota {
    /// True when nothing is bounded.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// What of it would be passed when `adds` comes to `used`. What does not grow passes
    /// nothing, so that a conversation goes on in a namespace that has too many.
    #[must_use]
    pub fn passed(&self, used: NamespaceUse, adds: NamespaceUse) -> Option<QuotaPassed> {
        let of = |part, quota: Option<u64>, used: u64, adds: u64| {
            let quota = quota?;
            let passed = adds > 0 && used.saturating_add(adds) > quota;
            passed.then_some(QuotaPassed {
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

/// What is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaPart {
    /// Bytes of events.
    Bytes,
    /// Conversations.
    Conversations,
}

impl QuotaPart {
    /// The part as text.
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

/// A quota that something would pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaPassed {
    /// Of what.
    pub part: QuotaPart,
    /// What is used.
    pub used: u64,
    /// What would come.
    pub adds: u64,
    /// What there may be.
    pub quota: u64,
}

impl QuotaPassed {
    /// What makes room.
    #[must_use]
    pub fn advice(&self) -> &'static str {
        match self.part {
            QuotaPart::Bytes => "Erase what is not needed any more",
            // An erased conversation is one still.
            QuotaPart::Conversations => "Go on in one that is there",
        }
    }
}

/// The quotas of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quotas {
    /// Of each namespace that is not named.
    pub others: Quota,
    /// Of those that are.
    pub named: BTreeMap<Namespace, Quota>,
}

impl Quotas {
    /// The quota of a namespace. Reserved ones have none: what the store says of itself is
    /// not refused.
    #[must_use]
    pub fn of(&self, namespace: &Namespace) -> Quota {
        if namespace.is_reserved() {
            return Quota::default();
        }
        self.named.get(namespace).copied().unwrap_or(self.others)
    }
}

/// What counts against a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceUse {
    /// Of each event the length of its body, as it was sent and before it is compressed, and
    /// [`QUOTA_EVENT_BYTES`]. A large body counts each time that it is appended, though it is
    /// stored once. Of an erased event what is left of it counts.
    pub bytes: u64,
    /// Conversations, sealed and erased ones, too.
    pub conversations: u64,
}

impl NamespaceUse {
    /// The bytes of an event whose body has this length.
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

    // A bound that is off by one lets too much in, or keeps out what was paid for; one that
    // was lowered must not end what is there.
    #[test]
    fn a_quota_is_passed_by_what_is_more() {
        let quota = Quota {
            bytes: Some(100),
            conversations: Some(2),
        };
        assert_eq!(quota.passed(held(90, 2), held(10, 0)), None);
        let passed = quota.passed(held(90, 2), held(11, 0)).unwrap();
        assert_eq!((passed.part, passed.quota), (QuotaPart::Bytes, 100));
        let passed = quota.passed(held(0, 2), held(1, 1)).unwrap();
        assert_eq!((passed.part, passed.used), (QuotaPart::Conversations, 2));
        assert_eq!(quota.passed(held(0, 9), held(1, 0)), None);
        assert!(quota.passed(held(u64::MAX, 0), held(u64::MAX, 0)).is_some());
        assert_eq!(Quota::default().passed(held(u64::MAX, 9), held(1, 1)), None);
    }

    // The default must not reach what the server notes of itself: an audit that is refused
    // for want of room would be a way to act unseen.
    #[test]
    fn the_default_is_for_others_and_not_for_the_server() {
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
