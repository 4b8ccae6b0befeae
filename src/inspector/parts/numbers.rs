//! Numbers in columns.

use maud::{Markup, html};

pub(crate) use treering_present::text::{bytes_human, count, things};

/// Renders a number of a column; empty for zero. The label is shown where there is no space for
/// columns.
#[must_use]
pub(crate) fn cell(number: u64, word: &str) -> Markup {
    html! { td.number data-word=(word) { @if number > 0 { (count(number)) } } }
}

/// Renders a size, with the exact number as a tooltip.
#[must_use]
pub(crate) fn size(bytes: u64) -> Markup {
    html! { span.number title={ (count(bytes)) " bytes" } { (bytes_human(bytes)) } }
}
