//! Small charts as SVG without inline styles.

use maud::{Markup, html};

const WIDTH: f64 = 240.0;
const HEIGHT: f64 = 48.0;

/// Renders a curve of values over time, from zero to their maximum, with a text alternative.
#[must_use]
#[allow(clippy::cast_precision_loss)] // Only for drawing.
pub(crate) fn curve(values: &[f64], told: &str) -> Markup {
    let most = values.iter().copied().fold(0.0, f64::max);
    let scale = if most > 0.0 {
        (HEIGHT - 4.0) / most
    } else {
        0.0
    };
    let step = WIDTH / (values.len().max(2) - 1) as f64;
    let points: Vec<String> = values
        .iter()
        .enumerate()
        .map(|(index, value)| {
            format!(
                "{:.1},{:.1}",
                index as f64 * step,
                HEIGHT - 2.0 - value * scale
            )
        })
        .collect();
    let line = points.join(" ");
    let end = step * (values.len().max(1) - 1) as f64;
    html! {
        svg.chart viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" role="img" aria-label=(told) {
            @if values.len() > 1 {
                polygon.area points={ "0," (HEIGHT) " " (line) " " (format!("{end:.1}")) "," (HEIGHT) } {}
                polyline.line points=(line) {}
            } @else {
                line.line x1="0" y1=(HEIGHT - 2.0) x2=(WIDTH) y2=(HEIGHT - 2.0) {}
            }
        }
    }
}

/// Renders a histogram: bars with a name and a number each.
#[must_use]
#[allow(clippy::cast_precision_loss)] // Only for drawing.
pub(crate) fn bars(bars: &[(String, u64)], told: &str) -> Markup {
    let most = bars
        .iter()
        .map(|(_, number)| *number)
        .max()
        .unwrap_or(0)
        .max(1);
    let step = WIDTH / bars.len().max(1) as f64;
    html! {
        svg.chart viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" role="img" aria-label=(told) {
            @for (index, (name, number)) in bars.iter().enumerate() {
                @let height = (*number as f64 / most as f64) * (HEIGHT - 4.0);
                @let height = if *number > 0 { height.max(1.5) } else { 0.0 };
                rect.bar x=(format!("{:.1}", index as f64 * step + 1.0)) y=(format!("{:.1}", HEIGHT - height))
                    width=(format!("{:.1}", (step - 2.0).max(1.0))) height=(format!("{height:.1}")) {
                    title { (name) ": " (number) }
                }
            }
        }
    }
}

/// Renders a share as a bar.
#[must_use]
#[allow(clippy::cast_precision_loss)] // Only for drawing.
pub(crate) fn share(is: u64, of: u64, told: &str) -> Markup {
    let part = if of == 0 {
        0.0
    } else {
        (is as f64 / of as f64).clamp(0.0, 1.0) * 100.0
    };
    html! {
        svg.share viewBox="0 0 100 4" preserveAspectRatio="none" role="img" aria-label=(told) {
            rect.rest x="0" y="0" width="100" height="4" {}
            rect.bar x="0" y="0" width=(format!("{part:.2}")) height="4" {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A curve of no value or one value must be drawn too: a new server has no more samples.
    #[test]
    fn charts_without_values_are_drawn() {
        for values in [&[][..], &[0.0], &[0.0, 0.0], &[1.0, 5.0, 2.0]] {
            let drawn = curve(values, "appends").into_string();
            assert!(
                drawn.starts_with("<svg") && !drawn.contains("NaN") && !drawn.contains("inf"),
                "{drawn}"
            );
        }
        assert!(!bars(&[], "x").into_string().contains("NaN"));
        assert!(share(3, 0, "x").into_string().contains("width=\"0.00\""));
        assert!(share(9, 3, "x").into_string().contains("width=\"100.00\""));
    }
}
