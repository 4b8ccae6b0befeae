//! Layout of the drawing of branches: one row per branch, revisions to the right.

use std::collections::BTreeMap;

use super::tree::BranchRow;

/// Height of a row in pixels.
pub(crate) const ROW_PX: u32 = 30;
/// Width of the branch names in pixels.
pub(crate) const NAMES_PX: u32 = 190;
/// Margin at the right end in pixels.
const END_PX: u32 = 24;
/// Height of the axis above the first row in pixels.
pub(crate) const TOP_PX: u32 = 26;
/// Smallest and largest width of all revisions in pixels.
const SPAN_PX: std::ops::RangeInclusive<f64> = 880.0..=2_400.0;
/// Approximate width of each place at which something is drawn, in pixels.
const PLACE_PX: f64 = 16.0;
/// Smallest distance between two labels of the axis, in pixels.
const LABEL_PX: f64 = 64.0;

/// The kind of a mark on a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TreeMarkKind {
    /// A compaction.
    Compaction,
    /// A sub-context began, with its conversation.
    Spawned(String),
    /// A sub-context ended, with its conversation.
    Returned(String),
}

/// A mark on a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TreeMark {
    /// The branch.
    pub(crate) branch_id: u64,
    /// The revision.
    pub(crate) revision: u64,
    /// The kind.
    pub(crate) kind: TreeMarkKind,
}

/// The line of a branch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TreeLane {
    /// The centre of its row.
    pub(crate) y: u32,
    /// Where it forks from its parent.
    pub(crate) from_x: f64,
    /// The row of its parent; `None`: the parent is not drawn.
    pub(crate) from_y: Option<u32>,
    /// Its last event.
    pub(crate) to_x: f64,
    /// Its marks with their positions.
    pub(crate) marks: Vec<(f64, TreeMark)>,
}

/// The layout.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TreeLayout {
    /// In pixels.
    pub(crate) width: u32,
    /// In pixels.
    pub(crate) height: u32,
    /// One for each row.
    pub(crate) lanes: Vec<TreeLane>,
    /// Revisions on the axis with their positions.
    pub(crate) axis: Vec<(f64, u64)>,
}

/// Computes the layout. The scale is not linear: the width between two places with something to
/// draw is proportional to the logarithm of the number of events between them.
#[must_use]
pub(crate) fn layout(rows: &[BranchRow], marks: &[TreeMark]) -> TreeLayout {
    let places = places(rows, marks);
    let span = places.values().copied().fold(0.0, f64::max);
    let x = |revision: u64| f64::from(NAMES_PX) + places.get(&revision).copied().unwrap_or(0.0);
    let y = |row: usize| TOP_PX + ROW_PX * u32::try_from(row).unwrap_or(u32::MAX / ROW_PX - 1);
    let middle = |row: usize| y(row) + ROW_PX / 2;
    let lanes = rows.iter().enumerate().map(|(at, row)| TreeLane {
        y: middle(at),
        from_x: x(start(row)),
        from_y: row.parent.map(middle),
        to_x: x(row.branch.head),
        marks: marks
            .iter()
            .filter(|mark| mark.branch_id == row.branch.branch_id)
            .map(|mark| (x(mark.revision), mark.clone()))
            .collect(),
    });
    TreeLayout {
        width: NAMES_PX + whole(span) + END_PX,
        height: y(rows.len()) + 8,
        lanes: lanes.collect(),
        axis: axis(&places),
    }
}

/// Returns the revision at which a branch's line begins: its fork, or the first event of the
/// conversation.
fn start(row: &BranchRow) -> u64 {
    match row.branch.branch_id {
        0 => 1,
        _ => row.branch.fork_revision.max(1),
    }
}

/// Returns each revision at which something is drawn, with its distance from the left in pixels.
fn places(rows: &[BranchRow], marks: &[TreeMark]) -> BTreeMap<u64, f64> {
    let mut weights: BTreeMap<u64, f64> = BTreeMap::new();
    let of_rows = rows.iter().flat_map(|row| [start(row), row.branch.head]);
    let of_marks = marks.iter().map(|mark| mark.revision);
    for revision in of_rows.chain(of_marks) {
        weights.insert(revision, 0.0);
    }
    let (mut before, mut sum) = (None, 0.0);
    for (revision, weight) in &mut weights {
        sum += before.map_or(0.0, |before| distance(*revision - before));
        before = Some(*revision);
        *weight = sum;
    }
    let count = u32::try_from(weights.len()).unwrap_or(u32::MAX);
    let span = (f64::from(count) * PLACE_PX).clamp(*SPAN_PX.start(), *SPAN_PX.end());
    for weight in weights.values_mut() {
        *weight = if sum > 0.0 { *weight / sum * span } else { 0.0 };
    }
    weights
}

