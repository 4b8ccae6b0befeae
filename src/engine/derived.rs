//! Ids of conversations that follow from a name.
//!
//! Ids are unique in the whole store. One that anybody could work out and choose could be
//! taken in one namespace, so that another one never gets the conversation of that name. So
//! these have a version of their own, which cannot be chosen, and their namespace in them.

use uuid::Builder;

use crate::domain::{ConversationId, Namespace};

/// The version of their UUIDs: what its bits mean is the application's business.
const VERSION: usize = 8;

/// The id that follows from a name: of an idempotency key that creates a conversation, say.
/// `what` tells names of different kinds apart.
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

/// True when an id is one of those.
#[must_use]
pub fn is_derived(id: ConversationId) -> bool {
    id.0.get_version_num() == VERSION
}

#[cfg(test)]
mod tests {
    use super::*;

    // Two names must never have one id, and no name one that could have been chosen.
    #[test]
    fn names_have_ids_of_their_own() {
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
