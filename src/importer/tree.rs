//! Which branch each message of a source belongs to: what importers work out
//! before they build anything.

use std::collections::HashSet;

use super::{Oddity, timeline::BranchIndex};

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

/// What a message says of the one that it follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parent {
    /// One that is there, or nothing at all.
    Fits,
    /// One that is not there before it.
    NotFound,
    /// That it follows nothing, though it is not the first.
    Denied,
}

impl Parent {
    /// What is odd about it.
    pub(super) fn oddity(self) -> Option<Oddity> {
        match self {
            Self::Fits => None,
            Self::NotFound => Some(Oddity::ParentNotFound),
            Self::Denied => Some(Oddity::RootInside),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) branch: BranchIndex,
    pub(super) place: Place,
    pub(super) parent: Parent,
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
    pub(super) fn continues(&mut self, branch: BranchIndex, parent: Parent) {
        let index = self.next_index();
        match self.tips.get_mut(branch.0) {
            Some(tip) => *tip = index,
            None => self.tips.push(index),
        }
        self.nodes.push(Node {
            branch,
            place: Place::Continues,
            parent,
            is_beside: false,
        });
    }

    /// Adds a message to the end of `branch` that nothing follows: the next one follows what
    /// it would have without it.
    pub(super) fn joins(&mut self, branch: BranchIndex) {
        self.nodes.push(Node {
            branch,
            place: Place::Continues,
            parent: Parent::Fits,
            is_beside: false,
        });
    }

    /// Adds something that is kept beside the messages of `branch`.
    pub(super) fn beside(&mut self, branch: BranchIndex) {
        self.nodes.push(Node {
            branch,
            place: Place::Continues,
            parent: Parent::Fits,
            is_beside: true,
        });
    }

    /// Adds a message that opens a branch: after `parent`, or at the root.
    pub(super) fn forks(&mut self, after: Option<usize>) {
        let branch = BranchIndex(self.tips.len().max(1));
        let index = self.next_index();
        if self.tips.is_empty() {
            self.tips.push(index);
        }
        self.tips.push(index);
        self.forked.extend(after);
        self.nodes.push(Node {
            branch,
            place: after.map_or(Place::ForksRoot, |parent| Place::Forks { parent }),
            parent: Parent::Fits,
            is_beside: false,
        });
    }
}
