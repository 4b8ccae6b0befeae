//! Pages of what is long.

use maud::{Markup, html};

use super::numbers::count;

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

/// The ways through a long text, from a part of it: addresses, where there is something.
#[derive(Debug, Default)]
pub struct Ways {
    /// To its beginning.
    pub first: Option<String>,
    /// To what is before the part.
    pub before: Option<String>,
    /// To what is after it, and the line that that is of.
    pub after: Option<(String, Option<u64>)>,
    /// To its end.
    pub last: Option<String>,
}

impl Ways {
    /// Links; the page has them above the part and below it, and each says which.
    #[must_use]
    pub fn markup(&self, place: &str) -> Markup {
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
                        "Go on" @if let Some(line) = line { " in line " (count(*line)) } " →"
                    }
                }
                @if let Some(to) = last { a href=(to) { "↓ To the end" } }
            }
        }
    }
}
