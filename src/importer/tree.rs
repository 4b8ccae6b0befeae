//! Which branch each message of a source belongs to: what importers work out
//! before they build anything.

use std::collections::HashSet;

use super::timeline::BranchIndex;

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

#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) branch: BranchIndex,
    pub(super) place: Place,
    /// Its parent is no earlier message.
    pub(super) parent_unknown: bool,
    /// It is kept beside the messages, and is none.
    pub(super) is_beside: bool,
}

#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) nodes: Vec<Node>,
    /// Messages that a branch leaves.
    pub(super) forked: HashSet<usize>,
    /// The last message of each branch.
    tips: Vec<usize>,
}

impl Tree {
    /// The next message's index.
    pub(super) fn next_index(&self) -> usize {
        self.nodes.len()
    }

    /// The branch of the last message.
    pub(super) fn current(&self) -> BranchIndex {
        self.nodes
            .last()
            .map_or(BranchIndex::MAIN, |node| node.branch)
    }

    /// The last message of a branch; none before the first.
    pub(super) fn tip(&self, branch: BranchIndex) -> Option<usize> {
        self.tips.get(branch.0).copied()
    }

    /// Adds a message that goes on where `branch` is.
    pub(super) fn continues(&mut self, branch: BranchIndex, parent_unknown: bool) {
        let index = self.next_index();
        match self.tips.get_mut(branch.0) {
            Some(tip) => *tip = index,
            None => self.tips.push(index),
        }
        self.nodes.push(Node {
            branch,
            place: Place::Continues,
            parent_unknown,
            is_beside: false,
        });
    }

    /// Adds something that is kept beside the messages of `branch`.
    pub(super) fn beside(&mut self, branch: BranchIndex) {
        self.nodes.push(Node {
            branch,
            place: Place::Continues,
            parent_unknown: false,
            is_beside: true,
        });
    }

    /// Adds a message that opens a branch: after `parent`, or at the root.
    pub(super) fn forks(&mut self, parent: Option<usize>) {
        let branch = BranchIndex(self.tips.len().max(1));
        let index = self.next_index();
        if self.tips.is_empty() {
            self.tips.push(index);
        }
        self.tips.push(index);
        self.forked.extend(parent);
        self.nodes.push(Node {
            branch,
            place: parent.map_or(Place::ForksRoot, |parent| Place::Forks { parent }),
            parent_unknown: false,
            is_beside: false,
        });
    }
}
