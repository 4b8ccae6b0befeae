//! Numbers, which stand under each other.

use maud::{Markup, html};

pub use crate::cli::text::{bytes_human, count, things};

/// A number of a column; nothing for none. The word is shown where there is no room for columns.
#[must_use]
pub fn cell(number: u64, word: &str) -> Markup {
    html! { td.number data-word=(word) { @if number > 0 { (count(number)) } } }
}

/// A size; the exact one on pointing at it.
#[must_use]
pub fn size(bytes: u64) -> Markup {
    html! { span.number title={ (count(bytes)) " bytes" } { (bytes_human(bytes)) } }
}
