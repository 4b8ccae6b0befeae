//! Which branch each message of a list belongs to.

use std::collections::HashSet;

use serde_json::Value;

use super::{super::timeline::BranchIndex, is_compaction};

/// How a message comes to its branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It follows the branch's last message.
    Continues,
    /// It opens a branch that leaves another one after this message.
    Forks { parent: usize },
    /// It opens a branch that has nothing but the conversation's first event.
    ForksRoot,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) branch: BranchIndex,
    pub(super) place: Place,
    /// Its parent is no earlier message.
    pub(super) parent_unknown: bool,
}

pub(super) struct Tree {
    pub(super) nodes: Vec<Node>,
    /// Messages that a branch leaves.
    pub(super) forked: HashSet<usize>,
}

/// A message without `x.parent` follows the one before it. One whose parent is
/// null is a root: it opens a branch, unless it is where a compaction happened,
/// which goes on where the list was.
pub(super) fn places<'a>(messages: impl Iterator<Item = &'a Value>) -> Tree {
    let mut nodes: Vec<Node> = Vec::new();
    let mut forked = HashSet::new();
    // The last message of each branch.
    let mut tips: Vec<usize> = Vec::new();
    for (index, message) in messages.enumerate() {
        let parent = message.get("x").and_then(|x| x.get("parent"));
        let earlier = parent
            .and_then(Value::as_u64)
            .and_then(|parent| usize::try_from(parent).ok())
            .filter(|parent| *parent < index);
        let unknown = parent.is_some_and(|parent| !parent.is_null()) && earlier.is_none();
        let previous = nodes.last().map_or(BranchIndex::MAIN, |node| node.branch);
        let is_root = parent.is_some_and(Value::is_null) && !is_compaction(message);
        let new_branch = BranchIndex(tips.len());
        let (branch, place) = match earlier {
            _ if index == 0 => (BranchIndex::MAIN, Place::Continues),
            Some(parent) => {
                let branch = nodes[parent].branch;
                if tips[branch.0] == parent {
                    (branch, Place::Continues)
                } else {
                    forked.insert(parent);
                    (new_branch, Place::Forks { parent })
                }
            }
            None if is_root => (new_branch, Place::ForksRoot),
            None => (previous, Place::Continues),
        };
        if branch.0 == tips.len() {
            tips.push(index);
        } else {
            tips[branch.0] = index;
        }
        nodes.push(Node {
            branch,
            place,
            parent_unknown: unknown,
        });
    }
    Tree { nodes, forked }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn drawn(parents: &[Value]) -> Vec<(usize, Place)> {
        let messages: Vec<_> = parents
            .iter()
            .map(|parent| match parent {
                Value::String(_) => json!({"role": "user"}),
                parent => json!({"role": "user", "x": {"parent": parent}}),
            })
            .collect();
        let tree = places(messages.iter());
        let places = tree.nodes.iter().map(|node| (node.branch.0, node.place));
        places.collect()
    }

    // The first child goes on, others fork; two roots are two branches; and a
    // parent that comes later must not be followed.
    #[test]
    fn trees_become_branches() {
        use Place::*;
        let none = json!("none");
        assert_eq!(
            drawn(&[
                json!(null),
                json!(0),
                json!(0),
                json!(1),
                json!(2),
                json!(1)
            ]),
            [
                (0, Continues),
                (0, Continues),
                (1, Forks { parent: 0 }),
                (0, Continues),
                (1, Continues),
                (2, Forks { parent: 1 }),
            ]
        );
        assert_eq!(
            drawn(&[json!(null), json!(null), json!(0), none.clone(), none]),
            [
                (0, Continues),
                (1, ForksRoot),
                (0, Continues),
                (0, Continues),
                (0, Continues),
            ]
        );
        let odd = places([json!({"x": {"parent": 7}}), json!({"x": {"parent": -1}})].iter());
        assert!(odd.nodes.iter().all(|node| node.parent_unknown));
        assert!(
            odd.nodes
                .iter()
                .all(|node| node.branch == BranchIndex::MAIN)
        );
    }

    // A compaction starts a new root in the source, but the conversation goes on.
    #[test]
    fn a_compaction_continues() {
        let boundary = json!({"role": "system", "x": {"parent": null, "compact_boundary": {}}});
        let first = json!({"role": "user", "x": {"parent": null}});
        let tree = places([first, boundary].iter());
        assert_eq!(tree.nodes[1].place, Place::Continues);
    }
}
