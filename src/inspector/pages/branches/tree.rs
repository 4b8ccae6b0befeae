//! The branches of a conversation as a tree of rows, a page at a time.
//!
//! A branch is above its forks, and the latest fork is first. The lines down to older forks thus
//! pass to the left of the forks in between.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use treering_proto::pb;

/// A branch in its row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BranchRow {
    /// The branch.
    pub(crate) branch: pb::Branch,
    /// The row of its parent, if that is among the rows.
    pub(crate) parent: Option<usize>,
    /// Number of forks between it and a root.
    pub(crate) depth: usize,
    /// Number of its direct and indirect forks.
    pub(crate) descendants: usize,
    /// Whether it is only shown as an ancestor of requested rows.
    pub(crate) is_context: bool,
}

/// The requested branches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BranchChoice {
    /// Only those whose name contains this, ignoring case.
    pub(crate) name: String,
    /// Leave out archived branches.
    pub(crate) without_archived: bool,
    /// The page, from 0.
    pub(crate) page: usize,
    /// Show the page with this branch, and ignore `page`.
    pub(crate) at: Option<u64>,
}

/// A page of a tree.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TreePage {
    /// In order, a parent before its forks.
    pub(crate) rows: Vec<BranchRow>,
    /// The page, from 0.
    pub(crate) number: usize,
    /// Number of pages, at least one.
    pub(crate) pages: usize,
    /// Number of requested branches on all pages.
    pub(crate) wanted: usize,
}

/// Maximum number of ancestors of a row that are shown in addition.
const CONTEXT_ROWS_MAX: usize = 6;

/// Returns the rows of a page.
#[must_use]
pub(crate) fn page(branches: Vec<pb::Branch>, choice: &BranchChoice, rows_max: usize) -> TreePage {
    let rows = in_order(branches);
    let name = choice.name.to_lowercase();
    let is_wanted = |row: &BranchRow| {
        (name.is_empty() || row.branch.name.to_lowercase().contains(&name))
            && !(choice.without_archived && row.branch.archived)
    };
    let wanted: Vec<usize> = (0..rows.len()).filter(|at| is_wanted(&rows[*at])).collect();
    let pages = wanted.len().div_ceil(rows_max).max(1);
    let is_it = |at: &usize| Some(rows[*at].branch.branch_id) == choice.at;
    let number = match wanted.iter().position(is_it) {
        Some(place) => place / rows_max,
        None => choice.page.min(pages - 1),
    };
    let shown: Vec<usize> = wanted
        .iter()
        .copied()
        .skip(number * rows_max)
        .take(rows_max)
        .collect();
    TreePage {
        rows: with_context(&rows, &shown),
        number,
        pages,
        wanted: wanted.len(),
    }
}

/// Returns all rows, a parent before its forks.
fn in_order(branches: Vec<pb::Branch>) -> Vec<BranchRow> {
    let ids: BTreeSet<u64> = branches.iter().map(|branch| branch.branch_id).collect();
    let mut forks: BTreeMap<u64, Vec<pb::Branch>> = BTreeMap::new();
    let mut waiting: Vec<(pb::Branch, Option<usize>)> = Vec::new();
    for branch in branches {
        let parent = branch.parent_branch_id;
        // A root has no parent, or a parent in another conversation.
        if branch.branch_id == 0 || parent == branch.branch_id || !ids.contains(&parent) {
            waiting.push((branch, None));
        } else {
            forks.entry(parent).or_default().push(branch);
        }
    }
    waiting.reverse();
    let mut rows: Vec<BranchRow> = Vec::new();
    while let Some((branch, parent)) = waiting.pop() {
        let at = rows.len();
        let mut own = forks.remove(&branch.branch_id).unwrap_or_default();
        // A stack: the earliest fork is pushed first and comes out last.
        own.sort_by_key(|fork| (fork.fork_revision, fork.branch_id));
        waiting.extend(own.into_iter().map(|fork| (fork, Some(at))));
        rows.push(BranchRow {
            branch,
            parent,
            depth: parent.map_or(0, |parent| rows[parent].depth + 1),
            descendants: 0,
            is_context: false,
        });
    }
    for at in (0..rows.len()).rev() {
        if let Some(parent) = rows[at].parent {
            rows[parent].descendants += rows[at].descendants + 1;
        }
    }
    rows
}

