//! A Merkle tree as in RFC 6962 (section 2.1), over BLAKE3. It is computed in one pass, and keeps
//! only the roots of complete subtrees, at most one of each height.

use treering_domain::{ContentHash, ConversationKey, Revision};

/// Prefix of the hash input for a leaf; the next one is for a node.
const LEAF: u8 = 0;
const NODE: u8 = 1;

/// A tree that grows by appending leaves.
#[derive(Clone, Debug, Default)]
pub(crate) struct MerkleTree {
    /// Heights and roots of complete subtrees from left to right, with decreasing heights.
    roots: Vec<(u32, [u8; 32])>,
}

impl MerkleTree {
    /// Appends a conversation: its key, its last revision (`u64`, big-endian) and the chain hash
    /// there.
    pub(crate) fn push(&mut self, key: ConversationKey, revision: Revision, chain: ContentHash) {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&[LEAF]);
        hasher.update(&key.to_bytes());
        hasher.update(&revision.0.to_be_bytes());
        hasher.update(&chain.0);
        self.push_hash(*hasher.finalize().as_bytes());
    }

    fn push_hash(&mut self, leaf: [u8; 32]) {
        let mut last = (0, leaf);
        while let Some(before) = self.roots.pop_if(|before| before.0 == last.0) {
            last = (last.0 + 1, node(&before.1, &last.1));
        }
        self.roots.push(last);
    }

    /// Returns the root; without leaves, the hash of no bytes.
    #[must_use]
    pub(crate) fn root(&self) -> ContentHash {
        let mut roots = self.roots.iter().rev().map(|(_, root)| *root);
        let Some(last) = roots.next() else {
            return ContentHash(*blake3::hash(&[]).as_bytes());
        };
        ContentHash(roots.fold(last, |right, left| node(&left, &right)))
    }
}

fn node(left: &[u8; 32], right: &[u8; 32]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[NODE]).update(left).update(right);
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the root by the recursive definition of the RFC.
    fn by_definition(leaves: &[[u8; 32]]) -> [u8; 32] {
        match leaves {
            [] => *blake3::hash(&[]).as_bytes(),
            [leaf] => *leaf,
            leaves => {
                let half = leaves.len().next_power_of_two() / 2;
                let (left, right) = leaves.split_at(half);
                node(&by_definition(left), &by_definition(right))
            }
        }
    }

    // A head may be checked years later and by other programs, so the tree must be the one that the
    // RFC defines, for every number of leaves.
    #[test]
    fn merkle_tree_equals_rfc_6962() {
        let mut tree = MerkleTree::default();
        let mut leaves = Vec::new();
        for number in 0..70_u8 {
            assert_eq!(tree.root().0, by_definition(&leaves), "{number} leaves");
            leaves.push([number; 32]);
            tree.push_hash([number; 32]);
            assert!(tree.roots.len() <= 7);
        }
    }

    // The bytes of a leaf must not change either.
    #[test]
    fn leaf_hash_covers_fixed_bytes() {
        let key = ConversationKey::from_bytes(&[7; 32]);
        let mut tree = MerkleTree::default();
        tree.push(key, Revision(258), ContentHash([9; 32]));
        let mut bytes = vec![0];
        bytes.extend([7; 32]);
        bytes.extend([0, 0, 0, 0, 0, 0, 1, 2]);
        bytes.extend([9; 32]);
        assert_eq!(tree.root().0, *blake3::hash(&bytes).as_bytes());
    }
}
