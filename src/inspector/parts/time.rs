//! Times: how long ago for people, the moment for whoever wants it; always UTC.

use maud::{Markup, html};
use prost_types::Timestamp;

use crate::cli::{
    json::rfc3339,
    text::{ago as ago_text, clock as clock_text, day_clock},
};

/// How long ago; the moment itself on pointing at it.
#[must_use]
pub fn ago(time: Option<&Timestamp>) -> Markup {
    marked(time, &ago_text(time), true)
}

/// The time of day, to the millisecond.
#[must_use]
pub fn clock(time: Option<&Timestamp>) -> Markup {
    marked(time, &clock_text(time), false)
}

/// The day and the time of it.
#[must_use]
pub fn moment(time: Option<&Timestamp>) -> Markup {
    marked(time, &day_clock(time), false)
}

fn marked(time: Option<&Timestamp>, text: &str, is_relative: bool) -> Markup {
    let Some(machine) = time.and_then(rfc3339) else {
        return html! { span.unknown { "—" } };
    };
    let full = format!("{} UTC", day_clock(time));
    html! { time datetime=(machine) title=(full) data-ago[is_relative] { (text) } }
}

/// A length of time, from milliseconds.
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