/// Returns the relative width of a number of events.
#[allow(clippy::cast_precision_loss)] // For a logarithm.
fn distance(events: u64) -> f64 {
    (events as f64 + 1.0).log2()
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // At most SPAN_PX.
fn whole(pixels: f64) -> u32 {
    pixels.ceil() as u32
}

/// Returns revisions that are far enough apart for labels; the last one is among them.
fn axis(places: &BTreeMap<u64, f64>) -> Vec<(f64, u64)> {
    let mut labels: Vec<(f64, u64)> = Vec::new();
    for (revision, place) in places.iter().rev() {
        let next = labels.last().map_or(f64::INFINITY, |(x, _)| *x);
        if next - (place + f64::from(NAMES_PX)) >= LABEL_PX {
            labels.push((place + f64::from(NAMES_PX), *revision));
        }
    }
    labels.reverse();
    labels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::branches::tree;
    use treering_proto::pb;

    fn branch(branch_id: u64, parent: u64, fork_revision: u64, head: u64) -> pb::Branch {
        pb::Branch {
            branch_id,
            parent_branch_id: parent,
            fork_revision,
            head,
            ..Default::default()
        }
    }

    fn rows(branches: Vec<pb::Branch>) -> Vec<BranchRow> {
        tree::page(branches, &tree::BranchChoice::default(), 1_000).rows
    }

    // A fork must leave its parent at its revision, later revisions must be further to the right,
    // and everything must be inside the drawing.
    #[test]
    fn layout_places_later_events_further_right() {
        let rows = rows(vec![branch(0, 0, 0, 100), branch(101, 0, 40, 120)]);
        let mark = TreeMark {
            branch_id: 101,
            revision: 110,
            kind: TreeMarkKind::Compaction,
        };
        let layout = layout(&rows, std::slice::from_ref(&mark));
        let [main, fork] = &layout.lanes[..] else {
            panic!("{layout:?}")
        };
        assert!(main.from_x < fork.from_x && fork.from_x < main.to_x);
        assert!(main.to_x < fork.marks[0].0 && fork.marks[0].0 < fork.to_x);
        assert_eq!(fork.from_y, Some(main.y));
        assert_eq!(fork.y - main.y, ROW_PX);
        assert!(fork.to_x <= f64::from(layout.width) && fork.y < layout.height);
        assert_eq!(fork.marks[0].1, mark);
        assert!(main.marks.is_empty());
    }

    // A fork after three of a hundred thousand events must not be at the very edge, where the
    // events before it are invisible.
    #[test]
    fn early_fork_of_a_long_branch_is_visible() {
        let layout = layout(
            &rows(vec![
                branch(0, 0, 0, 100_000),
                branch(100_001, 0, 3, 100_005),
            ]),
            &[],
        );
        let before = layout.lanes[1].from_x - layout.lanes[0].from_x;
        assert!(before > 20.0, "{before}");
    }

    // A thousand forks, and a conversation of one event: nothing may be outside the drawing, and no
    // number may be NaN or infinite.
    #[test]
    fn layout_of_extreme_trees_stays_inside_the_drawing() {
        let many = (1..1_000).map(|id| branch(id, 0, id % 7, id)).collect();
        for rows in [rows(many), rows(vec![branch(0, 0, 0, 1)]), Vec::new()] {
            let layout = layout(&rows, &[]);
            assert!(layout.width <= 2_400 + NAMES_PX + END_PX);
            for lane in &layout.lanes {
                assert!(lane.from_x.is_finite() && lane.to_x.is_finite());
                assert!(lane.to_x <= f64::from(layout.width));
            }
            let near = layout
                .axis
                .windows(2)
                .find(|two| two[1].0 - two[0].0 < LABEL_PX);
            assert_eq!(near, None);
        }
    }
}
