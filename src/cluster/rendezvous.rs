//! Rendezvous hashing: which node should own a shard.

use treering_domain::ShardId;

/// Returns the node that should own a shard: the one whose name has the highest hash with the
/// shard. When one of N nodes joins or leaves, only the shards that it gets or had change owner.
///
/// Every node must compute the same, so the hash never changes: BLAKE3 of the shard as 4
/// little-endian bytes and the name. `None` if there are no nodes.
#[must_use]
pub fn desired_owner<'a>(shard: ShardId, nodes: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    nodes.max_by_key(|name| {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&shard.0.to_le_bytes());
        hasher.update(name.as_bytes());
        (*hasher.finalize().as_bytes(), *name)
    })
}

/// Returns the node that should own a shard, and the one that follows it: the second in the order of
/// hashes, which should own the shard when the first is gone.
pub(crate) fn owner_and_follower<'a>(
    shard: ShardId,
    nodes: &[&'a str],
) -> (Option<&'a str>, Option<&'a str>) {
    let owner = desired_owner(shard, nodes.iter().copied());
    let others = nodes.iter().copied().filter(|node| Some(*node) != owner);
    (owner, desired_owner(shard, others))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn owners(names: &[String], shards: u32) -> Vec<&str> {
        (0..shards)
            .map(|shard| desired_owner(ShardId(shard), names.iter().map(String::as_str)).unwrap())
            .collect()
    }

    proptest! {
        // A change of membership must not move shards between nodes that stay: each move closes an
        // engine and opens another.
        #[test]
        fn only_shards_of_the_new_node_move(
            names in proptest::collection::btree_set("[a-z]{1,8}", 2..8),
            order: prop::sample::Index,
        ) {
            let all: Vec<_> = names.into_iter().collect();
            let new = all[order.index(all.len())].clone();
            let before: Vec<_> = all.iter().filter(|name| **name != new).cloned().collect();
            let (then, now) = (owners(&before, 512), owners(&all, 512));
            let moved = then.iter().zip(&now).filter(|(then, now)| then != now);
            let moved: Vec<_> = moved.map(|(_, now)| *now).collect();
            prop_assert!(moved.iter().all(|now| *now == new));
            // One in N on average, and with 512 shards never much more.
            let fair = 512.0 / all.len() as f64;
            prop_assert!((moved.len() as f64) < fair + 5.0 * fair.sqrt(), "{} of {fair}", moved.len());
        }
    }
}
