//! Small pieces that many pages have: chips, badges, figures, things that fold.

use maud::{Markup, html};

/// What a badge says at a glance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// Nothing special.
    Plain,
    /// It went well.
    Good,
    /// It went wrong.
    Bad,
    /// It waits, or wants to be looked at.
    Wait,
}

impl Mood {
    /// Its class in the style sheet.
    #[must_use]
    pub fn class(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Good => "good",
            Self::Bad => "bad",
            Self::Wait => "wait",
        }
    }
}

/// A word on a coloured ground.
#[must_use]
pub fn badge(mood: Mood, word: &str) -> Markup {
    html! { span class={ "badge " (mood.class()) } { (word) } }
}

/// A filter that a click sets or takes away.
#[must_use]
pub fn chip(address: &str, word: &Markup, is_on: bool) -> Markup {
    html! {
        a.chip href=(address) aria-current=[is_on.then_some("true")] {
            (word) @if is_on { span.x aria-label="take away" { "×" } }
        }
    }
}

/// A number with what it is a number of, for rows of them at the head of a page.
#[must_use]
pub fn figure(word: &str, number: &Markup) -> Markup {
    html! { div.figure { dt { (word) } dd { (number) } } }
}

/// Something that is folded until it is wanted. Whether it is open is kept by its id.
#[must_use]
pub fn fold(id: &str, is_open: bool, head: &Markup, body: &Markup) -> Markup {
    html! { details.fold #(id) open[is_open] { summary { (head) } (body) } }
}

/// Where there is nothing to show.
#[must_use]
pub fn nothing(what: &str, hint: &Markup) -> Markup {
    html! { div.nothing { p { (what) } p.hint { (hint) } } }
}
