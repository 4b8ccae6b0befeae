//! What stands around each page: head, navigation, the page itself, help for the keyboard.

use std::convert::Infallible;

use axum::{
    body::Body,
    response::{Html, IntoResponse, Response},
};
use futures::{StreamExt, future, stream};
use http::{HeaderValue, header::CACHE_CONTROL};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{
    bounds::{PAGE_BYTES_MAX, PAGE_MAX},
    failure::PageFailure,
    pages::assets,
    parts::hostile::shown,
    visit::Here,
};

/// Where in the navigation a page stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tab {
    /// None of them.
    None,
    /// The list of conversations, and what is in them.
    Conversations,
    /// Search.
    Search,
    /// Calls that wait for a person.
    Approvals,
    /// Tools and how they do.
    Tools,
    /// The store itself.
    Store,
}

/// The tabs of the navigation, in order: tab, path, word.
pub const TABS: [(Tab, &str, &str); 5] = [
    (Tab::Conversations, "/", "Conversations"),
    (Tab::Search, "/search", "Search"),
    (Tab::Approvals, "/approvals", "Approvals"),
    (Tab::Tools, "/tools", "Tools"),
    (Tab::Store, "/store", "Store"),
];

/// A page that was made.
#[derive(Debug)]
pub struct Page(Markup);

impl IntoResponse for Page {
    fn into_response(self) -> Response {
        let text = self.0.into_string();
        if text.len() > PAGE_BYTES_MAX {
            tracing::warn!(bytes = text.len(), "a page is larger than it should be");
        }
        let mut answer = Html(text).into_response();
        // What one person may see is nothing for whoever comes after them.
        let store = HeaderValue::from_static("no-store");
        answer.headers_mut().insert(CACHE_CONTROL, store);
        answer
    }
}

/// A page in its frame; of a request for a part, the part alone.
#[must_use]
pub fn page(here: &Here, title: &str, tab: Tab, body: Markup) -> Page {
    match here.is_fragment {
        true => Page(body),
        false => Page(framed(here, title, tab, &body)),
    }
}

/// Where the rest of a page comes. Recorded text is escaped, so that it cannot have this.
const REST: &str = "<!--rest-->";

/// A page whose beginning goes out at once, because the rest takes a while to be made.
///
/// # Errors
/// Of a request for a part, what goes wrong with the rest; else that is told on the page.
pub async fn page_in_parts(
    here: &Here,
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
        text
    };
    let before = stream::once(future::ready(before.to_owned()));
    let parts = before.chain(stream::once(rest)).map(Ok::<_, Infallible>);
    let mut answer = Html(Body::from_stream(parts)).into_response();
    let store = HeaderValue::from_static("no-store");
    answer.headers_mut().insert(CACHE_CONTROL, store);
    Ok(answer)
}

fn framed(here: &Here, title: &str, tab: Tab, body: &Markup) -> Markup {
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

/// A title is recorded text, and `title` has no markup in it.
fn shown_title(title: &str) -> String {
    crate::cli::text::first_line(title, super::bounds::TITLE_CHARS)
}

fn bar(here: &Here, tab: Tab) -> Markup {
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
            a.namespace href=(here.link("/namespace")) title="The namespace that you look at" {
                (shown(&here.namespace))
            }
            @if let Some(key) = &here.key {
                span.key-name title="The key that you are logged in with" {
                    span.hidden { "key " } (shown(key))
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

/// What each form that changes something has in it: without it, it is refused.
#[must_use]
pub fn token(here: &Here) -> Markup {
    html! { input type="hidden" name="token" value=(here.token); }
}

fn keys() -> Markup {
    html! {
        dialog #keys aria-labelledby="keys-title" {
            h2 #keys-title { "Keys" }
            dl {
                dt { kbd { "j" } " " kbd { "k" } } dd { "next, previous" }
                dt { kbd { "Enter" } } dd { "open, or fold and unfold" }
                dt { kbd { "o" } } dd { "open its own page" }
                dt { kbd { "/" } } dd { "search" }
                dt { kbd { "g" } " " kbd { "G" } } dd { "to the beginning, to the end" }
                dt { kbd { "?" } } dd { "this" }
            }
            form method="dialog" { button autofocus { "Close" } }
        }
    }
}

/// Three rings of a tree.
const MARK: &str = r#"<svg viewBox="0 0 24 24" width="22" height="22" aria-hidden="true"><g fill="none" stroke="currentColor" stroke-width="1.8"><circle cx="12" cy="12" r="10"/><circle cx="11.4" cy="12.4" r="6.2"/><circle cx="11" cy="12.8" r="2.6"/></g></svg>"#;
