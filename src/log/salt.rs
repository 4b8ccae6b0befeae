//! Salts: they keep a body's hash from revealing the body.
//!
//! A record's body hash is keyed with 16 random bytes, its salt. Erasing a body erases its salt;
//! the remaining hash, and the chain computed from it, then fit any body. Storing a salt for each
//! record would add a fifth to the log, so salts are the leaves of trees: a node determines the
//! salts of a range of offsets, and only those. To erase a leaf, the nodes beside its path are
//! stored instead of a node above it. See `docs/FORMAT.md` and
//! `docs/decisions/0009-salted-body-hashes.md`.

use std::{cell::RefCell, fmt, ops::RangeInclusive, sync::Arc};

use uuid::Uuid;

use super::record::Record;
use treering_domain::ContentHash;

/// Length of a salt and of a tree node's key, in bytes.
pub(crate) const SALT_BYTES: usize = 16;
/// Height of a tree. A tree has the salts of 2^16 offsets and begins at a multiple of that number.
pub(crate) const TREE_HEIGHT: u8 = 16;
/// Length of a stored node, in bytes: its height and its key.
pub(super) const NODE_BYTES: usize = 1 + SALT_BYTES;

/// The purpose of a keyed hash: the second half of its key.
const BELOW: [u8; 16] = *b"treering salts 1";
const BODY: [u8; 16] = *b"treering body  1";
const APPEND_KEY: [u8; 16] = *b"treering append1";

fn keyed(salt: [u8; SALT_BYTES], purpose: [u8; 16], content: &[u8]) -> [u8; 32] {
    let mut key = [0; 32];
    key[..SALT_BYTES].copy_from_slice(&salt);
    key[SALT_BYTES..].copy_from_slice(&purpose);
    *blake3::keyed_hash(&key, content).as_bytes()
}

/// Returns 16 unpredictable bytes.
fn random() -> [u8; SALT_BYTES] {
    // Each UUID has 122 random bits.
    let two = [Uuid::new_v4().into_bytes(), Uuid::new_v4().into_bytes()].concat();
    let mut bytes = [0; SALT_BYTES];
    bytes.copy_from_slice(&blake3::hash(&two).as_bytes()[..SALT_BYTES]);
    bytes
}

/// A tree node: the salts of the offsets that agree in all but their lowest `height` bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SaltNode {
    /// The first offset below it.
    first: u64,
    height: u8,
    key: [u8; SALT_BYTES],
}

impl fmt::Debug for SaltNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SaltNode({}, {})", self.first, self.height)
    }
}

impl SaltNode {
    /// Returns the node of this height above an offset; `None` when no tree is that high.
    pub(super) fn new(offset: u64, height: u8, key: [u8; SALT_BYTES]) -> Option<Self> {
        (height <= TREE_HEIGHT).then(|| Self::above(offset, height, key))
    }

    fn above(offset: u64, height: u8, key: [u8; SALT_BYTES]) -> Self {
        Self {
            first: offset >> height << height,
            height,
            key,
        }
    }

    /// Returns the offsets below it.
    fn range(&self) -> RangeInclusive<u64> {
        let last = (1_u64 << self.height) - 1;
        self.first..=self.first.saturating_add(last)
    }

    pub(super) fn height(&self) -> u8 {
        self.height
    }

    pub(super) fn key(&self) -> [u8; SALT_BYTES] {
        self.key
    }

    pub(super) fn covers(&self, offset: u64) -> bool {
        offset >> self.height == self.first >> self.height
    }

    /// Returns the node of a lower height above an offset that this node covers.
    fn below(&self, offset: u64, height: u8) -> Self {
        let mut key = self.key;
        for level in (height..self.height).rev() {
            key = child(key, offset, level);
        }
        Self::above(offset, height, key)
    }
}

/// Returns the key of a node's child at `level` that is above an offset.
fn child(key: [u8; SALT_BYTES], offset: u64, level: u8) -> [u8; SALT_BYTES] {
    let both = keyed(key, BELOW, b"");
    let (left, right) = both.split_at(SALT_BYTES);
    let side = if offset >> level & 1 == 0 {
        left
    } else {
        right
    };
    let mut key = [0; SALT_BYTES];
    key.copy_from_slice(side);
    key
}

/// The salt of a record: a leaf of a tree.
#[derive(Clone)]
pub struct Salt {
    node: Arc<SaltNode>,
    offset: u64,
}

impl PartialEq for Salt {
    /// Compares values; the nodes from which they are derived may differ.
    fn eq(&self, other: &Self) -> bool {
        self.value() == other.value()
    }
}

impl fmt::Debug for Salt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Salt({})", self.offset)
    }
}

