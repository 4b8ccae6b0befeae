//! Page tokens. Each belongs to one query of one store, whose hash it contains, so that a token of
//! another query is refused rather than misread.

use super::from_proto::InvalidField;
use treering_domain::Namespace;
use treering_engine::Engine;

/// Digits of the hash.
const DIGITS: usize = 16;
const FIELD: &str = "page_token";

/// The query, without its page, to which tokens belong.
pub(super) struct Scope(blake3::Hasher);

impl Scope {
    /// Returns the scope of `query`, which is the request without page size and token.
    pub(crate) fn of(engine: &Engine, namespace: &Namespace, query: &impl prost::Name) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("treering page token v1");
        let name = namespace.as_str();
        for part in [
            engine.store_id().as_bytes().as_slice(),
            name.as_bytes(),
            query_name(query).as_bytes(),
            &query.encode_to_vec(),
        ] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Self(hasher)
    }

    /// Returns the token of a place; an empty place gives an empty token.
    pub(crate) fn seal(&self, place: &str) -> String {
        match place.is_empty() {
            true => String::new(),
            false => format!("{}{place}", self.hash(place)),
        }
    }

    /// Returns the place in a token; an empty token means the beginning.
    ///
    /// # Errors
    /// [`InvalidField`] when it is not a token of this query.
    pub(crate) fn open<'t>(&self, token: &'t str) -> Result<&'t str, InvalidField> {
        if token.is_empty() {
            return Ok(token);
        }
        let parts = token.split_at_checked(DIGITS);
        let place = parts.filter(|(hash, place)| *hash == self.hash(place));
        place.map(|(_, place)| place).ok_or_else(|| {
            let message = "does not belong to this query and store: repeat the query of the \
                           previous page, or start without a token";
            InvalidField::new(FIELD, message)
        })
    }

    fn hash(&self, place: &str) -> String {
        let hash = self.0.clone().update(place.as_bytes()).finalize();
        let mut text = hash.to_hex().to_string();
        text.truncate(DIGITS);
        text
    }
}

fn query_name<M: prost::Name>(_: &M) -> &'static str {
    M::NAME
}
