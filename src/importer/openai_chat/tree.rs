//! Branches from `x.parent`.

use serde_json::Value;

use super::is_compaction;
use crate::importer::tree::Tree;

/// A message without `x.parent` follows the one before it. One whose parent is
/// null is a root: it opens a branch, unless it is where a compaction happened,
/// which goes on where the list was.
pub(super) fn places<'a>(messages: impl Iterator<Item = &'a Value>) -> Tree {
    let mut tree = Tree::default();
    for message in messages {
        let index = tree.next_index();
        let parent = message.get("x").and_then(|x| x.get("parent"));
        let earlier = parent
            .and_then(Value::as_u64)
            .and_then(|parent| usize::try_from(parent).ok())
            .filter(|parent| *parent < index);
        let is_root = parent.is_some_and(Value::is_null) && !is_compaction(message);
        let unknown = parent.is_some_and(|parent| !parent.is_null()) && earlier.is_none();
        match earlier {
            _ if index == 0 => tree.continues(tree.current(), unknown),
            Some(parent) => {
                let branch = tree.nodes[parent].branch;
                if tree.tip(branch) == Some(parent) {
                    tree.continues(branch, false);
                } else {
                    tree.forks(Some(parent));
                }
            }
            None if is_root => tree.forks(None),
            None => tree.continues(tree.current(), unknown),
        }
    }
    tree
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::importer::{timeline::BranchIndex, tree::Place};

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