impl Salt {
    /// Creates a random salt outside any tree.
    #[must_use]
    pub fn random() -> Self {
        Self::of(random())
    }

    /// Creates a salt from its bytes.
    #[must_use]
    pub fn of(bytes: [u8; SALT_BYTES]) -> Self {
        Self::below(&Arc::new(SaltNode::above(0, 0, bytes)), 0)
    }

    /// Returns the salt of an offset that the node covers.
    pub(super) fn below(node: &Arc<SaltNode>, offset: u64) -> Self {
        Self {
            node: Arc::clone(node),
            offset,
        }
    }

    fn value(&self) -> [u8; SALT_BYTES] {
        PATHS.with_borrow_mut(|paths| leaf(paths, &self.node, self.offset))
    }

    /// Returns the highest known node from which the salt can be derived, for the record at an
    /// offset.
    pub(super) fn node_at(&self, offset: u64) -> SaltNode {
        if self.node.height > 0 && self.offset == offset {
            return *self.node;
        }
        // The salt belongs to no tree, or to a record that was at another offset.
        SaltNode::above(offset, 0, self.value())
    }

    /// Returns the offsets whose salts the node of [`Self::node_at`] determines.
    pub(super) fn range_at(&self, offset: u64) -> RangeInclusive<u64> {
        self.node_at(offset).range()
    }

    /// Computes the salted hash of a body from its plain hash. Without the salt it reveals nothing
    /// about the body.
    #[must_use]
    pub fn hash(self, body: ContentHash) -> SaltedHash {
        SaltedHash {
            hash: self.body_hash(body),
            salt: self,
        }
    }

    pub(super) fn body_hash(&self, body: ContentHash) -> ContentHash {
        ContentHash(keyed(self.value(), BODY, &body.0))
    }
}

/// A body's hash and the salt used for it.
#[derive(Clone, Debug, PartialEq)]
pub struct SaltedHash {
    pub(super) hash: ContentHash,
    pub(super) salt: Salt,
}

/// The salt of an idempotency key's content hash. It is independent of the salts of the batch's
/// records: each of those can be erased by itself, and this one is erased with the first of them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeySalt(pub [u8; SALT_BYTES]);

impl fmt::Debug for KeySalt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySalt")
    }
}

impl KeySalt {
    /// Creates an unpredictable salt.
    #[must_use]
    pub fn random() -> Self {
        Self(random())
    }

    /// Computes the salted hash of a batch's content from the plain one.
    #[must_use]
    pub fn hash(self, content: ContentHash) -> ContentHash {
        ContentHash(keyed(self.0, APPEND_KEY, &content.0))
    }
}

/// Creates the salts of new records.
#[derive(Debug, Default)]
pub struct SaltSource {
    root: Option<Arc<SaltNode>>,
}

impl SaltSource {
    /// Returns the salt of the record at an offset.
    pub fn at(&mut self, offset: u64) -> Salt {
        let root = match self.root.take() {
            Some(root) if root.covers(offset) => root,
            _ => Arc::new(SaltNode::above(offset, TREE_HEIGHT, random())),
        };
        let salt = Salt::below(&root, offset);
        self.root = Some(root);
        salt
    }

    /// Starts a new tree for the following records, because salts of the current one are to be
    /// erased.
    pub fn renew(&mut self) {
        self.root = None;
    }
}

thread_local! {
    /// Records are hashed in order, so most of the path to a leaf is also the path to the previous
    /// one. Two paths, because a comparison of records goes down from two nodes in turn.
    static PATHS: RefCell<[Path; 2]> = const { RefCell::new([Path::new(), Path::new()]) };
}

/// Returns the key of a leaf, by the path of its node if that is cached.
fn leaf(paths: &mut [Path; 2], node: &SaltNode, offset: u64) -> [u8; SALT_BYTES] {
    if node.height == 0 {
        return node.key;
    }
    if paths[0].node != Some(*node) {
        // The other path is this node's, or the one that was used longer ago and is replaced.
        paths.swap(0, 1);
    }
    paths[0].leaf(node, offset)
}

/// A cached path from a node down to a leaf.
struct Path {
    node: Option<SaltNode>,
    offset: u64,
    keys: [[u8; SALT_BYTES]; TREE_HEIGHT as usize + 1],
}

impl Path {
    const fn new() -> Self {
        Self {
            node: None,
            offset: 0,
            keys: [[0; SALT_BYTES]; TREE_HEIGHT as usize + 1],
        }
    }