/// Returns the shown rows and their nearest ancestors, from which their lines start.
fn with_context(rows: &[BranchRow], shown: &[usize]) -> Vec<BranchRow> {
    let wanted: BTreeSet<usize> = shown.iter().copied().collect();
    let mut all = wanted.clone();
    let rows_max = 2 * shown.len() + CONTEXT_ROWS_MAX;
    for at in shown {
        let mut ancestor = rows[*at].parent;
        for _ in 0..CONTEXT_ROWS_MAX {
            let Some(parent) = ancestor else { break };
            if all.len() >= rows_max || !all.insert(parent) {
                break;
            }
            ancestor = rows[parent].parent;
        }
    }
    let places: HashMap<usize, usize> = all
        .iter()
        .enumerate()
        .map(|(place, at)| (*at, place))
        .collect();
    all.iter()
        .map(|at| BranchRow {
            parent: rows[*at]
                .parent
                .and_then(|parent| places.get(&parent).copied()),
            is_context: !wanted.contains(at),
            ..rows[*at].clone()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn branch(branch_id: u64, parent_branch_id: u64, fork_revision: u64) -> pb::Branch {
        pb::Branch {
            branch_id,
            name: format!("b{branch_id}"),
            parent_branch_id,
            fork_revision,
            head: branch_id + 1,
            ..Default::default()
        }
    }

    fn names(page: &TreePage) -> Vec<&str> {
        page.rows
            .iter()
            .map(|row| row.branch.name.as_str())
            .collect()
    }

    fn some() -> Vec<pb::Branch> {
        vec![
            branch(0, 0, 0),
            branch(10, 0, 3),
            branch(11, 0, 7),
            branch(12, 10, 10),
            branch(13, 0, 7),
        ]
    }

    // Lines must not cross the lanes of other branches: the latest fork must be nearest to its
    // parent, with its own forks under it.
    #[test]
    fn parent_precedes_its_forks_and_latest_fork_is_first() {
        let page = page(some(), &BranchChoice::default(), 100);
        assert_eq!(names(&page), ["b0", "b13", "b11", "b10", "b12"]);
        let parents: Vec<_> = page.rows.iter().map(|row| row.parent).collect();
        assert_eq!(parents, [None, Some(0), Some(0), Some(0), Some(3)]);
        assert_eq!(page.rows[0].descendants, 4);
        assert_eq!(page.rows[4].depth, 2);
    }

    // A page in the middle of a tree, or a filter, has branches whose parents are not among its
    // rows. The page must include their ancestors, and no row may be on two pages.
    #[test]
    fn page_includes_the_ancestors_of_its_rows() {
        let second = BranchChoice {
            page: 2,
            ..BranchChoice::default()
        };
        let last = page(some(), &second, 2);
        assert_eq!((last.number, last.pages, last.wanted), (2, 3, 5));
        assert_eq!(names(&last), ["b0", "b10", "b12"]);
        let context: Vec<_> = last.rows.iter().map(|row| row.is_context).collect();
        assert_eq!(context, [true, true, false]);
        let named = BranchChoice {
            name: "B12".into(),
            page: 9,
            ..BranchChoice::default()
        };
        assert_eq!(names(&page(some(), &named, 2)), ["b0", "b10", "b12"]);
        let forked = BranchChoice {
            at: Some(11),
            ..BranchChoice::default()
        };
        assert_eq!(page(some(), &forked, 2).number, 1);
    }

    // A chain of a thousand forks must neither recurse nor fill a page with ancestors.
    #[test]
    fn ancestors_of_a_deep_chain_are_limited() {
        let chain = (1..1_000).map(|id| branch(id, id - 1, id)).collect();
        let choice = BranchChoice {
            page: 99,
            ..BranchChoice::default()
        };
        let last = page(chain, &choice, 10);
        assert_eq!(last.rows.len(), 9 + CONTEXT_ROWS_MAX);
        assert_eq!(last.rows[0].parent, None);
        assert_eq!(last.rows.last().map(|row| row.depth), Some(998));
    }

    #[test]
    fn archived_branches_can_be_hidden() {
        let mut branches = some();
        branches[2].archived = true;
        let choice = BranchChoice {
            without_archived: true,
            ..BranchChoice::default()
        };
        let page = page(branches, &choice, 100);
        assert_eq!(names(&page), ["b0", "b13", "b10", "b12"]);
    }
}
