//! Times: relative for people, with the exact time as a tooltip; always UTC.

use maud::{Markup, html};
use prost_types::Timestamp;

use treering_present::{json::rfc3339, text::Zone};

/// Renders how long ago a time was, with the time as a tooltip.
#[must_use]
pub(crate) fn ago(time: Option<&Timestamp>) -> Markup {
    marked(time, &Zone::Utc.ago(time), true)
}

/// Renders the time of day, to the millisecond.
#[must_use]
pub(crate) fn clock(time: Option<&Timestamp>) -> Markup {
    marked(time, &Zone::Utc.clock(time), false)
}

/// Renders the date and time.
#[must_use]
pub(crate) fn moment(time: Option<&Timestamp>) -> Markup {
    marked(time, &Zone::Utc.day_clock(time), false)
}

fn marked(time: Option<&Timestamp>, text: &str, is_relative: bool) -> Markup {
    let Some(machine) = time.and_then(rfc3339) else {
        return html! { span.unknown { "—" } };
    };
    let full = format!("{} UTC", Zone::Utc.day_clock(time));
    html! { time datetime=(machine) title=(full) data-ago[is_relative] { (text) } }
}
