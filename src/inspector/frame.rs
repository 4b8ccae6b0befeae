//! The layout around each page: head, navigation, the page itself, keyboard help.

use std::convert::Infallible;

use axum::{
    body::Body,
    response::{Html, IntoResponse, Response},
};
use futures::{StreamExt, future, stream};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{
    bounds::{PAGE_BYTES_MAX, PAGE_MAX},
    failure::PageFailure,
    pages::assets,
    parts::escape::{escape_inline, referenced},
    request_context::RequestAddress,
};

/// The navigation tab of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tab {
    /// No tab.
    None,
    /// Conversations, and the pages of a single conversation.
    Conversations,
    /// Search.
    Search,
    /// Calls that wait for approval.
    Approvals,
    /// Tools and their statistics.
    Tools,
    /// Tokens and costs of model calls.
    Usage,
    /// The store.
    Store,
}

/// The tabs in order: tab, path, label.
pub(crate) const TABS: [(Tab, &str, &str); 6] = [
    (Tab::Conversations, "/", "Conversations"),
    (Tab::Search, "/search", "Search"),
    (Tab::Approvals, "/approvals", "Approvals"),
    (Tab::Tools, "/tools", "Tools"),
    (Tab::Usage, "/usage", "Tokens"),
    (Tab::Store, "/store", "Store"),
];

/// A rendered page.
#[derive(Debug)]
pub(crate) struct Page(Markup);

impl IntoResponse for Page {
    fn into_response(self) -> Response {
        let text = referenced(self.0.into_string());
        if text.len() > PAGE_BYTES_MAX {
            tracing::warn!(bytes = text.len(), "a page exceeds the size limit");
        }
        Html(text).into_response()
    }
}

/// Returns a page in its frame, or only the body if a fragment was requested.
#[must_use]
pub(crate) fn page(here: &RequestAddress, title: &str, tab: Tab, body: Markup) -> Page {
    match here.is_fragment {
        true => Page(body),
        false => Page(framed(here, title, tab, &body)),
    }
}

/// Marks where the rest of a page is inserted. Recorded text is escaped, so it cannot contain this.
const REST: &str = "<!--rest-->";

/// Returns a page whose beginning is sent at once, because the rest takes time.
///
/// # Errors
/// If a fragment was requested, errors of the rest; otherwise the page shows them.
pub(crate) async fn page_in_parts(
    here: &RequestAddress,
    title: &str,
    tab: Tab,
    beginning: Markup,
    rest: impl Future<Output = Result<Markup, PageFailure>> + Send + 'static,
) -> Result<Response, PageFailure> {
    let marked = html! { (beginning) (PreEscaped(REST)) };
    let whole = page(here, title, tab, marked).0.into_string();
    let (before, after) = whole.split_once(REST).unwrap_or((&whole, ""));
    if here.is_fragment {
        return Ok(Page(html! { (beginning) (rest.await?) }).into_response());
    }
    let after = after.to_owned();
    let rest = async move {
        let made = tokio::time::timeout(PAGE_MAX, rest).await;
        let made = made.unwrap_or_else(|_| Err(PageFailure::too_long()));
        let mut text = made
            .unwrap_or_else(|failure| failure.markup())
            .into_string();
        text.push_str(&after);
        referenced(text)
    };
    let before = stream::once(future::ready(referenced(before.to_owned())));
    let parts = before.chain(stream::once(rest)).map(Ok::<_, Infallible>);
    Ok(Html(Body::from_stream(parts)).into_response())
}

fn framed(here: &RequestAddress, title: &str, tab: Tab, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="robots" content="noindex";
                meta name="referrer" content="same-origin";
                title { (shown_title(title)) " · Treering" }
                link rel="icon" href=(assets::address("icon.svg")) type="image/svg+xml";
                link rel="stylesheet" href=(assets::address("style.css"));
                script src=(assets::address("inspector.js")) defer {}
            }
            body data-base=(here.base) {
                a.skip href="#main" { "Skip to the page" }
                header.top { (bar(here, tab)) }
                main #main tabindex="-1" { (body) }
                (keys())
            }
        }
    }
}

/// Returns a title as one line of text, because the `title` element cannot contain markup.
fn shown_title(title: &str) -> String {
    treering_present::text::first_line(title, super::bounds::TITLE_CHARS)
}

fn bar(here: &RequestAddress, tab: Tab) -> Markup {
    html! {
        a.brand href=(here.link("/")) aria-label="Treering: conversations" { (PreEscaped(MARK)) span { "Treering" } }
        nav.tabs aria-label="Pages" {
            @for (one, path, word) in TABS {
                a href=(here.link(path)) aria-current=[(one == tab).then_some("page")] { (word) }
            }
        }
        form.find action=(here.link("/search")) role="search" aria-label="Everything" {
            label.hidden for="find" { "Search" }
            input #find type="search" name="q" placeholder="Search" data-search
                autocomplete="off" spellcheck="false";
            kbd { "/" }
        }
        div.who {
            a.namespace href=(here.link("/namespace")) title="The current namespace" {
                (escape_inline(&here.namespace))
            }
            @if let Some(key) = &here.key {
                span.key-name title="The key of this login" {
                    span.hidden { "key " } (escape_inline(key))
                }
            }
            @if here.has_session {
                form method="post" action=(here.link("/logout")) {
                    (token(here))
                    button.quiet { "Log out" }
                }
            }
        }
    }
}

/// Renders the token that each form that changes something must contain.
#[must_use]
pub(crate) fn token(here: &RequestAddress) -> Markup {
    html! { input type="hidden" name="token" value=(here.token); }
}

fn keys() -> Markup {
    html! {
        dialog #keys aria-labelledby="keys-title" {
            h2 #keys-title { "Keys" }
            dl {
                dt { kbd { "j" } " " kbd { "k" } } dd { "next, previous" }
                dt { kbd { "Enter" } } dd { "open, or expand and collapse" }
                dt { kbd { "o" } } dd { "open its own page" }
                dt { kbd { "/" } } dd { "search" }
                dt { kbd { "g" } " " kbd { "G" } } dd { "to the beginning, to the end" }
                dt { kbd { "?" } } dd { "this" }
            }
            form method="dialog" { button autofocus { "Close" } }
        }
    }
}

/// Icon: three rings of a tree.
const MARK: &str = r#"<svg viewBox="0 0 24 24" width="22" height="22" aria-hidden="true"><g fill="none" stroke="currentColor" stroke-width="1.8"><circle cx="12" cy="12" r="10"/><circle cx="11.4" cy="12.4" r="6.2"/><circle cx="11" cy="12.8" r="2.6"/></g></svg>"#;
