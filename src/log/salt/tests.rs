//! Trees of salts: which salts follow from which nodes, and which do not.

use proptest::prelude::*;

use super::*;

/// Returns the salts for a list of nodes, as the decoders of frames and blocks derive them.
fn read(nodes: &[SaltNode], offsets: impl IntoIterator<Item = u64>) -> Vec<[u8; SALT_BYTES]> {
    let mut nodes = nodes.iter();
    let mut last: Option<Arc<SaltNode>> = None;
    offsets
        .into_iter()
        .map(|offset| {
            let node = match last.take().filter(|node| node.covers(offset)) {
                Some(node) => node,
                None => Arc::new(*nodes.next().unwrap()),
            };
            let value = Salt::below(&node, offset).value();
            last = Some(node);
            value
        })
        .collect()
}

/// Computes a salt without the cached path.
fn slowly(node: &SaltNode, offset: u64) -> [u8; SALT_BYTES] {
    node.below(offset, 0).key
}

proptest! {
    #[test]
    fn cover_derives_only_the_kept_salts(
        first in 1_u64..200_000,
        count in 1_usize..300,
        renewed in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
        erased in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        // After an erasure, the store must not reveal the salt: no stored node may be above it, and
        // the other salts must still be derivable.
        let renewed: Vec<_> = renewed.iter().map(|at| at.index(count)).collect();
        let erased: Vec<_> = erased.iter().map(|at| at.index(count)).collect();
        let mut source = SaltSource::default();
        let salts: Vec<_> = (0..count)
            .map(|index| {
                if renewed.contains(&index) {
                    source.renew();
                }
                source.at(first + index as u64)
            })
            .collect();
        for (offset, salt) in (first..).zip(&salts) {
            prop_assert_eq!(salt.value(), slowly(&salt.node, offset));
        }
        let kept = |index: usize| !erased.contains(&index);
        let left = salts.iter().enumerate().map(|(index, salt)| kept(index).then_some(salt));
        let nodes = cover(first, left);
        for index in 0..count {
            let offset = first + index as u64;
            let above = nodes.iter().filter(|(_, node)| node.covers(offset)).count();
            prop_assert_eq!(above, usize::from(kept(index)), "of {}", index);
        }
        let stay = (0..count).filter(|index| kept(*index));
        let nodes: Vec<_> = nodes.into_iter().map(|(_, node)| node).collect();
        let given = read(&nodes, stay.clone().map(|index| first + index as u64));
        let wanted: Vec<_> = stay.map(|index| salts[index].value()).collect();
        prop_assert_eq!(given, wanted);
    }

    #[test]
    fn frame_salts_round_trip(
        first in 1_u64..200_000,
        kinds in prop::collection::vec(0_u8..12, 1..200),
    ) {
        // Salts of one tree, of another tree after it, outside any tree, and erased ones: a frame
        // accepts them in order, or says that the next one begins another frame.
        let mut source = SaltSource::default();
        let mut frame = FrameSalts::default();
        let mut taken = Vec::new();
        for (offset, kind) in (first..).zip(kinds) {
            let salt = match kind {
                0 => None,
                1 => Some(Salt::random()),
                2 => {
                    source.renew();
                    Some(source.at(offset))
                }
                _ => Some(source.at(offset)),
            };
            if !frame.push(offset, salt.as_ref()) {
                prop_assert!(kind == 1 || kind == 2, "only what is not of the tree before");
                break;
            }
            taken.extend(salt.map(|salt| (offset, salt.value())));
        }
        let (nodes, rest) = frame.bytes().as_chunks::<NODE_BYTES>();
        prop_assert!(rest.is_empty() && nodes.len() == frame.count());
        let mut nodes = nodes.iter();
        let mut last: Option<SaltNode> = None;
        for (offset, value) in taken {
            let node = last.filter(|node| node.covers(offset)).unwrap_or_else(|| {
                let [height, key @ ..] = nodes.next().unwrap();
                SaltNode::new(offset, *height, *key).unwrap()
            });
            prop_assert_eq!(slowly(&node, offset), value);
            last = Some(node);
        }
        prop_assert!(nodes.next().is_none());
    }
}

// Storing a salt for each record would add a fifth to the log. A block of a hundred records stores
// a few nodes, wherever it begins.
#[test]
fn block_stores_few_salt_nodes() {
    let mut source = SaltSource::default();
    for first in [1, 65_500, 123_457] {
        let salts: Vec<_> = (first..first + 100).map(|at| source.at(at)).collect();
        let nodes = cover(first, salts.iter().map(Some)).len();
        assert!(nodes <= 12, "{nodes} from {first} on");
        // An erased salt costs the nodes beside its path.
        let left = salts.iter().enumerate();
        let left = left.map(|(index, salt)| (index != 50).then_some(salt));
        let punctured = cover(first, left).len();
        assert!(punctured <= nodes + 7, "{punctured} from {first} on");
    }
}

// A store keeps a hash of an erased body: with the salt any guess can be verified, without it every
// guess fits equally well.
#[test]
fn hash_depends_on_the_salt() {
    let body = ContentHash(blake3::hash(b"the code is 0123456789").into());
    let (salt, other) = (Salt::random(), Salt::random());
    assert_eq!(salt.body_hash(body), salt.clone().hash(body).hash);
    assert_ne!(salt.body_hash(body), other.body_hash(body));
    assert_ne!(salt.body_hash(body), body);
    let key = KeySalt::random();
    assert_ne!(key.hash(body), KeySalt::random().hash(body));
    // A key for one purpose is useless for another.
    let same = Salt::of(key.0);
    assert_ne!(key.hash(body), same.body_hash(body));
}

// Salts must be derived in the same way for ever: what one version wrote must be readable by the
// next.
#[test]
fn salt_derivation_does_not_change() {
    let node = SaltNode::new(5, TREE_HEIGHT, *b"0123456789abcdef").unwrap();
    let hex = |bytes: [u8; SALT_BYTES]| ContentHash([bytes, [0; 16]].concat().try_into().unwrap());
    let salt = Salt::below(&Arc::new(node), 5);
    let leaf = hex(salt.value()).to_string();
    assert_eq!(&leaf[..32], "459230d811f63c1c74b3a420c1e7fcbe");
    let hash = salt.body_hash(ContentHash([7; 32])).to_string();
    assert_eq!(
        hash,
        "3f055986042a719c36c85564695a717c106c1457f8cf26c94b248bcfbdcf5009"
    );
    let hash = KeySalt(*b"0123456789abcdef").hash(ContentHash([7; 32]));
    assert_eq!(
        hash.to_string(),
        "fae90ed7de0eba55351b4e568d2ac8017d72478a0ab727476bfcf1e4645d0579"
    );
}