    fn leaf(&mut self, node: &SaltNode, offset: u64) -> [u8; SALT_BYTES] {
        let known = self.node.is_some_and(|known| known == *node);
        let differ = if known {
            // The bits from the highest differing one down.
            (u64::BITS - (self.offset ^ offset).leading_zeros()) as u8
        } else {
            node.height
        };
        let top = differ.min(node.height);
        if !known {
            self.keys[usize::from(node.height)] = node.key;
        }
        for level in (0..top).rev() {
            self.keys[usize::from(level)] = child(self.keys[usize::from(level) + 1], offset, level);
        }
        self.node = Some(*node);
        self.offset = offset;
        self.keys[0]
    }
}

/// The highest known nodes above the salts of a frame's records. They may cover more offsets than
/// the frame has. That reveals no erased salt: erasing one rewrites the frames below its tree with
/// nodes that cover nothing else, or as blocks, which store only such nodes.
#[derive(Debug, Default)]
pub(super) struct FrameSalts {
    last: Option<SaltNode>,
    bytes: Vec<u8>,
}

impl FrameSalts {
    /// Adds the salt of the next record. Returns false when the last node would give it a different
    /// salt: the record must then begin a new frame.
    pub(super) fn push(&mut self, offset: u64, salt: Option<&Salt>) -> bool {
        let Some(node) = salt.map(|salt| salt.node_at(offset)) else {
            return true;
        };
        match &self.last {
            Some(last) if *last == node => return true,
            Some(last) if last.covers(offset) => return false,
            _ => {}
        }
        self.bytes.push(node.height);
        self.bytes.extend_from_slice(&node.key);
        self.last = Some(node);
        true
    }

    /// Returns the nodes as stored.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn count(&self) -> usize {
        self.bytes.len() / NODE_BYTES
    }

    /// Drops the nodes after the first `bytes` bytes.
    pub(super) fn truncate(&mut self, bytes: usize) {
        self.bytes.truncate(bytes);
    }
}

/// Returns the nodes that cover exactly the salts of the records from an offset on, each with the
/// index of its first record. `None` stands for a record whose salt is erased.
pub(super) fn cover<'a>(
    first_offset: u64,
    salts: impl IntoIterator<Item = Option<&'a Salt>>,
) -> Vec<(usize, SaltNode)> {
    let mut nodes = Vec::new();
    let mut run: Option<Run> = None;
    for (index, salt) in salts.into_iter().enumerate() {
        let offset = first_offset.wrapping_add(index as u64);
        let node = salt.map(|salt| salt.node_at(offset));
        match (&mut run, node) {
            (Some(run), Some(node)) if run.goes_on(&node, offset) => run.len += 1,
            (_, node) => {
                if let Some(run) = run.take() {
                    run.cover(first_offset, &mut nodes);
                }
                run = node.map(|node| Run {
                    node,
                    index,
                    len: 1,
                });
            }
        }
    }
    if let Some(run) = run {
        run.cover(first_offset, &mut nodes);
    }
    nodes
}

/// Returns the first and the last offset of the tree that an offset belongs to.
pub(super) fn tree_of(offset: u64) -> (u64, u64) {
    let all = SaltNode::above(offset, TREE_HEIGHT, [0; SALT_BYTES]).range();
    (*all.start(), *all.end())
}

/// Replaces the nodes from which salts are derived by nodes that determine only the salts of these
/// records, the first of which has `first_offset`.
pub(super) fn narrow(first_offset: u64, records: &mut [Record]) {
    let salts = records.iter().map(|record| record.salt.as_ref());
    for (first, node) in cover(first_offset, salts) {
        let count = 1_usize << node.height;
        let node = Arc::new(node);
        let below = records.iter_mut().enumerate().skip(first).take(count);
        for (index, record) in below {
            let offset = first_offset.wrapping_add(index as u64);
            record.salt = Some(Salt::below(&node, offset));
        }
    }
}

/// Consecutive records below one node.
struct Run {
    node: SaltNode,
    index: usize,
    len: u64,
}

impl Run {
    fn goes_on(&self, node: &SaltNode, offset: u64) -> bool {
        self.node == *node && node.height > 0 && node.covers(offset)
    }

    /// Adds the highest nodes that cover nothing else.
    fn cover(&self, first_offset: u64, nodes: &mut Vec<(usize, SaltNode)>) {
        let mut done = 0;
        while done < self.len {
            let index = self.index + done as usize;
            let offset = first_offset.wrapping_add(index as u64);
            let aligned = offset.trailing_zeros() as u8;
            let fits = (self.len - done).ilog2() as u8;
            let height = aligned.min(fits).min(self.node.height);
            nodes.push((index, self.node.below(offset, height)));
            done += 1 << height;
        }
    }
}

#[cfg(test)]
mod tests;
