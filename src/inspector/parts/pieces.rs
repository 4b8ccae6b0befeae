//! Small elements that many pages use: chips, badges, figures, folds.

use maud::{Markup, html};

use super::escape::escaped;
use treering_present::Tone;

/// The colour of a badge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadgeColor {
    /// Neutral.
    Plain,
    /// Success.
    Good,
    /// Failure.
    Bad,
    /// Waiting, or needs attention.
    Wait,
}

impl BadgeColor {
    /// Returns the colour for the tone of a text.
    #[must_use]
    pub(crate) fn of(tone: Tone) -> Self {
        match tone {
            Tone::Good => Self::Good,
            Tone::Bad => Self::Bad,
            Tone::Wait => Self::Wait,
            Tone::Name | Tone::Dim | Tone::User | Tone::Assistant | Tone::Tool | Tone::Strong => {
                Self::Plain
            }
        }
    }

    /// Returns the CSS class.
    #[must_use]
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Good => "good",
            Self::Bad => "bad",
            Self::Wait => "wait",
        }
    }
}

/// Renders a badge.
#[must_use]
pub(crate) fn badge(mood: BadgeColor, word: &str) -> Markup {
    html! { span class={ "badge " (mood.class()) } { (escaped(word)) } }
}

/// Renders a filter that a click sets or removes.
#[must_use]
pub(crate) fn chip(address: &str, word: &Markup, is_on: bool) -> Markup {
    html! {
        a.chip href=(address) aria-current=[is_on.then_some("true")] {
            (word) @if is_on { span.x aria-label="remove" { "×" } }
        }
    }
}

/// Renders a number with its label, for the figures at the head of a page.
#[must_use]
pub(crate) fn figure(word: &str, number: &Markup) -> Markup {
    html! { div.figure { dt { (word) } dd { (number) } } }
}

/// Renders a folded part. The id stores whether it is open.
#[must_use]
pub(crate) fn fold(id: &str, is_open: bool, head: &Markup, body: &Markup) -> Markup {
    html! { details.fold #(id) open[is_open] { summary { (head) } (body) } }
}

/// Renders a note that there is nothing to show.
#[must_use]
pub(crate) fn nothing(what: &str, hint: &Markup) -> Markup {
    html! { div.nothing { p { (what) } p.hint { (hint) } } }
}
