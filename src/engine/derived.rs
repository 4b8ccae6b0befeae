//! Conversation ids that are derived from names.
//!
//! If clients could choose a derived id, a client could take it and block the conversation of that
//! name. Derived ids therefore have their own UUID version, which clients cannot choose. They are
//! derived from the namespace too, so equal names in two namespaces have different ids.

use uuid::Builder;

use treering_domain::{ConversationId, Namespace};

/// UUID version of derived ids; its bits are application-defined.
const VERSION: usize = 8;

/// Returns the id derived from a name, for example of an idempotency key that creates a
/// conversation. `what` separates names of different kinds.
#[must_use]
pub fn derived_id(namespace: &Namespace, what: &str, name: &[&str]) -> ConversationId {
    let mut hasher = blake3::Hasher::new_derive_key("treering conversation id v1");
    for part in [namespace.as_str(), what].iter().chain(name) {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    let mut bytes = [0; 16];
    hasher.finalize_xof().fill(&mut bytes);
    ConversationId(Builder::from_custom_bytes(bytes).into_uuid())
}

/// Returns true when an id is a derived one.
#[must_use]
pub fn is_derived(id: ConversationId) -> bool {
    id.0.get_version_num() == VERSION
}

#[cfg(test)]
mod tests {
    use super::*;

    // Two names must never have the same id, and a derived id must not be one that a client can
    // choose.
    #[test]
    fn derived_ids_are_unique_and_cannot_be_chosen() {
        let [one, two] = ["one", "two"].map(|name| Namespace::new(name).unwrap());
        let ids = [
            derived_id(&one, "key", &["a"]),
            derived_id(&two, "key", &["a"]),
            derived_id(&one, "source", &["a"]),
            derived_id(&one, "source", &["a", ""]),
            derived_id(&one, "source", &["", "a"]),
        ];
        for (index, id) in ids.iter().enumerate() {
            assert!(is_derived(*id), "{id}");
            assert!(!ids[..index].contains(id), "{index}");
        }
        assert_eq!(ids[0], derived_id(&one, "key", &["a"]));
        assert!(!is_derived(ConversationId::generate()));
    }
}
