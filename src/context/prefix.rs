//! Compares the prefix of a request with that of the previous request.

use super::{draft::Draft, explain::SharedPrefix, provider::CacheUnit};
use treering_domain::Revision;

/// The units of a sent request: their hashes and sizes, not their text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentUnits {
    revision: Revision,
    units: Vec<SentUnit>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct SentUnit {
    hash: u128,
    bytes: u64,
    tokens: u64,
}

impl SentUnits {
    /// Creates it from the units of a body. If an item has several units, its tokens are divided
    /// among them by bytes.
    #[must_use]
    pub fn new(revision: Revision, draft: &Draft, units: &[CacheUnit]) -> Self {
        let mut bytes_of_item = vec![0_u64; draft.items.len()];
        for unit in units {
            for item in &unit.items {
                if let Some(bytes) = bytes_of_item.get_mut(*item) {
                    *bytes += unit.bytes;
                }
            }
        }
        let mut bytes_given = vec![0_u64; draft.items.len()];
        let mut tools = draft.tools_tokens;
        let mut sent = Vec::with_capacity(units.len());
        for unit in units {
            let mut tokens = 0;
            if unit.items.is_empty() {
                tokens += std::mem::take(&mut tools);
            }
            for &item in &unit.items {
                let (Some(all), Some(given)) = (bytes_of_item.get(item), bytes_given.get_mut(item))
                else {
                    continue;
                };
                let of_item = draft.items[item].tokens;
                // Differences of cumulative shares, so that the shares add up exactly.
                let before = share(of_item, *given, *all);
                *given += unit.bytes;
                tokens += share(of_item, *given, *all) - before;
            }
            sent.push(SentUnit {
                hash: unit.hash,
                bytes: unit.bytes,
                tokens,
            });
        }
        Self {
            revision,
            units: sent,
        }
    }

    /// Memory use, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        (size_of::<Self>() + self.units.capacity() * size_of::<SentUnit>()) as u64
    }

    /// Returns the prefix that this request shares with the previous one.
    #[must_use]
    pub fn shared_with(&self, previous: &Self) -> SharedPrefix {
        let equal = self
            .units
            .iter()
            .zip(&previous.units)
            .take_while(|(now, then)| now.hash == then.hash);
        let mut shared = SharedPrefix {
            bytes: 0,
            tokens: 0,
            previous_bytes: previous.units.iter().map(|unit| unit.bytes).sum(),
            previous_tokens: previous.units.iter().map(|unit| unit.tokens).sum(),
            previous_revision: previous.revision,
        };
        for (unit, _) in equal {
            shared.bytes += unit.bytes;
            shared.tokens += unit.tokens;
        }
        shared
    }
}

fn share(tokens: u64, bytes: u64, all: u64) -> u64 {
    if all == 0 {
        return 0;
    }
    let share = u128::from(tokens) * u128::from(bytes) / u128::from(all);
    u64::try_from(share).unwrap_or(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        draft::{Content, Item, Message, Section, Speaker},
        provider::Provider,
    };

    fn draft(tokens: &[u64]) -> Draft {
        let items = tokens.iter().map(|tokens| {
            let content = Content::Message(Message::text(Speaker::User, "x"));
            let mut item = Item::new(Section::Messages, "messages", content);
            item.tokens = *tokens;
            item
        });
        Draft {
            provider: Provider::Neutral,
            config: Default::default(),
            tools: Vec::new(),
            tools_tokens: 30,
            items: items.collect(),
            warnings: Vec::new(),
        }
    }

    fn unit(hash: u8, bytes: u64, items: &[usize]) -> CacheUnit {
        CacheUnit {
            hash: u128::from(hash),
            bytes,
            items: items.to_vec(),
        }
    }

    // A step becomes several messages of a body. Its tokens must be counted once over all of them.
    // Otherwise the report overstates the cached prefix.
    #[test]
    fn tokens_of_a_step_are_counted_once_over_its_units() {
        let draft = draft(&[10, 101]);
        let units = [
            unit(0, 5, &[]),
            unit(1, 7, &[0]),
            unit(2, 10, &[1]),
            unit(3, 20, &[1]),
            unit(4, 3, &[1]),
        ];
        let sent = SentUnits::new(Revision(4), &draft, &units);
        let tokens: u64 = sent.units.iter().map(|unit| unit.tokens).sum();
        assert_eq!(tokens, 30 + 10 + 101);
        let shared = sent.shared_with(&sent);
        assert_eq!((shared.bytes, shared.tokens), (45, 141));
    }

    // Only the prefix counts: no provider caches an equal unit after a different one.
    #[test]
    fn shared_prefix_ends_at_the_first_different_unit() {
        let draft = draft(&[10, 20, 30]);
        let first = [unit(1, 7, &[0]), unit(2, 10, &[1]), unit(3, 20, &[2])];
        let second = [unit(1, 7, &[0]), unit(9, 10, &[1]), unit(3, 20, &[2])];
        let then = SentUnits::new(Revision(4), &draft, &first);
        let now = SentUnits::new(Revision(6), &draft, &second);
        let shared = now.shared_with(&then);
        assert_eq!((shared.bytes, shared.tokens), (7, 10));
        assert_eq!((shared.previous_bytes, shared.previous_tokens), (37, 60));
        assert_eq!(shared.previous_revision, Revision(4));
    }
}
