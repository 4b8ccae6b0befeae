//! Branches from `x.parent`.

use serde_json::Value;

use super::is_compaction;
use crate::importer::tree::{Parent, Tree};

/// A message without `x.parent` follows the one before it, and so does one whose
/// parent is not there or null: lists are cut and joined, and what was cut off is no
/// reason to leave out of the history all that is still there.
pub(super) fn places<'a>(messages: impl Iterator<Item = &'a Value>) -> Tree {
    let mut tree = Tree::default();
    for message in messages {
        let index = tree.next_index();
        let parent = message.get("x").and_then(|x| x.get("parent"));
        let earlier = parent
            .and_then(Value::as_u64)
            .and_then(|parent| usize::try_from(parent).ok())
            .filter(|parent| *parent < index);
        let link = match parent {
            _ if earlier.is_some() => Parent::Fits,
            None => Parent::Fits,
            Some(Value::Null) if index == 0 || is_compaction(message) => Parent::Fits,
            Some(Value::Null) => Parent::Denied,
            Some(_) => Parent::NotFound,
        };
        match earlier {
            _ if index == 0 => tree.continues(tree.current(), link),
            Some(parent) => {
                let branch = tree.nodes[parent].branch;
                if tree.tip(branch) == Some(parent) {
                    tree.continues(branch, link);
                } else {
                    tree.forks(Some(parent));
                }
            }
            None => tree.continues(tree.current(), link),
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

    // The first child goes on, others fork; a parent that comes later must not be
    // followed; and one that is null in the middle (its message was cut off) forked
    // at the beginning, so that the model lost all that was before it.
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
                (0, Continues),
                (1, Forks { parent: 0 }),
                (1, Continues),
                (1, Continues),
            ]
        );
        let odd = places([json!({"x": {"parent": 7}}), json!({"x": {"parent": -1}})].iter());
        assert!(odd.nodes.iter().all(|node| node.parent == Parent::NotFound));
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
