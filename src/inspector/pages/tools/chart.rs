//! Small drawings beside numbers. The numbers are in the table, so the drawings have no text
//! alternative.

use std::time::Duration;

use maud::{Markup, html};

use treering_present::tool_stats::ToolNumbers;

/// Length of a bar in pixels.
const BAR_PX: f64 = 120.0;
/// The shortest duration with a visible length, in milliseconds.
const LEAST_MS: f64 = 1.0;

/// Renders the outcomes of the calls, as a bar relative to the tool with the most calls.
#[must_use]
pub(crate) fn outcomes(of: &ToolNumbers, most: u64) -> Markup {
    let succeeded = of.calls - of.failed - of.stopped - of.open;
    let parts = [
        ("good", succeeded),
        ("bad", of.failed),
        ("plain", of.stopped),
        ("wait", of.open),
    ];
    let mut x = 0.0;
    html! {
        svg.bar width=(BAR_PX) height="10" aria-hidden="true" {
            @for (class, number) in parts {
                @if number > 0 {
                    @let width = share(number, most) * BAR_PX;
                    rect class=(class) x=(px(x)) y="0" width=(px(width.max(1.0))) height="10" {}
                    @let () = x += width;
                }
            }
        }
    }
}

/// Renders a bar from the median duration to the 95th percentile, on a logarithmic scale.
#[must_use]
pub(crate) fn times(of: &ToolNumbers, slowest: Duration) -> Markup {
    let (Some(p50), Some(p95)) = (of.percentile(50), of.percentile(95)) else {
        return html! {};
    };
    let from = place(p50, slowest);
    let to = place(p95, slowest);
    html! {
        svg.bar width=(BAR_PX) height="10" aria-hidden="true" {
            line.ground x1="0" x2=(BAR_PX) y1="5" y2="5" {}
            line.range x1=(px(from)) x2=(px(to)) y1="5" y2="5" {}
            circle.p50 cx=(px(from)) cy="5" r="3" {}
            circle.p95 cx=(px(to)) cy="5" r="4" {}
        }
    }
}

fn place(took: Duration, slowest: Duration) -> f64 {
    let decades = |time: Duration| (time.as_secs_f64() * 1_000.0).max(LEAST_MS).log10();
    let whole = decades(slowest).max(1.0);
    4.0 + (decades(took) / whole).clamp(0.0, 1.0) * (BAR_PX - 8.0)
}

#[allow(clippy::cast_precision_loss)] // For pixels.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    part as f64 / whole as f64
}

/// Formats pixels for an attribute.
fn px(pixels: f64) -> String {
    format!("{pixels:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    // With one failed call in ten thousand, or a call of zero duration, a drawing must contain
    // valid numbers and stay in its column.
    #[test]
    fn chart_bars_stay_in_their_column() {
        let of = ToolNumbers {
            calls: 10_000,
            failed: 1,
            took: vec![Duration::ZERO, Duration::from_secs(86_400)],
            ..ToolNumbers::default()
        };
        for drawn in [
            outcomes(&of, 10_000),
            outcomes(&of, 0),
            times(&of, Duration::from_secs(86_400)),
            times(&of, Duration::ZERO),
        ] {
            let drawn = drawn.into_string();
            assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{drawn}");
        }
        assert!(place(Duration::from_secs(1), Duration::ZERO) <= BAR_PX);
        assert!(
            times(&ToolNumbers::default(), Duration::ZERO)
                .into_string()
                .is_empty()
        );
    }
}
