//! Pages of what is long.

use maud::{Markup, html};

/// Links to the neighbours of a page: address and word, where there is one.
#[must_use]
pub fn pager(before: Option<(String, &str)>, after: Option<(String, &str)>, place: &str) -> Markup {
    html! {
        // Above and below a list it stands twice: as a landmark it could not be told from itself.
        div.pager role="group" aria-label="Pages of this list" {
            @match before {
                Some((address, word)) => a href=(address) rel="prev" { "← " (word) },
                None => span {},
            }
            span.place { (place) }
            @match after {
                Some((address, word)) => a href=(address) rel="next" { (word) " →" },
                None => span {},
            }
        }
    }
}
