//! The drawing of branches. The list under it has the same content as text, so the drawing is
//! hidden from screen readers and its links cannot get the focus.

use maud::{Markup, html};

use super::{
    layout::{self, TreeLane, TreeLayout, TreeMark, TreeMarkKind},
    tree::BranchRow,
};
use crate::{
    parts::place::{ConversationPlace, link, moment},
    request_context::RequestContext,
};
use treering_present::text::{count, first_line, printable};

/// Characters of a name beside its lane.
const NAME_CHARS: usize = 22;
/// Corner radius at a fork in pixels.
const CORNER_PX: f64 = 7.0;

/// Renders the drawing.
#[must_use]
pub(crate) fn drawing(
    request_context: &RequestContext,
    place: &ConversationPlace,
    rows: &[BranchRow],
    marks: &[TreeMark],
) -> Markup {
    let layout = layout::layout(rows, marks);
    let (width, height) = (layout.width, layout.height);
    html! {
        figure.tree aria-hidden="true" {
            div.scroll {
                svg width=(width) height=(height) viewBox={ "0 0 " (width) " " (height) } {
                    (axis(&layout))
                    @for lane in &layout.lanes { (line(lane)) }
                    @for (row, lane) in rows.iter().zip(&layout.lanes) {
                        (row_of(request_context, place, row, lane))
                    }
                }
            }
            figcaption {
                span.key.tip {} " last event "
                span.key.compaction {} " compaction "
                span.key.child {} " sub-context"
            }
        }
    }
}

fn axis(layout: &TreeLayout) -> Markup {
    let bottom = layout.height - 8;
    html! {
        g.axis {
            @for (x, revision) in &layout.axis {
                line x1=(px(*x)) x2=(px(*x)) y1=(layout::TOP_PX - 6) y2=(bottom) {}
                text x=(px(*x)) y="14" text-anchor="middle" { "#" (count(*revision)) }
            }
        }
    }
}

/// Renders a lane, with the line from its parent.
fn line(lane: &TreeLane) -> Markup {
    let y = f64::from(lane.y);
    let (from, to) = (lane.from_x, lane.to_x.max(lane.from_x));
    let path = match lane.from_y {
        Some(parent) => {
            let corner = CORNER_PX.min((to - from).max(0.0));
            format!(
                "M{} {parent}V{}Q{} {} {} {}H{}",
                px(from),
                px(y - corner),
                px(from),
                px(y),
                px(from + corner),
                px(y),
                px(to)
            )
        }
        None => format!("M{} {}H{}", px(from), px(y), px(to)),
    };
    html! { path.lane d=(path) {} }
}

fn row_of(
    request_context: &RequestContext,
    place: &ConversationPlace,
    row: &BranchRow,
    lane: &TreeLane,
) -> Markup {
    let branch = &row.branch;
    let name = branch.name.as_str();
    let state = match (branch.active, branch.archived, row.is_context) {
        (true, ..) => "branch active",
        (_, true, _) => "branch archived",
        (.., true) => "branch context",
        _ => "branch",
    };
    html! {
        g class=(state) {
            a href=(place.link(request_context, "", &[("branch", name)])) tabindex="-1" {
                title { (printable(name)) }
                text x="4" y=(lane.y + 4) { (first_line(name, NAME_CHARS)) }
                line.guide x1=(layout::NAMES_PX - 8) x2=(px(lane.from_x)) y1=(lane.y) y2=(lane.y) {}
            }
            @if let (Some(parent), revision) = (lane.from_y, branch.fork_revision) {
                a href=(moment(request_context, &place.id, name, revision)) tabindex="-1" {
                    title { "forked after #" (count(revision)) }
                    circle.fork cx=(px(lane.from_x)) cy=(parent) r="4" {}
                }
            }
            @for (x, mark) in &lane.marks { (mark_of(request_context, place, name, (*x, lane.y), mark)) }
            a href=(moment(request_context, &place.id, name, branch.head)) tabindex="-1" {
                title { (printable(name)) ": last event #" (count(branch.head)) }
                circle.tip cx=(px(lane.to_x)) cy=(lane.y) r="5.5" {}
            }
        }
    }
}

fn mark_of(
    request_context: &RequestContext,
    place: &ConversationPlace,
    branch: &str,
    (x, y): (f64, u32),
    mark: &TreeMark,
) -> Markup {
    let here = moment(request_context, &place.id, branch, mark.revision);
    let revision = count(mark.revision);
    html! {
        @match &mark.kind {
            TreeMarkKind::Compaction => {
                a href=(here) tabindex="-1" {
                    title { "compaction #" (revision) }
                    rect.compaction x=(px(x - 3.0)) y=(y - 8) width="6" height="16" rx="2" {}
                }
            }
            TreeMarkKind::Spawned(child) => {
                a href=(link(request_context, child, "", &[])) tabindex="-1" {
                    title { "sub-context, spawned at #" (revision) }
                    rect.child x=(px(x - 5.0)) y=(y - 5) width="10" height="10" rx="1" {}
                }
            }
            TreeMarkKind::Returned(_) => {
                a href=(here) tabindex="-1" {
                    title { "sub-context returned at #" (revision) }
                    rect.child.returned x=(px(x - 4.0)) y=(y - 4) width="8" height="8" rx="1" {}
                }
            }
        }
    }
}

/// Formats pixels for an attribute.
fn px(pixels: f64) -> String {
    format!("{pixels:.1}")
}
