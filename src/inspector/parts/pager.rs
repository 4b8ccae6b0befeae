//! Links between the pages of a long list or text.

use maud::{Markup, html};

use super::numbers::count;

/// Renders links to the previous and next page, each given as address and label.
#[must_use]
pub(crate) fn pager(
    before: Option<(String, &str)>,
    after: Option<(String, &str)>,
    place: &str,
) -> Markup {
    html! {
        // The element appears above and below a list, so it is not a landmark: two landmarks with
        // one name cannot be told apart.
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

/// Addresses of other parts of a long text, where they exist.
#[derive(Debug, Default)]
pub(crate) struct PagerLinks {
    /// The beginning.
    pub(crate) first: Option<String>,
    /// The part before.
    pub(crate) before: Option<String>,
    /// The part after, and its first line.
    pub(crate) after: Option<(String, Option<u64>)>,
    /// The end.
    pub(crate) last: Option<String>,
}

impl PagerLinks {
    /// Renders the links. A page has them above and below the part; `place` is "above" or "below".
    #[must_use]
    pub(crate) fn markup(&self, place: &str) -> Markup {
        let Self {
            first,
            before,
            after,
            last,
        } = self;
        if first.is_none() && last.is_none() {
            return html! {};
        }
        html! {
            nav.pager.through aria-label={ "Parts of the text, " (place) " this one" } {
                @if let Some(to) = first { a href=(to) { "↑ To the beginning" } }
                @if let Some(to) = before { a href=(to) rel="prev" { "← Earlier" } }
                @if let Some((to, line)) = after {
                    a href=(to) rel="next" {
                        "Continue" @if let Some(line) = line { " at line " (count(*line)) } " →"
                    }
                }
                @if let Some(to) = last { a href=(to) { "↓ To the end" } }
            }
        }
    }
}
