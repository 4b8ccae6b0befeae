//! Times: relative for people, with the exact time as a tooltip; always UTC.

use maud::{Markup, html};
use prost_types::Timestamp;

use treering_present::{json::rfc3339, text::Zone};

/// Renders how long ago a time was, with the time as a tooltip.
#[must_use]
pub fn ago(time: Option<&Timestamp>) -> Markup {
    marked(time, &Zone::Utc.ago(time), true)
}

/// Renders the time of day, to the millisecond.
#[must_use]
pub fn clock(time: Option<&Timestamp>) -> Markup {
    marked(time, &Zone::Utc.clock(time), false)
}

/// Renders the date and time.
#[must_use]
pub fn moment(time: Option<&Timestamp>) -> Markup {
    marked(time, &Zone::Utc.day_clock(time), false)
}

fn marked(time: Option<&Timestamp>, text: &str, is_relative: bool) -> Markup {
    let Some(machine) = time.and_then(rfc3339) else {
        return html! { span.unknown { "—" } };
    };
    let full = format!("{} UTC", Zone::Utc.day_clock(time));
    html! { time datetime=(machine) title=(full) data-ago[is_relative] { (text) } }
}

/// Formats a duration in milliseconds.
#[must_use]
#[allow(clippy::cast_precision_loss)] // Two digits are shown.
pub fn took(milliseconds: u64) -> String {
    match milliseconds {
        0..1_000 => format!("{milliseconds} ms"),
        1_000..60_000 => format!("{:.1} s", milliseconds as f64 / 1_000.0),
        60_000..3_600_000 => format!(
            "{} min {} s",
            milliseconds / 60_000,
            milliseconds % 60_000 / 1_000
        ),
        _ => format!(
            "{} h {} min",
            milliseconds / 3_600_000,
            milliseconds % 3_600_000 / 60_000
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_told_in_the_unit_that_fits() {
        for (milliseconds, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_250, "1.2 s"),
            (61_000, "1 min 1 s"),
            (7_260_000, "2 h 1 min"),
        ] {
            assert_eq!(took(milliseconds), text);
        }
        assert!(ago(None).into_string().contains('—'));
    }
}
