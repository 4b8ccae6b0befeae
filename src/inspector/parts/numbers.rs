//! Renders numbers in tables.

use maud::{Markup, html};

pub(crate) use treering_present::text::{bytes_human, count, things};

/// Renders a number as a table cell, empty for zero. A narrow screen shows the label too.
#[must_use]
pub(crate) fn cell(number: u64, word: &str) -> Markup {
    html! { td.number data-word=(word) { @if number > 0 { (count(number)) } } }
}

/// Renders a size, with the exact number as a tooltip.
#[must_use]
pub(crate) fn size(bytes: u64) -> Markup {
    html! { span.number title={ (count(bytes)) " bytes" } { (bytes_human(bytes)) } }
}
